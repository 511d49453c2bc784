//! A live node and a simulated one decide alike: what threads do with a node in a process is
//! recorded, and the same calls of a node with one thread return the same.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{CompletionSink, OpenPart, Part, Session};
use tidegate_model::cluster::Geometry;
use tidegate_model::policy::Fallback;
use tidegate_model::tag::CLASSES;
use tidegate_model::{
    Bytes, ClassWeights, ContextId, Discipline, Iops, Operation, PeriodNumber, Span, Tag, TenantId,
    TenantIndex,
};
use tidegate_proto::cluster::message::{Grant, Plan, RoundId, Share, TenantPlan, ToNode};

use super::recorded::{Call, Input, RECORDS, replay};
use super::*;
use crate::{Config, Running, Speed, StoreConfig, start};

const THREADS: u64 = 4;
const TENANTS: [&str; 3] = ["gold", "silver", "limited"];
const PATIENCE: Duration = Duration::from_secs(60);

struct Pipe(Mutex<Sender<Job>>);

impl CompletionSink for Pipe {
    fn finished(&self, jobs: &mut Vec<Job>) {
        let sender = lock(&self.0);
        jobs.drain(..).for_each(|job| drop(sender.send(job)));
    }
}

struct Client {
    session: Box<dyn Session>,
    finished: Receiver<Job>,
    part: PartNumber,
    number: u64,
    left: usize,
}

impl Client {
    fn new(node: &Running, number: u64) -> Self {
        let (sender, finished) = channel();
        let mut session = node.service().session(Arc::new(Pipe(Mutex::new(sender))));
        session.tenants(&TENANTS.map(String::from));
        let part = Part {
            volume: "v".into(),
            index: 0,
            length: Bytes(64 << 20),
            offset: Bytes(0),
            geometry: Geometry::single(Bytes(64 << 20)),
        };
        let OpenPart { number: part, .. } = session.open(&part).expect("memory has room");
        Self { session, finished, part, number, left: 0 }
    }

    /// One of each kind: small and large, measured and not, of every tenant.
    fn job(&self, step: u64) -> Job {
        let (command, length) = match step % 7 {
            0 => (Command::Write { durable: false }, 4 << 10),
            1 => (Command::Read, 700_000),
            2 => (Command::Zero { allocate: true, durable: true }, 3 << 20),
            3 => (Command::Map, 1 << 20),
            4 => (Command::Flush, 0),
            _ => (Command::Read, 4 << 10),
        };
        let written = if command.has_payload() { length as usize } else { 0 };
        let tag = Tag {
            tenant: TenantId((step % 4) as u16),
            context: ContextId::NONE,
            class: CLASSES[(step % 4) as usize].0,
            operation: Operation::Read,
            cost: length,
            delay: (step % 3) as u32,
        };
        Job::new(
            step,
            tag,
            command,
            (self.part, (self.number * 8 + step % 2) << 20, length),
            Buffer::from(&vec![7; written][..]),
        )
    }

    fn run(mut self, steps: u64) {
        for step in (0..steps).step_by(5) {
            let mut jobs: Vec<Job> = (step..step + 5).map(|step| self.job(step)).collect();
            self.left += jobs.len();
            let mut done = Vec::new();
            self.session.submit(&mut jobs, &mut done);
            self.left -= done.len();
            if step % 35 == 0 {
                self.session.cancel(&[step, step + 3]);
                self.session.elsewhere(&[(TenantId(1), step)]);
            }
            while self.left > 20 {
                self.wait();
            }
        }
        while self.left > 0 {
            self.wait();
        }
    }

    fn wait(&mut self) {
        self.finished.recv_timeout(PATIENCE).expect("an answer");
        self.left -= 1;
    }
}

/// A controller's messages, over and over.
fn lead(node: &Running, rounds: u64) {
    let tenant = |name: &&str| TenantPlan {
        name: (*name).into(),
        weight: 100,
        is_limited: *name == "limited",
        minimum_ppm: 10_000,
        bytes: None,
    };
    let live = &node.live;
    live.node.on_connected(live.clock);
    for round in 0..rounds {
        let disciplines = [Discipline::Token, Discipline::Unified, Discipline::Sfq];
        let plan = Plan {
            revision: 1 + round / 8,
            period: Span(20 * Span::MILLISECOND.0),
            rounds: 4,
            fallback: Fallback::Keep,
            discipline: Some(disciplines[(round / 4 % 3) as usize]),
            class_weights: ClassWeights::new(3, 2, 1).filter(|_| round / 8 % 2 == 1),
            capacity: [None; 2],
            tenants: TENANTS[..3 - usize::from(round % 16 > 12)].iter().map(tenant).collect(),
        };
        let (revision, period) = (plan.revision, live.node.status(live.clock).period);
        live.node.on_message(live.clock, ToNode::Plan(plan));
        let share = |tenant| Share { tenant, reserved: 5 * round % 40, allowed: 1_000_000 };
        let round_id = RoundId { period: PeriodNumber(period), round: 0 };
        let (into, shares) = (Span::ZERO, (0..3).map(TenantIndex).map(share).collect());
        let grant =
            Grant { revision, round_id, serial: round + 1, into, lease: 3, shares, bytes: vec![] };
        live.node.on_message(live.clock, ToNode::Grant(grant));
        live.node.on_message(live.clock, ToNode::Collect { round_id, into, complete: true });
        live.waker.wake();
        thread::yield_now();
    }
    live.node.on_disconnected(live.clock);
}

fn calls_of(config: Config, steps: u64) -> (Vec<Call>, Result<(), String>) {
    RECORDS.set(true);
    let node = start(config).expect("a node in memory");
    RECORDS.set(false);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let client = Client::new(&node, number);
            scope.spawn(move || client.run(steps));
        }
        lead(&node, 60);
    });
    node.live.status();
    let live = node.live.clone();
    node.stop();
    let calls = live.node.calls();
    let replayed = replay(&live.node.made, &calls);
    (calls, replayed)
}

#[test]
fn a_live_node_decides_as_a_simulated_one() {
    let memory = Config {
        workers: 3,
        depth: 8,
        ..Config::new("a", StoreConfig::Memory { capacity: Bytes::MAX })
    };
    let speed = Some(Speed { rate: Iops(20_000), variance: 20, seed: 1 });
    let modelled = Config { speed, ..memory.clone() };
    for (config, steps) in [(memory, 1_000), (modelled, 100)] {
        let (calls, replayed) = calls_of(config, steps);
        replayed.expect("the same decisions");
        // The record has what it is about.
        let has = |which: fn(&Input) -> bool| calls.iter().any(|call| which(&call.input));
        assert!(calls.len() > 1_000, "{}", calls.len());
        assert!(has(|input| matches!(input, Input::Completion(_) | Input::Finish { .. })));
        assert!(has(|input| matches!(input, Input::Message(ToNode::Plan(_)))));
        assert!(has(|input| matches!(input, Input::End)));
        let sent = calls.iter().filter(|call| call.returned.output.is_some()).count();
        assert!(sent > 10, "{sent} messages to the controller");
    }
}

/// A record in which one decision is another is refused: the test can fail.
#[test]
fn a_changed_record_is_noticed() {
    let store = StoreConfig::Memory { capacity: Bytes::MAX };
    RECORDS.set(true);
    let node = start(Config { depth: 1, ..Config::new("a", store) }).expect("a node in memory");
    RECORDS.set(false);
    Client::new(&node, 0).run(10);
    let live = node.live.clone();
    node.stop();
    let mut calls = live.node.calls();
    assert_eq!(replay(&live.node.made, &calls), Ok(()));
    let filled = calls
        .iter()
        .position(|call| matches!(call.input, Input::Submit(..)) && !call.returned.keys.is_empty());
    calls[filled.expect("a batch")].returned.keys.clear();
    assert!(replay(&live.node.made, &calls).is_err());
}
