//! The codec: any bytes, cut anywhere, are the same messages or the same error.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_algo::concurrent::histogram::{BucketCounts, BucketIndex};
use tidegate_model::gate::{Burst, Throughput};
use tidegate_model::policy::Fallback;
use tidegate_model::{
    Bytes, ChannelSpec, Class, Conditions, GateSpec, Rate, StageId, TenantId, TenantIndex, Waits,
};
use tidegate_proto::cluster::message::FromNode;
use tidegate_proto::codec::{DecodeError, Decoder, encode};
use tidegate_proto::message::{
    ChannelReport, Differentiation, Enforcement, FromGateway, FromStage, GateReport, Hello,
    Housekeeping, OperatorRequest, Reply, Rule, StageInfo, StageReport, ToStage, VERSION,
};
use tidegate_proto::stats::message::{AnsweredRequests, GatewayCounts, NodeCounts};

use super::tape::Tape;

/// The first byte says who listens, the second how large the pieces are; the rest arrives.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    let listener = tape.below(7);
    let chunk = 1 + tape.below(64);
    let stream = tape.bytes(usize::MAX);
    match listener {
        0 => check_decoding::<Hello>(stream, chunk),
        1 => check_decoding::<ToStage>(stream, chunk),
        2 => check_decoding::<FromStage>(stream, chunk),
        3 => check_decoding::<OperatorRequest>(stream, chunk),
        4 => check_decoding::<Reply>(stream, chunk),
        5 => check_decoding::<FromGateway>(stream, chunk),
        _ => check_decoding::<FromNode>(stream, chunk),
    }
}

fn check_decoding<M: Serialize + DeserializeOwned + PartialEq + Debug>(
    stream: &[u8],
    chunk: usize,
) {
    let (whole, end) = decoded::<M>(stream, stream.len().max(1));
    let (chunked, end_of_chunked) = decoded::<M>(stream, chunk);
    assert_eq!(whole, chunked, "the cut changes what is heard");
    assert_eq!(end, end_of_chunked, "the cut changes the error");
    let mut again = Vec::new();
    for message in &whole {
        encode(message, &mut again).expect("what came in a frame fits a frame");
    }
    assert_eq!(decoded::<M>(&again, chunk), (whole, Ok(())), "a message said again is another");
}

fn decoded<M: DeserializeOwned>(stream: &[u8], chunk: usize) -> (Vec<M>, Result<(), DecodeError>) {
    let mut decoder = Decoder::new();
    let mut messages = Vec::new();
    for bytes in stream.chunks(chunk) {
        decoder.extend(bytes);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => return (messages, Err(error)),
            }
        }
    }
    (messages, Ok(()))
}

/// Every message once, behind the byte that makes the right peer read.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut add = |listener: u8, frame: Vec<u8>| seeds.push([vec![listener, 7], frame].concat());
    add(0, frame(&Hello::Operator { version: VERSION }));
    let info = StageInfo {
        stage: StageId(300),
        tenant: "kv".into(),
        pid: 7,
        command: "fio job".into(),
        ..StageInfo::default()
    };
    add(0, frame(&Hello::Stage { version: VERSION, info }));
    to_stage().iter().for_each(|message| add(1, frame(message)));
    add(2, frame(&FromStage::Unused));
    add(2, frame(&FromStage::Report(report())));
    add(
        2,
        [frame(&FromStage::Applied { revision: 3, error: None }), frame(&FromStage::Disconnect)]
            .concat(),
    );
    let policy = "budget = \"1GB/s\"".to_owned();
    let apply = OperatorRequest::Apply { policy, source: "-".into(), dry_run: true, expect: 9 };
    add(3, frame(&apply));
    let delays = OperatorRequest::Delays { tenant: "oltp".into() };
    add(
        3,
        [frame(&OperatorRequest::Status), frame(&OperatorRequest::Policy), frame(&delays)].concat(),
    );
    add(4, frame(&Reply::Json("{}".into())));
    add(4, frame(&Reply::Error { code: 3, message: "no".into() }));
    add(4, frame(&Reply::Refused { version: 2, reason: "no".into() }));
    let volumes =
        vec![AnsweredRequests { name: "db".into(), requests: 300, bytes: 1 << 20, errors: 1 }];
    let (nbd, faults) = (vec!["127.0.0.1:10809".into()], vec![("io".into(), 1)]);
    let counts = GatewayCounts { nbd, faults, volumes, ..GatewayCounts::default() };
    add(5, [frame(&FromGateway::Counts(counts)), frame(&FromGateway::Disconnect)].concat());
    let waits = Waits { operations: 300, turn_ns: 1 << 40, ..Waits::ZERO };
    let counts =
        NodeCounts { served: 300, tenants: vec![(TenantIndex(1), waits)], ..NodeCounts::default() };
    add(6, frame(&FromNode::Counts(counts)));
    seeds
}

pub(super) fn frame(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).expect("a seed fits a frame");
    bytes
}

/// Every kind of message to a stage.
pub(super) fn to_stage() -> Vec<ToStage> {
    let gate =
        |name: &str, spec| Rule::Housekeeping(Housekeeping::SetGate { name: name.into(), spec });
    let rate = Throughput::Bandwidth(Rate(1 << 20));
    let channel = ChannelSpec {
        name: "c".into(),
        tenant: TenantId(1),
        class: Class::High,
        gates: vec!["b".into(), "q".into()],
    };
    let conditions = Conditions { path: vec!["/data/**".into()], ..Conditions::default() };
    let rules = vec![
        Rule::Housekeeping(Housekeeping::Clear),
        gate("b", GateSpec::TokenBucket { rate, burst: Burst::Size(Bytes(4096)) }),
        gate("q", GateSpec::Priority { depth: 2, order: vec!["flush".into()] }),
        gate("f", GateSpec::FairQueue { depth: 2, weights: vec![("a".into(), 3)] }),
        Rule::Housekeeping(Housekeeping::SetChannel(channel)),
        Rule::Differentiation(Differentiation::Insert {
            index: 0,
            conditions,
            channel: "c".into(),
        }),
        Rule::Differentiation(Differentiation::Default { channel: "c".into() }),
        Rule::Enforcement(Enforcement::Rate { gate: "b".into(), rate }),
        Rule::hold("b", tidegate_model::Span(300)),
    ];
    let silence_max = tidegate_model::Span::SECOND;
    let (version, stage, fallback) = (VERSION, StageId(1), Fallback::Reservation);
    vec![
        ToStage::Welcome { version, stage, silence_max, fallback },
        ToStage::Apply { revision: 1, rules },
        ToStage::Collect { round: 5, detail: true },
        ToStage::Lease { round: 5, length: silence_max },
        ToStage::Refused { version, reason: "full".into(), retry: true },
    ]
}

/// A report with one of everything.
pub(super) fn report() -> StageReport {
    let waiting = BucketCounts::from([(BucketIndex(3), 1), (BucketIndex(9), 20)]);
    let channel = ChannelReport {
        name: "kv".into(),
        operations: 10,
        bytes: 40_960,
        waited_ns: 5_000,
        waiting: waiting.clone(),
        service: waiting.clone(),
    };
    let gate = GateReport {
        name: "kv:bandwidth".into(),
        delayed: 3,
        waited_ns: 5_000,
        waiting_now: 1,
        waiting_tokens: 4_096,
        waiting,
        rate: Some(Throughput::Bandwidth(Rate(1 << 20))),
    };
    StageReport {
        round: 5,
        at_ns: 1_000_000_000,
        channels: vec![channel],
        gates: vec![gate],
        processes: 1,
        device_bytes: 4_096,
        ..StageReport::default()
    }
}
