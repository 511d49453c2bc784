//! What a gateway has done, for whoever asks how it is.
//!
//! Workers count when a request is answered, in numbers that all of them share; they are added to
//! without order and read one after the other, so a sum may be one request behind another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_fabric::service::Fault;
use tidegate_proto::message::VolumeFault;
use tidegate_proto::meters::message::{Flow, GatewayCounts};

use crate::clock;
use crate::owners::Register;
use crate::parts::Mismatches;
use crate::worker::Hall;

/// Every fault, and its name for people and programs.
const FAULTS: [(Fault, &str); 6] = [
    (Fault::Invalid, "invalid"),
    (Fault::ReadOnly, "read_only"),
    (Fault::NoSpace, "no_space"),
    (Fault::Unsupported, "unsupported"),
    (Fault::Io, "io"),
    (Fault::Ending, "ending"),
];

/// The numbers behind a [`Flow`].
#[derive(Debug, Default)]
pub(crate) struct Count {
    requests: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

impl Count {
    /// A request was answered, and moved so many bytes, or failed.
    pub(crate) fn add(&self, outcome: Result<u64, Fault>) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(bytes) => self.bytes.fetch_add(bytes, Ordering::Relaxed),
            Err(_) => self.errors.fetch_add(1, Ordering::Relaxed),
        };
    }

    pub(crate) fn flow(&self, name: &str) -> Flow {
        let [requests, bytes, errors] =
            [&self.requests, &self.bytes, &self.errors].map(|count| count.load(Ordering::Relaxed));
        Flow { name: name.to_owned(), requests, bytes, errors }
    }
}

/// What happened behind the same doors.
#[derive(Debug)]
pub(crate) struct Counts {
    /// What was asked, of each volume or of the pool, with its name.
    places: Vec<(String, Count)>,
    /// In the order of [`FAULTS`].
    faults: [AtomicU64; FAULTS.len()],
    admitted: AtomicU64,
    turned_away: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self {
            places: names.map(|name| (name.to_owned(), Count::default())).collect(),
            faults: Default::default(),
            admitted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// A request to the volume or pool at this place was answered.
    pub(crate) fn add(&self, place: usize, outcome: Result<u64, Fault>) {
        self.places[place].1.add(outcome);
        if let Err(fault) = outcome {
            let kind = FAULTS.iter().position(|(known, _)| *known == fault);
            // All are known.
            self.faults[kind.unwrap_or_default()].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A client was let in.
    pub(crate) fn admit(&self) {
        self.admitted.fetch_add(1, Ordering::Relaxed);
    }

    /// A client was turned away.
    pub(crate) fn turn_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered with an error that no node had a part in.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn flows(&self) -> Vec<Flow> {
        self.places.iter().map(|(name, count)| count.flow(name)).collect()
    }
}

/// Everything that a gateway counts, and who it is.
#[derive(Debug)]
pub(crate) struct Books {
    /// The hall of volumes.
    pub(crate) volumes: Arc<Hall>,
    /// Volumes whose parts do not belong together.
    mismatches: Arc<Mismatches>,
    /// Those of pools.
    pub(crate) pools: Vec<Arc<Hall>>,
    /// Who the tenants are, and what was asked for each.
    pub(crate) register: Arc<Register>,
    /// When it began, in milliseconds since 1970.
    started_ms: u64,
}

impl Books {
    pub(crate) fn open(
        (volumes, mismatches): (Arc<Hall>, Arc<Mismatches>),
        pools: Vec<Arc<Hall>>,
        register: Arc<Register>,
    ) -> Self {
        Self { volumes, mismatches, pools, register, started_ms: clock::unix_ms() }
    }

    /// Volumes that are not served because their parts do not belong together.
    pub(crate) fn volume_faults(&self) -> Vec<VolumeFault> {
        self.mismatches.faults()
    }

    fn halls(&self) -> impl Iterator<Item = &Arc<Hall>> {
        [&self.volumes].into_iter().chain(&self.pools)
    }

    /// How many clients are connected.
    pub(crate) fn clients(&self) -> usize {
        self.halls().map(|hall| hall.clients.load(Ordering::Relaxed)).sum()
    }

    /// The memory that requests and replies of clients take up, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.halls().map(|hall| hall.memory.load(Ordering::Relaxed)).sum()
    }

    /// Everything.
    pub(crate) fn counts(&self) -> GatewayCounts {
        let sum = |of: fn(&Counts) -> &AtomicU64| {
            self.halls().map(|hall| of(&hall.counts).load(Ordering::Relaxed)).sum()
        };
        let fault = |(place, (_, name)): (usize, &(Fault, &str))| {
            let counts = self.halls().map(|hall| &hall.counts.faults[place]);
            (String::from(*name), counts.map(|count| count.load(Ordering::Relaxed)).sum())
        };
        let doors = |hall: &Arc<Hall>| hall.addresses().into_iter().map(|door| door.to_string());
        let tenants = self.register.table();
        GatewayCounts {
            started_ms: self.started_ms,
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            release: env!("CARGO_PKG_VERSION").into(),
            nbd: doors(&self.volumes).collect(),
            memcached: self.pools.iter().flat_map(doors).collect(),
            clients: self.clients() as u64,
            admitted: sum(|counts| &counts.admitted),
            turned_away: sum(|counts| &counts.turned_away),
            refused: sum(|counts| &counts.refused),
            faults: FAULTS.iter().enumerate().map(fault).filter(|(_, count)| *count > 0).collect(),
            volumes: self.volumes.counts.flows(),
            pools: self.pools.iter().flat_map(|hall| hall.counts.flows()).collect(),
            tenants: tenants
                .counts()
                .map(|(name, count)| count.flow(name))
                .filter(|flow| flow.requests > 0)
                .collect(),
        }
    }
}
