//! How far a run is, on standard error, for whoever waits.

use std::io::{self, IsTerminal, Write as _};

use tidegate_model::{Span, Time};
use tidegate_sim::e2e::Progress;

use crate::amounts;
use crate::clock::Clock;

/// After so long people want to know how far it is, and then as often.
const PATIENCE: Span = Span(2 * Span::SECOND.0);

/// Says how far a long run is, on standard error, where people see it.
pub(super) struct Watch {
    clock: Clock,
    is_wanted: bool,
    next: Time,
    is_shown: bool,
}

impl Watch {
    pub(super) fn start(is_json: bool) -> Self {
        let is_wanted = !is_json && io::stderr().is_terminal();
        let next = Time::ZERO.after(PATIENCE);
        Self { clock: Clock::start(), is_wanted, next, is_shown: false }
    }

    pub(super) fn on_progress(&mut self, progress: &Progress) {
        let now = self.clock.now();
        if !self.is_wanted || now < self.next {
            return;
        }
        self.next = now.after(Span(Span::SECOND.0 / 4));
        self.is_shown = true;
        // Whoever closed standard error does not want to know.
        let _ = write!(io::stderr(), "\r{}\x1b[K", far(progress, now.since(Time::ZERO)));
    }

    pub(super) fn end(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// How far a run is after so much time of ours.
fn far(progress: &Progress, took: Span) -> String {
    let Progress { now, length, events } = *progress;
    let part = now.0 as f64 / length.0.max(1) as f64;
    let left = Span((took.0 as f64 * (1.0 - part) / part.max(1e-9)) as u64);
    let speed = events as f64 / took.as_seconds().max(1e-9);
    format!(
        "{now} of {length}, {} events/s, {} left",
        amounts::count(speed as u64),
        amounts::age(left.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_it_is() {
        let progress = Progress {
            now: Span(10 * Span::MILLISECOND.0),
            length: Span(50 * Span::MILLISECOND.0),
            events: 9_000_000,
        };
        let text = far(&progress, Span(3 * Span::SECOND.0));
        assert_eq!(text, "10ms of 50ms, 3M events/s, 12 s left");
    }
}
