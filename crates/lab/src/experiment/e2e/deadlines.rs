//! Figures 15b and 18a: requests that are late, by congestion control.

use serde_json::{Value, json};
use tidegate_netsim::transport::CongestionControl;

use super::plot::{Panel, Series, draw};
use super::{
    BY_RATES, CLASSES, FigureContext, FigureResult, Known, NORMAL, STRESSED, Shown, add, all,
    differs, each_rounded, episodes, holds_if, hundredths, row, run, source, under,
};
use crate::experiment::verdict::Claim;
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
    let runs: Vec<Shown> =
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
fn together(mut episodes: impl Iterator<Item = Shown>) -> Shown {
    let mut sum = episodes.next().expect("at least one episode");
    for shown in episodes {
        sum.seconds += shown.seconds;
        add(&mut sum.outcome.applications, &shown.outcome.applications);
    }
    sum
}

/// The part of each class's requests that are late, in percent.
fn late(shown: &Shown) -> Vec<f64> {
    let each = shown.outcome.applications.iter();
    each.map(|one| one.late as f64 * 100.0 / one.done.requests.max(1) as f64).collect()
}

/// The same of all requests.
fn late_of_all(shown: &Shown) -> f64 {
    let each = || shown.outcome.applications.iter();
    let late: u64 = each().map(|one| one.late).sum();
    late as f64 * 100.0 / each().map(|one| one.done.requests).sum::<u64>().max(1) as f64
}

/// The same of each congestion control, for programs.
fn to_json(runs: &[Shown], cc_variants: &[(CongestionControl, &str)]) -> Value {
    // Most are less than one percent.
    let outcome = |shown: &Shown| each_rounded(&shown.outcome, &late(shown), hundredths);
    let cc_variants = runs.iter().zip(cc_variants);
    Value::Object(cc_variants.map(|(shown, (cc, _))| (cc.name().into(), outcome(shown))).collect())
}

/// "Almost all": all but so many in a hundred.
const ALMOST: f64 = 2.0;

/// So many fewer than by DCTCP, in percent, at least: it meets so many here that to meet almost all
/// says nothing about a congestion control.
const FEWER_NORMALLY: f64 = 20.0;

fn met(normal: &[Shown]) -> Claim {
    let dctcp = late_of_all(&normal[DCTCP]);
    source("15b", &[&normal[DCTCP], &normal[D2TCP], &normal[QTCP]]).claim(
        "in the normal situation D2TCP meets all deadlines, and QTCP almost all; DCTCP fewer",
        json!({ "late_percent": to_json(normal, &CC_VARIANTS) }),
        all([D2TCP, QTCP].into_iter().flat_map(|cc| {
            let of_all = late_of_all(&normal[cc]);
            let fewer = holds_if(of_all <= dctcp * (1.0 - FEWER_NORMALLY / 100.0), || {
                format!("{of_all:.2} % by {}, {dctcp:.2} % by DCTCP", CC_VARIANTS[cc].1)
            });
            let each = CLASSES.iter().zip(late(&normal[cc])).map(move |(class, late)| {
                holds_if(late <= ALMOST, || {
                    format!("{class} by {}: {late:.2} %", CC_VARIANTS[cc].1)
                })
            });
            each.chain([fewer]).collect::<Vec<_>>()
        })),
    )
}

fn some_are_late(normal: &[Shown]) -> Claim {
    let late = late_of_all(&normal[DCTCP]);
    let known = Known { what: "late are", unit: "%", value: late, known: 0.8, within: 0.5 };
    source("15b", &[&normal[DCTCP]]).claim(
        "and by DCTCP 5 to 8 % are late",
        json!({ "late_percent": to_json(&normal[..1], &CC_VARIANTS) }),
        differs(
            &[known],
            "a request of 2 MB takes 0.16 ms of such a link, a thirtieth of its time",
        ),
    )
}

fn behind(stressed: &[Shown]) -> Claim {
    let [d2tcp, qtcp] = [D2TCP, QTCP].map(|cc| late(&stressed[cc]));
    source("15b", &[&stressed[D2TCP], &stressed[QTCP]]).claim(
        "in the stressed situation D2TCP falls behind QTCP: more of high are late",
        json!({ "late_percent": to_json(&stressed[1..], &CC_VARIANTS[1..]) }),
        holds_if(qtcp[0] < d2tcp[0], || {
            format!("by D2TCP {:.2} %, by QTCP {:.2} %", d2tcp[0], qtcp[0])
        }),
    )
}

fn fewer(stressed: &[Shown]) -> Claim {
    let [dctcp, qtcp] = [DCTCP, QTCP].map(|cc| late_of_all(&stressed[cc]));
    let fewer = super::tails::less(qtcp, dctcp);
    let known = Known { what: "fewer by", unit: "%", value: fewer, known: 49.0, within: 13.0 };
    source("15b", &[&stressed[DCTCP], &stressed[QTCP]]).claim(
        "and by QTCP about 71 % fewer are late than by DCTCP",
        json!({ "fewer_percent": super::tenths(fewer) }),
        differs(&[known], "few are late here, and some of them by any law"),
    )
}

fn how_many(stressed: &[Shown]) -> Claim {
    let percent = |what, cc: usize, known, within| {
        let value = late_of_all(&stressed[cc]);
        Known { what, unit: "%", value, known, within }
    };
    let known = [percent("DCTCP", DCTCP, 1.7, 0.5), percent("QTCP", QTCP, 0.9, 0.4)];
    source("15b", &[&stressed[DCTCP], &stressed[QTCP]]).claim(
        "that is, 15 to 18 % in place of 30 to 65 %",
        json!({ "late_percent": to_json(stressed, &CC_VARIANTS) }),
        differs(&known, "a link of 100 Gbit/s that is used to 80 % is seldom full for so long"),
    )
}

/// The paper's "43 to 80 % fewer", and a little more: by windows it would be all.
const FEWER_BY_RATES: [f64; 2] = [43.0, 90.0];

fn fewer_by_rates(runs: &[Shown]) -> Claim {
    let fewer = super::tails::less(late_of_all(&runs[1]), late_of_all(&runs[0]));
    let [least, most] = FEWER_BY_RATES;
    source("18a", &[&runs[0], &runs[1]]).claim(
        "by QRDMA 43 to 80 % fewer are late than by DCQCN",
        json!({
            "late_percent": to_json(&runs[..2], &RATES),
            "fewer_percent": super::tenths(fewer),
        }),
        holds_if((least..=most).contains(&fewer), || format!("{fewer:.1} % fewer")),
    )
}

/// So many times as many, at least, are no accident.
const TIMES_MORE: f64 = 2.0;

fn more_than_by_windows(runs: &[Shown]) -> Claim {
    let [qrdma, qtcp] = [late_of_all(&runs[1]), late_of_all(&runs[2])];
    source("18a", &[&runs[1], &runs[2]]).claim(
        "but more than by QTCP",
        json!({ "late_percent": { "qrdma": super::tenths(qrdma), "qtcp": super::tenths(qtcp) } }),
        holds_if(qrdma >= TIMES_MORE * qtcp, || format!("QRDMA {qrdma:.2} %, QTCP {qtcp:.2} %")),
    )
}

/// Without rows.
fn table() -> Table {
    Table::new().left("% LATE").left("LAW").each_right(CLASSES)
}

fn rows(
    table: &mut Table,
    situation: &'static str,
    runs: &[Shown],
    cc_variants: &[(CongestionControl, &'static str)],
) {
    for (shown, (_, cc)) in runs.iter().zip(cc_variants) {
        table.row(row(&[situation, cc], &late(shown), 2));
    }
}

/// A line for each congestion control, over classes.
fn panel(title: &str, runs: &[Shown], cc_variants: &[(CongestionControl, &'static str)]) -> Panel {
    let series = runs.iter().zip(cc_variants).map(|(shown, (_, cc))| {
        Series::line(*cc, (1u32..).map(f64::from).zip(late(shown)).collect())
    });
    let x = "high, medium, low";
    Panel { title: title.into(), x, y: "% late", series: series.collect(), levels: Vec::new() }
}
