//! Promised rate of each flow: its share of the link that gives it least.
//!
//! A class has a share of *each link* that it uses, divided among its flows there ([`Shares`]). No
//! parameter names the bottleneck, and it need not be the same for all flows: so every port that a
//! flow goes through has a registry, and the flow is promised the least of their shares. Three
//! hosts write to ten servers through one link in the middle: at its own NIC each class is alone
//! and promised everything, at a server's port each shares with the flows of the other classes to
//! that server, and in the middle with all; there 96 Gbit/s of payload make 4.8, 3.2 and 1.6 for
//! each of ten flows of high, medium and low.
//!
//! An application with a weight of its own stands beside the classes, at each link. The payload
//! that a link carries goes by the packets of the first flow that comes to it; where flows with
//! windows and with rates are promised parts of one link, that is off by 2 %.
//!
//! The simulation lists the flows of each link at intervals, as agents on hosts and servers would.
//!
//! Flows without a promise take of a link, too. Where that is watched (figure 15a of the paper), a
//! port that has marked packets since the last update compares the service of its flows since it
//! marked before with their promises, and scales all promises. A port that has not marked for some
//! updates is no flow's bottleneck, and its scale recovers. Fewer updates prove nothing: with round
//! trips as long as updates, a queue that swings is below its mark at every other update.

use std::collections::BTreeMap;

use tidegate_algo::allocation::shares::{FlowHandle, Group, Shares};
use tidegate_algo::congestion::qtcp::{Interference, SIGMA};
use tidegate_model::tag::CLASSES;
use tidegate_model::{Class, Rate};

use super::scenario::Promises;
use crate::net::packet::FlowId;
use crate::net::{Network, PortId};
use tidegate_sim::time::Picoseconds;

/// The group of flows with which a flow shares its part of a link.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShareGroup {
    /// The other flows of its class.
    Class(Class),
    /// Those of its application, or of several of one tenant, with a weight; this is the number of
    /// the first of them.
    Application(u32, u32),
}

/// Updates without a mark after which a port is no flow's bottleneck. By hand: windows of flows
/// that share it swing within a few round trips.
const QUIET: u64 = 10;

/// Every link in use, and the promises of its flows.
#[derive(Debug)]
pub(super) struct Links {
    plan: Promises,
    numbers: BTreeMap<PortId, usize>,
    links: Vec<LinkPromises>,
    /// By flow, its links and its slot in each.
    flows: Vec<Vec<(usize, FlowHandle)>>,
}

#[derive(Debug)]
struct LinkPromises {
    port: PortId,
    shares: Shares,
    /// By application, of those with a weight.
    groups: BTreeMap<u32, Group>,
    /// Payload of its flows since then.
    delivered: u64,
    since: Picoseconds,
    /// Packets that it had marked at the last update.
    marked: u64,
    /// Updates since it marked the last one.
    quiet: u64,
}

impl Links {
    pub(super) const fn new(plan: Promises) -> Self {
        Self { plan, numbers: BTreeMap::new(), links: Vec::new(), flows: Vec::new() }
    }

    /// A flow goes through these ports, of which each can carry so much payload. Flows are added
    /// in the order of their numbers.
    pub(super) fn add(
        &mut self,
        share_group: ShareGroup,
        ports: impl Iterator<Item = (PortId, Rate)>,
    ) {
        let (plan, numbers, links) = (self.plan, &mut self.numbers, &mut self.links);
        let slots = ports.map(|(port, payload)| {
            let number = *numbers.entry(port).or_insert_with(|| {
                links.push(LinkPromises::new(port, payload, &plan));
                links.len() - 1
            });
            (number, links[number].add(share_group))
        });
        self.flows.push(slots.collect());
    }

    /// A flow sends something.
    pub(super) fn touch(&mut self, flow: FlowId, now: Picoseconds) {
        for (link, slot) in &self.flows[flow.0 as usize] {
            self.links[*link].shares.touch(*slot, now.time());
        }
    }

    /// The promised rate of a flow while it sends: the least of its links.
    pub(super) fn promised(&self, flow: FlowId) -> Rate {
        let slots = self.flows[flow.0 as usize].iter();
        let promised = slots.map(|(link, slot)| self.links[*link].shares.promised(*slot));
        promised.min().unwrap_or(Rate::ZERO)
    }

    /// So much payload of a flow has arrived.
    pub(super) fn on_delivered(&mut self, flow: FlowId, bytes: u64) {
        self.flows[flow.0 as usize].iter().for_each(|(link, _)| {
            self.links[*link].delivered += bytes;
        });
    }

    /// An interval is over: drops the shares of those that sent nothing in it, and finds out what
    /// others take.
    pub(super) fn update(&mut self, now: Picoseconds, network: &mut Network) {
        for link in &mut self.links {
            link.shares.sweep(now.time());
            if !self.plan.yields {
                continue;
            }
            let marks = CLASSES.map(|(class, _)| network.counters(now, link.port, class).marked);
            link.observe(now, marks.iter().sum());
        }
    }
}

impl LinkPromises {
    fn new(port: PortId, payload: Rate, plan: &Promises) -> Self {
        let part = u128::from(payload.0) * u128::from(plan.of.0) / 1_000_000;
        let [high, medium, low] = plan.weights;
        // A flow is counted where it has sent something in the last interval.
        let shares = Shares::new(Rate(part as u64), [0, high, medium, low], plan.every);
        let shares =
            if plan.yields { shares.with_interference(Interference::new(SIGMA)) } else { shares };
        let (groups, since) = (BTreeMap::new(), Picoseconds::ZERO);
        Self { port, shares, groups, delivered: 0, since, marked: 0, quiet: 0 }
    }

    fn add(&mut self, share_group: ShareGroup) -> FlowHandle {
        let (shares, groups) = (&mut self.shares, &mut self.groups);
        let group = match share_group {
            ShareGroup::Class(class) => class.into(),
            ShareGroup::Application(number, weight) => {
                *groups.entry(number).or_insert_with(|| shares.group(weight))
            }
        };
        shares.add(group)
    }

    /// It has marked so many packets until now.
    fn observe(&mut self, now: Picoseconds, marked: u64) {
        let is_narrow = core::mem::replace(&mut self.marked, marked) < marked;
        self.quiet = if is_narrow { 0 } else { self.quiet + 1 };
        if !is_narrow && self.quiet < QUIET {
            return;
        }
        let bytes = u128::from(core::mem::take(&mut self.delivered));
        let elapsed = now.since(core::mem::replace(&mut self.since, now));
        let got = bytes * u128::from(Picoseconds::SECOND.0) / u128::from(elapsed.0.max(1));
        self.shares.on_delivered(if is_narrow { Rate(got as u64) } else { Rate(u64::MAX) });
    }
}
