//! Waiting of a connection to a data node: it sleeps until the model of an RNIC, the engine or the
//! lifeline has work, and measures how late it was woken up.

use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::Timespec;
use tidegate_model::{Span, Time};
use tidegate_onesided::kv::OperationOutcome;

use super::{Connection, Error, NAP};
use crate::clock::kernel_time;

/// Lateness up to this length is not added to the sum.
const PROMPT: Span = Span::MILLISECOND;

/// How late a connection was called although there was something to do: the machine had no
/// processor for its thread, or the program had something else to do.
///
/// Meanwhile a client does no more than it has in flight, so it falls behind where that is less
/// than its demand. It makes up for the paced part of its reservation, up to a fiftieth of a
/// period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// The longest time.
    pub longest: Span,
    /// Of all times longer than a millisecond.
    pub sum: Span,
}

impl Lateness {
    pub(super) fn add(&mut self, late: Span) {
        self.longest = self.longest.max(late);
        if late > PROMPT {
            self.sum.0 += late.0;
        }
    }
}

impl Connection {
    /// Goes on until something has ended, or there is nothing under way. Sleeps meanwhile.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn wait(&mut self, outcomes: &mut Vec<OperationOutcome>) -> Result<(), Error> {
        let before = outcomes.len();
        loop {
            self.poll(outcomes)?;
            if outcomes.len() > before || self.client.outstanding() == 0 {
                return Ok(());
            }
            self.sleep(Time::MAX);
        }
    }

    /// The same until something has ended, a period has begun, or it is `until`.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn wait_until(
        &mut self,
        until: Time,
        outcomes: &mut Vec<OperationOutcome>,
    ) -> Result<(), Error> {
        let (before, period) = (outcomes.len(), self.period());
        loop {
            self.poll(outcomes)?;
            if outcomes.len() > before || self.now >= until || self.period() != period {
                return Ok(());
            }
            self.sleep(until);
        }
    }

    /// How late it was called since the last call of this.
    pub fn lateness(&mut self) -> Lateness {
        std::mem::take(&mut self.late)
    }

    /// Sleeps until there may be something to do, but not after `until`.
    fn sleep(&mut self, until: Time) {
        let deadline = self.next_deadline().min(until);
        self.due = deadline;
        match deadline.since(kernel_time()) {
            Span::ZERO => return,
            wait if wait < NAP => return std::thread::yield_now(),
            _ => {}
        }
        let seconds = deadline.0 / Span::SECOND.0;
        let nanoseconds = deadline.0 % Span::SECOND.0;
        let at = Timespec { tv_sec: seconds as i64, tv_nsec: nanoseconds as i64 };
        // A signal wakes us early, which does no harm.
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &at);
    }
}
