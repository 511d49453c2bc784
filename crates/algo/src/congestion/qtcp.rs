//! QTCP: a flow with more than its promise gives way more.
//!
//! # Problem
//! DCTCP divides a link evenly among the flows that want more than that. Storage classes are
//! promised uneven shares, and a switch that served them by class would have to know them.
//!
//! # Mechanism
//! Gupta, Kant, Pal and Biswas, "Configuring and Coordinating End-to-End QoS for Emerging Storage
//! Infrastructure" (2024), Eq. 5. When a window is cut, that of a flow with slack, whose quality
//! factor Q is below one ([`crate::congestion::quality`]), is squeezed by Q on top:
//!
//! ```text
//! left = (1 - alpha / 2) * min(Q, 1)
//! ```
//!
//! So flows of a link find the point where all are at Q = 1, whatever they began with; and one
//! whose Q is never below one is a flow of DCTCP, to the last bit.
//!
//! The paper has the rate behind Q in two ways: measured (Eq. 1), here what arrived in a round, by
//! the round's length; and what the window lets through, `window / round trip` (Eq. 10). Here it is
//! the lesser of both. A flow whose application gives it little has much window and no slack. And
//! what is measured can be far too much. After a cut the sender is silent until enough has arrived;
//! a round that begins then ends with packets that were sent long before, in a part of a round
//! trip, and shows several times the rate: by Eq. 1 alone the flow is squeezed for it. To flows
//! with a few packets under way that happens often. Ten flows of each class, 5 to 17 packets each,
//! had 48.7, 26.7 and 16.8 Gbit/s, and of the 96.4 that they wanted more of 4 were left idle; by
//! the lesser of both they have 45.4, 32.6 and 18.4, which is all of it. (A packet more in each
//! round trip is more for a small window than for a large one, hence two of the first class's for
//! the third.) A promised latency is foreseen at each cut, by the window and the round trip.
//!
//! Example: a link of 100 that three flows want 90, 60 and 30 of, promised 3 : 2 : 1. Even shares
//! are 35, 35 and 30: with promises of 50, 33.3 and 16.7 the third is cut to 0.56 of its window at
//! the first mark and the second to 0.95, on top of what DCTCP cuts; the first grows into the free
//! capacity.
//!
//! # Interference
//! The promises are shares of what the link can carry, less what flows without a promise take. If
//! that grows, no promise holds any more, every Q is above one, and no flow gives way to another.
//! So all promises are scaled ([`Interference`]), to a little more than what the promised flows get
//! together, and at most to all that was promised:
//!
//! ```text
//! scale' = (1 - gain) * scale + gain * min(1, (1 + sigma) * scale / Q)
//! ```
//!
//! Q is promised, as scaled, over what arrives; so `scale / Q` is the part of the promises that
//! arrives, and the rule is at rest at all of them or at Q = 1 + sigma.
//!
//! Why it rests, for high, medium and low at 3 : 2 : 1 beside a flow of DCTCP. A flow with slack
//! has what it is promised, whatever that is, and DCTCP takes the rest: as long as all three have
//! slack, less promised is less had, and every scale would do. But then sigma more is promised each
//! time, until high has no slack. It is a flow of DCTCP then: it has as much as the other one, and
//! what is promised on top only goes from those two to medium and low. Of 96 Gbit/s, with Q at one,
//! all have 32, 21 and 11 and the other flow 32; at 1.2 they would have 27, 27 and 15, the other
//! one 27. So the less sigma is, the more of the proportion is kept; at a twentieth it is 30, 24
//! and 12 beside 30, in whatever order they begin. In words: a flow without a promise gets what the
//! best promise gets, since no flow with a promise is bolder than DCTCP.
//!
//! This departs from the paper's Fig. 15a, by which the link's rate is lowered by sigma when Q is
//! above one by more than that, and raised when it is below by more. As printed, the new rate would
//! have the dimension of a square, and the second test is true whenever the first is not. Mended to
//! what the text describes it has no place to rest: while all have slack Q is about one, so that
//! nothing ever raises the rate again, and what noise once took from the promises, the other flow
//! keeps. It was seen to take 71 of 100 Gbit/s.
//!
//! A flow that scales its own promise by its own Q is content with anything after a while. So the
//! scale belongs to the link and is found from all of its flows together
//! ([`crate::allocation::shares`]); a flow's own is there because the paper has it
//! ([`Qtcp::with_interference`]), and for flows that no one else watches over.
//!
//! Left out: estimating the link. Its capacity must be known, and rather too low than too high:
//! with 20 % too little every flow is squeezed alike and the shares stay; with 20 % too much the
//! first of them never has slack, and the shares are lost.

use tidegate_model::{Rate, Span};

use crate::congestion::dctcp::{CongestionControl, WindowState};
use crate::congestion::quality::{Objective, Quality};

/// How far above one the quality factor is kept beside flows without a promise: a twentieth, which
/// the paper takes for noise (section 4.3.4). The more, the less those take, and the less of the
/// promises' proportion is kept among the others.
pub const SIGMA: f64 = 0.05;

/// Rounds between two steps, so that the flow has answered the one before the next is taken. By
/// hand: with a gamma of a half, three quarters of an answer are seen after two rounds.
const ROUNDS: u32 = 2;

/// The least part of a promise that is left by flows without one. By hand: less is not to be
/// distinguished from a link that is down.
const SCALE_LEAST: f64 = 1.0 / 64.0;

/// The weight of the newest observation in a scale. By hand: rates of flows swing by a tenth from
/// one to the next.
const GAIN: f64 = 0.125;

/// The fraction of the promises that flows without a promise leave to those with one.
///
/// ```
/// use tidegate_algo::congestion::qtcp::{Interference, SIGMA};
/// let mut others = Interference::new(SIGMA);
/// others.observe(2.1); // with a twentieth more, half of what is promised
/// assert!((others.scale() - (0.875 + 0.125 * 0.5)).abs() < 1e-12);
/// others.observe(0.9);
/// (0..60).for_each(|_| others.observe(others.scale()));
/// assert!(others.scale() > 0.999);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Interference {
    sigma: f64,
    scale: f64,
}

impl Interference {
    /// There are no such flows, so far.
    ///
    /// # Panics
    /// If `sigma` is not more than zero and less than one.
    pub fn new(sigma: f64) -> Self {
        assert!(sigma > 0.0 && sigma < 1.0, "sigma is more than 0 and less than 1, not {sigma}");
        Self { sigma, scale: 1.0 }
    }

    /// One step, by the quality factor under the scale that is in force.
    pub const fn observe(&mut self, factor: f64) {
        let kept = ((1.0 + self.sigma) * self.scale / factor).clamp(SCALE_LEAST, 1.0);
        self.scale += GAIN * (kept - self.scale);
    }

    /// The fraction of each promise that is left, more than 0 and at most 1.
    pub const fn scale(&self) -> f64 {
        self.scale
    }
}

/// The congestion control of QTCP.
///
/// ```
/// use tidegate_algo::congestion::dctcp::{CongestionControl, WindowState};
/// use tidegate_algo::congestion::qtcp::Qtcp;
/// use tidegate_algo::congestion::quality::{GAMMA, Objective, Quality};
/// use tidegate_model::{Rate, Span, Time};
/// let mut control = Qtcp::new(Quality::new(Objective::Rate(Rate(50_000_000)), GAMMA));
/// let round_trip = Span(25_000);
/// let state = WindowState { now: Time::ZERO, alpha: 0.5, window: 10_000.0, round_trip };
/// control.on_round(2_500, Span(100_000)); // 25 MB/s: a deficit
/// assert_eq!(control.left(&state), 0.75);
/// control.on_round(17_500, Span(100_000)); // 100 MB/s on average: slack
/// assert_eq!(control.left(&state), 0.75 * 0.5);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Qtcp {
    quality: Quality,
    interference: Option<Interference>,
    /// Rounds since the last step.
    rounds: u32,
}

impl Qtcp {
    /// For a flow with this promise, which others see to if it cannot be kept.
    pub const fn new(quality: Quality) -> Self {
        Self { quality, interference: None, rounds: 0 }
    }

    /// For a flow that finds out by itself how much of its promise can be kept (Fig. 15a). A
    /// promised latency is not scaled.
    pub const fn with_interference(quality: Quality, interference: Interference) -> Self {
        Self { quality, interference: Some(interference), rounds: 0 }
    }

    /// The quality of the flow by its promise.
    pub const fn quality(&self) -> &Quality {
        &self.quality
    }

    /// The same, to change the promise or to report a latency.
    pub const fn quality_mut(&mut self) -> &mut Quality {
        &mut self.quality
    }

    /// The quality factor by which a cut goes: no more is taken for measured than the window lets
    /// through.
    pub fn factor_at(&self, state: &WindowState) -> f64 {
        match self.quality.objective() {
            Objective::Rate(Rate(promised)) => {
                let needed = promised as f64 * self.scale() * state.round_trip.as_seconds();
                self.factor().max(needed / state.window)
            }
            Objective::Latency(_) => self.factor(),
        }
    }

    /// The quality factor by what is measured, of what of the promise can be kept.
    fn factor(&self) -> f64 {
        self.quality.factor() * self.scale()
    }

    /// The fraction of the promise that can be kept.
    fn scale(&self) -> f64 {
        match (self.quality.objective(), &self.interference) {
            (Objective::Rate(_), Some(interference)) => interference.scale(),
            _ => 1.0,
        }
    }
}

impl CongestionControl for Qtcp {
    fn left(&mut self, state: &WindowState) -> f64 {
        self.quality.foresee(state.now, state.window / state.round_trip.as_seconds());
        let factor = self.factor();
        if self.rounds >= ROUNDS
            && let Some(interference) = &mut self.interference
        {
            interference.observe(factor);
            self.rounds = 0;
        }
        (1.0 - state.alpha / 2.0) * self.factor_at(state).min(1.0)
    }

    fn on_round(&mut self, delivered: u64, elapsed: Span) {
        self.quality.on_delivered(delivered, elapsed);
        self.rounds = self.rounds.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::dctcp::Dctcp;
    use crate::congestion::quality::GAMMA;
    use proptest::prelude::*;
    use tidegate_model::Time;

    /// Of a window that lets everything through.
    fn state(alpha: f64) -> WindowState {
        WindowState { now: Time::ZERO, alpha, window: 1e12, round_trip: Span(25_000) }
    }

    fn promised(rate: u64) -> Quality {
        Quality::new(Objective::Rate(Rate(rate)), GAMMA)
    }

    proptest! {
        /// The rates that arrive are below what is promised: every Q is above one.
        #[test]
        fn without_slack_it_is_dctcp(
            rounds in prop::collection::vec((0.0f64..=1.0, 1u64..1000), 1..50),
        ) {
            let mut control = Qtcp::new(promised(1_000_000));
            for (alpha, delivered) in rounds {
                control.on_round(delivered, Span::MILLISECOND);
                prop_assert_eq!(control.left(&state(alpha)), Dctcp.left(&state(alpha)));
            }
        }

        /// With slack, the window is cut to what would have carried the promise.
        #[test]
        fn slack_is_given_away(alpha in 0.0f64..=1.0, rate in 1_000_000u64..1 << 40) {
            let mut control = Qtcp::new(promised(1_000_000));
            control.on_round(rate, Span::SECOND);
            let expected = Dctcp.left(&state(alpha)) * 1e6 / rate as f64;
            prop_assert!((control.left(&state(alpha)) / expected - 1.0).abs() < 1e-12);
        }

        /// Whatever a link leaves, the scale finds it and a bit more, and returns when all is back.
        #[test]
        fn a_scale_finds_what_is_left(percent in 5u32..=100) {
            let left = f64::from(percent) / 100.0;
            let mut others = Interference::new(SIGMA);
            (0..100).for_each(|_| others.observe(others.scale() / left));
            let expected = f64::min(1.0, left * (1.0 + SIGMA));
            prop_assert!((others.scale() / expected - 1.0).abs() < 1e-3, "{}", others.scale());
            (0..100).for_each(|_| others.observe(others.scale()));
            prop_assert!(others.scale() > 0.999);
        }
    }

    #[test]
    fn a_flow_that_is_kept_from_its_promise_scales_it() {
        let others = Interference::new(SIGMA);
        let mut control = Qtcp::with_interference(promised(100_000_000), others);
        control.on_round(56_000, Span::MILLISECOND);
        let mut cuts = 1;
        while control.factor() > 1.25 {
            control.on_round(56_000, Span::MILLISECOND);
            control.left(&state(0.1));
            cuts += 1;
            assert!(cuts < 100);
        }
        // From one to 1.05 * 0.56 = 0.588: after n steps 0.588 + 0.412 * 0.875^n, which is below
        // 1.25 * 0.56 after 10 of them, one for two rounds.
        assert_eq!(cuts, 20);
    }

    /// 50 kB of a round trip of 1 ms are under way where 10 are promised: the cut leaves 10, and
    /// until that is seen in what arrives, the next one leaves 10 as well.
    #[test]
    fn slack_is_given_away_once() {
        let mut control = Qtcp::new(promised(10_000_000));
        let mut window = 50_000.0;
        for round in 0..3 {
            control.on_round(50_000, Span::MILLISECOND);
            let round_trip = Span::MILLISECOND;
            let left =
                control.left(&WindowState { now: Time::ZERO, alpha: 0.0, window, round_trip });
            window *= left;
            assert!((window - 10_000.0).abs() < 1e-6, "{window} after round {round}");
        }
    }

    #[test]
    fn a_promised_latency_is_not_scaled() {
        let mut quality = Quality::new(Objective::Latency(Span(1_000)), GAMMA);
        quality.on_latency(Span(4_000));
        let mut control = Qtcp::with_interference(quality, Interference::new(SIGMA));
        (0..20).for_each(|_| {
            control.on_round(1_000, Span::MILLISECOND);
            assert_eq!(control.left(&state(0.5)), 0.75);
        });
        assert_eq!(control.factor(), 4.0);
    }
}
