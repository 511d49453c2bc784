//! End-to-end QoS paper, figure 17: tail latencies at drives, by DCTCP and by QTCP, while all
//! classes write the same amount.

use serde_json::json;

use super::plot::draw;
use super::tails::{self, PERCENTILES, less, of_each};
use super::writes::{CC_VARIANTS, DCTCP, QTCP};
use super::{
    CLASSES, Check, Claim, E2eRun, FigureContext, FigureResult, TAIL_LATENCY, each, episodes, run,
    source, tenths, under,
};
use crate::experiment::verdict::{at_least, near, order};
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
        claims: vec![at_drives(&runs), even(&runs), by_class(&runs), close_to_half(&runs)],
        table,
        picture: draw("Tails where all classes write as much", &panels),
    })
}

/// In the paper low waits 0.7 ms at a drive where high waits 60 us, and 1.5 ms in the tail.
const TIMES_LONGER: f64 = 5.0;

fn at_drives(runs: &[E2eRun]) -> Claim {
    let outcome = &runs[DCTCP].outcome;
    let times = |percentile| of_each(outcome, tails::LatencyScope::Drives, percentile);
    let [p50, p99] = [50.0, 99.0].map(times);
    let checks = [("p50", &p50), ("p99", &p99)].map(|(name, times)| {
        [
            order(name, "ms", &[("high", times[0]), ("medium", times[1])]),
            at_least(
                format!("{name} of low beside medium"),
                "times",
                TIMES_LONGER,
                times[2] / times[1],
            ),
        ]
    });
    source("17a", &[&runs[DCTCP]]).claim(
        "drives that fill up serve high and medium, and low waits many times as long",
        json!({ "p50_ms": each(outcome, &p50), "p99_ms": each(outcome, &p99) }),
        checks.concat(),
    )
}

fn even(runs: &[E2eRun]) -> Claim {
    let outcome = &runs[DCTCP].outcome;
    let all_runs: Vec<&E2eRun> = runs[..1].iter().chain(&runs[CC_VARIANTS.len()..]).collect();
    let mean = [0, 1, 2].map(|index| {
        let each = all_runs.iter().map(|shown| shown.outcome.applications[index].latency.mean());
        each.sum::<f64>() / all_runs.len() as f64 / 1e6
    });
    let worse = -less(mean[0], mean[1]);
    source("17b", &all_runs)
        .claim(
            "by DCTCP high does worse than medium, and low worst",
            json!({ "mean_ms": each(outcome, &mean), "high_above_medium_percent": tenths(worse) }),
            [
                near("high above medium", "%", 20.0, 5.0, worse),
                order("", "ms", &[("high", mean[0]), ("low", mean[2])]),
            ],
        )
        .because("both get as much of the link, and who waits longer goes by the seed")
}

/// At each percentile high does better than medium, and medium than low.
pub(super) fn in_order(shown: &E2eRun) -> Vec<Check> {
    let check = |percentile| {
        let times = of_each(&shown.outcome, tails::LatencyScope::Whole, percentile);
        let [high, medium, low] = [0, 1, 2].map(|class: usize| (CLASSES[class], times[class]));
        order(format!("p{percentile}"), "ms", &[high, medium, low])
    };
    PERCENTILES.map(check).into()
}

/// By how much high is below medium, and medium below low, by close to 50 % in the paper.
pub(super) fn steps(shown: &E2eRun) -> [Check; 2] {
    let step = |class: usize| {
        PERCENTILES.map(|percentile| {
            let times = of_each(&shown.outcome, tails::LatencyScope::Whole, percentile);
            less(times[class], times[class + 1])
        })
    };
    [
        near("high below medium", "%", 50.0, 10.0, step(0)),
        near("medium below low", "%", 50.0, 10.0, step(1)),
    ]
}

/// Why these steps are greater here.
pub(super) const WAITS: &str =
    "high gets all that it asks for, and a class that does not waits ever longer";

fn by_class(runs: &[E2eRun]) -> Claim {
    let outcome = &runs[QTCP].outcome;
    let times = |percentile| of_each(outcome, tails::LatencyScope::Whole, percentile);
    let [p50, p99] = [50.0, 99.0].map(times);
    source("17c", &[&runs[QTCP]]).claim(
        "by QTCP high does better than medium and medium than low, across the tail",
        json!({ "p50_ms": each(outcome, &p50), "p99_ms": each(outcome, &p99) }),
        in_order(&runs[QTCP]),
    )
}

fn close_to_half(runs: &[E2eRun]) -> Claim {
    let times = of_each(&runs[QTCP].outcome, tails::LatencyScope::Whole, 50.0);
    source("17c", &[&runs[QTCP]])
        .claim(
            "by close to as much each",
            json!({
                "high_below_medium_percent": tenths(less(times[0], times[1])),
                "medium_below_low_percent": tenths(less(times[1], times[2])),
            }),
            steps(&runs[QTCP]),
        )
        .because(WAITS)
}
