//! The protocol's numbers ("Values" in `doc/proto.md`). All are big-endian on the wire.

/// `NBDMAGIC`: the server's first eight bytes.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: begins every option; also the next eight bytes of a newstyle server.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Begins every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Begins every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Begins every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Begins every chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The maximum payload of a request or of its reply, in bytes. The protocol lets clients assume
/// this size of any server.
pub const PAYLOAD_MAX: u32 = 32 << 20;
/// The maximum length of an option's data, in bytes.
pub const OPTION_MAX: u32 = 64 << 10;
/// The maximum length of an export's name or of a metadata context's name, in bytes.
pub const NAME_MAX: u32 = 4096;
/// The length of a request's header, in bytes.
pub const REQUEST_HEADER_LENGTH: usize = 28;

/// The metadata context that is supported.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The identifier of the context in replies. Any number would do, except zero, which old servers
/// send in lists.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Handshake flags (`NBD_FLAG_`, `NBD_FLAG_C_`): server and client use the same bits.
pub mod handshake_flag {
    /// Fixed newstyle: the server replies to unknown options.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No 124 zero bytes behind the reply to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 2;
}

/// Option types (`NBD_OPT_`).
pub mod option {
    /// Selects an export; the reply cannot be an error.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the negotiation.
    pub const ABORT: u32 = 2;
    /// Lists the exports.
    pub const LIST: u32 = 3;
    /// Begins TLS.
    pub const STARTTLS: u32 = 5;
    /// Asks for information on an export.
    pub const INFO: u32 = 6;
    /// Selects an export.
    pub const GO: u32 = 7;
    /// Negotiates structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Lists metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Selects metadata contexts for `BLOCK_STATUS`.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Option reply types (`NBD_REP_`).
pub mod option_reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// An export's name.
    pub const SERVER: u32 = 2;
    /// Information on an export.
    pub const INFO: u32 = 3;
    /// A metadata context's name.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown.
    pub const UNSUPPORTED: u32 = 1 << 31 | 1;
    /// The server's policy forbids the option.
    pub const POLICY: u32 = 1 << 31 | 2;
    /// The option's data is malformed.
    pub const INVALID: u32 = 1 << 31 | 3;
    /// The server requires TLS first.
    pub const TLS_REQUIRED: u32 = 1 << 31 | 5;
    /// There is no such export.
    pub const UNKNOWN: u32 = 1 << 31 | 6;
    /// A name is too long.
    pub const TOO_BIG: u32 = 1 << 31 | 9;
}

/// Information types (`NBD_INFO_`): facts about an export.
pub mod info {
    /// The export's size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's canonical name.
    pub const NAME: u16 = 1;
    /// The export's description, for people.
    pub const DESCRIPTION: u16 = 2;
    /// The export's minimum, preferred and maximum block sizes.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags (`NBD_FLAG_`): the features of an export.
pub mod transmission_flag {
    /// The other flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// The export is read-only.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Supports `FLUSH`.
    pub const FLUSH: u16 = 1 << 2;
    /// Supports [`super::command_flag::FUA`].
    pub const FUA: u16 = 1 << 3;
    /// Supports `TRIM`.
    pub const TRIM: u16 = 1 << 5;
    /// Supports `WRITE_ZEROES`.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// Supports [`super::command_flag::DF`].
    pub const DF: u16 = 1 << 7;
    /// All connections see the same data, and a flush covers the writes of all of them.
    pub const MULTI_CONN: u16 = 1 << 8;
    /// Supports `CACHE`.
    pub const CACHE: u16 = 1 << 10;
}

/// Request types (`NBD_CMD_`).
pub mod command {
    /// Reads.
    pub const READ: u16 = 0;
    /// Writes the payload that follows the header.
    pub const WRITE: u16 = 1;
    /// Disconnects.
    pub const DISC: u16 = 2;
    /// Makes all acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// The data of the range may be discarded.
    pub const TRIM: u16 = 4;
    /// The range will be read soon.
    pub const CACHE: u16 = 5;
    /// Writes zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Asks which extents of the range are allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags (`NBD_CMD_FLAG_`).
pub mod command_flag {
    /// Force unit access: durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// The zeros stay allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// "Don't fragment": the data in one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent in the reply.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zeros only if that is faster than a write. Not offered, so refused.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of structured replies (`NBD_REPLY_FLAG_`, `NBD_REPLY_TYPE_`).
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1;
    /// Type: no payload.
    pub const NONE: u16 = 0;
    /// Type: an offset of 8 bytes, and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Type: a context's identifier of 4 bytes, and extents: length 4, flags 4.
    pub const BLOCK_STATUS: u16 = 5;
    /// Type: an error of 4 bytes, a length of 2, and a message.
    pub const ERROR: u16 = 1 << 15 | 1;
}

/// Error values (`NBD_E`): the protocol's numbers, whatever the server's system calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted.
    Perm = 1,
    /// Input or output failed.
    Io = 5,
    /// The request is invalid.
    Invalid = 22,
    /// No space left, or beyond the end of the export.
    NoSpace = 28,
    /// Too much data for one chunk.
    Overflow = 75,
    /// Not supported.
    Unsupported = 95,
    /// The server is shutting down.
    Shutdown = 108,
}
