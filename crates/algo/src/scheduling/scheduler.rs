//! Request scheduler of a storage node: requests of many tenants, under one of seven disciplines
//! that may change at any time.
//!
//! # Problem
//! Each tenant has a queue at the node. The controller grants each tenant, for each period, a count
//! up to which its requests are *reserved* and a count up to which they are *allowed* (pShift). A
//! policy gives each tenant a *weight*; gateways report its service at other nodes (DSFQ). Between
//! two messages of the controller the node decides alone, request by request, and is never idle
//! while a request waits that may be served.
//!
//! # Phases
//! The paper's tokens are differences of counts: a tenant has `reserved - served` reservation
//! tokens left, and `allowed - served` of any kind. For each dispatch:
//!
//! 1. under [`Discipline::Unified`], among urgent tenants with requests waiting and reservation
//!    tokens left, the next in order: strictly first, and bounded by what was admitted for them;
//! 2. among other tenants with requests waiting and reservation tokens left, the next in order;
//! 3. if there is none, among those with requests waiting and any tokens left, the next in order;
//! 4. if there is none, no request goes. The paper waits a little and checks again;
//!    [`Scheduler::next_eligible`] gives the time of the next check.
//!
//! Disciplines without [promises](Discipline::observes_promises) have the third phase only, and all
//! tenants take part in it. So does pShift's Algorithm 1 ([`Discipline::Token`]) without the first.
//! A tenant that is blocked by its limit is not backlogged, like a tenant without a request: it
//! earns no credit, and comes back in O(log n) at the virtual time of that moment.
//!
//! # Order within a phase
//! Start-time fair queueing with a depth, SFQ(D): each phase is a fair queue with a *virtual time*.
//! A request of work *c* and weight *w* is *c / w* long. Its *start tag* is the *finish tag* of its
//! tenant's last request, or virtual time if that is greater; its finish tag is *c / w* more. The
//! request with the smallest start tag is next, the smaller slot on a tie. Virtual time is the
//! start tag of the request that was dispatched last. The papers tag a request when it arrives.
//! Here the first waiting request of a tenant has tags. The order is the same, because virtual time
//! cannot pass a request that waits; and a new weight holds at once.
//!
//! - [`Discipline::Fifo`]: a start tag is a request's number in order of arrival; there are no
//!   tenants.
//! - [`Discipline::RoundRobin`]: every request is as long as any other.
//! - [`Discipline::Token`]: the work is the request's cost in tokens. The fair queues are separate:
//!   service in phase 2 does not count in phase 3.
//! - [`Discipline::Sfq`]: the work is the request's own.
//! - [`Discipline::DsfqTotal`], [`Discipline::DsfqHybrid`]: a request starts later by its *delay*,
//!   divided by the weight (Eq. 5 of the DSFQ paper), in whole or as far as the tenant's
//!   [bound](crate::scheduling::dsfq::Bound) lets it (Eq. 12). The part that is cut off is
//!   forgotten.
//! - [`Discipline::Unified`]: what is cut off is a *debt*, which delays the next requests, each by
//!   no more than its bound. So the minimum share is kept, for which the paper needs nothing but
//!   that bound, and alternating bursts gain nothing. A debt is forgiven as virtual time passes
//!   what it stands for, as any delay is, and when it is older than [`WINDOW`] periods. Phases 1
//!   and 2 count here too: within a period a tenant gets the greater of its reservation and its
//!   fair share, and not both. When a period ends, a tenant that reserved service put ahead is
//!   level again.
//!
//! Example, under `Token`, all costs 1, all always waiting, *a* reserved 2 and weight 1, *b* weight
//! 2, *c* weight 1 and allowed 1: a a | a b c b a b b a b b …, where the bar parts the phases.
//!
//! # Debt
//! A request starts if at least one token is left, and counts whole, so a tenant is served beyond
//! its count by less than one request. A cost that shows after the dispatch ([`Scheduler::charge`])
//! counts as well. Units beyond a count are *owed*. The counts that follow, of this period and of
//! later ones, pay for those before they pay for anything else, and an even pace takes a payment
//! for service. So over any row of periods a tenant gets at most what they allow and one request,
//! and in the reserved phases at most what they reserve and one request. Debts outlive changes of
//! counts, parameters, plans and disciplines. Where no limit holds, nothing is owed. Example: 50
//! are allowed in a period, and a request costs 256. It goes with the first token. Then 206 are
//! owed, which four periods pay whole and a fifth in part, so the next request goes in that one.
//!
//! A cost is at least one.
//!
//! # What it promises
//! While two tenants *f* and *g* are backlogged in the same phase, without delays, the work *W*
//! dispatched for each differs, per weight, by at most one request of each; counted when requests
//! finish, by *D* + 1 times that (Theorem 1). With delays that whole, the same holds for the work
//! at all nodes with the bound of Theorem 2 (`laws` among the tests). With bounds, each gets its
//! minimum share of what is left to the fair phase.
//!
//! # Pace
//! Counts alone would let a limited tenant through as fast as it sends until nothing is left, and
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
use requests::{Queue, QueuedRequest, Requests};
use state::{Eligibility, TenantState};
pub(crate) use state::{Passed, Phase};
pub use words::{
    Dispatched, Pacing, PeriodGrant, RequestCost, Slot, SlotCounters, TenantParameters,
};

mod charge;
mod heap;
mod requests;
mod shard;
mod state;
mod words;

/// The largest weight. Larger ones count as this, and zero as one.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// The most that an idle slot occupies, its index in a heap included.
pub const BYTES_PER_SLOT: usize = 256;

/// The number of periods after which a debt is forgiven, at the latest; half of them at the
/// earliest.
pub const WINDOW: u32 = 10;

/// The virtual length of one unit of work at weight one.
///
/// It is 720,720, the least number that 1 to 16 divide, times 10^12, so that the weights that
/// people write divide it and their ties are real ties. For any other weight, at most a million, a
/// unit is short by less than one in 7.2 * 10^11. A node that serves 10^11 bytes per second for one
/// tenant of weight one moves 7.2 * 10^28 per second: 128 bits last for a hundred years, and where
/// work is requests, or nanoseconds, for longer.
const UNIT: u64 = 720_720 * 1_000_000_000_000;
const _: () = assert!(UNIT.is_multiple_of(720_720) && UNIT / WEIGHT_MAX as u64 > 720_000_000_000);

#[derive(Debug)]
struct FairQueue {
    heap: Heap<u128>,
    /// The start tag of the request that was dispatched last.
    virtual_time: u128,
}

impl FairQueue {
    const fn new() -> Self {
        Self { heap: Heap::new(), virtual_time: 0 }
    }
}

/// Requests of many tenants, in the order in which a node serves them.
///
/// ```
/// use tidegate_algo::scheduling::scheduler::{
///     Pacing, PeriodGrant, RequestCost, Scheduler, TenantParameters,
/// };
/// use tidegate_model::{Discipline, Time};
/// let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
/// let now = Time::ZERO;
/// scheduler.begin(now, Time(1_000));
/// let [a, b] = [TenantParameters::of_weight(1); 2].map(|parameters| scheduler.add(parameters));
/// scheduler.grant(now, a, PeriodGrant { reserved: 0, allowed: 2 });
/// scheduler.grant(now, b, PeriodGrant { reserved: 1, allowed: u64::MAX });
/// for job in ["a1", "a2", "a3"] {
///     scheduler.push(now, a, RequestCost::ONE, job);
/// }
/// scheduler.push(now, b, RequestCost::ONE, "b1");
/// assert_eq!(scheduler.pop(now).map(|next| next.job), Some("b1")); // reserved
/// assert_eq!(scheduler.pop(now).map(|next| next.job), Some("a1"));
/// assert!(scheduler.pop(now).is_none()); // a has had half of what it may in this period
/// assert_eq!(scheduler.next_eligible(), Some(Time(500)));
/// assert_eq!(scheduler.pop(Time(500)).map(|next| next.job), Some("a2"));
/// assert_eq!(scheduler.next_eligible(), None); // a3 waits for the next period
/// scheduler.set_discipline(Time(500), Discipline::Sfq); // which has no limits
/// assert_eq!(scheduler.pop(Time(500)).map(|next| next.job), Some("a3"));
/// ```
#[derive(Debug)]
pub struct Scheduler<J> {
    discipline: Discipline,
    pacing: Pacing,
    /// Which of several it is.
    shard: u16,
    states: Vec<TenantState>,
    /// The index of each slot in its heap.
    at: Vec<u32>,
    /// Removed slots that can be used again.
    free: Vec<u32>,
    requests: Requests<J>,
    /// The least number of the next request.
    number: u64,
    /// The latest time at which something came, went or was finished.
    latest: Time,
    fair_queues: [FairQueue; 3],
    paced: Heap<Time>,
    until: Time,
    /// Units of cost that wait at all slots.
    waiting: u64,
    /// Whether a request waits in another shard, as last observed.
    is_contended: bool,
    /// Units of cost that this shard has dispatched, and those of all shards.
    own: Passed,
    passed: Passed,
    /// The virtual time of the fair phase at most [`WINDOW`] periods ago, and at least half of
    /// that.
    past_virtual_times: [u128; 2],
    /// Periods since the later of them.
    periods: u32,
    /// The longest request of the period before, and of this one.
    longest: [u128; 2],
}

impl<J> Scheduler<J> {
    /// A scheduler with the slot of unattributed requests only, in a period that never ends.
    pub fn new(discipline: Discipline, pacing: Pacing) -> Self {
        Self {
            discipline,
            pacing,
            shard: 0,
            states: alloc::vec![TenantState::new(0)],
            at: alloc::vec![0],
            free: Vec::new(),
            requests: Requests::new(),
            number: 0,
            latest: Time::ZERO,
            fair_queues: [const { FairQueue::new() }; 3],
            paced: Heap::new(),
            until: Time::MAX,
            waiting: 0,
            is_contended: false,
            own: Passed::default(),
            passed: Passed::default(),
            past_virtual_times: [0; 2],
            periods: 0,
            longest: [0; 2],
        }
    }

    /// The discipline in force.
    pub const fn discipline(&self) -> Discipline {
        self.discipline
    }

    /// Changes the discipline from the next dispatch on. All requests stay, and so do counts;
    /// virtual times begin anew, with all tenants level.
    pub fn set_discipline(&mut self, now: Time, discipline: Discipline) {
        if discipline == self.discipline {
            return;
        }
        self.empty_heaps(now);
        self.discipline = discipline;
        self.fair_queues.iter_mut().for_each(|fair_queue| fair_queue.virtual_time = 0);
        self.past_virtual_times = [0; 2];
        self.longest = [0; 2];
        self.states.iter_mut().for_each(TenantState::restart);
        (0..self.states.len()).for_each(|index| self.settle(now, index));
    }

    /// Makes a slot with these parameters, without a limit until it is granted counts.
    pub fn add(&mut self, parameters: TenantParameters) -> Slot {
        let index = self.free.pop().unwrap_or(self.states.len() as u32);
        if index as usize == self.states.len() {
            self.states.push(TenantState::new(1));
            self.at.push(0);
        }
        let state = &mut self.states[index as usize];
        state.set_parameters(parameters);
        Slot { index, generation: state.generation, shard: self.shard }
    }

    /// Removes a slot. Requests that wait in it, and those that still come for it, belong to
    /// [`Slot::UNATTRIBUTED`] from then on.
    pub fn remove(&mut self, now: Time, slot: Slot) {
        let index = self.index(slot);
        if index == 0 {
            return;
        }
        self.leave(now, index);
        // A slot that has had all its generations is not used again.
        let next = slot.generation.checked_add(1);
        let old = core::mem::replace(&mut self.states[index], TenantState::new(next.unwrap_or(0)));
        if next.is_some() {
            self.free.push(index as u32);
        }
        let unattributed = &mut self.states[0];
        let was_empty = unattributed.queue.is_empty();
        unattributed.come(now, old.waiting);
        unattributed.take_over(now, old.in_flight);
        self.requests.append(&mut unattributed.queue, old.queue);
        if was_empty {
            self.settle(now, 0);
        }
    }

    /// Sets a slot's parameters; they hold from the next dispatch. A removed slot has none.
    pub fn set_parameters(&mut self, now: Time, slot: Slot, parameters: TenantParameters) {
        let index = self.index(slot);
        if index == 0 && slot != Slot::UNATTRIBUTED {
            return;
        }
        self.leave(now, index);
        self.states[index].set_parameters(parameters);
        self.settle(now, index);
    }

    /// Begins a period: nothing has been served, and the last [`Self::grant`] holds until the next
    /// one. The period is paced to end at `until`; it ends when the next one begins.
    pub fn begin(&mut self, now: Time, until: Time) {
        self.until = until;
        self.empty_heaps(now);
        let virtual_time = self.fair_queues[Phase::Fair as usize].virtual_time;
        self.longest = [self.longest[1], 0];
        self.periods += 1;
        if self.periods >= WINDOW / 2 {
            self.periods = 0;
            self.past_virtual_times = [self.past_virtual_times[1], virtual_time];
        }
        for index in 0..self.states.len() {
            let state = &mut self.states[index];
            state.forgive(virtual_time);
            state.begin(now, until, self.pacing);
            self.settle(now, index);
        }
    }

    /// Sets the counts up to which a slot is served in this period. Has no effect on
    /// [`Slot::UNATTRIBUTED`].
    pub fn grant(&mut self, now: Time, slot: Slot, counts: PeriodGrant) {
        let index = self.index(slot);
        if index == 0 {
            return;
        }
        let state = &mut self.states[index];
        state.grant(now, self.until, self.pacing, counts);
        self.settle(now, index);
    }

    /// Takes in a request.
    pub fn push(&mut self, now: Time, slot: Slot, request_cost: RequestCost, job: J) {
        let index = self.index(slot);
        let (cost, work) = (request_cost.cost.max(1), request_cost.work.max(1));
        let state = &mut self.states[index];
        let was_empty = state.queue.is_empty();
        let delay = request_cost.delay.saturating_add(core::mem::take(&mut state.pending));
        // In order of arrival, here and, to the nanosecond, among several schedulers.
        let number = self.number.max(now.0);
        let request = QueuedRequest { number, cost, work, delay, job };
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
    /// carry: the paper's virtual requests, summed up. Has no effect while no request waits:
    /// virtual requests would be served at once, and advance virtual time.
    pub fn delay(&mut self, slot: Slot, work: u64) {
        if !self.is_backlogged() && !self.is_contended {
            return;
        }
        let index = self.index(slot);
        let state = &mut self.states[index];
        let pending = u64::from(state.pending).saturating_add(work);
        state.pending = u32::try_from(pending).unwrap_or(u32::MAX);
    }

    /// Dispatches the next request, which counts as served; none if none may be served now.
    pub fn pop(&mut self, now: Time) -> Option<Dispatched<J>> {
        self.promote(now);
        let (phase, start_tag, index) = self.first()?;
        Some(self.take(now, phase, start_tag, index))
    }

    /// Returns the phase of the next request, its start tag, and its slot's index.
    fn first(&self) -> Option<(Phase, u128, usize)> {
        Phase::ALL.into_iter().find_map(|phase| {
            let (start_tag, index) = self.fair_queues[phase as usize].heap.first()?;
            Some((phase, start_tag, index as usize))
        })
    }

    /// Takes out the first request of a slot that is first in the fair queue of `phase`.
    fn take(&mut self, now: Time, phase: Phase, start_tag: u128, index: usize) -> Dispatched<J> {
        let state = &mut self.states[index];
        let Some(request) = self.requests.pop(&mut state.queue) else {
            unreachable!("a slot races only while requests wait in it");
        };
        let units = u64::from(request.cost);
        self.latest = now;
        state.charge_wait(now, self.passed, request.cost);
        self.own.count(phase, request.cost);
        self.passed.count(phase, request.cost);
        state.seen = self.passed;
        self.waiting -= units;
        state.dispatch(now, units);
        state.spend(self.discipline, phase, request.cost);
        state.pace(self.until, self.pacing);
        self.run(phase, start_tag, index, &request);
        self.follow(now, phase, index);
        let generation = self.states[index].generation;
        let slot = Slot { index: index as u32, generation, shard: self.shard };
        let QueuedRequest { cost, job, .. } = request;
        Dispatched { slot, cost, is_reserved: phase.is_reserved(), job }
    }

    /// Moves a slot's finish tags past its request with this `start_tag` in `phase`, and virtual
    /// time to that tag.
    fn run(&mut self, phase: Phase, start_tag: u128, index: usize, request: &QueuedRequest<J>) {
        let state = &mut self.states[index];
        let fair = self.fair_queues[Phase::Fair as usize].virtual_time;
        if self.discipline == Discipline::Unified {
            let window = fair - self.past_virtual_times[0];
            match phase {
                Phase::Fair => state.charge_fair(start_tag, window, request),
                _ => state.charge(fair, window, request),
            }
        }
        let length = state.advance(self.discipline, phase, start_tag, request);
        self.longest[1] = self.longest[1].max(length);
        self.fair_queues[phase as usize].virtual_time = start_tag;
    }

    /// Moves a slot that was first in the fair queue of `phase`, where it may be first again.
    fn follow(&mut self, now: Time, phase: Phase, index: usize) {
        let state = &self.states[index];
        let fair_queue = &mut self.fair_queues[phase as usize];
        if state.eligibility_at(self.discipline, now) == Eligibility::Eligible(phase)
            && let Some(first) = self.requests.first(state.queue)
        {
            let start_tag = state.start_tag(self.discipline, phase, fair_queue.virtual_time, first);
            fair_queue.heap.replace(0, start_tag, &mut self.at);
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
        self.fair_queues.iter().any(|fair_queue| fair_queue.heap.first().is_some())
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
    pub fn counters(&self, now: Time, slot: Slot) -> SlotCounters {
        self.states[self.index(slot)].counters(now.max(self.latest))
    }

    /// How long requests of a slot have waited, and for which rule, each as often as it costs.
    /// Requests that wait now count up to now.
    pub fn waits(&mut self, now: Time, slot: Slot) -> Waits {
        let (now, index) = (now.max(self.latest), self.index(slot));
        self.charge_wait(now, index);
        let state = &self.states[index];
        let (wait_times, counters) = (state.wait_times(), state.counters(now));
        let explained = wait_times
            .limit
            .saturating_add(wait_times.reservation)
            .saturating_add(wait_times.fairness);
        Waits {
            operations: counters.total,
            limit_ns: wait_times.limit,
            reservation_ns: wait_times.reservation,
            turn_ns: wait_times.fairness,
            device_ns: counters.stayed(now).saturating_sub(explained),
        }
    }

    /// Units of cost that were dispatched for a slot in this period.
    pub fn served(&self, slot: Slot) -> u64 {
        self.states[self.index(slot)].served
    }

    /// Up to what counts a slot is served in this period.
    pub fn counts(&self, slot: Slot) -> PeriodGrant {
        self.states[self.index(slot)].counts
    }

    /// Units of cost that wait at all slots.
    pub const fn waiting(&self) -> u64 {
        self.waiting
    }

    /// The index of a slot; that of [`Slot::UNATTRIBUTED`] if it was removed.
    fn index(&self, slot: Slot) -> usize {
        let index = slot.index as usize;
        let is_current = |state: &TenantState| state.generation == slot.generation;
        if self.states.get(index).is_some_and(is_current) { index } else { 0 }
    }

    /// Makes paced slots eligible whose time has come, as [`Self::pop`] does too.
    pub fn promote(&mut self, now: Time) {
        while let Some((_, index)) = self.paced.first().filter(|(time, _)| *time <= now) {
            self.settle(now, index as usize);
        }
    }

    /// Moves a slot to the heap of its eligibility.
    fn settle(&mut self, now: Time, index: usize) {
        let eligibility = self.states[index].eligibility_at(self.discipline, now);
        // An eligible slot keeps its key in a fair queue; a paced one may have a new time.
        if eligibility == self.states[index].eligibility && eligibility != Eligibility::Paced {
            return;
        }
        self.leave(now, index);
        let state = &mut self.states[index];
        state.eligibility = eligibility;
        match eligibility {
            Eligibility::Ineligible => {}
            Eligibility::Paced => self.paced.push(state.ready_at, index as u32, &mut self.at),
            Eligibility::Eligible(phase) => {
                let Some(first) = self.requests.first(state.queue) else {
                    unreachable!("a slot races only while requests wait in it");
                };
                let fair_queue = &mut self.fair_queues[phase as usize];
                let start_tag =
                    state.start_tag(self.discipline, phase, fair_queue.virtual_time, first);
                fair_queue.heap.push(start_tag, index as u32, &mut self.at);
            }
        }
    }

    /// Takes a slot out of the heap that it is in.
    fn leave(&mut self, now: Time, index: usize) {
        self.charge_wait(now, index);
        let at = self.at[index] as usize;
        match core::mem::replace(&mut self.states[index].eligibility, Eligibility::Ineligible) {
            Eligibility::Ineligible => {}
            Eligibility::Paced => self.paced.remove(at, &mut self.at),
            Eligibility::Eligible(phase) => {
                self.fair_queues[phase as usize].heap.remove(at, &mut self.at)
            }
        }
    }

    /// Takes all slots out of their heaps.
    fn empty_heaps(&mut self, now: Time) {
        for index in 0..self.states.len() {
            self.charge_wait(now, index);
            self.states[index].eligibility = Eligibility::Ineligible;
        }
        self.paced.clear();
        self.fair_queues.iter_mut().for_each(|fair_queue| fair_queue.heap.clear());
    }

    /// Charges the waiting time of a slot's requests since the last call to its causes.
    fn charge_wait(&mut self, now: Time, index: usize) {
        let state = &mut self.states[index];
        let own = self.requests.first(state.queue).map_or(0, |first| first.cost);
        state.charge_wait(now, self.passed, own);
    }
}

#[cfg(test)]
#[path = "scheduler_debt_tests.rs"]
mod debt_tests;
#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
