//! Division of the budget in one unit: over the tenants, then over the stages of each.
//!
//! PAIO's Algorithm 2 (§8.2) in two steps. First the budget is divided over the tenants that have a
//! stage ([`allocate`]: reservations, then weighted max-min shares up to demand, then headroom);
//! then each tenant's rate over its stages ([`divide`]: equals with nothing but demands). Two
//! things come before both:
//!
//! - *Held* shares. A stage that fell silent goes on enforcing its rates, and would not notice that
//!   it lost them. Its share leaves the budget, its tenant's reservation and its tenant's limit,
//!   and is not divided again.
//! - *Starting* shares. A stage that wants nothing would be given nothing, and its first request
//!   would wait for ever. One hundredth of the budget is handed out in equal parts, so that every
//!   stage can begin; its waiting requests show the next cycle that it wants more.
//!
//! Example: 1,000 MiB/s, tenants promised 150, 200, 300 and 350, one stage each, all backlogged.
//! Each starts with 2.5; its reservation less that is met from the other 990; the sum is the
//! promise. With a fifth tenant that was promised nothing, each starts with 2, and the promised
//! ones have 998 of their 1,000.
//!
//! Where the policy sets no budget there is nothing to divide: a tenant has its limit, or no bound.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use tidegate_algo::shaping::fair_share::{TenantDemand, allocate, divide};
use tidegate_model::Policy;
use tidegate_model::gate::Unit;

/// One part in this many of the divided amount is handed out in equal parts before the rest: a
/// starting share for every stage. More would be missed by tenants with reservations, and less
/// would start a stage more slowly while no controller is there. Chosen by hand.
pub(super) const START_PART: u64 = 100;

/// One tenant's part of one stage, in one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TenantAtStage {
    /// The tenant's index in the policy.
    pub(super) tenant: usize,
    /// The stage's demand for it, per second; [`u64::MAX`] is as much as it can get.
    pub(super) demand: u64,
    /// The rate that a silent stage goes on using, per second; none if the stage answers.
    pub(super) held: Option<u64>,
    /// The outcome, per second; [`u64::MAX`] is no bound.
    pub(super) goal: u64,
}

/// The entries of one tenant.
#[derive(Default)]
struct Group {
    /// Indexes of the entries that can be given something, in order.
    members: Vec<usize>,
    held: u64,
    /// The starting share of each member, per second.
    start: u64,
    goal: u64,
}

impl Group {
    fn starts(&self) -> u64 {
        self.start * self.members.len() as u64
    }
}

/// Sets the goal of every entry. The goals add up to no more than the budget, and those of a tenant
/// to no more than its limit, unless held shares alone are more.
pub(super) fn solve(policy: &Policy, unit: Unit, entries: &mut [TenantAtStage]) {
    let mut groups = groups(policy, entries);
    match policy.budget.get(unit) {
        Some(budget) => divide_budget(budget, policy, unit, entries, &mut groups),
        None => groups.iter_mut().enumerate().for_each(|(tenant, group)| {
            let limit = policy.tenants[tenant].limit.get(unit).unwrap_or(u64::MAX);
            group.goal = left_of(limit, group.held);
            group.start = group.goal / START_PART / (group.members.len() as u64).max(1);
        }),
    }
    for group in groups.iter().filter(|group| !group.members.is_empty()) {
        divide_group(group, entries);
    }
}

fn groups(policy: &Policy, entries: &mut [TenantAtStage]) -> Vec<Group> {
    let mut groups = Vec::new();
    groups.resize_with(policy.tenants.len(), Group::default);
    for (index, entry) in entries.iter_mut().enumerate() {
        let group = &mut groups[entry.tenant];
        match entry.held {
            Some(held) => {
                entry.goal = held;
                group.held = group.held.saturating_add(held);
            }
            None => group.members.push(index),
        }
    }
    groups
}

fn divide_budget(
    budget: u64,
    policy: &Policy,
    unit: Unit,
    entries: &[TenantAtStage],
    groups: &mut [Group],
) {
    let held = groups.iter().fold(0u64, |sum, group| sum.saturating_add(group.held));
    let mut free = budget.saturating_sub(held);
    let members = groups.iter().map(|group| group.members.len() as u64).sum::<u64>();
    let start = free / START_PART / members.max(1);
    let mut demands = Vec::new();
    for (tenant, group) in groups.iter_mut().enumerate() {
        if group.members.is_empty() {
            continue;
        }
        let promise = &policy.tenants[tenant];
        let limit = left_of(promise.limit.get(unit).unwrap_or(u64::MAX), group.held);
        group.start = start.min(limit / group.members.len() as u64);
        free -= group.starts();
        let promised = promise.reservation.get(unit).unwrap_or(0);
        let wanted = |index: &usize| left_of(entries[*index].demand, group.start);
        demands.push(TenantDemand {
            reservation: promised.saturating_sub(group.held).saturating_sub(group.starts()),
            limit: left_of(limit, group.starts()),
            weight: NonZeroU32::new(promise.weight).unwrap_or(NonZeroU32::MIN),
            demand: group.members.iter().map(wanted).fold(0, u64::saturating_add),
        });
    }
    let present = groups.iter_mut().filter(|group| !group.members.is_empty());
    for (group, share) in present.zip(allocate(free, &demands)) {
        group.goal = group.starts() + share;
    }
}

fn divide_group(group: &Group, entries: &mut [TenantAtStage]) {
    if group.goal == u64::MAX {
        group.members.iter().for_each(|index| entries[*index].goal = u64::MAX);
        return;
    }
    let wanted = |index: &usize| left_of(entries[*index].demand, group.start);
    let demands: Vec<u64> = group.members.iter().map(wanted).collect();
    let shares = divide(group.goal - group.starts(), &demands);
    for (index, share) in group.members.iter().zip(shares) {
        entries[*index].goal = group.start + share;
    }
}

/// `amount` less `part`; an amount without a bound keeps none.
fn left_of(amount: u64, part: u64) -> u64 {
    if amount == u64::MAX { amount } else { amount.saturating_sub(part) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    fn policy(budget: &str, tenants: &[&str]) -> Policy {
        let mut text = String::from(budget);
        for (index, fields) in tenants.iter().enumerate() {
            text += &format!("\n[[tenant]]\nname = \"t{index}\"\n{fields}\n");
        }
        Policy::parse(&text).unwrap()
    }

    fn entry(tenant: usize, demand: u64) -> TenantAtStage {
        TenantAtStage { tenant, demand, held: None, goal: 0 }
    }

    fn goals(policy: &Policy, mut entries: Vec<TenantAtStage>) -> Vec<u64> {
        solve(policy, Unit::Bytes, &mut entries);
        entries.iter().map(|entry| entry.goal).collect()
    }

    const ANY: u64 = u64::MAX;

    #[test]
    fn promises_that_fill_the_budget_are_met_exactly() {
        let fields = [150, 200, 300, 350].map(|r| format!("reservation = \"{r}kB/s\""));
        let fields = fields.each_ref().map(String::as_str);
        let paper = policy("budget = \"1MB/s\"", &fields);
        let all = (0..4).map(|tenant| entry(tenant, ANY)).collect();
        assert_eq!(goals(&paper, all), [150_000, 200_000, 300_000, 350_000]);
    }

    #[test]
    fn a_stage_that_wants_nothing_can_start() {
        let two = policy("budget = \"1MB/s\"", &["reservation = \"1MB/s\"", ""]);
        assert_eq!(goals(&two, [entry(0, ANY), entry(1, 0)].into()), [995_000, 5_000]);
        // The same between two stages of one tenant.
        let one = policy("budget = \"1MB/s\"", &[""]);
        assert_eq!(goals(&one, [entry(0, ANY), entry(0, 0)].into()), [995_000, 5_000]);
    }

    #[test]
    fn what_a_silent_stage_holds_is_not_given_again() {
        let two = policy("budget = \"1MB/s\"", &["reservation = \"600kB/s\"", ""]);
        let held = TenantAtStage { held: Some(400_000), ..entry(0, ANY) };
        let goals = goals(&two, [held, entry(0, ANY), entry(1, ANY)].into());
        // 600 are left. Both start with 3; 197 more are due to the first; 397 go in halves.
        assert_eq!(goals, [400_000, 398_500, 201_500]);
    }

    #[test]
    fn without_a_budget_a_tenant_has_its_limit_or_no_bound() {
        let two = policy("", &["limit = \"1MB/s\"", ""]);
        let goals = goals(&two, [entry(0, ANY), entry(0, 0), entry(1, 5), entry(1, 0)].into());
        assert_eq!(goals, [995_000, 5_000, ANY, ANY]);
    }

    proptest! {
        #[test]
        fn nothing_is_given_twice(
            budget in prop::option::of(1u64..1 << 50),
            limits in prop::collection::vec(prop::option::of(1u64..1 << 50), 1..5),
            stages in prop::collection::vec(
                (0usize..5, any::<u64>(), prop::option::weighted(0.2, 0u64..1 << 40)), 0..20
            ),
        ) {
            let fields: Vec<String> = limits
                .iter()
                .map(|limit| limit.map_or(String::new(), |limit| format!("limit = \"{limit}B/s\"")))
                .collect();
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            let policy = policy(
                &budget.map_or(String::new(), |budget| format!("budget = \"{budget}B/s\"")),
                &fields,
            );
            let mut entries: Vec<TenantAtStage> = stages
                .iter()
                .map(|(tenant, demand, held)| TenantAtStage {
                    held: *held, ..entry(tenant % limits.len(), *demand)
                })
                .collect();
            solve(&policy, Unit::Bytes, &mut entries);
            let sum = |of: &dyn Fn(&&TenantAtStage) -> bool| {
                entries.iter().filter(of).map(|entry| u128::from(entry.goal)).sum::<u128>()
            };
            let held = |of: &dyn Fn(&&TenantAtStage) -> bool| -> u128 {
                entries.iter().filter(of).map(|e| u128::from(e.held.unwrap_or(0))).sum()
            };
            if let Some(budget) = budget {
                prop_assert!(sum(&|_| true) <= u128::from(budget).max(held(&|_| true)));
            }
            for (tenant, limit) in limits.iter().enumerate() {
                if let Some(limit) = limit {
                    let own = |entry: &&TenantAtStage| entry.tenant == tenant;
                    prop_assert!(sum(&own) <= u128::from(*limit).max(held(&own)));
                }
            }
        }
    }
}
