//! A client's connection to a gateway, as a machine.
//!
//! **Problem.** A client asks ahead and expects the replies in its order. Nodes answer when they
//! can, and a request for several keys is several requests to several nodes.
//!
//! **Mechanism.** Every request takes the next slot in a row of replies, and a ticket puts a node's
//! reply into its slot. A complete reply at the head of the row may leave. With it come the meta
//! commands' quiet semantics for nothing: a quiet request's reply is empty, unless there is an
//! error to report, and the reply to `mn` leaves only when all before it have left. A request that
//! would overtake another one about its key waits for that one's reply ([`super::order`]).
//!
//! **Bound.** A client that asks ahead of more than [`AHEAD_MAX`] replies is not listened to until
//! the first of them has left, so the row is as long as that at most. A gateway with many clients
//! may allow each fewer, and fewer bytes ([`Conversation::set_credit`]). A request for many keys is
//! cut so that the reply to one part is expected to have [`PART_REPLY`] bytes, and parts are asked
//! for as far as the credit goes. Once one of them has failed, so has the request, and the others
//! are not asked for.

mod shared;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use core::ops::Deref;

use tidegate_model::Operation;

use self::shared::Shared;
use super::order::Effect;
use super::request::{CloseReason, Parsed, Request, next, words};
use super::{KEY_MAX, Verb, split};

/// How many requests of one client may be without a reply. Chosen by hand: enough to keep a node
/// busy from one connection.
pub const AHEAD_MAX: usize = 1_024;

/// The bytes of reply that one part of a request for several keys is expected to bring: what others
/// wait for behind it, as long as a piece of a volume.
pub const PART_REPLY: usize = 128 << 10;

/// The most that it can bring, in bytes, if it is longer than expected and values are at most 1 MiB
/// long: a node holds at most so much of a reply that is not whole. With longer values a part has
/// one key.
pub const PART_REPLY_MAX: u32 = 16 << 20;

/// How many keys one part has at most: as many as make the cost of a part small against that of its
/// keys.
const PART_KEYS_MAX: u32 = 256;

/// The version of memcached that this protocol follows, for clients that look before they use a
/// command.
const VERSION: &str = "VERSION 1.6.18-tidegate\r\n";

const OK: &str = "OK\r\n";

/// A command for one node.
#[derive(Clone, Copy, Debug)]
pub struct NodeRequest<'a, P> {
    /// Comes back with the reply.
    pub ticket: Ticket,
    /// Its destination.
    pub destination: P,
    /// The command, to be sent as it is.
    pub bytes: &'a [u8],
    /// The operation; [`Operation::Delete`] for `flush_all`.
    pub operation: Operation,
    /// How many keys it is about; at least one.
    pub keys: u32,
}

/// In which slot a reply belongs, and as which part of it.
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
    /// Words that are always the same.
    Text(&'static str),
    /// Made here from several replies.
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

/// How far a conversation came with its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many bytes at the beginning of the input are done with.
    pub consumed: usize,
    /// How many bytes there have to be after those before it makes sense to go on; zero if that
    /// depends on replies, or the conversation is over.
    pub needed: usize,
}

/// One client's conversation. `P` is where something is asked: a node, and on whose behalf.
#[derive(Debug)]
pub struct Conversation<P, R> {
    value_max: u32,
    /// The destinations of `flush_all`.
    everywhere: Vec<P>,
    /// How many requests may be without a reply.
    ahead_max: usize,
    /// How many bytes of requests and replies may still be asked for, and the bytes of reply that
    /// are expected for each key.
    credit: usize,
    reply_estimate: usize,
    /// The bytes of replies that are here and have not left.
    stored: usize,
    /// Bytes of input that are still to be skipped.
    skip: u64,
    /// Parts of the last request that are not asked for yet, and how many requests and parts are.
    unsent: VecDeque<(Ticket, KeysPart<P>)>,
    outstanding: usize,
    /// Requests without a reply that may change values.
    changes: usize,
    /// The number of the slot at the head of the row.
    first: u64,
    row: VecDeque<ReplySlot<R>>,
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
    },
    Shared(Box<Shared<R>>),
}

impl<P: Copy + PartialEq, R: Deref<Target = [u8]>> Conversation<P, R> {
    /// A conversation in which values have up to `value_max` bytes. `flush_all` goes to
    /// `everywhere`, and is refused if that is nowhere.
    pub fn new(value_max: u32, everywhere: Vec<P>) -> Self {
        let row = VecDeque::new();
        let (skip, first, is_over, close_reason) = (0, 0, false, None);
        Self {
            value_max,
            everywhere,
            ahead_max: AHEAD_MAX,
            credit: usize::MAX,
            reply_estimate: 0,
            stored: 0,
            skip,
            unsent: VecDeque::new(),
            outstanding: 0,
            changes: 0,
            first,
            row,
            is_over,
            close_reason,
        }
    }

    /// Until the next call, requests are taken while they and the replies that are expected to
    /// them have less than `credit` bytes: the last request may exceed it. A reply is expected to
    /// have `reply_estimate` bytes for each key.
    pub fn set_credit(&mut self, credit: usize, reply_estimate: usize) {
        (self.credit, self.reply_estimate) = (credit, reply_estimate);
    }

    /// The bytes of replies that have come from nodes and not left with [`Self::poll_output`].
    pub fn stored(&self) -> usize {
        self.stored
    }

    /// From now on no more requests are taken while so many are without a reply: at least one, and
    /// at most [`AHEAD_MAX`].
    pub fn set_ahead_max(&mut self, requests: usize) {
        self.ahead_max = requests.clamp(1, AHEAD_MAX);
    }

    /// From now on `flush_all` goes to these destinations.
    pub fn flush_at(&mut self, everywhere: Vec<P>) {
        self.everywhere = everywhere;
    }

    /// Takes in the client's input that is not consumed yet. `destination` names the owner of a
    /// key, and `send` takes each sub-request, which ends in [`Self::on_reply`].
    pub fn on_input(
        &mut self,
        input: &[u8],
        destination: impl Fn(&[u8], Operation) -> P,
        mut send: impl FnMut(NodeRequest<'_, P>),
    ) -> Progress {
        let mut consumed = 0;
        self.send_parts(&mut send);
        while !self.is_over
            && self.row.len() < self.ahead_max
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
            match next(&input[consumed..], self.value_max) {
                Parsed::Incomplete { needed } => return Progress { consumed, needed },
                Parsed::Close { text, reason } => {
                    if !text.is_empty() {
                        self.row.push_back(ReplySlot::Taken(OutputChunk::Text(text)));
                    }
                    (self.is_over, self.close_reason) = (true, Some(reason));
                }
                Parsed::Refused { text, length } => {
                    self.row.push_back(ReplySlot::Taken(OutputChunk::Text(text)));
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
            ReplySlot::Shared(shared) => shared.effect.delays(request, effect),
        };
        (effect.is_change || self.changes > 0) && self.row.iter().any(is_away)
    }

    fn request(
        &mut self,
        request: &Request<'_>,
        effect: Option<Effect>,
        destination: impl Fn(&[u8], Operation) -> P,
        mut send: impl FnMut(NodeRequest<'_, P>),
    ) {
        let Some((operation, effect)) = request.verb.operation().zip(effect) else {
            self.spend(request.bytes.len(), 1);
            return self.about_no_key(request, effect, send);
        };
        if request.keys > 1 {
            return self.several(
                request,
                |key| destination(key, operation),
                (operation, effect),
                send,
            );
        }
        let mut space = [0; KEY_MAX];
        let destination = destination(request.stored_key(&mut space), operation);
        let ticket = Ticket::new(
            self.push_slot(ReplySlot::Empty { noreply: request.is_noreply(), effect }),
            0,
        );
        self.spend(request.bytes.len(), 1);
        self.outstanding += 1;
        send(NodeRequest { ticket, destination, bytes: request.bytes, operation, keys: 1 });
    }

    /// A request of so many bytes about so many keys takes its part of the credit.
    fn spend(&mut self, bytes: usize, keys: u32) {
        let reply = self.reply_estimate.saturating_mul(keys as usize);
        self.credit = self.credit.saturating_sub(bytes.saturating_add(reply));
    }

    /// Asks for parts of the last request, as far as the credit goes. Where nothing else is asked
    /// for, credit does not come back by itself, and one part may exceed it.
    fn send_parts(&mut self, mut send: impl FnMut(NodeRequest<'_, P>)) {
        while self.credit > 0 || self.outstanding == 0 {
            let Some((ticket, part)) = self.unsent.pop_front() else { return };
            let KeysPart { destination, operation, bytes, keys } = part;
            self.spend(bytes.len(), keys);
            self.outstanding += 1;
            send(NodeRequest { ticket, destination, bytes: &bytes, operation, keys });
        }
    }

    /// How many keys a part has at most.
    fn part_keys(&self) -> u32 {
        let longest = (PART_REPLY_MAX / self.value_max.max(1)).clamp(1, PART_KEYS_MAX);
        let expected = PART_REPLY / self.reply_estimate.max(1);
        longest.min(u32::try_from(expected).unwrap_or(u32::MAX)).max(1)
    }

    /// A request for several keys: one for each destination that has any of them, or several if one
    /// reply could be too long.
    fn several(
        &mut self,
        request: &Request<'_>,
        destination: impl Fn(&[u8]) -> P,
        (operation, effect): (Operation, Effect),
        mut send: impl FnMut(NodeRequest<'_, P>),
    ) {
        let (mut parts, mut text, mut keys) = (Vec::<KeysPart<P>>::new(), Vec::new(), Vec::new());
        let keys_max = self.part_keys();
        // The parts that are not full, at most one for each destination.
        let mut open: Vec<usize> = Vec::new();
        for key in request.keys() {
            let destination = destination(key);
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
            let ticket =
                Ticket::new(self.push_slot(ReplySlot::Empty { noreply: false, effect }), 0);
            self.spend(request.bytes.len(), request.keys);
            self.outstanding += 1;
            return send(NodeRequest {
                ticket,
                destination,
                bytes: request.bytes,
                operation,
                keys: request.keys,
            });
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
        let chunk = match (request.verb, effect) {
            (Verb::Quit, _) => {
                self.is_over = true;
                return;
            }
            (Verb::FlushAll, Some(effect)) if !self.everywhere.is_empty() => {
                let (destinations, keys) = (self.everywhere.clone(), (Vec::new(), Vec::new()));
                let slot = self.shared(destinations.len(), keys, request.quiet, effect);
                for (part, destination) in destinations.into_iter().enumerate() {
                    let (ticket, operation) = (Ticket::new(slot, part), Operation::Delete);
                    self.outstanding += 1;
                    send(NodeRequest {
                        ticket,
                        destination,
                        bytes: request.bytes,
                        operation,
                        keys: 1,
                    });
                }
                return;
            }
            _ if request.quiet => OutputChunk::Text(""),
            (Verb::FlushAll, _) => OutputChunk::Text("CLIENT_ERROR flush_all not allowed\r\n"),
            (Verb::MetaNoop, _) => OutputChunk::Text("MN\r\n"),
            (Verb::Version, _) => OutputChunk::Text(VERSION),
            (Verb::Stats, _) if argument.is_none() => OutputChunk::Made(self.stats()),
            (Verb::Stats, _) if argument == Some(b"reset") => OutputChunk::Text("RESET\r\n"),
            (Verb::Stats, _) => OutputChunk::Text("ERROR\r\n"),
            _ => OutputChunk::Text(OK),
        };
        self.stored += chunk.stored();
        self.row.push_back(ReplySlot::Taken(chunk));
    }

    /// Statistics of this connection. Nodes and tenants have metrics of their own, and memcached
    /// has its own `stats`.
    fn stats(&self) -> Vec<u8> {
        let version = VERSION.trim_end().trim_start_matches("VERSION ");
        let ahead = self.row.len();
        format!(
            "STAT version {version}\r\nSTAT pointer_size 64\r\nSTAT conn_replies {}\r\n\
             STAT conn_replies_awaited {ahead}\r\nSTAT item_size_max {}\r\nEND\r\n",
            self.first, self.value_max,
        )
        .into_bytes()
    }

    /// Takes the next slot for a reply of several parts; its number.
    fn shared(
        &mut self,
        parts: usize,
        (text, keys): (Vec<u8>, Vec<(u32, u32)>),
        noreply: bool,
        effect: Effect,
    ) -> u64 {
        let missing = parts;
        let parts = (0..parts).map(|_| None).collect();
        self.push_slot(ReplySlot::Shared(Box::new(Shared {
            parts,
            missing,
            noreply,
            effect,
            text,
            keys,
        })))
    }

    fn push_slot(&mut self, slot: ReplySlot<R>) -> u64 {
        let effect = match &slot {
            ReplySlot::Taken(_) => None,
            ReplySlot::Empty { effect, .. } => Some(*effect),
            ReplySlot::Shared(shared) => Some(shared.effect),
        };
        self.changes += usize::from(effect.is_some_and(|effect| effect.is_change));
        self.row.push_back(slot);
        self.first + self.row.len() as u64 - 1
    }

    /// Takes in a reply, or a line that says in memcached's way why there is none. A ticket that is
    /// unknown or used is ignored.
    pub fn on_reply(&mut self, ticket: Ticket, reply: Result<R, &'static str>) {
        let index = ticket.slot().checked_sub(self.first).map(|index| index as usize);
        let Some(slot) = index.and_then(|index| self.row.get_mut(index)) else {
            return;
        };
        let length = reply.as_deref().map_or(0, <[u8]>::len);
        match slot {
            ReplySlot::Taken(_) => return,
            ReplySlot::Empty { noreply, effect } => {
                let complaint = |text| OutputChunk::Text(if *noreply { "" } else { text });
                self.changes -= usize::from(effect.is_change);
                *slot = ReplySlot::Taken(reply.map_or_else(complaint, OutputChunk::Reply));
                self.stored += length;
            }
            ReplySlot::Shared(shared) => {
                // Those that are not asked for are the last request's, and its last ones.
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

    /// The next piece of the client's output.
    pub fn poll_output(&mut self) -> Option<OutputChunk<R>> {
        if !matches!(self.row.front(), Some(ReplySlot::Taken(_))) {
            return None;
        }
        self.first += 1;
        match self.row.pop_front() {
            Some(ReplySlot::Taken(chunk)) => {
                self.stored = self.stored.saturating_sub(chunk.stored());
                Some(chunk)
            }
            _ => None,
        }
    }

    /// Whether another request could be taken, as far as those before it decide.
    pub fn has_headroom(&self) -> bool {
        self.row.len() < self.ahead_max && self.unsent.is_empty()
    }

    /// How many parts of the last request are not asked for yet: [`Self::on_input`] does so as the
    /// credit comes back, with nothing as input, too.
    pub fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Every reply has left, and the connection may be closed.
    pub fn is_over(&self) -> bool {
        self.is_over && self.row.is_empty()
    }

    /// Why the connection is of no use, if that is not what the client wanted.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.close_reason
    }

    /// How many requests wait for their reply, or for that of one before them.
    pub fn ahead(&self) -> usize {
        self.row.len()
    }
}

impl Request<'_> {
    /// Whether the client gets no error reply, as with `noreply`. The flag `q` suppresses success
    /// replies only.
    fn is_noreply(&self) -> bool {
        let is_meta = self.verb.shape() == super::reply::Shape::Meta;
        self.quiet && !is_meta
    }
}

#[cfg(test)]
#[path = "conversation_tests.rs"]
mod tests;
