//! Connections of peers that do not behave.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use tidegate_fabric::stream::Address;
use tidegate_model::cluster::{Geometry, Uuid};
use tidegate_model::{Bytes, Class, ContextId, Operation, PartNumber, Tag, TenantId};
use tidegate_node::{Running, start};
use tidegate_proto::data::{
    Assembler, Command, FromNode, JobHead, LinkIdentity, ReplyHead, RequestHead, ToNode, VERSION,
    decode, encode,
};

use crate::support::{Client, PATIENCE, config, read};

pub(crate) fn connect(node: &Running) -> UnixStream {
    let Some(Address::Unix(path)) = node.address() else { unreachable!() };
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn frame(message: &ToNode) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode::<RequestHead, _>(message, &mut bytes).unwrap();
    bytes
}

/// The hello of a gateway of its own: one of the same would replace the connection before it, which
/// the node may not have ended yet.
fn hello() -> Vec<u8> {
    static GATEWAYS: AtomicU32 = AtomicU32::new(0);
    let gateway = format!("g{}", GATEWAYS.fetch_add(1, Ordering::Relaxed));
    let hello = ToNode::Hello { version: VERSION, release: "test".into() };
    [frame(&hello), identify(&gateway)].concat()
}

/// Says that it is a connection of this gateway.
fn identify(gateway: &str) -> Vec<u8> {
    let (gateway, process) = (gateway.into(), Uuid([1; 16]));
    frame(&ToNode::Identify(LinkIdentity { gateway, process, link: 1, connection: 1 }))
}

fn a_read() -> Vec<u8> {
    let tag = Tag {
        tenant: TenantId(1),
        context: ContextId::NONE,
        class: Class::Low,
        operation: Operation::Read,
        cost: 0,
        delay: 0,
    };
    let command = Command::Read;
    JobHead { ticket: 1, tag, command, part: PartNumber(0), offset: 0, length: 1 }
        .to_bytes()
        .to_vec()
}

/// Says something, and gives back the last message before the node closes the connection.
fn last_words(node: &Running, bytes: &[u8]) -> Option<FromNode> {
    let mut stream = connect(node);
    let _ = stream.write_all(bytes);
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    let (mut assembler, mut last) = (Assembler::<ReplyHead, Vec<u8>>::new(), None);
    let mut input = &received[..];
    while let Some((_, payload)) = assembler.next(&mut input).unwrap() {
        last = decode(&payload).ok();
    }
    last
}

#[test]
fn a_gateway_that_sends_nonsense_gets_the_reason_and_is_disconnected() {
    let folder = tempfile::tempdir().unwrap();
    let node = start(config(folder.path())).unwrap();
    let open = |part| {
        let (volume, length, offset) = ("v".into(), Bytes(1), Bytes(0));
        let geometry = Geometry::single(length);
        frame(&ToNode::Open { part, volume, index: 0, length, offset, geometry })
    };
    let cases = [
        (vec![0xff; 48], "a reserved byte"),
        (a_read(), "a job before the hello"),
        (frame(&ToNode::Tenants(vec![])), "a message before the hello"),
        (frame(&ToNode::Hello { version: 99, release: "9".into() }), "speaks version 99"),
        ([hello(), hello()].concat(), "a second hello"),
        ([hello(), identify("other")].concat(), "a second identity"),
        (identify("g"), "a message before the hello"),
        ([hello(), open(PartNumber(1))].concat(), "out of order"),
        (
            [hello(), frame(&ToNode::Tenants(vec![]))[..48].to_vec(), vec![9; 48]].concat(),
            "no mess",
        ),
    ];
    for (bytes, expected) in cases {
        match last_words(&node, &bytes) {
            Some(FromNode::Refused { reason, .. }) => {
                assert!(reason.contains(expected), "{reason:?} for {expected:?}");
            }
            other => panic!("{other:?} for {expected:?}"),
        }
    }
    assert_eq!(node.status().connections.refused, 9);
    let mut client = Client::new(&node, &[]);
    let part = client.part;
    assert_eq!(client.request(read(part, 1, 0, 1)).outcome, Ok(()), "it serves others");
}

#[test]
fn a_gateway_that_vanishes_with_jobs_in_flight_harms_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let node = start(config(folder.path())).unwrap();
    let mut client = Client::new(&node, &[]);
    for cut in [10, 48, 60, 500] {
        let mut stream = connect(&node);
        let jobs: Vec<u8> = (0..50).flat_map(|_| a_read()).collect();
        let bytes = [hello(), jobs].concat();
        stream.write_all(&bytes[..bytes.len().min(cut)]).unwrap();
        drop(stream);
        let part = client.part;
        assert_eq!(client.request(read(part, 1, 0, 1)).outcome, Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_bytes_leave_the_node_serving(bytes: Vec<u8>, kind in 0u8..8, with_hello: bool) {
        let folder = tempfile::tempdir().unwrap();
        let node = start(config(folder.path())).unwrap();
        let mut stream = connect(&node);
        if with_hello {
            stream.write_all(&hello()).unwrap();
        }
        let _ = stream.write_all(&[&[kind][..], &bytes].concat());
        drop(stream);
        let mut client = Client::new(&node, &[]);
        let part = client.part;
        prop_assert_eq!(client.request(read(part, 1, 0, 1)).outcome, Ok(()));
    }
}
