//! How a node is set up.

use std::path::PathBuf;

use tidegate_fabric::stream::Address;
use tidegate_fabric::tls::{Guard, Way};
use tidegate_model::{Bytes, CostModel, Discipline, Iops};
use tidegate_proto::node::Pacing;

pub use crate::engine::model::Speed;

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name in the cluster file.
    pub name: String,
    /// Where gateways of other processes connect; none if there are none.
    pub listen: Option<Address>,
    /// The TLS guard that admits peers over TCP. Without it, the node listens on no address that
    /// other machines reach: a peer that reaches it may read and write everything.
    pub guard: Option<Guard>,
    /// The way to the controller; none for a node that serves without promises.
    pub controller: Option<Way>,
    /// Where the parts are.
    pub store: Store,
    /// Where labels of parts are kept that the file system of a directory takes no more after an
    /// error: a folder on another one. By default nowhere.
    pub fallback: Option<PathBuf>,
    /// The most requests at the device at a time, 1 to 4096. By default 32. More let a device do
    /// more at once; fewer let a request with a reservation overtake sooner.
    pub depth: u32,
    /// The capacity of the device, in units of cost per second, if it is known.
    pub capacity: Option<Iops>,
    /// Whether what limited tenants are allowed is spread over the period. By default evenly.
    pub pacing: Pacing,
    /// By which rule the node decides who is next, until a controller names another. By default
    /// pShift's token scheduler.
    pub discipline: Discipline,
    /// The cost of which tenants have shares, the same as at its gateways. By default requests.
    pub cost: CostModel,
    /// Threads that serve the connections of gateways. By default one per processor.
    pub workers: usize,
    /// Makes the store as slow as this, for experiments.
    pub speed: Option<Speed>,
}

/// Where parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In memory, together at most so much; gone when the node ends.
    Memory {
        /// The most that all parts are together.
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
        /// How much of it may be used; none for all that there is.
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
    /// A node of this name with this store, which no other process can connect to and no controller
    /// leads; the rest as each field says.
    pub fn new(name: impl Into<String>, store: Store) -> Self {
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
            pacing: Pacing::Even,
            discipline: Discipline::default(),
            cost: CostModel::default(),
            workers: cores.map_or(1, usize::from),
            speed: None,
        }
    }
}
