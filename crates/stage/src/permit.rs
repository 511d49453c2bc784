//! Permits at queue gates, as requests hold them and records note them.

use std::num::NonZeroU8;

/// A request's permit at a queue gate, or its claim to one; to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit {
    /// One more than the number of the queue, so that "no permit" needs no memory of its own.
    pub(crate) queue: NonZeroU8,
    pub(crate) slot: u16,
    /// How often the slot had been taken.
    pub(crate) generation: u32,
}

impl Permit {
    /// The word in which a record notes the permit; never zero.
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.queue.get()) | u64::from(self.slot) << 8 | u64::from(self.generation) << 32
    }

    /// The permit in a word of a record; none if the word is zero.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let queue = NonZeroU8::new(word as u8)?;
        Some(Self { queue, slot: (word >> 8) as u16, generation: (word >> 32) as u32 })
    }

    /// The index of the queue.
    pub(crate) fn queue(self) -> usize {
        usize::from(self.queue.get() - 1)
    }
}
