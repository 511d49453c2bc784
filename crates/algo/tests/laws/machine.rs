//! Every discipline, and every change between them, against a brute-force reading of the module's
//! own words: nothing is kept in order, each dispatch looks at all tenants.

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_algo::dsfq::Bound;
use tidegate_algo::scheduler::{Ask, Counts, Pacing, Scheduler, Slot, Terms, WINDOW};
use tidegate_model::discipline::DISCIPLINES;
use tidegate_model::{Discipline, Span, Time};

use super::tokens::Tokens;
use super::{PART, SCALES, WEIGHTS, bounds, heeded};

const NOW: Time = Time::ZERO;

struct Machine {
    discipline: Discipline,
    tenants: Vec<Tenant>,
    /// Where each step's race is.
    races: [u128; 3],
    /// Where the fair race was when windows began, the older first.
    windows: [u128; 2],
    periods: u32,
    number: u64,
}

struct Tenant {
    terms: Terms,
    tokens: Tokens,
    /// Where its last request ended among those that go by right, and in the fair race.
    right: u128,
    fair: u128,
    /// In parts of 2^16 of a unit of work.
    debt: u64,
    went_by_right: bool,
    elsewhere: u32,
    queue: VecDeque<Request>,
}

#[derive(Clone, Copy)]
struct Request {
    ask: Ask,
    number: u64,
}

impl Tenant {
    fn new(terms: Terms) -> Self {
        Self {
            terms,
            tokens: Tokens::unlimited(),
            right: 0,
            fair: 0,
            debt: 0,
            went_by_right: false,
            elsewhere: 0,
            queue: VecDeque::new(),
        }
    }

    fn length(&self, parts: u64) -> u128 {
        u128::from(parts) * PART / u128::from(self.terms.weight)
    }

    fn step(&self, discipline: Discipline) -> Option<usize> {
        self.queue.front()?;
        if !discipline.heeds_promises() {
            return Some(2);
        }
        let is_urgent = discipline == Discipline::Unified && self.terms.is_urgent;
        match self.tokens.left() {
            (true, _) => Some(usize::from(!is_urgent)),
            (false, true) => Some(2),
            (false, false) => None,
        }
    }

    fn delay(&self, discipline: Discipline, ask: Ask) -> u64 {
        let bound = self.terms.bound;
        if discipline == Discipline::Unified {
            ((u64::from(ask.delay) << 16) + self.debt).min(bound.of(ask.work))
        } else {
            heeded(discipline, bound, ask.work, ask.delay)
        }
    }

    fn fair_start(&self, discipline: Discipline, race: u128, ask: Ask) -> u128 {
        race.max(self.fair + self.length(self.delay(discipline, ask)))
    }

    /// Takes part in the fair race of [`Discipline::Unified`], from `start`.
    fn run(&mut self, start: u128, window: u128, ask: Ask) {
        let whole = self.fair + self.length((u64::from(ask.delay) << 16) + self.debt);
        let owed = whole.saturating_sub(start).min(window) * u128::from(self.terms.weight);
        self.debt = (owed / PART) as u64;
        self.fair = start + self.length(u64::from(ask.work) << 16);
    }
}

impl Machine {
    fn pop(&mut self) -> Option<(usize, u64)> {
        let discipline = self.discipline;
        let place = |(index, tenant): (usize, &Tenant)| {
            let step = tenant.step(discipline)?;
            let Request { ask, number } = *tenant.queue.front()?;
            let race = self.races[step];
            let start = match step {
                _ if discipline == Discipline::Fifo => u128::from(number),
                2 => tenant.fair_start(discipline, race, ask),
                _ => race.max(tenant.right),
            };
            Some((step, start, index))
        };
        let (step, start, index) = self.tenants.iter().enumerate().filter_map(place).min()?;
        let (fair, window) = (self.races[2], self.races[2] - self.windows[0]);
        self.races[step] = start;
        let tenant = &mut self.tenants[index];
        let Request { ask, number } = tenant.queue.pop_front()?;
        tenant.tokens.spend(u64::from(ask.cost), discipline.heeds_promises(), step < 2);
        let units = match discipline {
            Discipline::Token => ask.cost,
            Discipline::RoundRobin => 1,
            _ => ask.work,
        };
        let is_unified = discipline == Discipline::Unified;
        if step < 2 {
            tenant.right = start + tenant.length(u64::from(ask.cost) << 16);
            if is_unified {
                tenant.went_by_right = true;
                tenant.run(tenant.fair_start(discipline, fair, ask), window, ask);
            }
        } else if is_unified {
            tenant.went_by_right = false;
            tenant.run(start, window, ask);
        } else if discipline == Discipline::RoundRobin {
            tenant.fair = start + (PART << 16);
        } else if discipline != Discipline::Fifo {
            tenant.fair = start + tenant.length(u64::from(units) << 16);
        }
        Some((index, number))
    }

    fn begin(&mut self) {
        self.periods += 1;
        if self.periods.is_multiple_of(WINDOW / 2) {
            self.windows = [self.windows[1], self.races[2]];
        }
        for tenant in &mut self.tenants {
            tenant.tokens.begin();
            if core::mem::take(&mut tenant.went_by_right) {
                tenant.fair = tenant.fair.min(self.races[2]);
            }
        }
    }

    fn switch(&mut self, discipline: Discipline) {
        if core::mem::replace(&mut self.discipline, discipline) == discipline {
            return;
        }
        (self.races, self.windows) = ([0; 3], [0; 2]);
        for tenant in &mut self.tenants {
            (tenant.right, tenant.fair, tenant.debt) = (0, 0, 0);
            tenant.went_by_right = false;
        }
    }

    /// A request turned out to take more than it was dispatched with.
    fn charge(&mut self, index: usize, more: Ask, by_right: bool) {
        let Self { discipline, races, tenants, .. } = self;
        let tenant = &mut tenants[index];
        tenant.tokens.spend(u64::from(more.cost), discipline.heeds_promises(), by_right);
        let [cost, work] =
            [more.cost, more.work].map(|units| tenant.length(u64::from(units) << 16));
        let is_urgent = *discipline == Discipline::Unified && tenant.terms.is_urgent;
        let right = races[usize::from(!is_urgent)].max(tenant.right);
        let fair = races[2].max(tenant.fair);
        match (*discipline, by_right) {
            (Discipline::Fifo | Discipline::RoundRobin, _) => {}
            (Discipline::Token, true) => tenant.right = right + cost,
            (Discipline::Token, false) => tenant.fair = fair + cost,
            (Discipline::Unified, true) => {
                (tenant.right, tenant.fair) = (right + cost, fair + work);
                tenant.went_by_right = true;
            }
            _ => tenant.fair = fair + work,
        }
    }

    fn cancel(&mut self, which: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut cancelled = vec![];
        for tenant in &mut self.tenants {
            let mut untold = 0;
            for mut request in core::mem::take(&mut tenant.queue) {
                let delay = request.ask.delay.saturating_add(core::mem::take(&mut untold));
                request.ask.delay = delay;
                if which(request.number) {
                    untold = request.ask.delay;
                    cancelled.push(request.number);
                } else {
                    tenant.queue.push_back(request);
                }
            }
            tenant.elsewhere = tenant.elsewhere.saturating_add(untold);
        }
        cancelled
    }

    /// The tenant is another from now on, and what waited is nobody's.
    fn replace(&mut self, index: usize, terms: Terms) {
        let old = core::mem::replace(&mut self.tenants[index], Tenant::new(terms));
        self.tenants[0].queue.extend(old.queue);
    }

    fn set_terms(&mut self, index: usize, terms: Terms) {
        let tenant = &mut self.tenants[index];
        if tenant.terms.is_urgent != terms.is_urgent {
            tenant.right = 0;
        }
        tenant.terms = terms;
    }
}

#[derive(Clone, Debug)]
enum Act {
    Push(usize, Ask),
    Virtual(usize, u32),
    Pop(usize),
    Grant(usize, u64, Option<u64>),
    Terms(usize, Terms),
    Replace(usize, Terms),
    Charge(usize, Ask, bool),
    Cancel(u64),
    Switch(Discipline),
    /// Everything is said again, and asked for.
    Again(usize),
    Begin,
}

fn ask() -> impl Strategy<Value = Ask> {
    let delay = prop_oneof![2 => Just(0u32), 2 => 0u32..9, 1 => 0u32..100];
    (1u32..4, 1u32..9, delay).prop_map(|(cost, work, delay)| Ask { cost, work, delay })
}

fn terms() -> impl Strategy<Value = Terms> {
    (0..WEIGHTS.len(), any::<bool>(), 0usize..8).prop_map(|(weight, is_urgent, bound)| Terms {
        weight: WEIGHTS[weight],
        is_urgent,
        bound: bounds()[bound],
    })
}

fn act() -> impl Strategy<Value = Act> {
    let tenant = 1usize..5;
    prop_oneof![
        20 => (0usize..5, ask()).prop_map(|(index, ask)| Act::Push(index, ask)),
        3 => (0usize..5, 1u32..20).prop_map(|(index, work)| Act::Virtual(index, work)),
        20 => (1usize..4).prop_map(Act::Pop),
        6 => (tenant.clone(), 0u64..12, prop::option::of(0u64..30))
            .prop_map(|(index, reserved, more)| Act::Grant(index, reserved, more)),
        2 => (tenant.clone(), terms()).prop_map(|(index, terms)| Act::Terms(index, terms)),
        1 => (tenant, terms()).prop_map(|(index, terms)| Act::Replace(index, terms)),
        3 => (0usize..5, ask(), any::<bool>())
            .prop_map(|(index, ask, by_right)| Act::Charge(index, ask, by_right)),
        2 => (2u64..6).prop_map(Act::Cancel),
        1 => (0..DISCIPLINES.len()).prop_map(|index| Act::Switch(DISCIPLINES[index].0)),
        3 => (0usize..5).prop_map(Act::Again),
        4 => Just(Act::Begin),
    ]
}

/// The scheduler and the machine, to which the same is done.
struct Both {
    scale: u32,
    scheduler: Scheduler<u64>,
    slots: Vec<Slot>,
    machine: Machine,
}

impl Both {
    fn new(discipline: Discipline, terms: Vec<Terms>, scale: u32) -> Self {
        let mut scheduler = Scheduler::new(discipline, Pacing::Paper);
        let mut slots = vec![Slot::NOBODY];
        slots.extend(terms.iter().map(|terms| scheduler.add(*terms)));
        let nobody = Terms { weight: 1, is_urgent: false, bound: Bound::ZERO };
        let tenants = core::iter::once(nobody).chain(terms).map(Tenant::new).collect();
        let machine =
            Machine { discipline, tenants, races: [0; 3], windows: [0; 2], periods: 0, number: 0 };
        Self { scale, scheduler, slots, machine }
    }

    /// Says what the scheduler knows, and asks it: nothing comes of that.
    fn say_again(&mut self, index: usize) {
        let Self { scheduler, slots, machine, .. } = self;
        let Tenant { terms, tokens, .. } = &machine.tenants[index];
        let (terms, reserved, allowed) = (*terms, tokens.reserved, tokens.allowed);
        scheduler.set_terms(NOW, slots[index], terms);
        scheduler.grant(NOW, slots[index], Counts { reserved, allowed });
        scheduler.set_discipline(NOW, machine.discipline);
        scheduler.promote(NOW);
        scheduler.waits(NOW, slots[index]);
    }

    fn push(&mut self, index: usize, ask: Ask) {
        let Self { scale, scheduler, slots, machine } = self;
        let Machine { number, tenants, .. } = machine;
        let (work, delay) = (ask.work * *scale, ask.delay * *scale);
        let ask = Ask { work, delay, ..ask };
        scheduler.push(NOW, slots[index], ask, *number);
        let delay = delay.saturating_add(core::mem::take(&mut tenants[index].elsewhere));
        let request = Request { ask: Ask { delay, ..ask }, number: *number };
        tenants[index].queue.push_back(request);
        *number += 1;
    }

    fn act(&mut self, act: Act) -> Result<(), TestCaseError> {
        let Self { scale, scheduler, slots, machine } = self;
        match act {
            Act::Push(index, ask) => self.push(index, ask),
            Act::Virtual(index, work) => {
                let work = work * *scale;
                scheduler.delay(slots[index], u64::from(work));
                let may_go = |tenant: &Tenant| tenant.step(machine.discipline).is_some();
                if machine.tenants.iter().any(may_go) {
                    let elsewhere = &mut machine.tenants[index].elsewhere;
                    *elsewhere = elsewhere.saturating_add(work);
                }
            }
            Act::Pop(count) => {
                for _ in 0..count {
                    let got = scheduler.pop(NOW).map(|got| (got.slot, got.job));
                    let expected = machine.pop().map(|(index, job)| (slots[index], job));
                    prop_assert_eq!(got, expected);
                }
            }
            Act::Grant(index, reserved, more) => {
                let allowed = more.map_or(u64::MAX, |more| reserved + more);
                machine.tenants[index].tokens.grant(reserved, allowed);
                scheduler.grant(NOW, slots[index], Counts { reserved, allowed });
            }
            Act::Terms(index, terms) => {
                scheduler.set_terms(NOW, slots[index], terms);
                machine.set_terms(index, terms);
            }
            Act::Replace(index, terms) => {
                scheduler.remove(NOW, slots[index]);
                slots[index] = scheduler.add(terms);
                machine.replace(index, terms);
            }
            Act::Charge(index, ask, by_right) => {
                let more = Ask { work: ask.work * *scale, delay: 0, ..ask };
                scheduler.charge(NOW, slots[index], more, by_right);
                machine.charge(index, more, by_right);
            }
            Act::Cancel(part) => {
                let cancelled = scheduler.cancel(NOW, |job| job % part == 0);
                prop_assert_eq!(cancelled, machine.cancel(|job| job % part == 0));
            }
            Act::Switch(discipline) => {
                scheduler.set_discipline(NOW, discipline);
                machine.switch(discipline);
            }
            Act::Again(index) => self.say_again(index),
            Act::Begin => {
                scheduler.begin(NOW, NOW.after(Span::SECOND));
                machine.begin();
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn it_does_what_it_says(
        discipline in prop::sample::select(vec![
            Discipline::Unified, Discipline::Unified, Discipline::Token, Discipline::DsfqHybrid,
        ]),
        terms in prop::collection::vec(terms(), 4),
        acts in prop::collection::vec(act(), 0..250),
        scale in prop::sample::select(SCALES.to_vec()),
    ) {
        let mut both = Both::new(discipline, terms, scale);
        for act in acts {
            both.act(act)?;
            let Both { scheduler, slots, machine, .. } = &both;
            for (slot, tenant) in slots.iter().zip(&machine.tenants) {
                prop_assert_eq!(scheduler.served(*slot), tenant.tokens.served);
            }
        }
        both.machine.tenants.iter_mut().for_each(|tenant| tenant.tokens.grant(0, u64::MAX));
        for slot in &both.slots {
            both.scheduler.grant(NOW, *slot, Counts::UNLIMITED);
        }
        both.act(Act::Pop(both.machine.number as usize + 1))?;
        prop_assert_eq!(both.scheduler.waiting(), 0);
    }
}
