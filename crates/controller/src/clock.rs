//! The daemon's one clock. The machine is given the time, and so is everything else that can be.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_model::Time;

/// The longest that the machine sleeps without looking at its deadline; longer than any sensible
/// period, and far from the end of what the clock can express.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);

/// The machine's time: nanoseconds since the daemon started.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The time.
    pub fn now(&self) -> Time {
        Time(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// When `time` comes, or some time before if it is far away.
    pub(crate) fn instant(&self, time: Time) -> tokio::time::Instant {
        let left = Duration::from_nanos(time.since(self.now()).0).min(SLEEP_MAX);
        tokio::time::Instant::now() + left
    }
}

/// Milliseconds since 1970, for people who read a history.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
