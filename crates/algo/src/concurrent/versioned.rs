//! A few words that any number of threads and processes change, without a lock.
//!
//! # Problem
//! Processes share a structure of some words (the state of a queue). Any of them may be stopped or
//! killed at any instruction, or leave what it does by a jump. With a lock, a process that is
//! stopped while it holds the lock stops all others.
//!
//! # Mechanism
//! There is one word, [`Head`], which names the *current* buffer and counts versions. A thread that
//! wants to change the words
//!
//! 1. reads the head, copies the current buffer, and reads the head again: if it has not moved, the
//!    copy is whole;
//! 2. changes its copy, and writes it into a buffer that it has claimed and that no other reads;
//! 3. replaces the head by compare-and-swap. If the head has moved meanwhile, another thread has
//!    made progress, and this one begins again.
//!
//! So a change happens at one instruction or not at all, and a thread that stops anywhere holds
//! nothing but a buffer of its own.
//!
//! # Which buffers are free
//! A thread has a *writer*: a number, and a word that counts its operations. A claim on a buffer
//! names writer, operation and head. The claim is over as soon as the writer's counter has moved
//! on, whether the operation changed the head or not: it will write the buffer no more. A buffer
//! whose claim is over and which is not current is free. Both facts are read from shared words, so
//! no thread has to give a buffer back, and none is lost with a thread that dies: its writer is
//! given to another thread, whose first operation ends the claim.
//!
//! A writer has one operation at a time. With more buffers than writers and heads together, there
//! is always a free one.
//!
//! # What is left out
//! A thread that changes the words again and again may keep a slow one from ever succeeding: this
//! is lock-free, not wait-free. Here a thread changes a queue twice per request and sleeps in
//! between.

use super::sync::{AtomicU64, Ordering, fence};

/// The most writers: a claim has 11 bits for their number.
pub const WRITERS_MAX: usize = 1 << WRITER_BITS;
/// The most heads that share buffers: a claim has 5 bits.
pub const HEADS_MAX: usize = 1 << HEAD_BITS;

const WRITER_BITS: u32 = 11;
const HEAD_BITS: u32 = 5;
/// Of a head, the part that names the buffer: one more than its number. Zero stands for words that
/// were never changed, which are all zero. The rest counts versions.
const BUFFER_BITS: u32 = 16;

/// How often a thread checks all buffers for a free one. There always is one, but while the
/// thread goes from one to the next, others take and leave them.
const PASSES: usize = 1_000;

/// Which buffer is current, and how often that has changed. Zero from the start.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Head(pub(crate) AtomicU64);

/// One copy of the words, and the thread that may write it. Zero was never claimed.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct VersionedBuffer<const W: usize> {
    pub(crate) claim: AtomicU64,
    words: [AtomicU64; W],
}

/// Counts the beginnings and the ends of a writer's operations: odd while there is one. Zero from
/// the start.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Operations(pub(crate) AtomicU64);

impl<const W: usize> Default for VersionedBuffer<W> {
    fn default() -> Self {
        Self { claim: AtomicU64::new(0), words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Operations {
    /// Whether the writer is in the middle of an operation, or was left there.
    pub fn is_busy(&self) -> bool {
        self.0.load(Ordering::Relaxed) % 2 == 1
    }

    /// Begins an operation, which ends all that were left, and gives its number.
    pub(crate) fn begin(&self) -> u64 {
        let number = (self.0.load(Ordering::Relaxed) + 1) | 1;
        self.0.store(number, Ordering::Release);
        number
    }

    fn end(&self, number: u64) {
        // A thread that sees the end sees all writes before it, and writes the buffer after it.
        self.0.store(number + 1, Ordering::Release);
    }
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeResult<R> {
    /// The words become what they were made.
    Made(R),
    /// The words stay.
    None(R),
}

/// Words behind heads, with everything that their changes need.
#[derive(Clone, Copy, Debug)]
pub struct Versioned<'a, const W: usize> {
    /// One for each structure.
    pub heads: &'a [Head],
    /// At least as many as there are heads and writers.
    pub buffers: &'a [VersionedBuffer<W>],
    /// One for each writer.
    pub writers: &'a [Operations],
}

impl<const W: usize> Versioned<'_, W> {
    /// Reads words of a structure by `reader`, which is given a function from index to word. It
    /// may be called more than once: its last result is of one version.
    pub fn snapshot<R>(
        &self,
        head: usize,
        mut reader: impl FnMut(&dyn Fn(usize) -> u64) -> R,
    ) -> R {
        loop {
            let seen = self.heads[head].0.load(Ordering::Acquire);
            let result = match self.buffer(seen) {
                Some(buffer) => reader(&|index| {
                    buffer.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
                }),
                None => reader(&|_| 0),
            };
            if self.is_current(head, seen) {
                return result;
            }
        }
    }

    /// Changes a structure, as a writer that no other thread uses. `change` is given a copy of the
    /// words, and may be called more than once; what it does beside must be right then, too.
    ///
    /// None if there is no free buffer, which is so only if the memory holds nonsense.
    pub fn change<R>(
        &self,
        head: usize,
        writer: usize,
        mut change: impl FnMut(&mut [u64; W]) -> ChangeResult<R>,
    ) -> Option<R> {
        let operations = &self.writers[writer];
        let operation = operations.begin();
        let mut mine = None;
        let result = loop {
            let (seen, mut words) = self.copy(head);
            let result = match change(&mut words) {
                ChangeResult::None(result) => break Some(result),
                ChangeResult::Made(result) => result,
            };
            mine = mine.or_else(|| self.claim(head, writer, operation));
            let Some(buffer) = mine else { break None };
            let cells = &self.buffers[buffer].words;
            cells.iter().zip(words).for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
            let next = ((seen >> BUFFER_BITS) + 1) << BUFFER_BITS | (buffer as u64 + 1);
            let head = &self.heads[head].0;
            if head.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                break Some(result);
            }
        };
        operations.end(operation);
        result
    }

    /// The current version of a structure, and its words.
    fn copy(&self, head: usize) -> (u64, [u64; W]) {
        loop {
            let seen = self.heads[head].0.load(Ordering::Acquire);
            let Some(buffer) = self.buffer(seen) else { return (seen, [0; W]) };
            let words = core::array::from_fn(|index| buffer.words[index].load(Ordering::Relaxed));
            if self.is_current(head, seen) {
                return (seen, words);
            }
        }
    }

    fn buffer(&self, head: u64) -> Option<&VersionedBuffer<W>> {
        let number = (head % (1 << BUFFER_BITS)) as usize;
        self.buffers.get(number.checked_sub(1)?)
    }

    /// Whether a head is still what it was, so that what was read of its buffer is whole.
    fn is_current(&self, head: usize, seen: u64) -> bool {
        // Orders the reads of the words before the second read of the head.
        fence(Ordering::Acquire);
        self.heads[head].0.load(Ordering::Relaxed) == seen
    }

    /// Claims a free buffer for an operation.
    pub(crate) fn claim(&self, head: usize, writer: usize, operation: u64) -> Option<usize> {
        let claim = (operation << WRITER_BITS | writer as u64) << HEAD_BITS | head as u64;
        // From its own number on, so that a writer finds its last buffers again, in its own cache.
        let count = self.buffers.len();
        let numbers = || (0..count).map(|offset| (writer + offset) % count);
        let take = |number: &usize, pass| {
            let cell = &self.buffers[*number].claim;
            let found = cell.load(Ordering::Acquire);
            let is_free = self.is_over(found, pass) && !self.is_named(*number, found, pass);
            is_free
                && cell.compare_exchange(found, claim, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let free = (0..PASSES).find_map(|pass| numbers().find(|number| take(number, pass)));
        // A reader of one of the words to come also sees that the head had left this buffer.
        fence(Ordering::Release);
        free
    }

    fn is_over(&self, claim: u64, pass: usize) -> bool {
        let writer = (claim >> HEAD_BITS) as usize % WRITERS_MAX;
        let operation = claim >> (HEAD_BITS + WRITER_BITS);
        let now = self.writers.get(writer).map_or(0, |it| read(&it.0, pass));
        claim == 0 || now % (1 << 48) != operation
    }

    /// Whether a buffer is current for the head of its claim.
    fn is_named(&self, number: usize, claim: u64, pass: usize) -> bool {
        let head = self.heads.get(claim as usize % HEADS_MAX);
        let head = head.map_or(0, |head| read(&head.0, pass));
        head % (1 << BUFFER_BITS) == number as u64 + 1
    }
}

/// Reads a word; in passes after the first the last value that any thread has written, which a
/// plain load need not give.
fn read(word: &AtomicU64, pass: usize) -> u64 {
    match pass {
        0 => word.load(Ordering::Acquire),
        _ => word.fetch_or(0, Ordering::AcqRel),
    }
}
