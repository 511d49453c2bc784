//! Calls by which a thread or process describes itself: names, filters, its kind of cancellation.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_long};
use tidegate_stage::forget_thread;

use crate::sandbox;

/// Gives a thread a name. The calling thread forgets its own old name at once; another thread
/// learns of its new name by [`RARE_STATE`].
pub(crate) fn names<T>(own: bool, call: impl FnOnce() -> T) -> T {
    let result = call();
    if own {
        renamed();
    } else {
        RARE_STATE.fetch_add(1, Ordering::Release);
    }
    result
}

#[cold]
#[inline(never)]
fn renamed() {
    sandbox::forgets_thread();
    forget_thread();
}

/// The state that each request checks first, in one word, so that one load suffices: a bit for each
/// rare act of the process, and the number of names that threads have given to other threads.
static RARE_STATE: AtomicU32 = AtomicU32::new(0);
/// The process has forbidden itself system calls.
pub(crate) const SANDBOXED: u32 = 1 << 31;
/// A thread of the process may be cancelled at any instruction.
pub(crate) const CANCELLED_ANYWHERE: u32 = 1 << 30;
const RARE_BITS: u32 = SANDBOXED | CANCELLED_ANYWHERE;

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
        renamed();
    }
    rare_state & RARE_BITS
}

/// Sets or clears a bit.
pub(crate) fn set_rare_state(bit: u32, set: bool) {
    if set {
        RARE_STATE.fetch_or(bit, Ordering::Release);
    } else {
        RARE_STATE.fetch_and(!bit, Ordering::Release);
    }
}

/// Controls the thread or process.
///
/// # Safety
/// `first` and `second` are the arguments that go with the option.
pub(crate) unsafe fn controls<T: Copy + Into<c_long>>(
    option: c_int,
    (first, second): (usize, usize),
    call: impl FnOnce() -> T,
) -> T {
    match option {
        libc::PR_SET_NAME => names(true, call),
        // SAFETY: as the caller promises.
        libc::PR_SET_SECCOMP => unsafe { sandbox::enters(first, second, call) },
        libc::PR_SET_NO_NEW_PRIVS => {
            sandbox::prepares();
            call()
        }
        libc::PR_SET_TSC => sandbox::sets_counter(first, call),
        _ => call(),
    }
}
