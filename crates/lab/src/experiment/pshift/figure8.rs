//! Figure 8 (experiment 3): four tenants on four nodes, tenant k on the first k of them, with five
//! requests outstanding at each: in turn, with reservations, and with limits as well. Simulated at
//! the paper's rates, and live at a fiftieth of them, before a real memcached on each node.

use serde_json::{Map, Value, json};
use tidegate_model::{Iops, Span};
use tidegate_sim::cluster::ClusterReport;
use tidegate_sim::scenario::Scenario;

use super::judge::{self, PeriodCounts};
use super::live::{self, Back};
use super::plot::{Panel, Series, draw};
use super::simulated::{self, Shown};
use super::{FigureContext, FigureResult, LIVE, PAPER, SIMULATED, Source, seconds, tenths};
use crate::experiment::verdict::{Claim, Judged, Verdict};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// A live node has the paper's rate divided by this: 1,000 operations per second.
const SCALE: u64 = 50;
/// Periods that are counted live: one second by itself may be one in which the machine was busy.
const PERIODS: u32 = 3;

/// Each tenant's rate in turn, as a multiple of a node's rate: 1/4, and 1/3, 1/2 and 1 more.
const ROUND_ROBIN: [f64; 4] = [1.0 / 4.0, 7.0 / 12.0, 13.0 / 12.0, 25.0 / 12.0];

/// The outcome of one of the three runs, and its scale.
struct Run<'a> {
    outcome: &'a ClusterReport,
    source: Source,
    rate: Iops,
    /// How far a tenant may be off, in percent: simulated nodes vary, live ones share processors.
    tolerance: f64,
    /// Answers that may come in the period after theirs.
    slack: u64,
    back: &'static str,
    /// For how long a live machine stood still.
    stall: Span,
}

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let texts = [
        simulated::EXPERIMENT_3_ROUND_ROBIN,
        simulated::EXPERIMENT_3_RESERVATIONS,
        simulated::EXPERIMENT_3_LIMITS,
    ];
    let scenarios = texts.into_iter().map(simulated::scenario).collect::<Result<Vec<_>, _>>()?;
    let simulated = simulated::run_all(context, scenarios.clone())?;
    let back = Back::memcached();
    let mut lived = Vec::new();
    let scaled: Vec<Scenario> = scenarios.iter().map(|one| live::scaled(one, SCALE)).collect();
    for scenario in &scaled {
        let scenario = Scenario { periods: PERIODS, ..scenario.clone() };
        let plan = simulated::run(context, scenario.clone())?.outcome;
        lived.push(live::run(context, &scenario, plan, back)?);
    }
    let mut claims = Vec::new();
    let mut table = Table::new()
        .left("RUN")
        .left("WORLD")
        .right("TENANT 1")
        .right("TENANT 2")
        .right("TENANT 3")
        .right("TENANT 4");
    for (number, (scenario, shown)) in scenarios.iter().zip(&simulated).enumerate() {
        let run = run(shown, scenario, (SIMULATED, 3.0, 0), ("a device model", Span::ZERO));
        claims.push(run.judge(number));
        row(&mut table, number, &run);
    }
    for (number, (scenario, lived)) in scaled.iter().zip(&lived).enumerate() {
        // A node has at most its depth begun when a period ends.
        let slack = u64::from(scenario.nodes.depth) * u64::from(scenario.nodes.count);
        let run = run(&lived.shown, scenario, (LIVE, 5.0, slack), (back.name(), lived.stall));
        claims.push(run.judge(number));
        row(&mut table, number, &run);
    }
    let picture = picture(&simulated, &lived);
    Ok(FigureResult { claims, table, picture })
}

fn run<'a>(
    shown: &'a Shown,
    scenario: &Scenario,
    (world, tolerance, slack): (&'static str, f64, u64),
    (back, stall): (&'static str, Span),
) -> Run<'a> {
    let Shown { outcome, seconds } = shown;
    let seed = Some(outcome.seed);
    let source = Source { paper: PAPER, figure: "8", world, seed, seconds: tenths(*seconds) };
    Run { outcome, source, rate: scenario.nodes.rate, tolerance, slack, back, stall }
}

const TITLES: [&str; 3] = ["(a) in turn", "(b) reservations", "(c) reservations and limits"];

impl Run<'_> {
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
        let rate = self.rate.0 as f64;
        let (text, judged) = match number {
            0 => {
                let expected = ROUND_ROBIN.map(|part| part * rate);
                let formatted = expected.map(|expected| format!("{expected:.0}")).join(", ");
                (
                    format!("in turn they get {formatted}"),
                    judge::near(&served, &expected, self.tolerance),
                )
            }
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
                let judged = match self.all(&counts) {
                    (Verdict::Holds, _) => judge::none_above(&counts, self.slack),
                    judged => judged,
                };
                (text, judged)
            }
        };
        measured.insert("stall_ms".into(), tenths(seconds(self.stall) * 1_000.0).into());
        let judged = judge::on_a_machine_that_stood_still(judged, self.stall);
        self.source.claim(text, measured.into(), judged)
    }

    /// All reservations are met, live to a hundredth: a request that was begun in a period may be
    /// answered in the next.
    fn all(&self, counts: &PeriodCounts) -> Judged {
        let met = if self.slack > 0 { counts.met_99 } else { counts.met };
        judge::at_least(counts.percent(met), 100.0, "of the reservations are met")
    }

    fn met(&self, counts: &PeriodCounts, measured: &mut Map<String, Value>) -> Judged {
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
        let others = reached.iter().map(|reached| judge::last_is_first(reached));
        let first_failing = others.into_iter().find(|judged| judged.0 != Verdict::Holds);
        match self.all(counts) {
            (Verdict::Holds, _) => first_failing.unwrap_or((Verdict::Holds, None)),
            judged => judged,
        }
    }
}

fn row(table: &mut Table, number: usize, run: &Run<'_>) {
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

fn picture(simulated: &[Shown], lived: &[live::Lived]) -> String {
    let simulated = simulated.iter().map(|shown| (&shown.outcome, SIMULATED));
    let runs = simulated.chain(lived.iter().map(|lived| (&lived.shown.outcome, LIVE)));
    let panel = |(number, (outcome, world)): (usize, (&ClusterReport, &str))| {
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
        Panel {
            title: format!("{}, {world}", TITLES[number % TITLES.len()]),
            x: "seconds",
            y: "operations",
            series: (0..outcome.promises.len()).map(line).collect(),
            levels: reserved.into_iter().chain(limit).collect(),
        }
    };
    let panels: Vec<Panel> = runs.enumerate().map(panel).collect();
    draw("Operations of four tenants on four nodes", &panels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scenario's outcome, if each tenant is served evenly.
    fn even(text: &str, served: [u32; 4]) -> (Scenario, Shown) {
        let scenario = simulated::scenario(text).unwrap();
        let mut outcome = tidegate_sim::cluster::run(&scenario).unwrap();
        for sample in &mut outcome.samples {
            *sample = served.map(|served| served / 50).to_vec();
        }
        (scenario, Shown { outcome, seconds: 1.0 })
    }

    fn verdict(number: usize, text: &str, served: [u32; 4]) -> Verdict {
        let (scenario, shown) = even(text, served);
        run(&shown, &scenario, (SIMULATED, 3.0, 0), ("none", Span::ZERO)).judge(number).verdict
    }

    #[test]
    fn each_run_is_judged_by_the_papers_claim() {
        let (a, b, c) = (
            simulated::EXPERIMENT_3_ROUND_ROBIN,
            simulated::EXPERIMENT_3_RESERVATIONS,
            simulated::EXPERIMENT_3_LIMITS,
        );
        assert_eq!(verdict(0, a, [12_500, 29_150, 54_150, 104_150]), Verdict::Holds);
        assert_eq!(verdict(0, a, [13_500, 29_150, 54_150, 104_150]), Verdict::Fails);
        assert_eq!(verdict(1, b, [30_000, 33_000, 45_000, 92_000]), Verdict::Holds);
        assert_eq!(verdict(1, b, [29_000, 33_000, 45_000, 92_000]), Verdict::Fails);
        assert_eq!(verdict(1, b, [30_000, 92_000, 45_000, 33_000]), Verdict::Fails);
        assert_eq!(verdict(2, c, [30_000, 45_000, 50_000, 60_000]), Verdict::Holds);
        assert_eq!(verdict(2, c, [30_000, 45_000, 50_000, 61_000]), Verdict::Fails);
        assert_eq!(verdict(2, c, [29_000, 45_000, 50_000, 60_000]), Verdict::Fails);
    }
}
