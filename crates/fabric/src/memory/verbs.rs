//! One-sided access over RDMA: an RNIC carries the operations out, on both machines.
//!
//! # Problem
//! The promises of a connection are more than those of an RNIC. An RNIC has queue pairs, each of
//! which works in order and holds few reads at once (16 of them on most), and none of which knows
//! of the others; and its atomic operations are atomic only among those that go through the same
//! RNIC.
//!
//! # Mechanism
//! A client has [`READERS`] + 1 queue pairs, reliable and connected.
//!
//! - Every operation that changes the region, control words as well as data, goes through the
//!   first, so changes are seen in their order.
//! - Reads are dealt out to the others, so that a window of 64 is under way in spite of the limit,
//!   and no control word waits behind them. Only while a change is under way do reads go behind it,
//!   on the first: so an operation never overtakes a change that was posted before it. Of two reads
//!   either may be carried out first.
//!
//! Posted operations wait for `flush`, which hands each queue pair its requests as one list: the
//! RNIC is notified once. A read or an atomic operation signals its completion. Of writes in a row
//! only the last does, and one in seventeen: the queue pair works in order, so one completion
//! covers all before it. Up to [`INLINE`] bytes travel in the request itself, which saves the RNIC
//! a fetch.
//!
//! The node registers its region ([`RdmaHost`]), and lets clients in by [`ConnectRequest`] and
//! [`Answer`], which travel over any connection. To shut one out it destroys its queue pairs
//! ([`RdmaHost::fence`]): the others do not notice, and none of its operations in flight runs any
//! more, so no word has to mark the region as left. The monitor on the node is a client of its own
//! RNIC ([`RdmaHost::loop_back`]), since the processor's operations are not atomic with the RNIC's.
//!
//! # Bound
//! All clients of a region use one RNIC of the node, whose atomic operations agree with each other;
//! an RNIC that has none is refused. RNICs never show an aligned word half-written, but no standard
//! says so. A client whose RNIC gets no acknowledgement loses the region after 0.5 to 2 s. Over
//! RoCE, packets are neither encrypted nor signed: an attacker that can forge them on the network
//! between the machines can write to the region.

use std::fmt;
use std::sync::Arc;

use tidegate_model::Time;
use tidegate_onesided::one_sided::{
    BUFFER, BufferPosition, Done, Lost, Operation, Post, PostError, RemoteMemory,
};

mod device;
mod error;
mod host;
mod library;
mod pinned;
mod queue;

pub use device::RdmaDevice;
pub use error::RdmaError;
pub use host::{ClientNumber, RdmaHost};
pub use tidegate_onesided::data_node::rnic::{Answer, ConnectRequest};

use device::{CompletionQueue, QueuePair};
use library::{Atomic, Completion, Plain, Remote, ScatterGatherEntry, WorkRequest, flag, opcode};
use pinned::Pinned;
use queue::{QueuePairRing, Waiting};

/// Queue pairs that reads are dealt out to. Four times the 16 reads that most RNICs hold at once
/// are a window of 64.
pub const READERS: u32 = 4;

/// Bytes that are written without an access to a buffer, if the RNIC can do that.
pub const INLINE: u32 = 64;

/// Completions that are fetched in one call.
const FETCHED: usize = 32;

/// A client that is not admitted yet.
#[derive(Debug)]
pub struct Opening {
    // Taken down in this order: a queue of completions outlives the queue pairs that use it.
    pairs: Vec<QueuePair>,
    completions: CompletionQueue,
    memory: Pinned,
    device: Arc<RdmaDevice>,
    buffers: u32,
    window: u32,
}

impl Opening {
    /// A client with so many buffers of its own, and at most `window` operations under way.
    ///
    /// # Errors
    /// If the device does not hold as many operations, or the process may not lock so much memory.
    pub fn new(device: &Arc<RdmaDevice>, buffers: u32, window: u32) -> Result<Self, RdmaError> {
        let limits = device.limits();
        let maximum = limits.requests.min(limits.completions);
        if window == 0 || window > maximum {
            return Err(RdmaError::Window { maximum });
        }
        let words = window.next_power_of_two() as usize * size_of::<u64>();
        let memory = Pinned::new(device, buffers as usize * BUFFER as usize + words)?;
        let completions = CompletionQueue::new(device, window)?;
        let pairs = (0..=READERS)
            .map(|_| QueuePair::new(device, &completions, window, INLINE))
            .collect::<Result<_, _>>()?;
        Ok(Self { pairs, completions, memory, device: Arc::clone(device), buffers, window })
    }

    /// The request to send to the host.
    pub fn request(&self) -> ConnectRequest {
        ConnectRequest { client: self.device.endpoint(&self.pairs) }
    }

    /// Connects to the host that gave this answer.
    ///
    /// # Errors
    /// If the answer is invalid, or there is no route to the host.
    pub fn connect(self, answer: &Answer) -> Result<Verbs, RdmaError> {
        if answer.host.queues.len() != self.pairs.len() {
            return Err(RdmaError::Peer);
        }
        let slots = self.window.next_power_of_two();
        let mut queues: Vec<_> = (0..)
            .zip(self.pairs)
            .map(|(index, pair)| QueuePairRing::new(index, pair, slots))
            .collect();
        for (queue, to) in queues.iter_mut().zip(&answer.host.queues) {
            queue.connect(&answer.host, *to)?;
        }
        Ok(Verbs {
            queues,
            completions: self.completions,
            memory: self.memory,
            region: Far { address: answer.address, length: answer.length, key: answer.key },
            busy: vec![0; self.buffers as usize].into(),
            window: self.window,
            under_way: 0,
            changes: 0,
            reader: 0,
            is_lost: false,
        })
    }
}

/// The region, as the host's RNIC knows it.
#[derive(Clone, Copy, Debug)]
struct Far {
    address: u64,
    length: u64,
    key: u32,
}

/// A client of a region behind an RNIC.
pub struct Verbs {
    /// The first is for what changes the region. These are taken down before what follows: once a
    /// queue pair is gone, its RNIC writes no memory any more.
    queues: Vec<QueuePairRing>,
    completions: CompletionQueue,
    /// The buffers, then a word for each place of the first queue.
    memory: Pinned,
    region: Far,
    /// Operations under way on each buffer.
    busy: Box<[u32]>,
    window: u32,
    under_way: u32,
    /// Of these, how many change the region.
    changes: u32,
    /// The reader queue of the last read, from 0 to [`READERS`] - 1.
    reader: u32,
    is_lost: bool,
}

impl Verbs {
    /// Whether operations are under way, so that it is worth polling.
    pub fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// Which queue an operation goes through.
    fn queue_for(&mut self, operation: &Operation) -> usize {
        match operation {
            Operation::Read { .. } if self.changes == 0 => {
                self.reader = (self.reader + 1) % READERS;
                1 + self.reader as usize
            }
            _ => 0,
        }
    }

    /// A position in a buffer, for the RNIC.
    fn sge(
        &self,
        BufferPosition { buffer, offset }: BufferPosition,
        length: u32,
    ) -> ScatterGatherEntry {
        let at = buffer as usize * BUFFER as usize + offset as usize;
        let address = self.memory.at(at).as_ptr().expose_provenance() as u64;
        ScatterGatherEntry { address, length, key: self.memory.key() }
    }

    /// The word that belongs to the next place of the first queue.
    fn word(&self) -> *mut u64 {
        let at = self.busy.len() * BUFFER as usize + self.queues[0].next_slot() * size_of::<u64>();
        self.memory.at(at).as_ptr().cast()
    }

    /// The RNIC's request for an operation. `word` is where the RNIC finds or leaves a word.
    fn request(&self, operation: &Operation, word: *mut u64) -> (ScatterGatherEntry, WorkRequest) {
        let word_sge = || ScatterGatherEntry {
            address: word.expose_provenance() as u64,
            length: 8,
            key: self.memory.key(),
        };
        let inline = |length| if length <= self.queues[0].inline() { flag::INLINE } else { 0 };
        let (at, _) = operation.touches();
        // The host's address is not ours to calculate with: it is checked where it belongs.
        let (address, key) = (self.region.address.wrapping_add(at), self.region.key);
        let plain = Remote { plain: Plain { address, key } };
        let atomic = |operand, new| Remote { atomic: Atomic { address, operand, new, key } };
        let (sge, opcode, flags, remote) = match *operation {
            Operation::Read { into, length, .. } => {
                (self.sge(into, length), opcode::READ, 0, plain)
            }
            Operation::Write { from, length, .. } => {
                (self.sge(from, length), opcode::WRITE, inline(length), plain)
            }
            Operation::WriteWord { .. } => (word_sge(), opcode::WRITE, inline(8), plain),
            Operation::FetchAdd { add, .. } => (word_sge(), opcode::FETCH_ADD, 0, atomic(add, 0)),
            Operation::CompareSwap { expected, new, .. } => {
                (word_sge(), opcode::COMPARE_SWAP, 0, atomic(expected, new))
            }
        };
        (sge, WorkRequest { opcode, flags, remote, ..WorkRequest::default() })
    }

    /// The bytes of a buffer that no RNIC touches now.
    fn idle(&self, buffer: u32) -> *mut [u8] {
        assert_eq!(self.busy[buffer as usize], 0, "an operation on the buffer is under way");
        let start = self.memory.at(buffer as usize * BUFFER as usize);
        std::ptr::slice_from_raw_parts_mut(start.as_ptr(), BUFFER as usize)
    }

    fn fetch(&mut self, done: &mut Vec<Done>) -> Result<(), Lost> {
        let mut fetched = [Completion::default(); FETCHED];
        loop {
            let count = self.completions.poll(&mut fetched).ok_or(Lost)?;
            for completion in &fetched[..count] {
                self.settle(completion, done)?;
            }
            if count < FETCHED {
                return Ok(());
            }
        }
    }

    /// Appends the operations that one completion covers.
    fn settle(&mut self, completion: &Completion, done: &mut Vec<Done>) -> Result<(), Lost> {
        if completion.status != 0 {
            return Err(Lost);
        }
        let queue = &mut self.queues[queue::of(completion.id)];
        queue.settle(completion.id, |waiting| {
            self.under_way -= 1;
            self.changes -= u32::from(waiting.changes);
            if let Some(buffer) = waiting.buffer {
                self.busy[buffer as usize] -= 1;
            }
            // SAFETY: the word belongs to this operation, which is done, so the RNIC has left it.
            let word = waiting.word.map_or(0, |word| unsafe { word.read_volatile() });
            done.push(Done { id: waiting.id, word });
        });
        Ok(())
    }
}

impl RemoteMemory for Verbs {
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        post.operation.check(self.region.length, self.buffers())?;
        if self.under_way == self.window {
            return Err(PostError::Full);
        }
        let queue = self.queue_for(&post.operation);
        let word = self.word();
        if let Operation::WriteWord { word: value, .. } = post.operation {
            // SAFETY: the word belongs to the slot that is taken below, which is free now.
            unsafe { word.write(value) };
        }
        let (sge, request) = self.request(&post.operation, word);
        let buffer = post.operation.buffer_range().map(|(place, _)| place.buffer);
        if let Some(buffer) = buffer {
            self.busy[buffer as usize] += 1;
        }
        let changes = !matches!(post.operation, Operation::Read { .. });
        let returns_value =
            matches!(post.operation, Operation::FetchAdd { .. } | Operation::CompareSwap { .. });
        let word = returns_value.then_some(word.cast_const());
        let waiting = Waiting { id: post.id, buffer, changes, word };
        self.queues[queue].push(waiting, sge, request);
        self.under_way += 1;
        self.changes += u32::from(changes);
        Ok(())
    }

    fn flush(&mut self, _: Time) -> Result<(), Lost> {
        if !self.is_lost {
            // The first comes last: what reads wait in the others were posted before its changes.
            let flushed = self.queues.iter_mut().rev().try_for_each(|queue| {
                // SAFETY: the memory of all pieces is registered, and dropped after the queues.
                unsafe { queue.flush() }
            });
            self.is_lost = flushed.is_err();
        }
        if self.is_lost { Err(Lost) } else { Ok(()) }
    }

    fn poll(&mut self, _: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        if !self.is_lost {
            self.is_lost = self.fetch(done).is_err();
        }
        if self.is_lost { Err(Lost) } else { Ok(()) }
    }

    fn buffers(&self) -> u32 {
        self.busy.len() as u32
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        // SAFETY: the RNIC does not touch these bytes before an operation on them is posted,
        // which takes `&mut self`; `Pinned` maps them for as long as `self` lives.
        unsafe { &*self.idle(buffer) }
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` keeps others away.
        unsafe { &mut *self.idle(buffer) }
    }

    fn region(&self) -> u64 {
        self.region.length
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { region, window, under_way, .. } = self;
        write!(f, "Verbs({} bytes, {under_way} of {window} under way)", region.length)
    }
}
