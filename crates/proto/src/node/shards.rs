//! The shards of a node, each behind a lock of its own ([`tidegate_algo::scheduling::shards`]), and
//! its device.
//!
//! A thread visits one shard at a time, for a batch. It reads the other shards' heads before it has
//! the lock, and publishes the shard's head before it unlocks it.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Deref, DerefMut};

use tidegate_algo::scheduling::device::Device;
use tidegate_algo::scheduling::scheduler::{
    Dispatched, Pacing, PeriodGrant, PeriodPart, Scheduler, Slot,
};
use tidegate_algo::scheduling::shards::{OtherShards, SHARDS_MAX, ShardHeads};
use tidegate_model::{Discipline, Time};

use super::latency::{ShardLatency, Sums};
use super::request::NodeRequest;
use super::threads::{Clock, Mutex, SingleThreaded, Threading};

/// Slots that are read or changed under one lock of their shard: so many take some microseconds,
/// for which requests of the shard wait.
const BATCH: usize = 64;

/// The counts up to which a slot is served in a period: of units of cost, or of operations and of
/// bytes where both are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotGrant {
    pub(super) units: PeriodGrant,
    pub(super) bytes: Option<PeriodGrant>,
}

/// How much of the device a request occupies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Occupies {
    /// As how many requests it counts.
    pub(super) count: u32,
    /// Its weight beside requests with a reservation ([`tidegate_algo::capacity::depth`]).
    pub(super) weight: u32,
}

impl Occupies {
    const ONE: Self = Self { count: 1, weight: 1 };
}

impl SlotGrant {
    fn set<J>(self, scheduler: &mut Scheduler<J>, now: Time, slot: Slot) {
        scheduler.grant(now, slot, self.units);
        scheduler.grant_bytes(now, slot, self.bytes);
    }
}

/// Schedulers that threads share, for requests `J`.
///
/// ```
/// use tidegate_model::{Discipline, Time};
/// use tidegate_proto::node::{Pacing, RequestCost, Shards, Slot};
/// let shards: Shards<&str> = Shards::new(2, 32, Discipline::Sfq, Pacing::Even);
/// shards.visit(0).push(Time::ZERO, Slot::UNATTRIBUTED, RequestCost::ONE, "request");
/// let mut batch = Vec::new();
/// shards.fill(1, Time::ZERO, &mut batch);
/// assert_eq!(batch, ["request"]);
/// let mut visit = shards.visit(0);
/// visit.complete(Time::ZERO, Slot::UNATTRIBUTED, 1);
/// visit.take(Time::ZERO, 1, &mut batch); // there is nothing instead
/// assert_eq!(shards.device().in_flight(), 0);
/// ```
pub struct Shards<J, T: Threading = SingleThreaded> {
    shard_heads: ShardHeads,
    shards: Box<[Shard<J, T>]>,
    device: Device,
    /// Requests without a reservation may be kept back, and are counted.
    is_guarded: bool,
    /// The most that one thread takes out before it works: its even part of the depth.
    share: usize,
}

/// One shard, in cache lines of its own: processors fetch them in pairs.
#[repr(align(128))]
struct Shard<J, T: Threading>(T::Mutex<ShardState<J>>);

/// A shard's state, behind the shard's lock.
pub struct ShardState<J> {
    scheduler: Scheduler<J>,
    latency: ShardLatency,
}

type Guard<'a, J, T> = <<T as Threading>::Mutex<ShardState<J>> as Mutex<ShardState<J>>>::Guard<'a>;

/// A shard that this thread has locked.
pub struct Visit<'a, J, T: Threading + 'a = SingleThreaded>
where
    T::Mutex<ShardState<J>>: 'a,
{
    shards: &'a Shards<J, T>,
    shard: usize,
    others: OtherShards,
    state: Guard<'a, J, T>,
}

impl<J, T: Threading> Shards<J, T> {
    /// So many shards, from one to [`SHARDS_MAX`], in front of a device for `depth` requests at a
    /// time.
    pub fn new(count: usize, depth: u32, discipline: Discipline, pacing: Pacing) -> Self {
        let count = count.clamp(1, SHARDS_MAX);
        let shard_heads = ShardHeads::new(count);
        let shard = |shard| {
            let mut scheduler = Scheduler::in_shard(shard, discipline, pacing);
            scheduler.share_turns(&shard_heads);
            Shard(T::Mutex::new(ShardState { scheduler, latency: ShardLatency::default() }))
        };
        let device = Device::new(depth, count);
        Self {
            shards: (0..count as u16).map(shard).collect(),
            shard_heads,
            share: (device.depth() as usize).div_ceil(count),
            is_guarded: false,
            device,
        }
    }

    /// As [`Self::new`], with one shard; requests without a reservation may be kept back
    /// ([`Device::set_others_limit`]).
    pub(super) fn guarded(depth: u32, discipline: Discipline, pacing: Pacing) -> Self {
        Self { is_guarded: true, ..Self::new(1, depth, discipline, pacing) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shards.len()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Locks a shard.
    #[inline]
    pub fn visit(&self, shard: usize) -> Visit<'_, J, T> {
        let others = self.shard_heads.others(shard);
        let mut state = self.shards[shard].0.lock();
        state.scheduler.observe(&others);
        Visit { shards: self, shard, others, state }
    }

    /// Which shard to take requests from, for a thread that is at home in one; none if no request
    /// waits that may go.
    #[inline]
    pub fn next(&self, now: Time, home: usize) -> Option<usize> {
        self.shard_heads.next(now, home)
    }

    /// Takes out what may go to the device, from whichever shard it is the turn of, until `batch`
    /// has one thread's part of the device, there is no more headroom, or no request that may go
    /// waits. Returns the time that was read last.
    pub fn fill(&self, home: usize, clock: impl Clock, batch: &mut Vec<J>) -> Time {
        let home = (home, self.share);
        self.fill_with(home, clock.now(), clock, batch, |_, next| (next.job, Occupies::ONE))
    }

    /// As [`Self::fill`], until `batch` has `most`, with what `accept` makes of each, and how much
    /// of the device it occupies.
    pub(super) fn fill_with<R>(
        &self,
        (home, most): (usize, usize),
        mut now: Time,
        clock: impl Clock,
        batch: &mut Vec<R>,
        mut accept: impl FnMut(Time, Dispatched<J>) -> (R, Occupies),
    ) -> Time {
        // Headroom is checked last: see the paragraph on sleeping in `scheduling::shards`.
        while batch.len() < most
            && let Some(shard) = self.shard_heads.next(now, home)
            && (self.device.has_headroom() || self.next_due() <= now)
        {
            let mut visit = self.visit(shard);
            now = clock.now();
            let before = batch.len();
            visit.take_with(now, (0, most), batch, &mut accept);
            if batch.len() == before && !(self.device.has_headroom() && self.device.admits_others())
            {
                // The next request is kept back until another one is finished.
                break;
            }
        }
        now
    }

    /// The most that one thread takes out at a time.
    pub(super) fn share(&self) -> usize {
        self.share
    }

    /// Notes whether the device is busy from now on, and returns when a request will be admitted
    /// for which it has room; [`Time::MAX`] for never.
    pub fn note(&self, now: Time) -> Time {
        let (is_backlogged, next_eligible) = match self.device.has_headroom() {
            true => self.shard_heads.outlook(),
            false => (true, self.next_due()),
        };
        self.device.note(now, is_backlogged);
        next_eligible
    }

    /// When a reserved request is due at the earliest that a bound of latency keeps back;
    /// [`Time::MAX`] for never. Where stores are so quick that there are several shards, none is:
    /// the order among shards would have to allow it.
    fn next_due(&self) -> Time {
        match &*self.shards {
            [shard] if self.device.is_bounded() => shard.0.lock().scheduler.next_due(),
            _ => Time::MAX,
        }
    }

    /// When a request will be admitted that may not go yet and for which the device has room;
    /// [`Time::MAX`] for never.
    pub(super) fn next_eligible(&self) -> Time {
        match self.device.has_headroom() {
            true => self.shard_heads.outlook().1,
            false => self.next_due(),
        }
    }

    pub(super) fn read<R>(&self, shard: usize, read: impl FnOnce(&Scheduler<J>) -> R) -> R {
        read(&self.shards[shard].0.lock().scheduler)
    }

    /// Adds the times of the requests of a shard's slot to `sums`.
    pub(super) fn add_latency(&self, sums: &mut Sums, shard: usize, slot: Slot) {
        self.shards[shard].0.lock().latency.add_to(sums, slot);
    }

    pub(super) fn change<R>(&self, shard: usize, change: impl FnOnce(&mut Scheduler<J>) -> R) -> R {
        change(&mut self.visit(shard))
    }

    pub(super) fn change_all(&self, mut change: impl FnMut(&mut Scheduler<J>)) {
        (0..self.count()).for_each(|shard| self.change(shard, &mut change));
    }

    /// Sets the counts up to which each slot is served in this period.
    pub(super) fn grant_all(&self, now: Time, grants: &[(Slot, SlotGrant)]) {
        self.change_each(grants, |scheduler, slot, counts| counts.set(scheduler, now, slot));
    }

    /// Cuts the running period to a part of that for which each slot was granted these counts.
    pub(super) fn cut_all(&self, now: Time, grants: &[(Slot, SlotGrant)], part: PeriodPart) {
        self.change_each(grants, |scheduler, slot, counts| {
            scheduler.cut(now, slot, (counts.units, counts.bytes), part);
        });
    }

    /// Calls `change` for each of these slots. It takes a shard's lock once for [`BATCH`] slots.
    fn change_each(
        &self,
        grants: &[(Slot, SlotGrant)],
        mut change: impl FnMut(&mut Scheduler<J>, Slot, SlotGrant),
    ) {
        for shard in 0..self.count() {
            let mut here = grants.iter().filter(|(slot, _)| slot.shard() == shard).peekable();
            while here.peek().is_some() {
                self.change(shard, |scheduler| {
                    for (slot, counts) in here.by_ref().take(BATCH) {
                        change(scheduler, *slot, *counts);
                    }
                });
            }
        }
    }

    /// Calls `read` for each of these slots, and returns the results in their order. It takes a
    /// shard's lock once for [`BATCH`] slots.
    pub(super) fn read_each<R: Clone + Default>(
        &self,
        slots: &[Slot],
        read: impl Fn(&Scheduler<J>, Slot) -> R,
    ) -> Vec<R> {
        let mut found = vec![R::default(); slots.len()];
        for shard in 0..self.count() {
            let all = slots.iter().zip(&mut found);
            let mut here = all.filter(|(slot, _)| slot.shard() == shard).peekable();
            while here.peek().is_some() {
                self.read(shard, |scheduler| {
                    for (slot, found) in here.by_ref().take(BATCH) {
                        *found = read(scheduler, *slot);
                    }
                });
            }
        }
        found
    }

    /// Units of cost that wait in all shards.
    pub(super) fn waiting(&self) -> u64 {
        (0..self.count()).map(|shard| self.read(shard, Scheduler::waiting)).sum()
    }
}

impl<J, T: Threading> fmt::Debug for Shards<J, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards").field("device", &self.device).finish_non_exhaustive()
    }
}

impl<J, T: Threading> Visit<'_, J, T> {
    /// Takes out requests that may go to the device, as far as it is this shard's turn, `batch` has
    /// less than one thread's part, and there is headroom: that of `finished` requests, and more.
    /// Unused headroom is given back.
    #[inline]
    pub fn take(&mut self, now: Time, finished: u32, batch: &mut Vec<J>) {
        let most = self.shards.share;
        self.take_with(now, (finished, most), batch, |_, next| (next.job, Occupies::ONE));
    }

    /// As [`Self::take`], until `batch` has `most`; `accept` converts each request, and says how
    /// much of the device it occupies. The last one that is taken out may count as more than the
    /// headroom.
    #[inline]
    pub(super) fn take_with<R>(
        &mut self,
        now: Time,
        (finished, most): (u32, usize),
        batch: &mut Vec<R>,
        mut accept: impl FnMut(Time, Dispatched<J>) -> (R, Occupies),
    ) {
        let Self { shards, others, state, .. } = self;
        let scheduler = &mut state.scheduler;
        let device = &shards.device;
        let finished = if finished > 0 { device.keep(finished) } else { 0 };
        let wanted = most.saturating_sub(batch.len()) as u32;
        let more = wanted.saturating_sub(finished);
        let mut headroom = finished + if more > 0 { device.reserve(more) } else { 0 };
        for _ in 0..wanted {
            if headroom == 0 {
                break;
            }
            let next = match device.admits_others() {
                true => scheduler.pop_beside(now, others),
                false => scheduler.pop_reserved_beside(now, others),
            };
            let Some(next) = next else { break };
            let is_other = !next.is_reserved;
            let (job, Occupies { count, weight }) = accept(now, next);
            if is_other && shards.is_guarded {
                device.add_others(weight);
            }
            batch.push(job);
            if count > headroom {
                device.overdraw(count - headroom);
            }
            headroom = headroom.saturating_sub(count);
        }
        if headroom > 0 {
            return device.release(headroom);
        }
        // Reserved requests do not wait for long replies of other tenants, and those that are due
        // for no bound of latency.
        let may_be_due = || shards.count() == 1 && device.is_bounded();
        while batch.len() < most && (device.has_spare() || may_be_due() && scheduler.is_due(now)) {
            let Some(next) = scheduler.pop_reserved_beside(now, others) else { return };
            let (job, Occupies { count, .. }) = accept(now, next);
            batch.push(job);
            device.overdraw(count);
        }
    }
}

impl<B, T: Threading> Visit<'_, NodeRequest<B>, T> {
    /// A request of this shard is answered.
    #[inline]
    pub(super) fn record(&mut self, now: Time, request: &NodeRequest<B>) {
        let state = &mut *self.state;
        state.latency.record(now, state.scheduler.present(request.slot), request);
    }
}

impl<J, T: Threading> Deref for Visit<'_, J, T> {
    type Target = Scheduler<J>;

    fn deref(&self) -> &Scheduler<J> {
        &self.state.scheduler
    }
}

impl<J, T: Threading> DerefMut for Visit<'_, J, T> {
    fn deref_mut(&mut self) -> &mut Scheduler<J> {
        &mut self.state.scheduler
    }
}

impl<'a, J, T: Threading + 'a> Drop for Visit<'a, J, T>
where
    T::Mutex<ShardState<J>>: 'a,
{
    fn drop(&mut self) {
        self.shards.shard_heads.show(self.shard, &self.state.scheduler.shard_head());
    }
}

#[cfg(test)]
mod tests {
    use tidegate_algo::scheduling::scheduler::{PeriodGrant, RequestCost, Slot, TenantParameters};

    use super::*;

    #[test]
    fn what_goes_by_right_does_not_wait_until_long_replies_have_come() {
        let now = Time::ZERO;
        let shards: Shards<bool> = Shards::new(1, 32, Discipline::Token, Pacing::Even);
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

    #[test]
    fn others_are_kept_back_from_a_guarded_device_and_reserved_requests_are_not() {
        let now = Time::ZERO;
        let shards: Shards<bool> = Shards::guarded(8, Discipline::Token, Pacing::Even);
        let mut visit = shards.visit(0);
        let slot = visit.add(TenantParameters::of_weight(1));
        visit.grant(now, slot, PeriodGrant { reserved: 100, allowed: u64::MAX });
        drop(visit);
        let ask = |slot: Slot, is_reserved: bool| {
            let mut visit = shards.visit(0);
            (0..4).for_each(|_| visit.push(now, slot, RequestCost::ONE, is_reserved));
            drop(visit);
            let mut batch = Vec::new();
            shards.fill(0, now, &mut batch);
            batch
        };
        shards.device().set_others_limit(2);
        assert_eq!(ask(Slot::UNATTRIBUTED, false), [false; 2], "the limit of the others");
        assert_eq!(ask(slot, true), [true; 4], "which holds for the others only");
        // A reserved request that is finished makes no room for others, and another one does.
        let mut batch = Vec::new();
        shards.visit(0).take(now, 1, &mut batch);
        assert_eq!((batch.len(), shards.device().in_flight()), (0, 5));
        assert_eq!(shards.device().remove_others(1), 2);
        shards.visit(0).take(now, 1, &mut batch);
        assert_eq!((batch, shards.device().in_flight()), (vec![false], 5));
    }

    /// A reservation of 100 in a period of 1,000: one request is due each 10.
    #[test]
    fn due_requests_do_not_wait_for_a_bound_of_latency() {
        let shards: Shards<bool> = Shards::guarded(8, Discipline::Token, Pacing::Even);
        shards.change_all(|scheduler| scheduler.begin(Time(0), Time(1_000)));
        let mut visit = shards.visit(0);
        let slot = visit.add(TenantParameters::of_weight(1));
        visit.grant(Time(0), slot, PeriodGrant { reserved: 100, allowed: u64::MAX });
        for slot in [Slot::UNATTRIBUTED, slot] {
            (0..20).for_each(|_| {
                visit.push(Time(0), slot, RequestCost::ONE, slot != Slot::UNATTRIBUTED)
            });
        }
        drop(visit);
        shards.device().set_bound(1);
        let fill = |now: u64| {
            let mut batch = Vec::new();
            shards.fill(0, Time(now), &mut batch);
            assert!(batch.iter().all(|is_reserved| *is_reserved), "the bound holds others back");
            (batch.len(), shards.note(Time(now)))
        };
        assert_eq!(fill(0), (1, Time(10)));
        assert_eq!(fill(9), (0, Time(10)));
        assert_eq!(fill(10), (1, Time(20)));
        assert_eq!(fill(45), (3, Time(50)));
        assert_eq!(fill(900), (3, Time::MAX), "the depth holds for all");
        assert_eq!(shards.device().in_flight(), 8);
        // One that is finished makes room for one that is due, and for no other.
        let mut visit = shards.visit(0);
        visit.complete(Time(900), slot, 1);
        let mut batch = Vec::new();
        visit.take(Time(900), 1, &mut batch);
        assert_eq!((batch, shards.device().in_flight()), (vec![true], 8));
    }
}
