//! A client's location cache: a bounded table of where it last saw keys. An entry may be stale, and
//! a lookup touches one cache line.
//!
//! Sets of four entries of 16 bytes, each set one cache line. A key's hash chooses its set, and 32
//! more of its bits distinguish it there. An entry that is found moves one slot up and a new entry
//! takes the last slot but one, so that popular keys stay under a skewed load. An entry that
//! belongs to another key, or that is old, costs the round trip that it was to save and nothing
//! else, as a location is checked against the block.

use alloc::vec;
use alloc::vec::Vec;

use super::slot::IndexSlot;

const WAYS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct CachedLocation {
    tag: u32,
    /// The slot's number. There are fewer than 2^32: see [`Locations::learn`].
    slot: u32,
    word: IndexSlot,
}

const NOTHING: CachedLocation = CachedLocation { tag: 0, slot: 0, word: IndexSlot::EMPTY };

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Set([CachedLocation; WAYS]);

/// A client's location cache.
#[derive(Debug)]
pub(super) struct Locations {
    sets: Vec<Set>,
}

impl Locations {
    /// For so many keys, to a multiple of four; with none, it remembers nothing.
    pub(super) fn new(keys: u32) -> Self {
        Self { sets: vec![Set([NOTHING; WAYS]); (keys as usize).div_ceil(WAYS)] }
    }

    /// The slot where a key was, and the slot's word.
    pub(super) fn find(&mut self, hash: u64) -> Option<(u64, IndexSlot)> {
        let set = self.set(hash)?;
        // Without a branch: which of them it is can't be guessed, and a processor that guesses
        // right fetches the sets of several gets at a time.
        let mut at = WAYS;
        for (index, entry) in set.iter().enumerate() {
            at = if entry.is(hash) { index } else { at };
        }
        let CachedLocation { slot, word, .. } = *set.get(at)?;
        set.swap(at, at.saturating_sub(1));
        Some((u64::from(slot), word))
    }

    /// Remembers where a key is. A slot whose number is too large is not remembered.
    pub(super) fn learn(&mut self, hash: u64, slot: u64, word: IndexSlot) {
        let Ok(slot) = u32::try_from(slot) else { return };
        let Some(set) = self.set(hash) else { return };
        let at = set.iter().position(|entry| entry.is(hash)).unwrap_or(WAYS - 1);
        set[at] = CachedLocation { tag: tag(hash), slot, word };
        if at == WAYS - 1 {
            set.swap(at, at - 1);
        }
    }

    /// Forgets where a key was.
    pub(super) fn forget(&mut self, hash: u64) {
        if let Some(entry) =
            self.set(hash).and_then(|set| set.iter_mut().find(|entry| entry.is(hash)))
        {
            *entry = NOTHING;
        }
    }

    fn set(&mut self, hash: u64) -> Option<&mut [CachedLocation; WAYS]> {
        let at = ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize;
        self.sets.get_mut(at).map(|set| &mut set.0)
    }
}

impl CachedLocation {
    fn is(&self, hash: u64) -> bool {
        (self.tag == tag(hash)) & (self.word != IndexSlot::EMPTY)
    }
}

/// The lower half: the upper one has chosen the set.
const fn tag(hash: u64) -> u32 {
    hash as u32
}
