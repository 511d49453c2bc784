//! A controller and its nodes in one thread, on a virtual clock, with every message encoded and
//! decoded; and the processor time that each of them takes.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{
    Class, ContextId, Iops, NodeId, Operation, Policy, Span, Tag, TenantId, Time,
};
use tidegate_proto::cluster::message::{FromNode, NodeInfo, ToNode};
use tidegate_proto::cluster::{self, NodeSetup};
use tidegate_proto::codec::{self, Decoder};
use tidegate_proto::controller::status::Status;
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, Setup, ToPeer};
use tidegate_proto::data::Command;
use tidegate_proto::message::{Hello, VERSION};
use tidegate_proto::node::{self, Config, Node, NodeRequest, Slot};

/// How often active tenants send requests.
const TICK: Span = Span(10 * Span::MILLISECOND.0);

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) tenants: usize,
    pub(super) nodes: usize,
    /// One in so many tenants is active.
    pub(super) one_in: usize,
}

/// The requests of active tenants, beside the capacity of their nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleDemand {
    /// Half of them some more than their reservations, of nodes that can do far more.
    Met,
    /// All of them more than their nodes can do, even of their reservations.
    Short,
}

impl ScaleDemand {
    /// The capacity of a node, in operations per second: a busy one has six active tenants.
    fn capacity(self) -> Iops {
        match self {
            Self::Met => Iops(20_000),
            Self::Short => Iops(250),
        }
    }

    /// Requests in a tick of the active tenant with this index.
    fn rate(self, index: usize) -> u32 {
        match self {
            // Most ask for less than their 50 iops, one in four for more.
            Self::Met if index.is_multiple_of(4) => 2,
            Self::Met => u32::from(index.is_multiple_of(2)),
            Self::Short => 1,
        }
    }

    /// The limit of the tenant with this index, as a line of its policy.
    fn limit(self, index: usize) -> &'static str {
        match self {
            Self::Met if index.is_multiple_of(2) => "",
            Self::Met => "limit = \"500 iops\"\n",
            Self::Short => "limit = \"80 iops\"\n",
        }
    }
}

/// Requests of one active tenant, at its one node.
#[derive(Debug)]
struct ScaleLoad {
    tenant: String,
    node: usize,
    slot: Slot,
    /// Requests in a tick.
    rate: u32,
}

/// A node, and the processor time that it took.
struct NodeSim {
    node: Node<()>,
    cpu_ns: u64,
    /// Whether a tenant sends it requests.
    is_busy: bool,
}

/// See the head of this file.
pub(super) struct World {
    controller: Controller,
    controller_ns: u64,
    nodes: Vec<NodeSim>,
    loads: Vec<ScaleLoad>,
    now: Time,
    next_tick: Time,
    /// Requests that nodes have served.
    pub(super) served: u64,
}

/// Processor time per second of virtual time, in thousandths of a processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) controller: f64,
    /// Of the idle node that takes most.
    pub(super) idle_node: f64,
    /// Of the busy node that takes most, requests included.
    pub(super) busy_node: f64,
}

impl World {
    pub(super) fn new(size: Size, demand: ScaleDemand) -> Self {
        let names = (0..size.nodes).map(|node| format!("n{node}"));
        let capacity = Some(demand.capacity());
        let nodes: Vec<NodeSetup> =
            names.map(|name| NodeSetup { name, capacity, ..NodeSetup::default() }).collect();
        // A tenant's volume lies on one node; active tenants share every fourth.
        let home = |tenant: usize| tenant % size.nodes;
        let homes = (0..size.tenants)
            .map(|tenant| (name(tenant), BTreeSet::from([NodeId(home(tenant) as u16)])));
        let home_nodes: BTreeMap<_, _> = homes.collect();
        let cluster = cluster::Setup {
            nodes: nodes.clone(),
            home_nodes,
            is_first: true,
            ..cluster::Setup::default()
        };
        let setup = Setup { cluster: Some(cluster), ..Setup::default() };
        let policy =
            Policy::parse(&policy(size.tenants, demand)).expect("the bench's policy is valid");
        let controller = Controller::new(Time::ZERO, setup, Some((1, policy)));
        let nodes = nodes.into_iter().map(|setup| {
            let info = NodeInfo { name: setup.name, ..NodeInfo::default() };
            let config = Config { capacity: setup.capacity, ..Config::default() };
            NodeSim { node: Node::new(Time::ZERO, info, config), cpu_ns: 0, is_busy: false }
        });
        let loads =
            (0..size.tenants).step_by(size.one_in).enumerate().map(|(index, tenant)| ScaleLoad {
                tenant: name(tenant),
                node: home(tenant),
                slot: Slot::UNATTRIBUTED,
                rate: demand.rate(index),
            });
        let mut world = Self {
            controller,
            controller_ns: 0,
            nodes: nodes.collect(),
            loads: loads.collect(),
            now: Time::ZERO,
            next_tick: Time::ZERO,
            served: 0,
        };
        for load in &world.loads {
            world.nodes[load.node].is_busy = true;
        }
        world.connect();
        world
    }

    fn connect(&mut self) {
        for index in 0..self.nodes.len() {
            let info = self.nodes[index].node.info();
            let hello = Hello::Node { version: VERSION, info };
            let connection = ConnectionId(index as u64);
            self.controller.on_hello(self.now, connection, Peer::default(), hello);
            self.nodes[index].node.on_connected(self.now);
        }
        self.exchange();
        for load in &mut self.loads {
            load.slot = self.nodes[load.node].node.slot(&load.tenant);
        }
    }

    /// Runs for a time, and returns the processor time taken.
    pub(super) fn run(&mut self, span: Span) -> Usage {
        let end = self.now.after(span);
        self.controller_ns = 0;
        self.nodes.iter_mut().for_each(|node| node.cpu_ns = 0);
        while self.now < end {
            let nodes = self.nodes.iter().map(|it| it.node.next_deadline());
            let next = nodes.fold(self.controller.next_deadline(), Time::min);
            self.now = next.min(self.next_tick).min(end).max(self.now);
            self.advance();
        }
        let permille = |ns: u64| 1_000.0 * ns as f64 / span.0 as f64;
        let most = |is_busy| {
            let nodes = self.nodes.iter().filter(|node| node.is_busy == is_busy);
            permille(nodes.map(|node| node.cpu_ns).max().unwrap_or(0))
        };
        Usage {
            controller: permille(self.controller_ns),
            idle_node: most(false),
            busy_node: most(true),
        }
    }

    fn advance(&mut self) {
        if self.next_tick <= self.now {
            self.next_tick = self.now.after(TICK);
            self.request();
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].node.next_deadline() <= self.now {
                self.serve(index, Vec::new());
            }
        }
        if self.controller.next_deadline() <= self.now {
            let begun = cpu_ns();
            self.controller.on_deadline(self.now);
            self.controller_ns += cpu_ns() - begun;
        }
        self.exchange();
    }

    /// Active tenants send their requests.
    fn request(&mut self) {
        let mut all: BTreeMap<usize, Vec<NodeRequest<()>>> = BTreeMap::new();
        for load in &self.loads {
            let tag = Tag {
                tenant: TenantId(1),
                context: ContextId::NONE,
                class: Class::Medium,
                operation: Operation::Read,
                cost: 4096,
                delay: 0,
            };
            let node = &self.nodes[load.node].node;
            let request = || node.request(load.slot, Command::Read, 4096, &tag, ());
            let requests = (0..load.rate).map(|_| request());
            all.entry(load.node).or_default().extend(requests);
        }
        for (node, requests) in all {
            self.serve(node, requests);
        }
    }

    /// A node takes requests, and serves whichever may go now.
    fn serve(&mut self, index: usize, mut requests: Vec<NodeRequest<()>>) {
        let (sim, now) = (&mut self.nodes[index], self.now);
        let begun = cpu_ns();
        let mut batch = Vec::new();
        sim.node.advance(now);
        let home = sim.node.submit(now, &mut requests, &mut batch);
        sim.node.fill(home, now, &mut batch);
        while !batch.is_empty() {
            let mut finished = std::mem::take(&mut batch);
            self.served += finished.len() as u64;
            sim.node.finish(home, now, &mut finished, Some(&mut batch), |_, _| {});
            sim.node.fill(home, now, &mut batch);
        }
        sim.cpu_ns += cpu_ns() - begun;
    }

    /// Passes messages on until there are none. The sender encodes each message, and the receiver
    /// decodes it.
    fn exchange(&mut self) {
        loop {
            let mut is_over = true;
            let begun = cpu_ns();
            let mut to_nodes = Vec::new();
            while let Some(output) = self.controller.poll_output() {
                if let Output::Send { to, message: ToPeer::Node(message) } = output {
                    to_nodes.push((to.0 as usize, encoded(&message)));
                }
            }
            self.controller_ns += cpu_ns() - begun;
            for (node, bytes) in to_nodes {
                is_over = false;
                let sim = &mut self.nodes[node];
                let begun = cpu_ns();
                for message in decoded::<ToNode>(&bytes) {
                    sim.node.on_message(self.now, message);
                }
                sim.cpu_ns += cpu_ns() - begun;
            }
            for index in 0..self.nodes.len() {
                let begun = cpu_ns();
                let mut bytes = Vec::new();
                while let Some(output) = self.nodes[index].node.poll_output() {
                    if let node::Output::Send(message) = output {
                        bytes.extend(encoded(&message));
                    }
                }
                self.nodes[index].cpu_ns += cpu_ns() - begun;
                if bytes.is_empty() {
                    continue;
                }
                is_over = false;
                let begun = cpu_ns();
                for message in decoded::<FromNode>(&bytes) {
                    let from = ConnectionId(index as u64);
                    self.controller.on_message(self.now, from, FromPeer::Node(message));
                }
                self.controller_ns += cpu_ns() - begun;
            }
            if is_over {
                return;
            }
        }
    }

    /// The answer to `tidegate status`, and the processor time that it takes, in ns.
    pub(super) fn status(&self) -> (Status, usize, u64) {
        let begun = cpu_ns();
        let status = self.controller.status(self.now);
        let length = serde_json::to_string(&status).map_or(0, |text| text.len());
        (status, length, cpu_ns() - begun)
    }
}

fn name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

/// Every tenant has a reservation, and half of them or all a limit.
fn policy(tenants: usize, demand: ScaleDemand) -> String {
    let tenant = |at: usize| {
        let limit = demand.limit(at);
        format!("[[tenant]]\nname = {:?}\nreservation = \"50 iops\"\n{limit}", name(at))
    };
    (0..tenants).map(tenant).collect()
}

fn encoded(message: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode(message, &mut bytes).expect("messages of this size fit a frame");
    bytes
}

fn decoded<M: serde::de::DeserializeOwned>(bytes: &[u8]) -> Vec<M> {
    let mut decoder = Decoder::new();
    decoder.extend(bytes);
    let next = || decoder.next_message().expect("it was encoded here");
    std::iter::from_fn(next).collect()
}

/// Processor time of this thread.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * Span::SECOND.0 + time.tv_nsec as u64
}
