//! Cluster simulation: the tokens of each process, period by period, beside what is promised.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::cost::BYTES_PER_TOKEN;
use tidegate_model::gate::Unit;
use tidegate_model::policy::{GateKind, Levels};
use tidegate_model::{Policy, Span};
use tidegate_proto::node::NodeStatus;

/// A tenant's promise in a period.
#[derive(Clone, Debug)]
pub struct Promised {
    /// The tenant.
    pub name: String,
    /// Its reservation.
    pub reserved: u64,
    /// Its limit.
    pub limit: Option<u64>,
    /// The tenants whose counts the promise bounds together: itself, or those of a group.
    pub tenants: Vec<String>,
}

impl Promised {
    /// The promises of a policy in operations, in its order.
    pub fn of(policy: &Policy) -> Vec<Self> {
        Self::in_unit(policy, Unit::Operations, 1).0
    }

    /// The promises in bytes of a policy as nodes see it, in tokens.
    pub fn in_bytes(policy: &Policy) -> Vec<Self> {
        Self::in_unit(policy, Unit::Bytes, BYTES_PER_TOKEN).0
    }

    /// Bounds on the counts of tenants, in their order, and after them of groups, in a policy as
    /// nodes see it. A tenant may hold all of its group's reservation.
    pub(crate) fn bounds(policy: &Policy) -> Vec<Self> {
        let (mut tenants, groups) = Self::in_unit(policy, Unit::Operations, 1);
        if policy.resource_at(GateKind::Node).is_none() {
            return tenants;
        }
        for (promised, tenant) in tenants.iter_mut().zip(&policy.tenants) {
            if let Some(group) = tenant.group.map(|group| &groups[group]) {
                promised.limit = promised.limit.into_iter().chain(group.limit).min();
                promised.reserved = promised.reserved.max(group.reserved);
            }
        }
        tenants.into_iter().chain(groups).collect()
    }

    /// The promises of tenants and those of groups.
    fn in_unit(policy: &Policy, unit: Unit, per_token: u64) -> (Vec<Self>, Vec<Self>) {
        let period = u128::from(policy.period.0);
        let amount = |rate: u64| u128::from(rate) * period;
        let second = u128::from(Span::SECOND.0) * u128::from(per_token);
        let limited = |rate: Option<u64>| rate.map(|it| ((amount(it) / second) as u64).max(1));
        let reserved = |rate: Option<u64>| rate.map(|it| amount(it).div_ceil(second) as u64);
        let promised = |name: &String, promise: (Levels, Levels), nothing: u64| {
            let limit = limited(promise.1.get(unit));
            let reserved = reserved(promise.0.get(unit)).unwrap_or(nothing);
            let reserved = reserved.min(limit.unwrap_or(u64::MAX));
            Self { name: name.clone(), reserved, limit, tenants: vec![name.clone()] }
        };
        let tenants = policy.tenants.iter();
        let tenants = tenants.map(|it| promised(&it.name, (it.reservation, it.limit), 0));
        let groups = policy.groups.iter().enumerate().map(|(index, group)| {
            let members = policy.tenants.iter().filter(|tenant| tenant.group == Some(index));
            let promise = (group.promise.reservation, group.promise.limit);
            let tenants = members.map(|tenant| tenant.name.clone()).collect();
            Self { tenants, ..promised(&group.name, promise, u64::MAX) }
        });
        (tenants.collect(), groups.collect())
    }
}

/// A node's status with tokens of bytes in place of those of operations.
pub(crate) fn in_tokens_of_bytes(mut status: NodeStatus) -> NodeStatus {
    for tenant in &mut status.tenants {
        let Some(bytes) = tenant.bytes else { continue };
        (tenant.served, tenant.served_before) = (bytes.served, bytes.served_before);
        (tenant.reserved, tenant.allowed) = (bytes.reserved, bytes.allowed);
    }
    status
}

/// One tenant's counts at one process in one period.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    served: u64,
    reserved: u64,
    /// While the period runs there, up to what count it may be served.
    allowed: Option<u64>,
    is_over: bool,
    /// Whether its lease was over at some time of the period: the policy's fallback held then, and
    /// not a count of the controller, which has given the node's tokens to others by then.
    is_abandoned: bool,
}

/// The counts of all processes in the last periods.
#[derive(Clone, Debug, Default)]
pub struct TokenCounts {
    /// By period, tenant, node and the node's incarnation.
    held: BTreeMap<(u64, String, usize, u32), Held>,
    /// By node, the period in which it was abandoned when this was noted last. Its service then
    /// may belong to a period that has another number by now.
    were_abandoned: Vec<Option<u64>>,
}

impl TokenCounts {
    /// Notes what each process has in the period that runs there: of each node its incarnation, and
    /// its status while a process runs.
    pub fn note(&mut self, nodes: &[(u32, Option<NodeStatus>)]) {
        for ((period, name, node, incarnation), held) in &mut self.held {
            let (last, status) = &nodes[*node];
            let status = status.as_ref().filter(|_| last == incarnation);
            let is_over = status.is_none_or(|status| status.period != *period);
            if !is_over || core::mem::replace(&mut held.is_over, true) {
                continue;
            }
            if let Some(status) = status.filter(|status| status.period == *period + 1) {
                let tenant = status.tenants.iter().find(|tenant| tenant.name == *name);
                held.served = tenant.map_or(held.served, |tenant| tenant.served_before);
            }
        }
        self.were_abandoned.resize(nodes.len(), None);
        for (node, (incarnation, status)) in nodes.iter().enumerate() {
            let abandoned = status.as_ref().filter(|status| status.is_abandoned);
            let abandoned = abandoned.map(|status| status.period);
            let before = core::mem::replace(&mut self.were_abandoned[node], abandoned);
            let Some(status) = status else { continue };
            // A period that follows began with no service.
            let follows = |period: u64| status.period.checked_sub(1) == Some(period);
            let was_abandoned = before.is_some_and(|period| !follows(period));
            for tenant in status.tenants.iter().skip(1) {
                let key = (status.period, tenant.name.clone(), node, *incarnation);
                let held = self.held.entry(key).or_default();
                held.served = tenant.served;
                held.reserved = tenant.reserved;
                held.allowed = tenant.allowed;
                held.is_over = false;
                held.is_abandoned |= abandoned.is_some() || was_abandoned;
            }
        }
        let last = self.held.last_key_value().map_or(0, |((period, ..), _)| *period);
        self.held = self.held.split_off(&(last.saturating_sub(4), String::new(), 0, 0));
    }

    fn held(&self, period: u64, tenant: &str) -> impl Iterator<Item = &Held> {
        let held = self.held.iter();
        held.filter(move |((p, name, ..), _)| *p == period && name == tenant).map(|(_, held)| held)
    }

    /// Operations that all processes served in a period.
    pub(crate) fn served(&self, period: u64, tenant: &str) -> u64 {
        self.held(period, tenant).map(|held| held.served).sum()
    }

    /// Checks that no token of a limit was created in the periods from this one on.
    ///
    /// # Errors
    /// The counts of the first tenant that was allowed too much.
    pub fn check_limits(&self, promised: &[Promised], from: u64) -> Result<(), String> {
        self.check(promised, from, |Promised { name, limit, .. }, held, period| {
            let in_force = |held: &&Held| match held.allowed {
                Some(allowed) if !held.is_over => allowed.max(held.served),
                _ => held.served,
            };
            let allowed = held.iter().map(in_force).fold(0, u64::saturating_add);
            let is_abandoned = held.iter().any(|held| held.is_abandoned);
            match limit.is_some_and(|limit| allowed > limit) && !is_abandoned {
                true => Err(format!("{allowed} allowed to {name} in {period}: {held:?}")),
                false => Ok(()),
            }
        })
    }

    /// Checks the same of reservations. The tokens that a process has used which died count.
    ///
    /// # Errors
    /// The counts of the first tenant for which too much was reserved.
    pub fn check_reservations(&self, promised: &[Promised], from: u64) -> Result<(), String> {
        self.check(promised, from, |Promised { name, reserved: promised, .. }, held, period| {
            let reserved = |held: &&Held| match held.is_over {
                true => held.reserved.min(held.served),
                false => held.reserved,
            };
            let reserved: u64 = held.iter().map(reserved).sum();
            let served: u64 = held.iter().map(|held| held.served).sum();
            match reserved > served.max(*promised) {
                true => Err(format!("{reserved} reserved for {name} in {period}: {held:?}")),
                false => Ok(()),
            }
        })
    }

    fn check(
        &self,
        promised: &[Promised],
        from: u64,
        check: impl Fn(&Promised, &[&Held], u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let periods: BTreeSet<u64> = self.held.keys().map(|(period, ..)| *period).collect();
        for period in periods.into_iter().filter(|period| *period >= from) {
            for promise in promised {
                let held = promise.tenants.iter().flat_map(|tenant| self.held(period, tenant));
                let held: Vec<&Held> = held.collect();
                check(promise, &held, period)?;
            }
        }
        Ok(())
    }
}
