//! Haechi beyond the paper: one promise over four data nodes. Ten tenants want most of what they
//! are promised at a node of their own, which moves; without control, with an equal part of each
//! promise at each node, and with pShift above Haechi.

use serde_json::json;
use tidegate_sim::one_sided::nodes::{
    self, NodesControl, OneSidedClusterReport, OneSidedClusterScenario,
};

use super::plot::{Panel, Series, draw};
use super::{FigureContext, FigureResult, NODES, SKEW, formatted, kilo, simulate, tenths, wrong};
use crate::experiment::paper::{ClaimSource, SIMULATED};
use crate::experiment::verdict::{Check, at_least, at_most};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

/// How much slower than the scenario says, so that it takes a moment.
const SLOWER: u32 = 10;

/// The tenants with a large promise and as large a demand.
const TENANTS: core::ops::Range<usize> = 0..5;

/// In which of the measured periods hot nodes move, and after how many shares have followed: one
/// in which it shows, one until a share has fallen elsewhere, and one until another has risen.
/// Clients know how much they want here; where none does, who wants more at two nodes at once shows
/// at which it wants most only after that, and it takes as long again.
pub(super) const CHANGE_PERIOD: usize = 4;
pub(super) const FOLLOWED: usize = CHANGE_PERIOD + 3;

/// In the order of runs, with what each is called.
const RUNS: [(NodesControl, &str); 3] = [
    (NodesControl::None, "bare"),
    (NodesControl::Equal, "equal parts"),
    (NodesControl::Split, "split by demand"),
];

/// A client that misses so much, in percent, has lost its promise.
pub(super) const LOST: f64 = 5.0;

/// Clients together read so much of what they do without control, in percent.
const USED: f64 = 95.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let base = OneSidedClusterScenario::parse(NODES).map_err(wrong)?.slowed(SLOWER);
    let scenarios = RUNS.map(|(control, _)| OneSidedClusterScenario { control, ..base.clone() });
    let runs = simulate(context, scenarios.into(), nodes::run)?;
    let source = ClaimSource {
        paper: "haechi",
        figure: "nodes",
        world: SIMULATED,
        seed: Some(base.seed),
        seconds: tenths(runs.iter().map(|shown| shown.seconds).sum()),
    };
    let [bare, equal, split] = [0, 1, 2].map(|run| &runs[run].outcome);
    let texts = [
        "without control, tenants that want what they are promised at a few of four data nodes \
         lose it to those who read as much as they can",
        "with an equal part of each promise at each node they still do",
    ];
    let mut claims = Vec::new();
    for (text, outcome) in texts.into_iter().zip([bare, equal]) {
        let worst =
            worst(outcome, 0..CHANGE_PERIOD).max(worst(outcome, FOLLOWED..periods(outcome)));
        let measured = json!({ "missing_percent_at_most": tenths(worst) });
        let check = at_least("missing in the worst period", "%", LOST, worst);
        claims.push(source.claim(text, measured, [check]).ours());
    }
    let kept = source.claim(
        "with pShift above Haechi everybody has what it is promised at all nodes together, also \
         three periods after it has begun to want it elsewhere",
        json!({
            "missing_percent_at_most_before": tenths(worst(split, 0..CHANGE_PERIOD)),
            "missing_percent_at_most_while_it_moves": tenths(worst(split, CHANGE_PERIOD..FOLLOWED)),
            "missing_percent_at_most_after": tenths(worst(split, FOLLOWED..periods(split))),
        }),
        keeps(split),
    );
    let used = split.total() / bare.total() * 100.0;
    let busy = source.claim(
        "and the nodes are as busy as without control",
        json!({
            "kilo_per_second": tenths(kilo(split.total())),
            "percent_of_bare": tenths(used),
        }),
        [at_least("of what is read without control", "%", USED, used)],
    );
    claims.extend([kept.ours(), busy.ours()]);
    let panels = [0, 1, 2].map(|run| panel(RUNS[run].1, &runs[run].outcome));
    let picture = draw("Ten tenants on four data nodes", &panels);
    let mut rows = Vec::new();
    for ((_, name), shown) in RUNS.iter().zip(&runs) {
        let outcome = &shown.outcome;
        for (when, periods) in [("before", 0..CHANGE_PERIOD), ("after", FOLLOWED..periods(outcome))]
        {
            rows.push((format!("{name}, {when}"), means(outcome, periods)));
        }
    }
    Ok(FigureResult { claims, table: table("K/s", &rows), picture })
}

fn periods(outcome: &OneSidedClusterReport) -> usize {
    outcome.samples.len()
}

/// The most that a tenant with a large promise misses in the worst of some periods, in percent.
pub(super) fn worst(outcome: &OneSidedClusterReport, periods: core::ops::Range<usize>) -> f64 {
    let samples = &outcome.samples[periods];
    let each = TENANTS.flat_map(|it| samples.iter().map(move |one| outcome.missing(it, one)));
    each.fold(0.0, f64::max)
}

fn keeps(outcome: &OneSidedClusterReport) -> [Check; 1] {
    let sides = [0..CHANGE_PERIOD, FOLLOWED..periods(outcome)];
    [at_most("missing in a period", "%", SKEW, sides.map(|periods| worst(outcome, periods)))]
}

/// The means of all tenants over some periods, in thousands per second.
pub(super) fn means(outcome: &OneSidedClusterReport, periods: core::ops::Range<usize>) -> Vec<f64> {
    let mean = |tenant: usize| {
        let rates = outcome.rates(tenant).skip(periods.start).take(periods.len());
        kilo(rates.sum::<f64>() / periods.len().max(1) as f64)
    };
    (0..outcome.promised.len()).map(mean).collect()
}

/// Means of all tenants, and their sums: a line for each run, which has a name.
pub(super) fn table(unit: &'static str, rows: &[(String, Vec<f64>)]) -> Table {
    let mut table = Table::new().left(unit);
    for name in ["T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9", "T10"] {
        table = table.right(name);
    }
    table = table.right("ALL");
    for (name, means) in rows {
        let mut row: Vec<Cell> = vec![name.clone().into()];
        row.extend(means.iter().map(|mean| Cell::from(formatted(*mean))));
        row.push(formatted(means.iter().sum()).into());
        table.row(row);
    }
    table
}

/// Rates of the tenants with a large promise, second by second.
pub(super) fn panel(title: &str, outcome: &OneSidedClusterReport) -> Panel {
    let line = |tenant: usize| {
        let points = (1u32..).zip(outcome.rates(tenant));
        let points = points.map(|(second, rate)| (f64::from(second), kilo(rate)));
        Series::line(format!("T{}", tenant + 1), points.collect())
    };
    let seconds = outcome.period.as_seconds();
    let promised = kilo(outcome.promised[0] as f64 / seconds);
    Panel::new(title, ["second", "thousand reads per second"], TENANTS.map(line))
        .with_levels(vec![("promised".into(), promised)])
}
