//! Who is served next at a storage node: pShift's token scheduler (§II, Algorithm 1), on counts.
//!
//! # Problem
//! Each tenant has a queue at the node. A controller says, per tenant and period, up to what count
//! requests are *reserved* and up to what count they are *allowed*. Between two words from the
//! controller the node decides alone, request by request: reserved ones first, nobody beyond what
//! is allowed, and never idle while somebody waits who may be served.
//!
//! # Mechanism
//! The paper's tokens are differences of counts: a tenant has `reserved - served` reservation
//! tokens left, and `allowed - served` of any kind. For each dispatch:
//!
//! 1. among tenants with requests waiting and reservation tokens left, the next in turn;
//! 2. if there is none, among those with requests waiting and any tokens left, the next in turn;
//! 3. if there is none, nobody. The paper waits a little and looks again;
//!    [`Scheduler::next_eligible`] says when looking again is worth it.
//!
//! *In turn* is weighted round robin (§V): each step has a race in which a request of cost *c* and
//! weight *w* is *c / w* long. A tenant that joins a step starts where the race is, or where its
//! own last request in it ended, if that is farther; the one that is least far is next, the smaller
//! slot on a tie. So with equal weights and costs everybody has one request a turn, as in the
//! paper; with others, the costs that are served in a step while two tenants both wait in it
//! differ, per weight, by at most one request of each. The two races know nothing of each other:
//! who had much in step 1 by right does not pay for it in step 2.
//!
//! Example, all costs 1, all always waiting, *a* reserved 2 and weight 1, *b* weight 2, *c* weight
//! 1 and allowed 1: a a | a b c b a b b a b b …, where the bar parts the steps.
//!
//! A request starts if at least one token is left, and counts whole: a tenant is served beyond its
//! count by less than one request. A cost is at least one.
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
//! # Left out
//! Classes. Strict priority would let an urgent tenant starve others in step 2, and in step 1, on a
//! node with more reserved than it can do, take the reservations of others. Who is to wait less has
//! a larger weight; classes order requests beyond this point, where a device has queues for them.
//!
//! # Cost
//! Each operation is O(log n) in the number of tenants that wait; a new period is O(n). An idle
//! tenant costs less than [`BYTES_PER_SLOT`].

use alloc::vec::Vec;
use core::mem::size_of;

use tidegate_model::{Span, Time};

use heap::Heap;
use requests::{Queue, Request, Requests};

mod heap;
mod requests;

/// The largest weight. Larger ones count as this, and zero as one.
pub const WEIGHT_MAX: u32 = 1_000_000;

/// The most that an idle slot occupies.
pub const BYTES_PER_SLOT: usize = 256;

/// The length in a race of one unit of cost at weight one.
///
/// It is 720,720, the least number that 1 to 16 divide, times 10^12, so that the weights that
/// people write divide it and their ties are real ties. For any other weight, at most a million, a
/// unit is short by less than one in 7.2 * 10^11. A node that serves 10^7 units per second for one
/// tenant of weight one moves 7.2 * 10^24 per second: 128 bits last for 10^6 years.
const UNIT: u64 = 720_720 * 1_000_000_000_000;

/// A tenant's place in a scheduler. A slot that was removed never means another tenant: from then
/// on it is [`Self::NOBODY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    index: u32,
    generation: u32,
}

impl Slot {
    /// For requests that are nobody's, or whose owner nobody knows: nothing is reserved for them
    /// and they have no limit.
    pub const NOBODY: Self = Self { index: 0, generation: 0 };
}

/// Whether what is allowed is spread over the period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pacing {
    /// At each moment, at most the part that has passed.
    #[default]
    Even,
    /// At once, if it is asked for: Algorithm 1 as published.
    Paper,
}

/// Up to what counts a tenant is served within a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Up to this count it goes before those without reservation tokens.
    pub reserved: u64,
    /// Up to this count it is served at all; [`u64::MAX`] for no limit.
    pub allowed: u64,
}

impl Counts {
    /// Nothing is reserved, and there is no limit.
    pub const UNLIMITED: Self = Self { reserved: 0, allowed: u64::MAX };
    /// Nothing is reserved, and nothing is allowed.
    pub const NOTHING: Self = Self { reserved: 0, allowed: 0 };
}

/// What has happened at a slot. Only `waiting`, `in_flight` and `served` ever fall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Units of cost dispatched in this period.
    pub served: u64,
    /// Units of cost dispatched in the period before.
    pub served_before: u64,
    /// Units of cost dispatched since the slot was made.
    pub total: u64,
    /// Units of cost that came since the slot was made, those that were cancelled included.
    pub arrived: u64,
    /// Units of cost that wait.
    pub waiting: u64,
    /// Units of cost at the device.
    pub in_flight: u64,
    /// For how long something has been waiting since the slot was made.
    pub backlogged: Span,
    /// The sum of the times at which units came, in nanoseconds. With [`Self::arrived`] at two
    /// moments it tells when in between they came on average.
    pub came: u128,
    /// The sum of the times at which units were completed or cancelled.
    pub left: u128,
}

impl Tally {
    /// Units of cost that are here, in the queue or at the device.
    pub const fn present(&self) -> u64 {
        self.waiting.saturating_add(self.in_flight)
    }

    /// The time that units have been here in sum, those that still are included.
    pub fn stayed(&self, now: Time) -> u128 {
        (self.left + at(now, self.present())).saturating_sub(self.came)
    }
}

/// A request whose turn it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Dispatched<J> {
    /// Whose it is.
    pub slot: Slot,
    /// Units of cost, at least one.
    pub cost: u32,
    /// Whether a reservation token was left for it: it went in step 1.
    pub is_reserved: bool,
    /// What was pushed.
    pub job: J,
}

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In no heap: nothing waits, or no token is left.
    Out,
    /// In the race of this step.
    Racing(Step),
    /// Ahead of its pace.
    Paced,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Reserved = 0,
    Allowed = 1,
}

/// The line along which what is allowed becomes eligible.
#[derive(Clone, Copy, Debug)]
struct Line {
    since: Time,
    base: u64,
    length: Span,
}

#[derive(Debug)]
struct State {
    /// Where its next request starts in the race of each step.
    starts: [u128; 2],
    /// [`UNIT`] divided by its weight.
    stride: u64,
    counts: Counts,
    tally: Tally,
    line: Line,
    /// When its next request is on the line.
    ready_at: Time,
    /// Since when something has been waiting, if something is.
    backlogged_since: Time,
    queue: Queue,
    generation: u32,
    place: Place,
}

// With an entry in a heap and its place there, which it has while requests wait.
const _: () = assert!(size_of::<State>() + size_of::<(u128, u32)>() + 4 <= BYTES_PER_SLOT);

impl State {
    fn new(generation: u32) -> Self {
        Self {
            starts: [0; 2],
            stride: UNIT,
            counts: Counts::UNLIMITED,
            tally: Tally::default(),
            line: Line { since: Time::ZERO, base: 0, length: Span::ZERO },
            ready_at: Time::ZERO,
            backlogged_since: Time::ZERO,
            queue: Queue::EMPTY,
            generation,
            place: Place::Out,
        }
    }

    /// Where it belongs at `now`.
    fn belongs(&self, now: Time) -> Place {
        let served = self.tally.served;
        if self.queue.is_empty() || served >= self.counts.allowed {
            Place::Out
        } else if self.ready_at > now {
            Place::Paced
        } else if served < self.counts.reserved {
            Place::Racing(Step::Reserved)
        } else {
            Place::Racing(Step::Allowed)
        }
    }

    /// Whether what is allowed is spread.
    fn is_paced(&self, pacing: Pacing) -> bool {
        pacing == Pacing::Even && self.counts.allowed != u64::MAX
    }

    /// The moment at which as many as were served are on the line, so that one more may go.
    fn on_line(&self) -> Time {
        let Line { since, base, length } = self.line;
        let ahead = self.tally.served.saturating_sub(base);
        let all = self.counts.allowed.saturating_sub(base).max(1);
        // Less than the line's length as long as anything is allowed, so it fits.
        let wait = (u128::from(ahead) * u128::from(length.0)).div_ceil(u128::from(all));
        since.after(Span(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    /// Begins a line at `now`, or a step of it later, or in between, when its last line had the
    /// next request.
    fn begin_line(&mut self, now: Time, until: Time, pacing: Pacing) {
        if !self.is_paced(pacing) {
            self.ready_at = Time::ZERO;
            return;
        }
        let base = self.tally.served;
        let steps = self.counts.allowed.saturating_sub(base).max(1);
        let latest = now.after(Span(until.since(now).0 / steps));
        let since = self.ready_at.clamp(now, latest);
        self.line = Line { since, base, length: until.since(since) };
        self.ready_at = since;
    }
}

/// One step's race.
#[derive(Debug)]
struct Race {
    heap: Heap<u128>,
    /// Where the request that was dispatched last had started.
    start: u128,
}

/// Requests of many tenants, in the order in which a node serves them.
///
/// ```
/// use tidegate_algo::scheduler::{Counts, Pacing, Scheduler};
/// use tidegate_model::Time;
/// let mut scheduler = Scheduler::new(Pacing::Even);
/// let now = Time::ZERO;
/// scheduler.begin(now, Time(1_000));
/// let [a, b] = [scheduler.add(1), scheduler.add(1)];
/// scheduler.grant(now, a, Counts { reserved: 0, allowed: 2 });
/// scheduler.grant(now, b, Counts { reserved: 1, allowed: u64::MAX });
/// for job in ["a1", "a2", "a3"] {
///     scheduler.push(now, a, 1, job);
/// }
/// scheduler.push(now, b, 1, "b1");
/// assert_eq!(scheduler.pop(now).map(|next| next.job), Some("b1")); // reserved
/// assert_eq!(scheduler.pop(now).map(|next| next.job), Some("a1"));
/// assert!(scheduler.pop(now).is_none()); // a has had half of what it may in this period
/// assert_eq!(scheduler.next_eligible(), Some(Time(500)));
/// assert_eq!(scheduler.pop(Time(500)).map(|next| next.job), Some("a2"));
/// assert_eq!(scheduler.next_eligible(), None); // a3 waits for the next period
/// ```
#[derive(Debug)]
pub struct Scheduler<J> {
    states: Vec<State>,
    /// The place of each slot in its heap.
    at: Vec<u32>,
    /// Removed slots that can be used again.
    free: Vec<u32>,
    requests: Requests<J>,
    races: [Race; 2],
    paced: Heap<Time>,
    pacing: Pacing,
    until: Time,
    /// Units of cost that wait at all slots.
    waiting: u64,
}

impl<J> Scheduler<J> {
    /// A scheduler for nobody's requests only, in a period that never ends.
    pub fn new(pacing: Pacing) -> Self {
        let race = || Race { heap: Heap::new(), start: 0 };
        Self {
            states: alloc::vec![State::new(0)],
            at: alloc::vec![0],
            free: Vec::new(),
            requests: Requests::new(),
            races: [race(), race()],
            paced: Heap::new(),
            pacing,
            until: Time::MAX,
            waiting: 0,
        }
    }

    /// Makes a slot with this weight, without a limit until it is granted counts.
    pub fn add(&mut self, weight: u32) -> Slot {
        let index = self.free.pop().unwrap_or(self.states.len() as u32);
        if index as usize == self.states.len() {
            self.states.push(State::new(1));
            self.at.push(0);
        }
        let slot = Slot { index, generation: self.states[index as usize].generation };
        self.set_weight(slot, weight);
        slot
    }

    /// Removes a slot. What waits in it, and what still comes for it, is nobody's from here on.
    pub fn remove(&mut self, now: Time, slot: Slot) {
        let index = self.index(slot);
        if index == 0 {
            return;
        }
        self.leave(index);
        let old = core::mem::replace(&mut self.states[index], State::new(0));
        self.states[index].generation = old.generation.wrapping_add(1).max(1);
        self.free.push(index as u32);
        let nobody = &mut self.states[0];
        if nobody.queue.is_empty() && !old.queue.is_empty() {
            nobody.backlogged_since = now;
        }
        nobody.tally.waiting += old.tally.waiting;
        nobody.tally.in_flight += old.tally.in_flight;
        nobody.tally.arrived += old.tally.present();
        nobody.tally.came += at(now, old.tally.present());
        self.requests.append(&mut nobody.queue, old.queue);
        self.settle(now, 0);
    }

    /// Sets a slot's weight, 1 to [`WEIGHT_MAX`]; it holds from the next dispatch.
    pub fn set_weight(&mut self, slot: Slot, weight: u32) {
        let index = self.index(slot);
        self.states[index].stride = UNIT / u64::from(weight.clamp(1, WEIGHT_MAX));
    }

    /// Begins a period: nothing has been served, and what [`Self::grant`] said of the last one
    /// holds anew until it says otherwise. The period is paced to end at `until`; it ends when the
    /// next one begins.
    pub fn begin(&mut self, now: Time, until: Time) {
        self.until = until;
        self.paced.clear();
        for race in &mut self.races {
            race.heap.clear();
        }
        for index in 0..self.states.len() {
            let state = &mut self.states[index];
            state.place = Place::Out;
            state.tally.served_before = state.tally.served;
            state.tally.served = 0;
            // The last line ended, so it has no next request to wait for.
            state.ready_at = now;
            state.begin_line(now, until, self.pacing);
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
        let is_new_line = state.counts.allowed != counts.allowed;
        state.counts = counts;
        if is_new_line {
            state.begin_line(now, self.until, self.pacing);
        }
        self.settle(now, index);
    }

    /// Takes in a request. A cost of zero counts as one.
    pub fn push(&mut self, now: Time, slot: Slot, cost: u32, job: J) {
        let index = self.index(slot);
        let cost = cost.max(1);
        let state = &mut self.states[index];
        let was_empty = state.queue.is_empty();
        self.requests.push(&mut state.queue, Request { cost, job });
        state.tally.arrived += u64::from(cost);
        state.tally.came += at(now, u64::from(cost));
        state.tally.waiting += u64::from(cost);
        self.waiting += u64::from(cost);
        if was_empty {
            state.backlogged_since = now;
            self.settle(now, index);
        }
    }

    /// The request whose turn it is, which counts as served; nothing if none may be served now.
    pub fn pop(&mut self, now: Time) -> Option<Dispatched<J>> {
        self.promote(now);
        let first = |step: Step| Some((step, self.races[step as usize].heap.first()?));
        let (step, (start, index)) = first(Step::Reserved).or_else(|| first(Step::Allowed))?;
        let index = index as usize;
        let state = &mut self.states[index];
        let Some(Request { cost, job }) = self.requests.pop(&mut state.queue) else {
            unreachable!("a slot races only while requests wait in it");
        };
        self.waiting -= u64::from(cost);
        state.tally.waiting -= u64::from(cost);
        state.tally.served = state.tally.served.saturating_add(u64::from(cost));
        state.tally.total += u64::from(cost);
        state.tally.in_flight += u64::from(cost);
        if state.queue.is_empty() {
            state.end_backlog(now);
        }
        if state.is_paced(self.pacing) {
            state.ready_at = state.on_line();
        }
        state.starts[step as usize] = start + u128::from(cost) * u128::from(state.stride);
        let race = &mut self.races[step as usize];
        race.start = start;
        if state.belongs(now) == state.place {
            race.heap.replace(0, state.starts[step as usize], &mut self.at);
        } else {
            self.settle(now, index);
        }
        let slot = Slot { index: index as u32, generation: self.states[index].generation };
        Some(Dispatched { slot, cost, is_reserved: step == Step::Reserved, job })
    }

    /// A request that was popped has been served, or has failed.
    pub fn complete(&mut self, now: Time, slot: Slot, cost: u32) {
        let index = self.index(slot);
        let tally = &mut self.states[index].tally;
        let cost = u64::from(cost.max(1)).min(tally.in_flight);
        tally.in_flight -= cost;
        tally.left += at(now, cost);
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

    /// Takes out the waiting requests that `which` picks, slot by slot, in their order.
    pub fn cancel(&mut self, now: Time, mut which: impl FnMut(&J) -> bool) -> Vec<J> {
        let mut cancelled = Vec::new();
        for index in 0..self.states.len() {
            let state = &mut self.states[index];
            let mut rest = Queue::EMPTY;
            let had_requests = !state.queue.is_empty();
            while let Some(request) = self.requests.pop(&mut state.queue) {
                if which(&request.job) {
                    state.tally.waiting -= u64::from(request.cost);
                    state.tally.left += at(now, u64::from(request.cost));
                    self.waiting -= u64::from(request.cost);
                    cancelled.push(request.job);
                } else {
                    self.requests.push(&mut rest, request);
                }
            }
            state.queue = rest;
            if had_requests && rest.is_empty() {
                state.end_backlog(now);
                self.settle(now, index);
            }
        }
        cancelled
    }

    /// What has happened at a slot so far.
    pub fn tally(&self, now: Time, slot: Slot) -> Tally {
        let state = &self.states[self.index(slot)];
        let mut tally = state.tally;
        if !state.queue.is_empty() {
            let waited = now.since(state.backlogged_since);
            tally.backlogged = tally.backlogged.saturating_add(waited);
        }
        tally
    }

    /// Units of cost that were dispatched for a slot in this period.
    pub fn served(&self, slot: Slot) -> u64 {
        self.states[self.index(slot)].tally.served
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
        let place = self.states[index].belongs(now);
        // One that stays in a race stays where it is there; one that is paced may have a new time.
        if place == self.states[index].place && place != Place::Paced {
            return;
        }
        self.leave(index);
        let state = &mut self.states[index];
        state.place = place;
        match place {
            Place::Out => {}
            Place::Paced => self.paced.push(state.ready_at, index as u32, &mut self.at),
            Place::Racing(step) => {
                let race = &mut self.races[step as usize];
                let start = &mut state.starts[step as usize];
                *start = race.start.max(*start);
                race.heap.push(*start, index as u32, &mut self.at);
            }
        }
    }

    /// Takes a slot out of the heap that it is in.
    fn leave(&mut self, index: usize) {
        let at = self.at[index] as usize;
        match core::mem::replace(&mut self.states[index].place, Place::Out) {
            Place::Out => {}
            Place::Paced => self.paced.remove(at, &mut self.at),
            Place::Racing(step) => self.races[step as usize].heap.remove(at, &mut self.at),
        }
    }
}

impl State {
    /// Notes that nothing waits any more.
    fn end_backlog(&mut self, now: Time) {
        let waited = now.since(self.backlogged_since);
        self.tally.backlogged = self.tally.backlogged.saturating_add(waited);
    }
}

/// What so many units at a time add to a sum of times.
fn at(now: Time, units: u64) -> u128 {
    u128::from(now.0) * u128::from(units)
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
