//! Figure 16: what it is worth that network and storage take an application for the same class.

use serde_json::json;

use super::plot::draw;
use super::tails::{self, PERCENTILES, less, of_each};
use super::{
    COORDINATED, FigureContext, FigureResult, Shown, UNCOORDINATED, all, each, holds_if, run,
    scenario, source, tenths,
};
use crate::experiment::verdict::{Claim, Judged};
use tidegate_console::failure::Failure;

const APART: usize = 0;
const TOGETHER: usize = 1;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = run(context, vec![scenario(UNCOORDINATED)?, scenario(COORDINATED)?])?;
    let mut table = tails::table();
    let mut panels = Vec::new();
    for (shown, name) in runs.iter().zip(["(a) uncoordinated", "(b) coordinated"]) {
        tails::rows(&mut table, name, &shown.outcome, tails::LatencyScope::Whole);
        panels.push(tails::panel(&shown.outcome, tails::LatencyScope::Whole, name));
    }
    Ok(FigureResult {
        claims: vec![undone(&runs), in_order(&runs), far_better(&runs), by_half(&runs)],
        table,
        picture: draw("Latencies where network and storage agree, and where not", &panels),
    })
}

fn latencies(shown: &Shown, percentile: f64) -> Vec<f64> {
    of_each(&shown.outcome, tails::LatencyScope::Whole, percentile)
}

/// Whether something holds for what three applications take at each percentile.
fn at_each(shown: &Shown, holds: impl Fn(&[f64]) -> bool) -> Judged {
    all(PERCENTILES.map(|percentile| {
        let times = latencies(shown, percentile);
        holds_if(holds(&times), || {
            format!("p{percentile}: {:.1}, {:.1} and {:.1} ms", times[0], times[1], times[2])
        })
    }))
}

fn undone(runs: &[Shown]) -> Claim {
    let shown = &runs[APART];
    source("16a", &[shown]).claim(
        "where storage takes the first application for low and the last for high, the first two \
         do worse than the last, whatever the network does",
        json!({ "p50_ms": each(&shown.outcome, &latencies(shown, 50.0)) }),
        at_each(shown, |times| times[0] > times[2] && times[1] > times[2]),
    )
}

fn in_order(runs: &[Shown]) -> Claim {
    let shown = &runs[TOGETHER];
    source("16b", &[shown]).claim(
        "where both take it for the same, high does better than medium, and medium than low",
        json!({ "p50_ms": each(&shown.outcome, &latencies(shown, 50.0)) }),
        at_each(shown, |times| times[0] < times[1] && times[1] < times[2]),
    )
}

/// Without classes at drives high is served as well in both: its requests are the largest, and each
/// application has as many under way. So high does better than medium there, too, and what drives
/// add is seen only beside the other run.
fn far_better(runs: &[Shown]) -> Claim {
    let at = |percentile: f64| [APART, TOGETHER].map(|run| latencies(&runs[run], percentile));
    let [apart, together] = at(50.0);
    source("16", &[&runs[APART], &runs[TOGETHER]]).claim(
        "that helps the first application and holds back the last, each by more than half (ours)",
        json!({
            "apart_p50_ms": each(&runs[APART].outcome, &apart),
            "together_p50_ms": each(&runs[TOGETHER].outcome, &together),
        }),
        all(PERCENTILES.map(|percentile| {
            let [apart, together] = at(percentile);
            let [helped, held] = [less(together[0], apart[0]), less(apart[2], together[2])];
            holds_if(helped > 50.0 && held > 50.0, || {
                format!("p{percentile}: by {helped:.1} and {held:.1} %")
            })
        })),
    )
}

/// "Close to 50 %", and "close to the same amount": so far from it, in percent, is close.
const CLOSE: f64 = 25.0;

fn by_half(runs: &[Shown]) -> Claim {
    let shown = &runs[TOGETHER];
    let steps = |percentile: f64| {
        let times = latencies(shown, percentile);
        [less(times[0], times[1]), less(times[1], times[2])]
    };
    let [high, medium] = steps(50.0);
    source("16b", &[shown]).claim(
        "by close to 50 % each, at all percentiles",
        json!({
            "high_below_medium_p50_percent": tenths(high),
            "medium_below_low_p50_percent": tenths(medium),
        }),
        all(PERCENTILES.map(|percentile| {
            let steps = steps(percentile);
            holds_if(steps.iter().all(|step| (step - 50.0).abs() <= CLOSE), || {
                format!("p{percentile}: by {:.1} and {:.1} %", steps[0], steps[1])
            })
        })),
    )
}
