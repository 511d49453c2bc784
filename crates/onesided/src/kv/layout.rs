//! Memory layout of the key-value store: the header, the index, the blocks, and the words between
//! them.
//!
//! ```text
//! at +0      header, 64 bytes: magic, version of the layout, sizes, seed, checksum
//!    +64     the pool's words: round, taken, given
//!    +128    census: a word for each of 256 session slots
//!    +2176   index: buckets of 64 bytes, 8 slots each
//!    ...     ring: a word for each block
//!    ...     blocks of 4,160 bytes
//! ```
//!
//! The *pool* is the blocks that no client has. The ring's slots from `taken` on name them, up to
//! `given` and as many more as there are blocks; both are counted from the beginning, and go
//! around. So clients move one end and the sweep the other. The sweep explains the *round* and the
//! census.
//!
//! All numbers are little-endian. An area of zeros with a header is an empty store: the ring's
//! words are the distance of a block from the entry's own index, so that zeros name each block
//! once.

use tidegate_model::SessionSlot;
use twox_hash::XxHash3_64;

use super::block;
pub use super::bytes::BLOCK;
pub(super) use super::bytes::LINE;
pub(super) use super::bytes::word;
use super::slot::BLOCKS_MAX;
use crate::one_sided::WORD;

/// The first bytes of a header.
const MAGIC: [u8; 8] = *b"TIDEGTKV";

/// The layout that is described here.
pub const LAYOUT_VERSION: u32 = 2;

/// Bytes of a header.
pub const HEADER: usize = 64;

/// Slots of a bucket, which is one cache line.
pub(super) const BUCKET_SLOTS: u32 = 8;

/// Bytes of a bucket.
pub(super) const BUCKET: u32 = BUCKET_SLOTS * WORD as u32;

/// Session slots of a store: clients that write to it while it is swept.
pub const HOLDERS: u16 = 256;

/// Bytes from the beginning of an area to the pool's words, the census and the index.
const POOL: u64 = HEADER as u64;
const CENSUS: u64 = POOL + LINE as u64;
const INDEX: u64 = CENSUS + HOLDERS as u64 * WORD;

/// Bytes of the pool's words, of the census, and of both.
pub(super) const POOL_WORDS: u32 = 3 * WORD as u32;
pub(super) const POOL_AND_CENSUS: u32 = (INDEX - POOL) as u32;

/// A part of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Where in the region it begins, a multiple of 64.
    pub at: u64,
    /// How many bytes it has.
    pub length: u64,
}

/// Where everything is in one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    area: Area,
    seed: u64,
    buckets: u32,
    blocks: u32,
}

/// Why there is no store in an area, or cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// It does not begin at a multiple of 64.
    #[error("a store must begin at a multiple of 64 bytes")]
    Unaligned,
    /// The area, or the region, is too small for what it is to hold.
    #[error("the store takes {needed_bytes} bytes, and there are {bytes}")]
    TooSmall {
        /// How many bytes it would take.
        needed_bytes: u64,
        /// How many there are.
        bytes: u64,
    },
    /// Fewer than two buckets, no block, or more than 2^31 - 1 of them.
    #[error("a store has at least two buckets, and from 1 to {BLOCKS_MAX} blocks")]
    Shape,
    /// There is no store: the area begins with something else.
    #[error("there is no key-value store in this area")]
    NoStore,
    /// There is one, of a layout of another release.
    #[error(
        "the store has layout {found}, and this program knows layout {LAYOUT_VERSION}: use the \
         same release at the data node and at its clients"
    )]
    Version {
        /// The version that it has.
        found: u32,
    },
    /// The header has been damaged.
    #[error("the header of the store is damaged: make it anew")]
    Damaged,
}

/// Where a key belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) hash: u64,
    /// Two different buckets.
    pub(super) buckets: [u32; 2],
}

impl Home {
    /// Which keys in a bucket may be meant. Neither half of the hash decides alone, as each chooses
    /// a bucket.
    pub(super) const fn fingerprint(self) -> u16 {
        ((self.hash ^ self.hash >> 32) & 0xfff) as u16
    }

    /// The number of one of its 16 slots, from 0.
    pub(super) const fn slot(self, index: usize) -> u64 {
        let [first, second] = self.buckets;
        let bucket = if index < BUCKET_SLOTS as usize { first } else { second };
        bucket as u64 * BUCKET_SLOTS as u64 + index as u64 % BUCKET_SLOTS as u64
    }
}

impl Layout {
    /// As many blocks as the area has headroom for, and an index that is full to 0.6 when all of
    /// them are in use, where a key as good as always finds a slot. Take the seed at random: then
    /// no client can aim at one bucket.
    ///
    /// # Errors
    /// If the area is no place for a store.
    pub fn fill(area: Area, seed: u64) -> Result<Self, LayoutError> {
        // 24 blocks to 5 buckets, which have 40 slots.
        let group = 24 * (u64::from(BLOCK) + WORD) + 5 * u64::from(BUCKET);
        let space = area.length.saturating_sub(INDEX + 2 * u64::from(BUCKET) + u64::from(LINE));
        let blocks = (u128::from(space) * 24 / u128::from(group)).clamp(1, u128::from(BLOCKS_MAX));
        let blocks = blocks as u32;
        Self::new(area, seed, (u64::from(blocks) * 5 / 24) as u32 + 2, blocks)
    }

    /// So many buckets of 8 slots, and so many blocks.
    ///
    /// # Errors
    /// If that is no store, or the area is too small for it.
    pub fn new(area: Area, seed: u64, buckets: u32, blocks: u32) -> Result<Self, LayoutError> {
        if !area.at.is_multiple_of(u64::from(LINE)) {
            return Err(LayoutError::Unaligned);
        }
        if buckets < 2 || !(1..=BLOCKS_MAX).contains(&blocks) {
            return Err(LayoutError::Shape);
        }
        let layout = Self { area, seed, buckets, blocks };
        let needed_bytes = layout.block(blocks) - area.at;
        if needed_bytes > area.length {
            return Err(LayoutError::TooSmall { needed_bytes, bytes: area.length });
        }
        Ok(layout)
    }

    /// The header's bytes. Written to an area of zeros, they make an empty store.
    pub fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&BLOCK.to_le_bytes());
        header[16..24].copy_from_slice(&self.seed.to_le_bytes());
        header[24..32].copy_from_slice(&self.area.length.to_le_bytes());
        header[32..36].copy_from_slice(&self.buckets.to_le_bytes());
        header[36..40].copy_from_slice(&self.blocks.to_le_bytes());
        let sum = crc_fast::crc32_iscsi(&header[..60]);
        header[60..].copy_from_slice(&sum.to_le_bytes());
        header
    }

    /// The layout of the store that begins at `at` with this header.
    ///
    /// # Errors
    /// If it is not the header of a store that this program can use.
    pub fn read(at: u64, header: &[u8; HEADER]) -> Result<Self, LayoutError> {
        let half = |from: usize| u32::from_le_bytes(array(&header[from..from + 4]));
        if header[..8] != MAGIC {
            return Err(LayoutError::NoStore);
        }
        if half(8) != LAYOUT_VERSION {
            return Err(LayoutError::Version { found: half(8) });
        }
        if half(60) != crc_fast::crc32_iscsi(&header[..60]) || half(12) != BLOCK {
            return Err(LayoutError::Damaged);
        }
        let area = Area { at, length: word(&header[24..32]) };
        Self::new(area, word(&header[16..24]), half(32), half(36))
    }

    /// Whether a region of so many bytes reaches to the end of the store.
    ///
    /// # Errors
    /// How many it would need.
    pub(super) const fn check(&self, bytes: u64) -> Result<(), LayoutError> {
        let needed_bytes = self.area.at.saturating_add(self.area.length);
        match needed_bytes > bytes {
            true => Err(LayoutError::TooSmall { needed_bytes, bytes }),
            false => Ok(()),
        }
    }

    /// Where the store lies.
    pub const fn area(&self) -> Area {
        self.area
    }

    /// How many keys the index has headroom for, if they were spread by hand.
    pub const fn slots(&self) -> u64 {
        self.buckets as u64 * BUCKET_SLOTS as u64
    }

    /// How many blocks there are: one for each key, and those that rest or that clients keep.
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Where a key belongs.
    pub(super) fn home(&self, key: &[u8]) -> Home {
        let hash = XxHash3_64::oneshot_with_seed(self.seed, key);
        let scaled = |half: u64| ((half * u64::from(self.buckets)) >> 32) as u32;
        let first = scaled(hash >> 32);
        let second = scaled(hash & 0xffff_ffff);
        let second = if second != first { second } else { (first + 1) % self.buckets };
        Home { hash, buckets: [first, second] }
    }

    pub(super) const fn buckets(&self) -> u32 {
        self.buckets
    }

    /// Where the pool's words lie: the round, then how many blocks were taken, and given. The
    /// census follows in the next line.
    pub(super) const fn pool(&self) -> u64 {
        self.area.at + POOL
    }

    pub(super) const fn round(&self) -> u64 {
        self.pool()
    }

    pub(super) const fn taken(&self) -> u64 {
        self.pool() + WORD
    }

    pub(super) const fn given(&self) -> u64 {
        self.pool() + 2 * WORD
    }

    /// Where the word of a session slot lies, in the census: since which round its client has had
    /// the oldest block that it may be writing. 0 for a client that has none.
    pub const fn holder(&self, session_slot: SessionSlot) -> u64 {
        self.area.at + CENSUS + session_slot.index() as u64 * WORD
    }

    /// Where an entry of the ring lies.
    pub(super) const fn ring(&self, index: u32) -> u64 {
        self.bucket(self.buckets) + index as u64 * WORD
    }

    /// Where a bucket lies.
    pub(super) const fn bucket(&self, bucket: u32) -> u64 {
        self.area.at + INDEX + bucket as u64 * BUCKET as u64
    }

    /// Where a slot lies.
    pub(super) const fn slot(&self, slot: u64) -> u64 {
        self.area.at + INDEX + slot * WORD
    }

    /// Where a block lies.
    pub(super) const fn block(&self, block: u32) -> u64 {
        self.ring(self.blocks).next_multiple_of(LINE as u64) + block as u64 * BLOCK as u64
    }
}

/// A word of the ring: a block that no client has, and the word that the block has instead of a
/// mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) block: u32,
    pub(super) mark: u64,
}

impl Free {
    /// Decodes the word at `index` of the ring, in a store of so many blocks.
    pub(super) const fn read(word: u64, index: u32, blocks: u32) -> Self {
        let block = (word as u32 as u64 + index as u64) % blocks as u64;
        Self { block: block as u32, mark: block::swept_again((word >> 32) as u32) }
    }

    /// Encodes it as the word at `index` of the ring.
    pub(super) const fn word(self, index: u32, blocks: u32) -> u64 {
        let distance = (self.block as u64 + blocks as u64 - index as u64) % blocks as u64;
        (self.mark as u32 as u64) << 32 | distance
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
