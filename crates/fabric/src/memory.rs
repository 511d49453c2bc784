//! Live one-sided access to the memory of a data node, without its processor.
//!
//! # Problem
//! A data node's memory is read and written by its clients themselves; the node may be busy, slow
//! or stopped. So the operations are carried out at the client: by its processor, or by a NIC.
//!
//! # Mechanism
//! A node makes a [`region::Region`], memory with a descriptor, and hands the descriptor to clients
//! on its machine over a Unix socket ([`handover`]). A client maps it and has one of two
//! connections:
//!
//! - [`shm::Shm`] copies at once, as fast as the processor does.
//! - [`model::Model`] does the same after the time that a NIC would have taken. All clients share
//!   the modelled NIC, so that there is a scarce capacity to divide.
//!
//! To clients on other machines the node sends addresses and a key instead, and RNICs carry their
//! operations out (`verbs`, with the feature of that name).
//!
//! # Bound
//! A client that has mapped a region has it for good, and can write anywhere in it. To shut one
//! client out, the node makes another region for those that stay. A client behind a NIC is shut out
//! by the end of its connection.

mod buffers;
pub mod handover;
pub mod model;
#[allow(unsafe_code, reason = "memory that other processes write is mapped and copied")]
pub mod region;
pub mod shm;
#[cfg(feature = "verbs")]
#[allow(unsafe_code, reason = "a C library is called, and a card writes memory")]
pub mod verbs;
