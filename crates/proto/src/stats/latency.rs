//! Latencies of requests at gateways and nodes, added up over all processes that have counted.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::{KINDS_MAX, is_known};
pub use crate::message::latency::{
    BUCKETS, LatencyCounts, OPERATIONS, Reported, RequestLatency, bucket_of, operation_index,
    upper_bound,
};

/// One histogram: the names of peer, tenant and operation, and the counts.
pub type NamedLatency = ([String; 3], LatencyCounts);

/// The histograms of all gateways and nodes, in their order.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// Latencies at gateways.
    pub gateways: Vec<NamedLatency>,
    /// Latencies at nodes.
    pub nodes: Vec<NamedLatency>,
    /// Queue times at nodes.
    pub queues: Vec<NamedLatency>,
}

/// The times at one peer, by tenant and operation; the empty name is of requests without a tenant.
#[derive(Debug, Default)]
pub(super) struct PeerLatency(BTreeMap<(String, String), LatencyMeter>);

impl PeerLatency {
    /// Takes a reading of tenants that the policy has.
    pub(super) fn read(&mut self, latency: Vec<RequestLatency>, indexes: &BTreeMap<String, usize>) {
        let most = (indexes.len() + 1) * KINDS_MAX;
        for RequestLatency { tenant, operation, counts } in latency {
            let (is_known, key) = (is_known(&tenant, indexes), (tenant, operation));
            if is_known && (self.0.len() < most || self.0.contains_key(&key)) {
                self.0.entry(key).or_default().read(counts);
            }
        }
    }

    /// Forgets tenants that the policy does not have.
    pub(super) fn retain(&mut self, indexes: &BTreeMap<String, usize>) {
        self.0.retain(|(tenant, _), _| is_known(tenant, indexes));
    }

    /// The process is another one.
    pub(super) fn replace(&mut self) {
        self.0.values_mut().for_each(LatencyMeter::replace);
    }

    /// The totals, with the name of the peer.
    pub(super) fn named(&self, peer: &str) -> impl Iterator<Item = NamedLatency> {
        self.0.iter().map(move |((tenant, operation), meter)| {
            ([peer, &**tenant, &**operation].map(String::from), meter.total())
        })
    }
}

/// The total of [`LatencyCounts`] over all processes that have counted.
#[derive(Clone, Copy, Debug, Default)]
struct LatencyMeter {
    /// Counted by former processes.
    before: LatencyCounts,
    /// The last reading of the present process.
    last: LatencyCounts,
}

impl LatencyMeter {
    fn read(&mut self, counts: LatencyCounts) {
        if counts.requests() < self.last.requests() {
            self.replace();
        }
        self.last = counts;
    }

    /// Begins with a new process that counts from zero.
    fn replace(&mut self) {
        *self = Self { before: self.total(), ..Self::default() };
    }

    fn total(&self) -> LatencyCounts {
        self.before.plus(&self.last)
    }
}
