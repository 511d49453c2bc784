//! Reading a connection of the data path: bytes from the kernel to whole frames.

use std::io::{self, Read};

use tidegate_proto::data::{Assembler, FrameError, Head, Payload};

use crate::buffer::Buffer;
use crate::stream::Stream;

/// Bytes read at a time: fifteen writes of 4 KiB, or a thousand reads.
const CHUNK: usize = 64 << 10;

/// A payload of which this much is still to come is read straight to its place.
const DIRECT_MIN: usize = 16 << 10;

impl Payload for Buffer {
    fn with_length(length: usize) -> Self {
        Self::with_length(length)
    }
}

/// A receiver of frames with heads `H` on a connection.
#[derive(Debug)]
pub struct Receiver<H> {
    assembler: Assembler<H, Buffer>,
    bytes: Box<[u8]>,
    /// The part of `bytes` that is read and not yet taken.
    rest: std::ops::Range<usize>,
}

/// The result of reading once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// There may be more.
    Some,
    /// That was all for now, or there was nothing.
    Dry,
}

impl<H: Head> Default for Receiver<H> {
    fn default() -> Self {
        Self { assembler: Assembler::new(), bytes: vec![0; CHUNK].into(), rest: 0..0 }
    }
}

impl<H: Head> Receiver<H> {
    /// One that has received nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The next whole frame of what was received.
    ///
    /// # Errors
    /// If it is no frame; from then on every call gives the same error.
    pub fn next_frame(&mut self) -> Result<Option<(H, Buffer)>, FrameError> {
        let mut input = &self.bytes[self.rest.clone()];
        let frame = self.assembler.next(&mut input);
        self.rest.start = self.rest.end - input.len();
        frame
    }

    /// Whether something was received of which [`Self::next_frame`] was not told to make frames.
    pub fn has_rest(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Reads once. To be called when [`Self::next_frame`] gives no more.
    ///
    /// # Errors
    /// If the connection is gone; `UnexpectedEof` if the peer closed it.
    pub fn receive(&mut self, stream: &mut Stream) -> io::Result<Received> {
        debug_assert!(self.rest.is_empty(), "frames that were received are not taken");
        let is_direct = self.assembler.unfilled().len() >= DIRECT_MIN;
        let unfilled = if is_direct { self.assembler.unfilled() } else { &mut self.bytes };
        let wanted = unfilled.len();
        let count = match stream.read(unfilled) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            // A stream does not block, so a signal does not interrupt it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Dry),
            Err(error) => return Err(error),
        };
        match is_direct {
            true => self.assembler.filled(count),
            false => self.rest = 0..count,
        }
        Ok(if count < wanted { Received::Dry } else { Received::Some })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Outgoing;
    use proptest::prelude::*;
    use tidegate_proto::data::{AnswerHead, ReplyHead, Stay};

    #[test]
    fn a_receiver_reports_whether_more_may_come_and_what_is_left() {
        let (ours, mut theirs) = Stream::pair().unwrap();
        let (mut outgoing, mut receiver) = (Outgoing::new(), Receiver::<ReplyHead>::new());
        let mut send = |count: usize| {
            for ticket in 0..count as u64 {
                outgoing.push(
                    &AnswerHead { ticket, outcome: Ok(()), length: 0, stay: Stay::default() }
                        .to_bytes(),
                );
            }
            while !outgoing.is_empty() {
                outgoing.flush(&ours).unwrap();
            }
        };
        // Less than fits: that was all for now. As much as fits: there may be more.
        send(2);
        assert_eq!(receiver.receive(&mut theirs).unwrap(), Received::Dry);
        assert!(receiver.has_rest() && receiver.next_frame().unwrap().is_some());
        assert!(receiver.has_rest() && receiver.next_frame().unwrap().is_some());
        assert!(!receiver.has_rest() && receiver.next_frame().unwrap().is_none());
        let head = AnswerHead { ticket: 0, outcome: Ok(()), length: 0, stay: Stay::default() }
            .to_bytes()
            .len();
        assert_eq!(CHUNK % head, 0, "so many heads fill the receiver");
        send(CHUNK / head);
        assert_eq!(receiver.receive(&mut theirs).unwrap(), Received::Some);
        while receiver.next_frame().unwrap().is_some() {}
        assert_eq!(receiver.receive(&mut theirs).unwrap(), Received::Dry, "there was nothing");
    }

    #[test]
    fn a_peer_that_left_without_reading_is_an_error_and_not_silence() {
        let (mut ours, theirs) = Stream::pair().unwrap();
        ours.send(&[io::IoSlice::new(b"unread")]).unwrap();
        drop(theirs);
        let error = Receiver::<ReplyHead>::new().receive(&mut ours).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn frames_of_any_length_arrive_whole_and_in_order(
            lengths in prop::collection::vec(
                prop_oneof![0usize..600, 4_000usize..5_000, 10_000usize..200_000],
                1..40,
            ),
        ) {
            let (ours, mut theirs) = Stream::pair().unwrap();
            let (mut outgoing, mut receiver) = (Outgoing::new(), Receiver::<ReplyHead>::new());
            for (ticket, length) in (0u64..).zip(&lengths) {
                let (outcome, length, stay) = (Ok(()), *length as u32, Stay::default());
                let head = AnswerHead { ticket, outcome, length, stay };
                outgoing.push(&head.to_bytes());
                outgoing.push_buffer(Buffer::from(&vec![ticket as u8; length as usize][..]));
            }
            let mut seen = 0;
            while seen < lengths.len() {
                outgoing.flush(&ours).unwrap();
                receiver.receive(&mut theirs).unwrap();
                while let Some((head, payload)) = receiver.next_frame().unwrap() {
                    let ReplyHead::Answer(head) = head else { panic!("{head:?}") };
                    prop_assert_eq!((head.ticket, payload.len()), (seen as u64, lengths[seen]));
                    prop_assert!(payload.iter().all(|byte| *byte == seen as u8));
                    seen += 1;
                }
            }
            prop_assert!(outgoing.is_empty() && !receiver.has_rest());
            drop(ours);
            let error = receiver.receive(&mut theirs).unwrap_err();
            prop_assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
