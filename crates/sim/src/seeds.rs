//! A cluster under faults, made from one number, and what must hold whatever happens to it.
//!
//! **Problem.** A cluster keeps its promises easily while nothing fails. It must also keep them
//! while messages are lost, late and doubled, links are cut, and nodes and controllers die and come
//! back.
//!
//! **Mechanism.** A seed becomes a small cluster, a policy, a load and a list of faults
//! ([`FaultScenario`]). For some periods everything happens; then it is calm. The world is looked
//! at twenty times in a period ([`check`]):
//!
//! - *No request is lost or answered twice*: those that were made and not settled are those that
//!   nodes hold.
//! - *No token is created*: what is reserved and what is allowed at all nodes in one period never
//!   exceeds the promise. *None is destroyed*: once it is calm, the reservation is in force whole.
//! - *No limit is exceeded* by more than one interval's worth, in any period.
//! - *Every feasible reservation is met* in every period of the calm. The smallest cut over all
//!   sets of nodes, found by trying them all, decides which are feasible.
//!
//! **Exceptions**, as the decision about counts has them: a node that has lost its lease, or has
//! not received the policy yet, is not bound by limits.

use std::collections::BTreeSet;

use tidegate_model::{Iops, Span};
use tidegate_proto::cluster::LAST_PART;
use tidegate_proto::node::{NodeStatus, TenantStatus};

use crate::cluster::{ClusterSim, Event, Promise, Setup, policy};
use crate::link::Conduct;
use crate::rng::Stream;
use crate::scenario::{Arrivals, Closed, Halves, Load, Nodes, Open, Pacing, Per};
use crate::simulation::Fault;
use crate::time::Picoseconds;

/// How often a period the world is looked at.
const INSPECTIONS_PER_PERIOD: u64 = 20;
/// Periods in which everything happens.
const WILD: u64 = 8;
/// Periods from the last fault until everything must be as if there had been none: the longest
/// lease, one to find out, one to settle.
const HEAL: u64 = 5;
/// A distribution takes less: four messages on the slowest of links.
const SETTLED: Span = Span(5 * Span::MILLISECOND.0);
/// Periods in which every promise must be kept.
const CALM: u64 = 3;

/// A broken invariant, and the seed that shows it again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, at {at}: {what}\nreplay: cargo xtask seeds --seed {seed}")]
pub struct Violation {
    /// The seed of the run.
    pub seed: u64,
    /// When it was seen.
    pub at: Picoseconds,
    /// The broken invariant.
    pub what: String,
}

/// The cluster, load and faults of one seed.
#[derive(Clone, Debug)]
pub struct FaultScenario {
    setup: Setup,
    faults: Vec<(Picoseconds, Fault)>,
    moves: Vec<(Picoseconds, usize)>,
}

impl FaultScenario {
    /// The cluster, the load and the faults of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Stream::new(seed, "fire", 0);
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
        let promises = promises(&mut random, &nodes, period);
        let load = load(&mut random, nodes.count);
        let mut setup = Setup {
            seed,
            period,
            redistribute: Span(period.0 / rounds),
            links: vec![weather(&mut random, period); usize::from(nodes.count)],
            policy: policy(period, Span(period.0 / rounds), &promises),
            nodes,
            promises,
            load,
        };
        let faults = faults(&mut random, &mut setup);
        let tenants = setup.promises.len();
        let mut moves: Vec<_> = (0..tenants).map(|tenant| (Picoseconds::ZERO, tenant)).collect();
        if setup.load.active.is_some() {
            for _ in 0..random.below(3) * tenants as u64 {
                let moved = random.below(tenants as u64) as usize;
                moves.push((moment(&mut random, period), moved));
            }
        }
        Self { setup, faults, moves }
    }
}

/// Some point of the wild time, which begins once the cluster has come up.
fn moment(random: &mut Stream, period: Span) -> Picoseconds {
    let period = Picoseconds::from(period).0;
    Picoseconds(random.within(period, WILD * period))
}

fn promises(random: &mut Stream, nodes: &Nodes, period: Span) -> Vec<Promise> {
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
        Promise { reservation: Iops(reservation), limit, demand }
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

/// How links behave until it is calm.
fn weather(random: &mut Stream, period: Span) -> Conduct {
    let mut rare = |most| if random.below(2) == 0 { random.below(most) as u32 } else { 0 };
    let (lost, doubled, stray) = (rare(50_000), rare(100_000), rare(100_000));
    let least = random.within(10, 200);
    let most = random.within(least, 1_000);
    Conduct {
        least: Picoseconds(least * 1_000_000),
        most: Picoseconds(most * 1_000_000),
        lost,
        doubled,
        stray,
        cuts: Vec::new(),
        calm: Some(Picoseconds(WILD * Picoseconds::from(period).0)),
    }
}

/// Draws the faults, with their times and repairs. Cuts are written into the links.
fn faults(random: &mut Stream, setup: &mut Setup) -> Vec<(Picoseconds, Fault)> {
    let period = Picoseconds::from(setup.period).0;
    let end = Picoseconds(WILD * period);
    let mut faults = Vec::new();
    for _ in 0..random.below(5) {
        let from = moment(random, setup.period);
        let to = from.after(Picoseconds(random.within(period / 20, 3 * period))).min(end);
        let node = random.below(u64::from(setup.nodes.count)) as u16;
        match random.below(8) {
            0..3 => faults.extend([(from, Fault::Dies(node)), (to, Fault::Returns(node))]),
            3..5 => {
                faults.extend([(from, Fault::ControllerDies), (to, Fault::ControllerReturns)]);
            }
            5..7 => setup.links[usize::from(node)].cuts.push((from, to)),
            _ => faults.push((from, Fault::Hangs(node))),
        }
    }
    faults
}

/// Runs a seed to its end, and checks the invariants.
///
/// # Errors
/// The first thing that does not hold.
pub fn check(seed: u64) -> Result<(), Violation> {
    let scenario = FaultScenario::new(seed);
    let mut watch = Watch::new(&scenario);
    let interval = Picoseconds::from(scenario.setup.period).0 / INSPECTIONS_PER_PERIOD;
    for number in 1..=(WILD + HEAL + CALM) * INSPECTIONS_PER_PERIOD {
        watch.world.run_until(Picoseconds(interval * number));
        watch.inspect(number).map_err(|what| Violation { seed, at: watch.world.now, what })?;
    }
    Ok(())
}

/// Looks at a world, and remembers what it was like when the period began.
struct Watch<'a> {
    scenario: &'a FaultScenario,
    world: ClusterSim,
    /// Requests made and answered before this period, by tenant and node.
    arrived: Vec<u64>,
    served: Vec<u64>,
    /// Whether a node was not bound by limits in this period.
    is_exempt: bool,
}

impl<'a> Watch<'a> {
    fn new(scenario: &'a FaultScenario) -> Self {
        let mut world = ClusterSim::of(scenario.setup.clone());
        scenario
            .moves
            .iter()
            .for_each(|(at, tenant)| world.plan(*at, Event::Move { tenant: *tenant as u32 }));
        scenario.faults.iter().for_each(|(at, fault)| world.plan_fault(*at, fault.clone()));
        let nothing = vec![0; world.peers.served.len()];
        Self { scenario, world, arrived: nothing.clone(), served: nothing, is_exempt: true }
    }

    fn inspect(&mut self, number: u64) -> Result<(), String> {
        let setup = &self.scenario.setup;
        let nodes: Vec<Option<NodeStatus>> =
            (0..setup.nodes.count).map(|node| self.world.status(node)).collect();
        self.is_exempt |= nodes.iter().any(|node| node.as_ref().is_none_or(is_unbound));
        self.requests(&nodes)?;
        self.tokens(&nodes)?;
        let (period, within) =
            ((number - 1) / INSPECTIONS_PER_PERIOD, number % INSPECTIONS_PER_PERIOD);
        let is_calm = period >= WILD + HEAL;
        if is_calm && self.is_settled(within) {
            self.whole(&nodes)?;
        }
        if within == 0 {
            if !self.is_exempt {
                self.limits()?;
            }
            if is_calm {
                self.reservations()?;
            }
            self.arrived.clone_from(&self.world.peers.arrived);
            self.served.clone_from(&self.world.peers.served);
            // A node whose lease ends with the period may be on its own for a moment.
            self.is_exempt = nodes.iter().flatten().any(|node| node.lease_periods == 0);
        }
        Ok(())
    }

    /// Whether no distribution is under way at this check of a calm period. While one is, tokens
    /// that were taken from one node have not reached the next.
    fn is_settled(&self, inspection: u64) -> bool {
        let Setup { period, redistribute, .. } = &self.scenario.setup;
        let into = period.0 * inspection / INSPECTIONS_PER_PERIOD;
        let once_more = period.0 - redistribute.0 / LAST_PART;
        let begun = if into < once_more { into - into % redistribute.0 } else { once_more };
        into - begun >= SETTLED.0
    }

    /// Every request is settled once, or still there.
    fn requests(&self, nodes: &[Option<NodeStatus>]) -> Result<(), String> {
        let requests = &self.world.peers.requests;
        let held = nodes.iter().flatten().map(|node| node.waiting + u64::from(node.in_flight));
        let held = held.sum::<u64>();
        match requests.answered_twice {
            0 if held == requests.waiting() => Ok(()),
            0 => Err(format!("{} requests wait, nodes hold {held}", requests.waiting())),
            twice => Err(format!("{twice} answers to requests that were settled")),
        }
    }
    /// Checks that the tokens in force in one period never exceed the reservation and the limit.
    fn tokens(&self, nodes: &[Option<NodeStatus>]) -> Result<(), String> {
        let bound = |node: &&NodeStatus| !node.is_abandoned && node.revision > 0;
        let nodes: Vec<&NodeStatus> = nodes.iter().flatten().filter(bound).collect();
        let periods: BTreeSet<u64> = nodes.iter().map(|node| node.period).collect();
        for period in periods {
            for (tenant, promise) in self.scenario.setup.promises.iter().enumerate() {
                let here = nodes.iter().filter(|node| node.period == period);
                let shares: Vec<_> = here.map(|node| &node.tenants[tenant + 1]).collect();
                // Counts up to the served ones are no tokens.
                let held = shares.iter().filter(|share| share.reserved > share.served);
                let held: u64 = held.map(|share| share.reserved).sum();
                let promised = self.reserved(promise);
                if held > promised {
                    return Err(format!(
                        "t{tenant} is promised {promised}, and {held} are in force in period \
                         {period}"
                    ));
                }
                let Some(limit) = self.limit(promise).filter(|_| !self.is_exempt) else { continue };
                let most =
                    |share: &&TenantStatus| share.allowed.unwrap_or(u64::MAX).max(share.served);
                let allowed = shares.iter().map(most).fold(0, u64::saturating_add);
                let served: u64 = shares.iter().map(|share| share.served).sum();
                if allowed > limit.max(served) {
                    return Err(format!(
                        "t{tenant} is limited to {limit}, was served {served}, and {allowed} are \
                         allowed in period {period}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Every token of a reservation is somewhere, or was used.
    fn whole(&self, nodes: &[Option<NodeStatus>]) -> Result<(), String> {
        for (tenant, promise) in self.scenario.setup.promises.iter().enumerate() {
            let shares = nodes.iter().flatten().filter_map(|node| node.tenants.get(tenant + 1));
            let there: u64 = shares.map(|share| share.reserved.max(share.served)).sum();
            let promised = self.reserved(promise);
            if there < promised {
                return Err(format!(
                    "t{tenant} is promised {promised}, and {there} were used or are in force"
                ));
            }
        }
        Ok(())
    }

    /// Checks that no tenant got more than its limit and one interval's worth.
    fn limits(&self) -> Result<(), String> {
        let setup = &self.scenario.setup;
        let rounds = setup.period.0 / setup.redistribute.0;
        for (tenant, promise) in setup.promises.iter().enumerate() {
            let Some(limit) = self.limit(promise) else { continue };
            let served: u64 =
                self.grown(&self.world.peers.served, &self.served, tenant).iter().sum();
            // A request that was let through in time may be answered later, on each node.
            let late = u64::from(setup.nodes.count) * u64::from(setup.nodes.depth);
            if served > limit + limit.div_ceil(rounds) + late {
                return Err(format!("t{tenant} is limited to {limit}, and got {served}"));
            }
        }
        Ok(())
    }

    /// Checks that each tenant got its reservation, if that was feasible.
    fn reservations(&self) -> Result<(), String> {
        let setup = &self.scenario.setup;
        let demands: Vec<Vec<u64>> = (0..setup.promises.len()).map(|t| self.demand(t)).collect();
        let wants: Vec<u64> = setup
            .promises
            .iter()
            .zip(&demands)
            .map(|(promise, demand)| {
                let limit = self.limit(promise).unwrap_or(u64::MAX);
                self.reserved(promise).min(demand.iter().sum()).min(limit)
            })
            .collect();
        // A tenth is left for the unknown arrival of requests within the period.
        let capacity = per_period(setup.nodes.rate.0 * 9 / 10, setup.period);
        let capacities = vec![capacity; usize::from(setup.nodes.count)];
        if smallest_cut(&wants, &demands, &capacities) < wants.iter().sum() {
            return Ok(());
        }
        for (tenant, want) in wants.iter().enumerate() {
            let served: u64 =
                self.grown(&self.world.peers.served, &self.served, tenant).iter().sum();
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
        let setup = &self.scenario.setup;
        let came = self.grown(&self.world.peers.arrived, &self.arrived, tenant);
        let Some(closed) = &setup.load.closed else { return came };
        // With so many requests outstanding, and those at the device before each of them.
        let (outstanding, depth) = (u64::from(closed.outstanding), u64::from(setup.nodes.depth));
        let rate = setup.nodes.rate.0 * outstanding / (outstanding + 2 * depth);
        let most = per_period(rate, setup.period);
        came.iter().map(|came| if *came > 0 { most } else { 0 }).collect()
    }

    fn grown(&self, now: &[u64], before: &[u64], tenant: usize) -> Vec<u64> {
        let width = usize::from(self.scenario.setup.nodes.count);
        let nodes = tenant * width..(tenant + 1) * width;
        now[nodes.clone()].iter().zip(&before[nodes]).map(|(now, before)| now - before).collect()
    }

    fn reserved(&self, promise: &Promise) -> u64 {
        let exact = u128::from(promise.reservation.0) * u128::from(self.scenario.setup.period.0);
        let whole = exact.div_ceil(u128::from(Span::SECOND.0)) as u64;
        whole.min(self.limit(promise).unwrap_or(u64::MAX))
    }

    fn limit(&self, promise: &Promise) -> Option<u64> {
        promise.limit.map(|limit| per_period(limit.0, self.scenario.setup.period).max(1))
    }
}

/// Whether a node may let limited tenants exceed their limits: its lease is over, it has no policy,
/// or it has requests without a tenant, which came before the policy.
fn is_unbound(node: &NodeStatus) -> bool {
    let unattributed = node.tenants.first();
    let is_open = unattributed
        .is_some_and(|unattributed| unattributed.waiting > 0 || unattributed.served > 0);
    node.is_abandoned || node.revision == 0 || is_open
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
