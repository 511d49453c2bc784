//! The environment of a node: the time, and locks if it has many threads.

use core::cell::{RefCell, RefMut};
use core::ops::DerefMut;

use tidegate_model::Time;

/// The time. A node reads it again after it has waited for a lock: read before, it would go
/// backwards from one thread to the next.
pub trait Clock: Copy {
    /// The time now.
    fn now(self) -> Time;
}

/// A moment, for a caller with one thread.
impl Clock for Time {
    #[inline]
    fn now(self) -> Time {
        self
    }
}

/// How the threads of a node share its state.
pub trait Threading {
    /// The lock around a part of the state.
    type Mutex<T>: Mutex<T>;
}

/// A value that one thread at a time may change.
pub trait Mutex<T> {
    /// Access to the value, until it is dropped.
    type Guard<'a>: DerefMut<Target = T>
    where
        Self: 'a;

    /// Wraps a value.
    fn new(value: T) -> Self;

    /// Waits until no other thread has the value.
    fn lock(&self) -> Self::Guard<'_>;
}

/// A node with one thread, as in the simulator. To take a lock twice is a bug, and panics.
#[derive(Clone, Copy, Debug)]
pub struct SingleThreaded;

impl Threading for SingleThreaded {
    type Mutex<T> = RefCell<T>;
}

impl<T> Mutex<T> for RefCell<T> {
    type Guard<'a>
        = RefMut<'a, T>
    where
        T: 'a;

    fn new(value: T) -> Self {
        Self::new(value)
    }

    #[inline]
    fn lock(&self) -> RefMut<'_, T> {
        self.borrow_mut()
    }
}
