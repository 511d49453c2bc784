//! The cluster: one text that lists the nodes, what stands behind each, which volumes and pools lie
//! on them, where gateways open them to clients, and whose memory clients read and write
//! themselves.
//!
//! Reading a cluster is all or nothing, like reading a policy. The reader refuses errors that the
//! text alone shows: two components at one address, two volumes in one place, a device that is too
//! small. The policy defines the reservations of tenants, and admission decides whether the nodes
//! can keep them.
//!
//! ```
//! use tidegate_model::{Bytes, Cluster};
//! let cluster = Cluster::parse(r#"
//!     [[node]]
//!     name = "a"
//!     directory = "nodes/a"
//!     [[node]]
//!     name = "b"
//!     directory = "nodes/b"
//!     [[volume]]
//!     name = "db"
//!     size = "1GiB"
//!     tenant = "oltp"
//!     nodes = ["a", "b"]
//! "#)?;
//! let layout = cluster.volumes[0].layout();
//! assert_eq!(layout.part_length(1), Bytes(512 << 20));
//!
//! let error = Cluster::parse("[[node]]\nname = \"a\"").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "line 2, column 8: node: a has no store; write one of directory = \"PATH\", device = \
//!      \"PATH\", memory = true and memcached = \"HOST:PORT\""
//! );
//! # Ok::<(), tidegate_model::TextError>(())
//! ```

use alloc::string::String;
use alloc::vec::Vec;

use crate::cost::CostModel;
use crate::discipline::Discipline;
use crate::id::NodeId;
use crate::text::TextError;
use crate::units::{Bytes, Iops, Rate, Span};

mod address;
mod data_node;
mod identity;
mod layout;
mod read;

pub use address::{Address, NoAddress};
pub use data_node::{DataNode, MemoryTransport};
pub use identity::{
    Geometry, Label, LabelError, NoUuid, PartIdentity, SyncError, Uuid, VolumeStamp,
};
pub use layout::{Chunks, Layout, PartRange, Spans};
pub use read::is_certificate_name;

/// Nodes, their volumes and pools, and the gateways. Relative paths begin at the folder of the
/// cluster's state, which the operator chooses at the start; the path of the policy begins at the
/// folder of the cluster's own file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The file of the policy that holds until another is applied.
    pub policy: Option<String>,
    /// Where the controller listens: at most one Unix socket, and one TCP address, which needs
    /// certificates. Empty for the usual socket.
    pub controller: Vec<Address>,
    /// The folder of certificates and keys, which what leaves the machine is encrypted with; none
    /// where nothing does.
    pub tls: Option<String>,
    /// The cost of a request that the shares of tenants at nodes are counted in.
    pub cost: CostModel,
    /// How long at most a worker thread of a node or gateway polls for the next request before it
    /// sleeps, while requests come in short intervals; at most [`Self::BUSY_POLL_MAX`], and never
    /// if zero. The text's default is [`Self::BUSY_POLL`].
    pub busy_poll: Span,
    /// Whether packets between gateways and nodes have the code point of their class.
    pub dscp: bool,
    /// The nodes, in the order of the text: a [`NodeId`] is a place in this list.
    pub nodes: Vec<Node>,
    /// The data nodes.
    pub data_nodes: Vec<DataNode>,
    /// The gateways.
    pub gateways: Vec<Gateway>,
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The pools.
    pub pools: Vec<Pool>,
}

/// A storage node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// The address at which it listens for gateways; none where all run in one process.
    pub address: Option<Address>,
    /// The requests per second that the node can sustain. Reservations are admitted against this
    /// number; none for a node whose capacity is not configured.
    pub capacity: Option<Iops>,
    /// The bytes per second that the node can sustain, likewise. They are counted where the policy
    /// names the nodes as a resource.
    pub bandwidth: Option<Rate>,
    /// Of a measured capacity, the time within which 99 of 100 requests are to be back from the
    /// store; none for a node that keeps no such bound.
    pub latency: Option<Span>,
    /// How many requests are at its store at a time, 1 to 1024.
    pub depth: u32,
    /// Its scheduler, unless its controller assigns another one.
    pub scheduler: Discipline,
    /// The store that the node serves.
    pub store: Store,
    /// A device to imitate on top of the store; none for the store as it is.
    pub model: Option<DeviceModel>,
    /// Whether requests have the I/O priority of their class at the device; on nodes without a
    /// device it has no meaning.
    pub io_priority: bool,
}

/// The store that a node serves: a folder, a device, memory or a memcached server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// A folder with a file for each part of a volume.
    Directory(String),
    /// One device, or one file, that all parts share.
    Device {
        /// Where it is.
        path: String,
        /// How much of it may be used; none for all that there is.
        size: Option<Bytes>,
    },
    /// The node's own memory: gone when the node ends.
    Memory,
    /// A memcached server. Pools lie on these, and volumes on all others.
    Memcached(Address),
}

impl Store {
    /// Whether volumes can lie on it; if not, pools can.
    pub const fn holds_volumes(&self) -> bool {
        !matches!(self, Self::Memcached(_))
    }
}

/// A device to imitate: slower than the real one, and as steady as declared here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceModel {
    /// Requests of unit cost that it serves per second.
    pub rate: Iops,
    /// How far single requests are off the mean, in thousandths of it, 0 to 1000.
    pub variance_permille: u32,
}

/// A gateway: clients see volumes and pools through its endpoints. It has at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its name.
    pub name: String,
    /// Where it offers all volumes over NBD.
    pub nbd: Option<Address>,
    /// Whether NBD clients without TLS are refused. With certificates configured, any client may
    /// use TLS.
    pub is_tls_required: bool,
    /// Where it offers one pool in the way of memcached.
    pub memcached: Option<MemcachedEndpoint>,
}

/// Where a gateway offers a pool: the memcached protocol has no word for which one is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemcachedEndpoint {
    /// Where it listens.
    pub address: Address,
    /// The pool's place in [`Cluster::pools`].
    pub pool: usize,
}

/// A block device that lies on one node, or in stripes on several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name: as an NBD export, as a file, and in rules of the policy.
    pub name: String,
    /// Its size, a multiple of 4 KiB.
    pub size: Bytes,
    /// The tenant of requests for which neither the client nor a rule names another one.
    pub tenant: String,
    /// The tenants that clients may choose instead, as `volume@tenant`; with none here, only those
    /// whose `users` the policy names.
    pub tenants: Vec<String>,
    /// Where its parts lie, the first part first; no node twice.
    pub nodes: Vec<NodeId>,
    /// How much lies on one node before the next one follows; a power of two from 4 KiB.
    pub stripe: Bytes,
    /// Whether it is only read.
    pub read_only: bool,
    /// Where each part begins in its node's device; zero for nodes with other stores.
    pub offsets: Vec<Bytes>,
}

impl Volume {
    /// The default stripe of a volume.
    pub const STRIPE: Bytes = Bytes(64 << 10);

    /// Which byte lies where.
    pub fn layout(&self) -> Layout {
        Layout::new(self.size, self.nodes.len() as u32, self.stripe)
    }
}

/// Keys and values over memcached nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name, also in rules of the policy.
    pub name: String,
    /// The nodes that its keys are spread over, no node twice.
    pub nodes: Vec<NodeId>,
    /// The tenant of requests that no rule matches.
    pub tenant: String,
    /// Whether any client may empty the pool, of the keys of all tenants.
    pub flush_all: bool,
}

impl Node {
    /// The default depth of a node.
    pub const DEPTH: u32 = 32;
}

impl Cluster {
    /// How long a worker polls if the text does not say: twice the interval of a client with four
    /// requests outstanding. Chosen by measurement.
    pub const BUSY_POLL: Span = Span(50 * Span::MICROSECOND.0);

    /// The longest poll.
    pub const BUSY_POLL_MAX: Span = Span::MILLISECOND;

    /// The name of the controller in certificates. No other component has it.
    pub const CONTROLLER: &str = "controller";

    /// The name in certificates of clients. [`Self::AUTHORITY`] is the name of the signing
    /// authority. No component of the cluster has either name.
    pub const CLIENT: &str = "client";
    /// See [`Self::CLIENT`].
    pub const AUTHORITY: &str = "ca";

    /// Reads a cluster from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong: bad syntax, an unknown field, a value without a unit, a name
    /// that nothing has, an address, a store or a place in one that is taken already.
    pub fn parse(text: &str) -> Result<Self, TextError> {
        read::cluster(text)
    }

    /// Reads a cluster from TOML, and returns all errors of the text.
    ///
    /// # Errors
    /// All errors, at least one, in the order of the text.
    /// An error that only follows from another one is left out.
    pub fn parse_all(text: &str) -> Result<Self, Vec<TextError>> {
        read::cluster_all(text)
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(usize::from(id.0))
    }

    /// The volume with this name.
    pub fn volume_named(&self, name: &str) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.name == name)
    }
}
