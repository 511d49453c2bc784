//! Live links between Tidegate's parties.
//!
//! Blocking and small on purpose: a stage runs in somebody else's process or beside it, and must
//! not bring an async runtime there. Daemons that have one decode the same frames themselves.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "pages are seen as bytes")]
pub mod buffer;
mod clock;
pub mod crowd;
pub mod place;
pub mod reactor;
pub mod remote;
pub mod retry;
pub mod service;
pub mod stream;
pub mod unix;
pub mod wire;
