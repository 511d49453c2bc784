//! End-to-end tests: what scenarios share.
//!
//! The scenarios are in `tests/`, a module each, in one binary. They spawn the real command, load
//! the real shim into real programs, and look at what comes out. Nothing in them depends on how
//! fast the machine is: a scenario waits for a condition, and where it measures time it asks only
//! that something did not happen too early.
#![allow(clippy::disallowed_methods, reason = "a test measures time")]

use std::time::{Duration, Instant};

pub mod bed;
pub mod built;
pub mod cluster;
pub mod fuzz;
pub mod loop_device;
pub mod nbd;
pub mod process;
pub mod proxy;
pub mod tools;
pub mod tree;

/// How long a condition may take to come true. Everything that scenarios wait for happens within
/// milliseconds; this is for a machine that does ten other things.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two looks at a condition.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
///
/// # Panics
/// If it does not within [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, PATIENCE, || condition().then_some(()));
}

/// Waits until `poll` finds something.
///
/// # Panics
/// If it does not within `patience`.
#[track_caller]
pub fn wait_for<T>(what: &str, patience: Duration, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < patience, "after {} s still not: {what}", patience.as_secs());
        std::thread::sleep(POLL_INTERVAL);
    }
}
