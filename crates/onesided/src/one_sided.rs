//! One-sided access to the memory of a data node: its operations, and their guarantees.
//!
//! # Problem
//! The processor of a data node takes no part in reads and writes of its memory, so clients must do
//! with reads, writes, fetch-and-add, compare-and-swap, and the order in which these take effect.
//! The machines on top (the key-value client, the engine, the monitor) are to be the same over
//! shared memory, over a modelled NIC, in simulated time and over RDMA.
//!
//! # Model
//! A data node has one *region*, named by offsets from its beginning; a client has *buffers* of
//! [`BUFFER`] bytes. An operation moves bytes between the two, or changes a word of the region.
//!
//! - Operations of one connection begin in the order of their posts. A read has no other guarantee:
//!   a client that needs its result waits until it is done.
//! - Other connections see one connection's writes in the order of these writes. A word that it
//!   swaps or adds to is written, too.
//! - A word is eight bytes at a multiple of eight. It is never seen half-written. Everything longer
//!   can be, so it needs a checksum.
//! - [`FetchAdd`](Operation::FetchAdd) and [`CompareSwap`](Operation::CompareSwap) are atomic among
//!   connections only: a word that is changed by them is changed by nothing else, not by the node's
//!   own processor either (an RNIC need not agree with it).
//! - A region can be *lost*: its node has shut this client out, or goes on with other memory.
//!   Operations that were reported as done before were done while the region was the node's, and
//!   are in the memory that the node goes on with. Others may or may not have happened.
use alloc::vec::Vec;

use tidegate_model::Time;

/// Bytes of a buffer: a value of 4 KiB with its head, to a whole cache line.
pub const BUFFER: u32 = 4160;

/// Bytes of a word.
pub const WORD: u64 = 8;

/// One operation, and the name that its completion will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// The caller's name for it.
    pub id: u64,
    /// The operation.
    pub operation: Operation,
}

/// An operation on a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Copies bytes of the region into a buffer.
    Read {
        /// Where in the region they begin.
        from: u64,
        /// Where they go.
        into: BufferPosition,
        /// How many, from 1 to [`BUFFER`].
        length: u32,
    },
    /// Copies bytes of a buffer into the region.
    Write {
        /// Where they are.
        from: BufferPosition,
        /// Where in the region they go.
        to: u64,
        /// How many, from 1 to [`BUFFER`].
        length: u32,
    },
    /// Writes one word, which needs no buffer.
    WriteWord {
        /// The word.
        word: u64,
        /// Where, a multiple of [`WORD`].
        to: u64,
    },
    /// Adds to a word, around 2^64, and returns its former value.
    FetchAdd {
        /// Where, a multiple of [`WORD`].
        at: u64,
        /// How much. To subtract, add the two's complement.
        add: u64,
    },
    /// Replaces a word if it is the expected one, and returns its former value.
    CompareSwap {
        /// Where, a multiple of [`WORD`].
        at: u64,
        /// The word that must be there.
        expected: u64,
        /// The word that replaces it.
        new: u64,
    },
}

impl Operation {
    /// The part of the region that it touches: where it begins, and how many bytes.
    pub const fn touches(&self) -> (u64, u64) {
        match *self {
            Self::Read { from: at, length, .. } | Self::Write { to: at, length, .. } => {
                (at, length as u64)
            }
            Self::WriteWord { to: at, .. }
            | Self::FetchAdd { at, .. }
            | Self::CompareSwap { at, .. } => (at, WORD),
        }
    }

    /// The part of a buffer that it touches, if any, and how many bytes.
    pub const fn buffer_range(&self) -> Option<(BufferPosition, u32)> {
        match *self {
            Self::Read { into: position, length, .. }
            | Self::Write { from: position, length, .. } => Some((position, length)),
            _ => None,
        }
    }

    /// Whether a region of so many bytes and so many buffers have what it touches.
    ///
    /// # Errors
    /// Why not. A back end refuses it then, and nothing has happened.
    pub fn check(&self, region: u64, buffers: u32) -> Result<(), PostError> {
        let (at, length) = self.touches();
        let is_inside = at.checked_add(length).is_some_and(|end| end <= region);
        let is_word = !matches!(self, Self::Read { .. } | Self::Write { .. });
        if length == 0 || !is_inside {
            return Err(PostError::Outside);
        }
        if is_word && at % WORD != 0 {
            return Err(PostError::Unaligned);
        }
        match self.buffer_range() {
            Some((BufferPosition { buffer, offset }, length))
                if buffer >= buffers || offset.checked_add(length).is_none_or(|e| e > BUFFER) =>
            {
                Err(PostError::Outside)
            }
            _ => Ok(()),
        }
    }
}

/// A position in a client's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPosition {
    /// Which one, from 0.
    pub buffer: u32,
    /// How many bytes from its beginning.
    pub offset: u32,
}

impl BufferPosition {
    /// The beginning of a buffer.
    pub const fn start(buffer: u32) -> Self {
        Self { buffer, offset: 0 }
    }
}

/// One operation that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The name that it was posted with.
    pub id: u64,
    /// The former value of the word, for the two operations that return it; else 0.
    pub word: u64,
}

/// Why an operation was not taken. Nothing has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// As many are under way as the connection can hold: poll, then try again.
    #[error("too many operations are under way")]
    Full,
    /// It reaches beyond the region or the buffer.
    #[error("the operation reaches beyond the region or the buffer")]
    Outside,
    /// A word that is not at a multiple of eight.
    #[error("the word is not at a multiple of eight bytes")]
    Unaligned,
}

/// The region cannot be reached any more: the client was fenced off, or the connection broke.
/// Operations that were under way may or may not have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data node's memory cannot be reached any more")]
pub struct Lost;

/// A connection to the memory of a data node: one-sided access to one region.
///
/// A connection belongs to one thread at a time. No call waits.
pub trait RemoteMemory {
    /// Takes an operation. It begins with the next [`Self::flush`] at the latest.
    ///
    /// # Errors
    /// If it is not taken.
    fn post(&mut self, post: Post) -> Result<(), PostError>;

    /// Begins all that was posted (rings the doorbell).
    ///
    /// # Errors
    /// If the region is lost.
    fn flush(&mut self, now: Time) -> Result<(), Lost>;

    /// Appends the operations that are done by now. Operations that were posted before the last
    /// [`Self::flush`] come to their end without further calls of it.
    ///
    /// # Errors
    /// If the region is lost. Operations that it returns until then have happened in time.
    fn poll(&mut self, now: Time, done: &mut Vec<Done>) -> Result<(), Lost>;

    /// How many buffers there are.
    fn buffers(&self) -> u32;

    /// The bytes of a buffer, [`BUFFER`] of them.
    ///
    /// # Panics
    /// If there is no such buffer, or an operation on it is under way.
    fn buffer(&self, buffer: u32) -> &[u8];

    /// The same, to be changed.
    ///
    /// # Panics
    /// As [`Self::buffer`].
    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8];

    /// Bytes of the region.
    fn region(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reasons for which each operation is refused at this address.
    fn refused(at: u64, length: u32, position: BufferPosition) -> [Result<(), PostError>; 5] {
        [
            Operation::Read { from: at, into: position, length },
            Operation::Write { from: position, to: at, length },
            Operation::WriteWord { word: 7, to: at },
            Operation::FetchAdd { at, add: 1 },
            Operation::CompareSwap { at, expected: 0, new: 1 },
        ]
        .map(|operation| operation.check(REGION, BUFFERS))
    }

    const REGION: u64 = 16_384;
    const BUFFERS: u32 = 2;

    #[test]
    fn an_operation_stays_within_the_region_and_its_buffer() {
        use PostError::{Outside, Unaligned};
        let (ok, start) = (Ok(()), BufferPosition::start(1));
        let word = |outcome| [ok, ok, outcome, outcome, outcome];
        let bytes = |outcome| [outcome, outcome, ok, ok, ok];
        assert_eq!(refused(0, 1, start), word(ok));
        assert_eq!(refused(0, BUFFER, start), word(ok));
        assert_eq!(refused(REGION - 8, 8, start), word(ok));
        // Bytes may begin anywhere, words only at multiples of eight.
        for at in 1..8 {
            assert_eq!(refused(at, 8, start), word(Err(Unaligned)));
        }
        assert_eq!(refused(REGION - 4, 4, start), word(Err(Outside)));
        assert_eq!(refused(REGION, 1, start), [Err(Outside); 5]);
        assert_eq!(refused(u64::MAX - 7, 8, start), [Err(Outside); 5]);
        assert_eq!(refused(REGION - 8, 9, start), bytes(Err(Outside)));
        assert_eq!(refused(0, 0, start), bytes(Err(Outside)), "nothing is no operation");
        let at = |offset| BufferPosition { buffer: 1, offset };
        assert_eq!(refused(0, 16, at(BUFFER - 16)), bytes(ok));
        assert_eq!(refused(0, 17, at(BUFFER - 16)), bytes(Err(Outside)));
        assert_eq!(refused(0, 16, at(u32::MAX)), bytes(Err(Outside)));
        assert_eq!(refused(0, 16, BufferPosition::start(BUFFERS)), bytes(Err(Outside)));
    }

    #[test]
    fn an_operation_names_the_bytes_that_it_touches() {
        let position = BufferPosition { buffer: 1, offset: 64 };
        let read = Operation::Read { from: 24, into: position, length: 100 };
        let write = Operation::Write { from: position, to: 24, length: 100 };
        for operation in [read, write] {
            assert_eq!(
                (operation.touches(), operation.buffer_range()),
                ((24, 100), Some((position, 100)))
            );
        }
        let add = Operation::FetchAdd { at: 24, add: 1 };
        assert_eq!((add.touches(), add.buffer_range()), ((24, WORD), None));
    }
}
