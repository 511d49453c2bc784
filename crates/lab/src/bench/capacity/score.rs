//! The figures of a run under a measured capacity.

use tidegate_algo::concurrent::histogram::BucketCounts;
use tidegate_model::{Span, Time};

use crate::bench::timeline::Timeline;

/// The part of a rate that counts as all of it.
const USED: f64 = 0.9;
/// The samples in the window of a rate and a percentile: two intervals.
const WINDOW_SAMPLES: usize = 2;

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

    /// How long after `from` the first window begins in which the device completes nine tenths of
    /// `rate` and the 99th percentile is within the bound.
    pub(super) fn recovered(
        &self,
        (from, to): (Time, Time),
        rate: f64,
        bound: Span,
    ) -> Option<Span> {
        let samples: Vec<_> = self.within((from, to)).collect();
        let is_used = |window: &&[&CapacitySample]| {
            let (first, last) = (window[0], window[WINDOW_SAMPLES]);
            let grown: BucketCounts = last.times.since(&first.times).collect();
            let completed = last.completed.saturating_sub(first.completed) as f64;
            let due = USED * rate * last.at.since(first.at).as_seconds();
            completed >= due && grown.percentile(99.0).is_some_and(|p99| p99 <= bound)
        };
        let window = samples.windows(WINDOW_SAMPLES + 1).find(is_used);
        window.map(|window| window[0].at.since(from))
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

    /// A run of so many tenths of a second, with requests per second, what each takes, and a
    /// budget.
    fn trace(tenths: u64, state: impl Fn(u64) -> (u64, Span, u64)) -> CapacityTrace {
        let (histogram, mut completed) = (Histogram::default(), 0);
        let samples = (0..tenths).map(|tenth| {
            let (rate, time, budget) = state(tenth);
            let (at, times) = (Time(tenth * EVERY), histogram.counts());
            let sample = CapacitySample { at, completed, times, budget };
            completed += rate / 10;
            (0..rate / 10).for_each(|_| histogram.record(time));
            sample
        });
        CapacityTrace(samples.collect())
    }

    const fn at(tenth: u64) -> Time {
        Time(tenth * EVERY)
    }

    const SHORT: Span = Span::MILLISECOND;
    const BOUND: Span = Span(5 * Span::MILLISECOND.0);
    const LONG: Span = Span(50 * Span::MILLISECOND.0);

    proptest! {
        /// Oracle: from an event on the device is too slow, and from a later one on requests take
        /// no longer than the bound.
        #[test]
        fn recovered_is_what_is_fast(from in 0u64..20, slow in 0u64..30, long in 0u64..30) {
            let trace = trace(100, |tenth| {
                let is_slow = tenth >= from && tenth < from + slow;
                let is_long = tenth >= from && tenth < from + long;
                let time = if is_long { LONG } else { SHORT };
                (if is_slow { 300 } else { 1_000 }, time, 1_000)
            });
            let found = trace.recovered((at(from), at(99)), 1_000.0, BOUND);
            prop_assert_eq!(found, Some(Span(slow.max(long) * EVERY)));
            prop_assert_eq!(trace.recovered((at(from), at(99)), 1_200.0, BOUND), None);
            prop_assert_eq!(trace.recovered((at(from), at(99)), 1_000.0, Span(9)), None);
        }
    }

    #[test]
    fn rates_and_budgets_are_means() {
        let trace = trace(41, |tenth| (1_000, SHORT, if tenth < 20 { 900 } else { 1_100 }));
        assert!((trace.rate((at(0), at(40))) - 1_000.0).abs() < 0.1);
        assert_eq!(trace.budget((at(0), at(19))), Some(900.0));
        assert_eq!(trace.budget((at(10), at(29))), Some(1_000.0));
        assert_eq!(trace.budget((Time::MAX, Time::MAX)), None);
    }

    #[test]
    fn each_second_has_its_own_percentile() {
        // Slow in the second second, nothing in the last.
        let trace = trace(41, |tenth| {
            let time = if (10..20).contains(&tenth) { LONG } else { SHORT };
            (if tenth < 30 { 1_000 } else { 0 }, time, 0)
        });
        let seconds = trace.seconds((at(0), at(40)));
        assert_eq!(seconds.len(), 4);
        let within: Vec<_> = seconds.iter().map(|p99| p99.map(|p99| p99 <= BOUND)).collect();
        assert_eq!(within, [Some(true), Some(false), Some(true), None]);
        assert_eq!(kept_percent(&seconds, BOUND), Some(50.0));
        assert_eq!(kept_percent(&[], BOUND), None);
    }
}
