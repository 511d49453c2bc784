//! What Tidegate's parties say to each other, and how each one reacts.
//!
//! [`message`] is the vocabulary, [`codec`] its bytes. Every other module is one party as a machine
//! without I/O: `on_…` takes in what happened, `poll_output` gives out what is to be done, and
//! `next_deadline` says when to call again. The live daemons and the simulator run the same
//! machines.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cluster;
pub mod codec;
pub mod controller;
pub mod data;
pub mod data_node;
pub mod gateway;
pub mod haechi;
pub mod integrity;
#[cfg(feature = "kv")]
pub mod kv;
pub mod memcached;
pub mod message;
pub mod meters;
pub mod node;
pub mod one_sided;
pub mod pages;
pub mod stage;
