//! Owners of requests, as the policy says, and with a controller that comes and goes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tempfile::TempDir;
use tidegate_fabric::stream::Address;
use tidegate_gateway::{Config, GatewayCounts, Limits, NodeLocation, start};
use tidegate_model::Policy;
use tidegate_proto::codec::{self, Decoder};
use tidegate_proto::message::{FromGateway, Hello, ToGateway, VERSION};
use tidegate_proto::recording::Batch;
use tidegate_proto::stats::path::PathTimes;
use tidegate_wire::nbd::constants::command;

use crate::client::Client;
use crate::memory::{Behaviour, Memory};
use crate::peer::{Peer, STAY};
use crate::{PATIENCE, Testbed, config, eventually, here, pool};

/// The controller's end of the link to a gateway.
pub(crate) struct Controller {
    listener: UnixListener,
    stream: UnixStream,
    decoder: Decoder<FromGateway>,
    /// Requests with a known latency, and the sum of these in ns, by tenant and operation.
    latency: BTreeMap<(String, String), (u64, u64)>,
    /// Where requests spent their latencies, by tenant.
    paths: BTreeMap<String, PathTimes>,
    path: PathBuf,
}

impl Controller {
    /// Waits for the gateway.
    pub(crate) fn start(folder: &Path) -> Self {
        let path = folder.join("controller.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let stream = greeted(&listener);
        let (latency, paths) = (BTreeMap::new(), BTreeMap::new());
        Self { listener, stream, decoder: Decoder::new(), latency, paths, path }
    }

    /// The same, and it has no policy.
    pub(crate) fn without_policy(folder: &Path) -> Self {
        let mut controller = Self::start(folder);
        controller.send(&ToGateway::Count);
        controller
    }

    pub(crate) fn apply_text(&mut self, revision: u64, text: &str) {
        let policy = Policy::parse(text).unwrap();
        self.send(&ToGateway::Policy { revision, policy });
    }

    pub(crate) fn apply(&mut self, revision: u64, tenants: &[&str], rules: &str) {
        let tenants = tenants.iter().map(|name| format!("[[tenant]]\nname = {name:?}\n"));
        let text = format!("{}{rules}", tenants.collect::<String>());
        let policy = Policy::parse(&text).unwrap();
        self.send(&ToGateway::Policy { revision, policy });
    }

    /// The next message of the gateway; those about times are only kept.
    fn receive(&mut self) -> FromGateway {
        let mut bytes = [0; 4096];
        loop {
            match self.decoder.next_message().unwrap() {
                Some(FromGateway::Latency(latency)) => {
                    self.latency.extend(latency.into_iter().map(|it| {
                        assert!(it.counts.total_ns > 0, "{it:?}");
                        let counts = (it.counts.requests(), it.counts.total_ns);
                        ((it.tenant, it.operation), counts)
                    }));
                    continue;
                }
                Some(FromGateway::Paths(paths)) => {
                    self.paths.extend(paths);
                    continue;
                }
                Some(message) => return message,
                None => {}
            }
            let count = self.stream.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "the gateway left");
            self.decoder.extend(&bytes[..count]);
        }
    }

    pub(crate) fn counts(&mut self) -> GatewayCounts {
        match self.receive() {
            FromGateway::Counts(counts) => {
                let next = self.receive();
                assert!(matches!(next, FromGateway::Pressure(_)), "{next:?}");
                counts
            }
            other => panic!("the gateway says {other:?}"),
        }
    }

    /// The requests since the last question about this recording.
    pub(crate) fn record(&mut self, session: u64) -> Batch {
        self.send(&ToGateway::Record { session });
        match self.receive() {
            FromGateway::Recorded(batch) => batch,
            other => panic!("the gateway says {other:?}"),
        }
    }

    pub(crate) fn send(&mut self, message: &ToGateway) {
        let mut bytes = Vec::new();
        codec::encode(message, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).unwrap();
    }
}

fn greeted(listener: &UnixListener) -> UnixStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut decoder, mut bytes) = (Decoder::new(), [0; 256]);
    let hello: Hello = loop {
        if let Some(hello) = decoder.next_message().unwrap() {
            break hello;
        }
        let count = stream.read(&mut bytes).unwrap();
        assert_ne!(count, 0, "the gateway left");
        decoder.extend(&bytes[..count]);
    };
    assert_eq!(hello, Hello::Gateway { version: VERSION, name: "front".into() });
    stream
}

pub(crate) fn testbed(adapt: impl FnOnce(&TempDir, &mut Config)) -> Testbed {
    let folder = tempfile::tempdir().unwrap();
    let nodes = [Memory::default(), Memory::default()];
    let mut config = config(&folder, Limits::default(), 1);
    config.controller = Some(Address::Unix(folder.path().join("controller.sock")).into());
    adapt(&folder, &mut config);
    let gateway = start(config, &here(&nodes)).unwrap();
    Testbed { folder, nodes, gateway }
}

/// The owners of a read and of a write of this client.
pub(crate) fn owners(testbed: &Testbed, client: &mut Client) -> [String; 2] {
    assert!(client.read(0, 512).is_ok());
    let reader = testbed.nodes[0].last_owner();
    assert_eq!(client.write(0, &[1; 512]), 0);
    [reader, testbed.nodes[0].last_owner()]
}

/// A rule for writes to volumes.
pub(crate) const WRITES: &str =
    "[[match]]\ntenant = \"etl\"\nvolume = \"pl*\"\noperation = \"write\"\n";

#[test]
fn rules_change_under_clients_that_stay_connected() {
    let testbed = testbed(|_, _| {});
    let mut client = Client::enter(&testbed, "plain", true);
    let mut report = Client::enter(&testbed, "plain@report", true);
    assert_eq!(owners(&testbed, &mut client), ["plain-owner"; 2], "nobody has said anything yet");
    assert_eq!(owners(&testbed, &mut report), [""; 2], "it is nobody that is known");
    let mut controller = Controller::start(testbed.folder.path());
    controller.apply(1, &["etl", "report"], WRITES);
    eventually("a rule", || owners(&testbed, &mut client) == ["plain-owner", "etl"]);
    assert_eq!(owners(&testbed, &mut report), ["report", "etl"]);
    controller.apply(2, &["report"], "");
    eventually("no rule", || owners(&testbed, &mut client) == ["plain-owner"; 2]);
    controller.apply(3, &["later", "etl"], WRITES);
    eventually("the rule again", || owners(&testbed, &mut client) == ["plain-owner", "etl"]);
    drop(controller);
    assert_eq!(owners(&testbed, &mut client), ["plain-owner", "etl"], "it holds without anybody");
    let mut controller = Controller::start(testbed.folder.path());
    controller.apply(1, &[], "");
    eventually("another controller", || owners(&testbed, &mut client) == ["plain-owner"; 2]);
    assert_eq!(client.command(command::FLUSH, 0, 0, 0), 0);
}

#[test]
fn counts_are_sent_on_request_and_at_the_end() {
    let testbed = testbed(|_, _| {});
    let mut controller = Controller::start(testbed.folder.path());
    let mut client = Client::enter(&testbed, "plain@report", true);
    controller.send(&ToGateway::Count);
    let counts = controller.counts();
    assert_eq!((counts.clients, counts.tenants, counts.volumes[0].requests), (1, vec![], 0));
    controller.apply(1, &["report"], "");
    eventually("the policy", || owners(&testbed, &mut client) == ["report"; 2]);
    controller.send(&ToGateway::Count);
    let first = controller.counts();
    let requests: u64 = first.tenants.iter().map(|flow| flow.requests).sum();
    assert!(requests >= 2 && requests == first.volumes[0].requests, "{first:?}");
    assert_eq!(first.started_ms, counts.started_ms);
    owners(&testbed, &mut client);
    drop((client, testbed.gateway));
    assert_eq!(controller.counts().volumes[0].requests, requests + 2);
    assert_eq!(controller.receive(), FromGateway::Disconnect);
    assert_eq!(controller.latency.values().map(|it| it.0).sum::<u64>(), requests + 2);
    let of = |tenant: &str, operation: &str| {
        controller.latency.get(&(tenant.into(), operation.into())).map_or(0, |it| it.0)
    };
    let tenants = ["", "report"].map(|tenant| [of(tenant, "read"), of(tenant, "write")]);
    assert_eq!(tenants.as_flattened().iter().sum::<u64>(), requests + 2);
    assert!(tenants[1].iter().all(|requests| *requests >= 2), "{tenants:?}");
}

/// A volume over a node of this process and one behind a socket, which tells that each job was in
/// its queue for 7 ns and at its store for 5 ns. The parts of a request's way add up to its
/// latency, as the gateway's connection measured it; of sub-requests the last one alone counts.
#[test]
fn the_parts_of_the_way_add_up_to_the_latency() {
    let folder = tempfile::tempdir().unwrap();
    let nodes = [Memory::default(), Memory::default()];
    let way = Address::Unix(folder.path().join("node.sock"));
    let mut config = config(&folder, Limits::default(), 1);
    config.controller = Some(Address::Unix(folder.path().join("controller.sock")).into());
    let there = NodeLocation::There { name: "far".into(), way: way.into() };
    let gateway = start(config, &[NodeLocation::Here(Arc::new(nodes[0].clone())), there]).unwrap();
    let testbed = Testbed { folder, nodes, gateway };
    let peer = Peer::start(testbed.folder.path().join("node.sock"), testbed.nodes[1].clone());
    eventually("the node", || testbed.gateway.unready().is_empty());
    let mut controller = Controller::start(testbed.folder.path());
    let mut client = Client::enter(&testbed, "striped@report", true);
    let mut both = Client::enter(&testbed, "striped", true);
    controller.apply(1, &["report", "striped-owner"], "");
    eventually("the policy", || {
        assert!(client.read(0, 512).is_ok());
        testbed.nodes[0].last_owner() == "report"
    });
    controller.send(&ToGateway::Count);
    controller.counts();
    controller.send(&ToGateway::Count);
    controller.counts();
    let before = controller.paths["report"];
    let began = Instant::now();
    for _ in 0..20 {
        assert!(client.read(16 << 10, 512).is_ok());
    }
    let waited_ns = began.elapsed().as_nanos() as u64;
    testbed.nodes[1].set(Behaviour::Later);
    for _ in 0..10 {
        assert!(both.read(0, 64 << 10).is_ok());
    }
    drop((client, both, testbed.gateway, peer));
    controller.counts();
    assert_eq!(controller.receive(), FromGateway::Disconnect);

    let far = controller.paths["report"];
    assert_eq!(far.requests - before.requests, 20);
    assert_eq!(far.queue_ns - before.queue_ns, 20 * STAY.queued.0);
    assert_eq!(far.store_ns - before.store_ns, 20 * STAY.stored.0);
    let own_ns = far.total_ns() - before.total_ns();
    assert!(own_ns <= waited_ns, "{own_ns} ns in the gateway, and {waited_ns} ns at the client");
    assert_eq!(controller.paths["striped-owner"].requests, 10, "each once, over two nodes");
    for (tenant, times) in &controller.paths {
        let all = controller.latency.iter().filter(|((name, _), _)| name == tenant);
        let latencies = all.map(|(_, (_, total_ns))| total_ns).sum::<u64>();
        assert_eq!(times.total_ns(), latencies, "{tenant}: {times:?}");
    }
}

#[test]
fn a_link_that_breaks_or_makes_no_sense_is_made_again() {
    let testbed = testbed(|_, _| {});
    let mut client = Client::enter(&testbed, "plain", true);
    let mut controller = Controller::start(testbed.folder.path());
    controller.stream.write_all(&[0xff; 64]).unwrap();
    controller.stream = greeted(&controller.listener);
    controller.apply(1, &["etl"], WRITES);
    eventually("a rule", || owners(&testbed, &mut client) == ["plain-owner", "etl"]);
    controller.send(&ToGateway::Refused { version: 0, reason: "we are closing".into() });
    let mut end = [0];
    assert_eq!(controller.stream.read(&mut end).unwrap(), 0, "it leaves");
    assert_eq!(owners(&testbed, &mut client), ["plain-owner", "etl"]);
}

#[test]
fn keys_have_owners() {
    let testbed = testbed(|_, config| pool::add(config, true));
    let mut owner = pool::owner(&testbed);
    let requests = ["get session:1", "get user:1", "flush_all"];
    assert_eq!(requests.map(&mut owner), ["kv"; 3]);
    let mut controller = Controller::start(testbed.folder.path());
    let rules = "[[match]]\ntenant = \"web\"\nkey = [\"session:\", \"cart:\"]\n\
                 [[match]]\ntenant = \"janitor\"\nvolume = \"cache\"\noperation = \"delete\"\n";
    controller.apply(1, &["web", "janitor"], rules);
    eventually("a rule", || owner("get session:1") == "web");
    assert_eq!(requests.map(&mut owner), ["web", "kv", "janitor"]);
    let requests = ["get cart:7", "get session", "delete session"];
    assert_eq!(requests.map(&mut owner), ["web", "kv", "janitor"]);
}
