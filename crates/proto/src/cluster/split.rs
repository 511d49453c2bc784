//! The controller of data nodes: division of promises into shares, without I/O.
//!
//! # Problem
//! A tenant is promised operations per second at all data nodes together. There, Haechi gives out
//! tokens for a period at a time, and clients read and write the memory themselves, so no request
//! can be moved. The controller moves instead the *share*: the part of the promise that each node
//! counts into its periods. Shares must add up to the promise or less at any time, although
//! messages take time, each node begins its periods by itself, and any node may be away.
//!
//! # Mechanism
//! In each *round*, several times a second, all nodes are asked for the operations of their clients
//! in the last period and whether they wanted more ([`DataNodeReport`]). A fourth of a round later
//! at the latest pShift divides every promise by these reports (the file `aim.rs`), and nodes are
//! sent the shares that change.
//!
//! - **Shares stand.** Shares do not expire: if reports are lost, or the controller is, nodes go on
//!   by the last division.
//! - **Falls before rises.** A share that falls counts in full until its node confirms that a
//!   period has begun with the smaller one; only then does another node get the difference. So a
//!   move takes at most a period of each of the two nodes, and a round. A confirmation is of all
//!   grants up to one, and others may have been sent since. Then the share counts as the highest of
//!   those sent with that grant and since ([`LaterCounts`]).
//! - **First limits.** A new process has no limit until its first grant is in force. That grant is
//!   at most what the promise leaves over the limits of the other nodes; later ones may be more.
//! - **Absence.** A node that is away keeps its shares for [`AWAY`], as do its clients. Then they
//!   go to other nodes, and come back with the node.
//! - **A restarted controller** gives out no shares until all nodes have reported theirs, or are
//!   away for so long.
//!
//! # Bounds
//! Shares in force add up to the promise or less, but for nodes that are away for longer than
//! [`AWAY`] and whose clients live, and for less promised by a new policy until nodes have begun
//! their next period. Time and memory of a round are those of the pairs of tenant and node.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::event::DISCONNECTED;
use tidegate_model::gate::Unit;
use tidegate_model::{DataNodeId, Event, Iops, NodeId, Policy, Span, TenantIndex, Time};

use super::bounds::{Account, GrantCounts, NodeAccounts, TenantBounds, When, promise};
use super::message::Share;
use crate::data_node::{DataNodeReport, FromDataNode, Grant, ToDataNode};
use crate::session::{Outbox, PeerId, REPLACED, Refusal, ToPeer};
use aim::Aim;

mod aim;
mod demand;
mod status;

/// How long a node that is away keeps its shares. Long enough to be started again and to be found.
pub const AWAY: Span = Span(5 * Span::SECOND.0);

/// The fraction of a round, one in so many, after which it goes on without missing reports.
const WAIT_PART: u64 = 4;

/// The account that is used of the two: shares have no period.
const STANDING: When = When::Next;

/// A data node of the cluster's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSetup {
    /// Its name; no two have the same.
    pub name: String,
    /// C_G: its measured capacity, which counts until the node reports one.
    pub capacity: Iops,
    /// C_L: the operations per second that one of its clients can do alone.
    pub client: Iops,
}

/// A data node, as far as it is known.
#[derive(Debug, Default)]
struct DataNodeState {
    name: String,
    is_connected: bool,
    /// Its last report.
    report: Option<DataNodeReport>,
    /// How often its memory was damaged since its process began, and which structure was last.
    damages: u64,
    damaged: Option<String>,
    minute: demand::Minute,
    capacity: Iops,
    client: Iops,
    /// The capacity in its last event, or that of its setup.
    published_capacity: Iops,
    /// When it was last connected, or when the controller started.
    seen: Time,
    /// Whether it has reported on this connection the shares that it holds.
    is_known: bool,
    /// Whether the shares that it holds are unknown: it has not reported since the controller
    /// started.
    is_unknown: bool,
    /// Whether it holds nothing and is about to come: everything has just been started.
    is_expected: bool,
    /// Whether the last question was answered.
    is_answered: bool,
    /// Whether the next grant is to be sent even if it is empty.
    is_due: bool,
    serial: u64,
    /// None before the first grant on this connection, and under this policy.
    later: Option<LaterCounts>,
}

/// The highest counts that may be in force at a node once it has confirmed a certain grant.
///
/// Example: a share of 100 falls by 3 in each period, and the node confirms a grant a moment after
/// the next one was sent. No confirmation is that of the last grant. Without this record the share
/// would count as 100 for ever, and the difference would be at no node.
#[derive(Debug)]
struct LaterCounts {
    /// The serial of that grant.
    from: u64,
    /// By tenant, the highest of the counts sent with it, or in force before, and since.
    most: Vec<GrantCounts>,
}

/// The machine. See the head of this file.
#[derive(Debug)]
pub(crate) struct Split {
    nodes: Vec<DataNodeState>,
    policy: Option<(u64, Policy)>,
    tenants: Vec<TenantBounds>,
    aim: Aim,
    round: u64,
    next_round: Time,
    /// When this round goes on without missing reports; none if it has.
    until: Option<Time>,
    pub(crate) outbox: Outbox,
}

impl DataNodeState {
    /// Whether it is to hold shares, now or as soon as it connects.
    const fn is_open(&self) -> bool {
        self.is_known || self.is_expected
    }

    /// Its capacity: as reported on this connection, else that of its setup.
    fn capacity(&self) -> Iops {
        self.report
            .as_ref()
            .filter(|_| self.is_known)
            .map_or(self.capacity, |tenant_report| tenant_report.capacity)
    }
}

impl Split {
    /// For nodes that are all away, at `now`, with the policy of an earlier run and its revision.
    /// If there is none, no earlier run can have granted anything.
    pub(crate) fn new(now: Time, nodes: Vec<NodeSetup>, policy: Option<(u64, Policy)>) -> Self {
        let node = |setup: NodeSetup| DataNodeState {
            name: setup.name,
            capacity: setup.capacity,
            published_capacity: setup.capacity,
            client: setup.client,
            seen: now,
            is_unknown: policy.is_some(),
            is_expected: policy.is_none(),
            ..DataNodeState::default()
        };
        let mut split = Self {
            nodes: nodes.into_iter().map(node).collect(),
            policy: None,
            tenants: Vec::new(),
            aim: Aim::default(),
            round: 0,
            next_round: Time::MAX,
            until: None,
            outbox: Outbox::default(),
        };
        if let Some((revision, policy)) = policy {
            split.apply(now, revision, policy);
        }
        split
    }

    /// A data node has said hello on a new connection. It is sent the policy, and its shares as
    /// soon as it has reported those that it holds; or it is refused.
    pub(crate) fn on_hello(&mut self, now: Time, name: &str) -> Result<PeerId, Refusal> {
        let index = self.nodes.iter().position(|node| node.name == name);
        let index = index.ok_or_else(|| Refusal::unknown("data node", name))?;
        self.part(now, index, REPLACED);
        let node = &mut self.nodes[index];
        (node.is_connected, node.seen) = (true, now);
        (node.is_known, node.is_answered, node.is_due, node.serial) = (false, false, true, 0);
        // The node reports its damages anew, if it is still the same process.
        (node.damages, node.damaged) = (0, None);
        node.later = None;
        let joined = Event::NodeJoined { node: name.into(), is_known: !node.is_unknown };
        self.outbox.publish(joined);
        if let Some((revision, policy)) = self.policy.clone() {
            self.send(index, ToDataNode::Policy { revision, policy });
            self.open_round(now);
        }
        Ok(peer(index))
    }

    /// A data node has sent a message.
    pub(crate) fn on_message(&mut self, now: Time, index: DataNodeId, message: FromDataNode) {
        let index = index.index();
        self.nodes[index].seen = now;
        match message {
            FromDataNode::Report(report) => self.on_report(now, index, report),
            FromDataNode::Granted { serial } => {
                self.on_granted(index, serial);
                self.push();
            }
            FromDataNode::Noticed(notice) => {
                let event = status::event(&self.nodes[index].name, notice);
                self.outbox.publish(event);
            }
            FromDataNode::Remade { times, structure } => {
                let node = &mut self.nodes[index];
                (node.damages, node.damaged) = (times, Some(structure));
            }
            FromDataNode::Disconnect => {
                self.outbox.close(peer(index));
                self.part(now, index, DISCONNECTED);
            }
        }
    }

    /// A data node's connection is closed. `reason` is for people.
    pub(crate) fn on_closed(&mut self, now: Time, index: DataNodeId, reason: &str) {
        self.part(now, index.index(), reason);
    }

    /// Brings a policy into force. Connected nodes are sent the policy and their shares.
    pub(crate) fn apply(&mut self, now: Time, revision: u64, policy: Policy) {
        self.rebuild(&policy);
        for node in &mut self.nodes {
            (node.is_due, node.later) = (true, None);
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].is_connected {
                self.send(index, ToDataNode::Policy { revision, policy: policy.clone() });
            }
        }
        self.policy = Some((revision, policy));
        if self.nodes.is_empty() {
            return;
        }
        self.divide();
        self.open_round(now);
    }

    /// The time that [`Self::next_deadline`] named has come.
    pub(crate) fn on_deadline(&mut self, now: Time) {
        if self.until.is_some_and(|until| until <= now) {
            self.divide();
        }
        if self.next_round <= now {
            self.open_round(now);
        }
    }

    /// When to call [`Self::on_deadline`] next; changes with every call.
    pub(crate) fn next_deadline(&self) -> Time {
        self.until.unwrap_or(Time::MAX).min(self.next_round)
    }
}

/// Nodes coming and going.
impl Split {
    fn part(&mut self, now: Time, index: usize, reason: &str) {
        let node = &mut self.nodes[index];
        if core::mem::take(&mut node.is_connected) {
            (node.is_known, node.seen) = (false, now);
            let (node, reason) = (node.name.clone(), reason.into());
            self.outbox.publish(Event::NodeLeft { node, reason });
        }
    }

    /// Takes the shares of nodes that are away for too long.
    fn forget(&mut self, now: Time) {
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if node.is_known && node.is_answered || now.since(node.seen) < AWAY {
                continue;
            }
            if node.is_connected {
                self.outbox.close(peer(index));
                self.part(now, index, "it does not answer");
            }
            let node = &mut self.nodes[index];
            (node.is_unknown, node.is_expected, node.later) = (false, false, None);
            self.each_account(index, |account| *account = Account::default());
        }
    }

    fn on_report(&mut self, now: Time, index: usize, report: DataNodeReport) {
        let revision = self.policy.as_ref().map_or(0, |(revision, _)| *revision);
        if report.revision != revision || report.round != self.round {
            return;
        }
        let node = &mut self.nodes[index];
        (node.is_answered, node.is_unknown, node.is_expected) = (true, false, false);
        if !core::mem::replace(&mut node.is_known, true) {
            self.learn(index, &report);
        }
        let events = self.compare(index, &report);
        events.into_iter().for_each(|event| self.outbox.publish(event));
        let node = &mut self.nodes[index];
        node.minute.read(now, node.report.as_ref(), &report);
        node.report = Some(report);
        let is_awaited = |node: &DataNodeState| node.is_connected && !node.is_answered;
        if self.until.is_some() && !self.nodes.iter().any(is_awaited) {
            self.divide();
        }
    }

    /// Takes in the shares that a node reports after it has connected.
    fn learn(&mut self, index: usize, report: &DataNodeReport) {
        self.each_account(index, |account| *account = Account::default());
        for tenant_report in &report.tenants {
            let Some(tenant) = self.tenants.get_mut(tenant_report.tenant.index()) else {
                continue;
            };
            let allowed = if tenant.is_limited { tenant_report.allowed } else { 0 };
            let holds = GrantCounts { reserved: tenant_report.reserved, allowed };
            tenant.entries[index].account_mut(STANDING).learn(holds);
        }
    }
}

/// Rounds.
impl Split {
    fn rebuild(&mut self, policy: &Policy) {
        self.aim = Aim::default();
        let earlier = core::mem::take(&mut self.tenants).into_iter();
        let mut earlier: BTreeMap<String, TenantBounds> =
            earlier.map(|tenant| (tenant.name.clone(), tenant)).collect();
        for requested in &policy.tenants {
            let limits = (requested.reservation.operations, requested.limit.operations);
            let is_limited = limits.1.is_some();
            let mut tenant = earlier.remove(&requested.name).unwrap_or_else(|| TenantBounds {
                name: requested.name.clone(),
                is_limited,
                entries: (0..self.nodes.len())
                    .map(NodeId::at)
                    .map(|node| NodeAccounts { node, is_home: true, ..NodeAccounts::default() })
                    .collect(),
                ..TenantBounds::default()
            });
            let was_limited = core::mem::replace(&mut tenant.is_limited, is_limited);
            let limits = (limits.0.map(|iops| iops.0), limits.1.map(|iops| iops.0));
            tenant.promise = promise(Unit::Operations, limits, Span::SECOND);
            for entry in &mut tenant.entries {
                entry.account_mut(STANDING).renew(was_limited, is_limited);
            }
            self.tenants.push(tenant);
        }
        // Tenants have other indexes now.
        let before = self.policy.iter().flat_map(|(_, policy)| &policy.tenants);
        let after = |name| policy.tenants.iter().position(|tenant| tenant.name == name);
        let indexes: Vec<_> =
            before.map(|tenant| after(tenant.name.as_str()).map(TenantIndex::at)).collect();
        for node in &mut self.nodes {
            node.minute.renumber(|from| indexes.get(from.index()).copied().flatten());
        }
        for report in self.nodes.iter_mut().filter_map(|node| node.report.as_mut()) {
            report.tenants.retain_mut(|tenant_report| {
                let index = indexes.get(tenant_report.tenant.index()).copied().flatten();
                tenant_report.tenant = index.unwrap_or_default();
                index.is_some()
            });
        }
    }

    /// The time between two rounds.
    fn interval(&self) -> Span {
        let requested =
            self.policy.as_ref().map_or(Span::SECOND, |(_, policy)| policy.redistribute);
        Span(requested.0.max(Span::MILLISECOND.0))
    }

    /// Asks every node for a report.
    fn open_round(&mut self, now: Time) {
        self.forget(now);
        self.round += 1;
        let interval = self.interval();
        self.next_round = now.after(interval);
        self.until = Some(now.after(Span(interval.0 / WAIT_PART)));
        for index in 0..self.nodes.len() {
            if self.nodes[index].is_connected {
                self.nodes[index].is_answered = false;
                self.send(index, ToDataNode::Collect { round: self.round });
            }
        }
    }

    /// Divides promises by the last reports, and sends the nodes their shares.
    fn divide(&mut self) {
        self.until = None;
        self.aim.divide(&mut self.tenants, &self.nodes);
        self.push();
    }

    /// Sends each node the shares that differ from the last ones, as far as there is headroom.
    fn push(&mut self) {
        let Some(revision) = self.policy.as_ref().map(|(revision, _)| *revision) else { return };
        // Until the shares of all nodes are known, nodes keep their shares.
        if self.nodes.iter().any(|node| node.is_unknown) {
            return;
        }
        let mut headrooms: Vec<_> =
            self.tenants.iter().map(|tenant| tenant.headroom(STANDING)).collect();
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            if !node.is_connected || !node.is_known {
                continue;
            }
            let is_due = core::mem::take(&mut node.is_due);
            let serial = node.serial + 1;
            let mut shares = Vec::new();
            for (number, (owner, headroom)) in
                (0..).map(TenantIndex).zip(self.tenants.iter_mut().zip(&mut headrooms))
            {
                let is_limited = owner.is_limited;
                let account = owner.entries[index].account_mut(STANDING);
                let best = account.best(is_limited, headroom);
                if best != account.sent || is_due {
                    account.record_sent(best, serial);
                    let allowed = if is_limited { best.allowed } else { u64::MAX };
                    shares.push(Share { tenant: number, reserved: best.reserved, allowed });
                }
            }
            if is_due || !shares.is_empty() {
                self.nodes[index].serial = serial;
                self.note_sent(index);
                let grant = Grant { revision, serial, shares };
                self.send(index, ToDataNode::Grant(grant));
            }
        }
    }

    /// All counts up to the grant with this serial are in force, and none from before it.
    fn on_granted(&mut self, index: usize, serial: u64) {
        self.each_account(index, |account| {
            // An account that is in doubt is sent anew.
            if account.pending.is_some_and(|pending| pending > 0 && pending <= serial) {
                account.settle();
            }
        });
        let later = self.nodes[index].later.take_if(|later| later.from <= serial);
        let Some(LaterCounts { most, .. }) = later else { return };
        for (tenant, most) in self.tenants.iter_mut().zip(most) {
            tenant.entries[index].account_mut(STANDING).lower(most);
        }
        self.note_sent(index);
    }

    /// Takes the counts sent last into the record of those that may be in force later.
    fn note_sent(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let sent = self.tenants.iter().map(|tenant| tenant.entries[index].account(STANDING).sent);
        match &mut node.later {
            Some(LaterCounts { most, .. }) => {
                most.iter_mut().zip(sent).for_each(|(most, sent)| *most = most.max(sent));
            }
            later => *later = Some(LaterCounts { from: node.serial, most: sent.collect() }),
        }
    }

    fn each_account(&mut self, index: usize, mut change: impl FnMut(&mut Account)) {
        for tenant in &mut self.tenants {
            change(tenant.entries[index].account_mut(STANDING));
        }
    }

    fn send(&mut self, index: usize, message: ToDataNode) {
        self.outbox.send(peer(index), ToPeer::DataNode(message));
    }
}

fn peer(index: usize) -> PeerId {
    PeerId::DataNode(DataNodeId::at(index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_node::TenantReport;
    use crate::session::Action;

    /// The grants that are to be sent: their node, serial and share.
    fn grants(split: &mut Split) -> Vec<(PeerId, u64, u64)> {
        let grant = |action| match action {
            Action::Send { to, message: ToPeer::DataNode(ToDataNode::Grant(grant)) } => {
                Some((to, grant.serial, grant.shares[0].reserved))
            }
            _ => None,
        };
        core::iter::from_fn(|| split.outbox.pop()).filter_map(grant).collect()
    }

    /// A share falls in every round, and each time its node confirms the grant before the last one.
    #[test]
    fn a_share_that_falls_in_every_round_leaves_the_difference_to_another_node() {
        let policy = "redistribute = \"1s\"\n[[tenant]]\nname = \"a\"\nreservation = \"100 iops\"";
        let policy = Policy::parse(policy).unwrap();
        let node =
            |name: &str| NodeSetup { name: name.into(), capacity: Iops(400), client: Iops(300) };
        let mut split = Split::new(Time(0), ["m", "n"].map(node).into(), Some((1, policy)));
        let peers = ["m", "n"].map(|name| split.on_hello(Time(0), name).unwrap());
        let (mut shares, mut serials) = ([100, 0], [0; 2]);
        for round in 1..9 {
            let now = Time(round * Span::SECOND.0);
            split.on_deadline(now);
            for index in 0..2u16 {
                let tenant = TenantReport {
                    reserved: shares[usize::from(index)],
                    allowed: u64::MAX,
                    clients: 1,
                    most: 100,
                    done: if index == 0 { 100 - 10 * round } else { shares[1] },
                    wants_more: index == 1,
                    unmet: Some(u64::from(index) * 100),
                    ..TenantReport::default()
                };
                let report = DataNodeReport {
                    revision: 1,
                    round: split.round,
                    capacity: Iops(400),
                    tenants: [tenant].into(),
                    ..DataNodeReport::default()
                };
                split.on_message(now, DataNodeId(index), FromDataNode::Report(report));
            }
            let (confirmed, granted) = (shares[0], FromDataNode::Granted { serial: serials[0] });
            let first = grants(&mut split);
            split.on_message(now, DataNodeId(0), granted);
            for (to, serial, share) in first.into_iter().chain(grants(&mut split)) {
                let index = usize::from(to == peers[1]);
                (serials[index], shares[index]) = (serial, share);
            }
            let granted = FromDataNode::Granted { serial: serials[1] };
            split.on_message(now, DataNodeId(1), granted);
            assert!(confirmed.max(shares[0]) + shares[1] <= 100, "{shares:?}");
        }
        assert_eq!(shares, [20, 70]);
    }
}
