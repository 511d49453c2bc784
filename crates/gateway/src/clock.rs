//! The gateway's clock: time-outs of handshakes, of the shutdown and of reconnects to nodes, and
//! its start time.

use std::time::Duration;

pub(crate) use tidegate_fabric::clock::{kernel_time as now, unix_ms};
use tidegate_model::{Span, Time};

/// The point of time that is so far ahead.
pub(crate) fn after(duration: Duration) -> Time {
    now().after(Span(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
}

/// The time left until `time`; zero if `time` has passed, none for [`Time::MAX`].
pub(crate) fn until(time: Time) -> Option<Duration> {
    (time != Time::MAX).then(|| Duration::from_nanos(time.since(now()).0))
}
