//! Shards under threads that are steps of a random schedule: a thread may be stopped between any
//! two of them, as long as the schedule likes.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use proptest::prelude::*;
use tidegate_model::{Class, ClassWeights, Discipline};

use super::*;
use crate::scheduling::device::Device;
use crate::scheduling::scheduler::{
    Pacing, PeriodGrant, RequestCost, Scheduler, Slot, TenantParameters,
};

const NOW: Time = Time::ZERO;
/// The length of a unit of work at weight one: a number that all weights here divide.
const LENGTH: i64 = 720_720;
const WORK_MAX: u32 = 4;
/// Headroom that a thread takes at a time, and the depth of the device.
const BATCH: u32 = 8;
const DEPTH: u32 = 12;

struct Tenant {
    slot: Slot,
    class: Class,
    /// Requests that were dispatched.
    served: u64,
    weight: u32,
    waiting: u32,
    /// How far it is, in [`LENGTH`], by what was dispatched.
    position: i64,
}

impl Tenant {
    fn longest(&self) -> i64 {
        i64::from(WORK_MAX) * LENGTH / i64::from(self.weight)
    }
}

#[derive(Debug)]
enum Thread {
    /// It found nothing to do.
    Idle,
    /// It has put something in, or made headroom.
    Checking,
    /// It has headroom at the device and is about to lock a shard.
    Taking { shard: usize, others: OtherShards, headroom: u32 },
    /// Its requests are at the device.
    Waiting(Vec<(Slot, u32)>),
    /// It has requests for a shard and is about to lock it.
    Putting { tenant: usize, count: u32, others: OtherShards },
}

struct ShardSim {
    shard_heads: ShardHeads,
    device: Device,
    schedulers: Vec<Scheduler<usize>>,
    tenants: Vec<Tenant>,
    threads: Vec<Thread>,
    /// For each pair of tenants, the least and the greatest distance since both have been waiting.
    distances: Vec<Option<Range<i64>>>,
    random: u64,
}

impl ShardSim {
    fn new(shards: usize, threads: usize, weights: &[u32], random: u64) -> Self {
        let discipline = Discipline::Sfq;
        let scheduler = |shard| Scheduler::in_shard(shard, discipline, Pacing::Paper);
        let mut schedulers: Vec<_> = (0..shards as u16).map(scheduler).collect();
        let tenant = |(index, weight): (usize, &u32)| {
            let slot = schedulers[index % shards].add(TenantParameters::of_weight(*weight));
            assert_eq!(slot.shard(), index % shards);
            Tenant {
                slot,
                class: Class::default(),
                served: 0,
                weight: *weight,
                waiting: 0,
                position: 0,
            }
        };
        let tenants: Vec<Tenant> = weights.iter().enumerate().map(tenant).collect();
        Self {
            shard_heads: ShardHeads::new(shards),
            device: Device::new(DEPTH, shards),
            schedulers,
            distances: vec![None; tenants.len() * tenants.len()],
            tenants,
            threads: (0..threads).map(|_| Thread::Idle).collect(),
            random,
        }
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as u32 % bound
    }

    fn put(&mut self, tenant: usize, count: u32, others: &OtherShards) {
        let works: Vec<u32> = (0..count).map(|_| 1 + self.below(WORK_MAX)).collect();
        let Tenant { slot, class, .. } = self.tenants[tenant];
        let scheduler = &mut self.schedulers[slot.shard()];
        scheduler.observe(others);
        for work in works {
            let request_cost = RequestCost { work, ..RequestCost::ONE };
            let job = tenant << 8 | work as usize;
            scheduler.push_in_class(NOW, (slot, class), request_cost, job);
        }
        self.shard_heads.show(slot.shard(), &scheduler.shard_head());
        self.tenants[tenant].waiting += count;
    }

    fn take(&mut self, shard: usize, others: &OtherShards, headroom: u32) -> Vec<(Slot, u32)> {
        let scheduler = &mut self.schedulers[shard];
        scheduler.observe(others);
        let mut batch = Vec::new();
        while batch.len() < headroom as usize
            && let Some(next) = scheduler.pop_beside(NOW, others)
        {
            let (tenant, work) = (next.job >> 8, (next.job & 0xff) as i64);
            let tenant = &mut self.tenants[tenant];
            tenant.waiting -= 1;
            tenant.served += 1;
            tenant.position += work * LENGTH / i64::from(tenant.weight);
            batch.push((next.slot, next.cost));
        }
        self.shard_heads.show(shard, &scheduler.shard_head());
        self.device.release(headroom - batch.len() as u32);
        batch
    }

    /// One step of a thread, which has its own shard; with `comes`, an idle one brings requests.
    fn step(&mut self, number: usize, comes: bool) {
        let own = number % self.schedulers.len();
        let thread = core::mem::replace(&mut self.threads[number], Thread::Idle);
        self.threads[number] = match thread {
            Thread::Idle if comes => {
                let tenant = self.below(self.tenants.len() as u32) as usize;
                let others = self.shard_heads.others(self.tenants[tenant].slot.shard());
                Thread::Putting { tenant, count: 1 + self.below(40), others }
            }
            Thread::Idle => Thread::Idle,
            Thread::Putting { tenant, count, others } => {
                self.put(tenant, count, &others);
                Thread::Checking
            }
            Thread::Checking => match self.shard_heads.next(NOW, own) {
                None => Thread::Idle,
                Some(shard) => match self.device.reserve(BATCH) {
                    0 => Thread::Idle,
                    headroom => {
                        Thread::Taking { shard, others: self.shard_heads.others(shard), headroom }
                    }
                },
            },
            Thread::Taking { shard, others, headroom } => match self.take(shard, &others, headroom)
            {
                none if none.is_empty() => Thread::Checking,
                batch => Thread::Waiting(batch),
            },
            Thread::Waiting(batch) => {
                for (slot, cost) in &batch {
                    self.schedulers[slot.shard()].complete(NOW, *slot, *cost);
                }
                self.device.release(batch.len() as u32);
                Thread::Checking
            }
        };
    }

    /// Checks that two tenants that have been waiting ever since are as near to each other as they
    /// are to be: by so many requests of each, and two leads.
    fn check(&mut self, requests: i64) -> Result<(), TestCaseError> {
        let count = self.tenants.len();
        let lead = 2 * i64::from(LEAD) * self.tenants.iter().map(Tenant::longest).max().unwrap();
        for (index, span) in self.distances.iter_mut().enumerate() {
            let [f, g] = [index / count, index % count].map(|index| &self.tenants[index]);
            if index / count >= index % count {
                continue;
            }
            if f.waiting == 0 || g.waiting == 0 {
                *span = None;
                continue;
            }
            let distance = f.position - g.position;
            let Range { start, end } = span.clone().unwrap_or(distance..distance);
            let (start, end) = (start.min(distance), end.max(distance));
            *span = Some(start..end);
            let bound = requests * (f.longest() + g.longest()) + 2 * lead;
            prop_assert!(end - start <= bound, "{} > {bound}", end - start);
        }
        Ok(())
    }

    /// Runs all threads until none has anything to do, and checks that this is right.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        while !self.threads.iter().all(|thread| matches!(thread, Thread::Idle)) {
            let number = self.below(self.threads.len() as u32) as usize;
            self.step(number, false);
        }
        prop_assert_eq!(self.device.in_flight(), 0);
        prop_assert_eq!(self.tenants.iter().map(|tenant| tenant.waiting).sum::<u32>(), 0);
        Ok(())
    }
}

fn shards() -> impl Strategy<Value = usize> {
    prop_oneof![Just(1usize), Just(2), Just(5), Just(16)]
}

fn weights() -> impl Strategy<Value = Vec<u32>> {
    let weight = prop_oneof![Just(1u32), Just(2), Just(3), Just(8), Just(16)];
    prop::collection::vec(weight, 2..12)
}

proptest! {
    /// The bound of one scheduler and two leads, whoever is stopped where.
    #[test]
    fn backlogged_tenants_are_served_alike(
        (shards, threads, weights, random) in (shards(), 1usize..6, weights(), any::<u64>()),
    ) {
        let mut world = ShardSim::new(shards, threads, &weights, random);
        for tenant in 0..weights.len() {
            let others = world.shard_heads.others(world.tenants[tenant].slot.shard());
            world.put(tenant, 200, &others);
        }
        world.threads.iter_mut().for_each(|thread| *thread = Thread::Checking);
        let mut number = 0;
        for _ in 0..600 {
            // A thread often goes on for long while others do not.
            if world.below(8) == 0 {
                number = world.below(threads as u32) as usize;
            }
            world.step(number, false);
            world.check(1)?;
        }
        world.settle()?;
    }

    /// Tenants that come and go: what is at the device may have been taken out before they came.
    /// Nothing is left when all threads have gone.
    #[test]
    fn arriving_tenants_have_no_credit_and_all_tenants_are_served(
        (shards, threads, weights, random) in (shards(), 1usize..6, weights(), any::<u64>()),
    ) {
        let mut world = ShardSim::new(shards, threads, &weights, random);
        let mut number = 0;
        for _ in 0..1_000 {
            if world.below(4) == 0 {
                number = world.below(threads as u32) as usize;
            }
            let comes = world.below(3) == 0;
            world.step(number, comes);
            world.check(1 + i64::from(DEPTH))?;
        }
        world.settle()?;
    }

    /// Reserved requests go first, in whichever shard, and no request beyond the allowed count.
    #[test]
    fn steps_are_common(
        counts in prop::collection::vec((0u64..20, 0u64..20), 1..12),
        shards in shards(),
        random in any::<u64>(),
    ) {
        let mut world = ShardSim::new(shards, 1, &vec![1; counts.len()], random);
        for scheduler in &mut world.schedulers {
            scheduler.set_discipline(NOW, Discipline::Unified);
            scheduler.begin(NOW, Time(1_000));
        }
        for (tenant, (reserved, more)) in counts.iter().enumerate() {
            let others = world.shard_heads.others(tenant % shards);
            world.put(tenant, 30, &others);
            let counts = PeriodGrant { reserved: *reserved, allowed: reserved + more };
            let slot = world.tenants[tenant].slot;
            world.schedulers[slot.shard()].grant(NOW, slot, counts);
            world.shard_heads.show(slot.shard(), &world.schedulers[slot.shard()].shard_head());
        }
        let mut served = vec![0; counts.len()];
        while let Some(shard) = world.shard_heads.next(NOW, 0) {
            let others = world.shard_heads.others(shard);
            let scheduler = &mut world.schedulers[shard];
            scheduler.observe(&others);
            let Some(next) = scheduler.pop_beside(NOW, &others) else {
                return Err(TestCaseError::fail("it is this shard's turn"));
            };
            world.shard_heads.show(shard, &scheduler.shard_head());
            let left = |(tenant, count): (usize, &(u64, u64))| count.0.min(30) > served[tenant];
            prop_assert_eq!(next.is_reserved, counts.iter().enumerate().any(left));
            served[next.job >> 8] += 1;
        }
        let all = counts.iter().map(|(reserved, more)| (reserved + more).min(30));
        let all: Vec<u64> = all.collect();
        prop_assert_eq!(served, all);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// A class counts once, in however many shards its requests wait: while the same classes are
    /// backlogged, each is served by its weight, within one burst of each thread.
    #[test]
    fn classes_take_turns_in_common(
        (shards, threads) in (shards(), 1usize..5),
        classes in prop::collection::vec(0usize..3, 2..9),
        random in any::<u64>(),
    ) {
        const CLASS: [(Class, u64); 3] = [(Class::High, 3), (Class::Medium, 2), (Class::Low, 1)];
        let mut world = ShardSim::new(shards, threads, &vec![1; classes.len()], random);
        for scheduler in &mut world.schedulers {
            scheduler.share_turns(&world.shard_heads);
            scheduler.set_class_weights(NOW, ClassWeights::new(3, 2, 1));
        }
        for (tenant, class) in classes.iter().enumerate() {
            world.tenants[tenant].class = CLASS[*class].0;
            let others = world.shard_heads.others(tenant % shards);
            world.put(tenant, 6_000, &others);
        }
        world.threads.fill_with(|| Thread::Checking);
        let all = |world: &ShardSim| world.tenants.iter().map(|tenant| tenant.served).sum::<u64>();
        while all(&world) < 6_000 {
            let number = world.below(threads as u32) as usize;
            world.step(number, false);
            if matches!(world.threads[number], Thread::Idle) {
                world.threads[number] = Thread::Checking;
            }
        }
        let present = |class: &usize| classes.contains(class);
        let weights: u64 = (0..3).filter(present).map(|class| CLASS[class].1).sum();
        for class in (0..3).filter(present) {
            let own = world.tenants.iter().filter(|tenant| tenant.class == CLASS[class].0);
            let served: u64 = own.map(|tenant| tenant.served).sum();
            let expected = all(&world) * CLASS[class].1 / weights;
            let slack = u64::from(LEAD) * 3 + threads as u64 * u64::from(BATCH);
            prop_assert!(served.abs_diff(expected) <= slack, "{class}: {served} of {expected}");
        }
    }
}

/// A shard that was idle while another served a million requests is not a million behind.
#[test]
fn an_idle_shard_earns_nothing() {
    let mut world = ShardSim::new(2, 1, &[1, 1], 1);
    let serve = |world: &mut ShardSim, count: u32| {
        for _ in 0..count {
            let Some(shard) = world.shard_heads.next(NOW, 0) else { return };
            let others = world.shard_heads.others(shard);
            world.device.reserve(1);
            assert_eq!(world.take(shard, &others, 1).len(), 1);
            world.device.release(1);
        }
    };
    world.put(0, 100_000, &OtherShards::NONE);
    serve(&mut world, 50_000);
    let others = world.shard_heads.others(1);
    world.put(1, 1_000, &others);
    let before = world.tenants[1].waiting;
    serve(&mut world, 1_000);
    let served = before - world.tenants[1].waiting;
    assert!((400..600).contains(&served), "{served} of 1,000");
}

/// First come, first served, whichever shard they wait in.
#[test]
fn arrivals_have_one_order() {
    let shard_heads = ShardHeads::new(3);
    let scheduler = |shard| Scheduler::in_shard(shard, Discipline::Fifo, Pacing::Paper);
    let mut schedulers = [0, 1, 2].map(scheduler);
    let slots =
        schedulers.each_mut().map(|scheduler| scheduler.add(TenantParameters::of_weight(1)));
    for (number, shard) in [2, 0, 1, 1, 2, 0, 0, 1, 2].into_iter().enumerate() {
        let now = Time(number as u64 * 1_000_000);
        schedulers[shard].push(now, slots[shard], RequestCost::ONE, number);
        shard_heads.show(shard, &schedulers[shard].shard_head());
    }
    let mut order = Vec::new();
    while let Some(shard) = shard_heads.next(NOW, 1) {
        let others = shard_heads.others(shard);
        schedulers[shard].observe(&others);
        order.extend(schedulers[shard].pop_beside(NOW, &others).map(|next| next.job));
        shard_heads.show(shard, &schedulers[shard].shard_head());
    }
    assert_eq!(order, Vec::from_iter(0..9));
}

proptest! {
    /// In any state, one of the shards gives the next request after each has been checked once: at
    /// the end of periods leads shrink, and the shards behind are moved along.
    #[test]
    fn a_request_is_always_next(
        (shards, weights, random) in (shards(), weights(), any::<u64>()),
    ) {
        let mut world = ShardSim::new(shards, 1, &weights, random);
        for iteration in 0..400 {
            let tenant = world.below(weights.len() as u32) as usize;
            let others = world.shard_heads.others(tenant % shards);
            world.put(tenant, 4, &others);
            if iteration % 20 == 0 {
                world.schedulers.iter_mut().for_each(|scheduler| scheduler.begin(NOW, NOW));
            }
            for _ in 0..3 {
                let mut visits = 0;
                while let Some(shard) = world.shard_heads.next(NOW, 0) {
                    let others = world.shard_heads.others(shard);
                    world.device.reserve(1);
                    if !world.take(shard, &others, 1).is_empty() {
                        world.device.release(1);
                        break;
                    }
                    visits += 1;
                    prop_assert!(visits <= shards, "no request is next");
                }
            }
        }
    }

    /// The shown starts have the order of the starts, which are hardly larger.
    #[test]
    fn starts_are_shown_in_their_order(
        (left, right) in (any::<u128>(), any::<u128>()),
        (shift, other) in (0u32..128, 0u32..128),
    ) {
        let (left, right) = (left >> shift, right >> other);
        let shown = long(short(left));
        prop_assert!(shown <= left && left - shown <= left >> (MANTISSA - 1));
        prop_assert!(left.cmp(&right) as i32 * short(left).cmp(&short(right)) as i32 >= 0);
        let (earlier, later) = (key(Phase::Urgent, left), key(Phase::Reserved, right));
        prop_assert!(earlier < later && later < key(Phase::Fair, 0));
        prop_assert!(key(Phase::Fair, u128::MAX) < NO_REQUEST);
        prop_assert_eq!(long(key(Phase::Fair, left)), shown);
    }
}
