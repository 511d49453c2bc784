//! The name, unit, labels and help text of each metric, and the field that it reports.

use tidegate_proto::cluster::status::{
    ClusterStatus, ClusterTenant, DataNodeStatus, FaultStatus, GatewayStatus, NodeStatus,
    OfferStatus, TenantAtDataNode, TenantAtNode, TurnedAwayStatus,
};
use tidegate_proto::controller::status::{MeasuredStatus, PromiseStatus, Status, TenantStatus};

/// The metrics of one kind of thing, in the order in which they are written, and their labels.
pub(super) struct MetricTable<T: 'static, const LABELS: usize> {
    pub(super) labels: [&'static str; LABELS],
    pub(super) metrics: &'static [Metric<T>],
}

/// A metric of things of one kind.
pub(super) struct Metric<T> {
    /// Without the unit of [`Kind::GaugeSeconds`] and [`Kind::CounterSeconds`].
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    /// None if the thing has no value.
    pub(super) value: fn(&T) -> Option<u64>,
}

/// The kind of a metric. Seconds are reported where the field has nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    GaugeSeconds,
    Counter,
    CounterSeconds,
}

/// A histogram of times, in seconds.
pub(super) struct Times<const LABELS: usize> {
    /// Without the unit.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) labels: [&'static str; LABELS],
}

/// The type of a field of the status.
trait Field {
    fn value(self) -> Option<u64>;
}

macro_rules! fields {
    ($($type:ty: $field:ident => $value:expr;)*) => {
        $(impl Field for $type {
            fn value(self) -> Option<u64> {
                let $field = self;
                $value
            }
        })*
    };
}

fields! {
    bool: is_so => Some(u64::from(is_so));
    u32: number => Some(u64::from(number));
    u64: number => Some(number);
    usize: count => Some(count as u64);
    Option<u64>: number => number;
}

macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident($thing:ident: $type:ty) [$($label:literal),*] {
        $($kind:ident $name:literal = $field:expr, $help:literal;)*
    })*) => {
        $($(#[$doc])*
        pub(super) const $table: MetricTable<$type, { <[&str]>::len(&[$($label),*]) }>
            = MetricTable {
            labels: [$($label),*],
            metrics: &[$(Metric {
                name: $name,
                kind: Kind::$kind,
                help: $help,
                value: |$thing| Field::value($field),
            }),*],
        };)*
    };
}

fn silent(status: &Status) -> usize {
    status.stages.iter().filter(|stage| stage.is_silent).count()
}

fn refusing(status: &Status) -> usize {
    status.stages.iter().filter(|stage| stage.error.is_some()).count()
}

tables! {
    /// The controller and its stages.
    CONTROLLER(status: Status) [] {
        Gauge "policy_revision" = status.revision,
            "Revision of the policy in force, zero for none.";
        Gauge "stages" = status.totals.stages, "Connected stages.";
        Gauge "processes" = status.totals.processes, "Processes that use the connected stages.";
        Gauge "stages_silent" = silent(status), "Connected stages that do not answer.";
        Counter "controller_cycles" = status.totals.cycles, "Cycles that ended.";
        Counter "controller_rate_updates" = status.totals.rate_updates,
            "Rates that the controller changed.";
        Counter "controller_rate_updates_suppressed" = status.totals.rate_updates_suppressed,
            "Changes of rates that were too small to send.";
        Counter "stages_refused" = status.totals.stages_refused,
            "Stages that the controller refused.";
        Counter "rules_refused" = status.totals.rules_refused,
            "Times that a stage refused its rules.";
        Counter "unmatched_bytes" = status.totals.unmatched_ever_bytes,
            "Bytes of requests at stages that matched no rule, and passed unhindered.";
        Counter "unmatched_operations" = status.totals.unmatched_ever_operations,
            "Requests at stages that matched no rule, and passed unhindered.";
        Gauge "stages_refusing_rules" = refusing(status),
            "Connected stages that refused the rules of the policy in force.";
    }

    /// A tenant at stages.
    TENANT(tenant: TenantStatus) ["tenant"] {
        Gauge "tenant_rate_bytes_per_second" = tenant.allocated_bytes_per_second,
            "Bytes per second that the controller allocates to the tenant.";
        Gauge "tenant_rate_operations_per_second" = tenant.allocated_operations_per_second,
            "Operations per second that the controller allocates to the tenant.";
        Gauge "tenant_reservation_bytes_per_second" = tenant.reservation_bytes_per_second,
            "The tenant's reservation in bytes per second.";
        Gauge "tenant_reservation_operations_per_second" = tenant.reservation_operations_per_second,
            "The tenant's reservation in operations per second.";
        Gauge "tenant_limit_bytes_per_second" = tenant.limit_bytes_per_second,
            "The tenant's limit in bytes per second.";
        Gauge "tenant_limit_operations_per_second" = tenant.limit_operations_per_second,
            "The tenant's limit in operations per second.";
        Gauge "tenant_demand_bytes_per_second" = tenant.demand_bytes_per_second,
            "The tenant's estimated demand in bytes per second, if bounded.";
        Gauge "tenant_demand_operations_per_second" = tenant.demand_operations_per_second,
            "The tenant's estimated demand in operations per second, if bounded.";
        Gauge "tenant_used_bytes_per_second" = tenant.period_bytes_per_second,
            "Bytes per second that stages admitted in the last period.";
        Gauge "tenant_used_operations_per_second" = tenant.period_operations_per_second,
            "Operations per second that stages admitted in the last period.";
        Gauge "tenant_waiting_requests" = tenant.waiting_requests,
            "Requests that wait at the tenant's buckets.";
        Gauge "tenant_stages" = tenant.stages, "Connected stages that serve the tenant.";
        Counter "tenant_bytes" = tenant.bytes, "Bytes that stages admitted.";
        Counter "tenant_operations" = tenant.operations, "Operations that stages admitted.";
        CounterSeconds "tenant_wait" = tenant.waited_ns,
            "Total waiting time of requests at the tenant's buckets.";
        GaugeSeconds "tenant_wait_p99" = tenant.wait_p99_ns,
            "99th percentile of waiting times in the last period.";
    }

    /// A tenant's promise on a named resource, and what the tenant had of it.
    RESOURCE_TENANT(promise: PromiseStatus) ["resource", "tenant"] {
        Gauge "resource_tenant_reservation_operations_per_second" =
            promise.reservation_operations_per_second,
            "Operations per second of the resource that are reserved for the tenant.";
        Gauge "resource_tenant_reservation_bytes_per_second" = promise.reservation_bytes_per_second,
            "Bytes per second of the resource that are reserved for the tenant.";
        Gauge "resource_tenant_limit_operations_per_second" = promise.limit_operations_per_second,
            "The most operations per second of the resource that the tenant gets.";
        Gauge "resource_tenant_limit_bytes_per_second" = promise.limit_bytes_per_second,
            "The most bytes per second of the resource that the tenant gets.";
        Gauge "resource_tenant_operations_per_second" = promise.operations_per_second,
            "Operations per second that the tenant had of the resource in the last period.";
        Gauge "resource_tenant_bytes_per_second" = promise.bytes_per_second,
            "Bytes per second that the tenant had of the resource in the last period.";
        Gauge "resource_tenant_met" = promise.is_met,
            "Whether the tenant had its reservation of the resource in the last period.";
    }

    /// The same of a group.
    RESOURCE_GROUP(promise: PromiseStatus) ["resource", "group"] {
        Gauge "resource_group_reservation_operations_per_second" =
            promise.reservation_operations_per_second,
            "Operations per second of the resource that are reserved for the group.";
        Gauge "resource_group_reservation_bytes_per_second" = promise.reservation_bytes_per_second,
            "Bytes per second of the resource that are reserved for the group.";
        Gauge "resource_group_limit_operations_per_second" = promise.limit_operations_per_second,
            "The most operations per second of the resource that the group gets.";
        Gauge "resource_group_limit_bytes_per_second" = promise.limit_bytes_per_second,
            "The most bytes per second of the resource that the group gets.";
        Gauge "resource_group_operations_per_second" = promise.operations_per_second,
            "Operations per second that the group had of the resource in the last period.";
        Gauge "resource_group_bytes_per_second" = promise.bytes_per_second,
            "Bytes per second that the group had of the resource in the last period.";
        Gauge "resource_group_met" = promise.is_met,
            "Whether the group had its reservation of the resource in the last period.";
    }

    /// The time that a tenant's requests waited at gates of stages, by cause.
    WAIT_AT_STAGES(wait_ns: u64) ["tenant", "gate"] {
        CounterSeconds "stages_tenant_wait" = *wait_ns,
            "Time that the tenant's requests waited at stages, by the kind of gate that held them.";
    }

    /// A capacity that is measured.
    MEASURED(measured: MeasuredStatus) ["resource"] {
        Gauge "measured_capacity_operations_per_second" = measured.operations_per_second,
            "Operations that the storage yielded when the budget last held requests back.";
        Gauge "measured_capacity_bytes_per_second" = measured.bytes_per_second,
            "Bytes that the storage yielded when the budget last held requests back.";
        Gauge "measured_capacity_short" = measured.is_short,
            "Whether the storage yields less than the reservations.";
        GaugeSeconds "measured_latency_p99" = measured.latency_p99_ns,
            "Time that 99 of 100 requests took at the storage in the last interval.";
        GaugeSeconds "measured_latency_bound" = measured.latency_bound_ns,
            "The bound of that time in the policy.";
    }

    /// A storage node.
    NODE(node: NodeStatus) ["node"] {
        Gauge "node_connected" = node.is_connected, "Whether the node is connected.";
        Gauge "node_silent" = node.is_silent, "Whether the node is connected and does not answer.";
        Gauge "node_faulty_parts" = node.faults.len(),
            "Parts that the node refuses or that may have lost writes.";
        Gauge "node_store_away" = node.store_fault.is_some(),
            "Whether the memcached behind the node is unreachable.";
        Gauge "node_capacity_operations" = node.capacity_operations,
            "Estimated capacity of the node in a period.";
        Gauge "node_measured_operations_per_second" = node.measured_operations_per_second,
            "Capacity that the node measured.";
        Gauge "node_declared_operations_per_second" = node.declared_operations_per_second,
            "Capacity that the cluster file declares.";
        Gauge "node_declared_bytes_per_second" = node.declared_bytes_per_second,
            "Capacity in bytes that the cluster file declares.";
        Gauge "node_waiting_operations" = node.waiting_operations,
            "Operations that wait at the node.";
        Gauge "node_in_flight_requests" = node.in_flight_requests, "Requests at the node's store.";
        Gauge "node_depth_requests" = node.depth_requests,
            "Upper bound of requests at the node's store.";
        Counter "node_served_operations" = node.total_served_operations,
            "Operations that the node's store finished.";
    }

    /// A tenant at all storage nodes and gateways.
    TENANT_AT_NODES(tenant: ClusterTenant) ["tenant"] {
        Gauge "nodes_tenant_reserved_operations" = tenant.reserved_operations,
            "The tenant's reservation in a period over all nodes.";
        Gauge "nodes_tenant_limit_operations" = tenant.limit_operations,
            "The tenant's limit in a period over all nodes.";
        Gauge "nodes_tenant_last_served_operations" = tenant.last_served_operations,
            "Operations of the tenant that nodes served in the last period.";
        Gauge "nodes_tenant_reserved_bytes" = tenant.reserved_bytes,
            "The tenant's reservation in bytes in a period over all nodes.";
        Gauge "nodes_tenant_limit_bytes" = tenant.limit_bytes,
            "The tenant's limit in bytes in a period over all nodes.";
        Gauge "nodes_tenant_last_served_bytes" = tenant.last_served_bytes,
            "Bytes that nodes served in the last period, if bytes are promised to the tenant.";
        Gauge "nodes_tenant_waiting_operations" = tenant.waiting_operations,
            "Operations of the tenant that wait at nodes.";
        Gauge "nodes_tenant_demand_operations" = tenant.demand_operations,
            "Estimated demand of the tenant in the rest of the period.";
        Gauge "nodes_tenant_met" = tenant.is_met,
            "Whether nodes met the tenant's reservation in the last period.";
        Counter "nodes_tenant_served_operations" = tenant.total_served_operations,
            "Operations of the tenant that nodes served.";
        Counter "gateways_tenant_requests" = tenant.gateway_requests,
            "Requests of the tenant that nodes answered.";
        Counter "gateways_tenant_bytes" = tenant.gateway_bytes,
            "Bytes that requests of the tenant read or wrote.";
        Counter "gateways_tenant_errors" = tenant.gateway_errors,
            "Requests of the tenant that failed.";
    }

    /// A tenant at one storage node.
    TENANT_AT_NODE(pair: TenantAtNode) ["node", "tenant"] {
        Gauge "node_tenant_reserved_operations" = pair.reserved_operations,
            "The tenant's reservation at the node in the period.";
        Gauge "node_tenant_limit_operations" = pair.limit_operations,
            "The tenant's limit at the node in the period.";
        Gauge "node_tenant_demand_operations" = pair.demand_operations,
            "Estimated demand of the tenant at the node in the rest of the period.";
        Gauge "node_tenant_waiting_operations" = pair.waiting_operations,
            "Operations of the tenant that wait at the node.";
        Counter "node_tenant_served_operations" = pair.total_served_operations,
            "Operations of the tenant that the node served.";
    }

    /// The time of a tenant's requests at a storage node, each counted by its cost, by cause.
    WAIT_AT_NODE(wait_ns: u64) ["node", "tenant", "rule"] {
        CounterSeconds "node_tenant_wait" = *wait_ns,
            "Time of the tenant's operations at the node, by the rule that held them.";
    }

    /// A gateway.
    GATEWAY(gateway: GatewayStatus) ["gateway"] {
        Gauge "gateway_connected" = gateway.is_connected,
            "Whether the gateway is connected to the controller.";
        Gauge "gateway_silent" = gateway.is_silent,
            "Whether the gateway is connected and does not answer.";
        Gauge "gateway_clients" = gateway.clients, "Connected clients of the gateway.";
        Gauge "gateway_faulty_volumes" = gateway.volume_faults.len(),
            "Volumes that the gateway refuses because their parts do not belong together.";
        Gauge "gateway_memory_used_bytes" = gateway.memory_used_bytes,
            "Memory of requests and replies of clients.";
        Gauge "gateway_memory_limit_bytes" = gateway.memory_limit_bytes,
            "Upper bound of the memory of requests and replies.";
        Counter "gateway_clients_admitted" = gateway.admitted, "Clients that the gateway accepted.";
        Counter "gateway_clients_turned_away" = gateway.turned_away,
            "Clients that the gateway refused.";
        Counter "gateway_refused_requests" = gateway.refused_requests,
            "Requests to volumes that the gateway sent to no node.";
    }

    /// A volume or pool at a gateway.
    OFFER(offer: OfferStatus) ["gateway", "kind", "name"] {
        Counter "gateway_requests" = offer.requests,
            "Requests to the volume or pool that nodes answered.";
        Counter "gateway_bytes" = offer.bytes,
            "Bytes that requests to the volume or pool read or wrote.";
        Counter "gateway_errors" = offer.errors,
            "Requests to the volume or pool that failed at nodes.";
    }

    /// A kind of fault at a gateway.
    FAULT(fault: FaultStatus) ["gateway", "kind"] {
        Counter "gateway_faults" = fault.requests,
            "Requests that failed at nodes, by the kind of fault.";
    }

    /// A reason for which a gateway refuses clients.
    TURNED_AWAY(it: TurnedAwayStatus) ["gateway", "reason"] {
        Counter "gateway_clients_turned_away_by_reason" = it.clients,
            "Clients that the gateway refused, by reason.";
    }

    /// A data node.
    DATA_NODE(node: DataNodeStatus) ["node"] {
        Gauge "data_node_connected" = node.is_connected,
            "Whether the data node is connected to the controller.";
        Gauge "data_node_silent" = node.is_silent,
            "Whether the data node is connected and does not answer.";
        Gauge "data_node_capacity_operations_per_second" = node.capacity_operations_per_second,
            "Capacity that the data node measured.";
        Gauge "data_node_promised_operations_per_second" = node.promised_operations_per_second,
            "Sum of the tenants' shares at the data node.";
        Gauge "data_node_operations_per_second" = node.operations_per_second,
            "Operations per second of all clients in the last period.";
        Gauge "data_node_pool_operations_per_second" = node.pool_operations_per_second,
            "Operations per second with pool tokens in the last period.";
        Gauge "data_node_clients" = node.clients, "Clients with a session slot.";
        Gauge "data_node_memory_bytes" = node.memory_bytes, "Memory for values.";
        Gauge "data_node_used_bytes" = node.used_bytes, "Memory that values use.";
        Gauge "data_node_tenants" = node.tenants.len(),
            "Tenants with a share or clients at the data node.";
        Counter "data_node_memory_damages" = node.memory_damages,
            "Times that a client damaged the data node's memory.";
        Counter "data_node_periods" = node.periods, "Periods that ended.";
        Counter "data_node_operations" = node.total_operations,
            "Operations of all clients in ended periods.";
    }

    /// A tenant at one data node.
    TENANT_AT_DATA_NODE(at: TenantAtDataNode) ["node", "tenant"] {
        Gauge "data_node_tenant_reserved_operations_per_second" = at.reserved_operations_per_second,
            "The tenant's share at the data node.";
        Gauge "data_node_tenant_limit_operations_per_second" = at.limit_operations_per_second,
            "The tenant's limit at the data node.";
        Gauge "data_node_tenant_operations_per_second" = at.operations_per_second,
            "The tenant's operations per second in the last period.";
        Gauge "data_node_tenant_clients" = at.clients, "The tenant's clients with a session slot.";
        Gauge "data_node_tenant_met" = at.is_met,
            "Whether the tenant got its share in the last period.";
        Counter "data_node_tenant_operations" = at.total_operations,
            "Operations of the tenant at the data node.";
        Counter "data_node_tenant_missed_operations" = at.total_missed_operations,
            "Operations of the tenant's share that it asked for and missed.";
    }

    /// The distribution of tokens over storage nodes.
    CLUSTER(cluster: ClusterStatus) [] {
        GaugeSeconds "nodes_round" = cluster.round_ns,
            "Duration of the last distribution of tokens.";
        Gauge "nodes_traffic_bytes" = cluster.traffic.bytes,
            "Bytes sent between controller and nodes in the last period.";
    }
}

/// The cycles over stages.
pub(super) const CYCLE: Times<0> = Times {
    name: "controller_cycle",
    help: "Time from a cycle's first question to its last new rate.",
    labels: [],
};

/// Waiting times at tenants' own buckets.
pub(super) const GATE_WAIT: Times<2> = Times {
    name: "gate_wait",
    help: "Waiting times of delayed requests at the tenant's own bucket.",
    labels: ["tenant", "gate"],
};

/// Latencies at gateways.
pub(super) const GATEWAY_REQUEST: Times<3> = Times {
    name: "gateway_request",
    help: "Time from when the gateway has read a request until it queues the reply.",
    labels: ["gateway", "tenant", "operation"],
};

/// Latencies at nodes.
pub(super) const NODE_REQUEST: Times<3> = Times {
    name: "node_request",
    help: "Time from when a request arrives at the node until the node has the reply.",
    labels: ["node", "tenant", "operation"],
};

/// Queue times at nodes.
pub(super) const NODE_QUEUE: Times<3> = Times {
    name: "node_queue",
    help: "Time from when a request arrives at the node until it goes to the node's store.",
    labels: ["node", "tenant", "operation"],
};
