//! The tokens of each process of a cluster, period by period, beside what is promised.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_model::{Iops, Policy, Span};
use tidegate_proto::node::NodeStatus;

/// What a tenant is promised in a period.
#[derive(Clone, Debug)]
pub(crate) struct Promised {
    pub(crate) name: String,
    pub(crate) reserved: u64,
    pub(crate) limit: Option<u64>,
}

impl Promised {
    /// The promises of a policy, in its order.
    pub(crate) fn of(policy: &Policy) -> Vec<Self> {
        let period = u128::from(policy.period.0);
        let amount = |rate: Iops| u128::from(rate.0) * period;
        let second = u128::from(Span::SECOND.0);
        let promised = policy.tenants.iter().map(|tenant| {
            let limit = tenant.limit.operations.map(|it| ((amount(it) / second) as u64).max(1));
            let reservation = tenant.reservation.operations.unwrap_or_default();
            let reserved = amount(reservation).div_ceil(second) as u64;
            let reserved = reserved.min(limit.unwrap_or(u64::MAX));
            Self { name: tenant.name.clone(), reserved, limit }
        });
        promised.collect()
    }
}

/// One tenant's counts at one process in one period.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    served: u64,
    reserved: u64,
    /// While the period runs there, up to what count it may be served.
    allowed: Option<u64>,
    is_over: bool,
    /// Whether its lease was over in the period: its limits are not guaranteed then.
    is_abandoned: bool,
}

/// The counts of all processes, by period, tenant, node and the node's incarnation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(BTreeMap<(u64, String, usize, u32), Held>);

impl Ledger {
    /// Notes what each process has in the period that runs there.
    pub(crate) fn note(&mut self, nodes: &[(u32, Option<NodeStatus>)]) {
        for ((.., node, incarnation), held) in &mut self.0 {
            let (last, status) = &nodes[*node];
            held.is_over |= status.is_none() || last != incarnation;
        }
        for (node, (incarnation, status)) in nodes.iter().enumerate() {
            let Some(status) = status else { continue };
            for tenant in status.tenants.iter().skip(1) {
                let key = |period| (period, tenant.name.clone(), node, *incarnation);
                let before = status.period.checked_sub(1).map(key);
                let before = before.and_then(|key| self.0.get_mut(&key));
                if let Some(held) = before.filter(|held| !held.is_over) {
                    (held.served, held.is_over) = (tenant.served_before, true);
                }
                let held = self.0.entry(key(status.period)).or_default();
                held.served = tenant.served;
                held.reserved = tenant.reserved;
                held.allowed = tenant.allowed;
                held.is_abandoned |= status.is_abandoned;
            }
        }
        let last = self.0.last_key_value().map_or(0, |((period, ..), _)| *period);
        self.0 = self.0.split_off(&(last.saturating_sub(2), String::new(), 0, 0));
    }

    fn held(&self, period: u64, tenant: &str) -> impl Iterator<Item = &Held> {
        let held = self.0.iter();
        held.filter(move |((p, name, ..), _)| *p == period && name == tenant).map(|(_, held)| held)
    }

    /// Operations that all processes served in a period.
    pub(crate) fn served(&self, period: u64, tenant: &str) -> u64 {
        self.held(period, tenant).map(|held| held.served).sum()
    }

    /// Checks that no token of a limit was created in the periods from this one on.
    pub(crate) fn check_limits(&self, promised: &[Promised], from: u64) -> Result<(), String> {
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

    /// Checks the same of reservations. The controller may not know what a process has served that
    /// died, and grant it again.
    pub(crate) fn check_reservations(
        &self,
        promised: &[Promised],
        from: u64,
    ) -> Result<(), String> {
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
        let periods: BTreeSet<u64> = self.0.keys().map(|(period, ..)| *period).collect();
        for period in periods.into_iter().filter(|period| *period >= from) {
            for promise in promised {
                let held: Vec<&Held> = self.held(period, &promise.name).collect();
                check(promise, &held, period)?;
            }
        }
        Ok(())
    }
}
