//! Haechi's decisions, against the paper's examples and oracles too simple to be wrong.
#![allow(clippy::unwrap_used, reason = "a test may end by panicking")]

mod admission;
mod balance;
mod blocks;
mod capacity;
mod pool;
