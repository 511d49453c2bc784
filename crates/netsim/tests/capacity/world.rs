//! Programs under stages in front of a device, with the shipped controller, stage machine and token
//! buckets, in virtual time. Messages take no time. A program is a number of threads; each makes
//! its next request as soon as the last one is answered.

use std::collections::BTreeMap;

use tidegate_algo::concurrent::histogram::Histogram;
use tidegate_algo::shaping::token_bucket::{Due, Take, TokenBucket};
use tidegate_model::gate::Unit;
use tidegate_model::{Event, GateSpec, Policy, Span, Time};
use tidegate_proto::controller::status::Status;
use tidegate_proto::controller::{ConnectionId, Controller, FromPeer, Output, Peer, Setup, ToPeer};
use tidegate_proto::message::{
    ChannelReport, FromStage, GateReport, Hello, StageInfo, StageReport, StorageReport, VERSION,
};
use tidegate_proto::stage::{Machine, Output as StageOutput};
use tidegate_sim::rng::Stream;

use crate::device::{Device, Io};

/// Tokens of an operation, as a stage's segment counts them.
const TOKENS_PER_OPERATION: u64 = 1_000;

/// The requests of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) tenant: &'static str,
    pub(crate) threads: usize,
    /// Writes, in percent.
    pub(crate) writes: u64,
    pub(crate) bytes: u64,
}

/// A gate with its counters.
#[derive(Debug)]
struct Gate {
    name: String,
    unit: Unit,
    bucket: TokenBucket,
    delayed: u64,
    waited: u64,
    sleepers: u32,
    /// Tokens that requests wait with.
    waiting: u64,
}

impl Gate {
    fn tokens(&self, io: Io) -> u64 {
        match self.unit {
            Unit::Bytes => io.bytes,
            Unit::Operations => TOKENS_PER_OPERATION,
        }
    }
}

struct Stage {
    machine: Machine,
    gates: Vec<Gate>,
    /// Whether every request is timed.
    is_timed: bool,
    operations: u64,
    bytes: u64,
    waited: u64,
    storage: StorageReport,
    service: Histogram,
}

/// A thread, and where its request is.
#[derive(Debug)]
struct Thread {
    stage: usize,
    io: Io,
    /// The gate at which it waits, with its place in line and since when.
    waits: Option<(usize, Due, u64)>,
    submitted: u64,
}

#[derive(Clone, Copy, Debug)]
enum Wake {
    /// The thread makes a request.
    Next(usize),
    /// The thread looks whether it may go on.
    Check(usize),
    /// The thread sees its answer.
    Answer(usize),
}

/// Answers of one second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Second {
    /// Of each load.
    pub(crate) done: Vec<u64>,
    latencies: Vec<u64>,
}

impl Second {
    /// One in which nothing was answered yet, of so many loads.
    pub(crate) fn of(loads: usize) -> Self {
        Self { done: vec![0; loads], latencies: Vec::new() }
    }

    /// A request of a load was answered, which took so long at the device.
    pub(crate) fn record(&mut self, load: usize, took: Span) {
        self.done[load] += 1;
        self.latencies.push(took.0);
    }

    pub(crate) fn all(&self) -> u64 {
        self.done.iter().sum()
    }

    pub(crate) fn p99(&self) -> Span {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let index = sorted.len().saturating_sub(1) * 99 / 100;
        Span(sorted.get(index).copied().unwrap_or(0))
    }
}

pub(crate) struct World {
    now: u64,
    controller: Controller,
    stages: Vec<Stage>,
    threads: Vec<Thread>,
    loads: Vec<Load>,
    pub(crate) device: Device,
    /// Threads see their answers so much later at most, because processors are busy.
    pub(crate) late: Span,
    wakes: BTreeMap<(u64, u64), Wake>,
    pushed: u64,
    random: Stream,
    second: Second,
    pub(crate) events: Vec<Event>,
}

impl World {
    pub(crate) fn new(policy: &str, loads: &[Load], device: Device) -> Self {
        let policy = Policy::parse(policy).unwrap();
        let mut world = Self {
            now: 0,
            controller: Controller::new(Time::ZERO, Setup::default(), Some((1, policy))),
            stages: Vec::new(),
            threads: Vec::new(),
            loads: loads.to_vec(),
            device,
            late: Span::ZERO,
            wakes: BTreeMap::new(),
            pushed: 0,
            random: Stream::new(3, "world", 0),
            second: Second::of(loads.len()),
            events: Vec::new(),
        };
        for (stage, load) in loads.iter().enumerate() {
            world.join(load.tenant);
            for _ in 0..load.threads {
                let thread = world.threads.len();
                let io = Io { is_write: false, bytes: load.bytes, thread };
                world.threads.push(Thread { stage, io, waits: None, submitted: 0 });
                world.wake(0, Wake::Next(thread));
            }
        }
        world
    }

    pub(crate) fn status(&self) -> Status {
        self.controller.status(Time(self.now))
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    fn join(&mut self, tenant: &str) {
        let pid = self.stages.len() as u32 + 1;
        let info = StageInfo { tenant: tenant.into(), pid, ..StageInfo::default() };
        let mut machine = Machine::new(Time(self.now), info.clone(), false);
        machine.on_connected(Time(self.now));
        while machine.poll_output().is_some() {}
        self.stages.push(Stage {
            machine,
            gates: Vec::new(),
            is_timed: false,
            operations: 0,
            bytes: 0,
            waited: 0,
            storage: StorageReport::default(),
            service: Histogram::default(),
        });
        let peer = Peer { uid: 1_000, pid, ..Peer::default() };
        let hello = Hello::Stage { version: VERSION, info };
        self.controller.on_hello(Time(self.now), ConnectionId(u64::from(pid)), peer, hello);
        self.exchange();
    }

    /// Delivers messages until none is left.
    fn exchange(&mut self) {
        let now = Time(self.now);
        while let Some(output) = self.controller.poll_output() {
            match output {
                Output::Send { to, message: ToPeer::Stage(message) } => {
                    let index = to.0 as usize - 1;
                    self.stages[index].machine.on_message(now, message);
                    while let Some(output) = self.stages[index].machine.poll_output() {
                        let message = match output {
                            StageOutput::Send(message) => message,
                            StageOutput::Report { round, .. } => {
                                let stage = &self.stages[index];
                                let storage = FromPeer::Stage(stage.storage());
                                let report = stage.report(round, self.now);
                                if stage.is_timed {
                                    self.controller.on_message(now, to, storage);
                                }
                                report
                            }
                            StageOutput::Install(_) => {
                                self.install(index);
                                continue;
                            }
                            other => panic!("{other:?} of a stage that is connected"),
                        };
                        self.controller.on_message(now, to, FromPeer::Stage(message));
                    }
                }
                Output::Event(event) => self.events.push(event),
                Output::Remember(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Brings a stage's buckets to its plan. Those that wait there look again.
    fn install(&mut self, index: usize) {
        self.stages[index].install(Time(self.now));
        for thread in 0..self.threads.len() {
            if self.threads[thread].stage == index && self.threads[thread].waits.is_some() {
                self.wake(self.now, Wake::Check(thread));
            }
        }
    }

    fn wake(&mut self, at: u64, wake: Wake) {
        self.pushed += 1;
        self.wakes.insert((at, self.pushed), wake);
    }

    /// One second.
    pub(crate) fn second(&mut self) -> Second {
        let end = self.now + Span::SECOND.0;
        loop {
            let wake = self.wakes.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            let device = self.device.next().unwrap_or(u64::MAX).max(self.now);
            let controller = self.controller.next_deadline().0.max(self.now);
            let next = wake.min(device).min(controller);
            if next >= end {
                break;
            }
            self.now = next;
            if controller == next {
                self.controller.on_deadline(Time(next));
                self.exchange();
            } else if device == next {
                self.device.advance().into_iter().for_each(|thread| self.deliver(thread));
            } else if let Some((_, wake)) = self.wakes.pop_first() {
                match wake {
                    Wake::Next(thread) => self.request(thread),
                    Wake::Check(thread) => self.check(thread),
                    Wake::Answer(thread) => self.answer(thread),
                }
            }
        }
        self.now = end;
        std::mem::replace(&mut self.second, Second::of(self.loads.len()))
    }

    pub(crate) fn seconds(&mut self, count: usize) -> Vec<Second> {
        (0..count).map(|_| self.second()).collect()
    }

    fn request(&mut self, thread: usize) {
        let writes = self.loads[self.threads[thread].stage].writes;
        self.threads[thread].io.is_write = self.random.below(100) < writes;
        self.pass(thread, 0);
    }

    /// Passes the gates from this one on, until one holds the request.
    fn pass(&mut self, thread: usize, from: usize) {
        let Thread { stage, io, .. } = self.threads[thread];
        for gate in from..self.stages[stage].gates.len() {
            let found = &mut self.stages[stage].gates[gate];
            let tokens = found.tokens(io);
            if let Take::Wait(due) = found.bucket.take(tokens, Time(self.now)) {
                (found.sleepers, found.waiting) = (found.sleepers + 1, found.waiting + tokens);
                let at = found.bucket.ready_at(due).0;
                self.threads[thread].waits = Some((gate, due, self.now));
                self.wake(at.max(self.now), Wake::Check(thread));
                return;
            }
        }
        let stage = &mut self.stages[stage];
        stage.operations += 1;
        stage.storage.begun += 1;
        self.threads[thread].submitted = self.now;
        self.device.submit(self.now, io);
    }

    fn check(&mut self, thread: usize) {
        let Some((gate, due, since)) = self.threads[thread].waits else { return };
        let stage = &mut self.stages[self.threads[thread].stage];
        let found = &mut stage.gates[gate];
        let at = found.bucket.ready_at(due).0;
        if at > self.now {
            return self.wake(at, Wake::Check(thread));
        }
        let tokens = found.tokens(self.threads[thread].io);
        (found.sleepers, found.waiting) = (found.sleepers - 1, found.waiting - tokens);
        (found.delayed, found.waited) = (found.delayed + 1, found.waited + self.now - since);
        stage.waited += self.now - since;
        self.threads[thread].waits = None;
        self.pass(thread, gate + 1);
    }

    /// The device has answered.
    fn deliver(&mut self, thread: usize) {
        if self.late == Span::ZERO {
            return self.answer(thread);
        }
        let at = self.now + self.random.below(self.late.0);
        self.wake(at, Wake::Answer(thread));
    }

    fn answer(&mut self, thread: usize) {
        let Thread { stage: load, io, submitted, .. } = self.threads[thread];
        let (stage, took) = (&mut self.stages[load], self.now - submitted);
        stage.bytes += io.bytes;
        let storage = &mut stage.storage;
        let (count, bytes) = match io.is_write {
            true => (&mut storage.writes, &mut storage.written_bytes),
            false => (&mut storage.reads, &mut storage.read_bytes),
        };
        (*count, *bytes) = (*count + 1, *bytes + io.bytes);
        stage.service.record(Span(took));
        self.second.record(load, Span(took));
        self.request(thread);
    }
}

impl Stage {
    fn install(&mut self, now: Time) {
        let plan = self.machine.plan();
        self.is_timed = plan.gates().any(|(_, gate)| gate.spec == GateSpec::LatencyProbe);
        for (name, gate) in plan.gates() {
            let GateSpec::TokenBucket { burst, .. } = gate.spec else { continue };
            let Some(rate) = gate.rate else { continue };
            let tokens = match rate.unit() {
                Unit::Bytes => rate.per_second(),
                Unit::Operations => rate.per_second() * TOKENS_PER_OPERATION,
            };
            let found = self.gates.iter().position(|known| known.name == name);
            let bucket = match found {
                Some(index) => &mut self.gates[index],
                None => {
                    let bucket = TokenBucket::new(tokens, burst.tokens(tokens), now);
                    let (name, unit) = (name.to_owned(), rate.unit());
                    let (delayed, waited, sleepers, waiting) = (0, 0, 0, 0);
                    self.gates.push(Gate {
                        name,
                        unit,
                        bucket,
                        delayed,
                        waited,
                        sleepers,
                        waiting,
                    });
                    continue;
                }
            };
            bucket.bucket.configure(tokens, burst.tokens(tokens), now);
        }
    }

    fn storage(&self) -> FromStage {
        let service = self.service.counts();
        FromStage::Storage(StorageReport { service, ..self.storage.clone() })
    }

    fn report(&self, round: u64, now: u64) -> FromStage {
        let channel = ChannelReport {
            name: self.machine.info().tenant.clone(),
            operations: self.operations,
            bytes: self.bytes,
            waited_ns: self.waited,
            ..ChannelReport::default()
        };
        let gate = |gate: &Gate| GateReport {
            name: gate.name.clone(),
            delayed: gate.delayed,
            waited_ns: gate.waited,
            waiting_now: gate.sleepers,
            waiting_tokens: match gate.unit {
                Unit::Bytes => gate.waiting,
                Unit::Operations => gate.waiting / TOKENS_PER_OPERATION,
            },
            ..GateReport::default()
        };
        FromStage::Report(StageReport {
            round,
            at_ns: now,
            channels: [channel].into(),
            gates: self.gates.iter().map(gate).collect(),
            processes: 1,
            ..StageReport::default()
        })
    }
}
