//! Configuration of a node.

use std::path::PathBuf;

use tidegate_fabric::stream::{Address, Way};
use tidegate_fabric::tls::Guard;
use tidegate_model::cluster::Cluster;
use tidegate_model::{Bytes, CostModel, Discipline, Iops, Span};
use tidegate_proto::node::Pacing;

pub use crate::engine::model::Speed;

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name in the cluster file.
    pub name: String,
    /// The address for gateways of other processes; none if there are none.
    pub listen: Option<Address>,
    /// The TLS guard that admits peers over TCP. Without it, the node listens on no address that
    /// other machines reach: a peer that reaches it may read and write everything.
    pub guard: Option<Guard>,
    /// The connection settings of the controller; none for a node that serves without promises.
    pub controller: Option<Way>,
    /// The store of the parts.
    pub store: StoreConfig,
    /// A folder on another file system, for labels of parts that a directory's file system refuses
    /// after an error. By default none.
    pub fallback: Option<PathBuf>,
    /// The most requests at the device at a time, 1 to 4096. By default 32. A larger depth lets a
    /// device do more at once; a smaller one lets a request with a reservation overtake sooner.
    pub depth: u32,
    /// The capacity of the device, in units of cost per second, if it is known.
    pub capacity: Option<Iops>,
    /// The time within which 99 of 100 requests are to be back from the store, by fewer requests
    /// there at a time than `depth`; none for no bound, the default. Not for memcached.
    pub latency: Option<Span>,
    /// Whether the operations of a limited tenant are spread over the period. By default evenly.
    pub pacing: Pacing,
    /// The scheduler of the node, until a controller names another. By default pShift's token
    /// scheduler.
    pub discipline: Discipline,
    /// The cost of which tenants have shares, the same as at its gateways. By default requests.
    pub cost: CostModel,
    /// Threads that serve the connections of gateways. By default one per processor.
    pub workers: usize,
    /// How long at most these threads poll before they sleep
    /// ([`tidegate_algo::scheduling::busy_poll`]); zero to sleep at once. By default
    /// [`Cluster::BUSY_POLL`].
    pub busy_poll: Span,
    /// Whether requests to a directory or a device have the I/O priority of their class there. By
    /// default they have.
    pub io_priority: bool,
    /// Whether packets to gateways have the code point of their class. By default they have.
    pub dscp: bool,
    /// Makes the store as slow as this, for experiments.
    pub speed: Option<Speed>,
}

/// Where parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// In memory, up to a total size; lost when the node ends.
    Memory {
        /// The largest sum of all parts.
        capacity: Bytes,
    },
    /// Each a file of a directory, made by [`crate::volumes`].
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// All in one file or block device.
    Device {
        /// The file or device.
        path: PathBuf,
        /// The usable size; none for the whole length.
        size: Option<Bytes>,
    },
    /// On a disk that can be made to fail.
    #[cfg(feature = "faults")]
    Faulty {
        /// The disk, which outlives the node.
        disk: crate::FaultyDisk,
    },
    /// Key-value requests, passed on to a memcached.
    Memcached {
        /// Where it listens.
        address: Address,
    },
}

impl Config {
    /// A node of this name with this store, without a listener and without a controller; the other
    /// fields have their defaults.
    pub fn new(name: impl Into<String>, store: StoreConfig) -> Self {
        let cores = std::thread::available_parallelism();
        Self {
            name: name.into(),
            listen: None,
            guard: None,
            controller: None,
            store,
            fallback: None,
            depth: 32,
            capacity: None,
            latency: None,
            pacing: Pacing::Even,
            discipline: Discipline::default(),
            cost: CostModel::default(),
            workers: cores.map_or(1, usize::from),
            busy_poll: Cluster::BUSY_POLL,
            io_priority: true,
            dscp: true,
            speed: None,
        }
    }
}
