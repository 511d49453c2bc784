//! Decisions of Tidegate: which request may pass, when, and how much. Each folder answers one
//! question; each module is one mechanism.
//!
//! Everything here is a function of its arguments. Time is passed in, randomness too; nothing
//! sleeps, sends or logs, so the same code runs in a live stage and in the simulator. Integers
//! decide; the congestion control of transports computes with floats as their papers do, but only
//! what has the same bits everywhere: the same inputs give the same outputs on every machine.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod allocation;
pub mod capacity;
pub mod classify;
pub mod concurrent;
pub mod congestion;
pub mod onesided;
pub mod scheduling;
pub mod shaping;
