//! Sizes of lines and blocks, and words in their bytes.

use crate::one_sided::{BUFFER, WORD};

/// Bytes of a cache line: where words that are changed by different clients are kept apart.
pub(super) const LINE: u32 = 64;

/// Bytes of a block: the size of a buffer.
pub const BLOCK: u32 = BUFFER;

/// A word at the beginning of some bytes.
pub(super) fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; WORD as usize];
    word.copy_from_slice(&bytes[..WORD as usize]);
    u64::from_le_bytes(word)
}
