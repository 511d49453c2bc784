//! Quality factor of a network flow: its deficit or slack against its promise, as one number.
//!
//! # Problem
//! Congestion control that gives way to congestion treats all flows alike. To treat them by their
//! promises it has to compare, at each step, each flow with its promise; and a flow is promised
//! either a rate or a latency, of which one is good when large and one when small.
//!
//! # Mechanism
//! The quality factor Q of Gupta, Kant, Pal and Biswas, "Configuring and Coordinating End-to-End
//! QoS for Emerging Storage Infrastructure" (2024), section 3.1.1. It is one where the promise is
//! just kept, less with slack, more with a deficit:
//!
//! ```text
//! Eq. 1   Q = promised rate / smoothed rate
//! Eq. 2   Q = smoothed latency / promised latency
//! smoothed = (1 - gamma) * measured + gamma * smoothed
//! ```
//!
//! *Gamma* is the weight of the **old** value, unlike the gain of DCTCP. The paper does not give
//! its value. Half is ours: every value from 0 to 0.9 led to the same shares, within one per cent
//! of the link.
//!
//! Example: promised 50 and measured 100, then 50: the smoothed rate is 100, then 75, and the
//! quality factor 0.5, then 0.67. Measured 50 for ever it goes to one.
//!
//! # Which latency
//! The paper promises latencies of 5 to 8 ms to transfers of 2 MB and does not say what is
//! measured. A packet's round trip is a hundredth of that: every flow would have slack at every
//! mark. How long *finished* transfers took is known too late: a flow that finishes one in 50 ms
//! would go by the luck of others. So it is the latency of the transfer under way, as far as it can
//! be foreseen ([`Transfer`]): its age, and what is left of it at the flow's present rate. That is
//! Eq. 10 (`d + q / C`, with `C = W / R`), with what the flow has still to send for `q`. Each
//! transfer is held to its promise, so whichever percentile was promised is kept if it can be.
//!
//! A rate that is cut and recovers is three quarters of its largest on average, as D2TCP estimates
//! its deadlines, too ([`crate::congestion::d2tcp`]).
//!
//! Example: promised 5 ms. After 1 ms, 1.5 MB are left, and the window is 75 kB in 100 us: 2.67 ms
//! more, 3.67 together, and Q is 0.73. After 4 ms with as much left it would be 1.33 by itself, and
//! 1.03 as the mean with the former.
//!
//! Left out: the two kinds are not mixed in one flow, and latencies of different percentiles are
//! not made comparable.

use tidegate_model::{Rate, Span, Time};

/// The weight of the old value when a measured one is taken in.
pub const GAMMA: f64 = 0.5;

/// A rate on average, as a part of its largest.
const MEAN: f64 = 0.75;

/// A transfer of a flow: the time of its request, and its remaining bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The time at which the transfer was requested.
    pub requested_at: Time,
    /// The bytes that are not yet acknowledged.
    pub left: u64,
}

impl Transfer {
    /// How long it will have taken, if it goes on at `rate` bytes per second at best; at most
    /// some 580 years.
    ///
    /// ```
    /// use tidegate_algo::congestion::quality::Transfer;
    /// use tidegate_model::{Span, Time};
    /// let transfer = Transfer { requested_at: Time(7_000_000), left: 1_500_000 };
    /// // 75 kB in 100 us are 0.75 GB/s, and three quarters of that on average.
    /// let latency = transfer.latency(Time(8_000_000), 750_000_000.0);
    /// assert_eq!(latency, Span(1_000_000 + 2_666_666));
    /// ```
    pub fn latency(&self, now: Time, rate: f64) -> Span {
        let left = self.left as f64 * 1e9 / (MEAN * rate);
        // A cast saturates; nothing left at no rate is no number, and becomes nothing.
        Span(now.since(self.requested_at).0.saturating_add(left as u64))
    }
}

/// A flow's promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// At least this much payload.
    Rate(Rate),
    /// At most this long for each transfer.
    Latency(Span),
}

/// The quality factor of one flow.
///
/// ```
/// use tidegate_algo::congestion::quality::{GAMMA, Objective, Quality};
/// use tidegate_model::{Rate, Span};
/// let mut quality = Quality::new(Objective::Rate(Rate(50_000_000)), GAMMA);
/// assert_eq!(quality.factor(), 1.0); // nothing is known yet
/// quality.on_delivered(100_000, Span::MILLISECOND);
/// assert_eq!(quality.factor(), 0.5);
/// quality.on_delivered(50_000, Span::MILLISECOND);
/// assert_eq!(quality.factor(), 50.0 / 75.0);
///
/// let mut quality = Quality::new(Objective::Latency(Span(100_000)), GAMMA);
/// quality.on_latency(Span(150_000));
/// assert_eq!(quality.factor(), 1.5); // a deficit
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    objective: Objective,
    gamma: f64,
    /// Bytes per second or nanoseconds, as the objective has it; none before the first.
    smoothed: Option<f64>,
    transfer: Option<Transfer>,
}

impl Quality {
    /// Of a flow of which nothing was measured yet: its factor is one.
    ///
    /// # Panics
    /// If `gamma` is not from zero to less than one.
    pub fn new(objective: Objective, gamma: f64) -> Self {
        assert!((0.0..1.0).contains(&gamma), "gamma is 0 to less than 1, not {gamma}");
        Self { objective, gamma, smoothed: None, transfer: None }
    }

    /// The flow's promise.
    pub const fn objective(&self) -> Objective {
        self.objective
    }

    /// Promises something else from now on. The measurement stays if it is of the same kind.
    pub const fn promise(&mut self, objective: Objective) {
        match (self.objective, objective) {
            (Objective::Rate(_), Objective::Rate(_))
            | (Objective::Latency(_), Objective::Latency(_)) => {}
            _ => self.smoothed = None,
        }
        self.objective = objective;
    }

    /// So many bytes of payload arrived in so much time. Nothing if a latency is promised, or in
    /// no time.
    pub fn on_delivered(&mut self, bytes: u64, elapsed: Span) {
        if matches!(self.objective, Objective::Rate(_)) && elapsed > Span::ZERO {
            self.take(bytes as f64 / elapsed.as_seconds());
        }
    }

    /// A latency was measured. Nothing if a rate is promised.
    pub fn on_latency(&mut self, measured: Span) {
        if matches!(self.objective, Objective::Latency(_)) {
            self.take(measured.0 as f64);
        }
    }

    /// Sets the transfer that the flow carries, or none.
    pub const fn carry(&mut self, transfer: Option<Transfer>) {
        self.transfer = transfer;
    }

    /// Congestion was met, at so many bytes per second: if a latency is promised, the flow
    /// estimates it anew.
    pub fn foresee(&mut self, now: Time, rate: f64) {
        if let Some(transfer) = self.transfer {
            self.on_latency(transfer.latency(now, rate));
        }
    }

    fn take(&mut self, measured: f64) {
        let old = self.smoothed.unwrap_or(measured);
        self.smoothed = Some((1.0 - self.gamma) * measured + self.gamma * old);
    }

    /// The smoothed measurement, in bytes per second or nanoseconds; none before the first.
    pub const fn smoothed(&self) -> Option<f64> {
        self.smoothed
    }

    /// The quality factor: below one with slack, above with a deficit; one while nothing is known.
    /// From zero (nothing promised) to infinity (nothing arrives).
    pub fn factor(&self) -> f64 {
        let Some(smoothed) = self.smoothed else { return 1.0 };
        let (part, whole) = match self.objective {
            Objective::Rate(Rate(promised)) => (promised as f64, smoothed),
            Objective::Latency(Span(promised)) => (smoothed, promised as f64),
        };
        // Nothing of nothing is no reason to give way.
        if whole > 0.0 { part / whole } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        /// Eq. 1 written out: each measurement weighs gamma as often as others came after it.
        #[test]
        fn old_values_fade(gamma in 0.0f64..0.95, rates in prop::collection::vec(1u64..99, 1..9)) {
            let mut quality = Quality::new(Objective::Rate(Rate(500_000)), gamma);
            for rate in &rates {
                quality.on_delivered(*rate, Span::MILLISECOND);
            }
            let weight = |after: usize| (0..after).fold(1.0, |product, _| product * gamma);
            let sum: Vec<f64> = rates.iter().rev().enumerate().map(|(after, rate)| {
                let is_first = after + 1 == rates.len();
                *rate as f64 * 1000.0 * weight(after) * if is_first { 1.0 } else { 1.0 - gamma }
            }).collect();
            let expected = 500_000.0 / sum.iter().sum::<f64>();
            prop_assert!((quality.factor() / expected - 1.0).abs() < 1e-9);
        }

        /// More promised or less arriving never makes it smaller.
        #[test]
        fn monotone(promised in 0u64..1 << 40, more in 0u64..1 << 40, bytes in 0u64..1 << 40) {
            let factor = |promised, bytes| {
                let mut quality = Quality::new(Objective::Rate(Rate(promised)), GAMMA);
                quality.on_delivered(bytes, Span::SECOND);
                quality.factor()
            };
            prop_assert!(factor(promised + more, bytes) >= factor(promised, bytes));
            prop_assert!(factor(promised, bytes) >= factor(promised, bytes + more));
        }

        #[test]
        fn a_latency_is_the_other_way_round(promised in 1u64..1 << 40, measured in 0u64..1 << 40) {
            let mut quality = Quality::new(Objective::Latency(Span(promised)), GAMMA);
            quality.on_delivered(1, Span::SECOND); // is no latency
            quality.on_latency(Span(measured));
            prop_assert_eq!(quality.factor() > 1.0, measured > promised);
            prop_assert_eq!(quality.factor() < 1.0, measured < promised);
        }
    }

    #[test]
    fn a_transfer_that_will_be_late_is_a_deficit() {
        let mut quality = Quality::new(Objective::Latency(Span(5_000_000)), 0.0);
        quality.foresee(Time(9), 1e9);
        assert_eq!(quality.factor(), 1.0, "it carries nothing");
        let requested_at = Time(10_000_000);
        quality.carry(Some(Transfer { requested_at, left: 1_500_000 }));
        for (after, factor) in [(1_000_000, 0.733), (4_000_000, 1.333)] {
            quality.foresee(requested_at.after(Span(after)), 750_000_000.0);
            assert!((quality.factor() - factor).abs() < 0.001, "{}", quality.factor());
        }
        quality.foresee(requested_at, 0.0);
        assert!(quality.factor() > 1e12, "nothing moves");
        quality.promise(Objective::Rate(Rate(1)));
        quality.foresee(requested_at, 0.0);
        assert_eq!(quality.smoothed(), None, "a rate is measured, not foreseen");
    }

    #[test]
    fn another_kind_of_promise_starts_anew() {
        let mut quality = Quality::new(Objective::Rate(Rate(1_000)), GAMMA);
        quality.on_delivered(4_000, Span::SECOND);
        quality.promise(Objective::Rate(Rate(2_000)));
        assert_eq!(quality.factor(), 0.5);
        quality.promise(Objective::Latency(Span(2_000)));
        assert_eq!(quality.factor(), 1.0);
    }
}
