//! Latencies of a gateway's requests, counted in fixed buckets.
//!
//! The bounds are a factor of two apart, from 16 us to 4.2 s. So a quantile read from the counts is
//! at most twice the true one, and finding a bucket takes a division and a logarithm.

use alloc::string::String;

use serde::{Deserialize, Serialize};
use tidegate_model::Span;

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
    /// The number of requests.
    pub fn requests(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    fn plus(mut self, other: &Self) -> Self {
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum = sum.saturating_add(*count);
        }
        self
    }
}

/// The latencies of a tenant's requests of one operation since the gateway's process began: from
/// when the gateway has read a request until it queues the reply. It reads the clock once for the
/// requests that one wakeup brings, and once for the replies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLatency {
    /// The tenant's name; empty for requests without a tenant.
    pub tenant: String,
    /// `read`, `write`, `flush`, `get`, `put` or `other`.
    pub operation: String,
    /// The counts.
    pub counts: LatencyCounts,
}

/// The total of [`LatencyCounts`] over all processes that have counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LatencyMeter {
    /// Counted by former processes.
    before: LatencyCounts,
    /// The last reading of the present process.
    last: LatencyCounts,
}

impl LatencyMeter {
    pub(super) fn read(&mut self, counts: LatencyCounts) {
        if counts.requests() < self.last.requests() {
            self.replace();
        }
        self.last = counts;
    }

    /// Begins with a new process that counts from zero.
    pub(super) fn replace(&mut self) {
        *self = Self { before: self.total(), ..Self::default() };
    }

    pub(super) fn total(&self) -> LatencyCounts {
        self.before.plus(&self.last)
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
