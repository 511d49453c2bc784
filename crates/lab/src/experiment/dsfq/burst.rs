//! Bursts under fair queueing with a minimum share (HYBRID-DSFQ): a flaw that the paper sees
//! (§3.4), and its remedy here. Stream g turns from storage node (*brick*) A to B and back in
//! bursts, and f has data on A only.

use serde_json::json;
use tidegate_model::Discipline;
use tidegate_sim::bricks::DsfqScenario;

use super::plot::{Panel, Series, draw};
use super::{
    A, B, BURST, DsfqRun, F, FigureContext, FigureResult, G, MINIMUM, UNEQUAL, apart, equal,
};
use super::{mean, mega, run, scenario, share, source, tenths, thousandths};
use crate::experiment::verdict::{Claim, at_least};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

const RUNS: [(&str, Discipline); 3] = [
    ("TOTAL-DSFQ", Discipline::DsfqTotal),
    ("HYBRID-DSFQ", Discipline::DsfqHybrid),
    ("what is cut is owed", Discipline::Unified),
];

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let base = scenario(BURST)?;
    let under = |(_, discipline)| DsfqScenario { discipline, ..base.clone() };
    let shown = run(context, RUNS.map(under).to_vec())?;
    let mut table = Table::new().left("RUN").right("f").right("g").right("g ON A");
    table = table.right("g ON B, MB/s");
    for (shown, (name, _)) in shown.iter().zip(RUNS) {
        let formatted =
            |stream, brick| format!("{:.2}", mean(&shown.outcome, stream, brick)).into();
        table.row([
            name.into(),
            formatted(F, None),
            formatted(G, None),
            formatted(G, A),
            formatted(G, B),
        ]);
    }
    let texts = [
        (true, "TOTAL-DSFQ heeds bursts: totals are equal"),
        (
            false,
            "on HYBRID-DSFQ who turns from brick to brick in bursts gets more than its share, as \
             the paper says",
        ),
        (true, "if what is cut from a delay is owed, it does not, and keeps its minimum share"),
    ];
    let [total, hybrid, owed] = [0, 1, 2].map(|at: usize| claim(&shown[at], texts[at]));
    let claims = vec![total, hybrid, owed.ours()];
    Ok(FigureResult { claims, table, picture: picture(&shown) })
}

/// Judges whether totals are equal, or are not, as claimed.
fn claim(DsfqRun { outcome, seconds }: &DsfqRun, (are_equal, text): (bool, &str)) -> Claim {
    let [f, g] = [F, G].map(|stream| mean(outcome, stream, None));
    let far = apart(f, g);
    source("burst", outcome.seed, *seconds).claim(
        text,
        json!({
            "totals_apart_percent": tenths(far),
            "f_megabytes_per_second": thousandths(f),
            "g_megabytes_per_second": thousandths(g),
            "share_of_g_on_a_percent": tenths(share(outcome) * 100.0),
        }),
        [
            if are_equal { equal(far) } else { at_least("totals apart", "%", UNEQUAL, far) },
            at_least("g has of A", "%", thousandths(MINIMUM * 100.0), share(outcome) * 100.0),
        ],
    )
}

fn picture(shown: &[DsfqRun]) -> String {
    let panel = |(shown, (name, _)): (&DsfqRun, (&str, Discipline))| {
        let line = |(name, stream): (&str, usize)| {
            let rates = shown.outcome.rates(stream, None).into_iter().enumerate();
            Series::line(name, rates.map(|(at, rate)| ((at + 1) as f64, mega(rate))).collect())
        };
        Panel::new(
            name,
            ["seconds", "MB/s in all"],
            [("f, all on A", F), ("g, in bursts to A and B", G)].map(line),
        )
    };
    let panels: Vec<Panel> = shown.iter().zip(RUNS).map(panel).collect();
    draw("Bursts to one brick and then to the other", &panels)
}
