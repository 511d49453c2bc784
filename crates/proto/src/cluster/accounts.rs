//! The accounts of all tenants in one unit, and their last division over the nodes.
//!
//! Operations and bytes are divided apart: a token of one is no token of the other, and a node has
//! a capacity in each. Every tenant has accounts of operations. Accounts of bytes are those of
//! tenants with a promise in bytes on a named resource; for the others the list has an empty entry.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use tidegate_model::gate::Unit;
use tidegate_model::{NodeId, Portion, TenantIndex};

use super::allocate::{NodeCapacity, Short, Solutions};
use super::awake::Awake;
use super::bounds::{Account, GrantCounts, Headroom, NodeAccounts, TenantBounds, When};
use super::groups;
use super::message::Share;

/// The most by which counts may rise as a period's are sent: those of each tenant, and of each
/// group together. They are added up as they are first asked for, before any of them is sent.
#[derive(Debug, Default)]
pub(super) struct Headrooms {
    tenants: BTreeMap<usize, Headroom>,
    groups: BTreeMap<usize, Headroom>,
}

impl Headrooms {
    /// The headroom of a tenant.
    fn of(&mut self, accounts: &Accounts, tenant: TenantIndex, when: When) -> Headroom {
        let owner = &accounts.tenants[tenant.index()];
        let own = self.tenants.entry(tenant.index()).or_insert_with(|| owner.headroom(when));
        let Some(group) = owner.member.map(|member| member.group) else { return *own };
        let joint = self.groups.entry(group).or_insert_with(|| {
            let members = accounts.awake.members(group).iter().map(|it| &accounts.tenants[*it]);
            groups::headroom(accounts.groups[group], members, when)
        });
        own.min(*joint)
    }

    /// Takes in that so much of the headroom of a tenant, which is in this group, was used.
    fn take(&mut self, tenant: TenantIndex, group: Option<usize>, used: Headroom) {
        let group = group.and_then(|group| self.groups.get_mut(&group));
        for headroom in group.into_iter().chain(self.tenants.get_mut(&tenant.index())) {
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
    pub(super) awake: Awake,
    /// Whether counts of an earlier run of the controller may be in force.
    pub(super) is_any_unknown: bool,
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
            awake: Awake::default(),
            is_any_unknown: true,
            short: Short::default(),
        }
    }

    /// Forgets divisions and tenants, and returns the tenants.
    pub(super) fn clear(&mut self) -> Vec<TenantBounds> {
        (self.solutions, self.short) = (Solutions::default(), Short::default());
        self.awake = Awake::default();
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

    /// All tenants of the policy are there.
    pub(super) fn begin(&mut self, groups: Vec<GrantCounts>) {
        self.groups = groups;
        self.is_any_unknown = true;
        self.awake.restart(&self.tenants, self.groups.len());
    }

    /// Something of a tenant has changed, or may have.
    pub(super) fn wake(&mut self, tenant: TenantIndex) {
        self.awake.wake(&self.tenants, tenant);
    }

    /// Something of all tenants may have changed.
    pub(super) fn wake_all(&mut self) {
        self.awake.wake_all(&self.tenants);
    }

    /// The next period begins.
    pub(super) fn begin_period(&mut self) {
        for tenant in self.awake.all() {
            self.tenants[tenant].begin_period();
        }
        self.awake.begin_period(&self.tenants);
    }

    /// Nodes count their service in this period in another way, and will report it anew.
    pub(super) fn forget_served(&mut self) {
        let entries = self.tenants.iter_mut().flat_map(|tenant| &mut tenant.entries);
        entries.for_each(|entry| entry.served = 0);
    }

    /// A node can hold no counts any more.
    pub(super) fn void(&mut self, node: usize) {
        for &(tenant, index) in &self.entries_of[node] {
            let entry = &mut self.tenants[tenant.index()].entries[usize::from(index)];
            (entry.now, entry.next) = (Account::default(), Account::default());
        }
        self.wake_all();
    }

    /// Changes the accounts at a node of the tenants that are awake: only these have demand there,
    /// or counts that are not confirmed.
    pub(super) fn each_awake(&mut self, node: NodeId, mut change: impl FnMut(&mut NodeAccounts)) {
        for tenant in self.awake.all() {
            if let Some(entry) = self.tenants[tenant].entry_mut(node) {
                change(entry);
            }
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

    /// Sets new targets.
    pub(super) fn aim(&mut self, node_capacities: &[NodeCapacity], (when, left): (When, Portion)) {
        let tenants = (&mut self.tenants[..], &self.groups[..]);
        let short = self.solutions.aim(tenants, &mut self.awake, node_capacities, (when, left));
        if when == When::Now {
            self.short = short;
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
        let who: Vec<usize> = match is_whole {
            true => self.entries_of[node].iter().map(|(tenant, _)| tenant.index()).collect(),
            false => self.awake.all(),
        };
        let node = NodeId::at(node);
        for tenant in who.into_iter().map(TenantIndex::at) {
            let whole = headrooms.of(self, tenant, when);
            let owner = &mut self.tenants[tenant.index()];
            let is_limited = owner.is_limited;
            let group = owner.member.map(|member| member.group);
            let Some(entry) = owner.entry_mut(node) else { continue };
            let account = entry.account_mut(when);
            let mut headroom = whole;
            let best = account.best(is_limited, &mut headroom);
            headrooms.take(tenant, group, whole.minus(headroom));
            is_short |= best != account.target;
            // A later grant makes an earlier one late, so it has all unconfirmed counts.
            let is_new = best != account.sent || account.is_due(is_first);
            if is_new || (is_whole && !account.is_nothing()) {
                account.record_sent(best, serial);
                self.awake.wake(&self.tenants, tenant);
                let allowed = if is_limited { best.allowed } else { u64::MAX };
                shares.push(Share { tenant, reserved: best.reserved, allowed });
            }
        }
        (shares, is_short)
    }
}
