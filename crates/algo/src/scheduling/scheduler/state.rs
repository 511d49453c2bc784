//! State of one tenant in a scheduler: its tokens and its counters.

use tidegate_model::{Discipline, Span, Time};

use super::flow::{Flow, MEDIUM, Share};
use super::heap::Heap;
use super::words::{Pacing, PeriodGrant, SlotCounters, TenantParameters, at};
use super::{BYTES_PER_SLOT, UNIT, WEIGHT_MAX};
use crate::scheduling::dsfq::Bound;

/// Whether requests of a slot may be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Eligibility {
    /// In no heap: nothing waits, or no token is left.
    Ineligible,
    /// In the fair queue of the urgent phase.
    Urgent,
    /// In that of the reserved phase.
    Reserved,
    /// In those of the fair phase, with a flow for each class that waits.
    Fair,
    /// Ahead of its pace.
    Paced,
}

/// The phases of a dispatch, in their order. The fair phase has a fair queue for each class that
/// shares by weight; that of medium requests is the only one while classes have no weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Urgent = 0,
    Reserved = 1,
    FairHigh = 2,
    Fair = 3,
    FairLow = 4,
}

impl Phase {
    pub(crate) const ALL: [Self; 5] =
        [Self::Urgent, Self::Reserved, Self::FairHigh, Self::Fair, Self::FairLow];

    /// The fair phase of the class with this index.
    pub(crate) const fn fair(class: usize) -> Self {
        Self::ALL[2 + class]
    }

    /// The index of the class of a fair phase.
    pub(crate) const fn class(self) -> usize {
        (self as usize).saturating_sub(2)
    }

    /// The index of its table of slots' indexes in heaps.
    pub(super) const fn place(self) -> usize {
        if self.is_reserved() { MEDIUM } else { self.class() }
    }

    /// Whether it is for those with reservation tokens.
    pub(crate) const fn is_reserved(self) -> bool {
        matches!(self, Self::Urgent | Self::Reserved)
    }

    /// The eligibility of a slot in this phase.
    pub(super) const fn eligibility(self) -> Eligibility {
        match self {
            Self::Urgent => Eligibility::Urgent,
            Self::Reserved => Eligibility::Reserved,
            Self::FairHigh | Self::Fair | Self::FairLow => Eligibility::Fair,
        }
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
    /// The finish tag of its last request in the reserved phase.
    pub(super) reserved_tag: u128,
    /// Its medium requests, or all of them.
    pub(super) flow: Flow,
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
    /// Work at other nodes that the next request is to carry.
    pub(super) pending: u32,
    bound: Bound,
    pub(super) in_flight: u32,
    pub(super) generation: u16,
    pub(super) eligibility: Eligibility,
    flags: u8,
}

/// All that was served in this period was a payment of what is owed.
const PAID_ONLY: u8 = 1;
/// Reserved requests of the first class count in the fair phase, whose virtual time has not passed
/// them yet. The bits of the next classes follow.
const RESERVED_AHEAD: u8 = 2;
/// The flow of the first class is in its fair queue, likewise.
const IN_FAIR_QUEUE: u8 = 16;
/// Urgent requests wait.
const URGENT: u8 = 128;

// With an entry in a heap and its index there, which it has while requests wait.
const _: () = assert!(size_of::<TenantState>() + Heap::<u128>::BYTES + 4 <= BYTES_PER_SLOT);

impl TenantState {
    pub(super) const fn new(generation: u16) -> Self {
        Self {
            reserved_tag: 0,
            flow: Flow::EMPTY,
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
            pending: 0,
            bound: Bound::ZERO,
            in_flight: 0,
            generation,
            eligibility: Eligibility::Ineligible,
            flags: 0,
        }
    }

    /// It must not be in a fair queue.
    pub(super) fn set_parameters(&mut self, parameters: TenantParameters) {
        self.stride = UNIT / u64::from(parameters.weight.clamp(1, WEIGHT_MAX));
        self.bound = parameters.bound;
    }

    /// Its parameters in a fair queue.
    pub(super) const fn share(&self) -> Share {
        Share { stride: self.stride, bound: self.bound }
    }

    /// Its eligibility at `now`.
    pub(super) fn eligibility_at(&self, discipline: Discipline, now: Time) -> Eligibility {
        if self.waiting == 0 {
            return Eligibility::Ineligible;
        }
        if !discipline.observes_promises() {
            return Eligibility::Fair;
        }
        if self.served >= self.counts.allowed {
            Eligibility::Ineligible
        } else if self.ready_at > now {
            Eligibility::Paced
        } else if !self.has_reservation_token() {
            Eligibility::Fair
        } else if self.flags & URGENT != 0 {
            Eligibility::Urgent
        } else {
            Eligibility::Reserved
        }
    }

    // Classes.

    /// Whether the flow of a class is in its fair queue.
    pub(super) const fn is_in(&self, class: usize) -> bool {
        self.flags & IN_FAIR_QUEUE << class != 0
    }

    pub(super) const fn set_in(&mut self, class: usize, is_in: bool) {
        let bit = IN_FAIR_QUEUE << class;
        self.flags = if is_in { self.flags | bit } else { self.flags & !bit };
    }

    /// Whether reserved requests of a class are ahead in its fair queue.
    pub(super) const fn is_ahead(&self, class: usize) -> bool {
        self.flags & RESERVED_AHEAD << class != 0
    }

    pub(super) const fn set_ahead(&mut self, class: usize, is_ahead: bool) {
        let bit = RESERVED_AHEAD << class;
        self.flags = if is_ahead { self.flags | bit } else { self.flags & !bit };
    }

    /// Notes whether urgent requests wait.
    pub(super) const fn set_urgent(&mut self, waits: bool) {
        self.flags = if waits { self.flags | URGENT } else { self.flags & !URGENT };
    }

    /// Leaves the heaps, which are emptied, and fair queues.
    pub(super) const fn leave_heaps(&mut self) {
        self.eligibility = Eligibility::Ineligible;
        self.flags &= !(7 * IN_FAIR_QUEUE);
    }

    /// Begins anew in new fair queues.
    pub(super) const fn restart(&mut self) {
        self.reserved_tag = 0;
        self.flow.restart();
        self.flags &= !(7 * RESERVED_AHEAD);
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
        if !matches!(self.eligibility, Eligibility::Ineligible | Eligibility::Paced) {
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
