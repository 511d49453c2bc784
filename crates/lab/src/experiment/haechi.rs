//! The experiments of the Haechi paper (§III): reservations for one-sided (RDMA) reads, in which
//! the data node's processor takes no part. All figures are simulated; six also run [`live`].
//!
//! ```text
//!  scenarios/haechi/*.toml ─▶ tidegate_sim::one_sided ─▶ OneSidedReport ─▶ claims, table, picture
//!        (embedded)      └────▶ live: a data node, and ten clients ──┘
//! ```
//!
//! The model of the RNICs has two numbers, which are read off figures 6 and 7; figure 8 checks the
//! model. The results of all other figures are predictions. `numbers` puts all that the paper
//! prints beside what the model gives.
//!
//! Where the model is known to disagree with the paper, the reason stands beside the claim.

use std::sync::OnceLock;

use serde_json::{Value, json};
use tidegate_sim::one_sided::{self, Clients, Control, OneSidedReport, Scenario};

use super::paper::{self, Figure, Paper, simulate, wrong};
use super::plot::{self, Panel, Series};
use super::verdict::{Check, Claim, at_least, at_most};
use paper::{ClaimSource, FigureContext, FigureResult, SIMULATED, scenarios, tenths, thousandths};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

mod ablation;
mod bare;
mod capacity;
mod conversion;
mod demand;
mod expected;
mod live;
mod nodes;
mod numbers;
mod pattern;
mod promises;
mod sensitivity;
mod steps;

use expected::{Comparison, NEAR, Number, beside};

/// The figures that can be repeated.
pub(crate) const HAECHI: Paper = Paper {
    name: "haechi",
    figures: &[
        Figure::simulated("6", "one client, one-sided and two-sided, without control", bare::one),
        Figure::simulated("7", "one client to ten, without control", bare::several)
            .and_live(live::several),
        Figure::simulated(
            "8",
            "uniform and spike demands, in bursts and at a constant rate, without control",
            demand::repeat,
        )
        .and_live(live::demands),
        Figure::simulated(
            "9",
            "reservations of 90 %, equal and by Zipf's distribution",
            promises::repeat,
        )
        .and_live(live::promises),
        Figure::simulated(
            "10",
            "two clients want less than they are promised: each client",
            conversion::clients,
        ),
        Figure::simulated("11", "the same: all clients together", conversion::totals)
            .and_live(live::totals),
        Figure::simulated("12", "reservations of 50 to 90 %", promises::levels),
        Figure::simulated(
            "13",
            "reservations with a spike, in bursts and at a constant rate: each client",
            pattern::clients,
        )
        .and_live(live::spike),
        Figure::simulated("14", "the same: all clients together", pattern::totals),
        Figure::simulated("15", "the same: latencies", pattern::latencies),
        Figure::simulated("16", "jobs beside the clients begin: throughput", |context| {
            capacity::throughput(context, &capacity::CONGESTION_BEGINS)
        })
        .and_live(live::congestion),
        Figure::simulated("17", "the same: the client with the largest promise", |context| {
            capacity::first_client(context, &capacity::CONGESTION_BEGINS)
        }),
        Figure::simulated("18", "these jobs end: throughput", |context| {
            capacity::throughput(context, &capacity::CONGESTION_ENDS)
        }),
        Figure::simulated("19", "the same: the client with the largest promise", |context| {
            capacity::first_client(context, &capacity::CONGESTION_ENDS)
        }),
        Figure::simulated(
            "steps",
            "the node itself becomes slower or faster, by 10, 20 and 30 %",
            steps::repeat,
        ),
        Figure::simulated(
            "ablation",
            "the text with one sound rule after another, and sound rules without each",
            ablation::repeat,
        ),
        Figure::simulated(
            "sensitivity",
            "batch, check interval, period, margin and window, one at a time",
            sensitivity::repeat,
        ),
        Figure::simulated(
            "numbers",
            "every number that the paper prints beside the model's number",
            numbers::repeat,
        ),
        Figure::simulated(
            "nodes",
            "ten tenants on four data nodes whose hot nodes move, beyond the paper",
            nodes::repeat,
        )
        .and_live(live::nodes::repeat),
    ],
};

scenarios! {
    "haechi":
    FIGURE_7 = "figure-7";
    TWO_SIDED = "figure-7-two-sided";
    FIGURE_8A = "figure-8a";
    FIGURE_8B = "figure-8b";
    FIGURE_8C = "figure-8c";
    FIGURE_9A = "figure-9a";
    FIGURE_9B = "figure-9b";
    FIGURE_10A = "figure-10a";
    FIGURE_10B = "figure-10b";
    FIGURE_13A = "figure-13a";
    FIGURE_13B = "figure-13b";
    FIGURE_16A = "figure-16a";
    FIGURE_16B = "figure-16b";
    FIGURE_18A = "figure-18a";
    FIGURE_18B = "figure-18b";
}

/// Several data nodes.
const NODES: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/haechi/nodes.toml"));

/// A scenario's outcome, with the time that the run took.
type HaechiRun = paper::TimedRun<OneSidedReport>;

fn scenario(text: &str) -> Result<Scenario, Failure> {
    Scenario::parse(text).map_err(wrong)
}

/// Runs that several figures use, and that are simulated once.
struct Kept {
    scenarios: fn() -> Result<Vec<Scenario>, Failure>,
    shown: OnceLock<Vec<HaechiRun>>,
}

impl Kept {
    const fn new(scenarios: fn() -> Result<Vec<Scenario>, Failure>) -> Self {
        Self { scenarios, shown: OnceLock::new() }
    }

    /// Outcomes in the order of the scenarios. Scenarios that are the same are simulated once.
    fn get(&'static self, context: &FigureContext) -> Result<&'static [HaechiRun], Failure> {
        if let Some(shown) = self.shown.get() {
            return Ok(shown);
        }
        let mut once: Vec<Scenario> = Vec::new();
        let mut indices = Vec::new();
        for scenario in (self.scenarios)()?.into_iter().map(plain) {
            let index = once.iter().position(|other| *other == scenario);
            indices.push(index.unwrap_or(once.len()));
            if index.is_none() {
                once.push(scenario);
            }
        }
        let shown = simulate(context, once, one_sided::run)?;
        Ok(self.shown.get_or_init(|| indices.iter().map(|index| shown[*index].clone()).collect()))
    }
}

/// Without control the reservations have no effect, so scenarios that differ only in them are the
/// same.
fn plain(mut scenario: Scenario) -> Scenario {
    if scenario.control != Control::None {
        return scenario;
    }
    scenario.name.clear();
    let mut groups: Vec<Clients> = Vec::new();
    for group in scenario.client.drain(..) {
        let group = Clients { reservation: None, ..group };
        match groups.last_mut() {
            Some(last) if *last == (Clients { count: last.count, ..group.clone() }) => {
                last.count += group.count;
            }
            _ => groups.push(group),
        }
    }
    Scenario { client: groups, ..scenario }
}

fn source(figure: &'static str, runs: &[HaechiRun]) -> ClaimSource {
    let seconds = runs.iter().fold(0.0, |sum, shown| sum + shown.seconds);
    let seed = runs.first().map(|shown| shown.outcome.seed);
    ClaimSource { paper: "haechi", figure, world: SIMULATED, seed, seconds: tenths(seconds) }
}

/// Every control, in the order of runs, and what it is called.
const MODES: [(Control, &str); 4] = [
    (Control::None, "bare"),
    (Control::Basic, "basic"),
    (Control::Paper, "paper"),
    (Control::Sound, "sound"),
];

const BARE: usize = 0;
const BASIC: usize = 1;
const PAPER: usize = 2;
const SOUND: usize = 3;

/// Some scenarios, changed, each under every control.
fn under_all<const N: usize>(
    texts: [&str; N],
    change: impl Fn(&mut Scenario),
) -> Result<Vec<Scenario>, Failure> {
    let mut all = Vec::new();
    for text in texts {
        let mut base = scenario(text)?;
        change(&mut base);
        all.extend(MODES.map(|(control, _)| Scenario { control, ..base.clone() }));
    }
    Ok(all)
}

/// The outcome of one scenario under one control.
fn at(runs: &[HaechiRun], base: usize, mode: usize) -> &OneSidedReport {
    &runs[base * MODES.len() + mode].outcome
}

/// The source of claims about one scenario under some controls.
fn of(runs: &[HaechiRun], figure: &'static str, base: usize, modes: &[usize]) -> ClaimSource {
    let some = modes.iter().map(|mode| runs[base * MODES.len() + mode].clone());
    source(figure, &some.collect::<Vec<_>>())
}

/// A row for each control.
fn named(prefix: &str, rates: impl Fn(usize) -> Vec<f64>) -> Vec<(String, Vec<f64>)> {
    let row =
        |(mode, (_, name)): (usize, &(Control, &str))| (format!("{prefix} {name}"), rates(mode));
    MODES.iter().enumerate().map(row).collect()
}

/// A client's period begins when it has read its grant, and ours at whole seconds: so much of a
/// reservation may fall into the next, in percent.
const SKEW: f64 = 0.2;

/// Whether all clients have what they want of their reservations, in each period.
fn keeps(outcome: &OneSidedReport) -> bool {
    missing(outcome).is_empty()
}

/// By how much clients miss that in their worst period, in percent, and whether all have it.
fn kept(outcome: &OneSidedReport) -> (Value, Check) {
    let missing = clients(outcome).map(|client| (client + 1, outcome.missing_percent(client)));
    let missing: Vec<(usize, f64)> = missing.filter(|(_, percent)| *percent > SKEW).collect();
    let value = missing.iter().map(|(client, off)| (format!("C{client}"), tenths(*off).into()));
    let most = clients(outcome).map(|client| outcome.missing_percent(client)).collect::<Vec<f64>>();
    (Value::Object(value.collect()), at_most("missing in a period", "%", SKEW, most))
}

/// The clients that miss more than [`SKEW`] percent in their worst period, numbered from 0.
fn missing(outcome: &OneSidedReport) -> Vec<usize> {
    clients(outcome).filter(|client| outcome.missing_percent(*client) > SKEW).collect()
}

/// So much of what is read without control is read with sound rules, in percent.
const USED: f64 = 99.0;

/// How much of what is read without control is read under another control, in percent.
fn part_of_bare(runs: &[HaechiRun], base: usize, mode: usize) -> f64 {
    total(at(runs, base, mode)) / total(at(runs, base, BARE)) * 100.0
}

/// That sound rules keep all promises, and use at least 99 % of what is used without control.
fn ours(runs: &[HaechiRun], base: usize, figure: &'static str, text: &str) -> Claim {
    let sound = at(runs, base, SOUND);
    let (missing, has_all) = kept(sound);
    let used = part_of_bare(runs, base, SOUND);
    let own = control(sound);
    let claim = of(runs, figure, base, &[BARE, SOUND]).claim(
        format!("{text}, with sound rules, which use nearly all that bare clients do"),
        json!({
            "missing_percent": missing,
            "throughput_kilo_per_second": tenths(total(sound)),
            "throughput_percent_of_bare": tenths(used),
            "operations_for_control_percent": thousandths(own),
        }),
        [
            has_all,
            at_least("of that", "%", USED, used),
            at_most("for control", "% of operations", CONTROL, own),
        ],
    );
    claim.ours()
}

/// Of all operations less than this are for control: grants that are read, reports, and what is
/// taken from the pool, in percent.
const CONTROL: f64 = 1.0;

/// How many are, in percent.
fn control(outcome: &OneSidedReport) -> f64 {
    let (data, control) = outcome
        .counts
        .iter()
        .fold((0, 0), |(data, control), counts| (data + counts.data, control + counts.control));
    control as f64 * 100.0 / (data + control).max(1) as f64
}

/// In the paper's unit: a thousand reads per second.
fn kilo(rate: f64) -> f64 {
    rate / 1e3
}

/// With one digit behind the point.
fn formatted(number: f64) -> String {
    format!("{number:.1}")
}

/// The mean of a client, in thousands per second.
fn mean(outcome: &OneSidedReport, client: usize) -> f64 {
    kilo(outcome.mean(client))
}

/// Of all clients, in thousands per second.
fn total(outcome: &OneSidedReport) -> f64 {
    kilo(outcome.total())
}

/// The means of all clients, in thousands per second.
fn means(outcome: &OneSidedReport) -> Vec<f64> {
    clients(outcome).map(|client| mean(outcome, client)).collect()
}

/// The mean of some clients, in thousands per second.
fn mean_of(outcome: &OneSidedReport, clients: core::ops::Range<usize>) -> f64 {
    let count = clients.len().max(1) as f64;
    clients.map(|client| mean(outcome, client)).sum::<f64>() / count
}

fn clients(outcome: &OneSidedReport) -> core::ops::Range<usize> {
    0..outcome.latency.len()
}

/// Rates of clients, and their sums: a line for each run, which has a name.
fn table(rows: &[(String, Vec<f64>)]) -> Table {
    table_in("K/s", rows)
}

/// The same with another head for the unit.
fn table_in(unit: &'static str, rows: &[(String, Vec<f64>)]) -> Table {
    let mut table = Table::new().left(unit);
    let names = ["C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10"];
    for name in names.into_iter().take(rows.first().map_or(0, |(_, rates)| rates.len())) {
        table = table.right(name);
    }
    table = table.right("ALL");
    for (name, rates) in rows {
        let mut row: Vec<Cell> = vec![name.clone().into()];
        row.extend(rates.iter().map(|rate| Cell::from(formatted(*rate))));
        row.push(formatted(rates.iter().sum()).into());
        table.row(row);
    }
    table
}

/// The same as a picture.
fn by_client(title: &str, rows: &[(String, Vec<f64>)]) -> Panel {
    let line = |(name, rates): &(String, Vec<f64>)| {
        let points = (1u32..).zip(rates).map(|(client, rate)| (f64::from(client), *rate));
        Series::line(name, points.collect())
    };
    Panel::new(title, ["client", "thousand reads per second"], rows.iter().map(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_control_nothing_is_promised() {
        let bare = |text| plain(Scenario { control: Control::None, ..scenario(text).unwrap() });
        // All want the same there, and are promised the same or not.
        let [a, b] = [FIGURE_16A, FIGURE_16B].map(bare);
        assert_eq!(a, b);
        assert_eq!((b.client.len(), b.client[0].count), (1, 10));
        assert_ne!(bare(FIGURE_9A), bare(FIGURE_9B), "they want more than they are promised");
        let sound = scenario(FIGURE_16B).unwrap();
        assert_eq!(plain(sound.clone()), sound);
    }
}
