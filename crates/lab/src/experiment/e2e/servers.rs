//! End-to-end QoS paper, figure 11b: storage is the bottleneck, with three servers in place of ten.
//! The servers tell classes apart; the network, under DCTCP, does not.

use serde_json::json;
use tidegate_netsim::e2e::{E2eReport, Moment};

use super::moments::rates;
use super::plot::draw;
use super::{
    CLASSES, Check, Claim, FigureContext, FigureResult, SHARES, THREE_SERVERS, busy, each, gbps,
    parts, row, run, scenario, source,
};
use crate::experiment::verdict::{between, near};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = run(context, vec![scenario(THREE_SERVERS)?])?;
    let outcome = &runs[0].outcome;
    let panels = [
        rates(outcome, "(a) arriving at servers, DCTCP", |moment| moment.there),
        rates(outcome, "(b) done by drives, DCTCP", |moment| moment.stored),
    ];
    let claim = source("11b", &[&runs[0]]).claim(
        "with three servers the storage end differentiates, though DCTCP does not: 3 : 2 : 1",
        json!({ "gbit_per_second": each(outcome, &done(outcome)) }),
        in_proportion(&done(outcome)),
    );
    Ok(FigureResult {
        claims: vec![claim, not_by_the_link(&runs[0])],
        table: table(outcome),
        picture: draw("Three applications write to three servers", &panels),
    })
}

fn done(outcome: &E2eReport) -> Vec<f64> {
    gbps(outcome, |moment: &Moment| moment.stored)
}

/// Weights count commands and pages, and a request does not end at a page: so far from the
/// proportion, in percent of all, may each class be. Not farther, because drives that serve in
/// order of arrival come near to it as well: each application has as many commands under way, and
/// those of high are the largest. They finish 19.0, 15.2 and 6.5 Gbit/s.
const NEAR: [f64; 3] = [4.0, 2.7, 1.3];

fn in_proportion(done: &[f64]) -> Vec<Check> {
    let each = CLASSES.iter().zip(parts(done)).zip(SHARES.iter().zip(NEAR));
    each.map(|((class, part), (share, within))| near(*class, "%", *share, within, part)).collect()
}

/// A link of which less than this is used, in percent, is not the bottleneck.
const IDLE: f64 = 60.0;

fn not_by_the_link(shown: &super::E2eRun) -> Claim {
    let busy = busy(&shown.outcome, ["switch 0", "switch 1"]);
    source("11b", &[shown]).claim(
        "the bottleneck is at the storage end, not in the network",
        json!({ "link_busy_percent": super::tenths(busy) }),
        [between("of the link are used", "%", [1.0, IDLE], busy)],
    )
}

fn table(outcome: &E2eReport) -> Table {
    let mut table = Table::new().left("GBIT/S").each_right(CLASSES);
    table.row(row(&["drives"], &done(outcome), 1));
    table
}

#[cfg(test)]
mod tests {
    use super::in_proportion;
    use crate::experiment::verdict::{Verdict, judge};

    #[test]
    fn even_shares_are_no_proportion_and_neither_are_sizes_of_requests() {
        let judged = |done: [f64; 3]| judge(&in_proportion(&done));
        assert_eq!(judged([20.0, 13.3, 6.5]).verdict, Verdict::Reproduced);
        let even = judged([13.0, 13.0, 13.0]);
        assert_eq!((even.verdict, even.distance), (Verdict::Differs, Some(2.0)));
        assert_eq!(even.reason.unwrap(), "low: 33.3 % instead of 16.7 ±1.3 %");
        assert_eq!(judged([19.0, 15.2, 6.5]).verdict, Verdict::Differs);
    }
}
