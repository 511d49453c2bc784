//! The claims about the tail latency of RocksDB: the paper's, and our own about a static limiter.

use std::ops::Range;

use serde_json::{Map, Value, json};
use tidegate_model::Span;

use super::live::{LsmRun, LsmSystemRuns};
use super::plan::{LsmMixture, LsmPlan, LsmSystem};
use super::score::{LsmScore, median};
use crate::experiment::paper::{ClaimSource, LIVE, tenths};
use crate::experiment::quiet::Quiet;
use crate::experiment::verdict::{Check, Claim, at_least, between, order};

/// The paper's highest latencies of the mixture, of RocksDB and of its own system: 20 and 6 ms.
const PAPER_TIMES_LOWER: f64 = 3.3;

/// Throughput is the same from this part of the other's on, in percent.
const SAME_PERCENT: f64 = 95.0;

/// Bytes that the shim counts beside those that the store counts, in percent: threads of the store
/// also write its manifest, and read whole blocks of the disk.
const ATTRIBUTED_PERCENT: [f64; 2] = [100.0, 125.0];

/// Lines that the paper adds to RocksDB (table 3).
const PAPER_LINES: f64 = 85.0;

/// Why SILK is not measured.
const NO_SILK: &str = "SILK is a changed RocksDB 5.7, and no program of a distribution; it also \
                       preempts compactions, which a program from outside cannot";

/// A number of a score.
type LsmNumber = fn(&LsmScore) -> f64;

/// All runs, or why there are none.
pub(super) type LsmOutcome = Result<Vec<LsmSystemRuns>, String>;

/// The evidence for claims.
pub(super) struct LsmEvidence<'a> {
    pub(super) plan: &'a LsmPlan,
    pub(super) outcome: &'a LsmOutcome,
    pub(super) seconds: f64,
}

impl LsmEvidence<'_> {
    pub(super) fn claims(&self) -> Vec<Claim> {
        let mixture = self.plan.mixture;
        let mut claims = vec![self.spikes(), self.throughput(), self.auto_tuned(), self.fixed()];
        let silk = "Tidegate's latency and throughput are similar to SILK's";
        claims.push(self.claim(silk, Value::Null, vec![]).skipped(Some(NO_SILK)));
        let disturbance = self.quiet().disturbance();
        let disturbed = |claim: Claim| claim.disturbed(disturbance.as_deref());
        let mut claims: Vec<Claim> = claims.into_iter().map(disturbed).collect();
        // Bytes are the same on a busy machine.
        if mixture == LsmMixture::Half {
            claims.push(self.attribution());
        }
        claims
    }

    fn claim(&self, text: &str, measured: Value, checks: Vec<Check>) -> Claim {
        let figure = self.plan.mixture.figure();
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

    fn runs(&self, system: LsmSystem) -> &[LsmRun] {
        let all = self.outcome.as_deref().unwrap_or_default();
        let found = all.iter().find(|one| one.system == system);
        found.and_then(|one| one.runs.as_deref().ok()).unwrap_or_default()
    }

    /// Why there are no runs of a system alone.
    fn missing(&self, system: LsmSystem) -> Option<&str> {
        let all = self.outcome.as_deref().unwrap_or_default();
        let found = all.iter().find(|one| one.system == system)?;
        found.runs.as_ref().err().map(String::as_str)
    }

    /// The seconds after the first valley, in which the store is to work off its backlog.
    fn busy(&self) -> Range<usize> {
        self.plan.first_busy_second()..usize::MAX
    }

    /// The median over rounds of a number of these seconds.
    fn number(&self, system: LsmSystem, seconds: &Range<usize>, number: LsmNumber) -> Option<f64> {
        let scores = self.runs(system).iter();
        let scores = scores.filter_map(|run| LsmScore::new(run, seconds.clone()));
        median(scores.map(|score| number(&score)))
    }

    /// Tidegate's seconds have lower latencies than another system's: the highest, and the high.
    fn lower(&self, other: LsmSystem, seconds: &Range<usize>) -> Vec<Check> {
        let numbers: [(&str, LsmNumber); 2] = [
            ("highest p99 of a second", |score| score.highest_ms),
            ("p99 of nine seconds of ten", |score| score.high_ms),
        ];
        let check = |(what, number): (&str, LsmNumber)| {
            let value = |system| self.number(system, seconds, number).unwrap_or(f64::NAN);
            let [ours, others] = [LsmSystem::Tidegate, other].map(value);
            order(what, "ms", &[(LsmSystem::Tidegate.name(), ours), (other.name(), others)])
        };
        numbers.map(check).into()
    }

    fn same_throughput(&self, other: LsmSystem) -> Check {
        let busy = self.busy();
        let value = |system| self.number(system, &busy, |score| score.operations_per_second);
        let percent = value(LsmSystem::Tidegate).zip(value(other).filter(|value| *value > 0.0));
        let percent = percent.map(|(ours, others)| ours * 100.0 / others);
        at_least(format!("operations, of those of {}", other.name()), "%", SAME_PERCENT, percent)
    }

    fn spikes(&self) -> Claim {
        let (other, busy) = (LsmSystem::RocksDb, self.busy());
        let mut checks = self.lower(other, &busy);
        let highest = |system| self.number(system, &busy, |score| score.highest_ms);
        let times = highest(other).zip(highest(LsmSystem::Tidegate).filter(|ms| *ms > 0.0));
        let times = times.map(|(others, ours)| others / ours);
        let text = match self.plan.mixture {
            LsmMixture::Half => {
                checks.push(at_least("RocksDB's highest", "times", PAPER_TIMES_LOWER, times));
                "RocksDB's latency has spikes, and under Tidegate they are as much lower as in \
                 the paper (20 ms and 6 ms)"
            }
            LsmMixture::ReadHeavy => {
                checks = self.lower(other, &(0..self.plan.first_peak_end()));
                "up to the end of the first peak, while RocksDB works off its backlog, its \
                 latency has spikes that are lower under Tidegate"
            }
            LsmMixture::WriteHeavy => {
                "most operations write, RocksDB's latency has spikes, and under Tidegate they are \
                 lower"
            }
        };
        let mut measured = self.measured(&[other, LsmSystem::Tidegate]);
        measured.insert("times_lower".into(), json!(times.map(tenths)));
        self.claim(text, measured.into(), checks)
    }

    fn throughput(&self) -> Claim {
        let checks = vec![self.same_throughput(LsmSystem::RocksDb)];
        let measured = self.measured(&[LsmSystem::RocksDb, LsmSystem::Tidegate]);
        let text = "Tidegate costs no throughput";
        let claim = self.claim(text, measured.into(), checks);
        // The paper's own system loses throughput if most operations write.
        if self.plan.mixture == LsmMixture::WriteHeavy { claim.ours() } else { claim }
    }

    fn auto_tuned(&self) -> Claim {
        let other = LsmSystem::AutoTuned;
        let mut checks = self.lower(other, &self.busy());
        checks.push(self.same_throughput(other));
        let measured = self.measured(&[other, LsmSystem::Tidegate]);
        let text = "RocksDB's limiter that tunes itself does not know what is urgent: Tidegate's \
                    spikes are lower, and throughput is not";
        self.claim(text, measured.into(), checks).skipped(self.missing(other))
    }

    fn fixed(&self) -> Claim {
        let other = LsmSystem::Static;
        let mut checks = self.lower(other, &self.busy());
        checks.push(self.same_throughput(other));
        let measured = self.measured(&[other, LsmSystem::Tidegate]);
        let text = "with the same budget, RocksDB's limiter with one rate has higher spikes than \
                    Tidegate, and not more throughput";
        self.claim(text, measured.into(), checks).ours()
    }

    /// Table 3: the paper tells kinds of requests apart by changes of the store.
    fn attribution(&self) -> Claim {
        let shares: Vec<[f64; 2]> =
            self.runs(LsmSystem::Tidegate).iter().filter_map(attributed).collect();
        let column = |at: usize| -> Vec<f64> { shares.iter().map(|one| one[at]).collect() };
        let (flushes, compactions) = (column(0), column(1));
        let lines = if shares.is_empty() { vec![] } else { vec![0.0] };
        let library = self.runs(LsmSystem::Tidegate).first();
        let measured = json!({
            "flush_percent": flushes.iter().copied().map(tenths).collect::<Vec<_>>(),
            "compaction_percent": compactions.iter().copied().map(tenths).collect::<Vec<_>>(),
            "lines_changed": 0,
            "library": library.map(|run| run.totals.library.clone()),
        });
        let unit = "% of the store's count";
        let checks = vec![
            between("lines changed", "", [0.0, PAPER_LINES], lines),
            between("bytes of flushes", unit, ATTRIBUTED_PERCENT, flushes),
            between("bytes of compactions", unit, ATTRIBUTED_PERCENT, compactions),
        ];
        let text = "flushes and compactions are told apart from clients' requests with few \
                    changes of the store (85 lines), and here with none: its library is the \
                    distribution's";
        self.claim(text, measured, checks)
    }

    /// Numbers of these systems: medians over rounds, and each round's highest latency.
    fn measured(&self, systems: &[LsmSystem]) -> Map<String, Value> {
        let busy = self.busy();
        let mut measured = Map::new();
        for system in systems {
            let numbers: [(&str, LsmNumber); 5] = [
                ("operations_per_second", |score| score.operations_per_second),
                ("served_percent", |score| score.served_percent),
                ("median_p99_ms", |score| score.median_ms),
                ("high_p99_ms", |score| score.high_ms),
                ("highest_p99_ms", |score| score.highest_ms),
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
        measured.insert("limit_bytes_per_second".into(), self.plan.limit.0.into());
        measured.insert("budget_bytes_per_second".into(), self.plan.budget.0.into());
        let seconds = self.plan.bursts.total.0 / Span::SECOND.0;
        measured.insert("seconds_of_a_run".into(), seconds.into());
        measured
    }
}

/// The bytes in the channels of flushes and of compactions, in percent of those that the store
/// counts; none if it counts none.
fn attributed(run: &LsmRun) -> Option<[f64; 2]> {
    let bytes = |name: &str| run.channels.get(name).copied();
    let percent =
        |found: u64, counted: u64| (counted > 0).then(|| found as f64 * 100.0 / counted as f64);
    let totals = &run.totals;
    let compacted = totals.compaction_read_bytes + totals.compaction_written_bytes;
    let compactions = bytes("compaction-l0")? + bytes("compaction-deep")?;
    Some([percent(bytes("flush")?, totals.flush_written_bytes)?, percent(compactions, compacted)?])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::score::tests::run;
    use super::*;
    use crate::experiment::verdict::Verdict;
    use crate::lsm::LsmTotals;

    /// Every system with one run of 24 seconds, of these operations and highest latencies.
    fn outcome(numbers: [(u64, u64); 4]) -> Vec<LsmSystemRuns> {
        let runs = |(system, (operations, highest_us))| {
            let mut seconds = vec![(operations, 1_000); 24];
            seconds[3..].iter_mut().for_each(|second| second.1 = highest_us);
            let mut run = run(&seconds);
            run.totals = LsmTotals {
                flush_written_bytes: 100,
                compaction_read_bytes: 100,
                compaction_written_bytes: 100,
                ..LsmTotals::default()
            };
            let channels = [("flush", 101), ("compaction-l0", 150), ("compaction-deep", 60)];
            run.channels = channels.map(|(name, bytes)| (name.to_owned(), bytes)).into();
            LsmSystemRuns { system, runs: Ok(vec![run]) }
        };
        LsmSystem::ALL.into_iter().zip(numbers).map(runs).collect()
    }

    fn verdicts(mixture: LsmMixture, outcome: &LsmOutcome) -> Vec<Verdict> {
        let plan = LsmPlan::new(mixture, 24);
        let claims = LsmEvidence { plan: &plan, outcome, seconds: 1.0 }.claims();
        claims.iter().map(|claim| claim.verdict).collect()
    }

    #[test]
    fn the_papers_numbers_hold_all_claims_and_others_do_not() {
        use Verdict::{Differs, Fails, Holds, NotReproduced, Reproduced, Skipped};

        let good = Ok(outcome([(119, 20_000), (100, 9_000), (110, 8_000), (124, 6_000)]));
        let expected = [Reproduced, Reproduced, Reproduced, Holds, Skipped, Reproduced];
        assert_eq!(verdicts(LsmMixture::Half, &good), expected);
        assert_eq!(verdicts(LsmMixture::ReadHeavy, &good), expected[..5]);
        let ours = [Reproduced, Holds, Reproduced, Holds, Skipped];
        assert_eq!(verdicts(LsmMixture::WriteHeavy, &good), ours);
        // A third less than the paper, less throughput, and higher spikes than with the limiters.
        let bad = Ok(outcome([(119, 12_000), (100, 5_000), (110, 5_000), (100, 6_000)]));
        let expected = [Differs, Differs, NotReproduced, Fails, Skipped, Reproduced];
        assert_eq!(verdicts(LsmMixture::Half, &bad), expected);
    }

    #[test]
    fn what_was_not_run_is_skipped_with_its_reason() {
        let nothing = Err("no library".to_owned());
        assert_eq!(verdicts(LsmMixture::Half, &nothing), [Verdict::Skipped; 6]);
        let mut some = outcome([(119, 20_000), (100, 9_000), (110, 8_000), (124, 6_000)]);
        some[1].runs = Err("an old version".into());
        some[3].runs.as_mut().unwrap()[0].channels = BTreeMap::new();
        let verdicts = verdicts(LsmMixture::Half, &Ok(some));
        assert_eq!([verdicts[0], verdicts[2]], [Verdict::Reproduced, Verdict::Skipped]);
        assert_eq!(verdicts[5], Verdict::Skipped, "no channels were reported");
    }
}
