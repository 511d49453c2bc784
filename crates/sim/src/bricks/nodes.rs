//! DSFQ simulation: bricks (storage nodes), their disks, and the threads that ask them through
//! coordinators (gateways).

use std::rc::Rc;

use tidegate_algo::scheduling::cost::work;
use tidegate_algo::scheduling::dsfq::Elsewhere;
use tidegate_model::{CostModel, Policy, Time};
use tidegate_proto::cluster::message::NodeInfo;
use tidegate_proto::cluster::{self, NodeSetup};
use tidegate_proto::controller::Controller;
use tidegate_proto::node::Config;

use super::outcome::SampleCell;
use super::scenario::DsfqScenario;
use super::threads::{ThreadId, Threads};
use super::unfairness::{Side, Unfairness};
use crate::device::Array;
use crate::link::Conduct;
use crate::node::{Number, SimulatedNode};
use crate::requests::{RequestTable, Ticket};
use crate::rng::Stream as Random;
use crate::simulation::{Peers, Simulation};
use crate::time::Picoseconds;

/// From one process to another. Small against what disks take, as the paper assumes (§2.1).
const LATENCY: Picoseconds = Picoseconds(100_000_000);

/// The time between two checks of the service that no request has announced to a brick, and at how
/// many threads ask.
const EPOCH: Picoseconds = Picoseconds(100_000_000_000);

/// The time until a thread asks again whose request a brick could not serve.
const RETRY: Picoseconds = Picoseconds(20_000_000_000);

/// Cost of a request in the fair order: the paper's experiments share bytes.
const COST: CostModel = CostModel::Bytes;

/// A request at a brick, or its part there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubRequest {
    thread: ThreadId,
    bytes: u32,
    brick: u16,
    /// When it came to the brick.
    arrived: Picoseconds,
}

/// Event of the threads, the coordinators or the disks.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A thread's request is at its coordinator.
    Submit { thread: ThreadId },
    /// A part of it is at its brick.
    Arrival { sub_request: SubRequest, delay: u32 },
    /// The disks have done it.
    Done { brick: u16, incarnation: u32, number: Number },
    /// Work of streams at other bricks, from a coordinator.
    Elsewhere { brick: u16, streams: Box<[(u16, u64)]> },
    /// Coordinators announce what no request has carried.
    Epoch,
    /// Threads begin whose time has come.
    Begin,
}

#[derive(Debug)]
struct Brick {
    disks: Array,
    /// How many requests of each stream wait, and since when some do.
    waiting: Vec<(u32, Picoseconds)>,
}

/// The bricks of a simulation, with their disks, coordinators and threads.
#[derive(Debug)]
pub(crate) struct StorageBricks {
    scenario: DsfqScenario,
    policy: Policy,
    threads: Threads,
    names: Rc<[String]>,
    /// Whether the number of threads that ask changes.
    varies: bool,
    /// Coordinator by coordinator, in the order of the streams.
    elsewhere: Vec<Elsewhere>,
    bricks: Vec<Brick>,
    cells: Vec<SampleCell>,
    pub(crate) requests: RequestTable<SubRequest>,
    pub(crate) unfairness: Unfairness,
    pub(super) announced: u64,
}

/// Streams, coordinators and bricks in virtual time.
pub(crate) type DsfqSim = Simulation<StorageBricks>;

impl DsfqSim {
    /// Bricks whose links are steady and which are connected from the beginning.
    pub(super) fn steady(scenario: &DsfqScenario, policy: Policy) -> Self {
        let links = vec![Conduct::steady(LATENCY); usize::from(scenario.bricks.count)];
        let mut simulation = Self::of(scenario, policy, &links);
        simulation.start_connected(Picoseconds::ZERO);
        simulation.begin();
        simulation
    }

    /// Bricks without a process yet, with these links.
    pub(crate) fn of(scenario: &DsfqScenario, policy: Policy, links: &[Conduct]) -> Self {
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
        let brick = |number| Brick {
            disks: Array::new(
                scenario.bricks.array(),
                Random::new(scenario.seed, "device", number),
            ),
            waiting: vec![(0, Picoseconds::ZERO); streams],
        };
        let silence = Picoseconds(2 * Picoseconds::from(policy.period).0);
        let bricks = StorageBricks {
            varies: groups.into_iter().any(|group| group.pulse.is_some() || group.wave.is_some()),
            threads,
            names: scenario.stream.iter().map(|stream| stream.name.clone()).collect(),
            elsewhere: (0..coordinators * streams).map(account).collect(),
            bricks: (0..count.into()).map(brick).collect(),
            cells: vec![SampleCell::default(); streams * usize::from(count)],
            requests: RequestTable::default(),
            unfairness,
            announced: 0,
            policy,
            scenario: scenario.clone(),
        };
        Self::new(bricks, scenario.seed, links, silence)
    }

    /// Threads begin to ask, and coordinators to announce.
    pub(crate) fn begin(&mut self) {
        self.plan(self.now, Event::Begin);
        if self.peers.scenario.exchange {
            self.plan(self.now.after(EPOCH), Event::Epoch);
        }
    }

    /// Returns the counts since the last call, stream by stream in the order of the bricks.
    pub(crate) fn take_sample(&mut self) -> Vec<SampleCell> {
        let StorageBricks { threads, bricks, cells, .. } = &mut self.peers;
        let (now, count) = (self.now, bricks.len());
        for (number, brick) in bricks.iter_mut().enumerate() {
            for (stream, (waiting, since)) in brick.waiting.iter_mut().enumerate() {
                let cell = &mut cells[stream * count + number];
                cell.threads = threads.active(stream as u16, number as u16, now);
                if *waiting > 0 {
                    cell.waiting_ns += now.since(*since).0 / 1_000;
                    *since = now;
                }
            }
        }
        let length = cells.len();
        core::mem::replace(cells, vec![SampleCell::default(); length])
    }

    // Streams and coordinators.

    fn on_begin(&mut self) {
        for thread in self.peers.threads.begin(self.now) {
            self.plan(self.now.after(LATENCY), Event::Submit { thread });
        }
        if self.peers.varies {
            self.plan(self.now.after(EPOCH), Event::Begin);
        }
    }

    fn on_submit(&mut self, thread: ThreadId) {
        let StorageBricks { threads, names, elsewhere, unfairness, .. } = &mut self.peers;
        let request = threads.submit(thread, self.now);
        let stream = usize::from(request.stream);
        let account = &elsewhere[usize::from(request.coordinator) * names.len() + stream];
        for (brick, bytes) in request.sub_requests {
            let cost = work(&COST, false, bytes, 1);
            let delay = account.sent(usize::from(brick), cost);
            if let (0, Some(side)) = (brick, unfairness.sides.get_mut(stream)) {
                side.cost_most = side.cost_most.max(cost.into());
                side.batch_most = side.batch_most.max(u64::from(cost) + u64::from(delay));
            }
            let arrived = self.now.after(LATENCY);
            let sub_request = SubRequest { thread, bytes, brick, arrived };
            self.agenda.plan(arrived, Event::Arrival { sub_request, delay });
        }
    }

    fn on_epoch(&mut self) {
        let StorageBricks { names, elsewhere, bricks, announced, .. } = &mut self.peers;
        for accounts in elsewhere.chunks(names.len()) {
            for brick in 0..bricks.len() {
                let amounts = accounts.iter().map(|account| account.take_unreported(brick));
                let amounts = (0..).zip(amounts).filter(|(_, amount)| *amount > 0);
                let streams: Box<[(u16, u64)]> = amounts.collect();
                if !streams.is_empty() {
                    *announced += 1;
                    let event = Event::Elsewhere { brick: brick as u16, streams };
                    self.agenda.plan(self.now.after(LATENCY), event);
                }
            }
        }
        self.plan(self.now.after(EPOCH), Event::Epoch);
    }

    // Bricks.

    fn on_arrival(&mut self, sub_request: SubRequest, delay: u32) {
        let SubRequest { thread, bytes, brick: number, .. } = sub_request;
        let Some(process) = &mut self.hosts[usize::from(number)].process else {
            return self.on_failed(sub_request);
        };
        let StorageBricks { threads, bricks, unfairness, requests, policy, .. } = &mut self.peers;
        let stream = usize::from(threads.stream(thread));
        let brick = &mut bricks[usize::from(number)];
        let (waiting, since) = &mut brick.waiting[stream];
        if *waiting == 0 {
            *since = self.now;
        }
        *waiting += 1;
        let all = brick.waiting.iter().map(|(waiting, _)| u64::from(*waiting)).sum();
        unfairness.waiting_most = unfairness.waiting_most.max(all);
        let ticket = requests.submit(sub_request);
        let class = policy.tenants[stream].class;
        process.read(self.now.time(), (stream, class), (bytes, delay), ticket);
        self.pump(number);
    }

    fn on_done(&mut self, number: u16, incarnation: u32, at_device: Number) {
        let now = self.now;
        let host = &mut self.hosts[usize::from(number)];
        let Some(process) = host.process.as_mut().filter(|_| host.incarnation == incarnation)
        else {
            return;
        };
        let ticket = process.finish(now.time(), at_device);
        let StorageBricks { threads, bricks, cells, requests, unfairness, .. } = &mut self.peers;
        let Some(SubRequest { thread, bytes, .. }) = requests.answer(ticket) else { return };
        let stream = usize::from(threads.stream(thread));
        let (submitted_at, submits_next) = threads.answer(thread, now);
        let cell = &mut cells[stream * bricks.len() + usize::from(number)];
        cell.bytes += u64::from(bytes);
        cell.requests += 1;
        // To the coordinator and from there to the thread, which had asked the coordinator.
        let again = now.after(Picoseconds(2 * LATENCY.0)).after(LATENCY);
        cell.took_ns += again.since(submitted_at).0 / 1_000;
        if let Some(side) = unfairness.sides.get_mut(stream) {
            side.served += u64::from(bytes);
        }
        if submits_next {
            self.plan(again, Event::Submit { thread });
        }
        self.peers.update_unfairness();
        self.pump(number);
    }

    /// A brick could not serve a part of a request; its thread asks again if it was the last.
    fn on_failed(&mut self, sub_request: SubRequest) {
        let thread = sub_request.thread;
        if self.peers.threads.answer(thread, self.now).1 {
            self.plan(self.now.after(RETRY), Event::Submit { thread });
        }
    }

    fn on_elsewhere(&mut self, brick: u16, streams: &[(u16, u64)]) {
        let Some(process) = &self.hosts[usize::from(brick)].process else { return };
        for (stream, work) in streams {
            process.node.on_elsewhere(process.slots[usize::from(*stream)], *work);
        }
        self.pump(brick);
    }
}

impl StorageBricks {
    /// Looks at the unfairness.
    fn update_unfairness(&mut self) {
        let waiting = &self.bricks[0].waiting;
        self.unfairness.update(waiting[0].0 > 0 && waiting[1].0 > 0);
    }
}

impl Peers for StorageBricks {
    type Process = SimulatedNode<Ticket>;
    type Event = Event;

    fn controller(&self, now: Time, incarnation: u32) -> Controller {
        let node = |number| NodeSetup { name: name(number), ..NodeSetup::default() };
        let cluster = cluster::Setup {
            nodes: (0..self.scenario.bricks.count).map(node).collect(),
            is_first: incarnation == 1,
            ..cluster::Setup::default()
        };
        Controller::of_nodes(now, cluster, Some((1, self.policy.clone())))
    }

    fn process(&self, now: Time, brick: u16, _incarnation: u32) -> Self::Process {
        let info = NodeInfo { name: name(brick), ..NodeInfo::default() };
        let config = Config {
            depth: self.scenario.bricks.depth,
            shards: self.scenario.bricks.shards,
            discipline: self.scenario.discipline,
            cost: COST,
            ..Config::default()
        };
        let threads = Random::new(self.scenario.seed, "node threads", u64::from(brick));
        SimulatedNode::new(now, info, config, threads, self.names.clone())
    }

    fn happen(simulation: &mut DsfqSim, event: Event) {
        match event {
            Event::Submit { thread } => simulation.on_submit(thread),
            Event::Arrival { sub_request, delay } => simulation.on_arrival(sub_request, delay),
            Event::Done { brick, incarnation, number } => {
                simulation.on_done(brick, incarnation, number);
            }
            Event::Elsewhere { brick, streams } => simulation.on_elsewhere(brick, &streams),
            Event::Epoch => simulation.on_epoch(),
            Event::Begin => simulation.on_begin(),
        }
    }

    fn called(event: &Event) -> Option<u16> {
        match event {
            Event::Done { brick, .. } | Event::Elsewhere { brick, .. } => Some(*brick),
            _ => None,
        }
    }

    /// Requests go to the disks.
    fn work(simulation: &mut DsfqSim, number: u16) {
        let now = simulation.now;
        let host = &mut simulation.hosts[usize::from(number)];
        let Some(process) = &mut host.process else { return };
        let StorageBricks { threads, bricks, cells, requests, .. } = &mut simulation.peers;
        let (count, incarnation) = (bricks.len(), host.incarnation);
        let Brick { disks, waiting } = &mut bricks[usize::from(number)];
        process.dispatch(now.time(), |at_device, request| {
            let Some(sub_request) = requests.get(request.body) else { return };
            let SubRequest { thread, bytes, arrived, .. } = sub_request;
            let stream = usize::from(threads.stream(thread));
            let (waiting, since) = &mut waiting[stream];
            *waiting -= 1;
            let cell = &mut cells[stream * count + usize::from(number)];
            cell.wait_most_ns = cell.wait_most_ns.max(now.since(arrived).0 / 1_000);
            if *waiting == 0 {
                cell.waiting_ns += now.since(*since).0 / 1_000;
            }
            let done = disks.take(now, bytes);
            let event = Event::Done { brick: number, incarnation, number: at_device };
            simulation.agenda.plan(done, event);
        });
        simulation.peers.update_unfairness();
    }

    fn on_death(simulation: &mut DsfqSim, brick: u16) {
        let here = |sub_request: &SubRequest| sub_request.brick == brick;
        let failed = simulation.peers.requests.fail_all(here);
        simulation.peers.bricks[usize::from(brick)].waiting.fill((0, simulation.now));
        simulation.peers.update_unfairness();
        failed.into_iter().for_each(|sub_request| simulation.on_failed(sub_request));
    }
}

fn name(brick: u16) -> String {
    format!("b{brick}")
}
