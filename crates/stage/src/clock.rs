//! The stage's clock: nanoseconds of `CLOCK_MONOTONIC`, read from the time-stamp counter where that
//! can be trusted.
//!
//! A bucket's decision takes a few nanoseconds; asking the kernel for the time takes 23, reading
//! the counter 10. So the agent publishes in the segment how ticks become nanoseconds, and every
//! process of the stage uses the same words: two processes never disagree on when a token is
//! earned. The agent sets them anew every second, so that the rate follows the kernel's clock.
//! Without an agent the last words stay; they drift by parts in a million.

use std::sync::{LazyLock, Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use tidegate_algo::concurrent::published::Published;
use tidegate_model::Time;

/// Fraction bits of nanoseconds per tick. At 5 GHz a tick is 0.2 ns: 30 significant bits are left.
const FRACTION_BITS: u32 = 32;

/// Returns the kernel's monotonic time. The function is not inlined: where the counter is used,
/// requests do not call it.
#[inline(never)]
pub(crate) fn kernel_time() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// The time: from the counter if `words` calibrate it, else from the kernel.
#[inline]
pub(crate) fn now(words: &Published<3>) -> Time {
    let [ticks, nanoseconds, scale] = words.read();
    if scale == 0 {
        return kernel_time();
    }
    let elapsed = counter().saturating_sub(ticks);
    let elapsed = (u128::from(elapsed) * u128::from(scale)) >> FRACTION_BITS;
    Time(nanoseconds.saturating_add(elapsed as u64))
}

/// The time-stamp counter. It is not ordered with the instructions around it; the tens of
/// nanoseconds by which it can be early do not matter to a bucket.
#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: the instruction exists on every x86-64 and touches nothing. Where the kernel forbids
    // it (prctl PR_SET_TSC), `trustworthy` has found another clock source in use.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

/// Whether the kernel itself keeps time by the counter: it then runs at one rate on every core and
/// through every power state.
fn trustworthy() -> bool {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string(source).is_ok_and(|name| name.trim() == "tsc")
}

/// A moment on both clocks.
#[derive(Clone, Copy, Debug)]
struct Sighting {
    ticks: u64,
    nanoseconds: u64,
}

impl Sighting {
    /// Of a few attempts the one with the least time between the readings: an interrupt between
    /// them would look like a skew.
    fn take() -> Self {
        let attempt = || {
            let before = counter();
            let nanoseconds = kernel_time().0;
            let after = counter();
            (after.wrapping_sub(before), Self { ticks: before / 2 + after / 2, nanoseconds })
        };
        let best = (0..8).map(|_| attempt()).min_by_key(|(width, _)| *width);
        best.map_or_else(|| attempt().1, |(_, sighting)| sighting)
    }
}

/// The first sighting of this process: rates are measured from here, so they get better with time.
/// Anew when the clocks have come apart, as they do while a machine is suspended: the counter may
/// go on then, and the kernel's clock does not.
static FIRST: LazyLock<Mutex<Sighting>> = LazyLock::new(|| Mutex::new(Sighting::take()));
/// Nanoseconds by which the clocks may differ before they are taken to have come apart. Between two
/// settings they drift by some microseconds.
const APART: u64 = 1_000_000;

/// Publishes how ticks become nanoseconds. To be called by the agent, at the start and then about
/// once a second.
pub(crate) fn set(words: &Published<3>) {
    if !trustworthy() {
        return;
    }
    let mut last = Sighting::take();
    let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
    if words.read()[2] != 0 && now(words).0.abs_diff(kernel_time().0) > APART {
        *first = last;
    }
    // Over two milliseconds the error of a sighting, some 50 ns, is 25 parts in a million.
    while last.nanoseconds.saturating_sub(first.nanoseconds) < 2_000_000 {
        std::hint::spin_loop();
        last = Sighting::take();
    }
    let ticks = u128::from(last.ticks.saturating_sub(first.ticks).max(1));
    let nanoseconds = u128::from(last.nanoseconds - first.nanoseconds);
    let scale = (nanoseconds << FRACTION_BITS) / ticks;
    words.write([last.ticks, last.nanoseconds, scale as u64]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_came_apart_are_set_anew() {
        let words = Published::default();
        set(&words);
        let [ticks, nanoseconds, scale] = words.read();
        if scale == 0 {
            return; // This machine's counter is not to be trusted, and nothing goes by it.
        }
        // An hour of suspension, in which the counter went on.
        words.write([ticks, nanoseconds + 3_600_000_000_000, scale]);
        set(&words);
        assert!(now(&words).0.abs_diff(kernel_time().0) < APART);
        let [_, _, again] = words.read();
        assert!(again.abs_diff(scale) < scale / 1_000, "{again} ticks per nanosecond, not {scale}");
    }

    #[test]
    fn both_clocks_show_the_same_time() {
        let words = Published::default();
        assert!(now(&words) >= Time(1), "without words the kernel's clock answers");
        set(&words);
        for _ in 0..1_000 {
            let (before, counted, after) = (kernel_time(), now(&words), kernel_time());
            // A hundredth of a second since the words were set is some microseconds of drift.
            assert!(counted.0 + 50_000 >= before.0 && counted.0 <= after.0 + 50_000);
        }
    }
}
