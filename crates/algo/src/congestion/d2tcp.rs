//! D2TCP: a flow that is nearer to its deadline gives way less.
//!
//! # Problem
//! Of flows that meet at a congested switch some have to be done soon and some have time. If all
//! cut their windows alike, those that have to be done soon are late, for the benefit of others.
//!
//! # Mechanism
//! Vamanan, Hasan and Vijaykumar, "Deadline-Aware Datacenter TCP" (SIGCOMM 2012), section 3. A flow
//! with `B` bytes left, a window of `W` and a time `D` to its deadline needs about
//! `Tc = B / (3/4 W)` round trips: a window that is halved and grows back is three quarters of its
//! largest on average. Its *imminence* is `d = Tc / D`, from 1/2 to 2, and a cut leaves
//!
//! ```text
//! 1 - alpha^d / 2
//! ```
//!
//! As alpha is at most one, a flow that is late (d = 2) is cut less than DCTCP would and one that
//! has time (d = 1/2) more. Without a deadline, d is one, which is DCTCP. A deadline that has
//! passed is as near as one can be: 2.
//!
//! Example: alpha is 0.25. Nearly late, with d = 2: `1 - 0.0625 / 2`, a cut by 3 %. Without
//! deadline: 12.5 %. With much time: `1 - 0.5 / 2`, 25 %.
//!
//! Left out: what the paper leaves to the application, that is, to give up what is late anyway.

use tidegate_model::Time;

use crate::congestion::dctcp::{CongestionControl, WindowState};

/// The least and the most imminence. The paper's, section 3.2: beyond, flows would starve.
const IMMINENCE: (f64, f64) = (0.5, 2.0);
/// The window on average, as a part of its largest.
const MEAN: f64 = 0.75;

/// The remaining work of a flow and its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemainingWork {
    /// The bytes that are not yet acknowledged.
    pub left: u64,
    /// The time by which they are to be acknowledged.
    pub deadline: Time,
}

/// The congestion control of D2TCP.
///
/// ```
/// use tidegate_algo::congestion::d2tcp::{D2tcp, RemainingWork};
/// use tidegate_algo::congestion::dctcp::{CongestionControl, WindowState};
/// use tidegate_model::{Span, Time};
/// let round_trip = Span(100_000);
/// let state = WindowState { now: Time::ZERO, alpha: 0.25, window: 10_000.0, round_trip };
/// let mut control = D2tcp::default();
/// assert_eq!(control.left(&state), 1.0 - 0.25 / 2.0);
/// // 150,000 bytes take 20 round trips, 2 ms, and there is 1 ms.
/// control.set(Some(RemainingWork { left: 150_000, deadline: Time(1_000_000) }));
/// assert_eq!(control.left(&state), 1.0 - 0.0625 / 2.0);
/// control.set(Some(RemainingWork { left: 150_000, deadline: Time(1_000_000_000) }));
/// assert_eq!(control.left(&state), 1.0 - 0.5 / 2.0);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct D2tcp {
    work: Option<RemainingWork>,
}

impl D2tcp {
    /// Sets the remaining work and its deadline; none without a deadline.
    pub const fn set(&mut self, work: Option<RemainingWork>) {
        self.work = work;
    }

    /// How near the deadline is for what is left to do: 0.5 to 2.
    pub fn imminence(&self, state: &WindowState) -> f64 {
        let Some(RemainingWork { left, deadline }) = self.work else { return 1.0 };
        let (least, most) = IMMINENCE;
        let time = deadline.since(state.now).0 as f64;
        if time <= 0.0 {
            return most;
        }
        let trips = left as f64 / (MEAN * state.window);
        (trips * state.round_trip.0 as f64 / time).clamp(least, most)
    }
}

impl CongestionControl for D2tcp {
    fn left(&mut self, state: &WindowState) -> f64 {
        1.0 - libm::pow(state.alpha, self.imminence(state)) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::dctcp::Dctcp;
    use proptest::prelude::*;
    use tidegate_model::Span;

    fn state(alpha: f64, window: f64) -> WindowState {
        WindowState { now: Time(1_000), alpha, window, round_trip: Span(50_000) }
    }

    proptest! {
        /// Exactly, so that a flow without a deadline is a flow of DCTCP.
        #[test]
        fn without_a_deadline_it_is_dctcp(alpha in 0.0f64..=1.0, window in 1.0f64..1e9) {
            let state = state(alpha, window);
            prop_assert_eq!(D2tcp::default().left(&state), Dctcp.left(&state));
        }

        /// Between the cuts of the least and the most imminence, which need no power: the root of
        /// alpha and its square.
        #[test]
        fn nearer_is_cut_less(
            alpha in 0.0f64..=1.0, window in 1.0f64..1e9, left in 0u64..1 << 40,
            near: u32, further: u32,
        ) {
            let state = state(alpha, window);
            let cut = |after: u64| {
                let mut control = D2tcp::default();
                control.set(Some(RemainingWork { left, deadline: Time(after) }));
                control.left(&state)
            };
            let near = u64::from(near);
            let (soon, later) = (cut(near), cut(near + u64::from(further)));
            let most = 1.0 - alpha * alpha / 2.0;
            let least = 1.0 - libm::sqrt(alpha) / 2.0;
            prop_assert!(later <= soon + 1e-12);
            prop_assert!(least - 1e-12 <= later && soon <= most + 1e-12);
        }
    }

    #[test]
    fn what_is_late_is_as_near_as_can_be() {
        let mut control = D2tcp::default();
        control.set(Some(RemainingWork { left: 1, deadline: Time(10) }));
        assert_eq!(control.imminence(&state(0.5, 1e6)), 2.0);
        control.set(Some(RemainingWork { left: 0, deadline: Time(1_000) }));
        assert_eq!(control.imminence(&state(0.5, 1e6)), 2.0);
    }
}
