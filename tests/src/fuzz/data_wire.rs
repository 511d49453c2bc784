//! The wire between gateways and nodes: any bytes, cut anywhere, are the same frames or the same
//! error, take no more memory than a frame may, and say the same when they are said again.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_model::cluster::{Geometry, Uuid};
use tidegate_model::{Bytes, Class, ContextId, Operation, PartNumber, Tag, TenantId};
use tidegate_proto::data::{
    AnswerHead, Assembler, Command, Fault, FrameError, FromNode, Head, JobHead, LinkIdentity,
    LinkKind, MESSAGE_MAX, PAYLOAD_MAX, PartState, Payload, ReplyHead, RequestHead, Stay, ToNode,
    VERSION, decode, encode,
};

use super::tape::Tape;

/// The first byte says who listens and how he reads, the second how large the pieces are; the rest
/// arrives.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let listener = tape.byte();
    let chunk = 1 + tape.below(64);
    let stream = tape.bytes(usize::MAX);
    let is_direct = listener & 2 > 0;
    if listener & 1 > 0 {
        check_decoding::<RequestHead, ToNode>(stream, chunk, is_direct);
    } else {
        check_decoding::<ReplyHead, FromNode>(stream, chunk, is_direct);
    }
}

/// A payload that knows what it may be.
#[derive(Clone, Debug, PartialEq)]
struct Bounded(Vec<u8>);

impl AsMut<[u8]> for Bounded {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Payload for Bounded {
    fn with_length(length: usize) -> Self {
        assert!(length <= PAYLOAD_MAX, "{length} bytes at once");
        Self(vec![0; length])
    }
}

/// A head that can be said again.
trait EncodeAgain: Head + PartialEq + Debug {
    /// Its bytes, unless it is a message's; and whether there is only this way to say it.
    fn encoded(&self) -> Option<(Vec<u8>, bool)>;
}

impl EncodeAgain for RequestHead {
    fn encoded(&self) -> Option<(Vec<u8>, bool)> {
        match self {
            Self::Message(_) => None,
            Self::Job(job) => Some((job.to_bytes().to_vec(), true)),
        }
    }
}

impl EncodeAgain for ReplyHead {
    fn encoded(&self) -> Option<(Vec<u8>, bool)> {
        match self {
            Self::Message(_) => None,
            // Faults of later versions are input and output faults in this one.
            Self::Answer(answer) => {
                Some((answer.to_bytes().to_vec(), answer.outcome != Err(Fault::Io)))
            }
        }
    }
}

type Frames<H> = (Vec<(H, Bounded)>, Result<(), FrameError>);

fn check_decoding<H: EncodeAgain, M>(stream: &[u8], chunk: usize, is_direct: bool)
where
    M: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let whole: Frames<H> = assembled(stream, stream.len().max(1), false);
    let chunked = assembled(stream, chunk, is_direct);
    assert_eq!(whole, chunked, "the cut changes what is heard");
    let mut at = 0;
    for (head, payload) in whole.0 {
        let (start, end) = (at, at + H::LENGTH + payload.0.len());
        at = end;
        assert_eq!(stream[start + H::LENGTH..end], payload.0, "a payload is another");
        let Some((encoded, is_only)) = head.encoded() else {
            message_comes_back::<H, M>(&payload.0);
            continue;
        };
        assert_eq!(H::parse(&encoded), Ok(head), "a head said again is another");
        assert!(
            !is_only || encoded == stream[start..start + H::LENGTH],
            "{head:?} is said otherwise"
        );
    }
}

fn message_comes_back<H: Head, M>(payload: &[u8])
where
    M: Serialize + DeserializeOwned + PartialEq + Debug,
{
    assert!(payload.len() <= MESSAGE_MAX);
    let Ok(message) = decode::<M>(payload) else { return };
    let mut again = Vec::new();
    encode::<H, M>(&message, &mut again).expect("what came in a frame fits a frame");
    assert_eq!(decode::<M>(&again[H::LENGTH..]), Ok(message), "a message said again is another");
}

fn assembled<H: EncodeAgain>(stream: &[u8], chunk: usize, is_direct: bool) -> Frames<H> {
    let mut assembler = Assembler::<H, Bounded>::new();
    let mut frames = Vec::new();
    for mut bytes in stream.chunks(chunk) {
        if is_direct {
            let unfilled = assembler.unfilled();
            let count = unfilled.len().min(bytes.len());
            let (head_bytes, rest) = bytes.split_at(count);
            unfilled[..count].copy_from_slice(head_bytes);
            assembler.filled(count);
            bytes = rest;
        }
        loop {
            match assembler.next(&mut bytes) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(
                        assembler.next(&mut bytes),
                        Err(error),
                        "it goes on behind an error"
                    );
                    return (frames, Err(error));
                }
            }
        }
        assert!(bytes.is_empty(), "bytes are left over");
    }
    (frames, Ok(()))
}

/// Every message and every command once, and answers of every kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let part = PartNumber(1);
    let to_node = [
        ToNode::Hello { version: VERSION, release: "0.1".into() },
        ToNode::Tenants(vec!["a".into(), "b".into()]),
        ToNode::Elsewhere(vec![(TenantId(1), 1 << 40)]),
        ToNode::Carries(LinkKind { is_bulk: true, class: Class::Low }),
        ToNode::Identify(LinkIdentity {
            gateway: "g".into(),
            process: Uuid([1; 16]),
            link: 2,
            connection: 3,
        }),
        ToNode::Open {
            part,
            volume: "v".into(),
            index: 2,
            length: Bytes(4096),
            offset: Bytes(1 << 40),
            geometry: Geometry::single(Bytes(4096)),
        },
    ];
    let from_node = [
        FromNode::Welcome { version: VERSION, name: "a".into(), release: "0.1".into() },
        FromNode::Refused { version: 2, reason: "no".into() },
        FromNode::Opened { part, opened: Err("no".into()) },
        FromNode::Opened { part, opened: Ok(PartState { incarnation: 7, identity: None }) },
        FromNode::Incarnation { part, incarnation: 9 },
    ];
    let mut seeds = Vec::new();
    let mut add = |listener: u8, frame: Vec<u8>| seeds.push([vec![listener, 7], frame].concat());
    to_node.iter().for_each(|message| add(1, framed::<RequestHead>(message)));
    from_node.iter().for_each(|message| add(2, framed::<ReplyHead>(message)));
    for command in [
        Command::Read,
        Command::Write { durable: true },
        Command::Flush,
        Command::Discard { durable: true },
        Command::Zero { allocate: true, durable: true },
        Command::Map,
        Command::KeyValue,
    ] {
        let tag = Tag {
            tenant: TenantId(2),
            context: ContextId(3),
            class: Class::High,
            operation: Operation::Write,
            cost: 100,
            delay: 5,
        };
        let head = JobHead { ticket: 9, tag, command, part, offset: 4096, length: 100 };
        let payload = vec![7; if command.has_payload() { 100 } else { 0 }];
        add(3, [head.to_bytes().to_vec(), payload, head.to_bytes().to_vec()].concat());
    }
    for outcome in [Ok(()), Err(Fault::NoSpace)] {
        let answer = AnswerHead { ticket: 9, outcome, length: 5, stay: Stay::default() };
        add(0, [&answer.to_bytes()[..], b"12345", &answer.to_bytes()].concat());
    }
    seeds
}

fn framed<H: Head>(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::<H, _>(message, &mut bytes).expect("a seed fits a frame");
    bytes
}
