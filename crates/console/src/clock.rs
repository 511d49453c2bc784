//! The one clock of commands.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_model::{Span, Time};

/// A clock that was set to zero when it was made, and never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since it was started.
    pub fn now(self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time from now until `time`; zero once that has come.
    pub fn until(self, time: Time) -> Span {
        time.since(self.now())
    }

    /// Sleeps until `time`.
    pub fn sleep_until(self, time: Time) {
        thread::sleep(Duration::from_nanos(self.until(time).0));
    }
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
