//! A period that is over, of which clients have not told all yet: their final words come when they
//! have seen the next one begin.

use alloc::vec::Vec;

use tidegate_algo::haechi::capacity::Outcome;
use tidegate_algo::haechi::engine::Promise;
use tidegate_model::Time;

use crate::haechi::words::FINALS;

/// A period whose final words are still to be read.
#[derive(Clone, Debug)]
pub(super) struct Closing {
    pub(super) epoch: u64,
    pub(super) at: Time,
    pub(super) capacity: u64,
    pub(super) minted: u64,
    pub(super) granted: u64,
    pub(super) held: u8,
    /// What was yielded too late to be used, and what nobody took.
    pub(super) late: u64,
    pub(super) spare: u64,
    pub(super) seats: Vec<Option<(Promise, Outcome)>>,
    pub(super) busy: Vec<bool>,
}

/// Where the final word of a period is, in words from the beginning of the line.
pub(super) const fn final_at(epoch: u64) -> usize {
    FINALS + (epoch & 1) as usize
}
