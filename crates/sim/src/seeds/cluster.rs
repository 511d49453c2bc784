//! Fault injection, pShift: a cluster with random nodes, promises, load and faults.
//!
//! Besides what must hold of all storage nodes, *every feasible reservation is met* in every period
//! of the calm. The smallest cut over all sets of nodes, found by trying them all, decides which
//! are feasible.

use tidegate_model::{Iops, Policy, Span};

use super::nodes::{self, NodeInvariants, moment, weather};
use crate::cluster::{ClusterEvent, ClusterSim, Promised, Setup, SimPromise, in_bytes, policy};
use crate::rng::Stream;
use crate::scenario::{Arrivals, Closed, Halves, Load, Nodes, Open, Pacing, Per};
use crate::time::Picoseconds;
use crate::trial::{Inspection, Phases, Trial};

/// The cluster and its load.
fn setup(seed: u64, random: &mut Stream) -> Setup {
    let period = Span([100, 200, 400][random.below(3) as usize] * Span::MILLISECOND.0);
    let rounds = [2, 4, 5][random.below(3) as usize];
    let nodes = Nodes {
        count: random.within(1, 5) as u16,
        rate: Iops(random.within(500, 2_000)),
        spread_percent: random.within(0, 30) as u32,
        depth: random.within(1, 4) as u32,
        shards: Stream::new(seed, "shards", 0).within(1, 4) as usize,
        pacing: if random.below(4) == 0 { Pacing::Paper } else { Pacing::Even },
    };
    let promises = promises(random, &nodes, period);
    let load = load(random, nodes.count);
    Setup {
        seed,
        period,
        links: vec![weather(random, period); usize::from(nodes.count)],
        policy: policy(period, Span(period.0 / rounds), &promises),
        nodes,
        promises,
        load,
    }
}

fn promises(random: &mut Stream, nodes: &Nodes, period: Span) -> Vec<SimPromise> {
    let count = random.within(1, 6);
    let capacity = u64::from(nodes.count) * nodes.rate.0;
    let reserved = capacity * random.within(20, 90) / 100;
    let demand_percent = random.within(50, 200);
    let promise = |_| {
        let share = random.within(0, 2 * reserved / count);
        let reservation = if random.below(4) == 0 { 0 } else { share.min(nodes.rate.0) };
        let fair = reservation.max(capacity / count / 4).max(10);
        let is_limited = random.below(2) == 0;
        let limit = is_limited.then(|| Iops(fair * random.within(120, 300) / 100));
        let demand = fair * demand_percent / 100 * period.0 / Span::SECOND.0;
        SimPromise { reservation: Iops(reservation), limit, demand }
    };
    (0..count).map(promise).collect()
}

fn load(random: &mut Stream, nodes: u16) -> Load {
    let least = random.within(1, u64::from(nodes)) as u16;
    let most = random.within(u64::from(least), u64::from(nodes)) as u16;
    let arrivals = if random.below(2) == 0 { Arrivals::Constant } else { Arrivals::Poisson };
    let open = Open { demand_percent: 0, zipf: Halves(random.below(3) as u32), arrivals };
    let closed = Closed { outstanding: random.within(4, 12) as u32, striped: false };
    let is_open = random.below(2) == 0;
    Load {
        start: Span::ZERO,
        active: Some([least, most]),
        on: None,
        changes: [0, 0],
        changes_per: Per::Run,
        open: is_open.then_some(open),
        closed: (!is_open).then_some(closed),
    }
}

/// The run of a seed.
pub(super) struct ClusterTrial {
    setup: Setup,
    simulation: ClusterSim,
    invariants: NodeInvariants,
    /// Requests made and answered before this period, by tenant and node.
    arrived: Vec<u64>,
    served: Vec<u64>,
}

impl ClusterTrial {
    /// The run of a seed with promises in operations.
    pub(super) fn new(seed: u64) -> Self {
        Self::of(seed, Policy::clone)
    }

    /// The same with promises in bytes.
    pub(super) fn in_bytes(seed: u64) -> Self {
        Self::of(seed, in_bytes)
    }

    fn of(seed: u64, promising: fn(&Policy) -> Policy) -> Self {
        let mut random = Stream::new(seed, "fire", 0);
        let mut setup = setup(seed, &mut random);
        setup.policy = promising(&setup.policy);
        let (period, tenants) = (setup.period, setup.promises.len() as u32);
        let mut faults = nodes::faults(&mut random, period, &mut setup.links);
        faults.extend(nodes::stops(seed, period, setup.nodes.count));
        let mut simulation = ClusterSim::of(setup.clone());
        (0..tenants)
            .for_each(|tenant| simulation.plan(simulation.now, ClusterEvent::Move { tenant }));
        if setup.load.active.is_some() {
            for _ in 0..random.below(3) * u64::from(tenants) {
                let tenant = random.below(tenants.into()) as u32;
                simulation.plan(moment(&mut random, period), ClusterEvent::Move { tenant });
            }
        }
        faults.into_iter().for_each(|(at, fault)| simulation.plan_fault(at, fault));
        let nothing = vec![0; simulation.peers.served.len()];
        let depth = u64::from(setup.nodes.count) * u64::from(setup.nodes.depth);
        let invariants = NodeInvariants::new(&setup.policy, depth);
        Self { setup, simulation, invariants, arrived: nothing.clone(), served: nothing }
    }

    /// Returns the requests of a tenant that were answered in this period.
    fn served(&self, tenant: usize) -> u64 {
        self.grown(&self.simulation.peers.served, &self.served, tenant).iter().sum()
    }

    /// Checks that each tenant got its reservation, if that was feasible.
    fn reservations(&self) -> Result<(), String> {
        let setup = &self.setup;
        let demands: Vec<Vec<u64>> = (0..setup.promises.len()).map(|t| self.demand(t)).collect();
        let want = |(promised, demand): (&Promised, &Vec<u64>)| {
            let tokens = promised.reserved.min(promised.limit.unwrap_or(u64::MAX));
            demand.iter().sum::<u64>().min(tokens / self.invariants.tokens)
        };
        let wants: Vec<u64> = self.invariants.promised.iter().zip(&demands).map(want).collect();
        // A tenth is left for the unknown arrival of requests within the period.
        let capacity = per_period(setup.nodes.rate.0 * 9 / 10, setup.period);
        let capacities = vec![capacity; usize::from(setup.nodes.count)];
        if smallest_cut(&wants, &demands, &capacities) < wants.iter().sum() {
            return Ok(());
        }
        for (tenant, want) in wants.iter().enumerate() {
            let served = self.served(tenant);
            if served < slack(*want) {
                return Err(format!(
                    "t{tenant} could have got {want} of its reservation, and got {served}"
                ));
            }
        }
        Ok(())
    }

    /// Returns the requests that a tenant could have been served in this period, by node: those
    /// that came in it. In a closed loop each answer makes the next request, so the node's rate
    /// bounds the number.
    fn demand(&self, tenant: usize) -> Vec<u64> {
        let setup = &self.setup;
        let came = self.grown(&self.simulation.peers.arrived, &self.arrived, tenant);
        let Some(closed) = &setup.load.closed else { return came };
        // With so many requests outstanding, and those at the device before each of them.
        let (outstanding, depth) = (u64::from(closed.outstanding), u64::from(setup.nodes.depth));
        let rate = setup.nodes.rate.0 * outstanding / (outstanding + 2 * depth);
        let most = per_period(rate, setup.period);
        came.iter().map(|came| if *came > 0 { most } else { 0 }).collect()
    }

    fn grown(&self, now: &[u64], before: &[u64], tenant: usize) -> Vec<u64> {
        let width = usize::from(self.setup.nodes.count);
        let nodes = tenant * width..(tenant + 1) * width;
        now[nodes.clone()].iter().zip(&before[nodes]).map(|(now, before)| now - before).collect()
    }
}

impl Trial for ClusterTrial {
    fn phases(&self) -> Phases {
        nodes::phases(self.setup.period)
    }

    fn now(&self) -> Picoseconds {
        self.simulation.now
    }

    fn run_until(&mut self, end: Picoseconds) -> Result<(), String> {
        self.simulation.run_until(end);
        Ok(())
    }

    fn inspect(&mut self, inspection: Inspection) -> Result<(), String> {
        let (nodes, peers) = (self.simulation.statuses(), &self.simulation.peers);
        self.invariants.inspect(inspection, &nodes, &peers.requests)?;
        if inspection.part == 0 {
            let tenants = 0..self.setup.promises.len();
            let served: Vec<u64> = tenants.map(|tenant| self.served(tenant)).collect();
            self.invariants.end_period(&served)?;
            if inspection.is_calm {
                self.reservations()?;
            }
            self.arrived.clone_from(&self.simulation.peers.arrived);
            self.served.clone_from(&self.simulation.peers.served);
        }
        Ok(())
    }

    fn trace(&self) -> u64 {
        self.simulation.trace
    }
}

/// Returns the least service of a reservation of so many requests: all but 3 % and five requests of
/// a period.
fn slack(want: u64) -> u64 {
    (want * 97 / 100).saturating_sub(5)
}

fn per_period(per_second: u64, period: Span) -> u64 {
    (u128::from(per_second) * u128::from(period.0) / u128::from(Span::SECOND.0)) as u64
}

/// The most tokens that can be consumed: the smallest, over all sets of nodes, of what the set
/// can do and what each tenant can use outside of it. By trying all sets, so that it is right.
fn smallest_cut(wants: &[u64], demands: &[Vec<u64>], capacities: &[u64]) -> u64 {
    let cut = |set: u32| {
        let within = |node: &usize| set >> node & 1 == 1;
        let nodes = 0..capacities.len();
        let inside: u64 = nodes.clone().filter(within).map(|node| capacities[node]).sum();
        let outside = |demand: &Vec<u64>| -> u64 {
            nodes.clone().filter(|node| !within(node)).map(|node| demand[node]).sum()
        };
        let used = wants.iter().zip(demands).map(|(want, demand)| outside(demand).min(*want));
        inside + used.sum::<u64>()
    };
    (0..1 << capacities.len()).map(cut).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cut_of_the_papers_third_example() {
        let demands = [vec![150, 50, 0], vec![0, 150, 50], vec![50, 0, 50]];
        assert_eq!(smallest_cut(&[100; 3], &demands, &[100; 3]), 300);
        // Red has no demand at the second node, which then is no broker: of the demand at the first
        // node it can do 100.
        let demands = [vec![150, 0, 0], vec![0, 150, 50], vec![50, 0, 50]];
        assert_eq!(smallest_cut(&[100; 3], &demands, &[100; 3]), 250);
    }
}
