//! Runs code of the shim without side effects on the program.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tidegate_stage::{Bypass, Inside};

use crate::cancel::CancelDeferred;
use crate::errno::Errno;
use crate::process::stage;

/// Runs code of the shim without cancellation, with `errno` kept and panics caught. None if the
/// thread is inside the shim already, or if the code panicked.
pub(crate) fn run_guarded<R>(work: impl FnOnce() -> R) -> Option<R> {
    let _deferred = CancelDeferred::new();
    let _inside = Inside::enter()?;
    let _errno = Errno::save();
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Some(result),
        Err(panic) => {
            std::mem::forget(panic);
            if let Some(stage) = stage() {
                stage.bypass(Bypass::Failure, 0);
            }
            None
        }
    }
}
