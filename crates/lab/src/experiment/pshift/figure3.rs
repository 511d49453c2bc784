//! Figure 3 of the pShift paper (experiment 1): 10,000 tenants on 64 storage nodes, all of whose
//! capacity is reserved.

use serde_json::json;

use super::judge::{self, PeriodCounts};
use super::plot::{Panel, Series, draw};
use super::simulated::{self, PshiftRun};
use super::{
    ClaimSource, FigureContext, FigureResult, PAPER, SIMULATED, seconds, tenths, thousandths,
};
use crate::experiment::verdict::at_least;
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// The picture shows every so many tenants, as the paper's.
const EVERY: usize = 50;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let shown = simulated::run(context, simulated::scenario(simulated::EXPERIMENT_1)?)?;
    let PshiftRun { outcome, seconds: took } = &shown;
    let counts = PeriodCounts::of(outcome);
    let near = counts.percent(counts.met_95);
    let source = ClaimSource {
        paper: PAPER,
        figure: "3",
        world: SIMULATED,
        seed: Some(outcome.seed),
        seconds: tenths(*took),
    };
    let claim = source.claim(
        "with every operation reserved and up to two moves in a period, nearly all of 10,000 \
         tenants get 95 % of their reservation",
        json!({
            "tenants": counts.count,
            "met_percent": thousandths(counts.percent(counts.met)),
            "met_95_percent": thousandths(near),
            "missing_percent": thousandths(judge::percent(counts.missing, counts.reserved)),
            "moves": outcome.moves.len(),
            "requests": outcome.submitted,
            "events": outcome.events,
        }),
        [at_least("of the tenants", "%", 99.5, near)],
    );
    let mut table =
        Table::new().right("TENANTS").right("GOT ALL").right("GOT 95 %").right("MISSING");
    let missing = judge::percent(counts.missing, counts.reserved);
    table.row([
        counts.count.to_string().into(),
        format!("{:.2} %", counts.percent(counts.met)).into(),
        format!("{near:.2} %").into(),
        format!("{missing:.2} %").into(),
    ]);
    Ok(FigureResult { claims: vec![claim], table, picture: picture(&shown) })
}

fn picture(PshiftRun { outcome, .. }: &PshiftRun) -> String {
    let tenants = || (0..outcome.promises.len()).step_by(EVERY);
    let reserved = tenants().map(|tenant| {
        let level = outcome.promises[tenant].reservation.0;
        (tenant as f64, judge::in_period(level, outcome.period) as f64)
    });
    let reserved: Vec<(f64, f64)> = reserved.collect();
    let sampled = |(number, sample): (usize, &Vec<u32>)| {
        let points = tenants().map(|tenant| (tenant as f64, f64::from(sample[tenant])));
        Series::stack(format!("interval {}", number + 1), points.collect())
    };
    let mut served: Vec<Series> = outcome.samples.iter().enumerate().map(sampled).collect();
    served.push(Series::line("reserved", reserved.clone()));
    let panels = [
        Panel::new(
            "Reservations",
            ["tenant", "operations in a period"],
            [Series::line("", reserved)],
        ),
        Panel::new(
            format!("Served in {:.0} s", seconds(outcome.period)),
            ["tenant", "operations in a period"],
            served,
        ),
    ];
    draw("Reservations of 10,000 tenants, and what they were served", &panels)
}
