//! Division of a shortfall, checked against all ways to divide it.
#![allow(clippy::unwrap_used, reason = "a test may end by panicking")]

use std::cmp::Ordering;

use proptest::prelude::*;
use tidegate_algo::allocation::pshift::{Configuration, Solver};

type Row = (u64, Vec<(u32, u32)>);

fn configuration(capacities: &[u64], rows: &[Row]) -> Configuration {
    let mut configuration = Configuration::new(capacities);
    for (reservation, demands) in rows {
        configuration.push(*reservation, demands).unwrap();
    }
    configuration
}

/// Whether buckets can consume just this much each, server by server: by Hall's condition, any set
/// of servers and buckets.
fn is_possible(capacities: &[u64], rows: &[Row], met: &[u64]) -> bool {
    (0..1_u32 << capacities.len()).all(|set| {
        let inside = |server: u32| set >> server & 1 == 1;
        let capacity: u64 =
            (0..capacities.len()).filter(|j| inside(*j as u32)).map(|j| capacities[j]).sum();
        let needs = rows.iter().zip(met).map(|((_, demands), met)| {
            let elsewhere = demands.iter().filter(|(server, _)| !inside(*server));
            let elsewhere: u64 = elsewhere.map(|(_, demand)| u64::from(*demand)).sum();
            met.saturating_sub(elsewhere)
        });
        needs.sum::<u64>() <= capacity
    })
}

fn compare((met, of): (u64, u64), (other, other_of): (u64, u64)) -> Ordering {
    (met * other_of).cmp(&(other * of))
}

/// The parts that are met, smallest first. A bucket that was promised nothing has none.
fn parts(rows: &[Row], met: &[u64]) -> Vec<(u64, u64)> {
    let mut parts: Vec<_> = met.iter().copied().zip(rows.iter().map(|row| row.0)).collect();
    parts.retain(|(_, of)| *of > 0);
    parts.sort_by(|one, other| compare(*one, *other));
    parts
}

fn is_fairer(one: &[(u64, u64)], other: &[(u64, u64)]) -> bool {
    let orders = one.iter().zip(other).map(|(one, other)| compare(*one, *other));
    orders.into_iter().find(|order| order.is_ne()) == Some(Ordering::Greater)
}

/// All vectors below `most` with this sum.
fn vectors(most: &[u64], sum: u64) -> Vec<Vec<u64>> {
    let Some((&first, rest)) = most.split_first() else {
        return if sum == 0 { vec![vec![]] } else { vec![] };
    };
    let with = |own: u64| {
        let others = vectors(rest, sum - own);
        others.into_iter().map(move |other| [vec![own], other].concat())
    };
    (0..=first.min(sum)).flat_map(with).collect()
}

fn check(capacities: &[u64], rows: &[Row]) {
    let mut solver = Solver::new(configuration(capacities, rows));
    let outcome = solver.solve();
    let shares = solver.share_shortfall();
    let after = solver.configuration();
    // As good as before, and what is granted is consumed, whatever order servers work in.
    assert_eq!(after.effective_capacity(), outcome.effective_capacity);
    assert_eq!(shares.met.iter().sum::<u64>(), outcome.effective_capacity);
    let mut loads = vec![0; capacities.len()];
    for (share, granted) in after.shares().iter().zip(&shares.granted) {
        assert!(*granted <= share.tokens, "{share:?} {granted}");
        loads[share.server as usize] += u64::from(*granted);
    }
    assert!(loads.iter().zip(capacities).all(|(load, capacity)| load <= capacity), "{loads:?}");
    let mut granted = shares.granted.iter();
    for (bucket, met) in shares.met.iter().enumerate() {
        let row = granted.by_ref().take(after.row(bucket).len());
        assert_eq!(row.map(|granted| u64::from(*granted)).sum::<u64>(), *met);
    }
    // And fairest.
    let most: Vec<u64> = (0..rows.len()).map(|bucket| after.entitlement(bucket)).collect();
    let ours = parts(rows, &shares.met);
    for met in vectors(&most, outcome.effective_capacity) {
        if is_fairer(&parts(rows, &met), &ours) {
            assert!(!is_possible(capacities, rows, &met), "{met:?} is fairer than {shares:?}");
        }
    }
    solver.certificate().verify(solver.configuration()).unwrap();
    assert_eq!(solver.shift().moved, 0);
}

#[test]
fn equals_get_equal_parts() {
    let rows = [(10, vec![(0, 10)]), (20, vec![(0, 20)]), (30, vec![(0, 30)])];
    let mut solver = Solver::new(configuration(&[30], &rows));
    assert_eq!(solver.share_shortfall().met, [5, 10, 15]);
}

#[test]
fn a_bucket_with_an_alternative_leaves_headroom() {
    // The second requests as much of the free server: it needs nothing of the full one.
    let rows = [(10, vec![(0, 10)]), (10, vec![(0, 10), (1, 10)]), (10, vec![(0, 10), (1, 2)])];
    let mut solver = Solver::new(configuration(&[10, 12], &rows));
    assert_eq!(solver.share_shortfall().met, [6, 10, 6]);
}

proptest! {
    #[test]
    fn nothing_is_fairer(
        capacities in prop::collection::vec(0_u64..9, 1..4),
        rows in prop::collection::vec(
            (0_u64..7, prop::collection::vec((0_u32..3, 0_u32..5), 0..4)), 1..6),
    ) {
        let mut rows = rows;
        for (_, demands) in &mut rows {
            demands.iter_mut().for_each(|(server, _)| *server %= capacities.len() as u32);
        }
        check(&capacities, &rows);
    }
}
