//! A simulated client of one-sided reads: when each read begins, and its latency.
//!
//! Which page it reads changes nothing here, because the model's NICs have none; so each of its
//! buffers always gets the same one.

use std::fmt;

use hdrhistogram::Histogram;
use tidegate_model::Time;
use tidegate_onesided::haechi::{Port, region_layout};
use tidegate_onesided::one_sided::{BufferPosition, Done, Operation, Post, RemoteMemory};

use super::network::Endpoint;
use super::scenario::Pattern;
use crate::time::Picoseconds;

/// Bytes of a read.
const PAGE: u32 = 4096;

/// The fabric of a client, with or without an engine in front of it.
pub(super) trait ClientMemory: RemoteMemory + fmt::Debug {
    /// When it wants to be called by itself.
    fn next_deadline(&self) -> Time;

    /// Hears how many operations its client could not give it yet.
    fn note_unmet(&mut self, _count: u64) {}
}

impl ClientMemory for Endpoint {
    fn next_deadline(&self) -> Time {
        Time::MAX
    }
}

impl ClientMemory for Port<Endpoint> {
    fn next_deadline(&self) -> Time {
        Self::next_deadline(self)
    }

    fn note_unmet(&mut self, count: u64) {
        Self::note_unmet(self, count);
    }
}

/// Load of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientPlan {
    /// Reads in a period; without it, as many as can be.
    pub(super) demand: Option<u64>,
    pub(super) pattern: Pattern,
    pub(super) window: u32,
    /// How long after the beginning of a period its first read is due, if they are at distances,
    /// in thousandths of one.
    pub(super) shift: u64,
}

/// How long reads took.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// Since they were begun, in nanoseconds, to three digits.
    pub begun: Histogram<u64>,
    /// How long they waited before, since they were due, for their own client's window: all
    /// together, in nanoseconds.
    pub waited: u64,
}

impl Default for Latency {
    fn default() -> Self {
        // Up to a minute: periods are shorter, and what is late is given up at their ends.
        let begun = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Self { begun: begun.expect("the bounds are in order"), waited: 0 }
    }
}

/// A read under way.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    begun: Picoseconds,
    due: Picoseconds,
}

/// A client that reads.
#[derive(Debug)]
pub(super) struct ReadingClient {
    remote: Box<dyn ClientMemory>,
    plan: ClientPlan,
    /// The period that it is in: its beginning, and the distance of two reads that are due.
    start: Picoseconds,
    distance: Picoseconds,
    /// Reads of this period that it has begun.
    begun: u64,
    /// By buffers, and the buffers that are free.
    reads: Vec<Read>,
    free: Vec<u32>,
    done: Vec<Done>,
    /// Reads that are done, since this was taken.
    pub(super) completed: u64,
    pub(super) latency: Option<Latency>,
}

impl ReadingClient {
    /// One that wants nothing yet.
    pub(super) fn new(remote: Box<dyn ClientMemory>, plan: ClientPlan) -> Self {
        Self {
            remote,
            start: Picoseconds::ZERO,
            distance: Picoseconds::MAX,
            begun: u64::MAX,
            reads: vec![Read::default(); plan.window as usize],
            free: (0..plan.window).rev().collect(),
            done: Vec::new(),
            completed: 0,
            latency: None,
            plan,
        }
    }

    /// From the next period on it wants so much of each.
    pub(super) const fn want(&mut self, demand: Option<u64>) {
        self.plan.demand = demand;
    }

    /// A period of some length begins.
    pub(super) fn begin(&mut self, now: Picoseconds, length: Picoseconds) {
        let apart = length.0 / self.plan.demand.unwrap_or(1).max(1);
        self.distance = match self.plan.pattern {
            Pattern::Burst => Picoseconds::ZERO,
            Pattern::Constant => Picoseconds(apart),
        };
        self.start = now.after(Picoseconds(self.distance.0 * self.plan.shift / 1_000));
        self.begun = 0;
    }

    /// It wants nothing more.
    pub(super) fn end(&mut self) {
        self.begun = u64::MAX;
    }

    /// Takes what is done, and begins what is due.
    pub(super) fn run(&mut self, now: Picoseconds) {
        self.remote.poll(now.time(), &mut self.done).expect("nothing is lost here");
        for done in self.done.drain(..) {
            self.completed += 1;
            self.free.push(done.id as u32);
            if let Some(latency) = &mut self.latency {
                let read = self.reads[done.id as usize];
                latency.begun.saturating_record(now.since(read.begun).0 / 1_000);
                latency.waited += read.begun.since(read.due).0 / 1_000;
            }
        }
        let mut has_begun = false;
        while self.is_due(now) {
            let Some(buffer) = self.free.pop() else { break };
            self.reads[buffer as usize] = Read { begun: now, due: self.due() };
            let operation = Operation::Read {
                from: region_layout::DATA + u64::from(buffer) * u64::from(PAGE),
                into: BufferPosition::start(buffer),
                length: PAGE,
            };
            let post = Post { id: u64::from(buffer), operation };
            self.remote.post(post).expect("a window is smaller than what a connection holds");
            self.begun += 1;
            has_begun = true;
        }
        if has_begun {
            self.remote.flush(now.time()).expect("nothing is lost here");
        }
        if let Some(unmet) = self.unmet(now) {
            self.remote.note_unmet(unmet);
        }
    }

    /// When it is to be called again, if nothing is done before.
    pub(super) fn next(&self) -> Picoseconds {
        let wakeup = Picoseconds::from(self.remote.next_deadline());
        match !self.free.is_empty() && self.wants() {
            true => wakeup.min(self.due()),
            false => wakeup,
        }
    }

    /// Returns the reads that are due and not begun, if the client has a demand.
    fn unmet(&self, now: Picoseconds) -> Option<u64> {
        let demand = self.plan.demand?;
        if !self.free.is_empty() || !self.is_due(now) {
            return Some(0);
        }
        let due = match self.distance.0 {
            0 => demand,
            distance => (now.since(self.start).0 / distance + 1).min(demand),
        };
        Some(due.saturating_sub(self.begun))
    }

    /// Whether it wants anything more of this period.
    fn wants(&self) -> bool {
        self.begun < self.plan.demand.unwrap_or(u64::MAX)
    }

    /// When its next read is due.
    const fn due(&self) -> Picoseconds {
        self.start.after(Picoseconds(self.distance.0.saturating_mul(self.begun)))
    }

    fn is_due(&self, now: Picoseconds) -> bool {
        self.wants() && self.due() <= now
    }
}
