//! A lock that a thread keeps until it ends, and by which every process can see that it ended.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

/// A lock in shared memory. To be initialised once by the creator of the segment.
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

impl SharedLock {
    /// Takes the lock for good, or until [`Self::release`], if it is free or its owner has died.
    /// Says whether it did; it did not if this thread has it already.
    pub(crate) fn try_to_keep(&self) -> bool {
        // SAFETY: the mutex was initialised when the segment was made.
        let tried = unsafe { libc::pthread_mutex_trylock(self.0.get()) };
        if tried == libc::EOWNERDEAD {
            // SAFETY: this thread holds the mutex, as EOWNERDEAD means.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
        }
        matches!(tried, 0 | libc::EOWNERDEAD)
    }

    /// Gives up a lock that this thread has taken.
    pub(crate) fn release(&self) {
        // SAFETY: this thread holds it, as the caller promises; otherwise the call fails.
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

    /// Whether no living thread has the lock. Takes nothing, so that a thread which is stopped in
    /// here keeps no other from asking.
    pub(crate) fn is_free(&self) -> bool {
        // SAFETY: the kernel's interface of robust locks: the C library keeps the lock's word,
        // which the kernel marks when the owner ends, at the beginning of the mutex, and every
        // access to it is atomic.
        let word = unsafe { AtomicU32::from_ptr(self.0.get().cast()) };
        let word = word.load(Ordering::Acquire);
        word & libc::FUTEX_OWNER_DIED != 0 || word & libc::FUTEX_TID_MASK == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_shows_whether_a_living_thread_has_it() {
        // SAFETY: all zero is an unlocked mutex.
        let lock: SharedLock = unsafe { std::mem::zeroed() };
        lock.initialise();
        assert!(lock.is_free());
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| (lock.try_to_keep(), lock.is_free())).join().unwrap();
            assert_eq!(taken, (true, false));
        });
        assert!(lock.is_free(), "its owner has ended");
        assert!(lock.try_to_keep() && !lock.is_free());
        lock.release();
        assert!(lock.is_free());
    }
}
