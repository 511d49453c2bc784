#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use super::*;
use alloc::vec;
use proptest::prelude::*;
use tidegate_model::cluster::Uuid;
use tidegate_model::{Class, ContextId};

const COMMANDS: [Command; 12] = [
    Command::Read,
    Command::Write { durable: false },
    Command::Write { durable: true },
    Command::Flush,
    Command::Discard { durable: false },
    Command::Discard { durable: true },
    Command::Zero { allocate: false, durable: false },
    Command::Zero { allocate: true, durable: false },
    Command::Zero { allocate: false, durable: true },
    Command::Zero { allocate: true, durable: true },
    Command::Map,
    Command::KeyValue,
];

fn tag() -> Tag {
    Tag {
        tenant: TenantId(2),
        context: ContextId(3),
        class: Class::High,
        operation: Operation::Write,
        cost: 4096,
        delay: 5,
    }
}

#[test]
fn golden_frames_of_version_five() {
    assert_eq!(VERSION, 5, "a new version needs new golden frames beside these");
    let job = JobHead {
        ticket: 0x1122_3344_5566_7788,
        tag: tag(),
        command: Command::Zero { allocate: true, durable: true },
        part: PartNumber(0x0a0b_0c0d),
        offset: 0x0102_0304_0506_0708,
        length: 0x0001_0000,
    };
    #[rustfmt::skip]
    let golden = [
        5, 3, 0, 0, 0, 0, 1, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
        8, 7, 6, 5, 4, 3, 2, 1, 0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0,
        2, 0, 3, 0, 1, 1, 0, 0, 0, 0x10, 0, 0, 5, 0, 0, 0,
    ];
    assert_eq!(job.to_bytes(), golden);
    assert_eq!(RequestHead::parse(&golden), Ok(RequestHead::Job(job)));
    let stay = Stay { queued: Span(0x0102_0304_0506), stored: Span(9) };
    let answer = AnswerHead { ticket: 7, outcome: Err(Fault::NoSpace), length: 258, stay };
    #[rustfmt::skip]
    let golden = [
        1, 3, 0, 0, 2, 1, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0,
        6, 5, 4, 3, 2, 1, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(answer.to_bytes(), golden);
    assert_eq!(ReplyHead::parse(&golden), Ok(ReplyHead::Answer(answer)));
}

#[test]
fn golden_messages_of_version_five() {
    fn payload<H: Head, M: Serialize>(message: &M) -> Vec<u8> {
        let mut out = Vec::new();
        encode::<H, M>(message, &mut out).unwrap();
        let mut head = vec![0; H::LENGTH];
        head[4] = (out.len() - H::LENGTH) as u8;
        assert_eq!(out[..H::LENGTH], head);
        out.split_off(H::LENGTH)
    }
    let hello = ToNode::Hello { version: 1, release: "0.1".into() };
    assert_eq!(payload::<RequestHead, _>(&hello), b"\x00\x01\x030.1");
    let tenants = ToNode::Tenants(vec!["a".into(), "b".into()]);
    assert_eq!(payload::<RequestHead, _>(&tenants), b"\x01\x02\x01a\x01b");
    let cancel = ToNode::Cancel(vec![5, 300]);
    assert_eq!(payload::<RequestHead, _>(&cancel), b"\x03\x02\x05\xac\x02");
    let elsewhere = ToNode::Elsewhere(vec![(TenantId(5), 300), (TenantId(300), 1)]);
    assert_eq!(payload::<RequestHead, _>(&elsewhere), b"\x04\x02\x05\xac\x02\xac\x02\x01");
    let kind = LinkKind { is_bulk: true, class: Class::Low };
    assert_eq!(payload::<RequestHead, _>(&ToNode::Carries(kind)), b"\x06\x01\x03");
    let process = Uuid(*b"0123456789abcdef");
    let identity = LinkIdentity { gateway: "g".into(), process, link: 300, connection: 2 };
    let identify = ToNode::Identify(identity);
    let golden = b"\x07\x01g0123456789abcdef\xac\x02\x02";
    assert_eq!(payload::<RequestHead, _>(&identify), golden);
    assert_eq!(decode::<ToNode>(golden), Ok(identify));
    let fence = ToNode::Fence { link: 300, connection: 2 };
    assert_eq!(payload::<RequestHead, _>(&fence), b"\x08\xac\x02\x02");
    let open = ToNode::Open {
        part: PartNumber(1),
        volume: "v".into(),
        index: 2,
        length: Bytes(4096),
        offset: Bytes(5),
        geometry: Geometry { count: 3, stripe: Bytes(128), size: Bytes(300) },
    };
    let golden = b"\x02\x01\x01v\x02\x80\x20\x05\x03\x80\x01\xac\x02";
    assert_eq!(payload::<RequestHead, _>(&open), golden);
    assert_eq!(decode::<ToNode>(golden), Ok(open));
    let welcome = FromNode::Welcome { version: 1, name: "n".into(), release: "0".into() };
    assert_eq!(payload::<ReplyHead, _>(&welcome), b"\x00\x01\x01n\x010");
    let refused = FromNode::Refused { version: 1, reason: "no".into() };
    assert_eq!(payload::<ReplyHead, _>(&refused), b"\x01\x01\x02no");
    let opened =
        |opened| payload::<ReplyHead, _>(&FromNode::Opened { part: PartNumber(3), opened });
    assert_eq!(opened(Err("no".into())), b"\x02\x03\x01\x02no");
    let state = PartState { incarnation: 300, identity: None };
    assert_eq!(opened(Ok(state)), b"\x02\x03\x00\xac\x02\x00");
    let stamp = VolumeStamp { uuid: Uuid(*b"0123456789abcdef"), generation: 2 };
    let labelled = opened(Ok(PartState { identity: Some(stamp), ..state }));
    assert_eq!(labelled, b"\x02\x03\x00\xac\x02\x010123456789abcdef\x02");
    assert_eq!(payload::<ReplyHead, _>(&FromNode::Alive), b"\x03");
    let changed = FromNode::Incarnation { part: PartNumber(3), incarnation: 300 };
    assert_eq!(payload::<ReplyHead, _>(&changed), b"\x04\x03\xac\x02");
    assert_eq!(payload::<ReplyHead, _>(&FromNode::Ending), b"\x05");
    let fenced = FromNode::Fenced { link: 300, connection: 2 };
    assert_eq!(payload::<ReplyHead, _>(&fenced), b"\x06\xac\x02\x02");
    assert_eq!(decode::<FromNode>(b"\x03\x00"), Err(FrameError::Message));
}

#[test]
fn what_no_version_has_is_refused_with_its_reason() {
    let mut good = [0; 48];
    good[0] = 2;
    assert!(RequestHead::parse(&good).is_ok());
    let change = |at: usize, value: u8| {
        let mut bad = good;
        bad[at] = value;
        RequestHead::parse(&bad)
    };
    assert_eq!(change(0, 8), Err(FrameError::Kind(8)));
    assert_eq!(change(1, 2), Err(FrameError::Reserved), "a write does not allocate");
    assert_eq!(change(2, 1), Err(FrameError::Reserved));
    assert_eq!(change(31, 1), Err(FrameError::Reserved));
    assert_eq!(change(36, 4), Err(FrameError::Tag));
    let length = 3 << 24;
    assert_eq!(change(7, 3), Err(FrameError::TooLong { length, maximum: PAYLOAD_MAX }));
    let mut message = [0; 48];
    message[8] = 1;
    assert_eq!(RequestHead::parse(&message), Err(FrameError::Reserved));
    assert_eq!(ReplyHead::parse(&[9; 16]), Err(FrameError::Reserved));
    let mut reply = [0; 16];
    reply[0] = 2;
    assert_eq!(ReplyHead::parse(&reply), Err(FrameError::Kind(2)));
}

#[test]
fn a_long_range_without_payload_is_no_long_frame() {
    let command = Command::Discard { durable: false };
    let part = PartNumber(0);
    let job = JobHead { ticket: 0, tag: tag(), command, part, offset: 0, length: u32::MAX };
    let head = RequestHead::parse(&job.to_bytes()).unwrap();
    assert_eq!((head, head.payload()), (RequestHead::Job(job), 0));
}

#[test]
fn nothing_behind_a_bad_frame_is_trusted() {
    let mut assembler = Assembler::<ReplyHead, Vec<u8>>::new();
    let mut bytes = &[9; 32][..];
    let error = assembler.next(&mut bytes).unwrap_err();
    let good =
        AnswerHead { ticket: 0, outcome: Ok(()), length: 0, stay: Stay::default() }.to_bytes();
    assert_eq!(assembler.next(&mut &good[..]), Err(error));
}

fn job() -> impl Strategy<Value = (JobHead, Vec<u8>)> {
    let payload = prop::collection::vec(any::<u8>(), 0..200);
    (prop::sample::select(&COMMANDS[..]), any::<(u64, u32, u64)>(), payload).prop_map(
        |(command, (ticket, part, offset), mut payload)| {
            let length = payload.len() as u32;
            if !command.has_payload() {
                payload.clear();
            }
            (
                JobHead { ticket, tag: tag(), command, part: PartNumber(part), offset, length },
                payload,
            )
        },
    )
}

proptest! {
    #[test]
    fn any_cut_of_a_stream_gives_the_same_frames(
        jobs in prop::collection::vec(job(), 0..12),
        cuts in prop::collection::vec((1usize..90, any::<bool>()), 1..40),
    ) {
        let mut stream = Vec::new();
        for (head, payload) in &jobs {
            stream.extend_from_slice(&head.to_bytes());
            stream.extend_from_slice(payload);
        }
        let mut assembler = Assembler::<RequestHead, Vec<u8>>::new();
        let (mut rest, mut seen) = (&stream[..], Vec::new());
        for (cut, is_direct) in cuts.iter().cycle() {
            let mut piece = &rest[..*cut.min(&rest.len())];
            rest = &rest[piece.len()..];
            if *is_direct {
                let unfilled = assembler.unfilled();
                let count = unfilled.len().min(piece.len());
                unfilled[..count].copy_from_slice(&piece[..count]);
                assembler.filled(count);
                piece = &piece[count..];
            }
            while let Some((head, payload)) = assembler.next(&mut piece).unwrap() {
                let RequestHead::Job(head) = head else { panic!("{head:?}") };
                seen.push((head, payload));
            }
            prop_assert!(piece.is_empty());
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(seen, jobs);
        prop_assert!(assembler.unfilled().is_empty());
    }

    #[test]
    fn any_bytes_are_frames_or_an_error(bytes: Vec<u8>, kinds in prop::collection::vec(0u8..9, 4)) {
        let mut requests = Assembler::<RequestHead, Vec<u8>>::new();
        let mut replies = Assembler::<ReplyHead, Vec<u8>>::new();
        for kind in kinds {
            let bytes = [&[kind][..], &bytes].concat();
            let mut input = &bytes[..];
            while let Ok(Some(_)) = requests.next(&mut input) {}
            let mut input = &bytes[..];
            while let Ok(Some(_)) = replies.next(&mut input) {}
            let _ = decode::<ToNode>(&bytes);
        }
    }
}

#[test]
fn what_a_job_weighs() {
    let tag = |operation, cost| Tag { operation, cost, ..tag() };
    let read = |command: Command, length| {
        command.work(&CostModel::Bytes, length, &tag(Operation::Read, length))
    };
    assert_eq!(read(Command::Read, 4096), 4096);
    assert_eq!(read(Command::Read, 1_000_000), 1_000_000);
    let zero = Command::Zero { allocate: true, durable: false };
    assert_eq!(read(zero, 4096), 1, "nobody knows what is moved");

    let requests = |command: Command, length| {
        command.work(&CostModel::Requests, length, &tag(Operation::Read, length))
    };
    let lengths = [1, 128 << 10, (128 << 10) + 1, 32 << 20];
    assert_eq!(lengths.map(|length| requests(Command::Read, length)), [1, 1, 2, 256]);
    assert_eq!(lengths.map(|length| requests(zero, length)), [1; 4]);
    assert_eq!(read(Command::Discard { durable: true }, 4096), 1, "nothing is moved");
    let keys = |length, keys| {
        Command::KeyValue.work(&CostModel::Requests, length, &tag(Operation::Get, keys))
    };
    assert_eq!((keys(600, 100), keys(600, 1), keys(6, u32::MAX)), (100, 1, 6));
}

#[test]
fn all_tenants_of_the_largest_policy_are_named_in_as_many_messages_as_it_takes() {
    // A policy has at most 60,000 of them, with names of at most 63 bytes.
    let names: Vec<String> = (0..60_000).map(|at| alloc::format!("{at:063}")).collect();
    let mut reported = Vec::new();
    for (at, page) in ToNode::tenants(&names).into_iter().enumerate() {
        let mut bytes = Vec::new();
        encode::<RequestHead, _>(&page, &mut bytes).unwrap();
        match decode(&bytes[RequestHead::LENGTH..]).unwrap() {
            ToNode::Tenants(first) if at == 0 => reported = first,
            ToNode::MoreTenants(more) if at > 0 => reported.extend(more),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(reported, names);
    assert_eq!(ToNode::tenants(&[]), [ToNode::Tenants(vec![])]);
    assert_eq!(ToNode::tenants(&names[..2]), [ToNode::Tenants(names[..2].to_vec())]);
    let more = postcard::to_allocvec(&ToNode::MoreTenants(vec!["a".into()])).unwrap();
    assert_eq!(more, b"\x05\x01\x01a");
}
