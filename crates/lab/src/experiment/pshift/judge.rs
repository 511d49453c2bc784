//! pShift experiments: counts of a run, and the checks that several figures share.

use tidegate_model::Span;
use tidegate_sim::cluster::ClusterReport;

use crate::experiment::verdict::{Check, at_most};

/// A time that grows like the size to the power of this, or less, grows linearly: caches and levels
/// of the shift add a little to what is strictly in proportion.
const LINEAR_POWER: f64 = 1.3;

/// The time grows no faster than the size, from the sizes and times of a family.
pub(super) fn linear(points: &[(f64, f64)]) -> Check {
    at_most("it grows like their number to the power of", "", LINEAR_POWER, power(points))
}

/// With which power of the size a time grows: the slope of a line through the logarithms.
pub(super) fn power(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|point| (point.0.ln(), point.1.ln())).collect();
    let count = logs.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| logs.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|log| log.0), mean(|log| log.1));
    let sum = |of: &dyn Fn(f64, f64) -> f64| logs.iter().map(|log| of(log.0 - x, log.1 - y)).sum();
    let (both, alone): (f64, f64) = (sum(&|x, y| x * y), sum(&|x, _| x * x));
    both / alone
}

/// No tenant got more answers than its limit in a period.
pub(super) fn none_above(counts: &PeriodCounts) -> Check {
    let above = (counts.count > 0).then_some(counts.above_most as f64);
    at_most("above a limit", "operations", 0.0, above)
}

/// Why a live run exceeds limits by some operations, if it does not by more than `slack`.
pub(super) fn slack_reason(counts: &PeriodCounts, slack: u64) -> Option<&'static str> {
    (counts.above_most <= slack)
        .then_some("requests that a node began in the period before are answered in this one")
}

/// All tenants in all periods of a run together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PeriodCounts {
    /// Tenants times periods.
    pub(super) count: u64,
    /// How many got their reservation.
    pub(super) met: u64,
    /// How many got 99 % of it, and 95 %.
    pub(super) met_99: u64,
    pub(super) met_95: u64,
    /// How many got more than their limit.
    pub(super) above: u64,
    /// By how many operations at most.
    pub(super) above_most: u64,
    /// Reserved, and not served.
    pub(super) missing: u64,
    pub(super) reserved: u64,
}

impl PeriodCounts {
    pub(super) fn of(outcome: &ClusterReport) -> Self {
        let mut counts = Self::default();
        for period in 0..outcome.periods() {
            for (served, promise) in outcome.served(period).into_iter().zip(&outcome.promises) {
                let reserved = in_period(promise.reservation.0, outcome.period);
                let limit = promise.limit.map_or(u64::MAX, |l| in_period(l.0, outcome.period));
                let has = |percent: u64| u64::from(served * 100 >= reserved * percent);
                counts.count += 1;
                counts.met += has(100);
                counts.met_99 += has(99);
                counts.met_95 += has(95);
                counts.above += u64::from(served > limit);
                counts.above_most = counts.above_most.max(served.saturating_sub(limit));
                counts.missing += reserved.saturating_sub(served);
                counts.reserved += reserved;
            }
        }
        counts
    }

    /// So many of all, in percent.
    pub(super) fn percent(&self, part: u64) -> f64 {
        percent(part, self.count)
    }
}

/// `part` of `whole`, in percent.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// Operations in a period at a rate of `per_second`.
pub(super) fn in_period(per_second: u64, period: Span) -> u64 {
    let exact = u128::from(per_second) * u128::from(period.0) / u128::from(Span::SECOND.0);
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// When each tenant had its reservation, in samples from the beginning of a period; none if it
/// never had.
pub(super) fn reached(outcome: &ClusterReport, period: usize) -> Vec<Option<usize>> {
    let count = outcome.samples.len() / outcome.periods().max(1);
    let samples = &outcome.samples[period * count..(period + 1) * count];
    let when = |(tenant, reserved): (usize, u64)| {
        let mut sum = 0;
        samples.iter().position(|sample| {
            sum += u64::from(sample[tenant]);
            sum >= reserved
        })
    };
    let reserved = outcome.promises.iter().map(|p| in_period(p.reservation.0, outcome.period));
    reserved.enumerate().map(when).collect()
}

/// In each period the last tenant has its reservation before all others: how many samples before
/// the first of these, where it has it at all.
pub(super) fn last_is_first(all_reached: &[Vec<Option<usize>>]) -> Vec<f64> {
    let ahead = |reached: &Vec<Option<usize>>| {
        let (last, others) = reached.split_last()?;
        let sample = |at: &Option<usize>| at.map_or(f64::INFINITY, |at| at as f64);
        let first = others.iter().map(sample).fold(f64::MAX, f64::min);
        Some(first - sample(last))
    };
    all_reached.iter().filter_map(ahead).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::Iops;
    use tidegate_sim::cluster::SimPromise;

    use crate::experiment::verdict::{Verdict, judge};

    fn outcome(samples: &[[u32; 2]]) -> ClusterReport {
        let promise = |reservation| SimPromise {
            reservation: Iops(reservation),
            limit: Some(Iops(reservation * 2)),
            demand: 0,
        };
        ClusterReport {
            period: Span::SECOND,
            sample: Span(Span::SECOND.0 / 2),
            promises: vec![promise(100), promise(200)],
            samples: samples.iter().map(|sample| sample.to_vec()).collect(),
            ..ClusterReport::default()
        }
    }

    #[test]
    fn every_tenant_is_counted_in_every_period() {
        let counts = PeriodCounts::of(&outcome(&[[50, 100], [50, 96], [150, 300], [51, 102]]));
        let expected = PeriodCounts {
            count: 4,
            met: 3,
            met_99: 3,
            met_95: 4,
            above: 2,
            above_most: 2,
            missing: 4,
            reserved: 600,
        };
        assert_eq!(counts, expected);
        assert_eq!(counts.percent(counts.met), 75.0);
        let above = |counts: &PeriodCounts| judge(&[none_above(counts)]).verdict;
        assert_eq!(above(&counts), Verdict::NotReproduced);
        assert!(slack_reason(&counts, 2).is_some() && slack_reason(&counts, 1).is_none());
        let kept = PeriodCounts { count: 4, ..PeriodCounts::default() };
        assert_eq!(above(&kept), Verdict::Reproduced);
        assert_eq!(above(&PeriodCounts::default()), Verdict::Skipped, "nothing was measured");
    }

    #[test]
    fn who_is_first_is_seen() {
        let reached_in = |samples: &[[u32; 2]]| reached(&outcome(samples), 0);
        assert_eq!(reached_in(&[[90, 210], [20, 0]]), [Some(1), Some(0)]);
        let first = |reached: &[Option<usize>]| last_is_first(&[reached.to_vec()])[0];
        assert_eq!(first(&[Some(1), Some(0)]), 1.0);
        assert!(first(&[None, Some(0)]) > 0.0);
        assert_eq!(first(&[Some(0), Some(0)]), 0.0);
        assert!(first(&[Some(0), None]) < 0.0);
    }

    #[test]
    fn growth_is_the_slope_of_the_logarithms() {
        let points = |grow: fn(f64) -> f64| [1.0, 2.0, 5.0, 9.0].map(|x| (x, grow(x)));
        assert!((power(&points(|x| 3.0 * x * x)) - 2.0).abs() < 1e-9);
        assert_eq!(judge(&[linear(&points(|x| 0.1 * x))]).verdict, Verdict::Reproduced);
        assert_ne!(judge(&[linear(&points(|x| x * x))]).verdict, Verdict::Reproduced);
    }
}
