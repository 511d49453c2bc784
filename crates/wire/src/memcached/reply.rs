//! Where memcached's reply to a request ends.
//!
//! A [`Boundary`] looks at the bytes of a connection as they come in and remembers how far it has
//! understood, so a reply of many values is looked at once and not again with every packet.

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
    /// Any reply or none to a quiet request, and then the answer to the `version` that was sent
    /// behind it (see [`BARRIER`]).
    Quiet,
}

/// Sent behind a quiet request: whatever the server says before its version belongs to the request.
/// Every memcached has the command, and no other reply begins in the same way.
pub const BARRIER: &[u8] = b"version\r\n";

/// The longest line of a reply, in bytes, with its end: a key, some numbers, and the flags of meta
/// commands fit many times.
const LINE_MAX: usize = 4_096;

/// The longest block of data that a server may announce, in bytes. More is no memcached.
const DATA_MAX: u64 = 1 << 30;

/// The last line of a reply with values.
const END: &[u8] = b"END\r\n";

/// A reply that is being received.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    shape: Shape,
    /// How many bytes are understood.
    understood: usize,
}

/// A whole reply at the beginning of the input, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The reply.
    pub length: usize,
    /// The reply and the answer to the barrier behind it, if there was one.
    pub with_barrier: usize,
}

/// The other side's bytes are not the memcached protocol, or do not answer the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("not a reply of memcached")
    }
}

impl core::error::Error for Broken {}

impl Boundary {
    /// For a reply of this shape.
    pub const fn new(shape: Shape) -> Self {
        Self { shape, understood: 0 }
    }

    /// Looks for the end. `input` begins where the reply does and never shrinks from call to call.
    /// None if there is more to come.
    ///
    /// # Errors
    /// If no memcached would answer like this. The connection is of no use then.
    pub fn find(&mut self, input: &[u8]) -> Result<Option<Whole>, Broken> {
        loop {
            let (rest, before) = (&input[self.understood..], self.understood);
            let Some(length) = block(self.shape, rest)? else { return Ok(None) };
            self.understood += length;
            let is_last = match self.shape {
                Shape::Line | Shape::Meta => true,
                Shape::Values if rest.starts_with(b"VALUE ") => false,
                Shape::Values if rest.starts_with(b"END") || is_error(rest) => true,
                Shape::Values => return Err(Broken),
                Shape::Quiet => rest.starts_with(b"VERSION "),
            };
            if is_last {
                let length = if self.shape == Shape::Quiet { before } else { self.understood };
                return Ok(Some(Whole { length, with_barrier: self.understood }));
            }
        }
    }

    /// How long the reply is at least, as far as the lines say that have come of it. To be asked
    /// when [`Self::find`] has found no end.
    pub fn least(&self, input: &[u8]) -> usize {
        let shape = self.shape;
        let (line, data) =
            announced(shape, &input[self.understood..]).ok().flatten().unwrap_or((0, 0));
        // A reply with values has a last line.
        let end = if shape == Shape::Values { END.len() } else { 0 };
        self.understood + line + data + end
    }
}

/// The length of the line at the beginning of `rest`, with the data that it announces; none if they
/// are not all there.
pub(super) fn block(shape: Shape, rest: &[u8]) -> Result<Option<usize>, Broken> {
    let Some((line, data)) = announced(shape, rest)? else { return Ok(None) };
    match rest.get(..line + data) {
        None => Ok(None),
        Some(block) if block.ends_with(b"\r\n") => Ok(Some(line + data)),
        Some(_) => Err(Broken),
    }
}

/// The length of the line at the beginning of `rest`, and of the data that it announces with their
/// end; none if the line is not all there.
fn announced(shape: Shape, rest: &[u8]) -> Result<Option<(usize, usize)>, Broken> {
    let window = &rest[..rest.len().min(LINE_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() == LINE_MAX { Err(Broken) } else { Ok(None) };
    };
    let line = rest[..end].strip_suffix(b"\r").ok_or(Broken)?;
    // The index of the length among the words.
    let index = match shape {
        Shape::Values if line.starts_with(b"VALUE ") => 3,
        Shape::Meta | Shape::Quiet if line.starts_with(b"VA ") => 1,
        _ => return Ok(Some((end + 1, 0))),
    };
    let word = words(line).nth(index).ok_or(Broken)?;
    // It fits: this is for machines with 64 bits.
    let data = number(word, DATA_MAX).ok_or(Broken)? as usize;
    Ok(Some((end + 1, data + 2)))
}

/// Whether this reply says that something went wrong.
fn is_error(reply: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"].iter().any(|word| reply.starts_with(word))
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
