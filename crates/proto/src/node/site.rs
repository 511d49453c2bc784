//! Where a node's work is done: its lanes and its device, as the world keeps them.

use alloc::vec;
use alloc::vec::Vec;

use tidegate_algo::device::Device;
use tidegate_algo::scheduler::{Counts, Scheduler, Slot, Tally};
use tidegate_model::Time;

/// Slots that are looked at or changed under one lock of their lane: so many take some
/// microseconds, for which requests of the lane wait.
const BATCH: usize = 64;

/// The lanes ([`tidegate_algo::lanes`]) and the device of a node. A caller with one thread has a
/// single lane; one with many has a lock for each, which these calls take.
pub trait Site {
    /// The data that the caller needs to serve a request.
    type Job;

    /// How many lanes there are.
    fn lanes(&self) -> usize;

    /// Looks at a lane's scheduler.
    fn read<R>(&self, lane: usize, what: impl FnOnce(&Scheduler<Self::Job>) -> R) -> R;

    /// Changes a lane's scheduler.
    fn change<R>(&mut self, lane: usize, what: impl FnOnce(&mut Scheduler<Self::Job>) -> R) -> R;

    /// The device.
    fn device(&self) -> &Device;

    /// Changes the schedulers of all lanes.
    fn change_all(&mut self, mut what: impl FnMut(&mut Scheduler<Self::Job>)) {
        (0..self.lanes()).for_each(|lane| self.change(lane, &mut what));
    }

    /// Sets the counts up to which a slot is served in this period.
    fn grant(&mut self, now: Time, slot: Slot, counts: Counts) {
        self.change(slot.lane(), |scheduler| scheduler.grant(now, slot, counts));
    }

    /// As [`Self::grant`], for many slots: a lane's lock is taken once for [`BATCH`] of them.
    fn grant_all(&mut self, now: Time, grants: &[(Slot, Counts)]) {
        for lane in 0..self.lanes() {
            let mut here = grants.iter().filter(|(slot, _)| slot.lane() == lane).peekable();
            while here.peek().is_some() {
                self.change(lane, |scheduler| {
                    for (slot, counts) in here.by_ref().take(BATCH) {
                        scheduler.grant(now, *slot, *counts);
                    }
                });
            }
        }
    }

    /// The tallies of these slots so far, in their order. It takes a lane's lock once for [`BATCH`]
    /// of them.
    fn tallies(&self, now: Time, slots: &[Slot]) -> Vec<Tally> {
        let mut tallies = vec![Tally::default(); slots.len()];
        for lane in 0..self.lanes() {
            let all = slots.iter().zip(&mut tallies);
            let mut here = all.filter(|(slot, _)| slot.lane() == lane).peekable();
            while here.peek().is_some() {
                self.read(lane, |scheduler| {
                    for (slot, tally) in here.by_ref().take(BATCH) {
                        *tally = scheduler.tally(now, *slot);
                    }
                });
            }
        }
        tallies
    }

    /// Units of cost that wait in all lanes.
    fn waiting(&self) -> u64 {
        (0..self.lanes()).map(|lane| self.read(lane, Scheduler::waiting)).sum()
    }

    /// Notes whether the device is busy from now on.
    fn note(&self, now: Time) {
        let mut lanes = 0..self.lanes();
        let is_backlogged = lanes.any(|lane| self.read(lane, Scheduler::is_backlogged));
        self.device().note(now, is_backlogged);
    }
}
