//! Tenants that are promised bytes and requests at once, in virtual time.

use super::*;
use alloc::vec::Vec;
use tidegate_model::Span;
use tidegate_model::cost::BYTES_PER_TOKEN;

const SECOND: Span = Span::SECOND;
/// The longest request, in tokens of bytes.
const LONGEST: u64 = 64;

/// A scheduler with one tenant that always has a thousand requests of 512 B to 64 KiB waiting.
fn busy(operations: PeriodGrant, bytes: PeriodGrant) -> (Scheduler<u32>, Slot) {
    let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Even);
    scheduler.begin(Time::ZERO, Time(SECOND.0));
    let slot = scheduler.add(TenantParameters::of_weight(1));
    scheduler.grant(Time::ZERO, slot, operations);
    scheduler.grant_bytes(Time::ZERO, slot, Some(bytes));
    (0..1_000).for_each(|at| push(&mut scheduler, slot, at));
    (scheduler, slot)
}

fn push(scheduler: &mut Scheduler<u32>, slot: Slot, at: u32) {
    let bytes = [4_096, 65_536, 512, 16_384][at as usize % 4];
    scheduler.push(Time::ZERO, slot, RequestCost { bytes, ..RequestCost::ONE }, at);
}

/// Takes out what may go in each millisecond of so many periods. Returns the requests and tokens
/// of bytes that had gone by the end of each millisecond.
fn run(scheduler: &mut Scheduler<u32>, slot: Slot, periods: u64) -> Vec<(u64, u64)> {
    let (mut requests, mut gone) = (0, Vec::new());
    for millisecond in 0..periods * 1_000 {
        let now = Time(millisecond * 1_000_000);
        if millisecond % 1_000 == 0 && millisecond > 0 {
            scheduler.begin(now, now.after(SECOND));
        }
        while let Some(next) = scheduler.pop(now) {
            requests += 1;
            push(scheduler, slot, next.job);
        }
        let bytes = scheduler.byte_counters(slot).map_or(0, |counters| counters.total.bytes);
        gone.push((requests, bytes / BYTES_PER_TOKEN));
    }
    gone
}

#[test]
fn the_limit_that_binds_holds_in_every_window_and_is_used_up() {
    let limit = |allowed| PeriodGrant { reserved: 0, allowed };
    // The mean request has 21 tokens: bytes bind in the first case, requests in the second.
    for (operations, bytes) in [(1_000, 4_000), (100, 9_000)] {
        let (mut scheduler, slot) = busy(limit(operations), limit(bytes));
        let gone = run(&mut scheduler, slot, 5);
        for window in [50, 200, 1_000] {
            for pair in gone.windows(window + 1) {
                let [first, last] = [pair[0], pair[window]];
                let most = |allowed: u64, longest| allowed * window as u64 / 1_000 + 2 * longest;
                assert!(last.0 - first.0 <= most(operations, 1), "{window} ms: {first:?} {last:?}");
                assert!(last.1 - first.1 <= most(bytes, LONGEST), "{window}: {first:?} {last:?}");
            }
        }
        let (requests, tokens) = gone[gone.len() - 1];
        let is_used_up = requests + 5 >= 5 * operations || tokens + LONGEST >= 5 * bytes;
        assert!(is_used_up, "{requests} of {operations}, {tokens} of {bytes} in each second");
    }
}

#[test]
fn a_reservation_in_both_units_ends_with_the_first() {
    let reserved = |reserved| PeriodGrant { reserved, allowed: u64::MAX };
    let count = |operations, bytes| {
        let (mut scheduler, _) = busy(reserved(operations), reserved(bytes));
        let popped = core::iter::from_fn(|| scheduler.pop(Time::ZERO));
        popped.take_while(|next| next.is_reserved).count()
    };
    assert_eq!(count(8, u64::MAX), 8, "a unit without a reservation does not bind");
    assert_eq!(count(u64::MAX, 169), 8, "four requests have 84.5 tokens");
    assert_eq!(count(5, 169), 5);
    assert_eq!(count(0, u64::MAX), 0);
    assert_eq!(count(u64::MAX, 0), 0);
}

#[test]
fn a_tenant_may_begin_and_cease_to_be_promised_bytes_while_it_waits() {
    let (mut scheduler, slot) = busy(PeriodGrant::UNLIMITED, PeriodGrant::NOTHING);
    assert!(scheduler.pop(Time::ZERO).is_none());
    scheduler.grant_bytes(Time::ZERO, slot, None);
    assert_eq!(scheduler.byte_counters(slot), None);
    assert!(scheduler.pop(Time::ZERO).is_some());
    scheduler.grant_bytes(Time::ZERO, slot, Some(PeriodGrant::NOTHING));
    let waiting = scheduler.byte_counters(slot).map(|counters| counters.waiting);
    let bytes = 250 * (4_096 + 65_536 + 512 + 16_384) - 4_096;
    assert_eq!(waiting, Some(Amounts { operations: 999, bytes }));
    assert!(scheduler.pop(Time::ZERO).is_none());
    scheduler.remove(Time::ZERO, slot);
    assert!(scheduler.pop(Time::ZERO).is_some(), "requests without a tenant have no limit");
}

#[test]
fn the_pieces_of_a_request_are_one_operation() {
    let limit = |allowed| PeriodGrant { reserved: 0, allowed };
    let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Paper);
    scheduler.begin(Time::ZERO, Time(SECOND.0));
    let slot = scheduler.add(TenantParameters::of_weight(1));
    scheduler.grant(Time::ZERO, slot, limit(3));
    // As the policies without resources have it, a piece is an operation.
    let piece = RequestCost { operations: 0, bytes: 131_072, ..RequestCost::ONE };
    let first = RequestCost { operations: 1, ..piece };
    let large = |scheduler: &mut Scheduler<u32>| {
        (0..8).for_each(|at| {
            let request_cost = if at == 0 { first } else { piece };
            scheduler.push(Time::ZERO, slot, request_cost, at);
        });
    };
    large(&mut scheduler);
    assert_eq!(core::iter::from_fn(|| scheduler.pop(Time::ZERO)).count(), 3);
    scheduler.cancel(Time::ZERO, |_| true);
    scheduler.begin(Time(SECOND.0), Time(2 * SECOND.0));
    scheduler.grant_bytes(Time(SECOND.0), slot, Some(limit(20 * 128)));
    (0..3).for_each(|_| large(&mut scheduler));
    let popped = core::iter::from_fn(|| scheduler.pop(Time(SECOND.0))).count();
    assert_eq!(popped, 20, "as many as there are bytes for");
    assert_eq!(scheduler.served(slot), 3);
    let counters = scheduler.byte_counters(slot).unwrap();
    assert_eq!((counters.served, counters.waiting.operations), (20 * 128, 0));
}

/// The one operation is used up, and the controller sees no demand for another one.
#[test]
fn the_pieces_of_a_request_need_no_further_operation() {
    let limit = |allowed| PeriodGrant { reserved: 0, allowed };
    let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Even);
    scheduler.begin(Time::ZERO, Time(SECOND.0));
    let slot = scheduler.add(TenantParameters::of_weight(1));
    scheduler.grant(Time::ZERO, slot, limit(1));
    scheduler.grant_bytes(Time::ZERO, slot, Some(PeriodGrant::UNLIMITED));
    for at in 0..16 {
        let operations = u32::from(at % 8 == 0);
        let request_cost = RequestCost { operations, bytes: 131_072, ..RequestCost::ONE };
        scheduler.push(Time::ZERO, slot, request_cost, at);
    }
    let popped = core::iter::from_fn(|| scheduler.pop(Time::ZERO)).count();
    assert_eq!(popped, 8, "one request of eight pieces");
    assert_eq!(scheduler.served(slot), 1);
}
