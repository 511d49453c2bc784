//! End-to-end QoS paper, figure 12: three applications write through one link, by DCTCP and by
//! QTCP. The runs show the bytes that arrive at servers, the bytes that drives finish, and the load
//! of the reverse links.

use serde_json::json;
use tidegate_netsim::e2e::{E2eReport, Moment};
use tidegate_netsim::transport::CongestionControl;

use super::moments::rates;
use super::plot::draw;
use super::{
    CLASSES, Claim, E2eRun, FigureContext, FigureResult, WRITE_ONLY, busy, each, each_near, gbps,
    row, run_under, source, tenths,
};
use crate::experiment::verdict::{at_most, between};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

pub(super) const CC_VARIANTS: [(CongestionControl, &str); 2] =
    [(CongestionControl::Dctcp, "DCTCP"), (CongestionControl::Qtcp, "QTCP")];
pub(super) const DCTCP: usize = 0;
pub(super) const QTCP: usize = 1;

/// So far from what the paper prints, in Gbit/s, is as near as can be read off its figures.
const NEAR: f64 = 2.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = run_under(context, &CC_VARIANTS, WRITE_ONLY)?;
    let panels = runs.iter().zip(CC_VARIANTS).flat_map(|(shown, (_, cc))| {
        let E2eRun { outcome, .. } = shown;
        [
            rates(outcome, &format!("(a) arriving at servers, {cc}"), |moment| moment.there),
            rates(outcome, &format!("(b) done by drives, {cc}"), |moment| moment.stored),
        ]
    });
    let panels: Vec<_> = panels.collect();
    Ok(FigureResult {
        claims: vec![alike(&runs), by_class(&runs), stored(&runs), way_back(&runs)],
        table: table(&runs),
        picture: draw("Three applications write through one link", &panels),
    })
}

fn there(outcome: &E2eReport) -> Vec<f64> {
    gbps(outcome, |moment: &Moment| moment.there)
}

fn done(outcome: &E2eReport) -> Vec<f64> {
    gbps(outcome, |moment: &Moment| moment.stored)
}

fn alike(runs: &[E2eRun]) -> Claim {
    let outcome = &runs[DCTCP].outcome;
    let there = there(outcome);
    source("12a", &[&runs[DCTCP]]).claim(
        "by DCTCP all classes are treated alike, up to what low asks for",
        json!({ "gbit_per_second": each(outcome, &there) }),
        each_near(&CLASSES, "Gbit/s", &[33.0, 33.0, 30.0], NEAR, &there),
    )
}

fn by_class(runs: &[E2eRun]) -> Claim {
    let outcome = &runs[QTCP].outcome;
    let there = there(outcome);
    source("12a", &[&runs[QTCP]]).claim(
        "by QTCP they are treated as promised",
        json!({ "gbit_per_second": each(outcome, &there) }),
        each_near(&CLASSES, "Gbit/s", &[48.0, 31.0, 17.0], NEAR, &there),
    )
}

/// Tolerance between the bytes that drives finish and those that arrive, in percent: requests in
/// flight at the ends of the run.
pub(super) const UNDER_WAY: f64 = 2.0;

fn stored(runs: &[E2eRun]) -> Claim {
    let apart = |shown: &E2eRun| {
        let (there, done) = (there(&shown.outcome), done(&shown.outcome));
        let each = there.iter().zip(done).map(|(there, done)| (done / there - 1.0).abs() * 100.0);
        each.fold(0.0, f64::max)
    };
    let most = runs.iter().map(apart).fold(0.0, f64::max);
    source("12b", &[&runs[DCTCP], &runs[QTCP]]).claim(
        "drives have no queue of their own here, and finish what arrives, class by class",
        json!({ "apart_at_most_percent": tenths(most) }),
        [at_most("apart", "%", UNDER_WAY, most)],
    )
}

/// A link of which less than this is used, in percent, is no bottleneck.
const IDLE: f64 = 5.0;

fn way_back(runs: &[E2eRun]) -> Claim {
    let back = runs.iter().map(|shown| busy(&shown.outcome, ["switch 1", "switch 0"]));
    let most = back.fold(0.0, f64::max);
    source("12c", &[&runs[DCTCP], &runs[QTCP]]).claim(
        "the way back carries answers only, and is no bottleneck",
        json!({ "busy_at_most_percent": tenths(most) }),
        [between("of it are used", "%", [0.01, IDLE], most)],
    )
}

fn table(runs: &[E2eRun]) -> Table {
    let mut table = Table::new().left("GBIT/S").left("AT").each_right(CLASSES);
    for (shown, (_, cc)) in runs.iter().zip(CC_VARIANTS) {
        for (location, rates) in
            [("servers", there(&shown.outcome)), ("drives", done(&shown.outcome))]
        {
            table.row(row(&[cc, location], &rates, 1));
        }
    }
    table
}
