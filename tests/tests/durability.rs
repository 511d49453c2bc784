//! The flush oracle: random histories of several connections of all classes and two gateways over
//! nodes that die, machines that crash, syncs that fail and a network that delivers late, or ends
//! the connection of one class alone and refuses the next ones. Every client knows which
//! writes were acknowledged as durable, and nothing of that is ever lost or changed. A write that
//! failed may be there or not, but once a later one was acknowledged, it is there no more.
//!
//! Nodes and gateways are those that ship, in threads of this process and with sockets between
//! them; only the disks below the nodes are a model ([`FaultyDisk`]), so that a machine can crash.
//! A history is made from a number. `TIDEGATE_HISTORIES` says how many there are, and
//! `TIDEGATE_HISTORY` which one alone: `cargo xtask seeds --durability`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;

use tidegate_fabric::stream::{Address, ListenerAccess};
use tidegate_gateway as gateway;
use tidegate_model::cluster::Volume;
use tidegate_model::tag::CLASSES;
use tidegate_model::{Bytes, CostModel, NodeId, Policy};
use tidegate_node as node;
use tidegate_node::FaultyDisk;
use tidegate_proto::codec;
use tidegate_proto::message::ToGateway;
use tidegate_tests::nbd::{Client, EIO};
use tidegate_tests::proxy::Proxy;
use tidegate_tests::{PATIENCE, wait_for};

/// A block is written as a whole, and holds the number of the write.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 24;
const NODES: usize = 2;
const STEPS: usize = 60;
/// The socket of the gateways' controller.
const CONTROLLER: &str = "controller";

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// The controller of the gateways: it sends the policy, and nothing else. Its threads end with the
/// process.
fn start_controller(path: &Path) {
    let tenant = |(class, name)| format!("[[tenant]]\nname = \"{name}\"\nclass = \"{class}\"\n");
    let policy = Policy::parse(&CLASSES.map(tenant).concat()).unwrap();
    let mut message = Vec::new();
    codec::encode(&ToGateway::Policy { revision: 1, policy }, &mut message).unwrap();
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        for mut gateway in listener.incoming().flatten() {
            let message = message.clone();
            thread::spawn(move || {
                // A gateway that has ended takes no policy.
                let _ = gateway.write_all(&message);
                let _ = std::io::copy(&mut gateway, &mut std::io::sink());
            });
        }
    });
}

/// Nodes, gateways and disks. One of the nodes may be in memory.
struct Cluster {
    /// By node, the network in front of it; and how many connections it will have had when those
    /// that it broke are replaced.
    network: Vec<Proxy>,
    connections: [usize; NODES],
    folder: tempfile::TempDir,
    disks: Vec<FaultyDisk>,
    in_memory: Option<usize>,
    nodes: Vec<Option<node::Running>>,
    gateways: Vec<Option<gateway::Running>>,
}

impl Cluster {
    fn new(random: &mut Random) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let proxy = |number| {
            let [listen, target] =
                ["p", "n"].map(|name| folder.path().join(format!("{name}{number}")));
            Proxy::start(listen, target).unwrap()
        };
        let mut cluster = Self {
            network: (0..NODES).map(proxy).collect(),
            connections: [0; NODES],
            folder,
            disks: (0..NODES).map(|_| FaultyDisk::default()).collect(),
            in_memory: random.one_in(3).then_some(1),
            nodes: (0..NODES).map(|_| None).collect(),
            gateways: vec![None, None],
        };
        start_controller(&cluster.socket(CONTROLLER));
        (0..NODES).for_each(|number| cluster.start_node(number));
        (0..2).for_each(|number| cluster.start_gateway(number));
        cluster
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start_node(&mut self, number: usize) {
        let name = format!("n{number}");
        let store = match self.in_memory == Some(number) {
            true => node::StoreConfig::Memory { capacity: Bytes::MAX },
            false => node::StoreConfig::Faulty { disk: self.disks[number].clone() },
        };
        let listen = Some(Address::Unix(self.socket(&name)));
        let config = node::Config { listen, workers: 1, ..node::Config::new(name, store) };
        self.nodes[number] = Some(node::start(config).unwrap());
    }

    fn start_gateway(&mut self, number: usize) {
        let there = |number: usize| {
            let name = format!("n{number}");
            let way = Address::Unix(self.socket(&format!("p{number}"))).into();
            gateway::NodeLocation::There { name, way }
        };
        let nodes: Vec<_> = (0..NODES).map(there).collect();
        let volume = Volume {
            name: "v".into(),
            size: Bytes(BLOCK * BLOCKS),
            tenant: "t".into(),
            tenants: CLASSES.map(|(_, name)| name.into()).into(),
            nodes: (0..NODES as u16).map(NodeId).collect(),
            stripe: Bytes(BLOCK),
            read_only: false,
            offsets: vec![Bytes::ZERO; NODES],
        };
        let config = gateway::Config {
            name: format!("g{number}"),
            controller: Some(Address::Unix(self.socket(CONTROLLER)).into()),
            binds: vec![(
                Address::Unix(self.socket(&format!("g{number}"))),
                ListenerAccess::PRIVATE,
            )],
            tls: None,
            parties: std::sync::Arc::default(),
            volumes: vec![volume],
            pools: Vec::new(),
            workers: 2,
            limits: gateway::Limits { patience: PATIENCE, ..gateway::Limits::default() },
            cost: CostModel::default(),
            dscp: true,
        };
        self.gateways[number] = Some(gateway::start(config, &nodes).unwrap());
    }

    /// A node's process is stopped or dies, and comes back; perhaps its machine dies, too.
    fn kill_node(&mut self, number: usize, is_crash: bool, random: &mut Random) {
        let node = self.nodes[number].take().expect("it runs");
        if random.one_in(3) {
            node.stop()
        } else {
            node.abort()
        }
        if is_crash {
            self.disks[number].crash(|| random.one_in(2));
        }
        if random.one_in(3) {
            self.disks[number].clear_errors();
        }
        self.start_node(number);
    }

    /// Bytes that the network holds arrive at a node, after the gateways have connected with it
    /// again.
    fn deliver(&self, number: usize) {
        wait_for("links that are replaced", PATIENCE, || {
            let is_replaced = self.network[number].connections() >= self.connections[number];
            let mut gateways = self.gateways.iter().flatten();
            (is_replaced && gateways.all(|gateway| gateway.unready().is_empty())).then_some(())
        });
        self.network[number].deliver();
    }

    /// A client that has reached every node.
    fn enter(&self, gateway: usize) -> Client {
        self.enter_as(gateway, "v")
    }

    fn enter_as(&self, gateway: usize, export: &str) -> Client {
        let socket = self.socket(&format!("g{gateway}"));
        wait_for("all nodes", PATIENCE, || {
            let mut client = Client::enter(&socket, export).ok()?;
            client.read(0, (BLOCK * BLOCKS) as usize).ok()?;
            Some(client)
        })
    }
}

/// The possible contents of a block.
#[derive(Default)]
struct Block {
    /// The last write that is durable, and those after it, by number.
    writes: BTreeMap<u64, Write>,
    /// The last write that was acknowledged, and that nothing has lost since: no earlier one is
    /// seen.
    seen_from: u64,
}

struct Write {
    /// The content that it leaves in the block; zero for a trim.
    content: u64,
    is_acknowledged: bool,
}

/// The answers that clients got, and the contents that blocks may have by them.
struct Oracle {
    blocks: Vec<Block>,
    writes: u64,
}

impl Oracle {
    fn new() -> Self {
        let blank = || {
            let first = Write { content: 0, is_acknowledged: true };
            Block { writes: [(0, first)].into(), seen_from: 0 }
        };
        Self { blocks: (0..BLOCKS).map(|_| blank()).collect(), writes: 0 }
    }

    /// A write begins: its number.
    fn begin(&mut self, block: u64, is_trim: bool) -> u64 {
        self.writes += 1;
        let content = if is_trim { 0 } else { self.writes };
        let write = Write { content, is_acknowledged: false };
        self.blocks[block as usize].writes.insert(self.writes, write);
        self.writes
    }

    fn acknowledge(&mut self, block: u64, number: u64, is_durable: bool) {
        let Block { writes, seen_from } = &mut self.blocks[block as usize];
        *seen_from = number;
        if let Some(write) = writes.get_mut(&number) {
            write.is_acknowledged = true;
        }
        if is_durable {
            writes.retain(|other, _| *other >= number);
        }
    }

    /// A flush has succeeded that covers what was acknowledged since the write `since`.
    fn flush(&mut self, since: u64) {
        for Block { writes, .. } in &mut self.blocks {
            let covered =
                writes.iter().filter(|(number, write)| write.is_acknowledged && **number > since);
            if let Some(last) = covered.map(|(number, _)| *number).max() {
                writes.retain(|number, _| *number >= last);
            }
        }
    }

    /// A node's machine has crashed: of writes that are not durable, any may be there.
    fn crash(&mut self, node: u64) {
        let blocks = self.blocks.iter_mut().skip(node as usize).step_by(NODES);
        blocks.for_each(|block| block.seen_from = 0);
    }

    /// A node in memory has died: none of its data is there, nor was that promised.
    fn forget(&mut self, node: u64) {
        self.crash(node);
        for Block { writes, .. } in self.blocks.iter_mut().skip(node as usize).step_by(NODES) {
            writes.insert(0, Write { content: 0, is_acknowledged: false });
        }
    }

    fn check(&self, client: &mut Client, when: &str) {
        for (at, Block { writes, seen_from }) in (0..).zip(&self.blocks) {
            let content = client.read(at * BLOCK, BLOCK as usize).unwrap();
            // A crash may tear a block that was not durable.
            let words: BTreeSet<u64> = content
                .as_chunks::<512>()
                .0
                .iter()
                .map(|sector| u64::from_le_bytes(sector[..8].try_into().unwrap()))
                .collect();
            for word in words {
                let mut possible = writes.range(seen_from..);
                let is_possible = possible.any(|(_, write)| write.content == word);
                let possible: Vec<_> = writes.range(seen_from..).map(|(at, _)| at).collect();
                assert!(is_possible, "{when}: block {at} has {word} and not one of {possible:?}");
            }
        }
    }
}

struct Session {
    client: Client,
    gateway: usize,
    /// The last write that began before it opened the volume.
    since: u64,
}

struct History {
    seed: u64,
    random: Random,
    cluster: Cluster,
    oracle: Oracle,
    sessions: Vec<Session>,
    /// Flushes that succeeded, and those that failed.
    flushes: [u64; 2],
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let cluster = Cluster::new(&mut random);
        let (oracle, sessions, flushes) = (Oracle::new(), Vec::new(), [0; 2]);
        Self { seed, random, cluster, oracle, sessions, flushes }
    }

    fn enter(&mut self) {
        let gateway = self.random.below(2) as usize;
        let since = self.oracle.writes;
        let (_, class) = CLASSES[self.random.below(CLASSES.len() as u64) as usize];
        let client = self.cluster.enter_as(gateway, &format!("v@{class}"));
        self.sessions.push(Session { client, gateway, since });
    }

    fn step(&mut self) {
        if self.sessions.is_empty() || self.sessions.len() < 4 && self.random.one_in(8) {
            return self.enter();
        }
        let at = self.random.below(self.sessions.len() as u64) as usize;
        match self.random.below(24) {
            0..=9 => self.change(at),
            10..=14 => self.flush(at),
            15 => drop(self.sessions.remove(at)),
            16 | 17 => {
                let (node, is_crash) = (self.random.below(2) as usize, self.random.one_in(2));
                self.cluster.kill_node(node, is_crash, &mut self.random);
                if is_crash {
                    self.oracle.crash(node as u64);
                }
                if self.cluster.in_memory == Some(node) {
                    self.oracle.forget(node as u64);
                }
            }
            18 => self.cluster.disks[self.random.below(2) as usize].fail_next_sync(),
            20 | 21 => self.delay(at),
            22 | 23 => self.cluster.deliver(self.random.below(2) as usize),
            _ => {
                let number = self.random.below(2) as usize;
                self.cluster.gateways[number] = None;
                self.cluster.start_gateway(number);
                self.sessions.retain(|session| session.gateway != number);
            }
        }
    }

    /// Writes or trims a few blocks on one connection, some durably.
    fn change(&mut self, at: usize) {
        let Session { client, .. } = &mut self.sessions[at];
        for _ in 0..1 + self.random.below(6) {
            let block = self.random.below(BLOCKS);
            let (is_trim, is_durable) = (self.random.one_in(5), self.random.one_in(4));
            let number = self.oracle.begin(block, is_trim);
            let content = number.to_le_bytes().repeat(BLOCK as usize / 8);
            let done = match (is_trim, is_durable) {
                (false, false) => client.write(block * BLOCK, &content),
                (false, true) => client.write_durably(block * BLOCK, &content),
                (true, _) => client.trim(block * BLOCK, BLOCK as usize, is_durable),
            };
            match done {
                Ok(()) => self.oracle.acknowledge(block, number, is_durable),
                Err(error) => assert_eq!(error.raw_os_error(), Some(EIO), "seed {}", self.seed),
            }
        }
    }

    /// Writes blocks of one node. The network holds them, and the gateway gives them up.
    fn delay(&mut self, at: usize) {
        let Session { client, .. } = &mut self.sessions[at];
        let node = self.random.below(NODES as u64);
        let network = &self.cluster.network[node as usize];
        // Without a link, or with one that has lost its memory, nothing is sent.
        if client.read(node * BLOCK, BLOCK as usize).is_err() {
            return;
        }
        network.hold();
        let mut under_way = BTreeMap::new();
        let blocks = (0..1 + self.random.below(3))
            .map(|_| self.random.below(BLOCKS / NODES as u64) * NODES as u64 + node);
        for block in blocks.collect::<BTreeSet<_>>() {
            let number = self.oracle.begin(block, false);
            let content = number.to_le_bytes().repeat(BLOCK as usize / 8);
            under_way
                .insert(client.submit_write(block * BLOCK, &content).unwrap(), (block, number));
        }
        wait_for("bytes on the way", PATIENCE, || network.has_bytes().then_some(()));
        // The others go on, and the lost one may not come back at once.
        let is_alone = self.random.one_in(2);
        let refusals = self.random.below(8) as usize;
        self.cluster.connections[node as usize] =
            if is_alone { network.cut_those_with_bytes(refusals) } else { network.cut() };
        for _ in 0..under_way.len() {
            let (cookie, outcome) = client.receive().unwrap();
            let (block, number) = under_way.remove(&cookie).expect("an answer to a write");
            match outcome {
                // It came after the link had fallen, and waited for the next one.
                Ok(_) => self.oracle.acknowledge(block, number, false),
                Err(error) => assert_eq!(error.raw_os_error(), Some(EIO), "seed {}", self.seed),
            }
        }
    }

    fn flush(&mut self, at: usize) {
        let Session { client, since, .. } = &mut self.sessions[at];
        match client.flush() {
            Ok(()) => {
                self.flushes[0] += 1;
                self.oracle.flush(*since);
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO), "seed {}", self.seed);
                self.flushes[1] += 1;
                // A client with this error connects anew, most often.
                if !self.random.one_in(4) {
                    self.sessions.remove(at);
                }
            }
        }
    }

    fn run(mut self) -> [u64; 2] {
        for step in 0..STEPS {
            self.step();
            if self.random.one_in(10) {
                let when = format!("seed {}, step {step}", self.seed);
                let mut client = self.cluster.enter(0);
                self.oracle.check(&mut client, &when);
            }
        }
        for number in 0..NODES {
            self.cluster.deliver(number);
        }
        let when = format!("seed {}, after all has arrived", self.seed);
        let mut client = self.cluster.enter(1);
        self.oracle.check(&mut client, &when);
        for number in 0..NODES {
            let is_crash = self.cluster.in_memory != Some(number);
            if is_crash {
                self.cluster.kill_node(number, true, &mut self.random);
                self.oracle.crash(number as u64);
            }
        }
        let when = format!("seed {}, after a crash of everything", self.seed);
        let mut client = self.cluster.enter(1);
        self.oracle.check(&mut client, &when);
        self.flushes
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_write_that_was_acknowledged_as_durable_is_lost() {
    let first = number("TIDEGATE_HISTORY");
    let count = number("TIDEGATE_HISTORIES").unwrap_or(30);
    let seeds: Vec<u64> = first.map_or_else(|| (0..count).collect(), |seed| vec![seed]);
    let mut flushes = [0; 2];
    for seed in seeds {
        let done = History::new(seed).run();
        flushes = [flushes[0] + done[0], flushes[1] + done[1]];
    }
    eprintln!("{} flushes succeeded, {} failed", flushes[0], flushes[1]);
    // A history in which nothing succeeds or nothing fails would show nothing.
    assert!(first.is_some() || flushes.iter().all(|count| *count > 0));
}
