//! Latencies of requests by tenant and operation, and the time that each tenant's requests spent in
//! the gateway, on the link, in the node's queue and at its store: counters that all workers share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_model::{Operation, Span};
use tidegate_proto::stats::latency::{
    BUCKETS, LatencyCounts, OPERATIONS, RequestLatency, bucket_of, operation_index,
};
use tidegate_proto::stats::path::PathTimes;

/// The latencies of one tenant's requests. An operation takes memory from its first request on.
#[derive(Debug, Default)]
pub(crate) struct TenantLatency([OnceLock<Box<LatencyCounters>>; OPERATIONS.len()]);

/// The numbers behind [`LatencyCounts`].
#[derive(Debug, Default)]
struct LatencyCounters {
    total_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl TenantLatency {
    /// Counts a request that was answered after `latency`.
    #[inline]
    pub(crate) fn record(&self, operation: Operation, latency: Span) {
        let counters = self.0[operation_index(operation)].get_or_init(Box::default);
        counters.total_ns.fetch_add(latency.0, Ordering::Relaxed);
        counters.buckets[bucket_of(latency)].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts of each operation that the tenant, which has this name, has requested.
    pub(crate) fn counts(&self, tenant: &str) -> impl Iterator<Item = RequestLatency> {
        OPERATIONS.iter().zip(&self.0).filter_map(move |(operation, counters)| {
            let counters = counters.get()?;
            let counts = LatencyCounts {
                total_ns: counters.total_ns.load(Ordering::Relaxed),
                buckets: counters.buckets.each_ref().map(|count| count.load(Ordering::Relaxed)),
            };
            let (tenant, operation) = (tenant.to_owned(), String::from(*operation));
            Some(RequestLatency { tenant, operation, counts })
        })
    }
}

/// The numbers behind [`PathTimes`], of one tenant.
#[derive(Debug, Default)]
pub(crate) struct TenantPath {
    requests: AtomicU64,
    gateway_ns: AtomicU64,
    link_ns: AtomicU64,
    queue_ns: AtomicU64,
    store_ns: AtomicU64,
}

impl TenantPath {
    /// Counts a request.
    pub(crate) fn add(&self, times: &PathTimes) {
        let PathTimes { requests, gateway_ns, link_ns, queue_ns, store_ns } = *times;
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.gateway_ns.fetch_add(gateway_ns, Ordering::Relaxed);
        self.link_ns.fetch_add(link_ns, Ordering::Relaxed);
        self.queue_ns.fetch_add(queue_ns, Ordering::Relaxed);
        self.store_ns.fetch_add(store_ns, Ordering::Relaxed);
    }

    pub(crate) fn times(&self) -> PathTimes {
        PathTimes {
            requests: self.requests.load(Ordering::Relaxed),
            gateway_ns: self.gateway_ns.load(Ordering::Relaxed),
            link_ns: self.link_ns.load(Ordering::Relaxed),
            queue_ns: self.queue_ns.load(Ordering::Relaxed),
            store_ns: self.store_ns.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_model::operation::OPERATIONS as ALL;
    use tidegate_proto::stats::latency::Reported;

    proptest! {
        /// Each request is in one bucket of its operation, whichever thread has counted it.
        #[test]
        fn buckets_add_up_to_requests(
            requests in proptest::collection::vec((0..ALL.len(), 0_u64..1 << 34), 0..200),
        ) {
            let latency = TenantLatency::default();
            let (first, second) = requests.split_at(requests.len() / 2);
            std::thread::scope(|scope| {
                for half in [first, second] {
                    let record = |(operation, time): &(usize, u64)| {
                        latency.record(ALL[*operation].0, Span(*time));
                    };
                    scope.spawn(move || half.iter().for_each(record));
                }
            });
            let counts: Vec<_> = latency.counts("oltp").collect();
            let total: u64 = counts.iter().map(|it| it.counts.requests()).sum();
            prop_assert_eq!(total, requests.len() as u64);
            for (operation, number) in OPERATIONS.iter().zip(0..) {
                let own = requests.iter().filter(|(at, _)| operation_index(ALL[*at].0) == number);
                let own: Vec<u64> = own.map(|(_, time)| *time).collect();
                let found = counts.iter().find(|it| it.operation == *operation);
                prop_assert_eq!(found.is_some(), !own.is_empty());
                if let Some(found) = found {
                    prop_assert_eq!(found.counts.requests(), own.len() as u64);
                    prop_assert_eq!(found.counts.total_ns, own.iter().sum::<u64>());
                }
            }
        }
    }

    #[test]
    fn only_what_has_changed_is_reported() {
        let (oltp, backup) = (TenantLatency::default(), TenantLatency::default());
        let mut reported = Reported::default();
        let mut changed = |is_new: bool| {
            if is_new {
                reported.clear();
            }
            let all = oltp.counts("oltp").chain(backup.counts("backup")).collect();
            let changed = reported.changed(all).into_iter();
            changed.map(|it| format!("{} {}", it.tenant, it.operation)).collect::<Vec<_>>()
        };
        assert!(changed(false).is_empty());
        oltp.record(Operation::Read, Span(1));
        backup.record(Operation::Sync, Span(1));
        assert_eq!(changed(false), ["oltp read", "backup flush"]);
        assert!(changed(false).is_empty());
        oltp.record(Operation::Put, Span::ZERO);
        assert_eq!(changed(false), ["oltp put"]);
        assert_eq!(changed(true), ["oltp read", "oltp put", "backup flush"]);
    }
}
