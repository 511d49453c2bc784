//! Measures the call rate of an operation of nanoseconds, on a machine that other programs use.
//!
//! Threads call without pause and note, every millisecond, how often they did and how much time of
//! a processor they had. Only those milliseconds count in which every thread had its processor all
//! the time: they show the rate of which the threads together are capable. The result is their
//! median. With more threads than processors there are no such milliseconds; then the result is the
//! number of calls by the processor time that the threads had.

use std::thread;

use rustix::time::{ClockId, clock_gettime};
use tidegate_model::{Span, Time};

use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};

/// How long threads call in one run.
const LENGTH: Span = Span(50 * Span::MILLISECOND.0);

/// Between two notes. A time slice of the kernel's is three times as long.
const NOTE: Span = Span::MILLISECOND;

/// Calls between two readings of the clock.
const BLOCK: u64 = 64;

/// A thread had its processor all the time if it had it for this share of the time, in hundredths.
const UNDISTURBED_PERCENT: u64 = 97;

/// Fewer undisturbed notes than this are chance.
const NOTES_MIN: usize = 20;

/// The name of a thread, by which a stage can identify it. At most 15 bytes, as the kernel has it.
pub(crate) fn thread_name(number: usize) -> String {
    format!("client-{number}")
}

/// How fast something is called, from several runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// Calls per second, for each note that nothing disturbed.
    undisturbed: Vec<f64>,
    /// All calls, and the processor's time that they took.
    calls: u64,
    had: Span,
}

impl Pace {
    /// Has so many threads call `work` and do nothing else, for a while. A caller that compares
    /// several things lets them take turns, so that a machine that becomes slower does so for all
    /// of them.
    pub(crate) fn run<W: Fn() + Sync>(&mut self, threads: usize, work: &W) -> Result<(), Failure> {
        let notes = run(threads, work)?;
        self.undisturbed.extend(undisturbed(&notes));
        for note in notes.iter().flatten() {
            self.calls += note.calls;
            self.had = Span(self.had.0 + note.had.0);
        }
        Ok(())
    }

    /// Whether there were enough undisturbed notes.
    pub(crate) fn is_sure(&self) -> bool {
        self.undisturbed.len() >= NOTES_MIN
    }

    /// Calls per second of all of the threads together.
    pub(crate) fn per_second(&self, threads: usize) -> f64 {
        if self.is_sure() {
            let mut sorted = self.undisturbed.clone();
            sorted.sort_by(f64::total_cmp);
            return sorted[sorted.len() / 2];
        }
        // For each second of a processor's time, on as many as can be had.
        let processors = thread::available_parallelism().map_or(1, usize::from);
        self.calls as f64 / self.had.as_seconds().max(1e-9) * threads.min(processors) as f64
    }
}

/// Calls of one thread between two notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    from: Time,
    to: Time,
    calls: u64,
    /// How long it had a processor.
    had: Span,
}

impl Note {
    fn is_undisturbed(&self) -> bool {
        self.had.0 * 100 >= self.to.since(self.from).0 * UNDISTURBED_PERCENT
    }

    fn per_second(&self) -> f64 {
        self.calls as f64 / self.to.since(self.from).as_seconds()
    }
}

/// Has so many threads call, and gives what each noted.
fn run<W: Fn() + Sync>(threads: usize, work: &W) -> Result<Vec<Vec<Note>>, Failure> {
    let clock = Clock::start();
    let end = Time(LENGTH.0);
    thread::scope(|scope| {
        let spawn = |number| {
            let builder = thread::Builder::new().name(thread_name(number));
            builder.spawn_scoped(scope, || notes(work, clock, end))
        };
        let spawned: Result<Vec<_>, _> = (0..threads).map(spawn).collect();
        let spawned = spawned.map_err(|error| {
            Failure::new(Code::Failure, "no thread to measure with").cause(error)
        })?;
        let joined = spawned.into_iter().map(|thread| {
            // A panic of the thread's is one of ours.
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        Ok(joined.collect())
    })
}

/// Calls until `end`, and notes.
fn notes<W: Fn()>(work: &W, clock: Clock, end: Time) -> Vec<Note> {
    let mut notes = Vec::with_capacity((LENGTH.0 / NOTE.0) as usize + 1);
    let (mut from, mut had, mut calls) = (clock.now(), processor_time(), 0);
    while from < end {
        for _ in 0..BLOCK {
            work();
        }
        calls += BLOCK;
        let to = clock.now();
        if to.since(from) >= NOTE {
            let now = processor_time();
            notes.push(Note { from, to, calls, had: Span(now.0 - had.0) });
            (from, had, calls) = (clock.now(), processor_time(), 0);
        }
    }
    notes
}

/// How long this thread has had a processor so far.
pub(crate) fn processor_time() -> Span {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Span(time.tv_sec as u64 * Span::SECOND.0 + time.tv_nsec as u64)
}

/// Calls per second of all threads, for each note of the first thread in which no thread was
/// disturbed.
fn undisturbed(run: &[Vec<Note>]) -> Vec<f64> {
    let Some((first, others)) = run.split_first() else { return Vec::new() };
    let mut found = Vec::new();
    for note in first.iter().filter(|note| note.is_undisturbed()) {
        // Another thread's notes that touch this one.
        let touching = |notes: &[Note]| {
            let from = notes.partition_point(|other| other.to <= note.from);
            let until = notes.partition_point(|other| other.from < note.to);
            notes[from..until].to_vec()
        };
        let together: Option<f64> = others
            .iter()
            .map(|notes| {
                let touching = touching(notes);
                let is_whole =
                    touching.first()?.from <= note.from && note.to <= touching.last()?.to;
                let is_fit = is_whole && touching.iter().all(Note::is_undisturbed);
                let sum: f64 = touching.iter().map(Note::per_second).sum();
                is_fit.then_some(sum / touching.len() as f64)
            })
            .sum();
        found.extend(together.map(|others| others + note.per_second()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(from_us: u64, to_us: u64, calls: u64, had_us: u64) -> Note {
        let at = |us: u64| Time(us * 1_000);
        Note { from: at(from_us), to: at(to_us), calls, had: Span(had_us * 1_000) }
    }

    #[test]
    fn only_undisturbed_measurements_count() {
        // The second thread is taken off its processor in its second note, and starts late.
        let first = vec![note(0, 1_000, 10, 1_000), note(1_000, 2_000, 20, 990)];
        let third = vec![note(2_000, 3_000, 30, 1_000), note(3_000, 4_000, 40, 100)];
        let second = vec![note(500, 1_600, 11, 1_100), note(1_600, 2_900, 13, 400)];
        let late = vec![note(2_900, 4_000, 22, 1_100)];
        let one = [first, third].concat();
        assert_eq!(undisturbed(std::slice::from_ref(&one)), [10_000.0, 20_000.0, 30_000.0]);
        let two = [second, late].concat();
        assert_eq!(undisturbed(&[one.clone(), two]), [0.0; 0]);
        let calm = vec![note(500, 1_600, 11, 1_100), note(1_600, 2_700, 11, 1_090)];
        assert_eq!(undisturbed(&[one, calm]), [30_000.0]);
        assert_eq!(undisturbed(&[]), [0.0; 0]);
    }

    #[test]
    fn a_pace_is_about_what_it_is() {
        // Something that takes at least ten microseconds.
        let clock = Clock::start();
        let slow = || {
            let begin = clock.now();
            while clock.now().since(begin).0 < 10_000 {}
        };
        let mut pace = Pace::default();
        // On a machine that never gives it a processor for a whole note, it has no pace yet.
        while pace.per_second(1) == 0.0 {
            pace.run(1, &slow).unwrap();
        }
        let per_second = pace.per_second(1);
        assert!(per_second < 101_000.0, "{per_second}");
    }
}
