//! The free blocks that a client of the key-value store may write next.
//!
//! A client takes some from the store's pool at a time: one at first, then twice as many as the
//! last time, so that one that puts once takes no more. Blocks that it removes from the index are
//! its own from then on, and rest until no client can still be reading them by an old location.
//! Readers would notice if they did: resting saves them the second read, and keeps versions from
//! coming around.
//!
//! Blocks that a client has and does not use are swept in time, as those of a client that died. So
//! the client notes for each block the *round* since which it has it; in a later round it has to
//! keep the block first.
//!
//! A client that gave up blocks counts them for two more rounds, the time that a sweep takes to
//! return them to the pool. Otherwise a client could take blocks anew before its last ones are
//! free, again and again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tidegate_model::{Span, Time};

use super::block;
use super::layout::Free;
use super::slot::{IndexSlot, VERSION_MAX};

/// A block, and the version of the next write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spare {
    pub(super) block: u32,
    pub(super) version: u16,
    /// Its mark, or the word that it has instead.
    pub(super) mark: u64,
    /// The round in which the client came by it.
    pub(super) round: u64,
}

impl Spare {
    /// One that was taken out of the pool.
    const fn free(Free { block, mark }: Free, round: u64) -> Self {
        Self { block, version: block::version(mark), mark, round }.next()
    }

    /// The block that a slot pointed to.
    pub(super) const fn removed(slot: IndexSlot, round: u64) -> Self {
        let (block, version) = (slot.block(), slot.version());
        Self { block, version, mark: block::unmarked(version), round }.next()
    }

    /// The same block, for its next use.
    pub(super) const fn next(self) -> Self {
        Self { version: self.version % VERSION_MAX + 1, ..self }
    }
}

/// A client's own blocks.
#[derive(Debug)]
pub(super) struct Supply {
    rest: Span,
    /// Removed from the index, in the order in which they may be used again.
    resting: VecDeque<(Time, Spare)>,
    /// Blocks that no reader has seen.
    spare: Vec<Spare>,
    round: u64,
    /// Blocks given up in this round, and in the one before.
    given_up: [u32; 2],
    /// How many to take from the pool the next time, and at most.
    extent: u32,
    extent_max: u32,
}

impl Supply {
    pub(super) fn new(rest: Span, extent_max: u32, outstanding: u32) -> Self {
        Self {
            rest,
            resting: VecDeque::with_capacity(outstanding as usize),
            spare: Vec::with_capacity((extent_max + outstanding) as usize),
            round: 0,
            given_up: [0; 2],
            extent: 1,
            extent_max,
        }
    }

    /// The round of the store, as last read by this client.
    pub(super) const fn round(&self) -> u64 {
        self.round
    }

    /// Takes notice of the store's round, as one read has shown it. A slow read may show an earlier
    /// round than is known, which changes nothing: the client may have announced the later round,
    /// and a sweep may have its blocks of the earlier one.
    pub(super) fn learn(&mut self, round: u64) {
        let [last, _] = self.given_up;
        self.given_up = match round.saturating_sub(self.round) {
            0 => return,
            1 => [0, last],
            _ => [0; 2],
        };
        self.round = round;
    }

    /// How many blocks the client has that no key has and no put is writing, with those that it
    /// gave up and that a sweep has still to return.
    pub(super) fn held(&self) -> usize {
        let given_up = self.given_up.iter().map(|count| *count as usize);
        self.resting.len() + self.spare.len() + given_up.sum::<usize>()
    }

    /// A block to write to, which is to be kept first if it is of another round.
    pub(super) fn take(&mut self, now: Time) -> Option<Spare> {
        let rested = |(since, _): &mut (Time, Spare)| since.after(self.rest) <= now;
        let resting = |resting: &mut VecDeque<(Time, Spare)>| {
            resting.pop_front_if(rested).map(|(_, spare)| spare)
        };
        resting(&mut self.resting).or_else(|| self.spare.pop())
    }

    /// Takes back a block that no reader has seen.
    pub(super) fn give_back(&mut self, spare: Spare) {
        self.spare.push(spare);
    }

    /// Takes a block that this client removed from the index.
    pub(super) fn rest(&mut self, now: Time, removed: Spare) {
        self.resting.push_back((now, removed));
    }

    /// Gives up all blocks of other rounds: one was swept, so others have been, and what has not
    /// will be.
    pub(super) fn forget_old(&mut self) {
        let before = self.resting.len() + self.spare.len();
        self.spare.retain(|spare| spare.round == self.round);
        self.resting.retain(|(_, spare)| spare.round == self.round);
        let dropped = before - self.resting.len() - self.spare.len();
        self.given_up[0] += u32::try_from(dropped).unwrap_or(u32::MAX);
    }

    /// How many blocks to take from the pool, for so many puts that wait.
    pub(super) fn extent(&self, waiting: usize) -> u32 {
        let waiting = u32::try_from(waiting).unwrap_or(u32::MAX);
        self.extent.max(waiting).min(self.extent_max)
    }

    /// Takes the blocks that came out of the pool, to be used in this order.
    pub(super) fn extend(&mut self, free: impl DoubleEndedIterator<Item = Free>) {
        let round = self.round;
        self.spare.splice(0..0, free.rev().map(|free| Spare::free(free, round)));
        self.extent = (2 * self.extent).min(self.extent_max);
    }
}
