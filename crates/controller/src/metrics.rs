//! Metrics for Prometheus: base units, and the unit in the name.

use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit as MetricUnit};
use tidegate_model::Rule;
use tidegate_proto::cluster::status::{
    ClusterStatus, ClusterTenant, DataNodeStatus, GatewayStatus, NodeStatus, OfferStatus,
    TenantAtDataNode, TenantAtNode, TurnedAwayStatus,
};
use tidegate_proto::controller::status::{Status, TenantStatus};

use crate::machine::Survey;
use histograms::{GatewayLatency, WaitTimes};

mod histograms;

/// The content type of [`text`].
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Value = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TenantLabel {
    tenant: String,
}

/// All metrics, in the OpenMetrics text format.
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
    registry.register_collector(Box::new(GatewayLatency(survey.latency.clone())));
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
    counter("stages_refused", "Stages that were refused", totals.stages_refused);
    counter("rules_refused", "Times that a stage did not take its rules", totals.rules_refused);
    let refusing = status.stages.iter().filter(|stage| stage.error.is_some()).count();
    let gauge = Value::default();
    gauge.set(refusing as f64);
    let help = "Connected stages that did not take the rules of the policy in force";
    registry.register("stages_refusing_rules", help, gauge);
}

/// A metric of things of one kind: its name, its help, and its value where there is one.
type Of<T> = (&'static str, &'static str, fn(&T) -> Option<u64>);

const TENANT_GAUGES: [Of<TenantStatus>; 12] = [
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

const TENANT_COUNTERS: [Of<TenantStatus>; 2] = [
    ("tenant_bytes", "Bytes that flowed", |tenant| Some(tenant.bytes)),
    ("tenant_operations", "Operations that flowed", |tenant| Some(tenant.operations)),
];

fn register_tenants(registry: &mut Registry, tenants: &[TenantStatus]) {
    let label = |tenant: &TenantStatus| TenantLabel { tenant: tenant.name.clone() };
    let labelled = || tenants.iter().map(|tenant| (label(tenant), tenant));
    register_gauges(registry, TENANT_GAUGES, labelled);
    register_counters(registry, TENANT_COUNTERS, labelled);
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PairLabel {
    node: String,
    tenant: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabel {
    node: String,
    tenant: String,
    rule: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GatewayLabel {
    gateway: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FaultLabel {
    gateway: String,
    kind: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    gateway: String,
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfferLabel {
    gateway: String,
    kind: String,
    name: String,
}

const NODE_GAUGES: [Of<NodeStatus>; 10] = [
    ("node_connected", "Whether the node is connected", |node| Some(node.is_connected.into())),
    ("node_silent", "Whether the node has stopped answering", |node| Some(node.is_silent.into())),
    ("node_faulty_parts", "Parts that it refuses or that may have lost writes", |node| {
        Some(node.faults.len() as u64)
    }),
    ("node_store_away", "Whether its store, a memcached, cannot be reached", |node| {
        Some(node.store_fault.is_some().into())
    }),
    ("node_capacity_operations", "What the node is estimated to do in a period", |node| {
        Some(node.capacity_operations)
    }),
    ("node_measured_operations_per_second", "What the node measured that it can do", |node| {
        node.measured_operations_per_second
    }),
    ("node_declared_operations_per_second", "What the node is declared to do", |node| {
        node.declared_operations_per_second
    }),
    ("node_waiting_operations", "What waits at the node now", |node| Some(node.waiting_operations)),
    ("node_in_flight_requests", "Requests at the node's store now", |node| {
        Some(node.in_flight_requests.into())
    }),
    ("node_depth_requests", "The most requests at the node's store at a time", |node| {
        Some(node.depth_requests.into())
    }),
];

const NODE_COUNTERS: [Of<NodeStatus>; 1] =
    [("node_served_operations", "What the node's store has finished", |node| {
        Some(node.total_served_operations)
    })];

const PAIR_GAUGES: [Of<TenantAtNode>; 4] = [
    (
        "node_tenant_reserved_operations",
        "What is kept for the tenant there in the period",
        |pair| Some(pair.reserved_operations),
    ),
    ("node_tenant_limit_operations", "What it gets there at most in the period", |pair| {
        pair.limit_operations
    }),
    ("node_tenant_demand_operations", "What it is estimated to ask for in its rest", |pair| {
        Some(pair.demand_operations)
    }),
    ("node_tenant_waiting_operations", "How much of that waits already", |pair| {
        Some(pair.waiting_operations)
    }),
];

const PAIR_COUNTERS: [Of<TenantAtNode>; 1] =
    [("node_tenant_served_operations", "What the tenant was served at the node", |pair| {
        Some(pair.total_served_operations)
    })];

const GATEWAY_GAUGES: [Of<GatewayStatus>; 6] = [
    ("gateway_connected", "Whether the gateway is connected to the controller", |gateway| {
        Some(gateway.is_connected.into())
    }),
    ("gateway_silent", "Whether the gateway has stopped answering", |gateway| {
        Some(gateway.is_silent.into())
    }),
    ("gateway_clients", "Clients of the gateway", |gateway| Some(gateway.clients)),
    (
        "gateway_faulty_volumes",
        "Volumes it does not serve because their parts do not belong together",
        |gateway| Some(gateway.volume_faults.len() as u64),
    ),
    ("gateway_memory_used_bytes", "What requests and replies of clients take up", |gateway| {
        Some(gateway.memory_used_bytes)
    }),
    ("gateway_memory_limit_bytes", "What they may take up", |gateway| {
        Some(gateway.memory_limit_bytes)
    }),
];

const GATEWAY_COUNTERS: [Of<GatewayStatus>; 3] = [
    ("gateway_clients_admitted", "Clients that were accepted", |gateway| Some(gateway.admitted)),
    ("gateway_clients_turned_away", "Clients that were refused", |gateway| {
        Some(gateway.turned_away)
    }),
    ("gateway_refused_requests", "Requests to volumes that went to no node", |gateway| {
        Some(gateway.refused_requests)
    }),
];

const OFFER_COUNTERS: [Of<OfferStatus>; 3] = [
    ("gateway_requests", "Requests that nodes answered", |offer| Some(offer.requests)),
    ("gateway_bytes", "Bytes that those have read or written", |offer| Some(offer.bytes)),
    ("gateway_errors", "Requests that failed at nodes", |offer| Some(offer.errors)),
];

const DATA_NODE_GAUGES: [Of<DataNodeStatus>; 10] = [
    ("data_node_connected", "Whether the data node is connected to the controller", |node| {
        Some(node.is_connected.into())
    }),
    ("data_node_silent", "Whether the data node has stopped answering", |node| {
        Some(node.is_silent.into())
    }),
    (
        "data_node_capacity_operations_per_second",
        "What the data node has learned it can do",
        |it| Some(it.capacity_operations_per_second),
    ),
    ("data_node_promised_operations_per_second", "What is promised there", |node| {
        Some(node.promised_operations_per_second)
    }),
    ("data_node_operations_per_second", "What its clients did in the last period", |node| {
        Some(node.operations_per_second)
    }),
    ("data_node_pool_operations_per_second", "What they took of it out of the pool", |node| {
        Some(node.pool_operations_per_second)
    }),
    ("data_node_clients", "Clients that have a session slot", |node| Some(node.clients.into())),
    ("data_node_memory_bytes", "Memory that values can have", |node| Some(node.memory_bytes)),
    ("data_node_used_bytes", "How much of that is in use", |node| Some(node.used_bytes)),
    ("data_node_tenants", "Tenants that have something there", |node| {
        Some(node.tenants.len() as u64)
    }),
];

const DATA_NODE_COUNTERS: [Of<DataNodeStatus>; 3] = [
    ("data_node_memory_damages", "Times that a client damaged the node's memory", |node| {
        Some(node.memory_damages)
    }),
    ("data_node_periods", "Periods that were over", |node| Some(node.periods)),
    ("data_node_operations", "What all clients did in them", |node| Some(node.total_operations)),
];

const DATA_PAIR_GAUGES: [Of<TenantAtDataNode>; 5] = [
    ("data_node_tenant_reserved_operations_per_second", "The tenant's share there", |pair| {
        Some(pair.reserved_operations_per_second)
    }),
    ("data_node_tenant_limit_operations_per_second", "The most that it may do there", |pair| {
        pair.limit_operations_per_second
    }),
    ("data_node_tenant_operations_per_second", "What it did in the last period", |pair| {
        Some(pair.operations_per_second)
    }),
    ("data_node_tenant_clients", "Its clients that have a session slot", |pair| {
        Some(pair.clients.into())
    }),
    ("data_node_tenant_met", "Whether it got its share in the last period", |pair| {
        Some(pair.is_met.into())
    }),
];

const DATA_PAIR_COUNTERS: [Of<TenantAtDataNode>; 2] = [
    ("data_node_tenant_operations", "What the tenant did there", |pair| {
        Some(pair.total_operations)
    }),
    ("data_node_tenant_missed_operations", "What of its share it asked for and missed", |pair| {
        Some(pair.total_missed_operations)
    }),
];

const CLUSTER_TENANT_COUNTERS: [Of<ClusterTenant>; 4] = [
    ("nodes_tenant_served_operations", "What the tenant was served", |tenant| {
        Some(tenant.total_served_operations)
    }),
    ("gateways_tenant_requests", "Requests for the tenant that nodes answered", |tenant| {
        Some(tenant.gateway_requests)
    }),
    ("gateways_tenant_bytes", "Bytes that those have read or written", |tenant| {
        Some(tenant.gateway_bytes)
    }),
    ("gateways_tenant_errors", "Those that failed", |tenant| Some(tenant.gateway_errors)),
];

const CLUSTER_TENANT_GAUGES: [Of<ClusterTenant>; 6] = [
    ("nodes_tenant_reserved_operations", "What the tenant is promised in a period", |tenant| {
        Some(tenant.reserved_operations)
    }),
    ("nodes_tenant_limit_operations", "What the tenant gets at most in a period", |tenant| {
        tenant.limit_operations
    }),
    ("nodes_tenant_last_served_operations", "What the tenant got in the last period", |tenant| {
        Some(tenant.last_served_operations)
    }),
    ("nodes_tenant_waiting_operations", "What waits at nodes now", |tenant| {
        Some(tenant.waiting_operations)
    }),
    ("nodes_tenant_demand_operations", "What it may ask for in the rest of the period", |tenant| {
        Some(tenant.demand_operations)
    }),
    ("nodes_tenant_met", "Whether its reservation was met in the last period", |tenant| {
        Some(tenant.is_met.into())
    }),
];

fn register_cluster(registry: &mut Registry, cluster: &ClusterStatus) {
    let node = |node: &NodeStatus| NodeLabel { node: node.name.clone() };
    let nodes = || cluster.nodes.iter().map(|of| (node(of), of));
    register_gauges(registry, NODE_GAUGES, nodes);
    register_counters(registry, NODE_COUNTERS, nodes);
    let tenant = |tenant: &ClusterTenant| TenantLabel { tenant: tenant.name.clone() };
    let tenants = || cluster.tenants.iter().map(|of| (tenant(of), of));
    register_gauges(registry, CLUSTER_TENANT_GAUGES, tenants);
    register_counters(registry, CLUSTER_TENANT_COUNTERS, tenants);
    let pairs = || {
        let pairs = cluster.tenants.iter().flat_map(|tenant| {
            tenant.nodes.iter().map(|pair| (tenant.name.clone(), pair.node.clone(), pair))
        });
        pairs.map(|(tenant, node, pair)| (PairLabel { node, tenant }, pair))
    };
    register_gauges(registry, PAIR_GAUGES, pairs);
    register_counters(registry, PAIR_COUNTERS, pairs);
    register_waits(registry, &cluster.tenants);
    register_gateways(registry, &cluster.gateways);
    register_data_nodes(registry, &cluster.data_nodes);
    let mut gauge = |name: &str, help: &str, value: f64| {
        let gauge = Value::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    let round = cluster.round_ns as f64 / 1e9;
    gauge("nodes_round_seconds", "How long the last distribution of tokens took", round);
    let help = "Bytes sent between controller and nodes in the last period";
    gauge("nodes_traffic_bytes", help, cluster.traffic.bytes as f64);
}

/// How long requests were at each node, each counted by its cost, by the cause of the delay.
fn register_waits(registry: &mut Registry, tenants: &[ClusterTenant]) {
    let seconds = Family::<WaitLabel, Counter<f64, AtomicU64>>::default();
    let pairs = tenants.iter().flat_map(|it| it.nodes.iter().map(move |there| (it, there)));
    for (ClusterTenant { name, .. }, TenantAtNode { node, waits, .. }) in pairs {
        for rule in Rule::ALL {
            let label = WaitLabel { node: node.clone(), tenant: name.clone(), rule: rule.name() };
            seconds.get_or_create(&label).inc_by(waits.of(rule) as f64 / 1e9);
        }
    }
    let help = "How long the tenant's requests were at the node, by what held them there";
    registry.register_with_unit("node_tenant_wait", help, MetricUnit::Seconds, seconds);
}

fn register_gateways(registry: &mut Registry, gateways: &[GatewayStatus]) {
    let label = |gateway: &GatewayStatus| GatewayLabel { gateway: gateway.name.clone() };
    let all = || gateways.iter().map(|of| (label(of), of));
    register_gauges(registry, GATEWAY_GAUGES, all);
    register_counters(registry, GATEWAY_COUNTERS, all);
    let offers = || {
        let offers = gateways.iter().flat_map(|of| of.offers.iter().map(move |offer| (of, offer)));
        offers.map(|(of, offer)| {
            let OfferStatus { kind, name, .. } = offer.clone();
            (OfferLabel { gateway: of.name.clone(), kind, name }, offer)
        })
    };
    register_counters(registry, OFFER_COUNTERS, offers);
    let faults = Family::<FaultLabel, Counter>::default();
    for gateway in gateways {
        for fault in &gateway.faults {
            let label = FaultLabel { gateway: gateway.name.clone(), kind: fault.kind.clone() };
            faults.get_or_create(&label).inc_by(fault.requests);
        }
    }
    let help = "Requests that failed at nodes, by the kind of fault";
    registry.register("gateway_faults", help, faults);
    let turned_away = Family::<ReasonLabel, Counter>::default();
    for gateway in gateways {
        for TurnedAwayStatus { reason, clients } in &gateway.turned_away_for {
            let label = ReasonLabel { gateway: gateway.name.clone(), reason: reason.clone() };
            turned_away.get_or_create(&label).inc_by(*clients);
        }
    }
    let help = "Clients that were refused, by reason";
    registry.register("gateway_clients_turned_away_by_reason", help, turned_away);
}

fn register_data_nodes(registry: &mut Registry, nodes: &[DataNodeStatus]) {
    let all = || nodes.iter().map(|node| (NodeLabel { node: node.name.clone() }, node));
    register_gauges(registry, DATA_NODE_GAUGES, all);
    register_counters(registry, DATA_NODE_COUNTERS, all);
    let pairs = || {
        let pairs = nodes.iter().flat_map(|node| node.tenants.iter().map(move |it| (node, it)));
        pairs.map(|(node, pair)| {
            (PairLabel { node: node.name.clone(), tenant: pair.name.clone() }, pair)
        })
    };
    register_gauges(registry, DATA_PAIR_GAUGES, pairs);
    register_counters(registry, DATA_PAIR_COUNTERS, pairs);
}

fn register_gauges<'a, L, T: 'a, I: Iterator<Item = (L, &'a T)>>(
    registry: &mut Registry,
    metrics: impl IntoIterator<Item = Of<T>>,
    things: impl Fn() -> I,
) where
    L: EncodeLabelSet + Clone + Eq + Hash + Debug + Send + Sync + 'static,
{
    for (name, help, value) in metrics {
        let family = Family::<L, Value>::default();
        for (label, thing) in things() {
            if let Some(value) = value(thing) {
                family.get_or_create(&label).set(value as f64);
            }
        }
        registry.register(name, help, family);
    }
}

fn register_counters<'a, L, T: 'a, I: Iterator<Item = (L, &'a T)>>(
    registry: &mut Registry,
    metrics: impl IntoIterator<Item = Of<T>>,
    things: impl Fn() -> I,
) where
    L: EncodeLabelSet + Clone + Eq + Hash + Debug + Send + Sync + 'static,
{
    for (name, help, value) in metrics {
        let family = Family::<L, Counter>::default();
        for (label, thing) in things() {
            family.get_or_create(&label).inc_by(value(thing).unwrap_or(0));
        }
        registry.register(name, help, family);
    }
}

#[cfg(test)]
mod lint_tests;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_reported_in_seconds() {
        let tenant = |name: &str, wait_p99_ns| TenantStatus {
            name: name.into(),
            wait_p99_ns,
            ..TenantStatus::default()
        };
        let tenants = vec![tenant("oltp", Some(1_310_720)), tenant("idle", None)];
        let mut status = Status { tenants, ..Status::default() };
        status.totals.rules_refused = 3;
        let survey = Survey { status, waits: Vec::new(), latency: Vec::new(), cycles: Vec::new() };
        let text = text(&survey, &Histogram::new([1.0])).unwrap();
        assert!(text.contains("\ntidegate_tenant_wait_p99_seconds{tenant=\"oltp\"} 0.00131072\n"));
        assert!(!text.contains("wait_p99_seconds{tenant=\"idle\"}"), "it has no requests");
        assert!(text.contains("\ntidegate_rules_refused_total 3\n"), "{text}");
    }

    #[test]
    fn data_nodes_and_their_clients_are_reported() {
        let pair = TenantAtDataNode {
            name: "oltp".into(),
            total_operations: 70,
            total_missed_operations: 3,
            ..TenantAtDataNode::default()
        };
        let node = DataNodeStatus {
            name: "m".into(),
            used_bytes: 4160,
            tenants: vec![pair],
            ..DataNodeStatus::default()
        };
        let cluster = ClusterStatus { data_nodes: vec![node], ..ClusterStatus::default() };
        let status = Status { cluster: Some(cluster), ..Status::default() };
        let survey = Survey { status, waits: Vec::new(), latency: Vec::new(), cycles: Vec::new() };
        let text = text(&survey, &Histogram::new([1.0])).unwrap();
        assert!(text.contains("\ntidegate_data_node_used_bytes{node=\"m\"} 4160"), "{text}");
        let pair = "{node=\"m\",tenant=\"oltp\"}";
        for (name, value) in [("operations_total", 70), ("missed_operations_total", 3)] {
            let line = format!("\ntidegate_data_node_tenant_{name}{pair} {value}\n");
            assert!(text.contains(&line), "{text}");
        }
    }
}
