//! The table of requests that wait for tokens.
//!
//! A request takes its tokens before it waits, so that requests go in the order in which they came.
//! If its process is killed meanwhile, the tokens are lost: a tenant whose programs are killed a
//! thousand times would pay for a thousand requests that were never made. So a request that waits
//! has a *cell* in the segment with its tokens and its position in line, and a *lease* on it. Its
//! thread renews the lease each time it checks, ten times a second. Other waiting threads, or the
//! agent of the stage, *sweep* the table: a lease that was not renewed for [`ASLEEP`] ends, and the
//! tokens go back to the bucket.
//!
//! ```text
//!          register            renew               end: the request goes
//!   free ───────────▶ waiting ───────▶ waiting ─────────────────────────▶ free
//!    ▲                   │
//!    └───────────────────┘ sweep: the lease has ended, the tokens go back
//! ```
//!
//! The lease asks the kernel nothing. So it holds for threads in any namespace, and for programs
//! whose own filters on system calls forbid a thread to ask who it is. A thread that was stopped
//! for longer than its lease, and so has lost its tokens, takes them anew at the end of the line.
//! Each step is one compare-and-exchange of the lease's word, so either the thread has its tokens
//! or the bucket has them.
//!
//! Tokens stay lost of a thread that ended
//!
//! - after its turn came, when its request may have reached the storage;
//! - in the few instructions between taking the tokens and the table;
//! - while [`WAITERS_MAX`] others waited, so that there was no cell for it.
//!
//! Waiters in front of the dead one must not go earlier ([`token_bucket`]), so a sweep moves their
//! due positions on. A sweep that takes longer than [`RECHECK`] may meet the next one. Then a
//! waiter may go earlier by the tokens of one dead request.
//!
//! [`token_bucket`]: tidegate_algo::shaping::token_bucket

use std::sync::atomic::{Ordering, fence};

use tidegate_algo::shaping::token_bucket::Due;
use tidegate_model::{Span, Time};

use crate::layout::{SegmentLayout, WAITERS_MAX, WaiterCell, WaiterTable};
use crate::wait::{ASLEEP, RECHECK, one_fewer};

/// Bit of a lease: its cell is being filled. One that stays so has no tokens to give back.
const FILLING: u64 = 1 << 8;
/// Where in a lease the time begins, in milliseconds; below are one more than the gate's number,
/// so that no lease is zero, and the bit.
const TIME_BIT: u32 = 16;

/// The word of a lease on a cell, as of `now`.
const fn lease(gate: u8, now: Time) -> u64 {
    (now.0 / Span::MILLISECOND.0) << TIME_BIT | (gate as u64 + 1)
}

/// The gate of a lease.
fn gate(lease: u64) -> usize {
    usize::from(lease as u8).wrapping_sub(1)
}

fn has_ended(lease: u64, now: Time) -> bool {
    let since = Time((lease >> TIME_BIT).saturating_mul(Span::MILLISECOND.0));
    now.since(since) > ASLEEP
}

/// The cell of a waiting request: its tokens, its position in line, and its lease.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    cell: &'a WaiterCell,
    gate: u8,
    lease: u64,
}

/// Finds a cell for a request that waits at `gate`, with its due position and its tokens. None if
/// all cells are taken; then the tokens are lost if the thread ends.
pub(crate) fn register(
    table: &WaiterTable,
    gate: u8,
    (due, tokens): (Due, u64),
    now: Time,
) -> Option<Waiter<'_>> {
    let first = table.next.fetch_add(1, Ordering::Relaxed) as usize;
    let lease = lease(gate, now);
    let take = |cell: &&WaiterCell| {
        let word = &cell.lease;
        word.load(Ordering::Relaxed) == 0
            && word
                .compare_exchange(0, lease | FILLING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    };
    let mut cells = (0..WAITERS_MAX).map(|offset| &table.cells[(first + offset) % WAITERS_MAX]);
    let cell = cells.find(take)?;
    cell.due.store(due.position(), Ordering::Relaxed);
    cell.tokens.store(tokens, Ordering::Relaxed);
    let filled =
        cell.lease.compare_exchange(lease | FILLING, lease, Ordering::AcqRel, Ordering::Relaxed);
    filled.is_ok().then_some(Waiter { cell, gate, lease })
}

impl Waiter<'_> {
    /// The request's due position, which moves on when a request behind it is gone.
    pub(crate) fn due(&self) -> Due {
        Due::at(self.cell.due.load(Ordering::Acquire))
    }

    /// Renews the lease. False if it has ended: the tokens were given back.
    #[must_use]
    pub(crate) fn renew(&mut self, now: Time) -> bool {
        let renewed = lease(self.gate, now);
        let is_kept = self.exchange(renewed);
        self.lease = renewed;
        is_kept
    }

    /// Ends the lease, for the request goes. False if it has ended before.
    #[must_use]
    pub(crate) fn end(&mut self) -> bool {
        self.exchange(0)
    }

    fn exchange(&self, new: u64) -> bool {
        let (word, old) = (&self.cell.lease, self.lease);
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Gives the tokens of waiters that are gone back to their buckets, unless that was done a moment
/// ago.
pub(crate) fn sweep(layout: &SegmentLayout, now: Time) {
    let table = &layout.waiters;
    let last = table.swept.load(Ordering::Relaxed);
    if now.since(Time(last)) < RECHECK {
        return;
    }
    let claim = table.swept.compare_exchange(last, now.0, Ordering::AcqRel, Ordering::Relaxed);
    if claim.is_err() {
        return;
    }
    for cell in &table.cells {
        let lease = cell.lease.load(Ordering::Acquire);
        if lease != 0 && has_ended(lease, now) {
            end_lease(layout, cell, lease);
        }
    }
}

/// Ends a lease that its thread did not renew.
#[cold]
fn end_lease(layout: &SegmentLayout, cell: &WaiterCell, lease: u64) {
    // Read before the exchange, after which the cell may be another request's.
    let due = cell.due.load(Ordering::Relaxed);
    let tokens = cell.tokens.load(Ordering::Relaxed);
    let ended = cell.lease.compare_exchange(lease, 0, Ordering::AcqRel, Ordering::Relaxed);
    if ended.is_err() || lease & FILLING != 0 {
        return;
    }
    let Some(gate) = layout.gates.get(gate(lease)) else { return };
    // First those in front move on, then the tokens go back: they never seem to be ready earlier.
    for other in &layout.waiters.cells {
        let word = other.lease.load(Ordering::Acquire);
        if word as u16 == lease as u16 && other.due.load(Ordering::Relaxed) < due {
            other.due.fetch_add(tokens, Ordering::Release);
        }
    }
    one_fewer(&gate.sleepers);
    gate.bucket.give_back(tokens);
    // As where a request gives back what it did not use.
    fence(Ordering::SeqCst);
    if gate.sleepers.load(Ordering::Relaxed) > 0 {
        gate.changed();
    }
}

/// The tokens of a gate's waiters.
#[cfg(feature = "agent")]
pub(crate) fn tokens(layout: &SegmentLayout, gate: u8) -> u64 {
    let waiting = layout.waiters.cells.iter().filter_map(|cell| {
        let lease = cell.lease.load(Ordering::Acquire);
        let is_filled = lease != 0 && lease & FILLING == 0;
        (is_filled && self::gate(lease) == usize::from(gate))
            .then(|| cell.tokens.load(Ordering::Relaxed))
    });
    waiting.fold(0, u64::saturating_add)
}

/// Ends the leases of a gate's waiters without giving anything back.
#[cfg(feature = "agent")]
pub(crate) fn forget(layout: &SegmentLayout, gate: u8) {
    let Some(gate_cell) = layout.gates.get(usize::from(gate)) else { return };
    for cell in &layout.waiters.cells {
        let lease = cell.lease.load(Ordering::Relaxed);
        if lease == 0 || self::gate(lease) != usize::from(gate) {
            continue;
        }
        let ended = cell.lease.compare_exchange(lease, 0, Ordering::AcqRel, Ordering::Relaxed);
        if ended.is_ok() && lease & FILLING == 0 {
            one_fewer(&gate_cell.sleepers);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use tidegate_algo::shaping::token_bucket::Take;

    use super::*;
    use crate::segment::Segment;

    const GATE: u8 = 3;
    const RATE: u64 = 1_000;
    /// On the clock of these tests, which none of them reads.
    const BEGIN: Time = Time(1_000 * Span::SECOND.0);

    fn later(milliseconds: u64) -> Time {
        BEGIN.after(Span(milliseconds * Span::MILLISECOND.0))
    }

    /// A stage whose bucket holds little, and is empty.
    fn empty_bucket() -> Segment {
        let segment = Segment::private().unwrap();
        let bucket = &segment.gates[usize::from(GATE)].bucket;
        bucket.configure(RATE, 1, BEGIN);
        assert_eq!(bucket.take(1, BEGIN), Take::Granted);
        segment
    }

    /// Takes tokens in advance.
    fn due(segment: &Segment, tokens: u64) -> Due {
        match segment.gates[usize::from(GATE)].bucket.take(tokens, BEGIN) {
            Take::Wait(due) => due,
            Take::Granted => panic!("the bucket is empty"),
        }
    }

    fn waiter(segment: &Segment, tokens: u64) -> Waiter<'_> {
        let request = (due(segment, tokens), tokens);
        register(&segment.waiters, GATE, request, BEGIN).unwrap()
    }

    /// When the bucket's waiter may go, in milliseconds.
    fn ready(segment: &Segment, waiter: &Waiter<'_>) -> u64 {
        let ready = segment.gates[usize::from(GATE)].bucket.ready_at(waiter.due());
        // A rate is rounded down.
        ready.since(BEGIN).0 / Span::MILLISECOND.0
    }

    fn taken(segment: &Segment) -> usize {
        let cells = &segment.waiters.cells;
        cells.iter().filter(|cell| cell.lease.load(Ordering::Relaxed) != 0).count()
    }

    #[test]
    fn tokens_of_a_thousand_dead_waiters_come_back_and_live_ones_keep_their_turns() {
        let segment = empty_bucket();
        let mut first = waiter(&segment, 5_000);
        let dead: Vec<_> = (0..1_000).map(|_| waiter(&segment, 100)).collect();
        let mut last = waiter(&segment, 7);
        let before = ready(&segment, &first);
        assert!(ready(&segment, &last) >= 105_000, "{}", ready(&segment, &last));
        // Nobody is given up while leases run.
        sweep(&segment, later(1_900));
        assert_eq!(taken(&segment), 1_002);
        assert!(first.renew(later(1_900)) && last.renew(later(1_900)));
        sweep(&segment, later(2_100));
        assert_eq!(taken(&segment), 2);
        assert_eq!(ready(&segment, &first), before, "nobody in front of the dead goes earlier");
        let ready_last = ready(&segment, &last);
        assert!((5_000..5_010).contains(&ready_last), "{ready_last}: only the live are in front");
        assert!(first.end() && last.end());
        assert_eq!(taken(&segment), 0);
        drop(dead);
    }

    #[test]
    fn a_lease_that_has_ended_is_lost_to_its_thread_and_nothing_comes_back_twice() {
        let segment = empty_bucket();
        let mut stopped = waiter(&segment, 100);
        let level = || segment.gates[usize::from(GATE)].bucket.level(BEGIN);
        assert_eq!(level(), -100);
        sweep(&segment, later(2_100));
        assert_eq!(level(), 0);
        assert!(!stopped.renew(later(2_100)) && !stopped.end());
        sweep(&segment, later(9_000));
        assert_eq!(level(), 0);
    }

    #[test]
    #[cfg(feature = "agent")]
    fn waiters_of_a_held_bucket_go_on_from_its_end_and_the_dead_leave_the_line() {
        let segment = empty_bucket();
        let stopped = &mut waiter(&segment, 300);
        let first = &mut waiter(&segment, 100);
        let before = [&*stopped, &*first].map(|waiter| ready(&segment, waiter));
        let bucket = &segment.gates[usize::from(GATE)].bucket;
        bucket.hold(later(5_000), Time::MAX, BEGIN);
        let behind = &waiter(&segment, 7);
        let after = [&*stopped, &*first, behind].map(|waiter| ready(&segment, waiter));
        assert_eq!(after[..2], before.map(|at| at + 5_000));
        assert!(after[2] > after[1], "{after:?}");
        assert_eq!(tokens(&segment, GATE), 407);
        // A waiter whose lease has ended takes its own tokens with it, and no others.
        assert!(first.renew(later(1_900)));
        sweep(&segment, later(2_100));
        assert!(!stopped.renew(later(2_100)));
        assert_eq!(ready(&segment, first), after[1] - 300);
        assert_eq!(tokens(&segment, GATE), 100, "nor does the third renew its lease");
    }

    #[test]
    fn a_table_is_swept_ten_times_a_second_at_most() {
        let segment = empty_bucket();
        sweep(&segment, later(2_000));
        let _dead = waiter(&segment, 100);
        sweep(&segment, later(2_099));
        assert_eq!(taken(&segment), 1);
        sweep(&segment, later(2_100));
        assert_eq!(taken(&segment), 0);
    }

    #[test]
    fn a_full_table_has_no_cell_and_dead_ones_are_freed() {
        let segment = empty_bucket();
        let all: Vec<_> = (0..WAITERS_MAX).map(|_| waiter(&segment, 1)).collect();
        let register = || register(&segment.waiters, GATE, (Due::at(9), 1), later(2_100));
        assert!(register().is_none());
        sweep(&segment, later(2_100));
        assert!(register().is_some());
        drop(all);
    }

    /// A thread that was killed just after it took a cell.
    #[test]
    fn a_cell_that_was_never_filled_is_freed() {
        let segment = empty_bucket();
        let filling = lease(GATE, BEGIN) | FILLING;
        segment.waiters.cells[0].lease.store(filling, Ordering::Relaxed);
        segment.waiters.cells[0].tokens.store(100, Ordering::Relaxed);
        sweep(&segment, later(2_100));
        assert_eq!(taken(&segment), 0);
        assert_eq!(segment.gates[usize::from(GATE)].bucket.level(BEGIN), 0, "it held nothing");
    }

    #[test]
    fn waiters_of_other_gates_are_left_alone() {
        let segment = empty_bucket();
        let request = (due(&segment, 100), 100);
        let mut other = register(&segment.waiters, GATE + 1, (Due::at(0), 1), later(2_000));
        let _dead = register(&segment.waiters, GATE, request, BEGIN).unwrap();
        sweep(&segment, later(2_100));
        let other = other.as_mut().unwrap();
        assert_eq!((other.due(), taken(&segment)), (Due::at(0), 1));
        #[cfg(feature = "agent")]
        {
            forget(&segment, GATE);
            assert_eq!(taken(&segment), 1);
            forget(&segment, GATE + 1);
            assert_eq!((taken(&segment), other.end()), (0, false));
        }
    }
}
