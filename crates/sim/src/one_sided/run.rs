//! From a scenario to what it shows.

use tidegate_algo::haechi::engine::Promise;
use tidegate_model::{Iops, Time};
use tidegate_onesided::haechi::monitor::Settings;
use tidegate_onesided::haechi::port::OWN_OPERATIONS;
use tidegate_onesided::haechi::{Monitor, Port, Terms};

use super::client::Door;
use super::fabric::{DEPTH, Loopback, Network};
use super::outcome::Outcome;
use super::scenario::Scenario;
use super::world::{REGION, World};
use crate::scenario::ScenarioError;
use crate::time::Picoseconds;

/// More than a monitor needs for the seats that there can be.
pub(super) const BUFFERS: u32 = 16;

/// Buffers of the engine in front of a client's fabric.
pub(super) const ENGINE: u32 = 2;

/// Runs a scenario to its end.
///
/// # Errors
/// The errors of [`Scenario::check`], and the reason why the data node cannot grant a reservation.
pub fn run(scenario: &Scenario) -> Result<Outcome, ScenarioError> {
    scenario.check()?;
    let real = tidegate_onesided::haechi::place::DATA as usize;
    let network = Network::new(&scenario.cards, REGION, real, scenario.seed);
    let Some(rules) = scenario.control.rules() else {
        let door = |window| network.connect(window);
        return Ok(show(scenario, World::new(scenario, &network, door)));
    };
    let local_rate = scenario.cards.client.0;
    let terms = Terms { rules, period: scenario.period, local_rate };
    let monitor = monitor(scenario, &network, terms)?;
    let mut seats = 0..;
    let mut world = World::new(scenario, &network, |window| {
        let seat = seats.next().unwrap_or(u16::MAX);
        let fabric = network.connect(window + ENGINE);
        // It has the buffers and the region that an engine needs.
        Port::new(fabric, terms, seat, window, Time::ZERO).expect("the fabric is large enough")
    });
    world.watch(monitor);
    Ok(show(scenario, world))
}

/// The data node's monitor, with a seat for each client in their order.
fn monitor(
    scenario: &Scenario,
    network: &Network,
    terms: Terms,
) -> Result<Monitor<Loopback>, ScenarioError> {
    let window = scenario.client.iter().map(|clients| clients.window).max().unwrap_or(1);
    let seats = scenario.client.iter().map(|clients| clients.count).sum();
    let settings = Settings { terms, profile: scenario.profile(), seats, window };
    let fabric = network.connect_node(BUFFERS);
    let mut monitor =
        Monitor::new(fabric, settings, Time::ZERO).expect("the fabric is large enough");
    for clients in &scenario.client {
        let amount = |rate: Option<Iops>| rate.map(|rate| scenario.in_a_period(rate));
        let promise = Promise {
            reservation: amount(clients.reservation).unwrap_or(0),
            limit: amount(clients.limit).unwrap_or(u64::MAX),
        };
        for _ in 0..clients.count {
            monitor.admit(promise).map_err(|denied| ScenarioError::new(denied.to_string()))?;
        }
    }
    Ok(monitor)
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
        events: world.events(),
    }
}

const _: () = assert!(DEPTH >= 1024 + OWN_OPERATIONS as usize, "a window and an engine fit");
