//! The scheduler's pace, order and counters, and the examples of the paper.

use super::*;
use alloc::vec;
use proptest::prelude::*;
use tidegate_model::Span;

const SECOND: Time = Time(Span::SECOND.0);

proptest! {
    /// However late it is called, however often what is allowed changes: a tenant never has more
    /// than its line allows, and never more than allowed by more than one request; and if it always
    /// asks when it may, it has all of it in the end.
    #[test]
    fn pace_is_a_bound_and_a_promise(
        steps in prop::collection::vec((0u64..300, 0u64..60), 1..12),
        cost in 1u32..4,
        is_eager: bool,
    ) {
        let until = Time(2_000);
        let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
        scheduler.begin(Time::ZERO, until);
        let slot = scheduler.add(TenantParameters::of_weight(1));
        // More than can ever be allowed: it always has demand.
        (0..800).for_each(|job| scheduler.push(Time::ZERO, slot, RequestCost::of(cost), job));
        let (mut now, mut allowed) = (Time::ZERO, 0);
        for (wait, more) in steps {
            let (since, base) = (now, scheduler.served(slot));
            allowed += more;
            scheduler.grant(now, slot, PeriodGrant { reserved: 0, allowed });
            let end = now.after(Span(wait)).min(until);
            loop {
                loop {
                    let before = scheduler.served(slot);
                    if scheduler.pop(now).is_none() {
                        break;
                    }
                    // One request has begun beyond what is on the line.
                    let total = scheduler.counters(now, slot).total;
                    prop_assert!(total < allowed + u64::from(cost), "{total} {allowed}");
                    let all = u128::from(allowed.saturating_sub(base));
                    let passed = u128::from(now.since(since).0);
                    let length = u128::from(until.since(since).0);
                    // At the end of the period all of it is on the line.
                    let line = base + 1 + (all * passed).checked_div(length).unwrap_or(all) as u64;
                    prop_assert!(before < line && before < allowed, "{before} {line}");
                }
                if now >= end {
                    break;
                }
                let next = scheduler.next_eligible().unwrap_or(end);
                prop_assert!(next > now);
                now = if is_eager { next.min(end) } else { end };
            }
        }
        while let Some(next) = scheduler.next_eligible() {
            prop_assert!(next <= until);
            while scheduler.pop(next).is_some() {}
        }
        prop_assert!(scheduler.served(slot) >= allowed);
    }

    /// Nothing is lost and nothing idles: without limits, as many come out as went in, in the order
    /// of each tenant, whichever other tenants come and go.
    #[test]
    fn requests_of_removed_tenants_become_unattributed(
        pushes in prop::collection::vec(0usize..4, 0..60), removed in 0usize..4
    ) {
        let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
        let slots = [(); 4].map(|()| scheduler.add(TenantParameters::of_weight(1)));
        for (number, index) in pushes.iter().enumerate() {
            scheduler.push(Time::ZERO, slots[*index], RequestCost::of(1), (*index, number));
        }
        scheduler.grant(Time::ZERO, slots[removed], PeriodGrant::NOTHING);
        scheduler.remove(Time(1), slots[removed]);
        let other = scheduler.add(TenantParameters::of_weight(1));
        prop_assert_ne!(other, slots[removed]);
        scheduler.push(Time(1), slots[removed], RequestCost::of(1), (removed, pushes.len()));
        prop_assert_eq!(scheduler.counters(Time(1), other), SlotCounters::default());
        let mut last = [None; 4];
        for _ in 0..=pushes.len() {
            let got = scheduler.pop(Time(1)).unwrap();
            let (index, number) = got.job;
            let owner = if index == removed { Slot::UNATTRIBUTED } else { slots[index] };
            prop_assert_eq!(got.slot, owner);
            prop_assert!(last[index] < Some(number));
            last[index] = Some(number);
        }
        prop_assert!(scheduler.pop(Time(1)).is_none());
        prop_assert_eq!(scheduler.waiting(), 0);
    }
}

/// A scheduler with tenants that always have requests waiting, of cost one.
fn backlogged(weights: &[u32]) -> (Scheduler<usize>, Vec<Slot>) {
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Paper);
    let slots: Vec<Slot> =
        weights.iter().map(|weight| scheduler.add(TenantParameters::of_weight(*weight))).collect();
    for (index, slot) in slots.iter().enumerate() {
        scheduler.push(Time::ZERO, *slot, RequestCost::of(1), index);
        scheduler.push(Time::ZERO, *slot, RequestCost::of(1), index);
    }
    (scheduler, slots)
}

fn serve(scheduler: &mut Scheduler<usize>) -> Option<usize> {
    let got = scheduler.pop(Time::ZERO)?;
    scheduler.push(Time::ZERO, got.slot, RequestCost::of(1), got.job);
    Some(got.job)
}

/// The paper's pseudocode, to the letter: one pointer, and counters that go down.
fn algorithm_1(reserved: &mut [u64], limits: &mut [u64], next: &mut usize) -> Option<usize> {
    for tokens in [reserved, limits] {
        let count = tokens.len();
        let mut order = (0..count).map(|ahead| (*next + ahead) % count);
        if let Some(found) = order.find(|index| tokens[*index] > 0) {
            tokens[found] -= 1;
            *next = (found + 1) % count;
            return Some(found);
        }
    }
    None
}

#[test]
fn equal_weights_are_the_papers_round_robin() {
    let (mut scheduler, slots) = backlogged(&[1; 4]);
    let (mut reserved, mut limits) = ([3, 0, 7, 5], [2, 9, 0, 4]);
    for (slot, (reserved, limit)) in slots.iter().zip(reserved.iter().zip(limits)) {
        let counts = PeriodGrant { reserved: *reserved, allowed: reserved + limit };
        scheduler.grant(Time::ZERO, *slot, counts);
    }
    let (mut next, mut paper, mut ours) = (0, [0i32; 4], [0i32; 4]);
    for iteration in 0..=30 {
        let expected = algorithm_1(&mut reserved, &mut limits, &mut next);
        let got = serve(&mut scheduler);
        assert_eq!(got.is_some(), expected.is_some(), "turn {iteration}");
        let (Some(expected), Some(got)) = (expected, got) else { continue };
        paper[expected] += 1;
        ours[got] += 1;
        // A round begins where the last phase's ended there, and anew here.
        let apart = paper.iter().zip(ours).map(|(paper, ours)| (paper - ours).abs()).max();
        assert!(apart <= Some(1), "turn {iteration}: {paper:?} {ours:?}");
    }
    assert_eq!((ours, paper), ([5, 9, 7, 9], [5, 9, 7, 9]));
}

/// Experiment 3, figure 8a: bucket i is active on i of four servers of 50,000 per second, all with
/// requests waiting. Without reservations they get 3 : 7 : 13 : 25.
#[test]
fn the_papers_shares_without_reservations() {
    let mut served = [0u64; 4];
    for buckets in 1..=4usize {
        // This server has the buckets that are active on at least so many.
        let (mut scheduler, _) = backlogged(&[1; 4][..buckets]);
        for _ in 0..50_000 {
            served[4 - buckets + serve(&mut scheduler).unwrap()] += 1;
        }
    }
    assert_eq!(served, [12_500, 29_167, 54_167, 104_166]);
}

#[test]
fn weights_are_exact_from_one_to_a_million() {
    let weights = [1, 1_000_000, 7];
    let (mut scheduler, _) = backlogged(&weights);
    let mut served = [0u64; 3];
    for _ in 0..1_000_008 {
        served[serve(&mut scheduler).unwrap()] += 1;
    }
    for (served, weight) in served.iter().zip(weights) {
        assert!(served.abs_diff(u64::from(weight)) <= 1, "{served} of {weight}");
    }
    // No tenant waits for a heap of requests of another: weights interleave.
    let (mut scheduler, _) = backlogged(&[2, 1, 1]);
    let order: Vec<usize> = (0..8).map(|_| serve(&mut scheduler).unwrap()).collect();
    assert_eq!(order, [0, 1, 2, 0, 0, 1, 2, 0]);
}

/// A tenant that was idle gets no credit for that time. In other schedulers such a credit starves
/// the other tenants for as long as the one was idle.
#[test]
fn idling_earns_nothing() {
    let (mut scheduler, slots) = backlogged(&[1, 1]);
    let idle = scheduler.cancel(Time::ZERO, |job| *job == 1);
    for _ in 0..10_000 {
        assert_eq!(serve(&mut scheduler), Some(0));
    }
    idle.into_iter().for_each(|job| scheduler.push(Time::ZERO, slots[1], RequestCost::of(1), job));
    let order: Vec<usize> = (0..4).map(|_| serve(&mut scheduler).unwrap()).collect();
    assert_eq!(order, [1, 0, 1, 0]);
}

/// A virtual request counts where requests of others wait, and not where none had to.
#[test]
fn service_elsewhere_counts_where_a_request_waits() {
    let mut scheduler = Scheduler::new(Discipline::DsfqTotal, Pacing::Paper);
    let slots = [(); 2].map(|()| scheduler.add(TenantParameters::of_weight(1)));
    scheduler.delay(slots[0], 1_000);
    for (job, slot) in slots.into_iter().enumerate() {
        (0..10).for_each(|_| scheduler.push(Time::ZERO, slot, RequestCost::ONE, job));
    }
    let order: Vec<usize> = (0..4).map(|_| serve(&mut scheduler).unwrap()).collect();
    assert_eq!(order, [0, 1, 0, 1]);
    scheduler.delay(slots[0], 3);
    // The next request to come carries it, and waits for its elders.
    scheduler.push(Time::ZERO, slots[0], RequestCost::ONE, 0);
    let mut served = [0i32; 2];
    for _ in 0..41 {
        served[serve(&mut scheduler).unwrap()] += 1;
    }
    assert_eq!(served[1] - served[0], 3);
}

/// A tenant does not pay for its reserved requests when all tenants are equal again.
#[test]
fn the_steps_do_not_know_each_other() {
    let (mut scheduler, slots) = backlogged(&[1, 1]);
    scheduler.grant(Time::ZERO, slots[0], PeriodGrant { reserved: 1_000, allowed: u64::MAX });
    for _ in 0..1_000 {
        assert_eq!(serve(&mut scheduler), Some(0));
    }
    let order: Vec<usize> = (0..4).map(|_| serve(&mut scheduler).unwrap()).collect();
    assert_eq!(order, [0, 1, 0, 1]);
}

/// A limit of 2,000 per second and sixteen requests outstanding, over three periods with five
/// grants each that move what is allowed a little: waiting is even. The work is sixteen deep, so
/// each waits sixteen steps of half a millisecond.
#[test]
fn a_limited_tenant_waits_evenly() {
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
    let slot = scheduler.add(TenantParameters::of_weight(100));
    let mut now = Time::ZERO;
    (0..16).for_each(|_| scheduler.push(now, slot, RequestCost::of(1), now));
    let mut waits = vec![];
    let mut served = vec![];
    for period in 0..3 {
        let begins = Time(period * SECOND.0);
        let until = begins.after(Span::SECOND);
        scheduler.begin(begins, until);
        for round in 0..5 {
            now = begins.after(Span(round * SECOND.0 / 5));
            let end = now.after(Span(SECOND.0 / 5));
            // The controller gives what is not used elsewhere, and takes it again.
            let allowed = 2_000 - [0, 10, 3, 7, 0][round as usize];
            scheduler.grant(now, slot, PeriodGrant { reserved: 0, allowed });
            while now < end {
                while let Some(got) = scheduler.pop(now) {
                    waits.push(now.since(got.job).0 / 1_000);
                    scheduler.push(now, slot, RequestCost::of(1), now);
                }
                now = scheduler.next_eligible().unwrap_or(end).min(end);
            }
        }
        served.push(scheduler.served(slot));
    }
    assert_eq!(served, [2_000; 3]);
    waits.sort_unstable();
    let (median, p99) = (waits[waits.len() / 2], waits[waits.len() * 99 / 100]);
    assert_eq!((median, p99, waits[waits.len() - 1]), (8_003, 8_050, 8_050));
}

#[test]
fn what_happened_is_counted() {
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    scheduler.push(Time(100), slot, RequestCost::of(3), 'a');
    scheduler.push(Time(150), slot, RequestCost::of(2), 'b');
    assert!(scheduler.is_backlogged());
    assert_eq!(scheduler.pop(Time(200)).map(|got| got.cost), Some(3));
    scheduler.begin(Time(300), Time(400));
    assert_eq!(scheduler.pop(Time(350)).map(|got| got.cost), Some(2));
    assert!(!scheduler.is_backlogged());
    scheduler.complete(Time(380), slot, 3);
    let expected = SlotCounters {
        served: 2,
        served_before: 3,
        total: 5,
        arrived: 5,
        waiting: 0,
        in_flight: 2,
        backlogged: Span(250),
        came: 3 * 100 + 2 * 150,
        left: 3 * 380,
    };
    assert_eq!(scheduler.counters(Time(400), slot), expected);
    assert_eq!(expected.stayed(Time(400)), 3 * 280 + 2 * 250);
    // Units that were never dispatched do not complete.
    scheduler.complete(Time(390), slot, 3);
    assert_eq!(scheduler.counters(Time(400), slot).present(), 0);
    assert_eq!(size_of::<TenantState>(), 224);
}

#[test]
fn a_grant_moves_those_that_wait() {
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
    let [a, b] = [
        scheduler.add(TenantParameters::of_weight(1)),
        scheduler.add(TenantParameters::of_weight(1)),
    ];
    scheduler.begin(Time::ZERO, Time(1_000));
    scheduler.grant(Time::ZERO, a, PeriodGrant::NOTHING);
    scheduler.push(Time::ZERO, a, RequestCost::of(1), 'a');
    scheduler.push(Time::ZERO, b, RequestCost::of(1), 'b');
    scheduler.push(Time::ZERO, b, RequestCost::of(1), 'c');
    assert_eq!(scheduler.pop(Time(1)).map(|got| got.job), Some('b'));
    scheduler.grant(Time(2), a, PeriodGrant { reserved: 1, allowed: 1 });
    assert_eq!(scheduler.pop(Time(2)).map(|got| got.job), Some('a'));
    scheduler.grant(Time(3), b, PeriodGrant { reserved: 0, allowed: 1 });
    assert!(scheduler.pop(Time(3)).is_none(), "b had its one");
    scheduler.begin(Time(1_000), Time(2_000));
    assert_eq!(scheduler.pop(Time(1_000)).map(|got| got.job), Some('c'));
}

/// That an idle tenant goes does not count as waiting of unattributed requests.
#[test]
fn requests_of_a_removed_slot_become_unattributed() {
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    scheduler.remove(Time(100), slot);
    scheduler.push(Time(200), slot, RequestCost::ONE, 'a');
    assert!(scheduler.pop(Time(300)).is_some());
    assert_eq!(scheduler.counters(Time(400), Slot::UNATTRIBUTED).backlogged, Span(100));
}

#[test]
fn parameters_of_a_removed_slot_do_not_change_the_unattributed_one() {
    let (mut scheduler, slots) = backlogged(&[1, 1]);
    scheduler.remove(Time::ZERO, slots[0]);
    scheduler.set_parameters(Time::ZERO, slots[0], TenantParameters::of_weight(9));
    let mut served = [0; 2];
    (0..20).for_each(|_| served[serve(&mut scheduler).unwrap()] += 1);
    assert_eq!(served, [10, 10]);
}

/// The fair queues of urgent and of other reserved requests are apart: how far a tenant was in one
/// does not hold it up in the other.
#[test]
fn a_tenant_that_is_no_longer_urgent_begins_level() {
    let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Paper);
    let slots = [(); 2].map(|()| scheduler.add(TenantParameters::of_weight(1)));
    for slot in slots {
        scheduler.grant(Time::ZERO, slot, PeriodGrant { reserved: 2_000, allowed: u64::MAX });
    }
    (0..2).for_each(|_| scheduler.push(Time::ZERO, slots[1], RequestCost::ONE, 1));
    for _ in 0..1_000 {
        scheduler.push_in_class(Time::ZERO, (slots[0], Class::Urgent), RequestCost::ONE, 0);
        assert_eq!(scheduler.pop(Time::ZERO).map(|got| got.job), Some(0));
    }
    (0..2).for_each(|_| scheduler.push(Time::ZERO, slots[0], RequestCost::ONE, 0));
    let order: Vec<usize> = (0..4).map(|_| serve(&mut scheduler).unwrap()).collect();
    assert_eq!(order, [0, 1, 0, 1]);
}

/// Requests that wait without a tenant when it is asked for have a reservation, later ones do not.
/// Nothing is kept for those that are cancelled.
#[test]
fn service_is_reserved_for_waiting_requests_without_a_tenant() {
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Paper);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    let counts = PeriodGrant { reserved: 100, ..PeriodGrant::UNLIMITED };
    scheduler.grant(Time::ZERO, slot, counts);
    let push = |scheduler: &mut Scheduler<usize>, slot, jobs: core::ops::Range<usize>| {
        jobs.for_each(|job| scheduler.push(Time::ZERO, slot, RequestCost::ONE, job));
    };
    let next = |scheduler: &mut Scheduler<usize>, count: usize| -> Vec<usize> {
        (0..count).map(|_| scheduler.pop(Time::ZERO).unwrap().job).collect()
    };
    push(&mut scheduler, Slot::UNATTRIBUTED, 0..2);
    scheduler.reserve_waiting(Time::ZERO);
    push(&mut scheduler, Slot::UNATTRIBUTED, 2..4);
    push(&mut scheduler, slot, 10..15);
    assert_eq!(next(&mut scheduler, 9), [0, 10, 1, 11, 12, 13, 14, 2, 3]);
    push(&mut scheduler, Slot::UNATTRIBUTED, 4..7);
    scheduler.reserve_waiting(Time::ZERO);
    push(&mut scheduler, slot, 15..17);
    assert_eq!(next(&mut scheduler, 1), [4]);
    assert_eq!(scheduler.cancel(Time::ZERO, |job| *job < 10), [5, 6]);
    scheduler.begin(Time::ZERO, SECOND);
    push(&mut scheduler, Slot::UNATTRIBUTED, 7..9);
    assert_eq!(next(&mut scheduler, 4), [15, 16, 7, 8]);
}

/// A bound of half a request delays the smallest requests, too: *a* counts one and a half times.
#[test]
fn a_bound_need_not_be_whole() {
    for discipline in [Discipline::DsfqHybrid, Discipline::Unified] {
        let mut scheduler = Scheduler::new(discipline, Pacing::Paper);
        let bound = crate::scheduling::dsfq::Bound::leaving(400_000, 1, 2);
        let a = scheduler.add(TenantParameters { bound, ..TenantParameters::of_weight(1) });
        let b = scheduler.add(TenantParameters::of_weight(1));
        let request_cost = |job| RequestCost { delay: [1, 0][job], ..RequestCost::ONE };
        (0..2).for_each(|_| scheduler.push(Time::ZERO, a, request_cost(0), 0));
        (0..2).for_each(|_| scheduler.push(Time::ZERO, b, request_cost(1), 1));
        let mut served = [0; 2];
        for _ in 0..500 {
            let job = scheduler.pop(Time::ZERO).map(|got| got.job).unwrap();
            served[job] += 1;
            scheduler.push(Time::ZERO, [a, b][job], request_cost(job), job);
        }
        assert_eq!(served, [200, 300], "{discipline}");
    }
}
