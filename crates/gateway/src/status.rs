//! Status of a gateway: the counters of all its servers, its use of limits, and its identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_fabric::service::Fault;
use tidegate_proto::message::VolumeFault;
use tidegate_proto::stats::latency::RequestLatency;
use tidegate_proto::stats::message::{GatewayCounts, GatewayPressure};
use tidegate_proto::stats::path::PathTimes;

use crate::clock;
use crate::context::ServerContext;
use crate::counters::{FAULTS, REASONS, ServerCounters, TurnedAway};
use crate::owners::Register;
use crate::reachability::Reachability;

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
