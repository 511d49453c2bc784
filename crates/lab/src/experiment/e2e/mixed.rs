//! End-to-end QoS paper, figure 13: three applications read as much as they write, until they are
//! done. Both directions of the network are bottlenecks. The runs show the rates and completion
//! time of each.

use serde_json::json;
use tidegate_netsim::e2e::{E2eReport, Moment};

use super::moments::rates;
use super::plot::draw;
use super::writes::{CC_VARIANTS, DCTCP, QTCP, UNDER_WAY};
use super::{
    CLASSES, Claim, E2eRun, FigureContext, FigureResult, MIXED, PACKET, as_promised, during, each,
    parts, row, run_under, source, tenths, there,
};
use crate::experiment::verdict::{at_least, at_most, order};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// The interval in which all three ask and operations in flight have reached their number, in
/// milliseconds.
const BUSY: [u64; 2] = [10, 40];

/// The rate that each class requests each way, in Gbit/s.
const ASKED: [f64; 3] = [90.0, 60.0, 30.0];

/// "Slightly longer" than high, as a factor.
const SLIGHTLY: f64 = 1.2;

/// Bytes that pass one point of the path in a moment.
type What = fn(&Moment) -> u64;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = run_under(context, &CC_VARIANTS, MIXED)?;
    let panels = runs.iter().zip(CC_VARIANTS).flat_map(|(shown, (_, cc))| {
        let E2eRun { outcome, .. } = shown;
        [
            rates(outcome, &format!("(a) arriving at servers, {cc}"), there),
            rates(outcome, &format!("(b) done by drives, {cc}"), stored),
            rates(outcome, &format!("(c) arriving back, {cc}"), back),
        ]
    });
    let panels: Vec<_> = panels.collect();
    let claims = vec![
        by_class(&runs, "13a", "servers", there),
        drives(&runs),
        by_class(&runs, "13c", "applications", back),
        squeezed(&runs),
        ends(&runs),
    ];
    let picture = draw("Three applications read and write through one link", &panels);
    Ok(FigureResult { claims, table: table(&runs), picture })
}

const fn stored(moment: &Moment) -> u64 {
    moment.stored
}

const fn back(moment: &Moment) -> u64 {
    moment.back
}

fn by_class(runs: &[E2eRun], figure: &'static str, at: &str, what: What) -> Claim {
    let outcome = &runs[QTCP].outcome;
    let parts = parts(&during(outcome, BUSY, what));
    source(figure, &[&runs[QTCP]])
        .claim(
            format!("by QTCP classes have 3 : 2 : 1 of what arrives at {at}"),
            json!({ "percent": each(outcome, &parts) }),
            as_promised(&parts),
        )
        .because(PACKET)
}

fn squeezed(runs: &[E2eRun]) -> Claim {
    let outcome = &runs[DCTCP].outcome;
    let both = [there, back].map(|what| during(outcome, BUSY, what));
    let check = |(way, rates): (&str, &Vec<f64>)| {
        let of_asked = |at: usize| (CLASSES[at], rates[at] / ASKED[at]);
        order(way, "of what it asks for", &[of_asked(0), of_asked(1), of_asked(2)])
    };
    source("13a and 13c", &[&runs[DCTCP]]).claim(
        "by DCTCP high is squeezed most: it has least of what it asks for",
        json!({
            "there_percent": each(outcome, &parts(&both[0])),
            "back_percent": each(outcome, &parts(&both[1])),
        }),
        ["there", "back"].into_iter().zip(&both).map(check),
    )
}

/// Claims that drives finish as many bytes as arrive at servers and go back.
fn drives(runs: &[E2eRun]) -> Claim {
    let outcome = &runs[QTCP].outcome;
    let [done, ways_there, ways_back] =
        [stored, there, back].map(|what| during(outcome, [0, 100], what));
    let moved = ways_there.iter().zip(&ways_back).map(|(there, back)| there + back);
    let apart = moved.zip(&done).map(|(moved, done)| (done / moved - 1.0).abs() * 100.0);
    let most = apart.fold(0.0, f64::max);
    let parts = parts(&during(outcome, BUSY, stored));
    source("13b", &[&runs[QTCP]])
        .claim(
            "drives are no bottleneck, and do for each class what the network brings and takes",
            json!({ "percent": each(outcome, &parts), "apart_at_most_percent": tenths(most) }),
            as_promised(&parts).into_iter().chain([at_most("missing", "%", UNDER_WAY, most)]),
        )
        .because(PACKET)
}

/// When an application had its last answer, in milliseconds.
fn end(outcome: &E2eReport, application: usize) -> f64 {
    let series = &outcome.applications[application].series;
    let moments = series.iter().rposition(|moment| moment.back > 0).map_or(0, |index| index + 1);
    moments as f64 * outcome.sample.as_seconds() * 1e3
}

fn ends(runs: &[E2eRun]) -> Claim {
    let ends = |cc: usize| -> Vec<f64> { (0..3).map(|one| end(&runs[cc].outcome, one)).collect() };
    let [even, promised] = [DCTCP, QTCP].map(ends);
    let applications = runs.iter().flat_map(|shown| &shown.outcome.applications);
    let answered: Vec<f64> = applications
        .map(|one| one.done.requests as f64 * 100.0 / one.requested.requests.max(1) as f64)
        .collect();
    let claim = source("13", &[&runs[DCTCP], &runs[QTCP]]).claim(
        "by DCTCP high is done last; by QTCP low takes slightly longer",
        json!({
            "dctcp_ms": each(&runs[DCTCP].outcome, &even),
            "qtcp_ms": each(&runs[QTCP].outcome, &promised),
        }),
        [
            at_least("answered", "%", 100.0, answered),
            order("by DCTCP", "ms", &[("medium", even[1]), ("high", even[0])]),
            order("by DCTCP", "ms", &[("low", even[2]), ("high", even[0])]),
            order("by QTCP", "ms", &[("high", promised[0]), ("low", promised[2])]),
            at_most("low beside high", "times", SLIGHTLY, promised[2] / promised[0]),
        ],
    );
    claim.because(PACKET)
}

fn table(runs: &[E2eRun]) -> Table {
    let mut table = Table::new().left("GBIT/S").left("AT").each_right(CLASSES);
    let locations: [(&str, What); 3] =
        [("servers", there), ("drives", stored), ("applications", back)];
    for (shown, (_, cc)) in runs.iter().zip(CC_VARIANTS) {
        for (location, what) in locations {
            table.row(row(&[cc, location], &during(&shown.outcome, BUSY, what), 1));
        }
    }
    table
}
