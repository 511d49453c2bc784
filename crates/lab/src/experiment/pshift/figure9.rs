//! pShift paper, figure 9 (experiment 4) and the run with 200 tenants: tenants move between nodes,
//! and ask each of them as fast as they are answered. Simulated at the paper's rates; the messages
//! between the controller and its nodes are measured live.

use serde_json::json;
use tidegate_sim::cluster::ClusterReport;

use super::judge::{self, PeriodCounts, in_period};
use super::live::{self, Back, Lived};
use super::plot::{Panel, Series, draw};
use super::simulated::{self, PshiftRun};
use super::{
    ClaimSource, FigureContext, FigureResult, LIVE, PAPER, SIMULATED, tenths, thousandths,
};
use crate::experiment::verdict::{Check, Claim, at_least, at_most, near};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// A live node has the paper's rate divided by this.
const SCALE: u64 = 50;
/// The paper's communication took 0.9 % of a period; ours is to take less than this.
const COMMUNICATION_PERCENT: f64 = 1.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let texts = [
        simulated::EXPERIMENT_4_ROUND_ROBIN,
        simulated::EXPERIMENT_4,
        simulated::EXPERIMENT_4_200_ROUND_ROBIN,
        simulated::EXPERIMENT_4_200,
    ];
    let scenarios = texts.into_iter().map(simulated::scenario).collect::<Result<Vec<_>, _>>()?;
    let shown = simulated::run_all(context, scenarios)?;
    let all_counts: Vec<PeriodCounts> =
        shown.iter().map(|shown| PeriodCounts::of(&shown.outcome)).collect();
    let claims = (0..4).map(|number| claim(number, &shown[number], &all_counts)).collect();
    let mut table = table();
    let titles = ["in turn", "pShift", "in turn", "pShift"];
    for (number, counts) in all_counts.iter().enumerate() {
        let tenants = shown[number].outcome.promises.len();
        row(&mut table, (titles[number], SIMULATED, tenants), counts, None);
    }
    let panels = [panel(&shown[0].outcome, "(a) in turn"), panel(&shown[1].outcome, "(b) pShift")];
    let picture = draw("Operations of ten moving tenants in four periods", &panels);
    Ok(FigureResult { claims, table, picture })
}

pub(super) fn live(context: &FigureContext) -> Result<FigureResult, Failure> {
    let scenario = live::scaled(&simulated::scenario(simulated::EXPERIMENT_4_200)?, SCALE);
    let plan = simulated::run(context, scenario.clone())?.outcome;
    let lived = live::run(context, &scenario, plan, Back::Memory)?;
    let outcome = &lived.shown.outcome;
    let (mut table, counts) = (table(), PeriodCounts::of(outcome));
    row(&mut table, ("pShift", LIVE, outcome.promises.len()), &counts, Some(&lived));
    let panels = [panel(outcome, "pShift, live")];
    let picture = draw("Operations of 200 moving tenants", &panels);
    Ok(FigureResult { claims: vec![communication(&lived)], table, picture })
}

fn table() -> Table {
    Table::new()
        .left("RUN")
        .left("WORLD")
        .right("TENANTS")
        .right("MET")
        .right("WITHIN LIMIT")
        .right("SAID, BYTES")
        .right("TAKES")
}

fn row(
    table: &mut Table,
    (title, world, tenants): (&str, &str, usize),
    counts: &PeriodCounts,
    lived: Option<&Lived>,
) {
    let bytes = lived.map_or("-".into(), |lived| format!("{:.0}", lived.bytes));
    let took = lived.map_or("-".into(), |lived| format!("{:.1} ms", lived.communication_ms()));
    table.row([
        title.into(),
        world.into(),
        tenants.to_string().into(),
        format!("{:.1} %", counts.percent(counts.met)).into(),
        format!("{:.1} %", counts.percent(counts.count - counts.above)).into(),
        bytes.into(),
        took.into(),
    ]);
}

fn claim(number: usize, shown: &PshiftRun, all_counts: &[PeriodCounts]) -> Claim {
    let counts = &all_counts[number];
    let (seed, seconds) = (Some(shown.outcome.seed), tenths(shown.seconds));
    let source = ClaimSource { paper: PAPER, figure: "9", world: SIMULATED, seed, seconds };
    let text = match number {
        0 => {
            "in turn, some of ten moving tenants miss their reservation and some exceed their limit"
        }
        1 => {
            "with pShift, all ten have their reservation in every period, and none exceeds a limit"
        }
        2 => "in turn, many of 200 moving tenants miss their reservation or exceed their limit",
        _ => "with pShift, nearly all of 200 have their reservation, and none exceeds a limit",
    };
    let checks = match number {
        0 => some_miss(counts),
        1 => promised(counts, 100.0),
        2 => in_turn(counts),
        _ => promised(counts, 99.6),
    };
    let measured = json!({
        "tenants": shown.outcome.promises.len(),
        "periods": shown.outcome.periods(),
        "met_percent": thousandths(counts.percent(counts.met)),
        "met_99_percent": thousandths(counts.percent(counts.met_99)),
        "above_limit_percent": thousandths(counts.percent(counts.above)),
        "messages_to_nodes": shown.outcome.to_nodes,
        "messages_from_nodes": shown.outcome.from_nodes,
    });
    let claim = source.claim(text, measured, checks);
    if number == 2 { claim.because(MOVES) } else { claim }
}

/// Why tenants fare otherwise than in the paper where nothing controls them.
const MOVES: &str = "the paper does not say when tenants move, nor how many requests they keep \
                     under way, which decides who is ahead";

/// Without control promises are not kept.
fn some_miss(counts: &PeriodCounts) -> [Check; 2] {
    let missed = (counts.count > 0).then(|| (counts.count - counts.met) as f64);
    [at_least("miss", "times", 1.0, missed), at_least("exceed", "times", 1.0, counts.above as f64)]
}

/// The paper's parts of 200 tenants without control.
fn in_turn(counts: &PeriodCounts) -> [Check; 2] {
    let percent = |count| (counts.count > 0).then(|| counts.percent(count));
    [
        near("have their reservation", "%", 68.5, 5.0, percent(counts.met)),
        near("exceed their limit", "%", 16.5, 5.0, percent(counts.above)),
    ]
}

fn promised(counts: &PeriodCounts, percent: f64) -> [Check; 2] {
    let met = (counts.count > 0).then(|| counts.percent(counts.met));
    [at_least("have their reservation", "%", percent, met), judge::none_above(counts)]
}

fn communication(lived: &Lived) -> Claim {
    let outcome = &lived.shown.outcome;
    let (seed, seconds) = (Some(outcome.seed), tenths(lived.shown.seconds));
    let source = ClaimSource { paper: PAPER, figure: "9", world: LIVE, seed, seconds };
    let percent = lived.communication_percent();
    let counts = PeriodCounts::of(outcome);
    let measured = json!({
        "tenants": outcome.promises.len(),
        "messages_per_period": tenths(lived.messages),
        "bytes_per_period": lived.bytes.round(),
        "processor_ms_per_period": thousandths(lived.processor_ms),
        "communication_ms_per_period": thousandths(lived.communication_ms()),
        "communication_percent": thousandths(percent),
        "distribution_ms": thousandths(lived.distribution_ms),
        "met_percent": thousandths(counts.percent(counts.met)),
        "quiet": lived.quiet.numbers(),
    });
    // The paper gave the controller and every server a machine of its own. Here they and those who
    // ask share two processors, so by the clock a distribution is mostly the wait for one of them;
    // what is judged is what the controller does, and what a link would carry.
    let claim = source.claim(
        "messages between the controller and eight nodes about 200 tenants take little of a period \
         of one second; the paper's take 9 ms",
        measured,
        [at_most("", "% of it", COMMUNICATION_PERCENT, percent)],
    );
    claim.skipped(lived.missing.as_deref()).disturbed(lived.quiet.disturbance().as_deref())
}

fn panel(outcome: &ClusterReport, title: &str) -> Panel {
    let bars = |period: usize| {
        let x_of = |tenant: usize| (tenant + 1) as f64 + period as f64 * 0.15;
        let served = outcome.served(period).into_iter().enumerate();
        let points = served.map(|(tenant, served)| (x_of(tenant), served as f64)).collect();
        // Side by side and not on each other: one line for each tenant and period.
        Series::line(format!("period {}", period + 1), points)
    };
    let promise = &outcome.promises[0];
    let level = |name: &str, iops: u64| (name.to_owned(), in_period(iops, outcome.period) as f64);
    let limit = promise.limit.map(|limit| level("limit", limit.0));
    let levels = limit.into_iter().chain([level("reserved", promise.reservation.0)]).collect();
    Panel::new(title, ["tenant", "operations in a period"], (0..outcome.periods()).map(bars))
        .with_levels(levels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    #[test]
    fn promises_are_kept_or_not() {
        let counts =
            |met, above| PeriodCounts { count: 1_000, met, above, ..PeriodCounts::default() };
        let of = |checks: &[Check]| judge(checks).verdict;
        let (good, differs) = (Verdict::Reproduced, Verdict::Differs);
        assert_eq!(of(&promised(&counts(996, 0), 99.6)), good);
        assert_eq!(of(&promised(&counts(995, 0), 99.6)), differs);
        let above = PeriodCounts { above_most: 1, ..counts(1_000, 1) };
        assert_eq!(of(&promised(&above, 99.6)), Verdict::NotReproduced);
        assert_eq!(of(&some_miss(&counts(700, 9))), good);
        assert_eq!(of(&some_miss(&counts(700, 0))), Verdict::NotReproduced);
        assert_eq!(of(&some_miss(&counts(1_000, 9))), Verdict::NotReproduced);
        assert_eq!(of(&in_turn(&counts(700, 160))), good);
        assert_eq!(of(&in_turn(&counts(950, 160))), differs);
        assert_eq!(of(&promised(&PeriodCounts::default(), 99.6)), Verdict::Skipped);
    }
}
