//! Dividing a budget over tenants: reservations first, then weighted max-min fair shares.
//!
//! # Problem
//! A device yields so much per second, and several tenants want some of it. Each was promised a
//! least share (its reservation), a most (its limit) and a weight for what is left over. How much
//! may each tenant use until the next control cycle?
//!
//! PAIO's Algorithm 2 (§8.2) poses this question. Its printed form answers another one: the second
//! loop overwrites what the first one computed, and the first one is only right if the tenants come
//! in ascending order of demand. This module keeps the intention and computes the max-min fair
//! division exactly, in integers.
//!
//! # Mechanism
//! The budget is poured in four rounds. Each round raises every tenant towards a ceiling, in
//! proportion to a weight; a tenant that reaches its ceiling leaves, and the others share what it
//! did not take (*water-filling*). The first round that does not reach all its ceilings is the
//! last.
//!
//! | round | raises each tenant to | in proportion to |
//! |---|---|---|
//! | 1 | what it was promised and wants | its reservation |
//! | 2 | what it wants | its weight |
//! | 3 | what it was promised and does not want | its reservation |
//! | 4 | its limit | its weight |
//!
//! Nothing exceeds a limit in any round. Round 1 fails only if the reservations together exceed the
//! budget, as they do when a device slows down; then every tenant has the same fraction of its
//! reservation met, except those that want less. Round 2 divides the surplus *on top of* the
//! reservations, not instead of them: a tenant that was promised more keeps its advantage. So the
//! unused part of a reservation goes to tenants that want it, and comes back one cycle after its
//! owner wants it again. Rounds 3 and 4 hand out the unwanted rest as headroom, so that a tenant
//! that wakes up finds a rate at once, at its reservation wherever that costs no tenant anything.
//!
//! # Example
//! The four tenants of PAIO §9.3 share 1,000 MiB/s with reservations of 150, 200, 300 and 350.
//!
//! ```
//! use tidegate_algo::shaping::fair_share::{TenantDemand, allocate};
//! let tenant = |reservation| TenantDemand { reservation, ..TenantDemand::BACKLOGGED };
//! let [a, b, c, d] = [150, 200, 300, 350].map(tenant);
//! assert_eq!(allocate(1_000, &[a, b, c, d]), [150, 200, 300, 350]);
//!
//! // Before the others join, the first has everything; then 650 are left for the first two.
//! assert_eq!(allocate(1_000, &[a]), [1_000]);
//! assert_eq!(allocate(1_000, &[a, b]), [150 + 325, 200 + 325]);
//!
//! // When the third pauses to 50, its other 250 are divided in thirds, rounded down.
//! let pausing = TenantDemand { demand: 50, ..c };
//! assert_eq!(allocate(1_000, &[a, b, pausing, d]), [150 + 83, 200 + 83, 50, 350 + 83]);
//!
//! // When the first leaves, its 150 go to the others in equal parts.
//! assert_eq!(allocate(1_000, &[b, c, d]), [200 + 50, 300 + 50, 350 + 50]);
//! ```
//!
//! # Exactness
//! A share is the exact real-valued share of the last round, rounded down. So the shares add up to
//! the budget less at most one unit per tenant (or to all limits), equal tenants get equal shares,
//! the order of the tenants changes nothing, and a larger budget makes no tenant poorer. One sort
//! dominates: O(n log n).

use alloc::vec;
use alloc::vec::Vec;
use core::num::NonZeroU32;

/// One tenant's parameters and its demand. All amounts are in the unit of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TenantDemand {
    /// The amount reserved for it, whatever other tenants want.
    pub reservation: u64,
    /// The most that it may get; [`u64::MAX`] is no limit. A limit wins over a larger reservation.
    pub limit: u64,
    /// Its part of the surplus, relative to the other weights.
    pub weight: NonZeroU32,
    /// The amount that it wants; [`u64::MAX`] is as much as it can get.
    pub demand: u64,
}

impl TenantDemand {
    /// Wants everything, was promised nothing: no reservation, no limit, weight one.
    pub const BACKLOGGED: Self =
        Self { reservation: 0, limit: u64::MAX, weight: NonZeroU32::MIN, demand: u64::MAX };
}

/// Divides `budget`; the result has one share per tenant, in the tenants' order.
pub fn allocate(budget: u64, tenants: &[TenantDemand]) -> Vec<u64> {
    let reserved = |tenant: &TenantDemand| tenant.reservation.min(tenant.limit);
    let promised = |tenant: &TenantDemand| tenant.reservation;
    let weight = |tenant: &TenantDemand| u64::from(tenant.weight.get());
    let mut pool = SharePool { left: budget, shares: vec![0; tenants.len()] };
    let _ = pool.pour(tenants, |tenant| reserved(tenant).min(tenant.demand), promised)
        && pool.pour(tenants, |tenant| tenant.limit.min(tenant.demand), weight)
        && pool.pour(tenants, reserved, promised)
        && pool.pour(tenants, |tenant| tenant.limit, weight);
    pool.shares
}

/// Divides `budget` where tenants have some of it already, in the tenants' order, and keep at least
/// that, even beyond their limits. A tenant that has no more than its fair share gets the rest of
/// it, and no more: the outcome is as if nothing had been given. What a tenant has beyond its share
/// is taken from the others'.
///
/// ```
/// use tidegate_algo::shaping::fair_share::{TenantDemand, allocate_around};
/// let three = [TenantDemand::BACKLOGGED; 3];
/// assert_eq!(allocate_around(900, &three, &[100, 300, 0]), [300, 300, 300]);
/// assert_eq!(allocate_around(900, &three, &[100, 500, 0]), [200, 500, 200]);
/// ```
pub fn allocate_around(budget: u64, tenants: &[TenantDemand], held: &[u64]) -> Vec<u64> {
    let mut shares = held.to_vec();
    let (mut left, mut open) = (budget, Vec::from_iter(0..tenants.len()));
    loop {
        let demands: Vec<TenantDemand> = open.iter().map(|index| tenants[*index]).collect();
        let fair = allocate(left, &demands);
        let keeps = |(index, fair): &(&usize, &u64)| **fair < held[**index];
        let (kept, others): (Vec<_>, Vec<_>) = open.iter().zip(&fair).partition(keeps);
        if kept.is_empty() {
            others.into_iter().for_each(|(index, share)| shares[*index] = *share);
            return shares;
        }
        left = kept.into_iter().fold(left, |left, (index, _)| left.saturating_sub(held[*index]));
        open = others.into_iter().map(|(index, _)| *index).collect();
    }
}

/// Divides one tenant's rate over its stages: equals with nothing but demands. The part beyond
/// their demands is spread evenly, so that every stage can grow before the next cycle.
///
/// ```
/// use tidegate_algo::shaping::fair_share::divide;
/// assert_eq!(divide(900, &[100, u64::MAX, u64::MAX]), [100, 400, 400]);
/// assert_eq!(divide(900, &[100, 200, 0]), [300, 400, 200]);
/// ```
pub fn divide(rate: u64, demands: &[u64]) -> Vec<u64> {
    let tenant = |demand: &u64| TenantDemand { demand: *demand, ..TenantDemand::BACKLOGGED };
    allocate(rate, &demands.iter().map(tenant).collect::<Vec<_>>())
}

/// The shares handed out so far, and the amount that is left.
struct SharePool {
    left: u64,
    shares: Vec<u64>,
}

/// One tenant in one round: it takes at most `headroom`, in proportion to `weight`.
struct Taker {
    index: usize,
    headroom: u64,
    weight: u64,
}

impl SharePool {
    /// Raises each share towards its ceiling, in proportion to its weight. Whether all ceilings
    /// were reached; if not, the pool is empty but for what rounding left, which is not enough for
    /// another round. A tenant with headroom must have a weight.
    fn pour(
        &mut self,
        tenants: &[TenantDemand],
        ceiling: impl Fn(&TenantDemand) -> u64,
        weight: impl Fn(&TenantDemand) -> u64,
    ) -> bool {
        let mut takers = Vec::with_capacity(tenants.len());
        for (index, tenant) in tenants.iter().enumerate() {
            let headroom = ceiling(tenant).saturating_sub(self.shares[index]);
            if headroom > 0 {
                takers.push(Taker { index, headroom, weight: weight(tenant) });
            }
        }
        let need: u128 = takers.iter().map(|taker| u128::from(taker.headroom)).sum();
        let enough = need <= u128::from(self.left);
        if !enough {
            cap_to_level(self.left, &mut takers);
        }
        for taker in &takers {
            self.shares[taker.index] += taker.headroom;
            self.left -= taker.headroom;
        }
        enough
    }
}

/// Lowers the headroom of each taker to its part of `left`, which is less than all headroom.
///
/// There is one level such that `min(headroom, level * weight)` adds up to `left`. Takers are
/// visited in the order in which a rising level fills them. As long as the next one fills before
/// the rest runs dry, it takes all its headroom. The first one that does not fixes the level for
/// all that follow as `left / weights`, of what remains of both.
///
/// No product wraps: headroom, a weight and `left` have 64 bits each, so two of them fit 128. The
/// sum of the weights may have more than 64. Therefore `headroom * weights <= left * weight` is
/// computed as `weights <= left * weight / headroom`, which is the same for integers.
fn cap_to_level(left: u64, takers: &mut [Taker]) {
    let wide = |a: u64, b: u64| u128::from(a) * u128::from(b);
    takers.sort_unstable_by(|a, b| wide(a.headroom, b.weight).cmp(&wide(b.headroom, a.weight)));
    let mut weights: u128 = takers.iter().map(|taker| u128::from(taker.weight)).sum();
    let mut left = left;
    let mut filled = 0;
    for taker in takers.iter() {
        if weights > wide(left, taker.weight) / u128::from(taker.headroom) {
            break;
        }
        left -= taker.headroom;
        weights -= u128::from(taker.weight);
        filled += 1;
    }
    for taker in &mut takers[filled..] {
        // At most `left`, because a weight is at most the sum of the weights.
        taker.headroom = (wide(left, taker.weight) / weights) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use proptest::prelude::*;

    fn weight(weight: u32) -> NonZeroU32 {
        NonZeroU32::new(weight).unwrap()
    }

    /// The ceiling and the weight of a tenant in each round, as in the table above.
    fn rounds(tenant: &TenantDemand) -> [(u64, u64); 4] {
        let TenantDemand { reservation, limit, weight, demand } = *tenant;
        let weight = u64::from(weight.get());
        [
            (reservation.min(demand).min(limit), reservation),
            (demand.min(limit), weight),
            (reservation.min(limit), reservation),
            (limit, weight),
        ]
    }

    /// Hands out one unit at a time, to the tenant that has the least for its weight in the first
    /// round that still has a taker. The last, partial round hands out also what rounding keeps.
    fn unit_by_unit(budget: u64, tenants: &[TenantDemand]) -> Vec<u64> {
        let mut shares = vec![0; tenants.len()];
        let mut left = budget;
        for round in 0..4 {
            let start = shares.clone();
            while left > 0 {
                let open = |index: &usize| shares[*index] < rounds(&tenants[*index])[round].0;
                let ratio = |index: &usize| {
                    let weight = u128::from(rounds(&tenants[*index])[round].1);
                    (u128::from(shares[*index] - start[*index] + 1) << 64) / weight
                };
                let Some(poorest) = (0..tenants.len()).filter(open).min_by_key(ratio) else {
                    break;
                };
                shares[poorest] += 1;
                left -= 1;
            }
        }
        shares
    }

    fn amount() -> impl Strategy<Value = u64> {
        prop_oneof![3 => 0u64..120, 1 => Just(0), 1 => Just(u64::MAX)]
    }

    fn tenant() -> impl Strategy<Value = TenantDemand> {
        (0u64..80, amount(), 1u32..10, amount()).prop_map(|(reservation, limit, w, demand)| {
            TenantDemand { reservation, limit, weight: weight(w), demand }
        })
    }

    fn any_tenant() -> impl Strategy<Value = TenantDemand> {
        (any::<u64>(), any::<u64>(), 1u32.., any::<u64>()).prop_map(
            |(reservation, limit, w, demand)| TenantDemand {
                reservation,
                limit,
                weight: weight(w),
                demand,
            },
        )
    }

    fn tenants() -> impl Strategy<Value = Vec<TenantDemand>> {
        prop::collection::vec(tenant(), 1..8)
    }

    fn sum(values: impl IntoIterator<Item = u64>) -> u128 {
        values.into_iter().map(u128::from).sum()
    }

    proptest! {
        #[test]
        fn as_if_handed_out_unit_by_unit(budget in 0u64..600, tenants in tenants()) {
            let shares = allocate(budget, &tenants);
            let oracle = unit_by_unit(budget, &tenants);
            for (share, fair) in shares.iter().zip(&oracle) {
                prop_assert!(share <= fair, "{shares:?} {oracle:?}");
            }
            let rounding = sum(oracle) - sum(shares);
            prop_assert!(rounding < tenants.len() as u128);
        }

        #[test]
        fn no_amount_is_too_large(
            budget: u64, tenants in prop::collection::vec(any_tenant(), 0..8)
        ) {
            let shares = allocate(budget, &tenants);
            let limits = sum(tenants.iter().map(|tenant| tenant.limit));
            let whole = limits.min(u128::from(budget));
            prop_assert!(sum(shares.clone()) <= whole);
            prop_assert!(sum(shares.clone()) + tenants.len() as u128 >= whole);
            for (share, tenant) in shares.iter().zip(&tenants) {
                prop_assert!(*share <= tenant.limit);
            }
        }

        #[test]
        fn order_does_not_matter(
            budget in 0u64..600,
            (tenants, shuffled) in tenants().prop_flat_map(|tenants| {
                let order = Just((0..tenants.len()).collect::<Vec<_>>()).prop_shuffle();
                (Just(tenants), order)
            })
        ) {
            let shares = allocate(budget, &tenants);
            let moved: Vec<TenantDemand> = shuffled.iter().map(|index| tenants[*index]).collect();
            let expected: Vec<u64> = shuffled.iter().map(|index| shares[*index]).collect();
            prop_assert_eq!(allocate(budget, &moved), expected);
        }

        #[test]
        fn who_has_a_part_of_its_share_gains_nothing(
            budget in 0u64..600,
            (tenants, parts) in tenants().prop_flat_map(|tenants| {
                let parts = prop::collection::vec(0u64..=100, tenants.len());
                (Just(tenants), parts)
            })
        ) {
            let shares = allocate(budget, &tenants);
            let held = shares.iter().zip(&parts).map(|(share, part)| share * part / 100);
            let held: Vec<u64> = held.collect();
            prop_assert_eq!(allocate_around(budget, &tenants, &held), shares);
        }

        #[test]
        fn who_has_more_than_its_share_keeps_it(
            budget in 0u64..600,
            (tenants, held) in tenants().prop_flat_map(|tenants| {
                let held = prop::collection::vec(prop_oneof![Just(0u64), 0u64..300], tenants.len());
                (Just(tenants), held)
            })
        ) {
            let shares = allocate_around(budget, &tenants, &held);
            for ((share, held), tenant) in shares.iter().zip(&held).zip(&tenants) {
                prop_assert!(share >= held && *share <= tenant.limit.max(*held), "{shares:?}");
            }
            let most = u128::from(budget).max(sum(held.iter().copied()));
            prop_assert!(sum(shares.clone()) <= most.max(u128::from(budget)), "{shares:?}");
            // No tenant without one has more than in a division without any.
            let alone = allocate(budget, &tenants);
            for ((share, held), alone) in shares.iter().zip(&held).zip(alone) {
                prop_assert!(*share <= alone.max(*held), "{shares:?}");
            }
        }

        #[test]
        fn equals_are_treated_equally(
            budget in 0u64..600, twin in tenant(), others in tenants()
        ) {
            let mut tenants = others;
            tenants.insert(0, twin);
            tenants.push(twin);
            let shares = allocate(budget, &tenants);
            prop_assert_eq!(shares.first(), shares.last());
        }

        #[test]
        fn more_budget_lowers_no_share(
            budget in 0u64..600, more in 0u64..50, tenants in tenants()
        ) {
            let before = allocate(budget, &tenants);
            let after = allocate(budget + more, &tenants);
            for (before, after) in before.iter().zip(&after) {
                prop_assert!(before <= after);
            }
        }

        #[test]
        fn a_reservation_that_fits_is_kept(budget in 0u64..600, tenants in tenants()) {
            let wanted: Vec<u64> = tenants.iter().map(|tenant| rounds(tenant)[0].0).collect();
            let feasible = sum(wanted.clone()) <= u128::from(budget);
            let shares = allocate(budget, &tenants);
            for (share, wanted) in shares.iter().zip(&wanted) {
                let kept = if feasible { share >= wanted } else { share <= wanted };
                prop_assert!(kept, "{shares:?}");
            }
        }

        /// In the round in which the budget runs out, one more unit for any tenant would have to
        /// come from one that has less for its weight than the taker would have then.
        #[test]
        fn no_tenant_can_gain_but_at_the_cost_of_a_poorer_one(
            budget in 0u64..600, tenants in tenants()
        ) {
            let ceilings = |round: usize| tenants.iter().map(move |tenant| rounds(tenant)[round].0);
            let reached = |round: usize| -> Vec<u64> {
                let upto = |tenant: &TenantDemand| (0..round).map(|r| rounds(tenant)[r].0).max();
                tenants.iter().map(|tenant| upto(tenant).unwrap_or(0)).collect()
            };
            let Some(last) = (0..4).find(|round| {
                let merged = ceilings(*round).zip(reached(*round)).map(|(a, b)| a.max(b));
                sum(merged) > u128::from(budget)
            }) else {
                return Ok(());
            };
            let shares = allocate(budget, &tenants);
            let start = reached(last);
            let got = |i: usize| u128::from(shares[i] - start[i]);
            let weight = |i: usize| u128::from(rounds(&tenants[i])[last].1);
            for gainer in 0..tenants.len() {
                if shares[gainer] >= rounds(&tenants[gainer])[last].0 {
                    continue;
                }
                for loser in 0..tenants.len() {
                    let (rich, poor) = (got(gainer) + 1, got(loser));
                    prop_assert!(poor * weight(gainer) <= rich * weight(loser));
                }
            }
        }

        #[test]
        fn stages_share_what_their_tenant_has(
            rate in 0u64..10_000, demands in prop::collection::vec(amount(), 1..20)
        ) {
            let shares = divide(rate, &demands);
            prop_assert!(sum(shares.clone()) <= u128::from(rate));
            prop_assert!(sum(shares) + demands.len() as u128 > u128::from(rate));
        }
    }

    #[test]
    fn reservations_that_do_not_fit_are_met_to_equal_fractions() {
        let tenant =
            |reservation, demand| TenantDemand { reservation, demand, ..TenantDemand::BACKLOGGED };
        // Half of 1,000 is there; the third wants so little that it is met in full, and the others
        // are met to (500 - 20) / 800 = 60 %.
        let tenants = [tenant(600, u64::MAX), tenant(200, u64::MAX), tenant(200, 20)];
        assert_eq!(allocate(500, &tenants), [360, 120, 20]);
    }

    #[test]
    fn weights_divide_the_surplus_and_limits_end_it() {
        let tenant =
            |w, limit| TenantDemand { weight: weight(w), limit, ..TenantDemand::BACKLOGGED };
        assert_eq!(allocate(600, &[tenant(1, u64::MAX), tenant(2, u64::MAX)]), [200, 400]);
        assert_eq!(allocate(600, &[tenant(1, u64::MAX), tenant(2, 300)]), [300, 300]);
        assert_eq!(allocate(600, &[tenant(1, 100), tenant(2, 300)]), [100, 300]);
    }

    #[test]
    fn headroom_lifts_an_idle_tenant_to_its_reservation_first() {
        let busy = TenantDemand { demand: 500, ..TenantDemand::BACKLOGGED };
        let idle = TenantDemand { demand: 0, reservation: 300, ..TenantDemand::BACKLOGGED };
        // 1,000 - 500 = 500 that no tenant wants: 300 to wake up with, the other 200 in halves.
        assert_eq!(allocate(1_000, &[busy, idle]), [600, 400]);
        // A backlogged neighbour borrows all of it until the idle one wants it back.
        assert_eq!(allocate(1_000, &[TenantDemand::BACKLOGGED, idle]), [1_000, 0]);
    }

    #[test]
    fn tenants_join_and_leave() {
        // PAIO figure 10 in small: tenants join one after the other and leave in another order.
        let reservations = [150, 200, 300, 350];
        let mut table = String::new();
        for present in ["1---", "12--", "123-", "1234", "-234", "--34", "---4"] {
            let is_in = |index: &usize| present.as_bytes()[*index] != b'-';
            let order: Vec<usize> = (0..4).filter(is_in).collect();
            let tenant = |p: &usize| TenantDemand {
                reservation: reservations[*p],
                ..TenantDemand::BACKLOGGED
            };
            let shares = allocate(1_000, &order.iter().map(tenant).collect::<Vec<_>>());
            table += &format!("{present} {shares:?}\n");
        }
        let golden = "\
1--- [1000]
12-- [475, 525]
123- [266, 316, 416]
1234 [150, 200, 300, 350]
-234 [250, 350, 400]
--34 [475, 525]
---4 [1000]
";
        assert_eq!(table, golden);
    }
}
