//! Memory layout of a segment, the shared memory of a stage.
//!
//! Everything is an atomic (or a lock that guards nothing), so that it can be shared between
//! processes that were started at different times and may be killed at any. All zero is a valid
//! segment in which everything passes. Cells that different threads write stand 128 bytes apart,
//! the distance at which prefetchers stop pairing cache lines.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use tidegate_algo::classify::channel::{CHANNELS_MAX, QUEUES_MAX, WORDS_MAX};
use tidegate_algo::concurrent::histogram::Histogram;
use tidegate_algo::concurrent::published::{Published, VERSIONS};
use tidegate_algo::concurrent::versioned::{
    Head, Operations, Versioned, VersionedBuffer, WRITERS_MAX,
};
use tidegate_algo::scheduling::queue::state_words;
use tidegate_algo::shaping::token_bucket::{SHARDS, TokenBucket};
use tidegate_model::Operation;
use tidegate_model::policy::limits;

use crate::bypass::BYPASSES;
use crate::lock::SharedLock;
use crate::programs::ProgramLog;

/// The first eight bytes of a segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TIDEGATE");
/// Raised whenever anything in this file changes; a shim of another release lets its process run
/// without gates rather than guess.
pub const VERSION: u32 = 6;
/// The most gates in a stage; one less than the numbers of a byte.
pub const GATES_MAX: usize = limits::GATES;
/// The most processes whose I/O is counted for calibration and coverage.
pub const PROCESSES_MAX: usize = 1_024;
/// The most threads that may wait at queues, in all processes together.
pub const THREADS_MAX: usize = 1_024;
/// The most requests at a time of callers that have the thread-local memory of another thread, such
/// as children of `vfork`.
pub const BORROWERS_MAX: usize = 64;
/// Records of threads, then of borrowers.
pub const RECORDS_MAX: usize = THREADS_MAX + BORROWERS_MAX;
/// Writers that may change queues: one per record, and the agent of the stage.
pub const WRITERS: usize = RECORDS_MAX + 1;
/// Writer number with which the agent changes queues. A stage has one agent at a time.
pub const AGENT: usize = RECORDS_MAX;
/// The permits that a record can hold. A request has four at most, and one signal handler may
/// interrupt another.
pub const PERMITS_MAX: usize = 8;
/// Words of a set of slots.
pub const SLOT_WORDS: usize = 8;
/// The most requests at one queue gate, waiting, in service and overdue.
pub const SLOTS_MAX: usize = 64 * SLOT_WORDS;
/// Words of a queue's state.
pub const STATE_WORDS: usize = state_words(SLOT_WORDS);
/// The most requests at a time whose tokens come back if their threads end while they wait for
/// tokens. More may wait.
pub const WAITERS_MAX: usize = 1_024;
/// Tokens for one operation, for buckets that count operations; they are whole numbers and need to
/// be small against a request.
pub const TOKENS_PER_OPERATION: u64 = 1_000;

/// A thread's record. All zero but for the lock is a free one.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Record {
    /// Held by the thread that has the record; not used by borrowers.
    pub lock: SharedLock,
    /// The borrower: process and thread, or zero.
    pub borrower: AtomicU64,
    /// How often the record was taken.
    pub generation: AtomicU32,
    /// The thread's numbers in `/proc`, and the device number of that `/proc`; zero if unknown.
    pub process: AtomicU32,
    /// See `process`.
    pub thread: AtomicU32,
    /// See `process`.
    pub proc: AtomicU64,
    /// Permits that the thread holds; zero for none. Only the thread writes these.
    pub(crate) permits: [AtomicU64; PERMITS_MAX],
    /// Where on its stack it requested each; zero if that is unknown.
    pub(crate) depths: [AtomicU64; PERMITS_MAX],
}

/// The whole of a segment.
#[derive(Debug)]
#[repr(C)]
pub struct SegmentLayout {
    /// Format of the segment, and the number of the table in force.
    pub header: Header,
    /// Compiled rules; the one in force is at `generation % VERSIONS`.
    pub tables: [[AtomicU64; WORDS_MAX]; VERSIONS],
    /// Counters by channel.
    pub channels: [ChannelCell; CHANNELS_MAX],
    /// Counters of requests that matched no rule, or came before the first rules.
    pub unmatched: ChannelCell,
    /// The work of the storage behind channels of which every request is timed.
    pub storage: StorageCell,
    /// Gates by number.
    pub gates: [GateCell; GATES_MAX],
    /// The queues behind queue gates.
    pub queues: [QueueCell; QUEUES_MAX],
    /// Which state of each queue is current.
    pub heads: [Head; QUEUES_MAX],
    /// States of queues: see `versioned`.
    pub buffers: [VersionedBuffer<STATE_WORDS>; WRITERS + QUEUES_MAX],
    /// The changes that each writer makes.
    pub writers: [Operations; WRITERS],
    /// Threads that have waited at queues, and what they hold there.
    pub records: [Record; RECORDS_MAX],
    /// Processes that use the segment; zero is free.
    pub processes: [AtomicU32; PROCESSES_MAX],
    /// Calls that passed by, by reason.
    pub bypasses: [OperationCounters; BYPASSES.len()],
    /// Programs that the shim is not in.
    pub programs: ProgramLog,
    /// Requests that wait for tokens.
    pub waiters: WaiterTable,
}

/// Format of the segment, and the number of the table in force.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Header {
    /// [`MAGIC`], stored last when a segment is made.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// The length of the segment in bytes.
    pub length: AtomicU32,
    /// The table in force; zero until there is one, then one more with each. A futex.
    pub generation: AtomicU32,
    /// The first generation: a random number, so that what a thread remembers of one stage's rules
    /// is not taken for another's.
    pub first: AtomicU32,
    /// 1 if requests wait for the first table rather than pass.
    pub closed: AtomicU32,
    /// How ticks become nanoseconds: see `clock`.
    pub clock: Published<3>,
    /// Counts threads as they come, so that each begins elsewhere among shards and session slots.
    pub threads: AtomicU32,
    /// All channels from here on were never used, and are not to be touched: memory that was
    /// never touched does not exist.
    pub channels: AtomicU32,
    /// 1 if no program may be started that the shim will not be in.
    pub strict: AtomicU32,
    /// Programs that were started so that the shim should be in them.
    pub started: AtomicU64,
    /// Programs in which the shim has found its stage before they began.
    pub loaded: AtomicU64,
}

impl Header {
    /// Programs that were started, and in which the shim has not been so far: the loader left it
    /// out, the segment could not be mapped, or they have not come so far yet. Too low by the
    /// programs with the shim that were started past it, as by a static one.
    pub fn programs_missing(&self) -> u64 {
        let loaded = self.loaded.load(Ordering::Relaxed);
        self.started.load(Ordering::Relaxed).saturating_sub(loaded)
    }
}

/// Operations and the bytes that they moved. Each thread counts in its shard, because threads that
/// write one word wait for each other; a reader adds the shards up.
#[derive(Debug)]
#[repr(C)]
pub struct OperationCounters {
    shards: [CounterShard; SHARDS],
}

/// Where some of the threads count.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct CounterShard {
    operations: AtomicU64,
    bytes: AtomicU64,
}

impl CounterShard {
    /// Counts one operation, and gives how many were counted here before.
    #[inline]
    pub(crate) fn operation(&self) -> u64 {
        self.operations.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts what an operation moved.
    #[inline]
    pub(crate) fn moved(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl OperationCounters {
    /// Where the threads with this shard count.
    #[inline]
    pub(crate) fn shard(&self, shard: u8) -> &CounterShard {
        &self.shards[usize::from(shard) % SHARDS]
    }

    /// Counts an operation and what it moved.
    pub(crate) fn count(&self, shard: u8, bytes: u64) {
        let shard = self.shard(shard);
        shard.operation();
        shard.moved(bytes);
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.shards.iter().map(|shard| shard.operations.load(Ordering::Relaxed)).sum()
    }

    /// Bytes that they moved.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Forgets everything.
    #[cfg(feature = "agent")]
    pub(crate) fn clear(&self) {
        let counters = self.shards.iter().flat_map(|shard| [&shard.operations, &shard.bytes]);
        counters.for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

/// Counters of a channel.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ChannelCell {
    /// 1 if every request is timed, not a sample.
    pub probed: AtomicU32,
    /// Requests that passed.
    pub passed: OperationCounters,
    /// Nanoseconds they waited, in all.
    pub waited: AtomicU64,
    /// Waiting times of those that waited.
    pub waiting: Histogram,
    /// Service times of those that were timed.
    pub service: Histogram,
}

/// Reads and writes of channels of which every request is timed.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct StorageCell {
    /// Requests that were let through.
    pub begun: OperationCounters,
    /// Reads that were answered, and what they moved.
    pub reads: OperationCounters,
    /// Writes that were answered, and what they moved.
    pub writes: OperationCounters,
    /// The service times of those that were timed.
    pub service: Histogram,
    /// Requests that were let through and are not answered, for each of
    /// [`SegmentLayout::processes`].
    pub open: [OpenCell; PROCESSES_MAX],
    /// Requests that will not be answered, because their processes are gone.
    pub lost: AtomicU64,
}

/// How many requests of one process are at the storage.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct OpenCell(pub(crate) AtomicI32);

impl StorageCell {
    /// The counters of answered requests of this kind.
    pub(crate) fn answered(&self, operation: Operation) -> &OperationCounters {
        if operation == Operation::Read { &self.reads } else { &self.writes }
    }

    /// Gives up the requests of the process with this index, which is gone.
    pub(crate) fn lose(&self, process: usize) {
        let Some(OpenCell(open)) = self.open.get(process) else { return };
        // A process that was given up while it lived leaves less than none.
        let lost = open.swap(0, Ordering::Relaxed).max(0);
        self.lost.fetch_add(u64::from(lost.cast_unsigned()), Ordering::Relaxed);
    }
}

/// Kind of a gate, as the number in [`GateCell::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GateKind {
    /// Nothing.
    Open = 0,
    /// A token bucket that counts bytes.
    Bytes = 1,
    /// A token bucket that counts operations.
    Operations = 2,
    /// A queue.
    Queue = 3,
    /// A transformation of content: for a request without content, nothing. A gate that is one
    /// stays one.
    Transform = 4,
    /// No rule leads here any more. Requests that wait here are sorted anew.
    Retired = 5,
}

/// A gate in the segment.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct GateCell {
    /// A [`GateKind`].
    pub kind: AtomicU32,
    /// Which of the queues it has, if it is one.
    pub queue: AtomicU32,
    /// Changes when the threads that wait for tokens should check again. A futex.
    pub changes: AtomicU32,
    /// How many threads wait here for tokens; killed ones count until [`Self::asleep`] has passed.
    pub sleepers: AtomicU32,
    /// Until when, on the stage's clock, those that wait here will have checked again.
    pub asleep: AtomicU64,
    /// Requests that had to wait here.
    pub delayed: AtomicU64,
    /// Nanoseconds they waited, in all.
    pub waited: AtomicU64,
    /// The bucket, if it is one.
    pub bucket: TokenBucket,
    /// Their waiting times.
    pub waiting: Histogram,
}

/// Requests that wait for tokens, which they have taken in advance: see `waiters`.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct WaiterTable {
    /// Counts requests as they come, so that each begins elsewhere to look for a free cell.
    pub(crate) next: AtomicU32,
    /// When the table was last swept, on the stage's clock.
    pub(crate) swept: AtomicU64,
    pub(crate) cells: [WaiterCell; WAITERS_MAX],
}

/// One request that waits for tokens. Its last two fields are valid while `lease` is not zero.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct WaiterCell {
    /// The request's gate and when its thread last checked; zero if the cell is free.
    pub(crate) lease: AtomicU64,
    /// The position up to which the bucket's line must be paid.
    pub(crate) due: AtomicU64,
    /// Tokens that the request has taken.
    pub(crate) tokens: AtomicU64,
}

/// The requests of a queue and where they sleep. Which of them wait and which are in service is in
/// the queue's state.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct QueueCell {
    /// Requests.
    pub slots: [Slot; SLOTS_MAX],
    /// Changes when a slot has become free. A futex.
    pub slot_freed: AtomicU32,
    /// About how many threads wait for a slot.
    pub outside: AtomicU32,
    /// When the holders of permits were last checked, on the stage's clock.
    pub last_check: AtomicU64,
}

/// One request at a queue. Its fields do not change while it is in the queue's state, but for the
/// last two.
#[derive(Debug)]
#[repr(C)]
pub struct Slot {
    /// Claim on the slot. The upper half counts how often the slot was taken; the lower half is the
    /// owner, or zero for a free slot.
    pub claim: AtomicU64,
    /// Its number in the order of arrivals.
    pub arrival: AtomicU64,
    /// Tokens.
    pub cost: AtomicU64,
    /// Its flow.
    pub flow: AtomicU32,
    /// Changes when the request may go. A futex.
    pub wake: AtomicU32,
    /// When it entered service, on the stage's clock.
    pub granted: AtomicU64,
}

impl SegmentLayout {
    /// The states of the queues.
    pub(crate) fn states(&self) -> Versioned<'_, STATE_WORDS> {
        Versioned { heads: &self.heads, buffers: &self.buffers, writers: &self.writers }
    }
}

const _: () = assert!(WRITERS <= WRITERS_MAX);
const _: () = assert!(size_of::<SegmentLayout>() < 4 << 20, "a segment is under four megabytes");

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use super::*;
    use crate::segment::Segment;

    #[test]
    fn there_are_as_many_states_of_queues_as_writers_and_queues() {
        let segment = Segment::private().unwrap();
        assert_eq!(segment.buffers.len(), segment.writers.len() + segment.queues.len());
        assert_eq!(segment.writers.len(), segment.records.len() + 1, "one more: the agent");
        assert_eq!(AGENT, segment.writers.len() - 1);
        assert_eq!(SLOTS_MAX, segment.queues[0].slots.len());
        assert_eq!(SLOTS_MAX, 512);
    }

    #[test]
    fn programs_that_were_started_and_not_loaded_are_missing() {
        let segment = Segment::private().unwrap();
        for (started, loaded, missing) in [(0, 0, 0), (7, 4, 3), (4, 7, 0)] {
            segment.header.started.store(started, Ordering::Relaxed);
            segment.header.loaded.store(loaded, Ordering::Relaxed);
            assert_eq!(segment.header.programs_missing(), missing);
        }
    }

    #[test]
    fn counters_are_the_sum_of_their_shards_until_they_are_cleared() {
        let segment = Segment::private().unwrap();
        let counters = &segment.bypasses[0];
        for (shard, bytes) in [(0, 5), (1, 0), (1, 7), (u8::MAX, 100)] {
            counters.count(shard, bytes);
        }
        assert_eq!((counters.operations(), counters.bytes()), (4, 112));
        assert_eq!(counters.shard(1).operation(), 2, "so many were counted there before");
        #[cfg(feature = "agent")]
        {
            counters.clear();
            assert_eq!((counters.operations(), counters.bytes()), (0, 0));
        }
    }
}
