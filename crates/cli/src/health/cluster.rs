//! Warnings about the nodes, gateways and data nodes of a cluster, with the commands that help.

use tidegate_model::Span;
use tidegate_proto::cluster::status::{
    ClusterStatus, DataNodeStatus, GatewayStatus, NodeStatus, PartFaultStatus, TakeoverStatus,
    VolumeFaultStatus,
};

use super::{Met, PeerHealth, memory, met_at_data_node, per_second};
use tidegate_console::amounts;

/// Warns of a cluster's faults, the worst first.
pub(super) fn warn_of_cluster(cluster: &ClusterStatus, warn: &mut impl FnMut(String, &str)) {
    warn_of_states(cluster, warn);
    warn_of_takeovers(cluster, warn);
    if let Some(shortfall) = &cluster.shortfall {
        warn(shortfall.line.clone(), "lower reservations, or lay volumes over other nodes");
    }
    for (node, tenant) in cluster.data_nodes.iter().flat_map(|node| {
        let missed = node.tenants.iter().filter(|there| met_at_data_node(there) == Met::No);
        missed.map(move |there| (&node.name, there))
    }) {
        let got = amounts::iops(tenant.operations_per_second);
        let promised = amounts::iops(tenant.reserved_operations_per_second);
        warn(
            format!("{} gets {got} of its share of {promised} at data node {node}", tenant.name),
            "if it stays so, the node does less than it is declared to, or its clients cannot",
        );
    }
    warn_of_faults(cluster, warn);
    warn_of_memory(cluster, warn);
    let failing = failing(cluster);
    let help = match failing.is_empty() {
        true => String::from("if it stays so, nodes do less than they are declared to"),
        false => format!(
            "promises at {} cannot be kept while it does not serve: mend that first",
            failing.join(", ")
        ),
    };
    for tenant in cluster.tenants.iter().filter(|tenant| !tenant.is_met) {
        let rate = |count| amounts::iops(per_second(cluster, count));
        let got = rate(tenant.last_served_operations);
        let promised = rate(tenant.reserved_operations);
        warn(
            format!("{} gets {got} of the {promised} that it is promised at nodes", tenant.name),
            &help,
        );
    }
}

/// Warns of daemons that are disconnected or do not answer.
fn warn_of_states(cluster: &ClusterStatus, warn: &mut impl FnMut(String, &str)) {
    let nodes = cluster.nodes.iter().map(|node| {
        let stopped =
            "it serves under its last policy and counts; see whether its process is stopped";
        ("node", &node.name, PeerHealth::of_node(node), stopped)
    });
    let gateways = cluster.gateways.iter().map(|gateway| {
        let stopped = "see whether its process is stopped; its clients wait if it is";
        ("gateway", &gateway.name, PeerHealth::of_gateway(gateway), stopped)
    });
    let data_nodes = cluster.data_nodes.iter().map(|node| {
        let stopped =
            "see whether its process is stopped; its clients go on with their reservations";
        ("data-node", &node.name, PeerHealth::of_data_node(node), stopped)
    });
    for (role, name, state, stopped) in nodes.chain(gateways).chain(data_nodes) {
        match state {
            PeerHealth::Up | PeerHealth::Faulty => {}
            PeerHealth::Silent => warn(format!("{role} {name} has stopped answering"), stopped),
            PeerHealth::Away => warn(
                format!("{role} {name} is away"),
                &format!("start it: `tidegate up CLUSTER --role {role} --name {name}`"),
            ),
        }
    }
}

/// Warns of names that several processes use.
fn warn_of_takeovers(cluster: &ClusterStatus, warn: &mut impl FnMut(String, &str)) {
    let nodes = cluster.nodes.iter().map(|node| ("node", &node.name, &node.takeover));
    let gateways = cluster.gateways.iter().map(|it| ("gateway", &it.name, &it.takeover));
    let data_nodes = cluster.data_nodes.iter().map(|it| ("data node", &it.name, &it.takeover));
    for (role, name, takeover) in nodes.chain(gateways).chain(data_nodes) {
        let Some(TakeoverStatus { times, within_ns, process, earlier }) = takeover else {
            continue;
        };
        let within = Span(*within_ns);
        warn(
            format!(
                "several processes use the name of {role} {name}: they took over from each other \
                 {times} times in {within}, last {process} from {earlier}"
            ),
            "end one of the two processes, or give each a name of its own in the cluster file; if \
             both are the same, its connection to the controller breaks without a notice",
        );
    }
}

/// Warns of volumes that nodes and gateways cannot serve.
fn warn_of_faults(cluster: &ClusterStatus, warn: &mut impl FnMut(String, &str)) {
    let help = "see `tidegate volume show CLUSTER` on the machine of each of its nodes";
    for NodeStatus { name, faults, store_fault, .. } in &cluster.nodes {
        for PartFaultStatus { volume, part, reason } in faults {
            warn(format!("part {part} of volume {volume} at node {name}: {reason}"), help);
        }
        if let Some(fault) = store_fault {
            warn(
                format!("node {name}: {fault}"),
                "requests for its keys fail; start memcached, or see whether the node's machine \
                 reaches it",
            );
        }
    }
    for GatewayStatus { name, volume_faults, .. } in &cluster.gateways {
        for VolumeFaultStatus { volume, reason } in volume_faults {
            warn(format!("volume {volume} is not served by gateway {name}: {reason}"), help);
        }
    }
}

/// Nodes that cannot serve all that lies there: `node b`.
fn failing(cluster: &ClusterStatus) -> Vec<String> {
    let failing = cluster.nodes.iter().filter(|node| PeerHealth::of_node(node) != PeerHealth::Up);
    failing.map(|node| format!("node {}", node.name)).collect()
}

fn warn_of_memory(cluster: &ClusterStatus, warn: &mut impl FnMut(String, &str)) {
    for (node, structure) in cluster.data_nodes.iter().filter_map(|node| {
        Some((node, node.damaged_structure.as_ref().filter(|_| node.memory_damages > 0)?))
    }) {
        let times = amounts::count(node.memory_damages);
        let name = &node.name;
        warn(
            format!(
                "clients damaged the memory of data node {name} {times} times, {structure} last"
            ),
            "see its log for whose clients had it; give tenants that are not trusted data nodes of \
             their own",
        );
    }
    for node in cluster.data_nodes.iter().filter(|node| is_nearly_full(node)) {
        warn(
            format!("the store of data node {} is nearly full: {}", node.name, memory(node)),
            "delete values, or give it more `memory` in the cluster's file and start it anew",
        );
    }
}

/// Whether hardly anything more can be stored: less than a twentieth is left.
fn is_nearly_full(node: &DataNodeStatus) -> bool {
    node.memory_bytes - node.used_bytes.min(node.memory_bytes) < node.memory_bytes / 20
}
