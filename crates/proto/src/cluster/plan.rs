//! Makes the nodes' plan and the tenants' accounts from a policy.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;

use tidegate_model::gate::Unit;
use tidegate_model::policy::GateKind;
use tidegate_model::{NodeId, Policy, Portion, Span, policy};

use super::bounds::{GrantCounts, InGroup, NodeAccounts, TenantBounds, promise};
use super::groups::{self, Pair};
use super::message::{BytePlan, Plan, TenantPlan, UNITS};
use super::{Cluster, WHENS};

impl Cluster {
    /// Sets the home nodes of tenants, like [`super::Setup::home_nodes`], from the next policy on.
    pub(crate) fn set_home_nodes(&mut self, home_nodes: BTreeMap<String, BTreeSet<NodeId>>) {
        self.setup.home_nodes = home_nodes;
    }

    pub(super) fn set_plan(&mut self, revision: u64, policy: &Policy) {
        let weights = policy.weights();
        let is_resource = policy.resource_at(GateKind::Node).is_some();
        let tenants = policy.tenants.iter().map(|tenant| {
            let [operations, bytes] = UNITS.map(|unit| {
                let (own, shared) = levels(policy, tenant, unit);
                (own.0.is_some() || shared.0.is_some(), own.1.is_some() || shared.1.is_some())
            });
            TenantPlan {
                name: tenant.name.clone(),
                weight: tenant.weight,
                is_limited: operations.1,
                minimum_ppm: minimum_ppm(tenant, weights),
                bytes: is_resource.then_some(BytePlan {
                    reserves_operations: operations.0,
                    is_reserved: bytes.0,
                    is_limited: bytes.1,
                }),
            }
        });
        let period = Span(policy.period.0.max(1));
        let rounds = (period.0 / policy.redistribute.0.max(1)).max(1);
        self.plan = Plan {
            revision,
            period,
            rounds: u32::try_from(rounds).unwrap_or(u32::MAX),
            fallback: policy.fallback,
            discipline: None,
            capacity: UNITS.map(|unit| policy.budget.get(unit).filter(|_| is_resource)),
            class_weights: policy.class_weights,
            tenants: tenants.collect(),
        };
    }

    /// The capacity of a node in which promises are made, per second: of what it declares and what
    /// the policy says of all nodes together, the smaller. Nodes of no named resource need none.
    pub(super) fn promised_of(&self, node: usize) -> [Option<u64>; 2] {
        let is_resource = self.plan.tenants.iter().any(|tenant| tenant.bytes.is_some());
        core::array::from_fn(|unit| {
            let declared = self.nodes[node].declared[unit].filter(|_| is_resource);
            declared.into_iter().chain(self.plan.capacity[unit]).min()
        })
    }

    /// Makes the tenants of a policy, and keeps the records of those in the policy before.
    pub(super) fn rebuild(&mut self, policy: &Policy) {
        let [operations, _] = &self.accounts;
        let known: BTreeSet<String> =
            operations.tenants.iter().map(|tenant| tenant.name.clone()).collect();
        for (index, unit) in UNITS.into_iter().enumerate() {
            let earlier = self.accounts[index].clear().into_iter();
            let mut earlier: BTreeMap<String, TenantBounds> =
                earlier.map(|tenant| (tenant.name.clone(), tenant)).collect();
            for requested in &policy.tenants {
                let levels = levels(policy, requested, unit);
                let before = earlier.remove(&requested.name);
                let before = before.filter(|tenant| !tenant.entries.is_empty());
                let is_known = known.contains(&requested.name);
                let tenant = match before {
                    None if unit == Unit::Bytes && levels == ((None, None), (None, None)) => {
                        TenantBounds { name: requested.name.clone(), ..TenantBounds::default() }
                    }
                    before => self.renewed((unit, requested), levels, (before, is_known)),
                };
                self.accounts[index].push(tenant);
            }
            let groups = groups::promises(policy, unit, self.plan.period);
            self.accounts[index].begin(groups);
        }
        self.nodes.iter_mut().for_each(|node| node.is_void = false);
        let group = |(index, group): (usize, &policy::Group)| {
            let tenants = policy.tenants.iter().enumerate();
            let members = tenants.filter(|(_, tenant)| tenant.group == Some(index));
            (group.name.clone(), members.map(|(tenant, _)| tenant).collect())
        };
        self.groups = policy.groups.iter().enumerate().map(group).collect();
    }

    /// A tenant with these levels, from the record that it had, and whether it was in the policy
    /// before. One that was there without a limit in this unit may have used any number of tokens.
    fn renewed(
        &self,
        (unit, requested): (Unit, &policy::Tenant),
        (own, shared): (Pair, Pair),
        (before, is_known): (Option<TenantBounds>, bool),
    ) -> TenantBounds {
        let limit = own.1.into_iter().chain(shared.1).min();
        let (is_limited, period) = (limit.is_some(), self.plan.period);
        let promise = promise(unit, (own.0, limit), period);
        let member = groups::member((unit, period), requested, (promise, shared));
        let most = member.map_or(promise, |member| member.most);
        let name = &requested.name;
        let mut tenant =
            before.unwrap_or_else(|| self.new_tenant(name, most, is_limited && !is_known));
        let was_limited = core::mem::replace(&mut tenant.is_limited, is_limited);
        (tenant.promise, tenant.member) = (promise, member);
        (tenant.divided, tenant.divided_before) = (InGroup::default(), InGroup::default());
        self.extend(&mut tenant);
        for entry in &mut tenant.entries {
            for when in WHENS {
                entry.account_mut(when).renew(was_limited, is_limited);
            }
        }
        tenant
    }

    fn new_tenant(&self, name: &str, promise: GrantCounts, is_limited: bool) -> TenantBounds {
        let mut tenant = TenantBounds { name: name.into(), is_limited, ..TenantBounds::default() };
        self.extend(&mut tenant);
        tenant.unknown = WHENS.map(|when| {
            let mut nodes = tenant.entries.iter().map(|entry| entry.node.index());
            let is_unknown = nodes.any(|node| self.nodes[node].is_unknown[when as usize]);
            if is_unknown { promise } else { GrantCounts::ZERO }
        });
        tenant
    }

    /// Adds entries for all nodes, and marks the tenant's home nodes. Its requests may come to
    /// other nodes too, by a name that its client chooses; there it has counts from the round on in
    /// which the node reports them.
    fn extend(&self, tenant: &mut TenantBounds) {
        let known: BTreeSet<NodeId> = tenant.entries.iter().map(|entry| entry.node).collect();
        let node_ids = self
            .nodes
            .iter()
            .map(|node_state| node_state.id)
            .filter(|node_state| !known.contains(node_state));
        tenant
            .entries
            .extend(node_ids.map(|node| NodeAccounts { node, ..NodeAccounts::default() }));
        let home_nodes =
            self.setup.home_nodes.get(&tenant.name).filter(|home_nodes| !home_nodes.is_empty());
        for entry in &mut tenant.entries {
            entry.is_home = home_nodes.is_none_or(|home_nodes| home_nodes.contains(&entry.node));
        }
        tenant.entries.sort_by_key(|entry| entry.node);
    }
}

/// The reservation and the limit of a tenant at nodes, in `unit` per second, and those of its group
/// that it can share. Bytes are promised of named resources only.
fn levels(policy: &Policy, tenant: &policy::Tenant, unit: Unit) -> (Pair, Pair) {
    let own = match unit {
        Unit::Bytes if policy.resource_at(GateKind::Node).is_none() => (None, None),
        _ => (tenant.reservation.get(unit), tenant.limit.get(unit)),
    };
    (own, groups::levels(policy, tenant, unit))
}

/// The least part of a node that a tenant has whatever it has elsewhere, in millionths: a tenth of
/// its share by weight if the policy does not say.
fn minimum_ppm(tenant: &policy::Tenant, weights: u64) -> u32 {
    let tenth = u64::from(tenant.weight) * u64::from(Portion::WHOLE.0) / 10;
    let tenth = tenth.checked_div(weights).map_or(0, |part| part as u32);
    tenant.minimum_share.map_or(tenth, |share| share.0)
}
