//! Counters of a gateway: requests, clients and faults.
//!
//! Workers count when a request is answered, in numbers that all of them share; they are added to
//! without order and read one after the other, so a sum may be one request behind another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_algo::allocation::connection_quota::QuotaExceeded;
use tidegate_fabric::service::Fault;
use tidegate_proto::message::VolumeFault;
use tidegate_proto::stats::latency::RequestLatency;
use tidegate_proto::stats::message::{Flow, GatewayCounts, GatewayPressure};
use tidegate_proto::stats::path::PathTimes;

use crate::clock;
use crate::owners::Register;
use crate::reachability::Reachability;
use crate::recorder::Recorder;
use crate::worker::ServerContext;

/// Every fault, and its name in the status.
const FAULTS: [(Fault, &str); 6] = [
    (Fault::Invalid, "invalid"),
    (Fault::ReadOnly, "read_only"),
    (Fault::NoSpace, "no_space"),
    (Fault::Unsupported, "unsupported"),
    (Fault::Io, "io"),
    (Fault::Ending, "ending"),
];

/// Why a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnedAway {
    /// All connections are in use, or those that are left are kept for reservations.
    Connections,
    /// Its address or user has as many as it may.
    AddressQuota,
    /// Its tenant has as many as it may.
    TenantQuota,
    /// Too many connections are in their handshake, most of them of its address or user.
    PendingQuota,
    /// Its handshake took too long.
    HandshakeTimeout,
    /// It held memory for which others waited.
    MemoryBudget,
    /// It may not connect here, or not open the export that it named.
    AccessDenied,
}

/// Every reason with its name in the status, in the order of its number.
const REASONS: [(TurnedAway, &str); 7] = [
    (TurnedAway::Connections, "connections"),
    (TurnedAway::AddressQuota, "address_quota"),
    (TurnedAway::TenantQuota, "tenant_quota"),
    (TurnedAway::PendingQuota, "pending_quota"),
    (TurnedAway::HandshakeTimeout, "handshake_timeout"),
    (TurnedAway::MemoryBudget, "memory_budget"),
    (TurnedAway::AccessDenied, "access_denied"),
];

impl From<&QuotaExceeded> for TurnedAway {
    fn from(excess: &QuotaExceeded) -> Self {
        match excess {
            QuotaExceeded::All(_) | QuotaExceeded::Reserve(_) => Self::Connections,
            QuotaExceeded::Origin(..) => Self::AddressQuota,
            QuotaExceeded::Tenant(..) => Self::TenantQuota,
        }
    }
}

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

/// Counters of the workers behind the same listeners.
#[derive(Debug)]
pub(crate) struct ServerCounters {
    /// Counters of requests to each volume, or to the pool, with its name.
    volumes: Vec<(String, Count)>,
    /// In the order of [`FAULTS`].
    faults: [AtomicU64; FAULTS.len()],
    admitted: AtomicU64,
    /// In the order of [`REASONS`].
    turned_away: [AtomicU64; REASONS.len()],
    refused: AtomicU64,
    /// The requests themselves, while they are recorded.
    pub(crate) recorder: Arc<Recorder>,
}

impl ServerCounters {
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self {
            volumes: names.map(|name| (name.to_owned(), Count::default())).collect(),
            faults: Default::default(),
            admitted: AtomicU64::new(0),
            turned_away: Default::default(),
            refused: AtomicU64::new(0),
            recorder: Arc::default(),
        }
    }

    /// A request to the volume or pool at this index was answered.
    pub(crate) fn add(&self, index: usize, outcome: Result<u64, Fault>) {
        self.volumes[index].1.add(outcome);
        if let Err(fault) = outcome {
            let kind = FAULTS.iter().position(|(known, _)| *known == fault);
            // All are known.
            self.faults[kind.unwrap_or_default()].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A client was accepted.
    pub(crate) fn admit(&self) {
        self.admitted.fetch_add(1, Ordering::Relaxed);
    }

    /// A client was refused.
    pub(crate) fn turn_away(&self, reason: TurnedAway) {
        self.turned_away[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered with an error of the gateway's own.
    pub(crate) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn flows(&self) -> Vec<Flow> {
        self.volumes.iter().map(|(name, count)| count.flow(name)).collect()
    }
}

/// All counters of a gateway, and its identity.
#[derive(Debug)]
pub(crate) struct Stats {
    /// The server of volumes, and the recorder of its requests.
    pub(crate) volumes: Arc<ServerContext>,
    /// Volumes whose parts do not belong together.
    reachability: Arc<Reachability>,
    /// Those of pools.
    pub(crate) pools: Vec<Arc<ServerContext>>,
    /// The tenants, and the counters of the requests of each.
    pub(crate) register: Arc<Register>,
    /// Its start time, in milliseconds since 1970.
    started_ms: u64,
}

impl Stats {
    pub(crate) fn open(
        (volumes, reachability): (Arc<ServerContext>, Arc<Reachability>),
        pools: Vec<Arc<ServerContext>>,
        register: Arc<Register>,
    ) -> Self {
        Self { volumes, reachability, pools, register, started_ms: clock::unix_ms() }
    }

    /// Volumes that are not served because their parts do not belong together.
    pub(crate) fn volume_faults(&self) -> Vec<VolumeFault> {
        self.reachability.mismatches()
    }

    fn contexts(&self) -> impl Iterator<Item = &Arc<ServerContext>> {
        [&self.volumes].into_iter().chain(&self.pools)
    }

    /// How many clients are connected.
    pub(crate) fn clients(&self) -> usize {
        self.contexts().map(|context| context.clients.load(Ordering::Relaxed)).sum()
    }

    /// The memory that requests and replies of clients take up, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.contexts().map(|context| context.memory.load(Ordering::Relaxed)).sum()
    }

    /// Clients that were refused for the reason of this number.
    fn turned_away(&self, reason: usize) -> u64 {
        let counts = self.contexts().map(|context| &context.counts.turned_away[reason]);
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The use of its limits.
    pub(crate) fn pressure(&self) -> GatewayPressure {
        let reason = |(number, (_, name)): (usize, &(TurnedAway, &str))| {
            ((*name).to_owned(), self.turned_away(number))
        };
        GatewayPressure {
            turned_away: REASONS.iter().enumerate().map(reason).collect(),
            memory_used_bytes: self.memory() as u64,
            memory_limit_bytes: self.contexts().map(|context| context.memory_limit as u64).sum(),
        }
    }

    /// The latencies of requests, by tenant and operation.
    pub(crate) fn latency(&self) -> Vec<RequestLatency> {
        let table = self.register.table();
        table.latencies().flat_map(|(name, latency)| latency.counts(name)).collect()
    }

    /// Where requests spent their latencies, by tenant.
    pub(crate) fn paths(&self) -> Vec<(String, PathTimes)> {
        self.register.table().paths()
    }

    /// Everything else.
    pub(crate) fn counts(&self) -> GatewayCounts {
        let sum = |of: fn(&ServerCounters) -> &AtomicU64| {
            self.contexts().map(|context| of(&context.counts).load(Ordering::Relaxed)).sum()
        };
        let fault = |(index, (_, name)): (usize, &(Fault, &str))| {
            let counts = self.contexts().map(|context| &context.counts.faults[index]);
            (String::from(*name), counts.map(|count| count.load(Ordering::Relaxed)).sum())
        };
        let binds = |context: &Arc<ServerContext>| {
            context.addresses().into_iter().map(|address| address.to_string())
        };
        let tenants = self.register.table();
        GatewayCounts {
            started_ms: self.started_ms,
            pid: std::process::id(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            release: env!("CARGO_PKG_VERSION").into(),
            nbd: binds(&self.volumes).collect(),
            memcached: self.pools.iter().flat_map(binds).collect(),
            clients: self.clients() as u64,
            admitted: sum(|counts| &counts.admitted),
            turned_away: (0..REASONS.len()).map(|reason| self.turned_away(reason)).sum(),
            refused: sum(|counts| &counts.refused),
            faults: FAULTS.iter().enumerate().map(fault).filter(|(_, count)| *count > 0).collect(),
            volumes: self.volumes.counts.flows(),
            pools: self.pools.iter().flat_map(|context| context.counts.flows()).collect(),
            tenants: tenants
                .counts()
                .map(|(name, count)| count.flow(name))
                .filter(|flow| flow.requests > 0)
                .collect(),
        }
    }
}
