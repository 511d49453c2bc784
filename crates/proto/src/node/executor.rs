//! Where a node's work is done: its shards and its device, as the caller keeps them.

use alloc::vec;
use alloc::vec::Vec;

use tidegate_algo::scheduling::device::Device;
use tidegate_algo::scheduling::scheduler::{PeriodGrant, Scheduler, Slot, SlotCounters};
use tidegate_model::Time;

/// Slots that are looked at or changed under one lock of their shard: so many take some
/// microseconds, for which requests of the shard wait.
const BATCH: usize = 64;

/// The shards ([`tidegate_algo::scheduling::shards`]) and the device of a node. A caller with one
/// thread has a single shard; one with many has a lock for each, which these calls take.
pub trait Executor {
    /// The data that the caller needs to serve a request.
    type Job;

    /// How many shards there are.
    fn shards(&self) -> usize;

    /// Looks at a shard's scheduler.
    fn read<R>(&self, shard: usize, what: impl FnOnce(&Scheduler<Self::Job>) -> R) -> R;

    /// Changes a shard's scheduler.
    fn change<R>(&mut self, shard: usize, what: impl FnOnce(&mut Scheduler<Self::Job>) -> R) -> R;

    /// The device.
    fn device(&self) -> &Device;

    /// Changes the schedulers of all shards.
    fn change_all(&mut self, mut what: impl FnMut(&mut Scheduler<Self::Job>)) {
        (0..self.shards()).for_each(|shard| self.change(shard, &mut what));
    }

    /// Sets the counts up to which a slot is served in this period.
    fn grant(&mut self, now: Time, slot: Slot, counts: PeriodGrant) {
        self.change(slot.shard(), |scheduler| scheduler.grant(now, slot, counts));
    }

    /// As [`Self::grant`], for many slots: a shard's lock is taken once for [`BATCH`] of them.
    fn grant_all(&mut self, now: Time, grants: &[(Slot, PeriodGrant)]) {
        for shard in 0..self.shards() {
            let mut here = grants.iter().filter(|(slot, _)| slot.shard() == shard).peekable();
            while here.peek().is_some() {
                self.change(shard, |scheduler| {
                    for (slot, counts) in here.by_ref().take(BATCH) {
                        scheduler.grant(now, *slot, *counts);
                    }
                });
            }
        }
    }

    /// The counters of these slots so far, in their order. It takes a shard's lock once for
    /// [`BATCH`] of them.
    fn counters(&self, now: Time, slots: &[Slot]) -> Vec<SlotCounters> {
        let mut counters = vec![SlotCounters::default(); slots.len()];
        for shard in 0..self.shards() {
            let all = slots.iter().zip(&mut counters);
            let mut here = all.filter(|(slot, _)| slot.shard() == shard).peekable();
            while here.peek().is_some() {
                self.read(shard, |scheduler| {
                    for (slot, counters) in here.by_ref().take(BATCH) {
                        *counters = scheduler.counters(now, *slot);
                    }
                });
            }
        }
        counters
    }

    /// Units of cost that wait in all shards.
    fn waiting(&self) -> u64 {
        (0..self.shards()).map(|shard| self.read(shard, Scheduler::waiting)).sum()
    }

    /// Notes whether the device is busy from now on.
    fn note(&self, now: Time) {
        let mut shards = 0..self.shards();
        let is_backlogged = shards.any(|shard| self.read(shard, Scheduler::is_backlogged));
        self.device().note(now, is_backlogged);
    }
}
