//! Whose a request is, which rules are for it, and what its client may do.

pub mod access;
pub mod channel;
pub mod owner;
