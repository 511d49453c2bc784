//! Measurements of a node's device: the time of requests whose cost is the time that they took, and
//! how long requests with a reservation take beside others.
//!
//! The second decides how many requests without a reservation may be at the device at a time
//! ([`tidegate_algo::capacity::depth`]).
//!
//! For the first, [`tidegate_algo::capacity::device_time`] keeps the account; this module reports
//! to it. Most requests are reported as done and no more, for reading the clock costs a good part
//! of the time of a request in memory. Measured requests are rare. Where requests go to a drive,
//! the first of each batch is timed too, to know how long a quick unit takes there.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidegate_algo::capacity::depth::DepthControl;
use tidegate_algo::capacity::device_time::{DeviceTime, Moment};
use tidegate_algo::capacity::percentile_limit::PercentileLimit;
use tidegate_algo::scheduling::device::Device;
use tidegate_model::{Iops, Span, Time};

use super::Config;
use super::request::NodeRequest;
use super::threads::{Clock, Mutex, Threading};
use crate::data::pieces::{RANGE_FIRST, next_range};

/// The part of the bound, in quarters, above which a request lowers the number at the device. Those
/// that are there with it take about as long, and may be more than one in a hundred of a second: at
/// three quarters, they are back within the bound all the same.
const LATE: u64 = 3;

/// The times of measured requests, and the length of ranges' pieces that follows from them.
pub(super) struct Measure<T: Threading> {
    account: T::Mutex<DeviceTime>,
    /// Whether the first of each batch is timed.
    is_sampled: bool,
    /// The capacity that the node assumes of the device, in units per second; zero if unknown.
    capacity: AtomicU64,
    range: AtomicU32,
    /// How many requests without a reservation the device may have; none for any number.
    depth: Option<T::Mutex<DepthControl>>,
    /// When that changes by itself.
    deadline: AtomicU64,
    /// The bound of latency, if there is one; a request is late above [`LATE`] quarters of it.
    bound: Option<Bound<T>>,
}

/// How many requests the device may have, such that 99 of 100 are back in time.
struct Bound<T: Threading> {
    latency: Span,
    limit: T::Mutex<PercentileLimit>,
}

impl<T: Threading> Measure<T> {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            account: T::Mutex::new(DeviceTime::new(config.servers)),
            is_sampled: config.is_sampled,
            capacity: AtomicU64::new(0),
            range: AtomicU32::new(RANGE_FIRST),
            depth: config.is_guarded.then(|| T::Mutex::new(DepthControl::new(config.depth))),
            deadline: AtomicU64::new(Time::MAX.0),
            bound: config.latency.map(|latency| Bound {
                latency,
                limit: T::Mutex::new(PercentileLimit::new(config.depth)),
            }),
        }
    }

    /// When [`Self::advance`] is to be called; [`Time::MAX`] for never.
    pub(super) fn deadline(&self) -> Time {
        Time(self.deadline.load(Ordering::Relaxed))
    }

    /// Ends what has lasted long enough.
    pub(super) fn advance(&self, now: Time, device: &Device) {
        if now >= self.deadline() {
            self.control_depth(device, |control| control.advance(now));
        }
    }

    /// A request is back from the device: with a reservation it says how long others make it wait.
    pub(super) fn on_return<B>(&self, now: Time, request: &NodeRequest<B>, device: &Device) {
        if self.depth.is_none() {
            return;
        }
        if !request.is_reserved {
            let others = device.remove_others(request.weight());
            self.control_depth(device, |control| control.on_other(now, others));
        } else if !request.is_piece && !request.is_measured() {
            // Of a piece, the time of its job's first one is known only.
            let others = device.others();
            self.control_depth(device, |control| {
                control.on_reserved(now, request.dispatched, others);
            });
        }
    }

    fn control_depth(&self, device: &Device, change: impl FnOnce(&mut DepthControl)) {
        let Some(control) = &self.depth else { return };
        let mut control = control.lock();
        change(&mut control);
        device.set_others_limit(control.limit());
        self.deadline.store(control.deadline().0, Ordering::Relaxed);
    }

    pub(super) fn set_capacity(&self, capacity: Option<Iops>) {
        let capacity = capacity.map_or(0, |capacity| capacity.0);
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    /// How many bytes a piece of a range is to have.
    pub(super) fn range(&self) -> u32 {
        self.range.load(Ordering::Relaxed)
    }

    /// Requests go to the device: the first is timed, if it is measured or some are to be timed;
    /// where a bound holds, all are.
    pub(super) fn on_dispatch<B>(
        &self,
        clock: impl Clock,
        batch: &mut [NodeRequest<B>],
        device: &Device,
    ) {
        debug_assert!(batch.len() < 2 || !batch.iter().any(NodeRequest::is_measured));
        let Some(first) = batch.first_mut() else { return };
        if first.is_measured() {
            let now = clock.now();
            first.since = Some(now);
            self.account.lock().on_dispatch(self.moment(now, device));
        } else if self.bound.is_some() {
            let now = clock.now();
            batch.iter_mut().for_each(|request| request.since = Some(now));
        } else if self.is_sampled {
            first.since = Some(clock.now());
        }
    }

    /// A request is finished, which may have been timed.
    #[inline]
    pub(super) fn on_completion<B>(
        &self,
        clock: impl Clock,
        request: &mut NodeRequest<B>,
        device: &Device,
    ) {
        let Some(since) = request.since.take() else { return };
        let now = clock.now();
        let took = now.since(since);
        if !request.is_measured() {
            self.keep_bound((now, since), device);
            let unit = Span(took.0 / u64::from(request.units().max(1)));
            return self.account.lock().sample(unit);
        }
        let units = self.account.lock().on_completion(self.moment(now, device));
        request.more = units.saturating_sub(request.units());
        if request.command.is_range() {
            // Two at once may both change it; the next one sees to it again.
            let range = next_range(self.range(), request.length, took);
            self.range.store(range, Ordering::Relaxed);
        }
    }

    /// A request that went to the device at `since` is back.
    fn keep_bound(&self, (now, since): (Time, Time), device: &Device) {
        let Some(Bound { latency, limit }) = &self.bound else { return };
        let (mut limit, present) = (limit.lock(), device.in_flight());
        if present >= limit.get() {
            limit.on_full();
        }
        let took = now.since(since);
        let late = latency.0 / 4 * LATE;
        match took.0 > late {
            true => limit.on_slow((now, since), took.0 / 2 > late, present),
            false => limit.on_quick(),
        }
        device.set_bound(limit.get());
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
