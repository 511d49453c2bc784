//! Tidegate's protocols: the messages between its peers, and the reactions of each one.
//!
//! [`message`] has the messages, [`codec`] their bytes. Every other module is one peer as a state
//! machine without I/O: `on_…` takes in an event, `poll_output` returns the next action, and
//! `next_deadline` returns when to call again. The live daemons and the simulator run the same
//! machines.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod budgets;
pub mod cluster;
pub mod codec;
pub mod controller;
pub mod data;
pub mod data_node;
pub mod gateway;
pub mod memcached;
pub mod message;
pub mod node;
pub mod pages;
pub mod retry;
pub mod session;
pub mod stage;
pub mod stats;
