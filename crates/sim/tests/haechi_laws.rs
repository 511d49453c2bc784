//! The first seeds of clients with guarantees under fire. More of them:
//! `cargo xtask seeds --one-sided 10000`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use tidegate_sim::one_sided::fire;

const SEEDS: u64 = 100;

#[test]
fn what_must_hold_holds() {
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
                    if seed >= SEEDS {
                        return;
                    }
                    if let Err(violation) = fire::check(seed) {
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
