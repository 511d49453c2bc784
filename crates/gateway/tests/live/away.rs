//! Nodes behind sockets: the same service, and what happens when one is away.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_fabric::service::Command;
use tidegate_fabric::stream::Address;
use tidegate_gateway::{Limits, NodeLocation, start};
use tidegate_wire::nbd::constants::command;

use crate::client::Client;
use crate::memory::{Behaviour, Memory};
use crate::peer::Peer;
use crate::{Testbed, config, eventually};

const EIO: u32 = 5;

/// A testbed whose second node is behind a socket without a listener yet, and is not waited for
/// as long as usual.
fn testbed() -> (Testbed, PathBuf) {
    testbed_with(Duration::from_millis(50))
}

fn testbed_with(patience: Duration) -> (Testbed, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.sock");
    testbed_in(folder, path, patience)
}

/// The same with a second node that others may have, too.
fn testbed_at(path: &Path) -> Testbed {
    testbed_in(tempfile::tempdir().unwrap(), path.into(), Duration::from_millis(50)).0
}

fn testbed_in(folder: TempDir, path: PathBuf, patience: Duration) -> (Testbed, PathBuf) {
    testbed_over([Memory::default(), Memory::default()], folder, path, patience)
}

fn testbed_over(
    nodes: [Memory; 2],
    folder: TempDir,
    path: PathBuf,
    patience: Duration,
) -> (Testbed, PathBuf) {
    let limits = Limits { patience, ..Limits::default() };
    let there = NodeLocation::There { name: "far".into(), way: Address::Unix(path.clone()).into() };
    let here = NodeLocation::Here(Arc::new(nodes[0].clone()));
    let gateway = start(config(&folder, limits, 1), &[here, there]).unwrap();
    (Testbed { folder, nodes, gateway }, path)
}

#[test]
fn a_node_behind_a_socket_serves_like_any_other() {
    let (testbed, path) = testbed();
    let mut client = Client::enter(&testbed, "striped@rom-owner", true);
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    eventually("the node", || client.read(0, 64 << 10).is_ok());
    for behaviour in [Behaviour::AtOnce, Behaviour::Later] {
        testbed.nodes[1].set(behaviour);
        let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 7) as u8).collect();
        assert_eq!(client.write(5000, &bytes), 0);
        assert!(client.read(5000, 3 << 20) == Ok(bytes));
        assert_eq!(client.command(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(client.command(command::WRITE_ZEROES, 0, 0, 4 << 20), 0);
        assert!(client.read(5000, 3 << 20) == Ok(vec![0; 3 << 20]));
    }
    assert_eq!(testbed.nodes[1].last_owner(), "rom-owner");
    client.request(command::BLOCK_STATUS, 0, 0, 64 << 10);
    assert_eq!(client.receive(0).data, [0, 1, 0, 0, 0, 0, 0, 3]);
}

#[test]
fn short_requests_do_not_wait_for_long_ones_on_the_way_to_a_node() {
    let (testbed, path) = testbed();
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    let mut client = Client::enter(&testbed, "rom", true);
    eventually("the node", || client.read(0, 4 << 10).is_ok());
    testbed.nodes[1].stick_at_long();
    let mut greedy = Client::enter(&testbed, "rom", true);
    greedy.request_reads(0, 1 << 20, 16);
    // The greedy requests have been passed on when one that came behind them is answered.
    greedy.request(command::READ, 0, 0, 4 << 10);
    assert_eq!(greedy.receive(4 << 10).errno, 0);
    for _ in 0..100 {
        assert_eq!(client.read(0, 4 << 10), Ok(vec![0; 4 << 10]));
    }
}

#[test]
fn while_it_is_away_its_part_fails_and_then_it_is_back() {
    let (testbed, path) = testbed();
    let mut client = Client::enter(&testbed, "striped", true);
    assert_eq!(client.read(16 << 10, 512), Err(EIO), "it was never there");
    let away = format!("node far at unix:{} is away: ", path.display());
    let is_away = || testbed.gateway.unready().iter().any(|reason| reason.starts_with(&away));
    eventually("that it is known", is_away);
    let peer = Peer::start(path.clone(), testbed.nodes[1].clone());
    eventually("the node", || client.read(16 << 10, 512).is_ok());
    eventually("that all is ready", || testbed.gateway.unready().is_empty());
    testbed.nodes[1].set(Behaviour::OnDemand);
    client.request(command::READ, 0, 16 << 10, 512);
    client.request(command::READ, 0, 0, 32 << 10);
    eventually("two jobs", || testbed.nodes[1].held() == 2);
    drop(peer);
    assert_eq!(
        (client.receive(512).errno, client.receive(0).errno),
        (EIO, EIO),
        "they are lost with it"
    );
    assert!(client.read(0, 512).is_ok(), "the other node serves");
    eventually("that it is known again", is_away);
    assert_eq!(client.read(16 << 10, 512), Err(EIO));
    testbed.nodes[1].set(Behaviour::AtOnce);
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    eventually("the node again", || client.read(16 << 10, 512).is_ok());
}

#[test]
fn a_node_behind_a_socket_learns_which_clients_are_gone() {
    let (testbed, path) = testbed();
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    let mut client = Client::enter(&testbed, "striped", true);
    eventually("the node", || client.read(16 << 10, 512).is_ok());
    testbed.nodes[1].set(Behaviour::OnDemand);
    client.request(command::READ, 0, 16 << 10, 512);
    eventually("one job", || testbed.nodes[1].held() == 1);
    drop(client);
    eventually("no job", || testbed.nodes[1].held() == 0);
    assert_eq!(testbed.nodes[1].cancelled(), 1);
}

#[test]
fn requests_wait_for_a_node_that_restarts() {
    let (testbed, path) = testbed_with(crate::PATIENCE);
    let mut client = Client::enter(&testbed, "striped", true);
    client.request(command::READ, 0, 16 << 10, 512);
    assert!(client.read(0, 512).is_ok(), "the other node serves meanwhile");
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    assert_eq!(client.receive(512).errno, 0);
}

fn flush(client: &mut Client) -> u32 {
    client.command(command::FLUSH, 0, 0, 0)
}

#[test]
fn a_request_that_waits_for_a_node_is_not_sent_to_a_part_of_another_volume() {
    let nodes = [Memory::default(), Memory::default()];
    nodes.iter().for_each(|node| node.belongs_to(1));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.sock");
    let (testbed, path) = testbed_over(nodes, folder, path, crate::PATIENCE);
    let peer = Peer::start(path.clone(), testbed.nodes[1].clone());
    let mut client = Client::enter(&testbed, "striped", true);
    assert_eq!(client.write(16 << 10, &[7; 512]), 0);
    let away = || !testbed.gateway.unready().is_empty();
    drop(peer);
    eventually("that it is known", away);
    testbed.nodes[1].belongs_to(2);
    client.request(command::READ, 0, 16 << 10, 512);
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    assert_eq!(client.receive(0).errno, EIO, "the part is another volume's");
    assert_eq!(client.write(16 << 10, &[8; 512]), EIO);
    assert_eq!(testbed.nodes[1].seen(Command::Read), 0);
    assert_eq!(testbed.nodes[1].seen(Command::Write { durable: false }), 1);
}

#[test]
fn writes_that_were_lost_are_known_from_whichever_link_reached_the_node_first() {
    let (testbed, path) = testbed();
    testbed.nodes[1].belongs_to(1);
    testbed.nodes[1].set_bulk_only(true);
    let peer = Peer::start(path.clone(), testbed.nodes[1].clone());
    let mut client = Client::enter(&testbed, "rom", true);
    eventually("the node", || client.read(0, 1 << 20).is_ok());
    drop(peer);
    testbed.nodes[1].lose();
    testbed.nodes[1].set_bulk_only(false);
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    eventually("the node again", || client.read(0, 512).is_ok());
    assert_eq!(flush(&mut client), EIO, "the first process had other data");
}

#[test]
fn a_flush_fails_on_every_connection_after_a_node_lost_writes_until_it_connects_anew() {
    let (testbed, path) = testbed();
    let other = testbed_at(&path);
    testbed.nodes[1].belongs_to(1);
    let mut peer = Peer::start(path.clone(), testbed.nodes[1].clone());
    let enter = |testbed| {
        let mut client = Client::enter(testbed, "striped", true);
        eventually("the node", || client.read(16 << 10, 512).is_ok());
        client
    };
    let mut clients: Vec<_> = (0..3).map(|_| enter(&testbed)).collect();
    clients.push(enter(&other));
    assert_eq!(clients[0].write(16 << 10, &[7; 512]), 0);
    // A node that comes back with everything is as good as one that never left.
    drop(peer);
    peer = Peer::start(path.clone(), testbed.nodes[1].clone());
    for client in &mut clients {
        eventually("the node again", || client.read(16 << 10, 512).is_ok());
        assert_eq!(flush(client), 0, "nothing was lost");
    }
    drop(peer);
    testbed.nodes[1].lose();
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    for client in &mut clients {
        eventually("the node again", || client.read(16 << 10, 512).is_ok());
        assert_eq!([flush(client), flush(client)], [EIO; 2], "it stays so");
    }
    assert_eq!(flush(&mut enter(&testbed)), 0, "a new session has lost nothing");
    assert_eq!(flush(&mut enter(&other)), 0);
}

#[test]
fn a_session_that_is_opened_while_a_memory_node_is_away_relies_on_its_next_process() {
    let (testbed, path) = testbed_with(crate::PATIENCE);
    let peer = Peer::start(path.clone(), testbed.nodes[1].clone());
    let mut before = Client::enter(&testbed, "striped", true);
    let far = 16 << 10;
    assert_eq!(before.write(far, &[7; 512]), 0);
    drop(peer);
    eventually("that it is known", || !testbed.gateway.unready().is_empty());
    let mut client = Client::enter(&testbed, "striped", true);
    testbed.nodes[1].lose();
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    assert_eq!(client.read(far, 512), Ok(vec![0; 512]));
    assert_eq!([client.write(far, &[9; 512]), flush(&mut client)], [0; 2]);
    assert_eq!(before.read(far, 512), Err(EIO));
}

#[test]
fn a_session_is_not_served_from_the_empty_memory_of_a_later_process() {
    let (testbed, path) = testbed_with(crate::PATIENCE);
    let peer = Peer::start(path.clone(), testbed.nodes[1].clone());
    let mut clients = [(); 2].map(|()| Client::enter(&testbed, "striped", true));
    let far = 16 << 10;
    assert_eq!(clients[0].write(far, &[7; 512]), 0);
    drop(peer);
    eventually("that it is known", || !testbed.gateway.unready().is_empty());
    // One short and one long request wait for the node, and none of them may reach the next one.
    clients[0].request(command::READ, 0, far, 512);
    clients[1].request(command::READ, 0, far, 1 << 20);
    testbed.nodes[1].lose();
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    for client in &mut clients {
        assert_eq!(client.receive(0).errno, EIO, "it relies on data that are gone");
    }
    for client in &mut clients {
        assert_eq!(client.read(far, 512), Err(EIO), "it stays so");
        assert_eq!(client.read(far, 1 << 20), Err(EIO), "also by the link for long requests");
        assert_eq!([client.write(far, &[8; 512]), flush(client)], [EIO; 2]);
        assert!(client.read(0, 512).is_ok(), "the other node lost nothing");
    }
    let mut anew = Client::enter(&testbed, "striped", true);
    assert_eq!(anew.read(far, 512), Ok(vec![0; 512]), "no write of before reached it");
    assert_eq!([anew.write(far, &[9; 512]), flush(&mut anew)], [0; 2]);
}

#[test]
fn a_node_that_sends_nonsense_is_away_and_harms_no_other() {
    let (testbed, path) = testbed();
    let mut client = Client::enter(&testbed, "striped", true);
    let listener = UnixListener::bind(&path).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    client.request(command::READ, 0, 16 << 10, 512);
    stream.write_all(&[0xff; 64]).unwrap();
    assert_eq!(client.receive(512).errno, EIO);
    assert!(client.read(0, 512).is_ok());
    // An answer to what was not asked is nonsense, too.
    let (mut stream, _) = listener.accept().unwrap();
    client.request(command::READ, 0, 16 << 10, 512);
    let mut answer = [0; 16];
    (answer[0], answer[9]) = (1, 99);
    stream.write_all(&answer).unwrap();
    assert_eq!(client.receive(512).errno, EIO);
    drop((stream, listener));
    std::fs::remove_file(&path).unwrap();
    let _peer = Peer::start(path, testbed.nodes[1].clone());
    eventually("a sensible one", || client.read(16 << 10, 512).is_ok());
}
