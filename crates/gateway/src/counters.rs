//! Counters of requests, clients and faults of one server.
//!
//! Workers count a request when it is answered, in counters that all workers share. The counters
//! are read one after the other, so one may include a request that another does not include yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_algo::allocation::connection_quota::QuotaExceeded;
use tidegate_fabric::service::Fault;
use tidegate_proto::stats::message::AnsweredRequests;

use crate::recorder::Recorder;
use crate::volumes::VolumeIndex;

/// Every fault, and its name in the status.
pub(crate) const FAULTS: [(Fault, &str); 6] = [
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
pub(crate) const REASONS: [(TurnedAway, &str); 7] = [
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

/// The numbers behind a [`AnsweredRequests`].
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

    pub(crate) fn flow(&self, name: &str) -> AnsweredRequests {
        let [requests, bytes, errors] =
            [&self.requests, &self.bytes, &self.errors].map(|count| count.load(Ordering::Relaxed));
        AnsweredRequests { name: name.to_owned(), requests, bytes, errors }
    }
}

/// Counters of the workers behind the same listeners.
#[derive(Debug)]
pub(crate) struct ServerCounters {
    /// Counters of requests to each volume, or to the pool, with its name.
    pub(crate) volumes: Vec<(String, Count)>,
    /// In the order of [`FAULTS`].
    pub(crate) faults: [AtomicU64; FAULTS.len()],
    pub(crate) admitted: AtomicU64,
    /// In the order of [`REASONS`].
    pub(crate) turned_away: [AtomicU64; REASONS.len()],
    pub(crate) refused: AtomicU64,
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

    /// A request to this volume or pool was answered.
    pub(crate) fn add(&self, volume: VolumeIndex, outcome: Result<u64, Fault>) {
        self.volumes[volume.0].1.add(outcome);
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

    /// The counts of each volume, or of the pool.
    pub(crate) fn flows(&self) -> Vec<AnsweredRequests> {
        self.volumes.iter().map(|(name, count)| count.flow(name)).collect()
    }
}
