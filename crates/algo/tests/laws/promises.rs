//! Reservations, limits and weights together, period by period, against a closed form; and that no
//! tenant is better off later for requests that it did not send, or was not allowed, before.

use proptest::prelude::*;
use tidegate_algo::scheduling::scheduler::{
    Pacing, PeriodGrant, RequestCost, Scheduler, Slot, TenantParameters,
};
use tidegate_model::{Class, Discipline, Span, Time};

/// A tenant of a node that serves so many requests in a period.
#[derive(Clone, Debug)]
struct Tenant {
    weight: u32,
    is_urgent: bool,
    reserved: u64,
    /// More than that it may have, if it is limited.
    more: Option<u64>,
    /// How many requests it has at the beginning of a period.
    demand: u64,
}

impl Tenant {
    fn counts(&self) -> PeriodGrant {
        let allowed = self.more.map_or(u64::MAX, |more| self.reserved + more);
        PeriodGrant { reserved: self.reserved, allowed }
    }

    /// Requests that it gets where each unit of weight gets `level`.
    fn at(&self, level: f64) -> f64 {
        let most = self.demand.min(self.counts().allowed) as f64;
        (f64::from(self.weight) * level).max(self.reserved as f64).min(most)
    }
}

/// The greater of reservation and fair share, as far as there is demand and it is allowed.
fn expected(tenants: &[Tenant], capacity: u64) -> Vec<f64> {
    let (mut low, mut high) = (0.0, 1e7);
    for _ in 0..100 {
        let level = f64::midpoint(low, high);
        let used: f64 = tenants.iter().map(|tenant| tenant.at(level)).sum();
        if used < capacity as f64 { low = level } else { high = level }
    }
    tenants.iter().map(|tenant| tenant.at(low)).collect()
}

const CAPACITY: u64 = 240;

fn tenants() -> impl Strategy<Value = Vec<Tenant>> {
    let tenant = (1u32..9, any::<bool>(), 0u64..60, prop::option::of(0u64..90), 0u64..300);
    prop::collection::vec(tenant, 2..5).prop_map(|tenants| {
        let tenant = |(weight, is_urgent, reserved, more, demand)| Tenant {
            weight,
            is_urgent,
            reserved,
            more,
            demand,
        };
        tenants.into_iter().map(tenant).collect()
    })
}

/// Returns the tenants that were served in each period, by index, in the order of service.
fn periods(tenants: &[Tenant], count: u64) -> Vec<Vec<usize>> {
    let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Paper);
    let parameters = |tenant: &Tenant| TenantParameters::of_weight(tenant.weight);
    let slots: Vec<Slot> = tenants.iter().map(|tenant| scheduler.add(parameters(tenant))).collect();
    let mut periods = vec![];
    for period in 0..count {
        let now = Time(period * Span::SECOND.0);
        scheduler.begin(now, now.after(Span::SECOND));
        scheduler.cancel(now, |_| true);
        for (index, (tenant, slot)) in tenants.iter().zip(&slots).enumerate() {
            scheduler.grant(now, *slot, tenant.counts());
            let class = if tenant.is_urgent { Class::Urgent } else { Class::default() };
            for _ in 0..tenant.demand {
                scheduler.push_in_class(now, (*slot, class), RequestCost::ONE, index);
            }
        }
        let next = |_| scheduler.pop(now).map(|got| got.job);
        periods.push((0..CAPACITY).map_while(next).collect());
    }
    periods
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Reservations are never more than the node can do, as admission sees to: all are met, in
    /// every period. Beyond them each gets its share, within two requests of each tenant.
    #[test]
    fn each_gets_the_greater_of_reservation_and_share(tenants in tenants()) {
        let expected = expected(&tenants, CAPACITY);
        let slack = 2.0 * tenants.len() as f64;
        let is_urgent = |index: &usize| tenants[*index].is_urgent;
        let promised: u64 = tenants
            .iter()
            .filter(|tenant| tenant.is_urgent)
            .map(|tenant| tenant.reserved.min(tenant.demand))
            .sum();
        for order in periods(&tenants, 4) {
            for (index, tenant) in tenants.iter().enumerate() {
                let got = order.iter().filter(|other| **other == index).count() as u64;
                prop_assert!(got >= tenant.reserved.min(tenant.demand));
                prop_assert!(got <= tenant.counts().allowed);
                let apart = (got as f64 - expected[index]).abs();
                prop_assert!(apart <= slack, "tenant {index}: {got} of {}", expected[index]);
            }
            // Urgent ones go first as far as something is reserved for them, and no farther.
            prop_assert!(order[..promised as usize].iter().all(is_urgent));
            let demand: u64 = tenants.iter().map(|t| t.demand.min(t.counts().allowed)).sum();
            prop_assert_eq!(order.len() as u64, demand.min(CAPACITY));
        }
    }
}

/// Only requests that used reservation tokens are forgiven when the period ends: a tenant with a
/// small reservation and large requests does not get one of those for nothing in each period.
#[test]
fn fair_service_is_not_forgiven() {
    let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Paper);
    let [small, large] =
        [TenantParameters::of_weight(1); 2].map(|parameters| scheduler.add(parameters));
    scheduler.grant(Time::ZERO, large, PeriodGrant { reserved: 1, allowed: u64::MAX });
    let works = [1, 60];
    let request_cost = |job: usize| RequestCost { work: works[job], ..RequestCost::ONE };
    for (job, slot) in [small, large].into_iter().enumerate() {
        (0..2).for_each(|_| scheduler.push(Time::ZERO, slot, request_cost(job), job));
    }
    let mut served = [0u32; 2];
    for period in 1..=20 {
        scheduler.begin(Time::ZERO, Time(1_000));
        // A period is over when as much work was done as fits into all up to its end.
        while served[0] + served[1] < period * 200 {
            let got = scheduler.pop(Time::ZERO).unwrap();
            served[got.job] += works[got.job];
            scheduler.push(Time::ZERO, got.slot, request_cost(got.job), got.job);
        }
    }
    assert!(served[0].abs_diff(served[1]) <= 2 * 60, "{served:?}");
}

/// The disciplines that serve by weight or in rotation: all but first come, first served.
const FAIR: [Discipline; 6] = [
    Discipline::RoundRobin,
    Discipline::Token,
    Discipline::Sfq,
    Discipline::DsfqTotal,
    Discipline::DsfqHybrid,
    Discipline::Unified,
];

/// A node that serves a hundred requests per second.
struct Node {
    scheduler: Scheduler<usize>,
    slots: Vec<Slot>,
    served: Vec<u64>,
    now: Time,
}

impl Node {
    fn new(discipline: Discipline, weights: &[u32]) -> Self {
        let mut scheduler = Scheduler::new(discipline, Pacing::Even);
        let slots = weights
            .iter()
            .map(|weight| scheduler.add(TenantParameters::of_weight(*weight)))
            .collect();
        Self { scheduler, slots, served: vec![0; weights.len()], now: Time::ZERO }
    }

    /// From now on this tenant has two requests waiting.
    fn come(&mut self, index: usize) {
        (0..2).for_each(|_| {
            self.scheduler.push(self.now, self.slots[index], RequestCost::ONE, index)
        });
    }

    /// So many seconds; what each was served in them.
    fn run(&mut self, seconds: u64) -> Vec<u64> {
        self.served.fill(0);
        for tick in 0..seconds * 100 {
            if tick % 100 == 0 {
                self.scheduler.begin(self.now, self.now.after(Span::SECOND));
            }
            if let Some(got) = self.scheduler.pop(self.now) {
                self.served[got.job] += 1;
                self.scheduler.push(self.now, got.slot, RequestCost::ONE, got.job);
            }
            self.now = self.now.after(Span(Span::SECOND.0 / 100));
        }
        self.served.clone()
    }
}

/// A tenant that was idle, for however long, comes back level.
#[test]
fn idling_earns_no_credit() {
    for discipline in FAIR {
        for away in [1, 10, 60, 290] {
            let mut node = Node::new(discipline, &[1, 1]);
            node.come(0);
            node.come(1);
            assert_eq!(node.run(1), [50, 50]);
            node.scheduler.cancel(node.now, |job| *job == 1);
            assert_eq!(node.run(away), [away * 100, 0]);
            node.come(1);
            assert_eq!(node.run(1), [50, 50], "{discipline} after {away} s");
        }
    }
}

/// A tenant that its limit held back has no right to what it was not allowed, nor has another to
/// what that one did not take: when two others come, all are level at once.
#[test]
fn a_limit_earns_no_credit() {
    for discipline in [Discipline::Token, Discipline::Unified] {
        for before in [1, 10, 60, 290] {
            let mut node = Node::new(discipline, &[1, 1, 2, 2]);
            let limits = [u64::MAX, 25, 30, 30];
            for (slot, allowed) in node.slots.clone().into_iter().zip(limits) {
                node.scheduler.grant(node.now, slot, PeriodGrant { reserved: 0, allowed });
            }
            node.come(0);
            node.come(1);
            assert_eq!(node.run(before), [75 * before, 25 * before, 0, 0]);
            node.come(2);
            node.come(3);
            // 30 each for those who are limited, and what is left in equal parts.
            let served = node.run(1);
            let expected = [20u64, 20, 30, 30];
            let apart = served.iter().zip(expected).map(|(got, all)| got.abs_diff(all)).max();
            assert!(apart <= Some(1), "{discipline} after {before} s: {served:?}");
        }
    }
}

/// A limit that is spread over the period does not keep a tenant from what is reserved for it, and
/// neither does a node that is busy all the time.
#[test]
fn reservations_are_met_at_an_even_pace() {
    for discipline in [Discipline::Token, Discipline::Unified] {
        let mut node = Node::new(discipline, &[1, 1, 8]);
        let counts = [(50, 50), (30, u64::MAX), (0, u64::MAX)];
        for (slot, (reserved, allowed)) in node.slots.clone().into_iter().zip(counts) {
            node.scheduler.grant(node.now, slot, PeriodGrant { reserved, allowed });
        }
        (0..3).for_each(|index| node.come(index));
        for _ in 0..5 {
            let served = node.run(1);
            assert!(served[0] == 50 && served[1] >= 30, "{discipline}: {served:?}");
            if discipline == Discipline::Unified {
                assert_eq!(served, [50, 30, 20]);
            }
        }
    }
}

/// Only what weights are to each other counts, and not how great they are.
#[test]
fn weights_are_ratios() {
    for discipline in FAIR.into_iter().filter(|discipline| discipline.observes_weights()) {
        for scale in [1, 100, 300, 1_000, 250_000] {
            let mut node = Node::new(discipline, &[scale, 3 * scale]);
            node.come(0);
            node.come(1);
            assert_eq!(node.run(4), [100, 300], "{discipline} {scale}");
        }
        let mut node = Node::new(discipline, &[1, 1_000_000]);
        node.come(0);
        node.come(1);
        assert_eq!(node.run(100), [1, 9_999]);
    }
}
