//! Figure 14a: a second flow of each class comes and goes, and shares its class's promise.

use serde_json::{Value, json};

use super::moments::rates;
use super::plot::draw;
use super::{
    CLASSES, COME_AND_GO, FigureContext, FigureResult, NEAR_PROMISED, PROMISED, Shown, all,
    by_phase, during, holds_if, near, run, scenario, source, tenths, there,
};
use crate::experiment::verdict::{Claim, Judged};
use tidegate_console::failure::Failure;

/// Times between two changes, in milliseconds; the first ten after a change are not counted.
const PHASES: [[u64; 2]; 6] = [[10, 50], [60, 100], [110, 150], [160, 200], [210, 250], [260, 300]];

const NAMES: [&str; 6] = ["10-50 ms", "60-100", "110-150", "160-200", "210-250", "260-300"];

/// The flows of high, medium and low, by their indices in the scenario.
const FLOWS: [[usize; 2]; 3] = [[0, 5], [1, 4], [2, 3]];

/// Two flows of a class may have so different rates, in percent of the greater one.
const APART: f64 = 10.0;

/// Each has half of its class's within this, in Gbit/s.
const NEAR_HALF: f64 = NEAR_PROMISED / 2.0;

/// A flow that sends has more than this in a phase, in Gbit/s.
const SENDS: f64 = 1.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = run(context, vec![scenario(COME_AND_GO)?])?;
    let shown = &runs[0];
    let phases = PHASES.map(|phase| during(&shown.outcome, phase, there));
    let panel = rates(&shown.outcome, "arriving, QTCP", there);
    Ok(FigureResult {
        claims: vec![classes(shown, &phases), halves(shown, &phases)],
        table: by_phase(&shown.outcome, &NAMES, &phases),
        picture: draw("Flows of three classes come and go", &[panel]),
    })
}

/// The rate of each class in an interval: the sum of its two flows.
fn of_classes(flows: &[f64]) -> [f64; 3] {
    FLOWS.map(|[first, second]| flows[first] + flows[second])
}

fn classes(shown: &Shown, phases: &[Vec<f64>]) -> Claim {
    let of = |flows: &Vec<f64>| -> Value { of_classes(flows).map(tenths).to_vec().into() };
    let judged = phases
        .iter()
        .map(|flows| near(&CLASSES, &of_classes(flows), &PROMISED, NEAR_PROMISED, "Gbit/s"));
    source("14a", &[shown]).claim(
        "a class has its share, however many flows it has; others of it take what one leaves",
        json!({ "gbit_per_second": phases.iter().map(of).collect::<Vec<_>>() }),
        all(judged),
    )
}

fn halves(shown: &Shown, phases: &[Vec<f64>]) -> Claim {
    let apart = |flows: &Vec<f64>, [first, second]: [usize; 2]| {
        let [first, second] = [flows[first], flows[second]];
        (second > SENDS).then(|| (1.0 - first.min(second) / first.max(second)) * 100.0)
    };
    let each = phases.iter().flat_map(|flows| FLOWS.map(|two| apart(flows, two)));
    let both: Vec<f64> = each.flatten().collect();
    let most = both.iter().copied().fold(0.0, f64::max);
    let halves = phases.iter().flat_map(|flows| {
        FLOWS.iter().enumerate().filter(|(_, [_, second])| flows[*second] > SENDS).map(
            |(class, two)| {
                let (each, half) = (two.map(|flow| flows[flow]), [PROMISED[class] / 2.0; 2]);
                near(&[CLASSES[class]; 2], &each, &half, NEAR_HALF, "Gbit/s")
            },
        )
    });
    source("14a", &[shown]).claim(
        "two flows of a class have half of its share each",
        json!({ "times_together": both.len(), "apart_at_most_percent": tenths(most) }),
        all([two_each(both.len(), most), all(halves)]),
    )
}

/// Each class has two flows in two of the phases.
fn two_each(times: usize, most: f64) -> Judged {
    all([
        holds_if(times == 6, || format!("two flows of a class sent in {times} stretches")),
        holds_if(most <= APART, || format!("{most:.1} % apart")),
    ])
}
