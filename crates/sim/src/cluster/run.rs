//! Runs the scenario of a simulated cluster, and returns its results.

use tidegate_model::gate::Burst;
use tidegate_model::policy::{self, Account, Extent, Fallback, Levels, Resource, Tenant};
use tidegate_model::{Class, Iops, Policy, Rate, Span};

use super::clients::SimPromise;
use super::nodes::{ClusterEvent, ClusterSim, LENGTH, Setup};
use super::outcome::{ClusterReport, Move, in_period};
use crate::link::Conduct;
use crate::rng::{Stream, Zipf, apportion};
use crate::scenario::{Control, Per, Scenario, ScenarioError};
use crate::time::Picoseconds;

/// Runs a scenario to its end.
///
/// # Errors
/// The errors of [`Scenario::check`].
pub fn run(scenario: &Scenario) -> Result<ClusterReport, ScenarioError> {
    scenario.check()?;
    let promises = promises(scenario);
    let mut world = ClusterSim::of(setup(scenario, &promises));
    let period = Picoseconds::from(scenario.period);
    let from = Picoseconds(period.0 * u64::from(scenario.skip));
    let start = Picoseconds::from(scenario.load.start);
    let tenants = promises.len() as u32;
    (0..tenants).for_each(|tenant| world.plan(start, ClusterEvent::Move { tenant }));
    let mut moves = moves(scenario);
    moves.retain(|moved| moved.at > start);
    for moved in &moves {
        world.plan(moved.at, ClusterEvent::Move { tenant: moved.tenant as u32 });
    }
    moves.retain(|moved| moved.at >= from);
    moves.iter_mut().for_each(|moved| moved.at = moved.at.since(from));

    world.run_until(from);
    let mut before = sums(&world, promises.len());
    let mut samples = Vec::new();
    let sample = Picoseconds::from(scenario.sample);
    let count = u64::from(scenario.periods) * (scenario.period.0 / scenario.sample.0);
    for number in 1..=count {
        world.run_until(from.after(Picoseconds(sample.0 * number)));
        let sums = sums(&world, promises.len());
        let grown = sums.iter().zip(&before).map(|(now, before)| (now - before) as u32);
        samples.push(grown.collect());
        before = sums;
    }
    Ok(ClusterReport {
        seed: scenario.seed,
        period: scenario.period,
        sample: scenario.sample,
        promises,
        samples,
        moves,
        submitted: world.peers.requests.submitted,
        answered: world.peers.requests.answered,
        to_nodes: world.messages.0,
        from_nodes: world.messages.1,
        events: world.passed,
    })
}

/// Returns the answered requests of each tenant so far.
fn sums(world: &ClusterSim, tenants: usize) -> Vec<u64> {
    let width = world.peers.served.len() / tenants;
    world.peers.served.chunks(width).map(|nodes| nodes.iter().sum()).collect()
}

fn setup(scenario: &Scenario, promises: &[SimPromise]) -> Setup {
    let nothing = vec![SimPromise::default(); promises.len()];
    let promised = match scenario.control {
        Control::None => &nothing,
        Control::Tokens => promises,
    };
    let link = Conduct {
        least: scenario.messages.least.into(),
        most: scenario.messages.most.into(),
        ..Conduct::default()
    };
    Setup {
        seed: scenario.seed,
        period: scenario.period,
        nodes: scenario.nodes.clone(),
        promises: promises.to_vec(),
        load: scenario.load.clone(),
        links: vec![link; usize::from(scenario.nodes.count)],
        policy: policy(scenario.period, scenario.redistribute, promised),
    }
}

/// The policy that promises this.
pub(crate) fn policy(period: Span, redistribute: Span, promises: &[SimPromise]) -> Policy {
    let levels = |operations: Option<Iops>| Levels { operations, ..Levels::default() };
    let tenant = |(number, promise): (usize, &SimPromise)| Tenant {
        name: format!("t{number}"),
        class: Class::default(),
        reservation: levels(Some(promise.reservation).filter(|level| level.0 > 0)),
        limit: levels(promise.limit),
        weight: Policy::WEIGHT,
        burst: Burst::default(),
        minimum_share: None,
        users: Vec::new(),
        group: None,
    };
    Policy {
        period,
        redistribute,
        budget: Levels::default(),
        account: Account::default(),
        fallback: Fallback::default(),
        class_weights: None,
        tenants: promises.iter().enumerate().map(tenant).collect(),
        channels: Vec::new(),
        matches: Vec::new(),
        resources: Vec::new(),
        groups: Vec::new(),
    }
}

/// The same promises in bytes, of the nodes as a named resource: each operation is a request of
/// [`LENGTH`] bytes.
pub(crate) fn in_bytes(policy: &Policy) -> Policy {
    let in_bytes = |levels: Levels| {
        let bytes = |iops: Iops| Rate(iops.0 * u64::from(LENGTH));
        Levels { bandwidth: levels.operations.map(bytes), operations: None }
    };
    let promise = |tenant: &Tenant| policy::Promise {
        reservation: in_bytes(tenant.reservation),
        limit: in_bytes(tenant.limit),
        weight: tenant.weight,
    };
    let resource = Resource {
        measured: None,
        name: "cluster".into(),
        extent: Extent::Nodes,
        capacity: Levels::default(),
        tenants: policy.tenants.iter().map(promise).collect(),
        groups: Vec::new(),
    };
    let mut policy = Policy { resources: vec![resource], ..policy.clone() };
    for tenant in &mut policy.tenants {
        (tenant.reservation, tenant.limit) = (Levels::default(), Levels::default());
    }
    policy
}

/// Returns the reservation, limit and demand of each tenant.
fn promises(scenario: &Scenario) -> Vec<SimPromise> {
    let tenants = &scenario.tenants;
    let count = usize::from(tenants.count);
    let reservations = match tenants.reserved_percent {
        None => vec![tenants.reservation.map_or(0, |level| level.0); count],
        Some(percent) => {
            let zipf = Zipf::new(count, tenants.zipf.0);
            let mut random = Stream::new(scenario.seed, "reservations", 0);
            let draw = |_| zipf.weight(zipf.draw(&mut random));
            let weights: Vec<u64> = (0..count).map(draw).collect();
            let capacity = u64::from(scenario.nodes.count) * scenario.nodes.rate.0;
            let mut parts = apportion(capacity * u64::from(percent) / 100, &weights);
            // From the largest to the smallest, so that a tenant's number is its rank.
            parts.sort_unstable_by(|one, other| other.cmp(one));
            parts
        }
    };
    let demand = scenario.load.open.as_ref().map_or(0, |open| open.demand_percent);
    let promise = |reservation: u64| SimPromise {
        reservation: Iops(reservation),
        limit: match tenants.limit_percent {
            None => tenants.limit,
            Some(percent) => Some(Iops((reservation * u64::from(percent) / 100).max(1))),
        },
        demand: (in_period(reservation, scenario.period) * u128::from(demand)).div_ceil(100) as u64,
    };
    reservations.into_iter().map(promise).collect()
}

/// When tenants move, in the order of time.
fn moves(scenario: &Scenario) -> Vec<Move> {
    let [least, most] = scenario.load.changes;
    let period = Picoseconds::from(scenario.period).0;
    let (skip, periods) = (u64::from(scenario.skip), u64::from(scenario.periods));
    let spans: Vec<(u64, u64)> = match scenario.load.changes_per {
        Per::Period => (0..skip + periods).map(|n| (n * period, (n + 1) * period)).collect(),
        Per::Run => vec![(skip * period, (skip + periods) * period)],
    };
    let mut moves = Vec::new();
    for tenant in 0..usize::from(scenario.tenants.count) {
        let mut random = Stream::new(scenario.seed, "changes", tenant as u64);
        for (from, to) in &spans {
            for _ in 0..random.within(u64::from(least), u64::from(most)) {
                moves.push(Move { at: Picoseconds(random.within(*from, to - 1)), tenant });
            }
        }
    }
    moves.sort_by_key(|moved| (moved.at, moved.tenant));
    moves
}
