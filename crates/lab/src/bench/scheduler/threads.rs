//! Two threads that share the scheduler of a node, in lanes, as in a live node; beside one thread,
//! beside two threads with one lock around one scheduler, and beside two that share nothing, which
//! is what the machine itself lets two threads do.
//!
//! A *turn* is [`BATCH`] pairs: requests that are finished, as many of the same streams that come,
//! and as many that are taken out. Time is looked at as a node does it, with a lane locked, and it
//! goes on so fast that about as many pairs are made in a second as elsewhere in this bench.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_algo::scheduler::{Ask, Pacing, Scheduler, Slot};
use tidegate_model::{Discipline, Span, Time};
use tidegate_node::{Lanes, Visit};

use super::super::Row;
use super::super::window::{BUSY, Contestant, Ours, Plan, contest};
use super::bed::{DEPTH, Stream, join};
use super::{BENCH, RATE, streams};
use tidegate_console::clock::Clock;

/// Requests that a thread takes out at a time.
const BATCH: usize = 16;
/// How many streams.
const COUNTS: [usize; 2] = [100, 1_000];
const COUNTS_QUICK: usize = 1;
/// How many times one thread's rate two are to reach.
const TIMES: f64 = 1.6;
const PERIOD: Span = Span::SECOND;
/// How fast time goes on: this many pairs per second of ours are about what one thread makes.
const HASTE: u64 = 10_000_000 / RATE;

/// Measures what a pair takes on two threads.
pub(super) fn rows(plan: Plan, tell: &mut dyn FnMut(Row)) {
    let counts = if plan.is_full() { &COUNTS[..] } else { &COUNTS[..COUNTS_QUICK] };
    counts.iter().for_each(|count| measure(plan, &streams(*count, true), tell));
}

fn measure(plan: Plan, streams: &[Stream], tell: &mut dyn FnMut(Row)) {
    let clock = Clock::start();
    let (alone, shared) = (Hall::new(1, streams, clock), Hall::new(2, streams, clock));
    let locked = Locked::new(streams, clock);
    let (first, second) = streams.split_at(streams.len() / 2);
    let apart = [Hall::new(1, first, clock), Hall::new(1, second, clock)];
    let mut works = [
        (1, Ours::new(|_, turns| alone.turns(0, turns))),
        (2, Ours::new(|thread, turns| shared.turns(thread, turns))),
        (2, Ours::new(|thread, turns| locked.turns(thread, turns))),
        (2, Ours::new(|thread, turns| apart[thread].turns(0, turns))),
    ];
    let mut all: Vec<(usize, &mut dyn Contestant)> = Vec::new();
    for (threads, work) in &mut works {
        all.push((*threads, work));
    }
    let values = contest(plan, &mut all);
    let pair = |place: usize, threads: usize| {
        values.get(place)?.map(|turn| turn / (BATCH * threads) as f64)
    };
    let one = pair(0, 1).ok_or_else(|| BUSY.to_owned());
    let row = |case: &str, value| {
        let case = format!("{} streams, two threads: a pair, {case}", streams.len());
        Row::nanoseconds(BENCH, case, value).beside("one thread", one.clone())
    };
    let lanes = row("a lane each", pair(1, 2));
    tell(if plan.is_full() { lanes.promised_times(TIMES) } else { lanes });
    tell(row("one lock around all", pair(2, 2)));
    tell(row("nothing shared", pair(3, 2)));
}

/// The requests that one thread has at the device.
#[repr(align(128))]
struct Hand(Mutex<Vec<Slot>>);

fn hands() -> [Hand; 2] {
    [const { Hand(Mutex::new(Vec::new())) }; 2]
}

/// The lanes of a node.
struct Hall {
    lanes: Lanes<Slot>,
    hands: [Hand; 2],
    clock: Clock,
    until: AtomicU64,
}

impl Hall {
    /// So many lanes, for as many threads.
    fn new(lanes: usize, streams: &[Stream], clock: Clock) -> Self {
        let depth = (lanes * BATCH) as u32;
        let lanes = Lanes::new(lanes, depth, Discipline::Unified, Pacing::Even);
        let until = Time(PERIOD.0);
        (0..lanes.count()).for_each(|lane| lanes.visit(lane).begin(Time::ZERO, until));
        let mut loads = vec![0; lanes.count()];
        for stream in streams {
            // As a node does it.
            let lane = (0..loads.len()).min_by_key(|lane| loads[*lane]).unwrap_or(0);
            loads[lane] += stream.weight;
            let mut visit = lanes.visit(lane);
            let slot = join(&mut visit, Time::ZERO, *stream);
            (0..DEPTH).for_each(|_| visit.push(Time::ZERO, slot, Ask::ONE, slot));
        }
        Self { lanes, hands: hands(), clock, until: AtomicU64::new(until.0) }
    }

    fn turns(&self, thread: usize, turns: u64) {
        if let Ok(mut hand) = self.hands[thread].0.lock() {
            (0..turns).for_each(|_| self.turn(thread, &mut hand));
        }
    }

    /// One round as in a live node: see its `live.rs`.
    fn turn(&self, home: usize, hand: &mut Vec<Slot>) {
        let now = haste(self.clock);
        self.advance(now);
        let next = self.lanes.next(now, home).unwrap_or(home);
        for lane in (0..self.lanes.count()).filter(|lane| *lane != next) {
            if hand.iter().any(|slot| slot.lane() == lane) {
                self.again(lane, hand);
            }
        }
        let (mut visit, now) = self.again(next, hand);
        let finished = hand.len() as u32;
        hand.clear();
        visit.take(now, finished, hand);
        drop(visit);
        let now = self.lanes.fill(home, now, &|| haste(self.clock), hand);
        self.lanes.note(now);
    }

    fn again(&self, lane: usize, hand: &[Slot]) -> (Visit<'_, Slot>, Time) {
        let mut visit = self.lanes.visit(lane);
        let now = haste(self.clock);
        let ours = || hand.iter().filter(|slot| slot.lane() == lane);
        again(&mut visit, now, ours());
        self.lanes.device().finish(lane, ours().count() as u64);
        (visit, now)
    }

    /// Begins the next period, if this one is over.
    fn advance(&self, now: Time) {
        let until = self.until.load(Ordering::Relaxed);
        let next = Time(until).after(PERIOD);
        let order = Ordering::Relaxed;
        if now.0 >= until && self.until.compare_exchange(until, next.0, order, order).is_ok() {
            let lanes = 0..self.lanes.count();
            lanes.for_each(|lane| self.lanes.visit(lane).begin(Time(until), next));
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
    fn new(streams: &[Stream], clock: Clock) -> Self {
        let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Even);
        let until = Time(PERIOD.0);
        scheduler.begin(Time::ZERO, until);
        for stream in streams {
            let slot = join(&mut scheduler, Time::ZERO, *stream);
            (0..DEPTH).for_each(|_| scheduler.push(Time::ZERO, slot, Ask::ONE, slot));
        }
        Self { all: Mutex::new((scheduler, until)), hands: hands(), clock }
    }

    fn turns(&self, thread: usize, turns: u64) {
        let Ok(mut hand) = self.hands[thread].0.lock() else { return };
        for _ in 0..turns {
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

fn haste(clock: Clock) -> Time {
    Time(clock.now().0.saturating_mul(HASTE))
}

/// Requests are finished, and the next of the same streams come.
fn again<'a>(scheduler: &mut Scheduler<Slot>, now: Time, slots: impl Iterator<Item = &'a Slot>) {
    for slot in slots {
        scheduler.complete(now, *slot, 1);
        scheduler.push(now, *slot, Ask::ONE, *slot);
    }
}
