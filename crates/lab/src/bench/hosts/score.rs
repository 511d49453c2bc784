//! What a run of the hosts benchmark shows: each tenant's part in each period, and how soon the
//! capacity is in use again after demand has changed.

use std::collections::BTreeMap;

use tidegate_model::{Span, Time};

use super::plan::{Bound, CAPACITY, Change, HostsSize, INTERVAL, PERIOD, Step, TENANTS, share};

/// Intervals in which shares are to follow demand.
pub(super) const CONVERGED_INTERVALS: u64 = 2;
/// The part of the capacity that counts as all of it, in per cent.
pub(super) const USED_PERCENT: f64 = 95.0;
/// How finely the time is found from which on the capacity is in use, as a part of an interval.
/// Between two samples the count of bytes is a straight line.
const FINE_PART: u64 = 20;
/// Seconds after a change in which a disturbance makes the time to converge worthless, in
/// intervals.
const CONVERGING: u64 = 5;

/// The counts of all stages at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostsSample {
    pub(super) at: Time,
    /// Bytes that each program has read so far.
    pub(super) read: Vec<u64>,
    /// The sum of the rates in force, in bytes per second; none if it changed meanwhile.
    pub(super) rates: Option<u64>,
}

/// A run, as it was sampled.
#[derive(Clone, Debug, Default)]
pub(super) struct HostsTrace {
    pub(super) samples: Vec<HostsSample>,
    /// For each second, whether nothing disturbed it.
    pub(super) quiet: Vec<bool>,
}

impl HostsTrace {
    /// Bytes that these stages have read in `[from, to)`. Outside of the samples nothing is read.
    fn read(&self, (from, to): (Time, Time), stages: &dyn Fn(usize) -> bool) -> f64 {
        self.until(to, stages) - self.until(from, stages)
    }

    fn until(&self, at: Time, stages: &dyn Fn(usize) -> bool) -> f64 {
        let sum = |sample: &HostsSample| {
            let own = sample.read.iter().enumerate().filter(|(stage, _)| stages(*stage));
            own.map(|(_, bytes)| *bytes as f64).sum::<f64>()
        };
        let next = self.samples.partition_point(|sample| sample.at < at);
        match (next.checked_sub(1).and_then(|last| self.samples.get(last)), self.samples.get(next))
        {
            (Some(before), Some(after)) => {
                let part = at.since(before.at).as_seconds() / after.at.since(before.at).as_seconds();
                let (before, after) = (sum(before), sum(after));
                before + part * (after - before)
            }
            (Some(only), None) | (None, Some(only)) => sum(only),
            (None, None) => 0.0,
        }
    }

    /// The part of the capacity that all stages together have used in a window, in per cent.
    fn used(&self, from: Time, length: Span) -> f64 {
        let bytes = self.read((from, from.after(length)), &|_| true);
        100.0 * bytes / (CAPACITY.0 as f64 * length.as_seconds())
    }

    /// Whether no second that a window touches was disturbed.
    fn is_quiet(&self, from: Time, length: Span) -> bool {
        let second = |time: Time| (time.0 / Span::SECOND.0) as usize;
        let mut seconds = second(from)..=second(from.after(length));
        // A second that was not watched to its end is the run's last.
        seconds.all(|second| self.quiet.get(second).copied().unwrap_or(true))
    }

    /// How long after `begin` the first window of an interval begins in which the capacity is used.
    fn converged(&self, begin: Time, end: Time) -> Option<Span> {
        let step = INTERVAL.0 / FINE_PART;
        let last = end.since(begin.after(INTERVAL)).0 / step;
        let starts = (0..=last).map(|number| Span(number * step));
        let mut starts = starts.filter(|start| begin.after(*start).after(INTERVAL) <= end);
        starts.find(|start| self.used(begin.after(*start), INTERVAL) >= USED_PERCENT)
    }
}

/// The figures of a tenant with a bound, in per cent of the bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TenantScore {
    /// In each period that counts.
    pub(super) counted: Vec<f64>,
    /// In the period that begins with a change of demand.
    pub(super) changing: Vec<f64>,
}

/// The figures of a run. Disturbed windows are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HostsScore {
    /// By index in [`TENANTS`]; nothing for a tenant without a bound.
    pub(super) tenants: Vec<TenantScore>,
    /// By the name of the change of demand, the intervals until the capacity was in use, and for
    /// those in which it never was, the most that was used in an interval, in per cent.
    pub(super) converged: BTreeMap<&'static str, Vec<Result<f64, f64>>>,
    /// The capacity that was used in each period that counts, in per cent.
    pub(super) used: Vec<f64>,
    /// The same while a host was cut off, from the cut on.
    pub(super) used_apart: Vec<f64>,
    /// Intervals from when the host came back until the capacity was in use.
    pub(super) returned: Vec<Result<f64, f64>>,
    /// The largest sum of rates in force, in per cent of the capacity.
    pub(super) rates: Option<f64>,
}

impl HostsScore {
    pub(super) fn of(trace: &HostsTrace, size: HostsSize, steps: &[Step]) -> Self {
        let tenants = vec![TenantScore::default(); TENANTS.len()];
        let mut score = Self { tenants, ..Self::default() };
        for step in steps {
            score.periods(trace, size, step);
            score.convergence(trace, step);
        }
        // Each rate is rounded up to whole bytes per second.
        let sums = trace.samples.iter().filter_map(|sample| sample.rates);
        let most = sums.max().map(|sum| sum.saturating_sub(size.stages as u64));
        score.rates = most.map(|most| 100.0 * most as f64 / CAPACITY.0 as f64);
        score
    }

    /// Adds the periods of a step.
    fn periods(&mut self, trace: &HostsTrace, size: HostsSize, step: &Step) {
        let first = match step.change {
            Change::Demand | Change::Return => {
                step.begin.after(Span(CONVERGED_INTERVALS * INTERVAL.0))
            }
            // The demand has not changed: promises hold all the time.
            Change::Cut | Change::StillCut => step.begin,
        };
        let periods = step.end.since(first).0 / PERIOD.0;
        let periods = (0..periods).map(|number| first.after(Span(number * PERIOD.0)));
        let quiet = |from: &Time| trace.is_quiet(*from, PERIOD);
        for from in periods.filter(quiet) {
            for (tenant, percent) in bounded(trace, size, step, from) {
                self.tenants[tenant].counted.push(percent);
            }
            let used = trace.used(from, PERIOD);
            match step.change {
                Change::Demand | Change::Return => self.used.push(used),
                Change::Cut | Change::StillCut => self.used_apart.push(used),
            }
        }
        if step.change == Change::Demand && quiet(&step.begin) {
            for (tenant, percent) in bounded(trace, size, step, step.begin) {
                self.tenants[tenant].changing.push(percent);
            }
        }
    }

    fn convergence(&mut self, trace: &HostsTrace, step: &Step) {
        let times = match step.change {
            // The run's first step is its start.
            Change::Demand if step.begin > Time::ZERO => {
                self.converged.entry(step.name).or_default()
            }
            Change::Return => &mut self.returned,
            _ => return,
        };
        if !trace.is_quiet(step.begin, Span(CONVERGING * INTERVAL.0)) {
            return;
        }
        let most = || {
            let last = step.end.since(step.begin).0 / INTERVAL.0;
            let starts = (0..last).map(|number| step.begin.after(Span(number * INTERVAL.0)));
            starts.map(|from| trace.used(from, INTERVAL)).fold(0.0, f64::max)
        };
        let time = trace.converged(step.begin, step.end);
        let intervals = time.map(|span| span.as_seconds() / INTERVAL.as_seconds());
        times.push(intervals.ok_or_else(most));
    }
}

/// What each tenant with a bound had in the period from `from` on, in per cent of the bound. A
/// tenant of which no program sends requests has no reservation to be kept.
fn bounded<'a>(
    trace: &'a HostsTrace,
    size: HostsSize,
    step: &'a Step,
    from: Time,
) -> impl Iterator<Item = (usize, f64)> + 'a {
    TENANTS.iter().enumerate().filter_map(move |(tenant, one)| {
        let percent = match one.bound {
            Bound::Reservation(percent) | Bound::Limit(percent) => percent,
            Bound::None => return None,
        };
        let own = |stage: usize| size.tenant(stage) == tenant;
        let requests = step.requests.iter().enumerate();
        let is_active = requests.clone().any(|(stage, requests)| own(stage) && *requests);
        let bytes = trace.read((from, from.after(PERIOD)), &own);
        let due = share(percent).0 as f64 * PERIOD.as_seconds();
        is_active.then_some((tenant, 100.0 * bytes / due))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::hosts::plan::steps;
    use proptest::prelude::*;

    const SIZE: HostsSize = HostsSize::QUICK;

    /// A trace in which the stages of tenant `t` read `rates(at)[t]` per cent of the capacity.
    fn trace(end: Time, every: Span, rates: impl Fn(Time) -> [f64; 5]) -> HostsTrace {
        let own = (SIZE.stages / TENANTS.len()) as f64;
        let (mut read, mut samples) = (vec![0.0; SIZE.stages], Vec::new());
        let mut at = Time::ZERO;
        while at <= end {
            let read_now = read.iter().map(|bytes: &f64| *bytes as u64).collect();
            samples.push(HostsSample { at, read: read_now, rates: Some(CAPACITY.0) });
            let rates = rates(at);
            for (stage, bytes) in read.iter_mut().enumerate() {
                let percent = rates[SIZE.tenant(stage)] / own;
                *bytes += CAPACITY.0 as f64 * percent / 100.0 * every.as_seconds();
            }
            at = at.after(every);
        }
        HostsTrace { samples, quiet: Vec::new() }
    }

    fn score(trace: &HostsTrace) -> HostsScore {
        HostsScore::of(trace, SIZE, &steps(SIZE))
    }

    const EVERY: Span = Span(25 * Span::MILLISECOND.0);

    #[test]
    fn a_trace_that_keeps_all_promises_scores_a_hundred() {
        let end = steps(SIZE).last().unwrap().end;
        let trace = trace(end, EVERY, |_| [30.0, 20.0, 10.0, 25.0, 15.0]);
        let score = score(&trace);
        let is_exact = |percent: &f64| (percent - 100.0).abs() < 0.01;
        for (tenant, one) in TENANTS.iter().zip(&score.tenants) {
            assert_eq!(one.counted.is_empty(), tenant.bound == Bound::None, "{}", tenant.name);
            assert!(one.counted.iter().chain(&one.changing).all(is_exact), "{one:?}");
        }
        assert!(score.used.iter().chain(&score.used_apart).all(is_exact), "{score:?}");
        assert_eq!(score.converged.len(), 5);
        assert!(score.converged.values().flatten().all(|time| *time == Ok(0.0)), "{score:?}");
        assert_eq!(score.returned, [Ok(0.0)]);
        // Ten bytes per second are rounding.
        assert!(score.rates.is_some_and(|most| most <= 100.0 && most > 99.9));
        let no_gold = score.tenants[0].counted.len();
        assert!(no_gold < score.tenants[1].counted.len(), "periods without requests count not");
    }

    #[test]
    fn a_tenant_that_falls_short_in_one_period_shows() {
        let steps = steps(SIZE);
        let step = steps.iter().find(|step| step.name == "they go on").unwrap();
        let (from, to) = (step.begin.after(Span(2 * INTERVAL.0)), step.end);
        let trace = trace(steps.last().unwrap().end, EVERY, |at| {
            let is_short = at >= from && at < to;
            [30.0, if is_short { 18.0 } else { 20.0 }, 10.0, 25.0, 15.0]
        });
        let score = HostsScore::of(&trace, SIZE, &steps);
        let least = score.tenants[1].counted.iter().copied().fold(f64::INFINITY, f64::min);
        assert!((least - 90.0).abs() < 0.2, "{least}");
        assert!(score.tenants[2].counted.iter().all(|percent| (percent - 100.0).abs() < 0.2));
    }

    #[test]
    fn a_disturbed_second_is_left_out() {
        let end = steps(SIZE).last().unwrap().end;
        let mut trace = trace(end, EVERY, |_| [30.0, 20.0, 10.0, 25.0, 15.0]);
        let all = score(&trace);
        trace.quiet = vec![false; 3];
        let some = score(&trace);
        assert!(some.used.len() < all.used.len(), "{some:?}");
        let count = |score: &HostsScore| score.converged.values().map(Vec::len).sum::<usize>();
        assert!(count(&some) < count(&all));
    }

    #[test]
    fn what_never_converges_has_the_most_that_was_used() {
        let end = steps(SIZE).last().unwrap().end;
        let score = score(&trace(end, EVERY, |_| [20.0, 20.0, 20.0, 10.0, 10.0]));
        for most in score.converged.values().flatten() {
            assert!(most.is_err_and(|most| (most - 80.0).abs() < 0.1), "{most:?}");
        }
    }

    proptest! {
        /// Oracle: the use falls to `low` at a change and is full again after `delay`. A window of
        /// an interval has 95 % as soon as the missing part of it is a twentieth.
        #[test]
        fn the_time_to_converge_is_found(delay in 0u64..900, low in 0.0..90.0f64) {
            let steps = steps(SIZE);
            let step = &steps[1];
            let from = step.begin.after(Span(delay * Span::MILLISECOND.0));
            let end = steps.last().unwrap().end;
            let trace = trace(end, Span::MILLISECOND, |at| {
                let all = if at >= step.begin && at < from { low } else { 100.0 };
                [0.0, all, 0.0, 0.0, 0.0]
            });
            let score = HostsScore::of(&trace, SIZE, &steps);
            let found = score.converged[step.name][0].unwrap() * 100.0;
            let missing = 5.0 / (100.0 - low) * 100.0;
            let expected = (delay as f64 - missing).max(0.0);
            // The search goes in steps of five milliseconds.
            prop_assert!(found >= expected - 0.5 && found <= expected + 5.5, "{found} {expected}");
        }
    }
}
