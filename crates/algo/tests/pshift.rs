//! Token allocation: the paper's examples, and properties against oracles too simple to be wrong.
#![allow(clippy::unwrap_used, reason = "a test may end by panicking")]

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_algo::allocation::pshift::instance::Family;
use tidegate_algo::allocation::pshift::{
    Certificate, Configuration, Flaw, Refused, Solver, SolverReport,
};

type Row = (u64, Vec<(u32, u32)>);

fn configuration(capacities: &[u64], rows: &[Row]) -> Configuration {
    let mut configuration = Configuration::new(capacities);
    for (reservation, demands) in rows {
        configuration.push(*reservation, demands).unwrap();
    }
    configuration
}

fn tokens(solver: &Solver, bucket: usize) -> Vec<u32> {
    solver.configuration().row(bucket).map(|share| share.tokens).collect()
}

/// Maximum flow from buckets to servers by Edmonds and Karp, on a matrix.
fn maximum_flow(capacities: &[u64], rows: &[Row]) -> u64 {
    let (buckets, servers) = (rows.len(), capacities.len());
    let (source, sink) = (buckets + servers, buckets + servers + 1);
    let mut residual = vec![vec![0_u64; sink + 1]; sink + 1];
    for (bucket, (reservation, demands)) in rows.iter().enumerate() {
        residual[source][bucket] = *reservation;
        for (server, demand) in demands {
            residual[bucket][buckets + *server as usize] += u64::from(*demand);
        }
    }
    for (server, capacity) in capacities.iter().enumerate() {
        residual[buckets + server][sink] = *capacity;
    }
    let mut flow = 0;
    loop {
        let mut from = vec![usize::MAX; sink + 1];
        let mut queue = VecDeque::from([source]);
        while let Some(node) = queue.pop_front() {
            for next in 0..=sink {
                if from[next] == usize::MAX && next != source && residual[node][next] > 0 {
                    from[next] = node;
                    queue.push_back(next);
                }
            }
        }
        if from[sink] == usize::MAX {
            return flow;
        }
        let mut way = vec![sink];
        while *way.last().unwrap() != source {
            way.push(from[*way.last().unwrap()]);
        }
        way.reverse();
        let amount = way.windows(2).map(|step| residual[step[0]][step[1]]).min().unwrap();
        for step in way.windows(2) {
            residual[step[0]][step[1]] -= amount;
            residual[step[1]][step[0]] = residual[step[1]][step[0]].saturating_add(amount);
        }
        flow += amount;
    }
}

/// Checks the properties of every solution.
fn check(solver: &mut Solver, outcome: SolverReport) {
    let certificate = solver.certificate();
    certificate.verify(solver.configuration()).unwrap();
    assert_eq!(outcome.effective_capacity, certificate.bound());
    let all: u64 = solver.configuration().shares().iter().map(|s| u64::from(s.tokens)).sum();
    assert_eq!(outcome.effective_capacity + outcome.weak_excess, all);
    assert_eq!(certificate.servers().is_empty(), outcome.weak_excess == 0);
}

#[test]
fn example_1_and_2_of_the_paper() {
    let rows = [(100, vec![(0, 150), (1, 50)]), (100, vec![(0, 50), (1, 50)])];
    let mut solver = Solver::new(configuration(&[100, 100], &rows));
    solver.start();
    // Table I.
    assert_eq!([tokens(&solver, 0), tokens(&solver, 1)], [[75, 25], [50, 50]]);
    assert_eq!(solver.configuration().effective_capacity(), 175);
    let outcome = solver.shift();
    assert_eq!([tokens(&solver, 0), tokens(&solver, 1)], [[50, 50], [50, 50]]);
    let expected =
        SolverReport { effective_capacity: 200, paths: 1, moves: 1, moved: 25, ..outcome };
    assert_eq!((outcome, outcome.weak_excess), (expected, 0));
    check(&mut solver, outcome);
}

#[test]
fn example_3_of_the_paper_needs_a_broker() {
    let red = (100, vec![(0, 150), (1, 50), (2, 0)]);
    let blue = (100, vec![(0, 0), (1, 150), (2, 50)]);
    let green = (100, vec![(0, 50), (1, 0), (2, 50)]);
    let mut solver = Solver::new(configuration(&[100; 3], &[red, blue, green]));
    solver.start();
    // Table II.
    assert_eq!([0, 1, 2].map(|i| tokens(&solver, i)), [[75, 25, 0], [0, 75, 25], [50, 0, 50]]);
    // Table III, from the shares alone.
    let movement = |source: usize, target: usize| {
        [0, 1, 2].map(|bucket| {
            let row: Vec<_> = solver.configuration().row(bucket).collect();
            row[source].tokens.min(row[target].demand - row[target].tokens)
        })
    };
    assert_eq!([movement(0, 1), movement(0, 2)], [[25, 0, 0], [0, 0, 0]]);
    assert_eq!([movement(1, 0), movement(1, 2)], [[25, 0, 0], [0, 25, 0]]);
    assert_eq!([movement(2, 0), movement(2, 1)], [[0, 0, 0], [0, 25, 0]]);
    let outcome = solver.shift();
    assert_eq!([0, 1, 2].map(|i| tokens(&solver, i)), [[50, 50, 0], [0, 50, 50], [50, 0, 50]]);
    assert_eq!((outcome.paths, outcome.moves, outcome.moved), (1, 2, 50));
    assert_eq!(outcome.effective_capacity, 300);
    check(&mut solver, outcome);
}

/// Example 3 with more brokers: each bucket links one server to the next, and the one path there is
/// visits all of them.
fn chain(servers: u32) -> Vec<Row> {
    let link = |server| (100, vec![(server, 150), (server + 1, 50)]);
    let mut rows: Vec<Row> = (0..servers - 1).map(link).collect();
    rows.push((100, vec![(0, 50), (servers - 1, 50)]));
    rows
}

#[test]
fn the_only_path_visits_all_servers() {
    for servers in [2, 3, 10, 200] {
        for (reverse, from_headroom) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let mut rows = chain(servers);
            if from_headroom {
                // A wish without tokens: so much could be taken where there is headroom that the
                // path is searched from there.
                rows.push((0, vec![(servers - 1, 1_000_000)]));
            }
            if reverse {
                rows.reverse();
            }
            let mut solver = Solver::new(configuration(&vec![100; servers as usize], &rows));
            let outcome = solver.solve();
            assert_eq!(outcome.effective_capacity, 100 * u64::from(servers));
            assert_eq!((outcome.paths, outcome.moves), (1, u64::from(servers) - 1));
            check(&mut solver, outcome);
        }
    }
}

#[test]
fn a_changed_certificate_is_refused() {
    let rows = [(10, vec![(0, 10)]), (10, vec![(0, 10), (1, 5)]), (10, vec![(2, 10)])];
    let mut solver = Solver::new(configuration(&[10, 100, 100], &rows));
    let outcome = solver.solve();
    assert_eq!((outcome.effective_capacity, outcome.weak_excess), (25, 5));
    let certificate = solver.certificate();
    assert_eq!(certificate.servers(), [0]);
    assert_eq!(certificate.buckets(solver.configuration()).collect::<Vec<_>>(), [0, 1]);
    let good = solver.configuration().clone();
    assert_eq!(certificate.verify(&good), Ok(()));
    // Another configuration: one that could do more.
    let mut other = Solver::new(good.clone());
    other.set_capacity(0, 11);
    assert_eq!(certificate.verify(other.configuration()), Err(Flaw::Bound { bound: 26 }));
    // The same with tokens where there is no gain from them.
    let mut worse = Solver::new(good);
    worse.start();
    let flaw = Flaw::Loose { effective_capacity: 23, bound: 25 };
    assert_eq!(certificate.verify(worse.configuration()), Err(flaw));
    // No tokens at all.
    let empty = configuration(&[10, 100, 100], &rows);
    assert_eq!(certificate.verify(&empty), Err(Flaw::Tokens { bucket: 0 }));
    // Of a larger cluster.
    let mut large = Solver::new(configuration(&[0; 9], &[(1, vec![(8, 1)])]));
    large.solve();
    let alien: Certificate = large.certificate();
    assert_eq!(alien.verify(solver.configuration()), Err(Flaw::Server { server: 8 }));
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let mut empty = Configuration::new(&[1, 2]);
    assert_eq!(empty.push(1, &[(0, 1), (2, 1)]), Err(Refused::NoSuchServer { server: 2 }));
    assert_eq!(empty, Configuration::new(&[1, 2]));
    assert_eq!(empty.push(1, &[(0, 1)]), Ok(0), "the first bucket");
    assert_eq!(empty.push(0, &[]), Ok(1), "the second");
    let mut solver = Solver::new(empty.clone());
    assert_eq!(solver.set(0, 1, &[(0, 1), (1, 1)]), Err(Refused::Full { capacity: 1 }));
    assert_eq!(solver.set(0, 1, &[(7, 1)]), Err(Refused::NoSuchServer { server: 7 }));
    assert_eq!(*solver.configuration(), empty);
}

#[test]
fn extreme_amounts_do_not_overflow() {
    let most = u32::MAX;
    let all: Vec<(u32, u32)> = (0..40).map(|server| (server, most)).collect();
    let few = vec![(0, most), (1, most), (2, 0)];
    let rows =
        [(u64::MAX, all.clone()), (u64::MAX - 1, few), (1, all), (0, vec![(3, 5)]), (7, vec![])];
    for capacity in [0, 1, u64::from(most), u64::from(most) * 2, u64::MAX] {
        let mut solver = Solver::new(configuration(&[capacity; 40], &rows));
        let outcome = solver.solve();
        let possible: u64 =
            [2, 2].into_iter().chain([1; 38]).map(|n| capacity.min(n * u64::from(most))).sum();
        let needed = 42 * u64::from(most);
        // The third bucket's token fits wherever there is headroom for one more.
        assert!((possible..=possible + 1).contains(&outcome.effective_capacity), "{outcome:?}");
        assert_eq!(outcome.effective_capacity + outcome.weak_excess, needed + 1);
        check(&mut solver, outcome);
        let met: u64 = solver.share_shortfall().met.iter().sum();
        assert_eq!(met, outcome.effective_capacity);
    }
}

#[test]
fn the_family_is_the_one_that_others_measure() {
    let family = Family { servers: 64, buckets: 10_000, reserved_tenths: 10, demand_tenths: 11 };
    let mut solver = Solver::new(family.configuration());
    let sum = |amounts: &mut dyn Iterator<Item = u64>| amounts.sum::<u64>();
    let reservations = solver.configuration().reservations().to_vec();
    assert_eq!(sum(&mut reservations.iter().copied()), 6_400_000);
    assert_eq!(
        (*reservations.iter().min().unwrap(), *reservations.iter().max().unwrap()),
        (130, 12_970)
    );
    let demands = |solver: &Solver| {
        sum(&mut solver.configuration().shares().iter().map(|share| u64::from(share.demand)))
    };
    assert_eq!(demands(&solver), 7_044_560);
    solver.start();
    let mut loads = [0; 64];
    for share in solver.configuration().shares() {
        loads[share.server as usize] += share.tokens;
    }
    assert_eq!(loads.iter().filter(|load| **load > 100_000).count(), 29);
    let outcome = solver.shift();
    assert_eq!(outcome.effective_capacity, 6_393_227);
    check(&mut solver, outcome);
}

/// Far more moves than there are shares: the lists of servers' shares are made anew on the way.
#[test]
fn what_changes_again_and_again_is_as_good_as_new() {
    let capacities = [10, 12, 9, 11, 8];
    let mut rows: Vec<Row> =
        (0..5).map(|server| (10, vec![(server, 9), ((server + 1) % 5, 3)])).collect();
    let mut solver = Solver::new(configuration(&capacities, &rows));
    solver.solve();
    for round in 0..100_u32 {
        let bucket = (round * 3 % 5) as usize;
        rows[bucket].1 = vec![(round % 5, 9 + round % 4), ((round * 7 + 1) % 5, 3 + round % 3)];
        solver.set(bucket, 10, &rows[bucket].1).unwrap();
        let outcome = solver.shift();
        assert_eq!(outcome.effective_capacity, maximum_flow(&capacities, &rows), "{round}");
        check(&mut solver, outcome);
    }
}

/// Servers' capacities, and buckets on some of them.
fn problems() -> impl Strategy<Value = (Vec<u64>, Vec<Row>)> {
    (2_usize..7).prop_flat_map(|servers| {
        let capacities =
            prop::collection::vec(prop_oneof![Just(0), 1_u64..60, 20_u64..30], servers);
        let demand = prop_oneof![Just(0_u32), 1_u32..40];
        let any = prop::collection::vec((0..servers as u32, demand.clone()), 0..11);
        // Most buckets have demand on the first server.
        let hot = prop::collection::vec((0..servers as u32, demand.clone()), 1..3).prop_map(
            |mut demands| {
                demands.push((0, 30));
                demands
            },
        );
        let two = (0..servers as u32, 1..servers as u32, demand.clone(), demand).prop_map(
            move |(one, off, here, there)| vec![(one, here), ((one + off) % servers as u32, there)],
        );
        // Some request far more than they were promised, so that paths are searched from servers
        // with headroom.
        let wish = (0_u64..3, prop::collection::vec((0..servers as u32, 300_u32..900), 1..3));
        let row = (0_u64..80, prop_oneof![any, hot, two]);
        (capacities, prop::collection::vec(prop_oneof![6 => row, 1 => wish], 0..14))
    })
}

/// Buckets that are changed, and to what.
fn changes() -> impl Strategy<Value = Vec<(usize, u64, u32)>> {
    prop::collection::vec((0_usize..14, 0_u64..80, 0_u32..40), 0..8)
}

/// How many tokens are where they were not.
fn moved(before: &Configuration, after: &Configuration) -> u64 {
    let pairs = before.shares().iter().zip(after.shares());
    pairs.map(|(old, new)| u64::from(new.tokens.saturating_sub(old.tokens))).sum()
}

proptest! {
    #[test]
    fn as_good_as_maximum_flow((capacities, rows) in problems()) {
        let mut solver = Solver::new(configuration(&capacities, &rows));
        let outcome = solver.solve();
        prop_assert_eq!(outcome.effective_capacity, maximum_flow(&capacities, &rows));
        check(&mut solver, outcome);
        // Once more, from what is there: nothing moves.
        let before = solver.configuration().clone();
        let again = solver.shift();
        prop_assert_eq!((again.paths, again.moved), (0, 0));
        prop_assert_eq!(solver.configuration(), &before);
        // And from the beginning: the same.
        solver.solve();
        prop_assert_eq!(solver.configuration(), &before);
    }

    #[test]
    fn the_start_is_in_proportion((capacities, rows) in problems()) {
        let mut solver = Solver::new(configuration(&capacities, &rows));
        solver.start();
        for (bucket, (_, demands)) in rows.iter().enumerate() {
            let demand: u64 = demands.iter().map(|(_, demand)| u64::from(*demand)).sum();
            let amount = solver.configuration().entitlement(bucket);
            let mut left = amount;
            let mut order: Vec<(u64, usize)> = Vec::new();
            let mut exact = Vec::new();
            for (index, (_, own)) in demands.iter().enumerate() {
                let product = amount * u64::from(*own);
                exact.push((product / demand.max(1)) as u32);
                left -= product / demand.max(1);
                order.push((u64::MAX - product % demand.max(1), index));
            }
            order.sort_unstable();
            order.iter().take(left as usize).for_each(|(_, index)| exact[*index] += 1);
            prop_assert_eq!(tokens(&solver, bucket), exact);
        }
    }

    #[test]
    fn what_changed_is_as_good_as_new(
        (mut capacities, mut rows) in problems(),
        steps in prop::collection::vec((changes(), 0_usize..7, 0_u64..60), 1..5),
    ) {
        let mut solver = Solver::new(configuration(&capacities, &rows));
        solver.solve();
        for (changes, server, capacity) in steps {
            for (bucket, reservation, demand) in changes {
                let Some(row) = rows.get_mut(bucket) else { continue };
                row.0 = reservation;
                for (index, (server, own)) in row.1.iter_mut().enumerate() {
                    *server = (*server + demand) % capacities.len() as u32;
                    *own = if index % 2 == 0 { demand } else { *own / 2 };
                }
                // One in three has demands on fewer servers than it can hold.
                let wanted = row.1.len() - usize::from(demand % 3 == 0 && !row.1.is_empty());
                row.1[wanted..].iter_mut().for_each(|(_, demand)| *demand = 0);
                solver.set(bucket, reservation, &row.1[..wanted]).unwrap();
            }
            if let Some(own) = capacities.get_mut(server) {
                *own = capacity;
                solver.set_capacity(server, capacity);
            }
            let outcome = solver.shift();
            prop_assert_eq!(outcome.effective_capacity, maximum_flow(&capacities, &rows));
            check(&mut solver, outcome);
        }
    }

    #[test]
    fn what_fits_stays_where_it_is((capacities, rows) in problems(), more in 0_u64..30) {
        let mut solver = Solver::new(configuration(&capacities, &rows));
        let outcome = solver.solve();
        let before = solver.configuration().clone();
        // The same again, for all buckets.
        for (bucket, (reservation, demands)) in rows.iter().enumerate() {
            solver.set(bucket, *reservation, demands).unwrap();
        }
        prop_assert_eq!(solver.shift().moved, 0);
        prop_assert_eq!(solver.configuration(), &before);
        // More capacity: what moves is what was missing, once for each server on its way.
        let before = solver.configuration().clone();
        for (server, capacity) in capacities.iter().enumerate() {
            solver.set_capacity(server, capacity + more);
        }
        let better = solver.shift();
        let gained = better.effective_capacity - outcome.effective_capacity;
        let steps = better.moved;
        prop_assert!(moved(&before, solver.configuration()) <= steps);
        prop_assert!(steps <= gained.max(outcome.weak_excess) * (capacities.len() as u64 - 1));
    }

    #[test]
    fn only_the_largest_move((capacities, rows) in problems(), most in 0_usize..8) {
        let mut solver = Solver::new(configuration(&capacities, &rows));
        solver.start();
        let start = solver.configuration().effective_capacity();
        let outcome = solver.solve_among(most);
        let best = maximum_flow(&capacities, &rows);
        prop_assert!((start..=best).contains(&outcome.effective_capacity));
        let certificate = solver.certificate();
        match certificate.verify(solver.configuration()) {
            Ok(()) => prop_assert_eq!(outcome.effective_capacity, best),
            Err(Flaw::Loose { effective_capacity, bound }) => {
                prop_assert_eq!(effective_capacity, outcome.effective_capacity);
                prop_assert!(effective_capacity < best && best <= bound);
            }
            Err(flaw) => prop_assert!(false, "{}", flaw),
        }
        if most >= rows.iter().map(|(_, demands)| demands.len()).sum() {
            prop_assert_eq!(outcome.effective_capacity, best);
        }
    }
}
