//! Figure 17: tails at drives, by DCTCP and by QTCP, where all classes write as much.

use serde_json::json;

use super::plot::draw;
use super::tails::{self, PERCENTILES, less, of_each};
use super::writes::{CC_VARIANTS, DCTCP, QTCP};
use super::{
    CLASSES, FigureContext, FigureResult, Known, Shown, TAIL_LATENCY, all, differs, each, episodes,
    holds_if, run, source, tenths, under,
};
use crate::experiment::verdict::Claim;
use tidegate_console::failure::Failure;

/// Runs by DCTCP, each with a seed of its own: by how much high does worse goes by chance in one.
const EPISODES: u64 = 4;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let mut scenarios =
        vec![under(CC_VARIANTS[DCTCP].0, TAIL_LATENCY)?, under(CC_VARIANTS[QTCP].0, TAIL_LATENCY)?];
    let again: Vec<_> = episodes(&scenarios[DCTCP], EPISODES).skip(1).collect();
    scenarios.extend(again);
    let runs = run(context, scenarios)?;
    let shown = [
        (DCTCP, tails::LatencyScope::Drives, "(a) at drives, DCTCP"),
        (DCTCP, tails::LatencyScope::Whole, "(b) end to end, DCTCP"),
        (QTCP, tails::LatencyScope::Whole, "(c) end to end, QTCP"),
    ];
    let mut table = tails::table();
    let panels = shown.map(|(index, part, name)| {
        let outcome = &runs[index].outcome;
        tails::rows(&mut table, name, outcome, part);
        tails::panel(outcome, part, name)
    });
    Ok(FigureResult {
        claims: vec![at_drives(&runs), even(&runs), by_class(&runs), steps(&runs)],
        table,
        picture: draw("Tails where all classes write as much", &panels),
    })
}

/// In the paper low waits 0.7 ms at a drive where high waits 60 us, and 1.5 ms in the tail.
const TIMES_LONGER: f64 = 5.0;

fn at_drives(runs: &[Shown]) -> Claim {
    let outcome = &runs[DCTCP].outcome;
    let times = |percentile| of_each(outcome, tails::LatencyScope::Drives, percentile);
    let [p50, p99] = [50.0, 99.0].map(times);
    source("17a", &[&runs[DCTCP]]).claim(
        "drives that fill up serve high and medium, and low waits many times as long",
        json!({ "p50_ms": each(outcome, &p50), "p99_ms": each(outcome, &p99) }),
        all([p50, p99].map(|times| {
            let [high, medium, low] = [times[0], times[1], times[2]];
            let holds = high < medium && low > TIMES_LONGER * medium;
            holds_if(holds, || format!("{high:.2}, {medium:.2} and {low:.2} ms"))
        })),
    )
}

fn even(runs: &[Shown]) -> Claim {
    let outcome = &runs[DCTCP].outcome;
    let all_runs: Vec<&Shown> = runs[..1].iter().chain(&runs[CC_VARIANTS.len()..]).collect();
    let mean = [0, 1, 2].map(|index| {
        let each = all_runs.iter().map(|shown| shown.outcome.applications[index].latency.mean());
        each.sum::<f64>() / all_runs.len() as f64 / 1e6
    });
    let worse = -less(mean[0], mean[1]);
    let known = Known {
        what: "high is above medium by",
        unit: "%",
        value: worse,
        known: 1.0,
        within: 12.0,
    };
    source("17b", &all_runs).claim(
        "by DCTCP high does worse than medium, by close to 20 %, and low worst",
        json!({ "mean_ms": each(outcome, &mean), "high_above_medium_percent": tenths(worse) }),
        all([
            differs(
                &[known],
                "both get as much of the link, and who waits longer goes by the seed",
            ),
            holds_if(mean[2] > mean[0], || {
                format!("low {:.1} ms, high {:.1} ms", mean[2], mean[0])
            }),
        ]),
    )
}

fn by_class(runs: &[Shown]) -> Claim {
    let outcome = &runs[QTCP].outcome;
    let times = |percentile| of_each(outcome, tails::LatencyScope::Whole, percentile);
    let [p50, p99] = [50.0, 99.0].map(times);
    source("17c", &[&runs[QTCP]]).claim(
        "by QTCP high does better than medium and medium than low, across the tail",
        json!({ "p50_ms": each(outcome, &p50), "p99_ms": each(outcome, &p99) }),
        all(PERCENTILES.map(|percentile| {
            let times = times(percentile);
            let rises = times.windows(2).all(|pair| pair[0] < pair[1]);
            let formatted =
                CLASSES.iter().zip(&times).map(|(class, time)| format!("{class} {time:.1}"));
            holds_if(rises, || {
                format!("p{percentile}, in ms: {}", formatted.collect::<Vec<_>>().join(", "))
            })
        })),
    )
}

fn steps(runs: &[Shown]) -> Claim {
    let times = of_each(&runs[QTCP].outcome, tails::LatencyScope::Whole, 50.0);
    let known = |what, value, known| Known { what, unit: "%", value, known, within: 6.0 };
    let steps = [
        known("high is below medium by", less(times[0], times[1]), 92.0),
        known("medium below low by", less(times[1], times[2]), 81.0),
    ];
    source("17c", &[&runs[QTCP]]).claim(
        "by close to 50 % each",
        json!({
            "high_below_medium_percent": tenths(steps[0].value),
            "medium_below_low_percent": tenths(steps[1].value),
        }),
        differs(&steps, "high gets all that it asks for, and who does not waits ever longer"),
    )
}
