//! The gateway's clock: time-outs of handshakes, of ending and of looking again for a node.

use std::time::Instant;

/// The time, on a clock that never goes back.
pub(crate) fn now() -> Instant {
    Instant::now()
}
