//! Congestion control of a simulated flow: one type for all algorithms, those with a window and
//! those with a rate.

use tidegate_algo::congestion::d2tcp::D2tcp;
use tidegate_algo::congestion::dcqcn::Limiter;
use tidegate_algo::congestion::dctcp::{CongestionControl, Dctcp, Window, WindowState};
use tidegate_algo::congestion::qrdma::Qrdma;
use tidegate_algo::congestion::qtcp::Qtcp;
use tidegate_algo::congestion::quality::{Objective, Quality};
use tidegate_model::{Rate, Span, Time};

use tidegate_sim::time::Picoseconds;

/// How deep the window of a flow is cut.
#[derive(Clone, Debug)]
pub(super) enum Depth {
    Even(Dctcp),
    Deadline(D2tcp),
    Promise(Qtcp),
}

impl CongestionControl for Depth {
    fn left(&mut self, state: &WindowState) -> f64 {
        match self {
            Self::Even(control) => control.left(state),
            Self::Deadline(control) => control.left(state),
            Self::Promise(control) => control.left(state),
        }
    }

    fn on_round(&mut self, delivered: u64, elapsed: Span) {
        match self {
            Self::Even(control) => control.on_round(delivered, elapsed),
            Self::Deadline(control) => control.on_round(delivered, elapsed),
            Self::Promise(control) => control.on_round(delivered, elapsed),
        }
    }
}

/// How fast a flow may send.
#[derive(Clone, Debug)]
pub(super) enum Speed {
    Even(Limiter),
    Promise(Qrdma),
}

impl Speed {
    pub(super) const fn limiter(&self) -> &Limiter {
        match self {
            Self::Even(limiter) => limiter,
            Self::Promise(qrdma) => qrdma.limiter(),
        }
    }

    pub(super) fn on_notification(&mut self, now: Time) {
        match self {
            Self::Even(limiter) => limiter.on_notification(now),
            Self::Promise(qrdma) => qrdma.on_notification(now),
        }
    }

    pub(super) fn on_sent(&mut self, now: Time, payload: u64) {
        match self {
            Self::Even(limiter) => limiter.on_sent(payload),
            Self::Promise(qrdma) => qrdma.on_sent(now, payload),
        }
    }

    pub(super) fn on_timer(&mut self, now: Time) {
        match self {
            Self::Even(limiter) => limiter.on_timer(now),
            Self::Promise(qrdma) => qrdma.on_timer(now),
        }
    }
}

/// The bound on a flow's sending: a window or a rate.
#[derive(Clone, Debug)]
pub(super) enum FlowControl {
    /// A bound on the bytes under way.
    Window(Window<Depth>),
    /// A bound on the rate, and the time from which the next packet may go.
    Rate { speed: Speed, free_at: Picoseconds },
}

impl FlowControl {
    /// The quality factor of its congestion control now; one where it has none.
    pub(super) fn factor(&self) -> f64 {
        match self {
            Self::Window(window) => match window.control() {
                // The time is nothing to it.
                Depth::Promise(qtcp) => qtcp.factor_at(&window.state(Time::ZERO)),
                _ => 1.0,
            },
            Self::Rate { speed: Speed::Promise(qrdma), .. } => qrdma.quality().factor(),
            Self::Rate { .. } => 1.0,
        }
    }

    pub(super) const fn quality_mut(&mut self) -> Option<&mut Quality> {
        match self {
            Self::Window(window) => match window.control_mut() {
                Depth::Promise(qtcp) => Some(qtcp.quality_mut()),
                _ => None,
            },
            Self::Rate { speed: Speed::Promise(qrdma), .. } => Some(qrdma.quality_mut()),
            Self::Rate { .. } => None,
        }
    }

    /// Promises something else, where its congestion control uses promises.
    pub(super) const fn promise(&mut self, objective: Objective) {
        if let Some(quality) = self.quality_mut() {
            quality.promise(objective);
        }
    }
}

/// How long a rate takes for so many bytes.
pub(super) fn time(bytes: u16, Rate(rate): Rate) -> Picoseconds {
    Picoseconds((u64::from(bytes) * Picoseconds::SECOND.0).div_ceil(rate.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_at_a_rate() {
        assert_eq!(time(1_250, Rate(12_500_000_000)), Picoseconds(100_000));
        assert_eq!(time(1, Rate(3)), Picoseconds(333_333_333_334));
    }
}
