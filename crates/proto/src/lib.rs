//! Tidegate's own protocols: the messages between its daemons, and the reactions of each one.
//!
//! - [`message`]: what a controller exchanges with its peers and operators; [`codec`]: its frames;
//!   [`status`]: the state that it shows operators; [`pages`]: long replies to them
//! - [`session`]: how a peer and its controller connect; [`retry`]: when to try again
//! - [`controller`]: the controller, whose parts lead stages (`budgets`), storage and data nodes
//!   ([`cluster`]), and read counters ([`stats`]); `outstanding`: what it knows after a restart
//! - [`stage`]: one stage; [`node`]: one storage node; [`data_node`]: the messages of data nodes
//! - [`programs`]: which clients of a gateway are programs under the policy
//! - [`gateway`]: splits requests over the nodes of a volume; [`data`]: the frames between gateway
//!   and node; [`recording`]: the load of gateways in a file
//!
//! A daemon is a state machine without I/O: `on_…` takes an event, `poll_output` returns the next
//! action, and `next_deadline` returns when to call again. The live daemons and the simulator run
//! the same machines. Protocols of stock clients are in the crate `tidegate-wire`.
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
pub mod message;
pub mod node;
mod outstanding;
pub mod pages;
pub mod programs;
pub mod recording;
pub mod retry;
pub mod session;
pub mod stage;
pub mod stats;
pub mod status;
