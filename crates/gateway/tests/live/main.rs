//! A live gateway: over a node made of memory that does as it is told, with a client that says what
//! it is told to say, and with the clients that people have.
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "all of this is tests, also what no #[test] stands above")]

mod access;
mod away;
mod bounds;
mod classes;
mod client;
mod fence;
mod memory;
mod owners;
mod peer;
mod pool;
mod programs;
mod scenarios;
mod stock;

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_fabric::stream::{Address, ListenerAccess};
use tidegate_gateway::{Config, Limits, NodeLocation, Running, start};
use tidegate_model::cluster::Volume;
use tidegate_model::{Bytes, CostModel, NodeId};

use memory::Memory;

/// How long something may take that takes no time.
const PATIENCE: Duration = Duration::from_secs(60);

/// A gateway with two nodes and three volumes: `plain` on the first node, `striped` on both, and
/// `rom` on the second, which is only read.
struct Testbed {
    folder: TempDir,
    nodes: [Memory; 2],
    gateway: Running,
}

fn volume(name: &str, size: u64, nodes: &[u16]) -> Volume {
    Volume {
        name: name.into(),
        size: Bytes(size),
        tenant: format!("{name}-owner"),
        tenants: ["report", "rom-owner", "striped-owner"].map(String::from).into(),
        nodes: nodes.iter().copied().map(NodeId).collect(),
        stripe: Bytes(16 << 10),
        read_only: name == "rom",
        offsets: vec![Bytes::ZERO; nodes.len()],
    }
}

impl Testbed {
    fn new() -> Self {
        Self::with(Limits::default(), 1)
    }

    fn with(limits: Limits, workers: usize) -> Self {
        Self::adapted(|config| (config.limits, config.workers) = (limits, workers))
    }

    fn adapted(adapt: impl FnOnce(&mut Config)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let nodes = [Memory::default(), Memory::default()];
        let mut config = config(&folder, Limits::default(), 1);
        adapt(&mut config);
        let gateway = start(config, &here(&nodes)).unwrap();
        Self { folder, nodes, gateway }
    }

    fn socket(&self) -> String {
        self.folder.path().join("nbd.sock").display().to_string()
    }

    /// The URI of a volume for stock clients.
    fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket())
    }
}

fn here(nodes: &[Memory]) -> Vec<NodeLocation> {
    nodes.iter().map(|node| NodeLocation::Here(Arc::new(node.clone()))).collect()
}

fn config(folder: &TempDir, limits: Limits, workers: usize) -> Config {
    let size = 8 << 20;
    let volumes = vec![
        volume("plain", size, &[0]),
        volume("striped", size, &[0, 1]),
        volume("rom", size, &[1]),
    ];
    let socket = Address::Unix(folder.path().join("nbd.sock"));
    let binds =
        [socket, "127.0.0.1:0".parse().unwrap()].map(|address| (address, ListenerAccess::PRIVATE));
    Config {
        name: "front".into(),
        controller: None,
        binds: binds.into(),
        tls: None,
        parties: Arc::default(),
        volumes,
        pools: Vec::new(),
        workers,
        limits,
        cost: CostModel::Bytes,
        dscp: true,
    }
}

/// Waits until `condition` holds.
#[track_caller]
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        std::thread::yield_now();
    }
}
