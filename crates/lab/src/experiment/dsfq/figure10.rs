//! DSFQ paper, figure 10: each request of stream g is striped over three storage nodes (*bricks*).
//! Stream f has data on one of them.

use serde_json::json;

use super::plot::draw;
use super::sweep::{Sweep, ThroughputLine, sweep, table};
use super::{
    A, B, EQUAL, F, FIGURE_10, FigureContext, FigureResult, G, apart, fairness, mean, scenario,
};
use super::{tenths, thousandths, with};
use crate::experiment::verdict::{Claim, at_most};
use tidegate_console::failure::Failure;

const COUNTS: [u32; 12] = [0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 17, 20];
const C: Option<usize> = Some(2);

const LINES: &[ThroughputLine] = &[
    ("f, all on A", F, None),
    ("g", G, None),
    ("g on A", G, A),
    ("g on B", G, B),
    ("g on C", G, C),
];

/// With so many threads of g totals are equal in the paper.
const PAPER: f64 = 3.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let [sweep] = sweep(context, [scenario(FIGURE_10)?], &COUNTS)?;
    let panel = sweep.throughputs("f on one brick, g striped over three", "threads of g", LINES);
    Ok(FigureResult {
        claims: vec![balanced(&sweep), limited(&sweep)],
        table: table(&[("10", &sweep)], LINES),
        picture: draw("A striped stream beside one on a single brick", &[panel]),
    })
}

/// Totals are equal from some number of threads on.
fn balanced(sweep: &Sweep) -> Claim {
    let (numbers, within) = fairness(sweep.outcomes());
    let far = |(count, outcome): &(u32, _)| {
        (*count, apart(mean(outcome, F, None), mean(outcome, G, None)))
    };
    let far: Vec<(u32, f64)> = sweep.points.iter().map(far).collect();
    // From here on to the last.
    let unequal = far.iter().rposition(|(_, percent)| *percent > EQUAL);
    let from = far.get(unequal.map_or(0, |at| at + 1)).map(|point| point.0);
    let last = far.last().map_or(0.0, |point| point.1);
    let threads = from.map_or(f64::INFINITY, f64::from);
    sweep
        .source("10")
        .claim(
            "from three threads on the totals of f and of striped g are equal, and stay so",
            with(
                numbers,
                json!({ "equal_from_threads": from, "totals_apart_at_last_percent": tenths(last) }),
            ),
            [within, at_most("threads of g for that", "", PAPER, threads)],
        )
        .because(
            "before, they do not ask for more; the paper says neither how many threads f has, nor \
             how many requests are at the disks",
        )
}

/// The other two bricks do as much for g as the shared one, though no other stream asks there.
fn limited(sweep: &Sweep) -> Claim {
    let bricks = sweep.outcomes().skip(1).map(|outcome| {
        let shared = mean(outcome, G, A);
        [B, C].map(|brick| apart(mean(outcome, G, brick), shared))
    });
    let off = bricks.flatten().fold(0.0, f64::max);
    let alone = sweep.outcomes().last().map_or(0.0, |outcome| mean(outcome, G, B));
    sweep.source("10").claim(
        "what g is served on the two other bricks is limited by what it is served on the shared \
         one",
        json!({
            "bricks_of_g_apart_at_most_percent": tenths(off),
            "g_on_b_megabytes_per_second": thousandths(alone),
        }),
        [at_most("bricks of g apart", "%", EQUAL, off)],
    )
}
