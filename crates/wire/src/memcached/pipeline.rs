//! The pipelined requests of one client of a proxy, as a state machine without I/O.
//!
//! **Problem.** A client pipelines requests and expects the replies in their order. Nodes reply in
//! any order, and a request for several keys becomes several requests to several nodes.
//!
//! **Mechanism.** Every request takes the next slot of a queue, and a ticket puts a node's reply
//! into its slot. A complete reply at the head of the queue may be sent. The quiet mode of meta
//! commands needs nothing else: a quiet request's reply is empty unless there is an error, and the
//! reply to `mn` is sent only after all earlier ones. A request that would overtake another one
//! about its key waits for that one's reply (`order`).
//!
//! **Bound.** No request is taken while [`PENDING_MAX`] requests are pending, so the queue has at
//! most so many slots. A proxy with many clients may allow each fewer, and fewer bytes
//! ([`Pipeline::set_credit`]). A request for many keys is split so that the reply to one part is
//! expected to have [`PART_REPLY`] bytes, and parts are sent as far as the credit goes. If one part
//! fails, the request fails, and its other parts are not sent.

mod shared;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use core::ops::Deref;

use tidegate_model::Operation;

use self::shared::MultiNodeReply;
use super::order::Effect;
use super::request::{CloseReason, Parsed, Request, parse, words};
use super::{Command, KEY_MAX, split};

/// The maximum number of pending requests of one client: those whose reply has not been sent.
/// Chosen by hand: enough to keep a node busy from one connection.
pub const PENDING_MAX: usize = 1_024;

/// The expected length of the reply to one part of a request for several keys, in bytes: as long as
/// a piece of a large request to a volume, so that other requests wait no longer behind it.
pub const PART_REPLY: usize = 128 << 10;

/// The maximum length of this reply, in bytes, if values have at most 1 MiB: a node holds at most
/// so much of an incomplete reply. With longer values a part has one key.
pub const PART_REPLY_MAX: u32 = 16 << 20;

/// The maximum number of keys of one part: enough that the cost of a part is small against that of
/// its keys.
const PART_KEYS_MAX: u32 = 256;

/// The reply to `version`: the memcached whose protocol is supported, for clients that ask before
/// they use a command.
const VERSION: &str = "VERSION 1.6.18-tidegate\r\n";

const OK: &str = "OK\r\n";

/// A request to one node.
#[derive(Clone, Copy, Debug)]
pub struct NodeRequest<'a, P> {
    /// Identifies the request in [`Pipeline::on_reply`].
    pub ticket: Ticket,
    /// Its destination.
    pub destination: P,
    /// The request, to be sent as it is.
    pub bytes: &'a [u8],
    /// The operation; [`Operation::Delete`] for `flush_all`.
    pub operation: Operation,
    /// The number of its keys; at least one.
    pub keys: u32,
}

/// The slot that a reply belongs to, and the part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

impl Ticket {
    /// A line has at most 2^20 bytes, and so at most 2^19 keys, in as many parts.
    const PART_BITS: u32 = 20;

    fn new(slot: u64, part: usize) -> Self {
        Self(slot << Self::PART_BITS | part as u64)
    }

    fn slot(self) -> u64 {
        self.0 >> Self::PART_BITS
    }

    fn part(self) -> usize {
        (self.0 & ((1 << Self::PART_BITS) - 1)) as usize
    }
}

/// A piece of the client's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputChunk<R> {
    /// A constant line.
    Text(&'static str),
    /// Made from several replies, or of statistics.
    Made(Vec<u8>),
    /// A node's reply as it came.
    Reply(R),
}

impl<R: Deref<Target = [u8]>> Deref for OutputChunk<R> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Made(bytes) => bytes,
            Self::Reply(reply) => reply,
        }
    }
}

impl<R: Deref<Target = [u8]>> OutputChunk<R> {
    /// The bytes of memory that it takes up.
    fn stored(&self) -> usize {
        match self {
            Self::Text(_) => 0,
            Self::Made(bytes) => bytes.len(),
            Self::Reply(reply) => reply.len(),
        }
    }
}

/// The progress of [`Pipeline::on_input`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The bytes at the beginning of the input that are not needed any more.
    pub consumed: usize,
    /// The bytes behind those that the next call needs at least; zero if it has to wait for replies
    /// instead, or the connection is over.
    pub needed: usize,
}

/// The pending requests of one client. `P` is a request's destination, for example a node and a
/// tenant; `R` is a node's reply.
#[derive(Debug)]
pub struct Pipeline<P, R> {
    value_max: u32,
    /// The destinations of `flush_all`; none if it is refused.
    flush_destinations: Vec<P>,
    pending_max: usize,
    /// The bytes of requests and expected replies that may still be sent, and the expected bytes of
    /// reply for each key.
    credit: usize,
    reply_estimate: usize,
    /// The bytes of replies in `slots`.
    stored: usize,
    /// Bytes of input that belong to a refused request.
    skip: u64,
    /// Parts of the last request that are not sent yet.
    unsent: VecDeque<(Ticket, KeysPart<P>)>,
    /// Requests and parts that were sent and have no reply.
    outstanding: usize,
    /// Those requests that may change values.
    changes: usize,
    /// The number of the first slot.
    first_slot: u64,
    slots: VecDeque<ReplySlot<R>>,
    is_over: bool,
    close_reason: Option<CloseReason>,
}

/// A part of a request for several keys: a sub-request to one destination.
#[derive(Debug)]
struct KeysPart<P> {
    destination: P,
    operation: Operation,
    bytes: Vec<u8>,
    keys: u32,
}

#[derive(Debug)]
enum ReplySlot<R> {
    Taken(OutputChunk<R>),
    /// The client wants no error reply if it has `noreply`.
    Empty {
        noreply: bool,
        effect: Effect,
        /// The text that takes the place of the node's reply.
        instead: Option<&'static str>,
    },
    MultiNodeReply(Box<MultiNodeReply<R>>),
}

impl<P: Copy + PartialEq, R: Deref<Target = [u8]>> Pipeline<P, R> {
    /// A pipeline without requests. Values have up to `value_max` bytes. `flush_all` is sent to all
    /// `flush_destinations`, and is refused if there are none.
    pub fn new(value_max: u32, flush_destinations: Vec<P>) -> Self {
        Self {
            value_max,
            flush_destinations,
            pending_max: PENDING_MAX,
            credit: usize::MAX,
            reply_estimate: 0,
            stored: 0,
            skip: 0,
            unsent: VecDeque::new(),
            outstanding: 0,
            changes: 0,
            first_slot: 0,
            slots: VecDeque::new(),
            is_over: false,
            close_reason: None,
        }
    }

    /// Until the next call, requests are taken while they and their expected replies have less than
    /// `credit` bytes; the last request may exceed it. A reply is expected to have `reply_estimate`
    /// bytes for each key.
    pub fn set_credit(&mut self, credit: usize, reply_estimate: usize) {
        (self.credit, self.reply_estimate) = (credit, reply_estimate);
    }

    /// The bytes of replies that [`Self::poll_output`] has not returned yet.
    pub fn stored(&self) -> usize {
        self.stored
    }

    /// Limits the number of pending requests: at least one, and at most [`PENDING_MAX`].
    pub fn set_pending_max(&mut self, requests: usize) {
        self.pending_max = requests.clamp(1, PENDING_MAX);
    }

    /// Replaces the destinations of `flush_all`.
    pub fn set_flush_destinations(&mut self, flush_destinations: Vec<P>) {
        self.flush_destinations = flush_destinations;
    }

    /// Takes requests from the client's input that was not consumed before. `destination` returns
    /// the owner of a key. `send` takes each request to a node, to which [`Self::on_reply`] brings
    /// the reply.
    pub fn on_input(
        &mut self,
        input: &[u8],
        destination: impl Fn(&[u8], Operation) -> P,
        mut send: impl FnMut(NodeRequest<'_, P>),
    ) -> Progress {
        let mut consumed = 0;
        self.send_parts(&mut send);
        while !self.is_over
            && self.slots.len() < self.pending_max
            && self.credit > 0
            && self.unsent.is_empty()
        {
            // Bytes that are skipped here have come, so their number fits.
            let skipped = self.skip.min((input.len() - consumed) as u64);
            self.skip -= skipped;
            consumed += skipped as usize;
            if consumed == input.len() {
                return Progress { consumed, needed: 1 };
            }
            match parse(&input[consumed..], self.value_max) {
                Parsed::Incomplete { needed } => return Progress { consumed, needed },
                Parsed::Close { text, reason } => {
                    if !text.is_empty() {
                        self.slots.push_back(ReplySlot::Taken(OutputChunk::Text(text)));
                    }
                    (self.is_over, self.close_reason) = (true, Some(reason));
                }
                Parsed::Refused { text, length } => {
                    self.slots.push_back(ReplySlot::Taken(OutputChunk::Text(text)));
                    self.skip = length;
                }
                Parsed::TooLarge { request, text, length } => {
                    let effect = Effect::of(&request);
                    if effect.is_some_and(|effect| self.must_wait(&request, effect)) {
                        break;
                    }
                    self.delete_stale(&request, text, &destination, &mut send);
                    self.skip = length;
                }
                Parsed::Request(request) => {
                    let effect = Effect::of(&request);
                    if effect.is_some_and(|effect| self.must_wait(&request, effect)) {
                        break;
                    }
                    consumed += request.bytes.len();
                    self.request(&request, effect, &destination, &mut send);
                }
            }
        }
        Progress { consumed, needed: 0 }
    }

    /// Whether the request would overtake one that has no reply yet.
    fn must_wait(&self, request: &Request<'_>, effect: Effect) -> bool {
        let is_away = |slot: &ReplySlot<R>| match slot {
            ReplySlot::Taken(_) => false,
            ReplySlot::Empty { effect: earlier, .. } => earlier.delays(request, effect),
            ReplySlot::MultiNodeReply(shared) => shared.effect.delays(request, effect),
        };
        (effect.is_change || self.changes > 0) && self.slots.iter().any(is_away)
    }

    fn request(
        &mut self,
        request: &Request<'_>,
        effect: Option<Effect>,
        destination: impl Fn(&[u8], Operation) -> P,
        send: impl FnMut(NodeRequest<'_, P>),
    ) {
        let Some((operation, effect)) = request.command.operation().zip(effect) else {
            self.spend(request.bytes.len(), 1);
            return self.about_no_key(request, effect, send);
        };
        if request.keys > 1 {
            return self.several(request, destination, (operation, effect), send);
        }
        let mut space = [0; KEY_MAX];
        let destination = destination(request.stored_key(&mut space), operation);
        self.send_whole(request, destination, (operation, effect), send);
    }

    /// Sends the deletion of the value under the key of a refused request. `text` takes the place
    /// of the reply.
    fn delete_stale(
        &mut self,
        request: &Request<'_>,
        text: &'static str,
        destination: impl Fn(&[u8], Operation) -> P,
        mut send: impl FnMut(NodeRequest<'_, P>),
    ) {
        let Some(effect) = Effect::of(request) else { return };
        let mut space = [0; KEY_MAX];
        let operation = Operation::Put;
        let destination = destination(request.stored_key(&mut space), operation);
        let slot = ReplySlot::Empty { noreply: request.is_noreply(), effect, instead: Some(text) };
        let (ticket, bytes) = (Ticket::new(self.push_slot(slot), 0), request.deletion());
        self.spend(bytes.len(), 1);
        self.outstanding += 1;
        send(NodeRequest { ticket, destination, bytes: &bytes, operation, keys: 1 });
    }

    /// Sends a request to one node as it is.
    fn send_whole(
        &mut self,
        request: &Request<'_>,
        destination: P,
        (operation, effect): (Operation, Effect),
        mut send: impl FnMut(NodeRequest<'_, P>),
    ) {
        let (bytes, keys, noreply) = (request.bytes, request.keys, request.is_noreply());
        let slot = ReplySlot::Empty { noreply, effect, instead: None };
        let ticket = Ticket::new(self.push_slot(slot), 0);
        self.spend(bytes.len(), keys);
        self.outstanding += 1;
        send(NodeRequest { ticket, destination, bytes, operation, keys });
    }

    /// Charges the credit with a request of so many bytes and keys, and with its expected reply.
    fn spend(&mut self, bytes: usize, keys: u32) {
        let reply = self.reply_estimate.saturating_mul(keys as usize);
        self.credit = self.credit.saturating_sub(bytes.saturating_add(reply));
    }

    /// Sends parts of the last request, as far as the credit goes. If nothing is outstanding, no
    /// reply will bring credit back, so one part may exceed it.
    fn send_parts(&mut self, mut send: impl FnMut(NodeRequest<'_, P>)) {
        while self.credit > 0 || self.outstanding == 0 {
            let Some((ticket, part)) = self.unsent.pop_front() else { return };
            let KeysPart { destination, operation, bytes, keys } = part;
            self.spend(bytes.len(), keys);
            self.outstanding += 1;
            send(NodeRequest { ticket, destination, bytes: &bytes, operation, keys });
        }
    }

    /// The maximum number of keys of a part.
    fn part_keys(&self) -> u32 {
        let longest = (PART_REPLY_MAX / self.value_max.max(1)).clamp(1, PART_KEYS_MAX);
        let expected = PART_REPLY / self.reply_estimate.max(1);
        longest.min(u32::try_from(expected).unwrap_or(u32::MAX)).max(1)
    }

    /// Splits a request for several keys: one part for each destination that owns any of them, or
    /// several if one reply could be too long.
    fn several(
        &mut self,
        request: &Request<'_>,
        destination: impl Fn(&[u8], Operation) -> P,
        (operation, effect): (Operation, Effect),
        send: impl FnMut(NodeRequest<'_, P>),
    ) {
        let (mut parts, mut text, mut keys) = (Vec::<KeysPart<P>>::new(), Vec::new(), Vec::new());
        let keys_max = self.part_keys();
        // The parts that are not full, at most one for each destination.
        let mut open: Vec<usize> = Vec::new();
        for key in request.keys() {
            let destination = destination(key, operation);
            let known = open.iter().position(|part| parts[*part].destination == destination);
            let number = known.map_or(parts.len(), |known| open[known]);
            if known.is_none() {
                let mut bytes = Vec::new();
                split::begin(request, &mut bytes);
                parts.push(KeysPart { destination, operation, bytes, keys: 0 });
                open.push(number);
            }
            let part = &mut parts[number];
            split::add(key, &mut part.bytes);
            part.keys += 1;
            if part.keys == keys_max {
                open.retain(|part| *part != number);
            }
            text.extend_from_slice(key);
            keys.push((text.len() as u32, number as u32));
        }
        if let [KeysPart { destination, .. }] = parts[..] {
            return self.send_whole(request, destination, (operation, effect), send);
        }
        let slot = self.shared(parts.len(), (text, keys), false, effect);
        for (number, mut part) in parts.into_iter().enumerate() {
            split::end(&mut part.bytes);
            self.unsent.push_back((Ticket::new(slot, number), part));
        }
        self.send_parts(send);
    }

    fn about_no_key(
        &mut self,
        request: &Request<'_>,
        effect: Option<Effect>,
        mut send: impl FnMut(NodeRequest<'_, P>),
    ) {
        let argument = words(request.bytes.trim_ascii_end()).nth(1);
        let chunk = match (request.command, effect) {
            (Command::Quit, _) => {
                self.is_over = true;
                return;
            }
            (Command::FlushAll, Some(effect)) if !self.flush_destinations.is_empty() => {
                let (parts, keys) = (self.flush_destinations.len(), (Vec::new(), Vec::new()));
                let slot = self.shared(parts, keys, request.quiet, effect);
                self.outstanding += parts;
                let (bytes, operation, keys) = (request.bytes, Operation::Delete, 1);
                for (part, destination) in self.flush_destinations.iter().copied().enumerate() {
                    let ticket = Ticket::new(slot, part);
                    send(NodeRequest { ticket, destination, bytes, operation, keys });
                }
                return;
            }
            _ if request.quiet => OutputChunk::Text(""),
            (Command::FlushAll, _) => OutputChunk::Text("CLIENT_ERROR flush_all not allowed\r\n"),
            (Command::MetaNoop, _) => OutputChunk::Text("MN\r\n"),
            (Command::Version, _) => OutputChunk::Text(VERSION),
            (Command::Stats, _) if argument.is_none() => OutputChunk::Made(self.stats()),
            (Command::Stats, _) if argument == Some(b"reset") => OutputChunk::Text("RESET\r\n"),
            (Command::Stats, _) => OutputChunk::Text("ERROR\r\n"),
            _ => OutputChunk::Text(OK),
        };
        self.stored += chunk.stored();
        self.slots.push_back(ReplySlot::Taken(chunk));
    }

    /// Statistics of this connection. Nodes and tenants have metrics of their own, and memcached
    /// has its own `stats`.
    fn stats(&self) -> Vec<u8> {
        let version = VERSION.trim_end().trim_start_matches("VERSION ");
        let ahead = self.slots.len();
        format!(
            "STAT version {version}\r\nSTAT pointer_size 64\r\nSTAT conn_replies {}\r\n\
             STAT conn_replies_awaited {ahead}\r\nSTAT item_size_max {}\r\nEND\r\n",
            self.first_slot, self.value_max,
        )
        .into_bytes()
    }

    /// Adds a slot for a reply of several parts; returns its number.
    fn shared(
        &mut self,
        parts: usize,
        (text, keys): (Vec<u8>, Vec<(u32, u32)>),
        noreply: bool,
        effect: Effect,
    ) -> u64 {
        let (missing, parts) = (parts, (0..parts).map(|_| None).collect());
        let shared = MultiNodeReply { parts, missing, noreply, effect, text, keys };
        self.push_slot(ReplySlot::MultiNodeReply(Box::new(shared)))
    }

    fn push_slot(&mut self, slot: ReplySlot<R>) -> u64 {
        let effect = match &slot {
            ReplySlot::Taken(_) => None,
            ReplySlot::Empty { effect, .. } => Some(*effect),
            ReplySlot::MultiNodeReply(shared) => Some(shared.effect),
        };
        self.changes += usize::from(effect.is_some_and(|effect| effect.is_change));
        self.slots.push_back(slot);
        self.first_slot + self.slots.len() as u64 - 1
    }

    /// Takes a node's reply, or the error line to send instead. A ticket that is unknown or used is
    /// ignored.
    pub fn on_reply(&mut self, ticket: Ticket, reply: Result<R, &'static str>) {
        let index = ticket.slot().checked_sub(self.first_slot).map(|index| index as usize);
        let Some(slot) = index.and_then(|index| self.slots.get_mut(index)) else {
            return;
        };
        let length = reply.as_deref().map_or(0, <[u8]>::len);
        match slot {
            ReplySlot::Taken(_) => return,
            ReplySlot::Empty { noreply, effect, instead } => {
                self.changes -= usize::from(effect.is_change);
                let chunk = match (reply, *instead) {
                    (Ok(_), Some(text)) => OutputChunk::Text(text),
                    (Ok(reply), None) => OutputChunk::Reply(reply),
                    (Err(text), _) => OutputChunk::Text(if *noreply { "" } else { text }),
                };
                self.stored += chunk.stored();
                *slot = ReplySlot::Taken(chunk);
            }
            ReplySlot::MultiNodeReply(shared) => {
                // Unsent parts are the last ones of the last request.
                let is_unsent = self.unsent.front().is_some_and(|(first, _)| ticket >= *first);
                let Some(part @ None) = shared.parts.get_mut(ticket.part()) else { return };
                if is_unsent {
                    return;
                }
                shared.missing -= 1;
                self.stored += length;
                match reply {
                    Ok(reply) => *part = Some(OutputChunk::Reply(reply)),
                    Err(text) => {
                        *part = Some(OutputChunk::Text(if shared.noreply { "" } else { text }));
                        if self.unsent.front().is_some_and(|(it, _)| it.slot() == ticket.slot()) {
                            shared.missing -= self.unsent.len();
                            self.unsent.clear();
                        }
                    }
                }
                if shared.missing == 0 {
                    self.changes -= usize::from(shared.effect.is_change);
                    let chunk = shared.joined();
                    self.stored = self.stored + chunk.stored() - shared.stored();
                    *slot = ReplySlot::Taken(chunk);
                }
            }
        }
        self.outstanding -= 1;
    }

    /// The next chunk of the client's output.
    pub fn poll_output(&mut self) -> Option<OutputChunk<R>> {
        if !matches!(self.slots.front(), Some(ReplySlot::Taken(_))) {
            return None;
        }
        self.first_slot += 1;
        match self.slots.pop_front() {
            Some(ReplySlot::Taken(chunk)) => {
                self.stored = self.stored.saturating_sub(chunk.stored());
                Some(chunk)
            }
            _ => None,
        }
    }

    /// Whether the pending requests leave headroom for another one.
    pub fn has_headroom(&self) -> bool {
        self.slots.len() < self.pending_max && self.unsent.is_empty()
    }

    /// The parts of the last request that are not sent yet. [`Self::on_input`] sends them when
    /// credit is back, also if its input is empty.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Whether the connection may be closed: the client has ended it, and every reply is sent.
    pub fn is_over(&self) -> bool {
        self.is_over && self.slots.is_empty()
    }

    /// Why the connection has to be closed, unless the client has ended it.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.close_reason
    }

    /// The number of requests whose reply is not sent.
    pub fn pending(&self) -> usize {
        self.slots.len()
    }
}

impl Request<'_> {
    /// Whether the client gets no error reply, as with `noreply`. The flag `q` suppresses success
    /// replies only.
    fn is_noreply(&self) -> bool {
        let is_meta = self.command.shape() == super::reply::Shape::Meta;
        self.quiet && !is_meta
    }
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
