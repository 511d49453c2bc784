//! Haechi beyond the paper's figures: the data node itself becomes slower or faster, and no
//! background job takes a part of the change back.

use serde_json::json;
use tidegate_model::{Iops, Span};
use tidegate_sim::one_sided::{Change, Scenario};

use super::capacity::{AGAIN, estimates, last_miss, totals};
use super::plot::{Panel, Series, draw};
use super::{FIGURE_16B, FigureContext, FigureResult, HaechiRun, Kept, scenario, source};
use super::{formatted, tenths};
use crate::experiment::verdict::{Claim, at_most};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// The data node's capacity changes to these percentages.
const STEPS: [u64; 6] = [70, 80, 90, 110, 120, 130];

/// After so many periods, and so many are seen then.
const CHANGE_PERIOD: usize = 5;
const AFTER: usize = SETTLED + 3;

/// So many periods after a change throughput is what the data node can do.
const SETTLED: usize = 12;

/// Within so many percent.
const CLOSE: f64 = 1.0;

/// Reservations by Zipf's distribution of four fifths of the data node, or, if it becomes slower
/// than that, of an eighth less than what it can do then.
static RUNS: Kept = Kept::new(|| {
    let stepped = |percent: u64| {
        let base = scenario(FIGURE_16B)?;
        let node = Iops(base.nics.node.0 * percent / 100);
        let mut client = base.client.clone();
        for clients in &mut client {
            if let Some(reservation) = &mut clients.reservation {
                reservation.0 = reservation.0 * promised(percent) / 80;
            }
        }
        Ok(Scenario {
            client,
            background: None,
            change: vec![Change { at: Span(base.period.0 * CHANGE_PERIOD as u64), node }],
            periods: (CHANGE_PERIOD + AFTER) as u32,
            ..base
        })
    };
    STEPS.into_iter().map(stepped).collect()
});

/// How much of what the data node could do before is promised, in percent.
fn promised(percent: u64) -> u64 {
    (percent * 7 / 8).min(80)
}

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let runs = RUNS.get(context)?;
    let mut table = Table::new().left("NODE, K/s").right("PROMISED").right("FIRST AFTER");
    table = table.right("AFTER 12").right("MISSED LAST IN");
    let mut series = Vec::new();
    for (percent, shown) in STEPS.iter().zip(runs) {
        let rates = totals(&shown.outcome);
        let missed =
            last_miss(&shown.outcome, CHANGE_PERIOD).map_or("-".into(), |at| at.to_string());
        table.row([
            format!("1570 to {}", 1570 * percent / 100).into(),
            formatted(shown.outcome.promised.iter().sum::<u64>() as f64 / 1e3).into(),
            formatted(rates[CHANGE_PERIOD]).into(),
            formatted(rates[CHANGE_PERIOD + SETTLED]).into(),
            missed.into(),
        ]);
        let points = (1u32..).zip(rates).map(|(at, rate)| (f64::from(at), rate));
        series.push(Series::line(format!("{percent} %"), points.collect()));
    }
    let panel = Panel::new(
        "with sound rules, by what it can do then",
        ["seconds", "thousand reads per second"],
        series,
    );
    let claims = STEPS.iter().zip(runs).map(|(percent, shown)| settles(*percent, shown)).collect();
    Ok(FigureResult {
        claims,
        table,
        picture: draw("The data node becomes slower or faster", &[panel]),
    })
}

fn settles(percent: u64, shown: &HaechiRun) -> Claim {
    let HaechiRun { outcome, .. } = shown;
    let node = 1570.0 * percent as f64 / 100.0;
    let rates = totals(outcome);
    let off = |rate: &f64| (rate / node - 1.0).abs() * 100.0;
    let settled = rates[CHANGE_PERIOD + SETTLED..].iter().map(off).fold(0.0, f64::max);
    let last = last_miss(outcome, CHANGE_PERIOD);
    let claim = source("steps", core::slice::from_ref(shown)).claim(
        format!(
            "when the data node's capacity becomes {percent} %, of which {} are promised, with \
             sound rules all promises are soon kept again, and all of it is used within {SETTLED} \
             periods",
            promised(percent)
        ),
        json!({
            "missed_last_after_periods": last,
            "off_capacity_then_percent": tenths(settled),
            "estimates_kilo": estimates(outcome),
        }),
        [
            at_most("missed last in period", "", AGAIN, last.unwrap_or(0) as f64),
            at_most("throughput off", "%", CLOSE, settled),
        ],
    );
    claim.ours()
}
