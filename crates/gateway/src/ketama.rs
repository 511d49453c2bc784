//! Consistent hashing (ketama): the node that owns a key, as libmemcached computes it.
//!
//! **Problem.** Keys are spread over nodes without a table of keys; and when a node is added or
//! removed, only the keys that it gains or loses may move. Clients that used to spread their keys
//! themselves move behind a gateway and must find their keys where they put them.
//!
//! **Model.** Nodes and keys are points on a circle of 2^32 positions. A key belongs to the node
//! whose point is next. Every node has many points, so that the arcs before them add up to about
//! its share; a removed node takes its own points along and no other node's.
//!
//! **Mechanism.** The points are MD5 hashes of `10.0.1.1-0`, `10.0.1.1-1`, … or, where the port is
//! not 11211, of `10.0.1.1:11212-0` and so on. There are two ways to place them, and their keys do
//! not mix:
//!
//! - [`Ketama::plain`]: 100 points for each node, one from each hash. In libmemcached this is the
//!   distribution `CONSISTENT_KETAMA` with the hash `MD5`.
//! - [`Ketama::weighted`]: 40 hashes for an average node, more for a heavier one, and four points
//!   from each hash. In libmemcached this is `KETAMA_WEIGHTED`, `--WEIGHTED` or any weight above 1.
//!
//! **Bound.** To find an owner is one MD5 of the key and a binary search: for ten nodes eleven
//! steps. With 160 points a node's share of keys is its weight's share to within a fifth or so.

use md5::{Digest, Md5};

/// The port that is not part of a node's name on the circle.
const PORT_DEFAULT: u16 = 11_211;

/// How many points a node has on the circle of [`Ketama::plain`].
const POINTS_PLAIN: u32 = 100;

/// How many points an average node has on the circle of [`Ketama::weighted`].
const POINTS_WEIGHTED: u32 = 160;

/// A node as its clients know it: the name decides where its points are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its host name or address, as clients write it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its share of the keys is this much of the sum of all weights. [`Ketama::plain`] takes no
    /// notice.
    pub weight: u32,
}

/// The circle of hash positions, with the points of all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ketama {
    /// Where on the circle, and which node; in this order.
    points: Vec<(u32, u32)>,
}

impl Ketama {
    /// A circle on which all nodes are equal.
    ///
    /// ```
    /// use tidegate_gateway::ketama::{Ketama, Server};
    /// let hosts = ["10.0.1.1", "10.0.1.2", "10.0.1.3"];
    /// let server = |host: &&str| Server { host: host.to_string(), port: 11_211, weight: 1 };
    /// let nodes: Vec<Server> = hosts.iter().map(server).collect();
    /// assert_eq!(Ketama::plain(&nodes).owner(b"key:31676"), Some(1));
    /// assert_eq!(Ketama::plain(&[]).owner(b"key"), None);
    /// ```
    pub fn plain(nodes: &[Server]) -> Self {
        let points = nodes.iter().zip(0..).flat_map(|(node, number)| {
            (0..POINTS_PLAIN).map(move |index| (point(&node.hash(index), 0), number))
        });
        Self::of(points.collect())
    }

    /// A circle on which a node's number of points is proportional to its weight. A node of weight
    /// zero has none.
    pub fn weighted(nodes: &[Server]) -> Self {
        let sum: u64 = nodes.iter().map(|node| u64::from(node.weight)).sum();
        let mut points = Vec::new();
        for (node, number) in nodes.iter().zip(0..) {
            for index in 0..hashes(node.weight, sum, nodes.len()) {
                let hash = node.hash(index);
                points.extend((0..4).map(|quarter| (point(&hash, quarter), number)));
            }
        }
        Self::of(points)
    }

    fn of(mut points: Vec<(u32, u32)>) -> Self {
        points.sort_unstable();
        Self { points }
    }

    /// The index in the list of nodes of the one that owns `key`; none if no node has a point.
    pub fn owner(&self, key: &[u8]) -> Option<usize> {
        let hash = point(&Md5::digest(key).into(), 0);
        let next = self.points.partition_point(|(server, _)| *server < hash);
        let (_, node) = self.points.get(next).or(self.points.first())?;
        Some(*node as usize)
    }
}

impl Server {
    fn hash(&self, index: u32) -> [u8; 16] {
        let name = match self.port {
            PORT_DEFAULT => format!("{}-{index}", self.host),
            port => format!("{}:{port}-{index}", self.host),
        };
        Md5::digest(name).into()
    }
}

/// How many hashes a node of this weight places on the circle. Where it lies between two numbers,
/// rounding decides, so this is libmemcached's calculation step by step, in its 32-bit floats.
fn hashes(weight: u32, sum: u64, nodes: usize) -> u32 {
    let share = weight as f32 / sum.max(1) as f32;
    (share * POINTS_WEIGHTED as f32 / 4.0 * nodes as f32 + 1e-10).floor() as u32
}

/// One of the four numbers in a hash, little-endian.
fn point(hash: &[u8; 16], quarter: usize) -> u32 {
    let at = 4 * quarter;
    u32::from_le_bytes([hash[at], hash[at + 1], hash[at + 2], hash[at + 3]])
}

#[cfg(test)]
#[path = "ketama_tests.rs"]
mod tests;
