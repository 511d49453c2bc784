//! The accounts of all tenants in one unit, and their last division over the nodes.
//!
//! Operations and bytes are divided apart: a token of one is no token of the other, and a node has
//! a capacity in each. Every tenant has accounts of operations. Accounts of bytes are those of
//! tenants with a promise in bytes on a named resource; for the others the list has an empty entry.

use alloc::vec::Vec;

use tidegate_model::gate::Unit;
use tidegate_model::{NodeId, Portion, TenantIndex};

use super::allocate::{NodeCapacity, Short, Solutions};
use super::bounds::{GrantCounts, NodeAccounts, TenantBounds, When};
use super::groups;
use super::message::Share;
use super::still::Still;

/// The most by which counts may rise: those of each tenant, and of each group together.
#[derive(Debug)]
pub(super) struct Headrooms {
    tenants: Vec<GrantCounts>,
    groups: Vec<GrantCounts>,
}

impl Headrooms {
    /// The headroom of a tenant that is in this group.
    fn of(&self, tenant: TenantIndex, group: Option<usize>) -> GrantCounts {
        let own = self.tenants[tenant.index()];
        group.map_or(own, |group| own.min(self.groups[group]))
    }

    /// Takes in that so much is left of the headroom that [`Self::of`] returned.
    fn leave(&mut self, tenant: TenantIndex, group: Option<usize>, left: GrantCounts) {
        let used = self.of(tenant, group).minus(left);
        let group = group.map(|group| &mut self.groups[group]);
        for headroom in group.into_iter().chain([&mut self.tenants[tenant.index()]]) {
            *headroom = headroom.minus(used);
        }
    }
}

#[derive(Debug)]
pub(super) struct Accounts {
    pub(super) unit: Unit,
    /// The policy's tenants, in its order.
    pub(super) tenants: Vec<TenantBounds>,
    /// For each node, the tenants that can meet there, and its index among their entries.
    pub(super) entries_of: Vec<Vec<(TenantIndex, u16)>>,
    /// The promises of the policy's groups, as `groups.rs` makes them.
    pub(super) groups: Vec<GrantCounts>,
    solutions: Solutions,
    pub(super) still: Still,
    /// The shortfall of the last distribution.
    pub(super) short: Short,
}

impl Accounts {
    pub(super) fn new(unit: Unit, nodes: usize) -> Self {
        Self {
            unit,
            tenants: Vec::new(),
            entries_of: alloc::vec![Vec::new(); nodes],
            groups: Vec::new(),
            solutions: Solutions::default(),
            still: Still::default(),
            short: Short::default(),
        }
    }

    /// Forgets divisions and tenants, and returns the tenants.
    pub(super) fn clear(&mut self) -> Vec<TenantBounds> {
        (self.solutions, self.short) = (Solutions::default(), Short::default());
        self.still.reset();
        self.entries_of.iter_mut().for_each(Vec::clear);
        core::mem::take(&mut self.tenants)
    }

    /// Adds the next tenant of the policy.
    pub(super) fn push(&mut self, tenant: TenantBounds) {
        let number = TenantIndex::at(self.tenants.len());
        for (index, entry) in tenant.entries.iter().enumerate() {
            self.entries_of[entry.node.index()].push((number, index as u16));
        }
        self.tenants.push(tenant);
    }

    pub(super) fn each_entry(&mut self, node: usize, mut change: impl FnMut(&mut NodeAccounts)) {
        for &(tenant, index) in &self.entries_of[node] {
            change(&mut self.tenants[tenant.index()].entries[usize::from(index)]);
        }
    }

    /// The account of a tenant at a node, if both are known.
    pub(super) fn entry_mut(
        &mut self,
        tenant: TenantIndex,
        node: NodeId,
    ) -> Option<&mut NodeAccounts> {
        self.tenants.get_mut(tenant.index())?.entry_mut(node)
    }

    /// Sets new targets, unless they would come out as the last ones.
    pub(super) fn aim(&mut self, node_capacities: &[NodeCapacity], (when, left): (When, Portion)) {
        if !self.still.holds(&self.tenants, node_capacities, when) {
            let tenants = (&mut self.tenants[..], &self.groups[..]);
            let short = self.solutions.aim(tenants, node_capacities, (when, left));
            if when == When::Now {
                self.short = short;
            }
        }
    }

    /// The headrooms of a period.
    pub(super) fn headrooms(&self, when: When) -> Headrooms {
        Headrooms {
            tenants: self.tenants.iter().map(|tenant| tenant.headroom(when)).collect(),
            groups: groups::headrooms(&self.groups, &self.tenants, when),
        }
    }

    /// The counts of a node that are to be sent by the grant with this serial, as far as there is
    /// headroom; and whether any target is out of reach for now.
    pub(super) fn shares(
        &mut self,
        ((node, when), (is_first, is_whole), serial): ((usize, When), (bool, bool), u64),
        headrooms: &mut Headrooms,
    ) -> (Vec<Share>, bool) {
        let (mut shares, mut is_short) = (Vec::new(), false);
        for &(tenant, index) in &self.entries_of[node] {
            let owner = &mut self.tenants[tenant.index()];
            let is_limited = owner.is_limited;
            let group = owner.member.map(|member| member.group);
            let account = owner.entries[usize::from(index)].account_mut(when);
            let mut headroom = headrooms.of(tenant, group);
            let best = account.best(is_limited, &mut headroom);
            headrooms.leave(tenant, group, headroom);
            is_short |= best != account.target;
            // A later grant makes an earlier one late, so it has all unconfirmed counts.
            let is_new = best != account.sent || account.is_due(is_first);
            if is_new || (is_whole && !account.is_nothing()) {
                account.record_sent(best, serial);
                let allowed = if is_limited { best.allowed } else { u64::MAX };
                shares.push(Share { tenant, reserved: best.reserved, allowed });
            }
        }
        (shares, is_short)
    }
}
