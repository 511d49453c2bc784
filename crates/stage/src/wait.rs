//! Waits at gates: the futex that threads sleep on, and the counters of their waits.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;
use tidegate_model::Span;

use crate::asynchronous::Watch;
use crate::clock;
use crate::layout::GateCell;
use crate::local;

/// How long a sleeper sleeps at most before it checks again without a wakeup: the bound on what a
/// lost wake-up can cost.
pub(crate) const RECHECK: Span = Span(100 * Span::MILLISECOND.0);

/// A thread that waits for tokens and has not checked again for so long is dead, or as good as: it
/// was stopped. Chosen by hand: twenty times [`RECHECK`], so that a live thread on a busy machine
/// is seldom taken for a dead one, which costs the thread its turn.
pub(crate) const ASLEEP: Span = Span(2 * Span::SECOND.0);

/// Cost of a request at gates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) bytes: u64,
    pub(crate) operations: u64,
}

/// Counts one thread fewer that waits. Not below none: the agent may have given this one up, if it
/// was stopped for long.
pub(crate) fn one_fewer(waiting: &AtomicU32) {
    let fewer = |waiting: u32| waiting.checked_sub(1);
    let _ = waiting.fetch_update(Ordering::SeqCst, Ordering::Relaxed, fewer);
}

/// Counts a wait at a gate and how long it took, which it returns. That is a nanosecond at least,
/// even if the clock was set back meanwhile: zero stands for a request that did not wait.
pub(crate) fn count_wait(cell: &GateCell, waited: Span) -> Span {
    let waited = waited.max(Span(1));
    cell.delayed.fetch_add(1, Ordering::Relaxed);
    cell.waited.fetch_add(waited.0, Ordering::Relaxed);
    cell.waiting.record(waited);
    waited
}

/// When a watch polls first while a thread sleeps. Timers of the kernel are late by half of that.
const FIRST_POLL: Span = Span(100_000);

/// Sleeps until `word` is woken, unless it is no longer `seen`, or until `span` has passed, which
/// gives false. Meanwhile the thread's watch polls its ring, each time after half as long again
/// as the time before: a request's time is known within a half, for a dozen polls in a tenth of a
/// second.
pub(crate) fn sleep(word: &AtomicU32, seen: u32, span: Span) -> bool {
    let Some(Watch { poll, ring }) = local::watched() else {
        return sleep_unwatched(word, seen, span);
    };
    let until = clock::kernel_time().after(span);
    let mut next = FIRST_POLL;
    loop {
        let left = until.since(clock::kernel_time());
        if left <= next || !poll(ring) {
            return sleep_unwatched(word, seen, left);
        }
        if sleep_unwatched(word, seen, next) {
            return true;
        }
        next = Span(next.0 + next.0 / 2);
    }
}

fn sleep_unwatched(word: &AtomicU32, seen: u32, span: Span) -> bool {
    let timeout = futex::Timespec {
        tv_sec: (span.0 / 1_000_000_000) as i64,
        tv_nsec: (span.0 % 1_000_000_000) as _,
    };
    // Whatever it returns (woken, changed before, timed out, interrupted by a signal), the caller
    // checks again.
    let woken = futex::wait(word, futex::Flags::empty(), seen, Some(&timeout));
    woken != Err(Errno::TIMEDOUT)
}

/// Wakes up to `count` sleepers, in any process.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    // i32::MAX is how futexes spell "all".
    let _ = futex::wake(word, futex::Flags::empty(), count.min(i32::MAX as u32));
}
