//! Tests of the service that a tenant owes beyond its limit: how debts arise, how they are paid,
//! and when they are forgiven.

use super::*;
use tidegate_model::Span;

/// Serves a request, and lets another one of its tenant come.
fn serve(scheduler: &mut Scheduler<usize>) -> Option<usize> {
    let got = scheduler.pop(Time::ZERO)?;
    scheduler.push(Time::ZERO, got.slot, RequestCost::ONE, got.job);
    Some(got.job)
}

/// A shard that was not served while others went on: who waits there comes up to the lead, and who
/// is nearer stays.
#[test]
fn a_backlogged_tenant_lags_other_shards_by_at_most_the_lead() {
    let mut scheduler = Scheduler::in_shard(1, Discipline::Sfq, Pacing::Paper);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    (0..2).for_each(|job| scheduler.push(Time::ZERO, slot, RequestCost::ONE, job));
    assert_eq!(scheduler.pop(Time::ZERO).map(|got| got.job), Some(0));
    let head = u128::from(UNIT);
    let lead = 1 << scheduler.shard_head().lead;
    assert!((16 * head..=32 * head).contains(&lead), "of its longest request");
    for ahead in [0, lead, lead + 1, lead * 1_000] {
        let mut others = crate::scheduling::shards::OtherShards::NONE;
        others.virtual_times[Phase::Fair as usize] = head + ahead;
        scheduler.observe(&others);
        let wanted = head + ahead.saturating_sub(lead);
        let shard_head = scheduler.shard_head();
        assert_eq!(shard_head.fair, [None, Some(wanted), None], "others are {ahead} ahead");
        let virtual_time = if ahead > lead { wanted } else { 0 };
        assert_eq!(
            shard_head.virtual_times[Phase::Fair as usize],
            virtual_time,
            "others are {ahead} ahead"
        );
    }
}

/// A cost that is known after the request counts as though the request had come with it.
#[test]
fn what_is_charged_is_counted() {
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Paper);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    scheduler.push(Time(10), slot, RequestCost::of(3), ());
    assert!(scheduler.pop(Time(20)).is_some());
    scheduler.charge(Time(30), (slot, Class::Medium), RequestCost::of(4), false);
    scheduler.complete(Time(30), slot, 3);
    let expected = SlotCounters {
        served: 7,
        total: 7,
        arrived: 7,
        backlogged: Span(10),
        came: 3 * 10 + 4 * 30,
        left: 3 * 30 + 4 * 30,
        ..SlotCounters::default()
    };
    assert_eq!(scheduler.counters(Time(40), slot), expected);
    assert_eq!(expected.stayed(Time(40)), 3 * 20, "what is charged was not here any longer");
}

/// A request at the device whose tenant is removed stays there, without a tenant, until it ends.
#[test]
fn what_is_at_the_device_is_taken_over() {
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Paper);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    scheduler.push(Time(10), slot, RequestCost::of(3), ());
    assert!(scheduler.pop(Time(20)).is_some());
    scheduler.remove(Time(30), slot);
    let there = SlotCounters { arrived: 3, in_flight: 3, came: 3 * 30, ..SlotCounters::default() };
    assert_eq!(scheduler.counters(Time(35), Slot::UNATTRIBUTED), there);
    scheduler.complete(Time(40), slot, 3);
    let gone = SlotCounters { in_flight: 0, left: 3 * 40, ..there };
    assert_eq!(scheduler.counters(Time(45), Slot::UNATTRIBUTED), gone);
    assert_eq!(gone.stayed(Time(45)), 3 * 10);
}

/// Tokens that were used, and then taken away, were used as reservation tokens: they are owed
/// neither by what was served nor by what was paid.
#[test]
fn what_was_served_before_tokens_were_taken_away_is_no_debt() {
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Paper);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    let grant = |scheduler: &mut Scheduler<u32>, allowed| {
        scheduler.grant(Time::ZERO, slot, PeriodGrant { reserved: 0, allowed });
    };
    let serve = |scheduler: &mut Scheduler<u32>| {
        core::iter::from_fn(|| scheduler.pop(Time::ZERO)).map(|got| got.cost).sum::<u32>()
    };
    grant(&mut scheduler, 5);
    scheduler.push(Time::ZERO, slot, RequestCost::of(9), 0);
    (0..9).for_each(|_| scheduler.push(Time::ZERO, slot, RequestCost::ONE, 0));
    assert_eq!(serve(&mut scheduler), 9, "4 of them are owed");
    grant(&mut scheduler, 7);
    assert_eq!(serve(&mut scheduler), 0, "2 are paid");
    grant(&mut scheduler, 3);
    scheduler.begin(Time::ZERO, Time(1_000));
    assert_eq!(serve(&mut scheduler), 1, "2 are paid, and one is left");
}

/// A period that began with a payment, and has other counts than it began with: the payment is made
/// anew, and nothing else changes.
#[test]
fn a_payment_that_is_made_anew_does_not_make_a_tenant_urgent() {
    let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Paper);
    let slots = [(); 2].map(|()| scheduler.add(TenantParameters::of_weight(1)));
    scheduler.grant(Time::ZERO, slots[0], PeriodGrant { reserved: 0, allowed: 1 });
    scheduler.push(Time::ZERO, slots[0], RequestCost::of(5), 0);
    assert!(scheduler.pop(Time::ZERO).is_some());
    scheduler.begin(Time::ZERO, Time(1_000));
    assert_eq!(scheduler.served(slots[0]), 1, "all that is allowed pays");
    for (job, slot) in slots.into_iter().enumerate() {
        scheduler.grant(Time::ZERO, slot, PeriodGrant { reserved: 20, allowed: 20 });
        (0..4).for_each(|_| scheduler.push(Time::ZERO, slot, RequestCost::ONE, job));
    }
    assert_eq!(scheduler.served(slots[0]), 4, "and now all that is owed is paid");
    let order: Vec<_> = (0..4).map(|_| scheduler.pop(Time::ZERO).unwrap()).collect();
    assert!(order.iter().all(|got| got.is_reserved));
    assert_eq!(order.iter().map(|got| got.job).sum::<usize>(), 2, "each has two");
}

/// Service at other nodes counts against a tenant for five to ten periods of virtual time. Here
/// each period moves virtual time by ten requests, and *a* comes with more of a delay than it can
/// ever make up for: it falls behind by as many as are remembered.
#[test]
fn a_debt_is_forgiven_when_it_is_older_than_the_window() {
    for periods in 0..30 {
        let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Paper);
        let bound = crate::scheduling::dsfq::Bound::leaving(400_000, 1, 2);
        let a = scheduler.add(TenantParameters { bound, ..TenantParameters::of_weight(1) });
        let b = scheduler.add(TenantParameters::of_weight(1));
        (0..2).for_each(|_| scheduler.push(Time::ZERO, b, RequestCost::ONE, 1));
        for _ in 0..periods {
            (0..10).for_each(|_| assert_eq!(serve(&mut scheduler), Some(1)));
            scheduler.begin(Time::ZERO, Time::ZERO);
        }
        scheduler.push(Time::ZERO, a, RequestCost { delay: 1_000_000, ..RequestCost::ONE }, 0);
        scheduler.push(Time::ZERO, a, RequestCost::ONE, 0);
        let mut served = [0u32; 2];
        (0..600).for_each(|_| served[serve(&mut scheduler).unwrap()] += 1);
        let half = WINDOW / 2;
        let remembered = periods - (periods / half).saturating_sub(1) * half;
        let behind = served[1] - served[0];
        assert!(behind.abs_diff(10 * remembered) <= 2, "after {periods} periods: {behind}");
    }
}
