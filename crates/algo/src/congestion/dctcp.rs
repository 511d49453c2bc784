//! DCTCP: a window of unacknowledged bytes that is cut by as much as was marked.
//!
//! # Problem
//! A switch that marks packets as soon as its queue is a little long signals congestion early and
//! often. A sender that halved its window at each mark, as TCP does at a loss, would leave the link
//! idle; one that did nothing would fill the buffer. To treat flows differently, a control changes
//! how *deep* a window is cut, and nothing else.
//!
//! # Mechanism
//! RFC 8257 (Alizadeh and others, SIGCOMM 2010), as one value without a clock or a socket that is
//! informed of acknowledgements, losses and timeouts, and gives how many bytes may be in flight.
//!
//! - A *round* ends when everything is acknowledged that was sent when it began: about one round
//!   trip. With the part `f` of its bytes that was marked, `alpha` moves on by the *gain* `g`
//!   (RFC 8257, section 3.3; Eq. 3 of the end-to-end QoS paper):
//!   `alpha = (1 - g) * alpha + g * f`.
//! - The first mark cuts the window to `1 - alpha / 2` of it (Eq. 4). It is not cut and does not
//!   grow until something is acknowledged that was sent afterwards: at most one cut per round
//!   trip. A cut uses the alpha of the last round, that is, it comes before the round's end.
//! - Without marks it grows: by what is acknowledged while below the *threshold* (slow start), by
//!   one segment per round trip above it; and only if the window, not the application, is what
//!   kept the sender from sending more.
//! - A loss halves it, a timeout begins again with one segment (RFC 5681); alpha stays.
//!
//! It never is less than one segment.
//!
//! Example, with a gain of 1/16: alpha is 0.4, the window 100 segments. In this round 20 of 100 are
//! marked: the first of them cuts the window to 100 * (1 - 0.2) = 80 segments, and at the round's
//! end alpha is 15/16 * 0.4 + 1/16 * 0.2 = 0.3875.
//!
//! # Kinds of control
//! The [`CongestionControl`] decides which fraction of the window a cut leaves: [`Dctcp`] here,
//! [`D2tcp`](crate::congestion::d2tcp::D2tcp) by deadlines, [`Qtcp`](crate::congestion::qtcp::Qtcp)
//! by promises. The machine around it is the same, so that a difference between flows is one
//! between controls.
//!
//! Left out: a cut is taken at once and not spread over a round trip (PRR); the shares of flows
//! were the same, within three per cent, as with a simulator that spreads it. Pacing of windows of
//! a part of a segment is left out too, and so is beginning anew after an idle time (RFC 5681,
//! section 4.1): a sender that has been silent sends a whole window at once.

use tidegate_model::{Span, Time};

/// The parameters with which a connection begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Start {
    /// The payload of a full segment, in bytes.
    pub segment: u32,
    /// The first window, in segments. 10: RFC 6928.
    pub window: u32,
    /// Alpha before the first round, from 0 to 1. With 1 the first mark halves the window, as
    /// RFC 8257 (section 4.2) advises for flows that should be quiet; with 0 it changes nothing.
    pub alpha: f64,
    /// The weight of the newest round, more than 0 and at most 1. 1/16: RFC 8257, section 4.2.
    pub gain: f64,
}

impl Start {
    /// The values that RFC 8257 and RFC 6928 advise, with segments of 1448 bytes: an Ethernet frame
    /// less the headers of IPv4 and of TCP with time stamps.
    pub const USUAL: Self = Self { segment: 1448, window: 10, alpha: 1.0, gain: 1.0 / 16.0 };
}

/// An acknowledgement, as the sender takes it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The time of its arrival.
    pub now: Time,
    /// The bytes that it is the first to acknowledge, in order or selectively.
    pub delivered: u64,
    /// Whether what it answers had met congestion.
    pub is_marked: bool,
    /// The first byte that is not acknowledged, or not in order.
    pub acknowledged: u64,
    /// The first byte that was never sent.
    pub sent: u64,
    /// The round trip of the packet that it answers.
    pub round_trip: Span,
    /// Whether the window is what kept the sender from sending more.
    pub is_limited: bool,
}

/// The state of a connection at a cut of its window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowState {
    /// Now.
    pub now: Time,
    /// The smoothed part of the bytes that were marked, 0 to 1.
    pub alpha: f64,
    /// The window, in bytes.
    pub window: f64,
    /// The last round trip.
    pub round_trip: Span,
}

/// How deep a window is cut.
pub trait CongestionControl {
    /// The part of the window that is left by a cut, 0 to 1.
    fn left(&mut self, state: &WindowState) -> f64;

    /// A round has ended, in which so many bytes arrived in so much time.
    fn on_round(&mut self, _delivered: u64, _elapsed: Span) {}
}

/// Eq. 4: all flows alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dctcp;

impl CongestionControl for Dctcp {
    fn left(&mut self, state: &WindowState) -> f64 {
        1.0 - state.alpha / 2.0
    }
}

/// The window of one connection.
///
/// ```
/// use tidegate_algo::congestion::dctcp::{Ack, Dctcp, Start, Window};
/// use tidegate_model::{Span, Time};
/// let mut window = Window::new(Start { segment: 1000, ..Start::USUAL }, Dctcp);
/// assert_eq!(window.bytes(), 10_000);
/// let ack = Ack {
///     now: Time(25_000),
///     delivered: 1000,
///     is_marked: false,
///     acknowledged: 1000,
///     sent: 10_000,
///     round_trip: Span(25_000),
///     is_limited: true,
/// };
/// window.on_ack(&ack); // slow start; the first round ends with the first acknowledgement
/// assert_eq!((window.bytes(), window.alpha()), (11_000, 15.0 / 16.0));
/// let marked = Ack { is_marked: true, acknowledged: 2000, sent: 11_000, ..ack };
/// window.on_ack(&marked); // 1 - 15/32 is left
/// assert_eq!(window.bytes(), 5_843);
/// window.on_ack(&Ack { acknowledged: 3000, ..marked }); // once in a round trip
/// assert_eq!(window.bytes(), 5_843);
/// ```
#[derive(Clone, Debug)]
pub struct Window<L> {
    control: L,
    segment: f64,
    gain: f64,
    alpha: f64,
    /// Bytes that may be under way.
    bytes: f64,
    /// Above this it grows by one segment per round trip.
    threshold: f64,
    /// It neither grows nor is cut until a byte from here on is acknowledged.
    held: Option<u64>,
    round: MarkWindow,
    round_trip: Span,
}

/// The measurements of the current round.
#[derive(Clone, Copy, Debug, Default)]
struct MarkWindow {
    /// It ends when everything before this byte is acknowledged.
    end: u64,
    /// The round's beginning; none in the first round, where it is unknown.
    began: Option<Time>,
    delivered: u64,
    marked: u64,
}

impl<L: CongestionControl> Window<L> {
    /// The window of a new connection.
    ///
    /// # Panics
    /// If a field of `start` is outside its range, or a window or a segment is nothing.
    pub fn new(start: Start, control: L) -> Self {
        let Start { segment, window, alpha, gain } = start;
        assert!(segment > 0 && window > 0, "a window of {window} segments of {segment} bytes");
        assert!((0.0..=1.0).contains(&alpha), "alpha is 0 to 1, not {alpha}");
        assert!(gain > 0.0 && gain <= 1.0, "the gain is more than 0 and at most 1, not {gain}");
        Self {
            control,
            segment: f64::from(segment),
            gain,
            alpha,
            bytes: f64::from(window) * f64::from(segment),
            threshold: f64::INFINITY,
            held: None,
            round: MarkWindow::default(),
            round_trip: Span::ZERO,
        }
    }

    /// How many bytes may be under way: at least one segment.
    pub const fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The smoothed part of the bytes that were marked, 0 to 1.
    pub const fn alpha(&self) -> f64 {
        self.alpha
    }

    /// The state at a cut at `now`.
    pub const fn state(&self, now: Time) -> WindowState {
        WindowState { now, alpha: self.alpha, window: self.bytes, round_trip: self.round_trip }
    }

    /// The control by which it is cut.
    pub const fn control(&self) -> &L {
        &self.control
    }

    /// The same, to change it.
    pub const fn control_mut(&mut self) -> &mut L {
        &mut self.control
    }

    /// Something was acknowledged.
    pub fn on_ack(&mut self, ack: &Ack) {
        self.round_trip = ack.round_trip;
        self.round.delivered += ack.delivered;
        if ack.is_marked {
            self.round.marked += ack.delivered;
        }
        if self.held.is_some_and(|until| ack.acknowledged > until) {
            self.held = None;
        }
        if self.held.is_none() {
            if ack.is_marked {
                self.cut(ack);
            } else if ack.is_limited {
                self.grow(ack.delivered as f64);
            }
        }
        if ack.acknowledged >= self.round.end {
            self.end_round(ack);
        }
    }

    /// Something that was sent before `sent` is lost: once for all that is lost in a round trip.
    pub fn on_loss(&mut self, sent: u64) {
        self.shrink(0.5, sent);
    }

    /// Nothing was acknowledged for too long. Twice in a row it remembers the first window.
    pub fn on_timeout(&mut self) {
        if self.bytes > self.segment {
            self.threshold = (self.bytes / 2.0).max(2.0 * self.segment);
        }
        self.bytes = self.segment;
        self.held = None;
    }

    fn cut(&mut self, ack: &Ack) {
        let state = self.state(ack.now);
        let left = self.control.left(&state);
        debug_assert!((0.0..=1.0).contains(&left), "a cut leaves 0 to 1 of a window, not {left}");
        self.shrink(left, ack.sent);
    }

    fn shrink(&mut self, left: f64, sent: u64) {
        self.bytes = (self.bytes * left).max(self.segment);
        self.threshold = self.bytes;
        self.held = Some(sent);
    }

    fn grow(&mut self, delivered: f64) {
        self.bytes += if self.bytes < self.threshold {
            delivered
        } else {
            // Over a window's worth of bytes this makes one segment.
            self.segment * delivered / self.bytes
        };
    }

    fn end_round(&mut self, ack: &Ack) {
        let MarkWindow { began, delivered, marked, .. } = self.round;
        if delivered > 0 {
            let part = marked as f64 / delivered as f64;
            self.alpha = (1.0 - self.gain) * self.alpha + self.gain * part;
        }
        if let Some(began) = began {
            self.control.on_round(delivered, ack.now.since(began));
        }
        self.round = MarkWindow { end: ack.sent, began: Some(ack.now), delivered: 0, marked: 0 };
    }
}

#[cfg(test)]
#[path = "dctcp_tests.rs"]
mod tests;
