//! Progress reports of a run, on standard error.

use std::io::{self, IsTerminal, Write as _};

use tidegate_model::{Span, Time};
use tidegate_netsim::e2e::E2eProgress;
use tidegate_sim::twin;

use tidegate_console::amounts;
use tidegate_console::clock::Clock;

/// The time before the first progress line, and between lines.
const PATIENCE: Span = Span(2 * Span::SECOND.0);

/// Reports the progress of a long run on standard error, for people.
pub(super) struct ProgressReport {
    clock: Clock,
    is_wanted: bool,
    next: Time,
    is_shown: bool,
}

impl ProgressReport {
    pub(super) fn start(is_json: bool) -> Self {
        let is_wanted = !is_json && io::stderr().is_terminal();
        let next = Time::ZERO.after(PATIENCE);
        Self { clock: Clock::start(), is_wanted, next, is_shown: false }
    }

    /// Writes a progress report, if one is due; `far` makes its text from the time since the start.
    pub(super) fn report(&mut self, far: impl FnOnce(Span) -> String) {
        let now = self.clock.now();
        if !self.is_wanted || now < self.next {
            return;
        }
        self.next = now.after(Span(Span::SECOND.0 / 4));
        self.is_shown = true;
        // A closed standard error needs no progress report.
        let _ = write!(io::stderr(), "\r{}\x1b[K", far(now.since(Time::ZERO)));
    }

    /// Writes a line, if somebody watches.
    pub(super) fn say(&self, line: &str) {
        if self.is_wanted {
            let _ = writeln!(io::stderr(), "{line}");
        }
    }

    pub(super) fn end(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// How far a run is after so much time of ours.
pub(super) fn far(progress: &E2eProgress, took: Span) -> String {
    let E2eProgress { now, length, events } = *progress;
    let part = now.0 as f64 / length.0.max(1) as f64;
    let left = Span((took.0 as f64 * (1.0 - part) / part.max(1e-9)) as u64);
    let speed = events as f64 / took.as_seconds().max(1e-9);
    format!(
        "{now} of {length}, {} events/s, {} left",
        amounts::count(speed as u64),
        amounts::age(left.0)
    )
}

/// The progress of replays of a recording, one after the other.
pub(super) struct ReplayWatch {
    report: ProgressReport,
    /// Where the current replay was at the last report.
    last: Option<twin::Progress>,
    /// When it began.
    began: Time,
}

impl ReplayWatch {
    /// Watches replays of a recording of this length. Reports go to standard error, so that
    /// standard output may be JSON.
    pub(super) fn start(length: Span, requests: usize) -> Self {
        let report = ProgressReport::start(false);
        let length = amounts::span(length.0);
        let requests = amounts::plural(requests as u64, "request");
        report.say(&format!("the recording has {requests} in {length}; Ctrl-C ends a replay"));
        Self { report, last: None, began: Time::ZERO }
    }

    /// A replay for `what` is so far.
    pub(super) fn report(&mut self, what: &str, progress: twin::Progress) {
        let is_same =
            |last: twin::Progress| last.replay == progress.replay && last.now < progress.now;
        if !self.last.is_some_and(is_same) {
            self.began = self.report.clock.now();
        }
        self.last = Some(progress);
        let began = self.began;
        self.report.report(|now| far_of_replay(what, progress, Time(now.0).since(began)));
    }

    pub(super) fn end(&self) {
        self.report.end();
    }
}

/// How far a replay is after so much time of ours.
fn far_of_replay(what: &str, progress: twin::Progress, took: Span) -> String {
    let twin::Progress { now, length, replay } = progress;
    let speed = now.0 as f64 / took.0.max(1) as f64;
    let left = match now {
        Span::ZERO => "unknown time".into(),
        _ => amounts::age((length.0.saturating_sub(now.0) as f64 / speed) as u64),
    };
    let [now, length] = [now, length].map(|span| amounts::age(span.0));
    let number = if replay > 1 { format!(", replay {replay}") } else { String::new() };
    let speed = amounts::count(speed as u64);
    format!("{what}{number}: {now} of {length}, {speed} times as fast as recorded, {left} left")
}

/// The same of a run of the discrete-time model.
pub(super) fn far_of_slots(done: u32, count: u32, took: Span) -> String {
    let left = took.0 as f64 * f64::from(count - done) / f64::from(done.max(1));
    let formatted = |slots: u32| amounts::count(slots.into());
    format!("{} of {} slots, {} left", formatted(done), formatted(count), amounts::age(left as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_it_is() {
        let progress = E2eProgress {
            now: Span(10 * Span::MILLISECOND.0),
            length: Span(50 * Span::MILLISECOND.0),
            events: 9_000_000,
        };
        let text = far(&progress, Span(3 * Span::SECOND.0));
        assert_eq!(text, "10ms of 50ms, 3M events/s, 12 s left");
        let text = far_of_slots(1_000_000, 5_000_000, Span(3 * Span::SECOND.0));
        assert_eq!(text, "1M of 5M slots, 12 s left");
        let minutes = |count: u64| Span(count * 60 * Span::SECOND.0);
        let progress = twin::Progress { now: minutes(90), length: minutes(1_440), replay: 3 };
        // 90 minutes of the recording in 30 seconds, so the other 1,350 in 450.
        let text = far_of_replay("b.toml", progress, Span(30 * Span::SECOND.0));
        let expected = "b.toml, replay 3: 1 h 30 min of 1 d, 180 times as fast as recorded, \
                        7 min 30 s left";
        assert_eq!(text, expected);
        let progress = twin::Progress { replay: 1, now: Span::ZERO, ..progress };
        let text = far_of_replay("b.toml", progress, Span::ZERO);
        assert!(text.starts_with("b.toml: 0 s of 1 d, "), "{text}");
        assert!(text.ends_with("unknown time left"), "{text}");
    }
}
