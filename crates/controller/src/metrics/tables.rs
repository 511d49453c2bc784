//! The name, unit, labels and help text of each metric, and the field that it reports.

use tidegate_proto::cluster::status::{
    ClusterStatus, ClusterTenant, DataNodeStatus, FaultStatus, GatewayStatus, NodeStatus,
    OfferStatus, TenantAtDataNode, TenantAtNode, TurnedAwayStatus,
};
use tidegate_proto::controller::status::{Status, TenantStatus};

/// The metrics of one kind of thing, in the order in which they are written, and their labels.
pub(super) struct Table<T: 'static, const LABELS: usize> {
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

/// What a value is. Seconds are reported where the field has nanoseconds.
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
        pub(super) const $table: Table<$type, { <[&str]>::len(&[$($label),*]) }> = Table {
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
            "The revision of the policy in force, zero for none.";
        Gauge "stages" = status.totals.stages, "Connected stages.";
        Gauge "processes" = status.totals.processes, "Processes that use the connected stages.";
        Gauge "stages_silent" = silent(status), "Connected stages that have stopped answering.";
        Counter "controller_cycles" = status.totals.cycles, "Cycles that have ended.";
        Counter "controller_rate_updates" = status.totals.rate_updates, "Rates that were changed.";
        Counter "controller_rate_updates_suppressed" = status.totals.rate_updates_suppressed,
            "Changes of rates that were too small to be sent.";
        Counter "stages_refused" = status.totals.stages_refused, "Stages that were refused.";
        Counter "rules_refused" = status.totals.rules_refused,
            "Times that a stage did not take its rules.";
        Gauge "stages_refusing_rules" = refusing(status),
            "Connected stages that did not take the rules of the policy in force.";
    }

    /// A tenant at stages.
    TENANT(tenant: TenantStatus) ["tenant"] {
        Gauge "tenant_rate_bytes_per_second" = tenant.allocated_bytes_per_second,
            "What the tenant may use now.";
        Gauge "tenant_rate_operations_per_second" = tenant.allocated_operations_per_second,
            "What the tenant may use now.";
        Gauge "tenant_reservation_bytes_per_second" = tenant.reservation_bytes_per_second,
            "What the tenant gets whenever it asks.";
        Gauge "tenant_reservation_operations_per_second" = tenant.reservation_operations_per_second,
            "What the tenant gets whenever it asks.";
        Gauge "tenant_limit_bytes_per_second" = tenant.limit_bytes_per_second,
            "What the tenant never gets more of.";
        Gauge "tenant_limit_operations_per_second" = tenant.limit_operations_per_second,
            "What the tenant never gets more of.";
        Gauge "tenant_demand_bytes_per_second" = tenant.demand_bytes_per_second,
            "What the tenant is taken to want, if bounded.";
        Gauge "tenant_demand_operations_per_second" = tenant.demand_operations_per_second,
            "What the tenant is taken to want, if bounded.";
        Gauge "tenant_used_bytes_per_second" = tenant.period_bytes_per_second,
            "What flowed in the last period.";
        Gauge "tenant_used_operations_per_second" = tenant.period_operations_per_second,
            "What flowed in the last period.";
        Gauge "tenant_waiting_requests" = tenant.waiting_requests,
            "Requests that wait at the tenant's buckets now.";
        Gauge "tenant_stages" = tenant.stages, "Connected stages that serve the tenant.";
        Counter "tenant_bytes" = tenant.bytes, "Bytes that flowed.";
        Counter "tenant_operations" = tenant.operations, "Operations that flowed.";
        CounterSeconds "tenant_wait" = tenant.waited_ns, "Time that requests waited, all together.";
        GaugeSeconds "tenant_wait_p99" = tenant.wait_p99_ns,
            "How long 99 of 100 requests of the last period waited at most.";
    }

    /// A storage node.
    NODE(node: NodeStatus) ["node"] {
        Gauge "node_connected" = node.is_connected, "Whether the node is connected.";
        Gauge "node_silent" = node.is_silent, "Whether the node has stopped answering.";
        Gauge "node_faulty_parts" = node.faults.len(),
            "Parts that it refuses or that may have lost writes.";
        Gauge "node_store_away" = node.store_fault.is_some(),
            "Whether its store, a memcached, cannot be reached.";
        Gauge "node_capacity_operations" = node.capacity_operations,
            "What the node is estimated to do in a period.";
        Gauge "node_measured_operations_per_second" = node.measured_operations_per_second,
            "What the node measured that it can do.";
        Gauge "node_declared_operations_per_second" = node.declared_operations_per_second,
            "What the node is declared to do.";
        Gauge "node_waiting_operations" = node.waiting_operations, "What waits at the node now.";
        Gauge "node_in_flight_requests" = node.in_flight_requests,
            "Requests at the node's store now.";
        Gauge "node_depth_requests" = node.depth_requests,
            "The most requests at the node's store at a time.";
        Counter "node_served_operations" = node.total_served_operations,
            "What the node's store has finished.";
    }

    /// A tenant at all storage nodes and gateways.
    TENANT_AT_NODES(tenant: ClusterTenant) ["tenant"] {
        Gauge "nodes_tenant_reserved_operations" = tenant.reserved_operations,
            "What the tenant is promised in a period.";
        Gauge "nodes_tenant_limit_operations" = tenant.limit_operations,
            "What the tenant gets at most in a period.";
        Gauge "nodes_tenant_last_served_operations" = tenant.last_served_operations,
            "What the tenant got in the last period.";
        Gauge "nodes_tenant_waiting_operations" = tenant.waiting_operations,
            "What waits at nodes now.";
        Gauge "nodes_tenant_demand_operations" = tenant.demand_operations,
            "What it may ask for in the rest of the period.";
        Gauge "nodes_tenant_met" = tenant.is_met,
            "Whether its reservation was met in the last period.";
        Counter "nodes_tenant_served_operations" = tenant.total_served_operations,
            "What the tenant was served.";
        Counter "gateways_tenant_requests" = tenant.gateway_requests,
            "Requests for the tenant that nodes answered.";
        Counter "gateways_tenant_bytes" = tenant.gateway_bytes,
            "Bytes that those have read or written.";
        Counter "gateways_tenant_errors" = tenant.gateway_errors, "Those that failed.";
    }

    /// A tenant at one storage node.
    TENANT_AT_NODE(pair: TenantAtNode) ["node", "tenant"] {
        Gauge "node_tenant_reserved_operations" = pair.reserved_operations,
            "What is kept for the tenant there in the period.";
        Gauge "node_tenant_limit_operations" = pair.limit_operations,
            "What it gets there at most in the period.";
        Gauge "node_tenant_demand_operations" = pair.demand_operations,
            "What it is estimated to ask for in its rest.";
        Gauge "node_tenant_waiting_operations" = pair.waiting_operations,
            "How much of that waits already.";
        Counter "node_tenant_served_operations" = pair.total_served_operations,
            "What the tenant was served at the node.";
    }

    /// The time of a tenant's requests at a storage node, each counted by its cost, by cause.
    WAIT_AT_NODE(wait_ns: u64) ["node", "tenant", "rule"] {
        CounterSeconds "node_tenant_wait" = *wait_ns,
            "How long the tenant's requests were at the node, by what held them there.";
    }

    /// A gateway.
    GATEWAY(gateway: GatewayStatus) ["gateway"] {
        Gauge "gateway_connected" = gateway.is_connected,
            "Whether the gateway is connected to the controller.";
        Gauge "gateway_silent" = gateway.is_silent, "Whether the gateway has stopped answering.";
        Gauge "gateway_clients" = gateway.clients, "Clients of the gateway.";
        Gauge "gateway_faulty_volumes" = gateway.volume_faults.len(),
            "Volumes it does not serve because their parts do not belong together.";
        Gauge "gateway_memory_used_bytes" = gateway.memory_used_bytes,
            "What requests and replies of clients take up.";
        Gauge "gateway_memory_limit_bytes" = gateway.memory_limit_bytes, "What they may take up.";
        Counter "gateway_clients_admitted" = gateway.admitted, "Clients that were accepted.";
        Counter "gateway_clients_turned_away" = gateway.turned_away, "Clients that were refused.";
        Counter "gateway_refused_requests" = gateway.refused_requests,
            "Requests to volumes that went to no node.";
    }

    /// A volume or pool at a gateway.
    OFFER(offer: OfferStatus) ["gateway", "kind", "name"] {
        Counter "gateway_requests" = offer.requests, "Requests that nodes answered.";
        Counter "gateway_bytes" = offer.bytes, "Bytes that those have read or written.";
        Counter "gateway_errors" = offer.errors, "Requests that failed at nodes.";
    }

    /// A kind of fault at a gateway.
    FAULT(fault: FaultStatus) ["gateway", "kind"] {
        Counter "gateway_faults" = fault.requests,
            "Requests that failed at nodes, by the kind of fault.";
    }

    /// A reason for which a gateway refuses clients.
    TURNED_AWAY(it: TurnedAwayStatus) ["gateway", "reason"] {
        Counter "gateway_clients_turned_away_by_reason" = it.clients,
            "Clients that were refused, by reason.";
    }

    /// A data node.
    DATA_NODE(node: DataNodeStatus) ["node"] {
        Gauge "data_node_connected" = node.is_connected,
            "Whether the data node is connected to the controller.";
        Gauge "data_node_silent" = node.is_silent, "Whether the data node has stopped answering.";
        Gauge "data_node_capacity_operations_per_second" = node.capacity_operations_per_second,
            "What the data node has learned it can do.";
        Gauge "data_node_promised_operations_per_second" = node.promised_operations_per_second,
            "What is promised there.";
        Gauge "data_node_operations_per_second" = node.operations_per_second,
            "What its clients did in the last period.";
        Gauge "data_node_pool_operations_per_second" = node.pool_operations_per_second,
            "What they took of it out of the pool.";
        Gauge "data_node_clients" = node.clients, "Clients that have a session slot.";
        Gauge "data_node_memory_bytes" = node.memory_bytes, "Memory that values can have.";
        Gauge "data_node_used_bytes" = node.used_bytes, "How much of that is in use.";
        Gauge "data_node_tenants" = node.tenants.len(), "Tenants that have something there.";
        Counter "data_node_memory_damages" = node.memory_damages,
            "Times that a client damaged the node's memory.";
        Counter "data_node_periods" = node.periods, "Periods that were over.";
        Counter "data_node_operations" = node.total_operations, "What all clients did in them.";
    }

    /// A tenant at one data node.
    TENANT_AT_DATA_NODE(at: TenantAtDataNode) ["node", "tenant"] {
        Gauge "data_node_tenant_reserved_operations_per_second" = at.reserved_operations_per_second,
            "The tenant's share there.";
        Gauge "data_node_tenant_limit_operations_per_second" = at.limit_operations_per_second,
            "The most that it may do there.";
        Gauge "data_node_tenant_operations_per_second" = at.operations_per_second,
            "What it did in the last period.";
        Gauge "data_node_tenant_clients" = at.clients, "Its clients that have a session slot.";
        Gauge "data_node_tenant_met" = at.is_met, "Whether it got its share in the last period.";
        Counter "data_node_tenant_operations" = at.total_operations, "What the tenant did there.";
        Counter "data_node_tenant_missed_operations" = at.total_missed_operations,
            "What of its share it asked for and missed.";
    }

    /// The distribution of tokens over storage nodes.
    CLUSTER(cluster: ClusterStatus) [] {
        GaugeSeconds "nodes_round" = cluster.round_ns,
            "How long the last distribution of tokens took.";
        Gauge "nodes_traffic_bytes" = cluster.traffic.bytes,
            "Bytes sent between controller and nodes in the last period.";
    }
}

/// The cycles over stages.
pub(super) const CYCLE: Times<0> = Times {
    name: "controller_cycle",
    help: "From a cycle's first question to its last new rate.",
    labels: [],
};

/// Waiting times at tenants' own buckets.
pub(super) const GATE_WAIT: Times<2> = Times {
    name: "gate_wait",
    help: "How long delayed requests waited at the tenant's own bucket",
    labels: ["tenant", "gate"],
};

/// Latencies at gateways.
pub(super) const GATEWAY_REQUEST: Times<3> = Times {
    name: "gateway_request",
    help: "From when the gateway has read a request until it queues the reply",
    labels: ["gateway", "tenant", "operation"],
};
