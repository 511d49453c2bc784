//! Counters of the device behind a scheduler, shared by threads without a lock: its requests in
//! flight, and its busy time.
//!
//! It is *busy* while it has as many requests as it may, or a tenant waits that may go. Its work in
//! busy time shows its capacity ([`crate::capacity::estimate`]).
//!
//! A thread takes headroom for a batch at a time. When that is finished it keeps the headroom for
//! what it takes out instead, and gives back what it cannot use, so that with enough to do it
//! touches nothing here that others do.
//!
//! A thread that sees the device become busy or idle notes it. When two threads see different
//! states at once, the next one to come by is right again, so the counted time is off by the time
//! of a batch. A single thread is always right. Finished units are counted by shard
//! ([`crate::scheduling::shards`]), each in a cache line of its own.

use alloc::boxed::Box;

use tidegate_model::{Span, Time};

use crate::concurrent::sync::{AtomicU32, AtomicU64, Ordering};

/// The device is idle.
const IDLE: u64 = u64::MAX;

/// The headroom of a device, and for how long it was busy. It has its cache line for itself.
///
/// ```
/// use tidegate_algo::scheduling::device::Device;
/// use tidegate_model::{Span, Time};
/// let device = Device::new(4, 1);
/// assert_eq!((device.reserve(3), device.reserve(3), device.reserve(3)), (3, 1, 0));
/// device.note(Time(10), false);
/// assert!(device.is_busy());
/// device.finish(0, 5);
/// device.release(2);
/// device.note(Time(30), false);
/// assert!(!device.is_busy());
/// let done = device.done(Time(50));
/// assert_eq!((done.busy, done.served, done.served_busy), (Span(20), 5, 5));
/// ```
#[derive(Debug)]
#[repr(align(128))]
pub struct Device {
    depth: u32,
    /// The most requests at a time for now: at most the depth.
    limit: AtomicU32,
    /// The most at a time for which requests are back within a bound of latency, likewise.
    bound: AtomicU32,
    in_flight: AtomicU32,
    /// The weight of those without a reservation ([`crate::capacity::depth`]), and the most for
    /// now. They are counted at a device that may hold them back.
    others: AtomicU32,
    others_limit: AtomicU32,
    /// Since when it has been busy, or [`IDLE`].
    since: AtomicU64,
    /// For how long it was, before that.
    busy: AtomicU64,
    shards: Box<[Finished]>,
}

/// Units of cost of one shard that were finished, while it was busy and while it was not.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Finished {
    busy: AtomicU64,
    idle: AtomicU64,
}

/// The work of a device so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// For how long it was busy.
    pub busy: Span,
    /// Units of cost that were finished.
    pub served: u64,
    /// Units of cost that were finished while it was busy.
    pub served_busy: u64,
}

impl Device {
    /// A device for so many requests at a time, at least one, of so many shards.
    pub fn new(depth: u32, shards: usize) -> Self {
        Self {
            depth: depth.max(1),
            limit: AtomicU32::new(depth.max(1)),
            bound: AtomicU32::new(depth.max(1)),
            in_flight: AtomicU32::new(0),
            others: AtomicU32::new(0),
            others_limit: AtomicU32::new(u32::MAX),
            since: AtomicU64::new(IDLE),
            busy: AtomicU64::new(0),
            shards: (0..shards).map(|_| Finished::default()).collect(),
        }
    }

    /// The most requests at a time.
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// From now on at most so many requests at a time, from one to the depth. Those that are there
    /// stay; see [`Self::keep`].
    pub fn set_limit(&self, requests: u32) {
        let requests = requests.clamp(1, self.depth);
        if self.limit.load(Ordering::Relaxed) != requests {
            self.limit.store(requests, Ordering::Relaxed);
        }
    }

    /// From now on at most so many requests at a time, from one to the depth, with a reservation or
    /// without one; see [`Self::is_bounded`] for the exception. Those that are there stay.
    pub fn set_bound(&self, requests: u32) {
        let requests = requests.clamp(1, self.depth);
        if self.bound.load(Ordering::Relaxed) != requests {
            self.bound.store(requests, Ordering::Relaxed);
        }
    }

    /// The most at a time for which requests are back within a bound of latency.
    pub fn bound(&self) -> u32 {
        self.bound.load(Ordering::Relaxed)
    }

    /// The most that go there with headroom.
    #[inline]
    fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed).min(self.bound())
    }

    /// From now on requests without a reservation weigh at most so much at a time, but for what the
    /// last of them weighs. Those that are there stay.
    pub fn set_others_limit(&self, weight: u32) {
        if self.others_limit.load(Ordering::Relaxed) != weight {
            self.others_limit.store(weight, Ordering::Relaxed);
        }
    }

    /// Whether one more request without a reservation may go there, as far as their own limit says.
    #[inline]
    pub fn admits_others(&self) -> bool {
        let limit = self.others_limit.load(Ordering::Relaxed);
        limit == u32::MAX || self.others() < limit
    }

    /// The weight of requests without a reservation that are there.
    pub fn others(&self) -> u32 {
        self.others.load(Ordering::SeqCst)
    }

    /// A request without a reservation goes there, which weighs so much.
    pub fn add_others(&self, weight: u32) {
        self.others.fetch_add(weight, Ordering::SeqCst);
    }

    /// A request without a reservation is finished, which weighs so much. Returns the weight of
    /// those that were there with it.
    pub fn remove_others(&self, weight: u32) -> u32 {
        self.others.fetch_sub(weight, Ordering::SeqCst)
    }

    /// Requests that are there, or for which headroom was taken.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether one more may go there.
    pub fn has_headroom(&self) -> bool {
        self.in_flight() < self.limit()
    }

    /// Whether one more reserved request may go there without headroom, because replies are long:
    /// as many again as may go there, up to the depth or the bound.
    pub fn has_spare(&self) -> bool {
        let (limit, most) = (self.limit(), self.bound());
        limit < most && self.in_flight() < limit.saturating_mul(2).min(most)
    }

    /// Whether it is the bound of latency alone that keeps one more from going there. Requests that
    /// a reservation makes due go nevertheless, without headroom.
    pub fn is_bounded(&self) -> bool {
        let in_flight = self.in_flight();
        in_flight >= self.bound() && in_flight < self.limit.load(Ordering::Relaxed)
    }

    /// Takes headroom for at most so many requests, and returns for how many.
    #[inline]
    pub fn reserve(&self, most: u32) -> u32 {
        let limit = self.limit();
        let mut before = self.in_flight.load(Ordering::SeqCst);
        loop {
            let headroom = limit.saturating_sub(before).min(most);
            if headroom == 0 {
                return 0;
            }
            let (after, order) = (before + headroom, Ordering::SeqCst);
            match self.in_flight.compare_exchange_weak(before, after, order, order) {
                Ok(_) => return headroom,
                Err(now) => before = now,
            }
        }
    }

    /// Takes headroom whether there is any or not: for a request that turns out to count as
    /// several.
    #[inline]
    pub fn overdraw(&self, requests: u32) {
        self.in_flight.fetch_add(requests, Ordering::SeqCst);
    }

    /// Of the headroom of so many finished requests, how much may be used again. The rest is given
    /// back: there are more than the limit allows.
    #[inline]
    pub fn keep(&self, finished: u32) -> u32 {
        let limit = self.limit();
        let excess = self.in_flight().saturating_sub(limit).min(finished);
        if excess > 0 {
            self.release(excess);
        }
        finished - excess
    }

    /// Gives back headroom for so many requests.
    #[inline]
    pub fn release(&self, requests: u32) {
        self.in_flight.fetch_sub(requests, Ordering::SeqCst);
    }

    /// So many units of cost of a shard are finished. The headroom for them is still taken.
    #[inline]
    pub fn finish(&self, shard: usize, cost: u64) {
        let Finished { busy, idle } = &self.shards[shard];
        let counter = if self.is_busy() { busy } else { idle };
        counter.fetch_add(cost, Ordering::Relaxed);
    }

    /// Notes whether it is busy from `now` on, given whether a tenant waits that may go.
    #[inline]
    pub fn note(&self, now: Time, is_backlogged: bool) {
        let is_busy = is_backlogged || !self.has_headroom();
        let since = self.since.load(Ordering::Relaxed);
        if is_busy == (since != IDLE) {
            return;
        }
        let after = if is_busy { now.0 } else { IDLE };
        let order = Ordering::Relaxed;
        // If the exchange fails, another thread has noted the same or the contrary, and this note
        // is later.
        if self.since.compare_exchange(since, after, order, order).is_ok() && !is_busy {
            self.busy.fetch_add(now.since(Time(since)).0, order);
        }
    }

    /// Whether it was busy when that was noted last.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.since.load(Ordering::Relaxed) != IDLE
    }

    /// Returns the device's work up to `now`.
    pub fn done(&self, now: Time) -> Done {
        let busy = Span(self.busy.load(Ordering::Relaxed));
        let since = match self.since.load(Ordering::Relaxed) {
            IDLE => Span::ZERO,
            since => now.since(Time(since)),
        };
        let mut done = Done { busy: busy.saturating_add(since), ..Done::default() };
        for Finished { busy, idle } in &self.shards {
            let busy = busy.load(Ordering::Relaxed);
            done.served_busy += busy;
            done.served += busy + idle.load(Ordering::Relaxed);
        }
        done
    }
}

/// The most bytes of replies that are expected from a device at any time, which sends them one
/// after the other: what comes next waits for all of them. At a gigabyte per second two
/// milliseconds. Two replies of a megabyte, so that one is sent while the other is passed on.
const REPLIES_MAX: u64 = 2 << 20;

/// How long the replies to keys are, and so how many keys may be requested at a time. It follows a
/// longer reply at once, and shorter ones by an eighth each.
///
/// ```
/// use tidegate_algo::scheduling::device::ReplySize;
/// let size = ReplySize::default();
/// assert_eq!(size.on_reply(1 << 20, 1), 2); // keys at a time, of a megabyte each
/// assert_eq!(size.on_reply(100, 1), 2); // one short reply proves little
/// assert!((0..100).map(|_| size.on_reply(100, 1)).last() > Some(10_000));
/// ```
#[derive(Debug, Default)]
pub struct ReplySize {
    /// For each key, in bytes. Of two threads that write at once one is lost.
    estimate: AtomicU64,
}

impl ReplySize {
    /// A reply of so many bytes about so many keys has come. Returns how many keys may be requested
    /// at a time from now on: at least one.
    pub fn on_reply(&self, bytes: u64, keys: u32) -> u32 {
        let before = self.estimate.load(Ordering::Relaxed);
        let size = (bytes / u64::from(keys.max(1))).max(before - before / 8);
        if size != before {
            self.estimate.store(size, Ordering::Relaxed);
        }
        let keys = REPLIES_MAX / size.max(1);
        u32::try_from(keys).unwrap_or(u32::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_latency_holds_for_reserved_requests_too() {
        let device = Device::new(8, 1);
        device.set_limit(2);
        device.set_bound(3);
        assert_eq!(device.reserve(8), 2);
        assert!(device.has_spare(), "as many again would be four");
        device.overdraw(1);
        assert!(!device.has_spare());
        device.set_bound(1);
        assert_eq!((device.keep(3), device.in_flight()), (1, 1));
        assert!(!device.has_headroom() && !device.has_spare());
        assert!(device.is_bounded());
        device.overdraw(1);
        assert!(!device.is_bounded(), "the limit holds it back, too");
        device.release(1);
        device.set_bound(100);
        assert!(!device.is_bounded());
        assert_eq!(device.reserve(8), 1, "the limit holds still");
    }
}
