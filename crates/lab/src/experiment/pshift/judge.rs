//! Judgements of the counts against the paper's claims.

use tidegate_model::Span;
use tidegate_sim::cluster::ClusterReport;

use crate::experiment::verdict::{Judged, Verdict};

pub(super) use crate::experiment::paper::{holds_if, on_a_machine_that_stood_still};

/// So far, in points of a percent, may an error without moves lie from what the solver says cannot
/// be avoided: what a node serves in a period varies a little, and the solver knows only the mean.
const INTRINSIC_POINTS: f64 = 0.5;

/// Points of a percent in which bars may differ and count as equal. One tenant of 10,000 is 0.01.
const EQUAL_POINTS: f64 = 0.1;

/// Errors up to this are none to speak of, and have no trend: it is what the paper reports for its
/// first experiment as a success.
const SMALL_POINTS: f64 = 0.5;

/// A time that grows like the size to the power of this, or less, grows linearly: caches and levels
/// of the shift add a little to what is strictly in proportion.
const LINEAR_POWER: f64 = 1.3;

/// At least so many percent.
pub(super) fn at_least(percent: f64, wanted: f64, of: &str) -> Judged {
    holds_if(percent >= wanted, || format!("only {percent:.2} % {of}"))
}

/// Holds if the operations missing without moves are those that cannot be met. Both are in percent
/// of all reserved operations.
pub(super) fn is_intrinsic(missing: f64, unavoidable: f64) -> Judged {
    holds_if((missing - unavoidable).abs() <= INTRINSIC_POINTS, || {
        format!("{missing:.2} % are missing and {unavoidable:.2} % cannot be met")
    })
}

/// Where there are no errors to speak of, there is no trend in them either.
fn none_to_speak_of(rows: &[Vec<f64>]) -> Option<Judged> {
    let most = rows.iter().flatten().copied().fold(0.0, f64::max);
    let reason = || format!("no error is above {most:.2} %, too little for a trend");
    (most <= SMALL_POINTS).then(|| (Verdict::Differs, Some(reason())))
}

/// Errors in percent, a row for each number of active nodes: rows lie one below the other.
pub(super) fn falls(rows: &[Vec<f64>]) -> Judged {
    if let Some(judged) = none_to_speak_of(rows) {
        return judged;
    }
    let mut pairs = rows.windows(2).flat_map(|two| two[0].iter().zip(&two[1]));
    match pairs.find(|(fewer, more)| **more > **fewer + EQUAL_POINTS) {
        None => (Verdict::Holds, None),
        Some((fewer, more)) => {
            let reason =
                format!("with more active nodes it grows from {fewer:.2} % to {more:.2} %");
            (Verdict::Fails, Some(reason))
        }
    }
}

/// Errors by the number of moves 0, 1, 2, 5, 10: the last step adds less than those before.
pub(super) fn levels_off(rows: &[Vec<f64>]) -> Judged {
    if let Some(judged) = none_to_speak_of(rows) {
        return judged;
    }
    for row in rows {
        let [none, .., some, many] = row[..] else { continue };
        if many - some > (some - none).max(0.0) + EQUAL_POINTS {
            let reason = format!("it grows from {none:.2} % to {some:.2} % and on to {many:.2} %");
            return (Verdict::Fails, Some(reason));
        }
    }
    (Verdict::Holds, None)
}

/// Each got what it was to get, within so many percent.
pub(super) fn near(served: &[f64], expected: &[f64], percent: f64) -> Judged {
    let off = |(served, expected): (&f64, &f64)| (served / expected - 1.0).abs() * 100.0;
    let worst = served.iter().zip(expected).map(off).fold(0.0, f64::max);
    holds_if(worst <= percent, || format!("one of them is {worst:.1} % off"))
}

/// The time grows no faster than the size, from the sizes and times of a family.
pub(super) fn linear(points: &[(f64, f64)]) -> Judged {
    let power = power(points);
    holds_if(power <= LINEAR_POWER, || format!("it grows like their number to the {power:.2}"))
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

/// Holds if no tenant got more answers than its limit in a period. Up to `slack` more differ: a
/// request that a node began in one period may be answered in the next.
pub(super) fn none_above(counts: &PeriodCounts, slack: u64) -> Judged {
    match (counts.above, counts.above_most) {
        (0, _) => (Verdict::Holds, None),
        (above, most) if most <= slack => {
            let reason = format!(
                "{above} times a tenant's answers exceed its limit, by {most} at most: requests \
                 that were begun in the period before"
            );
            (Verdict::Differs, Some(reason))
        }
        (above, most) => {
            (Verdict::Fails, Some(format!("{above} times a limit is exceeded, by {most} at most")))
        }
    }
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

/// The last tenant has its reservation before all others.
pub(super) fn last_is_first(reached: &[Option<usize>]) -> Judged {
    let Some((Some(last), others)) = reached.split_last() else {
        return (Verdict::Fails, Some("it never has its reservation".into()));
    };
    let is_first = others.iter().all(|other| other.is_none_or(|other| other > *last));
    holds_if(is_first, || "another one is there before it".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::Iops;
    use tidegate_sim::cluster::Promise;

    fn outcome(samples: &[[u32; 2]]) -> ClusterReport {
        let promise = |reservation| Promise {
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
        assert_eq!(none_above(&counts, 2).0, Verdict::Differs);
        assert_eq!(none_above(&counts, 0).0, Verdict::Fails);
        assert_eq!(none_above(&PeriodCounts::default(), 0).0, Verdict::Holds);
    }

    #[test]
    fn who_is_first_is_seen() {
        let reached_in = |samples: &[[u32; 2]]| reached(&outcome(samples), 0);
        assert_eq!(reached_in(&[[90, 210], [20, 0]]), [Some(1), Some(0)]);
        assert_eq!(last_is_first(&[Some(1), Some(0)]).0, Verdict::Holds);
        assert_eq!(last_is_first(&[None, Some(0)]).0, Verdict::Holds);
        assert_eq!(last_is_first(&[Some(0), Some(0)]).0, Verdict::Fails);
        assert_eq!(last_is_first(&[Some(0), None]).0, Verdict::Fails);
    }

    #[test]
    fn thresholds_are_kept_on_both_sides() {
        assert_eq!(at_least(99.5, 99.5, "").0, Verdict::Holds);
        assert_eq!(at_least(99.49, 99.5, "").0, Verdict::Fails);
        assert_eq!(is_intrinsic(2.4, 2.0).0, Verdict::Holds);
        assert_eq!(is_intrinsic(2.6, 2.0).0, Verdict::Fails);
        assert_eq!(near(&[99.0, 202.0], &[100.0, 200.0], 1.5).0, Verdict::Holds);
        assert_eq!(near(&[98.0, 202.0], &[100.0, 200.0], 1.5).0, Verdict::Fails);
    }

    #[test]
    fn bars_fall_and_level_off() {
        let rows = vec![vec![3.0, 6.0, 8.0, 9.0, 9.1], vec![1.0, 2.0, 3.0, 4.0, 4.0]];
        assert_eq!((falls(&rows).0, levels_off(&rows).0), (Verdict::Holds, Verdict::Holds));
        let rows = vec![vec![1.0, 2.0], vec![1.0, 2.2]];
        assert_eq!(falls(&rows).0, Verdict::Fails);
        let rows = vec![vec![1.0, 1.0, 1.0, 2.0, 9.0]];
        assert_eq!(levels_off(&rows).0, Verdict::Fails);
        let rows = vec![vec![0.0; 5], vec![0.0, 0.0, 0.0, 0.1, 0.5]];
        assert_eq!((falls(&rows).0, levels_off(&rows).0), (Verdict::Differs, Verdict::Differs));
    }

    #[test]
    fn growth_is_the_slope_of_the_logarithms() {
        let points = |grow: fn(f64) -> f64| [1.0, 2.0, 5.0, 9.0].map(|x| (x, grow(x)));
        assert!((power(&points(|x| 3.0 * x * x)) - 2.0).abs() < 1e-9);
        assert_eq!(linear(&points(|x| 0.1 * x)).0, Verdict::Holds);
        assert_eq!(linear(&points(|x| x * x)).0, Verdict::Fails);
    }
}
