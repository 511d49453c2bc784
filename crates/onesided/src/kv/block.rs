//! A block of the key-value store: one key with its value, and a checksum that detects torn reads.
//!
//! ```text
//! +0   mark     1, 51 bits of the key's hash, and the version
//! +8   sum      crc32c of all that follows, changed by the version
//! +12  lengths  of the key and of the value, 16 bits each
//! +16  key, then value
//! ```
//!
//! All but the mark stays as it was written until the block is used anew. The mark is there while
//! the block's slot points to it; before that ends, only the version is left of it. See [`super`]
//! for why. A block that no slot points to has in the same word whether it was swept, or kept
//! since: see the sweep.

use super::bytes::{BLOCK, LINE, word};
use super::slot::VERSION_MAX;

/// Bytes of a block before its key.
pub(super) const HEAD: usize = 16;

/// Bytes of the longest key, as in memcached.
pub const KEY_MAX: usize = 250;

/// Bytes of the longest value.
pub const VALUE_MAX: usize = 4096;

/// Bytes of the longest key and value together: a value of 4,096 bytes leaves 48 for its key.
pub const ENTRY_MAX: usize = BLOCK as usize - HEAD;

/// The content of a block, as one read has shown it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// The key, and where its value is.
    Value { from: u32, length: u32 },
    /// Another key.
    Other,
    /// Bytes other than those written with that version: the block is being rewritten, or was.
    Torn,
}

const MARK: u64 = 1 << 63;
const SWEPT: u64 = 1 << 62;
const KEPT: u64 = 1 << 61;

/// The mark of a block with the value of a key.
pub(super) const fn mark(hash: u64, version: u16) -> u64 {
    MARK | hash & !(VERSION_MAX as u64) | version as u64
}

/// The word that replaces a mark when the block's slot no longer points to the block.
pub(super) const fn unmarked(version: u16) -> u64 {
    version as u64
}

/// The version of the last write to a block, from its mark or from the word instead of one.
pub(super) const fn version(mark: u64) -> u16 {
    mark as u16 & VERSION_MAX
}

/// Instead of a mark: the block was swept in this round. The lower half is never 0, but once in a
/// million rounds.
pub(super) const fn swept(version: u16, round: u64) -> u64 {
    SWEPT | (round.wrapping_add(1) << 12) & u32::MAX as u64 | version as u64
}

/// The same, of its lower half; of 0, that of a block that was never used.
pub(super) const fn swept_again(half: u32) -> u64 {
    if half == 0 { 0 } else { SWEPT | half as u64 }
}

/// Instead of a mark: the block's owner still has it in this round.
pub(super) const fn kept(version: u16, round: u64) -> u64 {
    KEPT | (round << 12) & (KEPT - 1) | version as u64
}

/// How many lines an entry takes.
pub(super) const fn lines(key: usize, value: usize) -> u32 {
    (HEAD + key + value).div_ceil(LINE as usize) as u32
}

/// Writes all but mark and sum, which depend on the version, and zeros up to a whole line.
pub(super) fn fill(block: &mut [u8], key: &[u8], value: &[u8]) {
    let split = HEAD + key.len();
    let end = split + value.len();
    block[12..14].copy_from_slice(&(key.len() as u16).to_le_bytes());
    block[14..16].copy_from_slice(&(value.len() as u16).to_le_bytes());
    block[HEAD..split].copy_from_slice(key);
    block[split..end].copy_from_slice(value);
    let whole = end.next_multiple_of(LINE as usize);
    block[end..whole].fill(0);
}

pub(super) fn write_mark_and_sum(block: &mut [u8], hash: u64, version: u16) {
    let (key, value) = lengths(block);
    let sum = sum(&block[12..HEAD + key + value], version);
    block[..8].copy_from_slice(&mark(hash, version).to_le_bytes());
    block[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// Whether a block that may be half-written holds the value of a key, of a version.
pub(super) fn inspect(block: &[u8], version: u16, wanted: &[u8]) -> Content {
    let (key, value) = lengths(block);
    let end = HEAD + key + value;
    if end.next_multiple_of(LINE as usize) != block.len() {
        return Content::Torn;
    }
    if block[8..12] != sum(&block[12..end], version).to_le_bytes() {
        return Content::Torn;
    }
    if block[HEAD..HEAD + key] != *wanted {
        return Content::Other;
    }
    Content::Value { from: (HEAD + key) as u32, length: value as u32 }
}

/// Whether the mark is as it should be, and the key is this one; whatever the sum is.
pub(super) fn is_marked(block: &[u8], mark: u64, wanted: &[u8]) -> bool {
    let (key, _) = lengths(block);
    word(block) == mark && key == wanted.len() && block[HEAD..HEAD + key] == *wanted
}

fn lengths(block: &[u8]) -> (usize, usize) {
    let length = |at: usize| usize::from(u16::from_le_bytes([block[at], block[at + 1]]));
    (length(12), length(14))
}

/// A version changes the sum of the same bytes by an odd multiple of itself, so no two versions
/// have the same one.
fn sum(bytes: &[u8], version: u16) -> u32 {
    crc_fast::crc32_iscsi(bytes) ^ u32::from(version).wrapping_mul(0x9e37_79b1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_one_hash_and_contents_of_other_versions_are_distinguished() {
        let mut block = [0; 2 * LINE as usize];
        fill(&mut block, b"one", &[7; 60]);
        let (hash, version) = (0xfeed_5000, 7);
        write_mark_and_sum(&mut block, hash, version);
        let mark = mark(hash, version);
        assert!(is_marked(&block, mark, b"one"));
        assert!(!is_marked(&block, mark, b"two") && !is_marked(&block, mark, b"on"));
        assert_eq!(inspect(&block, version, b"one"), Content::Value { from: 19, length: 60 });
        assert_eq!(inspect(&block, version, b"two"), Content::Other);
        assert_eq!(inspect(&block, version + 1, b"one"), Content::Torn);
        assert_eq!(inspect(&block[..64], version, b"one"), Content::Torn);
    }
}
