//! The protocol's numbers. All are big-endian on the wire.

use tidegate_fabric::service::Fault;

/// The first words of a server, "NBDMAGIC".
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Before every option, "IHAVEOPT"; also the second word of a newstyle server.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Before every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Before every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Before every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Before every chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The most data that one request may carry or ask for, in bytes. The protocol lets clients assume
/// this size of any server.
pub const REQUEST_MAX: u32 = 32 << 20;
/// The longest option, in bytes.
pub const OPTION_MAX: u32 = 64 << 10;
/// The longest name, in bytes.
pub const NAME_MAX: u32 = 4096;
/// The length of a request's head.
pub const REQUEST_LENGTH: usize = 28;

/// The one metadata context.
pub const ALLOCATION: &str = "base:allocation";
/// The identifier of the context in replies. Any number would do, except zero, which old servers
/// send in lists.
pub const ALLOCATION_ID: u32 = 1;

/// Flags of the handshake, the same bits from both sides.
pub mod hello {
    /// The fixed newstyle: unknown options get an answer.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zeros after the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// Options that clients ask for.
pub mod option {
    /// Chooses an export, in the old way: without a proper answer.
    pub const EXPORT_NAME: u32 = 1;
    /// Leaves.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Goes on encrypted.
    pub const STARTTLS: u32 = 5;
    /// Asks about an export.
    pub const INFO: u32 = 6;
    /// Chooses an export.
    pub const GO: u32 = 7;
    /// Wants structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Asks which metadata there is.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Chooses metadata for block status.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod answer {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// A metadata context's name.
    pub const META_CONTEXT: u32 = 4;
    /// Not known here.
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
    /// Not allowed.
    pub const POLICY: u32 = 1 << 31 | 2;
    /// Not well formed.
    pub const INVALID: u32 = 1 << 31 | 3;
    /// Not before the connection is encrypted.
    pub const TLS_REQUIRED: u32 = 1 << 31 | 5;
    /// No such export.
    pub const UNKNOWN: u32 = 1 << 31 | 6;
    /// A name is too long.
    pub const TOO_BIG: u32 = 1 << 31 | 9;
}

/// Facts about an export.
pub mod info {
    /// Its size and flags.
    pub const EXPORT: u16 = 0;
    /// Its canonical name.
    pub const NAME: u16 = 1;
    /// A description for people.
    pub const DESCRIPTION: u16 = 2;
    /// The least, best and largest requests.
    pub const BLOCK_SIZE: u16 = 3;
}

/// The features of an export, as transmission flags.
pub mod export {
    /// The other flags mean something.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// No writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Knows `FLUSH`.
    pub const FLUSH: u16 = 1 << 2;
    /// Knows [`super::flag::FUA`].
    pub const FUA: u16 = 1 << 3;
    /// Knows `TRIM`.
    pub const TRIM: u16 = 1 << 5;
    /// Knows `WRITE_ZEROES`.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// Knows [`super::flag::DF`].
    pub const DF: u16 = 1 << 7;
    /// Several connections see the same, also with regard to flushes.
    pub const MULTI_CONN: u16 = 1 << 8;
    /// Knows `CACHE`.
    pub const CACHE: u16 = 1 << 10;
}

/// Commands.
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes what follows the head.
    pub const WRITE: u16 = 1;
    /// Leaves.
    pub const DISC: u16 = 2;
    /// Makes all answered writes durable.
    pub const FLUSH: u16 = 3;
    /// The range is not needed any more.
    pub const TRIM: u16 = 4;
    /// The range will be read soon.
    pub const CACHE: u16 = 5;
    /// The range becomes zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Asks which parts of the range are holes.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod flag {
    /// Durable before the answer.
    pub const FUA: u16 = 1 << 0;
    /// Zeros keep their space.
    pub const NO_HOLE: u16 = 1 << 1;
    /// One piece of data per answer.
    pub const DF: u16 = 1 << 2;
    /// One extent per answer.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeros only if that is faster than writing them. Not announced, so refused.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of structured replies.
pub mod chunk {
    /// Flag: the last of its reply.
    pub const DONE: u16 = 1;
    /// Nothing more.
    pub const NONE: u16 = 0;
    /// An offset of 8 bytes, and data.
    pub const OFFSET_DATA: u16 = 1;
    /// A context of 4 bytes, and extents: length 4, flags 4.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error of 4 bytes, a length of 2, and a message.
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// Errors as the protocol numbers them, wherever the server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not allowed.
    Perm = 1,
    /// Broken or away.
    Io = 5,
    /// Makes no sense.
    Invalid = 22,
    /// Full, or beyond the end.
    NoSpace = 28,
    /// Too large to answer in one piece.
    Overflow = 75,
    /// Cannot be done.
    Unsupported = 95,
    /// The server is ending.
    Shutdown = 108,
}

impl Errno {
    /// The error that says this fault.
    pub const fn of(fault: Fault) -> Self {
        match fault {
            Fault::Invalid => Self::Invalid,
            Fault::ReadOnly => Self::Perm,
            Fault::NoSpace => Self::NoSpace,
            Fault::Unsupported => Self::Unsupported,
            Fault::Io => Self::Io,
            Fault::Ending => Self::Shutdown,
        }
    }
}

/// The text about a fault for clients that understand messages.
pub const fn message(fault: Fault) -> &'static str {
    match fault {
        Fault::Invalid => "the node finds that the request makes no sense",
        Fault::ReadOnly => "the store may not be written",
        Fault::NoSpace => "the store is full",
        Fault::Unsupported => "the store cannot do this",
        Fault::Io => "a node that holds this part is away, or its store is broken",
        Fault::Ending => "the gateway or a node is ending",
    }
}
