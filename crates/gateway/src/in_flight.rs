//! NBD requests in flight at nodes: their buffers, and the connections that wait for the answers.
//!
//! `proto::gateway` decides how a request is split and when its reply is complete. This module adds
//! the bytes that each sub-request carries, and the position of the bytes in each reply. A request
//! with one sub-request keeps its one buffer from the client's socket to the node and back.

use std::collections::{HashMap, HashSet};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Fault, Job, JobTimes};
use tidegate_model::cluster::{Layout, PartRange};
use tidegate_model::{Class, ContextId, Operation, PartNumber, Tag, TenantId, Time};
use tidegate_proto::gateway::{Gateway, RequestExtent, RequestRefusal, SubRequest};

use crate::volumes::VolumeIndex;

/// The most extents in one answer to a client.
const EXTENTS_MAX: usize = 256;

/// The most stripes that one answer about holes is about. The walk over so many takes 0.1 to 0.2
/// ms, in which the worker does nothing else; a client requests the rest by itself.
const MAP_STRIPES: u32 = 1_024;

/// A request.
#[derive(Debug)]
pub(crate) struct InFlightRequest {
    /// The connection that it came on.
    pub(crate) connection: u64,
    /// When it was read.
    pub(crate) received_at: Time,
    /// The client's number for it.
    pub(crate) cookie: u64,
    /// The operation.
    pub(crate) command: Command,
    /// The tenant that owns the request.
    pub(crate) tenant: TenantId,
    /// Its class.
    pub(crate) class: Class,
    /// Its volume.
    pub(crate) volume: VolumeIndex,
    /// Where in the volume, in bytes.
    pub(crate) offset: u64,
    /// How many bytes.
    pub(crate) length: u32,
    /// One extent is enough.
    pub(crate) one: bool,
    /// The data of a write; in the answer, the data that one node has read.
    pub(crate) buffer: Buffer,
}

impl InFlightRequest {
    /// The memory that it takes up.
    pub(crate) fn weight(&self) -> usize {
        match self.command {
            Command::Read | Command::Write { .. } => self.length as usize,
            _ => 0,
        }
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) request: InFlightRequest,
    pub(crate) outcome: Result<(), Fault>,
    /// Data that several nodes have read, in order; empty if one node has read all.
    pub(crate) chunks: Vec<Buffer>,
    /// The answer about holes.
    pub(crate) extents: Vec<(u32, u32)>,
    /// The times of the sub-request that was answered last: the one that the client waited for.
    pub(crate) times: JobTimes,
}

impl Completed {
    /// An answer without data.
    pub(crate) fn new(request: InFlightRequest, outcome: Result<(), Fault>) -> Self {
        let (chunks, extents) = (Vec::new(), Vec::new());
        Self { request, outcome, chunks, extents, times: JobTimes::default() }
    }

    /// The data that was read, one buffer behind the other.
    pub(crate) fn data(self) -> impl Iterator<Item = Buffer> {
        [self.request.buffer].into_iter().chain(self.chunks)
    }
}

/// The slot of a request in flight, and the replies so far.
#[derive(Debug)]
struct RequestSlot {
    generation: u32,
    request: Option<InFlightRequest>,
    /// Replies of nodes: the data of a read, or a part's extents of data and holes.
    chunks: Vec<(PartRange, Buffer)>,
}

/// The request that a sub-request of several is part of.
#[derive(Clone, Copy, Debug)]
struct ParentRequest {
    ticket: u64,
    piece: PartRange,
}

/// All requests of one worker.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    gateway: Gateway<Fault>,
    slots: Vec<RequestSlot>,
    free: Vec<u32>,
    /// By ticket, the sub-requests of requests that have several.
    parents: HashMap<u64, ParentRequest>,
    /// By ticket, the sub-requests that change a part and whose client has disconnected: volume and
    /// part.
    abandoned: HashMap<u64, (VolumeIndex, u32)>,
}

impl InFlight {
    /// Submits a request: calls `send` with each job and its part.
    ///
    /// # Errors
    /// With the request, if it cannot be accepted.
    pub(crate) fn submit(
        &mut self,
        mut request: InFlightRequest,
        layout: &Layout,
        mut send: impl FnMut(VolumeIndex, u32, Job),
    ) -> Result<(), (InFlightRequest, Fault)> {
        if request.command == Command::Map {
            request.length = layout.within(request.offset, request.length, MAP_STRIPES);
        }
        let InFlightRequest { offset, length, command, .. } = request;
        let extent = match command {
            Command::Flush => RequestExtent::All,
            Command::Read | Command::Write { .. } | Command::KeyValue => {
                RequestExtent::Bytes { offset, length }
            }
            Command::Discard { .. } | Command::Zero { .. } | Command::Map => {
                RequestExtent::Range { offset, length }
            }
        };
        let ticket = self.next_ticket();
        let sub_requests = match self.gateway.on_request(ticket, layout, extent) {
            Ok(sub_requests) => sub_requests,
            Err(RequestRefusal::TooMany) => return Err((request, Fault::Io)),
            Err(RequestRefusal::OutOfRange | RequestRefusal::TooLarge) => {
                return Err((request, Fault::Invalid));
            }
        };
        let is_whole = sub_requests.len() == 1;
        let (volume, tag) = (request.volume, tag(&request));
        for SubRequest { ticket: sub_request, piece, is_first } in sub_requests {
            // A further stripe at the same node is no operation of its own there.
            let tag = if is_first { tag } else { Tag { cost: 0, ..tag } };
            let buffer = match command {
                // Allocated here and not before: the request was admitted.
                Command::Read => Buffer::with_length(piece.length as usize),
                Command::Write { .. } if is_whole => std::mem::take(&mut request.buffer),
                Command::Write { .. } => Buffer::from(&request.buffer[range(&piece)]),
                _ => Buffer::empty(),
            };
            if !is_whole || command == Command::Map {
                self.parents.insert(sub_request, ParentRequest { ticket, piece });
            }
            let PartRange { part, offset, length, .. } = piece;
            let range = (PartNumber(0), offset, length);
            send(volume, part, Job::new(sub_request, tag, command, range, buffer));
        }
        request.buffer = Buffer::empty();
        self.insert(ticket, request);
        Ok(())
    }

    /// The ticket of the next request: its slot, and the generation of the slot.
    fn next_ticket(&self) -> u64 {
        let index = self.free.last().map_or(self.slots.len() as u32, |index| *index);
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation);
        u64::from(generation) << 32 | u64::from(index)
    }

    fn insert(&mut self, ticket: u64, request: InFlightRequest) {
        let index = ticket as u32 as usize;
        self.free.pop();
        match self.slots.get_mut(index) {
            Some(slot) => slot.request = Some(request),
            None => {
                self.slots.push(RequestSlot {
                    generation: 0,
                    request: Some(request),
                    chunks: Vec::new(),
                });
            }
        }
    }

    /// Takes a finished job; the answer, if it was the last one of its request.
    pub(crate) fn complete(
        &mut self,
        layout: impl Fn(VolumeIndex) -> Layout,
        mut job: Job,
    ) -> Option<Completed> {
        if job.outcome.is_ok() && is_short(&job) {
            job.outcome = Err(Fault::Io);
        }
        let parent = if self.parents.is_empty() { None } else { self.parents.remove(&job.ticket) };
        match parent {
            Some(parent) => self.arrive(parent, job.command, &mut job.buffer),
            None => {
                let slot = self.slots.get_mut(job.ticket as u32 as usize)?;
                if slot.generation != (job.ticket >> 32) as u32 {
                    return None;
                }
                if let Some(request) = &mut slot.request {
                    request.buffer = job.buffer;
                }
            }
        }
        let answer = self.gateway.on_answer(job.ticket, job.outcome)?;
        let index = answer.ticket as u32;
        let slot = self.slots.get_mut(index as usize)?;
        let request = slot.request.take()?;
        // A ticket has 63 bits.
        slot.generation = (slot.generation + 1) & (u32::MAX >> 1);
        let mut chunks = std::mem::take(&mut slot.chunks);
        self.free.push(index);
        let mut completed = Completed::new(request, answer.outcome);
        completed.times = job.times;
        match completed.request.command {
            Command::Map => {
                let layout = layout(completed.request.volume);
                join_maps(&mut completed, &layout, chunks);
            }
            Command::Read if !chunks.is_empty() => {
                chunks.sort_unstable_by_key(|(piece, _)| piece.at);
                completed.chunks = chunks.into_iter().map(|(_, buffer)| buffer).collect();
            }
            _ => {}
        }
        Some(completed)
    }

    /// Keeps the reply to one sub-request of several.
    fn arrive(&mut self, parent: ParentRequest, command: Command, buffer: &mut Buffer) {
        let Some(slot) = self.slots.get_mut(parent.ticket as u32 as usize) else { return };
        if slot.request.is_some() && matches!(command, Command::Read | Command::Map) {
            slot.chunks.push((parent.piece, std::mem::take(buffer)));
        }
    }

    /// The tickets, as sent to nodes, of all sub-requests in flight for which `which` is true.
    pub(crate) fn sub_requests(&self, which: impl Fn(&InFlightRequest) -> bool) -> Vec<u64> {
        let is_wanted = |ticket: u64| {
            let slot = self.slots.get(ticket as u32 as usize);
            slot.and_then(|slot| slot.request.as_ref()).is_some_and(&which)
        };
        let split = self.parents.iter().filter(|(_, parent)| is_wanted(parent.ticket));
        let mut tickets: Vec<u64> = split.map(|(ticket, _)| *ticket).collect();
        for (index, slot) in self.slots.iter().enumerate() {
            if slot.request.as_ref().is_some_and(&which) {
                tickets.push(u64::from(slot.generation) << 32 | index as u64);
            }
        }
        tickets
    }

    /// Abandons the requests for which `which` is true, as their client has disconnected. Returns
    /// the volume and part of each sub-request that may still change data and was not returned
    /// before, except those with a ticket that `is_held`; [`Self::settle`] returns each once more.
    pub(crate) fn abandon(
        &mut self,
        which: impl Fn(&InFlightRequest) -> bool,
        is_held: impl Fn(u64) -> bool,
        layout: impl Fn(VolumeIndex) -> Layout,
    ) -> Vec<(VolumeIndex, u32)> {
        let meant = |ticket: u64| {
            let request = self.slots.get(ticket as u32 as usize)?.request.as_ref()?;
            (which(request) && is_change(request.command)).then_some(request)
        };
        let mut abandoned = HashMap::new();
        let mut split = HashSet::new();
        for (sub_request, ParentRequest { ticket, piece }) in &self.parents {
            if let Some(request) = meant(*ticket) {
                split.insert(*ticket);
                abandoned.insert(*sub_request, (request.volume, piece.part));
            }
        }
        for (index, slot) in self.slots.iter().enumerate() {
            let ticket = u64::from(slot.generation) << 32 | index as u64;
            let Some(request) = meant(ticket).filter(|_| !split.contains(&ticket)) else {
                continue;
            };
            // Its one sub-request has its ticket.
            let span = layout(request.volume).spans(request.offset, request.length).next();
            let part = span.map_or(0, |span| span.part);
            abandoned.insert(ticket, (request.volume, part));
        }
        abandoned.retain(|sub_request, _| {
            !self.abandoned.contains_key(sub_request) && !is_held(*sub_request)
        });
        let parts = abandoned.values().copied().collect();
        self.abandoned.extend(abandoned);
        parts
    }

    /// A sub-request is finished: its volume and part, if it was [abandoned](Self::abandon).
    pub(crate) fn settle(&mut self, ticket: u64) -> Option<(VolumeIndex, u32)> {
        if self.abandoned.is_empty() { None } else { self.abandoned.remove(&ticket) }
    }

    /// Ends all requests in flight; replies that come later are dropped.
    pub(crate) fn abandon_all(&mut self) -> Vec<InFlightRequest> {
        let in_flight = self.slots.iter_mut().filter_map(|slot| slot.request.take()).collect();
        *self = Self::default();
        in_flight
    }
}

/// The tag of a request for its node. The delay is set once the node is known.
fn tag(request: &InFlightRequest) -> Tag {
    let cost = match request.command {
        Command::Read | Command::Write { .. } => request.length,
        _ => 1,
    };
    Tag {
        tenant: request.tenant,
        context: ContextId::NONE,
        class: request.class,
        operation: operation(request.command),
        cost,
        delay: 0,
    }
}

/// Whether a command changes what is read later.
fn is_change(command: Command) -> bool {
    matches!(command, Command::Write { .. } | Command::Discard { .. } | Command::Zero { .. })
}

/// The operation of a command, in the terms of policies.
pub(crate) fn operation(command: Command) -> Operation {
    match command {
        Command::Read => Operation::Read,
        Command::Write { .. } => Operation::Write,
        Command::Flush => Operation::Sync,
        Command::Discard { .. } | Command::Zero { .. } => Operation::Allocate,
        Command::Map => Operation::Stat,
        Command::KeyValue => Operation::Get,
    }
}

fn range(piece: &PartRange) -> std::ops::Range<usize> {
    piece.at as usize..piece.at as usize + piece.length as usize
}

/// Whether a node reports a successful read of fewer bytes than requested.
fn is_short(job: &Job) -> bool {
    job.command == Command::Read && job.buffer.len() != job.length as usize
}

/// Joins the parts' extents of data and holes to one answer about the range of the volume. The
/// answer ends early where a part has not reported enough, or after [`EXTENTS_MAX`] extents.
fn join_maps(completed: &mut Completed, layout: &Layout, maps: Vec<(PartRange, Buffer)>) {
    let InFlightRequest { offset, length, one, .. } = completed.request;
    if completed.outcome == Err(Fault::Unsupported) {
        // It is always right to say that all is data.
        completed.outcome = Ok(());
        completed.extents.push((length, 0));
    }
    if completed.outcome.is_err() || !completed.extents.is_empty() {
        return;
    }
    let mut reader: HashMap<u32, ExtentReader> = HashMap::new();
    for (piece, buffer) in maps {
        reader.insert(piece.part, ExtentReader { buffer, at: 0, left: 0, flags: 0 });
    }
    let most = if one { 1 } else { EXTENTS_MAX };
    let extents = &mut completed.extents;
    'all: for piece in layout.chunks(offset, length) {
        let Some(reader) = reader.get_mut(&piece.part) else { break };
        let mut needed = piece.length;
        while needed > 0 {
            let Some((count, flags)) = reader.next(needed) else { break 'all };
            needed -= count;
            let is_most = extents.len() == most;
            match extents.last_mut() {
                Some((run, same)) if *same == flags => *run += count,
                _ if is_most => break 'all,
                _ => extents.push((count, flags)),
            }
        }
    }
    if extents.is_empty() {
        completed.outcome = Err(Fault::Io);
    }
}

/// One part's extents, read from front to back.
struct ExtentReader {
    buffer: Buffer,
    at: usize,
    /// The bytes that are left of the current extent.
    left: u64,
    flags: u32,
}

impl ExtentReader {
    /// At most `most` bytes of one kind; none if the node reported no more.
    fn next(&mut self, most: u32) -> Option<(u32, u32)> {
        while self.left == 0 {
            let (extent, _) = self.buffer.get(self.at..)?.split_first_chunk::<16>()?;
            self.at += 16;
            let (numbers, _) = extent.as_chunks::<8>();
            self.left = u64::from_le_bytes(numbers[0]);
            self.flags = u64::from_le_bytes(numbers[1]) as u32 & 0b11;
        }
        let count = u64::from(most).min(self.left);
        self.left -= count;
        Some((count as u32, self.flags))
    }
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
mod tests;
