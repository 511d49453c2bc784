//! How a request passes a gate, and how it waits there.
//!
//! The decisions are `algo`'s; here is only the sleeping. A sleeper holds no lock. It sleeps on a
//! futex with a time limit, so that it wakes at its time by itself and at once when something
//! changes, and whatever happens to others (a process killed in its sleep, a keeper that died) it
//! looks again by itself.

use std::num::NonZeroU8;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;
use tidegate_algo::channel::{Flows, Gates};
use tidegate_algo::queue::{Queue, SlotId};
use tidegate_algo::token_bucket::{Due, Take};
use tidegate_model::{Span, Time};

use crate::bypass::Bypass;
use crate::clock;
use crate::layout::{GateCell, GateKind, Layout, QueueCell, SLOTS_MAX, TOKENS_PER_OPERATION};
use crate::lock::Found;

/// How long a sleeper sleeps at most before it looks again without being told: the bound on what a
/// lost wake-up can cost.
const LOOK_AGAIN: Span = Span(100 * Span::MILLISECOND.0);
/// How long a request waits for a free slot of a full queue before it looks again.
const FULL_AGAIN: Span = Span::MILLISECOND;
/// How often it looks before it passes by: a queue that stays full for this long, two seconds, has
/// more threads than it was made for.
const FULL_TIMES: u32 = 2_000;
/// The most queue gates of a channel.
const QUEUES_PER_CHANNEL: usize = 4;

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
            _ => GateKind::Open,
        }
    }

    /// Tokens that `cost` takes of this bucket.
    #[inline]
    fn tokens(kind: GateKind, cost: Cost) -> u64 {
        match kind {
            GateKind::Bytes => cost.bytes,
            GateKind::Operations => cost.operations * TOKENS_PER_OPERATION,
            GateKind::Queue | GateKind::Open => 0,
        }
    }

    /// Gives back what a request took and did not use.
    fn give_back(&self, unused: Cost) {
        let tokens = Self::tokens(self.kind(), unused);
        if tokens > 0 {
            self.bucket.give_back(tokens);
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
pub(crate) fn pass(layout: &Layout, gate: u8, cost: Cost) -> Option<Hold> {
    let cell = layout.gates.get(usize::from(gate))?;
    let kind = cell.kind();
    if kind == GateKind::Open {
        return None;
    }
    if kind == GateKind::Queue {
        return Some(Hold::Queue);
    }
    let tokens = GateCell::tokens(kind, cost);
    if tokens == 0 {
        return None;
    }
    match cell.bucket.take_with(tokens, || clock::now(&layout.header.clock)) {
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
    flows: Flows,
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
                    None => turn.into_iter().for_each(|turn| give_up(layout, turn)),
                }
                span
            }
        };
        waited = waited.saturating_add(span);
        held = rest.find_map(|gate| pass(layout, gate, cost).map(|hold| (gate, hold)));
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
    let waited = loop {
        // Read before the decision: a change in between makes the sleep end at once.
        let changes = cell.changes.load(Ordering::Acquire);
        let ready = match cell.kind() {
            GateKind::Bytes | GateKind::Operations => cell.bucket.ready_at(due),
            // The gate became something else while this request waited: let it go.
            GateKind::Open | GateKind::Queue => Time::ZERO,
        };
        let now = clock::now(&layout.header.clock);
        if ready <= now {
            break now.since(begin);
        }
        sleep(&cell.changes, changes, ready.since(now).min(LOOK_AGAIN));
    };
    cell.sleepers.fetch_sub(1, Ordering::Relaxed);
    count_wait(cell, waited);
    waited
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

#[cold]
fn wait_for_turn(
    layout: &Layout,
    cell: &GateCell,
    cost: Cost,
    flows: Flows,
) -> (Span, Option<Turn>) {
    let index = cell.queue.load(Ordering::Relaxed) as usize % layout.queues.len();
    let queue = &layout.queues[index];
    let owner = std::process::id();
    // A request without bytes still takes its turn; it weighs as much as a small one.
    let weight = cost.bytes.max(512);
    let begin = clock::now(&layout.header.clock);
    let mut attempts = 0;
    let slot = loop {
        let mut slot = None;
        advance(queue, |queue| slot = queue.arrive(flows.flow(index), weight, owner));
        if let Some(slot) = slot {
            break slot;
        }
        attempts += 1;
        if attempts > FULL_TIMES {
            let bypass = &layout.bypasses[Bypass::QueueFull as usize];
            bypass.calls.fetch_add(1, Ordering::Relaxed);
            bypass.bytes.fetch_add(cost.bytes, Ordering::Relaxed);
            return (clock::now(&layout.header.clock).since(begin), None);
        }
        let changes = cell.changes.load(Ordering::Acquire);
        sleep(&cell.changes, changes, FULL_AGAIN);
    };
    let turn = &queue.turns[slot.index() % SLOTS_MAX];
    let mut waited = Span::ZERO;
    loop {
        let seen = turn.load(Ordering::Acquire);
        if locked(queue, |queue| queue.is_in_service(slot)) {
            break;
        }
        if cell.kind() != GateKind::Queue {
            // The gate became something else: leave the queue and go.
            advance(queue, |queue| _ = queue.withdraw(slot) || queue.finish(slot));
            return (waited, None);
        }
        sleep(turn, seen, LOOK_AGAIN);
        waited = clock::now(&layout.header.clock).since(begin);
        // Whoever was to wake this thread may have died: see for itself who may go.
        advance(queue, |_| ());
    }
    if waited > Span::ZERO {
        count_wait(cell, waited);
    }
    (waited, Some(Turn { queue: NonZeroU8::MIN.saturating_add(index as u8), slot }))
}

/// Gives up a request's turns: others go.
#[cold]
pub(crate) fn finish(layout: &Layout, turns: Turns) {
    turns.into_iter().flatten().for_each(|turn| give_up(layout, turn));
}

fn give_up(layout: &Layout, turn: Turn) {
    if let Some(cell) = layout.queues.get(usize::from(turn.queue.get() - 1)) {
        advance(cell, |queue| _ = queue.finish(turn.slot));
    }
}

/// How many requests wait at a queue.
pub(crate) fn waiting(cell: &QueueCell) -> usize {
    locked(cell, |queue| queue.waiting()) as usize
}

/// Frees what dead processes hold.
#[cfg(feature = "keeper")]
pub(crate) fn abandon(cell: &QueueCell, is_dead: impl FnMut(u32) -> bool) {
    advance(cell, |queue| _ = queue.abandon(is_dead));
}

/// Changes a queue, keeping who waits there.
#[cfg(feature = "keeper")]
pub(crate) fn reconfigure(cell: &QueueCell, change: impl FnOnce(&mut Queue<SLOTS_MAX>)) {
    advance(cell, change);
}

/// Sleeps until `word` is woken, unless it is no longer `seen`, or until `span` has passed.
pub(crate) fn sleep(word: &AtomicU32, seen: u32, span: Span) {
    let timeout = futex::Timespec {
        tv_sec: (span.0 / 1_000_000_000) as i64,
        tv_nsec: (span.0 % 1_000_000_000) as _,
    };
    // Whatever it returns (woken, changed before, timed out, interrupted by a signal), the caller
    // looks again.
    let _: Result<(), Errno> = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
}

/// Wakes up to `count` sleepers, in any process.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    // i32::MAX is how futexes spell "all".
    let _ = futex::wake(word, futex::Flags::empty(), count.min(i32::MAX as u32));
}
