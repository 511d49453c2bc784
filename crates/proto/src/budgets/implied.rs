//! The reservation in one unit that a reservation in the other unit implies.
//!
//! A reservation of operations is kept only if the bytes of these operations are there as well. So
//! a tenant with a reservation in one unit alone is reserved, in the other unit, what goes with it,
//! by the requests that it makes; a tenant with reservations in both units has these, as at storage
//! nodes. Implied reservations only get what explicit reservations leave, so a tenant with large
//! requests takes nothing from the promises to other tenants. Where this does not suffice for all
//! implied reservations, all are reduced in proportion. Admission cannot foresee that, because the
//! size of requests is not known before they come.
//!
//! Example: 100 MiB/s are divided. A tenant has 300 operations per second reserved, and makes
//! requests of 128 KiB, so 37.5 MiB/s go with them. Another tenant has 80 MiB/s reserved, and so 20
//! are implied for the first, or 160 operations per second. Without the other tenant it has 300.

use alloc::vec::Vec;

use tidegate_model::Policy;
use tidegate_model::gate::Unit;
use tidegate_model::policy::Tenant;

use super::mix::{MIX_PART, Mix};

/// The reservation of each tenant in `unit`, per second, with what its reservation in the other
/// unit implies. `mixes` has the requests of each tenant.
pub(super) fn reservations(policy: &Policy, unit: Unit, mixes: &[Mix]) -> Vec<u64> {
    let mut reserved = explicit(policy, unit);
    let Some(budget) = policy.budget.get(unit) else { return reserved };
    let tenants = policy.tenants.iter().zip(mixes);
    let missing = tenants.map(|(tenant, mix)| implied(tenant, unit, mix, u64::MAX));
    let missing: Vec<u64> = missing.collect();
    let needed: u128 = missing.iter().map(|missing| u128::from(*missing)).sum();
    let left = u128::from(budget.saturating_sub(all_explicit(policy, unit)));
    for (reserved, missing) in reserved.iter_mut().zip(missing) {
        let more = match needed <= left {
            true => missing,
            false => u64::try_from(u128::from(missing) * left / needed).unwrap_or(missing),
        };
        *reserved = reserved.saturating_add(more);
    }
    reserved
}

/// The reservation in `unit` that a tenant's reservation in the other one implies, as far as
/// `wanted` in the other unit goes.
fn implied(tenant: &Tenant, unit: Unit, mix: &Mix, wanted: u64) -> u64 {
    let with = tenant.reservation.get(unit.other()).and_then(|it| mix.with(unit, it.min(wanted)));
    let (None, Some(with)) = (tenant.reservation.get(unit), with) else { return 0 };
    let limit = tenant.limit.get(unit).unwrap_or(u64::MAX);
    with.saturating_add(with.div_ceil(MIX_PART)).min(limit)
}

/// The least budget in `unit` that keeps the reservations in both units. `tenants` has the requests
/// of each tenant, and how much of the other unit it wants.
pub(super) fn least_budget(
    policy: &Policy,
    unit: Unit,
    tenants: impl Iterator<Item = (Mix, u64)>,
) -> u64 {
    let tenants = policy.tenants.iter().zip(tenants);
    let implied = tenants.map(|(tenant, (mix, wanted))| implied(tenant, unit, &mix, wanted));
    implied.fold(all_explicit(policy, unit), u64::saturating_add)
}

/// The reservation of each tenant in `unit`, as the policy has it.
pub(super) fn explicit(policy: &Policy, unit: Unit) -> Vec<u64> {
    policy.tenants.iter().map(|tenant| tenant.reservation.get(unit).unwrap_or(0)).collect()
}

/// All reservations in `unit`: of groups that have one, and of the tenants of no such group.
fn all_explicit(policy: &Policy, unit: Unit) -> u64 {
    let groups = policy.groups.iter().filter_map(|group| group.promise.reservation.get(unit));
    let is_own = |tenant: &&Tenant| {
        policy.group_of(tenant).is_none_or(|group| group.promise.reservation.get(unit).is_none())
    };
    let tenants = policy.tenants.iter().filter(is_own);
    let tenants = tenants.filter_map(|tenant| tenant.reservation.get(unit));
    groups.chain(tenants).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn policy(others: &str) -> Policy {
        let text = alloc::format!(
            r#"
            [[resource]]
            name = "disk"
            path = "/data/**"
            capacity = ["1k iops", "100MiB/s"]
            [[tenant]]
            name = "large"
            on.disk = {{ reservation = "300 iops" }}
            {others}
            "#
        );
        Policy::parse(&text).unwrap().at(tidegate_model::policy::GateKind::Stage)
    }

    fn mix(bytes: u64) -> Mix {
        let mut mix = Mix::default();
        mix.observe(bytes * 10, 10);
        mix
    }

    #[test]
    fn the_least_budget_has_the_bytes_of_reserved_operations_that_are_wanted() {
        let policy = policy("");
        let least =
            |unit, wanted| least_budget(&policy, unit, [(mix(64 << 10), wanted)].into_iter());
        let bytes_of = |operations: u64| (operations << 16) + (operations << 16).div_ceil(MIX_PART);
        assert_eq!(least(Unit::Bytes, u64::MAX), bytes_of(300));
        assert_eq!([0, 100].map(|wanted| least(Unit::Bytes, wanted)), [0, bytes_of(100)]);
        assert_eq!(least(Unit::Operations, u64::MAX), 300);
    }

    #[test]
    fn the_bytes_of_reserved_operations_are_reserved() {
        let alone = policy("");
        let with = 300 * (128 << 10);
        let found = reservations(&alone, Unit::Bytes, &[mix(128 << 10)]);
        assert_eq!(found, [with + with / MIX_PART]);
        assert_eq!(reservations(&alone, Unit::Operations, &[mix(128 << 10)]), [300]);
        assert_eq!(reservations(&alone, Unit::Bytes, &[Mix::default()]), [0], "nothing is known");
    }

    /// By its 20 MiB/s, a tenant with requests of 4 KiB would be reserved all operations.
    #[test]
    fn nothing_is_implied_for_a_tenant_with_reservations_in_both_units() {
        let other = "[[tenant]]\nname = \"both\"\n\
                     on.disk = { reservation = [\"100 iops\", \"20MiB/s\"] }\n";
        let policy = policy(other);
        for bytes in [4 << 10, 1 << 20] {
            let mixes = [Mix::default(), mix(bytes)];
            assert_eq!(reservations(&policy, Unit::Operations, &mixes), [300, 100]);
            assert_eq!(reservations(&policy, Unit::Bytes, &mixes), [0, 20 * MIB]);
        }
    }

    #[test]
    fn explicit_reservations_of_others_are_left_alone() {
        let tenant = |name: &str, reservation: &str| {
            alloc::format!(
                "[[tenant]]\nname = \"{name}\"\non.disk = {{ reservation = \"{reservation}\" }}\n"
            )
        };
        let two = policy(&tenant("other", "80MiB/s"));
        let mixes = [mix(128 << 10), mix(1 << 20)];
        assert_eq!(reservations(&two, Unit::Bytes, &mixes), [20 * MIB, 80 * MIB]);
        // The operations of its bytes are 80 and a little, and there is space for them.
        assert_eq!(reservations(&two, Unit::Operations, &mixes), [300, 82]);
        // Two with as many operations divide what is left in proportion to their bytes.
        let three = policy(&(tenant("other", "80MiB/s") + &tenant("small", "300 iops")));
        let mixes = [mix(192 << 10), mix(1 << 20), mix(64 << 10)];
        let found = reservations(&three, Unit::Bytes, &mixes);
        assert_eq!(found, [15 * MIB, 80 * MIB, 5 * MIB]);
    }

    #[test]
    fn a_limit_bounds_what_is_implied() {
        let limit = "on.disk = { reservation = \"400 iops\", limit = \"32MiB/s\" }";
        let limited = policy(&alloc::format!("[[tenant]]\nname = \"b\"\n{limit}\n"));
        let found = |bytes| reservations(&limited, Unit::Bytes, &[Mix::default(), mix(bytes)])[1];
        let with = 400 * (64 << 10);
        assert_eq!(found(64 << 10), with + with / MIX_PART, "25 MiB and a little");
        assert_eq!(found(96 << 10), 32 * MIB, "in place of 37.5");
    }

    /// A group's reservation has those of its tenants in it. Of another group all are their own.
    #[test]
    fn a_groups_reservation_is_explicit() {
        let group = |promise: &str| {
            policy(&alloc::format!(
                r#"
                [[group]]
                name = "g"
                on.disk = {{ {promise} }}
                [[tenant]]
                name = "a"
                group = "g"
                on.disk = {{ reservation = "60MiB/s" }}
                "#
            ))
        };
        let large =
            |policy: &Policy| reservations(policy, Unit::Bytes, &[mix(128 << 10), mix(1 << 20)])[0];
        assert_eq!(large(&group("reservation = \"80MiB/s\"")), 20 * MIB);
        let with = 300 * (128 << 10);
        assert_eq!(large(&group("limit = \"80MiB/s\"")), with + with / MIX_PART);
        assert_eq!(large(&group("reservation = \"65MiB/s\"")), 35 * MIB);
    }
}
