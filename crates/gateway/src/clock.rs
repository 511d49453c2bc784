//! The gateway's clock: time-outs of handshakes, of the shutdown and of reconnects to nodes, and
//! its start time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tidegate_model::{Span, Time};

/// The time, on a clock that never goes back and is the same in all threads.
pub(crate) fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time(now.tv_sec as u64 * Span::SECOND.0 + now.tv_nsec as u64)
}

/// The time of day, in milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// The point of time that is so far ahead.
pub(crate) fn after(duration: Duration) -> Time {
    now().after(Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
}

/// The time left until `time`; zero if `time` has passed, none for [`Time::MAX`].
pub(crate) fn until(time: Time) -> Option<Duration> {
    (time != Time::MAX).then(|| Duration::from_nanos(time.since(now()).0))
}
