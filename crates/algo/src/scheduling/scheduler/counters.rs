//! Counters of a scheduler's tenants, by slot, for reports; no decision of the scheduler depends on
//! them.

use tidegate_model::Time;
use tidegate_model::waits::Waits;

use super::{PeriodGrant, Scheduler, Slot, SlotCounters};

impl<J> Scheduler<J> {
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
        self.states[self.index(slot)].tokens.served
    }

    /// Up to what counts a slot is served in this period.
    pub fn counts(&self, slot: Slot) -> PeriodGrant {
        self.states[self.index(slot)].tokens.counts
    }

    /// Units of cost that wait at all slots.
    pub const fn waiting(&self) -> u64 {
        self.waiting
    }
}
