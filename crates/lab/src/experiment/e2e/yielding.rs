//! End-to-end QoS paper, figure 14b: a best-effort flow of DCTCP joins three flows with promised
//! rates, and leaves again.

use serde_json::{Value, json};

use super::moments::rates;
use super::plot::draw;
use super::{
    CLASSES, Check, Claim, E2eRun, FigureContext, FigureResult, NEAR_PROMISED, PROMISED,
    WITHOUT_A_PROMISE, by_phase, during, each_near, run, scenario, source, tenths, there,
};
use crate::experiment::verdict::{at_least, order_by};
use tidegate_console::failure::Failure;

/// In milliseconds: before the other comes at 75, while it is there and all have settled, and from
/// ten after it has gone at 250.
const PHASES: [(&str, [u64; 2]); 3] =
    [("20-70 ms", [20, 70]), ("100-250", [100, 250]), ("260-350", [260, 350])];

/// So much less of its rate is what a class has when it has backed off, in percent, at least; and
/// so many times what the class below it has, at least.
const LESS: f64 = 20.0;

const MORE: f64 = 1.2;

/// Four flows together carry more than this, in Gbit/s, of the 96.4 that are payload.
const FULL: f64 = 95.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = run(context, vec![scenario(WITHOUT_A_PROMISE)?])?;
    let shown = &runs[0];
    let phases = PHASES.map(|(_, phase)| during(&shown.outcome, phase, there));
    let panel = rates(&shown.outcome, "arriving, QTCP and one flow of DCTCP", there);
    Ok(FigureResult {
        claims: vec![
            backs_off(shown, &phases),
            in_order(shown, &phases[1]),
            returns(shown, &phases),
        ],
        table: by_phase(&shown.outcome, &PHASES.map(|(name, _)| name), &phases),
        picture: draw("A flow without a promise comes and goes", &[panel]),
    })
}

fn to_json(rates: &[f64]) -> Value {
    rates.iter().copied().map(tenths).collect::<Vec<_>>().into()
}

fn has_promise(rates: &[f64]) -> Vec<Check> {
    each_near(&CLASSES, "Gbit/s", &PROMISED, NEAR_PROMISED, rates)
}

fn backs_off(shown: &E2eRun, [before, with, _]: &[Vec<f64>; 3]) -> Claim {
    let less = (0..CLASSES.len()).map(|class| (1.0 - with[class] / before[class]) * 100.0);
    let less: Vec<f64> = less.collect();
    source("14b", &[shown]).claim(
        "when a flow of DCTCP comes, all that go by promises, and have what they are promised, \
         back off, and the link stays full",
        json!({
            "gbit_per_second_before": to_json(before),
            "gbit_per_second_beside_it": to_json(with),
        }),
        has_promise(before).into_iter().chain([
            at_least("each has less by", "%", LESS, less),
            at_least("carried", "Gbit/s", FULL, with.iter().sum::<f64>()),
        ]),
    )
}

fn in_order(shown: &E2eRun, with: &[f64]) -> Claim {
    let more = with[..CLASSES.len()].windows(2).map(|two| (two[0] / two[1] - 1.0) * 100.0);
    let least = more.fold(f64::INFINITY, f64::min);
    let [high, medium, low] = [0, 1, 2].map(|class: usize| (CLASSES[class], with[class]));
    source("14b", &[shown])
        .claim(
            "and they are told apart beside it",
            json!({
                "gbit_per_second": to_json(with), "more_than_the_next_percent": tenths(least),
            }),
            [order_by(MORE, "", "Gbit/s", &[low, medium, high])],
        )
        .ours()
}

fn returns(shown: &E2eRun, [before, _, after]: &[Vec<f64>; 3]) -> Claim {
    source("14b", &[shown]).claim(
        "when it has gone, they have what they had",
        json!({
            "gbit_per_second_before": to_json(before),
            "gbit_per_second_after": to_json(after),
        }),
        has_promise(after),
    )
}
