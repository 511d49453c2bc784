//! End-to-end QoS paper, figures 18b, 18c and 19: flows under window-based and under rate-based
//! congestion control share one link. The runs show their shares of it, and the effect of promises.

use serde_json::json;
use tidegate_netsim::e2e::{E2eReport, Scenario};
use tidegate_netsim::transport::CongestionControl;

use super::moments::rates;
use super::plot::draw;
use super::{
    Claim, E2eRun, FigureContext, FigureResult, RATES_PROMISED, WINDOW_BESIDE_RATE,
    WINDOWS_PROMISED, each, each_near, gbps, parts, row, run, scenario, source, tenths, under,
};
use crate::experiment::verdict::{near, order, order_by};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

pub(super) fn share(context: &FigureContext) -> Result<FigureResult, Failure> {
    let scenarios = vec![
        under(CongestionControl::Dctcp, WINDOW_BESIDE_RATE)?,
        under(CongestionControl::Qtcp, WINDOW_BESIDE_RATE)?,
    ];
    let runs = run(context, scenarios)?;
    let titles = ["(b) DCTCP beside DCQCN", "(c) QTCP beside DCQCN"];
    Ok(FigureResult {
        claims: vec![first(&runs[0]), later(&runs[0]), halves(&runs[1])],
        table: table(&runs, &["DCTCP", "QTCP"]),
        picture: picture("A window beside a rate", &runs, titles),
    })
}

pub(super) fn promised(context: &FigureContext) -> Result<FigureResult, Failure> {
    let scenarios: Result<Vec<Scenario>, Failure> =
        [WINDOWS_PROMISED, RATES_PROMISED].into_iter().map(scenario).collect();
    let runs = run(context, scenarios?)?;
    let titles = ["(b) QTCP beside DCQCN", "(c) QRDMA beside DCTCP"];
    Ok(FigureResult {
        claims: vec![in_order(&runs[0]), others(&runs[0]), as_promised(&runs[1])],
        table: table(&runs, &["QTCP", "QRDMA"]),
        picture: picture("Four flows by promises beside four without", &runs, titles),
    })
}

/// Rates at which the flows' bytes arrive, in Gbit/s.
fn there(outcome: &E2eReport) -> Vec<f64> {
    gbps(outcome, |moment| moment.there)
}

/// For so many moments DCTCP is in its slow start, and senders have got few notifications: 0.2 ms.
const START: usize = 1;

fn first(shown: &E2eRun) -> Claim {
    let outcome = &shown.outcome;
    let [window, rate] = [0, 1].map(|at| {
        let moments = &outcome.applications[at].series[..START];
        let bytes: u64 = moments.iter().map(|moment| moment.there).sum();
        bytes as f64 * 8.0 / (START as f64 * outcome.sample.as_seconds()) / 1e9
    });
    source("18b", &[shown]).claim(
        "at first, while DCTCP starts slowly, DCQCN takes most of the link",
        json!({ "dctcp_first_gbit_per_second": tenths(window), "dcqcn": tenths(rate) }),
        // With seeds 1 to 5 from 1.6 to 2.9 times as much.
        [order("", "Gbit/s", &[("DCTCP", window), ("DCQCN", rate)])],
    )
}

fn later(shown: &E2eRun) -> Claim {
    let rates = there(&shown.outcome);
    let part = rates[0] / (rates[0] + rates[1]) * 100.0;
    source("18b", &[shown]).claim(
        "and then DCTCP does, and stays there: it raises a window sooner than DCQCN a rate",
        json!({ "gbit_per_second": each(&shown.outcome, &rates), "part_percent": tenths(part) }),
        [order_by(1.5, "", "Gbit/s", &[("DCQCN", rates[1]), ("DCTCP", rates[0])])],
    )
}

fn halves(shown: &E2eRun) -> Claim {
    let rates = there(&shown.outcome);
    source("18c", &[shown])
        .claim(
            "QTCP that is promised half of the link has as much of it as DCQCN",
            json!({ "gbit_per_second": each(&shown.outcome, &rates) }),
            each_near(&["QTCP", "DCQCN"], "% of both", &[50.0; 2], 2.0, &parts(&rates)),
        )
        .because("what a window gives up at a mark it has again before DCQCN's rate is as high")
}

/// The parts of flows that go by promises: 1 : 1.5 : 2 : 3.
const PARTS: [f64; 4] = [2.0, 3.0, 4.0, 6.0];

/// The flows that go by promises, by their parts.
const NAMES: [&str; 4] = ["1", "1.5", "2", "3"];

fn in_order(shown: &E2eRun) -> Claim {
    let rates = there(&shown.outcome);
    let [one, two, three, four] = [0, 1, 2, 3].map(|flow: usize| (NAMES[flow], rates[flow]));
    source("19b", &[shown]).claim(
        "beside DCQCN, flows of QTCP are told apart by their promises, if not as exactly",
        json!({ "gbit_per_second": each(&shown.outcome, &rates) }),
        [order("those promised", "Gbit/s", &[one, two, three, four])],
    )
}

fn others(shown: &E2eRun) -> Claim {
    let rates = there(&shown.outcome);
    let part = rates[4..].iter().sum::<f64>() / rates.iter().sum::<f64>() * 100.0;
    source("19b", &[shown]).claim(
        "and leave about half of the link to DCQCN",
        json!({ "part_percent": tenths(part) }),
        [near("DCQCN has", "%", 50.0, 10.0, part)],
    )
}

fn as_promised(shown: &E2eRun) -> Claim {
    let rates = there(&shown.outcome);
    let ours = parts(&rates[..4]);
    let promised: Vec<f64> = parts(&PARTS).into_iter().map(tenths).collect();
    let together: f64 = rates[..4].iter().sum();
    source("19c", &[shown]).claim(
        "beside DCTCP, flows of QRDMA have about 1 : 1.5 : 2 : 3, as promised",
        json!({
            "gbit_per_second": each(&shown.outcome, &rates), "together": tenths(together),
            "parts_percent": ours.iter().map(|part| tenths(*part)).collect::<Vec<_>>(),
        }),
        each_near(&NAMES, "%", &promised, 3.0, &ours),
    )
}

fn table(runs: &[E2eRun], cc_variants: &[&'static str]) -> Table {
    let flows = runs[0].outcome.applications.len();
    let heads = ["1", "2", "3", "4", "5", "6", "7", "8"];
    let mut table = Table::new().left("GBIT/S").each_right(heads.into_iter().take(flows));
    for (shown, cc) in runs.iter().zip(cc_variants) {
        table.row(row(&[cc], &there(&shown.outcome), 1));
    }
    table
}

fn picture(title: &str, runs: &[E2eRun], titles: [&str; 2]) -> String {
    let panels = runs.iter().zip(titles);
    let panels = panels.map(|(shown, title)| rates(&shown.outcome, title, |moment| moment.there));
    draw(title, &panels.collect::<Vec<_>>())
}
