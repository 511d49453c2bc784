//! The daemon's one clock. The machine, and all other code that can, receives the time as an
//! argument.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_model::Time;

/// The longest sleep of the machine between two checks of its deadline; longer than any sensible
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

    /// The instant of `time`, or an earlier one if that is far away.
    pub(crate) fn instant(&self, time: Time) -> tokio::time::Instant {
        let left = Duration::from_nanos(time.since(self.now()).0).min(SLEEP_MAX);
        tokio::time::Instant::now() + left
    }
}

/// Milliseconds since 1970, for the history.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
