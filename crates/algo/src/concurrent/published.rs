//! A few words that one thread writes and any number of threads and processes read, without a lock
//! and without ever waiting: the latest of four versions is the one in force.
//!
//! A writer fills the oldest version and then moves the counter, so readers never see half of one
//! and a writer that dies in between leaves the last whole version in force. A reader that was
//! stopped while three newer versions were written notices by the counter and reads again.

use core::array;

use crate::concurrent::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Versions kept: one in force, one being written, two for readers that are late.
pub const VERSIONS: usize = 4;

/// `N` words, published as a whole. All zero from the start.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Published<const N: usize> {
    current: AtomicU32,
    versions: [[AtomicU64; N]; VERSIONS],
}

impl<const N: usize> Default for Published<N> {
    fn default() -> Self {
        Self {
            current: AtomicU32::new(0),
            versions: array::from_fn(|_| array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

impl<const N: usize> Published<N> {
    /// The words in force.
    #[inline]
    pub fn read(&self) -> [u64; N] {
        loop {
            let current = self.current.load(Ordering::Acquire);
            let version = &self.versions[current as usize % VERSIONS];
            let words = array::from_fn(|word| version[word].load(Ordering::Relaxed));
            if is_intact(&self.current, current) {
                return words;
            }
        }
    }

    /// Puts `words` in force. To be called by one thread at a time.
    pub fn write(&self, words: [u64; N]) {
        let next = self.current.load(Ordering::Relaxed).wrapping_add(1);
        let version = &self.versions[next as usize % VERSIONS];
        about_to_write();
        for (cell, word) in version.iter().zip(words) {
            cell.store(word, Ordering::Relaxed);
        }
        self.current.store(next, Ordering::Release);
    }
}

/// To be called by a writer before it overwrites the oldest version.
#[inline]
pub fn about_to_write() {
    // A reader of one of the words to come also sees that the counter had come this far, and so
    // that it reads another version than it expects.
    fence(Ordering::Release);
}

/// Whether what was read under the counter value `seen` was not overwritten meanwhile. To be called
/// after the reads.
#[inline]
pub fn is_intact(counter: &AtomicU32, seen: u32) -> bool {
    // Orders the reads before the second read of the counter.
    fence(Ordering::Acquire);
    let newer = counter.load(Ordering::Relaxed).wrapping_sub(seen);
    (newer as usize) < VERSIONS - 1
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn what_was_read_is_intact_until_a_writer_may_have_come_round_to_it() {
        for seen in [0, 7, u32::MAX - 1] {
            let intact = |newer: u32| is_intact(&AtomicU32::new(seen.wrapping_add(newer)), seen);
            // The third write after it is of the version before, and the fourth of its own: while
            // that is under way the counter says three.
            assert_eq!(
                [0, 1, 2, 3, 4, u32::MAX].map(intact),
                [true, true, true, false, false, false]
            );
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test with real threads")]
    fn a_reader_never_sees_half_of_a_version() {
        let published = Published::<4>::default();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 1..=100_000 {
                    published.write([round; 4]);
                }
            });
            let mut last = 0;
            while !writer.is_finished() {
                let words = published.read();
                assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                assert!(words[0] >= last, "versions go forward");
                last = words[0];
            }
        });
        assert_eq!(published.read(), [100_000; 4]);
    }
}
