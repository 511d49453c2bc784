//! QRDMA: DCQCN in which a flow with more than its promise slows down more.
//!
//! # Problem
//! The problem is that of [`crate::congestion::qtcp`], here for senders that have a rate and no
//! window.
//!
//! # Mechanism
//! Gupta, Kant, Pal and Biswas, "Configuring and Coordinating End-to-End QoS for Emerging Storage
//! Infrastructure" (2024), Eq. 6. A notification leaves
//!
//! ```text
//! current * (1 - alpha / 2) * min(Q, 1)
//! ```
//!
//! with the quality factor Q of what was sent in the last interval. At each notification the rate
//! predicts whether a promised latency will be kept. Without notifications the rate follows DCQCN;
//! so with Q at least one it is DCQCN, to the last bit.
//!
//! The paper stores the rate as target "as soon as congestion is detected", and does not say
//! whether before or after Q has squeezed it. From the target the rate recovers, by half of the
//! way in 55 microseconds. [`Aim::Before`] hence takes back what Q took within a few such steps.
//! [`Aim::After`] squeezes the target too: only what alpha took comes back so soon.
//!
//! Example: 100 units, promised 50, alpha 0.5: a notification leaves 37.5 units. Five periods
//! later it is 98 with the target before, 49.6 with the target after.

use tidegate_model::{Span, Time};

use crate::congestion::dcqcn::{DcqcnParameters, Limiter};
use crate::congestion::quality::Quality;

/// Which rate a flow returns to when it was squeezed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aim {
    /// The one before: the squeeze is taken back as fast as a cut.
    Before,
    /// The part of that rate that the squeeze leaves.
    #[default]
    After,
}

/// How fast a flow with a promise may send.
///
/// ```
/// use tidegate_algo::congestion::dcqcn::{Limiter, DcqcnParameters};
/// use tidegate_algo::congestion::qrdma::{Aim, Qrdma};
/// use tidegate_algo::congestion::quality::{GAMMA, Objective, Quality};
/// use tidegate_model::{Rate, Span, Time};
/// let parameters = DcqcnParameters::for_line(Rate(5_000_000_000));
/// let quality = Quality::new(Objective::Rate(Rate(1_250_000_000)), GAMMA);
/// let mut qrdma = Qrdma::new(parameters, quality, Aim::After);
/// qrdma.on_sent(Time(0), 0);
/// qrdma.on_sent(Time(50_000), 125_000); // 2.5 GB/s, twice the promise
/// qrdma.on_sent(Time(100_000), 125_000);
/// qrdma.on_notification(Time(100_000));
/// // An eighth of the line was a half for alpha and a half for Q.
/// assert_eq!(qrdma.limiter().rate(), Rate(1_250_000_000));
/// assert_eq!(qrdma.limiter().target(), Rate(2_500_000_000));
/// ```
#[derive(Clone, Debug)]
pub struct Qrdma {
    limiter: Limiter,
    quality: Quality,
    aim: Aim,
    /// How long bytes are counted for a rate.
    interval: Span,
    /// When the interval began that is under way; none before the first byte.
    began: Option<Time>,
    /// Bytes sent in it.
    sent: u64,
}

impl Qrdma {
    /// Of a flow that may send at the rate of its line. Its quality is seen anew in each of
    /// DCQCN's periods: the paper's "every N microseconds", of which it does not give the number.
    pub fn new(parameters: DcqcnParameters, quality: Quality, aim: Aim) -> Self {
        let limiter = Limiter::new(parameters);
        Self { limiter, quality, aim, interval: parameters.period, began: None, sent: 0 }
    }

    /// The rate, and when its timer is due.
    pub const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The quality of the flow by its promise.
    pub const fn quality(&self) -> &Quality {
        &self.quality
    }

    /// The same, to change the promise or to report a latency.
    pub const fn quality_mut(&mut self) -> &mut Quality {
        &mut self.quality
    }

    /// The receiver met congestion.
    pub fn on_notification(&mut self, now: Time) {
        self.quality.foresee(now, self.limiter.rate().0 as f64);
        let (current, squeeze) = (self.limiter.current(), self.quality.factor().min(1.0));
        let target = match self.aim {
            Aim::Before => current,
            Aim::After => current * squeeze,
        };
        self.limiter.cut(now, squeeze, target);
    }

    /// So many bytes were sent. The payload: it is what is promised.
    pub fn on_sent(&mut self, now: Time, payload: u64) {
        self.limiter.on_sent(payload);
        self.sent += payload;
        let began = *self.began.get_or_insert(now);
        let elapsed = now.since(began);
        if elapsed >= self.interval {
            self.quality.on_delivered(self.sent, elapsed);
            (self.began, self.sent) = (Some(now), 0);
        }
    }

    /// The time that the limiter named has come.
    pub fn on_timer(&mut self, now: Time) {
        self.limiter.on_timer(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::quality::{GAMMA, Objective};
    use proptest::prelude::*;
    use tidegate_model::Rate;

    const LINE: Rate = Rate(12_500_000_000);

    fn promised(rate: Rate, aim: Aim) -> Qrdma {
        Qrdma::new(DcqcnParameters::for_line(LINE), Quality::new(Objective::Rate(rate), GAMMA), aim)
    }

    proptest! {
        /// Promised the whole line, nothing it sends is slack.
        #[test]
        fn without_slack_it_is_dcqcn(steps in prop::collection::vec((0u8..3, 1u64..200), 1..300)) {
            for aim in [Aim::Before, Aim::After] {
                let mut ours = promised(LINE, aim);
                let mut plain = Limiter::new(DcqcnParameters::for_line(LINE));
                let mut now = Time::ZERO;
                for (step, size) in &steps {
                    now = now.after(Span(size * 1_000));
                    match step {
                        0 => (ours.on_notification(now), plain.on_notification(now)).0,
                        1 => (ours.on_sent(now, *size), plain.on_sent(*size)).0,
                        _ => (ours.on_timer(now), plain.on_timer(now)).0,
                    }
                    let rates = |limiter: &Limiter| (limiter.current(), limiter.target());
                    prop_assert_eq!(rates(ours.limiter()), rates(&plain));
                    prop_assert_eq!(ours.limiter().due(), plain.due());
                }
            }
        }
    }

    /// A squeeze leaves the least rate, and a target that is not below it.
    #[test]
    fn a_flow_without_a_promise_keeps_the_least_rate() {
        let mut qrdma = promised(Rate::ZERO, Aim::After);
        qrdma.quality.on_delivered(LINE.0, Span::SECOND);
        qrdma.on_notification(Time::ZERO);
        let least = DcqcnParameters::for_line(LINE).least;
        assert_eq!((qrdma.limiter.rate(), qrdma.limiter.target()), (least, least));
    }

    /// The example of the head.
    #[test]
    fn what_comes_back() {
        for (aim, expected) in [(Aim::Before, 980), (Aim::After, 496)] {
            let mut qrdma = promised(Rate(LINE.0 / 2), aim);
            qrdma.on_notification(Time::ZERO);
            while let Some(due) = qrdma.limiter.due() {
                qrdma.on_timer(due);
            }
            // Less 1/256 for each 55 us: alpha is a half after 177 of them.
            let quiet = Time(177 * 55_000);
            qrdma.quality.on_delivered(LINE.0, Span::SECOND);
            qrdma.on_notification(quiet);
            let share = |qrdma: &Qrdma| qrdma.limiter.rate().0 * 1_000 / LINE.0;
            assert_eq!(share(&qrdma), 374);
            for _ in 0..5 {
                qrdma.on_timer(qrdma.limiter.due().unwrap());
            }
            assert_eq!(share(&qrdma), expected);
        }
    }
}
