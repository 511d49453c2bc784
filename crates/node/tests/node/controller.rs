//! A node and its controller, which this test plays.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use tidegate_fabric::service::Fault;
use tidegate_fabric::stream::Address;
use tidegate_model::policy::Fallback;
use tidegate_model::{Bytes, NodeId, PeriodNumber, Span, TenantIndex};
use tidegate_node::{Config, Running, Standing, StoreConfig, start};
use tidegate_proto::cluster::message::{FromNode, Grant, Plan, RoundId, Share, TenantPlan, ToNode};
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::message::{Hello, VERSION};

use crate::remote::Worker;
use crate::support::{Client, PATIENCE, config, part, read};

/// The controller's end of a link.
struct Controller {
    stream: UnixStream,
    decoder: Decoder<FromNode>,
}

impl Controller {
    fn accept(listener: &UnixListener) -> (Self, Hello) {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut hellos = Decoder::<Hello>::new();
        let hello = loop {
            if let Some(hello) = hellos.next_message().unwrap() {
                break hello;
            }
            let mut bytes = [0; 256];
            let count = stream.read(&mut bytes).unwrap();
            hellos.extend(&bytes[..count]);
        };
        (Self { stream, decoder: Decoder::new() }, hello)
    }

    fn send(&mut self, message: &ToNode) {
        let mut bytes = Vec::new();
        encode(message, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    fn receive(&mut self) -> FromNode {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                return message;
            }
            let mut bytes = [0; 256];
            let count = self.stream.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "the node left");
            self.decoder.extend(&bytes[..count]);
        }
    }

    fn welcome(&mut self) {
        self.send(&ToNode::Welcome { version: VERSION, node: NodeId(0) });
    }

    /// A plan of one limited tenant, and what it may have in each period.
    fn plan(&mut self, allowed: u64) {
        let tenant = TenantPlan {
            name: "t".into(),
            weight: 1,
            is_limited: true,
            minimum_ppm: 0,
            bytes: None,
        };
        self.send(&ToNode::Plan(Plan {
            revision: 1,
            period: Span(100 * Span::MILLISECOND.0),
            rounds: 1,
            fallback: Fallback::default(),
            discipline: None,
            class_weights: None,
            capacity: [None; 2],
            tenants: vec![tenant],
        }));
        self.send(&ToNode::Grant(Grant {
            revision: 1,
            round_id: RoundId::default(),
            serial: 1,
            into: Span(0),
            lease: 1_000,
            shares: vec![Share { tenant: TenantIndex(0), reserved: 0, allowed }],
            bytes: vec![],
        }));
    }
}

fn led() -> (tempfile::TempDir, UnixListener, Running) {
    let store = StoreConfig::Memory { capacity: Bytes::MAX };
    led_with(|_| Config::new("a", store))
}

fn led_with(config: impl FnOnce(&Path) -> Config) -> (tempfile::TempDir, UnixListener, Running) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("controller");
    let listener = UnixListener::bind(&path).unwrap();
    let node =
        start(Config { controller: Some(Address::Unix(path).into()), ..config(folder.path()) })
            .unwrap();
    (folder, listener, node)
}

fn until(what: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !what() {
        assert!(begun.elapsed() < PATIENCE, "it did not happen within a minute");
        std::thread::yield_now();
    }
}

#[test]
fn a_node_sends_its_hello_answers_and_enforces_its_grants() {
    let (_folder, listener, node) = led();
    let (mut controller, hello) = Controller::accept(&listener);
    let Hello::Node { version: VERSION, info } = hello else { panic!("{hello:?}") };
    assert_eq!((&info.name[..], info.pid), ("a", std::process::id()));
    controller.welcome();
    controller.plan(10);
    let first = controller.receive();
    let FromNode::Granted { serial: 1, .. } = first else { panic!("{first:?}") };
    until(|| node.status().standing == Standing::Joined);

    // Ten in each period, and only the agent's clock starts the rest.
    let mut client = Client::new(&node, &["t"]);
    let part = client.part;
    let begun = std::time::Instant::now();
    let at_once = client.submit((0..30).map(|n| read(part, n, 0, 1)).collect()).len();
    assert!(at_once <= 10, "{at_once}");
    (at_once..30).for_each(|_| assert_eq!(client.finished().outcome, Ok(())));
    // Thirty need three periods' worth, of which the first may have begun before: two periods.
    assert!(begun.elapsed().as_millis() >= 100, "{:?}", begun.elapsed());
    assert_eq!(node.status().node.tenants[1].served_total, 30);

    // Far from where the node has counted to by itself: the period before its own would be late.
    let round_id = RoundId { period: PeriodNumber(1_000), round: 0 };
    controller.send(&ToNode::Collect { round_id, into: Span(0), complete: true });
    let FromNode::Report(report) = controller.receive() else { panic!() };
    assert_eq!(report.revision, 1);
    node.stop();
    while controller.receive() != FromNode::Disconnect {}
}

/// A node at which tenant `t` may do nothing.
fn strict() -> (tempfile::TempDir, Controller, Running) {
    let (folder, listener, node) = led_with(config);
    let (mut controller, _) = Controller::accept(&listener);
    controller.welcome();
    controller.plan(0);
    controller.receive();
    (folder, controller, node)
}

#[test]
fn jobs_of_a_limited_tenant_are_given_up_before_they_are_served() {
    let (_folder, _controller, node) = strict();
    let (mut client, mut other) = (Client::new(&node, &["t"]), Client::new(&node, &["t"]));
    let part = client.part;
    for client in [&mut client, &mut other] {
        assert!(client.submit((0..5).map(|n| read(part, n, 0, 1)).collect()).is_empty());
    }
    client.cancel(&[4, 0, 9]);
    let mut given_up = [client.finished(), client.finished()].map(|job| (job.ticket, job.outcome));
    given_up.sort_unstable_by_key(|(ticket, _)| *ticket);
    assert_eq!(given_up, [(0, Err(Fault::Ending)), (4, Err(Fault::Ending))]);
    assert_eq!((client.count(), other.count()), (0, 0));
    let status = node.status().node;
    assert_eq!((status.waiting, status.tenants[1].served_total), (8, 0));
}

#[test]
fn jobs_that_came_over_a_socket_are_given_up_as_well() {
    let (_folder, _controller, node) = strict();
    let mut gateway = Worker::new(node.address().unwrap());
    gateway.remote.tenants(&["t".into()]);
    let part = gateway.remote.open(part());
    // All of it arrives at once: the jobs, and that two of them are not wanted any more.
    gateway.until(|gateway| gateway.remote.is_up());
    let now = gateway.now();
    let mut jobs = (0..5).map(|n| read(part, n, 0, 1)).collect();
    gateway.remote.submit(now, &mut jobs, &mut gateway.done);
    gateway.remote.cancel(&[1, 3], &mut gateway.done);
    gateway.submit(vec![read(part, 5, 0, 1)]);
    gateway.until(|gateway| gateway.done.len() == 2);
    let given_up: Vec<_> = gateway.done.iter().map(|job| (job.ticket, job.outcome)).collect();
    assert_eq!(given_up, [(1, Err(Fault::Ending)), (3, Err(Fault::Ending))]);
    until(|| node.status().node.waiting == 4);
}

#[test]
fn a_node_serves_without_its_controller_and_finds_it_again() {
    let (_folder, listener, node) = led();
    let (mut controller, _) = Controller::accept(&listener);
    controller.welcome();
    controller.plan(u64::MAX);
    controller.receive();
    drop(controller);
    let mut client = Client::new(&node, &["t"]);
    let part = client.part;
    assert_eq!(client.request(read(part, 1, 0, 1)).outcome, Ok(()));
    let (mut controller, hello) = Controller::accept(&listener);
    let Hello::Node { info, .. } = hello else { panic!() };
    assert_eq!(info.revision, 1, "it says which plan it has");
    controller.send(&ToNode::Refused { version: 2, reason: "too old".into(), retry: false });
    until(|| node.status().standing == Standing::Refused);
    assert_eq!(client.request(read(part, 2, 0, 1)).outcome, Ok(()));
    assert_eq!(client.count(), 0);
}
