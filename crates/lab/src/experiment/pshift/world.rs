//! The simulated world: the scenarios, and running them several at a time.

use tidegate_sim::cluster::{self, Outcome};
use tidegate_sim::scenario::Scenario;

use super::Desk;
use super::paper::{self, scenarios, simulate, wrong};
use tidegate_console::failure::Failure;

scenarios! {
    "pshift":
    EXPERIMENT_1 = "experiment-1";
    EXPERIMENT_2 = "experiment-2";
    EXPERIMENT_3_IN_TURN = "experiment-3-in-turn";
    EXPERIMENT_3_RESERVATIONS = "experiment-3-reservations";
    EXPERIMENT_3_LIMITS = "experiment-3-limits";
    EXPERIMENT_4_IN_TURN = "experiment-4-in-turn";
    EXPERIMENT_4 = "experiment-4";
    EXPERIMENT_4_200_IN_TURN = "experiment-4-200-in-turn";
    EXPERIMENT_4_200 = "experiment-4-200";
    EXPERIMENT_5 = "experiment-5";
}

/// Reads one of them.
///
/// # Errors
/// None: a test reads them all.
pub(super) fn scenario(text: &str) -> Result<Scenario, Failure> {
    Scenario::parse(text).map_err(wrong)
}

/// A scenario's outcome, with the time that the run took.
pub(super) type Shown = paper::Shown<Outcome>;

/// Runs one.
///
/// # Errors
/// If the user ends the command.
pub(super) fn run(desk: &Desk, scenario: Scenario) -> Result<Shown, Failure> {
    let mut shown = run_all(desk, vec![scenario])?;
    // As many come out as went in.
    Ok(shown.remove(0))
}

/// Runs all of them, and gives what they show in their order.
///
/// # Errors
/// If the user ends the command. What runs then ends with the process.
pub(super) fn run_all(desk: &Desk, scenarios: Vec<Scenario>) -> Result<Vec<Shown>, Failure> {
    simulate(desk, scenarios, cluster::run)
}
