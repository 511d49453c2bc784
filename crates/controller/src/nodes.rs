//! The controller's view of the cluster file: the nodes that it leads, and those that may receive
//! each tenant's requests.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_algo::allocation::admission;
use tidegate_fabric::clock::{Clock, unix_ms};
use tidegate_fabric::stream::peer_process::process_space;
use tidegate_model::{Cluster, Discipline, NodeId, Policy, Span};
use tidegate_proto::cluster::{self, NodeSetup, split};
use tidegate_proto::controller::{Controller, Outstanding, Setup};

use crate::config::Config;

/// The nodes that may receive a tenant's requests, by its name.
pub(crate) type TenantNodes = BTreeMap<String, BTreeSet<NodeId>>;

/// The schedulers that were chosen, by the names of the nodes.
pub(crate) type Chosen = BTreeMap<String, Discipline>;

/// The controller that leads the peers of the cluster's file, with the policy in force, its
/// revision, what stages of an earlier run may have, and the chosen schedulers. Where there is no
/// policy yet, no earlier run can have promised anything.
pub(crate) fn controller(
    config: &Config,
    clock: Clock,
    (in_force, outstanding): (Option<(u64, &Policy)>, Outstanding),
    chosen: &Chosen,
) -> Controller {
    let now = clock.now();
    let policy = in_force.map(|(revision, policy)| (revision, policy.clone()));
    // A file without components has only the address for stages of other machines.
    let is_some = |file: &&Cluster| !file.nodes.is_empty() || !file.data_nodes.is_empty();
    let Some(file) = config.cluster.as_ref().filter(is_some) else {
        return Controller::new(now, Setup { outstanding, ..Setup::default() }, policy);
    };
    let nodes = file.nodes.iter().map(|node| NodeSetup {
        name: node.name.clone(),
        capacity: node.capacity,
        bandwidth: node.bandwidth,
        discipline: Some(node.scheduler),
    });
    let cluster = cluster::Setup {
        nodes: nodes.collect(),
        home_nodes: in_force.map(|(_, policy)| tenant_nodes(policy, file)).unwrap_or_default(),
        day: Span(unix_ms().saturating_mul(Span::MILLISECOND.0).saturating_sub(now.0)),
        is_first: in_force.is_none(),
    };
    let data_nodes = file.data_nodes.iter().map(|node| split::NodeSetup {
        name: node.name.clone(),
        capacity: node.capacity,
        client: node.client,
    });
    let setup = Setup {
        cluster: Some(cluster),
        data_nodes: data_nodes.collect(),
        gateways: file.gateways.iter().map(|gateway| gateway.name.clone()).collect(),
        outstanding,
        space: process_space(),
    };
    let mut controller = Controller::new(now, setup, policy);
    for (id, node) in (0..).map(NodeId).zip(&file.nodes) {
        if let Some(discipline) = chosen.get(&node.name) {
            controller.choose(id, Some(*discipline));
        }
    }
    controller
}

pub(crate) fn tenant_nodes(policy: &Policy, file: &Cluster) -> TenantNodes {
    let names = policy.tenants.iter().map(|tenant| tenant.name.clone());
    let nodes = admission::reachable_nodes(policy, file)
        .into_iter()
        .map(|nodes| nodes.into_iter().collect());
    names.zip(nodes).collect()
}
