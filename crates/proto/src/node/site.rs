//! Where a node's work is done: its lanes and its device, as the world keeps them.

use tidegate_algo::device::Device;
use tidegate_algo::scheduler::{Counts, Scheduler, Slot, Tally};
use tidegate_model::Time;

/// The lanes ([`tidegate_algo::lanes`]) and the device of a node. A world with one thread has a
/// single lane; one with many has a lock for each, which these calls take.
pub trait Site {
    /// What it needs to serve a request.
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

    /// Says up to what counts a slot is served in this period.
    fn grant(&mut self, now: Time, slot: Slot, counts: Counts) {
        self.change(slot.lane(), |scheduler| scheduler.grant(now, slot, counts));
    }

    /// What has happened at a slot so far.
    fn tally(&self, now: Time, slot: Slot) -> Tally {
        self.read(slot.lane(), |scheduler| scheduler.tally(now, slot))
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
