//! pShift paper, figure 10 (experiment 5): 200 tenants on eight nodes with files, of which 80 % is
//! reserved; each asks for one and a half times its reservation, which is also its limit.
//! Simulated, and live on files behind a model of a device with the paper's 1,000 operations per
//! second.

use serde_json::json;
use tidegate_model::Span;
use tidegate_sim::cluster::ClusterReport;

use super::judge::{self, PeriodCounts, in_period};
use super::live::{self, Back};
use super::plot::{Panel, Series, draw};
use super::simulated::{self, PshiftRun};
use super::{
    ClaimSource, FigureContext, FigureResult, LIVE, PAPER, SIMULATED, tenths, thousandths,
};
use crate::experiment::quiet::Quiet;
use crate::experiment::verdict::{Claim, at_most};
use tidegate_console::failure::Failure;
use tidegate_console::table::Table;

/// The paper's: one tenant of 200 missed by more than 1 %.
const MISS_PERCENT: f64 = 0.5;
/// So far may a limit be exceeded in the first period of all, in percent.
const START_PERCENT: f64 = 5.0;

pub(super) fn repeat(context: &FigureContext) -> Result<FigureResult, Failure> {
    let scenario = simulated::scenario(simulated::EXPERIMENT_5)?;
    let mut start = scenario.clone();
    (start.skip, start.periods, start.load.start) = (0, 1, Span::ZERO);
    let slack = simulated::slack(&scenario);
    let shown = simulated::run_all(context, vec![scenario, start])?;
    let mut claims = claims(&shown[0], SIMULATED, (slack, Quiet::default()));
    claims.push(transient(&shown[1]));
    let outcome = &shown[0].outcome;
    let (table, picture) = (table(outcome, SIMULATED), picture(outcome, SIMULATED));
    Ok(FigureResult { claims, table, picture })
}

pub(super) fn live(context: &FigureContext) -> Result<FigureResult, Failure> {
    let scenario = simulated::scenario(simulated::EXPERIMENT_5)?;
    let plan = simulated::run(context, scenario.clone())?.outcome;
    let lived = live::run(context, &scenario, plan, Back::File)?;
    let claims = claims(&lived.shown, LIVE, (simulated::slack(&scenario), lived.quiet));
    let claims = claims.into_iter().map(|one| one.skipped(lived.missing.as_deref())).collect();
    let outcome = &lived.shown.outcome;
    let (table, picture) = (table(outcome, LIVE), picture(outcome, LIVE));
    Ok(FigureResult { claims, table, picture })
}

fn table(outcome: &ClusterReport, world: &str) -> Table {
    let mut table = Table::new()
        .left("WORLD")
        .right("PERIOD")
        .right("TENANTS")
        .right("GOT ALL")
        .right("GOT 99 %")
        .right("ABOVE LIMIT");
    for period in 0..outcome.periods() {
        table.row([
            world.into(),
            (period + 1).to_string().into(),
            outcome.promises.len().to_string().into(),
            outcome.met(period, 1_000).to_string().into(),
            outcome.met(period, 990).to_string().into(),
            outcome.above_limit(period).to_string().into(),
        ]);
    }
    table
}

fn claims(shown: &PshiftRun, world: &'static str, (slack, quiet): (u64, Quiet)) -> Vec<Claim> {
    let PshiftRun { outcome, seconds } = shown;
    let counts = PeriodCounts::of(outcome);
    let seed = Some(outcome.seed);
    let source = ClaimSource { paper: PAPER, figure: "10", world, seed, seconds: tenths(*seconds) };
    let missed = counts.percent(counts.count - counts.met_99);
    let measured = json!({
        "tenants": outcome.promises.len(),
        "periods": outcome.periods(),
        "missed_by_1_percent_percent": thousandths(missed),
        "met_percent": thousandths(counts.percent(counts.met)),
        "above_limit": counts.above,
        "above_limit_most_operations": counts.above_most,
        "asked": outcome.submitted,
        "answered": outcome.answered,
        "quiet": quiet.numbers(),
    });
    let few = source.claim(
        "few of 200 tenants miss their reservation by more than 1 %",
        measured.clone(),
        [at_most("", "%", MISS_PERCENT, (counts.count > 0).then_some(missed))],
    );
    let none = source.claim("no tenant exceeds its limit", measured, [judge::none_above(&counts)]);
    let none = match judge::slack_reason(&counts, slack) {
        Some(why) => none.because(why),
        None => none,
    };
    let disturbance = quiet.disturbance();
    [few, none].map(|claim| claim.disturbed(disturbance.as_deref())).into()
}

/// A cluster that has just begun, and knows nothing.
fn transient(shown: &PshiftRun) -> Claim {
    let PshiftRun { outcome, seconds } = shown;
    let over = above_percent(outcome);
    let seed = Some(outcome.seed);
    let source = ClaimSource {
        paper: PAPER,
        figure: "10",
        world: SIMULATED,
        seed,
        seconds: tenths(*seconds),
    };
    let measured = json!({ "above_limit_most_percent": thousandths(over) });
    source
        .claim(
            "in the first period of a new cluster no limit is exceeded by much",
            measured,
            [at_most("above it", "%", START_PERCENT, over)],
        )
        .ours()
}

/// By how much the worst tenant exceeds its limit in a period, in percent of it.
fn above_percent(outcome: &ClusterReport) -> f64 {
    let over = |(served, limit): (u64, u64)| (served as f64 / limit as f64 - 1.0) * 100.0;
    let limits = outcome
        .promises
        .iter()
        .map(|promise| promise.limit.map_or(u64::MAX, |limit| in_period(limit.0, outcome.period)));
    let limits: Vec<u64> = limits.collect();
    let periods = 0..outcome.periods();
    let pairs = periods.flat_map(|n| outcome.served(n).into_iter().zip(limits.iter().copied()));
    pairs.map(over).fold(0.0, f64::max)
}

fn picture(outcome: &ClusterReport, world: &str) -> String {
    let panel = |period: usize| {
        let count = outcome.samples.len() / outcome.periods().max(1);
        let samples = &outcome.samples[period * count..(period + 1) * count];
        let stack = |(number, sample): (usize, &Vec<u32>)| {
            let served = sample.iter().enumerate();
            let points = served.map(|(tenant, served)| (tenant as f64, f64::from(*served)));
            Series::stack(format!("interval {}", number + 1), points.collect())
        };
        let line = |level: &dyn Fn(usize) -> u64| {
            let at = |tenant| (tenant as f64, in_period(level(tenant), outcome.period) as f64);
            (0..outcome.promises.len()).map(at).collect::<Vec<_>>()
        };
        let reserved = line(&|tenant| outcome.promises[tenant].reservation.0);
        let limit = line(&|tenant| outcome.promises[tenant].limit.map_or(0, |limit| limit.0));
        let mut series: Vec<Series> = samples.iter().enumerate().map(stack).collect();
        series.push(Series::line("reserved", reserved));
        series.push(Series::line("limit", limit));
        Panel::new(
            format!("Period {}, {world}", period + 1),
            ["tenant", "operations in a period"],
            series,
        )
    };
    let panels: Vec<Panel> = (0..outcome.periods()).map(panel).collect();
    draw("Operations of 200 tenants on eight nodes with files", &panels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::Verdict;

    #[test]
    fn misses_and_excesses_are_seen() {
        let mut scenario = simulated::scenario(simulated::EXPERIMENT_5).unwrap();
        scenario.tenants.count = 20;
        let outcome = tidegate_sim::cluster::run(&scenario).unwrap();
        let verdicts = |change: &dyn Fn(&mut ClusterReport)| {
            let mut outcome = outcome.clone();
            for (tenant, promise) in outcome.promises.iter().enumerate() {
                // Exactly what is promised, in one sample of each period.
                let promised = in_period(promise.reservation.0, outcome.period) as u32;
                for (number, sample) in outcome.samples.iter_mut().enumerate() {
                    sample[tenant] = if number % 5 == 0 { promised } else { 0 };
                }
            }
            change(&mut outcome);
            let claims = claims(&PshiftRun { outcome, seconds: 1.0 }, LIVE, (3, Quiet::default()));
            claims.iter().map(|claim| claim.verdict).collect::<Vec<_>>()
        };
        let (good, bad) = (Verdict::Reproduced, Verdict::NotReproduced);
        assert_eq!(verdicts(&|_| {}), [good, good]);
        assert_eq!(verdicts(&|outcome| outcome.samples[0][0] = 0), [bad, good]);
        let limit = |outcome: &ClusterReport| {
            let limit = outcome.promises[0].limit.map_or(0, |limit| limit.0);
            in_period(limit, outcome.period) as u32
        };
        let above = |by: u32| {
            move |outcome: &mut ClusterReport| outcome.samples[0][0] = limit(outcome) + by
        };
        assert_eq!(verdicts(&above(3)), [good, bad]);
        assert_eq!(verdicts(&above(4)), [good, bad]);
        let mut first = outcome.clone();
        first.samples[0][0] = limit(&first) * 2;
        assert_eq!(transient(&PshiftRun { outcome: first, seconds: 1.0 }).verdict, Verdict::Fails);
    }
}
