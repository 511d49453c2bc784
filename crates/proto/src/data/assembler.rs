//! Assembles frames of the data path from bytes as they arrive.
//!
//! A payload is copied once, from the bytes that came with other frames into memory of its own; and
//! not even once if it is long, because the reader of the socket may read the rest of it straight
//! to its place ([`Assembler::unfilled`]).

use super::{FrameError, Head, RequestHead};

/// Memory for a payload.
pub trait Payload: AsMut<[u8]> {
    /// So many bytes, of any value: the assembler writes all of them.
    fn with_length(length: usize) -> Self;
}

impl Payload for alloc::vec::Vec<u8> {
    fn with_length(length: usize) -> Self {
        alloc::vec![0; length]
    }
}

/// Takes bytes as they arrive and gives out frames with heads `H` and payloads `P`.
///
/// ```
/// use tidegate_proto::data::{AnswerHead, Assembler, ReplyHead, Stay};
/// let head = AnswerHead { ticket: 7, outcome: Ok(()), length: 2, stay: Stay::default() };
/// let bytes = [&head.to_bytes()[..], b"ab"].concat();
/// let mut assembler = Assembler::<ReplyHead, Vec<u8>>::new();
/// let (mut first, mut rest) = bytes.split_at(17);
/// assert_eq!(assembler.next(&mut first)?, None);
/// let frame = assembler.next(&mut rest)?;
/// assert_eq!(frame, Some((ReplyHead::Answer(head), b"ab".to_vec())));
/// # Ok::<(), tidegate_proto::data::FrameError>(())
/// ```
#[derive(Debug)]
pub struct Assembler<H, P> {
    /// The beginning of a head that has not arrived as a whole.
    bytes: [u8; RequestHead::LENGTH],
    held: usize,
    /// A frame whose payload has not arrived as a whole, and how much of it has.
    begun: Option<(H, P, usize)>,
    broken: Option<FrameError>,
}

impl<H, P> Default for Assembler<H, P> {
    fn default() -> Self {
        Self { bytes: [0; RequestHead::LENGTH], held: 0, begun: None, broken: None }
    }
}

impl<H: Head, P: Payload> Assembler<H, P> {
    /// One that has seen nothing.
    pub fn new() -> Self {
        const { assert!(H::LENGTH <= RequestHead::LENGTH) };
        Self::default()
    }

    /// The next whole frame, taken from the front of `input`; or none, and then all of `input` is
    /// taken.
    ///
    /// # Errors
    /// If the bytes are no frame; from then on every call gives the same error.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<(H, P)>, FrameError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let result = self.take(input);
        self.broken = result.as_ref().err().copied();
        result
    }

    fn take(&mut self, input: &mut &[u8]) -> Result<Option<(H, P)>, FrameError> {
        if self.begun.is_none() {
            let Some(head) = self.head(input)? else { return Ok(None) };
            let length = head.payload();
            let at_hand = length.min(input.len());
            let (front, rest) = input.split_at(at_hand);
            *input = rest;
            let mut payload = P::with_length(length);
            payload.as_mut()[..at_hand].copy_from_slice(front);
            self.begun = Some((head, payload, at_hand));
        } else {
            let unfilled = self.unfilled();
            let at_hand = unfilled.len().min(input.len());
            let (front, rest) = input.split_at(at_hand);
            *input = rest;
            unfilled[..at_hand].copy_from_slice(front);
            self.filled(at_hand);
        }
        let whole = self.begun.take_if(|(head, _, filled)| *filled == head.payload());
        Ok(whole.map(|(head, payload, _)| (head, payload)))
    }

    /// The next head, if all of it is here.
    fn head(&mut self, input: &mut &[u8]) -> Result<Option<H>, FrameError> {
        if self.held == 0
            && let Some((head, rest)) = input.split_at_checked(H::LENGTH)
        {
            *input = rest;
            return H::parse(head).map(Some);
        }
        let wanted = (H::LENGTH - self.held).min(input.len());
        let (front, rest) = input.split_at(wanted);
        *input = rest;
        self.bytes[self.held..self.held + wanted].copy_from_slice(front);
        self.held += wanted;
        if self.held < H::LENGTH {
            return Ok(None);
        }
        self.held = 0;
        H::parse(&self.bytes[..H::LENGTH]).map(Some)
    }

    /// The space for the rest of a payload that has begun; empty if none has. A reader that puts
    /// the next bytes of the connection there reports their number with [`Self::filled`].
    pub fn unfilled(&mut self) -> &mut [u8] {
        match &mut self.begun {
            Some((_, payload, filled)) => &mut payload.as_mut()[*filled..],
            None => &mut [],
        }
    }

    /// So many bytes were put into [`Self::unfilled`]. [`Self::next`] returns whether the frame is
    /// whole.
    ///
    /// # Panics
    /// If there was not so much room.
    pub fn filled(&mut self, count: usize) {
        assert!(count <= self.unfilled().len(), "more bytes than there was room for");
        if let Some((_, _, filled)) = &mut self.begun {
            *filled += count;
        }
    }
}
