//! End-to-end QoS paper, figure 14a: a second flow joins each class and leaves again. Both flows of
//! a class share its promised rate.

use serde_json::{Value, json};

use super::moments::rates;
use super::plot::draw;
use super::{
    CLASSES, COME_AND_GO, Claim, E2eRun, FigureContext, FigureResult, NEAR_PROMISED, PROMISED,
    by_phase, during, run, scenario, source, tenths, there,
};
use crate::experiment::verdict::{at_most, near};
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

fn classes(shown: &E2eRun, phases: &[Vec<f64>]) -> Claim {
    let of = |flows: &Vec<f64>| -> Value { of_classes(flows).map(tenths).to_vec().into() };
    let checks = (0..CLASSES.len()).map(|class| {
        let rates: Vec<f64> = phases.iter().map(|flows| of_classes(flows)[class]).collect();
        near(CLASSES[class], "Gbit/s", PROMISED[class], NEAR_PROMISED, rates)
    });
    source("14a", &[shown]).claim(
        "a class has its share, however many flows it has; others of it take what one leaves",
        json!({ "gbit_per_second": phases.iter().map(of).collect::<Vec<_>>() }),
        checks,
    )
}

fn halves(shown: &E2eRun, phases: &[Vec<f64>]) -> Claim {
    let apart = |flows: &Vec<f64>, [first, second]: [usize; 2]| {
        let [first, second] = [flows[first], flows[second]];
        (second > SENDS).then(|| (1.0 - first.min(second) / first.max(second)) * 100.0)
    };
    let each = phases.iter().flat_map(|flows| FLOWS.map(|two| apart(flows, two)));
    let both: Vec<f64> = each.flatten().collect();
    let most = both.iter().copied().fold(0.0, f64::max);
    let halves = FLOWS.iter().enumerate().map(|(class, two)| {
        let together = phases.iter().filter(|flows| flows[two[1]] > SENDS);
        let rates: Vec<f64> = together.flat_map(|flows| two.map(|flow| flows[flow])).collect();
        near(
            format!("each of {}", CLASSES[class]),
            "Gbit/s",
            PROMISED[class] / 2.0,
            NEAR_HALF,
            rates,
        )
    });
    source("14a", &[shown]).claim(
        "two flows of a class have half of its share each",
        json!({ "times_together": both.len(), "apart_at_most_percent": tenths(most) }),
        [
            near("stretches with two flows of a class", "", PAIRS, 0.0, both.len() as f64),
            at_most("apart", "%", APART, both),
        ]
        .into_iter()
        .chain(halves),
    )
}

/// Each class has two flows in two of the phases.
const PAIRS: f64 = 6.0;
