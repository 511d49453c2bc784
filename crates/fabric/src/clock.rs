//! The clock of links: time-outs.

use std::time::Instant;

/// The time, on a clock that never goes back.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How long it is until then; nothing if it is over.
#[cfg(feature = "cluster")]
pub(crate) fn until(at: Instant) -> std::time::Duration {
    at.saturating_duration_since(now())
}

/// The date, which certificates are valid for.
#[cfg(feature = "cluster")]
pub(crate) fn date() -> rustls::pki_types::UnixTime {
    rustls::pki_types::UnixTime::now()
}
