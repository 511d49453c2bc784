//! Garbage collection of the key-value store: blocks that no client uses return to the free pool.
//!
//! # Problem
//! A client has blocks that no slot points to: those that it took out of the pool, those that it
//! removed from the index, and those that it is writing. When it dies no other client can find
//! them, and a put has no operation to spare for writing it down.
//!
//! # Model
//! The sweeper has the list of live clients, by number (*session slots*). A client that lives may
//! be late with anything, for as long as it likes; an operation of a dead one has happened or never
//! will.
//!
//! # Mechanism
//! The sweep goes over the store in *passes*. In each it reads the index and the pool, and the word
//! that each other block has instead of a mark. It sweeps a block that it noted in the last pass
//! and finds unchanged, if each living client has announced meanwhile that it is not about to use
//! the block. It notes the rest for the next pass. No client has to wait for a sweep or for the
//! sweeper.
//!
//! - **Use of a block changes its mark.** Writing a block makes it one of a new version, and
//!   removing one leaves the version alone. So a block that has been used since it was noted either
//!   is in the index or has something else where its mark was.
//! - **Rounds.** The store's round is a word that grows with each pass. Each client that writes has
//!   a word in the *census*: since which round it has the oldest block that it may be about to
//!   write with operations under way. It reads the round now and then, and raises its word as
//!   soon as all puts and deletes of earlier rounds have ended. A note of one round is swept only
//!   when each living client's word is of a later one.
//! - **A client may lose blocks that it merely keeps:** sweeping a block is a swap of the word that
//!   it has instead of a mark. A client that wants to use a block of an earlier round swaps that
//!   word, too, and so keeps it ([`super::supply`]). Only one of the two can succeed.
//!
//! Claims of clients that died, expelled or not, are noted and emptied in the same way: after the
//! round no client is left that could be their owner.
//!
//! Example: client 1 has died with blocks 7 and 8, and client 2 keeps 9 and is writing 10, all in
//! round 4. The first pass notes 7, 8, 9 and 10, and the round is 5. Client 2 ends its put, which
//! puts 10 into the index, reads the round and announces 5. The second pass sweeps 7, 8 and 9.
//! Client 2 wants to use 9, finds that it was swept, and takes another.
//!
//! # Bound
//! A pass reads the index, the pool's ring, and a word of each other block; it posts 520 operations
//! at most at a time, and remembers 16 bytes for each block that no word points to. Blocks that a
//! client leaves are in the pool after two passes, and not before the slowest put or delete that
//! was under way has ended. As long as a client that lives does not poll, nothing is swept.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tidegate_model::{SessionSlot, Time};

use super::block;
use super::layout::{BUCKET, BUCKET_SLOTS, Free, HOLDERS, LINE, Layout, POOL_AND_CENSUS, word};
use super::slot::IndexSlot;
use crate::one_sided::{
    BUFFER, BufferPosition, Done, Lost, Operation, Post, PostError, RemoteMemory, WORD,
};

/// Words of a buffer.
const BATCH: usize = BUFFER as usize / WORD as usize;

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// It did not begin: the pool has enough.
    Enough,
    /// It did not begin: a client that lives may be about to use what was noted in the last one.
    Held,
    /// It went over all of the store.
    Over {
        /// Blocks that came back to the pool.
        swept: u32,
        /// Blocks that no word points to, which the next pass may sweep.
        noted: u32,
    },
}

/// How many blocks are where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stock {
    /// In the store.
    pub blocks: u32,
    /// In the pool, for the next client that takes one.
    pub free: u32,
}

/// The phase of a pass, by the operations that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Rest,
    Words,
    /// A part of the index, from this bucket on; and claims in it that are to be emptied.
    Index(u32),
    Claims(u32),
    /// Entries of the ring, from this one on, up to another.
    Ring(u64),
    /// Words that the blocks of a batch have instead of marks; and swaps that sweep blocks.
    Marks,
    Sweeping,
    /// Words of the ring and of the pool, which name them.
    Giving,
    /// The round is over.
    Round,
}

/// A block and its mark, or a slot and its word.
type Note = (u64, u64);

/// Sweeps one store. There is one of these at a time.
#[derive(Debug)]
pub struct Sweep<F> {
    remote: F,
    layout: Layout,
    phase: Phase,
    pending: usize,
    /// Operations that wait for headroom in the connection.
    unsent: VecDeque<Post>,
    done: Vec<Done>,
    /// The round, and entries of the ring that were taken and given.
    round: u64,
    taken: u64,
    given: u64,
    /// A bit for each block that a slot points to, or that is in the pool.
    used: Vec<u64>,
    /// The round of the last pass, its notes, and the notes of this pass.
    noted_in: u64,
    blocks: Vec<Note>,
    claims: Vec<Note>,
    blocks_next: Vec<Note>,
    claims_next: Vec<Note>,
    /// The notes that are examined together, and the block that comes next.
    batch: Vec<Note>,
    next: u32,
    swept: u32,
}

impl<F: RemoteMemory> Sweep<F> {
    /// A sweep of the store with this layout, through a connection with at least one buffer that is
    /// not in use.
    pub fn new(remote: F, layout: Layout) -> Self {
        Self {
            remote,
            layout,
            phase: Phase::Rest,
            pending: 0,
            unsent: VecDeque::new(),
            done: Vec::new(),
            round: 0,
            taken: 0,
            given: 0,
            used: Vec::new(),
            noted_in: 0,
            blocks: Vec::new(),
            claims: Vec::new(),
            blocks_next: Vec::new(),
            claims_next: Vec::new(),
            batch: Vec::new(),
            next: 0,
            swept: 0,
        }
    }

    /// The connection that the sweep works on.
    pub fn remote_mut(&mut self) -> &mut F {
        &mut self.remote
    }

    /// How many blocks the pool had when it was looked at last.
    pub fn stock(&self) -> Stock {
        let blocks = self.layout.blocks();
        let free = self.given.saturating_add(u64::from(blocks)).saturating_sub(self.taken);
        Stock { blocks, free: free.min(u64::from(blocks)) as u32 }
    }

    /// Whether the next [`Self::poll`] begins a pass.
    pub fn is_resting(&self) -> bool {
        self.phase == Phase::Rest
    }

    /// Goes on with a pass, or begins one if the pool has fewer blocks than `enough`; returns how
    /// it ended. It posts at most as much as one buffer holds.
    ///
    /// # Errors
    /// If the region is lost.
    pub fn poll(
        &mut self,
        now: Time,
        enough: u32,
        is_living: impl Fn(SessionSlot) -> bool,
    ) -> Result<Option<Pass>, Lost> {
        if self.phase == Phase::Rest && self.pending == 0 {
            self.phase = Phase::Words;
            self.read(self.layout.pool(), 0, POOL_AND_CENSUS);
        }
        self.send_kept();
        self.remote.flush(now)?;
        let mut done = core::mem::take(&mut self.done);
        let polled = self.remote.poll(now, &mut done);
        self.pending -= done.len();
        for Done { id, word } in done.drain(..) {
            // A swap that did not find the expected word.
            if let Some(note) = self.batch.get_mut(id as usize)
                && matches!(self.phase, Phase::Sweeping)
                && word != note.1
            {
                note.0 = u64::MAX;
            }
        }
        self.done = done;
        polled?;
        let over = if self.pending == 0 { self.step(enough, is_living) } else { None };
        self.remote.flush(now)?;
        Ok(over)
    }

    /// All that was posted is done.
    fn step(&mut self, enough: u32, is_living: impl Fn(SessionSlot) -> bool) -> Option<Pass> {
        match self.phase {
            Phase::Rest => {}
            Phase::Words => {
                let is_held = self.is_held(is_living);
                if is_held || self.stock().free >= enough {
                    self.phase = Phase::Rest;
                    return Some(if is_held { Pass::Held } else { Pass::Enough });
                }
                self.begin();
                self.read_index(0);
            }
            Phase::Index(bucket) => self.on_index(bucket),
            Phase::Claims(bucket) => self.read_index(bucket),
            Phase::Ring(index) => self.on_ring(index),
            Phase::Marks => self.on_marks(),
            Phase::Sweeping => self.on_swept(),
            Phase::Giving => self.read_marks(),
            Phase::Round => return Some(self.end()),
        }
        None
    }

    /// Takes in the pool's words and the census. Whether one that lives may be about to use what
    /// was noted.
    fn is_held(&mut self, is_living: impl Fn(SessionSlot) -> bool) -> bool {
        let words = self.remote.buffer(0);
        let at = |index: u32| word(&words[index as usize..]);
        [self.round, self.taken, self.given] = [0, 8, 16].map(at);
        let announced =
            |session_slot: &SessionSlot| at(LINE + u32::from(session_slot.0) * WORD as u32);
        let has_noted = !self.blocks.is_empty() || !self.claims.is_empty();
        // Its word is the round and 1, or nothing.
        let may_use = |session_slot: SessionSlot| {
            is_living(session_slot)
                && (1..self.noted_in.saturating_add(2)).contains(&announced(&session_slot))
        };
        has_noted && (0..HOLDERS).map(SessionSlot).any(may_use)
    }

    fn begin(&mut self) {
        self.used.clear();
        self.used.resize((self.layout.blocks() as usize).div_ceil(64), 0);
        self.next = 0;
        self.swept = 0;
    }

    fn read_index(&mut self, bucket: u32) {
        let count = (self.layout.buckets() - bucket).min(BUFFER / BUCKET);
        if count == 0 {
            // Clients can have written anything there: there are not more entries than blocks.
            let blocks = u64::from(self.layout.blocks());
            self.given = self.given.clamp(self.taken.saturating_sub(blocks), self.taken);
            return self.read_ring(self.taken);
        }
        self.phase = Phase::Index(bucket);
        self.read(self.layout.bucket(bucket), 0, count * BUCKET);
    }

    fn on_index(&mut self, bucket: u32) {
        let count = (self.layout.buckets() - bucket).min(BUFFER / BUCKET);
        let words = self.words(count * BUCKET_SLOTS);
        let first = u64::from(bucket) * u64::from(BUCKET_SLOTS);
        self.batch.clear();
        for (slot, word) in (first..).zip(words).filter(|(_, word)| *word != 0) {
            self.use_block(u64::from(IndexSlot(word).block()));
            if IndexSlot(word).has_value() {
                continue;
            }
            match self.claims.binary_search(&(slot, word)) {
                Ok(_) => self.batch.push((slot, word)),
                Err(_) => self.claims_next.push((slot, word)),
            }
        }
        self.phase = Phase::Claims(bucket + count);
        for at in 0..self.batch.len() {
            let (slot, expected) = self.batch[at];
            let at_slot = self.layout.slot(slot);
            self.post(at as u64, Operation::CompareSwap { at: at_slot, expected, new: 0 });
        }
        if self.batch.is_empty() {
            self.read_index(bucket + count);
        }
    }

    /// Reads the ring of the pool, from this slot on.
    fn read_ring(&mut self, index: u64) {
        let blocks = u64::from(self.layout.blocks());
        let left = self.given.saturating_add(blocks).saturating_sub(index);
        let at = (index % blocks) as u32;
        let count = left.min(blocks - u64::from(at)).min(BATCH as u64) as u32;
        if count == 0 {
            return self.read_marks();
        }
        self.phase = Phase::Ring(index);
        self.read(self.layout.ring(at), 0, count * WORD as u32);
        self.batch.clear();
        self.batch.resize(count as usize, (0, 0));
    }

    fn on_ring(&mut self, index: u64) {
        let (count, blocks) = (self.batch.len() as u32, self.layout.blocks());
        let first = (index % u64::from(blocks)) as u32;
        for (at, word) in (first..).zip(self.words(count)) {
            self.use_block(u64::from(Free::read(word, at, blocks).block));
        }
        self.read_ring(index + u64::from(count));
    }

    /// Reads what the next blocks have that are not used.
    fn read_marks(&mut self) {
        self.phase = Phase::Marks;
        self.batch.clear();
        while self.batch.len() < BATCH && self.next < self.layout.blocks() {
            let block = self.next;
            self.next += 1;
            if self.used[block as usize / 64] >> (block % 64) & 1 == 0 {
                let offset = self.batch.len() as u32 * WORD as u32;
                self.read(self.layout.block(block), offset, WORD as u32);
                self.batch.push((u64::from(block), 0));
            }
        }
        if self.batch.is_empty() {
            self.phase = Phase::Round;
            self.post(0, Operation::FetchAdd { at: self.layout.round(), add: 1 });
        }
    }

    fn on_marks(&mut self) {
        let marks = self.words(self.batch.len() as u32);
        let mut batch = core::mem::take(&mut self.batch);
        batch.iter_mut().zip(marks).for_each(|(note, mark)| note.1 = mark);
        batch.retain(|note| {
            let is_noted = self.blocks.binary_search(note).is_ok();
            if !is_noted {
                self.blocks_next.push(*note);
            }
            is_noted
        });
        self.batch = batch;
        if self.batch.is_empty() {
            return self.read_marks();
        }
        self.phase = Phase::Sweeping;
        for at in 0..self.batch.len() {
            let (block, expected) = self.batch[at];
            let new = block::swept(block::version(expected), self.round);
            let at_block = self.layout.block(block as u32);
            self.post(at as u64, Operation::CompareSwap { at: at_block, expected, new });
        }
    }

    /// Puts the swept blocks into the pool.
    fn on_swept(&mut self) {
        self.batch.retain(|note| note.0 != u64::MAX);
        let (blocks, count) = (self.layout.blocks(), self.batch.len());
        self.phase = Phase::Giving;
        let index = |at: usize| (self.given.wrapping_add(at as u64) % u64::from(blocks)) as u32;
        let first = count.min((blocks - index(0)) as usize);
        let words = self.batch.iter().enumerate().map(|(at, (block, mark))| {
            let mark = block::swept(block::version(*mark), self.round);
            Free { block: *block as u32, mark }.word(index(at), blocks)
        });
        let (start, words) = (index(0), words.collect::<Vec<_>>());
        let buffer = self.remote.buffer_mut(0);
        for (bytes, word) in buffer.chunks_exact_mut(WORD as usize).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        for (from, count, start) in [(0, first, start), (first, count - first, 0)] {
            if count > 0 {
                let (from, length) = (from as u32 * WORD as u32, count as u32 * WORD as u32);
                let (from, to) =
                    (BufferPosition { buffer: 0, offset: from }, self.layout.ring(start));
                self.post(0, Operation::Write { from, to, length });
            }
        }
        self.given = self.given.wrapping_add(count as u64);
        self.swept += count as u32;
        let (word, to) = (self.given, self.layout.given());
        self.post(0, Operation::WriteWord { word, to });
    }

    fn end(&mut self) -> Pass {
        self.phase = Phase::Rest;
        self.noted_in = self.round;
        self.blocks = core::mem::take(&mut self.blocks_next);
        self.claims = core::mem::take(&mut self.claims_next);
        Pass::Over { swept: self.swept, noted: self.blocks.len() as u32 }
    }

    fn use_block(&mut self, block: u64) {
        if let Some(word) = self.used.get_mut(block as usize / 64) {
            *word |= 1 << (block % 64);
        }
    }

    /// The first words that were read.
    fn words(&self, count: u32) -> Vec<u64> {
        let bytes = &self.remote.buffer(0)[..(count * WORD as u32) as usize];
        bytes.chunks_exact(WORD as usize).map(word).collect()
    }

    fn read(&mut self, from: u64, offset: u32, length: u32) {
        let into = BufferPosition { buffer: 0, offset };
        self.post(0, Operation::Read { from, into, length });
    }

    fn post(&mut self, id: u64, operation: Operation) {
        self.pending += 1;
        self.unsent.push_back(Post { id, operation });
        self.send_kept();
    }

    fn send_kept(&mut self) {
        while let Some(post) = self.unsent.front().copied() {
            match self.remote.post(post) {
                Ok(()) => self.unsent.pop_front(),
                Err(PostError::Full) => return,
                // All of it is in the store, which is in the region.
                Err(error) => panic!("{error}: {post:?}"),
            };
        }
    }
}
