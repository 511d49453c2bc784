//! Frames: four bytes of length, little-endian, then that many bytes of postcard.
//!
//! Messages between daemons of a cluster grow with the tenants of the policy, up to some times the
//! length of a frame. Such a message comes in pages: frames of which all but the last
//! have the highest bit of their length set, and which are its bytes one after the other
//! ([`encode_pages`], [`Decoder::of_pages`]). One that fits a frame is one. Stages, operators and
//! unidentified connections are read in single frames only.
//!
//! Example: a plan of 60,000 tenants with long names has 4,390,000 bytes: a page of 4 MiB and one
//! with the rest.
//!
//! The length is checked before anything is allocated, a message must fill its frame exactly, and a
//! decoder that has seen one bad frame refuses all that follow: after a wrong length nothing on the
//! connection can be trusted.

use alloc::vec::Vec;
use core::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest frame, without its length. A policy of ten thousand rules takes a third of it.
pub const FRAME_MAX: usize = 4 << 20;

/// The longest message that comes in pages, in bytes: several times the plan, policy or counts of
/// as many tenants as a policy may have. Chosen by hand.
pub const MESSAGE_MAX: usize = 64 << 20;

/// In the length of a frame: the message goes on in the next one.
const MORE: u32 = 1 << 31;

/// Bytes of the length in front of a frame.
const LENGTH: usize = 4;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The length in the frame's header exceeds [`FRAME_MAX`].
    #[error("a frame of {length} bytes is over the maximum of {FRAME_MAX}")]
    TooLong {
        /// The length in its header, in bytes.
        length: usize,
    },
    /// The pages of a message are longer together than any message may be.
    #[error("a message in pages is over the maximum of {MESSAGE_MAX} bytes")]
    TooManyPages,
    /// The frame's bytes are not the message that was expected.
    #[error("the frame is not a message of this protocol")]
    Malformed,
    /// The frame goes on after the message.
    #[error("{bytes} bytes follow the message in its frame")]
    Trailing {
        /// By how many bytes.
        bytes: usize,
    },
}

/// A message too large to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {length} bytes is over the maximum of {maximum}")]
pub struct TooLarge {
    /// Its length in bytes.
    pub length: usize,
    /// The largest length that is accepted, in bytes.
    pub maximum: usize,
}

/// Appends `message` as one frame to `out`.
///
/// # Errors
/// If it is longer than [`FRAME_MAX`]; `out` is then as it was.
pub fn encode<M: Serialize>(message: &M, out: &mut Vec<u8>) -> Result<(), TooLarge> {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH]);
    let written = postcard::to_extend(message, Tail(out)).is_ok();
    let length = out.len() - start - LENGTH;
    if !written || length > FRAME_MAX {
        out.truncate(start);
        return Err(TooLarge { length, maximum: FRAME_MAX });
    }
    out[start..start + LENGTH].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

/// Appends `message` to `out`, as one frame if it fits, else in pages.
///
/// # Errors
/// If it is longer than [`MESSAGE_MAX`]; `out` is then as it was.
pub fn encode_pages<M: Serialize>(message: &M, out: &mut Vec<u8>) -> Result<(), TooLarge> {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH]);
    let written = postcard::to_extend(message, Tail(out)).is_ok();
    let length = out.len() - start - LENGTH;
    if !written || length > MESSAGE_MAX {
        out.truncate(start);
        return Err(TooLarge { length, maximum: MESSAGE_MAX });
    }
    if length <= FRAME_MAX {
        out[start..start + LENGTH].copy_from_slice(&(length as u32).to_le_bytes());
        return Ok(());
    }
    let body = out.split_off(start + LENGTH);
    out.truncate(start);
    let mut pages = body.chunks(FRAME_MAX).peekable();
    while let Some(page) = pages.next() {
        let more = if pages.peek().is_some() { MORE } else { 0 };
        out.extend_from_slice(&(page.len() as u32 | more).to_le_bytes());
        out.extend_from_slice(page);
    }
    Ok(())
}

/// Lets postcard append to a vector that it does not own.
struct Tail<'a>(&'a mut Vec<u8>);

impl Extend<u8> for Tail<'_> {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0.extend(bytes);
    }
}

/// Takes bytes as they arrive and gives out whole messages.
///
/// ```
/// use tidegate_proto::codec::{encode, Decoder};
/// use tidegate_proto::message::Hello;
/// let mut bytes = Vec::new();
/// encode(&Hello::Operator { version: 1 }, &mut bytes)?;
/// let mut decoder = Decoder::<Hello>::new();
/// decoder.extend(&bytes[..3]);
/// assert_eq!(decoder.next_message()?, None);
/// decoder.extend(&bytes[3..]);
/// assert_eq!(decoder.next_message()?, Some(Hello::Operator { version: 1 }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Decoder<M> {
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that are already given out.
    used: usize,
    /// The pages so far of a message that goes on; none where messages are single frames.
    pages: Option<Vec<u8>>,
    broken: Option<DecodeError>,
    message: PhantomData<fn() -> M>,
}

impl<M> Default for Decoder<M> {
    fn default() -> Self {
        Self { buffer: Vec::new(), used: 0, pages: None, broken: None, message: PhantomData }
    }
}

impl<M: DeserializeOwned> Decoder<M> {
    /// A decoder that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A decoder that has seen nothing, of messages that may come in pages.
    pub fn of_pages() -> Self {
        Self { pages: Some(Vec::new()), ..Self::default() }
    }

    /// Takes in bytes from the connection.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.used);
        self.used = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message, or none until more bytes arrive.
    ///
    /// # Errors
    /// If the bytes are no message; from then on every call gives the same error.
    pub fn next_message(&mut self) -> Result<Option<M>, DecodeError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let result = self.take();
        self.broken = result.as_ref().err().copied();
        result
    }

    fn take(&mut self) -> Result<Option<M>, DecodeError> {
        loop {
            let rest = &self.buffer[self.used..];
            let Some((head, rest)) = rest.split_first_chunk::<LENGTH>() else { return Ok(None) };
            let head = u32::from_le_bytes(*head);
            let goes_on = self.pages.is_some() && head & MORE != 0;
            let length = if goes_on { head & !MORE } else { head } as usize;
            if length > FRAME_MAX {
                return Err(DecodeError::TooLong { length });
            }
            let Some(frame) = rest.get(..length) else { return Ok(None) };
            self.used += LENGTH + length;
            match &mut self.pages {
                Some(pages) if goes_on || !pages.is_empty() => {
                    // Empty pages are refused, so the number of pages of a message is bounded.
                    if frame.is_empty() {
                        return Err(DecodeError::Malformed);
                    }
                    if pages.len() + length > MESSAGE_MAX {
                        return Err(DecodeError::TooManyPages);
                    }
                    pages.extend_from_slice(frame);
                    if !goes_on {
                        return message(&core::mem::take(pages)).map(Some);
                    }
                }
                _ => return message(frame).map(Some),
            }
        }
    }

    /// Bytes taken in and not yet given out. Goes on with another message type from here: the first
    /// message of a connection decides the type of the next ones.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.buffer.split_off(self.used)
    }
}

fn message<M: DeserializeOwned>(bytes: &[u8]) -> Result<M, DecodeError> {
    let (message, trailing) =
        postcard::take_from_bytes(bytes).map_err(|_| DecodeError::Malformed)?;
    match trailing {
        [] => Ok(message),
        _ => Err(DecodeError::Trailing { bytes: trailing.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{
        ChannelReport, FromStage, GateReport, Held, HeldBucket, Hello, OperatorRequest, Reply,
        Rule, StageInfo, StageReport, ToStage, VERSION,
    };
    use alloc::string::{String, ToString};
    use alloc::vec;
    use proptest::prelude::*;
    use tidegate_algo::concurrent::histogram::{BucketCounts, BucketIndex};
    use tidegate_model::gate::{Throughput, Unit};
    use tidegate_model::{Span, StageId};

    fn bytes<M: Serialize>(message: &M) -> Vec<u8> {
        let mut out = Vec::new();
        encode(message, &mut out).unwrap();
        out
    }

    #[test]
    fn golden_frames_of_version_one() {
        assert_eq!(VERSION, 10, "a new version needs new golden frames beside these");
        let hello = Hello::Operator { version: 1 };
        assert_eq!(bytes(&hello), [2, 0, 0, 0, 1, 1]);
        let info = StageInfo {
            stage: StageId(300),
            tenant: String::from("kv"),
            pid: 7,
            ..StageInfo::default()
        };
        let golden = [13, 0, 0, 0, 0, 1, 0xac, 2, 2, b'k', b'v', 7, 0, 0, 0, 0];
        let hello = Hello::Stage { version: 1, info };
        let encoded = bytes(&hello);
        assert_eq!(encoded[4..], golden[4..], "{encoded:?}");
        // A hello of an earlier version has no end that it knows nothing of.
        let mut decoder = Decoder::<Hello>::new();
        decoder.extend(&encoded);
        assert_eq!(decoder.next_message(), Ok(Some(hello)));
        assert_eq!(bytes(&ToStage::Collect { round: 5, detail: true }), [3, 0, 0, 0, 4, 5, 1]);
        assert_eq!(bytes(&FromStage::Disconnect), [1, 0, 0, 0, 3]);
        assert_eq!(bytes(&Rule::CLEAR), [2, 0, 0, 0, 0, 4]);
        assert_eq!(bytes(&OperatorRequest::Status), [1, 0, 0, 0, 1]);
        let error = Reply::Error { code: 4, message: String::from("no") };
        assert_eq!(bytes(&error), [5, 0, 0, 0, 1, 4, 2, b'n', b'o']);
    }

    #[test]
    fn golden_frames_of_version_four() {
        let rate = |per_second| Throughput::new(Unit::Bytes, per_second);
        let (gate, held) = (String::from("kv"), Span(300));
        let bucket = HeldBucket { gate, rate: rate(9), safe: rate(5), held };
        let held = Held { buckets: vec![bucket], lease: Span(3), ..Held::default() };
        let info = StageInfo { tenant: String::from("kv"), held, ..StageInfo::default() };
        let hello = Hello::Stage { version: 4, info };
        let mut golden = vec![0, 4, 0, 2, b'k', b'v', 0, 0, 0, 0, 0, 1, 2, b'k', b'v', 0, 9, 0, 5];
        // Since version ten, for how long the bucket is held.
        golden.extend([0xac, 2, 3]);
        let frame = bytes(&hello);
        assert_eq!(frame[4..], golden, "{frame:?}");
        let mut decoder = Decoder::<Hello>::new();
        decoder.extend(&frame);
        assert_eq!(decoder.next_message(), Ok(Some(hello)));
    }

    #[test]
    fn golden_frames_of_version_six() {
        let held = Held { segment: String::from("s-7"), ..Held::default() };
        let info = StageInfo { tenant: String::from("kv"), held, ..StageInfo::default() };
        let hello = Hello::Stage { version: 6, info };
        let golden = [0, 6, 0, 2, b'k', b'v', 0, 0, 0, 0, 0, 0, 0, 3, b's', b'-', b'7'];
        let mut frame = bytes(&hello);
        assert_eq!(frame[4..], golden, "{frame:?}");
        let mut decoder = Decoder::<Hello>::new();
        decoder.extend(&frame);
        assert_eq!(decoder.next_message(), Ok(Some(hello)));
        // Bytes that are left over are refused, as behind any message.
        frame[0] += 1;
        frame.push(0);
        let mut decoder = Decoder::<Hello>::new();
        decoder.extend(&frame);
        assert_eq!(decoder.next_message(), Err(DecodeError::Trailing { bytes: 1 }));
    }

    #[test]
    fn golden_frames_of_version_seven() {
        let counts = [(3, 1), (200, 300)].map(|(bucket, count)| (BucketIndex(bucket), count));
        let channel = ChannelReport {
            name: String::from("kv"),
            operations: 10,
            bytes: 300,
            waited_ns: 5,
            waiting: counts.into(),
            service: BucketCounts::default(),
        };
        let report = StageReport { round: 9, channels: vec![channel], ..StageReport::default() };
        let mut golden = vec![2, 9, 0, 1, 2, b'k', b'v', 10, 0xac, 2, 5];
        golden.extend([2, 3, 1, 0xc8, 1, 0xac, 2, 0]);
        golden.extend([0; 6]);
        let frame = bytes(&FromStage::Report(report));
        assert_eq!(frame[4..], golden, "{frame:?}");
    }

    #[test]
    fn golden_frames_of_version_nine() {
        let (name, waiting) = (String::from("b"), BucketCounts::default());
        let (delayed, waited_ns, waiting_now, waiting_tokens) = (1, 2, 3, 300);
        let rate = None;
        let gate =
            GateReport { name, delayed, waited_ns, waiting_now, waiting_tokens, waiting, rate };
        let report = StageReport { round: 9, gates: vec![gate], ..StageReport::default() };
        let mut golden = vec![2, 9, 0, 0, 1, 1, b'b', 1, 2, 3, 0xac, 2, 0, 0];
        golden.extend([0; 5]);
        let frame = bytes(&FromStage::Report(report));
        assert_eq!(frame[4..], golden, "{frame:?}");
    }

    #[test]
    fn golden_frames_of_version_ten() {
        let rules = [0, 300].map(|span| Rule::hold("b", Span(span))).into();
        let holds = ToStage::Apply { revision: 1, rules };
        assert_eq!(bytes(&holds)[4..], [3, 1, 2, 2, 1, 1, b'b', 0, 2, 1, 1, b'b', 0xac, 2]);
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_arrives() {
        let mut decoder = Decoder::<Hello>::new();
        decoder.extend(&u32::MAX.to_le_bytes());
        let error = DecodeError::TooLong { length: u32::MAX as usize };
        assert_eq!(decoder.next_message(), Err(error));
        decoder.extend(&bytes(&Hello::Operator { version: 1 }));
        assert_eq!(decoder.next_message(), Err(error), "nothing after it is trusted");
    }

    #[test]
    fn a_frame_with_something_left_over_is_refused() {
        let mut frame = bytes(&Hello::Operator { version: 1 });
        frame[0] += 1;
        frame.push(0);
        let mut decoder = Decoder::<Hello>::new();
        decoder.extend(&frame);
        assert_eq!(decoder.next_message(), Err(DecodeError::Trailing { bytes: 1 }));
    }

    #[test]
    fn a_message_over_the_maximum_is_not_sent() {
        let mut out = vec![1, 2, 3];
        let message = Reply::Json("x".repeat(FRAME_MAX));
        assert!(encode(&message, &mut out).is_err());
        assert_eq!(out, [1, 2, 3]);
    }

    #[test]
    fn the_longest_frame_is_sent_and_taken_and_one_byte_more_is_not() {
        // A variant and the length of the text stand before it.
        let text = |length: usize| Reply::Json("x".repeat(length - 1 - 4));
        let frame = bytes(&text(FRAME_MAX));
        assert_eq!(frame.len(), LENGTH + FRAME_MAX);
        let mut decoder = Decoder::<Reply>::new();
        decoder.extend(&frame);
        assert_eq!(decoder.next_message(), Ok(Some(text(FRAME_MAX))));
        let length = FRAME_MAX + 1;
        assert_eq!(
            encode(&text(length), &mut Vec::new()),
            Err(TooLarge { length, maximum: FRAME_MAX })
        );
        let mut decoder = Decoder::<Reply>::new();
        decoder.extend(&(length as u32).to_le_bytes());
        assert_eq!(decoder.next_message(), Err(DecodeError::TooLong { length }));
        assert_eq!(FRAME_MAX, 4_194_304, "operators and controllers of other releases agree on it");
    }

    #[test]
    fn errors_state_the_length_and_the_limit_of_a_frame() {
        let text = [
            DecodeError::TooLong { length: 5_000_000 }.to_string(),
            DecodeError::Trailing { bytes: 3 }.to_string(),
            DecodeError::Malformed.to_string(),
            TooLarge { length: 5_000_000, maximum: FRAME_MAX }.to_string(),
        ];
        let wanted = ["5000000 bytes is over the maximum of 4194304", "3 bytes", "not a message"];
        for (text, wanted) in text.iter().zip(wanted.iter().chain(&wanted[..1])) {
            assert!(text.contains(wanted), "{text}");
        }
    }

    /// All that a decoder makes of these bytes, which come in pieces.
    fn decoded<M: DeserializeOwned>(
        mut decoder: Decoder<M>,
        bytes: &[u8],
    ) -> Result<Vec<M>, DecodeError> {
        let mut messages = Vec::new();
        for chunk in bytes.chunks(60_000) {
            decoder.extend(chunk);
            while let Some(message) = decoder.next_message()? {
                messages.push(message);
            }
        }
        Ok(messages)
    }

    #[test]
    fn a_message_longer_than_a_frame_comes_in_pages() {
        let text = |length: usize| Reply::Json("x".repeat(length));
        let overhead = postcard::to_allocvec(&text(FRAME_MAX)).unwrap().len() - FRAME_MAX;
        let fits = FRAME_MAX - overhead;
        for (length, frames) in [(fits, 1), (fits + 1, 2), (2 * FRAME_MAX, 3)] {
            let mut bytes = Vec::new();
            encode_pages(&text(length), &mut bytes).unwrap();
            encode_pages(&text(3), &mut bytes).unwrap();
            let body =
                [length, 3].map(|length| postcard::to_allocvec(&text(length)).unwrap().len());
            assert_eq!(bytes.len(), body[0] + body[1] + LENGTH * (frames + 1));
            assert_eq!(decoded(Decoder::of_pages(), &bytes), Ok(vec![text(length), text(3)]));
            let single = decoded(Decoder::<Reply>::new(), &bytes);
            assert_eq!(single.is_ok(), frames == 1, "others are heard in single frames only");
        }
    }

    #[test]
    fn golden_bytes_of_pages() {
        let reply = Reply::Error { code: 4, message: String::from("no") };
        let pages = [2, 0, 0, 0x80, 1, 4, 1, 0, 0, 0x80, 2, 2, 0, 0, 0, b'n', b'o'];
        assert_eq!(decoded(Decoder::of_pages(), &pages), Ok(vec![reply]));
        let mut bytes = Vec::new();
        encode_pages(&Reply::Json("x".repeat(FRAME_MAX)), &mut bytes).unwrap();
        assert_eq!(bytes[..4], [0, 0, 0x40, 0x80]);
        assert_eq!(bytes[LENGTH + FRAME_MAX..][..4], [5, 0, 0, 0]);
    }

    #[test]
    fn pages_without_an_end_are_refused() {
        let page = [&(FRAME_MAX as u32 | MORE).to_le_bytes()[..], &vec![0; FRAME_MAX][..]].concat();
        let mut decoder = Decoder::<Reply>::of_pages();
        for _ in 0..MESSAGE_MAX / FRAME_MAX {
            decoder.extend(&page);
            assert_eq!(decoder.next_message(), Ok(None));
        }
        decoder.extend(&page);
        assert_eq!(decoder.next_message(), Err(DecodeError::TooManyPages));
        let empty = decoded(Decoder::<Reply>::of_pages(), &MORE.to_le_bytes());
        assert_eq!(empty, Err(DecodeError::Malformed));
        let long = decoded(Decoder::<Reply>::of_pages(), &(MORE | 5 << 20).to_le_bytes());
        assert_eq!(long, Err(DecodeError::TooLong { length: 5 << 20 }));
    }

    proptest! {
        #[test]
        fn any_cut_of_a_stream_gives_the_same_messages(
            rounds in proptest::collection::vec(any::<(u64, bool)>(), 0..20),
            cut in 1usize..40,
        ) {
            let mut stream = Vec::new();
            for (round, detail) in &rounds {
                encode(&ToStage::Collect { round: *round, detail: *detail }, &mut stream).unwrap();
            }
            let mut decoder = Decoder::<ToStage>::new();
            let mut seen = Vec::new();
            for chunk in stream.chunks(cut) {
                decoder.extend(chunk);
                while let Some(message) = decoder.next_message().unwrap() {
                    let ToStage::Collect { round, detail } = message else { panic!() };
                    seen.push((round, detail));
                }
            }
            prop_assert_eq!(seen, rounds);
            prop_assert!(decoder.into_rest().is_empty());
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: Vec<u8>) {
            let mut decoder = Decoder::<FromStage>::new();
            decoder.extend(&bytes);
            while let Ok(Some(_)) = decoder.next_message() {}
        }
    }
}
