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
//! 1. under [`Discipline::Unified`], among tenants with urgent requests waiting and reservation
//!    tokens left, the next in order: strictly first, and bounded by what was admitted for them;
//! 2. among other tenants with requests waiting and reservation tokens left, the next in order;
//! 3. if there is none, among those with requests waiting and any tokens left, the next in order
//!    of the class whose turn it is;
//! 4. if there is none, no request goes. The paper waits a little and checks again;
//!    [`Scheduler::next_eligible`] gives the time of the next check.
//!
//! Disciplines without [promises](Discipline::observes_promises) have the third phase only, and all
//! tenants take part in it. So does pShift's Algorithm 1 ([`Discipline::Token`]) without the first.
//! A tenant that is blocked by its limit is not backlogged, like a tenant without a request: it
//! earns no credit, and comes back in O(log n) at the virtual time of that moment.
//!
//! # Classes
//! Each request brings its class. With [class weights](Scheduler::set_class_weights) the third
//! phase is one fair queue for each of high, medium and low, and these take turns by their weights,
//! as in the arbitration of NVMe ([`super::wrr`]): with 3 : 2 : 1, six requests of three backlogged
//! classes are three high, two medium and one low. Each request is a turn, whatever its size. An
//! urgent request without a reservation token is high, and goes before other high requests of its
//! tenant. Without weights, and under [`Discipline::Fifo`], all classes share the medium queue.
//!
//! A tenant has one account of tokens and counters, and a *flow* in each class of which it has
//! requests: a queue, a finish tag and a debt. So its classes change neither its reservation nor
//! its limit, and in the turns of a class it has its own share of that class. The alternative, a
//! slot for each tenant and class, would split what is promised among slots that the controller
//! would have to balance. Requests with a reservation token are one order of tenants; a tenant
//! spends its tokens on its own classes in their turns, urgent requests first. A tenant that sends
//! one class only, or any without weights, costs what it did: the other flows are in a record that
//! is made with the first request of another class.
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
//! # Bytes
//! A tenant of a named resource has a second account of the same kind, in tokens of bytes. Its
//! requests take tokens of both, one of operations whatever their size (`bytes.rs`).
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

use alloc::sync::Arc;
use alloc::vec::Vec;

use tidegate_model::{Class, ClassWeights, Discipline, Time};

use crate::scheduling::phase::{Passed, Phase};
use crate::scheduling::shards::OtherShards;
use crate::scheduling::turns::ClassTurns;
use crate::scheduling::wrr::SHARING;
use bytes::ByteAccount;
pub use bytes::ByteCounters;
use classes::{ClassQueue, ClassRecords};
use flow::MEDIUM;
use heap::Heap;
use records::Records;
use requests::{QueuedRequest, Requests};
use state::{Eligibility, TenantState};
pub use words::{
    Amounts, Dispatched, Pacing, PeriodGrant, PeriodPart, RequestCost, Slot, SlotCounters,
    TenantParameters,
};

mod bytes;
mod changes;
mod charge;
mod classes;
mod counters;
mod due;
mod flow;
mod heap;
mod records;
mod requests;
mod shard;
mod state;
mod tokens;
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
    /// The index of each slot in the fair queue of each class. The second is also that in any other
    /// heap: a slot in those is in no fair queue of a class.
    at: [Vec<u32>; SHARING],
    /// Removed slots that can be used again.
    free: Vec<u32>,
    requests: Requests<J>,
    /// The least number of the next request.
    number: u64,
    /// The latest time at which something came, went or was finished.
    latest: Time,
    fair_queues: [FairQueue; Phase::ALL.len()],
    class_weights: Option<ClassWeights>,
    classes: ClassRecords,
    /// Of tenants that are promised bytes.
    bytes: Records<ByteAccount>,
    turns: Arc<ClassTurns>,
    paced: Heap<Time>,
    /// When the period began, and when it is to end.
    since: Time,
    until: Time,
    /// Units of cost that wait at all slots.
    waiting: u64,
    /// Whether a request waits in another shard, as last observed.
    is_contended: bool,
    /// Units of cost that this shard has dispatched, and those of all shards.
    own: Passed,
    passed: Passed,
    /// The virtual time of each class in the fair phase at most [`WINDOW`] periods ago, and at
    /// least half of that.
    past_virtual_times: [[u128; 2]; SHARING],
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
            at: [Vec::new(), alloc::vec![0], Vec::new()],
            free: Vec::new(),
            requests: Requests::new(),
            number: 0,
            latest: Time::ZERO,
            fair_queues: [const { FairQueue::new() }; Phase::ALL.len()],
            class_weights: None,
            classes: ClassRecords::default(),
            bytes: Records::default(),
            turns: classes::turns(),
            paced: Heap::new(),
            since: Time::ZERO,
            until: Time::MAX,
            waiting: 0,
            is_contended: false,
            own: Passed::default(),
            passed: Passed::default(),
            past_virtual_times: [[0; 2]; SHARING],
            periods: 0,
            longest: [0; 2],
        }
    }

    /// The discipline in force.
    pub const fn discipline(&self) -> Discipline {
        self.discipline
    }

    /// Begins a period: nothing has been served, and the last [`Self::grant`] holds until the next
    /// one. The period is paced to end at `until`; it ends when the next one begins.
    pub fn begin(&mut self, now: Time, until: Time) {
        (self.since, self.until) = (now, until);
        self.empty_heaps(now);
        self.longest = [self.longest[1], 0];
        self.periods += 1;
        if self.periods >= WINDOW / 2 {
            self.periods = 0;
            for (class, past) in self.past_virtual_times.iter_mut().enumerate() {
                *past = [past[1], self.fair_queues[Phase::fair(class) as usize].virtual_time];
            }
        }
        for index in 0..self.states.len() {
            self.forgive(index);
            let pacing = self.pacing;
            self.states[index].tokens.begin(now, until, pacing);
            if index == Slot::UNATTRIBUTED.index() {
                self.carry_reserved();
            }
            if let Some(account) = self.byte_account_mut(index) {
                account.tokens.begin(now, until, pacing);
            }
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
        self.states[index].tokens.grant(now, self.until, self.pacing, counts);
        self.settle(now, index);
    }

    /// Takes in a request of the usual class, [`Class::Medium`].
    pub fn push(&mut self, now: Time, slot: Slot, request_cost: RequestCost, job: J) {
        self.push_in_class(now, (slot, Class::default()), request_cost, job);
    }

    /// Takes in a request of a slot and a class.
    pub fn push_in_class(
        &mut self,
        now: Time,
        (slot, class): (Slot, Class),
        request_cost: RequestCost,
        job: J,
    ) {
        let index = self.index(slot);
        let (cost, work) = (request_cost.cost.max(1), request_cost.work.max(1));
        let state = &mut self.states[index];
        let delay = request_cost.delay.saturating_add(core::mem::take(&mut state.pending));
        state.come(now, u64::from(cost));
        // In order of arrival, here and, to the nanosecond, among several schedulers.
        let number = self.number.max(now.0);
        let RequestCost { operations, bytes, .. } = request_cost;
        let request = QueuedRequest { number, cost, work, delay, operations, bytes, class, job };
        self.number = number + 1;
        self.latest = now;
        self.waiting += u64::from(cost);
        if let Some(account) = self.byte_account_mut(index) {
            account.come(Amounts::of(operations, bytes));
        }
        let is_urgent = self.class_rules().queue_of(class) == ClassQueue::Urgent;
        if self.enqueue(index, request) {
            if is_urgent {
                // It goes before those of its tenant that have a start tag.
                self.leave(now, index);
            }
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
        let (phase, start_tag, index) = self.first(&OtherShards::NONE)?;
        Some(self.take(now, (phase, start_tag), index, &OtherShards::NONE))
    }

    /// Returns the phase of the next request, its start tag, and its slot's index. In the fair
    /// phase, none if it is the turn of a class that waits in other shards only.
    fn first(&self, others: &OtherShards) -> Option<(Phase, u128, usize)> {
        let first = |phase: Phase| {
            let (start_tag, index) = self.fair_queues[phase as usize].heap.first()?;
            Some((phase, start_tag, index as usize))
        };
        let reserved = first(Phase::Urgent).or_else(|| first(Phase::Reserved));
        reserved.or_else(|| first(Phase::fair(self.fair_turn(others)?)))
    }

    /// Takes out the next request of a slot that is first in the fair queue of `phase`.
    fn take(
        &mut self,
        now: Time,
        (phase, start_tag): (Phase, u128),
        index: usize,
        others: &OtherShards,
    ) -> Dispatched<J> {
        if !phase.is_reserved() && self.class_weights.is_some() {
            self.take_turn(phase.class(), self.fair_waits(others));
        }
        let (class, request) = self.pop_in(phase, index);
        let Some(request) = request else {
            unreachable!("a slot is in a fair queue only while requests wait in it");
        };
        let state = &mut self.states[index];
        let units = u64::from(request.cost);
        self.latest = now;
        state.charge_wait(now, self.passed, request.cost);
        self.own.count(phase, request.cost);
        self.passed.count(phase, request.cost);
        state.seen = self.passed;
        self.waiting -= units;
        state.dispatch(now, units);
        let (discipline, until, pacing) = (self.discipline, self.until, self.pacing);
        let tokens = if state.counts_bytes() { request.operations } else { request.cost };
        state.tokens.spend(discipline, phase.is_reserved(), tokens);
        state.tokens.pace(until, pacing);
        if let Some(account) = self.byte_account_mut(index) {
            account.dispatch(discipline, phase.is_reserved(), request.amounts());
            account.tokens.pace(until, pacing);
        }
        self.run((phase, start_tag), class, index, &request);
        self.follow(now, phase, index);
        let generation = self.states[index].generation;
        let slot = Slot { index: index as u32, generation, shard: self.shard };
        let QueuedRequest { cost, job, .. } = request;
        Dispatched { slot, cost, is_reserved: phase.is_reserved(), job }
    }

    /// Moves a slot's finish tags past its request with this `start_tag` in `phase`, and virtual
    /// time to that tag. The request counts in the fair queue of `class`.
    fn run(
        &mut self,
        (phase, start_tag): (Phase, u128),
        class: usize,
        index: usize,
        request: &QueuedRequest<J>,
    ) {
        let (discipline, share) = (self.discipline, self.states[index].share());
        let is_unified = discipline == Discipline::Unified;
        let fair = self.fair_queues[Phase::fair(class) as usize].virtual_time;
        // A FIFO's goes back where requests of a removed slot come behind later ones.
        let window = fair.saturating_sub(self.past_virtual_times[class][0]);
        let mut flow = self.flow(index, class);
        let length = if phase.is_reserved() {
            if is_unified {
                let start_tag = flow.start_tag(share, discipline, fair, request);
                flow.owe(share, start_tag, window, request);
                flow.advance(share, discipline, start_tag, request);
                self.states[index].set_ahead(class, true);
            }
            let length = share.length(u64::from(request.cost));
            self.set_reserved_tag(index, phase, start_tag.saturating_add(length));
            length
        } else {
            if is_unified {
                // By now virtual time has passed all reserved requests.
                flow.owe(share, start_tag, window, request);
                self.states[index].set_ahead(class, false);
            }
            flow.advance(share, discipline, start_tag, request)
        };
        self.set_flow(index, class, flow);
        self.longest[1] = self.longest[1].max(length);
        self.fair_queues[phase as usize].virtual_time = start_tag;
    }

    /// Moves a slot that was first in the fair queue of `phase`, where it may be first again.
    fn follow(&mut self, now: Time, phase: Phase, index: usize) {
        if self.eligibility_at(now, index) != phase.eligibility() {
            return self.settle(now, index);
        }
        let start_tag = match phase {
            Phase::Urgent | Phase::Reserved => Some(self.reserved_start(phase, index)),
            _ => self.fair_start(phase.class(), index),
        };
        let (heap, at) =
            (&mut self.fair_queues[phase as usize].heap, &mut self.at[phase.heap_index()]);
        match start_tag {
            Some(start_tag) => heap.replace(0, start_tag, at),
            None => {
                heap.remove(0, at);
                self.states[index].set_in(phase.class(), false);
            }
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

    fn eligibility_at(&self, now: Time, index: usize) -> Eligibility {
        self.states[index].eligibility_at(self.discipline, now, self.binding(index))
    }

    /// Moves a slot to the heaps of its eligibility.
    fn settle(&mut self, now: Time, index: usize) {
        let eligibility = self.eligibility_at(now, index);
        if eligibility == self.states[index].eligibility {
            match eligibility {
                // A flow may have come. An eligible slot keeps its keys; a paced one may have a new
                // time.
                Eligibility::Fair => return self.enter_fair(index),
                Eligibility::Paced => {}
                _ => return,
            }
        }
        self.leave(now, index);
        let ready_at = state::ready_at(self.binding(index));
        self.states[index].eligibility = eligibility;
        let phase = match eligibility {
            Eligibility::Ineligible => return,
            Eligibility::Fair => return self.enter_fair(index),
            Eligibility::Paced => {
                return self.paced.push(ready_at, index as u32, &mut self.at[MEDIUM]);
            }
            Eligibility::Urgent => Phase::Urgent,
            Eligibility::Reserved => Phase::Reserved,
        };
        let start_tag = self.reserved_start(phase, index);
        let heap = &mut self.fair_queues[phase as usize].heap;
        heap.push(start_tag, index as u32, &mut self.at[MEDIUM]);
    }

    /// Takes a slot out of the heaps that it is in.
    fn leave(&mut self, now: Time, index: usize) {
        self.charge_wait(now, index);
        let at = self.at[MEDIUM][index] as usize;
        let state = &mut self.states[index];
        let heap = match core::mem::replace(&mut state.eligibility, Eligibility::Ineligible) {
            Eligibility::Ineligible => return,
            Eligibility::Fair => return self.leave_fair(index),
            Eligibility::Paced => return self.paced.remove(at, &mut self.at[MEDIUM]),
            Eligibility::Urgent => &mut self.fair_queues[Phase::Urgent as usize].heap,
            Eligibility::Reserved => &mut self.fair_queues[Phase::Reserved as usize].heap,
        };
        heap.remove(at, &mut self.at[MEDIUM]);
    }

    /// Takes all slots out of their heaps.
    fn empty_heaps(&mut self, now: Time) {
        for index in 0..self.states.len() {
            self.charge_wait(now, index);
            self.states[index].leave_heaps();
        }
        self.paced.clear();
        self.fair_queues.iter_mut().for_each(|fair_queue| fair_queue.heap.clear());
    }

    /// Charges the waiting time of a slot's requests since the last call to its causes.
    fn charge_wait(&mut self, now: Time, index: usize) {
        let own = self.any_first(index).map_or(0, |first| first.cost);
        self.states[index].charge_wait(now, self.passed, own);
    }
}

#[cfg(test)]
#[path = "scheduler_bytes_tests.rs"]
mod bytes_tests;
#[cfg(test)]
#[path = "scheduler_class_tests.rs"]
mod class_tests;
#[cfg(test)]
#[path = "scheduler_debt_tests.rs"]
mod debt_tests;
#[cfg(test)]
#[path = "scheduler_oracle_tests.rs"]
mod oracle_tests;
#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
