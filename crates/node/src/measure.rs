//! Device time of requests whose cost is the time that they took.
//!
//! [`tidegate_algo::capacity::device_time`] keeps the account; this module reports to it. Most work
//! is reported as done and no more, for a look at the clock costs a good part of the time of a
//! request in memory. Measured work is rare. Where requests go to a drive, the first of each batch
//! is timed too, to know how long a quick unit takes there.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidegate_algo::capacity::device_time::{DeviceTime, Moment};
use tidegate_algo::scheduling::device::Device;
use tidegate_model::{Iops, Span, Time};
use tidegate_proto::data::pieces::{RANGE_FIRST, next_range};

use crate::engine::Work;
use crate::mutex::lock;

/// The times of measured work, and the length of ranges' pieces that follows from them.
pub(crate) struct Measure {
    account: Mutex<DeviceTime>,
    /// Whether the first of each batch is timed.
    is_sampled: bool,
    /// The capacity that the node assumes of the device, in units per second; zero if unknown.
    capacity: AtomicU64,
    range: AtomicU32,
}

impl Measure {
    /// Of a device that serves so many requests at a time, if that is known; `is_sampled` if it
    /// takes long enough for a look at the clock.
    pub(crate) fn new(servers: Option<u32>, is_sampled: bool) -> Self {
        Self {
            account: Mutex::new(DeviceTime::new(servers)),
            is_sampled,
            capacity: AtomicU64::new(0),
            range: AtomicU32::new(RANGE_FIRST),
        }
    }

    pub(crate) fn set_capacity(&self, capacity: Option<Iops>) {
        let capacity = capacity.map_or(0, |capacity| capacity.0);
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// How many bytes a piece of a range is to have.
    pub(crate) fn range(&self) -> u32 {
        self.range.load(Ordering::Relaxed)
    }

    /// A batch that is not measured goes to the device.
    pub(crate) fn on_batch(&self, batch: &mut [Work], now: impl Fn() -> Time) {
        if self.is_sampled
            && let Some(first) = batch.first_mut()
        {
            first.since = now();
        }
    }

    /// Measured work goes to the device.
    pub(crate) fn on_dispatch(&self, work: &mut Work, now: Time, device: &Device) {
        work.since = now;
        lock(&self.account).on_dispatch(self.moment(now, device));
    }

    /// Work that was timed is finished.
    pub(crate) fn on_finished(&self, work: &mut Work, now: Time, device: &Device) {
        let took = now.since(std::mem::replace(&mut work.since, Time::ZERO));
        if !work.job.command.is_measured() {
            lock(&self.account).sample(Span(took.0 / u64::from(work.cost.max(1))));
            return;
        }
        let units = lock(&self.account).on_completion(self.moment(now, device));
        work.more = units.saturating_sub(work.cost);
        if work.job.command.is_range() {
            // Two at once may both change it; the next one sees to it again.
            let range = next_range(self.range(), work.job.length, took);
            self.range.store(range, Ordering::Relaxed);
        }
    }

    fn moment(&self, now: Time, device: &Device) -> Moment {
        let capacity = self.capacity.load(Ordering::Relaxed);
        Moment {
            now,
            capacity: (capacity > 0).then_some(Iops(capacity)),
            depth: device.depth(),
            in_flight: device.in_flight(),
            done: device.done(now).served,
        }
    }
}
