//! Runs a scenario of one-sided access, and returns its results.

use tidegate_algo::onesided::engine::Promise;
use tidegate_model::{Iops, SessionSlot, Time};
use tidegate_onesided::haechi::monitor::MonitorSettings;
use tidegate_onesided::haechi::port::OWN_OPERATIONS;
use tidegate_onesided::haechi::{Monitor, Port, SessionParameters};

use super::network::{DEPTH, Loopback, Network};
use super::outcome::OneSidedReport;
use super::scenario::Scenario;
use super::world::{OneSidedSim, REGION};
use crate::scenario::ScenarioError;
use crate::time::Picoseconds;

/// More than a monitor needs for the largest number of session slots.
pub(super) const BUFFERS: u32 = 16;

/// Buffers of the engine in front of a client's connection.
pub(super) const ENGINE: u32 = 2;

/// Runs a scenario to its end.
///
/// # Errors
/// The errors of [`Scenario::check`], and the reason why the data node cannot grant a reservation.
pub fn run(scenario: &Scenario) -> Result<OneSidedReport, ScenarioError> {
    scenario.check()?;
    let real = tidegate_onesided::haechi::region_layout::DATA as usize;
    let network = Network::new(&scenario.nics, REGION, real, scenario.seed);
    let Some(rules) = scenario.control.rules() else {
        let connect = |window| Box::new(network.connect(window)) as _;
        return Ok(show(scenario, OneSidedSim::new(scenario, &network, connect)));
    };
    let local_rate = scenario.nics.client.0;
    let parameters = SessionParameters { rules, period: scenario.period, local_rate };
    let monitor = monitor(scenario, &network, parameters)?;
    let mut session_slots = (0..u16::MAX).map(SessionSlot);
    let mut world = OneSidedSim::new(scenario, &network, |window| {
        let session_slot = session_slots.next().unwrap_or(SessionSlot(u16::MAX));
        let remote = network.connect(window + ENGINE);
        // It has the buffers and the region that an engine needs.
        let port = Port::new(remote, parameters, session_slot, window, Time::ZERO);
        Box::new(port.expect("the fabric is large enough"))
    });
    world.watch(monitor);
    Ok(show(scenario, world))
}

/// The data node's monitor, with a session slot for each client in their order.
fn monitor(
    scenario: &Scenario,
    network: &Network,
    parameters: SessionParameters,
) -> Result<Monitor<Loopback>, ScenarioError> {
    let window = scenario.client.iter().map(|clients| clients.window).max().unwrap_or(1);
    let session_slots = scenario.client.iter().map(|clients| clients.count).sum();
    let settings =
        MonitorSettings { parameters, profile: scenario.profile(), session_slots, window };
    let remote = network.connect_node(BUFFERS);
    let mut monitor =
        Monitor::new(remote, settings, Time::ZERO).expect("the connection is large enough");
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

fn show(scenario: &Scenario, mut world: OneSidedSim) -> OneSidedReport {
    let length = Picoseconds::from(scenario.period);
    for _ in 0..scenario.skip {
        world.pass(length);
    }
    world.measure();
    OneSidedReport {
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
