//! A controller, its nodes and their devices. Requests come evenly, devices serve them one after
//! the other, and each message takes the time and the chances that the link gives it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::one_by_one::OneByOne;
use tidegate_model::{Event, Iops, Policy, Span, Time};
use tidegate_proto::cluster::message::{FromNode, NodeInfo, ToNode};
use tidegate_proto::cluster::status::ClusterStatus;
use tidegate_proto::cluster::{NodeSetup, Setup};
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, ToPeer};
use tidegate_proto::message::{Hello, VERSION};
use tidegate_proto::node::{self, Config, Node, Pacing, Request};

pub(crate) const MS: u64 = 1_000_000;

/// The testbed's clock ticks this often.
const TICK: Span = Span(MS);

/// SplitMix64.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// Delays, losses and doubling of messages. Each message of a connection has its own, so they
/// overtake each other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub(crate) delay_ms: (u64, u64),
    pub(crate) lost_permille: u64,
    pub(crate) doubled_permille: u64,
}

#[derive(Clone, Debug)]
enum Delivery {
    Hello(NodeInfo),
    ToNode(ToNode),
    FromNode(FromNode),
    Closed,
}

/// A machine with a device, and the process that serves it while there is one.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    pub(crate) node: Option<Node<()>>,
    /// Counts processes.
    pub(crate) incarnation: u64,
    connection: Option<ConnectionId>,
    /// When it tries to connect again.
    connects_at: Time,
    pub(crate) is_cut_off: bool,
    pub(crate) capacity: u64,
    device: VecDeque<(Time, Request<()>)>,
    free_at: u64,
    /// Operations per second that each tenant asks, and parts of one that are due.
    pub(crate) demand: BTreeMap<String, u64>,
    due: BTreeMap<String, u64>,
}

/// One tenant's counts at one process in one period.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    served: u64,
    reserved: u64,
    /// While the period runs there, up to what count it may be served.
    allowed: Option<u64>,
    is_over: bool,
    /// Whether its lease was over in the period: its limits are not guaranteed then.
    is_abandoned: bool,
}

/// The hello of a node.
pub(crate) fn hello(info: NodeInfo) -> Hello {
    Hello::Node { version: VERSION, info }
}

#[derive(Debug)]
pub(crate) struct ClusterTestbed {
    pub(crate) now: Time,
    pub(crate) cluster: Option<Controller>,
    pub(crate) nodes: Vec<Machine>,
    pub(crate) policy: (u64, Policy),
    pub(crate) link: Link,
    pub(crate) dice: Dice,
    pub(crate) events: Vec<Event>,
    pub(crate) sent: Vec<(ConnectionId, ToNode)>,
    setup: Setup,
    in_transit: BTreeMap<(Time, u64), (ConnectionId, usize, Delivery)>,
    deliveries: u64,
    connections: u64,
    held: BTreeMap<(u64, String, usize, u64), Held>,
    /// Tenants whose counts of this period and before are not looked at.
    pub(crate) unchecked_until: u64,
    /// Whether it is looked at all; it takes its time where there are many tenants.
    pub(crate) is_watched: bool,
}

impl ClusterTestbed {
    /// Nodes `a`, `b`, … with these capacities per second; tenants reach all.
    pub(crate) fn new(policy: &str, capacities: &[u64]) -> Self {
        let name = |index: usize| char::from(b'a' + index as u8).to_string();
        let capacity = |capacity: u64| Some(Iops(capacity));
        let nodes = capacities.iter().enumerate();
        let nodes = nodes.map(|(n, c)| NodeSetup {
            name: name(n),
            capacity: capacity(*c),
            ..NodeSetup::default()
        });
        let setup = Setup { nodes: nodes.collect(), is_first: true, ..Setup::default() };
        let policy = Policy::parse(policy).unwrap();
        let machine = |capacity: &u64| Machine { capacity: *capacity, ..Machine::default() };
        let mut world = Self {
            now: Time::ZERO,
            cluster: Some(Controller::of_nodes(
                Time::ZERO,
                setup.clone(),
                Some((1, policy.clone())),
            )),
            nodes: capacities.iter().map(machine).collect(),
            policy: (1, policy),
            link: Link::default(),
            dice: Dice(1),
            events: Vec::new(),
            sent: Vec::new(),
            setup,
            in_transit: BTreeMap::new(),
            deliveries: 0,
            connections: 0,
            held: BTreeMap::new(),
            unchecked_until: 0,
            is_watched: true,
        };
        (0..world.nodes.len()).for_each(|node| world.start_node(node));
        world
    }

    pub(crate) fn status(&self) -> ClusterStatus {
        self.cluster.as_ref().unwrap().status(self.now).cluster.unwrap()
    }

    pub(crate) fn demand(&mut self, node: usize, tenant: &str, per_second: u64) {
        self.nodes[node].demand.insert(tenant.into(), per_second);
    }

    pub(crate) fn start_node(&mut self, node: usize) {
        let name = self.setup.nodes[node].name.clone();
        let info = NodeInfo { name, ..NodeInfo::default() };
        let capacity = Some(Iops(self.nodes[node].capacity));
        let config = Config { depth: 16, capacity, pacing: Pacing::Paper, ..Config::default() };
        let machine = &mut self.nodes[node];
        machine.node = Some(Node::new(self.now, info, config));
        machine.incarnation += 1;
        machine.connects_at = self.now;
        machine.device.clear();
    }

    pub(crate) fn kill_node(&mut self, node: usize) {
        self.nodes[node].node = None;
        self.end_held(node);
        self.hang_up(node);
    }

    /// The node's end of its connection is gone; the controller learns of it by a delivery.
    pub(crate) fn hang_up(&mut self, node: usize) {
        let machine = &mut self.nodes[node];
        let Some(connection) = machine.connection.take() else { return };
        machine.connects_at = self.now.after(Span((10 + self.dice.roll(20)) * MS));
        if let Some(node) = &mut machine.node {
            node.on_disconnected(self.now);
        }
        self.post(connection, node, Delivery::Closed, Span(MS));
    }

    pub(crate) fn kill_controller(&mut self) {
        self.cluster = None;
        (0..self.nodes.len()).for_each(|node| self.hang_up(node));
        self.in_transit.clear();
    }

    pub(crate) fn start_controller(&mut self) {
        let setup = Setup { is_first: false, ..self.setup.clone() };
        self.cluster = Some(Controller::of_nodes(self.now, setup, Some(self.policy.clone())));
    }

    pub(crate) fn apply(&mut self, policy: &str) {
        self.policy = (self.policy.0 + 1, Policy::parse(policy).unwrap());
        let cluster = self.cluster.as_mut().unwrap();
        cluster.apply(self.now, self.policy.0, self.policy.1.clone());
    }

    fn post(&mut self, connection: ConnectionId, node: usize, delivery: Delivery, delay: Span) {
        self.deliveries += 1;
        let at = self.now.after(delay);
        self.in_transit.insert((at, self.deliveries), (connection, node, delivery));
    }

    /// Posts a message, as often and as late as the link has it.
    fn chance(&mut self, connection: ConnectionId, node: usize, delivery: Delivery) {
        if self.dice.roll(1000) < self.link.lost_permille || self.nodes[node].is_cut_off {
            return;
        }
        let copies = 1 + u64::from(self.dice.roll(1000) < self.link.doubled_permille);
        for _ in 0..copies {
            let (least, most) = self.link.delay_ms;
            let delay = Span((least + self.dice.roll(most - least + 1)) * MS);
            self.post(connection, node, delivery.clone(), delay);
        }
    }

    /// Lets time pass, and looks at what is in force after each tick.
    pub(crate) fn run(&mut self, span: Span) {
        let end = self.now.after(span);
        while self.now < end {
            self.now = self.now.after(TICK);
            self.connect();
            self.deliver();
            for node in 0..self.nodes.len() {
                self.serve(node);
            }
            if let Some(cluster) = &mut self.cluster
                && cluster.next_deadline() <= self.now
            {
                cluster.on_deadline(self.now);
            }
            self.collect_outputs();
            if self.is_watched {
                self.note();
                self.check();
            }
        }
    }

    fn connect(&mut self) {
        for node in 0..self.nodes.len() {
            let machine = &mut self.nodes[node];
            let is_due = machine.connection.is_none() && machine.connects_at <= self.now;
            if let (Some(node_machine), true, true) =
                (&mut machine.node, is_due, self.cluster.is_some())
            {
                self.connections += 1;
                let connection = ConnectionId(self.connections);
                machine.connection = Some(connection);
                let info = node_machine.info();
                node_machine.on_connected(self.now);
                self.post(connection, node, Delivery::Hello(info), Span(MS));
            }
        }
    }

    fn deliver(&mut self) {
        while let Some(entry) =
            self.in_transit.first_entry().filter(|entry| entry.key().0 <= self.now)
        {
            let (connection, node, delivery) = entry.remove();
            let is_open = self.nodes[node].connection == Some(connection);
            match (delivery, &mut self.cluster, &mut self.nodes[node].node) {
                (Delivery::Hello(info), Some(cluster), _) if is_open => {
                    cluster.on_hello(self.now, connection, Peer::default(), hello(info));
                }
                (Delivery::FromNode(message), Some(cluster), _) => {
                    cluster.on_message(self.now, connection, FromPeer::Node(message));
                }
                (Delivery::Closed, Some(cluster), _) => {
                    cluster.on_closed(self.now, connection, "it hung up");
                }
                (Delivery::ToNode(message), _, Some(node)) if is_open => {
                    node.on_message(self.now, message);
                }
                _ => {}
            }
            self.collect_outputs();
        }
    }

    fn collect_outputs(&mut self) {
        while let Some(output) = self.cluster.as_mut().and_then(Controller::poll_output) {
            match output {
                Output::Send { to, message: ToPeer::Node(message) } => {
                    self.sent.push((to, message.clone()));
                    let of = |machine: &Machine| machine.connection == Some(to);
                    if let Some(node) = self.nodes.iter().position(of) {
                        self.chance(to, node, Delivery::ToNode(message));
                    }
                }
                Output::Close { connection } => {
                    let of = |machine: &Machine| machine.connection == Some(connection);
                    if let Some(node) = self.nodes.iter().position(of) {
                        self.hang_up(node);
                    }
                }
                Output::Send { .. } => panic!("{output:?} to a node"),
                Output::Event(event) => self.events.push(event),
            }
        }
        for node in 0..self.nodes.len() {
            let machine = &mut self.nodes[node];
            let mut messages = Vec::new();
            while let Some(output) = machine.node.as_ref().and_then(Node::poll_output) {
                if let node::Output::Send(message) = output {
                    messages.push(message);
                }
            }
            let Some(connection) = machine.connection else { continue };
            for message in messages {
                self.chance(connection, node, Delivery::FromNode(message));
            }
        }
    }

    /// Requests come, and the device works.
    fn serve(&mut self, index: usize) {
        let machine = &mut self.nodes[index];
        let Some(node) = &mut machine.node else { return };
        while let Some((_, done)) = machine.device.pop_front_if(|(at, _)| *at <= self.now) {
            node.on_done(self.now, done);
        }
        for (tenant, per_second) in &machine.demand {
            let due = machine.due.entry(tenant.clone()).or_default();
            *due += per_second * TICK.0;
            while *due >= Span::SECOND.0 {
                *due -= Span::SECOND.0;
                let slot = node.slot(tenant);
                node.on_request(self.now, slot, 1, ());
            }
        }
        while let Some(request) = node.next_dispatch(self.now) {
            machine.free_at = machine.free_at.max(self.now.0) + Span::SECOND.0 / machine.capacity;
            machine.device.push_back((Time(machine.free_at), request));
        }
    }

    /// Writes down what each process has in the period that runs there.
    fn note(&mut self) {
        for (index, machine) in self.nodes.iter().enumerate() {
            let Some(node) = &machine.node else { continue };
            let status = node.status(self.now);
            for tenant in status.tenants.into_iter().skip(1) {
                let key = (status.period, tenant.name.clone(), index, machine.incarnation);
                if status.period > 0 {
                    let before =
                        (status.period - 1, tenant.name.clone(), index, machine.incarnation);
                    if let Some(held) = self.held.get_mut(&before).filter(|held| !held.is_over) {
                        (held.served, held.is_over) = (tenant.served_before, true);
                    }
                }
                let held = self.held.entry(key).or_default();
                held.served = tenant.served;
                held.reserved = tenant.reserved;
                held.allowed = tenant.allowed;
                held.is_abandoned |= status.is_abandoned;
            }
        }
        let oldest = self.held.last_key_value().map_or(0, |((period, ..), _)| *period);
        self.held = self.held.split_off(&(oldest.saturating_sub(2), String::new(), 0, 0));
    }

    fn end_held(&mut self, node: usize) {
        let incarnation = self.nodes[node].incarnation;
        let held = self.held.iter_mut().filter(|((_, _, n, l), _)| (*n, *l) == (node, incarnation));
        held.for_each(|(_, held)| held.is_over = true);
    }

    /// Operations served in a period by all processes.
    pub(crate) fn served(&self, period: u64, tenant: &str) -> u64 {
        let held = self.held.iter().filter(|((p, name, ..), _)| (*p, &**name) == (period, tenant));
        held.map(|(_, held)| held.served).sum()
    }

    /// No token was created: neither of a limit nor of a reservation.
    fn check(&self) {
        let periods: BTreeSet<u64> = self.held.keys().map(|(period, ..)| *period).collect();
        let per_period =
            |iops: Option<Iops>| iops.map(|iops| iops.0 * self.policy.1.period.0 / Span::SECOND.0);
        for period in periods.into_iter().filter(|period| *period >= self.unchecked_until) {
            for tenant in &self.policy.1.tenants {
                let held: Vec<&Held> = self
                    .held
                    .iter()
                    .filter(|((p, name, ..), _)| *p == period && *name == tenant.name)
                    .map(|(_, held)| held)
                    .collect();
                let served: u64 = held.iter().map(|held| held.served).sum();
                let in_force = |held: &&Held| match held.allowed {
                    Some(allowed) if !held.is_over => allowed.max(held.served),
                    _ => held.served,
                };
                let allowed: u64 = held.iter().map(in_force).sum();
                let label = format!("{} in {period} at {}: {held:?}", tenant.name, self.now);
                let is_abandoned = held.iter().any(|held| held.is_abandoned);
                let limit = per_period(tenant.limit.operations).filter(|_| !is_abandoned);
                if let Some(limit) = limit {
                    assert!(allowed <= limit, "{allowed} of {limit} allowed: {label}");
                }
                let reserved = |held: &&Held| match held.is_over {
                    true => held.reserved.min(held.served),
                    false => held.reserved,
                };
                let reserved: u64 = held.iter().map(reserved).sum();
                let promised = per_period(tenant.reservation.operations).unwrap_or(0);
                let most = promised.max(served);
                assert!(reserved <= most, "{reserved} of {promised} reserved: {label}");
            }
        }
    }
}
