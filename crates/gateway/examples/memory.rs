//! A gateway over nodes that are mere memory, at a socket, for a client of one's choice:
//!
//! ```sh
//! cargo run --release -p tidegate-gateway --example memory -- /tmp/nbd.sock &
//! fio --name=x --ioengine=nbd --uri='nbd+unix:///disk?socket=/tmp/nbd.sock' --rw=randread \
//!     --iodepth=16 --runtime=5 --time_based
//! ```
//!
//! It serves 256 MiB, once on one node (`disk`) and once in stripes on two (`striped`), until its
//! standard input ends.

#[allow(clippy::unwrap_used, dead_code, reason = "scenarios tell it more")]
#[path = "../tests/live/memory.rs"]
mod memory;

use std::error::Error;
use std::sync::Arc;

use tidegate_fabric::stream::{Address, ListenerAccess};
use tidegate_gateway::{Config, Limits, Node, start};
use tidegate_model::cluster::Volume;
use tidegate_model::{Bytes, CostModel, NodeId};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/tmp/nbd.sock".into());
    let volume = |name: &str, nodes: &[u16]| Volume {
        name: name.into(),
        size: Bytes(256 << 20),
        tenant: "somebody".into(),
        tenants: Vec::new(),
        nodes: nodes.iter().copied().map(NodeId).collect(),
        stripe: Volume::STRIPE,
        read_only: false,
        offsets: vec![Bytes::ZERO; nodes.len()],
    };
    let config = Config {
        name: "example".into(),
        controller: None,
        pools: Vec::new(),
        binds: vec![(Address::Unix(path.into()), ListenerAccess::PRIVATE)],
        lock: None,
        parties: std::sync::Arc::default(),
        volumes: vec![volume("disk", &[0]), volume("striped", &[0, 1])],
        workers: 1,
        limits: Limits::default(),
        cost: CostModel::default(),
    };
    let node = || Node::Here(Arc::new(memory::Memory::default()));
    let gateway = start(config, &[node(), node()])?;
    println!("{}", gateway.addresses()[0]);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    gateway.stop()?;
    Ok(())
}
