//! Runs a DSFQ scenario to its end, and samples the streams' service into a [`DsfqReport`].

use tidegate_model::{Policy, Portion, Span};

use super::nodes::DsfqSim;
use super::outcome::DsfqReport;
use super::scenario::DsfqScenario;
use crate::cluster::{SimPromise, policy};
use crate::scenario::ScenarioError;
use crate::time::Picoseconds;

/// The period over which promises are counted, and the time between two distributions of tokens.
const PERIOD: Span = Span::SECOND;
const REDISTRIBUTE: Span = Span(200 * Span::MILLISECOND.0);

/// Runs a scenario to its end.
///
/// # Errors
/// The errors of [`DsfqScenario::check`].
pub fn run(scenario: &DsfqScenario) -> Result<DsfqReport, ScenarioError> {
    scenario.check()?;
    let mut world = DsfqSim::steady(scenario, promised(scenario));
    let from = Picoseconds::from(scenario.skip);
    world.run_until(from);
    world.take_sample();
    let count = scenario.length.0 / scenario.sample.0;
    let sample = |number| {
        world.run_until(from.after(Picoseconds(Picoseconds::from(scenario.sample).0 * number)));
        world.take_sample()
    };
    let samples = (1..=count).map(sample).collect();
    Ok(DsfqReport {
        seed: scenario.seed,
        sample: scenario.sample,
        streams: scenario.stream.iter().map(|stream| stream.name.clone()).collect(),
        bricks: usize::from(scenario.bricks.count),
        samples,
        unfairness: world.peers.unfairness,
        announced: world.peers.announced,
        events: world.passed,
    })
}

/// The policy that a scenario's streams are under.
pub(crate) fn promised(scenario: &DsfqScenario) -> Policy {
    let promise = |stream: &super::ClientStream| SimPromise {
        reservation: stream.reservation.unwrap_or_default(),
        limit: stream.limit,
        demand: 0,
    };
    let promises: Vec<SimPromise> = scenario.stream.iter().map(promise).collect();
    let mut policy = policy(PERIOD, REDISTRIBUTE, &promises);
    policy.class_weights = scenario.class_weights;
    for (tenant, stream) in policy.tenants.iter_mut().zip(&scenario.stream) {
        tenant.name.clone_from(&stream.name);
        tenant.weight = stream.weight;
        tenant.class = stream.class;
        tenant.minimum_share = stream.minimum_ppm.map(Portion);
    }
    policy
}
