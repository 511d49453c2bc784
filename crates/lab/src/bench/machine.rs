//! The speed of the machine itself, for comparisons of rows of two machines.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use super::window::{Plan, ours};
use super::{Row, window};
use tidegate_console::clock::Clock;

pub(super) fn rows(plan: Plan, tell: &mut dyn FnMut(Row)) {
    let (counter, clock) = (AtomicU64::new(0), Clock::start());
    let add = |_: usize, calls: u64| {
        for _ in 0..calls {
            black_box(counter.fetch_add(1, Ordering::Relaxed));
        }
    };
    let look = |_: usize, calls| window::look(clock, calls);
    let [alone, together, clock] = ours(plan, [(1, &add), (2, &add), (1, &look)]);
    tell(Row::nanoseconds("machine", "an atomic addition", alone));
    tell(Row::nanoseconds("machine", "an atomic addition, two threads on one word", together));
    tell(Row::nanoseconds("machine", "the system's clock", clock));
}
