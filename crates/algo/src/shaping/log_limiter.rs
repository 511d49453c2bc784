//! Rate limit on log lines: it bounds the lines that unidentified clients can cause.
//!
//! # Problem
//! A log line per refused client, half handshake or malformed request lets any process that reaches
//! a listener fill the disk with one cheap loop.
//!
//! # Mechanism
//! Of the events of one kind, the first ones in an [`INTERVAL`] are logged whole; the rest is only
//! counted. The next line reports that count. Example: with one line per interval and a thousand
//! events per second, the log has one line each ten seconds, and all but the first say
//! `unlogged=9999`. With a few lines, several clients that fail at once have a line each. A line at
//! the interval's end even where no event follows would need a timer in each place; the metrics
//! count every event already.
//!
//! # Bound
//! At most `lines_max` lines per interval, however many events there are.

use tidegate_model::{Span, Time};

/// A flood is logged anew after this time: an operator sees that it lasts. Chosen by hand.
pub const INTERVAL: Span = Span(10 * Span::SECOND.0);

/// Lines of one kind in an [`INTERVAL`], where a place has no reason for another number: a day of a
/// flood fills about seven megabytes. Chosen by hand.
const LINES_MAX: u32 = 5;

/// The log lines about one kind of event.
///
/// ```
/// use tidegate_algo::shaping::log_limiter::{INTERVAL, LogLimiter};
/// use tidegate_model::{Span, Time};
///
/// let mut refusals = LogLimiter::new(1);
/// assert_eq!(refusals.admit(Time::ZERO), Some(0), "the first event is logged whole");
/// assert_eq!(refusals.admit(Time(5)), None);
/// assert_eq!(refusals.admit(Time(6)), None);
/// assert_eq!(refusals.admit(Time::ZERO.after(INTERVAL)), Some(2), "two were not logged");
/// ```
#[derive(Clone, Debug)]
pub struct LogLimiter {
    lines_max: u32,
    /// Lines in the interval that began then; none before the first event.
    lines: u32,
    began: Option<Time>,
    unlogged: u64,
}

impl LogLimiter {
    /// At most so many lines in an [`INTERVAL`].
    pub const fn new(lines_max: u32) -> Self {
        Self { lines_max, lines: 0, began: None, unlogged: 0 }
    }

    /// Counts an event. If it may be logged, returns the number of events since the last line that
    /// were not.
    pub fn admit(&mut self, now: Time) -> Option<u64> {
        if self.began.is_none_or(|began| now.since(began) >= INTERVAL) {
            (self.began, self.lines) = (Some(now), 0);
        }
        if self.lines >= self.lines_max {
            self.unlogged = self.unlogged.saturating_add(1);
            return None;
        }
        self.lines += 1;
        Some(core::mem::take(&mut self.unlogged))
    }
}

impl Default for LogLimiter {
    /// Five lines in an [`INTERVAL`].
    fn default() -> Self {
        Self::new(LINES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lines_are_bounded_and_every_event_is_logged_or_counted(
            lines_max in 1_u32..4,
            waits in proptest::collection::vec(0_u64..INTERVAL.0, 1..200),
        ) {
            let mut limiter = LogLimiter::new(lines_max);
            let (mut now, mut lines, mut counted) = (Time::ZERO, Vec::new(), 0);
            let events = waits.len() as u64;
            for wait in waits {
                now = now.after(Span(wait / 8));
                if let Some(unlogged) = limiter.admit(now) {
                    lines.push(now);
                    counted += unlogged;
                }
            }
            prop_assert_eq!(lines.len() as u64 + counted + limiter.unlogged, events);
            for window in lines.windows(lines_max as usize * 2 + 1) {
                let span = window[window.len() - 1].since(window[0]);
                prop_assert!(span >= INTERVAL, "{window:?}");
            }
        }
    }

    #[test]
    fn a_pause_makes_the_next_event_a_first_one() {
        let mut limiter = LogLimiter::new(2);
        assert_eq!([0, 1, 2, 3].map(|at| limiter.admit(Time(at))), [Some(0), Some(0), None, None]);
        let later = Time::ZERO.after(Span(3 * INTERVAL.0));
        assert_eq!([limiter.admit(later), limiter.admit(later)], [Some(2), Some(0)]);
        assert_eq!(limiter.admit(later), None);
    }
}
