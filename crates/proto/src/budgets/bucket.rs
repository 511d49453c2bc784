//! The controller's record of one of a tenant's own buckets on a stage.

use tidegate_algo::concurrent::histogram::BucketCounts;
use tidegate_algo::shaping::demand::{Demand, Usage};
use tidegate_model::Span;

use super::background::HeldRequests;
use super::debt::BucketDebt;
use crate::message::GateReport;

/// One of a tenant's own buckets on a stage.
#[derive(Clone, Debug, Default)]
pub(super) struct Bucket {
    demand: Demand,
    /// Whether the demand comes from a report.
    is_measured: bool,
    /// Whether requests were held back in the last interval.
    pub(super) is_unmet: bool,
    /// The stage's demand per second, in the budget's unit.
    pub(super) wanted: u64,
    /// The decided rate that is in force, in the budget's unit.
    pub(super) goal: u64,
    /// The bucket's rate that was sent for it.
    pub(super) rate: u64,
    /// The rate that was sent as safe without a controller.
    pub(super) safe: u64,
    /// The highest goal that the stage may enforce, and the highest safe rate that it may have:
    /// those of a stage of another host fall only once it has answered.
    pub(super) bound: u64,
    pub(super) safe_bound: u64,
    pub(super) debt: BucketDebt,
    /// The number of the message that changed it last, and whether a change is in none yet.
    pub(super) changed_in: u64,
    pub(super) is_unsent: bool,
    /// The gate's counters by the last report.
    seen: Option<WaitCounters>,
    /// The growth by the report at hand.
    fresh: WaitCounters,
    pub(super) waiting_now: u32,
    /// Tokens that requests waited with at the last report.
    waiting_tokens: u64,
    /// Whether the rate is that of the tenant's limit, whatever the budget.
    pub(super) is_limit: bool,
    /// The waiting times as last seen, once they were.
    pub(super) histogram: Option<BucketCounts>,
}

/// Waits at a bucket.
#[derive(Clone, Copy, Debug, Default)]
struct WaitCounters {
    waited_ns: u64,
    /// Requests that waited.
    delayed: u64,
}

impl Bucket {
    /// One with this demand until the first report. Counters of a stage that `is_new` begin at
    /// zero.
    pub(super) fn new(wanted: u64, is_new: bool) -> Self {
        let histogram = is_new.then(BucketCounts::default);
        Self { wanted, histogram, ..Self::default() }
    }

    /// Goes on from the bucket of the same tenant under an earlier policy, with no rate yet.
    pub(super) fn resumed(earlier: &Self) -> Self {
        Self { goal: 0, rate: 0, ..earlier.clone() }
    }

    /// Takes in what the gate has counted. Counters of a stage that `is_new` began at zero, as
    /// those of its channels did.
    pub(super) fn on_report(&mut self, gate: &GateReport, is_new: bool) {
        let now = WaitCounters { waited_ns: gate.waited_ns, delayed: gate.delayed };
        let unseen = if is_new { WaitCounters::default() } else { now };
        let before = self.seen.replace(now).unwrap_or(unseen);
        self.fresh = WaitCounters {
            waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
            delayed: now.delayed.saturating_sub(before.delayed),
        };
        (self.waiting_now, self.waiting_tokens) = (gate.waiting_now, gate.waiting_tokens);
        self.debt.start.on_waiting(gate.waiting_tokens);
    }

    /// Requests of the tenant waited at the buckets of background channels, and so for this one's
    /// rate. How many of them did is not known.
    pub(super) const fn on_background(&mut self, held: &HeldRequests) {
        if held.waited_ns > 0 {
            self.fresh.delayed = 0;
        }
        self.fresh.waited_ns = self.fresh.waited_ns.saturating_add(held.waited_ns);
        self.waiting_now = self.waiting_now.saturating_add(held.waiting_now);
    }

    /// How long requests waited by the report at hand, until it is settled.
    pub(super) const fn waited(&self) -> Span {
        Span(self.fresh.waited_ns)
    }

    /// Turns the growth by the report at hand, which is about a `cycle`, into a demand in the
    /// stage's tokens. So many tokens and requests were let through. Returns also how long requests
    /// waited.
    pub(super) fn settle(
        &mut self,
        (served, requests): (u64, u64),
        (cycle, interval): (Span, Span),
    ) -> (u64, Span) {
        let WaitCounters { waited_ns, delayed } = core::mem::take(&mut self.fresh);
        // A request is counted once it has waited. Where some wait and none has finished, they
        // waited all the time.
        let is_stuck = waited_ns == 0 && self.waiting_now > 0;
        let waited = if is_stuck { cycle } else { Span(waited_ns) };
        let usage = Usage {
            interval: cycle,
            served,
            waited,
            rate: self.rate,
            requests,
            delayed,
            waiting: self.waiting_tokens,
        };
        (self.is_measured, self.is_unmet) = (true, usage.is_held_back());
        (self.demand.observe(usage, interval), waited)
    }

    /// Decides its goal, the rate for it and the safe rate, which the next message carries. Rules
    /// reach a stage of this machine at once; `is_late` says that they come late or never, as to a
    /// stage of another host or without a connection.
    pub(super) fn set(&mut self, goal: u64, rate: u64, safe: u64, is_late: bool) {
        (self.goal, self.rate, self.safe) = (goal, rate, safe);
        let kept = if is_late { (self.bound, self.safe_bound) } else { (0, 0) };
        (self.bound, self.safe_bound) = (kept.0.max(goal), kept.1.max(safe));
        self.is_unsent = true;
    }

    /// The stage has taken the messages up to this number.
    pub(super) fn on_answered(&mut self, number: u64) {
        if !self.is_unsent && self.changed_in <= number {
            (self.bound, self.safe_bound) = (self.goal, self.safe);
        }
    }

    /// Whether a report has told of it, under this policy or an earlier one.
    pub(super) const fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// The stage's demand per second; none before a report, or if the demand has no bound.
    pub(super) fn known_demand(&self) -> Option<u64> {
        (self.is_measured && self.wanted != u64::MAX).then_some(self.wanted)
    }
}
