//! Admission of a request at a gate of the stage: its thread sleeps on a futex until it may go on.
//!
//! The decisions are those of `tidegate_algo`; this module makes threads sleep at token buckets,
//! and [`crate::lease`] at queues. A sleeping thread holds no lock. It sleeps on a futex with a
//! time limit: it wakes up by itself when its tokens are due, and at once when a rate changes. So
//! it depends on no other process. It checks again even if the agent has died, and frees the tokens
//! of threads that were killed in their sleep.

use std::sync::atomic::{Ordering, fence};

use tidegate_algo::classify::channel::{Flows, Gates};
use tidegate_algo::shaping::token_bucket::{Due, Take, TokenBucket};
use tidegate_model::{Span, Time};
#[cfg(feature = "agent")]
use tidegate_proto::stage::plan::Hold as BucketHold;

use crate::clock;
use crate::layout::{GateCell, GateKind, SegmentLayout, TOKENS_PER_OPERATION};
use crate::lease;
use crate::permit::Permit;
use crate::wait::{ASLEEP, Cost, RECHECK, count_wait, one_fewer, sleep, wake};
use crate::waiters::{self, Waiter};

/// The most queue gates of a channel.
const QUEUES_PER_CHANNEL: usize = tidegate_model::policy::limits::QUEUES_PER_CHANNEL;

/// A thread that waits for tokens sleeps so long at least, if its bucket keeps for it what it earns
/// meanwhile. One that reads 10 KiB at a time at 690 MiB/s slept 7,000 to 11,000 times a second, as
/// often as timers allow, and 1,500 times with this; each time takes a processor from others. Its
/// rate is the same. Chosen by hand: longer sleeps save little more, and are longer bursts.
const NAP: Span = Span(250 * Span::MICROSECOND.0);

/// The permits that one request holds, from the front. The plan refuses channels with more queue
/// gates.
pub(crate) type Permits = [Option<Permit>; QUEUES_PER_CHANNEL];

/// No permit at all.
pub(crate) const NO_PERMITS: Permits = [None; QUEUES_PER_CHANNEL];

impl GateCell {
    #[inline]
    pub(crate) fn kind(&self) -> GateKind {
        match self.kind.load(Ordering::Relaxed) {
            1 => GateKind::Bytes,
            2 => GateKind::Operations,
            3 => GateKind::Queue,
            4 => GateKind::Transform,
            5 => GateKind::Retired,
            _ => GateKind::Open,
        }
    }

    /// Tokens that `cost` takes of this bucket.
    #[inline]
    fn tokens(kind: GateKind, cost: Cost) -> u64 {
        match kind {
            GateKind::Bytes => cost.bytes,
            GateKind::Operations => cost.operations * TOKENS_PER_OPERATION,
            GateKind::Queue | GateKind::Open | GateKind::Transform | GateKind::Retired => 0,
        }
    }

    /// Gives back what a request took and did not use.
    fn give_back(&self, unused: Cost) {
        let tokens = Self::tokens(self.kind(), unused);
        if tokens > 0 {
            self.bucket.give_back(tokens);
            // Either a thread that is about to sleep sees the tokens, or this thread sees the
            // sleeper.
            fence(Ordering::SeqCst);
            if self.sleepers.load(Ordering::Relaxed) > 0 {
                self.changed();
            }
        }
    }

    /// Wakes all threads that wait here.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        wake(&self.changes, u32::MAX);
    }
}

/// Reason why a gate holds a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hold {
    /// The bucket has too few tokens. With the kind of the gate as the tokens were taken.
    Tokens(Due, GateKind),
    /// There is a queue.
    Queue,
}

/// Lets a request pass the gate with this number, unless it has to wait there.
#[inline]
pub(crate) fn pass(layout: &SegmentLayout, gate: u8, shard: u8, cost: Cost) -> Option<Hold> {
    let cell = layout.gates.get(usize::from(gate))?;
    let kind = cell.kind();
    if matches!(kind, GateKind::Open | GateKind::Transform | GateKind::Retired) {
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
    match cell.bucket.take_in(usize::from(shard), tokens, now) {
        Take::Granted => None,
        Take::Wait(due) => Some(Hold::Tokens(due, kind)),
    }
}

/// Waits at the gate of `route` that holds a request, then passes the `rest`. Gives the permits
/// that the request is to give back, and how long it waited. For `depth` see [`lease::acquire`].
///
/// No permits, not even none, if rules changed meanwhile such that the gate, or one behind it, is
/// not what it was. The request is to be sorted anew then: it has given back what it had taken, and
/// meets the gates of the new rules as others do.
#[cold]
pub(crate) fn wait(
    layout: &SegmentLayout,
    held: (u8, Hold),
    (route, mut rest): (Gates, Gates),
    cost: Cost,
    (shard, flows, depth): (u8, Flows, usize),
) -> (Option<Permits>, Span) {
    let (mut permits, mut waited) = (NO_PERMITS, Span::ZERO);
    let mut held = Some(held);
    while let Some((gate, hold)) = held {
        let Some(cell) = layout.gates.get(usize::from(gate)) else { break };
        let (span, kind) = match hold {
            Hold::Tokens(due, kind) => {
                let tokens = GateCell::tokens(kind, cost);
                let request = TokenRequest { layout, cell, gate, shard, kind, tokens };
                (wait_for_tokens(request, due), kind)
            }
            Hold::Queue => {
                let (span, permit) = lease::acquire(layout, cell, (cost, flows), depth);
                match permits.iter_mut().find(|kept| kept.is_none()) {
                    Some(kept) => *kept = permit,
                    // More than fit: give it back rather than lose it.
                    None => permit.into_iter().for_each(|it| lease::release(layout, it, None)),
                }
                (span, GateKind::Queue)
            }
        };
        waited = waited.saturating_add(span);
        let is_kept = cell.kind() == kind;
        let mut behind = rest;
        if !is_kept || behind.any(|gate| is_retired(layout, gate)) {
            let before = route.take_while(|passed| *passed != gate);
            let taken = before.chain(is_kept.then_some(gate));
            let taken = taken.filter_map(|gate| layout.gates.get(usize::from(gate)));
            taken.for_each(|cell| cell.give_back(cost));
            permits.into_iter().flatten().for_each(|it| lease::release(layout, it, None));
            return (None, waited);
        }
        held = rest.find_map(|gate| pass(layout, gate, shard, cost).map(|hold| (gate, hold)));
    }
    (Some(permits), waited)
}

fn is_retired(layout: &SegmentLayout, gate: u8) -> bool {
    layout.gates.get(usize::from(gate)).is_some_and(|cell| cell.kind() == GateKind::Retired)
}

/// Gives back to the buckets among `gates` what a request took and did not use.
#[inline(never)]
pub(crate) fn give_back(layout: &SegmentLayout, gates: Gates, unused: Cost) {
    for gate in gates {
        if let Some(cell) = layout.gates.get(usize::from(gate)) {
            cell.give_back(unused);
        }
    }
}

/// A request for tokens of one bucket.
#[derive(Clone, Copy)]
struct TokenRequest<'a> {
    layout: &'a SegmentLayout,
    cell: &'a GateCell,
    gate: u8,
    shard: u8,
    kind: GateKind,
    tokens: u64,
}

impl<'a> TokenRequest<'a> {
    /// The bucket, unless the gate became something else.
    fn bucket(self) -> Option<&'a TokenBucket> {
        (self.cell.kind() == self.kind).then_some(&self.cell.bucket)
    }

    /// Takes the tokens anew: the table of waiters has taken the thread for dead, and given back
    /// what it had. None if the request may go now.
    fn again(self, now: Time) -> Option<Due> {
        self.cell.sleepers.fetch_add(1, Ordering::Relaxed);
        match self.bucket()?.take_in(usize::from(self.shard), self.tokens, || now) {
            Take::Granted => None,
            Take::Wait(due) => Some(due),
        }
    }

    fn register(self, due: Due, now: Time) -> Option<Waiter<'a>> {
        waiters::register(&self.layout.waiters, self.gate, (due, self.tokens), now)
    }
}

#[cold]
fn wait_for_tokens(request: TokenRequest<'_>, mut due: Due) -> Span {
    let TokenRequest { layout, cell, .. } = request;
    let begin = clock::now(&layout.header.clock);
    cell.sleepers.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let mut waiter = request.register(due, begin);
    waiters::sweep(layout, begin);
    let waited = loop {
        // Read before the decision: a change in between makes the sleep end at once.
        let changes = cell.changes.load(Ordering::Acquire);
        due = waiter.as_ref().map_or(due, Waiter::due);
        // If the gate became something else while this request waited, it waits here no longer.
        let ready = request.bucket().map_or(Time::ZERO, |bucket| bucket.ready_at(due));
        let now = clock::now(&layout.header.clock);
        let is_ready = ready <= now;
        let is_kept = match &mut waiter {
            Some(waiter) if is_ready => waiter.end(),
            Some(waiter) => waiter.renew(now),
            None => true,
        };
        if !is_kept {
            let Some(new) = request.again(now) else { break now.since(begin) };
            (due, waiter) = (new, request.register(new, now));
            continue;
        }
        if is_ready {
            break now.since(begin);
        }
        cell.asleep.fetch_max(now.after(ASLEEP).0, Ordering::Relaxed);
        let nap = request.bucket().map_or(Span::ZERO, |bucket| bucket.slack().min(NAP));
        sleep(&cell.changes, changes, ready.since(now).max(nap).min(RECHECK));
        waiters::sweep(layout, clock::now(&layout.header.clock));
    };
    one_fewer(&cell.sleepers);
    count_wait(cell, waited)
}

/// Gives a request's permits back, now that it has moved so many bytes: others go.
#[cold]
pub(crate) fn finish(layout: &SegmentLayout, permits: Permits, moved: u64) {
    permits.into_iter().flatten().for_each(|permit| lease::release(layout, permit, Some(moved)));
}

/// Lets no request pass the bucket behind a gate for a while, also none that waits there already.
/// Its rate holds until `kept_until`, or until the bucket is full behind the hold.
#[cfg(feature = "agent")]
pub(crate) fn hold(layout: &SegmentLayout, hold: BucketHold, kept_until: Time) {
    let Some(cell) = layout.gates.get(usize::from(hold.number)) else { return };
    let now = clock::now(&layout.header.clock);
    cell.bucket.hold(now.after(hold.span), kept_until, now);
    cell.changed();
}

/// Bytes or operations that requests wait with at a bucket, as far as they have cells in the table
/// of waiters. A part of an operation counts as one.
#[cfg(feature = "agent")]
pub(crate) fn waiting_tokens(layout: &SegmentLayout, gate: u8) -> u64 {
    let cell = layout.gates.get(usize::from(gate));
    let Some(cell) = cell.filter(|cell| cell.sleepers.load(Ordering::Relaxed) > 0) else {
        return 0;
    };
    match cell.kind() {
        GateKind::Bytes => waiters::tokens(layout, gate),
        GateKind::Operations => waiters::tokens(layout, gate).div_ceil(TOKENS_PER_OPERATION),
        GateKind::Queue | GateKind::Open | GateKind::Transform | GateKind::Retired => 0,
    }
}

/// Forgets the dead that wait at a gate or are in service there.
#[cfg(feature = "agent")]
pub(crate) fn forget_the_dead(layout: &SegmentLayout, gate: u8) {
    let Some(cell) = layout.gates.get(usize::from(gate)) else { return };
    if cell.kind() == GateKind::Queue {
        lease::tidy(layout, cell.queue.load(Ordering::Relaxed) as usize % layout.queues.len());
    }
    let now = clock::now(&layout.header.clock);
    waiters::sweep(layout, now);
    if cell.sleepers.load(Ordering::Relaxed) > 0 && cell.asleep.load(Ordering::Relaxed) < now.0 {
        cell.sleepers.store(0, Ordering::Relaxed);
    }
}
