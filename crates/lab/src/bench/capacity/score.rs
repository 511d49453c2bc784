//! What a run under a measured capacity shows.

use tidegate_algo::concurrent::histogram::BucketCounts;
use tidegate_model::{Span, Time};

use crate::bench::timeline::{Timeline, first_window};

/// The part of an earlier rate that counts as all of it.
const RECOVERED: f64 = 0.95;
/// How far a budget that follows a change may be from where it belongs.
const FOLLOWED: f64 = 0.1;
/// The window in which a rate is taken: two intervals.
const WINDOW: Span = Span(200 * Span::MILLISECOND.0);

/// Counters at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct CapacitySample {
    pub(super) at: Time,
    /// Requests that the device has completed, by the kernel's count.
    pub(super) completed: u64,
    /// The times of requests behind the gate, as the program's stage has counted them.
    pub(super) times: BucketCounts,
    /// The budget in force, in operations per second.
    pub(super) budget: u64,
}

/// A run, as it was sampled.
#[derive(Clone, Debug, Default)]
pub(super) struct CapacityTrace(pub(super) Vec<CapacitySample>);

impl CapacityTrace {
    fn completed(&self) -> Timeline {
        self.0.iter().map(|sample| (sample.at, sample.completed)).collect()
    }

    fn within(&self, (from, to): (Time, Time)) -> impl Iterator<Item = &CapacitySample> {
        self.0.iter().filter(move |sample| sample.at >= from && sample.at <= to)
    }

    /// Requests per second that the device completed.
    pub(super) fn rate(&self, (from, to): (Time, Time)) -> f64 {
        self.completed().per_second(from, to.since(from))
    }

    /// The mean of the budget.
    pub(super) fn budget(&self, range: (Time, Time)) -> Option<f64> {
        let budgets = self.within(range).map(|sample| sample.budget as f64);
        let (count, sum) = budgets.fold((0u32, 0.0), |(count, sum), one| (count + 1, sum + one));
        (count > 0).then(|| sum / f64::from(count))
    }

    /// For each second, the 99th percentile of the times in it: an eighth too large at most. A
    /// second without requests has none.
    pub(super) fn seconds(&self, range: (Time, Time)) -> Vec<Option<Span>> {
        let mut samples = self.within(range);
        let Some(mut before) = samples.next() else { return Vec::new() };
        let mut seconds = Vec::new();
        for sample in samples {
            if sample.at.since(before.at) >= Span::SECOND {
                let grown: BucketCounts = sample.times.since(&before.times).collect();
                seconds.push(grown.percentile(99.0));
                before = sample;
            }
        }
        seconds
    }

    /// How long after `from` the device completes 95 % of `rate` again.
    pub(super) fn recovered(&self, (from, to): (Time, Time), rate: f64) -> Option<Span> {
        let completed = self.completed();
        let enough = |begin| completed.per_second(begin, WINDOW) >= RECOVERED * rate;
        first_window((from, to), WINDOW, enough)
    }

    /// How long after `from` the budget is within a tenth of `rate` and stays there until `to`.
    pub(super) fn followed(&self, (from, to): (Time, Time), rate: f64) -> Option<Span> {
        let is_off = |sample: &&CapacitySample| {
            (sample.budget as f64 - rate).abs() > FOLLOWED * rate
        };
        let last = self.within((from, to)).filter(is_off).last();
        let Some(last) = last else { return Some(Span::ZERO) };
        let next = self.within((from, to)).find(|sample| sample.at > last.at)?;
        Some(next.at.since(from))
    }
}

/// The part of seconds in which the percentile is within the bound, in per cent. A second without
/// requests is none.
pub(super) fn kept_percent(seconds: &[Option<Span>], bound: Span) -> Option<f64> {
    let kept = seconds.iter().filter(|p99| p99.is_some_and(|p99| p99 <= bound)).count();
    (!seconds.is_empty()).then(|| 100.0 * kept as f64 / seconds.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_algo::concurrent::histogram::Histogram;

    const EVERY: u64 = 100 * Span::MILLISECOND.0;

    /// A run of so many tenths of a second, with requests per second and a budget at each.
    fn trace(tenths: u64, state: impl Fn(u64) -> (u64, u64)) -> CapacityTrace {
        let mut completed = 0;
        let samples = (0..tenths).map(|tenth| {
            let (rate, budget) = state(tenth);
            let at = Time(tenth * EVERY);
            let sample = CapacitySample { at, completed, budget, ..CapacitySample::default() };
            completed += rate / 10;
            sample
        });
        CapacityTrace(samples.collect())
    }

    const fn at(tenth: u64) -> Time {
        Time(tenth * EVERY)
    }

    proptest! {
        /// Oracle: the device is idle until a tenth of a second, and full from there on.
        #[test]
        fn the_time_to_recover_is_from_the_event_to_the_rate(from in 0u64..20, delay in 1u64..30) {
            let trace = trace(100, |tenth| {
                let is_idle = tenth >= from && tenth < from + delay;
                (if is_idle { 0 } else { 3_000 }, 3_000)
            });
            let found = trace.recovered((at(from), at(99)), 3_000.0).unwrap();
            // A window of two tenths misses a twentieth of itself: ten milliseconds.
            let expected = (delay * 100) as f64 - 10.0;
            let found = found.as_seconds() * 1e3;
            prop_assert!(found >= expected - 0.1 && found <= expected + 10.1, "{found} {expected}");
        }

        /// Oracle: the budget is where it belongs from a tenth of a second on.
        #[test]
        fn a_budget_that_stays_has_followed(from in 0u64..20, delay in 0u64..30, off in 12u64..99) {
            let trace = trace(100, |tenth| {
                let is_off = tenth >= from && tenth < from + delay;
                (3_000, if is_off { 30 * (100 - off) } else { 3_000 })
            });
            let found = trace.followed((at(from), at(99)), 3_000.0);
            prop_assert_eq!(found, Some(Span(delay * EVERY)));
            prop_assert_eq!(trace.followed((at(from), at(99)), 6_000.0), None);
        }
    }

    #[test]
    fn rates_and_budgets_are_means() {
        let trace = trace(41, |tenth| (1_000, if tenth < 20 { 900 } else { 1_100 }));
        assert!((trace.rate((at(0), at(40))) - 1_000.0).abs() < 0.1);
        assert_eq!(trace.budget((at(0), at(19))), Some(900.0));
        assert_eq!(trace.budget((at(10), at(29))), Some(1_000.0));
        assert_eq!(trace.budget((Time::MAX, Time::MAX)), None);
    }

    #[test]
    fn each_second_has_its_own_percentile() {
        let histogram = Histogram::default();
        let mut samples = Vec::new();
        for tenth in 0..=40 {
            let sample = CapacitySample { at: at(tenth), ..CapacitySample::default() };
            samples.push(CapacitySample { times: histogram.counts(), ..sample });
            // Slow in the second second, nothing in the last.
            let micros = if (10..20).contains(&tenth) { 9_000 } else { 900 };
            (0..100).filter(|_| tenth < 30).for_each(|_| histogram.record(Span(micros * 1_000)));
        }
        let seconds = CapacityTrace(samples).seconds((at(0), at(40)));
        assert_eq!(seconds.len(), 4);
        let bound = Span(2 * Span::MILLISECOND.0);
        let within: Vec<_> = seconds.iter().map(|p99| p99.map(|p99| p99 <= bound)).collect();
        assert_eq!(within, [Some(true), Some(false), Some(true), None]);
        assert_eq!(kept_percent(&seconds, bound), Some(50.0));
        assert_eq!(kept_percent(&[], bound), None);
    }
}
