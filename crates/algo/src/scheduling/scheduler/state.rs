//! State of one tenant in a scheduler: its token accounts, whether its next request may go and in
//! which phase ([`TenantState::eligibility_at`]), its place in the order, its waiting times, and
//! its counters.

use tidegate_model::{Discipline, Span, Time};

use super::flow::{Flow, FlowShare, MEDIUM};
use super::heap::Heap;
use super::tokens::TokenAccount;
use super::words::{SlotCounters, TenantParameters, at};
use super::{BYTES_PER_SLOT, UNIT, WEIGHT_MAX};
use crate::scheduling::dsfq::Bound;
use crate::scheduling::phase::{Passed, Phase};

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

impl Phase {
    /// The index of its table of slots' indexes in heaps.
    pub(super) const fn heap_index(self) -> usize {
        if self.is_reserved() { MEDIUM } else { self.class() }
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

/// The accounts whose tokens bind the next request of a slot: of units of cost, and of bytes.
pub(super) type Binding<'a> = [Option<&'a TokenAccount>; 2];

/// When a request that these accounts bind is on all their lines.
pub(super) fn ready_at(accounts: Binding<'_>) -> Time {
    let ready = accounts.into_iter().flatten().map(|account| account.ready_at);
    ready.max().unwrap_or(Time::ZERO)
}

#[derive(Debug)]
pub(super) struct TenantState {
    /// The finish tag of its last request in the reserved phase.
    pub(super) reserved_tag: u128,
    /// Its medium requests, or all of them.
    pub(super) flow: Flow,
    /// [`UNIT`] divided by its weight.
    stride: u64,
    /// Its tokens, in units of cost.
    pub(super) tokens: TokenAccount,
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
    /// Work at other nodes that the next request is to carry.
    pub(super) pending: u32,
    bound: Bound,
    pub(super) in_flight: u32,
    pub(super) generation: u16,
    pub(super) eligibility: Eligibility,
    flags: u8,
}

/// It has an account of bytes, and each of its requests is one operation.
const COUNTS_BYTES: u8 = 1;
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
            tokens: TokenAccount::UNLIMITED,
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
    pub(super) const fn share(&self) -> FlowShare {
        FlowShare { stride: self.stride, bound: self.bound }
    }

    /// Its eligibility at `now`: tokens of all accounts that bind its next request have to be left.
    pub(super) fn eligibility_at(
        &self,
        discipline: Discipline,
        now: Time,
        accounts: Binding<'_>,
    ) -> Eligibility {
        if self.waiting == 0 {
            return Eligibility::Ineligible;
        }
        if !discipline.observes_promises() {
            return Eligibility::Fair;
        }
        let is_any = |is: fn(&TokenAccount) -> bool| accounts.into_iter().flatten().any(is);
        if is_any(TokenAccount::is_used_up) {
            Eligibility::Ineligible
        } else if ready_at(accounts) > now {
            Eligibility::Paced
        } else if is_any(|account| !account.has_reservation_token()) {
            Eligibility::Fair
        } else if self.flags & URGENT != 0 {
            Eligibility::Urgent
        } else {
            Eligibility::Reserved
        }
    }

    /// Whether it has an account of bytes, and each of its requests is one operation.
    pub(super) const fn counts_bytes(&self) -> bool {
        self.flags & COUNTS_BYTES != 0
    }

    pub(super) const fn set_counts_bytes(&mut self, counts: bool) {
        self.flags = if counts { self.flags | COUNTS_BYTES } else { self.flags & !COUNTS_BYTES };
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
            served: self.tokens.served,
            served_before: self.tokens.served_before(),
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

/// A difference modulo 2^64 that is not negative; zero if it is. A period may be dated before the
/// last event of the one before.
const fn forward(difference: u64) -> u64 {
    if difference > i64::MAX as u64 { 0 } else { difference }
}
