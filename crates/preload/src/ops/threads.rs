//! Threads that leave a call for good, or end, while they hold a permit at a queue.
//!
//! Such a permit stands in the thread's record. It comes back at the thread's next call at the
//! latest; here it comes back at once, where the leaving can be seen: in a jump, and when the
//! thread ends, as it does after it was cancelled.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_void;
use tidegate_stage::{Inside, Stage};

use crate::errno::Errno;
use crate::process::stage;
use crate::sandbox;

/// The C library calls a key's destructor when a thread ends. Keys below this number have their
/// values in the thread's own block; a value of another may have to be allocated, which must not be
/// done here: a thread with such a key is noticed by its lock (`record`).
const KEYS_WITHOUT_ALLOCATION: u32 = 32;
/// In place of a key: none yet, and none to be had.
const UNKNOWN: u32 = u32::MAX;
const ABSENT: u32 = u32::MAX - 1;

static KEY: AtomicU32 = AtomicU32::new(UNKNOWN);

thread_local! {
    /// Whether the thread's end will be noticed.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// The thread holds a permit: [`on_thread_end`] is to run when it ends.
#[cold]
pub(crate) fn watch_for_end() {
    if WATCHED.replace(true) {
        return;
    }
    let key = key();
    if key < KEYS_WITHOUT_ALLOCATION {
        let value = std::ptr::without_provenance::<c_void>(1);
        // SAFETY: the key was made by `key`; nothing is done with the value but to see that it is
        // there.
        unsafe { libc::pthread_setspecific(key, value) };
    }
}

/// The key of the process.
fn key() -> u32 {
    let known = KEY.load(Ordering::Acquire);
    if known != UNKNOWN {
        return known;
    }
    let mut made = ABSENT;
    // SAFETY: the destructor is a function of this library, which stays loaded for good.
    if unsafe { libc::pthread_key_create(&raw mut made, Some(on_thread_end)) } != 0 {
        made = ABSENT;
    }
    match KEY.compare_exchange(UNKNOWN, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(other) => {
            // SAFETY: made above, and known to no other thread.
            unsafe { libc::pthread_key_delete(made) };
            other
        }
    }
}

/// The function that the C library calls in a thread that ends.
unsafe extern "C" fn on_thread_end(_: *mut c_void) {
    WATCHED.set(false);
    leave_guarded(Stage::leave);
}

/// The thread leaves for another place with `longjmp`, and with it the calls that it is in.
pub(crate) fn on_jump() {
    sandbox::on_jump();
    if Inside::is_holding() {
        leave_guarded(Stage::leave_calls);
    }
}

fn leave_guarded(how: fn(&Stage)) {
    if sandbox::is_strict() {
        return;
    }
    let (Some(stage), Some(_inside)) = (stage(), Inside::enter()) else { return };
    let _errno = Errno::save();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| how(stage))) {
        std::mem::forget(panic);
    }
}
