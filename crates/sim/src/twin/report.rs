//! The results of a trace replay: the service of each tenant, and the causes of its waiting.

use tidegate_model::{Span, Waits};

use crate::time::Picoseconds;

/// A period keeps a reservation if the tenant was served so much of it, in percent: the rest may be
/// at the device when the period ends.
const KEPT_PERCENT: u64 = 98;

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TwinReport {
    /// How long the load was.
    pub span: Span,
    /// The tenants that made requests or have a reservation, in the policy's order; requests
    /// without a tenant come last, with an empty name.
    pub tenants: Vec<TenantReport>,
    /// Events of the simulation.
    pub events: u64,
}

/// The results of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantReport {
    /// Its name.
    pub name: String,
    /// Requests and their latencies.
    pub figures: Figures,
    /// Requests that were made and not answered by the end.
    pub unanswered: u64,
    /// How many periods kept its reservation; none if it has none.
    pub kept: Option<Kept>,
    /// The waiting time of its requests at nodes, by cause.
    pub waits: Waits,
}

/// Requests that were answered, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The mean latency.
    pub mean: Span,
    /// The latencies that so many percent of the requests do not exceed: 50, 99 and 99.9.
    pub p50: Span,
    /// The same.
    pub p99: Span,
    /// The same.
    pub p999: Span,
}

impl Figures {
    /// The figures of requests with these latencies.
    pub(super) fn of(latencies: &mut [u64], bytes: u64) -> Self {
        latencies.sort_unstable();
        let count = latencies.len() as u64;
        let sum: u128 = latencies.iter().map(|latency| u128::from(*latency)).sum();
        let mean = sum.checked_div(u128::from(count)).unwrap_or(0);
        // The first one that so many thousandths of all do not exceed.
        let quantile = |permille: u64| {
            let index = (count * permille).div_ceil(1_000).max(1) - 1;
            Span(latencies.get(index as usize).copied().unwrap_or(0))
        };
        Self {
            requests: count,
            bytes,
            mean: Span(mean as u64),
            p50: quantile(500),
            p99: quantile(990),
            p999: quantile(999),
        }
    }
}

/// How often a reservation was kept: in a period in which the tenant was served it, or had nothing
/// under way for 2 % of the time, so that it asked for less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The periods that kept it.
    pub kept: u64,
    /// All whole periods of the load.
    pub periods: u64,
}

/// A tenant's requests, as they happen.
#[derive(Clone, Debug, Default)]
pub(super) struct TenantLog {
    /// Of the answered ones, in nanoseconds.
    latencies: Vec<u64>,
    bytes: u64,
    under_way: u64,
    /// Since when nothing is under way.
    idle_since: Picoseconds,
    /// In the period that runs: operations and bytes that were served, and the time without
    /// requests.
    served: (u64, u64),
    idle: u64,
    kept: Kept,
}

impl TenantLog {
    pub(super) fn on_request(&mut self, now: Picoseconds) {
        if self.under_way == 0 {
            self.idle += now.since(self.idle_since).0;
        }
        self.under_way += 1;
    }

    /// A request was answered, after some time and with so many bytes and operations. After the
    /// end of the load it counts as unanswered.
    pub(super) fn on_answer(
        &mut self,
        now: Picoseconds,
        (latency, bytes, operations): (Span, u32, u32),
        until: Picoseconds,
    ) {
        if now > until {
            return;
        }
        self.latencies.push(latency.0);
        self.bytes += u64::from(bytes);
        self.served.0 += u64::from(operations);
        self.served.1 += u64::from(bytes);
        self.under_way -= 1;
        if self.under_way == 0 {
            self.idle_since = now;
        }
    }

    /// A period begins; what happened before does not count.
    pub(super) fn begin(&mut self, now: Picoseconds) {
        (self.served, self.idle) = ((0, 0), 0);
        self.idle_since = now;
    }

    /// A period ends in which the tenant was to have so many operations and bytes.
    pub(super) fn end_period(&mut self, now: Picoseconds, period: Span, reserved: (u64, u64)) {
        if self.under_way == 0 {
            self.idle += now.since(self.idle_since).0;
        }
        let was_idle = self.idle.saturating_mul(100)
            >= Picoseconds::from(period).0.saturating_mul(100 - KEPT_PERCENT);
        let is_kept = |served: u64, reserved: u64| {
            served.saturating_mul(100) >= reserved.saturating_mul(KEPT_PERCENT)
        };
        let was_served = is_kept(self.served.0, reserved.0) && is_kept(self.served.1, reserved.1);
        self.kept.periods += 1;
        self.kept.kept += u64::from(was_idle || was_served);
        self.begin(now);
    }

    pub(super) fn report(mut self, name: String, has_reservation: bool) -> TenantReport {
        TenantReport {
            name,
            figures: Figures::of(&mut self.latencies, self.bytes),
            unanswered: self.under_way,
            kept: has_reservation.then_some(self.kept),
            waits: Waits::ZERO,
        }
    }
}
