//! The figures of a run of the hosts benchmark: each tenant's part in each period, and how soon the
//! capacity is in use again after demand has changed.

use std::collections::BTreeMap;

use tidegate_model::{Span, Time};

use super::plan::{Bound, CAPACITY, HostsSize, INTERVAL, PERIOD, Step, StepChange, TENANTS, share};
use crate::bench::timeline::{Timeline, first_window};

/// Intervals in which shares are to follow demand.
pub(super) const CONVERGED_INTERVALS: u64 = 2;
/// The part of the capacity, and of each reservation, that counts as all of it, in per cent.
pub(super) const FULFILLED_PERCENT: f64 = 95.0;
/// The time after a change in which a disturbance leaves no time to converge, in intervals.
const CONVERGING: u64 = 5;

/// The counts of all stages at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostsSample {
    pub(super) at: Time,
    /// Bytes that each program has read so far.
    pub(super) read: Vec<u64>,
    /// The rates in force; none if they changed meanwhile.
    pub(super) rates: Option<HostsRates>,
}

/// Sums of rates in force at one moment, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostsRates {
    pub(super) all: u64,
    /// Of the programs on the host whose link is cut.
    pub(super) apart: u64,
}

/// A run, as it was sampled.
#[derive(Clone, Debug, Default)]
pub(super) struct HostsTrace {
    pub(super) samples: Vec<HostsSample>,
    /// For each second, whether nothing disturbed it.
    pub(super) quiet: Vec<bool>,
}

impl HostsTrace {
    /// The bytes that these stages have read, all together.
    fn read(&self, stages: impl Fn(usize) -> bool) -> Timeline {
        let sum = |sample: &HostsSample| {
            let own = sample.read.iter().enumerate().filter(|(stage, _)| stages(*stage));
            (sample.at, own.map(|(_, bytes)| bytes).sum())
        };
        self.samples.iter().map(sum).collect()
    }

    /// Whether no second that a window touches was disturbed.
    fn is_quiet(&self, from: Time, length: Span) -> bool {
        let second = |time: Time| (time.0 / Span::SECOND.0) as usize;
        let mut seconds = second(from)..=second(from.after(length));
        // A second that was not watched to its end is the run's last.
        seconds.all(|second| self.quiet.get(second).copied().unwrap_or(true))
    }
}

/// A trace, with the bytes of all stages and of each tenant's.
struct ReadTrace<'a> {
    trace: &'a HostsTrace,
    size: HostsSize,
    all: Timeline,
    /// By index in [`TENANTS`].
    tenants: Vec<Timeline>,
}

impl<'a> ReadTrace<'a> {
    fn new(trace: &'a HostsTrace, size: HostsSize) -> Self {
        let of = |tenant| trace.read(|stage| size.tenant(stage) == tenant);
        let tenants = (0..TENANTS.len()).map(of).collect();
        Self { trace, size, all: trace.read(|_| true), tenants }
    }

    /// The part of the capacity that all stages together have used in a window, in per cent.
    fn used(&self, from: Time, length: Span) -> f64 {
        100.0 * self.all.per_second(from, length) / CAPACITY.0 as f64
    }

    /// The rate of each tenant with a bound in a window, in per cent of the bound. A tenant of
    /// which no program sends requests has no reservation to be kept.
    fn bounded(&self, step: &Step, from: Time, length: Span) -> Vec<(usize, f64)> {
        let tenants = TENANTS.iter().zip(&self.tenants).enumerate();
        let bounded = tenants.filter_map(|(tenant, (one, read))| {
            let (Bound::Reservation(percent) | Bound::Limit(percent)) = one.bound else {
                return None;
            };
            let mut requests = step.requests.iter().enumerate();
            let is_own = |stage| self.size.tenant(stage) == tenant;
            let is_active = requests.any(|(stage, requests)| is_own(stage) && *requests);
            let percent = 100.0 * read.per_second(from, length) / share(percent).0 as f64;
            is_active.then_some((tenant, percent))
        });
        bounded.collect()
    }

    /// The least of the used part of the capacity and of the kept parts of reservations in a
    /// window, in per cent.
    fn fulfilled(&self, step: &Step, from: Time, length: Span) -> f64 {
        let bounded = self.bounded(step, from, length).into_iter();
        let is_reserved = |tenant: usize| matches!(TENANTS[tenant].bound, Bound::Reservation(_));
        let reserved = bounded.filter(|(tenant, _)| is_reserved(*tenant));
        reserved.map(|(_, percent)| percent).fold(self.used(from, length), f64::min)
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

/// A change after which the capacity was never used, or a reservation never kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unfulfilled {
    /// The most of it in an interval, in per cent.
    pub(super) most: f64,
    /// How long nothing else changed, in intervals.
    pub(super) waited: f64,
}

/// The intervals from a change until the capacity was used and tenants had their reservations.
pub(super) type Converged = Result<f64, Unfulfilled>;

/// The figures of a run. Disturbed windows are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HostsScore {
    /// By index in [`TENANTS`]; nothing for a tenant without a bound.
    pub(super) tenants: Vec<TenantScore>,
    /// By the name of the change of demand.
    pub(super) converged: BTreeMap<&'static str, Vec<Converged>>,
    /// The capacity that was used in each period that counts, in per cent.
    pub(super) used: Vec<f64>,
    /// The same while a host was cut off, from the cut on.
    pub(super) used_apart: Vec<f64>,
    /// From when the host came back.
    pub(super) returned: Vec<Converged>,
    /// The largest sum of rates in force, in per cent of the capacity.
    pub(super) rates: Option<f64>,
    /// The rates of a host, in per cent of the capacity, as it is cut off and as it comes back.
    pub(super) apart: Option<[f64; 2]>,
}

impl HostsScore {
    pub(super) fn of(trace: &HostsTrace, size: HostsSize, steps: &[Step]) -> Self {
        let tenants = vec![TenantScore::default(); TENANTS.len()];
        let mut score = Self { tenants, ..Self::default() };
        let read = ReadTrace::new(trace, size);
        for step in steps {
            score.periods(&read, step);
            score.convergence(&read, step);
        }
        // Each rate is rounded up to whole bytes per second.
        let sums = trace.samples.iter().filter_map(|sample| sample.rates);
        let most = sums.map(|rates| rates.all.saturating_sub(size.stages as u64)).max();
        let percent = |rate: u64| 100.0 * rate as f64 / CAPACITY.0 as f64;
        score.rates = most.map(percent);
        let ends = |step: &Step| matches!(step.change, StepChange::Cut | StepChange::StillCut);
        let (first, last) = (steps.iter().find(|it| ends(it)), steps.iter().rfind(|it| ends(it)));
        let cut = first.zip(last).map(|(first, last)| (first.begin, last.end));
        score.apart = cut.and_then(|(begin, end)| {
            let is_within = |sample: &&HostsSample| sample.at >= begin && sample.at < end;
            let mut rates = trace.samples.iter().filter(is_within).filter_map(|it| it.rates);
            let first = rates.next()?;
            Some([first, rates.next_back()?].map(|rates| percent(rates.apart)))
        });
        score
    }

    /// Adds the periods of a step.
    fn periods(&mut self, read: &ReadTrace<'_>, step: &Step) {
        let first = match step.change {
            StepChange::Demand | StepChange::Return => {
                step.begin.after(Span(CONVERGED_INTERVALS * INTERVAL.0))
            }
            // The demand has not changed: promises hold all the time.
            StepChange::Cut | StepChange::StillCut => step.begin,
        };
        let periods = step.end.since(first).0 / PERIOD.0;
        let periods = (0..periods).map(|number| first.after(Span(number * PERIOD.0)));
        let quiet = |from: &Time| read.trace.is_quiet(*from, PERIOD);
        for from in periods.filter(quiet) {
            for (tenant, percent) in read.bounded(step, from, PERIOD) {
                self.tenants[tenant].counted.push(percent);
            }
            let used = read.used(from, PERIOD);
            match step.change {
                StepChange::Demand | StepChange::Return => self.used.push(used),
                StepChange::Cut | StepChange::StillCut => self.used_apart.push(used),
            }
        }
        if step.change == StepChange::Demand && quiet(&step.begin) {
            for (tenant, percent) in read.bounded(step, step.begin, PERIOD) {
                self.tenants[tenant].changing.push(percent);
            }
        }
    }

    fn convergence(&mut self, read: &ReadTrace<'_>, step: &Step) {
        let times = match step.change {
            // The run's first step is its start.
            StepChange::Demand if step.begin > Time::ZERO => {
                self.converged.entry(step.name).or_default()
            }
            StepChange::Return => &mut self.returned,
            _ => return,
        };
        if !read.trace.is_quiet(step.begin, Span(CONVERGING * INTERVAL.0)) {
            return;
        }
        let fulfilled = |from| read.fulfilled(step, from, INTERVAL);
        let enough = |from| fulfilled(from) >= FULFILLED_PERCENT;
        let intervals = |span: Span| span.as_seconds() / INTERVAL.as_seconds();
        let time = first_window((step.begin, step.end), INTERVAL, enough).map(intervals);
        times.push(time.ok_or_else(|| {
            let all = step.end.since(step.begin);
            let starts = (0..all.0 / INTERVAL.0).map(|it| step.begin.after(Span(it * INTERVAL.0)));
            let most = starts.map(fulfilled).fold(0.0, f64::max);
            Unfulfilled { most, waited: intervals(all) }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::hosts::plan::steps;

    const SIZE: HostsSize = HostsSize::QUICK;
    /// The promise of each tenant, in per cent of a capacity that is all used.
    const FAIR: [f64; 5] = [45.0, 30.0, 20.0, 0.0, 5.0];

    /// A trace in which the stages of tenant `t` read `rates_of(at)[t]` per cent of the capacity.
    fn trace(end: Time, every: Span, rates_of: impl Fn(Time) -> [f64; 5]) -> HostsTrace {
        let own = (SIZE.stages / TENANTS.len()) as f64;
        let (mut read, mut samples) = (vec![0.0; SIZE.stages], Vec::new());
        let mut at = Time::ZERO;
        while at <= end {
            let read_now = read.iter().map(|bytes: &f64| *bytes as u64).collect();
            let rates = HostsRates { all: CAPACITY.0, apart: CAPACITY.0 / 4 };
            samples.push(HostsSample { at, read: read_now, rates: Some(rates) });
            let percents = rates_of(at);
            for (stage, bytes) in read.iter_mut().enumerate() {
                let percent = percents[SIZE.tenant(stage)] / own;
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
        let trace = trace(end, EVERY, |_| FAIR);
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
        assert_eq!(score.apart, Some([25.0, 25.0]));
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
            [45.0, if is_short { 27.0 } else { 30.0 }, 20.0, 0.0, 5.0]
        });
        let score = HostsScore::of(&trace, SIZE, &steps);
        let least = score.tenants[1].counted.iter().copied().fold(f64::INFINITY, f64::min);
        assert!((least - 90.0).abs() < 0.2, "{least}");
        assert!(score.tenants[2].counted.iter().all(|percent| (percent - 100.0).abs() < 0.2));
    }

    #[test]
    fn a_disturbed_second_is_left_out() {
        let end = steps(SIZE).last().unwrap().end;
        let mut trace = trace(end, EVERY, |_| FAIR);
        let all = score(&trace);
        trace.quiet = vec![false; 3];
        let some = score(&trace);
        assert!(some.used.len() < all.used.len(), "{some:?}");
        let count = |score: &HostsScore| score.converged.values().map(Vec::len).sum::<usize>();
        assert!(count(&some) < count(&all));
    }

    #[test]
    fn the_time_to_converge_is_counted_from_the_change() {
        let steps = steps(SIZE);
        let step = &steps[1];
        let full = step.begin.after(Span(3 * INTERVAL.0));
        let end = steps.last().unwrap().end;
        let score = score(&trace(end, Span(5 * Span::MILLISECOND.0), |at| {
            let is_low = at >= step.begin && at < full;
            if is_low { [0.0, 30.0, 20.0, 0.0, 0.0] } else { [0.0, 30.0, 20.0, 45.0, 5.0] }
        }));
        // A tenth of an interval at half of the rate is a twentieth of it.
        let found = score.converged[step.name][0].unwrap();
        assert!((found - 2.9).abs() < 0.11, "{found}");
    }

    #[test]
    fn a_tenant_without_its_reservation_has_not_converged() {
        let steps = steps(SIZE);
        let step = steps.iter().find(|step| step.name == "gold goes on at half of the hosts");
        let begin = step.unwrap().begin;
        let score = score(&trace(steps.last().unwrap().end, EVERY, |at| {
            // The capacity is in use all the time.
            let is_late = at >= begin && at < begin.after(INTERVAL);
            if is_late { [4.5, 30.0, 20.0, 40.5, 5.0] } else { FAIR }
        }));
        let found = score.converged["gold goes on at half of the hosts"][0].unwrap();
        assert!(found > 0.9 && found < 1.1, "{found}");
    }

    #[test]
    fn what_never_converges_has_the_most_that_was_used() {
        let end = steps(SIZE).last().unwrap().end;
        let score = score(&trace(end, EVERY, |_| FAIR.map(|percent| 0.8 * percent)));
        for most in score.converged.values().flatten() {
            assert!(most.is_err_and(|it| (it.most - 80.0).abs() < 0.1), "{most:?}");
        }
    }
}
