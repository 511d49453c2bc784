//! The loop: the earliest event, and what follows from it.

use tidegate_model::{Policy, Span};
use tidegate_proto::cluster::message::{FromNode, NodeInfo, ToNode};
use tidegate_proto::cluster::{self, NodeSetup};
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, ToPeer};
use tidegate_proto::message::{Hello, VERSION};
use tidegate_proto::node::{self, Config, Slot};

use super::clients::{Begin, Clients, FlowId, Promise};
use super::host::{Host, Wire};
use super::requests::{PendingRequest, RequestTable};
use crate::alarm::Alarm;
use crate::device::Device;
use crate::event::{Events, Queue};
use crate::link::{Conduct, Link};
use crate::node::Number;
use crate::rng::Stream;
use crate::scenario::{Load, Nodes, Pacing};
use crate::time::Picoseconds;

/// Bytes of a request: any that cost one unit.
const LENGTH: u32 = 4 << 10;

/// How long a node waits before it looks for its controller again.
const RECONNECT: Picoseconds = Picoseconds(20_000_000_000);

/// Everything that a run follows from.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) period: Span,
    pub(crate) redistribute: Span,
    pub(crate) nodes: Nodes,
    /// The policy's promises; empty ones for all tenants where no controller runs.
    pub(crate) promises: Vec<Promise>,
    pub(crate) load: Load,
    /// How the link of each node behaves, in both directions.
    pub(crate) links: Vec<Conduct>,
    pub(crate) policy: Policy,
}

impl Setup {
    /// How long a node receives nothing before it gives up its connection.
    fn silence(&self) -> Picoseconds {
        Picoseconds(2 * Picoseconds::from(self.period).0)
    }
}

/// Fault of a node or the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A node's process ends, without a word.
    NodeDies(u16),
    /// A new one is started.
    NodeReturns(u16),
    /// The controller's process ends, without a word.
    ControllerDies,
    /// A new one is started; it knows the policy and nothing else.
    ControllerReturns,
    /// A node closes its connection, as one does that has received nothing for long.
    Hangs(u16),
}

/// Event of the simulation.
#[derive(Clone, Debug)]
enum Event {
    /// A flow of an open loop asks.
    Arrival { flow: FlowId, version: u32 },
    /// A device has finished a request.
    Done { node: u16, incarnation: u32, number: Number },
    /// A node wanted to be called again.
    Wake { node: u16, incarnation: u32 },
    /// The controller wanted to be called again.
    Controller { incarnation: u32 },
    /// A tenant begins, or moves to other nodes.
    Move { tenant: u32 },
    /// A node looks for its controller.
    Connect { node: u16, incarnation: u32 },
    /// A node checks when it last received a message of its controller.
    Watch { node: u16, connection: ConnectionId },
    /// A message arrives. In a box: messages are rare and large, events many and small.
    Message(Box<Message>),
    /// Something breaks, or is mended.
    Fault(Fault),
    /// The world stops, to be looked at.
    Pause,
}

const _: () = assert!(size_of::<Event>() <= 40, "events are copied often");

/// Message between a node and the controller.
#[derive(Clone, Debug)]
struct Message {
    node: u16,
    connection: ConnectionId,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Hello(NodeInfo),
    ToNode(ToNode),
    FromNode(FromNode),
    /// The node has closed the connection, or its process is gone.
    NodeClosed,
    /// The controller has closed it, or its process is gone.
    ControllerClosed,
}

/// A cluster in virtual time.
#[derive(Debug)]
pub(crate) struct ClusterSim {
    setup: Setup,
    now: Picoseconds,
    events: Events<Event>,
    hosts: Vec<Host>,
    names: Vec<String>,
    controller: Option<Controller>,
    /// Which of the controller's processes this is.
    incarnation: u32,
    alarm: Alarm,
    connections: u64,
    clients: Clients,
    pub(crate) requests: RequestTable,
    /// Requests of each tenant to each node: tenant by tenant, in the order of the nodes.
    pub(crate) arrived: Vec<u64>,
    /// Requests of each tenant that each node has answered, in the same order.
    pub(crate) served: Vec<u64>,
    /// Messages to nodes, and from them.
    pub(crate) messages: (u64, u64),
    pub(crate) passed: u64,
}

impl ClusterSim {
    pub(crate) fn new(setup: Setup) -> Self {
        let count = usize::from(setup.nodes.count);
        let names: Vec<String> =
            setup.policy.tenants.iter().map(|tenant| tenant.name.clone()).collect();
        let hosts = (0..setup.nodes.count).map(|number| host(&setup, number, names.len()));
        let shape = (setup.period, setup.nodes.count);
        let mut world = Self {
            now: Picoseconds::ZERO,
            events: Events::default(),
            hosts: hosts.collect(),
            controller: None,
            incarnation: 0,
            alarm: Alarm::OFF,
            connections: 0,
            clients: Clients::new(setup.seed, &setup.load, shape, &setup.promises),
            requests: RequestTable::default(),
            arrived: vec![0; names.len() * count],
            served: vec![0; names.len() * count],
            messages: (0, 0),
            passed: 0,
            names,
            setup,
        };
        world.befall(Fault::ControllerReturns);
        (0..world.setup.nodes.count).for_each(|node| world.befall(Fault::NodeReturns(node)));
        world
    }

    pub(crate) const fn now(&self) -> Picoseconds {
        self.now
    }

    /// A tenant begins to ask at this time, or moves to other nodes.
    pub(crate) fn plan_move(&mut self, at: Picoseconds, tenant: usize) {
        self.events.push(at, Event::Move { tenant: tenant as u32 });
    }

    /// Something is to break at this time, or to be mended.
    pub(crate) fn plan_fault(&mut self, at: Picoseconds, fault: Fault) {
        self.events.push(at, Event::Fault(fault));
    }

    /// Returns a node's own status, while its process runs.
    pub(crate) fn status(&self, node: u16) -> Option<node::NodeStatus> {
        let machine = self.hosts[usize::from(node)].node.as_ref()?;
        Some(machine.node.status(self.now.time()))
    }

    /// Lets everything happen that happens before `end`, and what was planned for that moment
    /// before this call.
    pub(crate) fn run_until(&mut self, end: Picoseconds) {
        self.events.push(end, Event::Pause);
        while let Some((at, event)) = self.events.pop() {
            self.now = at;
            self.passed += 1;
            match event {
                Event::Arrival { flow, version } => self.on_arrival(flow, version),
                Event::Done { node, incarnation, number } => {
                    self.on_done(node, incarnation, number)
                }
                Event::Wake { node, incarnation } => self.on_wake(node, incarnation),
                Event::Controller { incarnation } => self.on_controller(incarnation),
                Event::Move { tenant } => self.on_move(tenant as usize),
                Event::Connect { node, incarnation } => self.on_connect(node, incarnation),
                Event::Watch { node, connection } => self.on_watch(node, connection),
                Event::Message(message) => self.on_message(*message),
                Event::Fault(fault) => self.befall(fault),
                Event::Pause => return,
            }
        }
    }

    // Clients.

    fn on_arrival(&mut self, flow: FlowId, version: u32) {
        // Only of use while the flow has not moved on.
        if let Some(next) = self.clients.next(flow, version, self.now) {
            self.events.push(next, Event::Arrival { flow, version });
            let node = self.submit(flow);
            self.pump(node);
        }
    }

    fn on_move(&mut self, tenant: usize) {
        for (flow, begin) in self.clients.relocate(tenant, self.now) {
            let version = self.clients.flow(flow).version;
            match begin {
                Begin::At(at) => self.events.push(at, Event::Arrival { flow, version }),
                Begin::Outstanding(count) => {
                    (0..count).for_each(|_| _ = self.submit(flow));
                    self.pump(self.clients.flow(flow).node);
                }
            }
        }
    }

    /// A flow makes a request, which is refused where its node is away. The node.
    fn submit(&mut self, id: FlowId) -> u16 {
        let flow = self.clients.flow(id);
        let (node, version) = (flow.node, flow.version);
        let tenant = self.clients.tenant(id);
        let ticket = self.requests.submit(PendingRequest { flow: id, version, node });
        self.arrived[tenant * self.hosts.len() + usize::from(node)] += 1;
        let host = &mut self.hosts[usize::from(node)];
        match &mut host.node {
            Some(machine) => {
                machine.read(self.now.time(), host.slots[tenant], LENGTH, 0, ticket);
            }
            None => _ = self.requests.fail(ticket),
        }
        node
    }

    fn on_done(&mut self, node: u16, incarnation: u32, number: Number) {
        let host = &mut self.hosts[usize::from(node)];
        let Some(machine) = host.node.as_mut().filter(|_| host.incarnation == incarnation) else {
            return;
        };
        let ticket = machine.finish(self.now.time(), number);
        if let Some(request) = self.requests.answer(ticket) {
            let tenant = self.clients.tenant(request.flow);
            self.served[tenant * self.hosts.len() + usize::from(node)] += 1;
            if let Some(next) = self.clients.next_flow(request.flow, request.version) {
                let target = self.submit(next);
                if target != node {
                    self.pump(target);
                }
            }
        }
        self.pump(node);
    }

    // Machines.

    fn on_wake(&mut self, node: u16, incarnation: u32) {
        let host = &mut self.hosts[usize::from(node)];
        if host.node.is_some() && host.incarnation == incarnation {
            host.alarm.ring(self.now);
            self.pump(node);
        }
    }

    /// Does what a node asks, and sees to it that it is called again in time.
    fn pump(&mut self, number: u16) {
        let host = &mut self.hosts[usize::from(number)];
        let Some(machine) = &mut host.node else { return };
        let (now, incarnation) = (self.now.time(), host.incarnation);
        let (device, events) = (&mut host.device, &mut self.events);
        machine.dispatch(now, |at_device, request| {
            let done = device.take(self.now, request.units());
            events.push(done, Event::Done { node: number, incarnation, number: at_device });
        });
        while let Some(output) = machine.node.poll_output() {
            let node::Output::Send(message) = output else { continue };
            let Some(connection) = host.wire.at_node else { continue };
            self.messages.1 += 1;
            let content = Content::FromNode(message);
            let message = Message { node: number, connection, content };
            post(&mut self.events, &mut host.wire.from_node, self.now, message);
        }
        if let Some(next) = host.alarm.set(self.now, machine.node.next_deadline()) {
            self.events.push(next, Event::Wake { node: number, incarnation });
        }
    }

    fn on_controller(&mut self, incarnation: u32) {
        if self.incarnation != incarnation {
            return;
        }
        self.alarm.ring(self.now);
        let now = self.now.time();
        if let Some(machine) = &mut self.controller
            && machine.next_deadline() <= now
        {
            machine.on_deadline(now);
        }
        self.pump_controller();
    }

    /// Does what the controller asks, and sees to it that it is called again in time.
    fn pump_controller(&mut self) {
        let Some(machine) = &mut self.controller else { return };
        while let Some(output) = machine.poll_output() {
            let (to, content) = match output {
                Output::Send { to, message: ToPeer::Node(message) } => {
                    (to, Content::ToNode(message))
                }
                Output::Close { connection } => (connection, Content::ControllerClosed),
                Output::Send { .. } | Output::Event(_) => continue,
            };
            let known = |host: &Host| host.wire.at_controller == Some(to);
            let Some(node) = self.hosts.iter().position(known) else { continue };
            let wire = &mut self.hosts[node].wire;
            let message = Message { node: node as u16, connection: to, content };
            if let Content::ControllerClosed = message.content {
                wire.at_controller = None;
                farewell(&mut self.events, &wire.to_node, self.now, message);
            } else {
                self.messages.0 += 1;
                post(&mut self.events, &mut wire.to_node, self.now, message);
            }
        }
        if let Some(next) = self.alarm.set(self.now, machine.next_deadline()) {
            self.events.push(next, Event::Controller { incarnation: self.incarnation });
        }
    }

    // The link.

    fn on_connect(&mut self, number: u16, incarnation: u32) {
        let host = &mut self.hosts[usize::from(number)];
        let Some(machine) = host.node.as_mut().filter(|_| host.incarnation == incarnation) else {
            return;
        };
        if host.wire.at_node.is_some() {
            return;
        }
        if self.controller.is_none() || host.wire.from_node.conduct().is_cut(self.now) {
            let again = self.now.after(RECONNECT);
            self.events.push(again, Event::Connect { node: number, incarnation });
            return;
        }
        self.connections += 1;
        let connection = ConnectionId(self.connections);
        host.wire.at_node = Some(connection);
        host.wire.last_received = self.now;
        let watch = self.now.after(self.setup.silence());
        self.events.push(watch, Event::Watch { node: number, connection });
        let message =
            Message { node: number, connection, content: Content::Hello(machine.node.info()) };
        farewell(&mut self.events, &host.wire.from_node, self.now, message);
        machine.node.on_connected(self.now.time());
        self.pump(number);
    }

    fn on_message(&mut self, message: Message) {
        let Message { node, connection, content } = message;
        let now = self.now.time();
        let wire = &mut self.hosts[usize::from(node)].wire;
        let is_open = match content {
            Content::Hello(_) => true,
            Content::ToNode(_) | Content::ControllerClosed => wire.at_node == Some(connection),
            Content::FromNode(_) | Content::NodeClosed => wire.at_controller == Some(connection),
        };
        if !is_open {
            return;
        }
        match content {
            Content::ToNode(message) => return self.deliver(node, message),
            Content::ControllerClosed => return self.hang_up(node),
            _ => {}
        }
        let Some(machine) = &mut self.controller else { return };
        match content {
            Content::Hello(info) => {
                wire.at_controller = Some(connection);
                let hello = Hello::Node { version: VERSION, info };
                machine.on_hello(now, connection, Peer::default(), hello);
            }
            Content::FromNode(message) => {
                machine.on_message(now, connection, FromPeer::Node(message));
            }
            _ => {
                wire.at_controller = None;
                machine.on_closed(now, connection, "the node has closed it");
            }
        }
        self.pump_controller();
    }

    /// A side that does not learn of the end of its connection ends it itself.
    fn on_watch(&mut self, node: u16, connection: ConnectionId) {
        let wire = &self.hosts[usize::from(node)].wire;
        if wire.at_node != Some(connection) {
            return;
        }
        let until = wire.last_received.after(self.setup.silence());
        if until <= self.now {
            self.befall(Fault::Hangs(node));
        } else {
            self.events.push(until, Event::Watch { node, connection });
        }
    }

    fn deliver(&mut self, number: u16, message: ToNode) {
        let host = &mut self.hosts[usize::from(number)];
        host.wire.last_received = self.now;
        let Some(machine) = &mut host.node else { return };
        let is_plan = matches!(message, ToNode::Plan(_));
        machine.node.on_message(self.now.time(), message);
        if is_plan {
            host.find_slots(&self.names);
        }
        self.pump(number);
    }

    /// A node's connection is over at its side; it looks for another.
    fn hang_up(&mut self, number: u16) {
        let host = &mut self.hosts[usize::from(number)];
        host.wire.at_node = None;
        if let Some(machine) = &mut host.node {
            machine.node.on_disconnected(self.now.time());
            let again = self.now.after(RECONNECT);
            self.events.push(again, Event::Connect { node: number, incarnation: host.incarnation });
        }
        self.pump(number);
    }

    // Faults.

    fn befall(&mut self, fault: Fault) {
        match fault {
            Fault::NodeDies(node) => {
                self.close_at_node(node);
                self.hosts[usize::from(node)].node = None;
                self.requests.fail_all(node);
            }
            Fault::NodeReturns(node) => self.on_return(node),
            Fault::ControllerDies => {
                self.controller = None;
                for node in 0..self.hosts.len() {
                    let wire = &mut self.hosts[node].wire;
                    let Some(connection) = wire.at_controller.take() else { continue };
                    let content = Content::ControllerClosed;
                    let message = Message { node: node as u16, connection, content };
                    farewell(&mut self.events, &wire.to_node, self.now, message);
                }
            }
            Fault::ControllerReturns => {
                if self.controller.is_none() {
                    self.incarnation += 1;
                    self.alarm = Alarm::OFF;
                    self.controller = Some(controller(&self.setup, self.incarnation, self.now));
                    self.pump_controller();
                }
            }
            Fault::Hangs(node) => {
                if self.hosts[usize::from(node)].wire.at_node.is_some() {
                    self.close_at_node(node);
                    self.hang_up(node);
                }
            }
        }
    }

    /// The other side learns of it, if the link lets it.
    fn close_at_node(&mut self, node: u16) {
        let wire = &mut self.hosts[usize::from(node)].wire;
        if let Some(connection) = wire.at_node.take() {
            let message = Message { node, connection, content: Content::NodeClosed };
            farewell(&mut self.events, &wire.from_node, self.now, message);
        }
    }

    /// A node process starts, and clients that wait for answers ask it anew.
    fn on_return(&mut self, number: u16) {
        let host = &mut self.hosts[usize::from(number)];
        if host.node.is_some() {
            return;
        }
        host.start(self.now);
        let incarnation = host.incarnation;
        self.events.push(self.now, Event::Connect { node: number, incarnation });
        // A flow of a striped tenant does not know which requests failed; it goes on with the
        // others.
        if let Some(closed) = self.setup.load.closed.as_ref().filter(|closed| !closed.striped) {
            let outstanding = closed.outstanding;
            for flow in self.clients.at(number) {
                (0..outstanding).for_each(|_| _ = self.submit(flow));
            }
        }
        self.pump(number);
    }
}

/// Puts the copies of a message on their way, as many as the link lets through.
fn post(events: &mut Events<Event>, link: &mut Link, now: Picoseconds, message: Message) {
    for at in link.send(now) {
        events.push(at, Event::Message(Box::new(message.clone())));
    }
}

/// The beginning and the end of a connection are not lost, unless the link is cut: a node tries to
/// connect until the connection is open.
fn farewell(events: &mut Events<Event>, link: &Link, now: Picoseconds, message: Message) {
    if !link.conduct().is_cut(now) {
        events.push(now.after(link.conduct().most), Event::Message(Box::new(message)));
    }
}

/// A controller's process, which knows the policy. Only the first knows that it is the first.
fn controller(setup: &Setup, incarnation: u32, now: Picoseconds) -> Controller {
    let node = |number| NodeSetup {
        name: name(number),
        capacity: Some(setup.nodes.rate),
        ..NodeSetup::default()
    };
    let cluster = cluster::Setup {
        nodes: (0..setup.nodes.count).map(node).collect(),
        is_first: incarnation == 1,
        ..cluster::Setup::default()
    };
    Controller::of_nodes(now.time(), cluster, Some((1, setup.policy.clone())))
}

/// A host without a process.
fn host(setup: &Setup, number: u16, tenants: usize) -> Host {
    let stream = |name| Stream::new(setup.seed, name, u64::from(number));
    let Nodes { rate, spread_percent, depth, shards, pacing, .. } = setup.nodes;
    let pacing = match pacing {
        Pacing::Even => node::Pacing::Even,
        Pacing::Paper => node::Pacing::Paper,
    };
    let conduct = &setup.links[usize::from(number)];
    Host {
        name: name(number),
        config: Config { depth, shards, capacity: Some(rate), pacing, ..Config::default() },
        node: None,
        threads: stream("threads"),
        incarnation: 0,
        device: Device::new(rate, spread_percent, stream("device")),
        alarm: Alarm::OFF,
        slots: vec![Slot::UNATTRIBUTED; tenants],
        wire: Wire {
            to_node: Link::new(conduct.clone(), stream("link to node")),
            from_node: Link::new(conduct.clone(), stream("link from node")),
            at_node: None,
            last_received: Picoseconds::ZERO,
            at_controller: None,
        },
    }
}

fn name(node: u16) -> String {
    format!("n{node}")
}
