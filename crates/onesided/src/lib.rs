//! One-sided memory (RDMA): clients read and write the memory of a data node, whose processor takes
//! no part.
//!
//! [`one_sided`] has the operations that a NIC or shared memory offers, as posts and completions.
//! Over them, [`haechi`] gives each client its tokens (Haechi's engine and monitor), [`kv`] keeps a
//! key-value store, and [`data_node`] decides which client gets a session slot, and how much of a
//! promise. [`integrity`] names damage that a client's stray write did.
//!
//! Everything here is a state machine without I/O: a live data node and the simulator run the same
//! code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod data_node;
pub mod haechi;
pub mod integrity;
#[cfg(feature = "kv")]
pub mod kv;
pub mod one_sided;
pub mod session_slots;
