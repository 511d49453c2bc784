//! The account of each resource: what it is promised for, what tenants and groups had of it, and
//! the gate that held them.
//!
//! # Mechanism
//! One kind of gate guards a resource, so its account is that of this kind: of stages, as the
//! budgets report it; of storage nodes, as the cluster reports it; or of data nodes. A group's
//! account is the sum of its tenants'.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use tidegate_model::gate::Unit;
use tidegate_model::policy::{GateKind, Levels, Promise, Resource};
use tidegate_model::{Policy, Span, WaitRule, Waits};

use super::status::{HeldStatus, PromiseStatus, ResourceStatus, Status, TenantStatus, is_less};
use crate::cluster::status::{ClusterStatus, DataNodeStatus};
use crate::stats::delays::permille;
use crate::stats::delays::stages::{StageGate, StageWaits};

/// The waits of tenants in the last minute, by their index in the policy.
pub(super) struct RecentWaits {
    pub(super) stages: Vec<StageWaits>,
    pub(super) nodes: Vec<Waits>,
}

/// The accounts of a policy's resources; none if it names no resources.
pub(super) fn resources(
    policy: &Policy,
    status: &Status,
    waits: &RecentWaits,
) -> Vec<ResourceStatus> {
    let account = |resource: &Resource| {
        let account = ResourceAccount { policy, resource, status, waits };
        account.status()
    };
    policy.resources.iter().map(account).collect()
}

/// One resource, and the state that its account is made from.
struct ResourceAccount<'a> {
    policy: &'a Policy,
    resource: &'a Resource,
    status: &'a Status,
    waits: &'a RecentWaits,
}

impl ResourceAccount<'_> {
    fn status(&self) -> ResourceStatus {
        let gate = self.resource.gate();
        let tenants: Vec<PromiseStatus> =
            (0..self.policy.tenants.len()).map(|index| self.tenant(index)).collect();
        let groups = (0..self.policy.groups.len()).map(|index| self.group(index, &tenants));
        let groups = groups.filter(is_promised).collect();
        let capacity = |unit| self.resource.capacity.get(unit).or_else(|| self.declared(unit));
        let is_shown = |tenant: &PromiseStatus| {
            let moved = tenant.bytes_per_second.unwrap_or(0);
            is_promised(tenant) || tenant.operations_per_second > 0 || moved > 0
        };
        ResourceStatus {
            name: self.resource.name.clone(),
            guarded_by: gate.to_string(),
            capacity_operations_per_second: capacity(Unit::Operations),
            capacity_bytes_per_second: capacity(Unit::Bytes),
            tenants: tenants.into_iter().filter(is_shown).collect(),
            groups,
        }
    }

    /// The sum of what the storage nodes declare, if all of them do.
    fn declared(&self, unit: Unit) -> Option<u64> {
        let cluster = self.status.cluster.as_ref()?;
        let nodes = Some(&cluster.nodes).filter(|_| self.resource.gate() == GateKind::Node)?;
        let mut declared = nodes.iter().map(|node| match unit {
            Unit::Operations => node.declared_operations_per_second,
            Unit::Bytes => node.declared_bytes_per_second,
        });
        declared.try_fold(0, |sum: u64, rate| Some(sum.saturating_add(rate?)))
    }

    fn tenant(&self, index: usize) -> PromiseStatus {
        let tenant = &self.policy.tenants[index];
        let promised = promised(&tenant.name, &self.resource.tenants[index]);
        let group = self.policy.group_of(tenant).map(|group| group.name.clone());
        let promised = PromiseStatus { group, ..promised };
        match (self.resource.gate(), &self.status.cluster) {
            (GateKind::Stage, _) => self.at_stages(index, promised),
            (GateKind::Node, Some(cluster)) => self.at_nodes((index, cluster), promised),
            (GateKind::DataNode, Some(cluster)) => at_data_nodes(&cluster.data_nodes, promised),
            (_, None) => promised,
        }
    }

    fn at_stages(&self, index: usize, promised: PromiseStatus) -> PromiseStatus {
        let Some(tenant) = self.status.tenants.get(index) else { return promised };
        let waits = self.waits.stages.get(index).copied().unwrap_or_default();
        let of_gate = StageGate::ALL.into_iter().map(|gate| (gate.name(), waits.of(gate)));
        PromiseStatus {
            operations_per_second: tenant.period_operations_per_second,
            bytes_per_second: Some(tenant.period_bytes_per_second),
            is_met: ![Unit::Bytes, Unit::Operations].into_iter().any(|unit| tenant.misses(unit)),
            held: longest(of_gate, waits.total_ns()),
            ..promised
        }
    }

    fn at_nodes(
        &self,
        (index, cluster): (usize, &ClusterStatus),
        promised: PromiseStatus,
    ) -> PromiseStatus {
        let Some(tenant) = cluster.tenants.get(index) else { return promised };
        let group = promised.group.as_ref();
        let group = group.and_then(|name| cluster.groups.iter().find(|it| it.name == *name));
        let of_group = group.is_some_and(|it| it.reserved_bytes.or(it.limit_bytes).is_some());
        let bytes = promised.reservation_bytes_per_second.or(promised.limit_bytes_per_second);
        let waits = self.waits.nodes.get(index).copied().unwrap_or(Waits::ZERO);
        let of_rule = WaitRule::ALL.into_iter().map(|rule| (rule.name(), waits.of(rule)));
        PromiseStatus {
            operations_per_second: per_second(cluster, tenant.last_served_operations),
            bytes_per_second: Some(match bytes.is_some() || of_group {
                true => per_second(cluster, tenant.last_served_bytes),
                false => tenant.gateway_bytes_per_second,
            }),
            is_met: tenant.is_met,
            held: longest(of_rule, waits.total_ns()),
            ..promised
        }
    }

    fn group(&self, index: usize, tenants: &[PromiseStatus]) -> PromiseStatus {
        let name = &self.policy.groups[index].name;
        let promised = promised(name, &self.resource.groups[index]);
        let is_member = |tenant: &&PromiseStatus| tenant.group.as_ref() == Some(name);
        let members = tenants.iter().filter(is_member);
        let operations = members.clone().map(|it| it.operations_per_second);
        let bytes = members.clone().filter_map(|it| it.bytes_per_second);
        let sum = PromiseStatus {
            operations_per_second: operations.fold(0, u64::saturating_add),
            bytes_per_second: bytes.reduce(u64::saturating_add),
            ..promised
        };
        let is_met = match (self.resource.gate(), &self.status.cluster) {
            (GateKind::Stage, _) => !self.is_missed_at_stages(index, &sum),
            (GateKind::Node, Some(cluster)) => {
                cluster.groups.get(index).is_none_or(|group| group.is_met)
            }
            // Data nodes divide no promises of groups; the tenants have their own.
            _ => members.clone().all(|tenant| tenant.is_met),
        };
        PromiseStatus { is_met, ..sum }
    }

    /// Whether a group had less than its reservation while a tenant of it waited below its own
    /// limit.
    fn is_missed_at_stages(&self, group: usize, sum: &PromiseStatus) -> bool {
        let tenants = self.policy.tenants.iter().zip(&self.status.tenants);
        let members = tenants.filter(|(tenant, _)| tenant.group == Some(group));
        let is_missed = |unit| {
            let (reservation, had) = match unit {
                Unit::Bytes => (sum.reservation_bytes_per_second, sum.bytes_per_second),
                Unit::Operations => {
                    (sum.reservation_operations_per_second, Some(sum.operations_per_second))
                }
            };
            let is_less = reservation.is_some_and(|it| is_less(had.unwrap_or(0), it));
            is_less && members.clone().any(|(_, tenant)| waits_below_limit(tenant, unit))
        };
        [Unit::Bytes, Unit::Operations].into_iter().any(is_missed)
    }
}

/// Whether requests of a tenant wait although it had less than its own limit.
fn waits_below_limit(tenant: &TenantStatus, unit: Unit) -> bool {
    let (limit, had, demand) = match unit {
        Unit::Bytes => (
            tenant.limit_bytes_per_second,
            tenant.period_bytes_per_second,
            tenant.demand_bytes_per_second,
        ),
        Unit::Operations => (
            tenant.limit_operations_per_second,
            tenant.period_operations_per_second,
            tenant.demand_operations_per_second,
        ),
    };
    let is_below = limit.is_none_or(|limit| is_less(had, limit));
    demand.is_none() && tenant.waiting_permille > 0 && is_below
}

fn at_data_nodes(nodes: &[DataNodeStatus], promised: PromiseStatus) -> PromiseStatus {
    let there = nodes.iter().flat_map(|node| &node.tenants);
    let there = there.filter(|tenant| tenant.name == promised.name);
    let operations = there.clone().map(|tenant| tenant.operations_per_second);
    PromiseStatus {
        operations_per_second: operations.fold(0, u64::saturating_add),
        bytes_per_second: None,
        is_met: there.clone().all(|tenant| tenant.is_met),
        ..promised
    }
}

/// A promise of which nothing was had. It is met: nothing was asked for.
fn promised(name: &str, promise: &Promise) -> PromiseStatus {
    let pair = |levels: Levels| (levels.get(Unit::Operations), levels.get(Unit::Bytes));
    let (reservation, limit) = (pair(promise.reservation), pair(promise.limit));
    PromiseStatus {
        name: String::from(name),
        weight: promise.weight,
        reservation_operations_per_second: reservation.0,
        reservation_bytes_per_second: reservation.1,
        limit_operations_per_second: limit.0,
        limit_bytes_per_second: limit.1,
        is_met: true,
        ..PromiseStatus::default()
    }
}

fn is_promised(status: &PromiseStatus) -> bool {
    let operations =
        status.reservation_operations_per_second.or(status.limit_operations_per_second);
    let bytes = status.reservation_bytes_per_second.or(status.limit_bytes_per_second);
    operations.or(bytes).is_some()
}

/// The gate with the longest of these times; the first of several.
fn longest(
    waits: impl DoubleEndedIterator<Item = (&'static str, u64)>,
    total_ns: u64,
) -> Option<HeldStatus> {
    let (by, wait_ns) = waits.rev().max_by_key(|(_, ns)| *ns).filter(|(_, ns)| *ns > 0)?;
    Some(HeldStatus { by: by.into(), permille: permille(wait_ns, total_ns), wait_ns })
}

fn per_second(cluster: &ClusterStatus, count: u64) -> u64 {
    let product = u128::from(count) * u128::from(Span::SECOND.0);
    u64::try_from(product / u128::from(cluster.period_ns.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
