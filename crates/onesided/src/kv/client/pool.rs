//! A client's use of the store's pool: it takes blocks, and announces since which round it has had
//! its blocks. [`sweep`](super::super::sweep) explains why.
//!
//! Taking blocks is three steps: the pool's words, the next slots of the ring, and a swap of the
//! word that counts the blocks taken. The slots are read before the swap, and stay as they were
//! until a client takes them. So they were read right if the swap succeeds.
//!
//! How many blocks a client takes depends on how many it holds and how many are free
//! ([`tidegate_algo::onesided::blocks`]). A client at its threshold takes none: its waiting puts
//! go on as its puts under way end, and fail as throttled once no put is under way.
//!
//! A client that writes reads the round once per rest, which costs one operation. Nothing that
//! it wrote before is seen after a word of it that it writes later, so it need not wait for that.
//! The pool's words include the round, and a read of these words may show an earlier round than a
//! read that ended before it. The client keeps the later round, so its word in the census only
//! grows.

use alloc::vec::Vec;

use tidegate_model::{SessionSlot, Span, Time};

use super::super::layout::{Free, POOL_WORDS, word};
use super::task::TaskKind;
use super::{Answer, Client, OperationOutcome};
use crate::one_sided::{BUFFER, BufferPosition, Operation, Post, RemoteMemory, WORD};

/// The most blocks that a client takes at a time.
pub const EXTENT_MAX: u32 = 512;

const _: () = assert!(EXTENT_MAX * WORD as u32 <= BUFFER);

/// Names of operations that belong to no task, which have smaller ones: part of a request to the
/// pool, a read of the round, and a write to the census.
const POOL: u64 = u32::MAX as u64;
const ROUND_READ: u64 = POOL - 1;
const CENSUS_WRITE: u64 = POOL - 2;
pub(super) const TASKS_MAX: u64 = POOL - 3;

/// The step of the client's request to the pool, which uses the buffer of the first waiting task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolStep {
    Nothing,
    /// The pool's words.
    Words,
    /// So many entries of the ring, from this one on; in two parts if it ends between.
    Entries {
        taken: u64,
        count: u32,
        parts: u8,
    },
    /// The swap that takes them.
    Take {
        taken: u64,
        count: u32,
    },
    /// None: the client has as many blocks as it may, and so many puts are writing.
    AtThreshold {
        writing: usize,
    },
}

/// A client's request to the pool, and its word in the census.
#[derive(Debug)]
pub(super) struct PoolRequest {
    step: PoolStep,
    /// The round since which it has its blocks, as in the census; none if it has no block.
    announced: Option<u64>,
    /// How often it reads the round, when it did last, and whether it is about to.
    interval: Span,
    last_read: Time,
    is_reading: bool,
}

impl PoolRequest {
    pub(super) const fn new(interval: Span) -> Self {
        let (step, announced) = (PoolStep::Nothing, None);
        Self { step, announced, interval, last_read: Time::ZERO, is_reading: false }
    }
}

impl<F: RemoteMemory> Client<F> {
    /// Whether it may write: it is in the census, or the store is not swept.
    pub(super) fn is_known(&self) -> bool {
        self.session_slot.is_none() || self.pool_request.announced.is_some()
    }

    /// How many puts have a block.
    fn writing(&self) -> usize {
        self.tasks.iter().filter(|task| task.spare.is_some()).count()
    }

    /// Begins waiting tasks, as far as there are blocks for them; requests more from the store.
    pub(super) fn serve_waiting(&mut self) {
        let writing_before = match self.pool_request.step {
            PoolStep::Nothing => None,
            PoolStep::AtThreshold { writing } => Some(writing),
            _ => return,
        };
        while let Some(at) = self.waiting.front().copied().filter(|_| self.is_known()) {
            if self.tasks[at as usize].kind == TaskKind::Delete {
                self.start_delete(at);
            } else if let Some(spare) = self.supply.take(self.now) {
                self.start_put(at, spare);
            } else {
                break;
            }
            self.waiting.pop_front();
        }
        // A put that has ended may have left its block to its key, so that fewer are held.
        if writing_before.is_some_and(|before| self.writing() >= before) {
            return;
        }
        self.pool_request.step = PoolStep::Nothing;
        if !self.waiting.is_empty() {
            self.pool_request.step = PoolStep::Words;
            self.read_pool(self.layout.pool(), 0, POOL_WORDS);
        }
    }

    /// Reads the round if that is due, and writes to the census the round that it has learned.
    pub(super) fn read_round(&mut self) {
        let Some(session_slot) = self.session_slot else { return };
        let Some(announced) = self.pool_request.announced else { return };
        let round = self.supply.round();
        let is_over = |began: &u64| *began == round;
        if announced != round && self.tasks.iter().filter_map(|it| it.round.as_ref()).all(is_over) {
            self.write_census(session_slot, round);
        }
        if !self.pool_request.is_reading
            && self.pool_request.last_read.after(self.pool_request.interval) < self.now
        {
            self.pool_request.is_reading = true;
            let operation = Operation::FetchAdd { at: self.layout.round(), add: 0 };
            self.send(Post { id: ROUND_READ, operation });
        }
    }

    fn write_census(&mut self, session_slot: SessionSlot, round: u64) {
        self.pool_request.announced = Some(round);
        let (word, to) = (round.wrapping_add(1), self.layout.holder(session_slot));
        self.send(Post { id: CENSUS_WRITE, operation: Operation::WriteWord { word, to } });
    }

    fn learn(&mut self, round: u64) {
        self.pool_request.last_read = self.now;
        let Some(session_slot) = self.session_slot else { return };
        self.supply.learn(round);
        if self.pool_request.announced.is_none() {
            self.write_census(session_slot, round);
        }
    }

    /// Something that belongs to no task is done.
    pub(super) fn on_completed(
        &mut self,
        id: u64,
        announced: u64,
        outcomes: &mut Vec<OperationOutcome>,
    ) {
        match (id, self.pool_request.step) {
            (ROUND_READ, _) => {
                self.pool_request.is_reading = false;
                self.learn(announced);
            }
            (POOL, PoolStep::Words) => self.on_words(outcomes),
            (POOL, PoolStep::Entries { taken, count, parts: 1 }) => {
                self.pool_request.step = PoolStep::Take { taken, count };
                let (at, new) = (self.layout.taken(), taken.wrapping_add(u64::from(count)));
                let operation = Operation::CompareSwap { at, expected: taken, new };
                self.send(Post { id: POOL, operation });
            }
            (POOL, PoolStep::Entries { taken, count, parts }) => {
                self.pool_request.step = PoolStep::Entries { taken, count, parts: parts - 1 };
            }
            (POOL, PoolStep::Take { taken, count }) => {
                self.pool_request.step = PoolStep::Nothing;
                if announced == taken {
                    self.take_entries(taken, count);
                }
            }
            _ => {}
        }
    }

    fn on_words(&mut self, outcomes: &mut Vec<OperationOutcome>) {
        let Some(at) = self.waiting.front().copied() else { return };
        let words = self.seen(at, POOL_WORDS);
        let [round, taken, given] = [0, 1, 2].map(|at| word(&words[at * WORD as usize..]));
        self.learn(round);
        self.pool_request.step = PoolStep::Nothing;
        let puts = self.waiting.iter().filter(|at| self.tasks[**at as usize].kind == TaskKind::Put);
        let wanted = self.supply.extent(puts.count());
        let blocks = u64::from(self.layout.blocks());
        let free = given.saturating_add(blocks).saturating_sub(taken).min(blocks) as u32;
        if self.tasks[at as usize].kind == TaskKind::Delete {
            return;
        }
        let writing = self.writing();
        let held = u32::try_from(self.supply.held() + writing).unwrap_or(u32::MAX);
        let count = self.threshold.grant(held, free, wanted);
        if count == 0 {
            if free > 0 && writing > 0 {
                self.pool_request.step = PoolStep::AtThreshold { writing };
                return;
            }
            self.refuse_waiting(free == 0, outcomes);
            return;
        }
        let index = (taken % blocks) as u32;
        let first = count.min(self.layout.blocks() - index);
        let parts = if first < count { 2 } else { 1 };
        self.pool_request.step = PoolStep::Entries { taken, count, parts };
        let length = |count: u32| count * WORD as u32;
        self.read_pool(self.layout.ring(index), 0, length(first));
        if first < count {
            self.read_pool(self.layout.ring(0), length(first), length(count - first));
        }
    }

    /// Ends all puts that wait for a block, and begins the deletes, which need none.
    fn refuse_waiting(&mut self, is_full: bool, outcomes: &mut Vec<OperationOutcome>) {
        while let Some(at) = self.waiting.pop_front() {
            match self.tasks[at as usize].kind {
                TaskKind::Delete => self.start_delete(at),
                _ if is_full => self.finish(at, Answer::Full, outcomes),
                _ => self.finish(at, Answer::Throttled, outcomes),
            }
        }
    }

    /// Takes the blocks in the ring slots that it has swapped for.
    fn take_entries(&mut self, taken: u64, count: u32) {
        let Some(at) = self.waiting.front() else { return };
        let buffer = self.tasks[*at as usize].read;
        let blocks = self.layout.blocks();
        let words = &self.remote.buffer(buffer)[..(count * WORD as u32) as usize];
        let words = words.chunks_exact(WORD as usize).enumerate().map(|(at, bytes)| {
            let index = (taken.wrapping_add(at as u64) % u64::from(blocks)) as u32;
            Free::read(word(bytes), index, blocks)
        });
        self.supply.extend(words);
    }

    /// Reads into the buffer of the first operation that waits.
    fn read_pool(&mut self, from: u64, offset: u32, length: u32) {
        let Some(at) = self.waiting.front() else { return };
        let into = BufferPosition { buffer: self.tasks[*at as usize].read, offset };
        self.send(Post { id: POOL, operation: Operation::Read { from, into, length } });
    }
}
