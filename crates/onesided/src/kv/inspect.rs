//! Checks that a key-value store's structures are such as its clients and its sweep can make.
//!
//! # Mechanism
//! Each word is judged by itself, so what is changed meanwhile is never taken for damage: an entry
//! of the index names a block that there is, a length that a value can have and a state that is
//! known; a word of the ring is a distance below the number of blocks. The pool's words only grow,
//! and no more blocks are free than there are.
//!
//! The index and the ring are looked at piece by piece ([`Inspector::scan`]), the other words at
//! once. Example: a store of 256 MiB has 1.4 MB of both, which is 70 pieces of 20 KB.
//!
//! # Bound
//! A random word passes for an entry with a probability of `blocks` in 2^32, times a quarter; a
//! word of zeros always does.

use super::layout::{HEADER, LINE, Layout, POOL_AND_CENSUS, word};
use super::slot::IndexSlot;
use crate::integrity::Structure;
use crate::one_sided::WORD;

/// Bytes that are read at a time.
const CHUNK: usize = 4096;

/// How far the census may be ahead of the round as it was read just before: the word of a client
/// is the round and one, and a sweep behind an RNIC may count a round meanwhile.
const ROUNDS_AHEAD: u64 = 2;

/// Looks over one store. It is used by the thread that sweeps it.
#[derive(Clone, Debug)]
pub struct Inspector {
    layout: Layout,
    /// Bytes of the index and the ring that were looked at in this pass.
    at: u64,
    /// The round, and how many blocks were taken and given, as they were seen last.
    seen: [u64; 3],
}

impl Inspector {
    /// Of the store with this layout, at the beginning of a pass.
    pub const fn new(layout: Layout) -> Self {
        Self { layout, at: 0, seen: [0; 3] }
    }

    /// Bytes of a pass: those of the index and the ring.
    pub const fn length(&self) -> u64 {
        self.layout.ring(self.layout.blocks()) - self.layout.bucket(0)
    }

    /// Looks at the header, the pool's words and the census. `read` copies bytes of the region.
    pub fn check(&mut self, read: &mut impl FnMut(u64, &mut [u8])) -> Option<Structure> {
        let mut header = [0; HEADER];
        read(self.layout.area().at, &mut header);
        if header != self.layout.header() {
            return Some(Structure::StoreHeader);
        }
        let mut words = [0; POOL_AND_CENSUS as usize];
        read(self.layout.pool(), &mut words);
        let words_at = |from: usize| words[from..].chunks_exact(WORD as usize).map(word);
        let mut pool = words_at(0);
        let seen = [(); 3].map(|()| pool.next().unwrap_or(0));
        let [round, taken, given] = seen;
        let is_growing = seen.iter().zip(self.seen).all(|(now, before)| *now >= before);
        let most = given.checked_add(u64::from(self.layout.blocks()));
        if !is_growing || given > taken || most.is_none_or(|most| taken > most) {
            return Some(Structure::BlockPool);
        }
        self.seen = seen;
        let newest = round.saturating_add(ROUNDS_AHEAD);
        let is_counted = words_at(LINE as usize).all(|announced| announced <= newest);
        (!is_counted).then_some(Structure::Census)
    }

    /// Looks at the next `bytes` of the index and the ring, or a little more, and begins anew at
    /// their end.
    pub fn scan(&mut self, bytes: u64, read: &mut impl FnMut(u64, &mut [u8])) -> Option<Structure> {
        let (start, end) = (self.layout.bucket(0), self.length());
        let until = self.at.saturating_add(bytes).min(end);
        let mut chunk = [0; CHUNK];
        while self.at < until {
            let count = (end - self.at).min(CHUNK as u64) as usize;
            read(start + self.at, &mut chunk[..count]);
            let words = chunk[..count].chunks_exact(WORD as usize).map(word);
            let found = (self.at..).step_by(WORD as usize).zip(words);
            let damaged = found.into_iter().find_map(|(at, word)| self.judge(at, word));
            if damaged.is_some() {
                return damaged;
            }
            self.at += count as u64;
        }
        if self.at == end {
            self.at = 0;
        }
        None
    }

    /// Looks at everything, once.
    pub fn check_all(&mut self, read: &mut impl FnMut(u64, &mut [u8])) -> Option<Structure> {
        self.at = 0;
        self.check(read).or_else(|| self.scan(u64::MAX, read))
    }

    /// The structure that is damaged if `word` stands `at` bytes behind the beginning of the index.
    fn judge(&self, at: u64, word: u64) -> Option<Structure> {
        let blocks = self.layout.blocks();
        if at < self.layout.ring(0) - self.layout.bucket(0) {
            let is_sound = word == 0 || IndexSlot(word).is_of(blocks);
            return (!is_sound).then_some(Structure::Index);
        }
        (word as u32 >= blocks).then_some(Structure::FreeBlocks)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use tidegate_model::SessionSlot;

    use super::*;
    use crate::kv::layout::{Area, BUCKET_SLOTS};

    fn store() -> (Layout, Vec<u8>) {
        let area = Area { at: 64, length: 400 << 10 };
        let layout = Layout::new(area, 1, 16, 64).unwrap();
        let mut region = vec![0; 500 << 10];
        region[64..][..HEADER].copy_from_slice(&layout.header());
        (layout, region)
    }

    fn found(inspector: &mut Inspector, region: &[u8]) -> Option<Structure> {
        let mut read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&region[at as usize..][..into.len()]);
        };
        inspector.check_all(&mut read)
    }

    fn set(region: &mut [u8], at: u64, word: u64) {
        region[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }

    #[test]
    fn every_structure_is_distinguished_from_garbage() {
        let (layout, clean) = store();
        assert_eq!(found(&mut Inspector::new(layout), &clean), None);
        let last_slot = layout.slot(u64::from(16 * BUCKET_SLOTS) - 1);
        let good = IndexSlot::new(0xabc, 7, 3, 63);
        let cases = [
            (64 + 20, 1, Some(Structure::StoreHeader)),
            (layout.taken(), 64, None),
            (layout.taken(), 65, Some(Structure::BlockPool)),
            (layout.given(), 1, Some(Structure::BlockPool)),
            (layout.given(), u64::MAX, Some(Structure::BlockPool)),
            (layout.holder(SessionSlot(255)), 2, None),
            (layout.holder(SessionSlot(255)), 3, Some(Structure::Census)),
            (last_slot, good.0, None),
            (last_slot, good.claim().0, None),
            (last_slot, good.expelled().0, None),
            (last_slot, good.0 | 3 << 31, Some(Structure::Index)),
            (last_slot, IndexSlot::new(0xabc, 7, 3, 64).0, Some(Structure::Index)),
            (last_slot, IndexSlot::new(0xabc, 0, 3, 1).0, Some(Structure::Index)),
            (last_slot, IndexSlot::new(0xabc, 7, 0, 1).0, Some(Structure::Index)),
            (last_slot, IndexSlot::new(0xabc, 7, 66, 1).0, Some(Structure::Index)),
            (layout.ring(63), 7 << 32 | 63, None),
            (layout.ring(63), 64, Some(Structure::FreeBlocks)),
            (layout.block(0), u64::MAX, None),
        ];
        for (at, word, expected) in cases {
            let mut region = clean.clone();
            set(&mut region, at, word);
            let damaged = found(&mut Inspector::new(layout), &region);
            assert_eq!(damaged, expected, "{word:#x} at {at}");
        }
    }

    #[test]
    fn words_that_only_grow_do_not_fall() {
        let (layout, mut region) = store();
        let mut inspector = Inspector::new(layout);
        set(&mut region, layout.taken(), 20);
        assert_eq!(found(&mut inspector, &region), None);
        set(&mut region, layout.taken(), 0);
        assert_eq!(found(&mut inspector, &region), Some(Structure::BlockPool));
    }

    #[test]
    fn a_pass_reads_every_word_in_chunks() {
        let (layout, mut region) = store();
        set(&mut region, layout.ring(63), u64::MAX);
        let mut inspector = Inspector::new(layout);
        let mut read = |at: u64, into: &mut [u8]| {
            into.copy_from_slice(&region[at as usize..][..into.len()]);
        };
        let scans = (0..1_000).take_while(|_| inspector.scan(1, &mut read).is_none()).count();
        assert!(scans as u64 <= inspector.length() / CHUNK as u64 + 1, "{scans}");
    }
}
