//! Ctrl-C, as a flag that is checked wherever the experiment waits, so that all that was started
//! and written is cleared away before the command ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use tidegate_model::{Span, Time};

use crate::clock::Clock;
use crate::failure::{Code, Failure};

/// The longest time from Ctrl-C until it is noticed.
const POLL_INTERVAL: Span = Span(25 * Span::MILLISECOND.0);

/// The signal that ended the command; zero if none has.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From now on the signals that end a command are noticed here and do nothing else.
    ///
    /// # Errors
    /// If the system does not let us.
    pub fn listen() -> Result<Self, Failure> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = usize::try_from(signal).unwrap_or_default();
            flag::register_usize(signal, Arc::clone(&interrupt.0), number).map_err(no_signals)?;
        }
        Ok(interrupt)
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// If a signal has arrived.
    pub fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            // The exit code that shells report for a command that ended by a signal.
            signal => Err(Failure::silent(Code::Other(
                u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128)),
            ))),
        }
    }

    /// Sleeps until `due`.
    ///
    /// # Errors
    /// If a signal arrives meanwhile.
    pub fn sleep_until(&self, clock: Clock, due: Time) -> Result<(), Failure> {
        loop {
            self.check()?;
            let now = clock.now();
            if now >= due {
                return Ok(());
            }
            clock.sleep_until(now.after(POLL_INTERVAL).min(due));
        }
    }
}

/// The failure of a command that cannot listen for signals.
pub fn no_signals(error: io::Error) -> Failure {
    Failure::new(Code::Failure, "cannot listen for signals").cause(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_interrupts_every_wait() {
        let interrupt = Interrupt::default();
        let clock = Clock::start();
        assert!(interrupt.sleep_until(clock, Time::ZERO).is_ok());
        interrupt.0.store(2, Ordering::Relaxed);
        let failure = interrupt.sleep_until(clock, Time::MAX).unwrap_err();
        assert_eq!(serde_json::to_value(failure.to_json()).unwrap()["exit_code"], 130);
    }
}
