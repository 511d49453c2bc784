//! Locks: those that outlive a panic, and those of the node's threads.

use std::hint;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_proto::node::threads::{self, Threading};

/// How often a thread tries to take a lock before it sleeps until it can: for some tens of
/// microseconds. A batch takes one or two; to be woken takes fifty, and more where the machine is
/// virtual. With the hundred times of the standard library's lock, two threads that met in the
/// shard of the last tenant with a reservation had half the throughput of one.
const TRIES: u32 = 2_000;

/// Locks `mutex`, also after a thread has panicked with it: for locks whose state is consistent at
/// every panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The threads of a live node, with a lock around each part of its state.
#[derive(Clone, Copy, Debug)]
pub struct MultiThreaded;

impl Threading for MultiThreaded {
    type Mutex<T> = SpinMutex<T>;
}

/// A lock that is tried for some time before its thread sleeps.
#[derive(Debug)]
pub struct SpinMutex<T>(Mutex<T>);

impl<T> threads::Mutex<T> for SpinMutex<T> {
    type Guard<'a>
        = MutexGuard<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// A panic with the lock held is a bug of ours; to continue with the state that it left would
    /// be another. It poisons the lock, and every thread that tries to take it ends.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, T> {
        for _ in 0..TRIES {
            if let Ok(value) = self.0.try_lock() {
                return value;
            }
            hint::spin_loop();
        }
        self.0.lock().unwrap_or_else(|_| panic!("a thread of the node has panicked"))
    }
}
