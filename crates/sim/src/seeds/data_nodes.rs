//! Fault injection, Haechi: data nodes among which a controller divides promises.
//!
//! - *No share is created*: at any time the shares at all nodes add up to the promise or less, and
//!   so do what they allow and the limit. Less that a new policy promises counts once it is calm.
//! - *No node is promised more than it can do.*
//! - *None is lost*: once it is calm, they add up to the promise but for a fiftieth, which may be
//!   on its way from one node to another.
//! - *Every promise is met* in the calm, but for a fiftieth: a tenant that asks for more than it is
//!   promised is served its reservation at all nodes together, wherever it asks.

use tidegate_model::policy::Tenant;
use tidegate_model::{Iops, Policy, Span};
use tidegate_onesided::data_node::ShareAgent;
use tidegate_onesided::data_node::registry::TenantShare;

use super::nodes;
use crate::link::Conduct;
use crate::one_sided::nodes::{
    Move, NodesControl, OneSidedClusterScenario, OneSidedClusterSim, PolicyEvent, Tenants,
};
use crate::one_sided::{NicModel, Order, Service};
use crate::rng::Stream;
use crate::simulation::Fault;
use crate::time::Picoseconds;
use crate::trial::{Inspection, Phases, Trial};

const PERIOD: Span = Span(250 * Span::MILLISECOND.0);

/// The run of a seed.
pub(super) struct DataNodeTrial {
    scenario: OneSidedClusterScenario,
    simulation: OneSidedClusterSim,
    /// The reservations of the policies so far, and their limits.
    most: Vec<[u64; 2]>,
}

impl DataNodeTrial {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Stream::new(seed, "data nodes", 0);
        let scenario = scenario(seed, &mut random);
        // A connection loses no message, and ends where its link is cut.
        let weather = nodes::weather(&mut random, PERIOD);
        let weather = Conduct { lost: 0, doubled: 0, stray: 0, ..weather };
        let mut links = vec![weather; usize::from(scenario.nodes)];
        let mut faults = nodes::faults(&mut random, PERIOD, &mut links);
        for (node, link) in (0..).zip(&links) {
            faults.extend(link.cuts.iter().map(|(from, _)| (*from, Fault::Hangs(node))));
        }
        faults.extend(nodes::stops(seed, PERIOD, scenario.nodes));
        let simulation = OneSidedClusterSim::of(&scenario, &links);
        let mut simulation = simulation.expect("the policy can be read");
        // Some have limits above their demands; and promises are less for a while.
        let policy = &mut simulation.peers.policy;
        for (tenant, (_, plan)) in policy.tenants.iter_mut().zip(scenario.each()) {
            let limit = plan.demand.unwrap_or_default().0 * random.within(2, 3);
            tenant.limit.operations = (random.below(3) == 0).then_some(Iops(limit));
        }
        let most = promises(policy);
        let (mut less, all) = (policy.clone(), policy.clone());
        for tenant in &mut less.tenants {
            let part = random.within(1, 4);
            tenant.reservation.operations =
                tenant.reservation.operations.map(|rate| Iops(rate.0 * part / 4));
        }
        if random.below(2) == 0 {
            for policy in [less, all] {
                let at = nodes::moment(&mut random, PERIOD);
                simulation.plan(at, PolicyEvent::Apply(Box::new(policy)));
            }
        }
        simulation.start();
        simulation.begin();
        faults.into_iter().for_each(|(at, fault): (_, Fault)| simulation.plan_fault(at, fault));
        Self { scenario, simulation, most }
    }
}

/// The reservation and the limit of each tenant.
fn promises(policy: &Policy) -> Vec<[u64; 2]> {
    let promise = |tenant: &Tenant| {
        let limit = tenant.limit.operations.map_or(u64::MAX, |limit| limit.0);
        [tenant.reservation.operations.unwrap_or_default().0, limit]
    };
    policy.tenants.iter().map(promise).collect()
}

/// Nodes of which a half is promised, and tenants with hot nodes.
fn scenario(seed: u64, random: &mut Stream) -> OneSidedClusterScenario {
    let nodes = random.within(2, 4) as u16;
    let rate = random.within(8_000, 16_000);
    let count = random.within(1, 4);
    let mut tenant = |_| {
        let most = rate * u64::from(nodes) / (2 * count);
        let reservation = random.within(most / 4, most.min(rate / 2));
        let demand = reservation * random.within(105, 150) / 100;
        let exponent = random.below(3) as f64 / 2.0;
        let [reservation, demand] = [reservation, demand].map(|rate| Some(Iops(rate)));
        Tenants { count: 1, reservation, demand, exponent }
    };
    let tenant = (0..count).map(&mut tenant).collect();
    OneSidedClusterScenario {
        name: String::new(),
        seed,
        control: NodesControl::Split,
        period: PERIOD,
        redistribute: Span(PERIOD.0 / random.within(2, 5)),
        skip: 0,
        periods: 1,
        nodes,
        nics: NicModel {
            client: Iops(rate * 3 / 4),
            node: Iops(rate),
            round_trip: Span(5_000),
            order: Order::Arrival,
            service: Service::Constant,
        },
        tenant,
        window: 8,
        relocation: Some(Move { at: Span(8 * PERIOD.0), by: random.below(nodes.into()) as u16 }),
    }
}

impl Trial for DataNodeTrial {
    fn phases(&self) -> Phases {
        Phases { heal: 12, ..nodes::phases(PERIOD) }
    }

    fn now(&self) -> Picoseconds {
        self.simulation.now
    }

    fn run_until(&mut self, end: Picoseconds) -> Result<(), String> {
        self.simulation.advance(end);
        Ok(())
    }

    fn inspect(&mut self, inspection: Inspection) -> Result<(), String> {
        let shares = self.simulation.shares(|it, name| it.registry.share(name));
        let in_force = self.simulation.shares(ShareAgent::in_force);
        let promises = match inspection.is_calm {
            true => promises(&self.simulation.peers.policy),
            false => self.most.clone(),
        };
        let sum = |shares: &[TenantShare]| shares.iter().map(|share| share.reserved).sum::<u64>();
        for (index, ([promised, limit], in_force)) in promises.iter().zip(&in_force).enumerate() {
            // A process that is new has no limit until its first grant comes.
            let has_grant = |share: &&TenantShare| inspection.is_calm || share.allowed < u64::MAX;
            let allowed = in_force.iter().filter(has_grant).map(|share| share.allowed);
            let allowed = allowed.fold(0, u64::saturating_add);
            if sum(in_force) > *promised || allowed > *limit {
                return Err(format!(
                    "t{index} is promised {promised} of {limit}, has {in_force:?}"
                ));
            }
            let is_end = inspection.is_calm && inspection.part == 0;
            if is_end && sum(&shares[index]) < promised - promised / 50 {
                return Err(format!("t{index} is promised {promised}, has {:?}", shares[index]));
            }
        }
        for node in 0..usize::from(self.scenario.nodes) {
            let sum: u64 = shares.iter().map(|shares| shares[node].reserved).sum();
            if sum > self.scenario.nics.node.0 {
                return Err(format!("{sum} are promised at node {node}: {shares:?}"));
            }
        }
        if inspection.part > 0 {
            return Ok(());
        }
        let sample = self.simulation.sample();
        for (index, [promised, _]) in promises.iter().enumerate().filter(|_| inspection.is_calm) {
            let (served, shares) = (&sample.completed[index], &shares[index]);
            let promised = promised * PERIOD.0 / Span::SECOND.0;
            if served.iter().sum::<u64>() < promised - promised / 50 {
                return Err(format!("t{index} got {served:?} of {promised}, with {shares:?}"));
            }
        }
        self.simulation.begin();
        Ok(())
    }

    fn trace(&self) -> u64 {
        self.simulation.trace
    }
}
