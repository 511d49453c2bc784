//! Live links between Tidegate's parties.
//!
//! Blocking and small on purpose: a stage runs in somebody else's process or beside it, and must
//! not bring an async runtime there. Daemons that have one decode the same frames themselves.
#![forbid(unsafe_code)]

mod clock;
pub mod crowd;
pub mod place;
pub mod unix;
