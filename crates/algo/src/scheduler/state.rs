//! One slot: where it is in the races, up to what counts it goes, and what has happened there.

use tidegate_model::{Discipline, Span, Time};

use super::heap::Heap;
use super::requests::{Queue, Request};
use super::words::{Counts, Pacing, Tally, Terms, at};
use super::{BYTES_PER_SLOT, UNIT, WEIGHT_MAX};
use crate::dsfq::Bound;

/// Where a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In no heap: nothing waits, or no token is left.
    Out,
    /// In the race of this step.
    Racing(Step),
    /// Ahead of its pace.
    Paced,
}

/// The steps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Urgent = 0,
    Reserved = 1,
    Fair = 2,
}

impl Step {
    pub(crate) const ALL: [Self; 3] = [Self::Urgent, Self::Reserved, Self::Fair];

    /// Which of the two ends belongs to it: no tenant is in both of the first steps.
    const fn end(self) -> usize {
        matches!(self, Self::Fair) as usize
    }

    /// Whether it is for those with reservation tokens.
    pub(super) const fn is_reserved(self) -> bool {
        !matches!(self, Self::Fair)
    }
}

/// Units of cost that were dispatched in all, by right and in turn, modulo 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) reserved: u32,
    pub(crate) fair: u32,
}

impl Passed {
    /// So many units were dispatched in this step.
    pub(super) const fn count(&mut self, step: Step, units: u32) {
        let passed = if step.is_reserved() { &mut self.reserved } else { &mut self.fair };
        *passed = passed.wrapping_add(units);
    }
}

/// Request-nanoseconds that were spent waiting, by what held them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) limit: u64,
    pub(super) reservation: u64,
    pub(super) turn: u64,
}

#[derive(Debug)]
pub(super) struct State {
    /// Where its last request ended, in the race of reservations and in the fair one.
    ends: [u128; 2],
    /// [`UNIT`] divided by its weight.
    stride: u64,
    pub(super) counts: Counts,
    pub(super) served: u64,
    pub(super) total: u64,
    pub(super) arrived: u64,
    pub(super) waiting: u64,
    /// For how long something has been waiting, minus the moment since when it has been now.
    backlogged: u64,
    /// The sums of the times at which units came, were dispatched or cancelled, and were completed
    /// or cancelled, modulo 2^64.
    came: u64,
    went: u64,
    left: u64,
    held: Held,
    /// The time that units had waited, in sum, at the last call of [`Self::tell`].
    told: u64,
    /// Units that had passed at the last call of [`Self::tell`], or after its last dispatch.
    pub(super) seen: Passed,
    /// The line along which what is allowed becomes eligible begins here, with so many served. It
    /// ends with the period.
    line_since: Time,
    line_base: u32,
    /// Units that were served in the period before. This and the counts of units below have 32 bits
    /// and saturate: a period has fewer units than that.
    pub(super) served_before: u32,
    /// Units that were served beyond what was allowed and that no period has paid for yet.
    owed: u32,
    /// Up to what count reservation tokens are used up by what went by right, in this period or,
    /// beyond what was reserved, in earlier ones.
    righted: u32,
    /// When its next request is on the line.
    pub(super) ready_at: Time,
    /// Work by which later requests are to be delayed, in parts of 2^16 of a unit.
    debt: u64,
    /// Work at other nodes that the next request is to carry.
    pub(super) pending: u32,
    bound: Bound,
    pub(super) in_flight: u32,
    pub(super) queue: Queue,
    pub(super) generation: u16,
    pub(super) place: Place,
    flags: u8,
}

/// The tenant's class is urgent.
const URGENT: u8 = 1;
/// Requests went by right and counted in the fair race, which has not passed them yet.
const BY_RIGHT: u8 = 2;
/// All that was served in this period was a payment of what is owed.
const PAID_ONLY: u8 = 4;

// With an entry in a heap and its place there, which it has while requests wait.
const _: () = assert!(size_of::<State>() + Heap::<u128>::BYTES + 4 <= BYTES_PER_SLOT);

impl State {
    pub(super) const fn new(generation: u16) -> Self {
        Self {
            ends: [0; 2],
            stride: UNIT,
            counts: Counts::UNLIMITED,
            served: 0,
            total: 0,
            arrived: 0,
            waiting: 0,
            backlogged: 0,
            came: 0,
            went: 0,
            left: 0,
            held: Held { limit: 0, reservation: 0, turn: 0 },
            told: 0,
            seen: Passed { reserved: 0, fair: 0 },
            line_since: Time::ZERO,
            line_base: 0,
            served_before: 0,
            owed: 0,
            righted: 0,
            ready_at: Time::ZERO,
            debt: 0,
            pending: 0,
            bound: Bound::ZERO,
            in_flight: 0,
            queue: Queue::EMPTY,
            generation,
            place: Place::Out,
            flags: 0,
        }
    }

    /// It must not be racing.
    pub(super) fn set_terms(&mut self, terms: Terms) {
        self.stride = UNIT / u64::from(terms.weight.clamp(1, WEIGHT_MAX));
        self.bound = terms.bound;
        if terms.is_urgent != (self.flags & URGENT != 0) {
            self.flags ^= URGENT;
            // Where it was in the race of one class says nothing about that of another.
            self.ends[Step::Reserved.end()] = 0;
        }
    }

    /// Where it belongs at `now`.
    pub(super) fn belongs(&self, discipline: Discipline, now: Time) -> Place {
        if self.queue.is_empty() {
            return Place::Out;
        }
        if !discipline.heeds_promises() {
            return Place::Racing(Step::Fair);
        }
        if self.served >= self.counts.allowed {
            Place::Out
        } else if self.ready_at > now {
            Place::Paced
        } else if !self.has_right() {
            Place::Racing(Step::Fair)
        } else {
            Place::Racing(self.right(discipline))
        }
    }

    /// In which step it goes by right.
    pub(super) const fn right(&self, discipline: Discipline) -> Step {
        let is_urgent = matches!(discipline, Discipline::Unified) && self.flags & URGENT != 0;
        if is_urgent { Step::Urgent } else { Step::Reserved }
    }

    // The race.

    /// Where its first waiting request starts in the race of a step that is at `race`.
    pub(super) fn start<J>(
        &self,
        discipline: Discipline,
        step: Step,
        race: u128,
        first: &Request<J>,
    ) -> u128 {
        let delay = match (discipline, step) {
            (Discipline::Fifo, _) => return u128::from(first.number),
            (Discipline::DsfqTotal | Discipline::DsfqHybrid | Discipline::Unified, Step::Fair) => {
                self.delayed(self.applied(discipline, first))
            }
            _ => 0,
        };
        race.max(self.ends[step.end()].saturating_add(delay))
    }

    /// The work by which a request is delayed, in parts of 2^16 of a unit: a bound is seldom a
    /// whole number of the smallest requests.
    fn applied<J>(&self, discipline: Discipline, request: &Request<J>) -> u64 {
        let delay = u64::from(request.delay) << 16;
        match discipline {
            Discipline::DsfqTotal => delay,
            Discipline::DsfqHybrid => delay.min(self.bound.of(request.work)),
            Discipline::Unified => delay.saturating_add(self.debt).min(self.bound.of(request.work)),
            _ => 0,
        }
    }

    /// Moves it to the end of a request that starts at `start`, and says how long that is.
    pub(super) fn advance<J>(
        &mut self,
        discipline: Discipline,
        step: Step,
        start: u128,
        request: &Request<J>,
    ) -> u128 {
        let length = match (discipline, step) {
            (Discipline::Fifo, _) => return 0,
            (Discipline::RoundRobin, _) => u128::from(UNIT),
            (Discipline::Token, _) | (_, Step::Urgent | Step::Reserved) => {
                self.length(u64::from(request.cost))
            }
            _ => self.length(u64::from(request.work)),
        };
        self.ends[step.end()] = start.saturating_add(length);
        length
    }

    /// Moves it on in the races that are at `races` for what a request turned out to take beyond
    /// what it was dispatched with. Says how long that is in the race of `step`.
    pub(super) fn extend(
        &mut self,
        discipline: Discipline,
        step: Step,
        races: [u128; 2],
        (cost, work): (u32, u32),
    ) -> u128 {
        use Discipline::{Fifo, RoundRobin, Token, Unified};
        let [right, fair] = [Step::Reserved, Step::Fair].map(Step::end);
        let (by_cost, by_work) = (self.length(u64::from(cost)), self.length(u64::from(work)));
        let mut extend = |end: usize, length: u128| {
            self.ends[end] = races[end].max(self.ends[end]).saturating_add(length);
            length
        };
        match (discipline, step.is_reserved()) {
            (Fifo | RoundRobin, _) => 0,
            (Token, is_right) => extend(if is_right { right } else { fair }, by_cost),
            (Unified, true) => {
                extend(fair, by_work);
                self.flags |= BY_RIGHT;
                extend(right, by_cost)
            }
            _ => extend(fair, by_work),
        }
    }

    /// Counts a request in the fair race that goes by right while that is at `race`.
    pub(super) fn charge<J>(&mut self, race: u128, window: u128, request: &Request<J>) {
        let start = self.start(Discipline::Unified, Step::Fair, race, request);
        self.owe(start, window, request);
        let _ = self.advance(Discipline::Unified, Step::Fair, start, request);
        self.flags |= BY_RIGHT;
    }

    /// Counts a request that starts at `start` in the fair race because it is its turn. By then the
    /// race has passed whatever went by right.
    pub(super) fn turn<J>(&mut self, start: u128, window: u128, request: &Request<J>) {
        self.owe(start, window, request);
        self.flags &= !BY_RIGHT;
    }

    /// Notes what is left to delay of a request that starts at `start` in the fair race, at most
    /// as much as the race moved in the `window`.
    fn owe<J>(&mut self, start: u128, window: u128, request: &Request<J>) {
        let delay = self.debt.saturating_add(u64::from(request.delay) << 16);
        let rest = delay - self.applied(Discipline::Unified, request);
        self.debt = 0;
        if rest == 0 {
            return;
        }
        // Where it would start without a bound; behind `start` if the race has not passed that.
        let whole = self.ends[Step::Fair.end()].saturating_add(self.delayed(delay));
        let ahead = whole.saturating_sub(start).min(window);
        self.debt = if ahead >= self.delayed(rest) {
            rest
        } else {
            // Less than the rest, which is below 2^64 parts and so 2^108 long.
            ((ahead << 16) / u128::from(self.stride)) as u64
        };
    }

    /// Forgives what it is ahead of a race that is at `race` because requests went by right, and
    /// with it what may be left of one that went in turn before them.
    pub(super) fn forgive(&mut self, race: u128) {
        if self.flags & BY_RIGHT != 0 {
            self.flags &= !BY_RIGHT;
            let end = &mut self.ends[Step::Fair.end()];
            *end = race.min(*end);
        }
    }

    /// Begins anew in new races.
    pub(super) const fn restart(&mut self) {
        self.ends = [0; 2];
        self.debt = 0;
        self.flags &= !BY_RIGHT;
    }

    fn length(&self, work: u64) -> u128 {
        u128::from(work) * u128::from(self.stride)
    }

    /// The length of so many parts of 2^16 of a unit of work.
    fn delayed(&self, parts: u64) -> u128 {
        self.length(parts) >> 16
    }

    // Tokens and debts.

    /// Whether a reservation token is left.
    pub(super) fn has_right(&self) -> bool {
        self.served.max(u64::from(self.righted)) < self.counts.reserved
    }

    /// Whether nobody may go beyond what is allowed.
    const fn is_limited(&self) -> bool {
        self.counts.allowed != u64::MAX
    }

    /// Takes tokens for so many units in `step`. Units beyond the counts are owed, if the
    /// discipline heeds them.
    #[inline]
    pub(super) fn spend(&mut self, discipline: Discipline, step: Step, units: u32) {
        self.flags &= !PAID_ONLY;
        let before = self.served;
        self.served = before.saturating_add(u64::from(units));
        if step.is_reserved() {
            self.righted = self.righted.max(narrow(before)).saturating_add(units);
        }
        if self.served > self.counts.allowed && discipline.heeds_promises() {
            self.owe_tokens(before);
        }
    }

    /// Owes what was served beyond what is allowed since that was `before`.
    #[cold]
    fn owe_tokens(&mut self, before: u64) {
        let most = self.counts.allowed.max(before);
        self.owed = self.owed.saturating_add(narrow(self.served.saturating_sub(most)));
        self.served = most.min(self.served);
    }

    /// Pays what is owed with the tokens that there are, as though so much more had been served.
    fn pay(&mut self, until: Time, pacing: Pacing) {
        if self.owed == 0 {
            return;
        }
        let tokens = self.counts.allowed.saturating_sub(self.served);
        let paid = self.owed.min(narrow(tokens));
        self.owed -= paid;
        if !self.is_limited() {
            // Without a limit nothing is owed, and nothing has to be paid.
            return;
        }
        if self.served == 0 && paid > 0 {
            self.flags |= PAID_ONLY;
        }
        self.served += u64::from(paid);
        self.pace(until, pacing);
    }

    /// Begins a period: nothing has been served in it but what is owed.
    pub(super) fn begin(&mut self, now: Time, until: Time, pacing: Pacing) {
        self.served_before = narrow(self.served);
        self.served = 0;
        self.flags &= !PAID_ONLY;
        self.righted = self.righted.saturating_sub(narrow(self.counts.reserved));
        // The last line ended, so it has no next request to wait for.
        self.ready_at = now;
        self.begin_line(now, until, pacing);
        self.pay(until, pacing);
    }

    /// Takes other counts for this period.
    pub(super) fn grant(&mut self, now: Time, until: Time, pacing: Pacing, counts: Counts) {
        let before = core::mem::replace(&mut self.counts, counts);
        // Reservation tokens that were used in this period before they were taken are no debt.
        let is_used = self.served > 0 && self.flags & PAID_ONLY == 0;
        if is_used && u64::from(self.righted) <= before.reserved {
            self.righted = self.righted.min(narrow(counts.reserved));
        }
        if before.allowed == counts.allowed {
            return;
        }
        if self.flags & PAID_ONLY != 0 {
            // The period began with other counts than it has: what they paid is owed again.
            self.owed = self.owed.saturating_add(narrow(self.served));
            (self.served, self.ready_at) = (0, now);
            self.flags &= !PAID_ONLY;
        }
        self.begin_line(now, until, pacing);
        self.pay(until, pacing);
    }

    // The line.

    /// Lets it wait until what was served is on its line.
    pub(super) fn pace(&mut self, until: Time, pacing: Pacing) {
        if self.is_paced(pacing) {
            self.ready_at = self.on_line(until);
        }
    }

    /// Whether what is allowed is spread.
    fn is_paced(&self, pacing: Pacing) -> bool {
        pacing == Pacing::Even && self.is_limited()
    }

    /// The moment at which as many as were served are on the line, so that one more may go.
    fn on_line(&self, until: Time) -> Time {
        let (since, base) = (self.line_since, u64::from(self.line_base));
        let ahead = self.served.saturating_sub(base);
        let all = self.counts.allowed.saturating_sub(base).max(1);
        // Less than the line's length as long as anything is allowed, so it fits.
        let wait = (u128::from(ahead) * u128::from(until.since(since).0)).div_ceil(u128::from(all));
        since.after(Span(u64::try_from(wait).unwrap_or(u64::MAX)))
    }

    /// Begins a line at `now`, or a step of it later, or in between, when its last line had the
    /// next request.
    fn begin_line(&mut self, now: Time, until: Time, pacing: Pacing) {
        if !self.is_paced(pacing) {
            self.ready_at = Time::ZERO;
            return;
        }
        let base = self.served;
        let steps = self.counts.allowed.saturating_sub(base).max(1);
        let latest = now.after(Span(until.since(now).0 / steps));
        let since = self.ready_at.clamp(now, latest);
        (self.line_since, self.line_base) = (since, narrow(base));
        self.ready_at = since;
    }

    // Events.

    /// So many units came, and wait.
    pub(super) fn come(&mut self, now: Time, units: u64) {
        if self.waiting == 0 && units > 0 {
            self.backlogged = self.backlogged.wrapping_sub(now.0);
        }
        self.arrived += units;
        self.came = self.came.wrapping_add(at(now, units));
        self.waiting += units;
    }

    /// So many units wait no more.
    pub(super) fn go(&mut self, now: Time, units: u64) {
        self.waiting -= units;
        self.went = self.went.wrapping_add(at(now, units));
        if self.waiting == 0 {
            self.backlogged = self.backlogged.wrapping_add(now.0);
        }
    }

    /// So many units go to the device.
    pub(super) fn dispatch(&mut self, now: Time, units: u64) {
        self.go(now, units);
        self.total += units;
        self.in_flight = self.in_flight.saturating_add(units as u32);
    }

    /// So many units more than were dispatched turn out to have been served: they came, went and
    /// were finished at once.
    pub(super) fn add(&mut self, now: Time, units: u64) {
        self.arrived += units;
        self.total += units;
        let sum = at(now, units);
        self.came = self.came.wrapping_add(sum);
        self.went = self.went.wrapping_add(sum);
        self.left = self.left.wrapping_add(sum);
    }

    /// So many units that another slot sent to the device are this one's from now on.
    pub(super) fn take_over(&mut self, now: Time, in_flight: u32) {
        let units = u64::from(in_flight);
        self.arrived += units;
        self.came = self.came.wrapping_add(at(now, units));
        self.went = self.went.wrapping_add(at(now, units));
        self.in_flight = self.in_flight.saturating_add(in_flight);
    }

    /// So many units are here no more.
    pub(super) fn leave(&mut self, now: Time, units: u64) {
        self.left = self.left.wrapping_add(at(now, units));
    }

    /// Charges the waiting time since the last call to its causes, given the units that have
    /// `passed` in all. In a race, the requests that pass it hold it, each as long as it costs; no
    /// cause is charged for the cost of its `own` next request.
    pub(super) fn tell(&mut self, now: Time, passed: Passed, own: u32) {
        let seen = core::mem::replace(&mut self.seen, passed);
        let waited = self.went.wrapping_add(at(now, self.waiting)).wrapping_sub(self.came);
        let span = forward(waited.wrapping_sub(self.told));
        if span == 0 {
            return;
        }
        self.told = waited;
        if let Place::Racing(_) = self.place {
            let reserved = u64::from(passed.reserved.wrapping_sub(seen.reserved));
            let fair = u64::from(passed.fair.wrapping_sub(seen.fair));
            if reserved + fair == 0 {
                return;
            }
            let all = u128::from(reserved + fair + u64::from(own));
            let part = |units| (u128::from(span) * u128::from(units) / all) as u64;
            self.held.reservation = self.held.reservation.saturating_add(part(reserved));
            self.held.turn = self.held.turn.saturating_add(part(fair));
        } else {
            self.held.limit = self.held.limit.saturating_add(span);
        }
    }

    /// The waiting time that was charged to each cause so far.
    pub(super) const fn held(&self) -> Held {
        self.held
    }

    pub(super) fn tally(&self, now: Time) -> Tally {
        let since = if self.waiting > 0 { now.0 } else { 0 };
        Tally {
            served: self.served,
            served_before: u64::from(self.served_before),
            total: self.total,
            arrived: self.arrived,
            waiting: self.waiting,
            in_flight: u64::from(self.in_flight),
            backlogged: Span(forward(self.backlogged.wrapping_add(since))),
            came: self.came,
            left: self.left,
        }
    }
}

/// A count of units in 32 bits.
const fn narrow(units: u64) -> u32 {
    if units > u32::MAX as u64 { u32::MAX } else { units as u32 }
}

/// A difference modulo 2^64 that is not negative; zero if it is. A period may be said to have begun
/// before the last thing that happened in the one before.
const fn forward(difference: u64) -> u64 {
    if difference > i64::MAX as u64 { 0 } else { difference }
}
