//! State of one tenant in a scheduler: its finish tags, its tokens, and its counters.

use tidegate_model::{Discipline, Span, Time};

use super::heap::Heap;
use super::requests::{Queue, QueuedRequest};
use super::words::{Pacing, PeriodGrant, SlotCounters, TenantParameters, at};
use super::{BYTES_PER_SLOT, UNIT, WEIGHT_MAX};
use crate::scheduling::dsfq::Bound;

/// Whether a slot's first request may be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eligibility {
    /// In no heap: nothing waits, or no token is left.
    Ineligible,
    /// In the fair queue of this phase.
    Eligible(Phase),
    /// Ahead of its pace.
    Paced,
}

/// The phases of a dispatch, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Urgent = 0,
    Reserved = 1,
    Fair = 2,
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::Urgent, Self::Reserved, Self::Fair];

    /// The index of its finish tag: no tenant is in both of the first phases.
    const fn tag_index(self) -> usize {
        matches!(self, Self::Fair) as usize
    }

    /// Whether it is for those with reservation tokens.
    pub(super) const fn is_reserved(self) -> bool {
        !matches!(self, Self::Fair)
    }
}

/// Units of cost that were dispatched in all, in the reserved phases and in the fair one, modulo
/// 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) reserved: u32,
    pub(crate) fair: u32,
}

impl Passed {
    /// So many units were dispatched in this phase.
    pub(super) const fn count(&mut self, phase: Phase, units: u32) {
        let passed = if phase.is_reserved() { &mut self.reserved } else { &mut self.fair };
        *passed = passed.wrapping_add(units);
    }
}

/// Request-nanoseconds that were spent waiting, by what held them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WaitTimes {
    pub(super) limit: u64,
    pub(super) reservation: u64,
    pub(super) fairness: u64,
}

#[derive(Debug)]
pub(super) struct TenantState {
    /// The finish tag of its last request, in its reserved phase and in the fair one.
    finish_tags: [u128; 2],
    /// [`UNIT`] divided by its weight.
    stride: u64,
    pub(super) counts: PeriodGrant,
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
    wait_times: WaitTimes,
    /// The time that units had waited, in sum, at the last call of [`Self::charge_wait`].
    charged_wait: u64,
    /// Units that had passed at the last call of [`Self::charge_wait`], or after its last dispatch.
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
    /// Up to what count reservation tokens were used in the reserved phases, in this period or,
    /// beyond what was reserved, in earlier ones.
    reserved_used: u32,
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
    pub(super) eligibility: Eligibility,
    flags: u8,
}

/// The tenant's class is urgent.
const URGENT: u8 = 1;
/// Reserved requests count in the fair phase, whose virtual time has not passed them yet.
const RESERVED_AHEAD: u8 = 2;
/// All that was served in this period was a payment of what is owed.
const PAID_ONLY: u8 = 4;

// With an entry in a heap and its index there, which it has while requests wait.
const _: () = assert!(size_of::<TenantState>() + Heap::<u128>::BYTES + 4 <= BYTES_PER_SLOT);

impl TenantState {
    pub(super) const fn new(generation: u16) -> Self {
        Self {
            finish_tags: [0; 2],
            stride: UNIT,
            counts: PeriodGrant::UNLIMITED,
            served: 0,
            total: 0,
            arrived: 0,
            waiting: 0,
            backlogged: 0,
            came: 0,
            went: 0,
            left: 0,
            wait_times: WaitTimes { limit: 0, reservation: 0, fairness: 0 },
            charged_wait: 0,
            seen: Passed { reserved: 0, fair: 0 },
            line_since: Time::ZERO,
            line_base: 0,
            served_before: 0,
            owed: 0,
            reserved_used: 0,
            ready_at: Time::ZERO,
            debt: 0,
            pending: 0,
            bound: Bound::ZERO,
            in_flight: 0,
            queue: Queue::EMPTY,
            generation,
            eligibility: Eligibility::Ineligible,
            flags: 0,
        }
    }

    /// It must not be in a fair queue.
    pub(super) fn set_parameters(&mut self, parameters: TenantParameters) {
        self.stride = UNIT / u64::from(parameters.weight.clamp(1, WEIGHT_MAX));
        self.bound = parameters.bound;
        if parameters.is_urgent != (self.flags & URGENT != 0) {
            self.flags ^= URGENT;
            // A finish tag of one reserved phase means nothing in the other.
            self.finish_tags[Phase::Reserved.tag_index()] = 0;
        }
    }

    /// Its eligibility at `now`.
    pub(super) fn eligibility_at(&self, discipline: Discipline, now: Time) -> Eligibility {
        if self.queue.is_empty() {
            return Eligibility::Ineligible;
        }
        if !discipline.observes_promises() {
            return Eligibility::Eligible(Phase::Fair);
        }
        if self.served >= self.counts.allowed {
            Eligibility::Ineligible
        } else if self.ready_at > now {
            Eligibility::Paced
        } else if !self.has_reservation_token() {
            Eligibility::Eligible(Phase::Fair)
        } else {
            Eligibility::Eligible(self.reserved_phase(discipline))
        }
    }

    /// The phase in which it uses reservation tokens.
    pub(super) const fn reserved_phase(&self, discipline: Discipline) -> Phase {
        let is_urgent = matches!(discipline, Discipline::Unified) && self.flags & URGENT != 0;
        if is_urgent { Phase::Urgent } else { Phase::Reserved }
    }

    // Tags.

    /// The start tag of its first waiting request in a phase at this virtual time.
    pub(super) fn start_tag<J>(
        &self,
        discipline: Discipline,
        phase: Phase,
        virtual_time: u128,
        first: &QueuedRequest<J>,
    ) -> u128 {
        let delay = match (discipline, phase) {
            (Discipline::Fifo, _) => return u128::from(first.number),
            (Discipline::DsfqTotal | Discipline::DsfqHybrid | Discipline::Unified, Phase::Fair) => {
                self.delayed(self.applied(discipline, first))
            }
            _ => 0,
        };
        virtual_time.max(self.finish_tags[phase.tag_index()].saturating_add(delay))
    }

    /// The work by which a request is delayed, in parts of 2^16 of a unit: a bound is seldom a
    /// whole number of the smallest requests.
    fn applied<J>(&self, discipline: Discipline, request: &QueuedRequest<J>) -> u64 {
        let delay = u64::from(request.delay) << 16;
        match discipline {
            Discipline::DsfqTotal => delay,
            Discipline::DsfqHybrid => delay.min(self.bound.of(request.work)),
            Discipline::Unified => delay.saturating_add(self.debt).min(self.bound.of(request.work)),
            _ => 0,
        }
    }

    /// Moves its finish tag past a request with this start tag, and returns the request's length.
    pub(super) fn advance<J>(
        &mut self,
        discipline: Discipline,
        phase: Phase,
        start_tag: u128,
        request: &QueuedRequest<J>,
    ) -> u128 {
        let length = match (discipline, phase) {
            (Discipline::Fifo, _) => return 0,
            (Discipline::RoundRobin, _) => u128::from(UNIT),
            (Discipline::Token, _) | (_, Phase::Urgent | Phase::Reserved) => {
                self.length(u64::from(request.cost))
            }
            _ => self.length(u64::from(request.work)),
        };
        self.finish_tags[phase.tag_index()] = start_tag.saturating_add(length);
        length
    }

    /// Moves its finish tags for the part of a request's cost that was not known at its dispatch,
    /// with phases at these virtual times. Returns the length of that part in `phase`.
    pub(super) fn extend(
        &mut self,
        discipline: Discipline,
        phase: Phase,
        virtual_times: [u128; 2],
        (cost, work): (u32, u32),
    ) -> u128 {
        use Discipline::{Fifo, RoundRobin, Token, Unified};
        let [reserved, fair] = [Phase::Reserved, Phase::Fair].map(Phase::tag_index);
        let (by_cost, by_work) = (self.length(u64::from(cost)), self.length(u64::from(work)));
        let mut extend = |tag_index: usize, length: u128| {
            self.finish_tags[tag_index] =
                virtual_times[tag_index].max(self.finish_tags[tag_index]).saturating_add(length);
            length
        };
        match (discipline, phase.is_reserved()) {
            (Fifo | RoundRobin, _) => 0,
            (Token, uses_reservation) => {
                extend(if uses_reservation { reserved } else { fair }, by_cost)
            }
            (Unified, true) => {
                extend(fair, by_work);
                self.flags |= RESERVED_AHEAD;
                extend(reserved, by_cost)
            }
            _ => extend(fair, by_work),
        }
    }

    /// Counts a reserved request in the fair phase, which is at this virtual time.
    pub(super) fn charge<J>(
        &mut self,
        virtual_time: u128,
        window: u128,
        request: &QueuedRequest<J>,
    ) {
        let start_tag = self.start_tag(Discipline::Unified, Phase::Fair, virtual_time, request);
        self.owe(start_tag, window, request);
        let _ = self.advance(Discipline::Unified, Phase::Fair, start_tag, request);
        self.flags |= RESERVED_AHEAD;
    }

    /// Counts a request that is dispatched in the fair phase. By then virtual time has passed all
    /// reserved requests.
    pub(super) fn charge_fair<J>(
        &mut self,
        start_tag: u128,
        window: u128,
        request: &QueuedRequest<J>,
    ) {
        self.owe(start_tag, window, request);
        self.flags &= !RESERVED_AHEAD;
    }

    /// Notes the rest of the delay of a request with this start tag in the fair phase, at most as
    /// much as virtual time moved in the `window`.
    fn owe<J>(&mut self, start_tag: u128, window: u128, request: &QueuedRequest<J>) {
        let delay = self.debt.saturating_add(u64::from(request.delay) << 16);
        let rest = delay - self.applied(Discipline::Unified, request);
        self.debt = 0;
        if rest == 0 {
            return;
        }
        // Its start tag without a bound; behind `start_tag` if virtual time has not passed that.
        let whole = self.finish_tags[Phase::Fair.tag_index()].saturating_add(self.delayed(delay));
        let ahead = whole.saturating_sub(start_tag).min(window);
        self.debt = if ahead >= self.delayed(rest) {
            rest
        } else {
            // Less than the rest, which is below 2^64 parts and so 2^108 long.
            ((ahead << 16) / u128::from(self.stride)) as u64
        };
    }

    /// Forgives the lead over `virtual_time` that reserved requests gave it, and with it the rest
    /// of a fair request before them.
    pub(super) fn forgive(&mut self, virtual_time: u128) {
        if self.flags & RESERVED_AHEAD != 0 {
            self.flags &= !RESERVED_AHEAD;
            let finish_tag = &mut self.finish_tags[Phase::Fair.tag_index()];
            *finish_tag = virtual_time.min(*finish_tag);
        }
    }

    /// Begins anew in new fair queues.
    pub(super) const fn restart(&mut self) {
        self.finish_tags = [0; 2];
        self.debt = 0;
        self.flags &= !RESERVED_AHEAD;
    }

    fn length(&self, work: u64) -> u128 {
        u128::from(work) * u128::from(self.stride)
    }

    /// The length of so many parts of 2^16 of a unit of work.
    fn delayed(&self, parts: u64) -> u128 {
        self.length(parts) >> 16
    }

    // Tokens and debts.

    pub(super) fn has_reservation_token(&self) -> bool {
        self.served.max(u64::from(self.reserved_used)) < self.counts.reserved
    }

    const fn is_limited(&self) -> bool {
        self.counts.allowed != u64::MAX
    }

    /// Takes tokens for so many units in `phase`. Units beyond the counts are owed, if the
    /// discipline has promises.
    #[inline]
    pub(super) fn spend(&mut self, discipline: Discipline, phase: Phase, units: u32) {
        self.flags &= !PAID_ONLY;
        let before = self.served;
        self.served = before.saturating_add(u64::from(units));
        if phase.is_reserved() {
            self.reserved_used = self.reserved_used.max(narrow(before)).saturating_add(units);
        }
        if self.served > self.counts.allowed && discipline.observes_promises() {
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
        self.reserved_used = self.reserved_used.saturating_sub(narrow(self.counts.reserved));
        // The last line ended, so it has no next request to wait for.
        self.ready_at = now;
        self.begin_line(now, until, pacing);
        self.pay(until, pacing);
    }

    /// Takes other counts for this period.
    pub(super) fn grant(&mut self, now: Time, until: Time, pacing: Pacing, counts: PeriodGrant) {
        let before = core::mem::replace(&mut self.counts, counts);
        // Reservation tokens that were used in this period before they were taken are no debt.
        let is_used = self.served > 0 && self.flags & PAID_ONLY == 0;
        if is_used && u64::from(self.reserved_used) <= before.reserved {
            self.reserved_used = self.reserved_used.min(narrow(counts.reserved));
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
    /// `passed` in all. While it is eligible, the requests that pass it hold it, each in proportion
    /// to its cost. No cause is charged for the cost of its `own` next request.
    pub(super) fn charge_wait(&mut self, now: Time, passed: Passed, own: u32) {
        let seen = core::mem::replace(&mut self.seen, passed);
        let waited = self.went.wrapping_add(at(now, self.waiting)).wrapping_sub(self.came);
        let span = forward(waited.wrapping_sub(self.charged_wait));
        if span == 0 {
            return;
        }
        self.charged_wait = waited;
        if let Eligibility::Eligible(_) = self.eligibility {
            let reserved = u64::from(passed.reserved.wrapping_sub(seen.reserved));
            let fair = u64::from(passed.fair.wrapping_sub(seen.fair));
            if reserved + fair == 0 {
                return;
            }
            let all = u128::from(reserved + fair + u64::from(own));
            let part = |units| (u128::from(span) * u128::from(units) / all) as u64;
            self.wait_times.reservation =
                self.wait_times.reservation.saturating_add(part(reserved));
            self.wait_times.fairness = self.wait_times.fairness.saturating_add(part(fair));
        } else {
            self.wait_times.limit = self.wait_times.limit.saturating_add(span);
        }
    }

    /// The waiting time that was charged to each cause so far.
    pub(super) const fn wait_times(&self) -> WaitTimes {
        self.wait_times
    }

    pub(super) fn counters(&self, now: Time) -> SlotCounters {
        let since = if self.waiting > 0 { now.0 } else { 0 };
        SlotCounters {
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

/// A difference modulo 2^64 that is not negative; zero if it is. A period may be dated before the
/// last event of the one before.
const fn forward(difference: u64) -> u64 {
    if difference > i64::MAX as u64 { 0 } else { difference }
}
