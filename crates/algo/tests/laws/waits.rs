//! Nothing is lost and all waiting is accounted for, whatever changes while requests wait.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_algo::scheduling::dsfq::Bound;
use tidegate_algo::scheduling::scheduler::{
    Pacing, PeriodGrant, RequestCost, Scheduler, Slot, TenantParameters,
};
use tidegate_model::discipline::DISCIPLINES;
use tidegate_model::tag::CLASSES;
use tidegate_model::waits::WaitRule;
use tidegate_model::{Class, ClassWeights, Discipline, Span, Time, Waits};

#[derive(Clone, Debug)]
enum Act {
    Push(usize, Class, u32, u32),
    Pop,
    Complete,
    Grant(usize, u64, Option<u64>),
    SetParameters(usize, u32),
    Remove(usize),
    Cancel(u32),
    Switch(Discipline),
    Begin,
}

fn act() -> impl Strategy<Value = Act> {
    let tenant = 1usize..4;
    prop_oneof![
        10 => (0usize..4, 0..CLASSES.len(), 1u32..4, 0u32..9).prop_map(
            |(index, class, cost, delay)| Act::Push(index, CLASSES[class].0, cost, delay)
        ),
        10 => Just(Act::Pop),
        8 => Just(Act::Complete),
        4 => (tenant.clone(), 0u64..12, prop::option::of(0u64..30))
            .prop_map(|(index, reserved, more)| Act::Grant(index, reserved, more)),
        1 => (tenant.clone(), 1u32..9)
            .prop_map(|(index, weight)| Act::SetParameters(index, weight)),
        1 => tenant.prop_map(Act::Remove),
        1 => (2u32..6).prop_map(Act::Cancel),
        2 => (0..DISCIPLINES.len()).prop_map(|index| Act::Switch(DISCIPLINES[index].0)),
        2 => Just(Act::Begin),
    ]
}

/// A request at the node.
#[derive(Clone, Copy)]
struct Here {
    slot: Slot,
    cost: u32,
    /// Since when it is of this slot.
    since: Time,
}

/// The waits that a slot is expected to have.
#[derive(Default)]
struct Truth {
    dispatched: u64,
    gone: u64,
    seen: Waits,
}

struct WaitsSim {
    scheduler: Scheduler<u32>,
    slots: Vec<Slot>,
    waiting: BTreeMap<u32, Here>,
    at_device: Vec<Here>,
    truths: BTreeMap<Slot, Truth>,
    number: u32,
    now: Time,
}

impl WaitsSim {
    fn new(pacing: Pacing) -> Self {
        let mut scheduler = Scheduler::new(Discipline::Unified, pacing);
        scheduler.set_class_weights(Time::ZERO, ClassWeights::new(3, 2, 1));
        let bound = Bound::leaving(100_000, 1, 2);
        let mut slots = vec![Slot::UNATTRIBUTED];
        slots.extend((1..4).map(|weight| {
            scheduler.add(TenantParameters { bound, ..TenantParameters::of_weight(weight) })
        }));
        scheduler.begin(Time::ZERO, Time(1_000));
        Self {
            scheduler,
            slots,
            waiting: BTreeMap::new(),
            at_device: vec![],
            truths: BTreeMap::new(),
            number: 0,
            now: Time::ZERO,
        }
    }

    fn leave(&mut self, here: Here) {
        let truth = self.truths.entry(here.slot).or_default();
        truth.gone += self.now.since(here.since).0 * u64::from(here.cost);
    }

    fn act(&mut self, act: &Act) -> Result<(), TestCaseError> {
        let now = self.now;
        match *act {
            Act::Push(index, class, cost, delay) => {
                self.number += 1;
                let slot = self.slots[index];
                self.scheduler.push_in_class(
                    now,
                    (slot, class),
                    RequestCost { delay, ..RequestCost::of(cost) },
                    self.number,
                );
                self.waiting.insert(self.number, Here { slot, cost, since: now });
            }
            Act::Pop => self.pop()?,
            Act::Complete => {
                if !self.at_device.is_empty() {
                    let here = self.at_device.remove(0);
                    self.scheduler.complete(now, here.slot, here.cost);
                    self.leave(here);
                }
            }
            Act::Grant(index, reserved, more) => {
                let allowed = more.map_or(u64::MAX, |more| reserved + more);
                self.scheduler.grant(now, self.slots[index], PeriodGrant { reserved, allowed });
            }
            Act::SetParameters(index, weight) => {
                let parameters = TenantParameters { weight, bound: Bound::NONE };
                self.scheduler.set_parameters(now, self.slots[index], parameters);
            }
            Act::Remove(index) => self.remove(index),
            Act::Cancel(part) => {
                for job in self.scheduler.cancel(now, |job| job % part == 0) {
                    let here = self.waiting.remove(&job);
                    prop_assert_eq!(job % part, 0);
                    self.leave(here.ok_or_else(|| TestCaseError::fail("it was not waiting"))?);
                }
                prop_assert!(self.waiting.keys().all(|job| job % part != 0));
            }
            Act::Switch(discipline) => self.scheduler.set_discipline(now, discipline),
            Act::Begin => self.scheduler.begin(now, now.after(Span(1_000))),
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<(), TestCaseError> {
        let Some(got) = self.scheduler.pop(self.now) else {
            // A tenant that is held back becomes eligible at the time that the scheduler reports.
            prop_assert!(self.scheduler.next_eligible().is_none_or(|next| next > self.now));
            let is_held = self.scheduler.discipline().observes_promises();
            prop_assert!(is_held || self.waiting.is_empty());
            return Ok(());
        };
        let here = self.waiting.remove(&got.job);
        prop_assert_eq!(here.map(|here| (here.slot, here.cost)), Some((got.slot, got.cost)));
        self.at_device.extend(here);
        self.truths.entry(got.slot).or_default().dispatched += u64::from(got.cost);
        Ok(())
    }

    fn remove(&mut self, index: usize) {
        let old = self.slots[index];
        self.scheduler.remove(self.now, old);
        self.slots[index] = self.scheduler.add(TenantParameters::of_weight(1));
        self.truths.remove(&old);
        for here in self.waiting.values_mut().chain(&mut self.at_device) {
            if here.slot == old {
                *here = Here { slot: Slot::UNATTRIBUTED, since: self.now, ..*here };
            }
        }
    }

    /// Checks that the scheduler reports the true waits.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let now = self.now;
        for slot in &self.slots {
            let waits = self.scheduler.waits(now, *slot);
            let here = self.waiting.values().chain(&self.at_device);
            let here = here.filter(|here| here.slot == *slot);
            let still: u64 = here.map(|here| now.since(here.since).0 * u64::from(here.cost)).sum();
            let truth = self.truths.entry(*slot).or_default();
            prop_assert_eq!(waits.total_ns(), truth.gone + still);
            prop_assert_eq!(waits.operations, truth.dispatched);
            for rule in WaitRule::ALL {
                prop_assert!(waits.of(rule) >= truth.seen.of(rule), "{rule:?} fell");
            }
            truth.seen = waits;
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn each_request_and_each_nanosecond_is_accounted_for(
        is_even: bool,
        acts in prop::collection::vec((act(), 0u64..400, any::<bool>()), 0..200),
    ) {
        let mut world = WaitsSim::new(if is_even { Pacing::Even } else { Pacing::Paper });
        for (act, wait, is_checked) in acts {
            world.now = world.now.after(Span(wait));
            world.act(&act)?;
            if is_checked {
                world.check()?;
            }
        }
        // Without promises all that waits comes out.
        world.act(&Act::Switch(Discipline::Sfq))?;
        for _ in 0..world.waiting.len() {
            world.now = world.now.after(Span(10));
            world.act(&Act::Pop)?;
        }
        prop_assert!(world.waiting.is_empty() && world.scheduler.waiting() == 0);
        while !world.at_device.is_empty() {
            world.act(&Act::Complete)?;
        }
        world.check()?;
    }
}

/// Where only one rule can have held requests, all of the waiting is put down to it.
#[test]
fn a_single_cause_is_charged_alone() {
    let waits = |others: u64, own: PeriodGrant| {
        let mut scheduler = Scheduler::new(Discipline::Unified, Pacing::Even);
        scheduler.begin(Time::ZERO, Time(1_000));
        let [a, b] =
            [TenantParameters::of_weight(1); 2].map(|parameters| scheduler.add(parameters));
        scheduler.grant(Time::ZERO, a, own);
        let reserved = PeriodGrant { reserved: others, allowed: u64::MAX };
        scheduler.grant(Time::ZERO, b, reserved);
        (0..8).for_each(|_| scheduler.push(Time::ZERO, b, RequestCost::ONE, ()));
        (0..8).for_each(|_| scheduler.push(Time::ZERO, a, RequestCost::ONE, ()));
        // One goes in 10 ns, and is done at once.
        for step in 0..100 {
            let now = Time(step * 10);
            if let Some(got) = scheduler.pop(now) {
                scheduler.complete(now, got.slot, got.cost);
            }
        }
        let waits = scheduler.waits(Time(1_000), a);
        WaitRule::ALL.map(|rule| waits.of(rule))
    };
    let own: u64 = (0..8).map(|index| index * 10).sum();
    // Behind eight by reservation, each of them 80 ns, and then behind its own.
    let [limit, reservation, fairness, device] = waits(8, PeriodGrant::UNLIMITED);
    assert_eq!((limit, fairness), (0, 0));
    assert!(reservation >= 8 * 70 && device <= own + 8 * 10);
    assert_eq!(reservation + device, 8 * 80 + own);
    // Alternating with eight others.
    let [limit, reservation, fairness, device] = waits(0, PeriodGrant::UNLIMITED);
    assert_eq!((limit, reservation), (0, 0));
    assert!(fairness > 0 && fairness <= device + 8 * 10);
    // Four of eight are allowed, one in 250 ns; four are left at the end.
    let [limit, reservation, fairness, device] = waits(8, PeriodGrant { reserved: 0, allowed: 4 });
    assert_eq!((fairness, reservation + device), (0, 8 * 80));
    assert!(device <= 8 * 10 && limit >= 4 * 1_000);
}
