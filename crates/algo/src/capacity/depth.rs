//! Queue depth control at a device: how much of it requests without a reservation may occupy while
//! requests with a reservation are served.
//!
//! # Problem
//! A scheduler puts a request with a reservation first, but only in front of the device. There the
//! request waits for those that the device has already. With 32 pieces of 128 KiB these are 4 MiB:
//! 13 ms at 300 MiB/s, for a read that takes 0.4 ms alone. Some devices need that many requests for
//! their full rate and others two, and nothing tells a node which.
//!
//! # Model
//! The other requests at the device have a [weight]: one each, and one more for each [`HEAVY`]
//! bytes, for large ones keep a device longer. The *limit* is the most that all of them together
//! may weigh. A request with a reservation is *alone* if no other request was at the device with
//! it, nor one with a reservation that was not alone: those that others have held up wait for each
//! other. It is *slow* if it took more than [`SLOWER`] times the base. The *base* is the tail of
//! the times alone: [`SAMPLES`] of them are a window, and it is the second longest of the longest
//! times of the last [`BASES`] windows.
//!
//! # Mechanism
//! The limit is a [`PercentileLimit`] with the base times [`SLOWER`] as its bound: one slow request
//! lowers it at once, and it rises while it keeps requests back and few are slow.
//!
//! If no request was alone for [`PROBE_INTERVAL`] there is a *probe*, in which no other request
//! goes to the device. It lasts for a window, or [`PROBE_MAX`] after the first request alone. So
//! probes take a hundredth of the time, and as long as the last other requests need to leave.
//! While no request with a reservation has come for [`IDLE`], no limit holds; the last limit holds
//! again with the next one. So a device without reserved load, and a node without reservations, do
//! as much as ever.
//!
//! Example: a device serves one request at a time, a read in 0.4 ms and a piece of a write in
//! 0.4 ms. Alone reads take 0.4 ms. With 32 pieces at the device a read takes 13 ms: the limit is
//! halved for each such read, from 160 to some 5, the weight of one piece. Then a read waits
//! for a piece, and the device is never idle.
//!
//! Left out: requests with a reservation are not held back, and wait for each other at a full
//! device. Reads and writes have one limit. A tenant whose requests with a reservation have many
//! sizes is bounded by the longest. A device that slows down for all makes requests slow; the limit
//! is small until probes show that.

use tidegate_model::{Span, Time};

use super::percentile_limit::PercentileLimit;

/// Bytes of a request that occupy a device about as long as a request does by itself. Chosen by
/// hand: 80 us at 400 MiB/s, a read of flash.
const HEAVY: u32 = 32 << 10;

/// The weight of a request for so many bytes at the device.
pub const fn weight(bytes: u32) -> u32 {
    1 + bytes / HEAVY
}

/// The largest weight of a piece of 128 KiB. The first limit is so much for each request that the
/// device takes: no limit.
const WEIGHT_MAX: u32 = weight(128 << 10);

/// Requests alone of a window, whose longest time is near their 97th percentile.
pub const SAMPLES: u32 = 32;

/// How many windows say how long requests take alone.
pub const BASES: usize = 8;

/// How many times the base a request may take: clients are to see at most twice the time that
/// requests take alone.
pub const SLOWER: u64 = 2;

/// The time between two probes. Chosen by hand: seven of them tell within a quarter of a minute
/// that a device has changed.
pub const PROBE_INTERVAL: Span = Span(2 * Span::SECOND.0);

/// The longest time for which a probe counts, and the longest before it counts. Chosen by hand: a
/// window of a tenant with 1,600 requests per second. A shorter one counts as it is.
pub const PROBE_MAX: Span = Span(20 * Span::MILLISECOND.0);

/// How long after the last request with a reservation the limit holds. Chosen by hand: longer than
/// a request takes at a full device.
pub const IDLE: Span = Span::SECOND;

/// The limit on other requests at a device, and the times that it follows.
///
/// ```
/// use tidegate_algo::capacity::depth::{DepthControl, SAMPLES};
/// use tidegate_model::{Span, Time};
/// let mut control = DepthControl::new(32);
/// assert_eq!(control.limit(), u32::MAX);
/// let mut now = Time::ZERO;
/// let mut serve = |control: &mut DepthControl, took, others| {
///     let dispatched = now;
///     now = now.after(Span(took));
///     if others > 0 {
///         control.on_other(now, others);
///     }
///     control.on_reserved(now, dispatched, others);
/// };
/// (0..SAMPLES).for_each(|_| serve(&mut control, 400, 0));
/// let before = control.limit();
/// serve(&mut control, 13_000, 32);
/// assert_eq!((before, control.limit()), (160, 16)); // half of what was there
/// ```
#[derive(Clone, Debug)]
pub struct DepthControl {
    limit: PercentileLimit,
    /// When the last other request was finished, and the last request that was not alone.
    other: Option<Time>,
    mixed: Option<Time>,
    /// The weight of those at the device then.
    present: u32,
    /// Requests alone of the window so far, and the longest time.
    count: u32,
    longest: Span,
    /// The longest times of windows, the latest last.
    bases: [Span; BASES],
    known: usize,
    probe: Option<DepthProbe>,
    /// When the last window was over.
    probed: Option<Time>,
    /// When the last request with a reservation was finished, unless that is long ago.
    last: Option<Time>,
}

/// A time in which no other request goes to the device.
#[derive(Clone, Copy, Debug)]
struct DepthProbe {
    /// From then on requests are alone that wait for others with a reservation, of which some are
    /// always there.
    from: Time,
    until: Time,
    /// A request was alone in it.
    has_begun: bool,
}

impl DepthProbe {
    /// A probe at whose beginning other requests are at the device, or were until now.
    const fn after(now: Time) -> Self {
        let (from, until) = (now.after(PROBE_MAX), now.after(Span(2 * PROBE_MAX.0)));
        Self { from, until, has_begun: false }
    }
}

impl DepthControl {
    /// A device for so many requests at a time.
    pub fn new(depth: u32) -> Self {
        Self {
            limit: PercentileLimit::new(depth.max(1).saturating_mul(WEIGHT_MAX)),
            other: None,
            mixed: None,
            present: 0,
            count: 0,
            longest: Span::ZERO,
            bases: [Span::ZERO; BASES],
            known: 0,
            probe: None,
            probed: None,
            last: None,
        }
    }

    /// The most that other requests at the device may weigh from now on: nothing while it probes,
    /// and anything while no request with a reservation comes. The last one that goes there may
    /// weigh more than what is left.
    pub fn limit(&self) -> u32 {
        match (self.last, self.probe) {
            (None, _) => u32::MAX,
            (Some(_), Some(_)) => 0,
            (Some(_), None) => self.limit.get(),
        }
    }

    /// When [`Self::advance`] is to be called; [`Time::MAX`] for never.
    pub fn deadline(&self) -> Time {
        self.probe.map_or(Time::MAX, |probe| probe.until)
    }

    /// Ends a probe that has lasted long enough.
    pub fn advance(&mut self, now: Time) {
        if now >= self.deadline() {
            self.end_window(now);
        }
    }

    /// A request with a reservation is finished, which went to the device at `dispatched`; other
    /// requests that weigh `others` are there.
    pub fn on_reserved(&mut self, now: Time, dispatched: Time, others: u32) {
        self.last = Some(now);
        self.advance(now);
        let took = now.since(dispatched);
        let is_after = |time: Option<Time>| time.is_none_or(|time| time <= dispatched);
        let is_late = self.probe.is_some_and(|probe| dispatched >= probe.from);
        if others == 0 && is_after(self.other) && (is_late || is_after(self.mixed)) {
            return self.on_alone(now, took);
        }
        self.mixed = Some(now);
        match self.base() {
            Some(base) if took.0 / SLOWER > base.0 => {
                let is_far = took.0 / SLOWER / 2 > base.0;
                self.limit.on_slow((now, dispatched), is_far, others.max(self.present));
            }
            Some(_) => self.limit.on_quick(),
            None => {}
        }
        let is_due = self.probed.is_none_or(|probed| now.since(probed) >= PROBE_INTERVAL);
        if is_due && self.probe.is_none() {
            self.probe = Some(DepthProbe::after(now));
        }
    }

    /// Another request is finished; with it, those at the device weighed `others`.
    pub fn on_other(&mut self, now: Time, others: u32) {
        (self.other, self.present) = (Some(now), others);
        let Some(last) = self.last else { return };
        if now.since(last) > IDLE {
            (self.last, self.probe) = (None, None);
            return;
        }
        if let Some(probe) = &mut self.probe {
            *probe = DepthProbe::after(now);
        }
        if others >= self.limit.get() {
            self.limit.on_full();
        }
    }

    /// A request that was alone took so long.
    fn on_alone(&mut self, now: Time, took: Span) {
        if let Some(probe) = self.probe.as_mut().filter(|probe| !probe.has_begun) {
            probe.until = probe.until.min(now.after(PROBE_MAX));
            probe.has_begun = true;
        }
        (self.count, self.longest) = (self.count + 1, self.longest.max(took));
        if self.count >= SAMPLES {
            self.end_window(now);
        }
    }

    fn end_window(&mut self, now: Time) {
        if self.count > 0 {
            self.bases.rotate_left(1);
            self.bases[BASES - 1] = self.longest;
            self.known = (self.known + 1).min(BASES);
        }
        (self.count, self.longest) = (0, Span::ZERO);
        (self.probe, self.probed) = (None, Some(now));
    }

    /// The second longest of the known ones, so that one odd request does not set it.
    fn base(&self) -> Option<Span> {
        let mut bases = self.bases;
        let known = &mut bases[BASES - self.known..];
        known.sort_unstable();
        known.get(self.known.saturating_sub(2)).copied()
    }
}

#[cfg(test)]
#[path = "depth_tests.rs"]
mod tests;
