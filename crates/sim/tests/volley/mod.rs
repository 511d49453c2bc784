//! Many runs, each made from a number.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

/// Runs the first `seeds`, and fails with all that was violated.
#[track_caller]
pub(crate) fn all_hold<E: Display>(seeds: u64, check: fn(u64) -> Result<(), E>) {
    // Runs know nothing of each other; two at a time, because that is what a small machine has.
    let next = AtomicU64::new(0);
    let (found_tx, found_rx) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..2 {
            let found_tx = found_tx.clone();
            scope.spawn(|| {
                let found_tx = found_tx;
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    if let Err(violation) = check(seed) {
                        _ = found_tx.send(violation.to_string());
                    }
                }
            });
        }
    });
    drop(found_tx);
    let found: Vec<String> = found_rx.iter().collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
