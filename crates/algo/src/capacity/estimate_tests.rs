//! The estimators in closed loops: their estimates decide what they see next.

use super::*;
use alloc::format;
use alloc::string::String;
use proptest::prelude::*;

const INTERVAL: Span = Span(200 * Span::MILLISECOND.0);

/// A busy interval of a device that does `rate` per second.
fn busy(rate: u64) -> Work {
    let done = rate / 5;
    Work { interval: INTERVAL, busy: INTERVAL, completed: done, completed_busy: done }
}

/// An interval in which nearly nothing was requested of the device.
fn quiet(done: u64) -> Work {
    Work { interval: INTERVAL, busy: Span::ZERO, completed: done, completed_busy: 0 }
}

/// One line per interval: what the device did per second and whether it was busy, the estimate.
fn table(mut capacity: Capacity, intervals: &[(u64, bool)]) -> String {
    let mut table = String::new();
    for &(rate, is_busy) in intervals {
        capacity.observe(if is_busy { busy(rate) } else { quiet(rate / 5) });
        let kind = if is_busy { "busy" } else { "" };
        table += &format!("{rate:6} {kind:4} {:7}\n", capacity.per_second().0);
    }
    table
}

#[test]
fn a_declared_capacity_over_time() {
    // As declared, half as fast, quiet, faster than declared, broken.
    let intervals = [
        (10_000, true),
        (5_000, true),
        (5_000, true),
        (100, false),
        (100, false),
        (9_000, false),
        (100_000, true),
        (100_000, true),
        (100_000, true),
        (0, true),
        (0, true),
        (0, true),
        (0, true),
        (0, true),
        (0, true),
        (0, true),
    ];
    let golden = "
 10000 busy   10000
  5000 busy    7500
  5000 busy    6250
   100         6718
   100         7128
  9000         9000
100000 busy   40000
100000 busy   40000
100000 busy   40000
     0 busy   20000
     0 busy   10000
     0 busy    5000
     0 busy    2500
     0 busy    1250
     0 busy     625
     0 busy     625
";
    assert_eq!(table(Capacity::new(Some(Iops(10_000))), &intervals), golden[1..]);
}

#[test]
fn an_undeclared_capacity_over_time() {
    // Never busy says nothing but that it is enough; then the first busy interval says it all.
    let intervals =
        [(100, false), (20_000, true), (10_000, true), (100, false), (100, false), (30_000, true)];
    let golden = "
   100      1000000
 20000 busy   20000
 10000 busy   15000
   100        15625
   100        16171
 30000 busy   23085
";
    assert_eq!(table(Capacity::new(None), &intervals), golden[1..]);
}

#[test]
fn what_is_done_beside_the_busy_time_does_not_count() {
    let mut capacity = Capacity::new(None);
    let busy = Span(INTERVAL.0 / 4);
    let work = Work { interval: INTERVAL, busy, completed: 900, completed_busy: 500 };
    capacity.observe(work);
    assert_eq!(capacity.per_second(), Iops(10_000));
    assert_eq!(capacity.within(Span(Span::SECOND.0 / 2)), 5_000);
}

/// A node that can do `capacity` per interval, and a tenant that is given as much of it as it is
/// believed to demand in the rest of a period, but little at first: what it has in each interval.
fn ramp(capacity: u64, mut tenant: impl FnMut(u64) -> DemandSample) -> [u64; 5] {
    let mut demand = Demand::default();
    let mut given = capacity / 20;
    let mut served = [0; 5];
    for (interval, served) in (1..).zip(&mut served) {
        let sample = tenant(given);
        *served = given.min(sample.arrived + sample.present);
        demand.observe(sample);
        let left = Span(INTERVAL.0 * (6 - interval));
        let intervals = 6 - interval;
        let expected = demand.within(left, sample.present, capacity * intervals);
        given = (expected / intervals).min(capacity);
    }
    served
}

/// A tenant that always has 64 requests outstanding requests what it gets. It is taken to want more
/// once it has been seen to wait, and has all that the node can do in the second interval.
#[test]
fn a_closed_tenant_ramps_up() {
    let mut is_new = true;
    let closed = |served| {
        // All come at once; later ones when others are answered.
        let arrived = if core::mem::take(&mut is_new) { 64 + served } else { served };
        DemandSample::evenly(INTERVAL, INTERVAL, arrived, 64)
    };
    assert_eq!(ramp(10_000, closed), [500, 10_000, 10_000, 10_000, 10_000]);
}

/// A tenant that sends 3,000 per interval, whatever becomes of them, is taken to want that and what
/// was left over, and never all that the node can do.
#[test]
fn an_open_tenant_is_believed() {
    let mut waiting = 0u64;
    let open = |served: u64| {
        let before = waiting;
        waiting = (waiting + 3_000).saturating_sub(served);
        let stayed = u128::from(before.midpoint(waiting)) * u128::from(INTERVAL.0);
        DemandSample { stayed, ..DemandSample::evenly(INTERVAL, INTERVAL, 3_000, waiting) }
    };
    assert_eq!(ramp(10_000, open), [500, 3_500, 3_500, 3_500, 3_500]);
}

#[test]
fn a_tenant_that_never_waits_is_not_elastic() {
    let mut demand = Demand::default();
    let little = Span(INTERVAL.0 / 4);
    for _ in 0..4 {
        demand.observe(DemandSample::evenly(INTERVAL, little, 100, 1));
    }
    assert_eq!(demand.within(INTERVAL, 1, 10_000), 101);
    // Gone, and nothing is expected any more.
    demand.observe(DemandSample::evenly(INTERVAL, Span::ZERO, 0, 0));
    assert_eq!(demand.within(INTERVAL, 0, 10_000), 0);
}

/// A rate that changes once within an interval is known at its end, whenever that was. The second
/// column: what is expected of the next interval.
#[test]
fn a_change_of_rate_is_known_at_once() {
    let mut table = String::new();
    for [before, after] in [[0, 400], [400, 0], [400, 100], [100, 400]] {
        for part in [0, 1, 2, 3] {
            let mut demand = Demand::default();
            demand.observe(DemandSample::evenly(INTERVAL, Span::ZERO, before, 0));
            let (first, second) = (before * part / 4, after * (4 - part) / 4);
            let at = u128::from(INTERVAL.0 * part / 4);
            let length = u128::from(INTERVAL.0);
            let came = u128::from(first) * at / 2 + u128::from(second) * (at + length) / 2;
            demand.observe(DemandSample {
                came,
                ..DemandSample::evenly(INTERVAL, Span::ZERO, first + second, 0)
            });
            table += &format!("{:4}", demand.within(INTERVAL, 0, 10_000));
        }
        table += "\n";
    }
    let golden = "
 400 400 400 400
   0   0   0   0
 100 100 100 100
 400 400 400 400
";
    assert_eq!(table, golden[1..]);
}

/// Of what differs by no more than chance the mean is expected.
#[test]
fn chance_is_no_change() {
    let mut demand = Demand::default();
    for arrived in [100, 120, 90] {
        demand.observe(DemandSample::evenly(INTERVAL, Span::ZERO, arrived, 0));
    }
    assert_eq!(demand.within(INTERVAL, 0, 10_000), 103);
}

/// The distribution itself defines chance: counts that come in fewer than 3 of 1,000 intervals on
/// either side are no chance.
#[test]
fn chance_is_three_standard_deviations() {
    let bounds = |expected: i128| {
        let first = (0..).find(|arrived| is_chance(*arrived, expected)).unwrap();
        let last = (first..).find(|arrived| !is_chance(*arrived, expected)).unwrap() - 1;
        (first, last)
    };
    let found = [0, 1, 3, 10, 100, 10_000].map(bounds);
    let golden = [(0, 4), (0, 6), (0, 10), (3, 21), (73, 132), (9_703, 10_302)];
    assert_eq!(found, golden);
}

/// A tenant that has gone leaves a queue, and its demand is no more than that while it shrinks.
#[test]
fn a_queue_that_is_left_behind_is_not_elastic() {
    let mut demand = Demand::default();
    demand.observe(DemandSample::evenly(INTERVAL, INTERVAL, 600, 500));
    assert_eq!(demand.within(INTERVAL, 500, 10_000), 10_000);
    let stayed = 400 * u128::from(INTERVAL.0);
    demand.observe(DemandSample { stayed, ..DemandSample::evenly(INTERVAL, INTERVAL, 0, 300) });
    assert_eq!(demand.within(INTERVAL, 300, 10_000), 300);
}

/// A closed tenant is known after its first interval, even if it came late in that.
#[test]
fn a_closed_tenant_that_comes_is_known() {
    let mut demand = Demand::default();
    for _ in 0..3 {
        demand.observe(DemandSample::evenly(INTERVAL, Span::ZERO, 0, 0));
    }
    let late = Span(INTERVAL.0 / 4);
    let came = 20 * u128::from(INTERVAL.0 - late.0 / 2);
    demand.observe(DemandSample { came, ..DemandSample::evenly(INTERVAL, late, 20, 5) });
    assert_eq!(demand.within(INTERVAL, 5, 10_000), 10_000);
}

/// A queue that has grown stands still by chance; only the second time it is believed.
#[test]
fn one_steady_interval_after_others_proves_little() {
    let mut demand = Demand::default();
    let stayed = 50 * u128::from(INTERVAL.0);
    demand.observe(DemandSample { stayed, ..DemandSample::evenly(INTERVAL, INTERVAL, 200, 100) });
    let steady = DemandSample::evenly(INTERVAL, INTERVAL, 200, 100);
    let seen = [0; 2].map(|_| {
        demand.observe(steady);
        demand.within(INTERVAL, 100, 10_000)
    });
    assert_eq!(seen, [300, 10_000]);
}

proptest! {
    #[test]
    fn estimates_stay_within_bounds(
        declared in prop::option::of(0u64..),
        works in prop::collection::vec(any::<[u64; 4]>(), 0..20),
    ) {
        let mut capacity = Capacity::new(declared.map(Iops));
        for [interval, busy, completed, completed_busy] in works {
            let (interval, busy) = (Span(interval), Span(busy));
            capacity.observe(Work { interval, busy, completed, completed_busy });
            let estimate = capacity.per_second().0;
            prop_assert!(estimate > 0);
            if let Some(declared) = declared {
                prop_assert!(estimate >= declared / BELOW_DECLARED);
                prop_assert!(estimate / ABOVE_DECLARED <= declared.max(1));
            }
        }
    }

    #[test]
    fn a_demand_is_never_less_than_what_waits(
        sample in prop::collection::vec(any::<([u64; 4], [u128; 2])>(), 0..20),
        left: u64,
        waiting: u64,
        capacity: u64,
    ) {
        let mut demand = Demand::default();
        for ([interval, backlogged, arrived, present], [came, stayed]) in sample {
            let (interval, backlogged) = (Span(interval), Span(backlogged));
            demand.observe(DemandSample { interval, backlogged, arrived, came, present, stayed });
        }
        prop_assert!(demand.within(Span(left), waiting, capacity) >= waiting);
    }
}
