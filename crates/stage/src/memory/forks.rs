//! A count of forks, by which a child process notices that it must not use the connection of its
//! parent.
//!
//! Asking the kernel for the process's number at each call would take as long as half a get.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn note() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Forks between the first process that has called [`count`] and this one.
#[inline]
pub(super) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Counts forks from now on. Those that do not come by the C library are not seen.
///
/// # Errors
/// If there is no memory to note it in.
pub(super) fn count() -> io::Result<()> {
    static ANSWER: OnceLock<i32> = OnceLock::new();
    // SAFETY: the function only changes an atomic word, which may be done between fork and exec.
    let answer = ANSWER.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(note)) });
    match *answer {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
