//! The cluster's file, as the machine that leads its nodes needs it.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_algo::allocation::admission;
use tidegate_model::{Cluster, Discipline, NodeId, Policy, Span};
use tidegate_proto::cluster::split::{self, Split};
use tidegate_proto::cluster::{self, NodeSetup, Setup};
use tidegate_proto::stats::ClusterStats;

use crate::clock::{Clock, now_ms};
use crate::register::Current;

/// The nodes that each tenant's requests can come to, by its name.
pub(crate) type TenantNodes = BTreeMap<String, BTreeSet<NodeId>>;

/// The schedulers that were chosen, by the names of the nodes.
pub(crate) type Chosen = BTreeMap<String, Discipline>;

/// The machine that leads the nodes of `file`, with the policy in force and what was chosen. Where
/// there is no policy yet, no earlier run of the controller can have promised anything.
pub(crate) fn machine(
    file: &Cluster,
    clock: Clock,
    current: Option<&Current>,
    chosen: &Chosen,
) -> cluster::Cluster {
    let now = clock.now();
    let nodes = file.nodes.iter();
    let setup = Setup {
        nodes: nodes
            .map(|node| NodeSetup {
                name: node.name.clone(),
                capacity: node.capacity,
                discipline: Some(node.scheduler),
            })
            .collect(),
        home_nodes: current.map(|current| tenant_nodes(&current.policy, file)).unwrap_or_default(),
        day: Span(now_ms().saturating_mul(Span::MILLISECOND.0).saturating_sub(now.0)),
        is_first: current.is_none(),
    };
    let policy = current.map(|current| (current.stored.revision, current.policy.clone()));
    let mut cluster = cluster::Cluster::new(now, setup, policy);
    for (id, node) in (0..).map(NodeId).zip(&file.nodes) {
        if let Some(discipline) = chosen.get(&node.name) {
            cluster.choose(id, Some(*discipline));
        }
    }
    cluster
}

/// The machine that divides promises over the data nodes of `file`; over none without a file.
pub(crate) fn split(file: Option<&Cluster>, clock: Clock, current: Option<&Current>) -> Split {
    let nodes = file.iter().flat_map(|file| &file.data_nodes).map(|node| split::NodeSetup {
        name: node.name.clone(),
        capacity: node.capacity,
        client: node.client,
    });
    let policy = current.map(|current| (current.stored.revision, current.policy.clone()));
    Split::new(clock.now(), nodes.collect(), policy)
}

/// The counters of the nodes and gateways of `file`; without a file, of no node and no gateway.
pub(crate) fn stats(file: Option<&Cluster>, current: Option<&Current>) -> ClusterStats {
    let nodes = file.map(|file| file.nodes.iter().map(|node| node.name.clone()).collect());
    let gateways = file.map(|file| file.gateways.iter().map(|it| it.name.clone()).collect());
    let (nodes, gateways): (Vec<_>, Vec<_>) =
        (nodes.unwrap_or_default(), gateways.unwrap_or_default());
    let mut stats = ClusterStats::new(&nodes, &gateways);
    if let Some(current) = current {
        stats.apply(current.stored.revision, &current.policy);
    }
    stats
}

/// Which nodes those are, under a policy.
pub(crate) fn tenant_nodes(policy: &Policy, file: &Cluster) -> TenantNodes {
    let names = policy.tenants.iter().map(|tenant| tenant.name.clone());
    let nodes = admission::reachable_nodes(policy, file)
        .into_iter()
        .map(|nodes| nodes.into_iter().collect());
    names.zip(nodes).collect()
}
