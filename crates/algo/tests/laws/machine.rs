//! Every discipline, and every change between them, against a brute-force reading of the module's
//! own words: nothing is kept in order, each dispatch examines all tenants.

use std::collections::VecDeque;

use proptest::prelude::*;
use tidegate_algo::scheduling::dsfq::Bound;
use tidegate_algo::scheduling::scheduler::{
    Pacing, PeriodGrant, RequestCost, Scheduler, Slot, TenantParameters, WINDOW,
};
use tidegate_model::discipline::DISCIPLINES;
use tidegate_model::{Discipline, Span, Time};

use super::tokens::Tokens;
use super::{PART, SCALES, WEIGHTS, applied_delay, bounds};

const NOW: Time = Time::ZERO;

struct Machine {
    discipline: Discipline,
    tenants: Vec<Tenant>,
    /// The virtual time of each phase.
    virtual_times: [u128; 3],
    /// The virtual time of the fair phase when windows began, the older first.
    windows: [u128; 2],
    periods: u32,
    number: u64,
}

struct Tenant {
    parameters: TenantParameters,
    tokens: Tokens,
    /// The finish tags of its last request in its reserved phase and in the fair phase.
    right: u128,
    fair: u128,
    /// In parts of 2^16 of a unit of work.
    debt: u64,
    used_reservation: bool,
    elsewhere: u32,
    queue: VecDeque<Request>,
}

#[derive(Clone, Copy)]
struct Request {
    request_cost: RequestCost,
    number: u64,
}

impl Tenant {
    fn new(parameters: TenantParameters) -> Self {
        Self {
            parameters,
            tokens: Tokens::unlimited(),
            right: 0,
            fair: 0,
            debt: 0,
            used_reservation: false,
            elsewhere: 0,
            queue: VecDeque::new(),
        }
    }

    fn length(&self, parts: u64) -> u128 {
        u128::from(parts) * PART / u128::from(self.parameters.weight)
    }

    fn step(&self, discipline: Discipline) -> Option<usize> {
        self.queue.front()?;
        if !discipline.observes_promises() {
            return Some(2);
        }
        let is_urgent = discipline == Discipline::Unified && self.parameters.is_urgent;
        match self.tokens.left() {
            (true, _) => Some(usize::from(!is_urgent)),
            (false, true) => Some(2),
            (false, false) => None,
        }
    }

    fn delay(&self, discipline: Discipline, request_cost: RequestCost) -> u64 {
        let bound = self.parameters.bound;
        if discipline == Discipline::Unified {
            ((u64::from(request_cost.delay) << 16) + self.debt).min(bound.of(request_cost.work))
        } else {
            applied_delay(discipline, bound, request_cost.work, request_cost.delay)
        }
    }

    fn fair_start(
        &self,
        discipline: Discipline,
        virtual_time: u128,
        request_cost: RequestCost,
    ) -> u128 {
        virtual_time.max(self.fair + self.length(self.delay(discipline, request_cost)))
    }

    /// Takes part in the fair phase of [`Discipline::Unified`], from `start`.
    fn run(&mut self, start: u128, window: u128, request_cost: RequestCost) {
        let whole = self.fair + self.length((u64::from(request_cost.delay) << 16) + self.debt);
        let owed = whole.saturating_sub(start).min(window) * u128::from(self.parameters.weight);
        self.debt = (owed / PART) as u64;
        self.fair = start + self.length(u64::from(request_cost.work) << 16);
    }
}

impl Machine {
    fn pop(&mut self) -> Option<(usize, u64)> {
        let discipline = self.discipline;
        let candidate = |(index, tenant): (usize, &Tenant)| {
            let step = tenant.step(discipline)?;
            let Request { request_cost, number } = *tenant.queue.front()?;
            let virtual_time = self.virtual_times[step];
            let start = match step {
                _ if discipline == Discipline::Fifo => u128::from(number),
                2 => tenant.fair_start(discipline, virtual_time, request_cost),
                _ => virtual_time.max(tenant.right),
            };
            Some((step, start, index))
        };
        let (step, start, index) = self.tenants.iter().enumerate().filter_map(candidate).min()?;
        let (fair, window) = (self.virtual_times[2], self.virtual_times[2] - self.windows[0]);
        self.virtual_times[step] = start;
        let tenant = &mut self.tenants[index];
        let Request { request_cost, number } = tenant.queue.pop_front()?;
        tenant.tokens.spend(u64::from(request_cost.cost), discipline.observes_promises(), step < 2);
        let units = match discipline {
            Discipline::Token => request_cost.cost,
            Discipline::RoundRobin => 1,
            _ => request_cost.work,
        };
        let is_unified = discipline == Discipline::Unified;
        if step < 2 {
            tenant.right = start + tenant.length(u64::from(request_cost.cost) << 16);
            if is_unified {
                tenant.used_reservation = true;
                tenant.run(tenant.fair_start(discipline, fair, request_cost), window, request_cost);
            }
        } else if is_unified {
            tenant.used_reservation = false;
            tenant.run(start, window, request_cost);
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
            self.windows = [self.windows[1], self.virtual_times[2]];
        }
        for tenant in &mut self.tenants {
            tenant.tokens.begin();
            if core::mem::take(&mut tenant.used_reservation) {
                tenant.fair = tenant.fair.min(self.virtual_times[2]);
            }
        }
    }

    fn switch(&mut self, discipline: Discipline) {
        if core::mem::replace(&mut self.discipline, discipline) == discipline {
            return;
        }
        (self.virtual_times, self.windows) = ([0; 3], [0; 2]);
        for tenant in &mut self.tenants {
            (tenant.right, tenant.fair, tenant.debt) = (0, 0, 0);
            tenant.used_reservation = false;
        }
    }

    /// A request turned out to take more than it was dispatched with.
    fn charge(&mut self, index: usize, more: RequestCost, by_reservation: bool) {
        let Self { discipline, virtual_times, tenants, .. } = self;
        let tenant = &mut tenants[index];
        tenant.tokens.spend(u64::from(more.cost), discipline.observes_promises(), by_reservation);
        let [cost, work] =
            [more.cost, more.work].map(|units| tenant.length(u64::from(units) << 16));
        let is_urgent = *discipline == Discipline::Unified && tenant.parameters.is_urgent;
        let right = virtual_times[usize::from(!is_urgent)].max(tenant.right);
        let fair = virtual_times[2].max(tenant.fair);
        match (*discipline, by_reservation) {
            (Discipline::Fifo | Discipline::RoundRobin, _) => {}
            (Discipline::Token, true) => tenant.right = right + cost,
            (Discipline::Token, false) => tenant.fair = fair + cost,
            (Discipline::Unified, true) => {
                (tenant.right, tenant.fair) = (right + cost, fair + work);
                tenant.used_reservation = true;
            }
            _ => tenant.fair = fair + work,
        }
    }

    fn cancel(&mut self, which: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut cancelled = vec![];
        for tenant in &mut self.tenants {
            let mut unreported = 0;
            for mut request in core::mem::take(&mut tenant.queue) {
                let delay =
                    request.request_cost.delay.saturating_add(core::mem::take(&mut unreported));
                request.request_cost.delay = delay;
                if which(request.number) {
                    unreported = request.request_cost.delay;
                    cancelled.push(request.number);
                } else {
                    tenant.queue.push_back(request);
                }
            }
            tenant.elsewhere = tenant.elsewhere.saturating_add(unreported);
        }
        cancelled
    }

    /// The tenant is another from now on, and what waited is unattributed.
    fn replace(&mut self, index: usize, parameters: TenantParameters) {
        let old = core::mem::replace(&mut self.tenants[index], Tenant::new(parameters));
        self.tenants[0].queue.extend(old.queue);
    }

    fn set_parameters(&mut self, index: usize, parameters: TenantParameters) {
        let tenant = &mut self.tenants[index];
        if tenant.parameters.is_urgent != parameters.is_urgent {
            tenant.right = 0;
        }
        tenant.parameters = parameters;
    }
}

#[derive(Clone, Debug)]
enum Act {
    Push(usize, RequestCost),
    Virtual(usize, u32),
    Pop(usize),
    Grant(usize, u64, Option<u64>),
    SetParameters(usize, TenantParameters),
    Replace(usize, TenantParameters),
    Charge(usize, RequestCost, bool),
    Cancel(u64),
    Switch(Discipline),
    /// All settings are repeated, and queried.
    Again(usize),
    Begin,
}

fn request_cost() -> impl Strategy<Value = RequestCost> {
    let delay = prop_oneof![2 => Just(0u32), 2 => 0u32..9, 1 => 0u32..100];
    (1u32..4, 1u32..9, delay).prop_map(|(cost, work, delay)| RequestCost { cost, work, delay })
}

fn parameters() -> impl Strategy<Value = TenantParameters> {
    (0..WEIGHTS.len(), any::<bool>(), 0usize..8).prop_map(|(weight, is_urgent, bound)| {
        TenantParameters { weight: WEIGHTS[weight], is_urgent, bound: bounds()[bound] }
    })
}

fn act() -> impl Strategy<Value = Act> {
    let tenant = 1usize..5;
    prop_oneof![
        20 => (0usize..5, request_cost()).prop_map(|(index, cost)| Act::Push(index, cost)),
        3 => (0usize..5, 1u32..20).prop_map(|(index, work)| Act::Virtual(index, work)),
        20 => (1usize..4).prop_map(Act::Pop),
        6 => (tenant.clone(), 0u64..12, prop::option::of(0u64..30))
            .prop_map(|(index, reserved, more)| Act::Grant(index, reserved, more)),
        2 => (tenant.clone(), parameters()).prop_map(|(index, new)| Act::SetParameters(index, new)),
        1 => (tenant, parameters()).prop_map(|(index, parameters)| Act::Replace(index, parameters)),
        3 => (0usize..5, request_cost(), any::<bool>())
            .prop_map(|(index, cost, by_reservation)| Act::Charge(index, cost, by_reservation)),
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
    fn new(discipline: Discipline, parameters: Vec<TenantParameters>, scale: u32) -> Self {
        let mut scheduler = Scheduler::new(discipline, Pacing::Paper);
        let mut slots = vec![Slot::UNATTRIBUTED];
        slots.extend(parameters.iter().map(|parameters| scheduler.add(*parameters)));
        let unattributed = TenantParameters { weight: 1, is_urgent: false, bound: Bound::ZERO };
        let tenants = core::iter::once(unattributed).chain(parameters).map(Tenant::new).collect();
        let machine = Machine {
            discipline,
            tenants,
            virtual_times: [0; 3],
            windows: [0; 2],
            periods: 0,
            number: 0,
        };
        Self { scale, scheduler, slots, machine }
    }

    /// Repeats what the scheduler knows, and queries it: nothing changes.
    fn repeat_settings(&mut self, index: usize) {
        let Self { scheduler, slots, machine, .. } = self;
        let Tenant { parameters, tokens, .. } = &machine.tenants[index];
        let (parameters, reserved, allowed) = (*parameters, tokens.reserved, tokens.allowed);
        scheduler.set_parameters(NOW, slots[index], parameters);
        scheduler.grant(NOW, slots[index], PeriodGrant { reserved, allowed });
        scheduler.set_discipline(NOW, machine.discipline);
        scheduler.promote(NOW);
        scheduler.waits(NOW, slots[index]);
    }

    fn push(&mut self, index: usize, request_cost: RequestCost) {
        let Self { scale, scheduler, slots, machine } = self;
        let Machine { number, tenants, .. } = machine;
        let (work, delay) = (request_cost.work * *scale, request_cost.delay * *scale);
        let request_cost = RequestCost { work, delay, ..request_cost };
        scheduler.push(NOW, slots[index], request_cost, *number);
        let delay = delay.saturating_add(core::mem::take(&mut tenants[index].elsewhere));
        let request =
            Request { request_cost: RequestCost { delay, ..request_cost }, number: *number };
        tenants[index].queue.push_back(request);
        *number += 1;
    }

    fn act(&mut self, act: Act) -> Result<(), TestCaseError> {
        let Self { scale, scheduler, slots, machine } = self;
        match act {
            Act::Push(index, request_cost) => self.push(index, request_cost),
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
                scheduler.grant(NOW, slots[index], PeriodGrant { reserved, allowed });
            }
            Act::SetParameters(index, parameters) => {
                scheduler.set_parameters(NOW, slots[index], parameters);
                machine.set_parameters(index, parameters);
            }
            Act::Replace(index, parameters) => {
                scheduler.remove(NOW, slots[index]);
                slots[index] = scheduler.add(parameters);
                machine.replace(index, parameters);
            }
            Act::Charge(index, request_cost, by_reservation) => {
                let more =
                    RequestCost { work: request_cost.work * *scale, delay: 0, ..request_cost };
                scheduler.charge(NOW, slots[index], more, by_reservation);
                machine.charge(index, more, by_reservation);
            }
            Act::Cancel(part) => {
                let cancelled = scheduler.cancel(NOW, |job| job % part == 0);
                prop_assert_eq!(cancelled, machine.cancel(|job| job % part == 0));
            }
            Act::Switch(discipline) => {
                scheduler.set_discipline(NOW, discipline);
                machine.switch(discipline);
            }
            Act::Again(index) => self.repeat_settings(index),
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
    fn the_scheduler_agrees_with_its_description(
        discipline in prop::sample::select(vec![
            Discipline::Unified, Discipline::Unified, Discipline::Token, Discipline::DsfqHybrid,
        ]),
        parameters in prop::collection::vec(parameters(), 4),
        acts in prop::collection::vec(act(), 0..250),
        scale in prop::sample::select(SCALES.to_vec()),
    ) {
        let mut both = Both::new(discipline, parameters, scale);
        for act in acts {
            both.act(act)?;
            let Both { scheduler, slots, machine, .. } = &both;
            for (slot, tenant) in slots.iter().zip(&machine.tenants) {
                prop_assert_eq!(scheduler.served(*slot), tenant.tokens.served);
            }
        }
        both.machine.tenants.iter_mut().for_each(|tenant| tenant.tokens.grant(0, u64::MAX));
        for slot in &both.slots {
            both.scheduler.grant(NOW, *slot, PeriodGrant::UNLIMITED);
        }
        both.act(Act::Pop(both.machine.number as usize + 1))?;
        prop_assert_eq!(both.scheduler.waiting(), 0);
    }
}
