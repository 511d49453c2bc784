//! Baseline speed of the machine, so that results of two machines can be compared.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use super::window::{WindowPlan, ours};
use super::{Row, window};
use tidegate_console::clock::Clock;

pub(super) fn rows(plan: WindowPlan, report: &mut dyn FnMut(Row)) {
    let (counter, clock) = (AtomicU64::new(0), Clock::start());
    let add = |_: usize, calls: u64| {
        for _ in 0..calls {
            black_box(counter.fetch_add(1, Ordering::Relaxed));
        }
    };
    let read_clock = |_: usize, calls| window::read_clock(clock, calls);
    let [alone, together, clock] = ours(plan, [(1, &add), (2, &add), (1, &read_clock)]);
    report(Row::nanoseconds("machine", "an atomic addition", alone));
    report(Row::nanoseconds("machine", "an atomic addition, two threads on one word", together));
    report(Row::nanoseconds("machine", "the system's clock", clock));
}
