//! Fault injection: faults and invariants of storage nodes, whatever their load.
//!
//! - *No request is lost or answered twice*: those that were made and not settled are those that
//!   nodes hold.
//! - *No token is created*: what is reserved and what is allowed at all nodes in one period never
//!   exceeds the promise. *None is destroyed*: once it is calm, the reservation is in force whole.
//! - *No limit is exceeded* by more than one interval's worth, in any period.
//!
//! **Exceptions**, as the decision about counts has them: a node that has lost its lease, or has
//! not received the policy yet, is not bound by limits.

use std::collections::BTreeSet;

use tidegate_model::cost::BYTES_PER_TOKEN;
use tidegate_model::policy::GateKind;
use tidegate_model::{Policy, Span};
use tidegate_proto::cluster::LAST_PART;
use tidegate_proto::node::NodeStatus;

use crate::cluster::{LENGTH, Promised, TokenCounts, in_tokens_of_bytes};
use crate::link::Conduct;
use crate::requests::RequestTable;
use crate::rng::Stream;
use crate::simulation::Fault;
use crate::time::Picoseconds;
use crate::trial::{INSPECTIONS, Inspection, Phases};

const WILD: u64 = 8;
/// The longest lease, one period to find out, one to settle.
const HEAL: u64 = 5;
const CALM: u64 = 3;
/// A distribution takes less: four messages on the slowest of links.
const SETTLED: Span = Span(5 * Span::MILLISECOND.0);

pub(super) fn phases(period: Span) -> Phases {
    Phases { period, wild: WILD, heal: HEAL, calm: CALM }
}

/// Some point of the wild time, which begins once the cluster has come up.
pub(super) fn moment(random: &mut Stream, period: Span) -> Picoseconds {
    let period = Picoseconds::from(period).0;
    Picoseconds(random.within(period, WILD * period))
}

/// How links behave until it is calm.
pub(super) fn weather(random: &mut Stream, period: Span) -> Conduct {
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
pub(super) fn faults(
    random: &mut Stream,
    whole: Span,
    links: &mut [Conduct],
) -> Vec<(Picoseconds, Fault)> {
    let period = Picoseconds::from(whole).0;
    let end = Picoseconds(WILD * period);
    let mut faults = Vec::new();
    for _ in 0..random.below(5) {
        let from = moment(random, whole);
        let to = from.after(Picoseconds(random.within(period / 20, 3 * period))).min(end);
        let node = random.below(links.len() as u64) as u16;
        match random.below(8) {
            0..3 => faults.extend([(from, Fault::Dies(node)), (to, Fault::Returns(node))]),
            3..5 => {
                faults.extend([(from, Fault::ControllerDies), (to, Fault::ControllerReturns)]);
            }
            5..7 => links[usize::from(node)].cuts.push((from, to)),
            _ => faults.push((from, Fault::Hangs(node))),
        }
    }
    faults
}

/// Draws nodes that stand still for a while, up to a period.
pub(super) fn stops(seed: u64, period: Span, count: u16) -> Vec<(Picoseconds, Fault)> {
    let mut random = Stream::new(seed, "stops", 0);
    let end = WILD * Picoseconds::from(period).0;
    let stop = |_| {
        let from = moment(&mut random, period);
        let until = from.0 + random.within(1, Picoseconds::from(period).0);
        let node = random.below(count.into()) as u16;
        (from, Fault::Stops(node, Picoseconds(until.min(end))))
    };
    (0..Stream::new(seed, "stops", 1).below(3)).map(stop).collect()
}

/// The invariants of storage nodes.
pub(super) struct NodeInvariants {
    period: Span,
    redistribute: Span,
    /// The most requests at all devices together.
    depth: u64,
    /// The tokens that a request takes.
    pub(super) tokens: u64,
    is_in_bytes: bool,
    /// In tokens.
    pub(super) promised: Vec<Promised>,
    counts: TokenCounts,
    nodes: Vec<NodeStatus>,
    /// Whether a node was not bound by limits in this period.
    is_exempt: bool,
}

impl NodeInvariants {
    /// The laws of a policy that promises operations, or bytes of the nodes as a resource.
    pub(super) fn new(policy: &Policy, depth: u64) -> Self {
        let is_in_bytes = policy.resource_at(GateKind::Node).is_some();
        let policy = policy.at(GateKind::Node);
        let tokens = if is_in_bytes { u64::from(LENGTH) / BYTES_PER_TOKEN } else { 1 };
        Self {
            period: policy.period,
            redistribute: policy.redistribute,
            depth,
            tokens,
            is_in_bytes,
            promised: match is_in_bytes {
                true => Promised::in_bytes(&policy),
                false => Promised::of(&policy),
            },
            counts: TokenCounts::default(),
            nodes: Vec::new(),
            is_exempt: true,
        }
    }

    /// Checks nodes, and the requests that they hold.
    pub(super) fn inspect<R: Copy>(
        &mut self,
        inspection: Inspection,
        nodes: &[(u32, Option<NodeStatus>)],
        requests: &RequestTable<R>,
    ) -> Result<(), String> {
        let in_unit = |(incarnation, node): &(u32, Option<NodeStatus>)| {
            let node = node.clone();
            (*incarnation, if self.is_in_bytes { node.map(in_tokens_of_bytes) } else { node })
        };
        let nodes = &nodes.iter().map(in_unit).collect::<Vec<_>>();
        self.counts.note(nodes);
        self.is_exempt |= nodes.iter().any(|(_, node)| node.as_ref().is_none_or(is_unbound));
        self.nodes = nodes.iter().filter_map(|(_, node)| node.clone()).collect();
        let held = self.nodes.iter().map(|node| node.waiting + u64::from(node.in_flight));
        let (held, waiting) = (held.sum::<u64>(), requests.waiting());
        if requests.answered_twice > 0 {
            let twice = requests.answered_twice;
            return Err(format!("{twice} answers to requests that were settled"));
        }
        if held != waiting {
            return Err(format!("{waiting} requests wait, nodes hold {held}"));
        }
        self.tokens()?;
        if inspection.is_calm && self.is_settled(inspection.part) {
            self.whole()?;
        }
        Ok(())
    }

    /// Ends a period in which tenants were served so many requests.
    pub(super) fn end_period(&mut self, served: &[u64]) -> Result<(), String> {
        if !self.is_exempt {
            self.limits(served)?;
        }
        // A node whose lease ends with the period may be on its own for a moment.
        self.is_exempt = self.nodes.iter().any(|node| node.lease_periods == 0);
        Ok(())
    }

    /// Whether no distribution is under way at this look at a calm period. While one is, tokens
    /// that were taken from one node have not reached the next.
    fn is_settled(&self, part: u64) -> bool {
        let into = self.period.0 * part / INSPECTIONS;
        let once_more = self.period.0 - self.redistribute.0 / LAST_PART;
        let begun = if into < once_more { into - into % self.redistribute.0 } else { once_more };
        into - begun >= SETTLED.0
    }

    /// Checks that the tokens in force in one period never exceed the limit and the reservation.
    fn tokens(&self) -> Result<(), String> {
        self.counts.check_limits(&self.promised, 0)?;
        self.counts.check_reservations(&self.promised, 0)?;
        // Nothing is reserved at a node whose lease is over, until it takes the next grant.
        let nodes: Vec<&NodeStatus> = self.nodes.iter().filter(|node| node.revision > 0).collect();
        let periods: BTreeSet<u64> = nodes.iter().map(|node| node.period).collect();
        for period in periods {
            for (tenant, Promised { name, reserved, .. }) in self.promised.iter().enumerate() {
                let here = nodes.iter().filter(|node| node.period == period);
                let shares: Vec<_> = here.map(|node| &node.tenants[tenant + 1]).collect();
                // Counts up to the served ones are no tokens.
                let held = shares.iter().filter(|share| share.reserved > share.served);
                let held: u64 = held.map(|share| share.reserved).sum();
                if held > *reserved {
                    return Err(format!(
                        "{name} is promised {reserved}, and {held} are in force in period {period}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Every token of a reservation is somewhere, or was used.
    fn whole(&self) -> Result<(), String> {
        for (tenant, Promised { name, reserved, .. }) in self.promised.iter().enumerate() {
            let shares = self.nodes.iter().filter_map(|node| node.tenants.get(tenant + 1));
            let there: u64 = shares.map(|share| share.reserved.max(share.served)).sum();
            if there < *reserved {
                return Err(format!(
                    "{name} is promised {reserved}, and {there} were used or are in force"
                ));
            }
        }
        Ok(())
    }

    /// Checks that no tenant got more than its limit and one interval's worth.
    fn limits(&self, served: &[u64]) -> Result<(), String> {
        let rounds = self.period.0 / self.redistribute.0;
        for (Promised { name, limit, .. }, served) in self.promised.iter().zip(served) {
            let Some(limit) = limit else { continue };
            let served = served * self.tokens;
            // A request that was let through in time may be answered later, on each node.
            if served > limit + limit.div_ceil(rounds) + self.depth * self.tokens {
                return Err(format!("{name} is limited to {limit}, and got {served}"));
            }
        }
        Ok(())
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
