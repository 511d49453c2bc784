//! The end of memcached's reply to a request ("Error strings", "Retrieval command", "Meta
//! Commands").
//!
//! A [`Boundary`] is given the bytes of a connection as they arrive and remembers how many of them
//! it has parsed, so a reply of many values is parsed once and not again with every packet.

use super::request::{number, words};

/// The shape of the reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One line.
    Line,
    /// Any number of `VALUE` blocks and `END`, or one line that names the error.
    Values,
    /// One line, or `VA` and a block of data.
    Meta,
    /// Any reply or none to a quiet request, and then the reply to the [`BARRIER`] behind it.
    Quiet,
}

/// Sent behind a quiet request: all bytes before the reply to `version` are the reply to the
/// request. Every memcached has the command, and no other reply begins in the same way.
pub const BARRIER: &[u8] = b"version\r\n";

/// Whether a reply is that to the [`BARRIER`], by its beginning. A memcached that has as many
/// connections as it may sends an error line instead.
pub fn is_barrier_reply(reply: &[u8]) -> bool {
    reply.starts_with(b"VERSION ")
}

/// The maximum length of a line of a reply, in bytes, with its end: a key, some numbers, and the
/// flags of meta commands fit many times.
const LINE_MAX: usize = 4_096;

/// The maximum length of a data block, in bytes. No memcached sends more.
const DATA_MAX: u64 = 1 << 30;

/// The last line of a reply with values.
const END: &[u8] = b"END\r\n";

/// A reply that is being received.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    shape: Shape,
    /// How many bytes are parsed.
    parsed: usize,
}

/// The lengths of a complete reply at the beginning of the input, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The reply.
    pub length: usize,
    /// The reply and the reply to the [`BARRIER`] behind it, if there was one.
    pub with_barrier: usize,
}

/// The bytes are not memcached's protocol, or not a reply to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a reply of memcached")]
pub struct MalformedReply;

impl Boundary {
    /// The boundary of a reply of this shape.
    pub const fn new(shape: Shape) -> Self {
        Self { shape, parsed: 0 }
    }

    /// Looks for the end of the reply. `input` begins with the reply and never shrinks from call to
    /// call. Returns none if the reply is incomplete.
    ///
    /// # Errors
    /// If no memcached would reply like this: close the connection.
    pub fn find(&mut self, input: &[u8]) -> Result<Option<Whole>, MalformedReply> {
        loop {
            let (rest, before) = (&input[self.parsed..], self.parsed);
            let Some(length) = block(self.shape, rest)? else { return Ok(None) };
            self.parsed += length;
            let is_last = match self.shape {
                Shape::Line | Shape::Meta => true,
                Shape::Values if rest.starts_with(b"VALUE ") => false,
                Shape::Values if rest.starts_with(b"END") || is_error(rest) => true,
                Shape::Values => return Err(MalformedReply),
                Shape::Quiet => is_barrier_reply(rest),
            };
            if is_last {
                let length = if self.shape == Shape::Quiet { before } else { self.parsed };
                return Ok(Some(Whole { length, with_barrier: self.parsed }));
            }
        }
    }

    /// The minimum length of the reply, by the lines that have arrived. Call it when [`Self::find`]
    /// has found no end.
    pub fn min_length(&self, input: &[u8]) -> usize {
        let shape = self.shape;
        let (line, data) = announced(shape, &input[self.parsed..]).ok().flatten().unwrap_or((0, 0));
        // A reply with values has a last line.
        let end = if shape == Shape::Values { END.len() } else { 0 };
        self.parsed + line + data + end
    }
}

/// The length of the line at the beginning of `rest` with its data block; none if they are
/// incomplete.
pub(super) fn block(shape: Shape, rest: &[u8]) -> Result<Option<usize>, MalformedReply> {
    let Some((line, data)) = announced(shape, rest)? else { return Ok(None) };
    match rest.get(..line + data) {
        None => Ok(None),
        Some(block) if block.ends_with(b"\r\n") => Ok(Some(line + data)),
        Some(_) => Err(MalformedReply),
    }
}

/// The length of the line at the beginning of `rest`, and of its data block with the block's end;
/// none if the line is incomplete.
fn announced(shape: Shape, rest: &[u8]) -> Result<Option<(usize, usize)>, MalformedReply> {
    let window = &rest[..rest.len().min(LINE_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() == LINE_MAX { Err(MalformedReply) } else { Ok(None) };
    };
    let line = rest[..end].strip_suffix(b"\r").ok_or(MalformedReply)?;
    // The index of the length among the words.
    let index = match shape {
        Shape::Values if line.starts_with(b"VALUE ") => 3,
        Shape::Meta | Shape::Quiet if line.starts_with(b"VA ") => 1,
        _ => return Ok(Some((end + 1, 0))),
    };
    let word = words(line).nth(index).ok_or(MalformedReply)?;
    // It fits: this is for machines with 64 bits.
    let data = number(word, DATA_MAX).ok_or(MalformedReply)? as usize;
    Ok(Some((end + 1, data + 2)))
}

/// Whether the reply is an error line.
fn is_error(reply: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|word| reply.starts_with(word))
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
