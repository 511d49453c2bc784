//! Disturbance of a live measurement by other load on the machine, second by second.
//!
//! A probe thread asks for a processor for a moment, again and again, or a load thread reads its
//! own count. A second is *disturbed* if that thread was ready and others kept it from a processor
//! for more than [`WAIT_MAX`]: the kernel counts its waits (`schedstat`), and a wait counts as far
//! as others had processors meanwhile ([`super::others`]). The thread's lateness says nothing: it
//! may sleep too long for other reasons. Where seconds are measured one by one, disturbed ones are
//! left out. If they are more than a fifth, the run has no verdict.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::process::{getpriority_process, setpriority_process};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tidegate_console::clock::Clock;
use tidegate_model::{Span, Time};

use super::others::OthersTime;
use super::witness::waited;

/// Longer waits for processors that others have disturb a second.
pub(crate) const WAIT_MAX: Span = Span(20 * Span::MILLISECOND.0);

/// A run with a greater part of disturbed seconds says nothing: one in so many.
const ONE_IN: usize = 5;

/// How much sooner than others the processes of a run get a processor, in the kernel's measure.
const FIRST: i32 = -15;

/// The watching thread wants a processor this often.
const BEAT: Span = Span(2 * Span::MILLISECOND.0);

/// How long this thread has waited for a processor so far, and others have had one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadWaits {
    waited: Span,
    others: OthersTime,
}

impl ThreadWaits {
    pub(crate) fn now() -> Self {
        Self { waited: waited(), others: OthersTime::now() }
    }

    /// The time since `before` for which others kept this thread from a processor.
    pub(crate) fn since(self, before: Self) -> Span {
        let waited = Span(self.waited.0.saturating_sub(before.waited.0));
        self.others.share_of(waited, before.others)
    }
}

/// Waits for a processor that others had, second by second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Quiet {
    waits: Vec<Span>,
}

impl Quiet {
    /// Adds a second, with the time for which others kept a thread from a processor in it.
    pub(crate) fn push(&mut self, waited: Span) {
        self.waits.push(waited);
    }

    /// Both runs together.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.waits.extend(other.waits);
        self
    }

    pub(crate) fn seconds(&self) -> impl Iterator<Item = bool> {
        self.waits.iter().map(|waited| *waited <= WAIT_MAX)
    }

    /// Why the run says nothing, if it says nothing.
    pub(crate) fn disturbance(&self) -> Option<String> {
        disturbance(self.disturbed(), self.waits.len(), 1)
    }

    fn disturbed(&self) -> usize {
        self.seconds().filter(|is_quiet| !is_quiet).count()
    }

    pub(crate) fn numbers(&self) -> Map<String, Value> {
        let longest = self.waits.iter().copied().max().unwrap_or(Span::ZERO);
        let numbers = json!({
            "watched_seconds": self.waits.len(),
            "disturbed_seconds": self.disturbed(),
            "waited_for_a_processor_at_most_ms": longest.0 / Span::MILLISECOND.0,
        });
        if let Value::Object(numbers) = numbers { numbers } else { Map::new() }
    }
}

/// Why a run says nothing in which so many of all seconds were disturbed, if it says nothing. Or of
/// all windows of a second, of which so many begin per second.
pub(crate) fn disturbance(disturbed: usize, all: usize, per_second: usize) -> Option<String> {
    (disturbed * ONE_IN > all).then(|| {
        let [disturbed, all] = [disturbed, all].map(|windows| windows.div_ceil(per_second));
        format!(
            "{disturbed} of {all} seconds were disturbed, in which other programs had processors \
             for more than {WAIT_MAX}, or the disk stood still: run it again"
        )
    })
}

/// This process, and what it starts, goes first until this is dropped, if it may.
pub(crate) struct PriorityBoost(Option<i32>);

impl PriorityBoost {
    pub(crate) fn raise() -> Self {
        let before = getpriority_process(None).ok();
        Self(before.filter(|_| setpriority_process(None, FIRST).is_ok()))
    }
}

impl Drop for PriorityBoost {
    fn drop(&mut self) {
        // Every process may lower its own priority.
        let _ = self.0.map(|before| setpriority_process(None, before));
    }
}

/// A thread that wants a processor all the time for a moment, and counts its waits.
#[derive(Debug)]
pub(crate) struct QuietProbe {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Quiet>>,
}

impl QuietProbe {
    pub(crate) fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let builder = thread::Builder::new().name("quiet".into());
        Self { is_over, thread: builder.spawn(move || watch(&until)).ok() }
    }

    /// Ends the thread, and returns what it counted.
    pub(crate) fn finish(mut self) -> Quiet {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for QuietProbe {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn watch(is_over: &AtomicBool) -> Quiet {
    let (clock, mut quiet) = (Clock::start(), Quiet::default());
    let mut before = ThreadWaits::now();
    let mut next = Time(Span::SECOND.0);
    while !is_over.load(Ordering::Relaxed) {
        clock.sleep_until(clock.now().after(BEAT));
        if clock.now() >= next {
            let now = ThreadWaits::now();
            quiet.push(now.since(before));
            (before, next) = (now, next.after(Span::SECOND));
        }
    }
    quiet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_fifth_of_disturbed_seconds_says_nothing() {
        let quiet = |disturbed: usize| {
            let mut quiet = Quiet::default();
            (0..10).for_each(|at| quiet.push(Span(WAIT_MAX.0 + u64::from(at < disturbed))));
            quiet
        };
        assert_eq!(quiet(2).disturbance(), None);
        assert_eq!(quiet(2).seconds().filter(|is_quiet| *is_quiet).count(), 8);
        assert!(quiet(3).disturbance().unwrap().starts_with("3 of 10 seconds were disturbed"));
        assert_eq!(quiet(2).and(quiet(1)).numbers()["disturbed_seconds"], 3);
        assert_eq!(Quiet::default().disturbance(), None, "nothing was run");
    }

    #[test]
    fn waits_for_a_processor_only_grow() {
        let before = ThreadWaits::now();
        let watch = QuietProbe::start();
        thread::yield_now();
        let now = ThreadWaits::now();
        assert!(now.waited >= before.waited);
        assert!(now.since(before) <= Span(now.waited.0 - before.waited.0));
        assert_eq!(watch.finish(), Quiet::default(), "less than a second");
    }
}
