//! Tests of the words that many change, by threads. By every order of their steps:
//! `tests/versioned.rs`.

use crate::concurrent::versioned::*;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

extern crate std;

struct Memory<const W: usize> {
    heads: Vec<Head>,
    buffers: Vec<VersionedBuffer<W>>,
    writers: Vec<Operations>,
}

impl<const W: usize> Memory<W> {
    fn new(heads: usize, writers: usize) -> Self {
        Self {
            heads: (0..heads).map(|_| Head::default()).collect(),
            buffers: (0..heads + writers).map(|_| VersionedBuffer::default()).collect(),
            writers: (0..writers).map(|_| Operations::default()).collect(),
        }
    }

    fn shared(&self) -> Versioned<'_, W> {
        Versioned { heads: &self.heads, buffers: &self.buffers, writers: &self.writers }
    }
}

/// Adds one to every word, and gives what they were.
fn count<const W: usize>(words: &mut [u64; W]) -> ChangeResult<u64> {
    assert!(words.iter().all(|word| *word == words[0]), "{words:?} is half of two versions");
    let before = words[0];
    words.iter_mut().for_each(|word| *word += 1);
    ChangeResult::Made(before)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test with real threads")]
fn every_change_happens_once_and_as_a_whole() {
    const ROUNDS: u64 = 20_000;
    let memory = Memory::<9>::new(2, 4);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let memory = &memory;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    memory.shared().change(writer % 2, writer, count).unwrap();
                }
            });
        }
        for _ in 0..ROUNDS {
            let words = memory.shared().snapshot(0, |word| [0, 1, 2, 8].map(word));
            assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
        }
    });
    for head in [0, 1] {
        assert_eq!(memory.shared().snapshot(head, |word| [word(0), word(8)]), [2 * ROUNDS; 2]);
    }
}

#[test]
fn a_writer_that_stops_in_the_middle_blocks_no_other_writer() {
    let memory = Memory::<2>::new(1, 2);
    let shared = memory.shared();
    for round in 0..1_000 {
        // As one is that is killed with its buffer written and the head not moved.
        let operation = memory.writers[1].begin();
        assert!(shared.claim(0, 1, operation).is_some());
        assert!(memory.writers[1].is_busy());
        assert_eq!(shared.change(0, 0, count), Some(2 * round));
        assert_eq!(shared.change(0, 0, count), Some(2 * round + 1));
    }
    assert_eq!(shared.change(0, 1, count), Some(2_000), "and its writer is used again");
    assert!(!memory.writers[1].is_busy());
}

#[test]
fn a_change_that_is_none_leaves_everything() {
    let memory = Memory::<2>::new(1, 1);
    let shared = memory.shared();
    let seen = shared.change(0, 0, |words| {
        words[0] = 7;
        ChangeResult::None(words[1])
    });
    assert_eq!((seen, shared.snapshot(0, |word| word(0))), (Some(0), 0));
    assert!(memory.buffers.iter().all(|buffer| buffer.claim.load(Ordering::Relaxed) == 0));
}

#[test]
fn any_memory_is_safe() {
    for nonsense in [u64::MAX, 1, 0xffff, 1 << 16 | 2] {
        let memory = Memory::<2>::new(1, 1);
        memory.heads[0].0.store(nonsense, Ordering::Relaxed);
        memory.writers[0].0.store(nonsense >> 1, Ordering::Relaxed);
        memory.buffers.iter().for_each(|it| it.claim.store(nonsense, Ordering::Relaxed));
        let shared = memory.shared();
        shared.snapshot(0, |word| word(usize::MAX));
        _ = shared.change(0, 0, |words| {
            words[0] = 1;
            ChangeResult::Made(())
        });
    }
}
