//! Figure 12: as figure 9, under HYBRID-DSFQ, which keeps a twelfth of brick A for g; with one and
//! with two coordinators, and with what is cut from delays carried on as a debt.

use serde_json::json;
use tidegate_model::Discipline;
use tidegate_sim::bricks::Scenario;

use super::plot::draw;
use super::sweep::{LINES, Sweep, sweep, table};
use super::{
    B, Check, EQUAL, FIGURE_12, FigureContext, FigureResult, G, MINIMUM, mean, range, scenario,
    share,
};
use super::{live, tenths, thousandths};
use crate::experiment::verdict::{Claim, at_least, at_most};
use tidegate_console::failure::Failure;

const COUNTS: [u32; 12] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20];

/// Up to what g is served on B, in MB/s, totals can be balanced: the paper's 4, and 5 if nothing
/// that is cut from one request's delay is lost, which is κ = 10 times the twelfth of 6 MB/s.
pub(super) const BALANCED: f64 = 4.0;
pub(super) const BALANCED_OWED: f64 = 5.0;

/// The paper's hybrid cuts delays by the size of the next request, however small, so it is looser.
pub(super) const NEARLY: f64 = 10.0;
/// A share is counted in whole requests.
pub(super) const KEPT: f64 = 0.98;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let one = scenario(FIGURE_12)?;
    let two = Scenario { coordinators: 2, ..one.clone() };
    let owed = Scenario { discipline: Discipline::Unified, ..one.clone() };
    let [one, two, owed] = sweep(context, [one, two, owed], &COUNTS)?;
    let (hybrid, of_hybrid) = live::minimum(context, Discipline::DsfqHybrid)?;
    let (unified, of_unified) = live::minimum(context, Discipline::Unified)?;
    let x = "threads of g on B";
    let mut panels = [
        one.throughputs("(a) HYBRID-DSFQ, one coordinator", x, LINES),
        two.throughputs("(b) HYBRID-DSFQ, two coordinators", x, LINES),
        owed.throughputs("ours: what is cut is owed", x, LINES),
        hybrid.throughputs("(a) live, B being two nodes", x, LINES),
        unified.throughputs("ours, live", x, LINES),
    ];
    for panel in &mut panels {
        panel.levels.push(("a twelfth of A".into(), 6.0 * MINIMUM));
    }
    let [a, b, ours] = [("12a", &one), ("12b", &two), ("12", &owed)];
    let mut claims = Vec::new();
    for (figure, sweep) in [a, b] {
        let text = "as long as g is served less than 4 MB/s on B its total equals f's";
        claims.push(balanced((figure, sweep), text, (BALANCED, NEARLY)));
        claims.push(kept((figure, sweep)));
    }
    let text = "if what is cut from a delay is owed, totals are equal up to 5 MB/s on B";
    claims.push(balanced(ours, text, (BALANCED_OWED, EQUAL)).ours());
    claims.push(kept(ours).ours());
    claims.extend([of_hybrid, of_unified]);
    let picture = draw("Equal totals as far as a minimum share allows", &panels);
    Ok(FigureResult {
        claims,
        table: table(
            &[
                ("12a", &one),
                ("12a, live", &hybrid),
                ("12b", &two),
                ("owed", &owed),
                ("owed, live", &unified),
            ],
            LINES,
        ),
        picture,
    })
}

fn balanced(
    (figure, sweep): (&'static str, &Sweep),
    text: &str,
    (upto, equal): (f64, f64),
) -> Claim {
    let (percent, threads) = sweep.furthest(1.0, |outcome| mean(outcome, G, B) < upto);
    let (above, _) = sweep.furthest(1.0, |outcome| mean(outcome, G, B) >= upto);
    sweep.source(figure).claim(
        text,
        json!({
            "totals_apart_at_most_percent": percent.map(tenths),
            "with_threads": threads,
            "totals_apart_above_that_percent": above.map(tenths),
        }),
        [at_most("apart", "%", equal, percent)],
    )
}

fn kept((figure, sweep): (&'static str, &Sweep)) -> Claim {
    let [least, _] = range(sweep.outcomes().map(share));
    let last = sweep.outcomes().last().map_or(0.0, |outcome| mean(outcome, G, B));
    sweep.source(figure).claim(
        "however much g is served on B, it keeps a twelfth of A",
        json!({
            "share_of_g_on_a_least_percent": thousandths(least * 100.0),
            "g_on_b_at_most_megabytes_per_second": thousandths(last),
        }),
        [has_minimum(sweep), at_least("on B at last", "MB/s", BALANCED, last)],
    )
}

/// g keeps a twelfth of brick A.
pub(super) fn has_minimum(sweep: &Sweep) -> Check {
    let shares: Vec<f64> = sweep.outcomes().map(|outcome| share(outcome) * 100.0).collect();
    at_least("of A", "%", thousandths(MINIMUM * KEPT * 100.0), shares)
}
