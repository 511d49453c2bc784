//! Classes of requests: high, medium and low take turns, and urgent goes first within the
//! reservation. Classes change the order, and never how much a reservation or limit lets through.

use super::*;
use proptest::prelude::*;
use tidegate_model::tag::CLASSES;

const NOW: Time = Time::ZERO;

/// A scheduler under `unified` with the class weights 3, 2 and 1, and tenants with these weights.
fn weighted(weights: &[u32]) -> (Scheduler<usize>, Vec<Slot>) {
    let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Paper);
    scheduler.set_class_weights(NOW, ClassWeights::new(3, 2, 1));
    let add = |weight: &u32| scheduler.add(TenantParameters::of_weight(*weight));
    let slots = weights.iter().map(add).collect();
    (scheduler, slots)
}

fn push(scheduler: &mut Scheduler<usize>, from: (Slot, Class), job: usize, count: usize) {
    (0..count).for_each(|_| scheduler.push_in_class(NOW, from, RequestCost::ONE, job));
}

fn order(scheduler: &mut Scheduler<usize>, count: usize) -> Vec<usize> {
    (0..count).map_while(|_| scheduler.pop(NOW)).map(|got| got.job).collect()
}

#[test]
fn the_cycle_is_that_of_weighted_round_robin() {
    let (mut scheduler, slots) = weighted(&[1; 3]);
    for (job, class) in [Class::High, Class::Medium, Class::Low].into_iter().enumerate() {
        push(&mut scheduler, (slots[job], class), job, 12);
    }
    assert_eq!(order(&mut scheduler, 12), [0, 0, 1, 0, 1, 2, 0, 0, 1, 0, 1, 2]);
}

/// Two tenants of one class share its turns by weight, and a third tenant has those of another.
#[test]
fn tenants_share_the_turns_of_their_class() {
    let (mut scheduler, slots) = weighted(&[3, 1, 1]);
    for (job, class) in [Class::High, Class::High, Class::Low].into_iter().enumerate() {
        push(&mut scheduler, (slots[job], class), job, 160);
    }
    let order = order(&mut scheduler, 160);
    let served = [0, 1, 2].map(|job| order.iter().filter(|other| **other == job).count());
    assert_eq!(served, [90, 30, 40]);
}

/// Urgent requests go first as far as their tenant has reservation tokens. Beyond them they are
/// high, and go before the tenant's other high requests.
#[test]
fn urgent_is_urgent_within_the_reservation() {
    let (mut scheduler, slots) = weighted(&[1; 2]);
    scheduler.grant(NOW, slots[0], PeriodGrant { reserved: 2, allowed: u64::MAX });
    push(&mut scheduler, (slots[1], Class::Low), 9, 8);
    push(&mut scheduler, (slots[0], Class::High), 1, 2);
    push(&mut scheduler, (slots[0], Class::Urgent), 0, 4);
    assert_eq!(order(&mut scheduler, 14), [0, 0, 0, 0, 1, 9, 1, 9, 9, 9, 9, 9, 9, 9]);
}

/// A tenant spends its reservation on its own classes by their weights.
#[test]
fn a_reservation_is_spent_by_class() {
    let (mut scheduler, slots) = weighted(&[1; 2]);
    scheduler.grant(NOW, slots[0], PeriodGrant { reserved: 8, allowed: u64::MAX });
    push(&mut scheduler, (slots[1], Class::High), 9, 8);
    push(&mut scheduler, (slots[0], Class::Low), 2, 8);
    push(&mut scheduler, (slots[0], Class::High), 0, 8);
    assert_eq!(order(&mut scheduler, 8), [0, 0, 0, 2, 0, 0, 0, 2]);
}

proptest! {
    /// Classes change the order only. Each tenant is served up to its limit, and as much of its
    /// reservation as it has requests for, before any other request goes; while any request may go,
    /// one goes; and without weights the order is that of requests without classes.
    #[test]
    fn classes_change_no_count(
        tenants in prop::collection::vec((1u32..4, 0u64..20, 0u64..20), 1..5),
        requests in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4), 0..200),
    ) {
        let serve = |weights: Option<ClassWeights>, has_classes: bool| {
            let of = |tenant: &(u32, u64, u64)| tenant.0;
            let (mut scheduler, slots) = weighted(&tenants.iter().map(of).collect::<Vec<_>>());
            scheduler.set_class_weights(NOW, weights);
            for (slot, (_, reserved, more)) in slots.iter().zip(&tenants) {
                let counts = PeriodGrant { reserved: *reserved, allowed: reserved + more };
                scheduler.grant(NOW, *slot, counts);
            }
            for (job, (tenant, class)) in requests.iter().enumerate() {
                let class = if has_classes { CLASSES[*class].0 } else { Class::Medium };
                // Urgent requests have a phase of their own with and without weights.
                let class = if class == Class::Urgent { Class::High } else { class };
                let slot = slots[tenant.index(tenants.len())];
                push(&mut scheduler, (slot, class), job, 1);
            }
            core::iter::from_fn(|| scheduler.pop(NOW)).map(|got| got.job).collect::<Vec<_>>()
        };
        let served = |order: &[usize]| {
            let mut served = alloc::vec![0u64; tenants.len()];
            order.iter().for_each(|job| served[requests[*job].0.index(tenants.len())] += 1);
            served
        };
        let weighted = serve(ClassWeights::new(3, 2, 1), true);
        let (flat, plain) = (serve(None, true), serve(None, false));
        prop_assert_eq!(&flat, &plain);
        prop_assert_eq!(served(&weighted), served(&plain));
        // The reserved requests of both orders are a beginning of the same length.
        let owner = |(of, _): &(prop::sample::Index, usize)| of.index(tenants.len());
        let reserved = |tenant: usize| {
            let sent = requests.iter().filter(|request| owner(request) == tenant).count();
            tenants[tenant].1.min(sent as u64)
        };
        let promised: u64 = (0..tenants.len()).map(reserved).sum();
        for order in [&weighted, &plain] {
            let first = served(&order[..promised as usize]);
            let expected: Vec<u64> = (0..tenants.len()).map(reserved).collect();
            prop_assert_eq!(first, expected);
        }
    }
}
