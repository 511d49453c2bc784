//! DSFQ paper, figures 9 and 11: two streams share one of two storage nodes (*bricks*). Stream f
//! has data on brick A, and g on A and B, with more and more threads on B. Figure 9 has small files
//! with equal weights, and large files with weights of 1 to 4. Figure 11 has small files through
//! one, two and four coordinators.

use serde_json::json;
use tidegate_model::Discipline;
use tidegate_sim::bricks::{DsfqReport, DsfqScenario};

use super::plot::draw;
use super::sweep::{LINES, Sweep, sweep, table};
use super::{A, B, BURST, DsfqRun, F, FIGURE_9A, FIGURE_9B, FigureContext, FigureResult, G, equal};
use super::{fairness, live, mean, mega, run, scenario, source, tenths, thousandths, with};
use crate::experiment::verdict::{Claim, falls, near, rises};
use tidegate_console::failure::Failure;

/// Threads of g on B. With more, g is served more on B alone than f can be on A.
const COUNTS: [u32; 10] = [0, 1, 2, 3, 4, 6, 8, 10, 13, 16];

/// How many coordinators there are, in figure 11.
const COORDINATORS: [u16; 3] = [1, 2, 4];

const X: &str = "threads of g on B";

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let [small, large] = [scenario(FIGURE_9A)?, scenario(FIGURE_9B)?];
    let [small, large] = sweep(context, [small, large], &COUNTS)?;
    let panels = [
        small.throughputs("(a) files of up to 16 KB, weights one to one", X, LINES),
        large.throughputs("(b) files of up to 1 MB, weights one to four", X, LINES),
    ];
    Ok(FigureResult {
        claims: vec![one_to_one(&small), varies(&small), one_to_four(&large)],
        table: table(&[("9a", &small), ("9b", &large)], LINES),
        picture: draw("Totals of two streams that share one brick of two", &panels),
    })
}

pub(super) fn live(context: &FigureContext) -> Result<FigureResult, Failure> {
    totals(context, 1, "9a, live", "Totals of two streams that share one node of three")
}

pub(super) fn live_coordinators(context: &FigureContext) -> Result<FigureResult, Failure> {
    totals(context, 2, "2, live", "Totals of two streams, with two gateways")
}

/// The live run through so many gateways, as `row` of its table and below `title`.
fn totals(
    context: &FigureContext,
    gateways: u16,
    row: &str,
    title: &str,
) -> Result<FigureResult, Failure> {
    let (sweep, claim) = live::totals(context, gateways)?;
    let panel = sweep.throughputs("(a) live, B being two nodes", X, LINES);
    Ok(FigureResult {
        claims: vec![claim],
        table: table(&[(row, &sweep)], LINES),
        picture: draw(title, &[panel]),
    })
}

pub(super) fn coordinators(context: &FigureContext) -> Result<FigureResult, Failure> {
    let many =
        |base: DsfqScenario| COORDINATORS.map(|n| DsfqScenario { coordinators: n, ..base.clone() });
    let [one, two, four] = sweep(context, many(scenario(FIGURE_9A)?), &COUNTS)?;
    let bursts = DsfqScenario { discipline: Discipline::DsfqTotal, ..scenario(BURST)? };
    let bursts = run(context, many(bursts).to_vec())?;
    let panels = [
        two.throughputs("(a) two coordinators", X, LINES),
        four.throughputs("(b) four coordinators", X, LINES),
    ];
    let through = |figure, sweep: &Sweep, number: &str| {
        let (numbers, within) = fairness(sweep.outcomes());
        let (percent, threads) = sweep.furthest(1.0, |_| true);
        sweep.source(figure).claim(
            format!("with {number} coordinators in turn, the totals of f and g stay equal"),
            with(
                numbers,
                json!({
                    "totals_apart_at_most_percent": percent.map(tenths), "with_threads": threads,
                }),
            ),
            [within, equal(percent)],
        )
    };
    Ok(FigureResult {
        claims: vec![
            through("11a", &two, "two"),
            through("11b", &four, "four"),
            closer([&one, &two, &four]),
            closer_in_bursts(&bursts),
        ],
        table: table(&[("1", &one), ("2", &two), ("4", &four)], LINES),
        picture: draw("Totals of two streams, with more than one coordinator", &panels),
    })
}

fn one_to_one(sweep: &Sweep) -> Claim {
    let (numbers, within) = fairness(sweep.outcomes());
    let (percent, threads) = sweep.furthest(1.0, |_| true);
    let of_f: Vec<f64> = sweep.outcomes().map(|outcome| mean(outcome, F, A)).collect();
    let of_g: Vec<f64> = sweep.outcomes().map(|outcome| mean(outcome, G, B)).collect();
    let measured = json!({
        "totals_apart_at_most_percent": percent.map(tenths),
        "with_threads": threads,
        "f_on_a_megabytes_per_second": ends(&of_f),
        "g_on_b_megabytes_per_second": ends(&of_g),
    });
    sweep.source("9a").claim(
        "whatever g is served on B, the totals of f and g stay equal: f has more of A",
        with(numbers, measured),
        // Means of seconds vary by a hundredth.
        [within, equal(percent), rises(0.99, "f on A", "MB/s", of_f)],
    )
}

/// From the first to the last.
fn ends(values: &[f64]) -> [f64; 2] {
    let end = |value: Option<&f64>| thousandths(value.copied().unwrap_or(0.0));
    [end(values.first()), end(values.last())]
}

/// The mean distance of the two totals in a second, in millions of bytes.
fn distance(outcome: &DsfqReport) -> f64 {
    let [f, g] = [F, G].map(|stream| outcome.rates(stream, None));
    let far: f64 = f.iter().zip(&g).map(|(f, g)| (f - g).abs()).sum();
    mega(far / f.len().max(1) as f64)
}

/// A mean over all points of a sweep.
fn over_all(sweep: &Sweep, of: impl Fn(&DsfqReport) -> f64) -> f64 {
    sweep.outcomes().map(of).sum::<f64>() / sweep.points.len() as f64
}

/// The largest batch cost of g at A, in KB.
fn batch_most(outcome: &DsfqReport) -> f64 {
    let (_, _, [_, [.., batch]]) = outcome.unfairness.parameters();
    batch as f64 / 1e3
}

fn varies(sweep: &Sweep) -> Claim {
    let distances: Vec<f64> = sweep.outcomes().map(distance).collect();
    let batches: Vec<f64> = sweep.outcomes().map(batch_most).collect();
    let [few, many] = ends(&distances);
    sweep.source("9a").claim(
        "the more of its service g has on B, the more the totals differ from second to second, for \
         so does its largest batch cost",
        json!({
            "totals_differ_on_average_megabytes_per_second": [few, many],
            "batchcost_of_g_at_most_kilobytes": ends(&batches),
        }),
        [rises(1.0, "from few threads to many it", "MB/s", [few, many])],
    )
}

fn one_to_four(sweep: &Sweep) -> Claim {
    let (numbers, within) = fairness(sweep.outcomes());
    let (percent, threads) = sweep.furthest(4.0, |_| true);
    let rates = |stream, brick| -> Vec<f64> {
        sweep.outcomes().map(|outcome| mean(outcome, stream, brick)).collect()
    };
    sweep.source("9b").claim(
        "with weights of one to four and large files the totals stay one to four, and both grow",
        with(
            numbers,
            json!({
                "totals_apart_at_most_percent": percent.map(tenths),
                "with_threads": threads,
                "f_on_a_megabytes_per_second": ends(&rates(F, A)),
                "g_on_a_megabytes_per_second": ends(&rates(G, A)),
                "g_on_b_megabytes_per_second": ends(&rates(G, B)),
            }),
        ),
        [
            within,
            equal(percent),
            near("f on A at first", "MB/s", 40.0, 10.0, rates(F, A).first().copied()),
            near("at last", "MB/s", 75.0, 10.0, rates(F, A).last().copied()),
            near("g on A at first", "MB/s", 160.0, 10.0, rates(G, A).first().copied()),
            near("at last", "MB/s", 125.0, 10.0, rates(G, A).last().copied()),
            near("g on B at last", "MB/s", 175.0, 10.0, rates(G, B).last().copied()),
        ],
    )
}

/// The paper's words, of the paper's load. A difference of a few percent either way is none.
fn closer(sweeps: [&Sweep; 3]) -> Claim {
    let distances = sweeps.map(|sweep| over_all(sweep, distance));
    let took = sweeps.iter().map(|sweep| sweep.seconds).sum();
    source("11", sweeps[0].seed, took)
        .claim(
            "the more coordinators, the closer the totals are to each other, for delays are \
             smoother",
            json!({
                "coordinators": COORDINATORS,
                "totals_differ_on_average_megabytes_per_second": distances.map(thousandths),
                "batchcost_of_g_on_average_kilobytes":
                    sweeps.map(|sweep| tenths(over_all(sweep, batch_most))),
            }),
            [falls(LESS, "their distance", "MB/s", distances)],
        )
        .because(
            "threads mix requests to A and B at random, and every second or fourth of a random \
             row is a random row",
        )
}

/// A smaller fall is chance.
const LESS: f64 = 1.05;

/// Where delays are not smooth: g turns from brick to brick in bursts.
fn closer_in_bursts(shown: &[DsfqRun]) -> Claim {
    let of = |of: fn(&DsfqReport) -> f64| [0, 1, 2].map(|index: usize| of(&shown[index].outcome));
    let [distances, batches] = [of(distance), of(batch_most)];
    let bounds = of(|outcome| outcome.unfairness.bound() / 1e3);
    let (seed, took) = (shown[0].outcome.seed, shown.iter().map(|shown| shown.seconds).sum());
    source("11", seed, took)
        .claim(
            "it is so for a stream that turns from brick to brick in bursts: with more \
             coordinators batch costs and the bound of theorem 4 are smaller, and totals closer",
            json!({
                "coordinators": COORDINATORS,
                "totals_differ_on_average_megabytes_per_second": distances.map(thousandths),
                "batchcost_of_g_at_most_kilobytes": batches.map(tenths),
                "unfairness_bound_kilobytes": bounds.map(tenths),
            }),
            [
                falls(LESS, "the distance of totals", "MB/s", distances),
                falls(LESS, "batch costs", "KB", batches),
                falls(LESS, "the bound", "KB", bounds),
            ],
        )
        .ours()
}
