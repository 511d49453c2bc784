//! Requests that are out at nodes: their buffers, and whom the answer is for.
//!
//! `proto::gateway` decides how a request falls apart and when its answer is complete. Here is what
//! it leaves out: which bytes each errand carries, and where what comes back belongs. A request
//! that is one errand keeps its one buffer from the client's socket to the node and back.

use std::collections::{HashMap, HashSet};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_model::cluster::{Layout, Piece};
use tidegate_model::{Class, ContextId, Operation, Tag, TenantId};
use tidegate_proto::gateway::{Errand, Gateway, Reach, Refusal};

/// The most extents in one answer to a client.
const EXTENTS_MAX: usize = 256;

/// The most stripes that one answer about holes is about. To walk over so many takes a tenth of a
/// millisecond or two, in which the worker does nothing else; who wants to know more asks again.
const MAP_STRIPES: u32 = 1_024;

/// A request.
#[derive(Debug)]
pub(crate) struct Flight {
    /// The connection that it came on.
    pub(crate) connection: u64,
    /// The client's number for it.
    pub(crate) cookie: u64,
    /// The operation.
    pub(crate) command: Command,
    /// The tenant that owns the request.
    pub(crate) tenant: TenantId,
    /// Which volume it is about.
    pub(crate) volume: usize,
    /// Where in the volume, in bytes.
    pub(crate) offset: u64,
    /// How many bytes.
    pub(crate) length: u32,
    /// One extent is enough.
    pub(crate) one: bool,
    /// The data of a write; in the answer, the data that one node has read.
    pub(crate) buffer: Buffer,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Landed {
    pub(crate) flight: Flight,
    pub(crate) outcome: Result<(), Fault>,
    /// Data that several nodes have read, in order; empty if one node has read all.
    pub(crate) pieces: Vec<Buffer>,
    /// The answer about holes.
    pub(crate) extents: Vec<(u32, u32)>,
}

impl Landed {
    /// An answer without data.
    pub(crate) fn new(flight: Flight, outcome: Result<(), Fault>) -> Self {
        Self { flight, outcome, pieces: Vec::new(), extents: Vec::new() }
    }

    /// The data that was read, one buffer behind the other.
    pub(crate) fn data(self) -> impl Iterator<Item = Buffer> {
        [self.flight.buffer].into_iter().chain(self.pieces)
    }
}

/// A flight and what has come back of it.
#[derive(Debug)]
struct Seat {
    generation: u32,
    flight: Option<Flight>,
    /// Replies of nodes: the data of a read, or a part's extents of data and holes.
    pieces: Vec<(Piece, Buffer)>,
}

/// Where an errand of several belongs.
#[derive(Clone, Copy, Debug)]
struct Place {
    ticket: u64,
    piece: Piece,
}

/// All requests of one worker.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    gateway: Gateway<Fault>,
    seats: Vec<Seat>,
    free: Vec<u32>,
    /// By ticket, the errands of requests that have several.
    places: HashMap<u64, Place>,
    /// By ticket, the errands that change a part and whose client has gone: volume and part.
    forsaken: HashMap<u64, (usize, u32)>,
}

impl Flights {
    /// Sends a request out: `send` is called with each job and the part that it is for.
    ///
    /// # Errors
    /// With the request, if it cannot be taken.
    pub(crate) fn launch(
        &mut self,
        mut flight: Flight,
        layout: &Layout,
        mut send: impl FnMut(usize, u32, Job),
    ) -> Result<(), (Flight, Fault)> {
        if flight.command == Command::Map {
            flight.length = layout.within(flight.offset, flight.length, MAP_STRIPES);
        }
        let Flight { offset, length, command, .. } = flight;
        let reach = match command {
            Command::Flush => Reach::All,
            Command::Read | Command::Write { .. } | Command::KeyValue => {
                Reach::Bytes { offset, length }
            }
            Command::Discard { .. } | Command::Zero { .. } | Command::Map => {
                Reach::Range { offset, length }
            }
        };
        let ticket = self.next_ticket();
        let errands = match self.gateway.on_request(ticket, layout, reach) {
            Ok(errands) => errands,
            Err(Refusal::TooMany) => return Err((flight, Fault::Io)),
            Err(Refusal::OutOfRange | Refusal::TooLarge) => return Err((flight, Fault::Invalid)),
        };
        let is_whole = errands.len() == 1;
        let (volume, tag) = (flight.volume, tag(&flight));
        for Errand { ticket: errand, piece } in errands {
            let buffer = match command {
                // Allocated here and not before: the request was admitted.
                Command::Read => Buffer::with_length(piece.length as usize),
                Command::Write { .. } if is_whole => std::mem::take(&mut flight.buffer),
                Command::Write { .. } => Buffer::from(&flight.buffer[range(&piece)]),
                _ => Buffer::empty(),
            };
            if !is_whole || command == Command::Map {
                self.places.insert(errand, Place { ticket, piece });
            }
            let Piece { part, offset, length, .. } = piece;
            let outcome = Ok(());
            let job = Job {
                ticket: errand,
                tag,
                command,
                part: 0,
                incarnation: 0,
                offset,
                length,
                buffer,
                outcome,
            };
            send(volume, part, job);
        }
        flight.buffer = Buffer::empty();
        self.sit(ticket, flight);
        Ok(())
    }

    /// The ticket of the next request: its seat, and in how manieth use that is.
    fn next_ticket(&self) -> u64 {
        let index = self.free.last().map_or(self.seats.len() as u32, |index| *index);
        let generation = self.seats.get(index as usize).map_or(0, |seat| seat.generation);
        u64::from(generation) << 32 | u64::from(index)
    }

    fn sit(&mut self, ticket: u64, flight: Flight) {
        let index = ticket as u32 as usize;
        self.free.pop();
        match self.seats.get_mut(index) {
            Some(seat) => seat.flight = Some(flight),
            None => {
                self.seats.push(Seat { generation: 0, flight: Some(flight), pieces: Vec::new() });
            }
        }
    }

    /// Takes a finished job; the answer, if it was the last one of its request.
    pub(crate) fn land(
        &mut self,
        layout: impl Fn(usize) -> Layout,
        mut job: Job,
    ) -> Option<Landed> {
        if job.outcome.is_ok() && is_short(&job) {
            job.outcome = Err(Fault::Io);
        }
        let place = if self.places.is_empty() { None } else { self.places.remove(&job.ticket) };
        match place {
            Some(place) => self.arrive(place, job.command, &mut job.buffer),
            None => {
                let seat = self.seats.get_mut(job.ticket as u32 as usize)?;
                if seat.generation != (job.ticket >> 32) as u32 {
                    return None;
                }
                if let Some(flight) = &mut seat.flight {
                    flight.buffer = job.buffer;
                }
            }
        }
        let answer = self.gateway.on_answer(job.ticket, job.outcome)?;
        let index = answer.ticket as u32;
        let seat = self.seats.get_mut(index as usize)?;
        let flight = seat.flight.take()?;
        // A ticket has 63 bits.
        seat.generation = (seat.generation + 1) & (u32::MAX >> 1);
        let mut pieces = std::mem::take(&mut seat.pieces);
        self.free.push(index);
        let mut landed = Landed::new(flight, answer.outcome);
        match landed.flight.command {
            Command::Map => {
                let layout = layout(landed.flight.volume);
                join_maps(&mut landed, &layout, pieces);
            }
            Command::Read if !pieces.is_empty() => {
                pieces.sort_unstable_by_key(|(piece, _)| piece.at);
                landed.pieces = pieces.into_iter().map(|(_, buffer)| buffer).collect();
            }
            _ => {}
        }
        Some(landed)
    }

    /// Keeps what one errand of several brought.
    fn arrive(&mut self, place: Place, command: Command, buffer: &mut Buffer) {
        let Some(seat) = self.seats.get_mut(place.ticket as u32 as usize) else { return };
        if seat.flight.is_some() && matches!(command, Command::Read | Command::Map) {
            seat.pieces.push((place.piece, std::mem::take(buffer)));
        }
    }

    /// The tickets of everything that is out for which `which` is true, as nodes know them.
    pub(crate) fn errands(&self, which: impl Fn(&Flight) -> bool) -> Vec<u64> {
        let is_wanted = |ticket: u64| {
            let seat = self.seats.get(ticket as u32 as usize);
            seat.and_then(|seat| seat.flight.as_ref()).is_some_and(&which)
        };
        let split = self.places.iter().filter(|(_, place)| is_wanted(place.ticket));
        let mut tickets: Vec<u64> = split.map(|(ticket, _)| *ticket).collect();
        for (index, seat) in self.seats.iter().enumerate() {
            if seat.flight.as_ref().is_some_and(&which) {
                tickets.push(u64::from(seat.generation) << 32 | index as u64);
            }
        }
        tickets
    }

    /// The client of the requests for which `which` is true has gone. The volume and part of each
    /// of its errands that may still change something and were not named before, except those with
    /// a ticket that `is_held`; [`Self::settle`] names each once more.
    pub(crate) fn forsake(
        &mut self,
        which: impl Fn(&Flight) -> bool,
        is_held: impl Fn(u64) -> bool,
        layout: impl Fn(usize) -> Layout,
    ) -> Vec<(usize, u32)> {
        let meant = |ticket: u64| {
            let flight = self.seats.get(ticket as u32 as usize)?.flight.as_ref()?;
            (which(flight) && is_change(flight.command)).then_some(flight)
        };
        let mut forsaken = HashMap::new();
        let mut split = HashSet::new();
        for (errand, Place { ticket, piece }) in &self.places {
            if let Some(flight) = meant(*ticket) {
                split.insert(*ticket);
                forsaken.insert(*errand, (flight.volume, piece.part));
            }
        }
        for (index, seat) in self.seats.iter().enumerate() {
            let ticket = u64::from(seat.generation) << 32 | index as u64;
            let Some(flight) = meant(ticket).filter(|_| !split.contains(&ticket)) else { continue };
            // It has one errand, whose ticket is its own.
            let span = layout(flight.volume).spans(flight.offset, flight.length).next();
            let part = span.map_or(0, |span| span.part);
            forsaken.insert(ticket, (flight.volume, part));
        }
        forsaken.retain(|errand, _| !self.forsaken.contains_key(errand) && !is_held(*errand));
        let parts = forsaken.values().copied().collect();
        self.forsaken.extend(forsaken);
        parts
    }

    /// An errand has come back: its volume and part, if it was [forsaken](Self::forsake).
    pub(crate) fn settle(&mut self, ticket: u64) -> Option<(usize, u32)> {
        if self.forsaken.is_empty() { None } else { self.forsaken.remove(&ticket) }
    }

    /// Ends all requests that are out; what comes back of them later is nobody's.
    pub(crate) fn abandon(&mut self) -> Vec<Flight> {
        let flights = self.seats.iter_mut().filter_map(|seat| seat.flight.take()).collect();
        *self = Self::default();
        flights
    }
}

/// The tag of a request for its node. The delay is set once the node is known.
fn tag(flight: &Flight) -> Tag {
    let cost = match flight.command {
        Command::Read | Command::Write { .. } => flight.length,
        _ => 1,
    };
    Tag {
        tenant: flight.tenant,
        context: ContextId::NONE,
        class: Class::default(),
        operation: operation(flight.command),
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

fn range(piece: &Piece) -> std::ops::Range<usize> {
    piece.at as usize..piece.at as usize + piece.length as usize
}

/// Whether a node says that it read, but not as much as it was asked.
fn is_short(job: &Job) -> bool {
    job.command == Command::Read && job.buffer.len() != job.length as usize
}

/// Joins the parts' extents of data and holes to one answer about the range of the volume. The
/// answer ends early where a part has not reported enough, or after [`EXTENTS_MAX`] extents.
fn join_maps(landed: &mut Landed, layout: &Layout, maps: Vec<(Piece, Buffer)>) {
    let Flight { offset, length, one, .. } = landed.flight;
    if landed.outcome == Err(Fault::Unsupported) {
        // It is always right to say that all is data.
        landed.outcome = Ok(());
        landed.extents.push((length, 0));
    }
    if landed.outcome.is_err() || !landed.extents.is_empty() {
        return;
    }
    let mut said: HashMap<u32, Said> = HashMap::new();
    for (piece, buffer) in maps {
        said.insert(piece.part, Said { buffer, at: 0, left: 0, flags: 0 });
    }
    let most = if one { 1 } else { EXTENTS_MAX };
    let extents = &mut landed.extents;
    'all: for piece in layout.pieces(offset, length) {
        let Some(said) = said.get_mut(&piece.part) else { break };
        let mut needed = piece.length;
        while needed > 0 {
            let Some((count, flags)) = said.next(needed) else { break 'all };
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
        landed.outcome = Err(Fault::Io);
    }
}

/// One part's extents, read from front to back.
struct Said {
    buffer: Buffer,
    at: usize,
    /// The bytes that are left of the current extent.
    left: u64,
    flags: u32,
}

impl Said {
    /// At most `most` bytes of one kind; none if nothing more was said.
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
#[path = "flights_tests.rs"]
mod tests;
