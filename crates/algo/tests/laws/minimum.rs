//! The minimum share that a bound leaves (Eq. 11 and 12), whatever a stream was served elsewhere,
//! and what alternating bursts gain where the rest of a delay is forgotten.
//!
//! # The bound
//! Let a stream with share φ and bound κ wait throughout an interval in which virtual time moves by
//! *m*. From one of its starts to the next are at most c/φ + κc'/φ, where c and c' are the two
//! requests, so it is served W with (1 + κ) W / φ >= m - (1 + 2κ) c_max / φ. Of each other stream
//! *g*, starts are at least its requests apart, so it is served at most φ_g m + c_g. With
//! φ_min = φ / (1 + κ (1 - φ)) that is W >= φ_min (all - constant), where the constant is
//! sum c_g + (1 - φ) / φ * (1 + 2κ) c_max.

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_algo::scheduling::dsfq::{Bound, Elsewhere};
use tidegate_algo::scheduling::scheduler::{
    Pacing, RequestCost, Scheduler, Slot, TenantParameters,
};
use tidegate_model::{Discipline, Time};

use super::Random;

const NOW: Time = Time::ZERO;

#[derive(Clone, Debug)]
struct Stream {
    weight: u32,
    /// In millionths of the node; at most its share.
    minimum: u32,
    work_max: u32,
    delay_max: u32,
    /// Of a hundred requests, so many carry a delay.
    delayed: u32,
}

fn streams() -> impl Strategy<Value = Vec<Stream>> {
    let stream = (1u32..20, 1u32..=100, 1u32..20, 1u32..2_000, 0u32..=100);
    prop::collection::vec(stream, 2..6).prop_map(|streams| {
        let weights: u64 = streams.iter().map(|stream| u64::from(stream.0)).sum();
        let stream = |(weight, part, work_max, delay_max, delayed)| {
            let minimum = u64::from(weight) * u64::from(part) * 10_000 / weights;
            Stream { weight, minimum: minimum as u32, work_max, delay_max, delayed }
        };
        streams.into_iter().map(stream).collect()
    })
}

/// The constant of the bound for one of the streams, in units of work.
fn constant(streams: &[Stream], index: usize) -> f64 {
    let weights: u32 = streams.iter().map(|stream| stream.weight).sum();
    let work: u32 = streams.iter().map(|stream| stream.work_max).sum();
    let Stream { weight, minimum, work_max, .. } = streams[index];
    let share = f64::from(weight) / f64::from(weights);
    let kappa = (share / (f64::from(minimum) / 1e6) - 1.0) / (1.0 - share);
    let own = (1.0 - share) / share * (1.0 + 2.0 * kappa) * f64::from(work_max);
    f64::from(work - work_max) + own
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_minimum_is_kept_over_every_interval(
        discipline in prop::sample::select(vec![Discipline::DsfqHybrid, Discipline::Unified]),
        streams in streams(),
        seed: u64,
    ) {
        let weights = streams.iter().map(|stream| u64::from(stream.weight)).sum();
        let mut random = Random(seed);
        let mut scheduler = Scheduler::new(discipline, Pacing::Paper);
        let slots: Vec<Slot> = streams
            .iter()
            .map(|stream| {
                let bound = Bound::leaving(stream.minimum, stream.weight, weights);
                let parameters = TenantParameters::of_weight(stream.weight);
                scheduler.add(TenantParameters { bound, ..parameters })
            })
            .collect();
        let mut waiting: Vec<VecDeque<u32>> = vec![VecDeque::new(); streams.len()];
        // Work that each stream was served above its minimum: now, and at most since it has been
        // waiting.
        let mut above = vec![(0f64, 0f64); streams.len()];
        let mut is_away = vec![false; streams.len()];
        for _ in 0..600 {
            // Streams come and go; those that stay have two requests waiting before each dispatch.
            let index = random.next() as usize % streams.len();
            is_away[index] ^= random.within((0, 49)) == 0;
            for (index, stream) in streams.iter().enumerate() {
                while !is_away[index] && waiting[index].len() < 2 {
                    let work = random.within((1, stream.work_max));
                    let is_delayed = random.within((0, 99)) < stream.delayed;
                    let delay = if is_delayed { random.within((0, stream.delay_max)) } else { 0 };
                    let request_cost = RequestCost { work, delay, ..RequestCost::ONE };
                    scheduler.push(NOW, slots[index], request_cost, index);
                    waiting[index].push_back(work);
                }
            }
            let Some(got) = scheduler.pop(NOW) else { continue };
            let work = waiting[got.job].pop_front().unwrap();
            for (index, stream) in streams.iter().enumerate() {
                let (now, most) = &mut above[index];
                let own = if got.job == index { f64::from(work) } else { 0.0 };
                *now += own - f64::from(work) * f64::from(stream.minimum) / 1e6;
                *most = if waiting[index].is_empty() { *now } else { most.max(*now) };
                let least = f64::from(stream.minimum) / 1e6 * constant(&streams, index);
                prop_assert!(*most - *now <= least + 1e-6, "{} > {least}", *most - *now);
            }
        }
    }
}

/// *f* keeps two nodes busy with bursts of 64 requests to one and then to the other, *g* waits at
/// the first and *h* at the second. Returns the service of *f* in sum, and that of *g*, in
/// thousandths of one node.
fn bursts(discipline: Discipline) -> (u64, u64) {
    const BURST: u64 = 64;
    // κ = 18: a twentieth of half the node.
    let bound = Bound::leaving(50_000, 1, 2);
    let elsewhere = Elsewhere::new(2);
    let mut nodes = [(); 2].map(|()| {
        let mut scheduler = Scheduler::new(discipline, Pacing::Paper);
        let slots = [(); 2]
            .map(|()| scheduler.add(TenantParameters { bound, ..TenantParameters::of_weight(1) }));
        (0..2).for_each(|_| scheduler.push(NOW, slots[1], RequestCost::ONE, 1));
        (scheduler, slots, 0u64, 0u64)
    });
    let burst = |node: usize, scheduler: &mut Scheduler<usize>, slot| {
        for _ in 0..BURST {
            let request_cost = RequestCost { delay: elsewhere.sent(node, 1), ..RequestCost::ONE };
            scheduler.push(NOW, slot, request_cost, 0);
        }
    };
    for _ in 0..2 {
        for (index, (scheduler, slots, ..)) in nodes.iter_mut().enumerate() {
            burst(index, scheduler, slots[0]);
        }
    }
    for _ in 0..10_000 {
        for (index, (scheduler, slots, own, others)) in nodes.iter_mut().enumerate() {
            if scheduler.pop(NOW).is_some_and(|got| got.job == 1) {
                *others += 1;
                scheduler.push(NOW, slots[1], RequestCost::ONE, 1);
            } else {
                *own += 1;
                if own.is_multiple_of(BURST) {
                    burst(index, scheduler, slots[0]);
                }
            }
        }
    }
    ((nodes[0].2 + nodes[1].2) / 10, nodes[0].3 / 10)
}

/// The paper leaves it to future work: under HYBRID only the first request of a burst is delayed,
/// by no more than its bound. A debt delays those behind it, too.
#[test]
fn alternating_bursts_gain_nothing_where_debts_are_carried() {
    println!("\nBursts of 64 to two nodes in turn, against one stream at each; of 1,000 per node");
    println!("discipline     f    g");
    for discipline in
        [Discipline::Sfq, Discipline::DsfqHybrid, Discipline::DsfqTotal, Discipline::Unified]
    {
        let (f, g) = bursts(discipline);
        println!("{:11}  {f:3}  {g:3}", discipline.name());
        match discipline {
            Discipline::Sfq => assert_eq!((f, g), (1_000, 500)),
            Discipline::DsfqHybrid => assert!(f > g * 5 / 4),
            _ => assert!(f.abs_diff(g) <= 15),
        }
    }
}
