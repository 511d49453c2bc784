//! Each number, bound and reserved byte of the frames, one by one: what could be changed or left
//! out in the parser without another test noticing.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use super::*;
use alloc::string::ToString;
use alloc::vec;
use tidegate_model::cost::{Combine, DeviceCost, LineCost};
use tidegate_model::{Class, ContextId};

const FAULTS: [(u8, Fault); 6] = [
    (1, Fault::Invalid),
    (2, Fault::ReadOnly),
    (3, Fault::NoSpace),
    (4, Fault::Unsupported),
    (5, Fault::Io),
    (6, Fault::Ending),
];

fn tag(operation: Operation, cost: u32) -> Tag {
    let (tenant, context, class) = (TenantId(2), ContextId(3), Class::High);
    Tag { tenant, context, class, operation, cost, delay: 5 }
}

fn job(command: Command, length: u32) -> [u8; 48] {
    let tag = tag(Operation::Write, 1);
    JobHead { ticket: 1, tag, command, part: PartNumber(2), offset: 3, length }.to_bytes()
}

fn answer(length: u32) -> [u8; 32] {
    AnswerHead { ticket: 1, outcome: Ok(()), length, stay: Stay::default() }.to_bytes()
}

#[test]
fn both_sides_know_the_same_bounds() {
    assert_eq!((PAYLOAD_MAX, MESSAGE_MAX), (33_554_432, 1_048_576));
    assert_eq!((ALIVE_EVERY, REPORTED_WITHIN), (Span(1_000_000_000), Span(100_000_000)));
    assert_eq!(SILENCE_MAX, Span(5_000_000_000));
}

#[test]
fn golden_bytes_of_every_fault() {
    for (number, fault) in FAULTS {
        let stay = Stay::default();
        let head = AnswerHead { ticket: 0x0102, outcome: Err(fault), length: 0, stay };
        let mut golden = [0; 32];
        golden[..2].copy_from_slice(&[1, number]);
        golden[8..10].copy_from_slice(&[2, 1]);
        assert_eq!(head.to_bytes(), golden);
        assert_eq!(ReplyHead::parse(&golden), Ok(ReplyHead::Answer(head)));
        assert_eq!(Fault::from_number(number), fault);
    }
    let good = AnswerHead { ticket: 0, outcome: Ok(()), length: 0, stay: Stay::default() };
    assert_eq!(good.to_bytes()[..2], [1, 0]);
    assert_eq!(ReplyHead::parse(&good.to_bytes()), Ok(ReplyHead::Answer(good)));
    // A later version's.
    assert!([0, 7, 8, 255].iter().all(|number| Fault::from_number(*number) == Fault::Io));
}

#[test]
fn golden_bytes_of_every_command() {
    let (durable, allocate) = (true, true);
    let commands = [
        (Command::Read, [1, 0]),
        (Command::Write { durable: false }, [2, 0]),
        (Command::Write { durable }, [2, 1]),
        (Command::Flush, [3, 0]),
        (Command::Discard { durable: false }, [4, 0]),
        (Command::Discard { durable }, [4, 1]),
        (Command::Zero { allocate: false, durable: false }, [5, 0]),
        (Command::Zero { allocate: false, durable }, [5, 1]),
        (Command::Zero { allocate, durable: false }, [5, 2]),
        (Command::Zero { allocate, durable }, [5, 3]),
        (Command::Map, [6, 0]),
        (Command::KeyValue, [7, 0]),
    ];
    for kind in 0..=255 {
        for flags in 0..=255 {
            let known = commands.iter().find(|(_, bytes)| *bytes == [kind, flags]);
            let mut head = job(Command::Read, 0);
            head[..2].copy_from_slice(&[kind, flags]);
            let parsed = RequestHead::parse(&head);
            match known {
                Some((command, _)) => {
                    let Ok(RequestHead::Job(job)) = parsed else { panic!("{parsed:?}") };
                    assert_eq!((job.command, &job.to_bytes()[..2]), (*command, &head[..2]));
                }
                // A message, which has nothing but its length.
                None if kind == 0 => assert_eq!(parsed, Err(FrameError::Reserved)),
                None if kind < 8 => assert_eq!(parsed, Err(FrameError::Reserved)),
                None => assert_eq!(parsed, Err(FrameError::Kind(kind))),
            }
        }
    }
}

#[test]
fn a_payload_is_as_long_as_its_bound_and_no_longer() {
    let most = PAYLOAD_MAX as u32;
    let too_long = |length| FrameError::TooLong { length, maximum: PAYLOAD_MAX };
    for command in [Command::Read, Command::Write { durable: true }, Command::KeyValue] {
        assert!(RequestHead::parse(&job(command, most)).is_ok(), "{command:?}");
        for length in [most + 1, u32::MAX] {
            let refused = RequestHead::parse(&job(command, length));
            assert_eq!(refused, Err(too_long(length)), "{command:?}");
        }
    }
    for command in [Command::Flush, Command::Discard { durable: true }, Command::Map] {
        assert!(RequestHead::parse(&job(command, u32::MAX)).is_ok(), "{command:?}");
    }
    assert!(ReplyHead::parse(&answer(0)).is_ok() && ReplyHead::parse(&answer(most)).is_ok());
    for length in [most + 1, u32::MAX] {
        assert_eq!(ReplyHead::parse(&answer(length)), Err(too_long(length)));
    }
}

#[test]
fn a_message_is_as_long_as_its_bound_and_no_longer() {
    let head = |bytes: &mut [u8], length: u32| bytes[4..8].copy_from_slice(&length.to_le_bytes());
    let most = MESSAGE_MAX as u32;
    let (mut request, mut reply) = ([0; 48], [0; 32]);
    for length in [0, 2, most] {
        head(&mut request, length);
        head(&mut reply, length);
        assert_eq!(RequestHead::parse(&request), Ok(RequestHead::Message(length)));
        assert_eq!(ReplyHead::parse(&reply), Ok(ReplyHead::Message(length)));
    }
    for length in [most + 1, u32::MAX] {
        head(&mut request, length);
        head(&mut reply, length);
        let error = FrameError::TooLong { length, maximum: MESSAGE_MAX };
        assert_eq!(RequestHead::parse(&request), Err(error));
        assert_eq!(ReplyHead::parse(&reply), Err(error));
    }
}

#[test]
fn every_reserved_byte_is_looked_at() {
    let good = job(Command::Write { durable: false }, 9);
    for at in [2, 3, 28, 29, 30, 31] {
        let mut bad = good;
        bad[at] = 1;
        assert_eq!(RequestHead::parse(&bad), Err(FrameError::Reserved), "byte {at} of a job");
    }
    for at in [1, 2, 3].into_iter().chain(8..48) {
        let mut bad = [0; 48];
        bad[at] = 0x80;
        assert_eq!(RequestHead::parse(&bad), Err(FrameError::Reserved), "byte {at} of a message");
    }
    for at in [1, 2, 3].into_iter().chain(8..32) {
        let mut bad = [0; 32];
        bad[at] = 0x80;
        assert_eq!(ReplyHead::parse(&bad), Err(FrameError::Reserved), "byte {at} of a message");
    }
    for at in [2, 3] {
        let mut bad = answer(0);
        bad[at] = 1;
        assert_eq!(ReplyHead::parse(&bad), Err(FrameError::Reserved), "byte {at} of an answer");
    }
}

#[test]
fn a_payload_follows_where_there_is_one() {
    let payload = |command| RequestHead::parse(&job(command, 7)).unwrap().payload();
    assert_eq!(payload(Command::Write { durable: false }), 7);
    assert_eq!(payload(Command::KeyValue), 7);
    for command in [Command::Read, Command::Flush, Command::Discard { durable: true }, Command::Map]
    {
        assert_eq!(payload(command), 0, "{command:?}");
    }
    assert_eq!(payload(Command::Zero { allocate: true, durable: true }), 0);
    assert_eq!(RequestHead::Message(7).payload(), 7);
    assert_eq!(ReplyHead::Message(7).payload(), 7);
    assert_eq!(ReplyHead::parse(&answer(7)).unwrap().payload(), 7);
}

#[test]
fn messages_are_appended_up_to_their_bound() {
    // The kind, the number of entries and, for each, its length and its bytes.
    let tenants = |length: usize| ToNode::Tenants(vec!["t".repeat(length)]);
    let overhead =
        postcard::to_allocvec(&tenants(MESSAGE_MAX - 9)).unwrap().len() + 9 - MESSAGE_MAX;
    let before = b"what stands before".to_vec();
    let mut out = before.clone();
    let fits = tenants(MESSAGE_MAX - overhead);
    encode::<RequestHead, _>(&fits, &mut out).unwrap();
    let (head, payload) = out[before.len()..].split_at(RequestHead::LENGTH);
    assert_eq!(out[..before.len()], before);
    assert_eq!(RequestHead::parse(head), Ok(RequestHead::Message(MESSAGE_MAX as u32)));
    assert_eq!(decode::<ToNode>(payload), Ok(fits));
    let mut out = before.clone();
    let error = encode::<ReplyHead, _>(&tenants(MESSAGE_MAX - overhead + 1), &mut out);
    let length = MESSAGE_MAX as u32 + 1;
    assert_eq!(error, Err(FrameError::TooLong { length, maximum: MESSAGE_MAX }));
    assert_eq!(out, before);
    encode::<ReplyHead, _>(&FromNode::Alive, &mut out).unwrap();
    let mut golden = [0; 33];
    (golden[4], golden[32]) = (1, 3);
    assert_eq!(out[before.len()..], golden);
}

#[test]
fn writes_weigh_as_writes_and_reads_as_reads() {
    let line = |base| LineCost { base: Span(base), per_mib: Span(0) };
    let device = DeviceCost { read: line(3), write: line(70), combine: Combine::Sum };
    let work = |command: Command, operation| {
        command.work(&CostModel::Device(device), 4096, &tag(operation, 1))
    };
    assert_eq!(work(Command::Read, Operation::Read), 3);
    assert_eq!(work(Command::Write { durable: false }, Operation::Write), 70);
    assert_eq!(work(Command::Zero { allocate: false, durable: false }, Operation::Write), 70);
    assert_eq!(work(Command::Discard { durable: false }, Operation::Write), 3);
    assert_eq!(work(Command::Flush, Operation::Write), 3);
    assert_eq!(work(Command::Map, Operation::Read), 3);
    assert_eq!(work(Command::KeyValue, Operation::Put), 70);
    assert_eq!(work(Command::KeyValue, Operation::Get), 3);
}

#[test]
fn a_job_weighs_what_its_pieces_do() {
    let line = LineCost { base: Span(1_000), per_mib: Span(8 << 10) };
    let device = DeviceCost { read: line, write: line, combine: Combine::Sum };
    let piece = pieces::PIECE;
    let read =
        |length| Command::Read.work(&CostModel::Device(device), length, &tag(Operation::Read, 1));
    let whole = read(piece);
    assert_eq!(read(2 * piece), 2 * whole);
    assert_eq!(read(2 * piece + 4096), 2 * whole + read(4096));
    assert_eq!(read(piece - 4096), 1_000 + 1024 - 32);
    // A command that moves no bytes is one job, however long.
    let discard = Command::Discard { durable: false };
    let tag = tag(Operation::Write, 1);
    assert_eq!(discard.work(&CostModel::Device(device), u32::MAX, &tag), 1_000);
    let keys = Command::KeyValue.work(&CostModel::Bytes, 3 * piece + 1, &tag);
    assert_eq!(keys, 3 * piece + 1);
}

#[test]
fn errors_say_what_is_wrong() {
    for (error, wanted) in [
        (FrameError::TooLong { length: 9, maximum: 8 }, "9 bytes is over the maximum of 8"),
        (FrameError::Kind(9), "no frame is of kind 9"),
        (FrameError::Reserved, "reserved byte or flag"),
        (FrameError::Tag, "no tag"),
        (FrameError::Message, "no message"),
    ] {
        assert!(error.to_string().contains(wanted), "{error}");
    }
    assert_eq!(decode::<FromNode>(&[]), Err(FrameError::Message));
    assert_eq!(decode::<FromNode>(&[3]), Ok(FromNode::Alive));
    assert_eq!(decode::<FromNode>(&[99]), Err(FrameError::Message));
}
