//! Decisions of Tidegate: who may pass, when, and how much, one module per mechanism.
//!
//! Everything here is a function of its arguments. Time is passed in, randomness too; nothing
//! sleeps, sends or logs, so the same code runs in a live stage and in the simulator. Integers
//! decide; the congestion control of transports computes with floats as their papers do, but only
//! what has the same bits everywhere: the same inputs give the same outputs on every machine.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod access;
pub mod admission;
pub mod channel;
pub mod connection_quota;
pub mod cost;
pub mod d2tcp;
pub mod dcqcn;
pub mod dctcp;
pub mod demand;
pub mod device;
pub mod device_time;
pub mod dsfq;
pub mod estimate;
pub mod fair_share;
pub mod haechi;
pub mod histogram;
pub mod memory_budget;
pub mod owner;
pub mod pshift;
pub mod published;
pub mod qrdma;
pub mod qtcp;
pub mod quality;
pub mod queue;
pub mod scheduler;
pub mod shards;
pub mod shares;
mod sync;
pub mod token_bucket;
pub mod versioned;
#[cfg(test)]
mod versioned_tests;
pub mod wrr;
