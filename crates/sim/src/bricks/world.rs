//! The loop: the earliest event, and what follows from it.

use tidegate_algo::scheduling::cost::work;
use tidegate_algo::scheduling::dsfq::Elsewhere;
use tidegate_model::{CostModel, Policy};
use tidegate_proto::cluster::message::{FromNode, NodeInfo, ToNode};
use tidegate_proto::cluster::{self, NodeSetup};
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, ToPeer};
use tidegate_proto::message::{Hello, VERSION};
use tidegate_proto::node::{self, Config, Slot};

use super::outcome::Cell;
use super::scenario::Scenario;
use super::threads::{ThreadId, Threads};
use super::unfairness::{Side, Unfairness};
use crate::alarm::Alarm;
use crate::device::Array;
use crate::event::{Events, Queue};
use crate::node::{Number, SimulatedNode};
use crate::rng::Stream as Random;
use crate::time::Picoseconds;

/// From one process to another. Small against what disks take, as the paper assumes (§2.1).
const LATENCY: Picoseconds = Picoseconds(100_000_000);

/// The time between two checks of the service that no request has announced to a brick, and at how
/// many threads ask.
const EPOCH: Picoseconds = Picoseconds(100_000_000_000);

/// Cost of a request in the fair order: the paper's experiments share bytes.
const COST: CostModel = CostModel::Bytes;

/// A request at a brick, or its part there.
#[derive(Clone, Copy, Debug)]
struct SubRequest {
    thread: ThreadId,
    bytes: u32,
}

/// Event of the simulation.
#[derive(Clone, Debug)]
enum Event {
    /// A thread's request is at its coordinator.
    Submit { thread: ThreadId },
    /// A part of it is at its brick.
    Arrival { brick: u16, sub_request: SubRequest, delay: u32 },
    /// The disks have done it.
    Done { brick: u16, number: Number },
    /// A brick wanted to be called again.
    Wake { brick: u16 },
    /// The controller wanted to be called again.
    Controller,
    /// A message arrives. In a box: messages are rare and large, events many and small.
    Message(Box<Message>),
    /// Coordinators announce what no request has carried.
    Epoch,
    /// Threads begin whose time has come.
    Begin,
    /// The world stops, to be looked at.
    Pause,
}

const _: () = assert!(size_of::<Event>() <= 40, "events are copied often");

#[derive(Clone, Debug)]
enum Message {
    ToBrick {
        brick: u16,
        message: ToNode,
    },
    FromBrick {
        brick: u16,
        message: FromNode,
    },
    /// Work of streams at other bricks, from a coordinator.
    Elsewhere {
        brick: u16,
        streams: Vec<(u16, u64)>,
    },
}

#[derive(Debug)]
struct Brick {
    node: SimulatedNode<SubRequest>,
    disks: Array,
    alarm: Alarm,
    /// The slot of each stream at the node.
    slots: Vec<Slot>,
    /// How many requests of each stream wait, and since when some do.
    waiting: Vec<(u32, Picoseconds)>,
}

/// Streams, coordinators and bricks in virtual time.
#[derive(Debug)]
pub(super) struct DsfqSim {
    now: Picoseconds,
    events: Events<Event>,
    threads: Threads,
    names: Vec<String>,
    /// Whether the number of threads that ask changes.
    varies: bool,
    /// Coordinator by coordinator, in the order of the streams.
    elsewhere: Vec<Elsewhere>,
    bricks: Vec<Brick>,
    controller: Controller,
    alarm: Alarm,
    cells: Vec<Cell>,
    pub(super) unfairness: Unfairness,
    pub(super) announced: u64,
    pub(super) passed: u64,
}

impl DsfqSim {
    pub(super) fn new(scenario: &Scenario, policy: Policy) -> Self {
        let (streams, count) = (scenario.stream.len(), scenario.bricks.count);
        let threads = Threads::new(scenario);
        let side = |stream: usize| Side {
            weight: scenario.stream[stream].weight.into(),
            brick_count: threads.brick_count(stream as u16),
            ..Side::default()
        };
        let unfairness = Unfairness::between([side(0), side(1)], scenario.bricks.depth);
        let coordinators = usize::from(scenario.coordinators);
        let account = |_| Elsewhere::new(usize::from(count));
        let groups = scenario.stream.iter().flat_map(|stream| &stream.threads);
        let mut world = Self {
            now: Picoseconds::ZERO,
            events: Events::default(),
            varies: groups.into_iter().any(|group| group.pulse.is_some() || group.wave.is_some()),
            threads,
            names: scenario.stream.iter().map(|stream| stream.name.clone()).collect(),
            elsewhere: (0..coordinators * streams).map(account).collect(),
            bricks: (0..count).map(|number| brick(scenario, number)).collect(),
            controller: controller(scenario, policy),
            alarm: Alarm::OFF,
            cells: vec![Cell::default(); streams * usize::from(count)],
            unfairness,
            announced: 0,
            passed: 0,
        };
        world.connect();
        world.events.push(world.now, Event::Begin);
        if scenario.exchange {
            world.events.push(EPOCH, Event::Epoch);
        }
        world
    }

    /// Every brick finds its controller at once, and never loses it.
    fn connect(&mut self) {
        let now = self.now.time();
        for (number, brick) in (0..).zip(&mut self.bricks) {
            let hello = Hello::Node { version: VERSION, info: brick.node.node.info() };
            self.controller.on_hello(now, connection(number), Peer::default(), hello);
            brick.node.node.on_connected(now);
        }
        (0..self.bricks.len()).for_each(|brick| self.pump(brick as u16));
        self.pump_controller();
    }

    /// Lets everything happen that happens before `end`.
    pub(super) fn run_until(&mut self, end: Picoseconds) {
        self.events.push(end, Event::Pause);
        while let Some((at, event)) = self.events.pop() {
            self.now = at;
            self.passed += 1;
            match event {
                Event::Submit { thread } => self.on_submit(thread),
                Event::Arrival { brick, sub_request, delay } => {
                    self.on_arrival(brick, sub_request, delay)
                }
                Event::Done { brick, number } => self.on_done(brick, number),
                Event::Wake { brick } => self.on_wake(brick),
                Event::Controller => self.on_controller(),
                Event::Message(message) => self.on_message(*message),
                Event::Epoch => self.on_epoch(),
                Event::Begin => self.on_begin(),
                Event::Pause => return,
            }
        }
    }

    /// Returns the counts since the last call, stream by stream in the order of the bricks.
    pub(super) fn take_sample(&mut self) -> Vec<Cell> {
        let (now, count) = (self.now, self.bricks.len());
        for (number, brick) in self.bricks.iter_mut().enumerate() {
            for (stream, (waiting, since)) in brick.waiting.iter_mut().enumerate() {
                let cell = &mut self.cells[stream * count + number];
                cell.threads = self.threads.active(stream as u16, number as u16, now);
                if *waiting > 0 {
                    cell.waiting_ns += now.since(*since).0 / 1_000;
                    *since = now;
                }
            }
        }
        let length = self.cells.len();
        core::mem::replace(&mut self.cells, vec![Cell::default(); length])
    }

    // Streams and coordinators.

    fn on_begin(&mut self) {
        for thread in self.threads.begin(self.now) {
            self.events.push(self.now.after(LATENCY), Event::Submit { thread });
        }
        if self.varies {
            self.events.push(self.now.after(EPOCH), Event::Begin);
        }
    }

    fn on_submit(&mut self, thread: ThreadId) {
        let request = self.threads.submit(thread, self.now);
        let (stream, streams) = (usize::from(request.stream), self.names.len());
        let account = &self.elsewhere[usize::from(request.coordinator) * streams + stream];
        for (brick, bytes) in request.sub_requests {
            let cost = work(&COST, false, bytes, 1);
            let delay = account.sent(usize::from(brick), cost);
            if let (0, Some(side)) = (brick, self.unfairness.sides.get_mut(stream)) {
                side.cost_most = side.cost_most.max(cost.into());
                side.batch_most = side.batch_most.max(u64::from(cost) + u64::from(delay));
            }
            let sub_request = SubRequest { thread, bytes };
            self.events.push(self.now.after(LATENCY), Event::Arrival { brick, sub_request, delay });
        }
    }

    fn on_epoch(&mut self) {
        for accounts in self.elsewhere.chunks(self.names.len()) {
            for brick in 0..self.bricks.len() {
                let amounts = accounts.iter().map(|account| account.take_unreported(brick));
                let amounts = (0..).zip(amounts).filter(|(_, amount)| *amount > 0);
                let streams: Vec<(u16, u64)> = amounts.collect();
                if !streams.is_empty() {
                    self.announced += 1;
                    let message = Message::Elsewhere { brick: brick as u16, streams };
                    self.events.push(self.now.after(LATENCY), Event::Message(Box::new(message)));
                }
            }
        }
        self.events.push(self.now.after(EPOCH), Event::Epoch);
    }

    // Bricks.

    fn on_arrival(&mut self, number: u16, sub_request: SubRequest, delay: u32) {
        let stream = self.threads.stream(sub_request.thread);
        let brick = &mut self.bricks[usize::from(number)];
        let (waiting, since) = &mut brick.waiting[usize::from(stream)];
        if *waiting == 0 {
            *since = self.now;
        }
        *waiting += 1;
        let all = brick.waiting.iter().map(|(waiting, _)| u64::from(*waiting)).sum();
        self.unfairness.waiting_most = self.unfairness.waiting_most.max(all);
        let slot = brick.slots[usize::from(stream)];
        brick.node.read(self.now.time(), slot, sub_request.bytes, delay, sub_request);
        self.pump(number);
    }

    fn on_done(&mut self, number: u16, at_device: Number) {
        let now = self.now;
        let sub_request = self.bricks[usize::from(number)].node.finish(now.time(), at_device);
        let stream = usize::from(self.threads.stream(sub_request.thread));
        let (submitted_at, submits_next) = self.threads.answer(sub_request.thread, now);
        let cell = &mut self.cells[stream * self.bricks.len() + usize::from(number)];
        cell.bytes += u64::from(sub_request.bytes);
        cell.requests += 1;
        // To the coordinator and from there to the thread, which had asked the coordinator.
        let back = Picoseconds(2 * LATENCY.0);
        cell.took_ns += now.after(back).after(LATENCY).since(submitted_at).0 / 1_000;
        if let Some(side) = self.unfairness.sides.get_mut(stream) {
            side.served += u64::from(sub_request.bytes);
        }
        if submits_next {
            let thread = sub_request.thread;
            self.events.push(now.after(back).after(LATENCY), Event::Submit { thread });
        }
        self.update_unfairness();
        self.pump(number);
    }

    fn on_wake(&mut self, number: u16) {
        let brick = &mut self.bricks[usize::from(number)];
        brick.alarm.ring(self.now);
        self.pump(number);
    }

    /// Looks at the unfairness.
    fn update_unfairness(&mut self) {
        let waiting = &self.bricks[0].waiting;
        self.unfairness.update(waiting[0].0 > 0 && waiting[1].0 > 0);
    }

    /// Does what a brick asks, and sees to it that it is called again in time.
    fn pump(&mut self, number: u16) {
        let (now, count) = (self.now, self.bricks.len());
        let brick = &mut self.bricks[usize::from(number)];
        let Brick { node, disks, waiting, .. } = brick;
        node.dispatch(now.time(), |at_device, request| {
            let SubRequest { thread, bytes } = request.body;
            let stream = usize::from(self.threads.stream(thread));
            let (waiting, since) = &mut waiting[stream];
            *waiting -= 1;
            if *waiting == 0 {
                let cell = &mut self.cells[stream * count + usize::from(number)];
                cell.waiting_ns += now.since(*since).0 / 1_000;
            }
            let done = disks.take(now, bytes);
            self.events.push(done, Event::Done { brick: number, number: at_device });
        });
        while let Some(output) = brick.node.node.poll_output() {
            let node::Output::Send(message) = output else { continue };
            let message = Message::FromBrick { brick: number, message };
            self.events.push(now.after(LATENCY), Event::Message(Box::new(message)));
        }
        if let Some(next) = brick.alarm.set(now, brick.node.node.next_deadline()) {
            self.events.push(next, Event::Wake { brick: number });
        }
        self.update_unfairness();
    }

    // The controller.

    fn on_message(&mut self, message: Message) {
        let now = self.now.time();
        match message {
            Message::FromBrick { brick, message } => {
                self.controller.on_message(now, connection(brick), FromPeer::Node(message));
                self.pump_controller();
            }
            Message::ToBrick { brick: number, message } => {
                let brick = &mut self.bricks[usize::from(number)];
                brick.node.node.on_message(now, message);
                for (slot, name) in brick.slots.iter_mut().zip(&self.names) {
                    *slot = brick.node.node.slot(name);
                }
                self.pump(number);
            }
            Message::Elsewhere { brick: number, streams } => {
                let brick = &mut self.bricks[usize::from(number)];
                for (stream, work) in streams {
                    brick.node.node.on_elsewhere(brick.slots[usize::from(stream)], work);
                }
                self.pump(number);
            }
        }
    }

    fn on_controller(&mut self) {
        self.alarm.ring(self.now);
        let now = self.now.time();
        if self.controller.next_deadline() <= now {
            self.controller.on_deadline(now);
        }
        self.pump_controller();
    }

    fn pump_controller(&mut self) {
        while let Some(output) = self.controller.poll_output() {
            let Output::Send { to, message: ToPeer::Node(message) } = output else { continue };
            let message = Message::ToBrick { brick: (to.0 - 1) as u16, message };
            self.events.push(self.now.after(LATENCY), Event::Message(Box::new(message)));
        }
        if let Some(next) = self.alarm.set(self.now, self.controller.next_deadline()) {
            self.events.push(next, Event::Controller);
        }
    }
}

const fn connection(brick: u16) -> ConnectionId {
    ConnectionId(brick as u64 + 1)
}

fn name(brick: u16) -> String {
    format!("b{brick}")
}

fn controller(scenario: &Scenario, policy: Policy) -> Controller {
    let node = |number| NodeSetup { name: name(number), ..NodeSetup::default() };
    let cluster = cluster::Setup {
        nodes: (0..scenario.bricks.count).map(node).collect(),
        is_first: true,
        ..cluster::Setup::default()
    };
    Controller::of_nodes(Picoseconds::ZERO.time(), cluster, Some((1, policy)))
}

fn brick(scenario: &Scenario, number: u16) -> Brick {
    let info = NodeInfo { name: name(number), ..NodeInfo::default() };
    let config = Config {
        depth: scenario.bricks.depth,
        shards: scenario.bricks.shards,
        discipline: scenario.discipline,
        cost: COST,
        ..Config::default()
    };
    let random = Random::new(scenario.seed, "device", u64::from(number));
    let threads = Random::new(scenario.seed, "node threads", u64::from(number));
    let streams = scenario.stream.len();
    Brick {
        node: SimulatedNode::new(Picoseconds::ZERO.time(), info, config, threads),
        disks: Array::new(scenario.bricks.array(), random),
        alarm: Alarm::OFF,
        slots: vec![Slot::UNATTRIBUTED; streams],
        waiting: vec![(0, Picoseconds::ZERO); streams],
    }
}
