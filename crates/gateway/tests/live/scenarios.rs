//! Scenarios of a gateway, step by step.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tidegate_fabric::service::{Command, Fault};
use tidegate_fabric::stream::Address;
use tidegate_gateway::{AnsweredRequests, Limits, NodeLocation, StartError, start};
use tidegate_model::Bytes;
use tidegate_wire::nbd::constants::{command, command_flag};

use crate::client::{Client, connect, is_closed};
use crate::memory::{Behaviour, Memory};
use crate::peer::Peer;
use crate::{Testbed, config, eventually, here, volume};

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8 ^ seed)).collect()
}

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ESHUTDOWN: u32 = 108;

#[test]
fn what_is_written_is_read_whatever_the_replies_and_the_layout() {
    let testbed = Testbed::new();
    for behaviour in [Behaviour::AtOnce, Behaviour::Later] {
        testbed.nodes.iter().for_each(|node| node.set(behaviour));
        for (structured, name) in [(false, "plain"), (true, "striped"), (false, "striped")] {
            let mut client = Client::enter(&testbed, name, structured);
            assert_eq!(client.size, 8 << 20);
            assert_eq!(client.flags, if structured { 0x5ed } else { 0x56d });
            for (offset, length) in [(0, 512), (16_000, 1000), (100, 3 << 20), (8 << 20, 0)] {
                let bytes = pattern(offset as u8, length);
                assert_eq!(client.write(offset, &bytes), 0);
                assert!(client.read(offset, length as u32) == Ok(bytes), "{offset} {length}");
            }
            // Another connection sees it as well.
            let mut other = Client::enter(&testbed, name, true);
            assert_eq!(other.read(100, 4), Ok(pattern(100, 4)));
            assert_eq!(client.command(command::TRIM, 0, 0, 4096), 0);
            assert_eq!(other.read(100, 4), Ok(vec![0; 4]));
            assert_eq!(client.command(command::WRITE_ZEROES, command_flag::NO_HOLE, 0, 8 << 20), 0);
            assert_eq!(client.command(command::WRITE, 0, 8 << 20, 0), 0);
            assert_eq!(client.read((8 << 20) - 1, 2), Err(EINVAL));
            assert_eq!(client.write((8 << 20) - 1, b"xx"), ENOSPC);
            assert_eq!(client.command(77, 0, 0, 0), EINVAL);
        }
    }
}

#[test]
fn a_flush_is_sent_to_every_node_and_writes_carry_their_durability() {
    let testbed = Testbed::new();
    let mut client = Client::enter(&testbed, "striped", true);
    assert_eq!(client.command(command::FLUSH, 0, 0, 0), 0);
    assert!(testbed.nodes.iter().all(|node| node.seen(Command::Flush) == 1));
    assert_eq!(client.command(command::WRITE_ZEROES, command_flag::FUA, 0, 20 << 10), 0);
    let durable = Command::Zero { allocate: false, durable: true };
    assert!(testbed.nodes.iter().all(|node| node.seen(durable) == 1));
    testbed.nodes[1].set(Behaviour::Failing(Fault::Io));
    assert_eq!(client.command(command::FLUSH, 0, 0, 0), EIO, "one node is enough");
}

#[test]
fn requests_belong_to_the_tenant_of_the_export() {
    let testbed = Testbed::new();
    for (export, owner) in [
        ("plain", "plain-owner"),
        ("plain@rom-owner", "rom-owner"),
        ("plain@plain-owner", "plain-owner"),
        ("plain", "plain-owner"),
    ] {
        assert!(Client::enter(&testbed, export, true).read(0, 512).is_ok());
        assert_eq!(testbed.nodes[0].last_owner(), owner);
    }
}

#[test]
fn while_a_node_is_away_the_others_serve_and_then_it_is_back() {
    let testbed = Testbed::new();
    let mut client = Client::enter(&testbed, "striped", true);
    assert_eq!(client.write(0, &pattern(1, 64 << 10)), 0);
    testbed.nodes[1].set(Behaviour::Failing(Fault::Io));
    assert_eq!(client.read(0, 16 << 10), Ok(pattern(1, 16 << 10)));
    assert_eq!(client.read(16 << 10, 512), Err(EIO));
    assert_eq!(client.read(0, 32 << 10), Err(EIO));
    testbed.nodes[1].set(Behaviour::AtOnce);
    assert_eq!(client.read(0, 64 << 10), Ok(pattern(1, 64 << 10)));
}

/// The memory of a worker that is for one large request.
const LARGE_REQUEST: usize = (32 << 20) + (64 << 10);

#[test]
fn a_connection_has_no_more_under_way_than_it_may() {
    // Two clients, of which each may have a little more than a mebibyte.
    let all_bytes = LARGE_REQUEST + 2 * ((1 << 20) + 4096);
    let limits = Limits { requests: 4, all_bytes, ..Limits::default() };
    let testbed = Testbed::with(limits, 1);
    let node = &testbed.nodes[0];
    node.set(Behaviour::OnDemand);
    let mut client = Client::enter(&testbed, "plain", true);
    let mut other = Client::enter(&testbed, "plain", true);
    for _ in 0..20 {
        client.request(command::READ, 0, 0, 512);
    }
    client.request(command::READ, 0, 0, 1 << 20);
    client.request(command::READ, 0, 0, 1 << 20);
    other.request(command::READ, 0, 0, 512);
    eventually("four of one and one of the other", || node.held() == 5);
    for round in 0..6 {
        let expected = if round < 5 { 4 } else { 1 };
        let others = usize::from(round == 0);
        eventually("the next ones", || node.held() == expected + others);
        node.release();
        (0..expected).for_each(|_| {
            let length = if round < 5 { 512 } else { 1 << 20 };
            assert_eq!(client.receive(length).errno, 0);
        });
    }
    assert_eq!(other.receive(512).errno, 0);
    eventually("the last one, alone because it is large", || node.held() == 1);
    node.release();
    assert_eq!(client.receive(1 << 20).data.len(), 1 << 20);
}

#[test]
fn many_clients_have_no_more_in_flight_than_few_and_no_client_is_kept_out() {
    let limits = Limits { all_requests: 64, ..Limits::default() };
    let testbed = Testbed::with(limits, 1);
    let node = &testbed.nodes[0];
    node.set(Behaviour::OnDemand);
    let mut clients: Vec<_> = (0..16).map(|_| Client::enter(&testbed, "plain", true)).collect();
    for client in &mut clients {
        for _ in 0..100 {
            client.request(command::READ, 0, 0, 512);
        }
    }
    eventually("four of each", || node.held() == 64);
    // One that comes later has its part as well, however long the others wait.
    let mut other = Client::enter(&testbed, "plain", true);
    other.request(command::READ, 0, 0, 512);
    eventually("one of the other", || node.held() == 65);
    // Once the others are gone, one may have all of it.
    clients.truncate(1);
    drop(other);
    eventually("four of the one that stays", || node.held() == 4);
    node.release();
    (0..4).for_each(|_| assert_eq!(clients[0].receive(512).errno, 0));
    eventually("as many as it may", || node.held() == 64);
    node.set(Behaviour::AtOnce);
    node.release();
    (4..100).for_each(|_| assert_eq!(clients[0].receive(512).errno, 0));
}

#[test]
fn a_client_that_does_not_read_its_answers_is_not_read_from() {
    let limits = Limits { all_bytes: LARGE_REQUEST + (512 << 10), ..Limits::default() };
    let testbed = Testbed::with(limits, 1);
    let mut client = Client::enter(&testbed, "plain", true);
    // So few that they fit the socket, whether or not they are read.
    for _ in 0..100 {
        client.request(command::READ, 0, 0, 64 << 10);
    }
    // Another client is served meanwhile, and the slow one gets all of it in the end.
    assert!(Client::enter(&testbed, "plain", true).read(0, 512).is_ok());
    assert!(testbed.nodes[0].seen(Command::Read) < 50, "{}", testbed.nodes[0].seen(Command::Read));
    (1..=100).for_each(|cookie| assert_eq!(client.receive(64 << 10).cookie, cookie));
}

#[test]
fn requests_of_a_client_that_is_gone_are_given_up() {
    let testbed = Testbed::new();
    let node = &testbed.nodes[0];
    node.set(Behaviour::OnDemand);
    let mut client = Client::enter(&testbed, "striped", true);
    let mut other = Client::enter(&testbed, "plain", true);
    client.request(command::READ, 0, 0, 512);
    client.request(command::READ, 0, 0, 20 << 10);
    other.request(command::READ, 0, 0, 512);
    eventually("three jobs", || node.held() == 3);
    drop(client);
    eventually("only the other's", || node.held() == 1 && testbed.gateway.clients() == 1);
    assert_eq!(node.cancelled(), 2);
    node.release();
    assert_eq!(other.receive(512).errno, 0);
}

#[test]
fn who_leaves_in_order_is_answered_first() {
    let testbed = Testbed::new();
    let node = &testbed.nodes[0];
    node.set(Behaviour::OnDemand);
    let mut client = Client::enter(&testbed, "plain", true);
    client.request(command::READ, 0, 0, 512);
    client.request(command::DISC, 0, 0, 0);
    eventually("one job", || node.held() == 1);
    node.release();
    assert_eq!(client.receive(512).errno, 0);
    assert!(client.is_closed());
}

#[test]
fn who_leaves_in_order_and_does_not_wait_has_written() {
    let testbed = Testbed::new();
    let node = &testbed.nodes[0];
    node.set(Behaviour::OnDemand);
    let mut client = Client::enter(&testbed, "plain", true);
    client.request(command::WRITE, 0, 0, 512);
    client.send(&[9; 512]);
    client.request(command::DISC, 0, 0, 0);
    eventually("one job", || node.held() == 1);
    drop(client);
    eventually("nobody", || testbed.gateway.clients() == 0);
    assert_eq!((node.held(), node.cancelled()), (1, 0));
    node.release();
    node.set(Behaviour::AtOnce);
    assert_eq!(Client::enter(&testbed, "plain", true).read(0, 512), Ok(vec![9; 512]));
}

#[test]
fn nonsense_ends_its_own_connection_only() {
    let testbed = Testbed::new();
    let mut good = Client::enter(&testbed, "plain", true);
    let mut bad = Client::enter(&testbed, "plain", true);
    bad.send(&[0x25; 28]);
    assert!(bad.is_closed());
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64]] {
        let mut stream = connect(&testbed);
        stream.write_all(nonsense).unwrap();
        assert!(is_closed(&mut stream));
    }
    assert!(good.read(0, 512).is_ok());
}

#[test]
fn who_does_not_get_to_the_point_is_not_waited_for() {
    let limits = Limits { handshake: Duration::from_millis(50), ..Limits::default() };
    let testbed = Testbed::with(limits, 1);
    let mut silent = connect(&testbed);
    let mut good = Client::enter(&testbed, "plain", true);
    assert!(is_closed(&mut silent));
    eventually("the other one", || testbed.gateway.clients() == 1);
    assert!(good.read(0, 512).is_ok(), "who has chosen may stay");
}

#[test]
fn one_too_many_is_turned_away() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let testbed = Testbed::with(limits, 2);
    let first = Client::enter(&testbed, "plain", true);
    let mut second = Client::enter(&testbed, "plain", true);
    assert!(is_closed(&mut connect(&testbed)));
    assert!(second.read(0, 512).is_ok());
    drop(first);
    eventually("room", || testbed.gateway.clients() == 1);
    assert!(Client::enter(&testbed, "plain", true).read(0, 512).is_ok());
}

#[test]
fn at_the_end_what_is_under_way_is_finished_and_the_rest_refused() {
    let Testbed { folder, nodes, gateway } = Testbed::new();
    let testbed = Testbed { folder, nodes: nodes.clone(), gateway };
    let node = nodes[0].clone();
    node.set(Behaviour::OnDemand);
    let mut client = Client::enter(&testbed, "plain", true);
    let mut silent = connect(&testbed);
    client.request(command::READ, 0, 0, 512);
    eventually("one job", || node.held() == 1);
    let socket = testbed.socket();
    let Testbed { gateway, .. } = testbed;
    let stop = std::thread::spawn(move || gateway.stop());
    assert!(is_closed(&mut silent));
    client.request(command::READ, 0, 0, 512);
    assert_eq!(client.receive(512).errno, ESHUTDOWN, "what comes now is too late");
    node.release();
    assert_eq!(client.receive(512).data.len(), 512, "what was under way is not");
    assert!(client.is_closed());
    stop.join().unwrap().unwrap();
    assert!(!std::path::Path::new(&socket).exists());
}

#[test]
fn at_the_very_end_waiting_requests_fail_with_a_reason() {
    let limits = Limits { drain: Duration::from_millis(50), ..Limits::default() };
    let testbed = Testbed::with(limits, 1);
    let node = testbed.nodes[0].clone();
    node.set(Behaviour::OnDemand);
    let mut client = Client::enter(&testbed, "plain", false);
    client.request(command::READ, 0, 0, 512);
    eventually("one job", || node.held() == 1);
    testbed.gateway.stop().unwrap();
    assert_eq!(client.receive(512).errno, ESHUTDOWN);
    assert!(client.is_closed());
    node.release();
}

#[test]
fn holes_are_reported() {
    let testbed = Testbed::new();
    let mut client = Client::enter(&testbed, "striped", true);
    assert_eq!(client.write(16 << 10, &pattern(3, 16 << 10)), 0);
    client.request(command::BLOCK_STATUS, 0, 0, 64 << 10);
    let output = client.receive(0).data;
    let extents: Vec<u32> =
        output.as_chunks().0.iter().map(|four| u32::from_be_bytes(*four)).collect();
    assert_eq!(extents, [16 << 10, 3, 16 << 10, 0, 32 << 10, 3]);
    let mut plain = Client::enter(&testbed, "striped", false);
    assert_eq!(plain.command(command::BLOCK_STATUS, 0, 0, 4096), EINVAL);
}

#[test]
fn what_cannot_be_had_is_one_error_and_leaves_nothing() {
    let testbed = Testbed::new();
    let nodes = [Memory::default(), Memory::default()];
    let busy = start(config(&testbed.folder, Limits::default(), 1), &here(&nodes)).unwrap_err();
    let output = busy.to_string();
    assert!(matches!(busy, StartError::Bind(_)) && output.contains("listens on"), "{output}");
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder, Limits::default(), 1);
    config.volumes.push(volume("large", 4 << 30, &[1, 0]));
    config.volumes.last_mut().unwrap().size = Bytes(4096);
    config.volumes.last_mut().unwrap().nodes[0].0 = 9;
    let refused = start(config, &here(&nodes)).unwrap_err();
    assert_eq!(refused.to_string(), "volume large, part 0: there is no node 9");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_volume_of_which_a_part_is_refused_fails_and_the_others_serve() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(&folder, Limits::default(), 1);
    // Its second part is more than the node has.
    config.volumes.push(volume("large", 4 << 30, &[1, 0]));
    let nodes = [Memory::default(), Memory::default()];
    let gateway = start(config, &here(&nodes)).unwrap();
    let testbed = Testbed { folder, nodes, gateway };
    let mut large = Client::enter(&testbed, "large", true);
    assert_eq!(large.read(0, 512), Err(EIO));
    assert_eq!(large.write(0, &[1; 512]), EIO);
    assert_eq!(large.command(command::FLUSH, 0, 0, 0), EIO);
    assert!(Client::enter(&testbed, "striped", true).read(0, 512).is_ok());
}

#[test]
fn requests_are_counted_by_volume() {
    let testbed = Testbed::new();
    let mut client = Client::enter(&testbed, "striped", true);
    assert_eq!(client.write(0, &pattern(1, 64 << 10)), 0);
    assert!(client.read(0, 32 << 10).is_ok());
    assert_eq!(client.command(command::FLUSH, 0, 0, 0), 0);
    testbed.nodes[1].set(Behaviour::Failing(Fault::Io));
    assert_eq!(client.read(0, 32 << 10), Err(EIO));
    assert_eq!(client.read(8 << 20, 512), Err(EINVAL), "there is nothing");
    let counts = testbed.gateway.counts();
    let flow = |name: &str, requests, bytes, errors| AnsweredRequests {
        name: name.into(),
        requests,
        bytes,
        errors,
    };
    let volumes = [flow("plain", 0, 0, 0), flow("striped", 4, 96 << 10, 1), flow("rom", 0, 0, 0)];
    assert_eq!((counts.volumes, counts.pools), (volumes.into(), vec![]));
    assert_eq!(counts.tenants, [flow("striped-owner", 4, 96 << 10, 1)]);
    assert_eq!((counts.faults, counts.refused), (vec![("io".into(), 1)], 1));
    assert_eq!((counts.clients, counts.admitted, counts.turned_away), (1, 1, 0));
    assert_eq!((counts.pid, counts.nbd.len()), (std::process::id(), 2));
}

#[test]
fn costs_elsewhere_are_reported_once_to_each_node() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = [Memory::default(), Memory::default()];
    let path = folder.path().join("node.sock");
    let peer = Peer::start(path.clone(), nodes[1].clone());
    let way = Address::Unix(path).into();
    let services = [
        NodeLocation::Here(Arc::new(nodes[0].clone())),
        NodeLocation::There { name: "far".into(), way },
    ];
    let gateway = start(config(&folder, Limits::default(), 2), &services).unwrap();
    let testbed = Testbed { folder, nodes, gateway };
    let mut clients = [0, 1, 2].map(|_| Client::enter(&testbed, "striped", true));
    for round in 0..60 {
        let at = (round % 7) * (12 << 10);
        assert!(clients[round % 3].read(at as u64, 20 << 10).is_ok());
    }
    // Each with the requests to it; and alone what came after the last of them.
    let [a, b] = &testbed.nodes;
    let is_all =
        |node: &Memory, other: &Memory| node.elsewhere_bytes().iter().sum::<u64>() == other.moved();
    eventually("all of it", || is_all(a, b) && is_all(b, a));
    assert!(a.elsewhere_bytes()[0] > 0 && b.elsewhere_bytes()[0] > 0);
    // Also a node to which nothing is sent.
    let before = b.elsewhere_bytes();
    assert!(Client::enter(&testbed, "plain@striped-owner", true).read(0, 512).is_ok());
    eventually("what went to the other", || b.elsewhere_bytes() == [before[0], before[1] + 512]);
    // While its socket is there.
    drop(peer);
}

#[test]
fn the_greeting_comes_unasked() {
    let testbed = Testbed::new();
    let mut greeting = [0; 18];
    connect(&testbed).read_exact(&mut greeting).unwrap();
    assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
    let Address::Tcp(address) = testbed.gateway.addresses()[1] else { unreachable!() };
    TcpStream::connect(address).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
}
