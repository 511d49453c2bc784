//! Live links between Tidegate's processes: sockets with or without TLS, framed messages, the event
//! loop of worker threads, links to nodes and to the controller, buffers, one-sided memory, and the
//! checks of files that daemons trust.
//!
//! There is no async runtime on purpose: a stage runs in an application's process or beside it, and
//! must not bring one there. The controller has a runtime of its own, and decodes the same frames
//! itself.
#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test measures time"))]

#[cfg(feature = "cluster")]
#[allow(unsafe_code, reason = "pages are seen as bytes")]
pub mod buffer;
pub mod clock;
#[cfg(feature = "cluster")]
pub mod controller;
pub mod default_paths;
pub mod headroom;
#[cfg(feature = "memory")]
pub mod memory;
#[allow(unsafe_code, reason = "the kernel writes credentials to memory")]
pub mod peer_credentials;
#[cfg(feature = "cluster")]
pub mod poller;
#[cfg(feature = "cluster")]
pub mod reactor;
#[cfg(feature = "cluster")]
mod readiness;
#[cfg(feature = "cluster")]
pub mod remote;
#[allow(unsafe_code, reason = "the kernel's leases on files have no safe interface")]
pub mod segment_use;
#[cfg(feature = "cluster")]
pub mod service;
mod socket;
pub mod stream;
#[cfg(feature = "cluster")]
#[allow(unsafe_code, reason = "something is done between fork and exec")]
pub mod tether;
#[cfg(feature = "cluster")]
pub mod tls;
#[cfg(feature = "cluster")]
pub mod trusted;
pub mod unix;
#[cfg(feature = "cluster")]
pub mod wire;
