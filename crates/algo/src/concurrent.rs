//! State that threads and processes share without a lock: words that one thread publishes, words
//! that all may change, and histograms.

pub mod histogram;
pub mod published;
pub(crate) mod sync;
pub mod versioned;
#[cfg(test)]
mod versioned_tests;
