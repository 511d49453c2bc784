//! A device of known speed, for experiments: another engine carries out the work, and each
//! completion is delayed to the modelled time.
//!
//! # Model
//! One server that takes `1 / rate` per unit of cost, give or take `variance` percent, drawn
//! uniformly and independently from a seed. Work is served in order of arrival; its completion time
//! is fixed on arrival, `due = max(due of the last, now) + service`.
//!
//! # Mechanism
//! One thread sleeps until the next is due. A sleep on a virtual machine ends some 60 µs late, and
//! much later on a busy one, and only then the node dispatches the next request. If its service
//! began at that moment, the device would be too slow: at 20 000 a second and a depth of one, 60 µs
//! would halve the rate. But a queue that was not empty means that the device was not idle. So work
//! that is dispatched after a completion starts where the last work ended, however late it is by
//! the clock, and only work that arrives at an idle device starts now. As long as requests wait the
//! rate is exact over any time much longer than one lateness.

use std::cell::Cell;
use std::collections::BinaryHeap;
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use tidegate_fabric::clock::Clock;
use tidegate_fabric::service::Command;
use tidegate_model::{Iops, Span, Time};
use tidegate_proto::data::pieces::PIECE;

use super::{Engine, Sink, Work};
use crate::mutex::lock;
use crate::threads;

thread_local! {
    /// This thread passes on due work, and everything it runs meanwhile is a consequence of that.
    static FOLLOWS: Cell<bool> = const { Cell::new(false) };
}

/// The speed of a modelled device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Units of cost per second, at least one.
    pub rate: Iops,
    /// The largest deviation of a service time from the average, in percent: 0 to 100.
    pub variance: u32,
    /// Decides the service times; the same seed gives the same ones.
    pub seed: u64,
}

/// The completion time of each job, from its arrival and its cost.
#[derive(Debug)]
pub(crate) struct Schedule {
    speed: Speed,
    random: u64,
    /// When the last one is done.
    busy_until: Time,
    /// Nanoseconds carried over, as a fraction of `rate`: the remainder of the division.
    remainder: u64,
}

impl Schedule {
    pub(crate) fn new(speed: Speed) -> Self {
        // A generator of this kind never leaves zero.
        let random = speed.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { speed, random, busy_until: Time::ZERO, remainder: 0 }
    }

    /// The completion time of work of this cost that arrives at `now`, or directly behind the last
    /// work if there is no `now`.
    pub(crate) fn due(&mut self, now: Option<Time>, cost: u32) -> Time {
        self.busy_until = self.busy_until.max(now.unwrap_or(Time::ZERO));
        let rate = self.speed.rate.0.max(1);
        // At most 2^32 units, a second each, twice as long at most: 2^63 ns.
        let owed = u64::from(cost) * Span::SECOND.0 + self.remainder;
        self.remainder = owed % rate;
        let service = self.vary(owed / rate);
        self.busy_until = self.busy_until.after(Span(service));
        self.busy_until
    }

    /// `service`, give or take the variance.
    fn vary(&mut self, service: u64) -> u64 {
        let spread = u64::from(self.speed.variance.min(100));
        if spread == 0 {
            return service;
        }
        // xorshift64*: long enough a period, and equally spread in its upper bits.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let drawn = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        let width = u128::from(service) * u128::from(2 * spread) / 100;
        let drawn = (width * u128::from(drawn)) >> 32;
        service - service * spread / 100 + drawn as u64
    }
}

/// The units that a modelled device spends on the work: zeros are written.
fn units(work: &Work) -> u32 {
    match work.body.job.command {
        Command::Zero { .. } => work.body.job.length.div_ceil(PIECE).max(1),
        _ => work.units(),
    }
}

/// An engine with the service times of a modelled device.
pub(crate) struct Modelled {
    inner: OnceLock<Box<dyn Engine>>,
    clock: Clock,
    schedule: Mutex<Schedule>,
    late: Arc<Late>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Work that is finished and not yet due.
struct Late {
    sink: Arc<dyn Sink>,
    clock: Clock,
    heap: Mutex<BinaryHeap<Due>>,
    is_sooner: Condvar,
    is_ending: AtomicBool,
}

struct Due(Work);

impl Ord for Due {
    /// The greatest of a heap comes first, and that is to be the soonest.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.0.body.due.cmp(&self.0.body.due)
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.0.body.due == other.0.body.due
    }
}

impl Eq for Due {}

impl Modelled {
    /// Around an engine made by `make`, which receives the sink for work that is not finished at
    /// once.
    pub(crate) fn start(
        speed: Speed,
        clock: Clock,
        sink: Arc<dyn Sink>,
        make: impl FnOnce(Arc<dyn Sink>) -> io::Result<Box<dyn Engine>>,
    ) -> io::Result<Self> {
        let late = Arc::new(Late {
            sink,
            clock,
            heap: Mutex::default(),
            is_sooner: Condvar::new(),
            is_ending: AtomicBool::new(false),
        });
        let inner = OnceLock::from(make(late.clone())?);
        let timer = late.clone();
        let thread = threads::spawn("model", move || timer.serve())?;
        let schedule = Mutex::new(Schedule::new(speed));
        Ok(Self { inner, clock, schedule, late, thread: Mutex::new(Some(thread)) })
    }
}

impl Engine for Modelled {
    fn run(&self, work: &mut Vec<Work>, _done: &mut Vec<Work>) {
        let now = (!FOLLOWS.get()).then(|| self.clock.now());
        let mut schedule = lock(&self.schedule);
        work.iter_mut().for_each(|work| work.body.due = schedule.due(now, units(work)));
        drop(schedule);
        let mut at_once = Vec::with_capacity(work.len());
        if let Some(inner) = self.inner.get() {
            inner.run(work, &mut at_once);
        }
        self.late.finished(&mut at_once);
    }

    fn fault(&self) -> Option<String> {
        self.inner.get().and_then(|inner| inner.fault())
    }

    fn stop(&self) {
        if let Some(inner) = self.inner.get() {
            inner.stop();
        }
        self.late.is_ending.store(true, Ordering::Release);
        drop(lock(&self.late.heap));
        self.late.is_sooner.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Sink for Late {
    fn finished(&self, work: &mut Vec<Work>) {
        let mut heap = lock(&self.heap);
        // The thread that passes on due work has ended, or ends with its remaining work.
        if self.is_ending.load(Ordering::Acquire) {
            drop(heap);
            return self.sink.finished(work);
        }
        let soonest = heap.peek().map_or(Time::MAX, |due| due.0.body.due);
        heap.extend(work.drain(..).map(Due));
        let is_sooner = heap.peek().is_some_and(|due| due.0.body.due < soonest);
        drop(heap);
        if is_sooner {
            self.is_sooner.notify_one();
        }
    }
}

impl Late {
    /// Passes on due work until the end, and then all remaining work at once.
    fn serve(&self) {
        // The kernel may otherwise let a sleeper sleep 50 µs longer, to wake several together.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut due = Vec::new();
        let mut heap = lock(&self.heap);
        loop {
            let is_ending = self.is_ending.load(Ordering::Acquire);
            let now = if is_ending { Time::MAX } else { self.clock.now() };
            while heap.peek().is_some_and(|soonest| soonest.0.body.due <= now) {
                due.extend(heap.pop().map(|due| due.0));
            }
            if !due.is_empty() {
                drop(heap);
                FOLLOWS.set(true);
                self.sink.finished(&mut due);
                FOLLOWS.set(false);
                heap = lock(&self.heap);
                continue;
            }
            if is_ending {
                return;
            }
            heap = match heap.peek().map(|soonest| soonest.0.body.due) {
                None => self.is_sooner.wait(heap).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    let patience = self.clock.until(time);
                    let waited = self.is_sooner.wait_timeout(heap, patience);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use super::*;
    use crate::engine::Inline;
    use crate::engine::samples::{Pipe, work};
    use crate::store::Memory;
    use proptest::prelude::*;
    use std::sync::mpsc;
    use tidegate_model::Bytes;

    proptest! {
        #[test]
        fn what_follows_is_served_at_the_rate(
            rate in 100u64..1_000_000,
            variance in 0u32..=100,
            seed: u64,
            count in 500u64..1_000,
        ) {
            let mut schedule = Schedule::new(Speed { rate: Iops(rate), variance, seed });
            for _ in 0..count {
                schedule.due(None, 1);
            }
            let (exact, found) = (count * Span::SECOND.0 / rate, schedule.busy_until.0);
            // The sum of n uniform draws of ±v lies within six deviations: 6 v sqrt(n / 3).
            let bound = 6.0 * f64::from(variance) / 100.0 * (count as f64 / 3.0).sqrt();
            let bound = (bound * 1e9 / rate as f64) as u64 + count;
            prop_assert!(exact.abs_diff(found) <= bound, "{exact} {found} {bound}");
        }

        #[test]
        fn a_service_time_is_within_the_variance(variance in 0u32..=100, seed: u64) {
            let mut schedule = Schedule::new(Speed { rate: Iops(1_000), variance, seed });
            let mut before = Time(Span::SECOND.0);
            schedule.busy_until = before;
            for _ in 0..100 {
                let due = schedule.due(Some(before), 2);
                let (service, spread) = (due.since(before).0, 20_000 * u64::from(variance));
                prop_assert!(service.abs_diff(2_000_000) <= spread + 1);
                before = due;
            }
        }
    }

    #[test]
    fn what_comes_after_the_end_is_answered_all_the_same() {
        let (sender, finished) = mpsc::channel();
        let speed = Speed { rate: Iops(1), variance: 0, seed: 0 };
        let medium = Arc::new(Memory::new(Bytes(0)));
        let make = |_| -> io::Result<Box<dyn Engine>> { Ok(Box::new(Inline { medium })) };
        let pipe = Arc::new(Pipe(Mutex::new(sender)));
        let engine = Modelled::start(speed, Clock::start(), pipe, make).unwrap();
        engine.stop();
        let work = work(7, Command::Flush, 0, 0, b"");
        engine.run(&mut vec![work], &mut Vec::new());
        assert_eq!(finished.try_recv().map(|work| work.body.job.ticket), Ok(7));
    }

    #[test]
    fn idleness_is_not_made_up() {
        let mut schedule = Schedule::new(Speed { rate: Iops(1_000), variance: 0, seed: 0 });
        let second = Time(Span::SECOND.0);
        assert_eq!(schedule.due(Some(second), 1), second.after(Span::MILLISECOND));
        assert_eq!(schedule.due(Some(second), 3), second.after(Span(4_000_000)));
        assert_eq!(schedule.due(None, 1), second.after(Span(5_000_000)));
        let later = second.after(Span::SECOND);
        assert_eq!(schedule.due(Some(later), 1), later.after(Span::MILLISECOND));
    }
}
