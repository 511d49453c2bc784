//! The atomics of the modules that many threads share. `cargo xtask loom` builds them with those of
//! loom instead, which tries every order that the memory model allows.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
