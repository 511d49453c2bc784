//! The clock of links: time-outs.

use std::time::Instant;

/// The time, on a clock that never goes back.
pub(crate) fn now() -> Instant {
    Instant::now()
}
