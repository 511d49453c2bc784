//! Periods that become shorter or longer while they run.

use tidegate_algo::scheduling::scheduler::{
    Pacing, PeriodGrant, PeriodPart, RequestCost, Scheduler, TenantParameters,
};
use tidegate_model::{Discipline, Span, Time};

/// A period that ends after half of its time: tokens used beyond half of the counts are owed, of
/// units and of bytes, and as many reservation tokens of the next period are used up.
#[test]
fn what_a_tenant_used_ahead_of_a_period_that_is_cut_is_owed() {
    let part = PeriodPart { length: Span(500), granted: Span(1_000), is_over: true };
    let ten = PeriodGrant { reserved: 0, allowed: 10 };
    let first = PeriodGrant { reserved: 10, allowed: u64::MAX };
    let (all, nothing) = (PeriodGrant::UNLIMITED, PeriodGrant::NOTHING);
    // The counts of units and of bytes, those of a plan without counts yet, and what is served.
    let cases = [
        ((ten, None), (nothing, None), [10, 5, 10]),
        ((all, Some(ten)), (all, Some(nothing)), [10, 5, 10]),
        ((first, None), (all, None), [10, 5, 10]),
    ];
    for (counts, none_yet, expected) in cases {
        let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Paper);
        let slot = scheduler.add(TenantParameters::of_weight(1));
        let grant = |scheduler: &mut Scheduler<()>, (units, bytes)| {
            scheduler.grant(Time::ZERO, slot, units);
            scheduler.grant_bytes(Time::ZERO, slot, bytes);
        };
        let request = RequestCost { bytes: 1_024, ..RequestCost::ONE };
        (0..90).for_each(|_| scheduler.push(Time::ZERO, slot, request, ()));
        let mut served = Vec::new();
        for is_cut in [true, false, false] {
            grant(&mut scheduler, counts);
            let of_promise = |scheduler: &mut Scheduler<()>| {
                let limited = counts.0.reserved == 0;
                let mut got = (0..20).map_while(|_| scheduler.pop(Time::ZERO));
                got.by_ref().filter(|next| limited || next.is_reserved).count()
            };
            served.push(of_promise(&mut scheduler));
            if is_cut {
                scheduler.cut(Time::ZERO, slot, counts, part);
                grant(&mut scheduler, none_yet);
            }
            scheduler.begin(Time::ZERO, Time(1_000));
        }
        assert_eq!(served, expected, "{counts:?}");
    }
}

/// A period that goes on to an earlier end: nothing more is served beyond the part that is left,
/// and longer counts pay what is owed.
#[test]
fn a_period_that_becomes_shorter_and_longer_again_grants_no_token_twice() {
    let part = PeriodPart { length: Span(500), granted: Span(1_000), is_over: false };
    let allowed = |allowed| PeriodGrant { reserved: 0, allowed };
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Paper);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    (0..90).for_each(|job| scheduler.push(Time::ZERO, slot, RequestCost::ONE, job));
    let serve =
        |scheduler: &mut Scheduler<u32>| core::iter::from_fn(|| scheduler.pop(Time::ZERO)).count();
    scheduler.grant(Time::ZERO, slot, allowed(10));
    assert_eq!(serve(&mut scheduler), 10);
    scheduler.cut(Time::ZERO, slot, (allowed(10), None), part);
    assert_eq!((scheduler.served(slot), serve(&mut scheduler)), (5, 0), "5 are owed");
    scheduler.grant(Time::ZERO, slot, PeriodGrant::NOTHING);
    scheduler.grant(Time::ZERO, slot, allowed(10));
    assert_eq!((scheduler.served(slot), serve(&mut scheduler)), (10, 0), "and paid");
}

/// A period that becomes longer: its tokens are spread over all of it.
#[test]
fn a_longer_period_is_paced_to_its_end() {
    let allowed = |allowed| PeriodGrant { reserved: 0, allowed };
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
    let slot = scheduler.add(TenantParameters::of_weight(1));
    (0..90).for_each(|job| scheduler.push(Time::ZERO, slot, RequestCost::ONE, job));
    scheduler.begin(Time::ZERO, Time(1_000));
    scheduler.grant(Time::ZERO, slot, allowed(10));
    let mut served = 0;
    for now in (0..2_000).map(Time) {
        if now == Time(500) {
            scheduler.end_at(Time(2_000));
            scheduler.grant(now, slot, allowed(20));
        }
        served += core::iter::from_fn(|| scheduler.pop(now)).count() as u64;
        assert!(served <= 1 + now.0 / 100, "{served} at {now:?}");
    }
    assert_eq!(served, 20);
}
