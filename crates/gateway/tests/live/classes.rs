//! Links of classes: requests of each class go over a connection of their own, whose packets have
//! the code point of the class in both directions.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use tempfile::TempDir;
use tidegate_fabric::service::Command;
use tidegate_fabric::stream::Address;
use tidegate_gateway::{Limits, NodeLocation, start};
use tidegate_model::tag::CLASSES;
use tidegate_model::{Bytes, Class};
use tidegate_node::StoreConfig;
use tidegate_proto::data::LinkKind;
use tidegate_tests::tools;
use tidegate_wire::nbd::constants::command;

use crate::client::Client;
use crate::memory::{Behaviour, Memory};
use crate::owners::Controller;
use crate::peer::Peer;
use crate::{Testbed, config, eventually, volume};

const EIO: u32 = 5;
const LENGTH: usize = 4 << 10;
const MAIN: LinkKind = LinkKind::MAIN;
const WRITE: Command = Command::Write { durable: false };
const URGENT: (LinkKind, Class) = (LinkKind { class: Class::Urgent, ..MAIN }, Class::Urgent);

/// Tenants of each class; each owns the volume of its name.
fn policy() -> String {
    let tenant =
        |(class, name)| format!("[[tenant]]\nname = \"{name}-owner\"\nclass = \"{class}\"\n");
    CLASSES.map(tenant).concat() + "[[tenant]]\nname = \"report\"\n"
}

/// A gateway with a volume for each class on one node, and its controller with the policy.
fn testbed(folder: TempDir, node: NodeLocation) -> (Testbed, Controller) {
    testbed_with(folder, node, true)
}

fn testbed_with(folder: TempDir, node: NodeLocation, dscp: bool) -> (Testbed, Controller) {
    let mut config = config(&folder, Limits::default(), 1);
    config.dscp = dscp;
    config.controller = Some(Address::Unix(folder.path().join("controller.sock")).into());
    config.volumes = CLASSES.map(|(_, name)| volume(name, 8 << 20, &[0])).into();
    let gateway = start(config, &[node]).unwrap();
    let mut controller = Controller::start(folder.path());
    controller.apply_text(1, &policy());
    let nodes = [Memory::default(), Memory::default()];
    (Testbed { folder, nodes, gateway }, controller)
}

/// All IPv4 packets of this machine, while it lives.
struct Capture(OwnedFd);

impl Capture {
    /// None where the kernel does not let us.
    fn start() -> Option<Self> {
        const IPV4: u16 = 0x0800;
        let protocol = NonZeroU32::new(IPV4.to_be().into()).map(Protocol::from_raw);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, protocol) {
            Ok(socket) => Some(Self(socket)),
            Err(error) => {
                tools::skipped(&format!("packets cannot be captured: {error}"));
                None
            }
        }
    }

    /// The code points of large packets since the last call, to a TCP port and from it. A request
    /// or reply is large, and a greeting is not.
    fn code_points(&self, port: u16) -> [BTreeSet<u8>; 2] {
        let mut found = [BTreeSet::new(), BTreeSet::new()];
        let mut packet = [0; 64];
        loop {
            // The rest of a packet is dropped.
            match recv(&self.0, &mut packet, RecvFlags::TRUNC) {
                Ok((_, length)) if length > LENGTH => {}
                Ok(_) => continue,
                Err(Errno::AGAIN) => return found,
                Err(error) => panic!("{error}"),
            }
            let tcp = usize::from(packet[0] & 0xf) * 4;
            let port_at = |at: usize| u16::from_be_bytes([packet[tcp + at], packet[tcp + at + 1]]);
            let directions = [port_at(2) == port, port_at(0) == port];
            for (found, is_meant) in found.iter_mut().zip(directions) {
                if is_meant && packet[9] == 6 {
                    found.insert(packet[1] >> 2);
                }
            }
        }
    }
}

/// A node that listens on TCP, and its port.
fn node_on_tcp(dscp: bool) -> (tidegate_node::Running, NodeLocation, u16) {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let store = StoreConfig::Memory { capacity: Bytes::MAX };
    let config = tidegate_node::Config { listen, dscp, ..tidegate_node::Config::new("a", store) };
    let node = tidegate_node::start(config).unwrap();
    let address = node.address().unwrap().clone();
    let Address::Tcp(socket) = address else { panic!("{address}") };
    let there = NodeLocation::There { name: "a".into(), way: address.into() };
    (node, there, socket.port())
}

#[test]
fn packets_to_a_node_and_back_have_the_code_point_of_their_class() {
    let Some(capture) = Capture::start() else { return };
    let (_node, there, port) = node_on_tcp(true);
    let (testbed, _controller) = testbed(tempfile::tempdir().unwrap(), there);
    // Until its own link is up, a class uses that of class medium.
    let mut seen = [(); 2].map(|()| BTreeSet::from([Class::Medium.dscp()]));
    for (class, name) in CLASSES {
        let mut client = Client::enter(&testbed, name, true);
        let expected = [(); 2].map(|()| BTreeSet::from([class.dscp()]));
        seen.iter_mut().for_each(|seen| seen.extend([class.dscp()]));
        eventually(name, || {
            assert_eq!(client.write(0, &[1; LENGTH]), 0);
            assert_eq!(client.read(0, LENGTH as u32), Ok(vec![1; LENGTH]));
            let found = capture.code_points(port);
            // No packet with a request or a reply is without a mark, not even the first.
            assert!(
                found.iter().zip(&seen).all(|(found, seen)| found.is_subset(seen)),
                "{found:?}"
            );
            found == expected
        });
    }
}

#[test]
fn packets_have_no_code_point_where_the_cluster_says_so() {
    let Some(capture) = Capture::start() else { return };
    let (node, there, port) = node_on_tcp(false);
    let (testbed, _controller) = testbed_with(tempfile::tempdir().unwrap(), there, false);
    let mut client = Client::enter(&testbed, "urgent", true);
    // The main link, and that of urgent requests.
    eventually("both links", || {
        assert_eq!(client.write(0, &[1; LENGTH]), 0);
        node.status().connections.open == 2
    });
    assert_eq!(client.read(0, LENGTH as u32), Ok(vec![1; LENGTH]));
    assert_eq!(capture.code_points(port), [(); 2].map(|()| BTreeSet::from([0])));
}

/// The testbed over a node that a test plays, whose main link is up.
fn played() -> (Testbed, Controller, Peer, Memory) {
    let folder = tempfile::tempdir().unwrap();
    let (path, node) = (folder.path().join("node.sock"), Memory::default());
    let peer = Peer::start(path.clone(), node.clone());
    let way = Address::Unix(path).into();
    let (testbed, controller) = testbed(folder, NodeLocation::There { name: "far".into(), way });
    let mut client = Client::enter(&testbed, "medium", true);
    eventually("the node", || client.read(0, 512).is_ok());
    (testbed, controller, peer, node)
}

#[test]
fn while_the_link_of_a_class_is_not_up_its_requests_use_the_main_link() {
    let (testbed, _controller, _peer, node) = played();
    node.withhold_welcomes(true);
    let mut client = Client::enter(&testbed, "urgent", true);
    eventually("the policy", || client.read(0, 512).is_ok() && node.last_link().1 == Class::Urgent);
    for _ in 0..100 {
        assert_eq!(node.last_link(), (MAIN, Class::Urgent));
        assert!(client.read(0, 512).is_ok());
    }
    node.withhold_welcomes(false);
    eventually("the link of urgent requests", || {
        client.read(0, 512).is_ok() && node.last_link() == URGENT
    });
    // Long ones have their own.
    eventually("the link of long urgent requests", || {
        let is_served = client.read(0, 1 << 20).is_ok();
        is_served && node.last_link().0 == LinkKind { is_bulk: true, ..URGENT.0 }
    });
    assert!(client.read(0, 512).is_ok());
    assert_eq!(node.last_link(), URGENT);
}

/// An urgent client whose write is at the node when its link falls and cannot come back, and a
/// client of class medium of the same volume. Neither welcome nor fence is given yet.
fn lost_write(testbed: &Testbed, peer: &Peer, node: &Memory) -> [Client; 2] {
    let mut clients =
        ["urgent", "urgent@report"].map(|export| Client::enter(testbed, export, true));
    eventually("the link of urgent requests", || {
        clients[0].read(0, 512).is_ok() && node.last_link() == URGENT
    });
    assert!(clients[1].read(0, 512).is_ok());
    assert_eq!(node.last_link(), (MAIN, Class::Medium));
    node.set(Behaviour::OnDemand);
    clients[0].request(command::WRITE, 0, 0, 512);
    clients[0].send(&[1; 512]);
    eventually("the write", || node.held() == 1);
    node.set(Behaviour::AtOnce);
    node.withhold_welcomes(true);
    peer.cut_last();
    assert_eq!(clients[0].receive(0).errno, EIO, "its link fell");
    clients
}

#[test]
fn a_write_lost_with_the_link_of_a_class_fails_no_other_class_while_the_link_is_down() {
    let (testbed, _controller, peer, node) = played();
    let [mut urgent, mut medium] = lost_write(&testbed, &peer, &node);
    for client in [&mut urgent, &mut medium] {
        client.request(command::WRITE, 0, 0, 512);
        client.send(&[2; 512]);
    }
    // Requests of other volumes do not wait, and a later write has not overtaken the lost one.
    let seen = node.seen(WRITE);
    let mut other = Client::enter(&testbed, "medium", true);
    for _ in 0..50 {
        assert!(other.read(0, 512).is_ok());
    }
    assert_eq!(node.seen(WRITE), seen);
    // The node carries it out after all, and then has fenced it, over the main link.
    node.release();
    node.release_fences();
    for client in [&mut urgent, &mut medium] {
        assert_eq!(client.receive(0).errno, 0);
    }
    for client in [&mut urgent, &mut medium] {
        assert_eq!(client.command(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(client.read(0, 512), Ok(vec![2; 512]));
        assert_eq!(node.last_link().0, MAIN);
    }
    assert!(testbed.gateway.unready().is_empty(), "the node is there");
    node.withhold_welcomes(false);
    eventually("the link of urgent requests again", || {
        urgent.read(0, 512).is_ok() && node.last_link() == URGENT
    });
}

#[test]
fn while_the_main_link_is_down_the_link_of_another_class_serves_its_requests() {
    let (testbed, _controller, peer, node) = played();
    let mut clients =
        ["urgent", "urgent@report"].map(|export| Client::enter(&testbed, export, true));
    eventually("the link of urgent requests", || {
        clients[0].read(0, 512).is_ok() && node.last_link() == URGENT
    });
    node.set(Behaviour::OnDemand);
    clients[1].request(command::WRITE, 0, 0, 512);
    clients[1].send(&[1; 512]);
    eventually("the write", || node.held() == 1);
    node.set(Behaviour::AtOnce);
    node.withhold_welcomes(true);
    peer.cut_first();
    assert_eq!(clients[1].receive(0).errno, EIO, "its link fell");
    node.release();
    node.release_fences();
    for client in &mut clients {
        assert_eq!(client.write(0, &[2; 512]), 0);
        assert_eq!(client.command(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(client.read(0, 512), Ok(vec![2; 512]));
        assert_eq!(node.last_link().0, URGENT.0);
    }
    node.withhold_welcomes(false);
    eventually("the main link again", || {
        clients[1].read(0, 512).is_ok() && node.last_link().0 == MAIN
    });
}

#[test]
fn the_end_of_one_link_fails_its_own_requests_only() {
    let (testbed, _controller, peer, node) = played();
    let mut clients = ["urgent", "medium"].map(|name| Client::enter(&testbed, name, true));
    eventually("the link of urgent requests", || {
        clients[0].read(0, 512).is_ok() && node.last_link() == URGENT
    });
    node.set(Behaviour::OnDemand);
    for client in &mut clients {
        client.request(command::READ, 0, 0, 512);
    }
    eventually("both requests", || node.held() == 2);
    peer.cut_last();
    assert_eq!(clients[0].receive(0).errno, EIO, "its link fell");
    node.set(Behaviour::AtOnce);
    node.release();
    assert_eq!(clients[1].receive(512).errno, 0);
    assert!(testbed.gateway.unready().is_empty(), "the node is there");
    eventually("the link of urgent requests again", || {
        clients[0].read(0, 512).is_ok() && node.last_link() == URGENT
    });
}
