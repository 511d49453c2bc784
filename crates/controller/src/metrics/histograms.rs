//! Histograms that the controller's peers have counted.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit as MetricUnit;
use tidegate_algo::concurrent::histogram::upper_bound;
use tidegate_model::gate::Unit;
use tidegate_proto::controller::Waits;
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GateLabel {
    tenant: String,
    gate: &'static str,
}

/// Waiting times at tenants' own buckets.
#[derive(Debug)]
pub(super) struct WaitTimes(pub(super) Vec<(String, Unit, Waits)>);

impl Collector for WaitTimes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "How long delayed requests waited at the tenant's own bucket";
        let unit = MetricUnit::Seconds;
        let kind = MetricType::Histogram;
        let mut metric = encoder.encode_descriptor("gate_wait", help, Some(&unit), kind)?;
        for (tenant, unit, waits) in &self.0 {
            if waits.counts.is_empty() {
                continue;
            }
            let gate = match unit {
                Unit::Bytes => "bandwidth",
                Unit::Operations => "operations",
            };
            let label = GateLabel { tenant: tenant.clone(), gate };
            let mut series = metric.encode_family(&label)?;
            let count = waits.counts.iter().sum();
            let sum = waits.waited_ns as f64 / 1e9;
            series.encode_histogram::<NoLabelSet>(sum, count, &buckets(&waits.counts), None)?;
        }
        Ok(())
    }
}

/// Latencies of requests at gateways, with the names of gateway, tenant and operation.
#[derive(Debug)]
pub(super) struct GatewayLatency(pub(super) Vec<([String; 3], LatencyCounts)>);

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LatencyLabel {
    gateway: String,
    tenant: String,
    operation: String,
}

impl Collector for GatewayLatency {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "From when the gateway has read a request until it queues the reply";
        let (unit, kind) = (MetricUnit::Seconds, MetricType::Histogram);
        let mut metric = encoder.encode_descriptor("gateway_request", help, Some(&unit), kind)?;
        for ([gateway, tenant, operation], counts) in &self.0 {
            let [gateway, tenant, operation] = [gateway, tenant, operation].map(String::clone);
            let label = LatencyLabel { gateway, tenant, operation };
            let mut series = metric.encode_family(&label)?;
            let seconds = |bucket| {
                latency::upper_bound(bucket).map_or(f64::INFINITY, |bound| bound.0 as f64 / 1e9)
            };
            let buckets = (0..).zip(counts.buckets);
            let buckets: Vec<_> = buckets.map(|(bucket, count)| (seconds(bucket), count)).collect();
            let (sum, count) = (counts.total_ns as f64 / 1e9, counts.requests());
            series.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// The stages' fine buckets put into [`WAIT_BOUNDS_NS`]: each into the first whose bound is not
/// below its own, so that no wait looks shorter than it was.
fn buckets(counts: &[u64]) -> Vec<(f64, u64)> {
    let bounds = WAIT_BOUNDS_NS.iter().copied().chain([u64::MAX]);
    let mut buckets: Vec<(u64, u64)> = bounds.map(|bound| (bound, 0)).collect();
    for (index, count) in counts.iter().enumerate() {
        let bound = upper_bound(index).0;
        if let Some((_, sum)) = buckets.iter_mut().find(|(upper, _)| bound <= *upper) {
            *sum += count;
        }
    }
    // Without a last bucket that says `+Inf`, `histogram_quantile` is not a number.
    let seconds = |bound: u64| match bound {
        u64::MAX => f64::INFINITY,
        bound => bound as f64 / 1e9,
    };
    buckets.into_iter().map(|(bound, count)| (seconds(bound), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_reported_shorter_than_it_was() {
        let mut counts = vec![0; 256];
        counts[0] = 1;
        counts[255] = 2;
        let buckets = buckets(&counts);
        assert_eq!(buckets[0], (0.0001, 1));
        assert_eq!(buckets[10], (f64::INFINITY, 2));
    }
}
