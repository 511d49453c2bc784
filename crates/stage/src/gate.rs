//! How a request passes a gate, and how it waits there.
//!
//! The decisions are `algo`'s; here is only the sleeping. A sleeper holds no lock. It sleeps on a
//! futex with a time limit, so that it wakes at its time by itself and at once when something
//! changes, and whatever happens to others (a process killed in its sleep, a keeper that died) it
//! looks again by itself, and frees what the dead hold.

use std::num::NonZeroU8;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::io::Errno;
use rustix::thread::futex;
use tidegate_algo::channel::{Flows, Gates};
use tidegate_algo::queue::{FLOWS, Queue, SlotId};
use tidegate_algo::token_bucket::{Due, Take};
use tidegate_model::{Span, Time};

use crate::bypass::Bypass;
use crate::clock;
use crate::layout::{GateCell, GateKind, Layout, QueueCell, SLOTS_MAX, TOKENS_PER_OPERATION};
use crate::local;
use crate::lock::Found;
use crate::seat;

/// How long a sleeper sleeps at most before it looks again without being told: the bound on what a
/// lost wake-up can cost.
const LOOK_AGAIN: Span = Span(100 * Span::MILLISECOND.0);
/// How long a request waits for a free slot of a full queue before it passes by: long enough for
/// any device, short enough for a program whose requests wait for each other.
const FULL_AT_MOST: Span = Span(30 * Span::SECOND.0);
/// A sleeper that has not looked again for so long is dead, or as good as.
const ASLEEP: Span = Span(2 * Span::SECOND.0);
/// The most queue gates of a channel.
const QUEUES_PER_CHANNEL: usize = tidegate_model::policy::limits::QUEUES_PER_CHANNEL;

/// A request's turn at a queue gate; to be given up when the request is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// One more than the number of the queue, so that "no turn" needs no room of its own.
    queue: NonZeroU8,
    slot: SlotId,
}

/// The turns that one request holds, from the front. The plan refuses channels with more queue
/// gates.
pub(crate) type Turns = [Option<Turn>; QUEUES_PER_CHANNEL];

/// No turn at all.
pub(crate) const NO_TURNS: Turns = [None; QUEUES_PER_CHANNEL];

/// What a request costs at gates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
}

impl GateCell {
    #[inline]
    fn kind(&self) -> GateKind {
        match self.kind.load(Ordering::Relaxed) {
            1 => GateKind::Bytes,
            2 => GateKind::Operations,
            3 => GateKind::Queue,
            4 => GateKind::Transform,
            _ => GateKind::Open,
        }
    }

    /// Tokens that `cost` takes of this bucket.
    #[inline]
    fn tokens(kind: GateKind, cost: Cost) -> u64 {
        match kind {
            GateKind::Bytes => cost.bytes,
            GateKind::Operations => cost.operations * TOKENS_PER_OPERATION,
            GateKind::Queue | GateKind::Open | GateKind::Transform => 0,
        }
    }

    /// Gives back what a request took and did not use.
    fn give_back(&self, unused: Cost) {
        let tokens = Self::tokens(self.kind(), unused);
        if tokens > 0 {
            self.bucket.give_back(tokens);
            // Either who is about to sleep sees the tokens, or it is seen here.
            fence(Ordering::SeqCst);
            if self.sleepers.load(Ordering::Relaxed) > 0 {
                self.changed();
            }
        }
    }

    /// Tells whoever waits here to look again.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        wake(&self.changes, u32::MAX);
    }
}

/// What holds a request at a gate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    /// The bucket has too few tokens.
    Tokens(Due),
    /// There is a queue.
    Queue,
}

/// Lets a request pass the gate with this number, unless it has to wait there.
#[inline]
pub(crate) fn pass(layout: &Layout, gate: u8, lane: u8, cost: Cost) -> Option<Hold> {
    let cell = layout.gates.get(usize::from(gate))?;
    let kind = cell.kind();
    if matches!(kind, GateKind::Open | GateKind::Transform) {
        return None;
    }
    if kind == GateKind::Queue {
        return Some(Hold::Queue);
    }
    let tokens = GateCell::tokens(kind, cost);
    if tokens == 0 {
        return None;
    }
    let now = || clock::now(&layout.header.clock);
    match cell.bucket.take_in(usize::from(lane), tokens, now) {
        Take::Granted => None,
        Take::Wait(due) => Some(Hold::Tokens(due)),
    }
}

/// Waits at the gate that holds a request, then passes the `rest`. Gives the turns that the request
/// is to give up, and how long it waited.
#[cold]
pub(crate) fn wait(
    layout: &Layout,
    held: (u8, Hold),
    mut rest: Gates,
    cost: Cost,
    (lane, flows): (u8, Flows),
) -> (Turns, Span) {
    let (mut turns, mut waited) = (NO_TURNS, Span::ZERO);
    let mut held = Some(held);
    while let Some((gate, hold)) = held {
        let span = match (layout.gates.get(usize::from(gate)), hold) {
            (None, _) => Span::ZERO,
            (Some(cell), Hold::Tokens(due)) => wait_for_tokens(layout, cell, due),
            (Some(cell), Hold::Queue) => {
                let (span, turn) = wait_for_turn(layout, cell, cost, flows);
                match turns.iter_mut().find(|kept| kept.is_none()) {
                    Some(place) => *place = turn,
                    // More than fit: give it up rather than lose it.
                    None => turn.into_iter().for_each(|turn| give_up(layout, turn, cost.bytes)),
                }
                span
            }
        };
        waited = waited.saturating_add(span);
        held = rest.find_map(|gate| pass(layout, gate, lane, cost).map(|hold| (gate, hold)));
    }
    (turns, waited)
}

/// Gives back to the buckets among `gates` what a request took and did not use.
#[inline(never)]
pub(crate) fn give_back(layout: &Layout, gates: Gates, unused: Cost) {
    for gate in gates {
        if let Some(cell) = layout.gates.get(usize::from(gate)) {
            cell.give_back(unused);
        }
    }
}

#[cold]
fn wait_for_tokens(layout: &Layout, cell: &GateCell, due: Due) -> Span {
    let begin = clock::now(&layout.header.clock);
    cell.sleepers.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let waited = loop {
        // Read before the decision: a change in between makes the sleep end at once.
        let changes = cell.changes.load(Ordering::Acquire);
        let ready = match cell.kind() {
            GateKind::Bytes | GateKind::Operations => cell.bucket.ready_at(due),
            // The gate became something else while this request waited: let it go.
            GateKind::Open | GateKind::Queue | GateKind::Transform => Time::ZERO,
        };
        let now = clock::now(&layout.header.clock);
        if ready <= now {
            break now.since(begin);
        }
        cell.asleep.fetch_max(now.after(ASLEEP).0, Ordering::Relaxed);
        sleep(&cell.changes, changes, ready.since(now).min(LOOK_AGAIN));
    };
    one_fewer(&cell.sleepers);
    count_wait(cell, waited);
    waited
}

/// Counts one thread fewer that waits. Not below none: the keeper may have given this one up, if it
/// was stopped for long.
fn one_fewer(waiting: &AtomicU32) {
    let fewer = |waiting: u32| waiting.checked_sub(1);
    let _ = waiting.fetch_update(Ordering::SeqCst, Ordering::Relaxed, fewer);
}

fn count_wait(cell: &GateCell, waited: Span) {
    cell.delayed.fetch_add(1, Ordering::Relaxed);
    cell.waited.fetch_add(waited.0, Ordering::Relaxed);
    cell.waiting.record(waited);
}

/// Runs `work` on the queue under its lock, mended first if its last user died.
fn locked<R>(cell: &QueueCell, work: impl FnOnce(&mut Queue<SLOTS_MAX>) -> R) -> R {
    cell.lock.with(|found| {
        // SAFETY: the lock is held, and nobody touches the queue without it.
        let queue = unsafe { &mut *cell.queue.get() };
        if found == Found::Abandoned {
            queue.repair();
        }
        work(queue)
    })
}

/// Puts into service whoever may go, and wakes them, once the lock is free again.
fn advance(cell: &QueueCell, change: impl FnOnce(&mut Queue<SLOTS_MAX>)) {
    // On the stack, so that waking happens outside the lock. More than this at once come only with
    // a new depth; they are dispatched by the next round.
    let mut ready = [None; 16];
    let mut more = true;
    let mut change = Some(change);
    while more {
        let mut count = 0;
        locked(cell, |queue| {
            if let Some(change) = change.take() {
                change(queue);
            }
            while count < ready.len() {
                let Some(slot) = queue.dispatch() else { break };
                ready[count] = Some(slot);
                count += 1;
            }
        });
        more = count == ready.len();
        for slot in ready[..count].iter().flatten() {
            let turn = &cell.turns[slot.index() % SLOTS_MAX];
            turn.fetch_add(1, Ordering::Release);
            wake(turn, u32::MAX);
        }
    }
}

/// Waits for a turn at a queue gate. No turn if there can be none: the gate became something else,
/// or the queue is full.
#[cold]
fn wait_for_turn(
    layout: &Layout,
    cell: &GateCell,
    cost: Cost,
    flows: Flows,
) -> (Span, Option<Turn>) {
    let index = cell.queue.load(Ordering::Relaxed) as usize % layout.queues.len();
    let queue = &layout.queues[index];
    let begin = clock::now(&layout.header.clock);
    let mut slept = false;
    let turn = loop {
        let Some(slot) = take_slot(layout, queue, (flows.flow(index), cost), begin, &mut slept)
        else {
            layout.bypasses[Bypass::QueueFull as usize].count(local::lane(), cost.bytes);
            break None;
        };
        match stand_in_line(layout, (cell, queue), slot, &mut slept) {
            Stand::Turn => {
                let queue = NonZeroU8::MIN.saturating_add(index as u8);
                break Some(Turn { queue, slot });
            }
            Stand::Closed => break None,
            Stand::Lost => {}
        }
    };
    // Who need not sleep has not waited.
    let waited = match slept {
        true => clock::now(&layout.header.clock).since(begin),
        false => Span::ZERO,
    };
    if waited > Span::ZERO {
        count_wait(cell, waited);
    }
    (waited, turn)
}

/// What a request weighs in a queue: one without bytes takes its turn like a small one.
fn weight(bytes: u64) -> u64 {
    bytes.max(512)
}

/// Takes a slot of a queue, as soon as there is one.
fn take_slot(
    layout: &Layout,
    queue: &QueueCell,
    (flow, cost): (u8, Cost),
    begin: Time,
    slept: &mut bool,
) -> Option<SlotId> {
    let owner = seat::sit(layout)?;
    loop {
        let mut slot = None;
        let room = queue.room.load(Ordering::Acquire);
        advance(queue, |queue| slot = queue.arrive(flow, weight(cost.bytes), owner));
        if slot.is_some() || clock::now(&layout.header.clock).since(begin) > FULL_AT_MOST {
            return slot;
        }
        *slept = true;
        queue.outside.fetch_add(1, Ordering::SeqCst);
        if !sleep(&queue.room, room, LOOK_AGAIN) {
            abandon(layout, queue);
        }
        one_fewer(&queue.outside);
    }
}

/// How it ends to stand in line.
enum Stand {
    /// With a turn.
    Turn,
    /// The gate became something else.
    Closed,
    /// Somebody took this request for dead.
    Lost,
}

/// Waits until a request in a slot may go.
fn stand_in_line(
    layout: &Layout,
    (cell, queue): (&GateCell, &QueueCell),
    slot: SlotId,
    slept: &mut bool,
) -> Stand {
    let turn = &queue.turns[slot.index() % SLOTS_MAX];
    loop {
        let seen = turn.load(Ordering::Acquire);
        let (is_next, waits) =
            locked(queue, |queue| (queue.is_in_service(slot), queue.is_waiting(slot)));
        if is_next {
            return Stand::Turn;
        }
        if cell.kind() != GateKind::Queue {
            // Leave the queue and go.
            advance(queue, |queue| _ = queue.withdraw(slot) || queue.finish(slot));
            tell_of_room(queue);
            return Stand::Closed;
        }
        if !waits {
            return Stand::Lost;
        }
        *slept = true;
        if !sleep(turn, seen, LOOK_AGAIN) {
            // Whoever was to wake this thread may have died, or whoever has the turn.
            abandon(layout, queue);
        }
    }
}

/// Gives up a request's turns, now that it has moved so many bytes: others go.
#[cold]
pub(crate) fn finish(layout: &Layout, turns: Turns, moved: u64) {
    turns.into_iter().flatten().for_each(|turn| give_up(layout, turn, moved));
}

fn give_up(layout: &Layout, turn: Turn, moved: u64) {
    let Some(cell) = layout.queues.get(usize::from(turn.queue.get() - 1)) else { return };
    let used = weight(moved);
    advance(cell, |queue| _ = queue.finish_having_used(turn.slot, used));
    tell_of_room(cell);
}

/// Tells some of those that wait for a slot that there is one. One is not enough, for its flow may
/// have all that it may have.
fn tell_of_room(cell: &QueueCell) {
    if cell.outside.load(Ordering::SeqCst) > 0 {
        cell.room.fetch_add(1, Ordering::SeqCst);
        wake(&cell.room, FLOWS as u32);
    }
}

/// How many requests wait at a queue.
pub(crate) fn waiting(cell: &QueueCell) -> usize {
    locked(cell, |queue| queue.waiting()) as usize
}

/// Frees what the dead hold.
pub(crate) fn abandon(layout: &Layout, cell: &QueueCell) {
    let mut dropped = 0;
    advance(cell, |queue| dropped = queue.abandon(|owner| seat::is_gone(layout, owner)));
    if dropped > 0 {
        tell_of_room(cell);
    }
}

/// Forgets the dead that wait at a gate or are in service there.
#[cfg(feature = "keeper")]
pub(crate) fn forget_the_dead(layout: &Layout, gate: u8) {
    let Some(cell) = layout.gates.get(usize::from(gate)) else { return };
    if cell.kind() == GateKind::Queue {
        let index = cell.queue.load(Ordering::Relaxed) as usize % layout.queues.len();
        abandon(layout, &layout.queues[index]);
    }
    let now = clock::now(&layout.header.clock);
    if cell.sleepers.load(Ordering::Relaxed) > 0 && cell.asleep.load(Ordering::Relaxed) < now.0 {
        cell.sleepers.store(0, Ordering::Relaxed);
    }
}

/// Changes a queue, keeping who waits there.
#[cfg(feature = "keeper")]
pub(crate) fn reconfigure(cell: &QueueCell, change: impl FnOnce(&mut Queue<SLOTS_MAX>)) {
    advance(cell, change);
}

/// Sleeps until `word` is woken, unless it is no longer `seen`, or until `span` has passed, which
/// gives false.
pub(crate) fn sleep(word: &AtomicU32, seen: u32, span: Span) -> bool {
    let timeout = futex::Timespec {
        tv_sec: (span.0 / 1_000_000_000) as i64,
        tv_nsec: (span.0 % 1_000_000_000) as _,
    };
    // Whatever it returns (woken, changed before, timed out, interrupted by a signal), the caller
    // looks again.
    let woken = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
    woken != Err(Errno::TIMEDOUT)
}

/// Wakes up to `count` sleepers, in any process.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    // i32::MAX is how futexes spell "all".
    let _ = futex::wake(word, futex::Flags::empty(), count.min(i32::MAX as u32));
}
