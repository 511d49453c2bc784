//! The theorems of the DSFQ paper over every interval of random runs.
//!
//! A difference of work per weight is given times both weights, so that everything is whole.

use proptest::prelude::*;
use tidegate_algo::scheduling::dsfq::Bound;
use tidegate_algo::scheduling::scheduler::TenantParameters;
use tidegate_model::Discipline;

use super::cluster::{Cluster, Counted, Gap, Pace, Source, Speed, Via};

const MILLISECOND: u64 = 1_000_000;

fn parameters(weight: u32) -> TenantParameters {
    TenantParameters { bound: Bound::NONE, ..TenantParameters::of_weight(weight) }
}

/// The right side of Theorem 1, for two streams of a node of depth `depth`.
fn bound_1(cluster: &Cluster, [f, g]: [usize; 2], depth: usize) -> i128 {
    let part = |stream, other: usize| {
        i128::from(cluster.work_max(stream)) * i128::from(cluster.weights[other])
    };
    (part(f, g) + part(g, f)) * (depth as i128 + 1)
}

/// The right side of Theorem 2 (Eq. 8), and of Theorem 4 with several coordinators (Eq. 9 and 10),
/// for two streams at a node, where queues are as long as they were, and nodes `depth` deep.
fn bound_2(cluster: &mut Cluster, [f, g]: [usize; 2], node: usize, depth: usize) -> i128 {
    let queue = cluster.nodes.iter().map(|node| node.queue_max).max().unwrap_or(0);
    let mut part = |stream, other: usize| {
        let outstanding = (depth as u64 + queue) * cluster.node_count(stream) + 1;
        let own = outstanding * cluster.work_max(stream);
        let elsewhere = (queue + 1) * cluster.batch_max(stream, node);
        i128::from(own + elsewhere) * i128::from(cluster.weights[other])
    };
    part(f, g) + part(g, f)
}

/// Streams at one node, of which some come later and go earlier.
fn streams_of_a_node() -> impl Strategy<Value = Vec<Source>> {
    let source = (1usize..12, 1u32..4, 0u32..12, 0u64..12, 5u64..24, any::<bool>());
    prop::collection::vec(source, 2..5).prop_map(|sources| {
        let source = |(stream, (threads, least, more, from, span, is_open))| {
            let pace = if is_open { Pace::Every(20_000) } else { Pace::Closed(threads) };
            let active = (from * MILLISECOND, (from + span) * MILLISECOND);
            Source { works: (least, least + more), active, ..Source::of(stream, 0, pace) }
        };
        (0..).zip(sources).map(source).collect()
    })
}

/// Streams that all wait at node 0, and for a while send to others, too.
fn streams_of_nodes(nodes: usize) -> impl Strategy<Value = Vec<Source>> {
    let elsewhere = (1usize..nodes, 1usize..6, any::<bool>(), 0u64..4, 1u64..8);
    let stream = (4usize..10, 1u32..4, 0u32..6, prop::option::of(elsewhere));
    prop::collection::vec(stream, 2..4).prop_map(|streams| {
        let mut sources = vec![];
        for (stream, (threads, least, more, elsewhere)) in (0..).zip(streams) {
            let own = Source {
                works: (least, least + more),
                via: Via::Any,
                ..Source::of(stream, 0, Pace::Closed(threads))
            };
            if let Some((node, threads, is_spread, from, span)) = elsewhere {
                let nodes = if is_spread { vec![0, node] } else { vec![node] };
                let pace = Pace::Closed(threads);
                let active = (from * MILLISECOND, (from + span) * MILLISECOND);
                sources.push(Source { nodes, pace, active, ..own.clone() });
            }
            sources.push(own);
        }
        sources
    })
}

fn pairs(streams: usize) -> Vec<[usize; 2]> {
    (0..streams).flat_map(|f| (0..f).map(move |g| [g, f])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Theorem 1: |W_f/φ_f - W_g/φ_g| <= (D + 1) (c_f/φ_f + c_g/φ_g), under all disciplines that
    /// share by weight, because at one node there is nothing else to count. Where requests count
    /// when they are dispatched, it is that of a depth of zero.
    #[test]
    fn theorem_1(
        discipline in prop::sample::select(vec![
            Discipline::Sfq, Discipline::DsfqTotal, Discipline::DsfqHybrid, Discipline::Unified,
        ]),
        weights in prop::collection::vec(1u32..20, 4),
        sources in streams_of_a_node(),
        (depth, unit, seed) in (1usize..9, 500u32..4_000, any::<u64>()),
    ) {
        let streams: Vec<TenantParameters> = weights.into_iter().map(parameters).collect();
        let speed = Speed { depth, unit, is_even: false };
        let mut cluster =
            Cluster::new(discipline, &[speed], &streams, sources.clone()).with_seed(seed);
        let pairs = pairs(sources.len());
        let gap = |pair: &[usize; 2]| {
            [Counted::Completed, Counted::Dispatched].map(|counted| Gap::new(0, *pair, counted))
        };
        let mut gaps: Vec<Gap> = pairs.iter().flat_map(gap).collect();
        let observe = |cluster: &Cluster| gaps.iter_mut().for_each(|gap| gap.observe(cluster));
        cluster.run(25 * MILLISECOND, observe);
        for (pair, gaps) in pairs.into_iter().zip(gaps.chunks(2)) {
            for (gap, depth) in gaps.iter().zip([depth, 0]) {
                let bound = bound_1(&cluster, pair, depth);
                prop_assert!(gap.widest <= bound, "{} > {bound}", gap.widest);
            }
        }
    }

    /// Theorems 2 and 4: what all nodes did for two streams that wait at one of them, through one
    /// coordinator or several.
    #[test]
    fn theorems_2_and_4(
        discipline in prop::sample::select(vec![Discipline::DsfqTotal, Discipline::Unified]),
        weights in prop::collection::vec(1u32..6, 3),
        sources in streams_of_nodes(3),
        (depth, unit, coordinators, seed) in (1usize..4, 500u32..4_000, 1usize..4, any::<u64>()),
    ) {
        let streams: Vec<TenantParameters> = weights.into_iter().map(parameters).collect();
        let count = sources.iter().map(|source| source.stream).max().unwrap_or(0) + 1;
        let speed = Speed { depth, unit, is_even: false };
        let speeds = [speed, Speed { unit: 3 * unit, ..speed }, Speed { unit: 5 * unit, ..speed }];
        let mut cluster = Cluster::new(discipline, &speeds, &streams, sources)
            .with_coordinators(coordinators)
            .with_seed(seed);
        let pairs = pairs(count);
        let gap = |pair: &[usize; 2]| Gap::new(0, *pair, Counted::Everywhere);
        let mut gaps: Vec<Gap> = pairs.iter().map(gap).collect();
        let observe = |cluster: &Cluster| gaps.iter_mut().for_each(|gap| gap.observe(cluster));
        cluster.run(8 * MILLISECOND, observe);
        for (pair, gap) in pairs.into_iter().zip(gaps) {
            let bound = bound_2(&mut cluster, pair, 0, depth);
            prop_assert!(gap.widest <= bound, "{} > {bound}", gap.widest);
        }
    }
}

/// How tight the bound of Theorem 1 is at depths from 1 to 64.
#[test]
fn theorem_1_measured() {
    println!("\nTheorem 1, weights 1 and 3, requests of 1 to 16 units");
    println!("depth  completed  bound  dispatched  bound");
    for depth in [1, 4, 16, 64] {
        let source = |stream, threads| Source {
            works: (1, 16),
            ..Source::of(stream, 0, Pace::Closed(threads))
        };
        let sources = vec![source(0, 2 * depth), source(1, 2 * depth + 3)];
        let speed = Speed { depth, unit: 1_000, is_even: false };
        let streams = [parameters(1), parameters(3)];
        let mut cluster = Cluster::new(Discipline::Sfq, &[speed], &streams, sources);
        let mut gaps =
            [Counted::Completed, Counted::Dispatched].map(|counted| Gap::new(0, [0, 1], counted));
        cluster
            .run(20 * MILLISECOND, |cluster| gaps.iter_mut().for_each(|gap| gap.observe(cluster)));
        let [bound, least] = [depth, 0].map(|depth| bound_1(&cluster, [0, 1], depth));
        let [completed, dispatched] = gaps.map(|gap| gap.widest);
        println!("{depth:5}  {completed:9}  {bound:5}  {dispatched:10}  {least:5}");
        assert!(completed <= bound && 4 * completed >= bound);
        assert!(dispatched <= least && 2 * dispatched >= least);
    }
}

/// The paper's Figure 3: *f* is on A only and *g* on A and B, where B is a third as fast. Through
/// one coordinator and through three.
fn figure_3(discipline: Discipline, coordinators: usize) -> (i128, i128) {
    let (depth, unit) = (4, 4_000);
    let source = |stream, node, threads| Source {
        works: (1, 8),
        via: Via::Any,
        ..Source::of(stream, node, Pace::Closed(threads))
    };
    let sources = vec![source(0, 0, 16), source(1, 0, 16), source(1, 1, 8)];
    let a = Speed { depth, unit, is_even: false };
    let speeds = [a, Speed { unit: 3 * unit, ..a }];
    let mut cluster = Cluster::new(discipline, &speeds, &[parameters(1); 2], sources)
        .with_coordinators(coordinators);
    let mut gap = Gap::new(0, [0, 1], Counted::Everywhere);
    cluster.run(50 * MILLISECOND, |cluster| gap.observe(cluster));
    (gap.widest, bound_2(&mut cluster, [0, 1], 0, depth))
}

/// The bound of Theorem 2 is not trivial: a scheduler that does not count service elsewhere breaks
/// it.
#[test]
fn theorems_2_and_4_measured() {
    println!("\nTheorems 2 and 4: f at A, g at A and B; work at all nodes");
    println!("discipline   coordinators  measured  bound");
    for discipline in [Discipline::DsfqTotal, Discipline::Unified, Discipline::Sfq] {
        for coordinators in [1, 3] {
            let (widest, bound) = figure_3(discipline, coordinators);
            println!("{:11}  {coordinators:12}  {widest:8}  {bound:5}", discipline.name());
            assert_eq!(widest <= bound, discipline != Discipline::Sfq);
        }
    }
}

/// Returns the rates per weight of streams that all wait at one node of this capacity, given their
/// rates per weight elsewhere: the lowest are filled first (Theorem 3). Rates per second.
fn filled(capacity: f64, streams: &[(u32, f64)]) -> Vec<f64> {
    let share = |level: f64| streams.iter().map(move |(_, other)| (level - other).max(0.0));
    let used = |level| share(level).zip(streams).map(|(part, (w, _))| part * f64::from(*w)).sum();
    let (mut low, mut high) = (0.0, 1e12);
    for _ in 0..100 {
        let level = f64::midpoint(low, high);
        let used: f64 = used(level);
        if used < capacity { low = level } else { high = level }
    }
    share(low).collect()
}

/// Theorem 3: in the limit all are equal, or those who get most elsewhere get nothing here.
#[test]
fn theorem_3() {
    let seconds = 4;
    // Weights, and requests per second elsewhere, of one unit each.
    let cases: [&[(u32, u32)]; 4] = [
        &[(1, 0), (1, 2_000), (1, 4_000)],
        &[(1, 0), (2, 4_000), (4, 2_000)],
        &[(1, 1_000), (1, 20_000)],
        &[(3, 0), (1, 3_000), (1, 12_000), (2, 40_000)],
    ];
    println!("\nTheorem 3: rates at a node of 10,000 per second that all wait at");
    println!("weight  elsewhere  expected  measured");
    for case in cases {
        let streams: Vec<TenantParameters> =
            case.iter().map(|(weight, _)| parameters(*weight)).collect();
        let (mut sources, mut speeds) = (vec![], vec![]);
        speeds.push(Speed { depth: 1, unit: 100_000, is_even: true });
        for (stream, (_, elsewhere)) in case.iter().enumerate() {
            sources.push(Source::of(stream, 0, Pace::Closed(4)));
            if *elsewhere > 0 {
                let pace = Pace::Every(1_000_000_000 / u64::from(*elsewhere));
                sources.push(Source::of(stream, speeds.len(), pace));
                speeds.push(Speed { depth: 4, unit: 20_000, is_even: true });
            }
        }
        let mut cluster = Cluster::new(Discipline::DsfqTotal, &speeds, &streams, sources);
        // Requests queued at first are served without any delay, and are not part of the limit.
        cluster.run(500 * MILLISECOND, |_| {});
        let before = cluster.nodes[0].completed.clone();
        cluster.run((500 + seconds * 1_000) * MILLISECOND, |_| {});
        let rate = |(weight, elsewhere): &(u32, u32)| {
            (*weight, f64::from(*elsewhere) / f64::from(*weight))
        };
        let expected = filled(10_000.0, &case.iter().map(rate).collect::<Vec<_>>());
        for (stream, (weight, elsewhere)) in case.iter().enumerate() {
            let expected = expected[stream] * f64::from(*weight);
            let done = cluster.nodes[0].completed[stream] - before[stream];
            let measured = done as f64 / seconds as f64;
            println!("{weight:6}  {elsewhere:9}  {expected:8.0}  {measured:8.1}");
            // Over four seconds, that is a hundred requests, of which eight are outstanding and
            // the others are what a stream gets that comes to nothing as time goes on.
            assert!((measured - expected).abs() <= 25.0);
        }
    }
}

/// Theorem 4's exception: *f* reaches A through one coordinator and B, half as fast, through the
/// other, so that no request of it reports to A about B. Reports in epochs close the exception.
#[test]
fn disjoint_partitions_are_counted_once_nodes_have_reports() {
    let run = |epoch: Option<u64>| {
        let source = |stream, node| Source {
            via: Via::One(node),
            ..Source::of(stream, node, Pace::Closed(16))
        };
        let sources = vec![source(0, 0), source(0, 1), source(1, 0)];
        let a = Speed { depth: 4, unit: 40_000, is_even: false };
        let speeds = [a, Speed { unit: 80_000, ..a }];
        let mut cluster =
            Cluster::new(Discipline::DsfqTotal, &speeds, &[parameters(1); 2], sources)
                .with_coordinators(2);
        if let Some(epoch) = epoch {
            cluster = cluster.with_epoch(epoch);
        }
        cluster.run(1_000 * MILLISECOND, |_| {});
        let node_b = cluster.nodes[1].completed[0];
        (cluster.completed(0), cluster.completed(1), node_b)
    };
    println!("\nTheorem 4's exception: f at A and B through different coordinators, g at A");
    let (f, g, at_b) = run(None);
    println!("nothing told: f {f}, g {g}, of which f at B {at_b}");
    assert!((f - g).abs_diff(at_b) <= 16, "f has half of A and all of B");
    for epoch in [1, 10, 100] {
        let (f, g, at_b) = run(Some(epoch * MILLISECOND));
        // The work of B in an epoch is reported at its end, and then waits behind the queue at A.
        let bound = at_b * (epoch + 2) / 1_000 + 64;
        println!("told each {epoch} ms: f {f}, g {g}, apart {}, bound {bound}", f.abs_diff(g));
        assert!(f.abs_diff(g) <= bound);
    }
}
