//! Measures work of a few nanoseconds, in many short windows. Windows that were disturbed are
//! dropped, and the median of the rest counts.
//!
//! A window is two milliseconds of calls, so short that most windows fall between two time slices
//! of a busy machine. The kernel shows whether a window did: it counts how often a thread was taken
//! off its core and how long it then waited to get back. Contestants take turns, a window
//! each, so that a machine that becomes slower becomes slower for all of them.
//!
//! The kernel does not see another virtual machine on the same core. So before each round of
//! contestants the bench measures the machine itself, at reading its clock. Of a contestant's
//! windows only the half counts before which the machine was fastest. And every report begins with
//! the speed of the machine itself.

use std::fs;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tidegate_model::{Span, Time};

use crate::experiment::witness::waited;
use tidegate_console::clock::Clock;

/// Work to measure; see [`Ours`].
pub(super) type MeasuredWork<'a> = &'a (dyn Fn(usize, u64) + Sync);

/// Why there is no value.
pub(super) const BUSY: &str = "the machine was too busy to measure this";

/// A window may have waited this share of its length for its core.
const DELAY_SHARE: f64 = 0.01;
/// Threads of a window start within this share of its length of each other.
const SKEW_SHARE: f64 = 0.05;
/// Fewer windows than this prove nothing.
const KEPT_MIN: usize = 5;
/// After this many times the wanted number of windows the machine is too busy.
const PATIENCE: usize = 20;
/// Calls are made in blocks of this length; between them a thread checks whether its window is
/// over.
const BLOCK: Span = Span(20_000);
/// How long a thread waits for the others of its window before it lets another process run.
const GATHER: Span = Span(150_000);

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowPlan {
    /// The length of a window, about.
    pub(super) length: Span,
    /// Windows of each contestant that count; as many again are left out.
    pub(super) windows: usize,
    /// The least repetitions of work that takes longer than a window.
    pub(super) rounds: usize,
}

impl WindowPlan {
    /// The plan of a full report.
    pub(crate) const FULL: Self = Self { length: Span(2_000_000), windows: 25, rounds: 40 };
    /// Enough to see that everything works.
    pub(crate) const QUICK: Self = Self { length: Span(500_000), windows: 5, rounds: 3 };
    /// Enough for a test.
    #[cfg(test)]
    pub(super) const TINY: Self = Self { length: Span(20_000), windows: KEPT_MIN, rounds: 1 };

    /// Whether the plan is for a report, and not only to see that everything works.
    pub(super) fn is_full(self) -> bool {
        self.rounds >= Self::FULL.rounds
    }
}

/// A piece of work or a program that can be measured.
pub(super) trait Contestant {
    /// One window on as many threads as there are cores: nanoseconds per call and thread, or
    /// nothing if it was disturbed.
    fn window(&mut self, length: Span, cores: &[usize]) -> Option<f64>;
}

/// Work of this process.
pub(super) struct Ours<'a> {
    work: Box<dyn Fn(usize, u64) + Sync + 'a>,
    /// Calls in a block.
    block: u64,
}

impl<'a> Ours<'a> {
    /// Work to measure: so many calls, made by the thread with this number.
    pub(super) fn new(work: impl Fn(usize, u64) + Sync + 'a) -> Self {
        // The first call initialises state, and its time must not make blocks short.
        work(0, 1);
        let mut block = 1;
        let clock = Clock::start();
        loop {
            let begin = clock.now();
            work(0, block);
            if clock.now().since(begin) >= BLOCK {
                return Self { work: Box::new(work), block };
            }
            block *= 2;
        }
    }
}

impl Contestant for Ours<'_> {
    fn window(&mut self, length: Span, cores: &[usize]) -> Option<f64> {
        let (work, block) = (&self.work, self.block);
        let gathering = Gathering { missing: AtomicU32::new(cores.len() as u32) };
        let (gathering, clock) = (&gathering, Clock::start());
        let samples = thread::scope(|scope| {
            let start = |(number, core): (usize, &usize)| {
                let core = *core;
                scope.spawn(move || {
                    pin(core);
                    ThreadSample::measure(
                        &|calls| work(number, calls),
                        block,
                        (clock, length),
                        gathering,
                    )
                })
            };
            let threads = cores.iter().enumerate().map(start).collect::<Vec<_>>();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
        });
        if samples.len() < cores.len() || samples.iter().any(ThreadSample::disturbed) {
            return None;
        }
        let begins = || samples.iter().map(|sample| sample.begin);
        let skew = begins().max()?.since(begins().min()?);
        if skew.as_seconds() > SKEW_SHARE * length.as_seconds() {
            return None;
        }
        // Where threads get in each other's way one of them may get more done than the other: the
        // work of all threads together counts.
        let rate = samples.iter().map(|sample| sample.calls as f64 / sample.nanoseconds());
        Some(cores.len() as f64 / rate.sum::<f64>())
    }
}

/// The kernel's counters of a thread so far.
#[derive(Clone, Copy, Debug)]
struct ThreadCounters {
    /// Nanoseconds that it was ready to run and did not.
    delayed: u64,
    /// How often it was taken off its core.
    switched: u64,
}

impl ThreadCounters {
    fn read() -> Self {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let name = "nonvoluntary_ctxt_switches:";
        let switched = status.lines().find_map(|line| line.strip_prefix(name));
        let switched = switched.and_then(|count| count.trim().parse().ok());
        Self { delayed: waited().0, switched: switched.unwrap_or(0) }
    }
}

/// One thread's part of a window.
#[derive(Clone, Copy, Debug)]
struct ThreadSample {
    begin: Time,
    end: Time,
    calls: u64,
    delayed: u64,
    switched: bool,
}

impl ThreadSample {
    fn measure(
        work: &dyn Fn(u64),
        block: u64,
        (clock, length): (Clock, Span),
        gathering: &Gathering,
    ) -> Self {
        // Caches, and state that a thread initialises on its first call.
        work(block);
        let before = ThreadCounters::read();
        gathering.arrive(clock);
        let begin = clock.now();
        let (mut end, mut calls) = (begin, 0);
        while end.since(begin) < length {
            work(block);
            calls += block;
            end = clock.now();
        }
        let after = ThreadCounters::read();
        let delayed = after.delayed.saturating_sub(before.delayed);
        Self { begin, end, calls, delayed, switched: after.switched != before.switched }
    }

    fn nanoseconds(&self) -> f64 {
        self.end.since(self.begin).0.max(1) as f64
    }

    fn disturbed(&self) -> bool {
        self.switched || self.delayed as f64 > DELAY_SHARE * self.nanoseconds()
    }
}

/// Where the threads of a window wait for each other, without sleeping.
#[derive(Debug)]
struct Gathering {
    missing: AtomicU32,
}

impl Gathering {
    fn arrive(&self, clock: Clock) {
        self.missing.fetch_sub(1, Ordering::AcqRel);
        let mut since = clock.now();
        while self.missing.load(Ordering::Acquire) > 0 {
            std::hint::spin_loop();
            if clock.now().since(since) > GATHER {
                // The other may need this very core.
                thread::yield_now();
                since = clock.now();
            }
        }
    }
}

/// The cores that this process may use.
fn cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    // Where it is forbidden the scheduler decides; disturbed windows are dropped.
    let _ = sched_setaffinity(None, &set);
}

/// Measures contestants in turns, each on so many threads: nanoseconds per call and thread, or
/// nothing for one that was disturbed too often, or that wants more cores than there are.
pub(super) fn contest(
    plan: WindowPlan,
    contestants: &mut [(usize, &mut dyn Contestant)],
) -> Vec<Option<f64>> {
    let cores = cores();
    let last = &cores[cores.len().saturating_sub(1)..];
    let wanted = plan.windows * 2;
    let mut kept: Vec<Vec<MeasuredWindow>> = vec![Vec::new(); contestants.len()];
    let clock = Clock::start();
    let mut machine = Ours::new(|_, calls| read_clock(clock, calls));
    for _ in 0..wanted * PATIENCE {
        let before = machine.window(Span(plan.length.0 / 4), last).unwrap_or(f64::INFINITY);
        for ((threads, contestant), kept) in contestants.iter_mut().zip(&mut kept) {
            // The last cores: the first is where interrupts go, usually.
            let Some(first) = cores.len().checked_sub(*threads) else { continue };
            if kept.len() >= wanted {
                continue;
            }
            match contestant.window(plan.length, &cores[first..]) {
                Some(value) => kept.push(MeasuredWindow { before, value }),
                // Other processes get the cores for the length of a window; then the bench goes on.
                None => clock.sleep_until(clock.now().after(plan.length)),
            }
        }
        if kept.iter().all(|kept| kept.len() >= wanted) {
            break;
        }
    }
    kept.into_iter().map(summary).collect()
}

/// The value of a window, and the machine's time to read its clock just before; both in
/// nanoseconds per call.
#[derive(Clone, Copy, Debug)]
struct MeasuredWindow {
    before: f64,
    value: f64,
}

/// The median of the half before which the machine was fastest; nothing if there are too few.
fn summary(mut windows: Vec<MeasuredWindow>) -> Option<f64> {
    windows.sort_by(|left, right| left.before.total_cmp(&right.before));
    windows.truncate(windows.len().div_ceil(2));
    let mut values = windows.iter().map(|window| window.value).collect::<Vec<_>>();
    values.sort_by(f64::total_cmp);
    (values.len() >= KEPT_MIN).then(|| values[values.len() / 2])
}

pub(super) fn read_clock(clock: Clock, calls: u64) {
    for _ in 0..calls {
        black_box(clock.now());
    }
}

/// [`contest`] for work of this process only, each on so many threads.
pub(super) fn ours<const N: usize>(
    plan: WindowPlan,
    works: [(usize, MeasuredWork<'_>); N],
) -> [Option<f64>; N] {
    let mut ours = works.map(|(threads, work)| (threads, Ours::new(work)));
    let contestants = ours.each_mut();
    let mut contestants = contestants.map(|(threads, one)| (*threads, one as &mut dyn Contestant));
    let values = contest(plan, &mut contestants);
    std::array::from_fn(|index| values[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers from a list.
    struct Scripted(Vec<Option<f64>>);

    impl Contestant for Scripted {
        fn window(&mut self, _: Span, _: &[usize]) -> Option<f64> {
            self.0.pop().unwrap_or(Some(7.0))
        }
    }

    #[test]
    fn disturbed_windows_are_made_again_and_the_median_counts() {
        let mut some = Scripted(vec![Some(1.0), None, None, Some(7.0)]);
        let mut never = Scripted(vec![None; 1_000]);
        let values = contest(WindowPlan::QUICK, &mut [(1, &mut some), (1, &mut never)]);
        assert_eq!(values, [Some(7.0), None]);
    }

    #[test]
    fn what_was_measured_on_a_slow_machine_does_not_count() {
        let slow = (0..7).map(|_| MeasuredWindow { before: 2.0, value: 1e9 });
        let fast = (0..8).map(|number| MeasuredWindow { before: 1.0, value: f64::from(number) });
        assert_eq!(summary(slow.chain(fast).collect()), Some(4.0));
        assert_eq!(
            summary(vec![MeasuredWindow { before: 1.0, value: 1.0 }; 2 * KEPT_MIN - 2]),
            None
        );
    }

    #[test]
    fn more_threads_than_cores_cannot_be_measured() {
        let mut one = Scripted(vec![]);
        assert_eq!(contest(WindowPlan::QUICK, &mut [(100_000, &mut one)]), [None]);
    }
}
