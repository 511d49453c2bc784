//! Two threads that share the scheduler of a node, in shards, as in a live node; beside one thread,
//! beside two threads with one lock around one scheduler, and beside two that share nothing, which
//! is what the machine itself lets two threads do.
//!
//! A *round* is [`BATCH`] pairs: requests that are finished, as many of the same streams that come,
//! and as many that are taken out. The clock is read as a node does it, with a shard locked, and it
//! goes on so fast that about as many pairs are made in a second as elsewhere in this bench.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_algo::scheduling::scheduler::{Pacing, RequestCost, Scheduler, Slot};
use tidegate_model::{Discipline, Span, Time};
use tidegate_node::MultiThreaded;
use tidegate_proto::node::{Shards, Visit, threads};

use super::super::Row;
use super::super::window::{BUSY, Contestant, Ours, WindowPlan, contest};
use super::bed::{DEPTH, RequestStream, join};
use super::{BENCH, RATE, streams};
use tidegate_console::clock::Clock;

/// Requests that a thread takes out at a time.
const BATCH: usize = 16;
const COUNTS: [usize; 2] = [100, 1_000];
const COUNTS_QUICK: usize = 1;
/// How many times one thread's rate two are to reach.
const TIMES: f64 = 1.6;
const PERIOD: Span = Span::SECOND;
/// How fast time goes on: this many pairs per second of ours are about what one thread makes.
const HASTE: u64 = 10_000_000 / RATE;

/// Measures what a pair takes on two threads.
pub(super) fn rows(plan: WindowPlan, report: &mut dyn FnMut(Row)) {
    let counts = if plan.is_full() { &COUNTS[..] } else { &COUNTS[..COUNTS_QUICK] };
    counts.iter().for_each(|count| measure(plan, &streams(*count, true), report));
}

fn measure(plan: WindowPlan, streams: &[RequestStream], report: &mut dyn FnMut(Row)) {
    let clock = Clock::start();
    let (alone, shared) =
        (SharedScheduler::new(1, streams, clock), SharedScheduler::new(2, streams, clock));
    let locked = Locked::new(streams, clock);
    let (first, second) = streams.split_at(streams.len() / 2);
    let apart = [SharedScheduler::new(1, first, clock), SharedScheduler::new(1, second, clock)];
    let mut works = [
        (1, Ours::new(|_, rounds| alone.rounds(0, rounds))),
        (2, Ours::new(|thread, rounds| shared.rounds(thread, rounds))),
        (2, Ours::new(|thread, rounds| locked.rounds(thread, rounds))),
        (2, Ours::new(|thread, rounds| apart[thread].rounds(0, rounds))),
    ];
    let mut all: Vec<(usize, &mut dyn Contestant)> = Vec::new();
    for (threads, work) in &mut works {
        all.push((*threads, work));
    }
    let values = contest(plan, &mut all);
    let pair = |index: usize, threads: usize| {
        values.get(index)?.map(|round| round / (BATCH * threads) as f64)
    };
    let one = pair(0, 1).ok_or_else(|| BUSY.to_owned());
    let row = |case: &str, value| {
        let case = format!("{} streams, two threads: a pair, {case}", streams.len());
        Row::nanoseconds(BENCH, case, value).beside("one thread", one.clone())
    };
    let shards = row("a shard each", pair(1, 2));
    report(if plan.is_full() { shards.promised_times(TIMES) } else { shards });
    report(row("one lock around all", pair(2, 2)));
    report(row("nothing shared", pair(3, 2)));
}

/// The requests that one thread has at the device.
#[repr(align(128))]
struct Hand(Mutex<Vec<Slot>>);

fn hands() -> [Hand; 2] {
    [const { Hand(Mutex::new(Vec::new())) }; 2]
}

/// The shards of a node's scheduler.
struct SharedScheduler {
    shards: Shards<Slot, MultiThreaded>,
    hands: [Hand; 2],
    clock: Clock,
    until: AtomicU64,
}

impl SharedScheduler {
    fn new(shards: usize, streams: &[RequestStream], clock: Clock) -> Self {
        let depth = (shards * BATCH) as u32;
        let shards = Shards::new(shards, depth, Discipline::Unified, Pacing::Even);
        let until = Time(PERIOD.0);
        (0..shards.count()).for_each(|shard| shards.visit(shard).begin(Time::ZERO, until));
        let mut loads = vec![0; shards.count()];
        for stream in streams {
            // As a node does it.
            let shard = (0..loads.len()).min_by_key(|shard| loads[*shard]).unwrap_or(0);
            loads[shard] += stream.weight;
            let mut visit = shards.visit(shard);
            let slot = join(&mut visit, Time::ZERO, *stream);
            (0..DEPTH).for_each(|_| visit.push(Time::ZERO, slot, RequestCost::ONE, slot));
        }
        Self { shards, hands: hands(), clock, until: AtomicU64::new(until.0) }
    }

    fn rounds(&self, thread: usize, rounds: u64) {
        if let Ok(mut hand) = self.hands[thread].0.lock() {
            (0..rounds).for_each(|_| self.round(thread, &mut hand));
        }
    }

    /// One round as in a live node: see its `live.rs`.
    fn round(&self, home: usize, hand: &mut Vec<Slot>) {
        let now = haste(self.clock);
        self.advance(now);
        let next = self.shards.next(now, home).unwrap_or(home);
        for shard in (0..self.shards.count()).filter(|shard| *shard != next) {
            if hand.iter().any(|slot| slot.shard() == shard) {
                self.again(shard, hand);
            }
        }
        let (mut visit, now) = self.again(next, hand);
        let finished = hand.len() as u32;
        hand.clear();
        visit.take(now, finished, hand);
        drop(visit);
        let now = self.shards.fill(home, Hasty(self.clock), hand);
        self.shards.note(now);
    }

    fn again(&self, shard: usize, hand: &[Slot]) -> (Visit<'_, Slot, MultiThreaded>, Time) {
        let mut visit = self.shards.visit(shard);
        let now = haste(self.clock);
        let ours = || hand.iter().filter(|slot| slot.shard() == shard);
        again(&mut visit, now, ours());
        self.shards.device().finish(shard, ours().count() as u64);
        (visit, now)
    }

    /// Begins the next period, if this one is over.
    fn advance(&self, now: Time) {
        let until = self.until.load(Ordering::Relaxed);
        let next = Time(until).after(PERIOD);
        let order = Ordering::Relaxed;
        if now.0 >= until && self.until.compare_exchange(until, next.0, order, order).is_ok() {
            let shards = 0..self.shards.count();
            shards.for_each(|shard| self.shards.visit(shard).begin(Time(until), next));
        }
    }
}

/// One lock around one scheduler.
struct Locked {
    all: Mutex<(Scheduler<Slot>, Time)>,
    hands: [Hand; 2],
    clock: Clock,
}

impl Locked {
    fn new(streams: &[RequestStream], clock: Clock) -> Self {
        let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Even);
        let until = Time(PERIOD.0);
        scheduler.begin(Time::ZERO, until);
        for stream in streams {
            let slot = join(&mut scheduler, Time::ZERO, *stream);
            (0..DEPTH).for_each(|_| scheduler.push(Time::ZERO, slot, RequestCost::ONE, slot));
        }
        Self { all: Mutex::new((scheduler, until)), hands: hands(), clock }
    }

    fn rounds(&self, thread: usize, rounds: u64) {
        let Ok(mut hand) = self.hands[thread].0.lock() else { return };
        for _ in 0..rounds {
            let Ok(mut all) = self.all.lock() else { return };
            let (scheduler, until) = &mut *all;
            let now = haste(self.clock);
            if now >= *until {
                let begin = *until;
                *until = begin.after(PERIOD);
                scheduler.begin(begin, *until);
            }
            again(scheduler, now, hand.iter());
            hand.clear();
            let next = || scheduler.pop(now).map(|next| next.job);
            hand.extend(std::iter::from_fn(next).take(BATCH));
        }
    }
}

/// A clock that goes on so fast.
#[derive(Clone, Copy)]
struct Hasty(Clock);

impl threads::Clock for Hasty {
    fn now(self) -> Time {
        haste(self.0)
    }
}

fn haste(clock: Clock) -> Time {
    Time(clock.now().0.saturating_mul(HASTE))
}

/// Requests are finished, and the next of the same streams come.
fn again<'a>(scheduler: &mut Scheduler<Slot>, now: Time, slots: impl Iterator<Item = &'a Slot>) {
    for slot in slots {
        scheduler.complete(now, *slot, 1);
        scheduler.push(now, *slot, RequestCost::ONE, *slot);
    }
}
