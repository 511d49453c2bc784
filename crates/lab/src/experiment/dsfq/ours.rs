//! DSFQ experiments of our own, on questions that the paper leaves open: streams that reach
//! disjoint storage nodes through different coordinators (§3.3.2), and absolute goals beside
//! proportional ones (§5).

use serde_json::json;
use tidegate_model::Discipline;
use tidegate_sim::bricks::{DsfqReport, DsfqScenario};

use super::plot::{Panel, draw};
use super::sweep::{self, LINES, Sweep, sweep};
use super::{
    B, Check, F, FigureContext, FigureResult, G, PARTITION, UNEQUAL, UNIFIED, equal, mean, range,
};
use super::{scenario, tenths, thousandths};
use crate::experiment::verdict::{Claim, at_least, at_most, between};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

const X: &str = "threads of g on B";

/// The exception of theorem 4.
pub(super) fn partition(context: &FigureContext) -> Result<FigureResult, Failure> {
    const COUNTS: [u32; 8] = [0, 1, 2, 4, 6, 8, 12, 16];
    let exchanging = scenario(PARTITION)?;
    let silent = DsfqScenario { exchange: false, ..exchanging.clone() };
    let [silent, exchanging] = sweep(context, [silent, exchanging], &COUNTS)?;
    let panels = [
        silent.throughputs("coordinators tell nothing", X, LINES),
        exchanging.throughputs("they tell what no request carries", X, LINES),
    ];
    let table = sweep::table(&[("silent", &silent), ("told", &exchanging)], LINES);
    let claim = |sweep: &Sweep, text: &str, check: fn(Option<f64>) -> Check| {
        let (percent, threads) = sweep.furthest(1.0, |_| true);
        let messages: u64 = sweep.outcomes().map(|outcome| outcome.announced).sum();
        sweep.source("partition").claim(
            text,
            json!({
                "totals_apart_at_most_percent": percent.map(tenths),
                "with_threads": threads,
                "messages": messages,
            }),
            [check(percent)],
        )
    };
    let claims = vec![
        claim(
            &silent,
            "if g reaches A and B through different coordinators its total grows beyond f's, as \
             the paper says",
            |percent| at_least("totals apart", "%", UNEQUAL, percent),
        ),
        claim(&exchanging, "if coordinators tell what no request carries, totals are equal", equal)
            .ours(),
    ];
    let picture = draw("Disjoint bricks through different coordinators", &panels);
    Ok(FigureResult { claims, table, picture })
}

/// Absolute and proportional goals at a time.
pub(super) fn unified(context: &FigureContext) -> Result<FigureResult, Failure> {
    const COUNTS: [u32; 4] = [0, 1, 2, 3];
    let all_goals = scenario(UNIFIED)?;
    let weights = DsfqScenario { discipline: Discipline::DsfqTotal, ..all_goals.clone() };
    let [weights, unified] = sweep(context, [weights, all_goals], &COUNTS)?;
    let panels = [
        rates(&weights, "TOTAL-DSFQ: weights only"),
        rates(&unified, "unified: promises, then weights"),
    ];
    let mut table = Table::new().left("RUN").right("THREADS OF g ON B").right("f").right("g");
    table = table.right("RESERVED").right("LIMITED, PER SECOND");
    for (name, sweep) in [("weights", &weights), ("unified", &unified)] {
        for (count, outcome) in &sweep.points {
            let formatted = |stream| format!("{:.0}", per_second(outcome, stream)).into();
            let [f, g, reserved, limited] = [F, G, RESERVED, LIMITED].map(formatted);
            table.row([name.into(), count.to_string().into(), f, g, reserved, limited]);
        }
    }
    let [_, without] = range(weights.outcomes().map(|outcome| per_second(outcome, RESERVED)));
    let claims = vec![promises(&unified, without), equals(&unified)];
    Ok(FigureResult { claims, table, picture: draw("Promises and weights on one brick", &panels) })
}

const RESERVED: usize = 2;
const LIMITED: usize = 3;
/// The scenario's reservation and limit, in requests per second.
const RESERVATION: f64 = 130.0;
const LIMIT: f64 = 60.0;
/// A request that went in one second may be answered in the next, also at the ends of a run.
const CHANCE: f64 = 0.005;

/// Requests per second, on all bricks.
fn per_second(outcome: &DsfqReport, stream: usize) -> f64 {
    outcome.operations(stream, None)
}

fn rates(sweep: &Sweep, title: &str) -> Panel {
    let names = ["f, all on A", "g", "reserved 130", "limited to 60"];
    let line = |(stream, name): (usize, &str)| {
        sweep.series(name, |outcome| Some(per_second(outcome, stream)))
    };
    Panel::new(title, [X, "requests per second"], names.into_iter().enumerate().map(line))
}

fn promises(sweep: &Sweep, without: f64) -> Claim {
    let of = |stream| range(sweep.outcomes().map(|outcome| per_second(outcome, stream)));
    let ([reserved, _], [least, most]) = (of(RESERVED), of(LIMITED));
    sweep
        .source("unified")
        .claim(
            "a reservation above its share by weight is met, and a limit below it is kept",
            json!({
                "reserved_per_second_at_least": tenths(reserved),
                "by_its_weight_alone_per_second_at_most": tenths(without),
                "limited_per_second": [tenths(least), tenths(most)],
            }),
            [
                at_least("reserved", "/s", tenths(RESERVATION * (1.0 - CHANCE)), reserved),
                between("limited", "/s", [58.8, tenths(LIMIT * (1.0 + CHANCE))], [least, most]),
                at_most("by its weight alone", "/s", RESERVATION, without),
            ],
        )
        .ours()
}

fn equals(sweep: &Sweep) -> Claim {
    let (percent, threads) = sweep.furthest(1.0, |_| true);
    let on_b: Vec<f64> = sweep.outcomes().map(|one| thousandths(mean(one, G, B))).collect();
    sweep
        .source("unified")
        .claim(
            "what is left is divided so that the totals of f and g are equal",
            json!({
                "totals_apart_at_most_percent": percent.map(tenths),
                "with_threads": threads,
                "g_on_b_megabytes_per_second": on_b,
            }),
            [equal(percent)],
        )
        .ours()
}
