//! The one clock of daemons, commands and links. State machines, and all other code that can,
//! receive the time as an argument.
#![expect(clippy::disallowed_methods, reason = "this is the one clock")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use tidegate_model::{Span, Time};

/// A clock that was set to zero when it was made, and never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self(now())
    }

    /// The time since it was started.
    pub fn now(self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time from now until `time`; zero once that has come.
    pub fn until(self, time: Time) -> Duration {
        Duration::from_nanos(time.since(self.now()).0)
    }

    /// Sleeps until `time`.
    pub fn sleep_until(self, time: Time) {
        std::thread::sleep(self.until(time));
    }
}

#[cfg(feature = "cluster")]
impl tidegate_proto::node::threads::Clock for Clock {
    #[inline]
    fn now(self) -> Time {
        Self::now(self)
    }
}

/// The kernel's monotonic time, which is the same in all processes.
pub fn kernel_time() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time(now.tv_sec.cast_unsigned() * Span::SECOND.0 + now.tv_nsec.cast_unsigned())
}

/// Milliseconds since 1970.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time of links' time-outs.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How long it is until then; nothing if it is over.
#[cfg(feature = "cluster")]
pub(crate) fn until(at: Instant) -> Duration {
    at.saturating_duration_since(now())
}

/// The date, which certificates are valid for.
#[cfg(feature = "cluster")]
pub(crate) fn date() -> rustls::pki_types::UnixTime {
    rustls::pki_types::UnixTime::now()
}
