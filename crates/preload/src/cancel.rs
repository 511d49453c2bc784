//! Cancellation of threads (`pthread_cancel`) inside a hooked call.
//!
//! The C library cancels a thread by unwinding its stack. The shim keeps its own panics from the
//! program by `catch_unwind`, and an unwinding that is not a panic must not meet that: it would end
//! the process. So the shim makes no call in which a thread is cancelled
//! (`files::track_close_uncancelled`), and a thread that lets itself be cancelled anywhere
//! (`PTHREAD_CANCEL_ASYNCHRONOUS`) has to wait until it is through.
//!
//! Few programs have such threads, and most requests need not check: a bit marks such programs
//! ([`process::RARE_STATE`]). For the few instructions before and after, the shim relies on the
//! standard, which forbids such a thread to make these calls at all.

use libc::c_int;

use crate::process;

unsafe extern "C-unwind" {
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

const DEFERRED: c_int = 0;
const ASYNCHRONOUS: c_int = 1;

/// Keeps the thread from being cancelled anywhere until the value is dropped, which may be its end.
#[derive(Debug)]
pub(crate) struct CancelDeferred(c_int);

impl CancelDeferred {
    pub(crate) fn new() -> Self {
        let mut old = DEFERRED;
        // SAFETY: `old` is there; the function takes no lock and may be called anywhere.
        unsafe { pthread_setcanceltype(DEFERRED, &raw mut old) };
        Self(old)
    }
}

impl Drop for CancelDeferred {
    fn drop(&mut self) {
        if self.0 != DEFERRED {
            // SAFETY: with a null pointer nothing is written. If the thread is cancelled here, it
            // is unwound through frames that allow it.
            unsafe { pthread_setcanceltype(self.0, std::ptr::null_mut()) };
        }
    }
}

/// Says where the thread may be cancelled.
pub(crate) fn track_cancel_type(kind: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if kind == ASYNCHRONOUS {
        process::set_rare_state(process::CANCELLED_ANYWHERE, true);
    }
    call()
}
