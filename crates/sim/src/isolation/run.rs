//! One run: the victim, or none, and an aggressor, or none, at a node in front of a drive.

use std::collections::VecDeque;
use std::rc::Rc;

use tidegate_model::policy::Fallback;
use tidegate_model::{
    ContextId, Discipline, Iops, Operation as Kind, PeriodNumber, Span, Tag, TenantId, TenantIndex,
    Time,
};
use tidegate_proto::cluster::message::{
    Grant, NodeInfo, Plan as NodePlan, RoundId, Share, TenantPlan, ToNode,
};
use tidegate_proto::controller::ToPeer;
use tidegate_proto::data::Command;
use tidegate_proto::node::Config;

use super::{
    AREA, Access, Aggressor, Drive, DriveRequest, IsolationSetup, LoadJob, LoadOperation,
    LoadTenant, PAUSE, VICTIM_DEPTH, VictimFigures,
};
use crate::alarm::Alarm;
use crate::event::{EventQueue, Events};
use crate::large::{Body, LargeRequests, is_large};
use crate::node::SimulatedNode;
use crate::rng::Stream;
use crate::simulation::Process;
use crate::time::Picoseconds;

const VICTIM: usize = LoadTenant::Victim as usize;
const SMALL: u32 = 4 << 10;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunPlan<'a> {
    pub(super) setup: IsolationSetup,
    /// The victim's reservation, per second; none for a run without control.
    pub(super) reserved: Option<u64>,
    /// The rate that the victim requests; zero for none.
    pub(super) rate: u64,
    pub(super) aggressor: Option<&'a Aggressor>,
}

#[derive(Clone, Copy, Debug)]
enum IsolationEvent<E> {
    /// A request of the victim is due.
    Due,
    /// A client of the aggressor sends its next request.
    Send(u32),
    /// The node wanted to be called again.
    Wake,
    Drive(E),
}

/// A request of a client at the node.
#[derive(Clone, Copy, Debug)]
struct SentRequest {
    tenant: usize,
    /// The aggressor's client.
    client: u32,
    offset: u64,
    issued: Picoseconds,
}

/// A client of the aggressor.
#[derive(Clone, Copy, Debug)]
struct LoadClient<'a> {
    job: &'a LoadJob,
    tenant: usize,
    random: u32,
    sent: u32,
    has_to_flush: bool,
}

struct IsolationRun<'a, D: Drive> {
    plan: RunPlan<'a>,
    events: Events<IsolationEvent<D::Event>>,
    node: SimulatedNode<Body<SentRequest>>,
    larges: LargeRequests<SentRequest>,
    drive: D,
    alarm: Alarm,
    clients: Vec<LoadClient<'a>>,
    /// One for each job, and one for the victim.
    random: Vec<Stream>,
    /// Where the next sequential write goes.
    next_offset: u64,
    /// The victim's requests in flight, and since when others are due.
    in_flight: u32,
    overdue: VecDeque<Picoseconds>,
    latencies: Vec<u64>,
    figures: VictimFigures,
}

/// Runs it to the end of the counted time.
pub(super) fn run<D: Drive>(plan: &RunPlan<'_>, drive: D) -> VictimFigures {
    let mut run = IsolationRun::new(*plan, drive);
    let end = run.until();
    while let Some((now, event)) = run.events.pop() {
        if now >= end {
            break;
        }
        run.happen(now, event);
    }
    let IsolationRun { mut latencies, figures, .. } = run;
    latencies.sort_unstable();
    let percentile = |permille: usize| {
        let index = (latencies.len() * permille).div_ceil(1_000).saturating_sub(1);
        Span(latencies.get(index).copied().unwrap_or(0))
    };
    VictimFigures { p99: percentile(990), p999: percentile(999), ..figures }
}

/// The node, with the plan and the grant of a controller that is content with them.
fn node(plan: &RunPlan<'_>) -> SimulatedNode<Body<SentRequest>> {
    let IsolationSetup { depth, seed, .. } = plan.setup;
    let names: Rc<[String]> = LoadTenant::ALL.map(|tenant| tenant.name().into()).into();
    let threads = Stream::new(seed, "threads", 0);
    let start = |config| {
        SimulatedNode::new(Time::ZERO, NodeInfo::default(), config, threads.clone(), names.clone())
    };
    let Some(reserved) = plan.reserved else {
        return start(Config { depth, discipline: Discipline::Fifo, ..Config::default() });
    };
    let mut node = start(Config {
        depth,
        capacity: Some(Iops(reserved * 100 / super::RESERVED_PERCENT)),
        is_sampled: true,
        is_guarded: true,
        discipline: Discipline::Unified,
        ..Config::default()
    });
    let tenant = |tenant: LoadTenant| TenantPlan {
        name: tenant.name().into(),
        weight: 100,
        is_limited: false,
        minimum_ppm: 10_000,
        bytes: None,
    };
    let tenants = LoadTenant::ALL.map(tenant).into();
    let plan = NodePlan {
        revision: 1,
        period: Span::SECOND,
        rounds: 5,
        fallback: Fallback::Keep,
        tenants,
        ..NodePlan::default()
    };
    let share = |tenant: usize| Share {
        tenant: TenantIndex(tenant as u16),
        reserved: if tenant == VICTIM { reserved } else { 0 },
        allowed: u64::MAX,
    };
    let grant = Grant {
        revision: 1,
        round_id: RoundId { period: PeriodNumber(0), round: 0 },
        serial: 1,
        into: Span::ZERO,
        lease: u32::MAX,
        shares: (0..LoadTenant::ALL.len()).map(share).collect(),
        bytes: Vec::new(),
    };
    node.on_message(Time::ZERO, ToPeer::Node(ToNode::Plan(plan)));
    node.on_message(Time::ZERO, ToPeer::Node(ToNode::Grant(grant)));
    node
}

impl<'a, D: Drive> IsolationRun<'a, D> {
    fn new(plan: RunPlan<'a>, drive: D) -> Self {
        let (mut clients, mut random) = (Vec::new(), Vec::new());
        let tenant = plan.aggressor.map_or(VICTIM, |aggressor| aggressor.tenant as usize);
        for job in plan.aggressor.map_or(&[][..], |aggressor| aggressor.jobs) {
            let stream = random.len() as u32;
            random.push(Stream::new(plan.setup.seed, "job", u64::from(stream)));
            let client = LoadClient { job, tenant, random: stream, sent: 0, has_to_flush: false };
            clients.extend((0..job.clients()).map(|_| client));
        }
        random.push(Stream::new(plan.setup.seed, "victim", 0));
        let mut run = Self {
            plan,
            events: Events::default(),
            node: node(&plan),
            larges: LargeRequests::default(),
            drive,
            alarm: Alarm::OFF,
            clients,
            random,
            next_offset: 0,
            in_flight: 0,
            overdue: VecDeque::new(),
            latencies: Vec::new(),
            figures: VictimFigures::default(),
        };
        for client in 0..run.clients.len() as u32 {
            run.events.push(Picoseconds::ZERO, IsolationEvent::Send(client));
        }
        if plan.rate > 0 {
            run.events.push(Picoseconds::ZERO, IsolationEvent::Due);
        }
        run
    }

    fn until(&self) -> Picoseconds {
        let IsolationSetup { skip, length, .. } = self.plan.setup;
        skip.saturating_add(length).into()
    }

    fn is_counted(&self, now: Picoseconds) -> bool {
        now >= self.plan.setup.skip.into()
    }

    fn happen(&mut self, now: Picoseconds, event: IsolationEvent<D::Event>) {
        match event {
            IsolationEvent::Due => self.due(now),
            IsolationEvent::Send(client) => self.send(now, client),
            IsolationEvent::Wake => self.alarm.ring(now),
            IsolationEvent::Drive(event) => {
                let Self { drive, events, .. } = self;
                let done = drive.on_event(now, event, &mut |at, event| {
                    events.push(at, IsolationEvent::Drive(event));
                });
                if let Some(number) = done {
                    self.finish(now, number);
                }
            }
        }
        self.pump(now);
    }

    /// A request of the victim is due, and the time of the next one is drawn: half of the mean
    /// distance to one and a half.
    fn due(&mut self, now: Picoseconds) {
        self.figures.due += u64::from(self.is_counted(now));
        self.overdue.push_back(now);
        let mean = Picoseconds::SECOND.0 / self.plan.rate;
        let random = self.random.last_mut().expect("the victim has a stream");
        let distance = random.within(mean / 2, mean + mean / 2);
        self.events.push(now.after(Picoseconds(distance)), IsolationEvent::Due);
        self.issue_due(now);
    }

    /// The victim sends what is due, as far as it may have more in flight.
    fn issue_due(&mut self, now: Picoseconds) {
        while self.in_flight < VICTIM_DEPTH && self.overdue.pop_front().is_some() {
            self.in_flight += 1;
            let random = self.random.last_mut().expect("the victim has a stream");
            let offset = random.below(AREA / u64::from(SMALL)) * u64::from(SMALL);
            let sent = SentRequest { tenant: VICTIM, client: 0, offset, issued: now };
            self.submit(now, Command::Read, SMALL, sent);
        }
    }

    fn send(&mut self, now: Picoseconds, number: u32) {
        let client = &mut self.clients[number as usize];
        let random = &mut self.random[client.random as usize];
        let (job, tenant) = (client.job, client.tenant);
        let total: u32 = job.sizes.iter().map(|(_, weight)| weight).sum();
        let mut drawn = random.below(u64::from(total)) as u32;
        let mut bytes = SMALL;
        for (size, weight) in job.sizes {
            bytes = *size;
            if drawn < *weight {
                break;
            }
            drawn -= weight;
        }
        let places = AREA / u64::from(bytes);
        let place = random.below(places);
        let is_read = random.happens(500_000);
        let write = Command::Write { durable: false };
        let (command, place) = match job.operation {
            LoadOperation::Read => (Command::Read, place),
            LoadOperation::Write { is_sequential: false } => (write, place),
            LoadOperation::Write { is_sequential: true } => {
                self.next_offset += 1;
                (write, self.next_offset % places)
            }
            LoadOperation::Mixed => (if is_read { Command::Read } else { write }, place),
            LoadOperation::WriteAndFlush if client.has_to_flush => (Command::Flush, 0),
            LoadOperation::WriteAndFlush => (write, place),
            LoadOperation::Trim => (Command::Discard { durable: false }, place),
        };
        client.has_to_flush = command == write && job.operation == LoadOperation::WriteAndFlush;
        client.sent += 1;
        let bytes = if command == Command::Flush { 0 } else { bytes };
        let offset = tenant as u64 * AREA + place * u64::from(bytes);
        self.submit(
            now,
            command,
            bytes,
            SentRequest { tenant, client: number, offset, issued: now },
        );
    }

    /// A request comes to the node.
    fn submit(&mut self, now: Picoseconds, command: Command, length: u32, sent: SentRequest) {
        let class = LoadTenant::ALL[sent.tenant].class();
        let operation = match command {
            Command::Read => Kind::Read,
            Command::Flush => Kind::Sync,
            _ => Kind::Write,
        };
        let tag = Tag {
            tenant: TenantId::UNATTRIBUTED,
            context: ContextId::NONE,
            class,
            operation,
            cost: length.max(1),
            delay: 0,
        };
        let (node, now, tenant) = (&mut self.node, now.time(), sent.tenant);
        if is_large(command, length) {
            self.larges.submit(node, now, (tenant, tag), command, length, sent);
        } else {
            node.submit(now, tenant, command, length, &tag, Body::Whole(sent));
        }
    }

    /// The drive has served a request.
    fn finish(&mut self, now: Picoseconds, number: u32) {
        let done = match self.node.finish(now.time(), number) {
            Body::Whole(sent) => Some(sent),
            Body::Piece { large, begin } => {
                self.larges.on_piece(&mut self.node, now.time(), large, begin)
            }
        };
        let Some(sent) = done else { return };
        let is_counted = self.is_counted(now);
        if sent.tenant == VICTIM {
            self.in_flight -= 1;
            if is_counted {
                self.figures.served += 1;
                self.latencies.push(now.since(sent.issued).span().0);
            }
            return self.issue_due(now);
        }
        self.figures.others += u64::from(is_counted);
        let client = self.clients[sent.client as usize];
        let pauses = client.job.burst.is_some_and(|burst| client.sent.is_multiple_of(burst));
        let next = if pauses { now.after(PAUSE.into()) } else { now };
        self.events.push(next, IsolationEvent::Send(sent.client));
    }

    /// Requests go to the drive, and the node is called again in time.
    fn pump(&mut self, now: Picoseconds) {
        let Self { node, larges, drive, events, .. } = self;
        node.dispatch(now.time(), |number, request| {
            let offset = match request.body {
                Body::Whole(sent) => sent.offset,
                Body::Piece { large, begin } => {
                    let owner = larges.owner(large).expect("a piece is part of a request");
                    owner.offset + u64::from(begin)
                }
            };
            let access = match request.command() {
                Command::Read => Access::Read,
                Command::Write { .. } => Access::Write,
                _ => Access::NoData,
            };
            let request = DriveRequest { number, access, offset, bytes: request.length() };
            drive.submit(now, request, &mut |at, event| {
                events.push(at, IsolationEvent::Drive(event))
            });
        });
        while node.poll_message().is_some() {}
        if let Some(next) = self.alarm.set(now, self.node.next_deadline()) {
            self.events.push(next, IsolationEvent::Wake);
        }
    }
}
