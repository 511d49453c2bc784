//! End-to-end QoS paper, figure 22: requests for persistent memory take more and more of a link,
//! while hosts of all classes send into one port (incast). The classes share the rest as promised.

use serde_json::json;
use tidegate_model::{Iops, Portion};
use tidegate_netsim::e2e::{E2eReport, Moment, Scenario};
use tidegate_sim::workload::{Load, Offered};

use super::memory::{as_promised, memory, named, storage};
use super::moments::rates;
use super::plot::draw;
use super::{
    CLASSES, Claim, E2eRun, FigureContext, FigureResult, INCAST, MEMORY_BESIDE_WRITES, PACKET,
    hundredths, run, scenario, source, tenths,
};
use crate::experiment::verdict::near;
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// Bytes on the link for one write to memory: a command of 72 with 192 of data, on average, in a
/// packet with 62 of headers; and 62 that acknowledge the answer to it.
const BYTES: f64 = 72.0 + 192.0 + 62.0 + 62.0;
/// Bytes that the link carries per second.
const LINK: f64 = 12.5e9;

/// Which part of the link goes to memory, in percent, and what the figure is.
const RUNS: [(&str, &str, u64); 4] = [
    ("22a", MEMORY_BESIDE_WRITES, 10),
    ("22a", MEMORY_BESIDE_WRITES, 15),
    ("22b", INCAST, 10),
    ("22b", INCAST, 20),
];

/// With so much of the link for memory, and shares of the rest for the others.
fn with_memory(text: &str, percent: u64) -> Result<Scenario, Failure> {
    let mut scenario = scenario(text)?;
    scenario.promises.of = Portion((100 - percent as u32) * 10_000);
    let requests = LINK * percent as f64 / 100.0 / BYTES;
    let last = scenario.application.last_mut().expect("a scenario with memory");
    if let Load::Open(open) = &mut last.workload.load {
        open.rate = Offered::Requests(Iops(requests as u64));
    }
    Ok(scenario)
}

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let scenarios: Result<Vec<_>, Failure> =
        RUNS.iter().map(|(_, text, percent)| with_memory(text, *percent)).collect();
    let runs = run(context, scenarios?)?;
    let mut table = Table::new().left("FIGURE").right("MEMORY %").each_right(CLASSES);
    table = table.right("GBIT/S").right("MEMORY p99 us");
    let mut panels = Vec::new();
    for (shown, (figure, _, percent)) in runs.iter().zip(RUNS) {
        let outcome = &shown.outcome;
        let title = format!("({}) memory: {percent} %", &figure[2..]);
        panels.push(rates(outcome, &title, |moment| moment.there));
        let carried = there(outcome);
        let total: f64 = carried.iter().sum();
        let tail = super::memory::microseconds(memory(outcome), 0.99);
        let mut row = vec![figure.into(), format!("{:.1}", share(outcome)).into()];
        let numbers = carried.into_iter().chain([total, tail]);
        row.extend(numbers.map(|number| format!("{number:.1}").into()));
        table.row(row);
    }
    let claims = vec![less(&runs[..2]), incast(&runs[2]), more(&runs[3])];
    Ok(FigureResult { claims, table, picture: draw("Drives beside more memory", &panels) })
}

fn there(outcome: &E2eReport) -> [f64; 3] {
    storage(outcome, |moment: &Moment| moment.there)
}

/// Which part of the link memory took, in percent.
fn share(outcome: &E2eReport) -> f64 {
    let done = memory(outcome).done.requests as f64 / outcome.counted().as_seconds();
    done * BYTES / LINK * 100.0
}

/// Gbit/s of the link left for payload of drives, if memory takes `percent`. Of 1,502 bytes 1,448
/// are payload.
fn left(percent: f64) -> f64 {
    (100.0 - percent) * 1_448.0 / 1_502.0
}

fn less(runs: &[E2eRun]) -> Claim {
    let carried = [0, 1].map(|at| there(&runs[at].outcome));
    let checks = runs.iter().zip(&carried).flat_map(|(shown, rates)| {
        let part = tenths(share(&shown.outcome));
        let all_of_it = tenths(left(part));
        let total = near(
            format!("beside {part} % of memory"),
            "Gbit/s",
            all_of_it,
            1.0,
            rates.iter().sum::<f64>(),
        );
        as_promised(rates).into_iter().chain([total])
    });
    let checks: Vec<_> = checks.collect();
    let total = carried.map(|rates| tenths(rates.iter().sum()));
    source("22a", &[&runs[0], &runs[1]])
        .claim(
            "with 10 % and 15 % of the link for memory less is carried, and still as 3 : 2 : 1",
            json!({
                "at_10_percent": named(&carried[0]), "at_15_percent": named(&carried[1]),
                "carried_at_10_percent": total[0], "carried_at_15_percent": total[1],
            }),
            checks,
        )
        .because(PACKET)
}

fn incast(shown: &E2eRun) -> Claim {
    let rates = there(&shown.outcome);
    let total: f64 = rates.iter().sum();
    let carried = near("together", "Gbit/s", 87.0, 1.0, total);
    source("22b", &[shown])
        .claim(
            "twelve hosts into one port, 10 % of it for memory: the rest is still 3 : 2 : 1",
            json!({
                "gbit_per_second": named(&rates), "carried": tenths(total),
                "memory_percent": hundredths(share(&shown.outcome)),
            }),
            as_promised(&rates).into_iter().chain([carried]),
        )
        .because(PACKET)
}

fn more(shown: &E2eRun) -> Claim {
    let rates = there(&shown.outcome);
    source("22b", &[shown])
        .claim(
            "and the same with 20 % for memory",
            json!({
                "gbit_per_second": named(&rates), "carried": tenths(rates.iter().sum()),
                "memory_percent": hundredths(share(&shown.outcome)),
            }),
            as_promised(&rates),
        )
        .because(PACKET)
}
