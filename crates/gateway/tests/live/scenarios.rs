//! Scenarios of a gateway, step by step.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tidegate_fabric::service::{Command, Fault};
use tidegate_fabric::stream::Address;
use tidegate_gateway::nbd::wire::{command, flag};
use tidegate_gateway::{Flow, Limits, Node, StartError, start};
use tidegate_model::Bytes;

use crate::client::{Client, connect, is_closed};
use crate::memory::{Manner, Memory};
use crate::peer::Peer;
use crate::{Stand, config, eventually, here, volume};

fn pattern(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8 ^ seed)).collect()
}

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ESHUTDOWN: u32 = 108;

#[test]
fn what_is_written_is_read_whatever_the_replies_and_the_layout() {
    let stand = Stand::new();
    for manner in [Manner::AtOnce, Manner::Later] {
        stand.nodes.iter().for_each(|node| node.set(manner));
        for (structured, name) in [(false, "plain"), (true, "striped"), (false, "striped")] {
            let mut client = Client::enter(&stand, name, structured);
            assert_eq!(client.size, 8 << 20);
            assert_eq!(client.flags, if structured { 0x5ed } else { 0x56d });
            for (offset, length) in [(0, 512), (16_000, 1000), (100, 3 << 20), (8 << 20, 0)] {
                let bytes = pattern(offset as u8, length);
                assert_eq!(client.write(offset, &bytes), 0);
                assert!(client.read(offset, length as u32) == Ok(bytes), "{offset} {length}");
            }
            // Another connection sees it as well.
            let mut other = Client::enter(&stand, name, true);
            assert_eq!(other.read(100, 4), Ok(pattern(100, 4)));
            assert_eq!(client.command(command::TRIM, 0, 0, 4096), 0);
            assert_eq!(other.read(100, 4), Ok(vec![0; 4]));
            assert_eq!(client.command(command::WRITE_ZEROES, flag::NO_HOLE, 0, 8 << 20), 0);
            assert_eq!(client.command(command::WRITE, 0, 8 << 20, 0), 0);
            assert_eq!(client.read((8 << 20) - 1, 2), Err(EINVAL));
            assert_eq!(client.write((8 << 20) - 1, b"xx"), ENOSPC);
            assert_eq!(client.command(77, 0, 0, 0), EINVAL);
        }
    }
}

#[test]
fn a_flush_reaches_every_node_and_writes_say_whether_they_are_to_last() {
    let stand = Stand::new();
    let mut client = Client::enter(&stand, "striped", true);
    assert_eq!(client.command(command::FLUSH, 0, 0, 0), 0);
    assert!(stand.nodes.iter().all(|node| node.seen(Command::Flush) == 1));
    assert_eq!(client.command(command::WRITE_ZEROES, flag::FUA, 0, 20 << 10), 0);
    let durable = Command::Zero { allocate: false, durable: true };
    assert!(stand.nodes.iter().all(|node| node.seen(durable) == 1));
    stand.nodes[1].set(Manner::Failing(Fault::Io));
    assert_eq!(client.command(command::FLUSH, 0, 0, 0), EIO, "one node is enough");
}

#[test]
fn requests_are_whose_the_export_says() {
    let stand = Stand::new();
    for (export, owner) in [
        ("plain", "plain-owner"),
        ("plain@rom-owner", "rom-owner"),
        ("plain@plain-owner", "plain-owner"),
        ("plain", "plain-owner"),
    ] {
        assert!(Client::enter(&stand, export, true).read(0, 512).is_ok());
        assert_eq!(stand.nodes[0].last_owner(), owner);
    }
}

#[test]
fn while_a_node_is_away_the_others_serve_and_then_it_is_back() {
    let stand = Stand::new();
    let mut client = Client::enter(&stand, "striped", true);
    assert_eq!(client.write(0, &pattern(1, 64 << 10)), 0);
    stand.nodes[1].set(Manner::Failing(Fault::Io));
    assert_eq!(client.read(0, 16 << 10), Ok(pattern(1, 16 << 10)));
    assert_eq!(client.read(16 << 10, 512), Err(EIO));
    assert_eq!(client.read(0, 32 << 10), Err(EIO));
    stand.nodes[1].set(Manner::AtOnce);
    assert_eq!(client.read(0, 64 << 10), Ok(pattern(1, 64 << 10)));
}

/// The memory of a worker that is for one large request.
const LANE: usize = (32 << 20) + (64 << 10);

#[test]
fn a_connection_has_no_more_under_way_than_it_may() {
    // Two clients, of which each may have a little more than a mebibyte.
    let all_bytes = LANE + 2 * ((1 << 20) + 4096);
    let limits = Limits { requests: 4, all_bytes, ..Limits::default() };
    let stand = Stand::with(limits, 1);
    let node = &stand.nodes[0];
    node.set(Manner::OnDemand);
    let mut client = Client::enter(&stand, "plain", true);
    let mut other = Client::enter(&stand, "plain", true);
    for _ in 0..20 {
        client.ask(command::READ, 0, 0, 512);
    }
    client.ask(command::READ, 0, 0, 1 << 20);
    client.ask(command::READ, 0, 0, 1 << 20);
    other.ask(command::READ, 0, 0, 512);
    eventually("four of one and one of the other", || node.held() == 5);
    for round in 0..6 {
        let expected = if round < 5 { 4 } else { 1 };
        let others = usize::from(round == 0);
        eventually("the next ones", || node.held() == expected + others);
        node.release();
        (0..expected).for_each(|_| {
            let length = if round < 5 { 512 } else { 1 << 20 };
            assert_eq!(client.hear(length).errno, 0);
        });
    }
    assert_eq!(other.hear(512).errno, 0);
    eventually("the last one, alone because it is large", || node.held() == 1);
    node.release();
    assert_eq!(client.hear(1 << 20).data.len(), 1 << 20);
}

#[test]
fn many_clients_have_no_more_under_way_than_few_and_nobody_is_kept_out() {
    let limits = Limits { all_requests: 64, ..Limits::default() };
    let stand = Stand::with(limits, 1);
    let node = &stand.nodes[0];
    node.set(Manner::OnDemand);
    let mut clients: Vec<_> = (0..16).map(|_| Client::enter(&stand, "plain", true)).collect();
    for client in &mut clients {
        for _ in 0..100 {
            client.ask(command::READ, 0, 0, 512);
        }
    }
    eventually("four of each", || node.held() == 64);
    // One that comes later has its part as well, however long the others wait.
    let mut other = Client::enter(&stand, "plain", true);
    other.ask(command::READ, 0, 0, 512);
    eventually("one of the other", || node.held() == 65);
    // Once the others are gone, one may have all of it.
    clients.truncate(1);
    drop(other);
    eventually("four of the one that stays", || node.held() == 4);
    node.release();
    (0..4).for_each(|_| assert_eq!(clients[0].hear(512).errno, 0));
    eventually("as many as it may", || node.held() == 64);
    node.set(Manner::AtOnce);
    node.release();
    (4..100).for_each(|_| assert_eq!(clients[0].hear(512).errno, 0));
}

#[test]
fn a_client_that_does_not_read_its_answers_is_not_read_from() {
    let limits = Limits { all_bytes: LANE + (512 << 10), ..Limits::default() };
    let stand = Stand::with(limits, 1);
    let mut client = Client::enter(&stand, "plain", true);
    // So few that they fit the socket, whether or not they are read.
    for _ in 0..100 {
        client.ask(command::READ, 0, 0, 64 << 10);
    }
    // Somebody else is served meanwhile, and the slow one gets all of it in the end.
    assert!(Client::enter(&stand, "plain", true).read(0, 512).is_ok());
    assert!(stand.nodes[0].seen(Command::Read) < 50, "{}", stand.nodes[0].seen(Command::Read));
    (1..=100).for_each(|cookie| assert_eq!(client.hear(64 << 10).cookie, cookie));
}

#[test]
fn requests_of_a_client_that_is_gone_are_given_up() {
    let stand = Stand::new();
    let node = &stand.nodes[0];
    node.set(Manner::OnDemand);
    let mut client = Client::enter(&stand, "striped", true);
    let mut other = Client::enter(&stand, "plain", true);
    client.ask(command::READ, 0, 0, 512);
    client.ask(command::READ, 0, 0, 20 << 10);
    other.ask(command::READ, 0, 0, 512);
    eventually("three jobs", || node.held() == 3);
    drop(client);
    eventually("only the other's", || node.held() == 1 && stand.gateway.clients() == 1);
    assert_eq!(node.cancelled(), 2);
    node.release();
    assert_eq!(other.hear(512).errno, 0);
}

#[test]
fn who_leaves_in_order_is_answered_first() {
    let stand = Stand::new();
    let node = &stand.nodes[0];
    node.set(Manner::OnDemand);
    let mut client = Client::enter(&stand, "plain", true);
    client.ask(command::READ, 0, 0, 512);
    client.ask(command::DISC, 0, 0, 0);
    eventually("one job", || node.held() == 1);
    node.release();
    assert_eq!(client.hear(512).errno, 0);
    assert!(client.is_closed());
}

#[test]
fn who_leaves_in_order_and_does_not_wait_has_written() {
    let stand = Stand::new();
    let node = &stand.nodes[0];
    node.set(Manner::OnDemand);
    let mut client = Client::enter(&stand, "plain", true);
    client.ask(command::WRITE, 0, 0, 512);
    client.say(&[9; 512]);
    client.ask(command::DISC, 0, 0, 0);
    eventually("one job", || node.held() == 1);
    drop(client);
    eventually("nobody", || stand.gateway.clients() == 0);
    assert_eq!((node.held(), node.cancelled()), (1, 0));
    node.release();
    node.set(Manner::AtOnce);
    assert_eq!(Client::enter(&stand, "plain", true).read(0, 512), Ok(vec![9; 512]));
}

#[test]
fn nonsense_ends_its_own_connection_only() {
    let stand = Stand::new();
    let mut good = Client::enter(&stand, "plain", true);
    let mut bad = Client::enter(&stand, "plain", true);
    bad.say(&[0x25; 28]);
    assert!(bad.is_closed());
    for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64]] {
        let mut stream = connect(&stand);
        stream.write_all(nonsense).unwrap();
        assert!(is_closed(&mut stream));
    }
    assert!(good.read(0, 512).is_ok());
}

#[test]
fn who_does_not_get_to_the_point_is_not_waited_for() {
    let limits = Limits { handshake: Duration::from_millis(50), ..Limits::default() };
    let stand = Stand::with(limits, 1);
    let mut silent = connect(&stand);
    let mut good = Client::enter(&stand, "plain", true);
    assert!(is_closed(&mut silent));
    eventually("the other one", || stand.gateway.clients() == 1);
    assert!(good.read(0, 512).is_ok(), "who has chosen may stay");
}

#[test]
fn one_too_many_is_turned_away() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let stand = Stand::with(limits, 2);
    let first = Client::enter(&stand, "plain", true);
    let mut second = Client::enter(&stand, "plain", true);
    assert!(is_closed(&mut connect(&stand)));
    assert!(second.read(0, 512).is_ok());
    drop(first);
    eventually("room", || stand.gateway.clients() == 1);
    assert!(Client::enter(&stand, "plain", true).read(0, 512).is_ok());
}

#[test]
fn at_the_end_what_is_under_way_is_finished_and_the_rest_refused() {
    let Stand { folder, nodes, gateway } = Stand::new();
    let stand = Stand { folder, nodes: nodes.clone(), gateway };
    let node = nodes[0].clone();
    node.set(Manner::OnDemand);
    let mut client = Client::enter(&stand, "plain", true);
    let mut shaking = connect(&stand);
    client.ask(command::READ, 0, 0, 512);
    eventually("one job", || node.held() == 1);
    let socket = stand.socket();
    let Stand { gateway, .. } = stand;
    let stop = std::thread::spawn(move || gateway.stop());
    assert!(is_closed(&mut shaking));
    client.ask(command::READ, 0, 0, 512);
    assert_eq!(client.hear(512).errno, ESHUTDOWN, "what comes now is too late");
    node.release();
    assert_eq!(client.hear(512).data.len(), 512, "what was under way is not");
    assert!(client.is_closed());
    stop.join().unwrap().unwrap();
    assert!(!std::path::Path::new(&socket).exists());
}

#[test]
fn at_the_very_end_whoever_still_waits_is_told_so() {
    let limits = Limits { drain: Duration::from_millis(50), ..Limits::default() };
    let stand = Stand::with(limits, 1);
    let node = stand.nodes[0].clone();
    node.set(Manner::OnDemand);
    let mut client = Client::enter(&stand, "plain", false);
    client.ask(command::READ, 0, 0, 512);
    eventually("one job", || node.held() == 1);
    stand.gateway.stop().unwrap();
    assert_eq!(client.hear(512).errno, ESHUTDOWN);
    assert!(client.is_closed());
    node.release();
}

#[test]
fn holes_are_told() {
    let stand = Stand::new();
    let mut client = Client::enter(&stand, "striped", true);
    assert_eq!(client.write(16 << 10, &pattern(3, 16 << 10)), 0);
    client.ask(command::BLOCK_STATUS, 0, 0, 64 << 10);
    let said = client.hear(0).data;
    let extents: Vec<u32> =
        said.as_chunks().0.iter().map(|four| u32::from_be_bytes(*four)).collect();
    assert_eq!(extents, [16 << 10, 3, 16 << 10, 0, 32 << 10, 3]);
    let mut plain = Client::enter(&stand, "striped", false);
    assert_eq!(plain.command(command::BLOCK_STATUS, 0, 0, 4096), EINVAL);
}

#[test]
fn what_cannot_be_had_is_one_error_and_leaves_nothing() {
    let stand = Stand::new();
    let nodes = [Memory::default(), Memory::default()];
    let busy = start(config(&stand.folder, Limits::default(), 1), &here(&nodes)).unwrap_err();
    let said = busy.to_string();
    assert!(matches!(busy, StartError::Bind(_)) && said.contains("listens on"), "{said}");
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
    let stand = Stand { folder, nodes, gateway };
    let mut large = Client::enter(&stand, "large", true);
    assert_eq!(large.read(0, 512), Err(EIO));
    assert_eq!(large.write(0, &[1; 512]), EIO);
    assert_eq!(large.command(command::FLUSH, 0, 0, 0), EIO);
    assert!(Client::enter(&stand, "striped", true).read(0, 512).is_ok());
}

#[test]
fn what_was_asked_is_counted_by_volume() {
    let stand = Stand::new();
    let mut client = Client::enter(&stand, "striped", true);
    assert_eq!(client.write(0, &pattern(1, 64 << 10)), 0);
    assert!(client.read(0, 32 << 10).is_ok());
    assert_eq!(client.command(command::FLUSH, 0, 0, 0), 0);
    stand.nodes[1].set(Manner::Failing(Fault::Io));
    assert_eq!(client.read(0, 32 << 10), Err(EIO));
    assert_eq!(client.read(8 << 20, 512), Err(EINVAL), "there is nothing");
    let counts = stand.gateway.counts();
    let flow =
        |name: &str, requests, bytes, errors| Flow { name: name.into(), requests, bytes, errors };
    let volumes = [flow("plain", 0, 0, 0), flow("striped", 4, 96 << 10, 1), flow("rom", 0, 0, 0)];
    assert_eq!((counts.volumes, counts.pools), (volumes.into(), vec![]));
    assert_eq!(counts.tenants, [flow("striped-owner", 4, 96 << 10, 1)]);
    assert_eq!((counts.faults, counts.refused), (vec![("io".into(), 1)], 1));
    assert_eq!((counts.clients, counts.admitted, counts.turned_away), (1, 1, 0));
    assert_eq!((counts.pid, counts.nbd.len()), (std::process::id(), 2));
}

#[test]
fn nodes_are_told_once_what_was_sent_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = [Memory::default(), Memory::default()];
    let path = folder.path().join("node.sock");
    let peer = Peer::start(path.clone(), nodes[1].clone());
    let way = Address::Unix(path).into();
    let services =
        [Node::Here(Arc::new(nodes[0].clone())), Node::There { name: "far".into(), way }];
    let gateway = start(config(&folder, Limits::default(), 2), &services).unwrap();
    let stand = Stand { folder, nodes, gateway };
    let mut clients = [0, 1, 2].map(|_| Client::enter(&stand, "striped", true));
    for round in 0..60 {
        let at = (round % 7) * (12 << 10);
        assert!(clients[round % 3].read(at as u64, 20 << 10).is_ok());
    }
    // Each with the requests to it; and alone what came after the last of them.
    let [a, b] = &stand.nodes;
    let is_all = |node: &Memory, other: &Memory| node.told().iter().sum::<u64>() == other.moved();
    eventually("all of it", || is_all(a, b) && is_all(b, a));
    assert!(a.told()[0] > 0 && b.told()[0] > 0);
    // Also a node to which nothing is sent.
    let before = b.told();
    assert!(Client::enter(&stand, "plain@striped-owner", true).read(0, 512).is_ok());
    eventually("what went to the other", || b.told() == [before[0], before[1] + 512]);
    // While its socket is there.
    drop(peer);
}

#[test]
fn the_greeting_comes_unasked() {
    let stand = Stand::new();
    let mut greeting = [0; 18];
    connect(&stand).read_exact(&mut greeting).unwrap();
    assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
    let Address::Tcp(address) = stand.gateway.addresses()[1] else { unreachable!() };
    TcpStream::connect(address).unwrap().read_exact(&mut greeting).unwrap();
    assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
}
