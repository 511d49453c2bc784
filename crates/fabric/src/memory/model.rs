//! Shared memory behind a modelled NIC.
//!
//! # Problem
//! Shared memory is limited by the processors of the clients, which copy. Guarantees for one-sided
//! access are about another limit: the data node's NIC, which all clients share, while each has a
//! smaller one of its own. And the imitation must not need a process at the data node.
//!
//! # Model
//! Two stages, each first come, first served, neither idle while there is work. A client's own
//! takes one operation at a time; then the shared one does, one operation of all clients at a time.
//! A round trip after it has left there, an operation is done: only then are bytes copied or is a
//! word changed.
//!
//! An operation of [`SLOT`] bytes or more takes one *slot* of a stage, a smaller one a share of it
//! by its bytes, but not less than that of [`Speed::least`] bytes.
//!
//! # Mechanism
//! The shared stage is one word in the region: when it will have finished what it has. The client
//! whose operation leaves its own stage moves that word, in one compare-and-swap, from `busy` to
//! `max(busy, arrival) + slot`, and so computes when the operation is done. That is the whole NIC;
//! it runs while any client polls, whatever the data node does. With 1,000 operations per second a
//! slot is 1 ms: one that arrives at 5 ms while the NIC is busy until 7 ms is through at 8 ms.
//!
//! A place is reserved when an operation leaves its own stage, not when it is posted: reserved
//! earlier, it would leave the shared stage idle in between. A client that polls late reserves late
//! with the arrival it should have had, so what it adds to an idle NIC is not delayed by that.
//!
//! Speeds are words beside it, so a change of capacity is a store, seen by what is posted or
//! reserved next. Times are counted in 1/64 ns: 1,570,000 operations per second are 636.94 ns each,
//! of which whole nanoseconds would make 1,569,859. So 2^64 of them are 9 years after the machine's
//! start.
//!
//! # Bound
//! For measurements and tests among clients that trust each other: any of them can spoil the word.
//! Nothing happens unless the client polls. All clients take their times from one clock.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use tidegate_model::{Iops, Span, Time};
use tidegate_onesided::one_sided::{Done, Lost, Operation, Post, PostError, RemoteMemory};

use super::buffers::Buffers;
use super::region::Region;

/// Operations of one client that may be under way.
pub const WINDOW: usize = 1024;

/// Bytes that an operation of one slot moves.
pub const SLOT: u32 = 4096;

/// Bytes of a region that a NIC needs, at a multiple of 64.
pub const NIC_BYTES: u64 = 128;

/// Where in a NIC its words are. The first has its cache line to itself: it is changed by every
/// operation, the others by none.
const BUSY: u64 = 0;
const TOTAL: u64 = 64;
const EACH: u64 = 72;
const ROUND_TRIP: u64 = 80;
const LEAST: u64 = 88;

/// Parts of a nanosecond in which times are counted.
const PARTS: u64 = 64;

/// The speed of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Slots per second of all clients together.
    pub total: Iops,
    /// Slots per second of each.
    pub each: Iops,
    /// From the shared stage to the client.
    pub round_trip: Span,
    /// Bytes, up to [`SLOT`], that the smallest operation pays for.
    pub least: u32,
}

impl Speed {
    /// Those rates, 2 us for a round trip, and 256 bytes at least: so a NIC moves 16 small
    /// messages in the time of one of 4 KiB. Both chosen by hand, near what NICs of 50 Gbit/s do.
    pub const fn new(total: Iops, each: Iops) -> Self {
        Self { total, each, round_trip: Span(2_000), least: 256 }
    }
}

/// Makes the [`NIC_BYTES`] bytes at `at` a NIC of that speed, or changes the speed of the one
/// there, from the next operation on. A NIC without a speed is as fast as memory.
///
/// # Panics
/// If they are not all inside the region, or `at` is not a multiple of 64.
pub fn set(region: &Region, at: u64, speed: Speed) {
    check(region, at);
    let slot = |rate: Iops| (1_000_000_000 * PARTS).checked_div(rate.0).unwrap_or(u64::MAX);
    let store = |word, value| region.word(at + word).store(value, Relaxed);
    store(TOTAL, slot(speed.total));
    store(EACH, slot(speed.each));
    store(ROUND_TRIP, speed.round_trip.0.saturating_mul(PARTS));
    store(LEAST, u64::from(speed.least.min(SLOT)));
}

/// Whether the NIC at `at` is of that speed, and busy until `latest` at the most, by the clock of
/// its clients: whether its words are what [`set`] and operations have made of them.
///
/// # Panics
/// As [`set`].
pub fn is_sound(region: &Region, at: u64, speed: Speed, latest: Time) -> bool {
    check(region, at);
    let slot = |rate: Iops| (1_000_000_000 * PARTS).checked_div(rate.0).unwrap_or(u64::MAX);
    let load = |word| region.word(at + word).load(Relaxed);
    load(TOTAL) == slot(speed.total)
        && load(EACH) == slot(speed.each)
        && load(ROUND_TRIP) == speed.round_trip.0.saturating_mul(PARTS)
        && load(LEAST) == u64::from(speed.least.min(SLOT))
        && load(BUSY) <= latest.0.saturating_mul(PARTS)
}

fn check(region: &Region, at: u64) {
    let is_inside = at.checked_add(NIC_BYTES).is_some_and(|end| end <= region.length());
    assert!(at.is_multiple_of(64) && is_inside, "a NIC does not fit there");
}

/// A client of a region behind a NIC.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_fabric::memory::{model::{self, Model, Speed}, region::Region};
/// use tidegate_model::{Iops, Time};
/// use tidegate_onesided::one_sided::{RemoteMemory, Operation, BufferPosition, Post};
///
/// let region = Arc::new(Region::create(1 << 20)?);
/// model::set(&region, 0, Speed::new(Iops(1_000_000), Iops(500_000)));
/// let mut client = Model::new(region, 0, 1);
/// let read = Operation::Read { from: 4096, into: BufferPosition::start(0), length: 4096 };
/// client.post(Post { id: 7, operation: read })?;
/// client.flush(Time(10_000))?;
/// // It leaves the client after 2 us, the nic 1 us later, and takes 2 us to come back.
/// assert_eq!(client.next_deadline(), Some(Time(12_000)));
/// let mut done = Vec::new();
/// client.poll(Time(12_000), &mut done)?;
/// assert_eq!((done.len(), client.next_deadline()), (0, Some(Time(15_000))));
/// client.poll(Time(15_000), &mut done)?;
/// assert_eq!((done[0].id, client.next_deadline()), (7, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Model {
    region: Arc<Region>,
    nic: u64,
    buffers: Buffers,
    /// Of each buffer, how many operations on it are under way.
    uses: Box<[u16]>,
    /// First those with a place in the shared stage, then those that are in their own, then those
    /// that were not flushed yet.
    queue: VecDeque<QueuedPost>,
    placed: usize,
    flushed: usize,
    /// When the client's own stage will have finished what it has.
    free: u64,
    /// Where the word is that says that the region was left behind.
    left: Option<u64>,
}

#[derive(Clone, Copy)]
struct QueuedPost {
    post: Post,
    /// The time when it leaves its own stage; once it has a slot in the shared stage, when it is
    /// done.
    at: u64,
}

impl Model {
    /// A client of the NIC at `nic`, with so many buffers of its own.
    ///
    /// # Panics
    /// As [`set`].
    pub fn new(region: Arc<Region>, nic: u64, buffers: u32) -> Self {
        check(&region, nic);
        Self {
            region,
            nic,
            buffers: Buffers::new(buffers),
            uses: vec![0; buffers as usize].into(),
            queue: VecDeque::with_capacity(WINDOW),
            placed: 0,
            flushed: 0,
            free: 0,
            left: None,
        }
    }

    /// As [`Shm::until_left`](super::shm::Shm::until_left).
    ///
    /// # Panics
    /// If there is no such word.
    #[must_use]
    pub fn until_left(self, left: u64) -> Self {
        self.region.word(left);
        Self { left: Some(left), ..self }
    }

    /// The next time to call [`RemoteMemory::poll`], if anything was flushed.
    pub fn next_deadline(&self) -> Option<Time> {
        let first = |at: usize, end| (at < end).then(|| self.queue[at].at);
        let (done, placed) = (first(0, self.placed), first(self.placed, self.flushed));
        let next = done.into_iter().chain(placed).min()?;
        Some(Time(next.div_ceil(PARTS)))
    }

    fn word(&self, word: u64) -> u64 {
        self.region.word(self.nic + word).load(Relaxed)
    }

    /// How long a stage takes for an operation that it does a slot of in `slot`.
    fn share(&self, operation: &Operation, slot: u64) -> u64 {
        let (_, bytes) = operation.touches();
        let bytes = bytes.max(self.word(LEAST)).min(u64::from(SLOT));
        slot.saturating_mul(bytes) / u64::from(SLOT)
    }

    /// Schedules the next operation in the shared stage.
    fn schedule(&mut self) {
        let QueuedPost { post, at: arrival } = self.queue[self.placed];
        let share = self.share(&post.operation, self.word(TOTAL));
        let through = |busy: u64| busy.max(arrival).saturating_add(share);
        let word = self.region.word(self.nic + BUSY);
        let busy = match word.fetch_update(SeqCst, SeqCst, |busy| Some(through(busy))) {
            Ok(busy) | Err(busy) => busy,
        };
        self.queue[self.placed].at = through(busy).saturating_add(self.word(ROUND_TRIP));
        self.placed += 1;
    }
}

impl RemoteMemory for Model {
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        post.operation.check(self.region.length(), self.buffers.count())?;
        if self.queue.len() == WINDOW {
            return Err(PostError::Full);
        }
        if let Some((place, _)) = post.operation.buffer_range() {
            self.uses[place.buffer as usize] += 1;
        }
        self.queue.push_back(QueuedPost { post, at: 0 });
        Ok(())
    }

    fn flush(&mut self, now: Time) -> Result<(), Lost> {
        let slot = self.word(EACH);
        self.free = self.free.max(now.0.saturating_mul(PARTS));
        for at in self.flushed..self.queue.len() {
            let share = self.share(&self.queue[at].post.operation, slot);
            self.free = self.free.saturating_add(share);
            self.queue[at].at = self.free;
        }
        self.flushed = self.queue.len();
        Ok(())
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        let (now, first) = (now.0.saturating_mul(PARTS), done.len());
        while self.placed < self.flushed && self.queue[self.placed].at <= now {
            self.schedule();
        }
        while self.placed > 0 && self.queue[0].at <= now {
            let Some(QueuedPost { post, .. }) = self.queue.pop_front() else { break };
            (self.placed, self.flushed) = (self.placed - 1, self.flushed - 1);
            let word = self.region.perform(&post.operation, &mut self.buffers);
            if let Some((place, _)) = post.operation.buffer_range() {
                self.uses[place.buffer as usize] -= 1;
            }
            done.push(Done { id: post.id, word });
        }
        if self.region.is_left(self.left) {
            done.truncate(first);
            return Err(Lost);
        }
        Ok(())
    }

    fn buffers(&self) -> u32 {
        self.buffers.count()
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        assert!(self.uses[buffer as usize] == 0, "an operation on the buffer is under way");
        self.buffers.bytes(buffer)
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        assert!(self.uses[buffer as usize] == 0, "an operation on the buffer is under way");
        self.buffers.bytes_mut(buffer)
    }

    fn region(&self) -> u64 {
        self.region.length()
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { region, nic, queue, .. } = self;
        write!(f, "Model({region:?}, NIC at {nic}, {} under way)", queue.len())
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
