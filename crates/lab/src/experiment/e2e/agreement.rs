//! End-to-end QoS paper, figure 16: one class of service for network and storage. In one set-up the
//! storage end takes the first application for low and the last for high; in the other both ends
//! agree.
//!
//! The paper has figures 16 and 17 on one set-up, and so have these: the drives of figure 17, which
//! take in as much as the link brings. Only there does the network contribute. Where drives take in
//! less they hold hosts back, so that the link is not full, and any congestion control gives the
//! same: that is shown here as well. No drives that were tried, of 62 to 94 Gbit/s, show both what
//! figure 16a and what figure 17b of the paper show: the first application does worse than the last
//! by QTCP only where drives leave so much of the link free that DCTCP serves high before medium as
//! QTCP does.

use serde_json::json;
use tidegate_model::Class;
use tidegate_netsim::e2e::Scenario;
use tidegate_netsim::transport::CongestionControl;

use super::plot::draw;
use super::tail_latency::{WAITS, in_order, steps};
use super::tails::{self, PERCENTILES, less, of_each};
use super::{
    COORDINATED, Check, Claim, E2eRun, FigureContext, FigureResult, TAIL_LATENCY, UNCOORDINATED,
    each, run, scenario, source, tenths, under,
};
use crate::experiment::verdict::{at_least, near, order};
use tidegate_console::failure::Failure;

/// With the drives of figure 17: by QTCP where storage has classes of its own, and where both ends
/// agree, and by DCTCP where they do. Then the first two by QTCP with slow drives, and by DCTCP.
const APART: usize = 0;
const TOGETHER: usize = 1;
const DCTCP: usize = 2;
const SLOW: [usize; 2] = [3, 4];
const SLOW_DCTCP: [usize; 2] = [5, 6];

fn scenarios() -> Result<Vec<Scenario>, Failure> {
    let (together, mut apart) = (scenario(TAIL_LATENCY)?, scenario(TAIL_LATENCY)?);
    apart.application[0].storage_class = Some(Class::Low);
    apart.application[2].storage_class = Some(Class::High);
    let dctcp = CongestionControl::Dctcp;
    let mut all = vec![apart, together, under(dctcp, TAIL_LATENCY)?];
    all.extend([scenario(UNCOORDINATED)?, scenario(COORDINATED)?]);
    all.extend([under(dctcp, UNCOORDINATED)?, under(dctcp, COORDINATED)?]);
    Ok(all)
}

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = run(context, scenarios()?)?;
    let mut table = tails::table();
    let mut panels = Vec::new();
    let names = ["(a) uncoordinated", "(b) coordinated", "coordinated, DCTCP"];
    let slow = ["slow drives, (a)", "slow drives, (b)"];
    for (shown, name) in runs.iter().zip(names.into_iter().chain(slow)) {
        tails::rows(&mut table, name, &shown.outcome, tails::LatencyScope::Whole);
        panels.push(tails::panel(&shown.outcome, tails::LatencyScope::Whole, name));
    }
    Ok(FigureResult {
        claims: vec![
            undone(&runs),
            agreed(&runs),
            by_half(&runs),
            helped(&runs),
            by_network(&runs),
            by_storage(&runs),
        ],
        table,
        picture: draw("Latencies where network and storage agree, and where not", &panels),
    })
}

fn latencies(shown: &E2eRun, percentile: f64) -> Vec<f64> {
    of_each(&shown.outcome, tails::LatencyScope::Whole, percentile)
}

/// At each percentile the last application does better than the first two.
fn last_is_first(shown: &E2eRun) -> Vec<Check> {
    let check = |percentile| {
        let times = latencies(shown, percentile);
        let beside = |class: usize| [("App3", times[2]), (["App1", "App2"][class], times[class])];
        [0, 1].map(|class| order(format!("p{percentile}"), "ms", &beside(class)))
    };
    PERCENTILES.map(check).concat()
}

fn undone(runs: &[E2eRun]) -> Claim {
    let shown = &runs[APART];
    source("16a", &[shown])
        .claim(
            "where storage takes the first application for low and the last for high, the first \
             two do worse than the last",
            json!({ "p50_ms": each(&shown.outcome, &latencies(shown, 50.0)) }),
            last_is_first(shown),
        )
        .because(
            "drives that take in what the link brings delay the first, but the last gets half of \
             what it asks for, and waits in its host; slow drives do show it",
        )
}

fn agreed(runs: &[E2eRun]) -> Claim {
    let shown = &runs[TOGETHER];
    source("16b", &[shown]).claim(
        "where both take it for the same, high does better than medium, and medium than low",
        json!({ "p50_ms": each(&shown.outcome, &latencies(shown, 50.0)) }),
        in_order(shown),
    )
}

fn by_half(runs: &[E2eRun]) -> Claim {
    let times = latencies(&runs[TOGETHER], 50.0);
    source("16b", &[&runs[TOGETHER]])
        .claim(
            "by close to as much each, at all percentiles",
            json!({
                "high_below_medium_p50_percent": tenths(less(times[0], times[1])),
                "medium_below_low_p50_percent": tenths(less(times[1], times[2])),
            }),
            steps(&runs[TOGETHER]),
        )
        .because(WAITS)
}

fn helped(runs: &[E2eRun]) -> Claim {
    let at = |percentile: f64| [APART, TOGETHER].map(|run| latencies(&runs[run], percentile));
    let [apart, together] = at(50.0);
    let helped = PERCENTILES.map(|percentile| {
        let [apart, together] = at(percentile);
        less(together[0], apart[0])
    });
    source("16", &[&runs[APART], &runs[TOGETHER]])
        .claim(
            "one class for both ends helps the first application, at all percentiles",
            json!({
                "apart_p50_ms": each(&runs[APART].outcome, &apart),
                "together_p50_ms": each(&runs[TOGETHER].outcome, &together),
            }),
            [at_least("it waits less by", "%", 50.0, helped)],
        )
        .ours()
}

/// The same drives with classes, by DCTCP: what QTCP adds is the network's contribution.
fn by_network(runs: &[E2eRun]) -> Claim {
    let [qtcp, dctcp] = [TOGETHER, DCTCP].map(|run| latencies(&runs[run], 50.0));
    let beside = |times: &[f64]| times[1] / times[0];
    source("16", &[&runs[TOGETHER], &runs[DCTCP]])
        .claim(
            "the network contributes to it: by DCTCP drives with classes tell high from medium no \
             more, and by QTCP they are far apart",
            json!({
                "qtcp_p50_ms": each(&runs[TOGETHER].outcome, &qtcp),
                "dctcp_p50_ms": each(&runs[DCTCP].outcome, &dctcp),
            }),
            [
                near("medium beside high by DCTCP", "times", 1.0, 0.25, beside(&dctcp)),
                at_least("by QTCP", "times", 4.0, beside(&qtcp)),
            ],
        )
        .ours()
}

/// Drives that take in 62 Gbit/s.
fn by_storage(runs: &[E2eRun]) -> Claim {
    let at = |run: usize| latencies(&runs[run], 50.0);
    let shown: Vec<&E2eRun> = SLOW.iter().chain(&SLOW_DCTCP).map(|run| &runs[*run]).collect();
    let same = SLOW.iter().zip(SLOW_DCTCP).map(|(qtcp, dctcp)| {
        let pairs = at(*qtcp).into_iter().zip(at(dctcp));
        pairs.map(|(qtcp, dctcp)| dctcp / qtcp).collect::<Vec<f64>>()
    });
    let same: Vec<f64> = same.flatten().collect();
    let checks = [last_is_first(&runs[SLOW[0]]), in_order(&runs[SLOW[1]])].concat();
    source("16", &shown)
        .claim(
            "with drives of half of what is asked the first two do worse than the last where \
             storage says so, and all are in order where both ends agree; the network contributes \
             nothing there, for DCTCP gives the same",
            json!({
                "qtcp_apart_p50_ms": each(&shown[0].outcome, &at(SLOW[0])),
                "qtcp_together_p50_ms": each(&shown[1].outcome, &at(SLOW[1])),
                "dctcp_apart_p50_ms": each(&shown[2].outcome, &at(SLOW_DCTCP[0])),
                "dctcp_together_p50_ms": each(&shown[3].outcome, &at(SLOW_DCTCP[1])),
            }),
            checks.into_iter().chain([near("DCTCP beside QTCP", "times", 1.0, 0.25, same)]),
        )
        .ours()
}
