//! End-to-end QoS paper, figures 15b and 18a: requests that miss their deadlines, for each
//! congestion control.

use serde_json::{Value, json};
use tidegate_netsim::transport::CongestionControl;

use super::plot::{Panel, Series, draw};
use super::{
    BY_RATES, CLASSES, Claim, E2eRun, FigureContext, FigureResult, NORMAL, STRESSED, add,
    each_rounded, episodes, hundredths, row, run, source, tenths, under,
};
use crate::experiment::verdict::{at_most, between, near, order};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

const CC_VARIANTS: [(CongestionControl, &str); 3] = [
    (CongestionControl::Dctcp, "DCTCP"),
    (CongestionControl::D2tcp, "D2TCP"),
    (CongestionControl::Qtcp, "QTCP"),
];
const DCTCP: usize = 0;
const D2TCP: usize = 1;
const QTCP: usize = 2;
const RATES: [(CongestionControl, &str); 2] =
    [(CongestionControl::Dcqcn, "DCQCN"), (CongestionControl::Qrdma, "QRDMA")];

/// Runs of figure 15b, each with a seed of its own: one or two requests in a hundred are late, and
/// in one run that is twice as many as in another.
const EPISODES: u64 = 4;

/// Figure 15b.
pub(super) fn windows(context: &FigureContext) -> Result<FigureResult, Failure> {
    let situations = [NORMAL, STRESSED];
    let mut scenarios = Vec::new();
    for text in situations {
        for (cc, _) in CC_VARIANTS {
            scenarios.extend(episodes(&under(cc, text)?, EPISODES));
        }
    }
    let mut each = run(context, scenarios)?.into_iter();
    let cc_variants = 0..situations.len() * CC_VARIANTS.len();
    let runs: Vec<E2eRun> =
        cc_variants.map(|_| together(each.by_ref().take(EPISODES as usize))).collect();
    let (normal, stressed) = runs.split_at(CC_VARIANTS.len());
    let mut table = table();
    rows(&mut table, "normal", normal, &CC_VARIANTS);
    rows(&mut table, "stressed", stressed, &CC_VARIANTS);
    let panels = [
        panel("normal situation", normal, &CC_VARIANTS),
        panel("stressed situation", stressed, &CC_VARIANTS),
    ];
    Ok(FigureResult {
        claims: vec![
            met(normal),
            some_are_late(normal),
            behind(stressed),
            fewer(stressed),
            how_many(stressed),
        ],
        table,
        picture: draw("Requests that are late", &panels),
    })
}

/// Figure 18a.
pub(super) fn rates(context: &FigureContext) -> Result<FigureResult, Failure> {
    let mut scenarios: Vec<_> =
        RATES.iter().map(|(cc, _)| under(*cc, BY_RATES)).collect::<Result<_, Failure>>()?;
    scenarios.push(under(CongestionControl::Qtcp, STRESSED)?);
    let runs = run(context, scenarios)?;
    let cc_variants = [RATES[0], RATES[1], CC_VARIANTS[QTCP]];
    let mut table = table();
    rows(&mut table, "stressed", &runs, &cc_variants);
    Ok(FigureResult {
        claims: vec![fewer_by_rates(&runs), more_than_by_windows(&runs)],
        table,
        picture: draw(
            "Requests that are late",
            &[panel("stressed situation", &runs, &cc_variants)],
        ),
    })
}

/// Episodes of the same, as if they were one.
fn together(mut episodes: impl Iterator<Item = E2eRun>) -> E2eRun {
    let mut sum = episodes.next().expect("at least one episode");
    for shown in episodes {
        sum.seconds += shown.seconds;
        add(&mut sum.outcome.applications, &shown.outcome.applications);
    }
    sum
}

/// The part of each class's requests that are late, in percent.
fn late(shown: &E2eRun) -> Vec<f64> {
    shown
        .outcome
        .applications
        .iter()
        .map(|one| percent([one.late, one.overdue, one.done.requests]))
        .collect()
}

/// Requests that were answered late, or are not answered though their deadline has passed.
fn percent([late, overdue, done]: [u64; 3]) -> f64 {
    (late + overdue) as f64 * 100.0 / (done + overdue).max(1) as f64
}

/// The same of all requests.
fn late_of_all(shown: &E2eRun) -> f64 {
    let each = shown.outcome.applications.iter();
    percent(each.fold([0; 3], |[late, overdue, done], one| {
        [late + one.late, overdue + one.overdue, done + one.done.requests]
    }))
}

/// The same of each congestion control, for programs.
fn to_json(runs: &[E2eRun], cc_variants: &[(CongestionControl, &str)]) -> Value {
    // Most are less than one percent.
    let outcome = |shown: &E2eRun| each_rounded(&shown.outcome, &late(shown), hundredths);
    let cc_variants = runs.iter().zip(cc_variants);
    Value::Object(cc_variants.map(|(shown, (cc, _))| (cc.name().into(), outcome(shown))).collect())
}

/// "All" and "almost all", to the paper's precision: all but so many in a hundred.
const ALL: f64 = 0.5;
const ALMOST: f64 = 2.0;

fn met(normal: &[E2eRun]) -> Claim {
    let [dctcp, d2tcp, qtcp] = [DCTCP, D2TCP, QTCP].map(|cc| late_of_all(&normal[cc]));
    source("15b", &[&normal[DCTCP], &normal[D2TCP], &normal[QTCP]]).claim(
        "in the normal situation D2TCP meets all deadlines, and QTCP almost all; DCTCP fewer",
        json!({ "late_percent": to_json(normal, &CC_VARIANTS) }),
        [
            at_most("late by D2TCP", "%", ALL, late(&normal[D2TCP])),
            at_most("late by QTCP", "%", ALMOST, late(&normal[QTCP])),
            order("late", "%", &[("D2TCP", d2tcp), ("DCTCP", dctcp)]),
            order("late", "%", &[("QTCP", qtcp), ("DCTCP", dctcp)]),
        ],
    )
}

fn some_are_late(normal: &[E2eRun]) -> Claim {
    source("15b", &[&normal[DCTCP]])
        .claim(
            "and by DCTCP some are late",
            json!({ "late_percent": to_json(&normal[..1], &CC_VARIANTS) }),
            [between("late", "%", [5.0, 8.0], late_of_all(&normal[DCTCP]))],
        )
        .because("a request of 2 MB takes 0.16 ms of such a link, a thirtieth of its time")
}

fn behind(stressed: &[E2eRun]) -> Claim {
    let [d2tcp, qtcp] = [D2TCP, QTCP].map(|cc| late(&stressed[cc])[0]);
    source("15b", &[&stressed[D2TCP], &stressed[QTCP]]).claim(
        "in the stressed situation D2TCP falls behind QTCP: more of high are late",
        json!({ "late_percent": to_json(&stressed[1..], &CC_VARIANTS[1..]) }),
        [order("late", "%", &[("QTCP", qtcp), ("D2TCP", d2tcp)])],
    )
}

fn fewer(stressed: &[E2eRun]) -> Claim {
    let [dctcp, qtcp] = [DCTCP, QTCP].map(|cc| late_of_all(&stressed[cc]));
    let fewer = super::tails::less(qtcp, dctcp);
    source("15b", &[&stressed[DCTCP], &stressed[QTCP]])
        .claim(
            "and by QTCP fewer are late than by DCTCP",
            json!({ "fewer_percent": tenths(fewer) }),
            [near("fewer", "%", 71.0, 3.0, fewer)],
        )
        .because("few are late here, and some of them by any congestion control")
}

fn how_many(stressed: &[E2eRun]) -> Claim {
    source("15b", &[&stressed[DCTCP], &stressed[D2TCP], &stressed[QTCP]])
        .claim(
            "these are large parts of all requests",
            json!({ "late_percent": to_json(stressed, &CC_VARIANTS) }),
            [
                between("late by DCTCP", "%", [30.0, 65.0], late_of_all(&stressed[DCTCP])),
                between("late by QTCP", "%", [15.0, 18.0], late_of_all(&stressed[QTCP])),
                near("of high by D2TCP", "%", 35.0, 2.0, late(&stressed[D2TCP])[0]),
            ],
        )
        .because("a link of 100 Gbit/s that is used to 80 % is seldom full for so long")
}

fn fewer_by_rates(runs: &[E2eRun]) -> Claim {
    let fewer = super::tails::less(late_of_all(&runs[1]), late_of_all(&runs[0]));
    source("18a", &[&runs[0], &runs[1]])
        .claim(
            "by QRDMA fewer are late than by DCQCN",
            json!({
                "late_percent": to_json(&runs[..2], &RATES),
                "fewer_percent": tenths(fewer),
            }),
            [between("fewer", "%", [43.0, 80.0], fewer)],
        )
        .because("DCQCN does not carry all that is asked for here, and what waits in hosts is late")
}

fn more_than_by_windows(runs: &[E2eRun]) -> Claim {
    let [qrdma, qtcp] = [late_of_all(&runs[1]), late_of_all(&runs[2])];
    source("18a", &[&runs[1], &runs[2]]).claim(
        "but more than by QTCP",
        json!({ "late_percent": { "qrdma": tenths(qrdma), "qtcp": tenths(qtcp) } }),
        [order("late", "%", &[("QTCP", qtcp), ("QRDMA", qrdma)])],
    )
}

/// Without rows.
fn table() -> Table {
    Table::new().left("% LATE").left("LAW").each_right(CLASSES)
}

fn rows(
    table: &mut Table,
    situation: &'static str,
    runs: &[E2eRun],
    cc_variants: &[(CongestionControl, &'static str)],
) {
    for (shown, (_, cc)) in runs.iter().zip(cc_variants) {
        table.row(row(&[situation, cc], &late(shown), 2));
    }
}

/// A line for each congestion control, over classes.
fn panel(title: &str, runs: &[E2eRun], cc_variants: &[(CongestionControl, &'static str)]) -> Panel {
    let series = runs.iter().zip(cc_variants).map(|(shown, (_, cc))| {
        Series::line(*cc, (1u32..).map(f64::from).zip(late(shown)).collect())
    });
    Panel::new(title, ["high, medium, low", "% late"], series)
}
