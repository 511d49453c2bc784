//! What a segment looks like in memory.
//!
//! Everything is an atomic or lies under a lock, so that it can be shared between processes that
//! were started at different times and may be killed at any. All zero is a valid segment in which
//! everything passes. Cells that different threads write stand 128 bytes apart, the distance at
//! which prefetchers stop pairing cache lines.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64};

use tidegate_algo::channel::{CHANNELS_MAX, QUEUES_MAX, WORDS_MAX};
use tidegate_algo::histogram::Histogram;
use tidegate_algo::published::{Published, VERSIONS};
use tidegate_algo::queue::Queue;
use tidegate_algo::token_bucket::TokenBucket;

use crate::bypass::BYPASSES;
use crate::lock::SharedLock;

/// The first eight bytes of a segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TIDEGATE");
/// Raised whenever anything in this file changes; a shim of another release lets its process run
/// without gates rather than guess.
pub const VERSION: u32 = 1;
/// The most gates in a stage; one less than the numbers of a byte.
pub const GATES_MAX: usize = 255;
/// The most processes whose I/O is counted for calibration and coverage.
pub const PROCESSES_MAX: usize = 1_024;
/// The most requests at one queue gate, waiting and in service.
pub const SLOTS_MAX: usize = 256;
/// Tokens for one operation, for buckets that count operations; they are whole numbers and need to
/// be small against a request.
pub const TOKENS_PER_OPERATION: u64 = 1_000;

/// The whole of a segment.
#[derive(Debug)]
#[repr(C)]
pub struct Layout {
    /// What it is and which table is in force.
    pub header: Header,
    /// Compiled rules; the one in force is at `generation % VERSIONS`.
    pub tables: [[AtomicU64; WORDS_MAX]; VERSIONS],
    /// Counters by channel.
    pub channels: [ChannelCell; CHANNELS_MAX],
    /// What matched no rule, or came before the first rules.
    pub unmatched: ChannelCell,
    /// Gates by number.
    pub gates: [GateCell; GATES_MAX],
    /// The queues behind queue gates.
    pub queues: [QueueCell; QUEUES_MAX],
    /// Processes that use the segment; zero is free.
    pub processes: [AtomicU32; PROCESSES_MAX],
    /// Calls that passed by, by reason.
    pub bypasses: [BypassCell; BYPASSES.len()],
}

/// What the segment is and which table is in force.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Header {
    /// [`MAGIC`], stored last when a segment is made.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// The length of the segment in bytes.
    pub length: AtomicU32,
    /// How many tables were published; zero until the first. A futex.
    pub generation: AtomicU32,
    /// 1 if requests wait for the first table rather than pass.
    pub closed: AtomicU32,
    /// How ticks become nanoseconds: see `clock`.
    pub clock: Published<3>,
}

/// What flowed through a channel.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ChannelCell {
    /// Requests that passed.
    pub operations: AtomicU64,
    /// Bytes they moved.
    pub bytes: AtomicU64,
    /// Nanoseconds they waited, in all.
    pub waited: AtomicU64,
    /// 1 if every request is timed, not a sample.
    pub probed: AtomicU32,
    /// Waiting times of those that waited.
    pub waiting: Histogram,
    /// Service times of those that were timed.
    pub service: Histogram,
}

/// What a gate does. The numbers stand in [`GateCell::kind`].
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
}

/// A gate.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct GateCell {
    /// A [`GateKind`].
    pub kind: AtomicU32,
    /// Which of the queues it has, if it is one.
    pub queue: AtomicU32,
    /// Changes when whoever waits for tokens should look again. A futex.
    pub changes: AtomicU32,
    /// About how many threads wait here for tokens; a killed one stays counted until its stage is
    /// empty.
    pub sleepers: AtomicU32,
    /// Requests that had to wait here.
    pub delayed: AtomicU64,
    /// Nanoseconds they waited, in all.
    pub waited: AtomicU64,
    /// The bucket, if it is one.
    pub bucket: TokenBucket,
    /// Their waiting times.
    pub waiting: Histogram,
}

/// A queue and where its requests sleep.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct QueueCell {
    /// Guards `queue`; never held while a request waits.
    pub lock: SharedLock,
    /// Who waits and who is in service.
    pub queue: UnsafeCell<Queue<SLOTS_MAX>>,
    /// Changes when the request in this slot may go. Futexes.
    pub turns: [AtomicU32; SLOTS_MAX],
}

// SAFETY: `queue` is only touched under `lock`; the rest are atomics.
unsafe impl Sync for QueueCell {}

/// Calls that passed by for one reason.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct BypassCell {
    /// How many.
    pub calls: AtomicU64,
    /// Bytes they moved, where known.
    pub bytes: AtomicU64,
}

const _: () = assert!(size_of::<Layout>() < 2 << 20, "a segment is under two megabytes");
