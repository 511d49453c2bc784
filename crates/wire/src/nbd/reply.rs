//! Headers of replies ("Simple reply message", "Structured reply chunk message"): the bytes before
//! a reply's payload.
//!
//! A structured reply has one chunk, which holds all of its payload.

use core::ops::Deref;

use super::admit::Refusal;
use super::constants::{BASE_ALLOCATION_ID, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk};

/// The longest header: of a chunk, with an offset behind it.
const HEADER_MAX: usize = 28;

/// The bytes of a reply before its payload.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHeader {
    bytes: [u8; HEADER_MAX],
    length: usize,
}

impl ReplyHeader {
    const EMPTY: Self = Self { bytes: [0; HEADER_MAX], length: 0 };

    fn simple(errno: u32, cookie: u64) -> Self {
        Self::EMPTY
            .with(SIMPLE_REPLY_MAGIC.to_be_bytes())
            .with(errno.to_be_bytes())
            .with(cookie.to_be_bytes())
    }

    /// `length` counts the bytes behind the chunk's own header.
    fn chunk(kind: u16, cookie: u64, length: usize) -> Self {
        Self::EMPTY
            .with(STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .with(chunk::DONE.to_be_bytes())
            .with(kind.to_be_bytes())
            .with(cookie.to_be_bytes())
            .with((length as u32).to_be_bytes())
    }

    fn with<const N: usize>(mut self, field: [u8; N]) -> Self {
        self.bytes[self.length..][..N].copy_from_slice(&field);
        self.length += N;
        self
    }
}

impl Deref for ReplyHeader {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A request without a payload in its reply has succeeded. Clients that have negotiated structured
/// replies accept the simple reply, too.
pub fn success(cookie: u64) -> ReplyHeader {
    ReplyHeader::simple(0, cookie)
}

/// A read has succeeded; its data, `length` bytes from `offset`, are the payload.
pub fn data(structured: bool, cookie: u64, offset: u64, length: usize) -> ReplyHeader {
    match (structured, length) {
        (false, _) => success(cookie),
        (true, 0) => ReplyHeader::chunk(chunk::NONE, cookie, 0),
        (true, _) => {
            ReplyHeader::chunk(chunk::OFFSET_DATA, cookie, 8 + length).with(offset.to_be_bytes())
        }
    }
}

/// A request has failed; the text, which may be empty, is the payload.
pub fn error(structured: bool, cookie: u64, refusal: Refusal) -> (ReplyHeader, &'static str) {
    let Refusal { errno, message } = refusal;
    if !structured {
        return (ReplyHeader::simple(errno as u32, cookie), "");
    }
    let header = ReplyHeader::chunk(chunk::ERROR, cookie, 6 + message.len())
        .with((errno as u32).to_be_bytes())
        .with((message.len() as u16).to_be_bytes());
    (header, message)
}

/// A `BLOCK_STATUS` has succeeded; so many [`extent`]s, at least one, are the payload.
pub fn block_status(cookie: u64, extents: usize) -> ReplyHeader {
    ReplyHeader::chunk(chunk::BLOCK_STATUS, cookie, 4 + 8 * extents)
        .with(BASE_ALLOCATION_ID.to_be_bytes())
}

/// One extent of a `BLOCK_STATUS` reply: its length in bytes, and its status flags.
pub fn extent(length: u32, flags: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes[4..].copy_from_slice(&flags.to_be_bytes());
    bytes
}
