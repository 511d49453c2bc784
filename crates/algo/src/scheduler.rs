//! Request scheduler of a storage node: requests of many tenants, under one of seven disciplines
//! that may change at any time.
//!
//! # Problem
//! Each tenant has a queue at the node. A controller says, per tenant and period, up to what count
//! requests are *reserved* and up to what count they are *allowed* (pShift); a policy says what
//! *weight* a tenant has; gateways say what it was served at other nodes (DSFQ). Between two words
//! from the controller the node decides alone, request by request, and is never idle while a
//! request waits that may be served.
//!
//! # Steps
//! The paper's tokens are differences of counts: a tenant has `reserved - served` reservation
//! tokens left, and `allowed - served` of any kind. For each dispatch:
//!
//! 1. under [`Discipline::Unified`], among urgent tenants with requests waiting and reservation
//!    tokens left, the next in order: strictly first, and bounded by what was admitted for them;
//! 2. among other tenants with requests waiting and reservation tokens left, the next in order;
//! 3. if there is none, among those with requests waiting and any tokens left, the next in order;
//! 4. if there is none, no request goes. The paper waits a little and looks again;
//!    [`Scheduler::next_eligible`] says when looking again is worth it.
//!
//! Disciplines that do not [heed promises](Discipline::heeds_promises) know the third step only,
//! and all tenants take part in it. So does pShift's Algorithm 1 ([`Discipline::Token`]) without
//! the first. A tenant that is blocked by its limit is, like one with no request, not in any race:
//! it earns no credit, and comes back in O(log n) where the race is by then.
//!
//! # Order within a step
//! Start-time fair queueing with a depth, SFQ(D): each step has a race in which a request of work
//! *c* and weight *w* is *c / w* long. A request starts where its tenant's last one ended, or where
//! the race is, if that is farther, and the one with the smallest start is next, the smaller slot
//! on a tie. The race is where the last dispatched request started. The papers give a request its
//! tags when it comes; here they are those of the first that waits, which gives the same order,
//! because the race cannot pass a request that waits, and lets a new weight hold at once.
//!
//! - [`Discipline::Fifo`]: a start is a request's place in order of arrival; there are no tenants.
//! - [`Discipline::RoundRobin`]: every request is as long as any other.
//! - [`Discipline::Token`]: the work is the request's cost in tokens. The races know nothing of
//!   each other: who had much in step 2 by right does not pay for it in step 3.
//! - [`Discipline::Sfq`]: the work is the request's own.
//! - [`Discipline::DsfqTotal`], [`Discipline::DsfqHybrid`]: a request starts later by its *delay*,
//!   divided by the weight (Eq. 5 of the DSFQ paper), in whole or as far as the tenant's
//!   [bound](crate::dsfq::Bound) lets it (Eq. 12). The part that is cut off is forgotten.
//! - [`Discipline::Unified`]: what is cut off is a *debt*, which delays the next requests, each by
//!   no more than its bound. So the minimum share is kept, for which the paper needs nothing but
//!   that bound, and alternating bursts gain nothing. A debt is forgiven as the race passes what it
//!   stands for, as any delay is, and when it is older than [`WINDOW`] periods of the race.
//!   Step 1 and 2 count here too: within a period a tenant gets the greater of its reservation and
//!   its fair share, and not both. When a period ends, who was ahead by right is level again.
//!
//! Example, under `Token`, all costs 1, all always waiting, *a* reserved 2 and weight 1, *b* weight
//! 2, *c* weight 1 and allowed 1: a a | a b c b a b b a b b …, where the bar parts the steps.
//!
//! # Debt
//! A request starts if at least one token is left, and counts whole, so a tenant is served beyond
//! its count by less than one request. A cost that shows after the dispatch ([`Scheduler::charge`])
//! counts as well. Units beyond a count are *owed*. The counts that follow, of this period and of
//! later ones, pay for those before they pay for anything else, and an even pace takes a payment
//! for service. So in any row of periods a tenant has what they allow and one request, and by right
//! what they reserve and one request. Debts outlive changes of counts, terms, plans and
//! disciplines. Where no limit holds, nothing is owed. Example: 50 are allowed in a period, and a
//! request costs 256. It goes with the first token. Then 206 are owed, which four periods pay whole
//! and a fifth in part, so the next request goes in that one.
//!
//! A cost is at least one.
//!
//! # What it promises
//! While two tenants *f* and *g* wait in the same race, without delays, the work *W* dispatched for
//! each differs, per weight, by at most one request of each; counted when requests finish, by
//! *D* + 1 times that (Theorem 1). With delays that whole, the same holds for the work at all nodes
//! with the bound of Theorem 2 (`laws` among the tests). With bounds, each gets its minimum
//! share of what is left to the race.
//!
//! # Pace
//! Counts alone would let a limited tenant through as fast as it asks until nothing is left, and
//! then stop it for the rest of the period. [`Pacing::Even`] spreads what is allowed: if at `since`
//! the tenant has `base` and is allowed more, then at a time *t* before the end of the period it
//! is served only while it has less than
//! `base + 1 + (allowed - base) * (t - since) / (until - since)`.
//! With 4 allowed from now to the end in a second, requests go at 0, 250, 500 and 750 ms; a tenant
//! that comes late finds what it has not used. The line is exact integer arithmetic from its two
//! ends, so nothing drifts. A new line begins with the period and when what is allowed changes; it
//! takes over the wait for the next request, if that is shorter than its own steps. Tenants that
//! are ahead of their lines are kept in order of the moment at which they no longer are.
//!
//! # Cost
//! Each operation is O(log n) in the number of tenants that wait; a new period, or discipline, is
//! O(n log n). An idle tenant costs at most [`BYTES_PER_SLOT`].

use alloc::vec::Vec;

use tidegate_model::waits::Waits;
use tidegate_model::{Discipline, Time};

use heap::Heap;
use requests::{Queue, Request, Requests};
pub(crate) use state::{Passed, Step};
use state::{Place, State};
pub use words::{Ask, Counts, Dispatched, Pacing, Slot, Tally, Terms};

mod charge;
mod heap;
mod lane;
mod requests;
mod state;
mod words;

/// The largest weight. Larger ones count as this, and zero as one.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// The most that an idle slot occupies, its place in a heap included.
pub const BYTES_PER_SLOT: usize = 256;

/// The periods of the race after which a debt is forgiven, at the latest; half of them at the
/// earliest.
pub const WINDOW: u32 = 10;

/// The length in a race of one unit of work at weight one.
///
/// It is 720,720, the least number that 1 to 16 divide, times 10^12, so that the weights that
/// people write divide it and their ties are real ties. For any other weight, at most a million, a
/// unit is short by less than one in 7.2 * 10^11. A node that serves 10^11 bytes per second for one
/// tenant of weight one moves 7.2 * 10^28 per second: 128 bits last for a hundred years, and where
/// work is requests, or nanoseconds, for longer.
const UNIT: u64 = 720_720 * 1_000_000_000_000;
const _: () = assert!(UNIT.is_multiple_of(720_720) && UNIT / WEIGHT_MAX as u64 > 720_000_000_000);

/// One step's race.
#[derive(Debug)]
struct Race {
    heap: Heap<u128>,
    /// Where the request that was dispatched last had started.
    start: u128,
}

impl Race {
    const fn new() -> Self {
        Self { heap: Heap::new(), start: 0 }
    }
}

/// Requests of many tenants, in the order in which a node serves them.
///
/// ```
/// use tidegate_algo::scheduler::{Ask, Counts, Pacing, Scheduler, Terms};
/// use tidegate_model::{Discipline, Time};
/// let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
/// let now = Time::ZERO;
/// scheduler.begin(now, Time(1_000));
/// let [a, b] = [Terms::of_weight(1); 2].map(|terms| scheduler.add(terms));
/// scheduler.grant(now, a, Counts { reserved: 0, allowed: 2 });
/// scheduler.grant(now, b, Counts { reserved: 1, allowed: u64::MAX });
/// for job in ["a1", "a2", "a3"] {
///     scheduler.push(now, a, Ask::ONE, job);
/// }
/// scheduler.push(now, b, Ask::ONE, "b1");
/// assert_eq!(scheduler.pop(now).map(|next| next.job), Some("b1")); // reserved
/// assert_eq!(scheduler.pop(now).map(|next| next.job), Some("a1"));
/// assert!(scheduler.pop(now).is_none()); // a has had half of what it may in this period
/// assert_eq!(scheduler.next_eligible(), Some(Time(500)));
/// assert_eq!(scheduler.pop(Time(500)).map(|next| next.job), Some("a2"));
/// assert_eq!(scheduler.next_eligible(), None); // a3 waits for the next period
/// scheduler.set_discipline(Time(500), Discipline::Sfq); // which knows no limits
/// assert_eq!(scheduler.pop(Time(500)).map(|next| next.job), Some("a3"));
/// ```
#[derive(Debug)]
pub struct Scheduler<J> {
    discipline: Discipline,
    pacing: Pacing,
    /// Which of several it is.
    lane: u16,
    states: Vec<State>,
    /// The place of each slot in its heap.
    at: Vec<u32>,
    /// Removed slots that can be used again.
    free: Vec<u32>,
    requests: Requests<J>,
    /// The least number of the next request.
    number: u64,
    /// The latest time at which something came, went or was finished.
    latest: Time,
    races: [Race; 3],
    paced: Heap<Time>,
    until: Time,
    /// Units of cost that wait at all slots.
    waiting: u64,
    /// Whether a request waits in another lane, as of the last look.
    is_contended: bool,
    /// Units of cost that this lane has let through, and those of all lanes.
    own: Passed,
    passed: Passed,
    /// Where the fair race was, at most [`WINDOW`] periods ago and at least half of that.
    marks: [u128; 2],
    /// Periods since the later of them.
    periods: u32,
    /// The longest request of the period before, and of this one.
    longest: [u128; 2],
}

impl<J> Scheduler<J> {
    /// A scheduler for nobody's requests only, in a period that never ends.
    pub fn new(discipline: Discipline, pacing: Pacing) -> Self {
        Self {
            discipline,
            pacing,
            lane: 0,
            states: alloc::vec![State::new(0)],
            at: alloc::vec![0],
            free: Vec::new(),
            requests: Requests::new(),
            number: 0,
            latest: Time::ZERO,
            races: [const { Race::new() }; 3],
            paced: Heap::new(),
            until: Time::MAX,
            waiting: 0,
            is_contended: false,
            own: Passed::default(),
            passed: Passed::default(),
            marks: [0; 2],
            periods: 0,
            longest: [0; 2],
        }
    }

    /// By which rule it decides.
    pub const fn discipline(&self) -> Discipline {
        self.discipline
    }

    /// Decides by another rule from the next dispatch on. All requests stay, and so do counts; the
    /// races begin anew, with all tenants level.
    pub fn set_discipline(&mut self, now: Time, discipline: Discipline) {
        if discipline == self.discipline {
            return;
        }
        self.empty_heaps(now);
        self.discipline = discipline;
        self.races.iter_mut().for_each(|race| race.start = 0);
        self.marks = [0; 2];
        self.longest = [0; 2];
        self.states.iter_mut().for_each(State::restart);
        (0..self.states.len()).for_each(|index| self.settle(now, index));
    }

    /// Makes a slot on these terms, without a limit until it is granted counts.
    pub fn add(&mut self, terms: Terms) -> Slot {
        let index = self.free.pop().unwrap_or(self.states.len() as u32);
        if index as usize == self.states.len() {
            self.states.push(State::new(1));
            self.at.push(0);
        }
        let state = &mut self.states[index as usize];
        state.set_terms(terms);
        Slot { index, generation: state.generation, lane: self.lane }
    }

    /// Removes a slot. Requests that wait in it, and those that still come for it, belong to
    /// [`Slot::NOBODY`] from here on.
    pub fn remove(&mut self, now: Time, slot: Slot) {
        let index = self.index(slot);
        if index == 0 {
            return;
        }
        self.leave(now, index);
        // A slot that has had all its generations is not used again.
        let next = slot.generation.checked_add(1);
        let old = core::mem::replace(&mut self.states[index], State::new(next.unwrap_or(0)));
        if next.is_some() {
            self.free.push(index as u32);
        }
        let nobody = &mut self.states[0];
        let was_empty = nobody.queue.is_empty();
        nobody.come(now, old.waiting);
        nobody.take_over(now, old.in_flight);
        self.requests.append(&mut nobody.queue, old.queue);
        if was_empty {
            self.settle(now, 0);
        }
    }

    /// Sets a slot's terms; they hold from the next dispatch. One that was removed has none.
    pub fn set_terms(&mut self, now: Time, slot: Slot, terms: Terms) {
        let index = self.index(slot);
        if index == 0 && slot != Slot::NOBODY {
            return;
        }
        self.leave(now, index);
        self.states[index].set_terms(terms);
        self.settle(now, index);
    }

    /// Begins a period: nothing has been served, and what [`Self::grant`] said of the last one
    /// holds anew until it says otherwise. The period is paced to end at `until`; it ends when the
    /// next one begins.
    pub fn begin(&mut self, now: Time, until: Time) {
        self.until = until;
        self.empty_heaps(now);
        let race = self.races[Step::Fair as usize].start;
        self.longest = [self.longest[1], 0];
        self.periods += 1;
        if self.periods >= WINDOW / 2 {
            self.periods = 0;
            self.marks = [self.marks[1], race];
        }
        for index in 0..self.states.len() {
            let state = &mut self.states[index];
            state.forgive(race);
            state.begin(now, until, self.pacing);
            self.settle(now, index);
        }
    }

    /// Says up to what counts a slot is served in this period. Says nothing of nobody.
    pub fn grant(&mut self, now: Time, slot: Slot, counts: Counts) {
        let index = self.index(slot);
        if index == 0 {
            return;
        }
        let state = &mut self.states[index];
        state.grant(now, self.until, self.pacing, counts);
        self.settle(now, index);
    }

    /// Takes in a request.
    pub fn push(&mut self, now: Time, slot: Slot, ask: Ask, job: J) {
        let index = self.index(slot);
        let (cost, work) = (ask.cost.max(1), ask.work.max(1));
        let state = &mut self.states[index];
        let was_empty = state.queue.is_empty();
        let delay = ask.delay.saturating_add(core::mem::take(&mut state.pending));
        // In order of arrival, here and, to the nanosecond, among several schedulers.
        let number = self.number.max(now.0);
        let request = Request { number, cost, work, delay, job };
        self.number = number + 1;
        self.latest = now;
        self.requests.push(&mut state.queue, request);
        state.come(now, u64::from(cost));
        self.waiting += u64::from(cost);
        if was_empty {
            self.settle(now, index);
        }
    }

    /// A slot's tenant was served so much work at other nodes, which its next request here is to
    /// carry: the paper's virtual requests, summed up. While nobody waits here it says nothing:
    /// virtual requests would be served at once, and take the race along.
    pub fn delay(&mut self, slot: Slot, work: u64) {
        if !self.is_backlogged() && !self.is_contended {
            return;
        }
        let index = self.index(slot);
        let state = &mut self.states[index];
        let pending = u64::from(state.pending).saturating_add(work);
        state.pending = u32::try_from(pending).unwrap_or(u32::MAX);
    }

    /// The request whose turn it is, which counts as served; nothing if none may be served now.
    pub fn pop(&mut self, now: Time) -> Option<Dispatched<J>> {
        self.promote(now);
        let (step, start, index) = self.first()?;
        Some(self.take(now, step, start, index))
    }

    /// Returns the step of the next request, its start in the race, and its slot's index.
    fn first(&self) -> Option<(Step, u128, usize)> {
        Step::ALL.into_iter().find_map(|step| {
            let (start, index) = self.races[step as usize].heap.first()?;
            Some((step, start, index as usize))
        })
    }

    /// Takes out the first request of a slot that is first in the race of `step`.
    fn take(&mut self, now: Time, step: Step, start: u128, index: usize) -> Dispatched<J> {
        let state = &mut self.states[index];
        let Some(request) = self.requests.pop(&mut state.queue) else {
            unreachable!("a slot races only while requests wait in it");
        };
        let units = u64::from(request.cost);
        self.latest = now;
        state.tell(now, self.passed, request.cost);
        self.own.count(step, request.cost);
        self.passed.count(step, request.cost);
        state.seen = self.passed;
        self.waiting -= units;
        state.dispatch(now, units);
        state.spend(self.discipline, step, request.cost);
        state.pace(self.until, self.pacing);
        self.run(step, start, index, &request);
        self.follow(now, step, index);
        let generation = self.states[index].generation;
        let slot = Slot { index: index as u32, generation, lane: self.lane };
        let Request { cost, job, .. } = request;
        Dispatched { slot, cost, is_reserved: step.is_reserved(), job }
    }

    /// Moves a slot in the races to the end of its request that starts at `start` in that of
    /// `step`, and the race to its start.
    fn run(&mut self, step: Step, start: u128, index: usize, request: &Request<J>) {
        let state = &mut self.states[index];
        let fair = self.races[Step::Fair as usize].start;
        if self.discipline == Discipline::Unified {
            let window = fair - self.marks[0];
            match step {
                Step::Fair => state.turn(start, window, request),
                _ => state.charge(fair, window, request),
            }
        }
        let length = state.advance(self.discipline, step, start, request);
        self.longest[1] = self.longest[1].max(length);
        self.races[step as usize].start = start;
    }

    /// Moves a slot that was first in the race of `step`, where it may be first again.
    fn follow(&mut self, now: Time, step: Step, index: usize) {
        let state = &self.states[index];
        let race = &mut self.races[step as usize];
        if state.belongs(self.discipline, now) == Place::Racing(step)
            && let Some(first) = self.requests.first(state.queue)
        {
            let start = state.start(self.discipline, step, race.start, first);
            race.heap.replace(0, start, &mut self.at);
        } else {
            self.settle(now, index);
        }
    }

    /// A request that was popped has been served, or has failed.
    pub fn complete(&mut self, now: Time, slot: Slot, cost: u32) {
        let index = self.index(slot);
        let state = &mut self.states[index];
        let cost = cost.max(1).min(state.in_flight);
        self.latest = now;
        state.in_flight -= cost;
        state.leave(now, u64::from(cost));
    }

    /// Whether a request waits that may be served, without regard to those whose pace has let them
    /// in since [`Self::pop`] or [`Self::promote`] was called last.
    pub fn is_backlogged(&self) -> bool {
        self.races.iter().any(|race| race.heap.first().is_some())
    }

    /// When the first of the slots that are ahead of their pace no longer is.
    pub fn next_eligible(&self) -> Option<Time> {
        self.paced.first().map(|(time, _)| time)
    }

    /// Takes out the waiting requests that `which` picks, slot by slot, in their order. Requests
    /// behind them carry their reports of other nodes.
    pub fn cancel(&mut self, now: Time, mut which: impl FnMut(&J) -> bool) -> Vec<J> {
        self.latest = now;
        let mut cancelled = Vec::new();
        for index in 0..self.states.len() {
            let state = &mut self.states[index];
            let (mut rest, mut delay, before) = (Queue::EMPTY, 0u32, cancelled.len());
            while let Some(mut request) = self.requests.pop(&mut state.queue) {
                request.delay = request.delay.saturating_add(delay);
                delay = 0;
                if which(&request.job) {
                    delay = request.delay;
                    state.go(now, u64::from(request.cost));
                    state.leave(now, u64::from(request.cost));
                    self.waiting -= u64::from(request.cost);
                    cancelled.push(request.job);
                } else {
                    self.requests.push(&mut rest, request);
                }
            }
            state.queue = rest;
            state.pending = state.pending.saturating_add(delay);
            if cancelled.len() > before {
                // Another request may be the first.
                self.leave(now, index);
                self.settle(now, index);
            }
        }
        cancelled
    }

    /// Returns the counts of a slot so far, at least up to now.
    pub fn tally(&self, now: Time, slot: Slot) -> Tally {
        self.states[self.index(slot)].tally(now.max(self.latest))
    }

    /// How long requests of a slot have waited, and for which rule, each as often as it costs.
    /// Requests that wait now count up to now.
    pub fn waits(&mut self, now: Time, slot: Slot) -> Waits {
        let (now, index) = (now.max(self.latest), self.index(slot));
        self.tell(now, index);
        let state = &self.states[index];
        let (held, tally) = (state.held(), state.tally(now));
        let explained = held.limit.saturating_add(held.reservation).saturating_add(held.turn);
        Waits {
            operations: tally.total,
            limit_ns: held.limit,
            reservation_ns: held.reservation,
            turn_ns: held.turn,
            device_ns: tally.stayed(now).saturating_sub(explained),
        }
    }

    /// Units of cost that were dispatched for a slot in this period.
    pub fn served(&self, slot: Slot) -> u64 {
        self.states[self.index(slot)].served
    }

    /// Up to what counts a slot is served in this period.
    pub fn counts(&self, slot: Slot) -> Counts {
        self.states[self.index(slot)].counts
    }

    /// Units of cost that wait at all slots.
    pub const fn waiting(&self) -> u64 {
        self.waiting
    }

    /// The index of a slot, of nobody's if it was removed.
    fn index(&self, slot: Slot) -> usize {
        let index = slot.index as usize;
        let is_current = |state: &State| state.generation == slot.generation;
        if self.states.get(index).is_some_and(is_current) { index } else { 0 }
    }

    /// Lets those race whose moment has come, as [`Self::pop`] does too.
    pub fn promote(&mut self, now: Time) {
        while let Some((_, index)) = self.paced.first().filter(|(time, _)| *time <= now) {
            self.settle(now, index as usize);
        }
    }

    /// Moves a slot to where it belongs.
    fn settle(&mut self, now: Time, index: usize) {
        let place = self.states[index].belongs(self.discipline, now);
        // One that stays in a race stays where it is there; one that is paced may have a new time.
        if place == self.states[index].place && place != Place::Paced {
            return;
        }
        self.leave(now, index);
        let state = &mut self.states[index];
        state.place = place;
        match place {
            Place::Out => {}
            Place::Paced => self.paced.push(state.ready_at, index as u32, &mut self.at),
            Place::Racing(step) => {
                let Some(first) = self.requests.first(state.queue) else {
                    unreachable!("a slot races only while requests wait in it");
                };
                let race = &mut self.races[step as usize];
                let start = state.start(self.discipline, step, race.start, first);
                race.heap.push(start, index as u32, &mut self.at);
            }
        }
    }

    /// Takes a slot out of the heap that it is in.
    fn leave(&mut self, now: Time, index: usize) {
        self.tell(now, index);
        let at = self.at[index] as usize;
        match core::mem::replace(&mut self.states[index].place, Place::Out) {
            Place::Out => {}
            Place::Paced => self.paced.remove(at, &mut self.at),
            Place::Racing(step) => self.races[step as usize].heap.remove(at, &mut self.at),
        }
    }

    /// Takes all slots out of their heaps.
    fn empty_heaps(&mut self, now: Time) {
        for index in 0..self.states.len() {
            self.tell(now, index);
            self.states[index].place = Place::Out;
        }
        self.paced.clear();
        self.races.iter_mut().for_each(|race| race.heap.clear());
    }

    /// Puts down to something how long the requests of a slot have waited in its place.
    fn tell(&mut self, now: Time, index: usize) {
        let state = &mut self.states[index];
        let own = self.requests.first(state.queue).map_or(0, |first| first.cost);
        state.tell(now, self.passed, own);
    }
}

#[cfg(test)]
#[path = "scheduler_debt_tests.rs"]
mod debt_tests;
#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
