//! The controller: one policy in, rates, counts and shares out, without I/O.
//!
//! A controller has one session with each of its peers, and four parts that divide what a policy
//! promises or read what was done:
//!
//! | part | peers | what it sends |
//! |---|---|---|
//! | `budgets` | stages | rules, and the rate of each bucket |
//! | [`cluster`] | storage nodes | the plan, and counts of tokens |
//! | [`split`] | data nodes | the policy, and shares of promises |
//! | [`stats`](crate::stats) | gateways, storage nodes | requests for counters |
//!
//! A peer says hello; the controller compares versions, lets the part that leads the peer accept or
//! refuse it, and notes the connection ([`crate::session`]). A peer has one connection: a later
//! hello of the same peer ends the earlier connection. If another process had the earlier one, it
//! is refused first, with the reason. A message of a kind that does not fit the hello is ignored.
//! Beside these parts the controller keeps the programs under `tidegate run`, of which gateways on
//! its machine ask, and recordings that are under way.
//!
//! The caller calls [`Controller::poll_output`] until it is empty after each of the other calls,
//! and [`Controller::on_deadline`] at [`Controller::next_deadline`]. It performs outputs in their
//! order: what stands before a close is sent before it, and decreases go out before increases.
//!
//! ```
//! use tidegate_model::{Policy, Time};
//! use tidegate_proto::cluster::message::{NodeInfo, ToNode};
//! use tidegate_proto::cluster::{self, NodeSetup};
//! use tidegate_proto::controller::{ConnectionId, Controller, Output, Peer, Setup, ToPeer};
//! use tidegate_proto::message::{Hello, StageInfo, ToStage, VERSION};
//!
//! let policy = Policy::parse("budget = \"1GB/s\"\n[[tenant]]\nname = \"kv\"")?;
//! let nodes = vec![NodeSetup { name: "a".into(), ..NodeSetup::default() }];
//! let cluster = cluster::Setup { nodes, is_first: true, ..cluster::Setup::default() };
//! let setup = Setup { cluster: Some(cluster), ..Setup::default() };
//! let mut controller = Controller::new(Time::ZERO, setup, Some((1, policy)));
//!
//! let info = StageInfo { tenant: "kv".into(), ..StageInfo::default() };
//! let stage = Hello::Stage { version: VERSION, info };
//! let peer = Peer { uid: 0, pid: 7, user: "root".into(), ..Peer::default() };
//! controller.on_hello(Time::ZERO, ConnectionId(1), peer, stage);
//! let info = NodeInfo { name: "a".into(), ..NodeInfo::default() };
//! let node = Hello::Node { version: VERSION, info };
//! controller.on_hello(Time::ZERO, ConnectionId(2), Peer::default(), node);
//!
//! let outputs = std::iter::from_fn(|| controller.poll_output());
//! let is_welcome = |output: &Output| matches!(output, Output::Send {
//!     message: ToPeer::Stage(ToStage::Welcome { .. }) | ToPeer::Node(ToNode::Welcome { .. }), ..
//! });
//! assert_eq!(outputs.filter(is_welcome).count(), 2);
//! # Ok::<(), tidegate_model::PolicyError>(())
//! ```

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::gate::Unit;
use tidegate_model::policy::GateKind;
use tidegate_model::{Discipline, Event, GatewayId, NodeId, Policy, StageId, Time};

use crate::budgets::Budgets;
pub use crate::budgets::Waits;
use crate::cluster::message::{FromNode, NodeInfo};
use crate::cluster::split::{self, Split};
use crate::cluster::status::ClusterStatus;
use crate::cluster::{self, Cluster};
use crate::message::{FromGateway, Hello, ToGateway};
pub use crate::outstanding::Outstanding;
use crate::programs::RegisteredPrograms;
use crate::recording::collector::{CollectError, Collector, RecordingPart};
use crate::session::{Action, PeerId, Sessions, same_version, shortened};
pub use crate::session::{ConnectionId, FromPeer, Peer, Refusal, ToPeer};
use crate::stats::ClusterStats;
use crate::stats::delays::{Delays, UnknownTenant};
use crate::stats::latency::Latencies;
pub use crate::status;
use resources::RecentWaits;
use status::Status;

mod resources;
#[cfg(test)]
mod tests;

/// The peers that a [`Controller`] leads besides stages, and what stages may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// The storage nodes; none where there is no cluster.
    pub cluster: Option<cluster::Setup>,
    /// The data nodes.
    pub data_nodes: Vec<split::NodeSetup>,
    /// The names of the gateways.
    pub gateways: Vec<String>,
    /// The content of the last [`Output::Remember`] of an earlier run.
    pub outstanding: Outstanding,
    /// The machine and the namespace in which its processes have their numbers; empty if unknown,
    /// and then gateways hear of no programs.
    pub space: String,
}

/// An I/O action for the caller of [`Controller`] to perform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message.
    Send {
        /// On this connection.
        to: ConnectionId,
        /// This one.
        message: ToPeer,
    },
    /// Close a connection, once its messages are on their way. The caller does not report it back.
    Close {
        /// This one.
        connection: ConnectionId,
    },
    /// Publish an event.
    Event(Event),
    /// Keep this for the next run ([`Setup::outstanding`]), before any later output is performed.
    Remember(Outstanding),
}

/// The machine. See the head of this file.
#[derive(Debug)]
pub struct Controller {
    /// Whether neither stages nor counters are asked: see [`Self::of_nodes`].
    tokens_only: bool,
    /// The policy in force and its revision. Each part has it as its gates see it.
    policy: Option<(u64, Policy)>,
    sessions: Sessions,
    budgets: Budgets,
    cluster: Option<Cluster>,
    split: Split,
    stats: ClusterStats,
    collector: Collector,
    programs: RegisteredPrograms,
    outputs: VecDeque<Output>,
}

impl Controller {
    /// A controller whose peers are all away, at `now`, with the policy of an earlier run and its
    /// revision.
    pub fn new(now: Time, setup: Setup, policy: Option<(u64, Policy)>) -> Self {
        let Setup { cluster, data_nodes, gateways, outstanding, space } = setup;
        let nodes = cluster.iter().flat_map(|setup| &setup.nodes);
        let nodes: Vec<String> = nodes.map(|node| node.name.clone()).collect();
        let mut stats = ClusterStats::new(&nodes, &gateways);
        let at = |gate| policy.as_ref().map(|(revision, policy)| (*revision, policy.at(gate)));
        if let Some((revision, policy)) = at(GateKind::Node) {
            stats.apply(revision, &policy);
        }
        let mut controller = Self {
            tokens_only: false,
            sessions: Sessions::default(),
            cluster: cluster.map(|setup| Cluster::new(now, setup, at(GateKind::Node))),
            split: Split::new(now, data_nodes, at(GateKind::DataNode)),
            budgets: Budgets::new(now, at(GateKind::Stage), outstanding),
            policy,
            stats,
            collector: Collector::default(),
            programs: RegisteredPrograms::new(space),
            outputs: VecDeque::new(),
        };
        controller.collect();
        controller
    }

    /// A controller of storage nodes alone, for simulations: as no stage connects and no operator
    /// watches, all of its messages and deadlines are about tokens.
    pub fn of_nodes(now: Time, setup: cluster::Setup, policy: Option<(u64, Policy)>) -> Self {
        let mut controller = Self::new(now, Setup::default(), policy.clone());
        let policy = policy.map(|(revision, policy)| (revision, policy.at(GateKind::Node)));
        controller.cluster = Some(Cluster::new(now, setup, policy));
        controller.tokens_only = true;
        controller
    }

    /// A peer has said hello on a new connection: it is accepted, or refused and disconnected.
    /// `peer` is its process. Operators are the caller's.
    pub fn on_hello(&mut self, now: Time, connection: ConnectionId, peer: Peer, hello: Hello) {
        if let (Hello::Node { .. }, Some(cluster)) = (&hello, &mut self.cluster) {
            // Messages that are due go out on the earlier connection, if there is one.
            cluster.catch_up(now);
            self.collect();
        }
        let pid = peer.pid;
        let accepted = same_version(&hello).and_then(|()| self.accept(now, peer.clone(), &hello));
        let id = match accepted {
            Ok(id) => id,
            Err(refusal) => return self.refuse(connection, pid, &hello, refusal),
        };
        let refusal = self.sessions.take_over(now, id, &peer, &hello);
        if let Some(earlier) = self.sessions.open(connection, id) {
            let refusal = refusal.map(|message| Output::Send { to: earlier, message });
            self.outputs.extend(refusal);
            self.outputs.push_back(Output::Close { connection: earlier });
            self.programs.on_closed(earlier);
        }
        match (id, &hello) {
            (PeerId::Gateway(gateway), _) => {
                self.on_recorder_left(gateway);
                self.send_policy(connection);
                for message in self.programs.on_gateway(connection, &peer) {
                    let message = ToPeer::Gateway(message);
                    self.outputs.push_back(Output::Send { to: connection, message });
                }
            }
            (PeerId::Stage(stage), Hello::Stage { info, .. }) => {
                let programs = self.programs.join(stage, &peer, info);
                self.send_programs(programs);
            }
            _ => {}
        }
        self.collect();
    }

    /// Lets the part that leads a peer accept it.
    fn accept(&mut self, now: Time, peer: Peer, hello: &Hello) -> Result<PeerId, Refusal> {
        let refusal = |reason: &str, retry| Refusal { reason: reason.into(), retry };
        match (hello, &mut self.cluster) {
            (Hello::Stage { info, .. }, _) => self.budgets.on_hello(now, peer, info.clone()),
            (Hello::Node { info, .. }, Some(cluster)) => {
                let id = cluster.on_hello(now, info.clone())?;
                self.stats.on_node(now, id, info.revision == 0);
                Ok(PeerId::Node(id))
            }
            (Hello::Node { .. }, None) => {
                let reason = "this controller has no cluster; start it with `tidegate up CLUSTER`";
                Err(refusal(reason, true))
            }
            (Hello::Gateway { name, .. }, _) => self.stats.on_hello(now, name),
            (Hello::DataNode { name, .. }, _) => self.split.on_hello(now, name),
            (Hello::Operator { .. }, _) => Err(refusal("an operator has no session", false)),
        }
    }

    fn refuse(&mut self, to: ConnectionId, pid: u32, hello: &Hello, refusal: Refusal) {
        let Refusal { reason, retry } = refusal.clone();
        if let Some(message) = ToPeer::refusal(hello, refusal) {
            self.outputs.push_back(Output::Send { to, message });
        }
        self.outputs.push_back(Output::Close { connection: to });
        let event = match hello {
            Hello::Stage { .. } => self.budgets.note_refused(pid, &reason),
            Hello::Gateway { name, .. } => {
                Event::GatewayRefused { gateway: shortened(name), reason }
            }
            // A node that tries again every two seconds is not an event each time.
            Hello::Node { info: NodeInfo { name, .. }, .. } if !retry => {
                Event::NodeRefused { node: shortened(name), reason }
            }
            Hello::DataNode { name, .. } => Event::NodeRefused { node: shortened(name), reason },
            Hello::Node { .. } | Hello::Operator { .. } => return,
        };
        self.outputs.push_back(Output::Event(event));
    }

    /// A peer has sent a message.
    pub fn on_message(&mut self, now: Time, connection: ConnectionId, message: FromPeer) {
        match (self.sessions.peer(connection), message) {
            (Some(PeerId::Stage(stage)), FromPeer::Stage(message)) => {
                self.budgets.on_message(now, stage, message);
            }
            (Some(PeerId::Node(node)), FromPeer::Node(FromNode::Latency(latency))) => {
                self.stats.on_node_latency(node, latency);
            }
            (Some(PeerId::Node(node)), FromPeer::Node(FromNode::Counts(counts))) => {
                self.stats.on_node_counts(now, node, counts);
            }
            (Some(PeerId::Node(node)), FromPeer::Node(message)) => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.on_message(now, node, message);
                }
            }
            (Some(PeerId::Gateway(gateway)), FromPeer::Gateway(FromGateway::Recorded(batch))) => {
                self.collector.on_batch(gateway, self.stats.gateway(gateway), batch);
            }
            (Some(PeerId::Gateway(gateway)), FromPeer::Gateway(message)) => {
                self.stats.on_message(now, gateway, message);
            }
            (Some(PeerId::DataNode(data_node)), FromPeer::DataNode(message)) => {
                self.split.on_message(now, data_node, message);
            }
            _ => return,
        }
        self.collect();
    }

    /// A connection is closed: by the peer, or by the caller because the peer does not read or
    /// sends malformed frames. `reason` is for people.
    pub fn on_closed(&mut self, now: Time, connection: ConnectionId, reason: &str) {
        let Some(peer) = self.sessions.peer(connection) else { return };
        self.sessions.close(peer);
        self.on_left(peer, connection, reason);
        match (peer, &mut self.cluster) {
            (PeerId::Stage(stage), _) => self.budgets.on_closed(now, stage, reason),
            (PeerId::Node(node), Some(cluster)) => cluster.on_closed(now, node, reason),
            (PeerId::DataNode(data_node), _) => self.split.on_closed(now, data_node, reason),
            (PeerId::Gateway(_) | PeerId::Node(_), _) => {}
        }
        self.collect();
    }

    /// Stages of this machine without a connection whose programs may go on ([`Peer::is_watched`]):
    /// the number of each, its user, and its segment by its own word.
    pub fn orphans(&self) -> impl Iterator<Item = (StageId, u32, &str)> {
        self.budgets.orphans()
    }

    /// No program of an orphan is left: its share is free.
    pub fn on_unused(&mut self, now: Time, stage: StageId) {
        self.budgets.on_unused(now, stage);
        self.collect();
    }

    /// Counters and recordings of this peer go on without it, and it is no program any more.
    fn on_left(&mut self, peer: PeerId, connection: ConnectionId, reason: &str) {
        self.stats.on_closed(peer, reason);
        self.programs.on_closed(connection);
        match peer {
            PeerId::Gateway(gateway) => self.on_recorder_left(gateway),
            PeerId::Stage(stage) => {
                let programs = self.programs.leave(stage);
                self.send_programs(programs);
            }
            PeerId::Node(_) | PeerId::DataNode(_) => {}
        }
    }

    /// Sends the gateways of this machine a change of the programs.
    fn send_programs(&mut self, programs: Option<ToGateway>) {
        let Some(programs) = programs.map(ToPeer::Gateway) else { return };
        let send = |to| Output::Send { to, message: programs.clone() };
        self.outputs.extend(self.programs.gateways().map(send));
    }

    /// The process or the connection of a gateway that may have recorded is another one now.
    fn on_recorder_left(&mut self, gateway: GatewayId) {
        self.collector.on_closed(gateway, self.stats.gateway(gateway));
    }

    /// An operator records: see [`crate::message::OperatorRequest::Record`].
    ///
    /// # Errors
    /// If no gateway is connected, another operator records, or the recording has ended.
    pub fn record(
        &mut self,
        now: Time,
        session: u64,
        is_last: bool,
    ) -> Result<RecordingPart, CollectError> {
        let gateways: Vec<ConnectionId> = self.sessions.gateways().collect();
        let session = match session {
            0 => self.collector.begin(now, gateways.len())?,
            session => session,
        };
        let part = self.collector.take(now, (session, is_last), gateways.len())?;
        let session = if is_last { 0 } else { session };
        for to in gateways {
            let message = ToPeer::Gateway(ToGateway::Record { session });
            self.outputs.push_back(Output::Send { to, message });
        }
        Ok(part)
    }

    /// Brings a policy into force.
    ///
    /// - Every stage is sent all of its rules in one message, except stages that the policy does
    ///   not admit; they are refused.
    /// - At storage nodes it holds from the middle of the period; earlier service in it counts.
    /// - Data nodes are sent the policy and their shares, gateways the policy.
    ///
    /// Each kind of peer is sent the policy as it sees it: with the promises of the resource that
    /// it guards.
    pub fn apply(&mut self, now: Time, revision: u64, policy: Policy) {
        let at_nodes = policy.at(GateKind::Node);
        if let Some(cluster) = &mut self.cluster {
            cluster.apply(now, revision, &at_nodes);
        }
        self.split.apply(now, revision, policy.at(GateKind::DataNode));
        self.stats.apply(revision, &at_nodes);
        self.budgets.apply(now, revision, policy.at(GateKind::Stage));
        self.policy = Some((revision, policy));
        for gateway in self.sessions.gateways().collect::<Vec<_>>() {
            self.send_policy(gateway);
        }
        self.collect();
    }

    /// Sets the home nodes of tenants, like [`cluster::Setup::home_nodes`], from the next policy
    /// on.
    pub fn set_home_nodes(&mut self, home_nodes: BTreeMap<String, BTreeSet<NodeId>>) {
        if let Some(cluster) = &mut self.cluster {
            cluster.set_home_nodes(home_nodes);
        }
    }

    /// Chooses the scheduler of a storage node; none takes an earlier choice back.
    pub fn choose(&mut self, node: NodeId, chosen: Option<Discipline>) {
        if let Some(cluster) = &mut self.cluster {
            cluster.choose(node, chosen);
        }
        self.collect();
    }

    /// The time that [`Self::next_deadline`] named has come.
    pub fn on_deadline(&mut self, now: Time) {
        if self.next_cycle() <= now {
            self.budgets.on_deadline(now);
        }
        if let Some(cluster) = &mut self.cluster
            && cluster.next_deadline() <= now
        {
            cluster.on_deadline(now);
        }
        if self.split.next_deadline() <= now {
            self.split.on_deadline(now);
        }
        if self.stats.next_deadline() <= now {
            self.stats.on_deadline(now);
        }
        self.collect();
    }

    /// When to call [`Self::on_deadline`] next; changes with every call.
    pub fn next_deadline(&self) -> Time {
        let cluster = self.cluster.as_ref().map_or(Time::MAX, Cluster::next_deadline);
        let others = self.split.next_deadline().min(self.stats.next_deadline());
        self.next_cycle().min(cluster).min(others)
    }

    /// The next deadline of the part for stages.
    fn next_cycle(&self) -> Time {
        if self.tokens_only { Time::MAX } else { self.budgets.next_deadline() }
    }

    /// Returns the next action to perform; none once all have been returned.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes the actions of all parts, and finds the connections of their peers.
    fn collect(&mut self) {
        while let Some(action) = self.next_action() {
            match action {
                Action::Send { to, message } => {
                    if let Some(to) = self.sessions.connection(to) {
                        self.outputs.push_back(Output::Send { to, message });
                    }
                }
                Action::Close(peer) => {
                    if let Some(connection) = self.sessions.close(peer) {
                        self.outputs.push_back(Output::Close { connection });
                        self.on_left(peer, connection, "it was closed");
                    }
                }
                Action::Publish(event) => self.outputs.push_back(Output::Event(event)),
                Action::Remember(all) => self.outputs.push_back(Output::Remember(all)),
            }
        }
    }

    fn next_action(&mut self) -> Option<Action> {
        let cluster = self.cluster.as_mut();
        (self.budgets.poll_action())
            .or_else(|| cluster?.outbox.pop())
            .or_else(|| self.split.outbox.pop())
            .or_else(|| self.stats.outbox.pop())
    }

    /// Sends a gateway the policy in force, as the nodes behind it see it.
    fn send_policy(&mut self, to: ConnectionId) {
        if let Some((revision, policy)) = &self.policy {
            let (revision, policy) = (*revision, policy.at(GateKind::Node));
            let message = ToPeer::Gateway(ToGateway::Policy { revision, policy });
            self.outputs.push_back(Output::Send { to, message });
        }
    }
}

/// The state for observers.
impl Controller {
    /// The policy in force and its revision.
    pub fn policy(&self) -> Option<(u64, &Policy)> {
        self.policy.as_ref().map(|(revision, policy)| (*revision, policy))
    }

    /// The status of tenants and stages as of the last cycle, and of the cluster, if there is one.
    pub fn status(&self, now: Time) -> Status {
        let status = Status { cluster: self.cluster_status(now), ..self.budgets.status(now) };
        let Some((_, policy)) = self.policy.as_ref().filter(|it| !it.1.resources.is_empty()) else {
            return status;
        };
        let waits = RecentWaits {
            stages: self.budgets.recent_waits(now),
            nodes: self.stats.recent_waits(now),
        };
        Status { resources: resources::resources(policy, &status, &waits), ..status }
    }

    fn cluster_status(&self, now: Time) -> Option<ClusterStatus> {
        let mut status = self.cluster.as_ref()?.status(now);
        self.stats.fill_status(now, &mut status);
        status.data_nodes = self.split.status(now);
        self.sessions.fill_status(now, &mut status);
        Some(status)
    }

    /// Why requests of a tenant waited in the last minute, at stages, nodes and data nodes.
    ///
    /// # Errors
    /// If the policy does not have the tenant.
    pub fn delays(&self, now: Time, tenant: &str) -> Result<Delays, UnknownTenant> {
        let (stages, stage_causes) = self.budgets.delays(now, tenant)?;
        let status = self.cluster_status(now).unwrap_or_default();
        let delays = self.stats.delays(now, tenant, &status)?;
        let data_nodes = self.split.demand(now, tenant);
        let span_ns = match self.cluster {
            Some(_) => delays.span_ns,
            None => self.budgets.observed(now).0,
        };
        Ok(Delays { span_ns, data_nodes, stages, stage_causes, ..delays })
    }

    /// How many cycles over stages have ended.
    pub fn cycles(&self) -> u64 {
        self.budgets.cycles()
    }

    /// When the cycle over stages that ended last, or is under way, began.
    pub fn cycle_started(&self) -> Time {
        self.budgets.cycle_started()
    }

    /// The latencies of requests at gateways and nodes.
    pub fn latency(&self) -> Latencies {
        self.stats.latency()
    }

    /// How long requests waited at tenants' own buckets, with the tenant's name and the unit.
    pub fn waits(&self) -> impl Iterator<Item = (&str, Unit, &Waits)> {
        self.budgets.waits()
    }
}
