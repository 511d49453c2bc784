//! Totals of nodes and gateways, read from them once a second, as a machine without I/O.
//!
//! # Problem
//! Operators who watch a cluster want sums: how much each node served, and each gateway was asked.
//! Each process counts from zero on, and processes end and begin anew. Sums must not go back then,
//! and a lost answer must neither lose counts nor double them.
//!
//! # Mechanism
//! It works like the meters of a house. The reader of a meter writes down its position, and not the
//! use since the last reading; so a reading that is left out costs nothing. Where a meter was
//! replaced, the last reading of the old one is added to all of the new one. How a new one is
//! known:
//!
//! - A gateway reports the time at which its process began, which differs between its incarnations.
//! - A node whose hello names no plan is another process than a node that had reported counts of a
//!   plan.
//! - A meter that stands lower than before is another one: a tenant was taken out of the policy and
//!   came back between two readings.
//!
//! Example: a gateway is read at 100 and 250, dies, and its next incarnation is read at 40. In all
//! there were 290 requests. Those of the first incarnation after 250 are unknown.
//!
//! Nothing is decided by these numbers, and no request waits for them.
//!
//! # Bound
//! One question and answer per peer and [`INTERVAL`]. An answer is as long as the tenants that had
//! requests there; the machine keeps a meter for each tenant of the policy at each node and
//! gateway, histograms for each operation that a tenant has requested there
//! ([`latency`]), a meter for each volume and pool of the last answer, and for a minute what
//! tenants did at nodes ([`delays`]). A controller that begins anew begins with what each process
//! has counted so far.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::event::DISCONNECTED;
use tidegate_model::policy::{GateKind, Tenant};
use tidegate_model::{Event, GatewayId, NodeId, Policy, Span, Time, Waits, amounts};

use crate::message::cluster::{ToNode, UNITS};
pub use crate::message::counts as message;
use crate::message::{FromGateway, ToGateway, VolumeFault};
use crate::session::{Outbox, PeerId, REPLACED, Refusal, ToPeer};
use crate::status::cluster::{
    ClusterStatus, FaultStatus, GatewayStatus, OfferStatus, TenantAtNode, TurnedAwayStatus,
    VolumeFaultStatus,
};
use latency::{Latencies, PeerLatency};
use message::{AnsweredRequests, GatewayCounts, GatewayPressure, NodeCounts, NodeLatency};
use node::NodeStats;
use path::PathTimes;
use reading::{FlowMeter, Meter, PathMeter};

pub mod delays;
pub mod latency;
pub(crate) mod minute;
mod node;
pub mod path;
mod reading;
#[cfg(test)]
mod tests;

/// The time between two readings: often enough for a screen, and seldom against everything else
/// that is sent.
pub const INTERVAL: Span = Span::SECOND;

/// Time without readings after which no rate is reported any more, and the peer is silent.
const STALE: Span = Span(3 * INTERVAL.0);

/// Kinds of faults, reasons to turn a client away, and operations of a tenant's requests that are
/// distinguished; there are six kinds, seven reasons and six operations.
const KINDS_MAX: usize = 16;

/// Whether a peer is connected, and when it was read last.
#[derive(Clone, Copy, Debug, Default)]
struct PeerReading {
    is_connected: bool,
    /// When the connection was made.
    since: Time,
    read: Option<Time>,
}

impl PeerReading {
    /// A reading is taken; how long after the last one that is, if there was one.
    fn on_read(&mut self, now: Time) -> Option<Span> {
        self.read.replace(now).map(|before| now.since(before))
    }

    /// Whether the connection is open, and its last reading at most `STALE` old.
    fn is_fresh(&self, now: Time) -> bool {
        self.is_connected && self.read.is_some_and(|at| now.since(at) <= STALE)
    }

    /// Whether it does not answer.
    fn is_silent(&self, now: Time) -> bool {
        let answered = self.read.map_or(self.since, |at| at.max(self.since));
        self.is_connected && now.since(answered) > STALE
    }

    fn age(&self, now: Time) -> Option<u64> {
        self.read.map(|at| now.since(at).0)
    }
}

#[derive(Debug, Default)]
struct GatewayStats {
    name: String,
    line: PeerReading,
    volumes: Vec<FlowMeter>,
    pools: Vec<FlowMeter>,
    /// By index in the policy.
    tenants: Vec<FlowMeter>,
    admitted: Meter,
    turned_away: Meter,
    refused: Meter,
    faults: BTreeMap<String, Meter>,
    /// The volumes that it does not serve, as reported on this connection.
    volume_faults: Vec<VolumeFault>,
    /// By reason.
    turned_away_for: BTreeMap<String, Meter>,
    latency: PeerLatency,
    /// Where requests spent their latencies, by index in the policy.
    paths: Vec<PathMeter>,
    /// Bytes that are in use, and those that may be.
    memory: (u64, u64),
    /// Without the flows, which are above.
    last: GatewayCounts,
}

/// A tenant's parameters at nodes, in units of cost per second.
#[derive(Clone, Debug)]
struct TenantParameters {
    name: String,
    weight: u32,
    reservation: Option<u64>,
    limit: Option<u64>,
    /// Limits that hold beside it on a named resource, for people: in bytes, and of its group.
    other_limits: Vec<String>,
}

impl TenantParameters {
    fn of(policy: &Policy, tenant: &Tenant) -> Self {
        let mut other_limits = Vec::new();
        if policy.resource_at(GateKind::Node).is_some() {
            other_limits.extend(tenant.limit.bandwidth.map(|rate| amounts::bandwidth(rate.0)));
            let group = policy.group_of(tenant);
            for unit in UNITS {
                let limit = group.and_then(|group| Some((group, group.promise.limit.get(unit)?)));
                other_limits.extend(limit.map(|(group, limit)| {
                    format!("{} of group {}", amounts::rate(unit, limit), group.name)
                }));
            }
        }
        Self {
            other_limits,
            name: tenant.name.clone(),
            weight: tenant.weight,
            reservation: tenant.reservation.operations.map(|iops| iops.0),
            limit: tenant.limit.operations.map(|iops| iops.0),
        }
    }
}

/// The machine. See the head of this file.
#[derive(Debug)]
pub(crate) struct ClusterStats {
    nodes: Vec<NodeStats>,
    gateways: Vec<GatewayStats>,
    /// The peers that are read.
    connected: BTreeSet<PeerId>,
    revision: u64,
    /// Where each tenant stands in the policy.
    indexes: BTreeMap<String, usize>,
    /// The policy's parameters of each tenant, in its order.
    parameters: Vec<TenantParameters>,
    next_at: Time,
    pub(crate) outbox: Outbox,
}

impl ClusterStats {
    /// Counters of the nodes and gateways with these names, in their order; all are away.
    pub(crate) fn new(nodes: &[String], gateways: &[String]) -> Self {
        let gateway =
            |name: &String| GatewayStats { name: name.clone(), ..GatewayStats::default() };
        Self {
            nodes: nodes.iter().map(|name| NodeStats::new(name)).collect(),
            gateways: gateways.iter().map(gateway).collect(),
            connected: BTreeSet::new(),
            revision: 0,
            indexes: BTreeMap::new(),
            parameters: Vec::new(),
            next_at: Time::MAX,
            outbox: Outbox::default(),
        }
    }

    /// The tenants are those of this policy from now on. Counts of tenants that stay are kept.
    pub(crate) fn apply(&mut self, revision: u64, policy: &Policy) {
        let names = policy.tenants.iter().map(|tenant| tenant.name.clone());
        let indexes = names.zip(0..).collect::<BTreeMap<_, _>>();
        let earlier = core::mem::replace(&mut self.indexes, indexes);
        for node in &mut self.nodes {
            node.renumber(&earlier, &self.indexes);
        }
        for gateway in &mut self.gateways {
            gateway.tenants = moved(&earlier, &self.indexes, &mut gateway.tenants);
            gateway.latency.retain(&self.indexes);
            gateway.paths = moved(&earlier, &self.indexes, &mut gateway.paths);
        }
        let of = |tenant| TenantParameters::of(policy, tenant);
        self.parameters = policy.tenants.iter().map(of).collect();
        self.revision = revision;
    }

    /// A node was accepted on a new connection; `is_blank` says that it has no plan. One whose
    /// counters are not read is ignored.
    pub(crate) fn on_node(&mut self, now: Time, id: NodeId, is_blank: bool) {
        let Some(node) = self.nodes.get_mut(id.index()) else { return };
        node.begin(is_blank);
        node.line.is_connected = true;
        self.begin(now, PeerId::Node(id));
    }

    /// A gateway has said hello on a new connection.
    pub(crate) fn on_hello(&mut self, now: Time, name: &str) -> Result<PeerId, Refusal> {
        let index = self.gateways.iter().position(|gateway| gateway.name == name);
        let index = index.ok_or_else(|| Refusal::unknown("gateway", name))?;
        let peer = PeerId::Gateway(GatewayId::at(index));
        self.on_closed(peer, REPLACED);
        let line = &mut self.gateways[index].line;
        (line.is_connected, line.since) = (true, now);
        self.outbox.publish(Event::GatewayJoined { gateway: name.into() });
        self.begin(now, peer);
        Ok(peer)
    }

    /// A node has reported its counts.
    pub(crate) fn on_node_counts(&mut self, now: Time, node: NodeId, counts: NodeCounts) {
        let is_current = counts.revision == self.revision;
        if let Some(node) = self.nodes.get_mut(node.index()) {
            node.read(now, counts, is_current);
        }
    }

    /// A node has reported the latencies and the queue times that have changed.
    pub(crate) fn on_node_latency(&mut self, node: NodeId, latency: NodeLatency) {
        if let Some(node) = self.nodes.get_mut(usize::from(node.0)) {
            node.latency.read(latency.requests, &self.indexes);
            node.queue.read(latency.queued, &self.indexes);
        }
    }

    /// A gateway has sent a message.
    pub(crate) fn on_message(&mut self, now: Time, index: GatewayId, message: FromGateway) {
        let gateway = &mut self.gateways[index.index()];
        match message {
            FromGateway::Counts(counts) => gateway.read(now, counts, &self.indexes),
            FromGateway::Faults(faults) => gateway.volume_faults = faults,
            FromGateway::Pressure(pressure) => gateway.on_pressure(pressure),
            FromGateway::Latency(latency) => gateway.latency.read(latency, &self.indexes),
            FromGateway::Paths(paths) => gateway.on_paths(now, paths, &self.indexes),
            // The controller has passed it on.
            FromGateway::Recorded(_) => {}
            FromGateway::Disconnect => {
                self.outbox.close(PeerId::Gateway(index));
                self.on_closed(PeerId::Gateway(index), DISCONNECTED);
            }
        }
    }

    /// A gateway's name.
    pub(crate) fn gateway(&self, id: GatewayId) -> &str {
        &self.gateways[id.index()].name
    }

    /// The connection of a node or a gateway is closed. `reason` is for people.
    pub(crate) fn on_closed(&mut self, peer: PeerId, reason: &str) {
        if !self.connected.remove(&peer) {
            return;
        }
        match peer {
            PeerId::Node(node) => self.nodes[node.index()].line.is_connected = false,
            PeerId::Gateway(index) => {
                let gateway = &mut self.gateways[index.index()];
                (gateway.line.is_connected, gateway.last.clients) = (false, 0);
                gateway.volume_faults.clear();
                gateway.memory = (0, 0);
                let (gateway, reason) = (gateway.name.clone(), reason.into());
                self.outbox.publish(Event::GatewayLeft { gateway, reason });
            }
            PeerId::Stage(_) | PeerId::DataNode(_) => {}
        }
    }

    /// When to call [`Self::on_deadline`] next; [`Time::MAX`] while no peer is connected.
    pub(crate) const fn next_deadline(&self) -> Time {
        self.next_at
    }

    /// The time that [`Self::next_deadline`] named has come.
    pub(crate) fn on_deadline(&mut self, now: Time) {
        self.next_at = if self.connected.is_empty() { Time::MAX } else { now.after(INTERVAL) };
        for &peer in &self.connected {
            request_counts(&mut self.outbox, peer);
        }
    }

    /// Adds the readings to the cluster's status.
    pub(crate) fn fill_status(&self, now: Time, status: &mut ClusterStatus) {
        for (stats, node) in self.nodes.iter().zip(&mut status.nodes) {
            stats.fill_status(now, node);
        }
        status.gateways = self.gateways.iter().map(|gateway| gateway.status(now)).collect();
        let names = status.nodes.iter().map(|node| (node.id, node.name.clone()));
        let names: Vec<(NodeId, String)> = names.collect();
        for tenant in &mut status.tenants {
            let Some(&index) = self.indexes.get(&tenant.name) else { continue };
            for (node, (id, name)) in self.nodes.iter().zip(&names) {
                let waits = node.waits(index);
                if waits != Waits::ZERO {
                    let there = at(&mut tenant.nodes, *id, name);
                    (there.total_served_operations, there.waits) = (waits.operations, waits);
                    let sum = &mut tenant.total_served_operations;
                    *sum = sum.saturating_add(waits.operations);
                }
            }
            for gateway in &self.gateways {
                let Some(flow) = gateway.tenants.get(index) else { continue };
                let is_fresh = gateway.line.is_fresh(now);
                for (sum, part) in [
                    (&mut tenant.gateway_requests, flow.requests.total()),
                    (&mut tenant.gateway_bytes, flow.bytes.total()),
                    (&mut tenant.gateway_errors, flow.errors.total()),
                    (&mut tenant.gateway_bytes_per_second, flow.bytes.per_second(is_fresh)),
                ] {
                    *sum = sum.saturating_add(part);
                }
            }
        }
    }

    /// The waits of each tenant at all nodes in the last minute, by its index in the policy.
    pub(crate) fn recent_waits(&self, now: Time) -> Vec<Waits> {
        let mut sums = alloc::vec![Waits::ZERO; self.parameters.len()];
        for node in &self.nodes {
            node.minute.add_waits(now, &mut sums);
        }
        sums
    }

    /// The latencies of requests at gateways and nodes.
    pub(crate) fn latency(&self) -> Latencies {
        let (gateways, nodes) = (self.gateways.iter(), self.nodes.iter());
        Latencies {
            gateways: gateways.flat_map(|it| it.latency.named(&it.name)).collect(),
            nodes: nodes.clone().flat_map(|it| it.latency.named(&it.name)).collect(),
            queues: nodes.flat_map(|it| it.queue.named(&it.name)).collect(),
        }
    }

    /// Reads a peer from now on.
    fn begin(&mut self, now: Time, peer: PeerId) {
        self.connected.insert(peer);
        request_counts(&mut self.outbox, peer);
        self.next_at = self.next_at.min(now.after(INTERVAL));
    }
}

fn request_counts(outbox: &mut Outbox, peer: PeerId) {
    let message = match peer {
        PeerId::Gateway(_) => ToPeer::Gateway(ToGateway::Count),
        _ => ToPeer::Node(ToNode::Count),
    };
    outbox.send(peer, message);
}

impl GatewayStats {
    /// The process is another one.
    fn replace(&mut self) {
        let flows = self.volumes.iter_mut().chain(&mut self.pools).chain(&mut self.tenants);
        flows.for_each(FlowMeter::replace);
        let counts = [&mut self.admitted, &mut self.turned_away, &mut self.refused];
        let kinds = self.faults.values_mut().chain(self.turned_away_for.values_mut());
        counts.into_iter().chain(kinds).for_each(Meter::replace);
        self.latency.replace();
        self.paths.iter_mut().for_each(PathMeter::replace);
    }

    fn on_paths(
        &mut self,
        now: Time,
        paths: Vec<(String, PathTimes)>,
        indexes: &BTreeMap<String, usize>,
    ) {
        for (tenant, times) in paths {
            let index = indexes.get(&tenant);
            if let Some(meter) = index.and_then(|index| self.paths.get_mut(*index)) {
                meter.read(now, times);
            }
        }
    }

    fn on_pressure(&mut self, pressure: GatewayPressure) {
        for (reason, count) in pressure.turned_away {
            if self.turned_away_for.len() < KINDS_MAX || self.turned_away_for.contains_key(&reason)
            {
                self.turned_away_for.entry(reason).or_default().read(count, None);
            }
        }
        self.memory = (pressure.memory_used_bytes, pressure.memory_limit_bytes);
    }

    fn read(&mut self, now: Time, mut counts: GatewayCounts, indexes: &BTreeMap<String, usize>) {
        let apart = self.line.on_read(now);
        if counts.started_ms != self.last.started_ms {
            self.replace();
        }
        read_all(&mut self.volumes, core::mem::take(&mut counts.volumes), apart);
        read_all(&mut self.pools, core::mem::take(&mut counts.pools), apart);
        for flow in core::mem::take(&mut counts.tenants) {
            let index = indexes.get(&flow.name);
            if let Some(meter) = index.and_then(|index| self.tenants.get_mut(*index)) {
                meter.read(&flow, apart);
            }
        }
        self.admitted.read(counts.admitted, apart);
        self.turned_away.read(counts.turned_away, apart);
        self.refused.read(counts.refused, apart);
        for (kind, count) in core::mem::take(&mut counts.faults) {
            if self.faults.len() < KINDS_MAX || self.faults.contains_key(&kind) {
                self.faults.entry(kind).or_default().read(count, apart);
            }
        }
        self.last = counts;
    }

    fn status(&self, now: Time) -> GatewayStatus {
        let is_fresh = self.line.is_fresh(now);
        let offer = |kind: &'static str| {
            move |flow: &FlowMeter| OfferStatus {
                name: flow.name.clone(),
                kind: kind.into(),
                requests: flow.requests.total(),
                bytes: flow.bytes.total(),
                errors: flow.errors.total(),
                requests_per_second: flow.requests.per_second(is_fresh),
                bytes_per_second: flow.bytes.per_second(is_fresh),
            }
        };
        let (volumes, pools) = (self.volumes.iter(), self.pools.iter());
        let offers = volumes.map(offer("volume")).chain(pools.map(offer("pool")));
        let offers: Vec<_> = offers.collect();
        let sum = |of: fn(&OfferStatus) -> u64| {
            offers.iter().fold(0, |sum: u64, offer| sum.saturating_add(of(offer)))
        };
        let fault = |(kind, count): (&String, &Meter)| FaultStatus {
            kind: kind.clone(),
            requests: count.total(),
        };
        let faults = self.faults.iter().map(fault).collect();
        let turned_away_for = |(reason, count): (&String, &Meter)| TurnedAwayStatus {
            reason: reason.clone(),
            clients: count.total(),
        };
        let (memory_used_bytes, memory_limit_bytes) = self.memory;
        let last = &self.last;
        GatewayStatus {
            name: self.name.clone(),
            takeover: None,
            host: last.host.clone(),
            pid: last.pid,
            release: last.release.clone(),
            started_ms: last.started_ms,
            is_connected: self.line.is_connected,
            is_silent: self.line.is_silent(now),
            counted_ns: self.line.age(now),
            nbd: last.nbd.clone(),
            memcached: last.memcached.clone(),
            clients: last.clients,
            admitted: self.admitted.total(),
            turned_away: self.turned_away.total(),
            turned_away_for: self.turned_away_for.iter().map(turned_away_for).collect(),
            memory_used_bytes,
            memory_limit_bytes,
            refused_requests: self.refused.total(),
            requests: sum(|offer| offer.requests),
            bytes: sum(|offer| offer.bytes),
            errors: sum(|offer| offer.errors),
            requests_per_second: sum(|offer| offer.requests_per_second),
            bytes_per_second: sum(|offer| offer.bytes_per_second),
            faults,
            volume_faults: self.volume_faults.iter().map(VolumeFaultStatus::from).collect(),
            offers,
        }
    }
}

/// Whether the policy has this tenant, or the name is that of requests without a tenant.
fn is_known(tenant: &str, indexes: &BTreeMap<String, usize>) -> bool {
    tenant.is_empty() || indexes.contains_key(tenant)
}

/// The meters of another policy's tenants, with what those have counted that were there before.
fn moved<M: Default>(
    earlier: &BTreeMap<String, usize>,
    indexes: &BTreeMap<String, usize>,
    former: &mut [M],
) -> Vec<M> {
    let mut moved: Vec<M> = indexes.iter().map(|_| M::default()).collect();
    for (name, index) in indexes {
        if let Some(meter) = earlier.get(name).and_then(|earlier| former.get_mut(*earlier)) {
            moved[*index] = core::mem::take(meter);
        }
    }
    moved
}

/// Reads all flows of one kind. Those that are not reported any more are forgotten.
fn read_all(flow_counters: &mut Vec<FlowMeter>, flows: Vec<AnsweredRequests>, apart: Option<Span>) {
    let earlier = core::mem::take(flow_counters);
    let mut earlier: BTreeMap<String, FlowMeter> =
        earlier.into_iter().map(|meter| (meter.name.clone(), meter)).collect();
    flow_counters.extend(flows.into_iter().map(|flow| {
        let mut meter = earlier.remove(&flow.name).unwrap_or_default();
        meter.read(&flow, apart);
        meter.name = flow.name;
        meter
    }));
}

/// A tenant's entry for the node with this number, which is added if it is missing.
fn at<'a>(nodes: &'a mut Vec<TenantAtNode>, id: NodeId, name: &str) -> &'a mut TenantAtNode {
    let index = nodes.binary_search_by_key(&id, |node| node.id).unwrap_or_else(|index| {
        let new = TenantAtNode { id, node: name.into(), ..TenantAtNode::default() };
        nodes.insert(index, new);
        index
    });
    &mut nodes[index]
}
