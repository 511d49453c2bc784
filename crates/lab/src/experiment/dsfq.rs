//! The experiments of the DSFQ paper (§4) on distributed fair queueing: the share of each stream at
//! each storage node (*brick*). All figures are simulated; four also run [`live`].
//!
//! ```text
//!  scenarios/dsfq/*.toml ──▶ tidegate_sim::bricks ──▶ DsfqReport ──▶ claims, table, picture
//!        (embedded)      └─────▶ live: processes, and fio ────┘
//! ```
//!
//! Most figures are a [`sweep`]: the same scenario with more and more threads. Figures 13 and 14
//! have an axis of time. Besides, three figures of our own show what the paper leaves open, and
//! what is done about it: `burst`, `partition` and `unified`.
//!
//! Bricks are called A, B, C, as in the paper. Every claim about TOTAL-DSFQ also has the largest
//! unfairness that was measured beside what theorem 2 (or 4) allows.

use serde_json::{Map, Value, json};
use tidegate_sim::bricks::{self, DsfqReport, DsfqScenario};

use super::paper::{self, Figure, Paper, simulate, wrong};
use super::plot;
use super::verdict::{Check, Measured, at_most};
use paper::{
    ClaimSource, FigureContext, FigureResult, LIVE, SIMULATED, scenarios, tenths, thousandths,
};
use tidegate_console::failure::Failure;

mod burst;
mod figure10;
mod figure12;
mod figure13;
mod figure14;
mod figure8;
mod figure9;
mod judge;
mod live;
mod ours;
mod sweep;

/// The figures that can be repeated.
pub(crate) const DSFQ: Paper = Paper {
    name: "dsfq",
    figures: &[
        Figure::simulated("8", "two streams on one node, one to two", figure8::repeat)
            .and_live(figure8::live),
        Figure::simulated(
            "9",
            "equal totals, and one to four, of two streams that share one node of two",
            figure9::repeat,
        )
        .and_live(figure9::live),
        Figure::simulated(
            "10",
            "the same, where each request has parts on three nodes",
            figure10::repeat,
        ),
        Figure::simulated(
            "11",
            "the same as 9, through two gateways and four",
            figure9::coordinators,
        )
        .and_live(figure9::live_coordinators),
        Figure::simulated("12", "equal totals as far as a minimum share allows", figure12::repeat)
            .and_live(figure12::live),
        Figure::simulated("13", "one stream makes up for the loss of another", figure13::repeat),
        Figure::simulated(
            "14",
            "loads that follow sines: unmanaged, node by node, totals, a minimum share",
            figure14::repeat,
        ),
        Figure::simulated(
            "burst",
            "bursts from node to node, which the paper leaves open",
            burst::repeat,
        ),
        Figure::simulated(
            "partition",
            "disjoint nodes through different gateways, which the paper leaves open",
            ours::partition,
        ),
        Figure::simulated(
            "unified",
            "reservations, limits and equal totals at once",
            ours::unified,
        ),
    ],
};

scenarios! {
    "dsfq":
    FIGURE_8 = "figure-8";
    FIGURE_9A = "figure-9a";
    FIGURE_9B = "figure-9b";
    FIGURE_10 = "figure-10";
    FIGURE_12 = "figure-12";
    FIGURE_13 = "figure-13";
    FIGURE_14 = "figure-14";
    BURST = "burst";
    PARTITION = "partition";
    UNIFIED = "unified";
}

/// The streams of all figures.
const F: usize = 0;
const G: usize = 1;

/// Brick A, which f and g share, and the next.
const A: Option<usize> = Some(0);
const B: Option<usize> = Some(1);

/// Totals this far apart are as good as equal, in percent; the paper says "roughly".
const EQUAL: f64 = 5.0;

/// Totals this far apart are not.
const UNEQUAL: f64 = 20.0;

/// The fraction of each brick that the scenarios keep for streams with a minimum share.
const MINIMUM: f64 = 1.0 / 12.0;

/// A scenario's outcome, with the time that the run took.
type DsfqRun = paper::TimedRun<DsfqReport>;

fn scenario(text: &str) -> Result<DsfqScenario, Failure> {
    DsfqScenario::parse(text).map_err(wrong)
}

fn run(context: &FigureContext, scenarios: Vec<DsfqScenario>) -> Result<Vec<DsfqRun>, Failure> {
    simulate(context, scenarios, bricks::run)
}

fn source(figure: &'static str, seed: u64, seconds: f64) -> ClaimSource {
    ClaimSource {
        paper: "dsfq",
        figure,
        world: SIMULATED,
        seed: Some(seed),
        seconds: tenths(seconds),
    }
}

/// In the paper's unit: a million bytes per second.
fn mega(bytes: f64) -> f64 {
    bytes / 1e6
}

/// Of a stream at a brick, or at all of them, in millions of bytes per second.
fn mean(outcome: &DsfqReport, stream: usize, brick: Option<usize>) -> f64 {
    mega(outcome.mean(stream, brick))
}

/// g's part of what A serves.
fn share(outcome: &DsfqReport) -> f64 {
    let [f, g] = [F, G].map(|stream| mean(outcome, stream, A));
    g / (f + g)
}

/// The least and the greatest.
fn range(values: impl Iterator<Item = f64>) -> [f64; 2] {
    values.fold([f64::MAX, 0.0], |[least, most], value| [least.min(value), most.max(value)])
}

/// Totals so far apart, in percent, are equal.
fn equal(percent: impl Into<Measured>) -> Check {
    at_most("totals apart", "%", EQUAL, percent)
}

/// How far `one` is from `other`, in percent of the mean of both.
fn apart(one: f64, other: f64) -> f64 {
    if one == other { 0.0 } else { (one - other).abs() * 200.0 / (one + other) }
}

/// The largest unfairness of some runs next to its bound, where they come nearest to each other,
/// and the check that it is within the bound.
fn fairness<'a>(outcomes: impl Iterator<Item = &'a DsfqReport>) -> (Map<String, Value>, Check) {
    let used = |outcome: &DsfqReport| outcome.unfairness.measured() / outcome.unfairness.bound();
    let nearest = outcomes.max_by(|one, other| used(one).total_cmp(&used(other)));
    let Some(outcome) = nearest else {
        return (Map::new(), at_most("unfairness", "KB", 0.0, None));
    };
    let [measured, bound] = [outcome.unfairness.measured(), outcome.unfairness.bound()];
    let (depth, waiting, [f, g]) = outcome.unfairness.parameters();
    let numbers = json!({
        "unfairness_kilobytes": tenths(measured / 1e3),
        "unfairness_bound_kilobytes": tenths(bound / 1e3),
        "at_the_disks_at_most": depth,
        "waiting_at_most": waiting,
        "batchcost_of_f_at_most_kilobytes": tenths(f[2] as f64 / 1e3),
        "batchcost_of_g_at_most_kilobytes": tenths(g[2] as f64 / 1e3),
    });
    let check = at_most("unfairness", "KB", tenths(bound / 1e3), measured / 1e3);
    let Value::Object(numbers) = numbers else { return (Map::new(), check) };
    (numbers, check)
}

/// `{"name": number}`, added to others.
fn with(mut numbers: Map<String, Value>, more: Value) -> Value {
    if let Value::Object(more) = more {
        numbers.extend(more);
    }
    numbers.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::{Verdict, judge};

    #[test]
    fn apart_is_relative_to_both() {
        assert_eq!((apart(1.0, 1.0), apart(0.0, 0.0)), (0.0, 0.0));
        assert_eq!((apart(3.0, 1.0), apart(1.0, 3.0)), (100.0, 100.0));
        assert_eq!(range([2.0, 1.0, 3.0].into_iter()), [1.0, 3.0]);
    }

    #[test]
    fn equal_is_within_five_percent() {
        assert_eq!(judge(&[equal(5.0)]).verdict, Verdict::Reproduced);
        assert_eq!(judge(&[equal(5.1)]).verdict, Verdict::Differs);
        assert_eq!(judge(&[equal(None)]).verdict, Verdict::Skipped);
    }
}
