//! The experiments of "Configuring and Coordinating End-to-End QoS for Emerging Storage
//! Infrastructure" (2024, section 4), in the simulation.
//!
//! ```text
//!  scenarios/e2e/*.toml ──▶ tidegate_netsim::e2e ──▶ E2eReport ──▶ claims, table, picture
//!       (embedded)
//! ```
//!
//! A figure is one scenario or a few, each with the congestion controls that the paper compares,
//! and one module here. The scenario has all parameters that the paper gives and, where it gives
//! none, those that were chosen; the modules choose nothing. Each claim prints the paper's numbers
//! and order. Where another result is known, the reason stands beside the claim.

use serde_json::Value;
use tidegate_model::Span;
use tidegate_netsim::e2e::{self, E2eReport, Moment, Scenario, ServiceReport};
use tidegate_netsim::transport::CongestionControl;

use super::moments;
use super::paper::{self, Figure, Paper, simulate, wrong};
use super::plot;
use super::verdict::{Check, Claim, each_near};
use paper::{
    ClaimSource, FigureContext, FigureResult, SIMULATED, hundredths, scenarios, tenths, thousandths,
};
use tidegate_console::failure::Failure;
use tidegate_console::table::{Cell, Table};

mod agreement;
mod beside;
mod deadlines;
mod joining;
mod memory;
mod memory_share;
mod memory_tails;
mod mixed;
mod model;
mod servers;
mod settling;
mod storage_end;
mod tail_latency;
mod tails;
mod writes;
mod yielding;

/// The figures that can be repeated.
pub(crate) const E2E: Paper = Paper {
    name: "e2e",
    figures: &[
        Figure::simulated(
            "7",
            "a drive that observes classes nowhere, at its submission queues, before its chips",
            storage_end::repeat,
        ),
        Figure::simulated(
            "8",
            "three flows on one link, in the discrete-time model and packet by packet",
            model::repeat,
        ),
        Figure::simulated(
            "9",
            "how soon flows settle: quality factors over 25, 62 and 98 us",
            settling::round_trips,
        ),
        Figure::simulated(
            "10",
            "flows that begin one after another, by DCTCP and QTCP",
            settling::one_by_one,
        ),
        Figure::simulated("11b", "three servers, which are slower than the link", servers::repeat),
        Figure::simulated(
            "12",
            "three classes write through one link, by DCTCP and QTCP",
            writes::repeat,
        ),
        Figure::simulated("13", "the same classes read as much as they write", mixed::repeat),
        Figure::simulated("14a", "a second flow of each class comes and goes", joining::repeat),
        Figure::simulated("14b", "a flow without a promise comes and goes", yielding::repeat),
        Figure::simulated(
            "15b",
            "late requests: DCTCP, D2TCP and QTCP, in a normal and a stressed situation",
            deadlines::windows,
        ),
        Figure::simulated(
            "16",
            "servers that give other classes than the network does, and the same",
            agreement::repeat,
        ),
        Figure::simulated("17", "the same: tails of the latency", tail_latency::repeat),
        Figure::simulated("18a", "late requests: DCQCN and QRDMA", deadlines::rates),
        Figure::simulated(
            "18b",
            "a window and a rate on one link: DCTCP and QTCP beside DCQCN",
            beside::share,
        ),
        Figure::simulated(
            "19",
            "flows with promises of 1 : 1.5 : 2 : 3 beside flows without",
            beside::promised,
        ),
        Figure::simulated(
            "20",
            "persistent memory beside drives, with strict priority and without: latency",
            memory::latencies,
        ),
        Figure::simulated("21", "the same: what it costs other classes", memory::throughputs),
        Figure::simulated(
            "22",
            "the same with more and more memory, and with twelve hosts into one port",
            memory_share::repeat,
        ),
        Figure::simulated(
            "23",
            "the same beside classes with promised latencies: tails",
            memory_tails::repeat,
        ),
    ],
};

scenarios! {
    "e2e":
    HIGH_DEMANDS_MOST = "7a-intense-high";
    LOW_DEMANDS_MOST = "7b-intense-low";
    PACKETS = "8-packets";
    SETTLING_25 = "9-settling-25us";
    SETTLING_62 = "9-settling-62us";
    SETTLING_98 = "9-settling-98us";
    ONE_AFTER_THE_OTHER = "10-one-after-the-other";
    THREE_SERVERS = "11b-three-servers";
    WRITE_ONLY = "12-write-only";
    MIXED = "13-reads-and-writes";
    COME_AND_GO = "14a-come-and-go";
    WITHOUT_A_PROMISE = "14b-flow-without-a-promise";
    NORMAL = "15b-normal";
    STRESSED = "15b-stressed";
    UNCOORDINATED = "16a-uncoordinated";
    COORDINATED = "16b-coordinated";
    TAIL_LATENCY = "17-tail-latency";
    BY_RATES = "18a-stressed";
    WINDOW_BESIDE_RATE = "18-window-beside-rate";
    WINDOWS_PROMISED = "19-windows-promised";
    RATES_PROMISED = "19-rates-promised";
    MEMORY_BESIDE_WRITES = "20-memory-beside-writes";
    MEMORY_BESIDE_READS = "20-memory-beside-reads";
    INCAST = "22-incast";
    MEMORY_BESIDE_LATENCIES = "23-memory-beside-latencies";
}

/// The parts of figure 9.
const SETTLING: [(&str, &str); 3] = [("9a", SETTLING_25), ("9b", SETTLING_62), ("9c", SETTLING_98)];

/// A scenario's outcome, with the time that the run took.
type E2eRun = paper::TimedRun<E2eReport>;

fn scenario(text: &str) -> Result<Scenario, Failure> {
    Scenario::parse(text).map_err(wrong)
}

/// The same, with another congestion control for all flows that have the scenario's.
fn under(cc: CongestionControl, text: &str) -> Result<Scenario, Failure> {
    let mut scenario = scenario(text)?;
    scenario.transport.cc = cc;
    scenario.check().map_err(wrong)?;
    Ok(scenario)
}

fn run(context: &FigureContext, scenarios: Vec<Scenario>) -> Result<Vec<E2eRun>, Failure> {
    simulate(context, scenarios, e2e::run)
}

/// Runs a scenario with each of some congestion controls, in their order.
fn run_under(
    context: &FigureContext,
    cc_variants: &[(CongestionControl, &str)],
    text: &str,
) -> Result<Vec<E2eRun>, Failure> {
    let scenarios: Result<_, Failure> =
        cc_variants.iter().map(|(cc, _)| under(*cc, text)).collect();
    run(context, scenarios?)
}

/// So many runs of a scenario, with its seed and those after it: what goes by chance in one is to
/// be counted in all of them.
fn episodes(scenario: &Scenario, count: u64) -> impl Iterator<Item = Scenario> {
    (0..count).map(|number| Scenario { seed: scenario.seed + number, ..scenario.clone() })
}

/// Adds what applications were done in another episode, but for their series.
fn add(sum: &mut [ServiceReport], episode: &[ServiceReport]) {
    for (sum, one) in sum.iter_mut().zip(episode) {
        for (sum, one) in [(&mut sum.requested, one.requested), (&mut sum.done, one.done)] {
            sum.requests += one.requests;
            sum.bytes += one.bytes;
        }
        sum.late += one.late;
        sum.overdue += one.overdue;
        sum.latency.add(&one.latency).expect("it grows with the longest time");
        sum.device.add(&one.device).expect("it grows with the longest time");
    }
}

/// The source of claims about some runs: the seed of the first, and the sum of their seconds.
fn source(figure: &'static str, runs: &[&E2eRun]) -> ClaimSource {
    let seconds = runs.iter().fold(0.0, |sum, shown| sum + shown.seconds);
    let seed = runs.first().map(|shown| shown.outcome.seed);
    ClaimSource { paper: "e2e", figure, world: SIMULATED, seed, seconds: tenths(seconds) }
}

/// Each application's rate at one point of its path, in Gbit/s. `bytes` chooses the point.
fn gbps(outcome: &E2eReport, bytes: impl Fn(&Moment) -> u64 + Copy) -> Vec<f64> {
    outcome.applications.iter().map(|one| outcome.rate(one, bytes) / 1e9).collect()
}

/// The same rates from one millisecond to another.
fn during(
    outcome: &E2eReport,
    [from, to]: [u64; 2],
    bytes: impl Fn(&Moment) -> u64 + Copy,
) -> Vec<f64> {
    let moment = |millisecond: u64| (millisecond * Span::MILLISECOND.0 / outcome.sample.0) as usize;
    let seconds = (to - from) as f64 / 1e3;
    let each = outcome.applications.iter().map(|one| {
        let counted = one.series.iter().take(moment(to)).skip(moment(from));
        counted.map(bytes).sum::<u64>() as f64 * 8.0 / seconds / 1e9
    });
    each.collect()
}

/// Each number's part of the sum, in percent.
fn parts(numbers: &[f64]) -> Vec<f64> {
    let sum: f64 = numbers.iter().sum();
    numbers.iter().map(|number| number * 100.0 / sum.max(f64::MIN_POSITIVE)).collect()
}

/// A number of each application, for programs, by its name.
fn each(outcome: &E2eReport, numbers: &[f64]) -> Value {
    each_rounded(outcome, numbers, tenths)
}

/// The same with as many digits as `rounded` leaves.
fn each_rounded(outcome: &E2eReport, numbers: &[f64], rounded: fn(f64) -> f64) -> Value {
    let named = outcome.applications.iter().zip(numbers);
    Value::Object(named.map(|(one, number)| (one.name.clone(), rounded(*number).into())).collect())
}

/// The promised shares of bytes that high, medium and low have, in percent, and how far from them
/// is the same: the paper's own 48, 31 and 17 Gbit/s are up to one percent off.
const SHARES: [f64; 3] = [50.0, 33.3, 16.7];
const NEAR_SHARE: f64 = 2.0;

/// Whether classes have 3 : 2 : 1 of something, in percent of what they have together.
fn as_promised(parts: &[f64]) -> Vec<Check> {
    each_near(&CLASSES, "%", &SHARES, NEAR_SHARE, parts)
}

/// Why classes with small windows have more than their share.
const PACKET: &str = "a window has one packet more in each round trip than the shares say, which \
                      is much for the small windows of low";

/// A row of a table: what it is of, and numbers with so many digits behind the point.
fn row(names: &[&str], numbers: &[f64], digits: usize) -> Vec<Cell> {
    let numbers = numbers.iter().map(|number| format!("{number:.digits$}").into());
    names.iter().map(|name| Cell::from(*name)).chain(numbers).collect()
}

/// Bytes that arrive at servers, or at the receiver of an application.
const fn there(moment: &Moment) -> u64 {
    moment.there
}

/// How much of a link is used, in percent; none if nothing went there.
fn busy(outcome: &E2eReport, ends: [&str; 2]) -> f64 {
    let ports = outcome.ports.iter().filter(|port| port.between == ends);
    ports.map(|port| port.busy * 100.0).fold(0.0, f64::max)
}

/// The classes of most figures, in the order of their scenarios.
const CLASSES: [&str; 3] = ["high", "medium", "low"];

/// The promises of three classes on a link, and the tolerance, in Gbit/s.
const PROMISED: [f64; 3] = [48.0, 32.0, 16.0];
const NEAR_PROMISED: f64 = 3.0;

/// A table of each flow's rate in some intervals of a run, in Gbit/s. `names` are the intervals'.
fn by_phase(outcome: &E2eReport, names: &[&'static str], phases: &[Vec<f64>]) -> Table {
    let mut table = Table::new().left("FLOW").each_right(names.iter().copied());
    for (index, one) in outcome.applications.iter().enumerate() {
        let rates: Vec<f64> = phases.iter().map(|flows| flows[index]).collect();
        table.row(row(&[&one.name], &rates, 1));
    }
    table
}
