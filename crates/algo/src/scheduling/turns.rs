//! The turns of classes in the fair phase, in common for the shards of a scheduler.
//!
//! The cycle is that of [weighted round robin](super::wrr). Several shards share one position in
//! it, because a class counts once however many shards it waits in. A shard that has the class of
//! the turn serves it; a thread with another shard goes there. So that threads do not change shards
//! for each request, a turn of several shards has a *burst* of [`LEAD`] requests, as in the
//! arbitration of NVMe, while the class waits anywhere. A lone shard has bursts of one: the cycle
//! itself.

use tidegate_model::ClassWeights;

use super::wrr::{SHARING, Turn, Weights};
use crate::concurrent::sync::{AtomicU32, Ordering};

/// The least number of the longest requests by which a shard may be ahead of another. So many that
/// a thread can serve its shard for some batches while other threads do not run.
pub const LEAD: u32 = 16;

/// The position of the requests of a turn that went, in the word of a turn.
const TAKEN: u32 = 24;
const _: () = assert!(LEAD < 1 << (u32::BITS - TAKEN));

/// The weights of classes, and whose turn it is.
#[derive(Debug)]
pub(crate) struct ClassTurns {
    /// One byte for each class; zero if classes have no weights.
    weights: AtomicU32,
    /// The turn, and how many requests of it went.
    turn: AtomicU32,
    burst: u32,
}

impl ClassTurns {
    /// The turns of so many shards, without weights.
    pub(crate) fn new(shards: usize) -> Self {
        let burst = if shards > 1 { LEAD } else { 1 };
        // The burst of the last turn of a cycle is over.
        let turn = AtomicU32::new(Turn::LAST.to_bits() | burst << TAKEN);
        Self { weights: AtomicU32::new(0), turn, burst }
    }

    /// Sets the weights, or that there are none.
    pub(crate) fn set_weights(&self, weights: Option<ClassWeights>) {
        let bytes = |ClassWeights { high, medium, low }| [0, high.get(), medium.get(), low.get()];
        self.weights
            .store(weights.map_or(0, |all| u32::from_be_bytes(bytes(all))), Ordering::Relaxed);
    }

    /// The class whose turn it is among those that wait; none if none does.
    pub(crate) fn next(&self, waits: [bool; SHARING]) -> Option<usize> {
        let word = self.turn.load(Ordering::Relaxed);
        self.after(word, waits).map(|(class, _)| class)
    }

    /// Counts a request of this class, while these classes wait. Where another thread has passed on
    /// the turn meanwhile, the request is one more of the turn before.
    pub(crate) fn take(&self, class: usize, waits: [bool; SHARING]) {
        let mut word = self.turn.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        while let Some((_, after)) = self.after(word, waits).filter(|(own, _)| *own == class) {
            match self.turn.compare_exchange(word, after, order, order) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// The class of the next request, and the word after it.
    #[inline]
    fn after(&self, word: u32, waits: [bool; SHARING]) -> Option<(usize, u32)> {
        let (turn, taken) = (Turn::from_bits(word & ((1 << TAKEN) - 1)), word >> TAKEN);
        if taken < self.burst && waits[turn.class()] {
            return Some((turn.class(), word + (1 << TAKEN)));
        }
        let [_, high, medium, low] = self.weights.load(Ordering::Relaxed).to_be_bytes();
        let weights = ClassWeights::new(high, medium, low).map_or(EQUAL, Weights::from);
        let turn = turn.next(weights, waits)?;
        Some((turn.class(), turn.to_bits() | 1 << TAKEN))
    }
}

/// While the shards are not all told of weights, or that there are none any more.
const EQUAL: Weights = Weights { high: 1, medium: 1, low: 1 };
