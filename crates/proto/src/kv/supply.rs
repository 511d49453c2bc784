//! The blocks that a client may write next.
//!
//! A client takes extents of never used blocks off the store by adding to one word. What it removes
//! from the index is its own from then on, and rests until nobody can still be reading it by an old
//! location. Readers would notice if they did: resting saves them the second look, and keeps
//! versions from coming around.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use tidegate_model::{Span, Time};

use super::slot::{Slot, VERSION_MAX};

/// A block, and the version of what will be written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spare {
    pub(super) block: u32,
    pub(super) version: u16,
}

impl Spare {
    /// The block that a slot pointed to, for its next use.
    pub(super) const fn after(slot: Slot) -> Self {
        Self { block: slot.block(), version: slot.version() % VERSION_MAX + 1 }
    }
}

/// A client's own blocks.
#[derive(Debug)]
pub(super) struct Supply {
    rest: Span,
    /// Removed from the index, in the order in which they may be used again.
    resting: VecDeque<(Time, Spare)>,
    /// Never seen by anybody.
    spare: Vec<Spare>,
    fresh: Range<u32>,
    /// The store has handed out all of its blocks.
    pub(super) is_exhausted: bool,
}

impl Supply {
    pub(super) fn new(rest: Span, outstanding: u32) -> Self {
        Self {
            rest,
            resting: VecDeque::with_capacity(outstanding as usize),
            spare: Vec::with_capacity(outstanding as usize),
            fresh: 0..0,
            is_exhausted: false,
        }
    }

    /// A block to write to.
    pub(super) fn take(&mut self, now: Time) -> Option<Spare> {
        let rested = |(since, _): &mut (Time, Spare)| since.after(self.rest) <= now;
        self.spare
            .pop()
            .or_else(|| self.resting.pop_front_if(rested).map(|(_, spare)| spare))
            .or_else(|| self.fresh.next().map(|block| Spare { block, version: 1 }))
    }

    /// Takes back a block that nobody has seen.
    pub(super) fn give_back(&mut self, spare: Spare) {
        self.spare.push(spare);
    }

    /// Takes a block that this client removed from the index.
    pub(super) fn rest(&mut self, now: Time, removed: Slot) {
        self.resting.push_back((now, Spare::after(removed)));
    }

    /// Takes what the store hands out: blocks from `first` on, if there are any.
    pub(super) fn extend(&mut self, first: u64, extent: u32, blocks: u32) {
        let end = first.saturating_add(u64::from(extent)).min(u64::from(blocks)) as u32;
        self.fresh = first.min(u64::from(end)) as u32..end;
        self.is_exhausted = self.fresh.is_empty();
    }
}
