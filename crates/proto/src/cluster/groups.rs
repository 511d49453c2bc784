//! Groups of tenants at storage nodes: their tenants share a promise over all nodes.
//!
//! # Problem
//! A group has a reservation and a limit, and its tenants have promises inside them. The limit
//! bounds the sum of their service over all nodes. Reservation that one of them does not use goes
//! to the others of the group, before tenants outside. Counts are per period, so a tenant may begin
//! to ask when others have used the group's promise.
//!
//! # Mechanism
//! Before tokens are divided over nodes, each distribution divides what a group has left over its
//! tenants: by their own reservations, their demand and their weights
//! ([`tidegate_algo::shaping::fair_share`]). A tenant keeps the part of its own reservation that it
//! is expected to use, and at least its reserved rate for the rest of the period. The remainder
//! has lapsed: it goes to the group's tenants, with the part of the group's reservation that is no
//! tenant's own.
//!
//! Example: a group with 100 operations reserved and two tenants, of which `a` has 60 of its own.
//! While `a` is idle, `b` has 40 tokens at the beginning of a period, 70 when half of it is over,
//! and nearly 100 at its end. If `a` begins to ask in the middle, its rest is 30: its own rate.
//!
//! # Bounds
//! The counts that may be in force for all tenants of a group add up to its promise or less, as
//! those of one tenant do (`bounds.rs`): no count rises beyond the headroom of its tenant or of its
//! group. The time of a division is that of sorting the tenants of a group.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use tidegate_algo::shaping::fair_share::{TenantDemand, allocate};
use tidegate_model::gate::Unit;
use tidegate_model::policy::{self, GateKind};
use tidegate_model::{Policy, Portion, Span};

use super::bounds::{GrantCounts, Headroom, InGroup, Member, TenantBounds, When, promise};

/// A reservation and a limit, per second.
pub(super) type Pair = (Option<u64>, Option<u64>);

/// The promises of a policy's groups in one unit, in its order. A missing promise is
/// [`u64::MAX`], which bounds nothing.
pub(super) fn promises(policy: &Policy, unit: Unit, period: Span) -> Vec<GrantCounts> {
    let is_resource = policy.resource_at(GateKind::Node).is_some();
    let of_group = |group: &policy::Group| {
        let (reservation, limit) = (group.promise.reservation.get(unit), group.promise.limit);
        let pair = if is_resource { (reservation, limit.get(unit)) } else { (None, None) };
        let counts = promise(unit, pair, period);
        GrantCounts {
            reserved: pair.0.map_or(u64::MAX, |_| counts.reserved),
            allowed: pair.1.map_or(u64::MAX, |_| counts.allowed),
        }
    };
    policy.groups.iter().map(of_group).collect()
}

/// The part of its group's promise that a tenant can have, in `unit` per second. Groups share at
/// named resources only. A tenant with a reservation in the other unit alone has no part of the
/// group's reservation in this one: its requests would then need tokens of both.
pub(super) fn levels(policy: &Policy, tenant: &policy::Tenant, unit: Unit) -> Pair {
    let group = policy.group_of(tenant);
    let Some(group) = group.filter(|_| policy.resource_at(GateKind::Node).is_some()) else {
        return (None, None);
    };
    let own = tenant.reservation;
    let shares = own.get(unit).is_some() || own == policy::Levels::default();
    let reservation = group.promise.reservation.get(unit).filter(|_| shares);
    (reservation, group.promise.limit.get(unit))
}

/// The part of a tenant in its group, from what it is promised itself and the levels of the group.
pub(super) fn member(
    (unit, period): (Unit, Span),
    tenant: &policy::Tenant,
    (own, levels): (GrantCounts, Pair),
) -> Option<Member> {
    let group = tenant.group.filter(|_| levels != (None, None))?;
    let shared = promise(unit, levels, period);
    let is_limited = levels.1.is_some() || tenant.limit.get(unit).is_some();
    let bound = if is_limited { own.allowed } else { u64::MAX };
    let most = GrantCounts { reserved: own.reserved.max(shared.reserved).min(bound), ..own };
    let weight = NonZeroU32::new(tenant.weight).unwrap_or(NonZeroU32::MIN);
    Some(Member { group, weight, most })
}

/// The headroom of a group, with these tenants: the most by which their counts may rise.
pub(super) fn headroom<'a>(
    group: GrantCounts,
    members: impl Iterator<Item = &'a TenantBounds>,
    when: When,
) -> Headroom {
    members.fold(Headroom::whole(group), |left, tenant| left.beside(tenant, when))
}

/// The state of a period before the tokens of some tenants are divided. Of a group, they are all
/// tenants or none. Lists are in the order of these tenants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outlook<'a> {
    /// The indexes of these tenants.
    pub(super) who: &'a [usize],
    /// Tokens that each tenant has used or may use at nodes without new counts.
    pub(super) used: &'a [GrantCounts],
    /// The demand of each tenant at all nodes: the expected part, and all that could be served.
    pub(super) demands: &'a [(u64, u64)],
    /// The part of the period that is left.
    pub(super) left: Portion,
}

/// Bounds the tokens that tenants of groups may divide to their parts of what the groups have left.
/// `budgets` are those of the tenants by themselves.
pub(super) fn share(
    groups: &[GrantCounts],
    tenants: &[TenantBounds],
    outlook: Outlook<'_>,
    budgets: &mut [GrantCounts],
) {
    let mut of_group = alloc::vec![Vec::new(); groups.len()];
    for (at, tenant) in outlook.who.iter().enumerate() {
        if let Some(member) = tenants[*tenant].member {
            of_group[member.group].push(at);
        }
    }
    for (group, members) in groups.iter().zip(&of_group).filter(|(_, it)| !it.is_empty()) {
        let used = members.iter().fold(GrantCounts::ZERO, |sum, at| sum.plus(outlook.used[*at]));
        let left = group.minus(used);
        let tenant = |at: usize| &tenants[outlook.who[at]];
        let demand = |at: usize, limit: u64| demand(tenant(at), at, outlook, limit);
        if group.allowed < u64::MAX {
            let demands: Vec<_> =
                members.iter().map(|at| demand(*at, budgets[*at].allowed)).collect();
            for (at, tokens) in members.iter().zip(divide(left.allowed, &demands)) {
                budgets[*at].allowed = tokens;
                budgets[*at].reserved = budgets[*at].reserved.min(tokens);
            }
        }
        if group.reserved < u64::MAX {
            let demands: Vec<_> =
                members.iter().map(|at| demand(*at, budgets[*at].reserved)).collect();
            // Service beyond reservations uses up none that tenants have for the rest of a period.
            let due = |(at, of): (&usize, &TenantDemand)| {
                due(tenant(*at), outlook.left).min(of.reservation)
            };
            let due = members.iter().zip(&demands).map(due).fold(0, u64::saturating_add);
            for (at, tokens) in members.iter().zip(divide(left.reserved.max(due), &demands)) {
                budgets[*at].reserved = tokens;
            }
        }
    }
}

/// Records the most of each own reservation that has lapsed so far in the period, which others may
/// have used since, and the tokens that are not asked for: `budgets` are the tenants' tokens before
/// [`share`] and after it.
pub(super) fn note_divided(
    tenants: &mut [TenantBounds],
    outlook: Outlook<'_>,
    budgets: (&[GrantCounts], &[GrantCounts]),
) {
    for (at, index) in outlook.who.iter().enumerate() {
        let tenant = &mut tenants[*index];
        if tenant.member.is_none() {
            continue;
        }
        let [before, after] = [budgets.0, budgets.1].map(|budgets| budgets[at].reserved);
        let own = tenant.promise.reserved.saturating_sub(outlook.used[at].reserved);
        tenant.divided = InGroup {
            lapsed: own.min(before).saturating_sub(after).max(tenant.divided.lapsed),
            unused: after.saturating_sub(outlook.demands[at].0),
            unused_earlier: tenant.divided.unused,
        };
    }
}

/// Whether a group's tenants were served, within a hundredth, its reservation in the last period or
/// else their demand. Tokens that tenants kept until the last division are not missed.
pub(super) fn is_met<'a>(
    group: GrantCounts,
    members: impl Iterator<Item = &'a TenantBounds> + Clone,
) -> bool {
    if group.reserved == u64::MAX {
        return true;
    }
    let sum = |of: fn(&TenantBounds) -> u64| {
        let members = members.clone().filter(|tenant| tenant.member.is_some());
        members.map(of).fold(0, u64::saturating_add)
    };
    let requested = sum(|tenant| match tenant.is_limited {
        true => tenant.requested_before().min(tenant.promise.allowed),
        false => tenant.requested_before(),
    });
    let usable = group.reserved.saturating_sub(sum(|it| it.divided_before.unused_earlier));
    sum(TenantBounds::served_before) >= usable.min(requested).saturating_sub(group.reserved / 100)
}

/// The tokens of its own reservation that a tenant has for the rest of a period, rounded up.
fn due(tenant: &TenantBounds, left: Portion) -> u64 {
    let product = u128::from(tenant.promise.reserved) * u128::from(left.0);
    product.div_ceil(u128::from(Portion::WHOLE.0)) as u64
}

/// The demand of the tenant at this place of the lists inside its group, for at most `limit`
/// tokens.
fn demand(tenant: &TenantBounds, at: usize, outlook: Outlook<'_>, limit: u64) -> TenantDemand {
    let (expected, demand) = outlook.demands[at];
    let own = tenant.promise.reserved.saturating_sub(outlook.used[at].reserved);
    let kept = own.min(expected.max(due(tenant, outlook.left)));
    TenantDemand {
        reservation: kept,
        limit,
        weight: tenant.member.map_or(NonZeroU32::MIN, |member| member.weight),
        demand: demand.max(kept),
    }
}

/// Divides the tokens of a group to the last one. Shares are rounded down, so at most one for each
/// tenant is left over; tenants that want more have these.
fn divide(tokens: u64, demands: &[TenantDemand]) -> Vec<u64> {
    let mut shares = allocate(tokens, demands);
    let mut left = tokens - shares.iter().sum::<u64>();
    for (share, of) in shares.iter_mut().zip(demands) {
        let more = left.min(1).min(of.limit.min(of.demand).saturating_sub(*share));
        (*share, left) = (*share + more, left - more);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenant with a reservation in one unit alone has no part of its group's in the other unit,
    /// and all have its limits.
    #[test]
    fn tenants_share_reservations_in_the_units_of_their_own() {
        let text = r#"
            resource = [{ name = "cluster" }]
            [[group]]
            name = "g"
            on.cluster = { reservation = ["90 iops", "9MiB/s"], limit = ["95 iops", "10MiB/s"] }
            [[tenant]]
            name = "operations"
            group = "g"
            on.cluster.reservation = "9 iops"
            [[tenant]]
            name = "bytes"
            group = "g"
            on.cluster.reservation = "1MiB/s"
            [[tenant]]
            name = "neither"
            group = "g"
            [[tenant]]
            name = "out"
        "#;
        let policy = Policy::parse(text).unwrap().at(GateKind::Node);
        let found: Vec<[Pair; 2]> = policy
            .tenants
            .iter()
            .map(|tenant| [Unit::Operations, Unit::Bytes].map(|unit| levels(&policy, tenant, unit)))
            .collect();
        let (limits, mib) = ([Some(95), Some(10 << 20)], 1 << 20);
        assert_eq!(found[0], [(Some(90), limits[0]), (None, limits[1])]);
        assert_eq!(found[1], [(None, limits[0]), (Some(9 * mib), limits[1])]);
        assert_eq!(found[2], [(Some(90), limits[0]), (Some(9 * mib), limits[1])]);
        assert_eq!(found[3], [(None, None); 2]);
    }
}
