//! The tenants for which a distribution has something to do: cost follows change, not size.
//!
//! # Problem
//! A distribution comes several times in a period. With thousands of tenants at many nodes, one of
//! which has demand, it would look at hundreds of thousands of accounts to change a few.
//!
//! # Mechanism
//! A tenant is *awake* from its first demand on, and whenever counts of it are not what they are to
//! be. It *rests* again at the begin of a period in which all of this holds:
//!
//! - nothing was served in the period before, waits or is expected, and the last divisions of that
//!   period and of the next one have seen that;
//! - its counts of the present and of the next period are the same, are in force, and are the ones
//!   to be in force;
//! - nothing of it is unknown, or was used by node processes that have ended.
//!
//! Divisions, grants and the begin of a period pass over tenants that rest. They have no demand, so
//! they take nothing from others. Their own counts depend on their promise, and on which nodes can
//! be sent counts (the *pattern*). When that changes, all tenants are divided once, and those whose
//! counts change are awake until nodes have confirmed them. Tenants of a group with a promise are
//! awake together.
//!
//! Example: 10,000 tenants at 64 nodes, of which 100 have demand. A round goes through 6,400
//! accounts, not 640,000. Idle, none is looked at.
//!
//! The solver of a division has the tenants that are awake and no others (`allocate.rs`): where a
//! node is short of capacity, the solver goes through all that it has.
//!
//! # Bound
//! The result is that of a division of all tenants, or another one that is as good where more than
//! thirty tenants of a node have to move tokens. Groups are an exception: while all tenants of a
//! group rest, its tokens stay as they were divided last, though with time more of a tenant's own
//! reservation lapses to the others.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use tidegate_model::TenantIndex;

use super::bounds::{TenantBounds, When};

/// For each node, whether it can be sent counts.
pub(super) type Pattern = Vec<bool>;

/// The tenants that are awake, by index. See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Awake {
    tenants: BTreeSet<usize>,
    /// By group: its tenants, if it has a promise.
    groups: Vec<Vec<usize>>,
    /// The patterns under which tenants that rest were divided last: for this period and for the
    /// next. None if they never were.
    divided: [Option<Pattern>; 2],
}

impl Awake {
    /// The tenants are these from now on, and all are awake.
    pub(super) fn restart(&mut self, tenants: &[TenantBounds], groups: usize) {
        self.groups = alloc::vec![Vec::new(); groups];
        for (index, tenant) in tenants.iter().enumerate() {
            if let Some(member) = tenant.member {
                self.groups[member.group].push(index);
            }
        }
        self.wake_all(tenants);
    }

    /// Counts of all tenants are to be looked at.
    pub(super) fn wake_all(&mut self, tenants: &[TenantBounds]) {
        self.divided = [None, None];
        self.tenants = (0..tenants.len()).collect();
    }

    /// Something of this tenant has changed, or may have.
    pub(super) fn wake(&mut self, tenants: &[TenantBounds], tenant: TenantIndex) {
        let Some(of) = tenants.get(tenant.index()) else { return };
        if self.tenants.insert(tenant.index())
            && let Some(members) = of.member.and_then(|member| self.groups.get(member.group))
        {
            self.tenants.extend(members);
        }
    }

    /// The tenants that are awake, in the order of the policy.
    pub(super) fn all(&self) -> Vec<usize> {
        self.tenants.iter().copied().collect()
    }

    /// The tenants of a group with a promise.
    pub(super) fn members(&self, group: usize) -> &[usize] {
        self.groups.get(group).map_or(&[], Vec::as_slice)
    }

    /// Whether tenants that rest are to be divided for a period, since the pattern is another one
    /// than when they were. Takes in the new one.
    pub(super) fn is_pattern_new(&mut self, when: When, pattern: Pattern) -> bool {
        let divided = &mut self.divided[when as usize];
        let is_same = divided.as_ref() == Some(&pattern);
        *divided = Some(pattern);
        !is_same
    }

    /// The next period begins, and `tenants` have begun it: those that can rest do.
    pub(super) fn begin_period(&mut self, tenants: &[TenantBounds]) {
        let [now, next] = &mut self.divided;
        now.clone_from(next);
        let can_rest = |index: &usize| tenants[*index].can_rest();
        let group = |index: &usize| tenants[*index].member.map(|member| member.group);
        let groups = self.tenants.iter().filter(|index| !can_rest(index)).filter_map(group);
        let groups: BTreeSet<usize> = groups.collect();
        self.tenants.retain(|index| match group(index) {
            Some(group) => groups.contains(&group),
            None => !can_rest(index),
        });
    }
}

#[cfg(test)]
#[path = "awake_tests.rs"]
mod tests;
