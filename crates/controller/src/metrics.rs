//! Metrics for Prometheus: base units, and the unit in the name.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit as MetricUnit};
use tidegate_algo::histogram::upper_bound;
use tidegate_model::gate::Unit;
use tidegate_proto::cluster::status::{ClusterStatus, ClusterTenant, NodeStatus};
use tidegate_proto::controller::Waits;
use tidegate_proto::controller::status::{Status, TenantStatus};

use crate::machine::Survey;

/// The type that [`text`] is of.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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

type Value = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabel {
    tenant: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GateLabel {
    tenant: String,
    gate: &'static str,
}

/// Everything that is measured, in the OpenMetrics text format.
pub(crate) fn text(survey: &Survey, cycle_seconds: &Histogram) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("tidegate");
    register_totals(&mut registry, &survey.status);
    register_tenants(&mut registry, &survey.status.tenants);
    if let Some(cluster) = &survey.status.cluster {
        register_cluster(&mut registry, cluster);
    }
    let help = "From a cycle's first question to its last new rate";
    let cycles = cycle_seconds.clone();
    registry.register_with_unit("controller_cycle", help, MetricUnit::Seconds, cycles);
    registry.register_collector(Box::new(WaitTimes(survey.waits.clone())));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn register_totals(registry: &mut Registry, status: &Status) {
    let totals = &status.totals;
    let mut gauge = |name: &str, help: &str, value: u64| {
        let gauge = Value::default();
        gauge.set(value as f64);
        registry.register(name, help, gauge);
    };
    gauge("policy_revision", "The revision of the policy in force, zero for none", status.revision);
    gauge("stages", "Connected stages", totals.stages);
    gauge("processes", "Processes that use the connected stages", totals.processes);
    let silent = status.stages.iter().filter(|stage| stage.is_silent).count() as u64;
    gauge("stages_silent", "Connected stages that have stopped answering", silent);
    let mut counter = |name: &str, help: &str, value: u64| {
        let counter: Counter = Counter::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    };
    counter("controller_cycles", "Cycles that have ended", totals.cycles);
    counter("controller_rate_updates", "Rates that were changed", totals.rate_updates);
    counter(
        "controller_rate_updates_suppressed",
        "Changes of rates that were too small to be sent",
        totals.rate_updates_suppressed,
    );
    counter("stages_refused", "Stages that were turned away", totals.stages_refused);
    counter("rules_refused", "Times that a stage did not take its rules", totals.rules_refused);
    let refusing = status.stages.iter().filter(|stage| stage.error.is_some()).count();
    let gauge = Value::default();
    gauge.set(refusing as f64);
    let help = "Connected stages that did not take the rules of the policy in force";
    registry.register("stages_refusing_rules", help, gauge);
}

/// A metric of tenants: its name, its help, and its value where there is one.
type OfTenant = (&'static str, &'static str, fn(&TenantStatus) -> Option<u64>);

const TENANT_GAUGES: [OfTenant; 12] = [
    ("tenant_rate_bytes_per_second", "What the tenant may use now", |t| {
        t.allocated_bytes_per_second
    }),
    ("tenant_rate_operations_per_second", "What the tenant may use now", |t| {
        t.allocated_operations_per_second
    }),
    ("tenant_reservation_bytes_per_second", "What the tenant gets whenever it asks", |t| {
        t.reservation_bytes_per_second
    }),
    ("tenant_reservation_operations_per_second", "What the tenant gets whenever it asks", |t| {
        t.reservation_operations_per_second
    }),
    ("tenant_limit_bytes_per_second", "What the tenant never gets more of", |t| {
        t.limit_bytes_per_second
    }),
    ("tenant_limit_operations_per_second", "What the tenant never gets more of", |t| {
        t.limit_operations_per_second
    }),
    ("tenant_demand_bytes_per_second", "What the tenant is taken to want, if bounded", |t| {
        t.demand_bytes_per_second
    }),
    ("tenant_demand_operations_per_second", "What the tenant is taken to want, if bounded", |t| {
        t.demand_operations_per_second
    }),
    ("tenant_used_bytes_per_second", "What flowed in the last period", |t| {
        Some(t.period_bytes_per_second)
    }),
    ("tenant_used_operations_per_second", "What flowed in the last period", |t| {
        Some(t.period_operations_per_second)
    }),
    ("tenant_waiting_requests", "Requests that wait at the tenant's buckets now", |t| {
        Some(t.waiting_requests)
    }),
    ("tenant_stages", "Connected stages that serve the tenant", |t| Some(t.stages)),
];

fn register_tenants(registry: &mut Registry, tenants: &[TenantStatus]) {
    let label = |tenant: &TenantStatus| TenantLabel { tenant: tenant.name.clone() };
    for (name, help, value) in TENANT_GAUGES {
        let family = Family::<TenantLabel, Value>::default();
        for tenant in tenants {
            if let Some(value) = value(tenant) {
                family.get_or_create(&label(tenant)).set(value as f64);
            }
        }
        registry.register(name, help, family);
    }
    let mut counter = |name: &str, help: &str, value: fn(&TenantStatus) -> u64| {
        let family = Family::<TenantLabel, Counter>::default();
        for tenant in tenants {
            family.get_or_create(&label(tenant)).inc_by(value(tenant));
        }
        registry.register(name, help, family);
    };
    counter("tenant_bytes", "Bytes that flowed", |tenant| tenant.bytes);
    counter("tenant_operations", "Operations that flowed", |tenant| tenant.operations);
    let waited = Family::<TenantLabel, Counter<f64, AtomicU64>>::default();
    for tenant in tenants {
        waited.get_or_create(&label(tenant)).inc_by(tenant.waited_ns as f64 / 1e9);
    }
    registry.register("tenant_wait_seconds", "Time that requests waited, all together", waited);
    let longest = Family::<TenantLabel, Value>::default();
    for tenant in tenants {
        if let Some(wait) = tenant.wait_p99_ns {
            longest.get_or_create(&label(tenant)).set(wait as f64 / 1e9);
        }
    }
    let help = "How long 99 of 100 requests of the last period waited at most";
    registry.register("tenant_wait_p99_seconds", help, longest);
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeLabel {
    node: String,
}

/// A metric of nodes, and one of what tenants get at all of them together.
type OfNode = (&'static str, &'static str, fn(&NodeStatus) -> u64);
type OfClusterTenant = (&'static str, &'static str, fn(&ClusterTenant) -> Option<u64>);

const NODE_GAUGES: [OfNode; 3] = [
    ("node_connected", "Whether the node is connected", |node| node.is_connected.into()),
    ("node_silent", "Whether the node has stopped answering", |node| node.is_silent.into()),
    ("node_capacity_operations", "What the node is estimated to do in a period", |node| {
        node.capacity_operations
    }),
];

const CLUSTER_TENANT_GAUGES: [OfClusterTenant; 5] = [
    ("nodes_tenant_reserved_operations", "What the tenant is promised in a period", |tenant| {
        Some(tenant.reserved_operations)
    }),
    ("nodes_tenant_limit_operations", "What the tenant gets at most in a period", |tenant| {
        tenant.limit_operations
    }),
    ("nodes_tenant_served_operations", "What the tenant got in the last period", |tenant| {
        Some(tenant.last_served_operations)
    }),
    ("nodes_tenant_demand_operations", "What it may ask for in the rest of the period", |tenant| {
        Some(tenant.demand_operations)
    }),
    ("nodes_tenant_met", "Whether its reservation was met in the last period", |tenant| {
        Some(tenant.is_met.into())
    }),
];

fn register_cluster(registry: &mut Registry, cluster: &ClusterStatus) {
    for (name, help, value) in NODE_GAUGES {
        let family = Family::<NodeLabel, Value>::default();
        for node in &cluster.nodes {
            let label = NodeLabel { node: node.name.clone() };
            family.get_or_create(&label).set(value(node) as f64);
        }
        registry.register(name, help, family);
    }
    for (name, help, value) in CLUSTER_TENANT_GAUGES {
        let family = Family::<TenantLabel, Value>::default();
        for tenant in &cluster.tenants {
            let label = TenantLabel { tenant: tenant.name.clone() };
            if let Some(value) = value(tenant) {
                family.get_or_create(&label).set(value as f64);
            }
        }
        registry.register(name, help, family);
    }
    let mut gauge = |name: &str, help: &str, value: f64| {
        let gauge = Value::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    let round = cluster.round_ns as f64 / 1e9;
    gauge("nodes_round_seconds", "How long the last distribution of tokens took", round);
    let help = "Bytes said and heard between controller and nodes in the last period";
    gauge("nodes_traffic_bytes", help, cluster.traffic.bytes as f64);
}

/// Waiting times at tenants' own buckets.
#[derive(Debug)]
struct WaitTimes(Vec<(String, Unit, Waits)>);

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
    let seconds = |bound: u64| if bound == u64::MAX { f64::MAX } else { bound as f64 / 1e9 };
    buckets.into_iter().map(|(bound, count)| (seconds(bound), count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_told_in_seconds() {
        let tenant = |name: &str, wait_p99_ns| TenantStatus {
            name: name.into(),
            wait_p99_ns,
            ..TenantStatus::default()
        };
        let tenants = vec![tenant("oltp", Some(1_310_720)), tenant("idle", None)];
        let mut status = Status { tenants, ..Status::default() };
        status.totals.rules_refused = 3;
        let survey = Survey { status, waits: Vec::new(), cycles: Vec::new() };
        let text = text(&survey, &Histogram::new([1.0])).unwrap();
        assert!(text.contains("\ntidegate_tenant_wait_p99_seconds{tenant=\"oltp\"} 0.00131072\n"));
        assert!(!text.contains("wait_p99_seconds{tenant=\"idle\"}"), "it has no requests");
        assert!(text.contains("\ntidegate_rules_refused_total 3\n"), "{text}");
    }

    #[test]
    fn no_wait_looks_shorter_than_it_was() {
        let mut counts = vec![0; 256];
        counts[0] = 1;
        counts[255] = 2;
        let buckets = buckets(&counts);
        assert_eq!(buckets[0], (0.0001, 1));
        assert_eq!(buckets[10], (f64::MAX, 2));
    }
}
