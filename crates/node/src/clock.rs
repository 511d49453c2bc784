//! The node's one clock. The machine, and all other code that can, receives the time as an
//! argument.

use std::time::{Duration, Instant};

use tidegate_model::{Span, Time};
use tidegate_proto::node::threads;

/// Nanoseconds since the node started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
}

/// The time of the wall clock, in seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now() }
    }

    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The kernel's monotonic time, which clients of a data node use, too.
    pub(crate) fn kernel_time() -> Time {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let second = Span::SECOND.0;
        Time(now.tv_sec.cast_unsigned() * second + now.tv_nsec.cast_unsigned())
    }

    /// How long it is until `time`; zero if it has passed.
    pub(crate) fn until(&self, time: Time) -> Duration {
        Duration::from_nanos(time.since(self.now()).0)
    }
}

impl threads::Clock for Clock {
    #[inline]
    fn now(self) -> Time {
        Self::now(&self)
    }
}
