//! The binary protocol between a gateway and a node: jobs in one direction, answers in the other.
//!
//! # Model
//! A connection carries frames: a head of fixed length, then as many bytes of payload as the head
//! states. A gateway sends [`ToNode`] and jobs, a node sends [`FromNode`] and answers. Everything
//! but jobs and answers is rare and is a postcard message in the payload of a frame of kind 0. Jobs
//! are answered in any order; a ticket identifies each.
//!
//! | gateway → node, 48 bytes | | node → gateway, 32 bytes | |
//! |---|---|---|---|
//! | 0 | kind: 0 message, 1–7 [`Command`] | 0 | kind: 0 message, 1 answer |
//! | 1 | flags: 1 durable, 2 allocate | 1 | fault, 0 for none |
//! | 2–3 | zero | 2–3 | zero |
//! | 4–7 | length of the range or message | 4–7 | length of the payload |
//! | 8–15 | ticket | 8–15 | ticket |
//! | 16–23 | offset; of a flush, the [incarnation](PartState::incarnation) | 16–23 | queued, ns |
//! | 24–27 | part | 24–31 | at the store, ns |
//! | 28–31 | zero | | |
//! | 32–47 | tag | | |
//!
//! Numbers are little-endian. Writes and key-value jobs have a payload as long as `length`; answers
//! carry what was read. A gateway opens with [`ToNode::Hello`] and [`ToNode::Identify`] and may go
//! on at once, but sends no job before it is welcome; a node of another version reports that and
//! closes.
//!
//! # Bounds
//! No payload is longer than 32 MiB. Anything in a head that no version of it has (a kind, a flag,
//! a byte that is to be zero) is an error with a reason, and ends the connection: after a wrong
//! head nothing on it can be trusted.

mod assembler;
mod identity;
pub mod pieces;

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use tidegate_algo::scheduling::cost;
use tidegate_model::cluster::{Geometry, VolumeStamp};
use tidegate_model::{Bytes, CostModel, Operation, PartNumber, Span, Tag, TenantId};

pub use assembler::{Assembler, Payload};
pub use identity::{LinkIdentity, LinkKind};

/// The version of these frames and messages.
pub const VERSION: u16 = 5;

/// The longest payload, in bytes. NBD's clients send no more than this in one request.
pub const PAYLOAD_MAX: usize = 32 << 20;

/// How often a node that owes answers sends a message: [`FromNode::Alive`] if there is no other.
pub const ALIVE_EVERY: Span = Span::SECOND;

/// How long a tenant's cost at other nodes may wait for a request that carries it before a gateway
/// reports it alone: [`ToNode::Elsewhere`].
pub const REPORTED_WITHIN: Span = Span(100 * Span::MILLISECOND.0);

/// How long a node that owes answers may be silent before it counts as away: it hangs, or its
/// machine is gone without a word.
pub const SILENCE_MAX: Span = Span(5 * Span::SECOND.0);

/// Time for which a node that ends still serves jobs that it was sent, after [`FromNode::Ending`].
pub const DRAIN_MAX: Span = Span(5 * Span::SECOND.0);

/// The longest message of kind 0, in bytes: some thousand names of tenants. More are sent in
/// several.
pub const MESSAGE_MAX: usize = 1 << 20;

/// A command to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Fill the buffer from the part.
    Read,
    /// Write the buffer to the part; durably before the answer if `durable`.
    Write {
        /// Force unit access.
        durable: bool,
    },
    /// Everything that was answered before is durable before the answer. The job's offset is the
    /// incarnation of the part that the client has relied on, zero for none; if the part has
    /// another one by now, the flush fails.
    Flush,
    /// The range is not needed any more; reading it gives zeros or what was there.
    Discard {
        /// Force unit access.
        durable: bool,
    },
    /// The range reads as zeros from now on.
    Zero {
        /// Keep the space allocated.
        allocate: bool,
        /// Force unit access.
        durable: bool,
    },
    /// Which pieces of the range are allocated: the buffer is filled with extents of 16 bytes
    /// each, little-endian: length 8, flags 8 (bit 0: a hole, bit 1: reads as zeros). They cover
    /// the range from its beginning, perhaps not to its end.
    Map,
    /// A key-value request: the buffer is the memcached command, and becomes the reply.
    KeyValue,
}

const DURABLE: u8 = 1;
const ALLOCATE: u8 = 2;

impl Command {
    fn to_bytes(self) -> [u8; 2] {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        match self {
            Self::Read => [1, 0],
            Self::Write { durable } => [2, flag(durable, DURABLE)],
            Self::Flush => [3, 0],
            Self::Discard { durable } => [4, flag(durable, DURABLE)],
            Self::Zero { allocate, durable } => {
                [5, flag(durable, DURABLE) + flag(allocate, ALLOCATE)]
            }
            Self::Map => [6, 0],
            Self::KeyValue => [7, 0],
        }
    }

    fn from_bytes(kind: u8, flags: u8) -> Result<Self, FrameError> {
        let (durable, allocate) = (flags & DURABLE != 0, flags & ALLOCATE != 0);
        let command = match kind {
            1 => Self::Read,
            2 => Self::Write { durable },
            3 => Self::Flush,
            4 => Self::Discard { durable },
            5 => Self::Zero { allocate, durable },
            6 => Self::Map,
            7 => Self::KeyValue,
            _ => return Err(FrameError::Kind(kind)),
        };
        // A flag that the command does not have is lost on the way back.
        if command.to_bytes() == [kind, flags] { Ok(command) } else { Err(FrameError::Reserved) }
    }

    /// The weight of a job over so many bytes in the fair order of a node. Gateways and nodes have
    /// to agree on it, for work at one node counts at the others. A job that is served in
    /// [`pieces`] weighs as much as these. A [measured](Self::is_measured) job weighs as much as
    /// one that moves nothing, until a node has measured it. A request for several keys has their
    /// number as the cost in its tag; each takes at least a byte, whatever the tag has.
    pub fn work(self, model: &CostModel, length: u32, tag: &Tag) -> u32 {
        let rest = length % pieces::PIECE;
        if length > pieces::PIECE && matches!(self, Self::Read | Self::Write { .. }) {
            let whole = self.work(model, pieces::PIECE, tag);
            let rest = if rest == 0 { 0 } else { self.work(model, rest, tag) };
            return whole.saturating_mul(length / pieces::PIECE).saturating_add(rest);
        }
        let keys = if self == Self::KeyValue { tag.cost.min(length) } else { 1 };
        let bytes = match self {
            Self::Read | Self::Write { .. } | Self::KeyValue => length,
            Self::Flush | Self::Discard { .. } | Self::Zero { .. } | Self::Map => 0,
        };
        let is_write = match self {
            Self::Write { .. } | Self::Zero { .. } => true,
            Self::KeyValue => tag.operation == Operation::Put,
            _ => false,
        };
        cost::work(model, is_write, bytes, keys)
    }

    /// Whether a job carries bytes to the node.
    pub const fn has_payload(self) -> bool {
        matches!(self, Self::Write { .. } | Self::KeyValue)
    }
}

/// Why a request failed, in the terms that every front end can pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// The range lies outside of the part, or the request makes no sense.
    Invalid = 1,
    /// The store may not be written.
    ReadOnly = 2,
    /// The store is full.
    NoSpace = 3,
    /// The store or the node cannot carry out the command.
    Unsupported = 4,
    /// The node is away, or the store is broken.
    Io = 5,
    /// The node or the gateway is ending.
    Ending = 6,
}

impl Fault {
    /// The fault with this number on a wire; [`Self::Io`] for numbers that none has.
    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Invalid,
            2 => Self::ReadOnly,
            3 => Self::NoSpace,
            4 => Self::Unsupported,
            6 => Self::Ending,
            _ => Self::Io,
        }
    }
}

/// From a gateway to a node, besides jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// The first message.
    Hello {
        /// The version that the gateway speaks.
        version: u16,
        /// The release of Tidegate that it runs.
        release: String,
    },
    /// The names of the tenants: the first of them is [`tidegate_model::TenantId`] 1 in every job
    /// from here on.
    Tenants(Vec<String>),
    /// Makes a part of a volume ready, under a number of the gateway's choice. Jobs on it may
    /// follow at once, and fail if it is refused.
    Open {
        /// The number that jobs will name it by on this connection: the count of those before.
        part: PartNumber,
        /// The volume's name.
        volume: String,
        /// Which of its parts.
        index: u32,
        /// Its length.
        length: Bytes,
        /// Where it begins in a store that is one device.
        offset: Bytes,
        /// The geometry of the whole volume; a part that has another one is refused.
        geometry: Geometry,
    },
    /// The clients of the jobs with these tickets have gone. Jobs that still wait need not be done;
    /// each is answered nevertheless, with [`Fault::Ending`].
    Cancel(Vec<u64>),
    /// Work of tenants at other nodes, by the cluster's cost, that no job has reported and none
    /// will report any more: it delays the tenant's next request, from any gateway.
    Elsewhere(Vec<(TenantId, u64)>),
    /// More tenants, behind those that [`Self::Tenants`] and others of these have named.
    MoreTenants(Vec<String>),
    /// The third message: which requests this connection carries.
    Carries(LinkKind),
    /// The second message: which link this is. The node welcomes the gateway once the connections
    /// that this one replaces have ended, and nothing of them is carried out any more.
    Identify(LinkIdentity),
    /// Ends the connections of another link of the same gateway, up to this one: the gateway has
    /// lost them, and may not be able to connect that link again. Answered with
    /// [`FromNode::Fenced`] once nothing of them is carried out any more.
    Fence {
        /// The number of the link, not that of the connection's own.
        link: u32,
        /// The last of its connections that ends.
        connection: u64,
    },
}

impl ToNode {
    /// The messages that name the tenants, in their order: as many names in each as it can have,
    /// whatever their lengths.
    pub fn tenants(names: &[String]) -> Vec<Self> {
        // A name is a length of at most ten bytes, and the name.
        let most = MESSAGE_MAX - 16;
        let mut pages = alloc::vec![Vec::new()];
        let mut length = 0;
        for name in names {
            length += 10 + name.len();
            if length > most {
                length = 10 + name.len();
                pages.push(Vec::new());
            }
            if let Some(page) = pages.last_mut() {
                page.push(name.clone());
            }
        }
        let mut pages = pages.into_iter();
        let first = pages.next().map(Self::Tenants);
        first.into_iter().chain(pages.map(Self::MoreTenants)).collect()
    }
}

/// From a node to a gateway, besides answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// The gateway is accepted.
    Welcome {
        /// The version that the node speaks.
        version: u16,
        /// The node's name.
        name: String,
        /// The release of Tidegate that it runs.
        release: String,
    },
    /// The gateway is not accepted, or has sent a malformed message; the connection ends.
    Refused {
        /// The version that the node speaks.
        version: u16,
        /// Why, in words for people.
        reason: String,
    },
    /// A part is ready, or is not.
    Opened {
        /// Its number.
        part: PartNumber,
        /// Its state, or the reason why it is refused, for people.
        opened: Result<PartState, String>,
    },
    /// The node is there, and the answers that it owes are under way: sent every [`ALIVE_EVERY`]
    /// while nothing else is. The gateway does not request it, because a node at its bounds does
    /// not read.
    Alive,
    /// Acknowledged writes to an open part may have been lost since it was opened.
    Incarnation {
        /// Its number.
        part: PartNumber,
        /// Its new incarnation.
        incarnation: u64,
    },
    /// The node is ending. It still serves the jobs that it was sent, for [`DRAIN_MAX`]; the
    /// gateway sends no more, and closes the connection once all are answered. A gateway of a
    /// release without this message closes the connection at once.
    Ending,
    /// No job of these connections is carried out any more: the answer to [`ToNode::Fence`].
    Fenced {
        /// The number of the link.
        link: u32,
        /// The last of its connections that has ended.
        connection: u64,
    },
}

/// A part that is open at its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartState {
    /// Changes only when acknowledged writes may have been lost; never zero. A client may rely on
    /// what it wrote as long as this is what it was when the client opened the volume.
    pub incarnation: u64,
    /// Which volume the part was made for, and how often that was resized; none for a part that
    /// lives only as long as its node.
    pub identity: Option<VolumeStamp>,
}

/// A job without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobHead {
    /// The gateway's number for it; comes back in the answer.
    pub ticket: u64,
    /// Its tenant, operation and cost.
    pub tag: Tag,
    /// The command.
    pub command: Command,
    /// The part, by the number that it was opened with.
    pub part: PartNumber,
    /// Where in the part, in bytes; of a flush, the incarnation that the client relies on, zero for
    /// none.
    pub offset: u64,
    /// How many bytes; for commands with payload, its length.
    pub length: u32,
}

/// How long a job was at its node, by the node's clock. Both times are zero for a job that went to
/// no store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// From its arrival until the job, or the first of its pieces, went to the store.
    pub queued: Span,
    /// From then until the node had the answer.
    pub stored: Span,
}

/// An answer without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    /// The job's.
    pub ticket: u64,
    /// How it ended.
    pub outcome: Result<(), Fault>,
    /// Bytes of payload.
    pub length: u32,
    /// How long it was at the node.
    pub stay: Stay,
}

/// The head of a frame.
pub trait Head: Copy {
    /// Its length on the wire, in bytes; at most 48.
    const LENGTH: usize;

    /// Decodes [`Self::LENGTH`] bytes.
    ///
    /// # Errors
    /// If no frame begins so.
    fn parse(bytes: &[u8]) -> Result<Self, FrameError>;

    /// Bytes of payload that follow, at most [`PAYLOAD_MAX`].
    fn payload(&self) -> usize;
}

/// The head of a message or a job, as a node receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestHead {
    /// A [`ToNode`] of so many bytes follows; see [`decode`].
    Message(u32),
    /// A job, and its payload follows.
    Job(JobHead),
}

/// The head of a message or an answer, as a gateway receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHead {
    /// A [`FromNode`] of so many bytes follows; see [`decode`].
    Message(u32),
    /// An answer, and its payload follows.
    Answer(AnswerHead),
}

impl JobHead {
    /// The wire form.
    pub fn to_bytes(self) -> [u8; RequestHead::LENGTH] {
        let mut bytes = [0; RequestHead::LENGTH];
        bytes[0..2].copy_from_slice(&self.command.to_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.ticket.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.part.0.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.tag.to_bytes());
        bytes
    }
}

impl AnswerHead {
    /// The wire form.
    pub fn to_bytes(self) -> [u8; ReplyHead::LENGTH] {
        let mut bytes = [0; ReplyHead::LENGTH];
        bytes[0] = 1;
        bytes[1] = self.outcome.err().map_or(0, |fault| fault as u8);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.ticket.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.stay.queued.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.stay.stored.0.to_le_bytes());
        bytes
    }
}

impl Head for RequestHead {
    const LENGTH: usize = 48;

    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let length = u32_at(bytes, 4);
        if bytes[2..4] != [0; 2] || bytes[28..32] != [0; 4] {
            return Err(FrameError::Reserved);
        }
        if bytes[0] == 0 {
            return message(length, bytes[1] == 0 && bytes[8..].iter().all(|byte| *byte == 0))
                .map(Self::Message);
        }
        let command = Command::from_bytes(bytes[0], bytes[1])?;
        let is_carried = command.has_payload() || command == Command::Read;
        if is_carried && length as usize > PAYLOAD_MAX {
            return Err(FrameError::TooLong { length, maximum: PAYLOAD_MAX });
        }
        let mut tag = [0; Tag::LENGTH];
        tag.copy_from_slice(&bytes[32..48]);
        Ok(Self::Job(JobHead {
            ticket: u64_at(bytes, 8),
            tag: Tag::from_bytes(tag).ok_or(FrameError::Tag)?,
            command,
            part: PartNumber(u32_at(bytes, 24)),
            offset: u64_at(bytes, 16),
            length,
        }))
    }

    fn payload(&self) -> usize {
        match self {
            Self::Message(length) => *length as usize,
            Self::Job(job) if job.command.has_payload() => job.length as usize,
            Self::Job(_) => 0,
        }
    }
}

impl Head for ReplyHead {
    const LENGTH: usize = 32;

    fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        let length = u32_at(bytes, 4);
        if bytes[2..4] != [0; 2] {
            return Err(FrameError::Reserved);
        }
        match bytes[0] {
            0 => message(length, bytes[1] == 0 && bytes[8..32] == [0; 24]).map(Self::Message),
            1 if length as usize > PAYLOAD_MAX => {
                Err(FrameError::TooLong { length, maximum: PAYLOAD_MAX })
            }
            1 => Ok(Self::Answer(AnswerHead {
                ticket: u64_at(bytes, 8),
                outcome: if bytes[1] == 0 { Ok(()) } else { Err(Fault::from_number(bytes[1])) },
                length,
                stay: Stay { queued: Span(u64_at(bytes, 16)), stored: Span(u64_at(bytes, 24)) },
            })),
            kind => Err(FrameError::Kind(kind)),
        }
    }

    fn payload(&self) -> usize {
        match self {
            Self::Message(length) => *length as usize,
            Self::Answer(answer) => answer.length as usize,
        }
    }
}

fn message(length: u32, is_clean: bool) -> Result<u32, FrameError> {
    if !is_clean {
        return Err(FrameError::Reserved);
    }
    if length as usize > MESSAGE_MAX {
        return Err(FrameError::TooLong { length, maximum: MESSAGE_MAX });
    }
    Ok(length)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// Appends `message` to `out` as a frame whose heads are `H`: [`RequestHead`] for a [`ToNode`],
/// [`ReplyHead`] for a [`FromNode`].
///
/// # Errors
/// If it is longer than [`MESSAGE_MAX`]; `out` is then as it was.
pub fn encode<H: Head, M: Serialize>(message: &M, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    let bytes = postcard::to_allocvec(message).map_err(|_| FrameError::Message)?;
    if bytes.len() > MESSAGE_MAX {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        return Err(FrameError::TooLong { length, maximum: MESSAGE_MAX });
    }
    out.resize(start + H::LENGTH, 0);
    out[start + 4..start + 8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&bytes);
    Ok(())
}

/// The message that a payload is.
///
/// # Errors
/// If it is none, or goes on behind it.
pub fn decode<M: serde::de::DeserializeOwned>(payload: &[u8]) -> Result<M, FrameError> {
    match postcard::take_from_bytes(payload) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Message),
    }
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It is longer than its kind may be.
    #[error("a frame of {length} bytes is over the maximum of {maximum}")]
    TooLong {
        /// The length that it claims, in bytes.
        length: u32,
        /// How long it may be.
        maximum: usize,
    },
    /// No frame is of this kind.
    #[error("no frame is of kind {0}")]
    Kind(u8),
    /// A flag or byte that is to be zero is not.
    #[error("a reserved byte or flag of a frame is not zero")]
    Reserved,
    /// The tag is none.
    #[error("a job's tag is no tag")]
    Tag,
    /// The payload is no message of this protocol.
    #[error("a payload is no message of this protocol")]
    Message,
}

#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;
