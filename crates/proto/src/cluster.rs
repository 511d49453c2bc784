//! The controller of a cluster of storage nodes: one policy in, counts out, without I/O.
//!
//! # Problem
//! A tenant is promised operations per second over all nodes together. Its requests go straight to
//! the nodes, and their distribution changes. So a controller has to divide the rest of each
//! promise over the nodes, several times in a period (Y. Peng, Q. Liu, P. Varman: *Scalable QoS for
//! Distributed Storage Clusters using Dynamic Token Allocation*, MSST 2019, §III-D). Links lose,
//! delay and repeat messages, nodes come and go, and no token may be promised twice.
//!
//! # Mechanism
//! A period is divided into rounds. In each the cluster *asks* all nodes for their service and
//! expected demand; *divides* the rest of the promises (`allocate.rs`); and *tells* each node the
//! counts that changed. Nodes keep serving by the counts that they have. For a report that is
//! missing after a fourth of the round, the last one counts.
//!
//! - **Falls before rises.** Counts rise only by what a promise leaves over the highest counts that
//!   may be in force (`bounds.rs`). Counts that fall go out first; when nodes have confirmed them,
//!   or a fourth of the round later, a second grant of the same round gives out the freed tokens.
//! - **Period by period.** The last round of a period also sends the counts of the next one. They
//!   hold anew for [`LEASE`] further periods, at the node and in `bounds.rs`. A node that took the
//!   last such lease is sent only the differences from it.
//! - **Resting nodes are not asked.** A node without requests since the period before reports that
//!   it rests, and is asked in the last round of each period only; when a request comes it reports
//!   that, and a round begins. While all nodes rest there are no other rounds. Nodes with unknown
//!   or unconfirmed counts do not rest.
//! - **Once more.** Tokens that are unused when the period ends are lost. So there is one more
//!   distribution of the tokens left shortly before ([`LAST_PART`]).
//! - **Silent nodes.** A node that misses [`MISSED_MAX`] rounds, or whose connection ended, keeps
//!   its counts until its lease is over; then they go to other nodes. When it returns it is sent
//!   all counts. An event reports a node as silent once it has answered nothing for [`SILENT`]. A
//!   node that returns as a new process holds no counts. Those that the old one may have used,
//!   whether reported or not, count as used until the period ends, also after a disconnect message.
//! - **A restart of the controller.** Nodes may hold counts from the earlier run, which kept within
//!   the promises. Until every node has connected as a new process, or all leases must be over, the
//!   new run leaves those counts in force: it sends none to nodes that may hold some, and has no
//!   headroom to raise the other nodes. Periods are numbered by the calendar, so both runs agree on
//!   them, and no node counts one twice.
//! - **A new policy** takes effect at once, in the middle of the period, and counts the service in
//!   it. Old counts are void at a node that has the new plan, and their bounds stay in force
//!   until nodes confirm new ones. So nodes may exceed a lower limit only until they receive it.
//!
//! # Bounds
//! Counts are per period; a promise that does not divide is rounded: limits down, reservations up.
//! Bytes have counts of their own beside those of operations, where the policy names the nodes as a
//! resource (`accounts.rs`). All sums saturate; no message of a node makes the cluster panic, or
//! hand out more than the policy has. Memory is that of the pairs of tenant and node that can meet,
//! and the time of a round that of the pairs whose tenant has demand (`awake.rs`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use postcard::ser_flavors::Size;
use serde::Serialize;
use tidegate_model::event::DISCONNECTED;
use tidegate_model::{Discipline, Event, Iops, NodeId, PeriodNumber, Policy, Rate, Span, Time};

use crate::message::VERSION;
pub use crate::message::cluster as message;
use crate::session::{Outbox, PeerId, REPLACED, Refusal, ToPeer};
pub use crate::status::cluster as status;
use accounts::Accounts;
use bounds::{GrantCounts, NodeAccounts, When};
use message::{FromNode, NodeInfo, NodeReport, PartFault, Plan, Share, ToNode, UNITS};
use rounds::{Phase, Round};
use status::Traffic;

mod accounts;
mod allocate;
mod awake;
mod bounds;
mod groups;
mod plan;
mod rounds;
pub mod split;
mod survey;

/// Periods for which counts hold anew while the controller sends no others. One is the least that
/// survives a message lost at the end of a period; with two a controller has a period to be started
/// again.
pub const LEASE: u32 = 2;

/// Rounds that a node may miss before it is passed over in distributions: one lost message is
/// forgiven.
pub const MISSED_MAX: u32 = 2;

/// How long a node has to answer nothing before an event and the status call it silent. Rounds are
/// counted in fractions of an interval, which a machine with a busy disk or processor can miss
/// twice: then tokens go elsewhere for a while, and nothing is wrong with the node. Chosen by hand.
pub const SILENT: Span = Span::SECOND;

/// The fraction of a round, one in so many, after which it goes on without missing reports.
const WAIT_PART: u64 = 4;

/// The part of a round before the end of the period at which tokens are distributed once more.
/// Tokens left by then are lost if they do not lie where requests wait. The smaller the part, the
/// less that is; it is to be long against the time that two messages take there and back.
pub const LAST_PART: u64 = 8;

/// Nodes that connect within this time are sent their counts together: a cluster that starts causes
/// one distribution. Short against the shortest round that operators ask for.
const SETTLE: Span = Span(5 * Span::MILLISECOND.0);

/// For how many periods after the one in which a controller ends nodes may hold its counts: its
/// last grant was for the next one, and that holds anew.
const EARLIER: u64 = 1 + LEASE as u64;

/// Both kinds of accounts.
const WHENS: [When; 2] = [When::Now, When::Next];

/// Bytes of a frame around its message.
const FRAME_HEAD: usize = 4;

/// A node of the cluster file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSetup {
    /// Its name; no two have the same.
    pub name: String,
    /// Its declared capacity, in operations per second. It bounds the capacity that the node
    /// reports.
    pub capacity: Option<Iops>,
    /// Its declared capacity in bytes per second. Without one, bytes are divided as if it could
    /// move any number.
    pub bandwidth: Option<Rate>,
    /// The scheduler that it is to use, unless an operator chooses another; none for the one with
    /// which it was started.
    pub discipline: Option<Discipline>,
}

/// The parameters of the part that leads storage nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// The nodes; a [`NodeId`] is an index of this list.
    pub nodes: Vec<NodeSetup>,
    /// The home nodes of a tenant, by its name: its volumes and pools lie on them. At least half of
    /// its tokens without demand goes to those that can take it. It may use other nodes, too. For a
    /// tenant that is not named, or has no node, every node is a home node. It can change with the
    /// policy.
    pub home_nodes: BTreeMap<String, BTreeSet<NodeId>>,
    /// The time from the moment from which periods are counted to [`Time::ZERO`] of this run. That
    /// moment is the same for all runs of a controller: 1970 where there is a calendar.
    pub day: Span,
    /// Whether no earlier run of the controller can have granted counts that are in force. If one
    /// may have, no count rises until every node has connected as a new process or every lease is
    /// over.
    pub is_first: bool,
}

/// A node, as far as the cluster knows it.
#[derive(Debug, Default)]
struct NodeState {
    id: NodeId,
    name: String,
    /// In operations and in bytes per second.
    declared: [Option<u64>; 2],
    /// The scheduler of the cluster file, and the one that was chosen instead.
    discipline: Option<Discipline>,
    chosen: Option<Discipline>,
    info: NodeInfo,
    is_connected: bool,
    /// Whether the last question was answered.
    is_answered: bool,
    /// Whether the last question was for everything and not only for differences.
    is_complete: bool,
    /// The period in which it was asked last.
    requested_in: Option<PeriodNumber>,
    /// Whether it rests: it has reported no request, and will report the next one.
    is_resting: bool,
    /// Rounds missed, and when the first of them began.
    missed: u32,
    missed_since: Option<Time>,
    /// It has missed [`MISSED_MAX`] rounds, and is sent no counts until it answers.
    is_passed_over: bool,
    /// It has answered nothing for [`SILENT`], and the event was published.
    is_silent: bool,
    /// Parts that it has and cannot serve as promised.
    faults: Vec<PartFault>,
    /// Why its store as a whole does nothing now.
    store_fault: Option<String>,
    reported: Option<Time>,
    /// From the last report to the end of its period, and in a whole period, in each unit.
    capacity_left: [u64; 2],
    capacity: [u64; 2],
    /// Its own estimate of its capacity, in operations per second, without the declared bound.
    measured: u64,
    /// Whether that and its capacity are what it assumes while its store was never busy.
    is_unmeasured: bool,
    /// The last grant's, and that of the one to be confirmed before something is raised.
    serial: u64,
    awaited: Option<u64>,
    /// Whether the next grant is to name everything.
    is_stale: bool,
    /// The serial of the last grant that was a lease, and whether its node has answered it. Zero
    /// if none can be renewed.
    leased: u64,
    is_lease_answered: bool,
    /// The last period in which its counts may hold anew.
    lease_until: PeriodNumber,
    /// Whether no account has a count there.
    is_void: bool,
    /// Whether it may hold counts that only an earlier run of the controller knows: in this period,
    /// and in later ones.
    is_unknown: [bool; 2],
}

impl NodeState {
    /// Its scheduler; none if it keeps the one that it was started with.
    fn discipline(&self) -> Option<Discipline> {
        self.chosen.or(self.discipline)
    }

    /// Whether the controller sends it nothing until it reports that a request has come.
    fn may_rest(&self) -> bool {
        let is_settled = !self.is_stale && self.awaited.is_none() && self.is_unknown == [false; 2];
        self.is_resting && is_settled
    }

    /// Whether it can be sent counts of a period.
    fn is_open(&self, when: When) -> bool {
        self.is_connected && !self.is_passed_over && !self.is_unknown[when as usize]
    }
}

/// The machine. See the head of this file.
#[derive(Debug)]
pub(crate) struct Cluster {
    setup: Setup,
    plan: Plan,
    /// Of operations, and of bytes, as [`UNITS`].
    accounts: [Accounts; 2],
    /// The policy's groups by name, and the indexes of each one's tenants.
    groups: Vec<(String, Vec<usize>)>,
    nodes: Vec<NodeState>,
    period: PeriodNumber,
    period_start: Time,
    /// Rounds begun in this period.
    rounds: u32,
    round: Round,
    next_round_at: Time,
    /// The period in which this run began.
    first_period: PeriodNumber,
    /// Whether the promises of the last period were checked.
    is_judged: bool,
    traffic: Traffic,
    traffic_before: Traffic,
    pub(crate) outbox: Outbox,
}

impl Cluster {
    /// A cluster whose nodes are all away, at `now`, with the policy of an earlier run and its
    /// revision.
    pub(crate) fn new(now: Time, setup: Setup, policy: Option<(u64, Policy)>) -> Self {
        let node_state = |(index, node): (usize, &NodeSetup)| NodeState {
            id: NodeId::at(index),
            name: node.name.clone(),
            declared: [node.capacity.map(|iops| iops.0), node.bandwidth.map(|rate| rate.0)],
            discipline: node.discipline,
            is_unknown: [!setup.is_first; 2],
            ..NodeState::default()
        };
        let nodes: Vec<NodeState> = setup.nodes.iter().enumerate().map(node_state).collect();
        let mut cluster = Self {
            plan: Plan::default(),
            accounts: UNITS.map(|unit| Accounts::new(unit, nodes.len())),
            groups: Vec::new(),
            nodes,
            period: PeriodNumber::default(),
            period_start: now,
            rounds: 0,
            round: Round::default(),
            next_round_at: Time::MAX,
            first_period: PeriodNumber::default(),
            is_judged: true,
            traffic: Traffic::default(),
            traffic_before: Traffic::default(),
            outbox: Outbox::default(),
            setup,
        };
        if let Some((revision, policy)) = policy {
            cluster.apply(now, revision, &policy);
        }
        cluster
    }

    /// A node has said hello on a new connection. It is welcomed and sent the plan, and soon its
    /// counts; or refused.
    pub(crate) fn on_hello(&mut self, now: Time, info: NodeInfo) -> Result<NodeId, Refusal> {
        self.catch_up(now);
        let found = self.nodes.iter().position(|node_state| node_state.name == info.name);
        let node = found.ok_or_else(|| Refusal::unknown("node", &info.name))?;
        self.part(node, REPLACED);
        self.join(now, node, info);
        Ok(self.nodes[node].id)
    }

    /// A node has sent a message.
    pub(crate) fn on_message(&mut self, now: Time, node: NodeId, message: FromNode) {
        self.catch_up(now);
        let node = node.index();
        self.count(&message);
        match message {
            FromNode::Report(report) => self.on_report(now, node, &report, false),
            FromNode::Rest { revision, round_id, serial, capacity_left } => {
                let report = NodeReport {
                    revision,
                    round_id,
                    serial,
                    capacity_left,
                    ..NodeReport::default()
                };
                self.on_report(now, node, &report, true);
            }
            FromNode::Awake => self.on_awake(now, node),
            FromNode::Unrenewed { revision, serial } => {
                if revision == self.plan.revision {
                    self.on_unrenewed(node, serial);
                }
            }
            FromNode::Granted { revision, serial, shares, bytes } => {
                if revision == self.plan.revision {
                    self.on_granted(now, node, serial, [&shares, &bytes]);
                }
            }
            FromNode::Disconnect => {
                self.outbox.close(PeerId::Node(self.nodes[node].id));
                self.part(node, DISCONNECTED);
                self.end_process(node);
                self.divide_if_answered(now);
            }
            // [`crate::stats`] asks for them, and takes them in.
            FromNode::Counts(_) | FromNode::Latency(_) => {}
            FromNode::Faults(faults) => self.nodes[node].faults = faults,
            FromNode::StoreFault(fault) => self.nodes[node].store_fault = fault,
            FromNode::CapacityKnown(is_known) => self.nodes[node].is_unmeasured = !is_known,
        }
    }

    /// A node's connection is closed. `reason` is for people.
    pub(crate) fn on_closed(&mut self, now: Time, node: NodeId, reason: &str) {
        self.part(node.index(), reason);
        self.divide_if_answered(now);
    }

    /// Brings a policy into force, in the middle of the period; earlier service in it counts.
    pub(crate) fn apply(&mut self, now: Time, revision: u64, policy: &Policy) {
        let (is_first, period_before) = (self.plan.revision == 0, self.plan.period);
        self.set_plan(revision, policy);
        self.rebuild(policy);
        // A period that is over by the new measure ends now.
        let earliest = Time(now.0.saturating_sub(self.plan.period.0));
        self.period_start = self.period_start.max(earliest);
        if self.plan.period != period_before && self.period_start > earliest {
            // Nodes count service beyond a shorter period's tokens as debts.
            self.accounts.iter_mut().for_each(Accounts::forget_served);
        }
        if is_first {
            let today = Span(self.setup.day.0.saturating_add(now.0));
            self.period = PeriodNumber(today.0 / self.plan.period.0);
            let into = today.0 % self.plan.period.0;
            self.period_start = Time(now.0.saturating_sub(into));
            self.first_period = self.period;
        }
        for node in 0..self.nodes.len() {
            (self.nodes[node].is_stale, self.nodes[node].leased) = (true, 0);
            self.send_plan(node);
        }
        self.next_round_at = now;
        self.on_deadline(now);
    }

    /// Chooses the scheduler of a node; none takes an earlier choice back.
    pub(crate) fn choose(&mut self, node: NodeId, chosen: Option<Discipline>) {
        let Some(node_state) = self.nodes.get_mut(node.index()) else { return };
        let before = node_state.discipline();
        node_state.chosen = chosen;
        if let Some(scheduler) = node_state.discipline().filter(|after| Some(*after) != before) {
            let event = Event::SchedulerChosen { node: node_state.name.clone(), scheduler };
            self.outbox.publish(event);
        }
        self.send_plan(node.index());
    }

    /// The time that [`Self::next_deadline`] named has come.
    pub(crate) fn on_deadline(&mut self, now: Time) {
        self.advance_periods(now);
        if self.next_round_at <= now {
            if self.round.phase == Phase::Collecting {
                self.divide(now);
            }
            self.open_round(now);
        }
        match self.round.phase {
            Phase::Collecting if self.round.until <= now => self.divide(now),
            Phase::Granting if self.round.until <= now => self.raise(now),
            _ => {}
        }
    }

    /// Ends periods that are over before [`Self::on_deadline`] is called: nodes have ended them
    /// already, and their messages are about the next one.
    pub(crate) fn catch_up(&mut self, now: Time) {
        if self.period_end() <= now {
            self.on_deadline(now);
        }
    }

    /// When to call [`Self::on_deadline`] next; changes with every call.
    pub(crate) fn next_deadline(&self) -> Time {
        let phase = if self.round.phase == Phase::Idle { Time::MAX } else { self.round.until };
        phase.min(self.next_round_at).min(self.period_end())
    }
}

/// Nodes coming and going.
impl Cluster {
    fn join(&mut self, now: Time, node: usize, info: NodeInfo) {
        let is_new = info.revision == 0;
        if is_new {
            self.end_process(node);
        }
        let revision = self.plan.revision;
        let node_state = &mut self.nodes[node];
        node_state.is_connected = true;
        node_state.faults.clear();
        node_state.store_fault = None;
        node_state.is_unmeasured = false;
        (node_state.is_answered, node_state.missed, node_state.missed_since) = (false, 0, None);
        (node_state.is_passed_over, node_state.is_silent) = (false, false);
        (node_state.is_stale, node_state.awaited, node_state.is_resting) = (true, None, false);
        node_state.leased = 0;
        if is_new {
            node_state.serial = 0;
        }
        let is_known = !is_new && node_state.is_unknown == [false; 2];
        node_state.info = info;
        let (id, name) = (node_state.id, node_state.name.clone());
        self.send(node, ToNode::Welcome { version: VERSION, node: id });
        self.outbox.publish(Event::NodeJoined { node: name, is_known });
        self.send_plan(node);
        if revision != 0 {
            self.next_round_at = self.next_round_at.min(now.after(SETTLE));
        }
    }

    fn part(&mut self, node: usize, reason: &str) {
        let node_state = &mut self.nodes[node];
        if !core::mem::take(&mut node_state.is_connected) {
            return;
        }
        node_state.awaited = None;
        let (node, reason) = (node_state.name.clone(), reason.into());
        self.outbox.publish(Event::NodeLeft { node, reason });
    }

    /// The process at a node holds nothing any more.
    fn end_process(&mut self, node: usize) {
        let node_state = &mut self.nodes[node];
        node_state.lease_until = PeriodNumber::default();
        let was_unknown = core::mem::take(&mut node_state.is_unknown)[When::Now as usize];
        let id = node_state.id;
        for accounts in &mut self.accounts {
            accounts.wake_all();
            for &(tenant, _) in &accounts.entries_of[node] {
                accounts.tenants[tenant.index()].end_process(id, was_unknown);
            }
        }
        self.forget_unknown();
    }

    fn on_granted(&mut self, now: Time, node: usize, serial: u64, shares: [&[Share]; 2]) {
        let id = self.nodes[node].id;
        for (accounts, shares) in self.accounts.iter_mut().zip(shares) {
            for share in shares {
                let Some(tenant) = accounts.tenants.get_mut(share.tenant.index()) else { continue };
                let allowed = if tenant.is_limited { share.allowed } else { 0 };
                if let Some(entry) = tenant.entry_mut(id) {
                    entry.confirm(serial, GrantCounts { reserved: share.reserved, allowed });
                }
                accounts.wake(share.tenant);
            }
        }
        if shares.iter().all(|shares| shares.is_empty()) {
            self.each_awake(node, |entry| entry.refuse(serial));
        }
        let node_state = &mut self.nodes[node];
        node_state.is_lease_answered |= node_state.leased == serial;
        node_state.awaited = node_state.awaited.filter(|awaited| *awaited > serial);
        if self.nodes.iter().all(|node_state| node_state.awaited.is_none()) {
            self.raise(now);
        }
    }

    /// Nothing is unknown of a tenant whose nodes are all known.
    fn forget_unknown(&mut self) {
        for accounts in self.accounts.iter_mut().filter(|accounts| accounts.is_any_unknown) {
            for tenant in &mut accounts.tenants {
                for when in WHENS.map(|when| when as usize) {
                    let mut nodes = tenant.entries.iter().map(|entry| entry.node.index());
                    if !nodes.any(|node| self.nodes[node].is_unknown[when]) {
                        tenant.unknown[when] = GrantCounts::ZERO;
                    }
                }
            }
            let mut unknown = accounts.tenants.iter().flat_map(|tenant| tenant.unknown);
            accounts.is_any_unknown = unknown.any(|counts| counts != GrantCounts::ZERO);
        }
    }
}

/// Messages to nodes, and counters of all messages.
impl Cluster {
    fn send_plan(&mut self, node: usize) {
        if self.nodes[node].is_connected && self.plan.revision != 0 {
            let discipline = self.nodes[node].discipline();
            let capacity = self.promised_of(node);
            self.send(node, ToNode::Plan(Plan { discipline, capacity, ..self.plan.clone() }));
        }
    }

    fn send(&mut self, node: usize, message: ToNode) {
        self.count(&message);
        self.outbox.send(PeerId::Node(self.nodes[node].id), ToPeer::Node(message));
    }

    /// Counts a message and its bytes.
    fn count<M: Serialize>(&mut self, message: &M) {
        let body = postcard::serialize_with_flavor(message, Size::default()).unwrap_or(0);
        self.traffic.messages += 1;
        self.traffic.bytes += (FRAME_HEAD + body) as u64;
    }

    fn each_awake(&mut self, node: usize, mut change: impl FnMut(&mut NodeAccounts)) {
        let id = self.nodes[node].id;
        self.accounts.iter_mut().for_each(|accounts| accounts.each_awake(id, &mut change));
    }
}

/// Scales an `amount` over `part` to the length of `whole`; saturates at [`u64::MAX`].
fn scaled(amount: u64, whole: Span, part: Span) -> u64 {
    let scaled = u128::from(amount) * u128::from(whole.0) / u128::from(part.0.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
