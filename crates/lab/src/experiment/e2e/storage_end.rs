//! End-to-end QoS paper, figure 7: classes of service inside a drive, at its submission queues only
//! or at its chips as well.

use serde_json::{Value, json};
use tidegate_netsim::e2e::Scenario;
use tidegate_netsim::storage::{CommandOrder, Shares};

use super::plot::{Panel, Series, draw};
use super::{
    CLASSES, Check, Claim, E2eRun, FigureContext, FigureResult, HIGH_DEMANDS_MOST,
    LOW_DEMANDS_MOST, each, row, run, scenario, source, wrong,
};
use crate::experiment::verdict::{falls, near, order, order_by};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// Where classes are known, the three scenarios of the paper.
const LEVELS: [&str; 3] = ["nowhere", "submission queues", "and before chips"];
const NOWHERE: usize = 0;
const QUEUES: usize = 1;
const CHIPS: usize = 2;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let mut scenarios = Vec::new();
    for text in [HIGH_DEMANDS_MOST, LOW_DEMANDS_MOST] {
        for level in 0..LEVELS.len() {
            scenarios.push(known_at(level, text)?);
        }
    }
    let runs = run(context, scenarios)?;
    let (high_runs, low_runs) = runs.split_at(LEVELS.len());
    let mut table = Table::new().left("US").left("CLASSES ARE KNOWN").each_right(CLASSES);
    for (runs, part) in [(high_runs, "(a)"), (low_runs, "(b)")] {
        for (shown, level) in runs.iter().zip(LEVELS) {
            table.row(row(&[part, level], &means(shown), 0));
        }
    }
    Ok(FigureResult {
        claims: vec![
            at(
                "7a",
                high_runs,
                NOWHERE,
                "where nothing knows classes, high waits longest, because it asks for most, and \
                 low least",
                reversed,
            ),
            queues_help(high_runs),
            but_not_enough(high_runs),
            at(
                "7a",
                high_runs,
                CHIPS,
                "with weights before the chips as well, high waits least and low longest",
                in_order,
            ),
            and_pay(high_runs),
            alike(low_runs),
            at(
                "7b",
                low_runs,
                QUEUES,
                "where low asks for most, weights at submission queues are enough to tell classes \
                 apart",
                in_order,
            ),
            at(
                "7b",
                low_runs,
                CHIPS,
                "and weights before the chips do not change their order",
                in_order,
            ),
        ],
        table,
        picture: draw(
            "A drive that knows classes nowhere (1), at its queues (2) and before chips (3)",
            &[panel(high_runs, "(a) high asks most"), panel(low_runs, "(b) low asks most")],
        ),
    })
}

/// A scenario where nothing knows classes, with a drive that knows them up to some level.
fn known_at(level: usize, text: &str) -> Result<Scenario, Failure> {
    let mut scenario = scenario(text)?;
    let drive = &mut scenario.storage.as_mut().expect("figure 7 is about storage").drive;
    let weighted = CommandOrder::Weighted(Shares::default());
    if level >= QUEUES {
        drive.host.arbitration = weighted;
    }
    if level >= CHIPS {
        drive.chip_queues = weighted;
    }
    scenario.check().map_err(wrong)?;
    Ok(scenario)
}

/// How long a request of each class is at the drive on average, in microseconds.
fn means(shown: &E2eRun) -> [f64; 3] {
    [0, 1, 2].map(|level: usize| shown.outcome.applications[level].device.mean() / 1e3)
}

/// Means of some runs by where classes are known, for programs.
fn to_json(runs: &[E2eRun], levels: &[usize]) -> Value {
    let of = |level: &usize| (LEVELS[*level], each(&runs[*level].outcome, &means(&runs[*level])));
    json!({ "mean_us": levels.iter().map(of).collect::<std::collections::BTreeMap<_, _>>() })
}

/// Low waits less than medium, and medium less than high.
fn reversed([high, medium, low]: [f64; 3]) -> Vec<Check> {
    vec![order("", "us", &[("low", low), ("medium", medium), ("high", high)])]
}

/// High waits less than medium, and medium less than low.
fn in_order([high, medium, low]: [f64; 3]) -> Vec<Check> {
    vec![order("", "us", &[("high", high), ("medium", medium), ("low", low)])]
}

/// A claim about how long classes wait where they are known up to a level.
fn at(
    figure: &'static str,
    runs: &[E2eRun],
    level: usize,
    words: &'static str,
    checks: fn([f64; 3]) -> Vec<Check>,
) -> Claim {
    source(figure, &[&runs[level]]).claim(
        words,
        to_json(runs, &[level]),
        checks(means(&runs[level])),
    )
}

/// A class waits less, or longer, with classes at some level than where nothing knows them.
fn less([none, with]: [&[f64; 3]; 2], class: usize) -> Check {
    order(CLASSES[class], "us", &[("with", with[class]), ("without", none[class])])
}

fn queues_help(runs: &[E2eRun]) -> Claim {
    let (none, queues) = (means(&runs[NOWHERE]), means(&runs[QUEUES]));
    let low = order("low", "us", &[("without", none[2]), ("with", queues[2])]);
    source("7a", &[&runs[NOWHERE], &runs[QUEUES]]).claim(
        "with weights at submission queues high and medium wait less than without, and low longer",
        to_json(runs, &[NOWHERE, QUEUES]),
        [less([&none, &queues], 0), less([&none, &queues], 1), low],
    )
}

fn but_not_enough(runs: &[E2eRun]) -> Claim {
    let gap = |means: [f64; 3]| {
        means.into_iter().fold(0.0, f64::max) - means.into_iter().fold(f64::INFINITY, f64::min)
    };
    let (none, queues) = (means(&runs[NOWHERE]), means(&runs[QUEUES]));
    source("7a", &[&runs[NOWHERE], &runs[QUEUES]]).claim(
        "which brings the classes nearer to each other, but high still waits longest",
        to_json(runs, &[NOWHERE, QUEUES]),
        [
            falls(1.0, "the distance between classes", "us", [gap(none), gap(queues)]),
            order("", "us", &[("medium", queues[1]), ("high", queues[0])]),
            order("", "us", &[("low", queues[2]), ("high", queues[0])]),
        ],
    )
}

fn and_pay(runs: &[E2eRun]) -> Claim {
    let (none, chips) = (means(&runs[NOWHERE]), means(&runs[CHIPS]));
    source("7a", &[&runs[NOWHERE], &runs[CHIPS]]).claim(
        "for which low waits much longer than where nothing knows classes, and both others less",
        to_json(runs, &[NOWHERE, CHIPS]),
        [
            less([&none, &chips], 0),
            less([&none, &chips], 1),
            order_by(1.25, "low", "us", &[("without", none[2]), ("with", chips[2])]),
        ],
    )
}

/// Applications that ask alike wait as long as each other within so much.
const ALIKE: f64 = 0.05;

fn alike(runs: &[E2eRun]) -> Claim {
    at(
        "7b",
        runs,
        NOWHERE,
        "where nothing knows classes, high and medium, who ask alike, wait as long as each other",
        |[high, medium, low]| {
            vec![
                near("high beside medium", "times", 1.0, ALIKE, high / medium),
                order("", "us", &[("high", high), ("low", low)]),
                order("", "us", &[("medium", medium), ("low", low)]),
            ]
        },
    )
}

/// A line for each class, over scenarios.
fn panel(runs: &[E2eRun], title: &str) -> Panel {
    let line = |(level, class): (usize, &str)| {
        let points = runs.iter().zip(1..).map(|(shown, x)| (f64::from(x), means(shown)[level]));
        Series::line(class, points.collect())
    };
    Panel::new(title, ["scenario", "us"], CLASSES.into_iter().enumerate().map(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_knows_classes_up_to_some_level() {
        let orders = |level| {
            let drive = known_at(level, HIGH_DEMANDS_MOST).unwrap().storage.unwrap().drive;
            [drive.host.arbitration, drive.chip_queues]
                .map(|order| matches!(order, CommandOrder::Weighted(_)))
        };
        assert_eq!([0, 1, 2].map(orders), [[false, false], [true, false], [true, true]]);
    }
}
