//! pShift paper, figure 8 (experiment 3): four tenants on four nodes, tenant k on the first k of
//! them, with five requests outstanding at each. Three runs: round robin, with reservations, and
//! with limits as well. Simulated at the paper's rates, and live at a fiftieth of them, before a
//! real memcached on each node.

use serde_json::{Map, Value, json};
use tidegate_model::Iops;
use tidegate_sim::cluster::ClusterReport;
use tidegate_sim::scenario::Scenario;

use super::judge::{self, PeriodCounts};
use super::live::{self, Back};
use super::plot::{Panel, Series, draw};
use super::simulated::{self, PshiftRun};
use super::{ClaimSource, FigureContext, FigureResult, LIVE, PAPER, SIMULATED, seconds, tenths};
use crate::experiment::quiet::Quiet;
use crate::experiment::verdict::{Check, Claim, at_least, near};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// A live node has the paper's rate divided by this: 1,000 operations per second.
const SCALE: u64 = 50;
/// Periods that are counted live: one second by itself may be one in which the machine was busy.
const PERIODS: u32 = 3;

/// Each tenant's rate in turn, as a multiple of a node's rate: 1/4, and 1/3, 1/2 and 1 more.
const ROUND_ROBIN: [f64; 4] = [1.0 / 4.0, 7.0 / 12.0, 13.0 / 12.0, 25.0 / 12.0];

/// The outcome of one of the three runs, and its scale.
struct FigureRun<'a> {
    outcome: &'a ClusterReport,
    source: ClaimSource,
    rate: Iops,
    /// How far a tenant may be off, in percent: simulated nodes vary, live ones share processors.
    tolerance: f64,
    /// Answers that may come in the period after theirs.
    slack: u64,
    back: &'static str,
    /// How quiet a live machine was.
    quiet: Quiet,
}

/// The three runs.
fn scenarios() -> Result<Vec<Scenario>, Failure> {
    let texts = [
        simulated::EXPERIMENT_3_ROUND_ROBIN,
        simulated::EXPERIMENT_3_RESERVATIONS,
        simulated::EXPERIMENT_3_LIMITS,
    ];
    texts.into_iter().map(simulated::scenario).collect()
}

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let scenarios = scenarios()?;
    let simulated = simulated::run_all(context, scenarios.clone())?;
    let (mut claims, mut table) = (Vec::new(), table());
    for (number, (scenario, shown)) in scenarios.iter().zip(&simulated).enumerate() {
        let run = run(shown, scenario, (SIMULATED, 3.0, 0), ("a device model", Quiet::default()));
        claims.push(run.judge(number));
        row(&mut table, number, &run);
    }
    let picture = picture(simulated.iter().map(|shown| &shown.outcome), SIMULATED);
    Ok(FigureResult { claims, table, picture })
}

pub(super) fn live(context: &FigureContext) -> Result<FigureResult, Failure> {
    let (mut claims, mut table, mut outcomes) = (Vec::new(), table(), Vec::new());
    let back = Back::memcached();
    for (number, scenario) in scenarios()?.iter().enumerate() {
        let scenario = Scenario { periods: PERIODS, ..live::scaled(scenario, SCALE) };
        let plan = simulated::run(context, scenario.clone())?.outcome;
        let lived = live::run(context, &scenario, plan, back)?;
        let slack = simulated::slack(&scenario);
        let run = run(&lived.shown, &scenario, (LIVE, 5.0, slack), (back.name(), lived.quiet));
        claims.push(run.judge(number).skipped(lived.missing.as_deref()));
        row(&mut table, number, &run);
        outcomes.push(lived.shown.outcome);
    }
    let picture = picture(outcomes.iter(), LIVE);
    Ok(FigureResult { claims, table, picture })
}

fn table() -> Table {
    Table::new()
        .left("RUN")
        .left("WORLD")
        .right("TENANT 1")
        .right("TENANT 2")
        .right("TENANT 3")
        .right("TENANT 4")
}

fn run<'a>(
    shown: &'a PshiftRun,
    scenario: &Scenario,
    (world, tolerance, slack): (&'static str, f64, u64),
    (back, quiet): (&'static str, Quiet),
) -> FigureRun<'a> {
    let PshiftRun { outcome, seconds } = shown;
    let seed = Some(outcome.seed);
    let source = ClaimSource { paper: PAPER, figure: "8", world, seed, seconds: tenths(*seconds) };
    FigureRun { outcome, source, rate: scenario.nodes.rate, tolerance, slack, back, quiet }
}

const TITLES: [&str; 3] = ["(a) in turn", "(b) reservations", "(c) reservations and limits"];

impl FigureRun<'_> {
    /// Operations per second that each tenant was served, over all periods.
    fn served(&self) -> Vec<f64> {
        let periods = self.outcome.periods();
        let mut sums = vec![0.0; self.outcome.promises.len()];
        for period in 0..periods {
            let served = self.outcome.served(period);
            sums.iter_mut().zip(served).for_each(|(sum, served)| *sum += served as f64);
        }
        let span = seconds(self.outcome.period) * periods as f64;
        sums.into_iter().map(|sum| sum / span).collect()
    }

    fn judge(&self, number: usize) -> Claim {
        let served = self.served();
        let mut measured = Map::new();
        for (tenant, served) in served.iter().enumerate() {
            measured.insert(format!("tenant_{}_per_second", tenant + 1), served.round().into());
        }
        measured.insert("node_per_second".into(), self.rate.0.into());
        measured.insert("back_end".into(), self.back.into());
        let counts = PeriodCounts::of(self.outcome);
        measured.insert("met_percent".into(), counts.percent(counts.met).into());
        let (text, checks) = match number {
            0 => ("in turn they get what their nodes give each".to_owned(), self.in_turn(&served)),
            1 => {
                let reserved = self.outcome.promises[0].reservation.0;
                let text = format!(
                    "with reservations of {reserved} all are met, and the tenant on all nodes has \
                     its own first"
                );
                (text, self.met(&counts, &mut measured))
            }
            _ => {
                let limit = self.outcome.promises[0].limit.map_or(0, |limit| limit.0);
                measured.insert("above_limit".into(), counts.above.into());
                measured.insert("above_limit_most_operations".into(), counts.above_most.into());
                let text = format!("with limits of {limit} besides, all are kept as well");
                (text, vec![self.all(&counts), judge::none_above(&counts)])
            }
        };
        measured.extend(self.quiet.numbers());
        let claim = self.source.claim(text, measured.into(), checks);
        let claim = match judge::slack_reason(&counts, self.slack) {
            Some(why) if number == 2 => claim.because(why),
            _ => claim,
        };
        claim.disturbed(self.quiet.disturbance().as_deref())
    }

    fn in_turn(&self, served: &[f64]) -> Vec<Check> {
        let expected = ROUND_ROBIN.map(|part| (part * self.rate.0 as f64).round());
        let each = expected.into_iter().zip(served).zip(1..);
        let check = |((expected, served), tenant): ((f64, &f64), u32)| {
            let within = (expected * self.tolerance / 100.0).round();
            near(format!("tenant {tenant}"), "/s", expected, within, *served)
        };
        each.map(check).collect()
    }

    /// All reservations are met, live to a hundredth: a request that was begun in a period may be
    /// answered in the next.
    fn all(&self, counts: &PeriodCounts) -> Check {
        let (met, what) = match self.slack > 0 {
            true => (counts.met_99, "of reservations met to 1 %"),
            false => (counts.met, "of reservations met"),
        };
        at_least(what, "%", 100.0, (counts.count > 0).then(|| counts.percent(met)))
    }

    fn met(&self, counts: &PeriodCounts, measured: &mut Map<String, Value>) -> Vec<Check> {
        let reached: Vec<_> = (0..self.outcome.periods())
            .map(|period| judge::reached(self.outcome, period))
            .collect();
        let sample = seconds(self.outcome.sample) * 1_000.0;
        if let Some(first) = reached.first() {
            for (tenant, at) in first.iter().enumerate() {
                let at = at.map(|at| (at + 1) as f64 * sample);
                measured.insert(format!("tenant_{}_met_after_ms", tenant + 1), json!(at));
            }
        }
        let ahead = judge::last_is_first(&reached);
        vec![self.all(counts), at_least("it is ahead of others by", "samples", 1.0, ahead)]
    }
}

fn row(table: &mut Table, number: usize, run: &FigureRun<'_>) {
    let served = run.served();
    let &[a, b, c, d] = &served[..] else { return };
    let formatted = |served: f64| format!("{served:.0}").into();
    let title = TITLES[number];
    table.row([
        title.into(),
        run.source.world.into(),
        formatted(a),
        formatted(b),
        formatted(c),
        formatted(d),
    ]);
}

fn picture<'a>(outcomes: impl Iterator<Item = &'a ClusterReport>, world: &str) -> String {
    let panel = |(title, outcome): (&str, &ClusterReport)| {
        let line = |tenant: usize| {
            let mut sum = 0.0;
            let count = outcome.samples.len() / outcome.periods().max(1);
            let sampled = outcome.samples.iter().take(count).enumerate().map(|(number, sample)| {
                sum += f64::from(sample[tenant]);
                (seconds(outcome.sample) * (number + 1) as f64, sum)
            });
            let points = std::iter::once((0.0, 0.0)).chain(sampled).collect();
            Series::line(format!("tenant {}", tenant + 1), points)
        };
        let promise = &outcome.promises[0];
        let reserved = Some(("reserved".to_owned(), promise.reservation.0 as f64));
        let limit = promise.limit.map(|limit| ("limit".to_owned(), limit.0 as f64));
        Panel::new(
            format!("{title}, {world}"),
            ["seconds", "operations"],
            (0..outcome.promises.len()).map(line),
        )
        .with_levels(reserved.into_iter().chain(limit).collect())
    };
    let panels: Vec<Panel> = TITLES.into_iter().zip(outcomes).map(panel).collect();
    draw("Operations of four tenants on four nodes", &panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::Verdict;

    /// A scenario's outcome, if each tenant is served evenly.
    fn even(text: &str, served: [u32; 4]) -> (Scenario, PshiftRun) {
        let scenario = simulated::scenario(text).unwrap();
        let mut outcome = tidegate_sim::cluster::run(&scenario).unwrap();
        for sample in &mut outcome.samples {
            *sample = served.map(|served| served / 50).to_vec();
        }
        (scenario, PshiftRun { outcome, seconds: 1.0 })
    }

    fn verdict(number: usize, text: &str, served: [u32; 4]) -> Verdict {
        let (scenario, shown) = even(text, served);
        let run = run(&shown, &scenario, (SIMULATED, 3.0, 0), ("none", Quiet::default()));
        run.judge(number).verdict
    }

    #[test]
    fn each_run_is_judged_by_the_papers_claim() {
        let (a, b, c) = (
            simulated::EXPERIMENT_3_ROUND_ROBIN,
            simulated::EXPERIMENT_3_RESERVATIONS,
            simulated::EXPERIMENT_3_LIMITS,
        );
        let (good, differs) = (Verdict::Reproduced, Verdict::Differs);
        assert_eq!(verdict(0, a, [12_500, 29_150, 54_150, 104_150]), good);
        assert_eq!(verdict(0, a, [13_500, 29_150, 54_150, 104_150]), differs);
        assert_eq!(verdict(1, b, [30_000, 33_000, 45_000, 92_000]), good);
        assert_eq!(verdict(1, b, [29_000, 33_000, 45_000, 92_000]), differs);
        assert_eq!(verdict(1, b, [30_000, 92_000, 45_000, 33_000]), Verdict::NotReproduced);
        assert_eq!(verdict(2, c, [30_000, 45_000, 50_000, 60_000]), good);
        assert_eq!(verdict(2, c, [30_000, 45_000, 50_000, 61_000]), Verdict::NotReproduced);
        assert_eq!(verdict(2, c, [29_000, 45_000, 50_000, 60_000]), differs);
    }
}
