//! pShift, simulated: the scenarios, and running them several at a time.

use tidegate_sim::cluster::{self, ClusterReport};
use tidegate_sim::scenario::Scenario;

use super::FigureContext;
use super::paper::{self, scenarios, simulate, wrong};
use tidegate_console::failure::Failure;

scenarios! {
    "pshift":
    EXPERIMENT_1 = "experiment-1";
    EXPERIMENT_2 = "experiment-2";
    EXPERIMENT_3_ROUND_ROBIN = "experiment-3-in-turn";
    EXPERIMENT_3_RESERVATIONS = "experiment-3-reservations";
    EXPERIMENT_3_LIMITS = "experiment-3-limits";
    EXPERIMENT_4_ROUND_ROBIN = "experiment-4-in-turn";
    EXPERIMENT_4 = "experiment-4";
    EXPERIMENT_4_200_ROUND_ROBIN = "experiment-4-200-in-turn";
    EXPERIMENT_4_200 = "experiment-4-200";
    EXPERIMENT_5 = "experiment-5";
}

/// Requests that may be begun in one period and end in the next: each node has its depth of them.
pub(super) fn slack(scenario: &Scenario) -> u64 {
    u64::from(scenario.nodes.depth) * u64::from(scenario.nodes.count)
}

pub(super) fn scenario(text: &str) -> Result<Scenario, Failure> {
    Scenario::parse(text).map_err(wrong)
}

/// A scenario's outcome, with the time that the run took.
pub(super) type PshiftRun = paper::TimedRun<ClusterReport>;

pub(super) fn run(context: &FigureContext, scenario: Scenario) -> Result<PshiftRun, Failure> {
    let mut shown = run_all(context, vec![scenario])?;
    // As many come out as went in.
    Ok(shown.remove(0))
}

/// Runs all of them, and gives what they show in their order.
///
/// # Errors
/// If the user ends the command. Runs under way end with the process.
pub(super) fn run_all(
    context: &FigureContext,
    scenarios: Vec<Scenario>,
) -> Result<Vec<PshiftRun>, Failure> {
    simulate(context, scenarios, cluster::run)
}
