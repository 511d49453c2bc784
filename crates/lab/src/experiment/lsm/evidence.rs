//! The measurements behind claims about RocksDB, and the numbers that all claims share.

use std::ops::Range;

use serde_json::{Map, Value, json};
use tidegate_model::Span;

use super::plan::{LsmPlan, LsmSystem};
use super::runs::{LsmRun, LsmSystemRuns};
use super::score::{LsmScore, median};
use crate::experiment::paper::{ClaimSource, LIVE, tenths};
use crate::experiment::quiet::Quiet;
use crate::experiment::verdict::{Check, Claim, at_least, at_most, order};

/// Throughput is the same from this part of the other's on, in percent.
pub(super) const SAME_PERCENT: f64 = 95.0;

/// Latencies are similar up to this quotient: the paper's own system has 3 ms and SILK 2 ms where
/// they differ most (figure 6).
const SIMILAR_TIMES: f64 = 1.5;

/// A number of a score.
pub(super) type LsmNumber = fn(&LsmScore) -> f64;

pub(super) const HIGHEST: (&str, LsmNumber) = ("highest p99 of a second", |score| score.highest_ms);

/// All runs, or why there are none.
pub(super) type LsmOutcome = Result<Vec<LsmSystemRuns>, String>;

/// The evidence for claims.
pub(super) struct LsmEvidence<'a> {
    pub(super) plan: &'a LsmPlan,
    pub(super) outcome: &'a LsmOutcome,
    pub(super) seconds: f64,
}

impl LsmEvidence<'_> {
    /// A claim with the numbers of these systems, which a busy machine may have disturbed.
    pub(super) fn measured_claim(
        &self,
        text: &str,
        systems: &[LsmSystem],
        checks: Vec<Check>,
    ) -> Claim {
        let disturbance = self.quiet().disturbance();
        let claim = self.claim(text, self.measured(systems).into(), checks);
        claim.disturbed(disturbance.as_deref())
    }

    pub(super) fn claim(&self, text: &str, measured: Value, checks: Vec<Check>) -> Claim {
        let figure = self.plan.experiment.figure;
        let source =
            ClaimSource { paper: "paio", figure, world: LIVE, seed: None, seconds: self.seconds };
        let mut numbers = Map::new();
        if let (Value::Object(measured), Ok(_)) = (measured, self.outcome) {
            numbers.extend(measured);
        }
        let missing = self.outcome.as_ref().err().map(String::as_str);
        source.claim(text, numbers.into(), checks).skipped(missing)
    }

    fn quiet(&self) -> Quiet {
        let all = self.outcome.iter().flatten().flat_map(|one| one.runs.iter().flatten());
        all.fold(Quiet::default(), |quiet, run| quiet.and(run.quiet.clone()))
    }

    pub(super) fn runs(&self, system: LsmSystem) -> &[LsmRun] {
        let all = self.outcome.as_deref().unwrap_or_default();
        let found = all.iter().find(|one| one.system == system);
        found.and_then(|one| one.runs.as_deref().ok()).unwrap_or_default()
    }

    /// Why there are no runs of a system alone.
    pub(super) fn missing(&self, system: LsmSystem) -> Option<&str> {
        let all = self.outcome.as_deref().unwrap_or_default();
        let found = all.iter().find(|one| one.system == system)?;
        found.runs.as_ref().err().map(String::as_str)
    }

    /// The seconds after the first valley, in which the store is to work off its backlog.
    pub(super) fn busy(&self) -> Range<usize> {
        self.plan.first_busy_second()..usize::MAX
    }

    /// The median over rounds of a number of these seconds.
    pub(super) fn number(
        &self,
        system: LsmSystem,
        seconds: &Range<usize>,
        number: LsmNumber,
    ) -> Option<f64> {
        let scores = self.runs(system).iter();
        let scores = scores.filter_map(|run| LsmScore::new(run, seconds.clone()));
        median(scores.map(|score| number(&score)))
    }

    /// A number of the first system, as so many times that of the second.
    pub(super) fn times(
        &self,
        systems: [LsmSystem; 2],
        seconds: &Range<usize>,
        number: LsmNumber,
    ) -> Option<f64> {
        let [one, other] = systems.map(|system| self.number(system, seconds, number));
        one.zip(other.filter(|value| *value > 0.0)).map(|(one, other)| one / other)
    }

    /// The first system has a lower number than the second.
    pub(super) fn is_lower(
        &self,
        [one, other]: [LsmSystem; 2],
        seconds: &Range<usize>,
        (what, number): (&str, LsmNumber),
    ) -> Check {
        let value = |system| self.number(system, seconds, number).unwrap_or(f64::NAN);
        order(what, "ms", &[(one.name(), value(one)), (other.name(), value(other))])
    }

    /// Tidegate serves at least so many percent of the operations of another system.
    pub(super) fn serves(&self, other: LsmSystem, percent: f64, seconds: &Range<usize>) -> Check {
        let systems = [LsmSystem::Tidegate, other];
        let times = self.times(systems, seconds, |score| score.operations_per_second);
        let what = format!("operations, of those of {}", other.name());
        at_least(what, "%", percent, times.map(|times| times * 100.0))
    }

    /// The number of Tidegate is similar to that of SILK's rules, or lower.
    pub(super) fn is_like_silk(
        &self,
        seconds: &Range<usize>,
        (what, number): (&str, LsmNumber),
    ) -> Check {
        let times = self.times([LsmSystem::Tidegate, LsmSystem::Silk], seconds, number);
        at_most(format!("{what}, beside SILK's rules"), "times", SIMILAR_TIMES, times)
    }

    /// Numbers of these systems: medians over rounds, and each round's highest latency.
    pub(super) fn measured(&self, systems: &[LsmSystem]) -> Map<String, Value> {
        let busy = self.busy();
        let mut measured = Map::new();
        for system in systems {
            let numbers: [(&str, LsmNumber); 6] = [
                ("operations_per_second", |score| score.operations_per_second),
                ("served_percent", |score| score.served_percent),
                ("median_p99_ms", |score| score.median_ms),
                ("high_p99_ms", |score| score.high_ms),
                ("highest_p99_ms", |score| score.highest_ms),
                ("p99_deviation_ms", |score| score.deviation_ms),
            ];
            for (name, number) in numbers {
                let value = self.number(*system, &busy, number).map(tenths);
                measured.insert(format!("{}_{name}", system.key()), json!(value));
            }
            let rounds = self.runs(*system).iter();
            let rounds = rounds.filter_map(|run| LsmScore::new(run, busy.clone()));
            let rounds: Vec<f64> = rounds.map(|score| tenths(score.highest_ms)).collect();
            measured.insert(format!("{}_highest_p99_ms_of_rounds", system.key()), json!(rounds));
        }
        measured.extend(self.quiet().numbers());
        if let Some(limit) = self.plan.limit {
            measured.insert("limit_bytes_per_second".into(), limit.0.into());
        }
        if let Some(rate) = self.plan.disk_rate {
            measured.insert("disk_bytes_per_second".into(), rate.0.into());
        }
        measured.insert("budget_bytes_per_second".into(), self.plan.budget.0.into());
        let seconds = self.plan.bursts.total.0 / Span::SECOND.0;
        measured.insert("seconds_of_a_run".into(), seconds.into());
        measured
    }
}
