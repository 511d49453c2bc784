//! One-sided access in virtual time: the connection of a client, and the memory behind all of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use tidegate_model::{Iops, Time};
use tidegate_onesided::one_sided::{
    BUFFER, BufferPosition, Done, Lost, Operation, Post, PostError, RemoteMemory,
};

use super::nic::{HEAD, NicModel, NicOperation, OperationLine, Served};
use crate::time::Picoseconds;

/// Operations of one client that can be under way at a time.
pub const DEPTH: usize = 4096;

/// An operation that touches no memory which exists: it takes its time, and that is all.
const NOTHING: u32 = u32::MAX;

/// The buffer of an operation that uses none.
const NONE: u32 = u32::MAX;

/// A data node and the NICs of its clients.
///
/// The first bytes of its region are real, and shared by all its clients. The rest is there in
/// name only: reading it leaves a buffer as it was, writing it does nothing, and both take their
/// time.
#[derive(Clone)]
pub struct Network(Rc<RefCell<NetworkState>>);

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

struct NetworkState {
    now: Picoseconds,
    round_trip: Picoseconds,
    region: u64,
    line: OperationLine,
    memory: Vec<u8>,
    /// Operations on memory that exists, by their marks, and the free marks.
    acts: Vec<Act>,
    free: Vec<u32>,
    /// Those of them that have left the link, and have not happened, in their order.
    to_happen: VecDeque<Served>,
    /// Operations on their way back, in their order.
    on_the_way: VecDeque<Served>,
    clients: Vec<NetworkClient>,
}

#[derive(Default)]
struct NetworkClient {
    done: Vec<NicOperation>,
    under_way: usize,
    counts: OperationCounts,
}

/// Operations of one client at the data node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// Operations on the part of the region that is there in name only.
    pub data: u64,
    /// Operations on the part that is real.
    pub control: u64,
}

/// An operation on memory that exists.
struct Act {
    operation: Operation,
    /// Bytes to be written, then the bytes that were read.
    bytes: Vec<u8>,
    /// The word before the operation.
    word: u64,
}

impl Network {
    /// A data node with a region of so many bytes, of which the first `real` are there.
    ///
    /// # Panics
    /// If a NIC does nothing, or more than 10^12 operations in a second.
    pub fn new(nics: &NicModel, region: u64, real: usize, seed: u64) -> Self {
        Self(Rc::new(RefCell::new(NetworkState {
            now: Picoseconds::ZERO,
            round_trip: Picoseconds::from(nics.round_trip),
            region,
            line: OperationLine::new(nics, seed),
            memory: vec![0; real],
            acts: Vec::new(),
            free: Vec::new(),
            to_happen: VecDeque::new(),
            on_the_way: VecDeque::new(),
            clients: Vec::new(),
        })))
    }

    /// Connects a client with so many buffers; its number is how many there were before.
    pub fn connect(&self, buffers: u32) -> Endpoint {
        let mut inner = self.0.borrow_mut();
        inner.clients.push(NetworkClient::default());
        let client = inner.line.join();
        let region = inner.region;
        Endpoint { network: self.clone(), client, region, buffers: Buffers::new(buffers) }
    }

    /// Connects code that runs on the data node itself. It needs nothing of the link, and its
    /// operations happen at once.
    pub fn connect_node(&self, buffers: u32) -> Loopback {
        let region = self.0.borrow().region;
        let buffers = Buffers::new(buffers);
        Loopback { network: self.clone(), region, buffers, done: Vec::new() }
    }

    /// From now on the data node does so many operations of 4 KiB in a second.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn set_node(&self, rate: Iops) {
        self.0.borrow_mut().line.set_node(rate);
    }

    /// When something happens here next.
    pub fn next(&self) -> Picoseconds {
        let inner = self.0.borrow();
        // An operation that leaves a NIC later comes back later, so events at NICs need no wakeup
        // before.
        match inner.on_the_way.front() {
            Some(first) => first.at.after(inner.round_trip),
            None => inner.line.next(),
        }
    }

    /// Lets happen what happens until `now`. One client that has something to
    /// [`RemoteMemory::poll`] since then, if there is any; so call it until there is none.
    pub fn advance(&self, now: Picoseconds) -> Option<u32> {
        self.0.borrow_mut().advance(now)
    }

    /// Returns the operations of a client that were served. In order of arrival, an operation
    /// counts as soon as it leaves its client's NIC.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn counts(&self, client: u32) -> OperationCounts {
        self.0.borrow().clients[client as usize].counts
    }
}

impl NetworkState {
    fn advance(&mut self, now: Picoseconds) -> Option<u32> {
        self.now = self.now.max(now);
        let Self { line, to_happen, on_the_way, clients, .. } = self;
        line.advance(now, |served| {
            let counts = &mut clients[served.client as usize].counts;
            match served.job.mark {
                NOTHING => counts.data += 1,
                _ => {
                    counts.control += 1;
                    to_happen.push_back(served);
                }
            }
            on_the_way.push_back(served);
        });
        while let Some(served) = self.to_happen.pop_front_if(|served| served.at <= now) {
            self.happen(served.job.mark);
        }
        let trip = self.round_trip;
        let back = self.on_the_way.pop_front_if(|served| served.at.after(trip) <= now)?;
        self.clients[back.client as usize].done.push(back.job);
        Some(back.client)
    }

    fn happen(&mut self, mark: u32) {
        let act = &mut self.acts[mark as usize];
        let memory = &mut self.memory;
        act.word = touch(memory, &act.operation, &mut act.bytes);
    }

    /// Whether an operation touches what is real.
    fn is_real(&self, operation: &Operation) -> bool {
        operation.touches().0 < self.memory.len() as u64
    }

    /// Remembers an operation on what is real.
    fn mark(&mut self, act: Act) -> u32 {
        if let Some(mark) = self.free.pop() {
            self.acts[mark as usize] = act;
            return mark;
        }
        self.acts.push(act);
        self.acts.len() as u32 - 1
    }
}

/// Executes an operation: writes `bytes` or reads them, and returns the former word. Bytes behind
/// the end of the memory do not exist.
fn touch(memory: &mut [u8], operation: &Operation, bytes: &mut Vec<u8>) -> u64 {
    let (at, length) = operation.touches();
    let at = at as usize;
    let end = (at + length as usize).min(memory.len());
    let there = &mut memory[at..end];
    match *operation {
        Operation::Read { .. } => {
            bytes.clear();
            bytes.extend_from_slice(there);
            0
        }
        Operation::Write { .. } => {
            there.copy_from_slice(&bytes[..end - at]);
            0
        }
        Operation::WriteWord { word, .. } => replace(there, |_| word),
        Operation::FetchAdd { add, .. } => replace(there, |word| word.wrapping_add(add)),
        Operation::CompareSwap { expected, new, .. } => {
            replace(there, |word| if word == expected { new } else { word })
        }
    }
}

/// Changes a word, and gives what it was.
fn replace(word_bytes: &mut [u8], with: impl FnOnce(u64) -> u64) -> u64 {
    let Ok(bytes) = <[u8; 8]>::try_from(&*word_bytes) else { return 0 };
    let word = u64::from_le_bytes(bytes);
    word_bytes.copy_from_slice(&with(word).to_le_bytes());
    word
}

/// Returns the word that a fetch delivers; other operations deliver zero.
const fn fetched(operation: &Operation, word: u64) -> u64 {
    match operation {
        Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => word,
        _ => 0,
    }
}

/// A client's buffers, and how many operations on each are under way.
struct Buffers {
    bytes: Vec<u8>,
    busy: Vec<u16>,
}

impl Buffers {
    fn new(count: u32) -> Self {
        let count = count as usize;
        Self { bytes: vec![0; count * BUFFER as usize], busy: vec![0; count] }
    }

    fn count(&self) -> u32 {
        self.busy.len() as u32
    }

    fn range(&self, buffer: u32) -> core::ops::Range<usize> {
        let busy = self.busy.get(buffer as usize);
        assert!(busy.is_some(), "there is no buffer {buffer}");
        assert!(busy == Some(&0), "an operation on buffer {buffer} is under way");
        let from = buffer as usize * BUFFER as usize;
        from..from + BUFFER as usize
    }

    fn slice(&mut self, position: BufferPosition, length: u32) -> &mut [u8] {
        let from = position.buffer as usize * BUFFER as usize + position.offset as usize;
        &mut self.bytes[from..from + length as usize]
    }

    /// Returns the bytes that an operation writes.
    fn outgoing(&mut self, operation: &Operation) -> Vec<u8> {
        match operation {
            Operation::Write { from, length, .. } => self.slice(*from, *length).to_vec(),
            _ => Vec::new(),
        }
    }

    /// Stores the bytes that an operation has read.
    fn incoming(&mut self, operation: &Operation, bytes: &[u8]) {
        if let Operation::Read { into, .. } = operation {
            self.slice(*into, bytes.len() as u32).copy_from_slice(bytes);
        }
    }
}

/// A client's connection.
pub struct Endpoint {
    network: Network,
    client: u32,
    region: u64,
    buffers: Buffers,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("client", &self.client).finish_non_exhaustive()
    }
}

impl RemoteMemory for Endpoint {
    /// It begins at once.
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        let Post { id, operation } = post;
        operation.check(self.region, self.buffers.count())?;
        let mut inner = self.network.0.borrow_mut();
        let (now, client) = (inner.now, self.client as usize);
        if inner.clients[client].under_way == DEPTH {
            return Err(PostError::Full);
        }
        inner.clients[client].under_way += 1;
        let buffer = operation.buffer_range().map_or(NONE, |(position, _)| position.buffer);
        if let Some(busy) = self.buffers.busy.get_mut(buffer as usize) {
            *busy += 1;
        }
        let mark = if inner.is_real(&operation) {
            let bytes = self.buffers.outgoing(&operation);
            inner.mark(Act { operation, bytes, word: 0 })
        } else {
            NOTHING
        };
        let size = operation.touches().1 as u32 + HEAD;
        inner.line.push(now, self.client, NicOperation { id, size, mark, buffer });
        Ok(())
    }

    fn flush(&mut self, _: Time) -> Result<(), Lost> {
        Ok(())
    }

    fn poll(&mut self, _: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        let mut inner = self.network.0.borrow_mut();
        let NetworkState { clients, acts, free, .. } = &mut *inner;
        let client = &mut clients[self.client as usize];
        client.under_way -= client.done.len();
        for NicOperation { id, mark, buffer, .. } in client.done.drain(..) {
            let mut word = 0;
            if let Some(busy) = self.buffers.busy.get_mut(buffer as usize) {
                *busy -= 1;
            }
            if mark != NOTHING {
                let act = &acts[mark as usize];
                self.buffers.incoming(&act.operation, &act.bytes);
                word = fetched(&act.operation, act.word);
                free.push(mark);
            }
            done.push(Done { id, word });
        }
        Ok(())
    }

    fn buffers(&self) -> u32 {
        self.buffers.count()
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        &self.buffers.bytes[self.buffers.range(buffer)]
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        let range = self.buffers.range(buffer);
        &mut self.buffers.bytes[range]
    }

    fn region(&self) -> u64 {
        self.region
    }
}

/// The connection of code that runs on the data node: the NIC's loop-back.
pub struct Loopback {
    network: Network,
    region: u64,
    buffers: Buffers,
    done: Vec<Done>,
}

impl fmt::Debug for Loopback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loopback").finish_non_exhaustive()
    }
}

impl RemoteMemory for Loopback {
    /// It has happened when this returns.
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        let Post { id, operation } = post;
        operation.check(self.region, self.buffers.count())?;
        let mut inner = self.network.0.borrow_mut();
        let mut word = 0;
        if inner.is_real(&operation) {
            let mut bytes = self.buffers.outgoing(&operation);
            word = fetched(&operation, touch(&mut inner.memory, &operation, &mut bytes));
            self.buffers.incoming(&operation, &bytes);
        }
        self.done.push(Done { id, word });
        Ok(())
    }

    fn flush(&mut self, _: Time) -> Result<(), Lost> {
        Ok(())
    }

    fn poll(&mut self, _: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        done.append(&mut self.done);
        Ok(())
    }

    fn buffers(&self) -> u32 {
        self.buffers.count()
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        &self.buffers.bytes[self.buffers.range(buffer)]
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        let range = self.buffers.range(buffer);
        &mut self.buffers.bytes[range]
    }

    fn region(&self) -> u64 {
        self.region
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
