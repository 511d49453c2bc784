//! The score of a run, and of all runs of a system: throughput, and the latencies of its seconds.

use std::ops::Range;

use super::runs::LsmRun;
use crate::lsm::LsmSecond;

/// Of the seconds of a run, so many percent have no higher latency than the *high* one.
const HIGH_PERCENT: usize = 90;

/// Some seconds of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct LsmScore {
    pub(super) operations_per_second: f64,
    /// Of the operations that were due.
    pub(super) served_percent: f64,
    /// The 99th percentile of latency in each second: the median of the seconds, the high one and
    /// the highest, in milliseconds.
    pub(super) median_ms: f64,
    pub(super) high_ms: f64,
    pub(super) highest_ms: f64,
    /// The paper's *variability* of these: how far a second is from their mean, on average.
    pub(super) deviation_ms: f64,
    /// Of the disk, per second.
    pub(super) read_bytes: f64,
    pub(super) written_bytes: f64,
}

impl LsmScore {
    /// The score of these seconds of a run; none if there are no such seconds.
    pub(super) fn new(run: &LsmRun, seconds: Range<usize>) -> Option<Self> {
        let end = seconds.end.min(run.seconds.len());
        let seconds = run.seconds.get(seconds.start..end).filter(|seconds| !seconds.is_empty())?;
        let mean = |number: fn(&LsmSecond) -> u64| {
            seconds.iter().map(number).sum::<u64>() as f64 / seconds.len() as f64
        };
        let mut latencies: Vec<u64> = seconds.iter().map(|second| second.p99_us).collect();
        latencies.sort_unstable();
        let ms = |percent: usize| {
            let rank = (latencies.len() * percent).div_ceil(100).max(1);
            latencies[rank - 1] as f64 / 1e3
        };
        let count = latencies.len() as f64;
        let mean_us = latencies.iter().sum::<u64>() as f64 / count;
        let distances = latencies.iter().map(|us| (*us as f64 - mean_us).abs());
        let deviation_us = distances.sum::<f64>() / count;
        let (operations, due) = (mean(|second| second.operations), mean(|second| second.due));
        Some(Self {
            operations_per_second: operations,
            served_percent: if due > 0.0 { operations * 100.0 / due } else { 100.0 },
            median_ms: ms(50),
            high_ms: ms(HIGH_PERCENT),
            highest_ms: ms(100),
            deviation_ms: deviation_us / 1e3,
            read_bytes: mean(|second| second.disk_read_bytes),
            written_bytes: mean(|second| second.disk_written_bytes),
        })
    }
}

/// The median of several runs' numbers; none without runs. Of two it is the mean.
pub(super) fn median(numbers: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    let (low, high) = (numbers.get(numbers.len().checked_sub(1)? / 2)?, numbers[numbers.len() / 2]);
    Some((low + high) / 2.0)
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::experiment::quiet::Quiet;
    use crate::lsm::LsmTotals;

    /// A run whose seconds have these operations and 99th percentiles.
    pub(in crate::experiment::lsm) fn run(seconds: &[(u64, u64)]) -> LsmRun {
        let second = |(at, (operations, p99_us)): (u64, &(u64, u64))| LsmSecond {
            second: at,
            due: 100,
            operations: *operations,
            p99_us: *p99_us,
            ..LsmSecond::default()
        };
        LsmRun {
            seconds: (0..).zip(seconds).map(second).collect(),
            totals: LsmTotals::default(),
            quiet: Quiet::default(),
            channels: BTreeMap::new(),
        }
    }

    #[test]
    fn a_score_is_of_the_seconds_that_are_asked_for() {
        let latencies = (1..=10).map(|ms| (100, ms * 1_000));
        let seconds: Vec<(u64, u64)> = [(900, 500_000)].into_iter().chain(latencies).collect();
        let score = LsmScore::new(&run(&seconds), 1..usize::MAX).unwrap();
        assert_eq!((score.operations_per_second, score.served_percent), (100.0, 100.0));
        assert_eq!((score.median_ms, score.high_ms, score.highest_ms), (5.0, 9.0, 10.0));
        let first = LsmScore::new(&run(&seconds), 0..2).unwrap();
        assert_eq!((first.operations_per_second, first.highest_ms), (500.0, 500.0));
        // One to ten milliseconds are 2.5 from their mean of 5.5, on average.
        assert_eq!((score.deviation_ms, first.deviation_ms), (2.5, 249.5));
        assert_eq!(LsmScore::new(&run(&seconds), 11..12), None);
    }

    #[test]
    fn medians_are_of_any_number_of_runs() {
        assert_eq!(median([]), None);
        assert_eq!(median([3.0]), Some(3.0));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
        assert_eq!(median([9.0, 1.0, 2.0]), Some(2.0));
    }
}
