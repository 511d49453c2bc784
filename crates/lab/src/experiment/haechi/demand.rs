//! Haechi paper, figure 8: clients' demands over time, without any control. Uniform demands and
//! those with a spike, in bursts and at a constant rate.

use serde_json::json;
use tidegate_sim::one_sided::{self, OneSidedReport, Order, Scenario, Service};

use super::plot::draw;
use super::{
    FIGURE_8A, FIGURE_8B, FIGURE_8C, FigureContext, FigureResult, HaechiRun, Kept, NEAR, Number,
    beside, by_client, clients,
};
use super::{mean, mean_of, scenario, simulate, source, table, tenths, total};
use crate::experiment::verdict::{Claim, at_most};
use tidegate_console::failure::Failure;

/// The clients whose demand is the spike, C1 to C3.
const SPIKE: core::ops::Range<usize> = 0..3;
const OTHERS: core::ops::Range<usize> = 3..10;

/// The rate of a client that reads alone, in thousands per second.
const ALONE: f64 = 400.0;

/// 8a, 8b and 8c.
static RUNS: Kept =
    Kept::new(|| [FIGURE_8A, FIGURE_8B, FIGURE_8C].into_iter().map(scenario).collect());

/// A figure and what it shows.
const NAMES: [(&str, &str); 3] =
    [("8a", "uniform, burst"), ("8b", "spike, burst"), ("8c", "spike, constant rate")];

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = RUNS.get(context)?;
    let rows = NAMES.iter().zip(runs).map(|((figure, what), shown)| {
        let name = format!("{figure} {what}");
        (name, clients(&shown.outcome).map(|client| mean(&shown.outcome, client)).collect())
    });
    let rows: Vec<(String, Vec<f64>)> = rows.collect();
    let panel = by_client("What each client reads", &rows);
    let texts = [
        "if ten clients want the same in bursts, each reads a tenth of what the data node can",
        "if three want more than the others, all at the beginning of a period, the data node \
         loses an eighth, because three cannot saturate it when the others are done",
        "the same demands at a constant rate leave nothing unused",
    ];
    let mut claims: Vec<Claim> = texts
        .into_iter()
        .zip(all_numbers(outcomes(runs)))
        .zip(runs)
        .map(|((text, numbers), shown)| {
            let (measured, checks) = beside(&numbers, NEAR);
            source(numbers[0].figure, core::slice::from_ref(shown)).claim(text, measured, checks)
        })
        .collect();
    claims.push(sensitivity(context, total(&runs[1].outcome))?);
    Ok(FigureResult {
        claims,
        table: table(&rows),
        picture: draw("Demands without control", &[panel]),
    })
}

fn outcomes(runs: &[HaechiRun]) -> [&OneSidedReport; 3] {
    [0, 1, 2].map(|index| &runs[index].outcome)
}

/// The paper's numbers, beside those of 8a, 8b and 8c here.
pub(super) fn all_numbers([a, b, c]: [&OneSidedReport; 3]) -> [Vec<Number>; 3] {
    let [most, others] = [SPIKE, OTHERS].map(|some| mean_of(b, some));
    // The others have what they want when each has had as much. From then on C1 to C3 read as fast
    // as their own RNICs let them.
    let rest = most - others;
    let done = 1.0 - rest / ALONE;
    [
        vec![
            Number::rate("8a", "all clients", 1570.0, total(a)),
            Number::rate("8a", "each client", 157.0, mean_of(a, clients(a))),
        ],
        vec![
            Number::rate("8b", "all clients", 1380.0, total(b)),
            Number::rate("8b", "C1 to C3", 278.0, most),
            Number::rate("8b", "C4 to C10, around", 80.0, others),
            Number { unit: "s", ..Number::rate("8b", "until C4 to C10 are done", 0.5, done) },
            Number { unit: "K", ..Number::rate("8b", "C1 to C3 from then on", 200.0, rest) },
        ],
        vec![
            Number::rate("8c", "all clients", 1564.0, total(c)),
            Number::rate("8c", "C1 to C3", 332.0, mean_of(c, SPIKE)),
        ],
    ]
}

/// The paper's numbers of this figure, beside ours.
pub(super) fn numbers(context: &FigureContext) -> Result<Vec<Number>, Failure> {
    Ok(all_numbers(outcomes(RUNS.get(context)?)).into_iter().flatten().collect())
}

/// Of what the paper does not say, nothing changes the result by more, in percent.
const INSENSITIVE: f64 = 1.0;

/// Figure 8b with what the paper says nothing of.
fn sensitivity(context: &FigureContext, plain: f64) -> Result<Claim, Failure> {
    let base = Scenario { periods: 2, ..scenario(FIGURE_8B)? };
    let mut variants = vec![base; 8];
    variants[0].nics.order = Order::RoundRobin;
    variants[1].nics.order = Order::Shared;
    variants[2].nics.service = Service::Exponential;
    variants[3].client.iter_mut().for_each(|clients| clients.window = 16);
    variants[4].client.iter_mut().for_each(|clients| clients.window = 256);
    for (variant, us) in variants[5..].iter_mut().zip([1, 5, 20]) {
        variant.nics.round_trip.0 = us * 1_000;
    }
    let names = ["turns", "shared", "exponential", "window_16", "window_256", "round_trip_1us"];
    let names = names.into_iter().chain(["round_trip_5us", "round_trip_20us"]);
    let shown = simulate(context, variants, one_sided::run)?;
    let totals: Vec<f64> = shown.iter().map(|shown| total(&shown.outcome)).collect();
    let off = totals.iter().map(|total| (total / plain - 1.0).abs() * 100.0).fold(0.0, f64::max);
    let mut measured = json!({ "apart_at_most_percent": tenths(off) });
    for (name, total) in names.zip(&totals) {
        measured[format!("{name}_kilo_per_second")] = tenths(*total).into();
    }
    Ok(source("8b", &shown)
        .claim(
            "that does not depend on what the paper leaves open: the order at the data node, the \
             distribution of times, windows from 16 to 256, round trips from 1 to 20 us",
            measured,
            [at_most("totals apart", "%", INSENSITIVE, off)],
        )
        .ours())
}
