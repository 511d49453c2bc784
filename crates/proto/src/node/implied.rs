//! Implied reservations at a node: operations for reserved bytes, bytes for reserved operations.
//!
//! A request of a named resource takes tokens of operations and of bytes, and is reserved while
//! reservation tokens of both are left. So a tenant with a reservation in one unit alone gets a
//! count of the other here ([`implied`](tidegate_model::cost::implied)). It takes nothing that is
//! promised to others: of what the node can do in a period, explicit counts come first, and the
//! implied ones divide the rest. So the reserved counts of all tenants add up to no more than the
//! node can do, in each unit, as far as its capacity is declared.

use alloc::vec::Vec;

use tidegate_model::Span;
use tidegate_model::cost::Implied;
use tidegate_model::gate::Unit;

use super::tenant::Tenant;
use crate::cluster::message::{TenantPlan, UNITS};

/// The implied reservations at a node.
#[derive(Debug, Default)]
pub(super) struct ImpliedReservations {
    /// The declared capacity of the node per second, in each unit.
    capacity: [Option<u64>; 2],
    /// The indexes of the tenants with a reservation in one unit alone.
    lone: Vec<usize>,
    /// The rest of the node's capacity in a period that is implied in each unit.
    among: [Implied; 2],
}

impl ImpliedReservations {
    /// Those of the tenants of a plan, at a node with this capacity.
    pub(super) fn new<'a>(
        capacity: [Option<u64>; 2],
        plans: impl Iterator<Item = &'a TenantPlan>,
    ) -> Self {
        let is_lone = |plan: &TenantPlan| {
            plan.bytes.is_some_and(|bytes| bytes.is_reserved != bytes.reserves_operations)
        };
        let lone = plans.enumerate().filter(|(_, plan)| is_lone(plan));
        let lone = lone.map(|(index, _)| index).collect();
        Self { capacity, lone, among: [Implied::default(); 2] }
    }

    /// The rest of the capacity that is implied in each unit, by [`Self::follow`].
    pub(super) const fn among(&self) -> &[Implied; 2] {
        &self.among
    }

    pub(super) const fn capacity(&self) -> [Option<u64>; 2] {
        self.capacity
    }

    /// Takes in the counts in force. Returns the tenants whose implied reservation differs from the
    /// one before.
    pub(super) fn follow(&mut self, tenants: &[Tenant], period: Span) -> Vec<usize> {
        if self.lone.is_empty() {
            return Vec::new();
        }
        let mut explicit = [0_u64; 2];
        for tenant in tenants {
            for (sum, reserved) in explicit.iter_mut().zip(tenant.explicit()) {
                *sum = sum.saturating_add(reserved);
            }
        }
        let left = |unit: usize| {
            let in_period = u128::from(self.capacity[unit]?) * u128::from(period.0);
            let in_period = u64::try_from(in_period / u128::from(Span::SECOND.0));
            Some(in_period.unwrap_or(u64::MAX).saturating_sub(explicit[unit]))
        };
        let mut among = [0, 1].map(|unit| Implied { sum: 0, left: left(unit) });
        for tenant in self.lone.iter().filter_map(|index| tenants.get(*index)) {
            // Each has something in one of the units, and it is implied in the other.
            for (of, other) in tenant.explicit().into_iter().zip([1, 0]) {
                among[other].sum = among[other].sum.saturating_add(of);
            }
        }
        let before = core::mem::replace(&mut self.among, among);
        let is_changed = |index: &usize| {
            let grant = |among| tenants.get(*index).map(|tenant| tenant.slot_grant(among));
            grant(&before) != grant(&among)
        };
        if before == among {
            Vec::new()
        } else {
            self.lone.iter().copied().filter(is_changed).collect()
        }
    }
}

const _: () = assert!(matches!(UNITS, [Unit::Operations, Unit::Bytes]));
