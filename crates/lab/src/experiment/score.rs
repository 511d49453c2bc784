//! The score of a recording: the share of the time in which each tenant had its promise, and the
//! part of the budget that was used.

use serde::Serialize;
use tidegate_model::{Rate, Span};

use super::live_verdict::{CountedTime, LiveVerdict};
use super::plan::{ExperimentPlan, KEPT_PERMILLE};
use super::quiet::WAIT_MAX;
use super::recording::{Recording, SAMPLE_INTERVAL, Window, per_second, seconds};

/// Windows that counted, and those in which a level was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowCounts {
    pub(crate) counted: u64,
    pub(crate) kept: u64,
    /// The lowest level of all that counted, in thousandths of what was to be reached.
    pub(crate) lowest_permille: Option<u64>,
}

/// Thousandths of the wanted rate.
fn permille(reached: Rate, wanted: Rate) -> u64 {
    reached.0.saturating_mul(1000) / wanted.0.max(1)
}

impl WindowCounts {
    /// Counts a window. Returns whether it is the lowest so far.
    fn take(&mut self, reached: Rate, wanted: Rate) -> bool {
        let permille = permille(reached, wanted);
        self.counted += 1;
        self.kept += u64::from(permille >= KEPT_PERMILLE);
        let is_lowest = self.lowest_permille.is_none_or(|low| permille < low);
        if is_lowest {
            self.lowest_permille = Some(permille);
        }
        is_lowest
    }

    /// Whether the level was reached whenever it counted.
    pub(crate) fn is_kept(self) -> bool {
        self.kept == self.counted
    }

    /// The share of the time that counted in which it was reached, in thousandths; rounded down,
    /// so that all means all. None if nothing counted.
    pub(crate) fn kept_permille(self) -> Option<u64> {
        (self.counted > 0).then(|| self.kept * 1000 / self.counted)
    }

    /// About how long it was not reached.
    pub(crate) fn missed(self) -> Span {
        Span((self.counted - self.kept) * SAMPLE_INTERVAL.0)
    }
}

/// Circumstances that may keep a tenant from its promise, and that no sharing of a disk can mend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Circumstances {
    /// Time that its processes waited for a processor, added up.
    pub(crate) starved: Span,
    /// The longest time of the disk for a small read without a limit.
    pub(crate) pulse: Span,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TenantScore {
    pub(crate) name: &'static str,
    pub(crate) promise: Rate,
    /// Seconds in which it wanted its promise, had settled, and had it.
    pub(crate) promise_kept: WindowCounts,
    /// The circumstances of the second in which the tenant had least.
    pub(crate) then: Circumstances,
    /// As `promise_kept`, of those in which all tenants ran.
    pub(crate) with_all: WindowCounts,
    /// Its mean rate while all tenants ran and had settled, if they ever did.
    pub(crate) rate_with_all: Option<Rate>,
    /// From its start to its end.
    pub(crate) took: Span,
    /// The mean read rate from its start to its end.
    pub(crate) mean: Rate,
}

/// How a set-up did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Score {
    pub(crate) tenant_scores: Vec<TenantScore>,
    /// Windows in which a tenant had demand and rates were settled, and those of them in which all
    /// tenants together had the budget.
    pub(crate) budget_used: WindowCounts,
    /// All that was read, of what the budget would have allowed in that time, in thousandths.
    pub(crate) used_permille: u64,
    /// From the first start to the last end.
    pub(crate) took: Span,
    /// Windows in which rates were settled, those that were disturbed, and those in which some
    /// tenant wanted its promise. It was kept if each tenant that wanted it had it.
    pub(crate) time: CountedTime,
}

/// A disk that took longer for a small read that nobody limits stood still. This takes as much from
/// a promise as [`KEPT_PERMILLE`] allows.
const PULSE_MAX: Span = Span(30 * Span::MILLISECOND.0);

/// Whether others kept a tenant from a processor in a window, or its disk stood still.
fn is_disturbed(recording: &Recording, window: Window) -> bool {
    let mut tenants = 0..recording.courses.len();
    let waits = tenants.any(|tenant| recording.starved(tenant, window) > WAIT_MAX);
    waits || recording.pulse(window) > PULSE_MAX
}

impl Score {
    pub(crate) fn new(plan: &ExperimentPlan, recording: &Recording) -> Self {
        let settled = || recording.windows().filter(|window| recording.is_settled(*window));
        let all = settled().count() as u64;
        let quiet = settled().filter(|window| !is_disturbed(recording, *window));
        let mut settled: Vec<Window> = quiet.collect();
        let disturbed = all - settled.len() as u64;
        let begin_per_second = Span::SECOND.0 / SAMPLE_INTERVAL.0;
        let time =
            CountedTime { all, disturbed, counted: 0, kept: 0, per_second: begin_per_second };
        if time.disturbance().is_some() {
            // Too few are left to say anything: all of them are shown.
            settled = recording.windows().filter(|one| recording.is_settled(*one)).collect();
        }
        let time = with_promises(recording, &settled, time);
        let tenants = 0..recording.courses.len();
        let tenant_scores =
            tenants.clone().map(|tenant| tenant_score(recording, tenant, &settled)).collect();
        let mut budget_used = WindowCounts::default();
        for window in &settled {
            // A single tenant makes enough requests for the whole budget.
            if tenants.clone().any(|tenant| recording.has_demand(tenant, *window)) {
                budget_used.take(recording.sum(*window), plan.budget);
            }
        }
        let took = recording.took();
        let read: u64 = recording.courses.iter().map(|course| course.reported_bytes).sum();
        let used_permille = per_second(read, took).0.saturating_mul(1000) / plan.budget.0.max(1);
        Self { tenant_scores, budget_used, used_permille, took, time }
    }

    /// Why the set-up says nothing, if too much of it was disturbed.
    pub(crate) fn disturbance(&self) -> Option<String> {
        self.time.disturbance()
    }

    /// That no second counts of some tenant, if so.
    pub(crate) fn unseen(&self) -> Option<String> {
        (self.verdict() == LiveVerdict::Disturbed)
            .then(|| "tenants came and went too fast for any second to count".to_owned())
    }

    /// Whether every tenant had its promise whenever it counted, and for each it did at some time.
    pub(crate) fn verdict(&self) -> LiveVerdict {
        let promises = self.tenant_scores.iter().map(|tenant_score| {
            let WindowCounts { kept, counted, .. } = tenant_score.promise_kept;
            LiveVerdict::of_promise(kept, counted)
        });
        LiveVerdict::of_run(self.time, promises)
    }
}

/// The windows in which tenants wanted their promises, and all of them had them.
fn with_promises(recording: &Recording, settled: &[Window], time: CountedTime) -> CountedTime {
    settled.iter().fold(time, |time, window| {
        let wanting = (0..).zip(&recording.courses);
        let wanting = wanting.filter(|(tenant, _)| recording.has_demand(*tenant, *window));
        let mut reached = wanting.map(|(tenant, course)| {
            permille(recording.rate(tenant, *window), course.promise) >= KEPT_PERMILLE
        });
        let Some(first) = reached.next() else { return time };
        let is_kept = reached.all(|is_kept| is_kept) && first;
        let (counted, kept) = (time.counted + 1, time.kept + u64::from(is_kept));
        CountedTime { counted, kept, ..time }
    })
}

fn tenant_score(recording: &Recording, tenant: usize, settled: &[Window]) -> TenantScore {
    let course = &recording.courses[tenant];
    let wanted = |window: &&Window| recording.has_demand(tenant, **window);
    let with_all = |window: &Window| {
        (0..recording.courses.len()).all(|tenant| recording.has_demand(tenant, *window))
    };
    let (mut promise_kept, mut kept_with_all) = (WindowCounts::default(), WindowCounts::default());
    let (mut rates, mut then) = (Vec::new(), Circumstances::default());
    for window in settled.iter().filter(wanted) {
        let rate = recording.rate(tenant, *window);
        if promise_kept.take(rate, course.promise) {
            let (starved, pulse) = (recording.starved(tenant, *window), recording.pulse(*window));
            then = Circumstances { starved, pulse };
        }
        if with_all(window) {
            kept_with_all.take(rate, course.promise);
            rates.push(rate.0);
        }
    }
    let took = course.ended.since(course.started);
    TenantScore {
        name: course.name,
        promise: course.promise,
        promise_kept,
        then,
        with_all: kept_with_all,
        rate_with_all: (!rates.is_empty())
            .then(|| Rate(rates.iter().sum::<u64>() / rates.len() as u64)),
        took,
        mean: per_second(course.reported_bytes, took),
    }
}

/// Numbers of a set-up, for programs.
#[derive(Debug, Serialize)]
pub(crate) struct Numbers {
    seconds: f64,
    budget_used_percent: f64,
    budget_used_percent_of_seconds: Option<f64>,
    budget_used_lowest_percent: Option<f64>,
    promises_kept: bool,
    counted_seconds: f64,
    kept_seconds: f64,
    disturbed_seconds: f64,
    disturbed_percent: f64,
    tenants: Vec<TenantNumbers>,
}

#[derive(Debug, Serialize)]
struct TenantNumbers {
    name: &'static str,
    promise_bytes_per_second: u64,
    promise_kept_percent: Option<f64>,
    promise_missed_seconds: f64,
    lowest_percent_of_promise: Option<f64>,
    waited_for_processor_seconds_then: f64,
    disk_pulse_seconds_then: f64,
    mean_bytes_per_second: u64,
    mean_with_all_bytes_per_second: Option<u64>,
    seconds: f64,
}

/// Per cent, for programs.
pub(crate) fn percent(permille: u64) -> f64 {
    permille as f64 / 10.0
}

impl From<&Score> for Numbers {
    fn from(score: &Score) -> Self {
        let tenants = score.tenant_scores.iter().map(|tenant_score| TenantNumbers {
            name: tenant_score.name,
            promise_bytes_per_second: tenant_score.promise.0,
            promise_kept_percent: tenant_score.promise_kept.kept_permille().map(percent),
            promise_missed_seconds: seconds(tenant_score.promise_kept.missed().0),
            lowest_percent_of_promise: tenant_score.promise_kept.lowest_permille.map(percent),
            waited_for_processor_seconds_then: seconds(tenant_score.then.starved.0),
            disk_pulse_seconds_then: seconds(tenant_score.then.pulse.0),
            mean_bytes_per_second: tenant_score.mean.0,
            mean_with_all_bytes_per_second: tenant_score.rate_with_all.map(|rate| rate.0),
            seconds: seconds(tenant_score.took.0),
        });
        Self {
            seconds: seconds(score.took.0),
            budget_used_percent: percent(score.used_permille),
            budget_used_percent_of_seconds: score.budget_used.kept_permille().map(percent),
            budget_used_lowest_percent: score.budget_used.lowest_permille.map(percent),
            promises_kept: score.verdict() == LiveVerdict::Kept,
            counted_seconds: score.time.seconds(score.time.counted),
            kept_seconds: score.time.seconds(score.time.kept),
            disturbed_seconds: score.time.seconds(score.time.disturbed),
            disturbed_percent: score.time.disturbed as f64 * 100.0 / score.time.all.max(1) as f64,
            tenants: tenants.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::MIB;
    use crate::experiment::recording::{Control, fluid};

    fn score(control: Control) -> Score {
        let plan = fluid::plan();
        Score::new(&plan, &fluid::recording(&plan, control))
    }

    fn kept(score: &Score) -> Vec<Option<u64>> {
        score
            .tenant_scores
            .iter()
            .map(|tenant_score| tenant_score.promise_kept.kept_permille())
            .collect()
    }

    #[test]
    fn without_control_the_large_promises_are_missed_while_all_run() {
        let score = score(Control::None);
        assert_eq!(score.verdict(), LiveVerdict::Missed);
        let with_all: Vec<_> = score
            .tenant_scores
            .iter()
            .map(|tenant_score| tenant_score.with_all.kept_permille())
            .collect();
        assert_eq!(with_all, [Some(1000), Some(1000), Some(0), Some(0)]);
        assert_eq!(score.tenant_scores[3].rate_with_all, Some(Rate(256 * MIB)));
        assert!(score.budget_used.is_kept(), "the disk is never idle");
    }

    #[test]
    fn static_limits_keep_promises_and_leave_the_rest_idle() {
        let score = score(Control::Static);
        assert_eq!(kept(&score), [Some(1000); 4]);
        assert_eq!(score.took.as_seconds().round(), 50.0);
        assert_eq!(score.used_permille, 500);
        assert!(score.budget_used.kept_permille() < Some(500));
        assert_eq!(score.tenant_scores[0].mean.0 / MIB, 150);
    }

    #[test]
    fn tidegate_keeps_promises_and_wastes_nothing() {
        let score = score(Control::Tidegate);
        assert_eq!(kept(&score), [Some(1000); 4]);
        assert_eq!(score.verdict(), LiveVerdict::Kept);
        assert!(score.budget_used.is_kept());
        assert!(score.time.counted > 40 && score.time.kept == score.time.counted);
        assert!(score.took.as_seconds() < 25.5, "{}", score.took);
        assert!(score.tenant_scores.iter().all(|tenant_score| tenant_score.with_all.counted > 20));
    }

    #[test]
    fn one_bad_second_is_enough() {
        let plan = fluid::plan();
        let mut recording = fluid::recording(&plan, Control::Tidegate);
        // From 15 s on, the last tenant is one sample's worth of bytes behind.
        let behind = plan.tenants[3].promise.0 / 4;
        for sample in &mut recording.samples[60..] {
            sample.seen[3].bytes -= behind;
        }
        let score = Score::new(&plan, &recording);
        let kept = score.tenant_scores[3].promise_kept;
        assert_eq!((kept.counted - kept.kept, kept.lowest_permille), (4, Some(750)));
        assert_eq!(kept.missed(), Span::SECOND);
        assert_eq!(score.time.counted - score.time.kept, 4);
        assert_eq!(score.verdict(), LiveVerdict::Missed);
    }
}
