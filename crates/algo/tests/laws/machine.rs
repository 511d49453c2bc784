//! Every discipline, and every change between them, against a brute-force reading of the module's
//! own words: nothing is kept in order, each dispatch examines all tenants.

use proptest::prelude::*;
use tidegate_algo::scheduling::dsfq::Bound;
use tidegate_algo::scheduling::scheduler::{
    Pacing, PeriodGrant, RequestCost, Scheduler, Slot, TenantParameters, WINDOW,
};
use tidegate_model::discipline::DISCIPLINES;
use tidegate_model::tag::CLASSES;
use tidegate_model::{Class, ClassWeights, Discipline, Span, Time};

use super::classes::{HIGH, LAST_TURN, MEDIUM, Request, Rules, Turn, next_turn, split};
use super::tokens::Tokens;
use super::{PART, SCALES, WEIGHTS, applied_delay, bounds};

const NOW: Time = Time::ZERO;

/// A phase: urgent, reserved, or fair with the index of a class.
const FAIR: usize = 2;

struct Machine {
    discipline: Discipline,
    weights: Option<ClassWeights>,
    tenants: Vec<Tenant>,
    /// The virtual time of each phase, of the fair one by class.
    virtual_times: [u128; FAIR + 3],
    /// The virtual times of the fair phase when windows began, the older first.
    windows: [[u128; 3]; 2],
    periods: u32,
    number: u64,
    turn: Turn,
}

struct Tenant {
    parameters: TenantParameters,
    tokens: Tokens,
    /// The finish tags of its last request in the urgent phase and in the reserved one.
    right: [u128; 2],
    flows: [Flow; 3],
    turn: Turn,
    /// Whether it has had others than medium requests: until then it takes no turns.
    has_classes: bool,
    elsewhere: u32,
    /// In the order of arrival.
    queue: Vec<Request>,
}

/// A tenant in the fair phase of a class.
#[derive(Clone, Copy, Default)]
struct Flow {
    finish_tag: u128,
    /// In parts of 2^16 of a unit of work.
    debt: u64,
    used_reservation: bool,
}

impl Tenant {
    fn new(parameters: TenantParameters) -> Self {
        Self {
            parameters,
            tokens: Tokens::unlimited(),
            right: [0; 2],
            flows: [Flow::default(); 3],
            turn: LAST_TURN,
            has_classes: false,
            elsewhere: 0,
            queue: vec![],
        }
    }

    fn note_classes(&mut self, rules: Rules) {
        let is_other = |request: &Request| rules.queue_of(request.class) != (MEDIUM, false);
        self.has_classes |= self.queue.iter().any(is_other);
    }

    fn length(&self, parts: u64) -> u128 {
        u128::from(parts) * PART / u128::from(self.parameters.weight)
    }

    /// The index of its first request in the turn of a class.
    fn first(&self, rules: Rules, class: usize) -> Option<usize> {
        let queues = || self.queue.iter().map(|request| rules.queue_of(request.class));
        let of = |wanted| queues().position(|other| other == wanted);
        of((class, true)).or(of((class, false)))
    }

    /// The phase of its next request; in the fair phase, of those of this class.
    fn step(&self, rules: Rules, class: usize) -> Option<usize> {
        let fair = self.first(rules, class).map(|_| FAIR + class);
        if !rules.discipline.observes_promises() {
            return fair;
        }
        match self.tokens.left() {
            (true, _) if self.queue.is_empty() => None,
            (true, _) => {
                let is_urgent = self.queue.iter().any(|request| rules.queue_of(request.class).1);
                Some(usize::from(!is_urgent))
            }
            (false, true) => fair,
            (false, false) => None,
        }
    }

    fn delay(&self, discipline: Discipline, class: usize, request_cost: RequestCost) -> u64 {
        let (bound, debt) = (self.parameters.bound, self.flows[class].debt);
        if discipline == Discipline::Unified {
            ((u64::from(request_cost.delay) << 16) + debt).min(bound.of(request_cost.work))
        } else {
            applied_delay(discipline, bound, request_cost.work, request_cost.delay)
        }
    }

    fn fair_start(
        &self,
        discipline: Discipline,
        class: usize,
        virtual_time: u128,
        request_cost: RequestCost,
    ) -> u128 {
        let delay = self.length(self.delay(discipline, class, request_cost));
        virtual_time.max(self.flows[class].finish_tag + delay)
    }

    /// The class in which its next request in this phase counts; with a reservation token, that
    /// whose turn it is among its own.
    fn class_in(&mut self, step: usize, rules: Rules, weights: Option<ClassWeights>) -> usize {
        match (step, weights) {
            (FAIR.., _) => step - FAIR,
            (_, None) => MEDIUM,
            (0, _) => HIGH,
            (_, Some(_)) if !self.has_classes => MEDIUM,
            (_, Some(weights)) => {
                let queues = self.queue.iter().map(|request| rules.queue_of(request.class));
                let waits = [0, 1, 2].map(|class| queues.clone().any(|own| own == (class, false)));
                self.turn = next_turn(self.turn, weights, waits);
                self.turn.1
            }
        }
    }

    /// Takes part in the fair phase of [`Discipline::Unified`], from `start`.
    fn run(&mut self, class: usize, start: u128, window: u128, request_cost: RequestCost) {
        let Flow { finish_tag, debt, .. } = self.flows[class];
        let whole = finish_tag + self.length((u64::from(request_cost.delay) << 16) + debt);
        let owed = whole.saturating_sub(start).min(window) * u128::from(self.parameters.weight);
        self.flows[class].debt = (owed / PART) as u64;
        self.flows[class].finish_tag = start + self.length(u64::from(request_cost.work) << 16);
    }
}

impl Machine {
    fn rules(&self) -> Rules {
        let has_classes = self.weights.is_some() && self.discipline != Discipline::Fifo;
        Rules { discipline: self.discipline, has_classes }
    }

    /// The phase, the start tag and the tenant of the next request that goes in `class`, if it goes
    /// in the fair phase.
    fn next(&self, class: usize) -> Option<(usize, u128, usize)> {
        let (discipline, rules) = (self.discipline, self.rules());
        let candidate = |(index, tenant): (usize, &Tenant)| {
            let step = tenant.step(rules, class)?;
            let virtual_time = self.virtual_times[step];
            let start = if step < FAIR {
                virtual_time.max(tenant.right[step])
            } else {
                let Request { request_cost, number, .. } =
                    tenant.queue[tenant.first(rules, class)?];
                match discipline {
                    Discipline::Fifo => u128::from(number),
                    _ => tenant.fair_start(discipline, class, virtual_time, request_cost),
                }
            };
            Some((step, start, index))
        };
        self.tenants.iter().enumerate().filter_map(candidate).min()
    }

    fn pop(&mut self) -> Option<(usize, u64)> {
        let (discipline, rules) = (self.discipline, self.rules());
        let candidates = [0, 1, 2].map(|class| self.next(class));
        let (step, start, index) = match candidates.into_iter().flatten().min()? {
            reserved @ (..FAIR, ..) => reserved,
            _ => match self.weights.filter(|_| rules.has_classes) {
                None => candidates[MEDIUM]?,
                Some(weights) => {
                    let waits = candidates.map(|candidate| candidate.is_some());
                    self.turn = next_turn(self.turn, weights, waits);
                    candidates[self.turn.1]?
                }
            },
        };
        let weights = self.weights.filter(|_| rules.has_classes);
        let tenant = &mut self.tenants[index];
        let class = tenant.class_in(step, rules, weights);
        let fair = self.virtual_times[FAIR + class];
        let window = fair - self.windows[0][class];
        self.virtual_times[step] = start;
        let is_next = |request: &Request| rules.queue_of(request.class) == (class, false);
        let at = match step {
            1 => tenant.queue.iter().position(is_next),
            _ => tenant.first(rules, class),
        };
        let Request { request_cost, number, .. } = tenant.queue.remove(at?);
        let is_reserved = step < FAIR;
        tenant.tokens.spend(
            u64::from(request_cost.cost),
            discipline.observes_promises(),
            is_reserved,
        );
        let units = match discipline {
            Discipline::Token => request_cost.cost,
            _ => request_cost.work,
        };
        let is_unified = discipline == Discipline::Unified;
        if is_reserved {
            tenant.right[step] = start + tenant.length(u64::from(request_cost.cost) << 16);
        }
        if is_unified {
            let start = match is_reserved {
                true => tenant.fair_start(discipline, class, fair, request_cost),
                false => start,
            };
            tenant.flows[class].used_reservation = is_reserved;
            tenant.run(class, start, window, request_cost);
        } else if discipline == Discipline::RoundRobin {
            tenant.flows[class].finish_tag = start + (PART << 16);
        } else if discipline != Discipline::Fifo && !is_reserved {
            tenant.flows[class].finish_tag = start + tenant.length(u64::from(units) << 16);
        }
        Some((index, number))
    }

    fn begin(&mut self) {
        let [.., high, medium, low] = self.virtual_times;
        let fair = [high, medium, low];
        self.periods += 1;
        if self.periods.is_multiple_of(WINDOW / 2) {
            self.windows = [self.windows[1], fair];
        }
        for tenant in &mut self.tenants {
            tenant.tokens.begin();
            for (flow, virtual_time) in tenant.flows.iter_mut().zip(fair) {
                if core::mem::take(&mut flow.used_reservation) {
                    flow.finish_tag = flow.finish_tag.min(virtual_time);
                }
            }
        }
    }

    fn switch(&mut self, discipline: Discipline) {
        if self.discipline == discipline {
            return;
        }
        self.change_rules(|machine| machine.discipline = discipline);
        (self.virtual_times, self.windows) = ([0; FAIR + 3], [[0; 3]; 2]);
        for tenant in &mut self.tenants {
            (tenant.right, tenant.flows) = ([0; 2], [Flow::default(); 3]);
        }
    }

    /// Where requests wait changes: always the one goes over next that came first of those that are
    /// the first where they wait now.
    fn change_rules(&mut self, change: impl FnOnce(&mut Self)) {
        let before = self.rules();
        change(self);
        let after = self.rules();
        let is_same = |class| before.queue_of(class) == after.queue_of(class);
        if CLASSES.iter().all(|(class, _)| is_same(*class)) {
            return;
        }
        for tenant in &mut self.tenants {
            let mut queues = split(before, core::mem::take(&mut tenant.queue));
            let number = |queue: &Vec<Request>| queue.first().map(|request| request.number);
            while let Some((_, index)) = queues
                .iter()
                .zip(0..)
                .filter_map(|(queue, index)| Some((number(queue)?, index)))
                .min()
            {
                let index: usize = index;
                tenant.queue.push(queues[index].remove(0));
            }
            tenant.note_classes(after);
        }
    }

    /// A request turned out to take more than it was dispatched with.
    fn charge(&mut self, index: usize, class: Class, more: RequestCost, by_reservation: bool) {
        let rules = self.rules();
        let Self { discipline, virtual_times, tenants, .. } = self;
        let tenant = &mut tenants[index];
        tenant.tokens.spend(u64::from(more.cost), discipline.observes_promises(), by_reservation);
        let [cost, work] =
            [more.cost, more.work].map(|units| tenant.length(u64::from(units) << 16));
        let (class, is_urgent) = rules.queue_of(class);
        tenant.has_classes |= (class, is_urgent) != (MEDIUM, false);
        let phase = usize::from(!is_urgent);
        let right = virtual_times[phase].max(tenant.right[phase]) + cost;
        let fair = virtual_times[FAIR + class].max(tenant.flows[class].finish_tag);
        match (*discipline, by_reservation) {
            (Discipline::Fifo | Discipline::RoundRobin, _) => {}
            (Discipline::Token, true) => tenant.right[phase] = right,
            (Discipline::Token, false) => tenant.flows[class].finish_tag = fair + cost,
            (Discipline::Unified, true) => {
                tenant.right[phase] = right;
                tenant.flows[class].finish_tag = fair + work;
                tenant.flows[class].used_reservation = true;
            }
            _ => tenant.flows[class].finish_tag = fair + work,
        }
    }

    fn cancel(&mut self, which: impl Fn(u64) -> bool) -> Vec<u64> {
        let rules = self.rules();
        let mut cancelled = vec![];
        for tenant in &mut self.tenants {
            let mut unreported = 0;
            for request in split(rules, tenant.queue.clone()).into_iter().flatten() {
                let own = |other: &Request| other.number == request.number;
                let at = tenant.queue.iter().position(own).expect("the queue has the request");
                let delay = &mut tenant.queue[at].request_cost.delay;
                *delay = delay.saturating_add(core::mem::take(&mut unreported));
                if which(request.number) {
                    unreported = *delay;
                    tenant.queue.remove(at);
                    cancelled.push(request.number);
                }
            }
            tenant.elsewhere = tenant.elsewhere.saturating_add(unreported);
        }
        cancelled
    }

    /// The tenant is another from now on, and what waited is unattributed.
    fn replace(&mut self, index: usize, parameters: TenantParameters) {
        let old = core::mem::replace(&mut self.tenants[index], Tenant::new(parameters));
        let rules = self.rules();
        self.tenants[0].queue.extend(old.queue);
        self.tenants[0].note_classes(rules);
    }
}

#[derive(Clone, Debug)]
enum Act {
    Push(usize, Class, RequestCost),
    Virtual(usize, u32),
    Pop(usize),
    Grant(usize, u64, Option<u64>),
    SetParameters(usize, TenantParameters),
    Replace(usize, TenantParameters),
    Charge(usize, Class, RequestCost, bool),
    Cancel(u64),
    Switch(Discipline),
    Weigh(Option<ClassWeights>),
    /// All settings are repeated, and queried.
    Again(usize),
    Begin,
}

fn request_cost() -> impl Strategy<Value = RequestCost> {
    let delay = prop_oneof![2 => Just(0u32), 2 => 0u32..9, 1 => 0u32..100];
    let parts = (1u32..4, 1u32..9, delay);
    parts.prop_map(|(cost, work, delay)| RequestCost { work, delay, ..RequestCost::of(cost) })
}

fn parameters() -> impl Strategy<Value = TenantParameters> {
    (0..WEIGHTS.len(), 0usize..8).prop_map(|(weight, bound)| TenantParameters {
        weight: WEIGHTS[weight],
        bound: bounds()[bound],
    })
}

fn class() -> impl Strategy<Value = Class> {
    prop::sample::select(CLASSES.map(|(class, _)| class).to_vec())
}

fn class_weights() -> impl Strategy<Value = Option<ClassWeights>> {
    let weights = [(3, 2, 1), (1, 1, 1), (1, 5, 2), (255, 1, 7)];
    prop::option::of(prop::sample::select(weights.to_vec())).prop_map(|weights| {
        weights.and_then(|(high, medium, low)| ClassWeights::new(high, medium, low))
    })
}

fn act() -> impl Strategy<Value = Act> {
    let tenant = 1usize..5;
    prop_oneof![
        20 => (0usize..5, class(), request_cost())
            .prop_map(|(index, class, cost)| Act::Push(index, class, cost)),
        3 => (0usize..5, 1u32..20).prop_map(|(index, work)| Act::Virtual(index, work)),
        20 => (1usize..4).prop_map(Act::Pop),
        6 => (tenant.clone(), 0u64..12, prop::option::of(0u64..30))
            .prop_map(|(index, reserved, more)| Act::Grant(index, reserved, more)),
        2 => (tenant.clone(), parameters()).prop_map(|(index, new)| Act::SetParameters(index, new)),
        1 => (tenant, parameters()).prop_map(|(index, parameters)| Act::Replace(index, parameters)),
        3 => (0usize..5, class(), request_cost(), any::<bool>())
            .prop_map(|(index, class, cost, by_reservation)| {
                Act::Charge(index, class, cost, by_reservation)
            }),
        2 => (2u64..6).prop_map(Act::Cancel),
        1 => (0..DISCIPLINES.len()).prop_map(|index| Act::Switch(DISCIPLINES[index].0)),
        1 => class_weights().prop_map(Act::Weigh),
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
    fn new(
        discipline: Discipline,
        weights: Option<ClassWeights>,
        parameters: Vec<TenantParameters>,
        scale: u32,
    ) -> Self {
        let mut scheduler = Scheduler::new(discipline, Pacing::Paper);
        scheduler.set_class_weights(NOW, weights);
        let mut slots = vec![Slot::UNATTRIBUTED];
        slots.extend(parameters.iter().map(|parameters| scheduler.add(*parameters)));
        let unattributed = TenantParameters { weight: 1, bound: Bound::ZERO };
        let tenants = core::iter::once(unattributed).chain(parameters).map(Tenant::new).collect();
        let machine = Machine {
            discipline,
            weights,
            tenants,
            virtual_times: [0; FAIR + 3],
            windows: [[0; 3]; 2],
            periods: 0,
            number: 0,
            turn: LAST_TURN,
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
        scheduler.set_class_weights(NOW, machine.weights);
        scheduler.promote(NOW);
        scheduler.waits(NOW, slots[index]);
    }

    fn push(&mut self, index: usize, class: Class, request_cost: RequestCost) {
        let Self { scale, scheduler, slots, machine } = self;
        let rules = machine.rules();
        let Machine { number, tenants, .. } = machine;
        let (work, delay) = (request_cost.work * *scale, request_cost.delay * *scale);
        let request_cost = RequestCost { work, delay, ..request_cost };
        scheduler.push_in_class(NOW, (slots[index], class), request_cost, *number);
        let delay = delay.saturating_add(core::mem::take(&mut tenants[index].elsewhere));
        let request_cost = RequestCost { delay, ..request_cost };
        tenants[index].queue.push(Request { request_cost, class, number: *number });
        tenants[index].note_classes(rules);
        *number += 1;
    }

    fn act(&mut self, act: Act) -> Result<(), TestCaseError> {
        let Self { scale, scheduler, slots, machine } = self;
        match act {
            Act::Push(index, class, request_cost) => self.push(index, class, request_cost),
            Act::Virtual(index, work) => {
                let work = work * *scale;
                scheduler.delay(slots[index], u64::from(work));
                if (0..3).any(|class| machine.next(class).is_some()) {
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
                machine.tenants[index].parameters = parameters;
            }
            Act::Replace(index, parameters) => {
                scheduler.remove(NOW, slots[index]);
                slots[index] = scheduler.add(parameters);
                machine.replace(index, parameters);
            }
            Act::Charge(index, class, request_cost, by_reservation) => {
                let more =
                    RequestCost { work: request_cost.work * *scale, delay: 0, ..request_cost };
                scheduler.charge(NOW, (slots[index], class), more, by_reservation);
                machine.charge(index, class, more, by_reservation);
            }
            Act::Cancel(part) => {
                let cancelled = scheduler.cancel(NOW, |job| job % part == 0);
                prop_assert_eq!(cancelled, machine.cancel(|job| job % part == 0));
            }
            Act::Switch(discipline) => {
                scheduler.set_discipline(NOW, discipline);
                machine.switch(discipline);
            }
            Act::Weigh(weights) => {
                scheduler.set_class_weights(NOW, weights);
                machine.change_rules(|machine| machine.weights = weights);
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
        weights in class_weights(),
        parameters in prop::collection::vec(parameters(), 4),
        acts in prop::collection::vec(act(), 0..250),
        scale in prop::sample::select(SCALES.to_vec()),
    ) {
        let mut both = Both::new(discipline, weights, parameters, scale);
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
