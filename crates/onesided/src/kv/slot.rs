//! A slot of the key-value store's index: one word with the location of a key's value.
//!
//! ```text
//! fingerprint 12 | version 12 | lines 7 | state 2 | block 31
//! ```
//!
//! Zero is an empty slot. The version is that of the block's content and grows each time the block
//! is used anew, so that a word comes back only after 4,095 uses of its block. A *claim* holds a
//! place for a key that is being inserted, which has no value yet; one that was *expelled* lost it
//! to another claim for the same key, and waits for its owner to take notice and empty the slot.

use super::bytes::{BLOCK, LINE};

/// Versions go from 1 to this, and around.
pub(super) const VERSION_MAX: u16 = 0xfff;

/// Blocks have numbers from 0, and there are at most so many.
pub(super) const BLOCKS_MAX: u32 = (1 << 31) - 1;

/// A word of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexSlot(pub(super) u64);

impl IndexSlot {
    pub(super) const EMPTY: Self = Self(0);

    const CLAIM: u64 = 1 << 31;
    const EXPELLED: u64 = 2 << 31;
    const STATE: u64 = 3 << 31;

    /// A slot with a value.
    pub(super) const fn new(fingerprint: u16, version: u16, lines: u32, block: u32) -> Self {
        let head = (fingerprint as u64) << 12 | version as u64;
        Self(head << 40 | (lines as u64) << 33 | block as u64)
    }

    pub(super) const fn fingerprint(self) -> u16 {
        (self.0 >> 52) as u16
    }

    pub(super) const fn version(self) -> u16 {
        (self.0 >> 40) as u16 & VERSION_MAX
    }

    /// Cache lines of the block that are in use, from 1 to 65.
    pub(super) const fn lines(self) -> u32 {
        (self.0 >> 33) as u32 & 0x7f
    }

    /// The same in bytes.
    pub(super) const fn length(self) -> u32 {
        self.lines() * LINE
    }

    pub(super) const fn block(self) -> u32 {
        self.0 as u32 & BLOCKS_MAX
    }

    pub(super) const fn has_value(self) -> bool {
        self.0 & Self::STATE == 0 && self.0 != 0
    }

    pub(super) const fn is_claim(self) -> bool {
        self.0 & Self::STATE == Self::CLAIM
    }

    /// Whether a client can have written it, to a store of so many blocks.
    pub(super) const fn is_of(self, blocks: u32) -> bool {
        let lines = self.lines();
        self.block() < blocks
            && lines >= 1
            && lines <= BLOCK / LINE
            && self.version() >= 1
            && self.0 & Self::STATE != Self::STATE
    }

    /// The same with a value, as a claim, and expelled.
    pub(super) const fn valid(self) -> Self {
        Self(self.0 & !Self::STATE)
    }

    pub(super) const fn claim(self) -> Self {
        Self(self.valid().0 | Self::CLAIM)
    }

    pub(super) const fn expelled(self) -> Self {
        Self(self.valid().0 | Self::EXPELLED)
    }
}
