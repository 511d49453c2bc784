//! Isolation at a node in virtual time: the node that ships in front of models of drives, where
//! nothing else disturbs the times.

use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;
use tidegate_model::Span;
use tidegate_netsim::isolation::NODE_DRIVE_MODELS;
use tidegate_sim::isolation::{
    BesideAggressor, Comparison, IsolationSetup, VictimFigures, served_percent,
};

use super::{BENCH, SERVED, TIMES_P99, USED};
use crate::bench::{Row, WindowPlan};

/// As many requests as a node of a cluster file has at its device, if the file does not say.
const DEPTH: u32 = 32;
const SEED: u64 = 1;
/// How long a run lasts before requests count, and how long they count then. In this time the
/// slowest model serves 4,700 requests of the victim, so that four of them are slower than the
/// percentile 99.9.
const SKIP: Span = Span(Span::SECOND.0);
const LENGTH: Span = Span(10 * Span::SECOND.0);
/// The node needs about a tenth of a second to see that it has to hold requests back.
const QUICK: Span = Span(500 * Span::MILLISECOND.0);

/// Runs the models, and reports the rows. They are the same on every machine.
///
/// # Errors
/// If the user interrupts the run.
pub(in crate::bench) fn rows(
    plan: WindowPlan,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let (skip, length) = if plan.is_full() { (SKIP, LENGTH) } else { (QUICK, QUICK) };
    let setup = IsolationSetup { depth: DEPTH, skip, length, seed: SEED };
    for model in NODE_DRIVE_MODELS {
        let goes_on = || interrupt.check().is_ok();
        let Some(comparison) = model.compare(setup, super::aggressors(plan), goes_on) else {
            return interrupt.check();
        };
        let gate = format!("simulated node, {}", model.name);
        alone(&gate, &comparison, report);
        comparison.rows.iter().for_each(|row| beside(&gate, &comparison, row, report));
    }
    Ok(())
}

/// A percentile of the victim.
type Percentile = fn(&VictimFigures) -> Span;
const PERCENTILES: [(&str, Percentile); 2] =
    [("p99", |figures| figures.p99), ("p99.9", |figures| figures.p999)];

/// The rows of the victim alone.
fn alone(gate: &str, comparison: &Comparison, report: &mut dyn FnMut(Row)) {
    for (name, percentile) in PERCENTILES {
        let time = percentile(&comparison.alone).0 as f64 / Span::MICROSECOND.0 as f64;
        let row = Row::less(BENCH, format!("{gate}, alone: {name}"), "us", Some(time));
        let Comparison { requested, capacity, .. } = comparison;
        report(row.noted(format!("{requested} reads/s, of {capacity} without control")));
    }
}

/// The rows of the victim beside one aggressor.
fn beside(
    gate: &str,
    comparison: &Comparison,
    beside: &BesideAggressor,
    report: &mut dyn FnMut(Row),
) {
    const PEER: &str = "no control";
    let case = |what: &str| format!("{gate}, {}: {what}", beside.aggressor);
    for (name, percentile) in PERCENTILES {
        let times = |figures| comparison.times(percentile, figures);
        let row = Row::less(BENCH, case(name), "ratio", Some(times(&beside.with)));
        report(row.promised(TIMES_P99).beside(PEER, Ok(times(&beside.without))));
    }
    let [ours, free] = [&beside.with, &beside.without].map(served_percent);
    let row = Row::more(BENCH, case("reads served"), "% asked", Some(ours));
    report(row.promised(SERVED).beside(PEER, Ok(free)));
    let used = comparison.used_percent(beside);
    report(Row::more(BENCH, case("the device"), "% used", Some(used)).promised(USED));
}
