//! Tracks calls by which a thread changes its name or its kind of cancellation, and by which a
//! process restricts itself by a seccomp filter.

use std::sync::atomic::Ordering;

use libc::{c_int, c_long};
use tidegate_stage::forget_thread;

use crate::process::{RARE_BITS, RARE_STATE};
use crate::sandbox;

/// Gives a thread a name. The calling thread forgets its own old name at once; another thread
/// learns of its new name by [`RARE_STATE`].
pub(crate) fn track_thread_name<T>(own: bool, call: impl FnOnce() -> T) -> T {
    let result = call();
    if own {
        forget_thread_name();
    } else {
        RARE_STATE.fetch_add(1, Ordering::Release);
    }
    result
}

#[cold]
#[inline(never)]
fn forget_thread_name() {
    sandbox::forget_cached_thread();
    forget_thread();
}

thread_local! {
    /// The number of given names in [`RARE_STATE`] that this thread has noticed.
    static NOTICED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Forgets the cached name of this thread if a thread was given a name by another one. Returns the
/// bits.
#[inline]
pub(crate) fn rare_state() -> u32 {
    let rare_state = RARE_STATE.load(Ordering::Acquire);
    if rare_state == 0 {
        return 0;
    }
    let names = rare_state & !RARE_BITS;
    if NOTICED.replace(names) != names {
        forget_thread_name();
    }
    rare_state & RARE_BITS
}

/// Controls the thread or process.
///
/// # Safety
/// `first` and `second` are the arguments that go with the option.
pub(crate) unsafe fn track_prctl<T: Copy + Into<c_long>>(
    option: c_int,
    (first, second): (usize, usize),
    call: impl FnOnce() -> T,
) -> T {
    match option {
        libc::PR_SET_NAME => track_thread_name(true, call),
        // SAFETY: as the caller promises.
        libc::PR_SET_SECCOMP => unsafe { sandbox::on_seccomp_mode(first, second, call) },
        libc::PR_SET_NO_NEW_PRIVS => {
            sandbox::cache_before_filter();
            call()
        }
        libc::PR_SET_TSC => sandbox::on_set_tsc(first, call),
        _ => call(),
    }
}
