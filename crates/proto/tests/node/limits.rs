//! Limits at a node whose requests are large, or cost what the device takes for them, in virtual
//! time: a device that serves one request after the other, a tenant with a limit, and a neighbour.

use std::collections::VecDeque;

use tidegate_model::policy::Fallback;
use tidegate_model::{Discipline, Iops, PeriodNumber, Span, TenantIndex, Time};
use tidegate_proto::cluster::message::{Grant, NodeInfo, Plan, RoundId, Share, TenantPlan, ToNode};
use tidegate_proto::data::Command;
use tidegate_proto::data::pieces::{PIECE, Pieces, Step};
use tidegate_proto::node::{Config, Node, NodeRequest, Slot};

use crate::one_by_one::{OneByOne, tag};

const MILLISECOND: u64 = Span::MILLISECOND.0;
/// Units that the device does in a second, and of these the most for the limited tenant.
const RATE: u64 = 1_000;
const LIMIT: u64 = 50;
const PERIODS: u64 = 10;
const ZERO: Command = Command::Zero { allocate: false, durable: false };

/// The tenant of a job, with its request and the piece of it.
#[derive(Clone, Copy, Debug)]
enum Job {
    Piece { request: usize, begin: u32, length: u32 },
    Neighbours { since: Time },
}

struct NodeTestbed {
    node: Node<Job>,
    slots: [Slot; 2],
    now: Time,
    /// The device's line: when each is done.
    line: VecDeque<(Time, NodeRequest<Job>)>,
    command: Command,
    length: u32,
    /// How long the device takes for a zeroed MiB, and for any zeroed range besides.
    zero: (u64, u64),
    /// The limited tenant's requests that are under way, over and over.
    requests: Vec<Pieces<()>>,
    /// The device's time that the limited tenant had, and its longest piece.
    had: u64,
    longest: u64,
    /// The longest that a request of the neighbour took.
    waited: u64,
}

impl NodeTestbed {
    fn new(discipline: Discipline, command: Command, length: u32, zero: (u64, u64)) -> Self {
        let capacity = Some(Iops(RATE));
        let config =
            Config { depth: 2, capacity, servers: Some(1), discipline, ..Config::default() };
        let node = Node::new(Time::ZERO, NodeInfo::default(), config);
        let tenant = |name: &str, is_limited| TenantPlan {
            name: name.into(),
            weight: 100,
            is_limited,
            minimum_ppm: 0,
            bytes: None,
        };
        let plan = Plan {
            revision: 1,
            period: Span::SECOND,
            rounds: 5,
            fallback: Fallback::default(),
            discipline: Some(discipline),
            class_weights: None,
            capacity: [None; 2],
            tenants: vec![tenant("limited", true), tenant("neighbour", false)],
        };
        node.on_message(Time::ZERO, ToNode::Plan(plan));
        let slots = ["limited", "neighbour"].map(|name| node.slot(name));
        let requests = (0..3).map(|_| Pieces::new(command, 0, length)).collect();
        let line = VecDeque::new();
        let (now, had, longest, waited) = (Time::ZERO, 0, 0, 0);
        Self { node, slots, now, line, command, length, zero, requests, had, longest, waited }
    }

    /// The controller's one message of a period: it has nothing to move.
    fn grant(&mut self, period: u64) {
        let share = Share { tenant: TenantIndex(0), reserved: 0, allowed: LIMIT };
        let round_id = RoundId { period: PeriodNumber(period), round: 0 };
        let (into, lease) = (Span::ZERO, 2);
        let shares = vec![share];
        let grant =
            Grant { revision: 1, round_id, serial: period + 1, into, lease, shares, bytes: vec![] };
        self.node.on_message(self.now, ToNode::Grant(grant));
        while self.node.poll_output().is_some() {}
    }

    /// Puts in what may wait of a request; when it is over, the next one.
    fn submit(&mut self, request: usize) {
        loop {
            let size = if self.command.is_range() { self.node.range() } else { PIECE };
            match self.requests[request].step(size) {
                Step::Piece(bytes) => {
                    let (begin, length) = (bytes.start, bytes.end - bytes.start);
                    let job = Job::Piece { request, begin, length };
                    let piece =
                        self.node.request(self.slots[0], self.command, length, &tag(0), job);
                    self.node.put(self.now, &mut vec![piece]);
                }
                Step::Over(outcome) => {
                    assert_eq!(outcome, Ok(()));
                    self.requests[request] = Pieces::new(self.command, 0, self.length);
                }
                Step::Wait | Step::Flush => return,
            }
        }
    }

    fn submit_neighbour(&mut self) {
        let job = Job::Neighbours { since: self.now };
        self.node.on_request(self.now, self.slots[1], 1, job);
    }

    fn dispatch(&mut self) {
        while let Some(next) = self.node.next_dispatch(self.now) {
            let takes = match next.body {
                Job::Piece { length, .. } if self.command.is_measured() => {
                    let (per_mib, base) = self.zero;
                    base + ((per_mib * u64::from(length)) >> 20)
                }
                Job::Piece { .. } | Job::Neighbours { .. } => Span::SECOND.0 / RATE,
            };
            if let Job::Piece { .. } = next.body {
                // Nothing costs less than a unit.
                self.had += takes.max(Span::SECOND.0 / RATE);
                self.longest = self.longest.max(takes);
            }
            let free = self.line.back().map_or(self.now, |(end, _)| *end);
            self.line.push_back((free.max(self.now).after(Span(takes)), next));
        }
    }

    fn finish(&mut self, done: NodeRequest<Job>) {
        let job = done.body;
        self.node.on_done(self.now, done);
        match job {
            Job::Neighbours { since } => {
                self.waited = self.waited.max(self.now.since(since).0);
                self.submit_neighbour();
            }
            Job::Piece { request, begin, .. } => {
                self.requests[request].on_finished(begin, Ok(()));
                self.submit(request);
            }
        }
    }

    /// Ten periods. Says what the limited tenant had, in units of the device's time.
    fn run(mut self) -> (u64, u64, u64) {
        self.grant(0);
        (0..3).for_each(|request| self.submit(request));
        (0..2).for_each(|_| self.submit_neighbour());
        for period in 0..PERIODS {
            let end = Time((period + 1) * Span::SECOND.0);
            while self.now < end {
                self.dispatch();
                let done = self.line.front().map_or(Time::MAX, |(at, _)| *at);
                let deadline = self.node.next_deadline();
                self.now = done.min(deadline).min(end).max(self.now);
                if done <= self.now
                    && let Some((_, next)) = self.line.pop_front()
                {
                    self.finish(next);
                } else if deadline <= self.now {
                    self.node.advance(self.now);
                }
            }
            self.grant(period + 1);
        }
        let unit = Span::SECOND.0 / RATE;
        (self.had / unit, self.longest.div_ceil(unit), self.waited)
    }
}

const HEEDING: [Discipline; 2] = [Discipline::Token, Discipline::Unified];

/// 2 % or one piece, whichever is more; the neighbour waits for what is at the device and for one
/// piece.
#[test]
fn a_limit_holds_over_ten_periods_for_requests_of_any_size() {
    for discipline in HEEDING {
        for length in [512, 4 << 10, 128 << 10, (128 << 10) + 512, 1 << 20, 5_000_000, 32 << 20] {
            let (had, piece, waited) =
                NodeTestbed::new(discipline, Command::Read, length, (0, 0)).run();
            let apart = had.abs_diff(LIMIT * PERIODS);
            assert!(apart <= piece.max(LIMIT * PERIODS / 50), "{discipline} {length}: {had}");
            assert!(waited <= 5 * MILLISECOND, "{discipline} {length}: {waited}");
        }
    }
}

/// Zeros that are written, zeros that take as long whatever their length, and quick ones: by what
/// the device takes. Pieces at the device are charged late, which is what they may be beyond.
#[test]
fn a_limit_holds_by_the_time_that_zeros_take() {
    for discipline in HEEDING {
        for zero in [(8 * MILLISECOND, 0), (0, 5 * MILLISECOND), (400_000, 100_000)] {
            for length in [4 << 10, 1 << 20, 1 << 30] {
                let world = NodeTestbed::new(discipline, ZERO, length, zero);
                let (had, piece, waited) = world.run();
                let (all, slack) = (LIMIT * PERIODS, (2 * piece).max(LIMIT * PERIODS / 50));
                let is_met = had.abs_diff(all) <= slack;
                assert!(is_met, "{discipline} {zero:?} {length}: {had} of {all}, {piece}");
                let bound = 2 * piece * MILLISECOND + 4 * MILLISECOND;
                assert!(waited <= bound, "{discipline} {zero:?} {length}: {waited} {piece}");
            }
        }
    }
}
