//! Heads and payloads that wait to be written on a connection.
//!
//! A reply is a small head and perhaps a large payload. Heads are copied behind each other into one
//! vector; payloads stay where they are and are named to the kernel in between. So a worker answers
//! a batch with one system call and copies no payload. Once everything is written the vector is
//! empty and keeps its memory.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use super::Stream;
use crate::buffer::Buffer;

/// Pieces per system call: thirty-two replies with payload. The kernel's maximum is 1024, and a
/// socket's buffer is full long before.
const SEGMENTS_MAX: usize = 64;

/// A payload up to this many bytes is copied to the heads: naming it costs as much.
const COPY_MAX: usize = 512;

/// The pieces of a reply with payload: its head and the payload.
const REPLY: usize = 2;

/// A batch of at most this many pieces is small. Of a larger one an additional record and system
/// call cost more than an earlier first reply gives: measured with blocks of 4 KiB.
const SMALL_BATCH: usize = 4 * REPLY;

/// Bytes that are written at once, about: a peer that reads as fast as we write must not keep its
/// worker from other peers. As many as a Unix socket's buffer holds. Chosen by hand.
const FLUSH_MAX: usize = 256 << 10;

/// Bytes of heads that are written and still in memory while others wait behind them.
const LITTER_MAX: usize = 64 << 10;

/// Heads and payloads that wait to be written on a connection, in order.
#[derive(Debug, Default)]
pub struct Outgoing {
    heads: Vec<u8>,
    segments: VecDeque<Segment>,
    /// Bytes of the first piece that are written.
    sent: usize,
    /// Bytes at the front of `heads` that belong to no piece any more.
    litter: usize,
    length: usize,
}

#[derive(Debug)]
enum Segment {
    /// So many bytes of the heads.
    Heads(usize),
    Payload(Buffer),
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Self::Heads(length) => *length,
            Self::Payload(buffer) => buffer.len(),
        }
    }
}

impl Outgoing {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends a copy of `bytes`.
    pub fn push(&mut self, bytes: &[u8]) {
        self.heads.extend_from_slice(bytes);
        self.length += bytes.len();
        match self.segments.back_mut() {
            Some(Segment::Heads(length)) => *length += bytes.len(),
            _ if bytes.is_empty() => {}
            _ => self.segments.push_back(Segment::Heads(bytes.len())),
        }
    }

    /// Appends a payload, and takes it.
    pub fn push_buffer(&mut self, buffer: Buffer) {
        if buffer.len() <= COPY_MAX {
            return self.push(&buffer);
        }
        self.length += buffer.len();
        self.segments.push_back(Segment::Payload(buffer));
    }

    /// Writes as much as the kernel takes now, up to [`FLUSH_MAX`] bytes and one system call more.
    /// Returns whether that was everything; if not, call again when the stream is writable.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        self.write(stream, SEGMENTS_MAX)
    }

    /// As [`Outgoing::flush`]; `is_awaited` if the peer has nothing else in flight. Then the first
    /// reply of a small batch is written alone if the connection is encrypted, and twice as many
    /// each time after it. The peer decrypts the first ones while we encrypt the others. Otherwise
    /// it would wait for the last one, and we would then wait for the peer.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn flush_early(&mut self, stream: &Stream, is_awaited: bool) -> io::Result<bool> {
        let is_small = self.segments.len() <= SMALL_BATCH;
        let is_early = is_awaited && is_small && stream.tls().is_some();
        self.write(stream, if is_early { REPLY } else { SEGMENTS_MAX })
    }

    /// Writes at most `most` pieces with the first system call, and twice as many with each next.
    fn write(&mut self, stream: &Stream, mut most: usize) -> io::Result<bool> {
        let mut written = 0;
        if self.is_empty() {
            stream.flush();
        }
        while !self.is_empty() {
            if written >= FLUSH_MAX {
                return Ok(false);
            }
            match self.send(stream, most) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.advance(count);
                    written += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            most = SEGMENTS_MAX.min(2 * most);
        }
        Ok(true)
    }

    /// Writes at most so many pieces.
    fn send(&self, stream: &Stream, most: usize) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); SEGMENTS_MAX];
        let (mut count, mut sent, mut head) = (0, self.sent, self.litter);
        for (slice, segment) in slices.iter_mut().zip(&self.segments).take(most) {
            let bytes = match segment {
                Segment::Heads(length) => {
                    head += length;
                    &self.heads[head - length..head]
                }
                Segment::Payload(buffer) => &buffer[..],
            };
            *slice = IoSlice::new(&bytes[sent..]);
            sent = 0;
            count += 1;
        }
        stream.send(&slices[..count])
    }

    fn advance(&mut self, count: usize) {
        self.length -= count;
        self.sent += count;
        while let Some(length) = self.segments.front().map(Segment::len).filter(|l| *l <= self.sent)
        {
            self.sent -= length;
            if let Some(Segment::Heads(length)) = self.segments.pop_front() {
                self.litter += length;
            }
        }
        if self.is_empty() {
            self.heads.clear();
            self.litter = 0;
        } else if self.litter > LITTER_MAX {
            self.heads.drain(..self.litter);
            self.litter = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn everything_arrives_once_and_in_order(
            segments in prop::collection::vec((any::<bool>(), 0usize..40_000, any::<u8>()), 0..60),
        ) {
            let (ours, mut theirs) = Stream::pair().unwrap();
            let mut outgoing = Outgoing::new();
            let (mut expected, mut arrived) = (Vec::new(), Vec::new());
            let mut segment = vec![0; 70_000];
            let mut receive = |arrived: &mut Vec<u8>| {
                if let Ok(count) = theirs.read(&mut segment) {
                    arrived.extend_from_slice(&segment[..count]);
                }
            };
            for (round, (is_head, length, value)) in segments.into_iter().enumerate() {
                let mut bytes = vec![value; length];
                if let Some(first) = bytes.first_mut() {
                    *first = round as u8;
                }
                expected.extend_from_slice(&bytes);
                match is_head {
                    true => outgoing.push(&bytes),
                    false => outgoing.push_buffer(Buffer::from(&bytes[..])),
                }
                if round % 3 == 0 {
                    outgoing.flush(&ours).unwrap();
                }
                if round % 5 == 0 {
                    receive(&mut arrived);
                }
            }
            while !outgoing.flush(&ours).unwrap() {
                receive(&mut arrived);
            }
            while arrived.len() < expected.len() {
                receive(&mut arrived);
            }
            prop_assert!(arrived == expected);
            prop_assert_eq!(outgoing.len(), 0);
            prop_assert!(outgoing.heads.is_empty() && outgoing.segments.is_empty());
        }
    }

    #[test]
    fn a_peer_that_left_is_an_error() {
        let (ours, theirs) = Stream::pair().unwrap();
        drop(theirs);
        let mut outgoing = Outgoing::new();
        outgoing.push(b"x");
        assert!(outgoing.flush(&ours).is_err());
    }
}
