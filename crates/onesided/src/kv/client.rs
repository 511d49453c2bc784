//! The client: many gets, puts and deletes at a time over one connection.
//!
//! Each is a [`Task`] that posts what it needs at once, waits until all of that is done, and takes
//! its next step; `steps.rs` has the steps. A task is found by the id of its posts, so nothing is
//! searched for, and nothing is allocated for an operation: tasks, buffers and queues are there
//! from the beginning.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tidegate_algo::onesided::blocks::BlockThreshold;
use tidegate_model::{SessionSlot, Span, Time};

use self::pool::{PoolRequest, TASKS_MAX};
use self::task::{Task, TaskKind};
use super::block::{self, ENTRY_MAX, KEY_MAX, VALUE_MAX};
use super::layout::{HOLDERS, Layout, LayoutError};
use super::locations::Locations;
use super::slot::IndexSlot;
use super::supply::Supply;
use crate::one_sided::{BufferPosition, Done, Lost, Operation, Post, PostError, RemoteMemory};

pub use pool::EXTENT_MAX;

mod pool;
mod steps;
mod task;

/// In the name of an operation that belongs to a task: the word that it returns does not matter.
const ASIDE: u64 = 1 << 30;

/// How a client goes about its work.
#[derive(Clone, Copy, Debug)]
pub struct ClientSettings {
    /// How many operations may be under way, at least 1. A get or a delete takes one buffer of the
    /// connection, a put two.
    pub outstanding: u32,
    /// For how many keys to remember where they are, 16 bytes each. A get of one that is
    /// remembered takes one round trip instead of two, a put two instead of three. Twice as many as
    /// there are popular keys leaves few of them out; 0 remembers nothing.
    pub locations: u32,
    /// How many blocks to take from the store at a time at most, from 1 to 512. More save round
    /// trips.
    pub extent: u32,
    /// The number of this client in a [`Sweep`](super::Sweep) of the store; none if the store is
    /// not swept.
    pub session_slot: Option<SessionSlot>,
    /// How long a block rests before it is used again: as long as a read can take, two periods. A
    /// client that overwrites N values in that time needs N blocks beside those with values, and
    /// may hold only some of the free ones ([`tidegate_algo::onesided::blocks`]). With less rest,
    /// readers may have to read twice.
    pub rest: Span,
}

/// Why an operation was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The key is empty, or longer than [`KEY_MAX`].
    #[error("a key has from 1 to {KEY_MAX} bytes, this one has {bytes}")]
    Key {
        /// How long it is.
        bytes: usize,
    },
    /// The value is longer than [`VALUE_MAX`], or than its key leaves of [`ENTRY_MAX`].
    #[error("the value has {bytes} bytes, and with this key it may have at most {max_bytes}")]
    Value {
        /// How long it is.
        bytes: usize,
        /// How long it may be with this key.
        max_bytes: usize,
    },
    /// As many operations are under way as there may be, or all buffers are in use: poll, or
    /// release values.
    #[error("too many operations are under way")]
    Busy,
}

/// The end of one operation.
#[derive(Debug, PartialEq, Eq)]
pub struct OperationOutcome {
    /// The token that the operation was begun with.
    pub token: u64,
    /// How it ended.
    pub answer: Answer,
}

/// How an operation ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of a get: the value. Look at it with [`Client::value`], then [`Client::release`] it.
    Found(Value),
    /// Of a get or delete: the key has no value.
    Missing,
    /// Of a put: the value is there, or was and has been replaced by a put or delete at the same
    /// time.
    Stored,
    /// Of a delete: the value is gone.
    Deleted,
    /// Of a put: no block is free. Blocks that deletes and puts have freed come back after their
    /// rest to the client that freed them, and to other clients when the store was swept.
    Full,
    /// Of a put: the client holds as many blocks without a value as it may while so few are free,
    /// and all of them rest. Nothing has changed; the oldest has rested after [`ClientSettings`]'s
    /// `rest` at the latest.
    Throttled,
    /// Of a put: both buckets of the key are full.
    Crowded,
    /// Others were faster each of many times. Nothing has changed.
    Contended,
    /// The store does not hold what was written to it. Nothing has changed. A put of the key stores
    /// it anew, and a delete removes what is damaged.
    Corrupt,
}

/// A value that was found. It keeps a buffer until it is released.
#[must_use = "its buffer comes back by Client::release"]
#[derive(Debug, PartialEq, Eq)]
pub struct Value {
    buffer: u32,
    from: u32,
    length: u32,
}

/// One client of one store. See [`super`].
#[derive(Debug)]
pub struct Client<F> {
    remote: F,
    layout: Layout,
    session_slot: Option<SessionSlot>,
    locations: Locations,
    supply: Supply,
    threshold: BlockThreshold,
    tasks: Vec<Task>,
    /// Tasks that do nothing, and buffers that hold nothing.
    idle: Vec<u32>,
    buffers: Vec<u32>,
    /// Operations that wait for headroom in the connection.
    unsent: VecDeque<Post>,
    done: Vec<Done>,
    /// Puts that wait for a block, and deletes that wait until the store has this client.
    waiting: VecDeque<u32>,
    pool_request: PoolRequest,
    /// Gets that were not begun.
    fresh: Vec<u32>,
    now: Time,
}

impl<F: RemoteMemory> Client<F> {
    /// A client of the store with this layout, which is in the connection's region.
    ///
    /// # Errors
    /// If the region does not reach to the end of the store.
    ///
    /// # Panics
    /// If the settings allow no operation, or a billion of them, or extents that are none.
    pub fn new(remote: F, layout: Layout, settings: ClientSettings) -> Result<Self, LayoutError> {
        let ClientSettings { outstanding, locations, extent, session_slot, rest } = settings;
        assert!((1..1 << 30).contains(&outstanding), "a client must be able to do something");
        assert!((1..=EXTENT_MAX).contains(&extent), "an extent has from 1 to 512 blocks");
        layout.check(remote.region())?;
        // A put has a write and two reads under way, all else less, and the client four of its own.
        let posts = 3 * outstanding as usize + 4;
        Ok(Self {
            layout,
            session_slot,
            locations: Locations::new(locations),
            supply: Supply::new(rest, extent, outstanding),
            threshold: BlockThreshold::new(layout.blocks(), HOLDERS),
            tasks: (0..outstanding).map(|_| Task::default()).collect(),
            idle: (0..outstanding).rev().collect(),
            buffers: (0..remote.buffers()).rev().collect(),
            unsent: VecDeque::with_capacity(posts),
            done: Vec::with_capacity(posts),
            waiting: VecDeque::with_capacity(outstanding as usize),
            pool_request: PoolRequest::new(rest),
            fresh: Vec::with_capacity(outstanding as usize),
            now: Time(0),
            remote,
        })
    }

    /// Begins a lookup of the value of a key.
    ///
    /// # Errors
    /// If it is not begun.
    pub fn get(&mut self, key: &[u8], token: u64) -> Result<(), Refused> {
        let at = self.begin(TaskKind::Get, key, token)?;
        self.fresh.push(at);
        Ok(())
    }

    /// Begins to give a key a value, whether it has one or not.
    ///
    /// # Errors
    /// If it is not begun.
    pub fn put(&mut self, key: &[u8], value: &[u8], token: u64) -> Result<(), Refused> {
        let max_bytes = VALUE_MAX.min(ENTRY_MAX.saturating_sub(key.len()));
        if value.len() > max_bytes && (1..=KEY_MAX).contains(&key.len()) {
            return Err(Refused::Value { bytes: value.len(), max_bytes });
        }
        let at = self.begin(TaskKind::Put, key, token)?;
        let task = &mut self.tasks[at as usize];
        task.lines = block::lines(key.len(), value.len());
        block::fill(self.remote.buffer_mut(task.written), key, value);
        // Puts that wait are served first: otherwise new ones could take every rested block.
        let is_next = self.is_known() && self.waiting.is_empty();
        let spare = if is_next { self.supply.take(self.now) } else { None };
        match spare {
            Some(spare) => self.start_put(at, spare),
            None => self.waiting.push_back(at),
        }
        Ok(())
    }

    /// Begins to take a key's value away.
    ///
    /// # Errors
    /// If it is not begun.
    pub fn delete(&mut self, key: &[u8], token: u64) -> Result<(), Refused> {
        let at = self.begin(TaskKind::Delete, key, token)?;
        if self.is_known() {
            self.start_delete(at);
        } else {
            self.waiting.push_back(at);
        }
        Ok(())
    }

    /// Begins the requested operations, and appends those that have ended by now. Call it again
    /// while
    /// [`Self::outstanding`] is not zero; as it takes one step of each operation, several calls may
    /// have something to do at the same time.
    ///
    /// # Errors
    /// If the region is lost. Of what is under way, each operation has happened or has not.
    pub fn poll(&mut self, now: Time, outcomes: &mut Vec<OperationOutcome>) -> Result<(), Lost> {
        self.now = now;
        self.send_kept();
        self.start_gets();
        self.serve_waiting();
        self.remote.flush(now)?;
        let mut done = core::mem::take(&mut self.done);
        let polled = self.remote.poll(now, &mut done);
        for Done { id, word } in done.drain(..) {
            if id > TASKS_MAX {
                self.on_completed(id, word, outcomes);
                continue;
            }
            let at = id & !ASIDE;
            let task = &mut self.tasks[at as usize];
            // At most one of those under way returns a word that matters; others return zero.
            if id == at {
                task.word |= word;
            }
            task.pending -= 1;
            if task.pending == 0 {
                self.step(at as u32, outcomes);
            }
        }
        self.done = done;
        polled?;
        self.serve_waiting();
        self.read_round();
        self.remote.flush(now)
    }

    /// How many operations have not ended.
    pub fn outstanding(&self) -> usize {
        self.tasks.len() - self.idle.len()
    }

    /// The bytes of a value that was found.
    pub fn value(&self, value: &Value) -> &[u8] {
        &self.remote.buffer(value.buffer)[value.from as usize..][..value.length as usize]
    }

    /// Gives back the buffer of a value.
    pub fn release(&mut self, value: Value) {
        self.buffers.push(value.buffer);
    }

    /// The connection that the client works on.
    pub fn remote(&self) -> &F {
        &self.remote
    }

    /// The same, to look after it. Operations on the client's buffers, or with ids below 2^32, are
    /// the client's alone.
    pub fn remote_mut(&mut self) -> &mut F {
        &mut self.remote
    }

    /// The layout of the store.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    fn begin(&mut self, kind: TaskKind, key: &[u8], token: u64) -> Result<u32, Refused> {
        if !(1..=KEY_MAX).contains(&key.len()) {
            return Err(Refused::Key { bytes: key.len() });
        }
        let count = if kind == TaskKind::Put { 2 } else { 1 };
        let rest = self.buffers.len().checked_sub(count).ok_or(Refused::Busy)?;
        let at = self.idle.pop().ok_or(Refused::Busy)?;
        let task = &mut self.tasks[at as usize];
        task.begin(kind, self.layout.home(key), key, token);
        task.read = self.buffers[rest];
        task.written = self.buffers[rest + count - 1];
        self.buffers.truncate(rest);
        Ok(at)
    }

    /// Posts an operation of a task.
    fn post(&mut self, at: u32, operation: Operation) {
        self.tasks[at as usize].pending += 1;
        self.send(Post { id: u64::from(at), operation });
    }

    /// The same, of an operation that returns a word which does not matter.
    fn post_aside(&mut self, at: u32, operation: Operation) {
        self.tasks[at as usize].pending += 1;
        self.send(Post { id: u64::from(at) | ASIDE, operation });
    }

    /// Posts, or keeps it until the connection has headroom.
    fn send(&mut self, post: Post) {
        if !self.unsent.is_empty() || !self.is_taken(post) {
            self.unsent.push_back(post);
        }
    }

    fn send_kept(&mut self) {
        while let Some(post) = self.unsent.front().copied() {
            if !self.is_taken(post) {
                return;
            }
            self.unsent.pop_front();
        }
    }

    fn is_taken(&mut self, post: Post) -> bool {
        match self.remote.post(post) {
            Ok(()) => true,
            Err(PostError::Full) => false,
            // The store is in the region, and a slot's value is checked before it is followed.
            Err(error) => panic!("{error}: {post:?}"),
        }
    }

    fn read(&mut self, at: u32, from: u64, offset: u32, length: u32) {
        let buffer = self.tasks[at as usize].read;
        self.post(at, Operation::Read { from, into: BufferPosition { buffer, offset }, length });
    }

    fn swap_word(&mut self, at: u32, slot: u64, expected: IndexSlot, new: IndexSlot) {
        let slot = self.layout.slot(slot);
        self.post(at, Operation::CompareSwap { at: slot, expected: expected.0, new: new.0 });
    }

    /// The bytes that a task has read.
    fn seen(&self, at: u32, length: u32) -> &[u8] {
        &self.remote.buffer(self.tasks[at as usize].read)[..length as usize]
    }
}
