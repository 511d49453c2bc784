//! The service of a load over time, and windows of about a second of it.

use super::plan::DemoLoad;

/// So many requests were served in a span of time, evenly. Times are in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Amount {
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    pub(super) count: f64,
}

impl Amount {
    pub(super) fn per_second(self) -> f64 {
        self.count * 1e3 / self.to_ms.saturating_sub(self.from_ms).max(1) as f64
    }

    /// The part that lies within a span.
    fn within(self, from_ms: u64, to_ms: u64) -> f64 {
        let overlap = self.to_ms.min(to_ms).saturating_sub(self.from_ms.max(from_ms));
        self.count * overlap as f64 / self.to_ms.saturating_sub(self.from_ms).max(1) as f64
    }
}

/// The account of one load.
#[derive(Clone, Debug)]
pub(super) struct LoadSeries {
    pub(super) load: DemoLoad,
    pub(super) amounts: Vec<Amount>,
    /// The time within which 99 of 100 requests had their reply, if the load knows.
    pub(super) p99_ms: Option<f64>,
    /// Each amount is of one period, over which the promise counts.
    pub(super) is_by_period: bool,
}

/// Amounts of a period are of at least so long: the first and the last are of a part of one.
const PERIOD_MIN_MS: u64 = 700;

impl LoadSeries {
    /// Windows of about a second from `from_ms` on, `seconds` long in all.
    pub(super) fn windows(&self, from_ms: u64, seconds: u64) -> Vec<Amount> {
        let to_ms = from_ms + seconds * 1_000;
        if self.is_by_period {
            let is_within = |amount: &&Amount| {
                amount.from_ms >= from_ms
                    && amount.to_ms <= to_ms
                    && amount.to_ms - amount.from_ms >= PERIOD_MIN_MS
            };
            return self.amounts.iter().filter(is_within).copied().collect();
        }
        let second = |number: u64| {
            let (from_ms, to_ms) = (from_ms + number * 1_000, from_ms + (number + 1) * 1_000);
            let count = self.amounts.iter().map(|amount| amount.within(from_ms, to_ms)).sum();
            Amount { from_ms, to_ms, count }
        };
        (0..seconds).map(second).collect()
    }

    /// All that was served between two times.
    pub(super) fn sum(&self, from_ms: u64, to_ms: u64) -> f64 {
        self.amounts.iter().map(|amount| amount.within(from_ms, to_ms)).sum()
    }
}

/// The amounts in fio's log of operations per second: lines of one job after those of another,
/// each with its time in milliseconds and the rate over the interval before. A job has no line for
/// an interval without operations.
pub(super) fn of_fio(text: &str, interval_ms: u64) -> Vec<Amount> {
    let line = |line: &str| {
        let mut fields = line.split(',').map(str::trim);
        Some((fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<f64>().ok()?))
    };
    let mut before: Option<u64> = None;
    let mut amounts = Vec::new();
    for (to_ms, rate) in text.lines().filter_map(line) {
        // An interval may be late. The next job's lines begin with an earlier time.
        let is_next = |before: &u64| *before < to_ms && to_ms - before < 2 * interval_ms;
        let from_ms = before.filter(is_next).unwrap_or(to_ms.saturating_sub(interval_ms));
        amounts.push(Amount { from_ms, to_ms, count: rate * (to_ms - from_ms) as f64 / 1e3 });
        before = Some(to_ms);
    }
    amounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_a_log_are_added_up() {
        let log = "1200, 100, 0, 0, 0\n1400, 50, 0, 0, 0\n1201, 10, 0, 0, 0\n1401, 20, 0, 0, 0\n";
        let amounts = of_fio(log, 200);
        assert_eq!(amounts.len(), 4);
        let series =
            LoadSeries { load: DemoLoad::Database, amounts, p99_ms: None, is_by_period: false };
        let windows = series.windows(1_000, 1);
        assert_eq!(windows.len(), 1);
        assert!((windows[0].per_second() - 36.0).abs() < 0.1, "{windows:?}");
        assert_eq!(of_fio("no log\n", 200), []);
    }

    #[test]
    fn intervals_without_operations_are_none() {
        let amounts = of_fio("1200, 5, 0, 0, 0\n2000, 5, 0, 0, 0\n2250, 4, 0, 0, 0\n", 200);
        let counts: Vec<f64> = amounts.iter().map(|amount| amount.count).collect();
        assert_eq!(counts, [1.0, 1.0, 1.0]);
    }

    #[test]
    fn an_amount_over_two_seconds_is_divided() {
        let amounts = vec![Amount { from_ms: 500, to_ms: 1_500, count: 10.0 }];
        let mut series =
            LoadSeries { load: DemoLoad::Web, amounts, p99_ms: None, is_by_period: false };
        let counts: Vec<f64> = series.windows(0, 2).iter().map(|window| window.count).collect();
        assert_eq!(counts, [5.0, 5.0]);
        assert_eq!(series.sum(0, 1_250), 7.5);
        series.is_by_period = true;
        assert_eq!(series.windows(0, 2).len(), 1, "a period as a whole");
        assert_eq!(series.windows(0, 1), [], "which is not over yet");
    }
}
