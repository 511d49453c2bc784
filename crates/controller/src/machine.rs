//! The one task that owns the machine.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use serde::Serialize;
use tidegate_model::gate::Unit;
use tidegate_model::{Discipline, Event, NodeId, Policy, Time};
use tidegate_proto::cluster::message::{FromNode, NodeInfo, ToNode};
use tidegate_proto::cluster::split::{self, Split};
use tidegate_proto::cluster::status::ClusterStatus;
use tidegate_proto::cluster::{self, Cluster};
use tidegate_proto::controller::status::{Status, TimedEvent};
use tidegate_proto::controller::{ConnectionId, Controller, Output, Peer, Waits};
use tidegate_proto::message::{StageInfo, ToGateway, VERSION};
use tidegate_proto::stats::delays::Delays;
use tidegate_proto::stats::{self, ClusterStats};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::sleep_until;

use crate::clock::{Clock, now_ms};
use crate::link::{Link, Role, SendError};
use crate::log;
use crate::nodes::TenantNodes;
use crate::register::DelaysError;
use crate::switchboard::PeerMessage;

/// Inputs that are taken in before outputs go out: enough that a round of many stages is written
/// in few batches, few enough that no peer waits long.
const BATCH: usize = 256;

/// Inputs that may wait for the machine. While the queue is full, no connection is read.
pub(crate) const INPUTS_MAX: usize = 1024;

/// The lengths of cycles that are kept for those who want to see them one by one.
const CYCLES_KEPT: usize = 1024;

/// Something that happened outside.
#[derive(Debug)]
pub(crate) enum Input {
    /// A stage said hello.
    Joined { link: Arc<Link>, peer: Peer, version: u16, info: StageInfo },
    /// A storage node said hello.
    NodeJoined { link: Arc<Link>, version: u16, info: NodeInfo },
    /// A gateway said hello.
    GatewayJoined { link: Arc<Link>, version: u16, name: String },
    /// A data node said hello.
    DataNodeJoined { link: Arc<Link>, version: u16, name: String },
    /// A stage, a node or a gateway said something.
    PeerMessage { connection: ConnectionId, message: PeerMessage },
    /// A connection of one of them ended.
    Closed { connection: ConnectionId, reason: String },
    /// A request for the status.
    Survey { reply: oneshot::Sender<Survey> },
    /// A request for the reasons of a tenant's delays.
    Delays { tenant: String, reply: oneshot::Sender<Result<Delays, DelaysError>> },
    /// A policy is stored and is to be in force.
    Apply {
        revision: u64,
        policy: Box<Policy>,
        tenant_nodes: TenantNodes,
        done: oneshot::Sender<()>,
    },
    /// A choice of schedulers is stored and is to be in force.
    Choose { nodes: Vec<NodeId>, chosen: Option<Discipline>, done: oneshot::Sender<()> },
}

/// How things are.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) status: Status,
    /// How long requests waited at tenants' buckets.
    pub(crate) waits: Vec<(String, Unit, Waits)>,
    /// How long the last cycles took, from the first question to the last new rate.
    pub(crate) cycles: Vec<Duration>,
}

/// All that decides.
#[derive(Debug)]
pub(crate) struct Machines {
    pub(crate) controller: Controller,
    /// The loop over storage nodes, where there is a cluster.
    pub(crate) cluster: Option<Cluster>,
    /// The loop over data nodes.
    pub(crate) split: Split,
    /// Counters of nodes and gateways.
    pub(crate) stats: ClusterStats,
    /// Where the cluster's file and the state directory are.
    pub(crate) paths: [String; 2],
}

/// The machines with their links.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) clock: Clock,
    controller: Controller,
    cluster: Option<Cluster>,
    split: Split,
    stats: ClusterStats,
    paths: [String; 2],
    pub(crate) inputs: mpsc::Receiver<Input>,
    pub(crate) events: broadcast::Sender<Arc<TimedEvent>>,
    pub(crate) cycle_seconds: Histogram,
    links: HashMap<ConnectionId, Arc<Link>>,
    /// Links with something queued that was not yet flushed.
    touched: Vec<Arc<Link>>,
    event_number: u64,
    cycles: VecDeque<Duration>,
}

impl Machine {
    pub(crate) fn new(
        clock: Clock,
        Machines { controller, cluster, split, stats, paths }: Machines,
        inputs: mpsc::Receiver<Input>,
        events: broadcast::Sender<Arc<TimedEvent>>,
        cycle_seconds: Histogram,
    ) -> Self {
        Self {
            clock,
            controller,
            cluster,
            split,
            stats,
            paths,
            inputs,
            events,
            cycle_seconds,
            links: HashMap::new(),
            touched: Vec::new(),
            event_number: 0,
            cycles: VecDeque::new(),
        }
    }

    /// Selects and applies until `stop` says otherwise. Links are closed at the end.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let deadline = self.clock.instant(self.next_deadline());
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = sleep_until(deadline) => {}
                count = self.inputs.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        break;
                    }
                }
            }
            let cycles = self.controller.cycles();
            let started = self.controller.cycle_started();
            batch.drain(..).for_each(|input| self.apply(input));
            let now = self.clock.now();
            if self.controller.next_deadline() <= now {
                self.controller.on_deadline(now);
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
            self.perform();
            if self.controller.cycles() != cycles {
                self.note_cycle(started);
            }
        }
        self.links.values().for_each(|link| link.close());
    }

    fn next_deadline(&self) -> Time {
        let cluster = self.cluster.as_ref().map_or(Time::MAX, Cluster::next_deadline);
        let others = self.split.next_deadline().min(self.stats.next_deadline());
        self.controller.next_deadline().min(cluster).min(others)
    }

    fn apply(&mut self, input: Input) {
        let now = self.clock.now();
        match input {
            Input::Joined { link, peer, version, info } => {
                let id = link.id;
                self.links.insert(id, link);
                self.controller.on_connected(now, id, peer, version, info);
            }
            Input::NodeJoined { link, version, info } => self.join_node(link, version, info),
            Input::GatewayJoined { link, version, name } => self.join_gateway(link, version, &name),
            Input::DataNodeJoined { link, version, name } => {
                let id = link.id;
                self.links.insert(id, link);
                self.split.on_connected(now, id, version, &name);
            }
            Input::PeerMessage { connection, message } => self.on_message(connection, message),
            Input::Closed { connection, reason } => self.close(connection, &reason),
            Input::Survey { reply } => {
                let _ = reply.send(self.survey(now));
            }
            Input::Delays { tenant, reply } => {
                let _ = reply.send(self.delays(now, &tenant));
            }
            Input::Apply { revision, policy, tenant_nodes, done } => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.set_home_nodes(tenant_nodes);
                    cluster.apply(now, revision, &policy);
                }
                self.split.apply(now, revision, (*policy).clone());
                self.stats.apply(revision, &policy);
                self.send_policy_to_gateways(revision, &policy);
                self.controller.apply(now, revision, *policy);
                // Messages to stages go out before the waiting client gets its answer.
                self.perform();
                let _ = done.send(());
            }
            Input::Choose { nodes, chosen, done } => {
                self.choose(&nodes, chosen);
                let _ = done.send(());
            }
        }
    }

    /// Hands a message to the state machine that leads its peer.
    fn on_message(&mut self, connection: ConnectionId, message: PeerMessage) {
        let now = self.clock.now();
        match message {
            PeerMessage::Stage(message) => self.controller.on_message(now, connection, message),
            PeerMessage::Node(FromNode::Counts(counts)) => {
                self.stats.on_node_counts(now, connection, counts);
            }
            PeerMessage::Gateway(message) => {
                self.stats.on_gateway_message(now, connection, message);
            }
            PeerMessage::DataNode(message) => self.split.on_message(now, connection, message),
            PeerMessage::Node(message) => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.on_message(now, connection, message);
                }
            }
        }
    }

    fn choose(&mut self, nodes: &[NodeId], chosen: Option<Discipline>) {
        if let Some(cluster) = &mut self.cluster {
            nodes.iter().for_each(|node| cluster.choose(*node, chosen));
        }
        // Messages to nodes go out before the waiting client gets its answer.
        self.perform();
    }

    fn join_node(&mut self, link: Arc<Link>, version: u16, info: NodeInfo) {
        let id = link.id;
        let Some(cluster) = &mut self.cluster else {
            let reason = "this controller has no cluster; start it with `tidegate up CLUSTER`";
            let reason = String::from(reason);
            let refused = ToNode::Refused { version: VERSION, reason, retry: true };
            let _ = link.push(&refused).and_then(|()| link.flush());
            return link.close();
        };
        self.links.insert(id, link);
        let now = self.clock.now();
        if version == VERSION {
            self.stats.on_node(now, id, &info.name, info.revision == 0);
        }
        cluster.on_connected(now, id, version, info);
    }

    fn join_gateway(&mut self, link: Arc<Link>, version: u16, name: &str) {
        let id = link.id;
        self.links.insert(id, link);
        let is_accepted = self.stats.on_gateway(self.clock.now(), id, version, name);
        if let Some((revision, policy)) = self.controller.policy().filter(|_| is_accepted) {
            let policy = policy.clone();
            self.send(id, &ToGateway::Policy { revision, policy });
        }
    }

    /// Sends gateways the policy in force.
    fn send_policy_to_gateways(&mut self, revision: u64, policy: &Policy) {
        for id in self.stats.gateways().collect::<Vec<_>>() {
            self.send(id, &ToGateway::Policy { revision, policy: policy.clone() });
        }
    }

    /// Tells the state machine of a connection's peer that the connection has ended.
    fn close(&mut self, connection: ConnectionId, reason: &str) {
        let Some(link) = self.links.remove(&connection) else { return };
        let now = self.clock.now();
        self.stats.on_closed(connection, reason);
        match (link.role, &mut self.cluster) {
            (Role::Node, Some(cluster)) => cluster.on_closed(now, connection, reason),
            (Role::Stage, _) => self.controller.on_closed(now, connection, reason),
            (Role::DataNode, _) => self.split.on_closed(now, connection, reason),
            _ => {}
        }
    }

    /// Does what the machines want done.
    fn perform(&mut self) {
        loop {
            while let Some(output) = self.controller.poll_output() {
                match output {
                    Output::Send { to, message } => self.send(to, &message),
                    Output::Close { connection } => self.end(connection),
                    Output::Event(event) => self.publish(event),
                }
            }
            while let Some(output) = self.cluster.as_mut().and_then(Cluster::poll_output) {
                match output {
                    cluster::Output::Send { to, message } => self.send(to, &message),
                    cluster::Output::Close { connection } => self.end(connection),
                    cluster::Output::Event(event) => self.publish(event),
                }
            }
            while let Some(output) = self.split.poll_output() {
                match output {
                    split::Output::Send { to, message } => self.send(to, &message),
                    split::Output::Close { connection } => self.end(connection),
                    split::Output::Event(event) => self.publish(event),
                }
            }
            while let Some(output) = self.stats.poll_output() {
                match output {
                    stats::Output::ToNode { to, message } => self.send(to, &message),
                    stats::Output::ToGateway { to, message } => self.send(to, &message),
                    stats::Output::Close { connection } => self.end(connection),
                    stats::Output::Event(event) => self.publish(event),
                }
            }
            if self.touched.is_empty() {
                return;
            }
            // In the order of their first messages: decreases of one stage go out before increases
            // of another.
            for link in std::mem::take(&mut self.touched) {
                if let Err(error) = link.flush() {
                    self.drop_link(&link, &error);
                }
            }
        }
    }

    fn send(&mut self, to: ConnectionId, message: &impl Serialize) {
        let Some(link) = self.links.get(&to).cloned() else { return };
        match link.push(message) {
            Ok(()) => self.touched.push(link),
            Err(error) => self.drop_link(&link, &error),
        }
    }

    /// Closes a connection once what was sent on it is on its way.
    fn end(&mut self, connection: ConnectionId) {
        if let Some(link) = self.links.remove(&connection) {
            self.stats.on_closed(connection, "it was closed");
            let _ = link.flush();
            link.close();
        }
    }

    /// Gives up a connection that cannot be written to.
    fn drop_link(&mut self, link: &Link, error: &SendError) {
        link.abort();
        self.close(link.id, &error.to_string());
    }

    fn publish(&mut self, event: Event) {
        log::log(&event);
        self.event_number += 1;
        let timed = TimedEvent { number: self.event_number, at_ms: now_ms(), event };
        // An error means only that no client watches.
        let _ = self.events.send(Arc::new(timed));
    }

    fn note_cycle(&mut self, started: Time) {
        let cycle = Duration::from_nanos(self.clock.now().since(started).0);
        self.cycle_seconds.observe(cycle.as_secs_f64());
        if self.cycles.len() == CYCLES_KEPT {
            self.cycles.pop_front();
        }
        self.cycles.push_back(cycle);
    }

    fn delays(&self, now: Time, tenant: &str) -> Result<Delays, DelaysError> {
        let cluster = self.cluster_status(now).ok_or(DelaysError::NoCluster)?;
        let mut delays = self.stats.delays(now, tenant, &cluster)?;
        delays.data_nodes = self.split.demand(now, tenant);
        Ok(delays)
    }

    fn cluster_status(&self, now: Time) -> Option<ClusterStatus> {
        let mut status = self.cluster.as_ref()?.status(now);
        self.stats.fill_status(now, &mut status);
        status.data_nodes = self.split.status(now);
        [status.file, status.state] = self.paths.clone();
        Some(status)
    }

    fn survey(&self, now: Time) -> Survey {
        let waits = self.controller.waits();
        Survey {
            status: Status { cluster: self.cluster_status(now), ..self.controller.status(now) },
            waits: waits
                .map(|(tenant, unit, waits)| (tenant.into(), unit, waits.clone()))
                .collect(),
            cycles: self.cycles.iter().copied().collect(),
        }
    }
}
