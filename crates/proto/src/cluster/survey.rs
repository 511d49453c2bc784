//! Status of storage nodes, made from the controller's state.

use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::cost::BYTES_PER_TOKEN;
use tidegate_model::gate::Unit;
use tidegate_model::{NodeId, TenantIndex, Time};

use super::bounds::{GrantCounts, NodeAccounts, TenantBounds};
use super::status::{
    ClusterGroup, ClusterStatus, ClusterTenant, NodeStatus, PartFaultStatus, ShortTenant,
    Shortfall, TenantAtNode,
};
use super::{Cluster, groups};

impl Cluster {
    pub(crate) fn status(&self, now: Time) -> ClusterStatus {
        let [operations, bytes] = &self.accounts;
        let tenants = operations.tenants.iter().zip(&bytes.tenants).map(|(tenant, bytes)| {
            let of_bytes = |tokens: u64| tokens.saturating_mul(BYTES_PER_TOKEN);
            ClusterTenant {
                name: tenant.name.clone(),
                reserved_bytes: of_bytes(bytes.promise.reserved),
                limit_bytes: bytes.is_limited.then(|| of_bytes(bytes.promise.allowed)),
                served_bytes: of_bytes(bytes.served()),
                last_served_bytes: of_bytes(bytes.served_before()),
                reserved_operations: tenant.promise.reserved,
                limit_operations: tenant.is_limited.then_some(tenant.promise.allowed),
                served_operations: tenant.served(),
                demand_operations: tenant.expected() - tenant.served(),
                last_served_operations: tenant.served_before(),
                is_met: tenant.is_met() && bytes.is_met(),
                waiting_operations: tenant.waiting(),
                nodes: tenant
                    .entries
                    .iter()
                    .filter_map(|entry| self.at_node(tenant, entry))
                    .collect(),
                ..ClusterTenant::default()
            }
        });
        let nodes = self.nodes.iter().map(|node_state| NodeStatus {
            id: node_state.id,
            name: node_state.name.clone(),
            host: node_state.info.host.clone(),
            pid: node_state.info.pid,
            assigned_scheduler: node_state.discipline().map(|it| it.name().into()),
            is_scheduler_chosen: node_state.chosen.is_some(),
            declared_operations_per_second: node_state.declared[0],
            declared_bytes_per_second: node_state.declared[1],
            capacity_operations: if node_state.is_unmeasured { 0 } else { node_state.capacity[0] },
            measured_operations_per_second: node_state
                .reported
                .filter(|_| !node_state.is_unmeasured)
                .map(|_| node_state.measured),
            is_connected: node_state.is_connected,
            is_silent: node_state.is_silent,
            reported_ns: node_state.reported.map(|at| now.since(at).0),
            faults: node_state.faults.iter().map(PartFaultStatus::from).collect(),
            store_fault: node_state.store_fault.clone(),
            ..NodeStatus::default()
        });
        ClusterStatus {
            revision: self.plan.revision,
            period: self.period.0,
            period_ns: self.plan.period.0,
            into_ns: now.since(self.period_start).0,
            round_ns: self.round.took.0,
            tenants: tenants.collect(),
            groups: (0..self.groups.len()).map(|group| self.group_status(group)).collect(),
            nodes: nodes.collect(),
            traffic: self.traffic_before,
            shortfall: self.shortfall(),
            ..ClusterStatus::default()
        }
    }

    fn group_status(&self, group: usize) -> ClusterGroup {
        let (name, indexes) = &self.groups[group];
        let [operations, bytes] = self.accounts.each_ref().map(|accounts| {
            let promise = accounts.groups[group];
            let tokens = |tokens: u64| match accounts.unit {
                Unit::Operations => tokens,
                Unit::Bytes => tokens.saturating_mul(BYTES_PER_TOKEN),
            };
            let promised = |count: u64| (count < u64::MAX).then(|| tokens(count));
            let members = indexes.iter().map(|index| &accounts.tenants[*index]);
            let served = members.clone().map(TenantBounds::served_before);
            let served = tokens(served.fold(0, u64::saturating_add));
            let is_met = groups::is_met(promise, members);
            (promised(promise.reserved), promised(promise.allowed), served, is_met)
        });
        ClusterGroup {
            name: name.clone(),
            reserved_operations: operations.0,
            limit_operations: operations.1,
            last_served_operations: operations.2,
            reserved_bytes: bytes.0,
            limit_bytes: bytes.1,
            last_served_bytes: bytes.2,
            is_met: operations.3 && bytes.3,
        }
    }

    /// The status of a tenant at one node; none if all its numbers are zero.
    fn at_node(&self, tenant: &TenantBounds, entry: &NodeAccounts) -> Option<TenantAtNode> {
        let GrantCounts { reserved, allowed } = entry.now.sent;
        let numbers = [reserved, entry.served, entry.demand, entry.before];
        numbers.iter().any(|number| *number > 0).then(|| TenantAtNode {
            id: entry.node,
            node: self.nodes[entry.node.index()].name.clone(),
            reserved_operations: reserved,
            limit_operations: (tenant.is_limited && allowed < u64::MAX).then_some(allowed),
            served_operations: entry.served,
            demand_operations: entry.demand,
            waiting_operations: entry.waiting,
            last_served_operations: entry.before,
            ..TenantAtNode::default()
        })
    }

    /// The shortfall of the last distribution, in words; none if it met all reservations. Missing
    /// operations are reported before missing bytes.
    fn shortfall(&self) -> Option<Shortfall> {
        let accounts = self.accounts.iter().find(|it| !it.short.tenants.is_empty())?;
        let name = |node: &NodeId| self.nodes[node.index()].name.clone();
        let nodes: Vec<String> = accounts.short.nodes.iter().map(name).collect();
        let missing: u64 = accounts.short.tenants.iter().map(|(_, missing)| missing).sum();
        let short = |&(index, missing): &(TenantIndex, u64)| {
            let name = accounts.tenants[index.index()].name.clone();
            match accounts.unit {
                Unit::Operations => {
                    ShortTenant { name, missing_operations: missing, missing_bytes: 0 }
                }
                Unit::Bytes => {
                    let missing_bytes = missing.saturating_mul(BYTES_PER_TOKEN);
                    ShortTenant { name, missing_operations: 0, missing_bytes }
                }
            }
        };
        let tenants: Vec<ShortTenant> = accounts.short.tenants.iter().map(short).collect();
        let amount = match accounts.unit {
            Unit::Operations => alloc::format!("{missing} operations"),
            Unit::Bytes => alloc::format!("{missing} KiB"),
        };
        let line = alloc::format!(
            "{} can do {amount} less in this period than is promised there to {}",
            nodes.join(", "),
            tenants.iter().map(|tenant| tenant.name.as_str()).collect::<Vec<_>>().join(", "),
        );
        Some(Shortfall { nodes, tenants, line })
    }
}
