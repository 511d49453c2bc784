//! Routes of flows: each flow gets one of the shortest paths at random (ECMP), in one flat table.
//!
//! **Model.** A flow keeps to one path, so that its packets stay in order; different flows between
//! the same hosts are spread over all shortest paths (equal-cost multipath, RFC 2992). Switches do
//! that by a hash over the flow's addresses. Here it is a draw from the stream of the flow, which
//! is as even, and which is the same whatever other flows there are.
//!
//! **Mechanism.** Distances to a switch are found by breadth-first search and kept. A path starts
//! at the NIC of its source; at each node any port is possible behind which the distance is one
//! less. The ports of a path stand one after the other in the table, and [`END`] behind them; a
//! packet carries the index of its next one. So forwarding is one look-up, and the port by which a
//! packet came in is found at the index before. In a fat tree of 1,024 hosts a path takes 28 bytes.

use super::packet::FlowId;
use super::topology::{Graph, Host};
use tidegate_sim::rng::Stream;

/// Stands behind the last port of a path.
pub(super) const END: u32 = u32::MAX;

/// Where the two paths of a flow begin in the table of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// From the source of its data to their target: [`route`](super::packet::Packet::route) of data
    /// when they are sent.
    pub there: u32,
    /// Back: the same of what is answered.
    pub back: u32,
}

#[derive(Debug)]
pub(super) struct Paths {
    graph: Graph,
    seed: u64,
    ports: Vec<Vec<u32>>,
    /// By node: how many links are between it and each other, once a path to it was looked up.
    distances: Vec<Option<Box<[u32]>>>,
    hops: Vec<u32>,
}

impl Paths {
    pub(super) fn new(graph: &Graph, seed: u64) -> Self {
        let (ports, distances) = (graph.ports(), vec![None; graph.nodes()]);
        Self { graph: graph.clone(), seed, ports, distances, hops: Vec::new() }
    }

    /// The port of a hop, or [`END`].
    #[inline]
    pub(super) fn port(&self, hop: u32) -> u32 {
        self.hops[hop as usize]
    }

    pub(super) fn nic(&self, host: Host) -> u32 {
        assert!((host.0 as usize) < self.graph.hosts(), "there is no {host}");
        self.ports[host.0 as usize][0]
    }

    pub(super) const fn graph(&self) -> &Graph {
        &self.graph
    }

    pub(super) fn ports(&self, node: u32) -> &[u32] {
        &self.ports[node as usize]
    }

    pub(super) fn connect(&mut self, flow: FlowId, source: Host, target: Host) -> Path {
        assert!(source != target, "{source} sends to itself");
        let mut random = Stream::new(self.seed, "path", flow.0.into());
        let there = self.draw(&mut random, source, target);
        let back = self.draw(&mut random, target, source);
        Path { there, back }
    }

    fn draw(&mut self, random: &mut Stream, source: Host, target: Host) -> u32 {
        let first = self.hops.len();
        assert!(first < END as usize / 2, "more paths than places for them");
        // The last hop is known: the far end of the target's only link.
        let last = self.nic(target) ^ 1;
        let goal = self.graph.far(self.nic(target));
        self.find_distances(goal);
        let distances = self.distances[goal as usize].as_ref().expect("found just now");
        let mut node = source.0;
        while node != goal {
            let closer = |port: &&u32| {
                distances[self.graph.far(**port) as usize] + 1 == distances[node as usize]
            };
            let ports = &self.ports[node as usize];
            let count = ports.iter().filter(closer).count();
            let nth = random.below(count as u64) as usize;
            let port = *ports.iter().filter(closer).nth(nth).expect("one of those counted");
            self.hops.push(port);
            node = self.graph.far(port);
        }
        self.hops.extend([last, END]);
        first as u32
    }

    fn find_distances(&mut self, goal: u32) {
        if self.distances[goal as usize].is_some() {
            return;
        }
        let mut distances = vec![u32::MAX; self.graph.nodes()].into_boxed_slice();
        distances[goal as usize] = 0;
        let mut reached = vec![goal];
        let mut next = 0;
        while let Some(node) = reached.get(next).copied() {
            next += 1;
            for port in &self.ports[node as usize] {
                let far = self.graph.far(*port) as usize;
                if distances[far] == u32::MAX {
                    distances[far] = distances[node as usize] + 1;
                    reached.push(far as u32);
                }
            }
        }
        self.distances[goal as usize] = Some(distances);
    }
}
