//! Admission at a queue gate, by leases.
//!
//! A request takes a *slot* of the queue, arrives there, and waits until it is dispatched. From
//! then on it has a *permit*: a lease on one of the `depth` slots in service. It gives the permit
//! back when it is done. The queue's state (`algo::scheduling::queue`) has the requests that wait,
//! those in service, and the next one; it is changed as a whole and without a lock
//! (`algo::concurrent::versioned`).
//!
//! ```text
//!            claim            arrive           dispatch            finish
//!   free ───────────▶ taken ─────────▶ waiting ─────────▶ in service ─────▶ taken ──▶ free
//!    ▲                  ▲                 │ withdraw         │ pass on        ▲
//!    │                  └─────────────────┘                  └──▶ overdue ────┘
//!    └──── the owner is gone: dropped from whichever state it was in
//! ```
//!
//! Whatever happens to a thread, the others go on:
//!
//! - *It ends.* Its record shows it, and any thread that checks drops its requests.
//! - *It leaves by a jump, or is cancelled.* Its record has what it held; its next call, the jump
//!   itself where the shim sees it, or the end of the thread gives that back.
//! - *It is stopped*, by a signal, a debugger or a freezer. Its permit is passed on once it has had
//!   it for [`LEASE`], and its requests that wait are withdrawn, so that no thread waits for them
//!   one by one. More than `depth` may be in service then, which is counted. When it runs again,
//!   it goes on with what it was doing, or arrives anew.
//! - *It takes long.* A call that takes five seconds keeps its permit for five seconds. The state
//!   of the thread in the kernel distinguishes it from a stopped one, after [`LEASE`] and then
//!   again.
//! - *It cannot be inspected*, because it is in another namespace. Its permit is passed on after
//!   [`UNSEEN`].
//!
//! The checks are done by those that wait, one at a time, and by the agent of the stage.

use std::num::NonZeroU8;
use std::sync::atomic::Ordering;

use tidegate_algo::classify::channel::Flows;
use tidegate_algo::concurrent::versioned::ChangeResult;
use tidegate_algo::scheduling::queue::{FLOWS, QueueRequest, QueueState};
use tidegate_model::{Span, Time};

use crate::bypass::Bypass;
use crate::clock;
use crate::layout::{GateCell, GateKind, QueueCell, SLOT_WORDS, SLOTS_MAX, SegmentLayout, Slot};
use crate::local;
use crate::permit::Permit;
use crate::record::{self, Owner, ThreadState};
use crate::wait::{Cost, RECHECK, count_wait, one_fewer, sleep, wake};

/// How long a holder has its permit before others check whether it is stopped.
const LEASE: Span = Span(100 * Span::MILLISECOND.0);
/// How long a holder has its permit of which nothing can be seen.
const UNSEEN: Span = Span::SECOND;
/// How long a request waits for a free slot of a full queue before it passes by: long enough for
/// any device, short enough for a program whose requests wait for each other.
const FULL_AT_MOST: Span = Span(30 * Span::SECOND.0);
/// How soon a request checks for the first time whether the holder it waits for is gone.
const FIRST_CHECK: Span = Span(10 * Span::MILLISECOND.0);
/// The shortest sleep before the next check of the holders.
const SHORTEST: Span = Span::MILLISECOND;
/// Dispatched at once at most; more come only with a new depth, and are dispatched by the next
/// round.
const AT_ONCE: usize = 16;
/// No slot of a queue.
const NO_SLOT: u16 = u16::MAX;

type Queue = QueueState<SLOT_WORDS>;

/// The claim word of a slot.
fn claim_word(generation: u32, owner: Owner) -> u64 {
    u64::from(generation) << 32 | u64::from(owner)
}

/// One queue of a stage.
#[derive(Clone, Copy)]
struct Line<'a> {
    layout: &'a SegmentLayout,
    cell: &'a QueueCell,
    index: usize,
}

impl<'a> Line<'a> {
    fn of(layout: &'a SegmentLayout, index: usize) -> Option<Self> {
        Some(Self { layout, cell: layout.queues.get(index)?, index })
    }

    fn slot(self, permit: Permit) -> &'a Slot {
        &self.cell.slots[usize::from(permit.slot) % SLOTS_MAX]
    }

    /// Whether a slot is still the one that was taken, by this owner.
    fn is_owned(self, permit: Permit, owner: Owner) -> bool {
        self.slot(permit).claim.load(Ordering::Acquire) == claim_word(permit.generation, owner)
    }

    /// Returns the request in a slot. Damaged memory does no harm here: the slot's number wraps.
    fn request(self, slot: usize) -> QueueRequest {
        let cell = &self.cell.slots[slot % SLOTS_MAX];
        QueueRequest {
            arrival: cell.arrival.load(Ordering::Relaxed),
            cost: cell.cost.load(Ordering::Relaxed),
            flow: cell.flow.load(Ordering::Relaxed) as u8,
        }
    }

    /// Whether a request waits, and whether it is in service.
    fn membership(self, permit: Permit) -> (bool, bool) {
        let slot = usize::from(permit.slot);
        self.layout.states().snapshot(self.index, |word| Queue::membership(word, slot))
    }

    /// The state as it is now.
    fn snapshot(self) -> Queue {
        let mut words = [0; crate::layout::STATE_WORDS];
        self.layout.states().snapshot(self.index, |word| {
            words.iter_mut().enumerate().for_each(|(index, it)| *it = word(index));
        });
        Queue::from_words(&words)
    }

    /// Makes a change, then puts into service the requests that may go, and wakes their threads.
    /// `change` returns whether it has changed anything, and may be called more than once.
    ///
    /// Returns the slots that went into service in one step with the change; the rest are no slots.
    fn advance(self, writer: usize, mut change: impl FnMut(&mut Queue) -> bool) -> [u16; AT_ONCE] {
        let (mut is_first, mut with_change) = (true, [NO_SLOT; AT_ONCE]);
        loop {
            let (mut ready, mut count, mut exceeds) = ([NO_SLOT; AT_ONCE], 0, false);
            let done = self.layout.states().change(self.index, writer, |words| {
                let mut queue = Queue::from_words(words);
                let mut changed = is_first && change(&mut queue);
                (ready, count) = ([NO_SLOT; AT_ONCE], 0);
                while count < AT_ONCE
                    && let Some(slot) = queue.dispatch(|slot| self.request(slot))
                {
                    // Too early if another thread is faster: then it is set again.
                    let now = clock::now(&self.layout.header.clock);
                    self.cell.slots[slot].granted.store(now.0, Ordering::Relaxed);
                    ready[count] = slot as u16;
                    count += 1;
                    changed = true;
                }
                exceeds = count > 0 && queue.exceeds_depth();
                if !changed {
                    return ChangeResult::None(());
                }
                queue.to_words(words);
                ChangeResult::Made(())
            });
            if done.is_none() {
                return with_change;
            }
            if std::mem::take(&mut is_first) {
                with_change = ready;
            }
            for slot in &ready[..count] {
                let cell = &self.cell.slots[usize::from(*slot)].wake;
                cell.fetch_add(1, Ordering::Release);
                wake(cell, u32::MAX);
            }
            if exceeds {
                self.layout.bypasses[Bypass::OverDepth as usize].count(local::shard(), 0);
            }
            if count < AT_ONCE {
                return with_change;
            }
        }
    }

    /// Gives a slot back that is in no set any more.
    fn free(self, permit: Permit, owner: Owner) {
        let (taken, free) =
            (claim_word(permit.generation, owner), claim_word(permit.generation, 0));
        let claim = &self.slot(permit).claim;
        let _ = claim.compare_exchange(taken, free, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Wakes some of the threads that wait for a slot. One is not enough, for its flow
    /// may have all that it may have.
    fn wake_slot_waiters(self) {
        if self.cell.outside.load(Ordering::SeqCst) > 0 {
            self.cell.slot_freed.fetch_add(1, Ordering::SeqCst);
            wake(&self.cell.slot_freed, FLOWS as u32);
        }
    }

    /// Takes a request out of the queue, whichever state it is in, and gives its slot back. It has
    /// used so much, or all that it requested.
    fn give_up(self, permit: Permit, owner: Owner, writer: usize, used: Option<u64>) {
        let slot = usize::from(permit.slot);
        self.advance(writer, |queue| {
            if !self.is_owned(permit, owner) {
                return false;
            }
            let request = self.request(slot);
            let used = used.unwrap_or(request.cost);
            queue.withdraw(slot) || queue.finish_having_used(slot, used, request)
        });
        self.free(permit, owner);
        self.wake_slot_waiters();
    }
}

/// Waits for a permit at a queue gate. None if there can be none: the gate became something else,
/// or the queue is full. Gives how long it waited, too: zero if it had its permit at once.
///
/// `depth` is where on its stack the thread is, if it will have left the call when it calls again
/// from above; else zero.
#[cold]
pub(crate) fn acquire(
    layout: &SegmentLayout,
    cell: &GateCell,
    (cost, flows): (Cost, Flows),
    depth: usize,
) -> (Span, Option<Permit>) {
    let index = cell.queue.load(Ordering::Relaxed) as usize % layout.queues.len();
    let Some(line) = Line::of(layout, index) else { return (Span::ZERO, None) };
    let begin = clock::now(&layout.header.clock);
    let mut has_waited = false;
    let permit = loop {
        let Some(owner) = record::own(layout) else {
            layout.bypasses[Bypass::QueueFull as usize].count(local::shard(), cost.bytes);
            break None;
        };
        let request =
            QueueRequest { arrival: 0, cost: weight(cost.bytes), flow: flows.flow(index) };
        let Some(permit) = arrive(line, owner, request, (begin, depth), &mut has_waited) else {
            layout.bypasses[Bypass::QueueFull as usize].count(local::shard(), cost.bytes);
            record::give_back(layout, owner);
            break None;
        };
        match wait_for_permit(line, cell, permit, owner) {
            WaitEnd::Admitted => break Some(permit),
            WaitEnd::Closed => {
                release(layout, permit, None);
                break None;
            }
            WaitEnd::Lost => {
                release(layout, permit, None);
                has_waited = true;
            }
        }
    };
    // A request that was not admitted at once has waited, even if its thread did not come to sleep.
    let waited = match has_waited {
        true => count_wait(cell, clock::now(&layout.header.clock).since(begin)),
        false => Span::ZERO,
    };
    (waited, permit)
}

/// Returns the weight of a request in a queue, in bytes; a request of fewer than 512 bytes weighs
/// 512.
fn weight(bytes: u64) -> u64 {
    bytes.max(512)
}

/// Takes a slot of a queue as soon as there is one, and arrives there. `has_waited` becomes true
/// unless there is a slot, and the request goes into service as it arrives.
fn arrive(
    line: Line<'_>,
    owner: Owner,
    request: QueueRequest,
    (begin, depth): (Time, usize),
    has_waited: &mut bool,
) -> Option<Permit> {
    loop {
        let slot_freed = line.cell.slot_freed.load(Ordering::Acquire);
        if let Some(permit) = claim(line, owner, depth) {
            if let Some(is_admitted) = enter(line, permit, owner, request) {
                *has_waited |= !is_admitted;
                return Some(permit);
            }
            line.free(permit, owner);
            forget(line.layout, owner, permit);
        }
        if clock::now(&line.layout.header.clock).since(begin) > FULL_AT_MOST {
            return None;
        }
        *has_waited = true;
        line.cell.outside.fetch_add(1, Ordering::SeqCst);
        if !sleep(&line.cell.slot_freed, slot_freed, RECHECK) {
            check_holders(line, record::number(owner));
            sweep(line, record::number(owner));
        }
        one_fewer(&line.cell.outside);
    }
}

/// Takes a free slot for an owner. It is noted before it is taken, so that a jump at any
/// instruction leaves nothing that is not noted.
fn claim(line: Line<'_>, owner: Owner, depth: usize) -> Option<Permit> {
    let record = record::record(line.layout, owner)?;
    let queue = NonZeroU8::MIN.saturating_add(line.index as u8);
    // From its own number on, so that a thread finds its last slot again, in its own cache.
    let first = record::number(owner);
    for offset in 0..SLOTS_MAX {
        let slot = (first + offset) % SLOTS_MAX;
        let cell = &line.cell.slots[slot].claim;
        let found = cell.load(Ordering::Relaxed);
        if found as u32 != 0 {
            continue;
        }
        let generation = ((found >> 32) as u32).wrapping_add(1);
        let permit = Permit { queue, slot: slot as u16, generation };
        record.note(permit, depth);
        let mine = claim_word(generation, owner);
        if cell.compare_exchange(found, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            if depth != 0 {
                local::holds(true);
            }
            return Some(permit);
        }
        record.forget(permit);
    }
    None
}

/// Arrives in a slot, and goes into service if it may. Returns whether it did; none if the queue is
/// full for the flow.
fn enter(line: Line<'_>, permit: Permit, owner: Owner, request: QueueRequest) -> Option<bool> {
    let slot = usize::from(permit.slot);
    let cell = line.slot(permit);
    cell.cost.store(request.cost, Ordering::Relaxed);
    cell.flow.store(request.flow.into(), Ordering::Relaxed);
    let mut has_arrived = false;
    let admitted = line.advance(record::number(owner), |queue| {
        has_arrived = false;
        let headroom = queue.has_headroom(request.flow, |slot| line.request(slot));
        if !headroom || !line.is_owned(permit, owner) {
            return false;
        }
        let Some(arrival) = queue.arrive(slot) else { return false };
        queue.joins(request.flow);
        cell.arrival.store(arrival, Ordering::Relaxed);
        has_arrived = true;
        true
    });
    has_arrived.then(|| admitted.contains(&permit.slot))
}

/// The end of a wait for a permit.
enum WaitEnd {
    /// With a permit.
    Admitted,
    /// The gate became something else.
    Closed,
    /// The request was withdrawn, because this thread was stopped.
    Lost,
}

/// Waits until a request in a slot may go.
fn wait_for_permit(line: Line<'_>, cell: &GateCell, permit: Permit, owner: Owner) -> WaitEnd {
    let word = &line.slot(permit).wake;
    let mut patience = FIRST_CHECK;
    loop {
        let seen = word.load(Ordering::Acquire);
        let (waits, serves) = line.membership(permit);
        if !line.is_owned(permit, owner) {
            return WaitEnd::Lost;
        }
        if serves {
            return WaitEnd::Admitted;
        }
        if cell.kind() != GateKind::Queue {
            return WaitEnd::Closed;
        }
        if !waits {
            // Perhaps its permit was passed on before it knew that it had one.
            return WaitEnd::Lost;
        }
        if !sleep(word, seen, until_next_check(line).min(patience)) {
            check_holders(line, record::number(owner));
            patience = RECHECK;
        }
    }
}

/// How long to sleep until a holder is to be checked.
fn until_next_check(line: Line<'_>) -> Span {
    let granted = |slot: usize| line.cell.slots[slot].granted.load(Ordering::Relaxed);
    let oldest = line.snapshot().in_service().iter().map(granted).min();
    let now = clock::now(&line.layout.header.clock);
    let last = oldest.unwrap_or(now.0).max(line.cell.last_check.load(Ordering::Relaxed));
    Time(last).after(LEASE).since(now).clamp(SHORTEST, RECHECK)
}

/// Checks the threads that hold permits, and frees what they cannot give back.
fn check_holders(line: Line<'_>, writer: usize) {
    let state = line.snapshot();
    for set in [state.in_service(), state.waiting(), state.overdue()] {
        set.iter().for_each(|slot| drop_if_gone(line, writer, slot));
    }
    let now = clock::now(&line.layout.header.clock);
    let age = |slot: usize| now.since(Time(line.cell.slots[slot].granted.load(Ordering::Relaxed)));
    let mut old = state.in_service().iter().filter(|slot| age(*slot) >= LEASE).peekable();
    // One at a time, and if that one is stopped here, then the next after a while.
    let last_check = line.cell.last_check.load(Ordering::Relaxed);
    let is_early = now.since(Time(last_check)) < Span(LEASE.0 / 2);
    if old.peek().is_none() || is_early {
        return;
    }
    let word = &line.cell.last_check;
    if word.compare_exchange(last_check, now.0, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let mut are_withdrawn = false;
    for slot in old {
        let claim = line.cell.slots[slot].claim.load(Ordering::Acquire);
        let is_stuck = match record::thread_state(line.layout, claim as Owner) {
            ThreadState::Stopped => true,
            ThreadState::Unknown => age(slot) >= UNSEEN,
            ThreadState::Live | ThreadState::Gone => false,
        };
        if !is_stuck {
            continue;
        }
        // Others of a process that was stopped are no better, and would be dispatched one by one.
        if !std::mem::replace(&mut are_withdrawn, true) {
            state.waiting().iter().for_each(|slot| withdraw_if_stopped(line, writer, slot));
        }
        line.advance(writer, |queue| {
            line.cell.slots[slot].claim.load(Ordering::Acquire) == claim && queue.pass_on(slot)
        });
    }
}

/// Withdraws a request whose thread is stopped. The thread arrives anew when it runs again.
fn withdraw_if_stopped(line: Line<'_>, writer: usize, slot: usize) {
    let claim = line.cell.slots[slot].claim.load(Ordering::Acquire);
    if record::thread_state(line.layout, claim as Owner) == ThreadState::Stopped {
        line.advance(writer, |queue| {
            line.cell.slots[slot].claim.load(Ordering::Acquire) == claim && queue.withdraw(slot)
        });
    }
}

/// Drops a request whose owner is gone, and frees its slot.
fn drop_if_gone(line: Line<'_>, writer: usize, slot: usize) {
    let cell = &line.cell.slots[slot % SLOTS_MAX];
    let claim = cell.claim.load(Ordering::Acquire);
    let owner = claim as Owner;
    if owner != 0 && !record::is_gone(line.layout, owner) {
        return;
    }
    line.advance(writer, |queue| {
        cell.claim.load(Ordering::Acquire) == claim && queue.drop_request(slot)
    });
    let free = claim & !u64::from(u32::MAX);
    let _ = cell.claim.compare_exchange(claim, free, Ordering::AcqRel, Ordering::Relaxed);
    line.wake_slot_waiters();
}

/// Frees every slot whose owner is gone: also those in no set, of threads that ended just after
/// they took a slot or just before they gave it back.
fn sweep(line: Line<'_>, writer: usize) {
    for slot in 0..SLOTS_MAX {
        if line.cell.slots[slot].claim.load(Ordering::Relaxed) as u32 != 0 {
            drop_if_gone(line, writer, slot);
        }
    }
}

/// Gives a permit back, now that the request has moved so many bytes (none: all that it requested).
pub(crate) fn release(layout: &SegmentLayout, permit: Permit, moved: Option<u64>) {
    let Some(line) = Line::of(layout, permit.queue()) else { return };
    let claim = line.slot(permit).claim.load(Ordering::Acquire);
    if claim >> 32 != u64::from(permit.generation) {
        return;
    }
    let owner = claim as Owner;
    // Another thread may finish what one began.
    let Some(own) = own_at_last(line) else { return };
    line.give_up(permit, owner, record::number(own), moved.map(weight));
    forget(layout, owner, permit);
    record::give_back(layout, owner);
    if own != owner {
        record::give_back(layout, own);
    }
}

/// The record under which this thread gives a permit back. Where all records are taken, those that
/// are borrowed come free in a moment; if none does, the permit comes back with the thread that has
/// it.
fn own_at_last(line: Line<'_>) -> Option<Owner> {
    for _ in 0..1_000 {
        if let Some(owner) = record::own(line.layout) {
            return Some(owner);
        }
        let slot_freed = line.cell.slot_freed.load(Ordering::Relaxed);
        sleep(&line.cell.slot_freed, slot_freed, SHORTEST);
    }
    None
}

/// Forgets a permit in its owner's record.
fn forget(layout: &SegmentLayout, owner: Owner, permit: Permit) {
    if let Some(record) = record::record(layout, owner) {
        record.forget(permit);
    }
}

/// Gives back what this thread holds of calls that it has left: those for which `is_left` holds of
/// the depth at which they were made.
pub(crate) fn reclaim(layout: &SegmentLayout, is_left: impl Fn(usize) -> bool) {
    let Some(owner) = record::own(layout) else { return };
    let Some(record) = record::record(layout, owner) else { return };
    // A signal may have interrupted the thread in a change, which may even go on after this.
    let is_busy = layout.writers[record::number(owner)].is_busy();
    let other = if is_busy { record::other(layout) } else { None };
    let writer = record::number(other.unwrap_or(owner));
    let mut holds = false;
    for (permit, depth) in record.noted() {
        if depth == 0 {
            continue;
        }
        if !is_left(depth) {
            holds = true;
            continue;
        }
        if let Some(line) = Line::of(layout, permit.queue()) {
            line.give_up(permit, owner, writer, None);
        }
        record.forget(permit);
    }
    other.into_iter().chain([owner]).for_each(|it| record::give_back(layout, it));
    local::holds(holds);
}

/// How many requests wait at a queue.
pub(crate) fn waiting(layout: &SegmentLayout, index: usize) -> usize {
    if index >= layout.queues.len() {
        return 0;
    }
    layout.states().snapshot(index, |word| Queue::waiting_count(word)) as usize
}

/// Frees the slots of a queue that their owners left, also if no thread waits. The agent of a stage
/// calls this from time to time.
#[cfg(feature = "agent")]
pub(crate) fn tidy(layout: &SegmentLayout, index: usize) {
    if let Some(line) = Line::of(layout, index) {
        check_holders(line, crate::layout::AGENT);
        sweep(line, crate::layout::AGENT);
    }
}

/// Changes a queue's parameters, keeping the waiting requests. To be called by the agent.
#[cfg(feature = "agent")]
pub(crate) fn configure(layout: &SegmentLayout, index: usize, change: impl Fn(&mut Queue)) {
    if let Some(line) = Line::of(layout, index) {
        line.advance(crate::layout::AGENT, |queue| {
            change(queue);
            true
        });
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
