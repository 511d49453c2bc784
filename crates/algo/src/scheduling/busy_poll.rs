//! Adaptive busy polling: how long a worker thread polls for requests before it sleeps.
//!
//! # Problem
//! A client with few requests outstanding waits for replies, and the worker waits for requests. If
//! the worker sleeps each time, a request pays for a sleep, a signal to an idle processor and a
//! wakeup, which together take several times as long as a read from memory. Polling instead takes
//! the processor from other threads, and achieves nothing where requests are rare.
//!
//! # Mechanism
//! The length of the next poll follows the last sleeps, as the poll of a halted virtual processor
//! does in KVM. A sleep shorter than `limit` could have been a poll: the next one is twice as long,
//! [`FIRST`] at first, `limit` at most. After a longer sleep the next poll has no length. A polling
//! worker yields its processor between two checks for requests. Where a yield takes longer than
//! [`YIELD_MAX`], another thread has run: there are more threads than processors, and a poll delays
//! the one that it waits for. Then no poll begins for a pause of [`PAUSE_MIN`]. Where another
//! thread has run again within [`RELAPSE`] of a pause, the next pause is twice as long, up to
//! [`PAUSE_MAX`]; an interrupt looks the same, but comes more rarely.
//!
//! # Bound
//! One poll takes at most `limit`, and one yield more. A worker whose requests come at intervals
//! longer than twice `limit` does not poll. Beside a thread that never sleeps, it yields once in
//! each [`PAUSE_MAX`], after the first pauses.

use tidegate_model::{Span, Time};

/// The length of the first poll after a short sleep.
pub const FIRST: Span = Span(10 * Span::MICROSECOND.0);

/// The longest yield on an otherwise idle processor: a system call takes less than a microsecond,
/// and a switch to another thread and back more than this. Chosen by measurement.
pub const YIELD_MAX: Span = Span(3 * Span::MICROSECOND.0);

/// The first pause after another thread has run. Chosen by measurement.
pub const PAUSE_MIN: Span = Span::MILLISECOND;

/// The longest pause.
pub const PAUSE_MAX: Span = Span(16 * Span::MILLISECOND.0);

/// Another thread that runs again so soon after a pause is there to stay.
pub const RELAPSE: Span = Span(200 * Span::MICROSECOND.0);

/// The polls of one worker.
///
/// ```
/// use tidegate_algo::scheduling::busy_poll::{BusyPoll, FIRST};
/// use tidegate_model::{Span, Time};
///
/// let us = |count| Span(count * Span::MICROSECOND.0);
/// let mut poll = BusyPoll::new(us(50));
/// assert_eq!(poll.length(Time::ZERO), Span::ZERO, "nothing is known yet");
/// poll.on_sleep(us(30));
/// assert_eq!(poll.length(Time::ZERO), FIRST);
/// poll.on_sleep(us(30));
/// poll.on_sleep(us(30));
/// poll.on_sleep(us(30));
/// assert_eq!(poll.length(Time::ZERO), us(50));
/// poll.on_sleep(us(51));
/// assert_eq!(poll.length(Time::ZERO), Span::ZERO, "requests are rare");
/// ```
#[derive(Clone, Debug)]
pub struct BusyPoll {
    limit: Span,
    length: Span,
    /// The last pause, and its end.
    pause: Span,
    resumes_at: Time,
}

impl BusyPoll {
    /// Polls of at most `limit`; none if that is zero.
    pub const fn new(limit: Span) -> Self {
        Self { limit, length: Span::ZERO, pause: Span::ZERO, resumes_at: Time::ZERO }
    }

    /// How long to poll from now on before a sleep.
    pub fn length(&self, now: Time) -> Span {
        if now < self.resumes_at { Span::ZERO } else { self.length }
    }

    /// The worker had nothing to do for so long, in its last poll and the sleep that followed.
    pub fn on_sleep(&mut self, idle: Span) {
        self.length = match idle > self.limit {
            true => Span::ZERO,
            false => Span((2 * self.length.0).max(FIRST.0)).min(self.limit),
        };
    }

    /// A yield within a poll took so long, until now. Returns whether the poll goes on.
    pub fn on_yield(&mut self, now: Time, took: Span) -> bool {
        if took <= YIELD_MAX {
            return true;
        }
        let is_relapse = self.pause > Span::ZERO && now.since(self.resumes_at) <= RELAPSE;
        self.pause = match is_relapse {
            true => Span(2 * self.pause.0).min(PAUSE_MAX),
            false => PAUSE_MIN,
        };
        self.resumes_at = now.after(self.pause);
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: Span = Span(50 * Span::MICROSECOND.0);

    #[test]
    fn a_limit_of_zero_never_polls() {
        let mut poll = BusyPoll::new(Span::ZERO);
        poll.on_sleep(Span::ZERO);
        assert_eq!(poll.length(Time(1)), Span::ZERO);
    }

    #[test]
    fn a_pause_doubles_only_where_it_did_not_help() {
        let mut poll = BusyPoll::new(LIMIT);
        poll.on_sleep(Span(1));
        let mut now = Time::ZERO.after(PAUSE_MAX);
        assert!(poll.on_yield(now, YIELD_MAX));
        let mut pauses = [PAUSE_MIN; 7];
        for pause in &mut pauses {
            assert!(!poll.on_yield(now, Span(YIELD_MAX.0 + 1)));
            *pause = poll.resumes_at.since(now);
            assert_eq!(poll.length(poll.resumes_at), FIRST);
            assert_eq!(poll.length(Time(poll.resumes_at.0 - 1)), Span::ZERO);
            now = poll.resumes_at.after(RELAPSE);
        }
        let factors = pauses.map(|pause| pause.0 / PAUSE_MIN.0);
        assert_eq!(factors, [1, 2, 4, 8, 16, 16, 16]);
        let later = poll.resumes_at.after(Span(RELAPSE.0 + 1));
        assert!(!poll.on_yield(later, Span(YIELD_MAX.0 + 1)));
        assert_eq!(poll.resumes_at.since(later), PAUSE_MIN);
    }

    proptest! {
        #[test]
        fn a_poll_is_never_longer_than_the_limit_nor_after_a_long_sleep(
            limit in 0_u64..1_000_000,
            steps in proptest::collection::vec((0_u64..2_000_000, 0_u64..10_000), 1..100),
        ) {
            let mut poll = BusyPoll::new(Span(limit));
            let mut now = Time::ZERO;
            for (idle, took) in steps {
                now = now.after(Span(idle));
                poll.on_sleep(Span(idle));
                prop_assert!(poll.length(now).0 <= limit);
                prop_assert!(idle <= limit || poll.length(now) == Span::ZERO);
                let goes_on = poll.on_yield(now, Span(took));
                prop_assert_eq!(goes_on, took <= YIELD_MAX.0);
                prop_assert!(goes_on || poll.length(now) == Span::ZERO);
            }
        }
    }
}
