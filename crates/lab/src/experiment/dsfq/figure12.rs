//! DSFQ paper, figure 12: as figure 9, under HYBRID-DSFQ, which keeps a twelfth of brick A for g;
//! with one and with two coordinators, and with what is cut from delays carried on as a debt.

use serde_json::json;
use tidegate_model::Discipline;
use tidegate_sim::bricks::DsfqScenario;

use super::judge::{BALANCED, BALANCED_OWED, NEARLY, has_minimum};
use super::plot::{Panel, draw};
use super::sweep::{LINES, Sweep, sweep, table};
use super::{
    B, EQUAL, FIGURE_12, FigureContext, FigureResult, G, MINIMUM, mean, range, scenario, share,
};
use super::{live, tenths, thousandths};
use crate::experiment::verdict::{Claim, at_least, at_most};
use tidegate_console::failure::Failure;

const COUNTS: [u32; 12] = [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20];

const TITLE: &str = "Equal totals as far as a minimum share allows";

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let one = scenario(FIGURE_12)?;
    let two = DsfqScenario { coordinators: 2, ..one.clone() };
    let owed = DsfqScenario { discipline: Discipline::Unified, ..one.clone() };
    let [one, two, owed] = sweep(context, [one, two, owed], &COUNTS)?;
    let panels = [
        panel(&one, "(a) HYBRID-DSFQ, one coordinator"),
        panel(&two, "(b) HYBRID-DSFQ, two coordinators"),
        panel(&owed, "ours: what is cut is owed"),
    ];
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
    let table = table(&[("12a", &one), ("12b", &two), ("owed", &owed)], LINES);
    Ok(FigureResult { claims, table, picture: draw(TITLE, &panels) })
}

pub(super) fn live(context: &FigureContext) -> Result<FigureResult, Failure> {
    let (hybrid, of_hybrid) = live::minimum(context, Discipline::DsfqHybrid)?;
    let (unified, of_unified) = live::minimum(context, Discipline::Unified)?;
    let panels = [panel(&hybrid, "(a) live, B being two nodes"), panel(&unified, "ours, live")];
    Ok(FigureResult {
        claims: vec![of_hybrid, of_unified],
        table: table(&[("12a, live", &hybrid), ("owed, live", &unified)], LINES),
        picture: draw(TITLE, &panels),
    })
}

fn panel(sweep: &Sweep, title: &str) -> Panel {
    let mut panel = sweep.throughputs(title, "threads of g on B", LINES);
    panel.levels.push(("a twelfth of A".into(), 6.0 * MINIMUM));
    panel
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
