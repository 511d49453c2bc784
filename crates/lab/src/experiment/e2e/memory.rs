//! End-to-end QoS paper, figures 20 and 21: persistent memory beside drives, over one saturated
//! link. The runs show the latency of memory with and without strict priority, and its cost for the
//! other requests.

use serde_json::json;
use tidegate_model::{Bytes, Class};
use tidegate_netsim::e2e::{E2eReport, Moment, Scenario, ServiceReport};
use tidegate_netsim::net;

use super::plot::{Panel, Series, draw};
use super::{
    CLASSES, Check, Claim, E2eRun, FigureContext, FigureResult, MEMORY_BESIDE_READS,
    MEMORY_BESIDE_WRITES, PACKET, hundredths, parts, run, scenario, source, tenths,
};
use crate::experiment::verdict::{at_least, between, near};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// The workloads, by the letters of figures 20 and 21.
const WORKLOADS: [(&str, &str); 2] =
    [("reads", MEMORY_BESIDE_READS), ("writes", MEMORY_BESIDE_WRITES)];

/// Where classes are, in numbers of them.
const STORAGE: [Class; 3] = [Class::High, Class::Medium, Class::Low];

/// Without strict provisioning: memory's packets wait among all others, and no room is theirs.
pub(super) fn round_robin(mut scenario: Scenario) -> Scenario {
    let switch = &mut scenario.network.switch;
    (switch.service, switch.reserve) = (net::PortService::Fifo, Bytes::ZERO);
    scenario
}

/// The application that uses memory.
pub(super) fn memory(outcome: &E2eReport) -> &ServiceReport {
    let mut services = outcome.applications.iter();
    services.find(|one| one.class == Class::Urgent).expect("a scenario with memory")
}

/// How long its requests took at a quantile, in microseconds.
pub(super) fn microseconds(service: &ServiceReport, quantile: f64) -> f64 {
    service.latency.value_at_quantile(quantile) as f64 / 1e3
}

/// Payload of classes together, in Gbit/s.
pub(super) fn storage(outcome: &E2eReport, bytes: impl Fn(&Moment) -> u64 + Copy) -> [f64; 3] {
    STORAGE.map(|class| {
        let those = outcome.applications.iter().filter(|one| one.class == class);
        those.map(|one| outcome.rate(one, bytes) / 1e9).sum()
    })
}

/// Whether classes share what they have as they are promised to.
pub(super) fn as_promised(rates: &[f64; 3]) -> Vec<Check> {
    super::as_promised(&parts(rates))
}

/// Numbers of classes, for programs.
pub(super) fn named(rates: &[f64; 3]) -> serde_json::Value {
    let [high, medium, low] = rates.map(tenths);
    json!({ "high": high, "medium": medium, "low": low })
}

/// Percentiles of memory's latency.
pub(super) fn percentiles(title: String, runs: &[(&str, &ServiceReport)]) -> Panel {
    let lines = runs.iter().map(|(name, service)| {
        let points = (1..100).map(|at| {
            let at = f64::from(at);
            (at, microseconds(service, at / 100.0))
        });
        Series::line(*name, points.collect())
    });
    Panel::new(title, ["percentile", "us"], lines)
}

/// Runs with strict priority and without.
pub(super) const ORDERS: [&str; 2] = ["with priority", "without"];

pub(super) fn latencies(context: &FigureContext) -> Result<FigureResult, Failure> {
    let mut scenarios = Vec::new();
    for (_, text) in WORKLOADS {
        scenarios.extend([scenario(text)?, round_robin(scenario(text)?)]);
    }
    let runs = run(context, scenarios)?;
    let (mut claims, mut panels) = (Vec::new(), Vec::new());
    let heads = ["MEAN us", "50 %", "90 %", "99 %", "DEVICE us"];
    let mut table = Table::new().left("MEMORY").left("PORTS").each_right(heads);
    for (((name, _), runs), figure) in WORKLOADS.iter().zip(runs.chunks(2)).zip(["20a", "20b"]) {
        let both = [0, 1].map(|at| memory(&runs[at].outcome));
        claims.extend(reached(figure, name, runs));
        let named = ORDERS.into_iter().zip(both);
        panels.push(percentiles(format!("({}) {name}", &figure[2..]), &named.collect::<Vec<_>>()));
        for (order, service) in ORDERS.into_iter().zip(both) {
            let quantiles = [0.5, 0.9, 0.99].map(|at| microseconds(service, at));
            let numbers = [mean(service), quantiles[0], quantiles[1], quantiles[2]];
            let cells = numbers.into_iter().chain([service.device.mean() / 1e3]);
            let mut row = vec![(*name).into(), order.into()];
            row.extend(cells.map(|number| format!("{number:.2}").into()));
            table.row(row);
        }
    }
    Ok(FigureResult { claims, table, picture: draw("Memory beside drives, end to end", &panels) })
}

/// The mean time of a request, in microseconds.
fn mean(service: &ServiceReport) -> f64 {
    service.latency.mean() / 1e3
}

/// Claims of figure 20 on a workload, with priority and without.
fn reached(figure: &'static str, name: &str, runs: &[E2eRun]) -> [Claim; 3] {
    let [with, without] = [0, 1].map(|at| memory(&runs[at].outcome));
    let bounds = [0.01, 0.99].map(|at| microseconds(with, at));
    let better = (1.0 - mean(with) / mean(without)) * 100.0;
    let source = source(figure, &[&runs[0], &runs[1]]);
    [
        source.claim(
            format!("with strict priority, {name} of memory are soon done, end to end"),
            json!({ "mean_us": hundredths(mean(with)), "p1_us": bounds[0], "p99_us": bounds[1] }),
            [between("98 of 100 in", "us", [3.0, 4.0], bounds)],
        ),
        source
            .claim(
                format!("without it, {name} of memory wait"),
                json!({
                    "mean_us": hundredths(mean(without)), "p90_us": microseconds(without, 0.9),
                    "p99_us": microseconds(without, 0.99),
                }),
                [at_least("the mean", "us", 20.0, mean(without))],
            )
            .because("the queue is 140 packets at its longest and less on average"),
        source.claim(
            format!("strict priority makes {name} of memory faster"),
            json!({ "faster_percent": tenths(better) }),
            [near("by", "%", 82.0, 2.5, better)],
        ),
    ]
}

/// The same without memory.
pub(super) fn alone(mut scenario: Scenario) -> Scenario {
    scenario.application.retain(|one| one.workload.class != Class::Urgent);
    scenario
}

pub(super) fn throughputs(context: &FigureContext) -> Result<FigureResult, Failure> {
    let mut scenarios = Vec::new();
    for (_, text) in WORKLOADS {
        scenarios.extend([alone(scenario(text)?), scenario(text)?]);
    }
    let runs = run(context, scenarios)?;
    let (mut claims, mut panels) = (Vec::new(), Vec::new());
    let mut table = Table::new().left("GBIT/S").left("MEMORY").each_right(CLASSES);
    for (((name, _), runs), figure) in WORKLOADS.iter().zip(runs.chunks(2)).zip(["21a", "21b"]) {
        let way = |moment: &Moment| if figure == "21a" { moment.back } else { moment.there };
        let both = [0, 1].map(|at| storage(&runs[at].outcome, way));
        claims.extend(costs(figure, name, runs, &both));
        for ((shown, rates), what) in runs.iter().zip(both).zip(["none", "beside"]) {
            let title = format!("({}) {name}, memory: {what}", &figure[2..]);
            panels.push(super::moments::rates(&shown.outcome, &title, way));
            let mut row = vec![(*name).into(), what.into()];
            row.extend(rates.map(|rate| format!("{rate:.1}").into()));
            table.row(row);
        }
    }
    Ok(FigureResult {
        claims,
        table,
        picture: draw("Drives without and with memory beside", &panels),
    })
}

/// Claims of figure 21 on a workload, without memory and with it.
fn costs(figure: &'static str, name: &str, runs: &[E2eRun], both: &[[f64; 3]; 2]) -> [Claim; 2] {
    let [alone, beside] = both;
    let lost = [0, 1, 2].map(|at| alone[at] - beside[at]);
    let mean = lost.iter().sum::<f64>() / 3.0;
    let source = source(figure, &[&runs[0], &runs[1]]);
    let both = [as_promised(alone), as_promised(beside)].concat();
    [
        source
            .claim(
                format!("memory beside {name} costs each class close to 1 Gbit/s"),
                json!({
                    "alone": named(alone), "lost": named(&lost), "mean_lost": hundredths(mean),
                }),
                [
                    near("each", "Gbit/s", 1.0, 0.5, lost),
                    near("on average", "Gbit/s", 1.0, 0.4, mean),
                ],
            )
            .because("together they lose as much, and high most of it"),
        source
            .claim(
                format!("beside memory, {name} of classes still are 3 : 2 : 1"),
                json!({ "gbit_per_second": named(beside) }),
                both,
            )
            .because(PACKET),
    ]
}
