//! Writes that failed, or whose client has gone: none happens after a later one was acknowledged.

use std::sync::Arc;
use std::time::Duration;

use tidegate_fabric::service::Command;
use tidegate_fabric::stream::Address;
use tidegate_gateway::{Limits, NodeLocation, start};
use tidegate_wire::nbd::constants::command;

use crate::client::Client;
use crate::memory::{Behaviour, Memory};
use crate::peer::Peer;
use crate::{PATIENCE, Testbed, config, eventually, volume};

const EIO: u32 = 5;
const LONG: usize = 128 << 10;
const WRITE: Command = Command::Write { durable: false };

/// A gateway with two workers, over a node in its process and one behind a socket. The volume `far`
/// lies at the latter.
fn testbed(patience: Duration) -> (Testbed, Peer) {
    let folder = tempfile::tempdir().unwrap();
    let nodes = [Memory::default(), Memory::default()];
    let path = folder.path().join("node.sock");
    let peer = Peer::start(path.clone(), nodes[1].clone());
    let mut config = config(&folder, Limits { patience, ..Limits::default() }, 2);
    config.volumes.push(volume("far", 8 << 20, &[1]));
    let there = NodeLocation::There { name: "far".into(), way: Address::Unix(path).into() };
    let here = NodeLocation::Here(Arc::new(nodes[0].clone()));
    let gateway = start(config, &[here, there]).unwrap();
    let testbed = Testbed { folder, nodes, gateway };
    let mut client = Client::enter(&testbed, "far", true);
    eventually("the node", || client.read(0, 512).is_ok() && client.read(0, LONG as u32).is_ok());
    (testbed, peer)
}

/// A client whose long write is at the node, and stays there for the moment. The next requests are
/// carried out at once.
fn writing(testbed: &Testbed, node: usize, export: &str) -> Client {
    let mut client = Client::enter(testbed, export, true);
    testbed.nodes[node].set(Behaviour::OnDemand);
    client.request(command::WRITE, 0, 0, LONG as u32);
    client.send(&[1; LONG]);
    eventually("the long write", || testbed.nodes[node].held() == 1);
    testbed.nodes[node].set(Behaviour::AtOnce);
    client
}

/// Clients that write to several places of what the long write is about; no such write reaches the
/// node meanwhile, and requests of other volumes do.
#[track_caller]
fn wait_behind_it(testbed: &Testbed, node: usize, clients: &mut [Client]) {
    let seen = testbed.nodes[node].seen(WRITE);
    for (offset, client) in (0..).step_by(512).zip(clients.iter_mut()) {
        client.request(command::WRITE, 0, offset, 512);
        client.send(&[2; 512]);
    }
    let mut others = [(); 4].map(|()| Client::enter(testbed, ["striped", "rom"][node], true));
    for _ in 0..50 {
        let are_served = others.iter_mut().all(|other| other.read(0, 512).is_ok());
        assert!(are_served, "requests of other volumes do not wait");
    }
    assert_eq!(testbed.nodes[node].seen(WRITE), seen, "a later write has overtaken it");
}

/// The later writes are acknowledged, and are there.
#[track_caller]
fn are_there(clients: &mut [Client]) {
    clients.iter_mut().for_each(|client| assert_eq!(client.receive(0).errno, 0));
    for client in clients.iter_mut() {
        assert_eq!(client.command(command::FLUSH, 0, 0, 0), 0);
    }
    for (offset, client) in (0..).step_by(512).zip(clients.iter_mut()) {
        assert_eq!(client.read(offset, 512), Ok(vec![2; 512]), "the earlier write came later");
    }
}

fn enter(testbed: &Testbed, export: &str) -> [Client; 6] {
    [(); 6].map(|()| Client::enter(testbed, export, true))
}

#[test]
fn what_comes_after_a_write_that_failed_waits_until_the_node_has_fenced_it() {
    let (testbed, peer) = testbed(PATIENCE);
    let mut writer = writing(&testbed, 1, "far");
    let mut clients = enter(&testbed, "far");
    testbed.nodes[1].withhold_welcomes(true);
    peer.cut_last();
    assert_eq!(writer.receive(0).errno, EIO, "its link fell");
    wait_behind_it(&testbed, 1, &mut clients);
    // The node carries it out after all, and then welcomes the link's next connection.
    testbed.nodes[1].release();
    testbed.nodes[1].withhold_welcomes(false);
    are_there(&mut clients);
}

#[test]
fn what_waits_for_a_link_that_stays_down_fails_in_time() {
    let (testbed, peer) = testbed(Duration::from_millis(50));
    let mut writer = writing(&testbed, 1, "far");
    testbed.nodes[1].withhold_welcomes(true);
    peer.cut_last();
    assert_eq!(writer.receive(0).errno, EIO, "its link fell");
    assert_eq!(writer.write(0, &[3; 512]), EIO);
    assert_eq!(writer.read(0, 512), Err(EIO));
    testbed.nodes[1].withhold_welcomes(false);
    eventually("that it is served again", || writer.write(0, &[4; 512]) == 0);
}

#[test]
fn what_comes_after_a_client_that_is_gone_waits_for_its_writes() {
    let (testbed, _peer) = testbed(Duration::from_millis(50));
    for (node, export) in [(0, "plain"), (1, "far")] {
        for is_orderly in [false, true] {
            testbed.nodes[node].keep_cancelled(true);
            let mut writer = writing(&testbed, node, export);
            if is_orderly {
                writer.request(command::DISC, 0, 0, 0);
            }
            let mut early = enter(&testbed, export);
            drop(writer);
            // The first request of each comes after the end of the writer.
            let mut clients = enter(&testbed, export);
            wait_behind_it(&testbed, node, &mut clients);
            for client in &mut early {
                client.request(command::READ, 0, 0, 512);
            }
            testbed.nodes[node].release();
            are_there(&mut clients);
            early.iter_mut().for_each(|client| assert_eq!(client.receive(512).errno, 0));
        }
    }
}

#[test]
fn a_client_that_leaves_at_once_is_carried_out_and_answered() {
    let (testbed, _peer) = testbed(PATIENCE);
    for export in ["plain", "far"] {
        for _ in 0..20 {
            let mut client = Client::enter(&testbed, export, true);
            client.request(command::WRITE, 0, 0, 512);
            client.send(&[7; 512]);
            client.request(command::DISC, 0, 0, 0);
            client.finish();
            // Another session opens the volume meanwhile.
            Client::enter(&testbed, export, true);
            assert_eq!(client.receive(0).errno, 0);
            assert!(client.is_closed());
        }
    }
}
