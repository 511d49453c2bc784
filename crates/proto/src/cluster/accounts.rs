//! The accounts of all tenants in one unit, and their last division over the nodes.
//!
//! Operations and bytes are divided apart: a token of one is no token of the other, and a node has
//! a capacity in each. Every tenant has accounts of operations. Accounts of bytes are those of
//! tenants with a promise in bytes on a named resource; for the others the list has an empty entry.

use alloc::vec::Vec;

use tidegate_model::gate::Unit;
use tidegate_model::{NodeId, TenantIndex};

use super::allocate::{NodeCapacity, Short, Solutions};
use super::bounds::{GrantCounts, NodeAccounts, Tenant, When};
use super::message::Share;
use super::still::Still;

#[derive(Debug)]
pub(super) struct Accounts {
    pub(super) unit: Unit,
    /// The policy's tenants, in its order.
    pub(super) tenants: Vec<Tenant>,
    /// For each node, the tenants that can meet there, and its index among their entries.
    pub(super) entries_of: Vec<Vec<(TenantIndex, u16)>>,
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
            solutions: Solutions::default(),
            still: Still::default(),
            short: Short::default(),
        }
    }

    /// Forgets divisions and tenants, and returns the tenants.
    pub(super) fn clear(&mut self) -> Vec<Tenant> {
        (self.solutions, self.short) = (Solutions::default(), Short::default());
        self.still.reset();
        self.entries_of.iter_mut().for_each(Vec::clear);
        core::mem::take(&mut self.tenants)
    }

    /// Adds the next tenant of the policy.
    pub(super) fn push(&mut self, tenant: Tenant) {
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
    pub(super) fn aim(&mut self, node_capacities: &[NodeCapacity], when: When) {
        if !self.still.holds(&self.tenants, node_capacities, when) {
            let short = self.solutions.aim(&mut self.tenants, node_capacities, when);
            if when == When::Now {
                self.short = short;
            }
        }
    }

    /// The counts of a node that are to be sent by the grant with this serial, as far as there is
    /// headroom; and whether any target is out of reach for now.
    pub(super) fn shares(
        &mut self,
        ((node, when), (is_first, is_whole), serial): ((usize, When), (bool, bool), u64),
        headrooms: &mut [GrantCounts],
    ) -> (Vec<Share>, bool) {
        let (mut shares, mut is_short) = (Vec::new(), false);
        for &(tenant, index) in &self.entries_of[node] {
            let headroom = &mut headrooms[tenant.index()];
            let owner = &mut self.tenants[tenant.index()];
            let is_limited = owner.is_limited;
            let account = owner.entries[usize::from(index)].account_mut(when);
            let best = account.best(is_limited, headroom);
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
