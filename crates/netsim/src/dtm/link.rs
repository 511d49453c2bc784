//! Link of the discrete-time model, with its flows, advanced slot by slot.

use tidegate_algo::congestion::dctcp::{CongestionControl as _, Dctcp, WindowState};
use tidegate_algo::congestion::qtcp::Qtcp;
use tidegate_algo::congestion::quality::{Objective, Quality};
use tidegate_model::{Bytes, Span, Time};

use super::outcome::{DtmFlow, DtmReport, TimeSlot};
use super::{CongestionControl, DtmPlan, LinkService, RoundTrip, Sender};
use tidegate_sim::rng::Stream;
use tidegate_sim::time::Picoseconds;
use tidegate_sim::workload::Arriving;

/// Nanoseconds in a second, in which the model counts.
const SECOND: f64 = 1e9;

pub(super) struct SharedLink<'a> {
    plan: &'a DtmPlan,
    /// `C`, in packets per nanosecond.
    capacity: f64,
    /// `2 d`, in nanoseconds.
    bare: f64,
    ends: Vec<End>,
}

/// One end of it: a flow's state after the last slot.
struct End {
    cc: Qtcp,
    /// `C_i` of Eq. 14, in packets per nanosecond.
    promised: f64,
    /// `W`.
    window: f64,
    alpha: f64,
    /// `q`.
    queue: f64,
    /// `W'`.
    sent: f64,
    served: f64,
    /// `W' / R` of the slot before the last, in packets per nanosecond (Eq. 9 for latencies).
    rate: f64,
    backlog: Option<Backlog>,
}

/// Packets that wait to be sent (Eqs. 15 and 16).
struct Backlog {
    arriving: Arriving,
    random: Stream,
    next: Option<Picoseconds>,
    /// `U`.
    packets: f64,
}

impl Backlog {
    /// Packets that come until `now` are there.
    fn fill(&mut self, now: Picoseconds, packet: Bytes) {
        while self.next.is_some_and(|at| at <= now) {
            self.packets += 1.0;
            self.arriving.passes(packet);
            self.next = self.arriving.next(&mut self.random);
        }
    }
}

impl End {
    fn new(plan: &DtmPlan, flow: &Sender, capacity: f64, bare: f64) -> Self {
        let objective = plan.objective(flow);
        let promised = match objective {
            Objective::Rate(rate) => rate.0 as f64 / plan.packet.0 as f64 / SECOND,
            // Only until the first slot is measured; then the promise is the rate of the last slot
            // (Eq. 9).
            Objective::Latency(_) => capacity,
        };
        let size = [u128::from(plan.packet.0), 1];
        let offered =
            flow.offered.as_ref().map_or(capacity, |open| open.rate.requests(size) / SECOND);
        let backlog = flow.offered.as_ref().map(|open| {
            let mut random = Stream::new(plan.seed, &format!("packets of {}", flow.name), 0);
            let mut arriving = Arriving::new(open, size, Picoseconds::ZERO);
            let next = arriving.next(&mut random);
            Backlog { arriving, random, next, packets: 0.0 }
        });
        Self {
            cc: Qtcp::new(Quality::new(objective, plan.gamma)),
            promised,
            window: flow.window.unwrap_or(offered * bare).max(1.0),
            alpha: plan.alpha,
            queue: 0.0,
            sent: 0.0,
            served: 0.0,
            rate: 0.0,
            backlog,
        }
    }

    /// Feeds rate and latency of the last slot into the quality factor (Eqs. 1, 2 and 10).
    fn measure(&mut self, plan: &DtmPlan, length: f64) {
        let rate = self.sent / length;
        let elapsed = Span(length.round() as u64);
        let sent = self.sent * plan.packet.0 as f64;
        self.cc.on_round(sent.round() as u64, elapsed);
        if self.rate > 0.0 {
            let latency = plan.delay.0 as f64 + self.queue / self.rate;
            self.cc.quality_mut().on_latency(Span(latency.round() as u64));
        }
        self.rate = rate;
        if let Objective::Latency(_) = self.cc.quality().objective() {
            self.promised = rate;
        }
    }

    /// Eqs. 11, 12 and 17.
    fn send(&mut self, plan: &DtmPlan, now: Picoseconds, marked: f64) {
        self.alpha += plan.gain * (marked - self.alpha);
        if self.alpha <= plan.epsilon {
            self.window += 1.0;
        } else {
            let Self { alpha, window, .. } = *self;
            let snapshot =
                WindowState { now: Time(now.0 / 1_000), alpha, window, round_trip: Span::ZERO };
            let left = match plan.cc {
                CongestionControl::Qtcp => self.cc.left(&snapshot),
                CongestionControl::Dctcp => Dctcp.left(&snapshot),
            };
            self.window = (window * left).max(1.0);
        }
        self.sent = match &mut self.backlog {
            None => self.window,
            Some(backlog) => {
                backlog.fill(now, plan.packet);
                let sent = self.window.min(backlog.packets);
                backlog.packets -= sent;
                sent
            }
        };
    }

    /// The state of this end, as the outcome shows it.
    fn seen(&self) -> DtmFlow {
        DtmFlow {
            window: self.window,
            alpha: self.alpha,
            quality: self.cc.quality().factor(),
            queue: self.queue,
            sent: self.sent,
            served: self.served,
        }
    }
}

impl<'a> SharedLink<'a> {
    pub(super) fn new(plan: &'a DtmPlan) -> Self {
        let capacity = plan.capacity.0 as f64 / plan.packet.0 as f64 / SECOND;
        let bare = 2.0 * plan.delay.0 as f64;
        let end = |flow| End::new(plan, flow, capacity, bare);
        Self { plan, capacity, bare, ends: plan.flow.iter().map(end).collect() }
    }

    /// Runs until its end, or until `goes_on`, called after each slot with the number of slots so
    /// far, returns false.
    pub(super) fn run(mut self, mut goes_on: impl FnMut(u32) -> bool) -> DtmReport {
        let mut outcome = DtmReport::new(self.plan);
        // Packets of one bare round trip are there when the first slot begins.
        let (mut now, mut last) = (Picoseconds((self.bare * 1e3) as u64), None);
        for done in 1..=self.plan.slots {
            let slot = self.slot(now, last);
            now = now.after(Picoseconds((slot.length * 1e3) as u64));
            last = Some(slot.length);
            outcome.push(slot, self.ends.iter().map(End::seen));
            if !goes_on(done) {
                break;
            }
        }
        outcome
    }

    /// One slot that begins at `now`, after one of length `last`.
    fn slot(&mut self, now: Picoseconds, last: Option<f64>) -> TimeSlot {
        let queue: f64 = self.ends.iter().map(|end| end.queue).sum();
        let threshold = f64::from(self.plan.threshold);
        let marked = if queue >= threshold { 1.0 - (threshold - 1.0) / queue } else { 0.0 };
        let length = match self.plan.round_trip {
            RoundTrip::Queued => self.bare + queue / self.capacity,
            RoundTrip::Bare => self.bare,
            RoundTrip::OneWay => self.bare / 2.0 + queue / self.capacity,
        };
        for end in &mut self.ends {
            if let Some(last) = last {
                end.measure(self.plan, last);
            }
            end.send(self.plan, now, marked);
        }
        self.serve(length);
        TimeSlot { at: now, length, marked, queue: self.ends.iter().map(|end| end.queue).sum() }
    }

    /// Eq. 14, or first come, first served.
    fn serve(&mut self, length: f64) {
        let all: f64 = self.ends.iter().map(|end| end.queue + end.sent).sum();
        let part = if all > 0.0 { (self.capacity * length / all).min(1.0) } else { 0.0 };
        for end in &mut self.ends {
            let waiting = end.queue + end.sent;
            end.served = match self.plan.service {
                LinkService::Fcfs => waiting * part,
                LinkService::Paper => waiting.min(end.promised * length),
            };
            end.queue = waiting - end.served;
        }
    }
}
