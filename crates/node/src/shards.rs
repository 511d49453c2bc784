//! The shards of a node, each behind a lock of its own ([`tidegate_algo::scheduling::shards`]), and
//! its device.
//!
//! A thread visits one shard at a time, for a batch. It reads the other shards' state before it has
//! the lock, and writes the shard's state for them before it lets go.

use std::hint;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard};

use tidegate_algo::scheduling::device::Device;
use tidegate_algo::scheduling::scheduler::{Dispatched, Pacing, Scheduler};
use tidegate_algo::scheduling::shards::{OtherShards, SHARDS_MAX, ShardHeads};
use tidegate_model::{Discipline, Time};
use tidegate_proto::node::Executor;

/// How often a thread looks whether a shard is free before it sleeps until it is: for some tens of
/// microseconds. A batch takes one or two; to be woken takes fifty, and more where the machine is
/// virtual. With the hundred times of the standard library's lock, two threads that met in the
/// shard of the last tenant with a reservation did half of what one does.
const TRIES: u32 = 2_000;

/// Schedulers that threads share, for requests `J`.
///
/// ```
/// use tidegate_model::{Discipline, Time};
/// use tidegate_node::Shards;
/// use tidegate_proto::node::{RequestCost, Pacing, Slot};
/// let shards = Shards::new(2, 32, Discipline::Sfq, Pacing::Even);
/// shards.visit(0).push(Time::ZERO, Slot::UNATTRIBUTED, RequestCost::ONE, "request");
/// let mut batch = Vec::new();
/// shards.fill(1, Time::ZERO, &|| Time::ZERO, &mut batch);
/// assert_eq!(batch, ["request"]);
/// let mut visit = shards.visit(0);
/// visit.complete(Time::ZERO, Slot::UNATTRIBUTED, 1);
/// visit.take(Time::ZERO, 1, &mut batch); // there is nothing instead
/// assert_eq!(shards.device().in_flight(), 0);
/// ```
pub struct Shards<J> {
    shard_heads: ShardHeads,
    shards: Box<[Shard<J>]>,
    device: Device,
    /// The most that one thread takes out before it works: its even part of the depth.
    share: usize,
}

/// One shard, in cache lines of its own: processors fetch them in pairs.
#[repr(align(128))]
struct Shard<J>(Mutex<Scheduler<J>>);

/// A shard that this thread has locked.
pub struct Visit<'a, J> {
    shards: &'a Shards<J>,
    shard: usize,
    others: OtherShards,
    scheduler: MutexGuard<'a, Scheduler<J>>,
}

impl<J> Shards<J> {
    /// So many shards, from one to [`SHARDS_MAX`], in front of a device for `depth` requests at a
    /// time.
    pub fn new(count: usize, depth: u32, discipline: Discipline, pacing: Pacing) -> Self {
        let count = count.clamp(1, SHARDS_MAX);
        let shard = |shard| Shard(Mutex::new(Scheduler::in_shard(shard, discipline, pacing)));
        let device = Device::new(depth, count);
        Self {
            shard_heads: ShardHeads::new(count),
            shards: (0..count as u16).map(shard).collect(),
            share: (device.depth() as usize).div_ceil(count),
            device,
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Locks a shard. The time that is passed to it is to be read after this: read before, it would
    /// go backwards from one thread to the next.
    #[inline]
    pub fn visit(&self, shard: usize) -> Visit<'_, J> {
        let others = self.shard_heads.others(shard);
        let mut scheduler = self.lock(shard);
        scheduler.observe(&others);
        Visit { shards: self, shard, others, scheduler }
    }

    /// Which shard to take requests from, for a thread that is at home in one; none if no request
    /// waits who may go.
    #[inline]
    pub fn next(&self, now: Time, home: usize) -> Option<usize> {
        self.shard_heads.next(now, home)
    }

    /// Takes out what may go to the device, from whichever shard it is the turn of, until `batch`
    /// has one thread's part of the device, there is no more headroom, or no request that may go
    /// waits. Returns the time that was told last.
    pub fn fill(
        &self,
        home: usize,
        now: Time,
        clock: &impl Fn() -> Time,
        batch: &mut Vec<J>,
    ) -> Time {
        self.fill_with(home, now, clock, batch, |next| (next.job, 1))
    }

    /// As [`Self::fill`], with what `accept` makes of each, and how many requests it counts as.
    pub(crate) fn fill_with(
        &self,
        home: usize,
        mut now: Time,
        clock: &impl Fn() -> Time,
        batch: &mut Vec<J>,
        mut accept: impl FnMut(Dispatched<J>) -> (J, u32),
    ) -> Time {
        // Headroom is checked last: see the words on sleeping in `algo::scheduling::shards`.
        while batch.len() < self.share
            && let Some(shard) = self.shard_heads.next(now, home)
            && self.device.has_headroom()
        {
            let mut visit = self.visit(shard);
            now = clock();
            visit.take_with(now, 0, batch, &mut accept);
        }
        now
    }

    /// Notes whether the device is busy from now on, and returns when a request will be admitted
    /// for whom it has room; [`Time::MAX`] for never.
    pub fn note(&self, now: Time) -> Time {
        if !self.device.has_headroom() {
            self.device.note(now, true);
            return Time::MAX;
        }
        let (is_backlogged, next_eligible) = self.shard_heads.outlook();
        self.device.note(now, is_backlogged);
        next_eligible
    }

    /// A panic with a shard locked is a bug of ours; to go on with what it left would be another.
    /// It poisons the lock, and every thread that comes by ends with it.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Scheduler<J>> {
        for _ in 0..TRIES {
            if let Ok(scheduler) = self.shards[shard].0.try_lock() {
                return scheduler;
            }
            hint::spin_loop();
        }
        self.shards[shard].0.lock().unwrap_or_else(|_| panic!("a lane of the node has panicked"))
    }
}

impl<J> Visit<'_, J> {
    /// Takes out requests that may go to the device, as far as it is this shard's turn, `batch` has
    /// less than one thread's part, and there is headroom: that of `finished` requests, and more.
    /// Unused headroom is given back.
    #[inline]
    pub fn take(&mut self, now: Time, finished: u32, batch: &mut Vec<J>) {
        self.take_with(now, finished, batch, |next| (next.job, 1));
    }

    /// As [`Self::take`]; `accept` converts each request, and counts it as so many requests. The
    /// last one that is taken out may count as more than the headroom.
    #[inline]
    pub(crate) fn take_with(
        &mut self,
        now: Time,
        finished: u32,
        batch: &mut Vec<J>,
        mut accept: impl FnMut(Dispatched<J>) -> (J, u32),
    ) {
        let Self { shards, others, scheduler, .. } = self;
        let device = &shards.device;
        let finished = if finished > 0 { device.keep(finished) } else { 0 };
        let wanted = shards.share.saturating_sub(batch.len()) as u32;
        let more = wanted.saturating_sub(finished);
        let mut room = finished + if more > 0 { device.reserve(more) } else { 0 };
        for _ in 0..wanted {
            if room == 0 {
                break;
            }
            let Some(next) = scheduler.pop_beside(now, others) else { break };
            let (job, count) = accept(next);
            batch.push(job);
            if count > room {
                device.overdraw(count - room);
            }
            room = room.saturating_sub(count);
        }
        if room > 0 {
            return device.release(room);
        }
        // Reserved requests do not wait for long replies of other tenants.
        while batch.len() < shards.share && device.has_spare() {
            let Some(next) = scheduler.pop_reserved_beside(now, others) else { return };
            let (job, count) = accept(next);
            batch.push(job);
            device.overdraw(count);
        }
    }
}

impl<J> Deref for Visit<'_, J> {
    type Target = Scheduler<J>;

    fn deref(&self) -> &Scheduler<J> {
        &self.scheduler
    }
}

impl<J> DerefMut for Visit<'_, J> {
    fn deref_mut(&mut self) -> &mut Scheduler<J> {
        &mut self.scheduler
    }
}

impl<J> Drop for Visit<'_, J> {
    fn drop(&mut self) {
        self.shards.shard_heads.show(self.shard, &self.scheduler.shard_head());
    }
}

impl<J> Executor for &Shards<J> {
    type Job = J;

    fn shards(&self) -> usize {
        self.count()
    }

    fn read<R>(&self, shard: usize, what: impl FnOnce(&Scheduler<J>) -> R) -> R {
        what(&self.lock(shard))
    }

    fn change<R>(&mut self, shard: usize, what: impl FnOnce(&mut Scheduler<J>) -> R) -> R {
        what(&mut self.visit(shard))
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn note(&self, now: Time) {
        Shards::note(self, now);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_algo::scheduling::scheduler::{PeriodGrant, RequestCost, Slot, TenantParameters};

    use super::*;

    #[test]
    fn what_goes_by_right_does_not_wait_until_long_replies_have_come() {
        let now = Time::ZERO;
        let shards = Shards::new(1, 32, Discipline::Token, Pacing::Even);
        shards.device().set_limit(2);
        let reserved = {
            let mut visit = shards.visit(0);
            let slot = visit.add(TenantParameters::of_weight(1));
            visit.grant(now, slot, PeriodGrant { reserved: 100, allowed: u64::MAX });
            slot
        };
        let ask = |slot: Slot, count: usize| {
            let mut batch = Vec::new();
            let mut visit = shards.visit(0);
            (0..count).for_each(|_| visit.push(now, slot, RequestCost::ONE, slot == reserved));
            visit.take(now, 0, &mut batch);
            batch
        };
        assert_eq!(ask(Slot::UNATTRIBUTED, 3), [false; 2], "there is room for two long replies");
        assert_eq!(ask(reserved, 3), [true; 2], "and for two that go by right");
        assert_eq!(ask(Slot::UNATTRIBUTED, 1), [false; 0], "which makes no room for others");
        assert_eq!(shards.device().in_flight(), 4);
        // A finished request makes room for reserved ones first, and for no others while there are
        // more than the limit.
        let mut batch = Vec::new();
        let mut visit = shards.visit(0);
        visit.complete(now, reserved, 1);
        visit.take(now, 1, &mut batch);
        assert_eq!((batch, shards.device().in_flight()), (vec![true], 4));
    }
}
