//! Figure 13: three applications read as much as they write, until they are done. Both ways are
//! narrow; what each gets there and back, and who is done when.

use serde_json::json;
use tidegate_netsim::e2e::{E2eReport, Moment};

use super::moments::rates;
use super::plot::draw;
use super::writes::{CC_VARIANTS, DCTCP, QTCP, UNDER_WAY};
use super::{
    CLASSES, FigureContext, FigureResult, MIXED, Shown, all, during, each, holds_if, near, parts,
    row, run_under, source, tenths, there,
};
use crate::experiment::verdict::Claim;
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// The interval in which all three ask and operations in flight have reached their number, in
/// milliseconds.
const BUSY: [u64; 2] = [10, 40];

/// The promises of the classes, in percent of the bytes carried.
const PROMISED: [f64; 3] = [50.0, 33.3, 16.7];

/// How far from that they may be. With a packet more in each round trip low, whose windows are
/// small, is above its part, and high below: from 43 to 48 % with other seeds.
const NEAR: f64 = 8.0;

/// Bytes that pass one point of the path in a moment.
type What = fn(&Moment) -> u64;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = run_under(context, &CC_VARIANTS, MIXED)?;
    let panels = runs.iter().zip(CC_VARIANTS).flat_map(|(shown, (_, cc))| {
        let Shown { outcome, .. } = shown;
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
        alike(&runs),
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

fn by_class(runs: &[Shown], figure: &'static str, at: &str, what: What) -> Claim {
    let outcome = &runs[QTCP].outcome;
    let parts = parts(&during(outcome, BUSY, what));
    source(figure, &[&runs[QTCP]]).claim(
        format!("by QTCP classes have 3 : 2 : 1 of what arrives at {at}"),
        json!({ "percent": each(outcome, &parts) }),
        near(&CLASSES, &parts, &PROMISED, NEAR, "%"),
    )
}

fn alike(runs: &[Shown]) -> Claim {
    let outcome = &runs[DCTCP].outcome;
    let [ways_there, ways_back] = [there, back].map(|what| parts(&during(outcome, BUSY, what)));
    let even = [33.3; 3];
    source("13a and 13c", &[&runs[DCTCP]]).claim(
        "by DCTCP they have the same, so that high has least of what it asks for",
        json!({
            "there_percent": each(outcome, &ways_there),
            "back_percent": each(outcome, &ways_back),
        }),
        all([ways_there, ways_back].iter().map(|ours| near(&CLASSES, ours, &even, NEAR, "%"))),
    )
}

/// Claims that drives finish as many bytes as arrive at servers and go back.
fn drives(runs: &[Shown]) -> Claim {
    let outcome = &runs[QTCP].outcome;
    let [done, ways_there, ways_back] =
        [stored, there, back].map(|what| during(outcome, [0, 100], what));
    let moved = ways_there.iter().zip(&ways_back).map(|(there, back)| there + back);
    let apart = moved.zip(&done).map(|(moved, done)| (done / moved - 1.0).abs() * 100.0);
    let most = apart.fold(0.0, f64::max);
    let parts = parts(&during(outcome, BUSY, stored));
    let apart = holds_if(most <= UNDER_WAY, || format!("{most:.1} % are missing"));
    source("13b", &[&runs[QTCP]]).claim(
        "drives are no bottleneck, and do for each class what the network brings and takes",
        json!({ "percent": each(outcome, &parts), "apart_at_most_percent": tenths(most) }),
        all([apart, near(&CLASSES, &parts, &PROMISED, NEAR, "%")]),
    )
}

/// When an application had its last answer, in milliseconds.
fn end(outcome: &E2eReport, application: usize) -> f64 {
    let series = &outcome.applications[application].series;
    let moments = series.iter().rposition(|moment| moment.back > 0).map_or(0, |index| index + 1);
    moments as f64 * outcome.sample.as_seconds() * 1e3
}

/// By DCTCP low is done so much sooner than high, and by QTCP sooner by less than half of it.
fn ends(runs: &[Shown]) -> Claim {
    let ends = |cc: usize| -> Vec<f64> { (0..3).map(|one| end(&runs[cc].outcome, one)).collect() };
    let [even, promised] = [DCTCP, QTCP].map(ends);
    let done = runs.iter().all(|shown| {
        shown.outcome.applications.iter().all(|one| one.done.requests >= one.requested.requests)
    });
    let (high, low) = (even[0] - even[2], promised[0] - promised[2]);
    source("13", &[&runs[DCTCP], &runs[QTCP]]).claim(
        "by DCTCP low is done long before high, which is squeezed most; by QTCP all take as long",
        json!({
            "dctcp_ms": each(&runs[DCTCP].outcome, &even),
            "qtcp_ms": each(&runs[QTCP].outcome, &promised),
        }),
        all([
            holds_if(done, || "not everything was answered".into()),
            holds_if(low < high / 2.0, || {
                format!("low is done {high:.0} ms before high by DCTCP, and {low:.0} by QTCP")
            }),
        ]),
    )
}

fn table(runs: &[Shown]) -> Table {
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
