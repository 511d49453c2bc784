//! Division of the budget in one unit: over the tenants, then over the stages of each.
//!
//! PAIO's Algorithm 2 (§8.2) in two steps. First the budget is divided over the tenants that have a
//! stage ([`allocate_around`]: reservations, weighted max-min shares up to demand, then headroom);
//! then each tenant's rate over its stages ([`divide`]: equals with nothing but demands). Two
//! things come before both:
//!
//! - *Held* shares. A stage that fell silent goes on enforcing its rates, and would not notice that
//!   it lost them. Its share is not divided again, and counts as its tenant's: of the reservation,
//!   of the limit, and of the part that goes with the weight. So a tenant has no more because its
//!   supervisors are gone.
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
//!
//! A *group* of tenants takes part in the first division as one tenant would, with the group's
//! promise and the demands of its tenants; then its tenants divide what it got, again by
//! [`allocate_around`]. So a reservation that one of them does not use is the others' before it is
//! anybody else's, and a group without a reservation brings those of its tenants.
//!
//! Example: 1,000 MiB/s, a group that is promised 600, with two tenants of which one is promised
//! 400, and a third tenant without a promise; all are backlogged. The group has its 600 and half of
//! the other 400; the promised tenant has 400 of these 800 and half of the rest, 600.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use tidegate_algo::shaping::fair_share::{TenantDemand, allocate_around, divide};
use tidegate_model::Policy;
use tidegate_model::gate::Unit;
use tidegate_model::policy::Promise;

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
struct TenantEntries {
    /// Indexes of the entries that can be given something, in order.
    members: Vec<usize>,
    held: u64,
    /// The starting share of each member, per second.
    start: u64,
    goal: u64,
}

impl TenantEntries {
    fn is_empty(&self) -> bool {
        self.members.is_empty() && self.held == 0
    }

    fn starts(&self) -> u64 {
        self.start * self.members.len() as u64
    }
}

/// Sets the goal of every entry. The goals add up to no more than the budget, those of a tenant to
/// no more than its limit, and those of a group to no more than the group's, unless held shares
/// alone are more. `reserved` has the reservation of each tenant in the unit.
pub(super) fn solve(
    policy: &Policy,
    (unit, reserved): (Unit, &[u64]),
    entries: &mut [TenantAtStage],
) {
    let mut tenants = by_tenant(policy, entries);
    // Tenants of a group one after the other, and before them those without a group.
    let mut all: Vec<usize> = (0..tenants.len()).collect();
    all.sort_by_key(|tenant| policy.tenants[*tenant].group.map_or(0, |group| group + 1));
    let group = |tenant: usize| policy.group_of(&policy.tenants[tenant]).map(|it| it.promise);
    let division = Division { policy, unit, reserved, entries };
    if let Some(budget) = policy.budget.get(unit) {
        division.divide(budget, &all, group, &mut tenants);
    } else {
        for (tenant, promise) in tenants.iter_mut().zip(&policy.tenants) {
            let limit = promise.limit.get(unit).unwrap_or(u64::MAX);
            tenant.goal = left_of(limit, tenant.held);
            tenant.start = tenant.goal / START_PART / (tenant.members.len() as u64).max(1);
        }
        let of = |tenant: &usize| policy.tenants[*tenant].group;
        for members in all.chunk_by(|one, other| of(one) == of(other)) {
            // The limit of a group is all that its tenants have to divide.
            if let Some(limit) = group(members[0]).and_then(|promise| promise.limit.get(unit)) {
                division.divide(limit, members, |_| None, &mut tenants);
            }
        }
    }
    for tenant in tenants.iter().filter(|tenant| !tenant.members.is_empty()) {
        divide_tenant(tenant, entries);
    }
}

fn by_tenant(policy: &Policy, entries: &mut [TenantAtStage]) -> Vec<TenantEntries> {
    let mut tenants = Vec::new();
    tenants.resize_with(policy.tenants.len(), TenantEntries::default);
    for (index, entry) in entries.iter_mut().enumerate() {
        let tenant = &mut tenants[entry.tenant];
        match entry.held {
            Some(held) => {
                entry.goal = held;
                tenant.held = tenant.held.saturating_add(held);
            }
            None => tenant.members.push(index),
        }
    }
    tenants
}

/// The entries of a division, in one unit.
struct Division<'a> {
    policy: &'a Policy,
    unit: Unit,
    reserved: &'a [u64],
    entries: &'a [TenantAtStage],
}

impl Division<'_> {
    /// Divides `amount` over some tenants. `group` has the promise of a tenant's group; the tenants
    /// of a group follow each other.
    fn divide(
        &self,
        amount: u64,
        who: &[usize],
        group: impl Fn(usize) -> Option<Promise>,
        tenants: &mut [TenantEntries],
    ) {
        let held = |who: &[usize], tenants: &[TenantEntries]| {
            who.iter().fold(0u64, |sum, tenant| sum.saturating_add(tenants[*tenant].held))
        };
        let members = |who: &[usize], tenants: &[TenantEntries]| {
            who.iter().map(|tenant| tenants[*tenant].members.len() as u64).sum::<u64>()
        };
        let start = amount.saturating_sub(held(who, tenants)) / START_PART;
        let start = start / members(who, tenants).max(1);
        let of = |tenant: &usize| self.policy.tenants[*tenant].group;
        let is_same = |one: &usize, other: &usize| group(*one).is_some() && of(one) == of(other);
        let (mut free, mut demands, mut parties) = (amount, Vec::new(), Vec::new());
        for party in who.chunk_by(is_same) {
            let (first, shared) = (demands.len(), group(party[0]));
            let limit = shared.and_then(|promise| promise.limit.get(self.unit));
            let (limit, held) = (limit.unwrap_or(u64::MAX), held(party, tenants));
            let start = start.min(left_of(limit, held) / members(party, tenants).max(1));
            for index in party {
                let tenant = &mut tenants[*index];
                if tenant.is_empty() {
                    continue;
                }
                demands.push((*index, self.demand(*index, start, tenant), tenant.held));
                free = free.saturating_sub(tenant.starts());
            }
            let own = &demands[first..];
            let joint = match (shared, own) {
                (_, []) => continue,
                (None, [(_, demand, _), ..]) => *demand,
                (Some(promise), own) => {
                    let starts = own.iter().map(|(tenant, ..)| tenants[*tenant].starts()).sum();
                    let reserved = promise.reservation.get(self.unit);
                    let reserved = reserved.map(|it| it.saturating_sub(starts));
                    joint(own, promise.weight, reserved, left_of(limit, starts))
                }
            };
            parties.push((demands.len() - first, joint, held));
        }
        let mut rest = &demands[..];
        for ((count, ..), share) in parties.iter().zip(shares(free, &parties)) {
            let (own, others) = rest.split_at(*count);
            rest = others;
            for ((tenant, _, held), share) in own.iter().zip(shares(share, own)) {
                tenants[*tenant].goal = tenants[*tenant].starts() + share.saturating_sub(*held);
            }
        }
    }

    /// The demand of a tenant, with what is held, beyond starting shares of at most `start`, which
    /// it is given.
    fn demand(&self, index: usize, start: u64, tenant: &mut TenantEntries) -> TenantDemand {
        let promise = &self.policy.tenants[index];
        let weight = NonZeroU32::new(promise.weight).unwrap_or(NonZeroU32::MIN);
        let (reserved, held) = (self.reserved[index], tenant.held);
        if tenant.members.is_empty() {
            let reservation = reserved.min(held);
            return TenantDemand { reservation, limit: held, weight, demand: held };
        }
        let limit = promise.limit.get(self.unit).unwrap_or(u64::MAX);
        tenant.start = start.min(left_of(limit, held) / tenant.members.len() as u64);
        let wanted = |index: &usize| left_of(self.entries[*index].demand, tenant.start);
        TenantDemand {
            reservation: reserved.saturating_sub(tenant.starts()),
            limit: left_of(limit, tenant.starts()),
            weight,
            demand: tenant.members.iter().map(wanted).fold(held, u64::saturating_add),
        }
    }
}

/// Divides an amount over tenants or groups with these demands and held shares.
fn shares<Who>(amount: u64, who: &[(Who, TenantDemand, u64)]) -> Vec<u64> {
    let demands: Vec<TenantDemand> = who.iter().map(|(_, demand, _)| *demand).collect();
    let held: Vec<u64> = who.iter().map(|(.., held)| *held).collect();
    allocate_around(amount, &demands, &held)
}

/// The demand of a group. Its reservation is that of its tenants as far as they want it, and
/// more if the group has a reservation of its own.
fn joint(
    tenants: &[(usize, TenantDemand, u64)],
    weight: u32,
    reserved: Option<u64>,
    limit: u64,
) -> TenantDemand {
    let sum = |of: fn(&TenantDemand) -> u64| {
        tenants.iter().fold(0u64, |sum, (_, demand, _)| sum.saturating_add(of(demand)))
    };
    let of_tenants = sum(|it| it.reservation.min(it.limit).min(it.demand));
    TenantDemand {
        reservation: of_tenants.max(reserved.unwrap_or(0)),
        limit: limit.min(sum(|it| it.limit)),
        weight: NonZeroU32::new(weight).unwrap_or(NonZeroU32::MIN),
        demand: sum(|it| it.demand.min(it.limit)),
    }
}

fn divide_tenant(tenant: &TenantEntries, entries: &mut [TenantAtStage]) {
    if tenant.goal == u64::MAX {
        tenant.members.iter().for_each(|index| entries[*index].goal = u64::MAX);
        return;
    }
    let wanted = |index: &usize| left_of(entries[*index].demand, tenant.start);
    let demands: Vec<u64> = tenant.members.iter().map(wanted).collect();
    let shares = divide(tenant.goal - tenant.starts(), &demands);
    for (index, share) in tenant.members.iter().zip(shares) {
        entries[*index].goal = tenant.start + share;
    }
}

/// `amount` less `part`; an amount without a bound keeps none.
fn left_of(amount: u64, part: u64) -> u64 {
    if amount == u64::MAX { amount } else { amount.saturating_sub(part) }
}

#[cfg(test)]
mod tests {
    use super::super::implied::explicit;
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

    fn solve_bytes(policy: &Policy, entries: &mut [TenantAtStage]) {
        solve(policy, (Unit::Bytes, &explicit(policy, Unit::Bytes)), entries);
    }

    fn goals(policy: &Policy, mut entries: Vec<TenantAtStage>) -> Vec<u64> {
        solve_bytes(policy, &mut entries);
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

    /// A tenant that kills its supervisors has no more for it, nor has its group.
    #[test]
    fn what_silent_stages_hold_is_of_their_tenants_part_by_weight() {
        let held = |tenant, rate| TenantAtStage { held: Some(rate), ..entry(tenant, ANY) };
        let two = policy("budget = \"400kB/s\"", &["reservation = \"100kB/s\"", ""]);
        let entries = (0..5).map(|_| held(1, 25_000)).chain([entry(1, ANY), entry(0, ANY)]);
        let all = goals(&two, entries.collect());
        // One of two has its 100 and half of the rest, but for starting shares.
        assert_eq!(all[5..], [25_687, 249_312]);
        let grouped = group("budget = \"300kB/s\"", "weight = 100", ["", "", ""]);
        let all = goals(&grouped, [held(0, 90_000), entry(1, ANY), entry(2, ANY)].into());
        assert_eq!(all, [90_000, 60_000, 150_000]);
        // More that is held is kept, too.
        let all = goals(&grouped, [held(0, 200_000), entry(1, ANY), entry(2, ANY)].into());
        assert_eq!(all, [200_000, 500, 99_500]);
    }

    #[test]
    fn without_a_budget_a_tenant_has_its_limit_or_no_bound() {
        let two = policy("", &["limit = \"1MB/s\"", ""]);
        let goals = goals(&two, [entry(0, ANY), entry(0, 0), entry(1, 5), entry(1, 0)].into());
        assert_eq!(goals, [995_000, 5_000, ANY, ANY]);
    }

    /// Tenants `t0` and `t1` of a group with these fields, and `t2` without one.
    fn group(budget: &str, fields: &str, tenants: [&str; 3]) -> Policy {
        let [one, two, three] = tenants;
        let of_group = |fields: &str| format!("group = \"g\"\n{fields}");
        let text = format!("{budget}\n[[group]]\nname = \"g\"\n{fields}\n");
        policy(&text, &[&of_group(one), &of_group(two), three])
    }

    #[test]
    fn tenants_of_a_group_divide_its_promise() {
        let fields = "reservation = \"600kB/s\"";
        let budget = "budget = \"1MB/s\"";
        let promised = group(budget, fields, ["reservation = \"400kB/s\"", "", ""]);
        let all = |demands: [u64; 3]| -> Vec<TenantAtStage> {
            demands.into_iter().enumerate().map(|(tenant, demand)| entry(tenant, demand)).collect()
        };
        // A hundredth goes in thirds. Then the group has its promise and half of the rest; what is
        // lost to rounding is less than one for each of them.
        let shares = goals(&promised, all([ANY; 3]));
        assert!((999_998..=1_000_000).contains(&shares.iter().sum::<u64>()), "{shares:?}");
        assert!(shares[2].abs_diff(200_000) < 5_000, "{shares:?}");
        assert!(shares[0].abs_diff(600_000) < 5_000, "{shares:?}");
        // The reservation that one of them does not use goes to the other.
        let shares = goals(&promised, all([0, ANY, ANY]));
        assert!(shares[1].abs_diff(800_000) < 8_000, "{shares:?}");
        // Without a reservation of its own the group has those of its tenants, while they want
        // them.
        let open = group(budget, "", ["reservation = \"400kB/s\"", "", ""]);
        let shares = goals(&open, all([0, ANY, ANY]));
        assert!(shares[1].abs_diff(shares[2]) < 8_000, "{shares:?}");
    }

    #[test]
    fn a_group_keeps_to_its_limit() {
        let entries = || [entry(0, ANY), entry(1, ANY), entry(2, ANY)].into();
        for budget in ["", "budget = \"1MB/s\""] {
            let limited = group(budget, "limit = \"300kB/s\"", ["weight = 200", "", ""]);
            let shares = goals(&limited, entries());
            assert!(shares[0] + shares[1] <= 300_000, "{shares:?}");
            assert!(shares[0].abs_diff(200_000) < 2_000, "{shares:?}");
            assert!(shares[2] >= 699_000, "{shares:?}");
        }
    }

    proptest! {
        /// Whatever the promises, demands and silent stages: no group has more than its limit, and
        /// all together no more than the budget.
        #[test]
        fn no_group_is_given_more_than_its_limit(
            budget in prop::option::of(1u64..1 << 50),
            limit in 1u64..1 << 50,
            reservations in [0u64..1 << 40, 0u64..1 << 40, 0u64..1 << 40],
            own in prop::option::of(1u64..1 << 40),
            stages in prop::collection::vec(
                (0usize..3, any::<u64>(), prop::option::weighted(0.2, 0u64..1 << 40)), 0..20
            ),
        ) {
            let field = |name: &str, rate: Option<u64>| match rate {
                Some(rate @ 1..) => format!("{name} = \"{rate}B/s\"\n"),
                _ => String::new(),
            };
            let own = own.filter(|own| *own <= limit);
            let fields = field("limit", Some(limit)) + &field("reservation", own);
            let tenants = reservations.map(|rate| field("reservation", Some(rate)));
            let tenants = tenants.each_ref().map(String::as_str);
            let policy = group(&field("budget", budget), &fields, tenants);
            let mut entries: Vec<TenantAtStage> = stages
                .iter()
                .map(|(tenant, demand, held)| TenantAtStage {
                    held: *held, ..entry(*tenant, *demand)
                })
                .collect();
            solve_bytes(&policy, &mut entries);
            let sums = |tenants: core::ops::Range<usize>| {
                let of = entries.iter().filter(|entry| tenants.contains(&entry.tenant));
                of.fold((0u128, 0u128), |(goals, held), entry| {
                    (goals + u128::from(entry.goal), held + u128::from(entry.held.unwrap_or(0)))
                })
            };
            let (goals, held) = sums(0..2);
            prop_assert!(goals <= u128::from(limit).max(held));
            if let Some(budget) = budget {
                let (goals, held) = sums(0..3);
                prop_assert!(goals <= u128::from(budget).max(held));
            }
        }

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
            solve_bytes(&policy, &mut entries);
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
