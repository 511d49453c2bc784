//! Latencies of requests at gateways and nodes, counted in fixed buckets.
//!
//! The bounds are a factor of two apart, from 16 us to 4.2 s. So a quantile read from the counts is
//! at most twice the true one, and finding a bucket takes a division and a logarithm.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use tidegate_model::{Operation, Span};

/// The operations that are distinguished.
pub const OPERATIONS: [&str; 6] = ["read", "write", "flush", "get", "put", "other"];

/// The index in [`OPERATIONS`].
#[inline]
pub const fn operation_index(operation: Operation) -> usize {
    match operation {
        Operation::Read => 0,
        Operation::Write => 1,
        Operation::Sync => 2,
        Operation::Get => 3,
        Operation::Put => 4,
        _ => 5,
    }
}

/// The number of buckets; the last one counts what is longer than all bounds.
pub const BUCKETS: usize = 20;

/// The first bound.
const FIRST: Span = Span(16 * Span::MICROSECOND.0);

/// The bucket of a latency: the first one with a bound that is not below it.
#[inline]
pub const fn bucket_of(latency: Span) -> usize {
    let bucket = match latency.0.saturating_sub(1) / FIRST.0 {
        0 => 0,
        multiple => multiple.ilog2() as usize + 1,
    };
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// The longest latency that the bucket counts; nothing for the last bucket, which has no bound.
pub const fn upper_bound(bucket: usize) -> Option<Span> {
    if bucket + 1 < BUCKETS { Some(Span(FIRST.0 << bucket)) } else { None }
}

/// How many requests had which latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyCounts {
    /// The sum of all latencies, in nanoseconds.
    pub total_ns: u64,
    /// Requests by [bucket](bucket_of).
    pub buckets: [u64; BUCKETS],
}

impl LatencyCounts {
    /// Counts a request.
    #[inline]
    pub(crate) fn record(&mut self, latency: Span) {
        self.total_ns = self.total_ns.wrapping_add(latency.0);
        self.buckets[bucket_of(latency)] += 1;
    }

    /// The number of requests.
    pub fn requests(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    pub(crate) fn plus(mut self, other: &Self) -> Self {
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum = sum.saturating_add(*count);
        }
        self
    }
}

/// Times of a tenant's requests of one operation since the process that counts began.
///
/// Latency at a gateway is the time from when the gateway has read a request until it queues the
/// reply. The gateway reads the clock once for the requests that one wakeup brings, and once for
/// the replies. At a node it is the time from when a request arrives until the node has the reply,
/// and the queue time is the part of it before the request, or its first piece, goes to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLatency {
    /// The tenant's name; empty for requests without a tenant.
    pub tenant: String,
    /// One of [`OPERATIONS`].
    pub operation: String,
    /// The counts.
    pub counts: LatencyCounts,
}

/// The times that the controller has: only what differs is sent.
#[derive(Debug, Default)]
pub struct Reported(BTreeMap<(String, String), LatencyCounts>);

impl Reported {
    /// The controller has nothing.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Those of `latency` that the controller does not have; it has them from now on.
    pub fn changed(&mut self, mut latency: Vec<RequestLatency>) -> Vec<RequestLatency> {
        latency.retain(|RequestLatency { tenant, operation, counts }| {
            self.0.insert((tenant.clone(), operation.clone()), *counts) != Some(*counts)
        });
        latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_what_is_at_most_its_bound_and_above_the_one_before() {
        assert_eq!(upper_bound(0), Some(Span(16_000)));
        assert_eq!(upper_bound(BUCKETS - 2), Some(Span(16_000 << 18)));
        assert_eq!((bucket_of(Span::ZERO), bucket_of(Span::MAX)), (0, BUCKETS - 1));
        for bucket in 0..BUCKETS - 1 {
            let bound = upper_bound(bucket).map_or(0, |bound| bound.0);
            assert_eq!(bucket_of(Span(bound)), bucket, "{bound}");
            assert_eq!(bucket_of(Span(bound + 1)), bucket + 1, "{bound}");
        }
        assert_eq!(upper_bound(BUCKETS - 1), None);
    }
}
