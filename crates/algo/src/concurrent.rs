//! State that threads and processes share without a lock.

pub mod histogram;
pub mod published;
pub(crate) mod sync;
pub mod versioned;
#[cfg(test)]
mod versioned_tests;
