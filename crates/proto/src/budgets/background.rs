//! Background channels of a tenant at one stage: their demands, measured in each report, and their
//! rates, decided in each cycle by [`background_rates`].
//!
//! The budget of a decision is the rate of the tenant's own bucket of bytes at the stage. All other
//! channels of the tenant are its foreground. The bucket of a background channel stands before the
//! tenant's own, which all channels pass. So a wrong rate of a background channel can delay the
//! tenant's own requests, and never those of another tenant; that is why these rates need none of
//! the care with which rates of tenants move between stages.
//!
//! Requests that wait for a background bucket wait for the tenant's rate, as those at its own
//! bucket do. They count for the tenant's demand. Otherwise a tenant whose background is held back
//! would seem to want no more than it has, and others would get its share.

use alloc::string::String;
use alloc::vec::Vec;

use tidegate_algo::shaping::demand::{Demand, Usage};
use tidegate_algo::shaping::tail_latency::{BackgroundFlow, ForegroundUse, background_rates};
use tidegate_model::gate::{Throughput, Unit};
use tidegate_model::policy::{BackgroundSpec, Channel};
use tidegate_model::{Policy, Span};

use super::rules::{background_bucket, is_small, tenant_id};
use super::window_stats::TrafficCounters;
use crate::message::{GateReport, Rule};

/// The background channels of one tenant at one stage.
#[derive(Clone, Debug, Default)]
pub(super) struct BackgroundShare {
    flows: Vec<Flow>,
    /// Of all other channels of the tenant.
    demand: Demand,
    foreground: ForegroundUse,
}

/// Waits at gates in the interval of one report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldRequests {
    pub(super) waited_ns: u64,
    pub(super) waiting_now: u32,
}

/// One background channel.
#[derive(Clone, Debug)]
struct Flow {
    /// The name of its bucket.
    bucket: String,
    /// The number of the channel among the tenant's.
    slot: usize,
    spec: BackgroundSpec,
    /// The bucket's rate that was sent; zero before one.
    rate: u64,
    demand: Demand,
    /// The demand of the last interval, in bytes per second.
    wanted: u64,
    /// The growth of the channel's counters by the report at hand.
    fresh: TrafficCounters,
    /// Waits at its bucket by the report at hand.
    held: HeldRequests,
    waited_seen: Option<u64>,
}

impl BackgroundShare {
    /// The background channels of the tenant at `index`, before any report.
    pub(super) fn new(policy: &Policy, index: usize) -> Self {
        let id = tenant_id(index);
        let channels = policy.channels.iter().filter(|channel| channel.tenant == id);
        let flow = |(index, channel): (usize, &Channel)| {
            Some(Flow {
                bucket: background_bucket(&channel.name),
                slot: index + 1,
                spec: channel.background?,
                rate: 0,
                demand: Demand::default(),
                wanted: 0,
                fresh: TrafficCounters::default(),
                held: HeldRequests::default(),
                waited_seen: None,
            })
        };
        Self { flows: channels.enumerate().filter_map(flow).collect(), ..Self::default() }
    }

    fn flow(&mut self, slot: usize) -> Option<&mut Flow> {
        self.flows.iter_mut().find(|flow| flow.slot == slot)
    }

    /// Takes in the growth of the counters of the tenant's channel with this number.
    pub(super) fn on_channel(&mut self, slot: usize, fresh: TrafficCounters) {
        self.flow(slot).into_iter().for_each(|flow| flow.fresh.add(fresh));
    }

    /// Takes in the waits at the bucket of the channel with this number. Those of a new stage began
    /// at zero.
    pub(super) fn on_bucket(&mut self, slot: usize, gate: &GateReport, is_new: bool) {
        let Some(flow) = self.flow(slot) else { return };
        let unseen = if is_new { 0 } else { gate.waited_ns };
        let before = flow.waited_seen.replace(gate.waited_ns).unwrap_or(unseen);
        flow.held = HeldRequests {
            waited_ns: gate.waited_ns.saturating_sub(before),
            waiting_now: gate.waiting_now,
        };
    }

    /// Turns the growth by the report at hand, which is about a `cycle`, into demands. `fresh` is
    /// that of all channels of the tenant; `own_rate` is the rate of its own bucket, at which
    /// requests waited for `own_waited`. Returns how long requests waited at background buckets.
    pub(super) fn settle(
        &mut self,
        fresh: TrafficCounters,
        (cycle, interval): (Span, Span),
        (own_rate, own_waited): (u64, Span),
    ) -> HeldRequests {
        let (mut background, mut held) = (TrafficCounters::default(), HeldRequests::default());
        for flow in &mut self.flows {
            let (moved, waits) = flow.settle(cycle, interval);
            background.add(moved);
            held.waited_ns = held.waited_ns.saturating_add(waits.waited_ns);
            held.waiting_now = held.waiting_now.saturating_add(waits.waiting_now);
        }
        if cycle == Span::ZERO || self.flows.is_empty() {
            return held;
        }
        let foreground = fresh.since(background);
        // Foreground channels may have queues of their own, and the background passes the tenant's
        // bucket, too: the foreground waited there for no longer than either.
        let waited = Span(foreground.waited_ns).min(own_waited);
        let rate = own_rate;
        let usage =
            Usage { interval: cycle, served: foreground.bytes, waited, rate, ..Usage::default() };
        let has_waited = usage.is_held_back();
        // Without waits: the busiest of the last cycles, with headroom.
        let unbounded = Usage { waited: Span::ZERO, rate: u64::MAX, ..usage };
        let rate = self.demand.observe(unbounded, interval);
        self.foreground = ForegroundUse { rate, has_waited };
        held
    }

    /// Decides the rates, where the tenant's own bucket has the rate `budget`, and returns the
    /// rules that change. A change of less than a hundredth is not worth a message.
    pub(super) fn decide(&mut self, budget: u64) -> Vec<Rule> {
        let flow = |flow: &Flow| BackgroundFlow {
            priority: flow.spec.priority,
            minimum: flow.spec.minimum_of(budget),
            demand: flow.wanted,
        };
        let flows = Vec::from_iter(self.flows.iter().map(flow));
        let rates = background_rates(budget, self.foreground, &flows);
        let mut rules = Vec::new();
        for (flow, rate) in self.flows.iter_mut().zip(rates) {
            // A bucket that never fills would hold its first request for ever.
            let rate = rate.max(1);
            if rate == flow.rate || is_small(flow.rate, rate) {
                continue;
            }
            flow.rate = rate;
            rules.push(Rule::rate(&flow.bucket, Throughput::new(Unit::Bytes, rate)));
        }
        rules
    }

    /// The rate that was decided last for the channel with this number.
    pub(super) fn rate(&self, slot: usize) -> u64 {
        self.flows.iter().find(|flow| flow.slot == slot).map_or(0, |flow| flow.rate)
    }
}

impl Flow {
    /// Turns the growth by the report at hand into a demand, and returns the growth.
    fn settle(&mut self, cycle: Span, interval: Span) -> (TrafficCounters, HeldRequests) {
        let (moved, held) = (core::mem::take(&mut self.fresh), core::mem::take(&mut self.held));
        // A request is counted once it has waited. Where some wait and none has finished, they
        // waited all the time.
        let is_stuck = held.waited_ns == 0 && held.waiting_now > 0;
        let waited = if is_stuck { cycle } else { Span(held.waited_ns) };
        let rate = if self.rate == 0 { u64::MAX } else { self.rate };
        let served = moved.bytes;
        let usage = Usage { interval: cycle, served, waited, rate, ..Usage::default() };
        self.wanted = self.demand.observe(usage, interval);
        (moved, held)
    }
}
