//! Tenants that are behind with their reservations.
//!
//! A reservation is a count for a whole period, and requests within it go first. Where a bound of
//! latency at the device may hold back all requests, going first is not enough: the period may end
//! before the count is used. A request is *due* when its tenant has used less of its reservation
//! than an even pace has by then. Example: 4 are reserved in a period of a second. The first
//! request is due at once and the second at 250 ms. A tenant that has had 3 by 250 ms is ahead: its
//! next request is due at 750 ms.
//!
//! A tenant with reservations in operations and in bytes is behind if it is behind in both, for a
//! request has a reservation token only if there is one of each.

use tidegate_model::Time;

use super::{Phase, Scheduler};

impl<J> Scheduler<J> {
    /// Whether a request waits that is due. O(n) in the number of tenants of which a request with a
    /// reservation token waits.
    pub fn is_due(&mut self, now: Time) -> bool {
        self.promote(now);
        self.next_due() <= now
    }

    /// No waiting request is due before; [`Time::MAX`] if none ever will be. O(n) likewise.
    pub fn next_due(&self) -> Time {
        let heap = |phase: Phase| self.fair_queues[phase as usize].heap.slots();
        let reserved = heap(Phase::Urgent).chain(heap(Phase::Reserved));
        let due = reserved.map(|index| self.due_at(index as usize));
        // A tenant that is ahead of its limit's pace may turn out to have a reservation token.
        due.chain(self.next_eligible()).min().unwrap_or(Time::MAX)
    }

    /// When the next request of a slot is due, for which there is a reservation token.
    fn due_at(&self, index: usize) -> Time {
        let accounts = self.binding(index).into_iter().flatten();
        let due = accounts.map(|account| account.due_at(self.since, self.until));
        due.max().unwrap_or(self.since)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use tidegate_model::Discipline;

    use super::super::{Pacing, PeriodGrant, RequestCost, Slot, TenantParameters};
    use super::*;

    const PERIOD: u64 = 1_000;

    /// A scheduler in the period from 1,000 to 2,000.
    fn scheduler() -> Scheduler<u32> {
        let mut scheduler = Scheduler::new(Discipline::Token, Pacing::Even);
        scheduler.begin(Time(PERIOD), Time(2 * PERIOD));
        scheduler
    }

    /// A tenant with so many requests.
    fn tenant(scheduler: &mut Scheduler<u32>, counts: PeriodGrant, requests: u32) -> Slot {
        let slot = scheduler.add(TenantParameters::of_weight(1));
        scheduler.grant(Time(PERIOD), slot, counts);
        (0..requests).for_each(|job| scheduler.push(Time(PERIOD), slot, RequestCost::ONE, job));
        slot
    }

    const FOUR: PeriodGrant = PeriodGrant { reserved: 4, allowed: u64::MAX };

    #[test]
    fn requests_are_due_at_an_even_pace_of_the_reservation() {
        let mut scheduler = scheduler();
        let now = Time(PERIOD);
        let slot = tenant(&mut scheduler, FOUR, 9);
        let due = |scheduler: &mut Scheduler<u32>| {
            let due = scheduler.next_due();
            assert!(scheduler.pop(now).is_some());
            due
        };
        let times: Vec<Time> = (0..5).map(|_| due(&mut scheduler)).collect();
        assert_eq!(times, [1_000, 1_250, 1_500, 1_750, u64::MAX].map(Time));
        // The next period begins the pace anew, and a larger reservation is a faster one.
        scheduler.begin(Time(2 * PERIOD), Time(3 * PERIOD));
        assert!(scheduler.is_due(Time(2 * PERIOD)));
        assert!(scheduler.pop(Time(2 * PERIOD)).is_some());
        assert!(!scheduler.is_due(Time(2_249)) && scheduler.is_due(Time(2_250)));
        scheduler.grant(Time(2_100), slot, PeriodGrant { reserved: 10, ..FOUR });
        assert_eq!(scheduler.next_due(), Time(2_100));
    }

    #[test]
    fn the_tenant_that_is_farthest_behind_counts() {
        let mut scheduler = scheduler();
        let now = Time(PERIOD);
        let ahead = tenant(&mut scheduler, FOUR, 4);
        assert_eq!(scheduler.next_due(), now);
        (0..2).for_each(|_| assert_eq!(scheduler.pop(now).map(|next| next.slot), Some(ahead)));
        assert_eq!(scheduler.next_due(), Time(1_500));
        tenant(&mut scheduler, PeriodGrant { reserved: 0, allowed: u64::MAX }, 1);
        assert_eq!(scheduler.next_due(), Time(1_500), "nothing is due without a reservation");
        tenant(&mut scheduler, FOUR, 1);
        assert_eq!(scheduler.next_due(), now);
    }

    /// A tenant that waits for its limit is looked at when the limit lets it go.
    #[test]
    fn a_limited_tenant_becomes_due() {
        let mut scheduler = scheduler();
        tenant(&mut scheduler, PeriodGrant { reserved: 4, allowed: 4 }, 2);
        assert!(scheduler.is_due(Time(PERIOD)));
        assert!(scheduler.pop(Time(PERIOD)).is_some());
        assert_eq!(scheduler.next_due(), Time(1_250));
        assert!(!scheduler.is_due(Time(1_249)) && scheduler.is_due(Time(1_250)));
    }

    #[test]
    fn in_two_units_a_tenant_is_behind_in_both_or_not_at_all() {
        let mut scheduler = scheduler();
        let now = Time(PERIOD);
        let slot = tenant(&mut scheduler, FOUR, 0);
        scheduler.grant_bytes(now, slot, Some(PeriodGrant { reserved: 100, allowed: u64::MAX }));
        // Each with one of 4 operations and one of 100 tokens of bytes.
        let cost = RequestCost { bytes: 1_024, ..RequestCost::ONE };
        (0..2).for_each(|job| scheduler.push(now, slot, cost, job));
        assert!(scheduler.pop(now).is_some());
        assert_eq!(scheduler.next_due(), Time(1_250));
    }
}
