//! Queue depth control at a device: limits outstanding requests without a reservation while
//! requests with a reservation are served.
//!
//! # Problem
//! A scheduler puts a request with a reservation first, but only in front of the device. There the
//! request waits for those that the device has already. With 32 pieces of 128 KiB these are 4 MiB:
//! 13 ms at 300 MiB/s, for a read that takes 0.4 ms alone. Some devices need that many requests for
//! their full rate and others two, and nothing tells a node which.
//!
//! # Mechanism
//! Every request with a reservation is timed at the device. [`SAMPLES`] of them are a *window*, and
//! the window's *time* is that which a quarter of them exceed. The *base* is that time without
//! other requests: the median of the last [`BASES`] windows in which no other request was at the
//! device. Every [`PROBE_INTERVAL`] there is such a window if there was none by itself: a *probe*,
//! in which no other request goes to the device. It begins to count when those that are there have
//! had the time to leave, and then lasts at most [`PROBE_MAX`]: at most two hundredths of the time
//! in all, and less where requests with a reservation are many.
//!
//! The *limit* is the most other requests at the device. Once a window has taken more than
//! [`SLOWER`] times the base, the limit is an eighth less, and at least one. After any other window
//! in which the limit kept a request back, it is a sixteenth and an eighth of a request more. Both
//! steps are about as long, so at rest about half of the windows are slow, and noise that makes
//! fewer of them slow does not shrink the limit. While no request with a reservation has come for
//! [`IDLE`], no limit holds; the last limit holds again with the next one. So a device without
//! reserved load, and a node without reservations, do as much as ever.
//!
//! Example: a device serves one request at a time, a read in 0.4 ms and a piece of a write in
//! 0.4 ms. Alone the reads' windows take 0.4 ms. With 32 pieces at the device a read takes 13 ms:
//! the limit is 28, 24, 21 and so on, and at rest one or two. Then a read waits for as many pieces,
//! and the device is never idle.
//!
//! Left out: requests with a reservation are not held back, and wait for each other at a full
//! device. Reads and writes have one limit, as have small and large requests. A device that slows
//! down for all makes windows longer; the limit is small until [`BASES`] probes have told that.

use tidegate_model::{Span, Time};

/// Requests of a window. Chosen by hand: so few that a full device is noticed within milliseconds,
/// and enough for the time that a quarter of them exceed.
pub const SAMPLES: usize = 16;

/// The window's time is this one of the longest times: a quarter of the requests took as long. Less
/// would be the device's own jitter and the processors', more would miss the bursts of others.
const LONGEST: usize = 4;

/// How many windows without other requests say how long requests take alone.
pub const BASES: usize = 5;

/// How many times the base a window may take: clients are to see at most twice the time that
/// requests take alone.
pub const SLOWER: u64 = 2;

/// The time between two probes. Chosen by hand: five of them tell within ten seconds that a device
/// has changed.
pub const PROBE_INTERVAL: Span = Span(2 * Span::SECOND.0);

/// The longest time for which a probe counts, and the longest before it counts. Chosen by hand: a
/// whole window of a tenant with 800 requests per second. A shorter one counts as it is.
pub const PROBE_MAX: Span = Span(20 * Span::MILLISECOND.0);

/// How long after the last request with a reservation the limit holds. Chosen by hand: longer than
/// a request takes at a full device.
pub const IDLE: Span = Span::SECOND;

/// Parts of a request that the limit counts in.
const PARTS: u32 = 8;

/// The window so far: its longest times, the longest first.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    count: usize,
    longest: [Span; LONGEST],
}

impl Window {
    fn add(&mut self, took: Span) {
        self.count += 1;
        let mut next = took;
        for longest in &mut self.longest {
            if next > *longest {
                core::mem::swap(longest, &mut next);
            }
        }
    }

    /// Its time: a quarter of the requests took as long or longer.
    fn time(&self) -> Span {
        self.longest[(self.count / (SAMPLES / LONGEST)).clamp(1, LONGEST) - 1]
    }
}

/// The limit on other requests at a device, and the times that it follows.
///
/// ```
/// use tidegate_algo::capacity::depth::{DepthControl, SAMPLES};
/// use tidegate_model::{Span, Time};
/// let mut control = DepthControl::new(32);
/// assert_eq!(control.limit(), u32::MAX);
/// let mut now = Time::ZERO;
/// for (took, others) in [(400, 0), (13_000, 32), (13_000, 32)] {
///     for _ in 0..SAMPLES {
///         let dispatched = now;
///         now = now.after(Span(took));
///         if others > 0 {
///             control.on_other(now, others);
///         }
///         control.on_reserved(now, dispatched);
///     }
/// }
/// assert!(control.limit() < 20); // of 32 an eighth less, some times
/// ```
#[derive(Clone, Debug)]
pub struct DepthControl {
    depth: u32,
    /// The most other requests, in [`PARTS`].
    limit: u32,
    window: Window,
    /// Whether other requests were at the device in this window, and whether the limit kept any
    /// back.
    has_others: bool,
    is_held: bool,
    /// The times of windows without other requests, the latest last.
    bases: [Span; BASES],
    known: usize,
    /// From when on requests count for the probe, and when it ends.
    probe: Option<(Time, Time)>,
    /// When the last such window, or probe, was over.
    probed: Option<Time>,
    /// When the last request with a reservation was finished, unless that is long ago.
    last: Option<Time>,
}

impl DepthControl {
    /// A device for so many requests at a time.
    pub fn new(depth: u32) -> Self {
        Self {
            depth: depth.max(1),
            limit: depth.max(1).saturating_mul(PARTS),
            window: Window::default(),
            has_others: false,
            is_held: false,
            bases: [Span::ZERO; BASES],
            known: 0,
            probe: None,
            probed: None,
            last: None,
        }
    }

    /// The most other requests at the device from now on: none while it probes, and any number
    /// while no request with a reservation comes.
    pub fn limit(&self) -> u32 {
        match (self.last, self.probe) {
            (None, _) => u32::MAX,
            (Some(_), Some(_)) => 0,
            (Some(_), None) => self.limit / PARTS,
        }
    }

    /// When [`Self::advance`] is to be called; [`Time::MAX`] for never.
    pub fn deadline(&self) -> Time {
        self.probe.map_or(Time::MAX, |(_, until)| until)
    }

    /// Ends a probe that has lasted long enough.
    pub fn advance(&mut self, now: Time) {
        if now >= self.deadline() {
            self.end_probe(now);
        }
    }

    /// A request with a reservation is finished, which went to the device at `dispatched`.
    pub fn on_reserved(&mut self, now: Time, dispatched: Time) {
        if self.last.is_none() {
            self.begin_window();
        }
        self.last = Some(now);
        self.advance(now);
        if self.probe.is_some_and(|(from, _)| dispatched < from) {
            return;
        }
        self.window.add(now.since(dispatched));
        let time = self.window.time();
        // Once a quarter of a window took longer, it is slow, whatever comes.
        let is_slow = self.probe.is_none() && self.is_slow(self.window.longest[LONGEST - 1]);
        if self.window.count < SAMPLES && !(is_slow && self.has_others) {
            return;
        }
        if self.probe.is_some() {
            return self.end_probe(now);
        }
        if !self.has_others {
            self.learn(time);
            self.probed = Some(now);
        } else {
            self.follow(time);
        }
        self.begin_window();
        if self.probed.is_none_or(|probed| now.since(probed) >= PROBE_INTERVAL) {
            // Requests that are there already do not count, nor those that wait for them.
            let from = now.after(time.min(PROBE_MAX));
            self.probe = Some((from, from.after(PROBE_MAX)));
        }
    }

    /// Another request is finished, and so many of them were at the device with it.
    pub fn on_other(&mut self, now: Time, others: u32) {
        let Some(last) = self.last else { return };
        if now.since(last) > IDLE {
            (self.last, self.probe) = (None, None);
            return;
        }
        self.has_others = true;
        self.is_held |= others >= self.limit / PARTS;
    }

    /// The limit after a window with other requests.
    fn follow(&mut self, time: Span) {
        if self.is_slow(time) {
            self.limit = (self.limit - self.limit.div_ceil(8)).max(PARTS);
        } else if self.is_held && self.known > 0 {
            let more = self.limit + 1 + self.limit / 16;
            self.limit = more.min(self.depth.saturating_mul(PARTS));
        }
    }

    fn is_slow(&self, time: Span) -> bool {
        self.base().is_some_and(|base| time.0 / SLOWER > base.0)
    }

    /// Requests take so long without others.
    fn learn(&mut self, time: Span) {
        self.bases.rotate_left(1);
        self.bases[BASES - 1] = time;
        self.known = (self.known + 1).min(BASES);
    }

    /// The median of the known ones; of two the shorter.
    fn base(&self) -> Option<Span> {
        let mut bases = self.bases;
        let known = &mut bases[BASES - self.known..];
        known.sort_unstable();
        known.get(self.known.checked_sub(1)? / 2).copied()
    }

    fn end_probe(&mut self, now: Time) {
        self.probe = None;
        if self.window.count > 0 {
            self.learn(self.window.time());
        }
        self.probed = Some(now);
        self.begin_window();
    }

    fn begin_window(&mut self) {
        self.window = Window::default();
        (self.has_others, self.is_held) = (false, false);
    }
}

#[cfg(test)]
#[path = "depth_tests.rs"]
mod tests;
