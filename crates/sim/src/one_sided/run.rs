//! From a scenario to what it shows.

use super::client::Door;
use super::outcome::Outcome;
use super::scenario::{Control, Scenario};
use super::world::World;
use crate::scenario::ScenarioError;
use crate::time::Picoseconds;

/// Runs a scenario to its end.
///
/// # Errors
/// What [`Scenario::check`] says.
pub fn run(scenario: &Scenario) -> Result<Outcome, ScenarioError> {
    scenario.check()?;
    Ok(match scenario.control {
        Control::None => show(scenario, World::new(scenario, |endpoint| endpoint)),
    })
}

fn show<D: Door>(scenario: &Scenario, mut world: World<D>) -> Outcome {
    let length = Picoseconds::from(scenario.period);
    for _ in 0..scenario.skip {
        world.pass(length);
    }
    world.measure();
    Outcome {
        seed: scenario.seed,
        period: scenario.period,
        promised: scenario.promised(),
        samples: (0..scenario.periods).map(|_| world.pass(length)).collect(),
        latency: world.latencies(),
        counts: world.counts(),
    }
}
