//! A lock that processes share and that survives the death of its owner.

use std::cell::UnsafeCell;
use std::fmt;

/// A lock in shared memory. To be initialised once by whoever makes the segment.
#[repr(C)]
pub struct SharedLock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: a process-shared mutex is made to be used from many threads.
unsafe impl Sync for SharedLock {}
// SAFETY: it does not belong to the thread that made it.
unsafe impl Send for SharedLock {}

impl fmt::Debug for SharedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedLock")
    }
}

/// What the holder of the lock finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// What it guards is whole.
    Whole,
    /// The last holder died: what it guards needs repair.
    Abandoned,
}

impl SharedLock {
    /// Takes the lock for good, or until [`Self::release`], if nobody has it or its owner has died.
    /// Says whether it did; it did not if this thread has it already.
    pub(crate) fn try_to_keep(&self) -> bool {
        // SAFETY: the mutex was initialised when the segment was made.
        let tried = unsafe { libc::pthread_mutex_trylock(self.0.get()) };
        if tried == libc::EOWNERDEAD {
            // SAFETY: this thread holds the mutex, as EOWNERDEAD says.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
        }
        matches!(tried, 0 | libc::EOWNERDEAD)
    }

    /// Gives up a lock that this thread has taken.
    pub(crate) fn release(&self) {
        // SAFETY: this thread holds it, as the caller says; otherwise the call fails.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }

    /// Makes the lock usable by every process that maps it.
    pub(crate) fn initialise(&self) {
        // SAFETY: the attribute is initialised before it is used and destroyed after; the mutex is
        // not in use yet, as its segment is not published.
        unsafe {
            let mut attribute: libc::pthread_mutexattr_t = std::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attribute);
            libc::pthread_mutexattr_setpshared(&raw mut attribute, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&raw mut attribute, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.0.get(), &raw const attribute);
            libc::pthread_mutexattr_destroy(&raw mut attribute);
        }
    }

    /// Runs `work` under the lock.
    ///
    /// `work` must be short and must not wait. A thread that is already inside (a signal handler
    /// that interrupted it) must not call this; the shim's guard against nested calls sees to that.
    pub(crate) fn with<R>(&self, work: impl FnOnce(Found) -> R) -> R {
        // SAFETY: the mutex was initialised when the segment was made. Functions of pthreads return
        // their error and leave errno alone.
        let found = match unsafe { libc::pthread_mutex_lock(self.0.get()) } {
            libc::EOWNERDEAD => {
                // SAFETY: this thread holds the mutex, as EOWNERDEAD says.
                unsafe { libc::pthread_mutex_consistent(self.0.get()) };
                Found::Abandoned
            }
            _ => Found::Whole,
        };
        let result = work(found);
        // SAFETY: locked above by this thread.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
        result
    }
}
