//! Buckets of the histograms that the controller's peers have counted.

use tidegate_algo::concurrent::histogram::BucketIndex;
use tidegate_proto::stats::latency::{self, LatencyCounts};

/// Upper bounds of the buckets of waiting times, in nanoseconds: from what a sleeping thread can
/// tell apart to what a person calls hung.
const WAIT_BOUNDS_NS: [u64; 10] = [
    100_000,
    1_000_000,
    5_000_000,
    10_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// The stages' fine buckets put into [`WAIT_BOUNDS_NS`]: each into the first whose bound is not
/// below its own, so that no wait looks shorter than it was.
pub(super) fn wait_buckets(counts: &[u64]) -> Vec<(f64, u64)> {
    let bounds = WAIT_BOUNDS_NS.iter().copied().chain([u64::MAX]);
    let mut buckets: Vec<(u64, u64)> = bounds.map(|bound| (bound, 0)).collect();
    for (index, count) in counts.iter().enumerate() {
        let bound = BucketIndex::at(index).upper_bound().0;
        if let Some((_, sum)) = buckets.iter_mut().find(|(upper, _)| bound <= *upper) {
            *sum += count;
        }
    }
    buckets.into_iter().map(|(bound, count)| (seconds(bound), count)).collect()
}

/// The buckets of requests at gateways and nodes.
pub(super) fn latency_buckets(counts: &LatencyCounts) -> Vec<(f64, u64)> {
    let bound = |bucket| latency::upper_bound(bucket).map_or(u64::MAX, |bound| bound.0);
    (0..).zip(counts.buckets).map(|(bucket, count)| (seconds(bound(bucket)), count)).collect()
}

/// A bound in seconds. Without a last bucket that says `+Inf`, `histogram_quantile` is not a
/// number.
fn seconds(bound_ns: u64) -> f64 {
    if bound_ns == u64::MAX { f64::INFINITY } else { bound_ns as f64 / 1e9 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_reported_shorter_than_it_was() {
        let mut counts = vec![0; 256];
        counts[0] = 1;
        counts[255] = 2;
        let buckets = wait_buckets(&counts);
        assert_eq!(buckets[0], (0.0001, 1));
        assert_eq!(buckets[10], (f64::INFINITY, 2));
    }
}
