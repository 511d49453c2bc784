//! Readiness: whether everything that a process serves can be served now.
//!
//! A load balancer, systemd or an operator sends `GET /readyz`. The controller answers for the
//! whole cluster, from the reports of its nodes. A process with nodes or gateways alone answers for
//! these ([`crate::probe`]).

use tidegate_model::{Cluster, NodeId};
use tidegate_proto::cluster::status::{ClusterStatus, NodeStatus};

/// The reasons why volumes and pools of the cluster, or some of their parts, cannot be served; one
/// sentence each.
pub(crate) fn unserved(status: &ClusterStatus, cluster: &Cluster) -> Vec<String> {
    let mut reasons = Vec::new();
    for node in &status.nodes {
        let served = on_node(cluster, node.id);
        if let Some(reason) = reason(node).filter(|_| !served.is_empty()) {
            reasons.push(format!("{reason}; it serves {}", served.join(", ")));
        }
        let (name, faults) = (&node.name, &node.faults);
        reasons.extend(faults.iter().map(|fault| {
            format!(
                "part {} of volume {} at node {name}: {}",
                fault.part, fault.volume, fault.reason
            )
        }));
    }
    for gateway in &status.gateways {
        let (name, faults) = (&gateway.name, &gateway.volume_faults);
        reasons.extend(
            faults.iter().map(|fault| {
                format!("volume {} at gateway {name}: {}", fault.volume, fault.reason)
            }),
        );
    }
    reasons
}

/// Why a whole node serves nothing.
fn reason(node: &NodeStatus) -> Option<String> {
    let name = &node.name;
    match &node.store_fault {
        _ if !node.is_connected => Some(format!("node {name} is away")),
        _ if node.is_silent => Some(format!("node {name} has stopped answering")),
        Some(fault) => Some(format!("node {name}: {fault}")),
        None => None,
    }
}

/// The volumes and pools that a node serves: `volume db`, `pool cache`.
fn on_node(cluster: &Cluster, id: NodeId) -> Vec<String> {
    let volumes = cluster.volumes.iter().filter(|volume| volume.nodes.contains(&id));
    let pools = cluster.pools.iter().filter(|pool| pool.nodes.contains(&id));
    let volumes = volumes.map(|volume| format!("volume {}", volume.name));
    volumes.chain(pools.map(|pool| format!("pool {}", pool.name))).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_proto::cluster::status::PartFaultStatus;

    use super::*;

    #[test]
    fn nothing_is_ready_that_a_node_which_cannot_serve_has_a_part_of() {
        let text = r#"
            node = [{ name = "a", memory = true }, { name = "b", memory = true },
                    { name = "idle", memory = true },
                    { name = "m", memcached = "127.0.0.1:11211" }]
            volume = [{ name = "db", size = "1MiB", tenant = "t", nodes = ["a", "b"] },
                      { name = "log", size = "1MiB", tenant = "t", nodes = ["b"] }]
            pool = [{ name = "cache", tenant = "t", nodes = ["m"] }]
            gateway = [{ name = "front", nbd = "127.0.0.1:0" },
                       { name = "keys", memcached = "127.0.0.1:0" }]
        "#;
        let cluster = Cluster::parse(text).unwrap();
        let node = |(id, node): (usize, &tidegate_model::cluster::Node)| NodeStatus {
            id: NodeId::at(id),
            name: node.name.clone(),
            is_connected: true,
            ..NodeStatus::default()
        };
        let nodes = (0..).zip(&cluster.nodes).map(node).collect();
        let mut status = ClusterStatus { nodes, ..ClusterStatus::default() };
        let reasons = |status: &ClusterStatus| unserved(status, &cluster);
        assert_eq!(reasons(&status), [""; 0]);
        status.nodes[2].is_connected = false;
        assert_eq!(reasons(&status), [""; 0], "nothing lies there");
        status.nodes[1].is_connected = false;
        assert_eq!(reasons(&status), ["node b is away; it serves volume db, volume log"]);
        status.nodes[1].is_connected = true;
        status.nodes[1].is_silent = true;
        status.nodes[3].store_fault = Some("memcached is away: gone".into());
        assert_eq!(
            reasons(&status),
            [
                "node b has stopped answering; it serves volume db, volume log",
                "node m: memcached is away: gone; it serves pool cache",
            ]
        );
        status.nodes[3].store_fault = None;
        status.nodes[1].is_silent = false;
        let fault = PartFaultStatus { volume: "db".into(), part: 1, reason: "missing".into() };
        status.nodes[1].faults.push(fault);
        assert_eq!(reasons(&status), ["part 1 of volume db at node b: missing"]);
    }
}
