//! What is remembered: the last minute of every tenant.

use std::collections::{BTreeMap, VecDeque};

use tidegate_model::gate::Unit;
use tidegate_model::{Span, Time};
use tidegate_proto::controller::status::{Status, TenantStatus};

use crate::fare::{self, Levels, Met};

/// How far back a trail goes.
pub(super) const TRAIL: Span = Span(60 * Span::SECOND.0);

/// Looks that lie this many periods apart are measured by what was counted between them. Below it
/// the controller's own measure is better: it is taken at the ends of its cycles, where the
/// counters are true.
const PERIODS_APART: u64 = 2;

/// One tenant at one look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) name: String,
    /// What the row is measured in.
    pub(super) unit: Unit,
    /// What flowed since the last look, per second.
    pub(super) rate: u64,
    pub(super) reservation: Option<u64>,
    pub(super) limit: Option<u64>,
    pub(super) allocated: Option<u64>,
    /// The part of the last period in which a request waited, in thousandths.
    pub(super) waiting_permille: u64,
    /// How long a request waited on average since the last look.
    pub(super) wait: Option<Span>,
    /// How long 99 of 100 requests of the last period waited at most.
    pub(super) wait_p99: Option<Span>,
    pub(super) met: Met,
    /// Rates of the last minute, oldest first.
    pub(super) trail: Vec<(Time, u64)>,
}

impl Row {
    /// What the tenant may count on: its reservation, or else what it never gets more of.
    pub(super) fn promise(&self) -> Option<u64> {
        self.reservation.or(self.limit)
    }
}

/// The last look and the trails that led there.
#[derive(Debug, Default)]
pub(super) struct History {
    status: Status,
    trails: BTreeMap<String, VecDeque<(Time, u64)>>,
    rows: Vec<Row>,
}

impl History {
    /// Takes in what was seen.
    pub(super) fn take(&mut self, status: Status) {
        // A controller that has run for a shorter time than before is another one, and its counters
        // started anew.
        if status.uptime_ns < self.status.uptime_ns {
            *self = Self::default();
        }
        let before = std::mem::replace(&mut self.status, status);
        let now = Time(self.status.uptime_ns);
        let rows = self.status.tenants.iter().map(|tenant| {
            let earlier = before.tenants.iter().find(|earlier| earlier.name == tenant.name);
            let apart = now.since(Time(before.uptime_ns));
            let step = earlier.map(|earlier| Step { earlier, tenant, apart });
            let mut row = row(tenant, step, self.status.period_ns);
            let trail = self.trails.entry(tenant.name.clone()).or_default();
            trail.push_back((now, row.rate));
            while trail.front().is_some_and(|(at, _)| now.since(*at) > TRAIL) {
                trail.pop_front();
            }
            row.trail = trail.iter().copied().collect();
            row
        });
        self.rows = rows.collect();
        let names = self.status.tenants.iter().map(|tenant| &tenant.name);
        let names: Vec<_> = names.collect();
        self.trails.retain(|name, _| names.contains(&name));
    }

    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    /// The tenants in the order of the policy.
    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }
}

/// From one look to the next.
#[derive(Clone, Copy)]
struct Step<'a> {
    earlier: &'a TenantStatus,
    tenant: &'a TenantStatus,
    apart: Span,
}

impl Step<'_> {
    fn per_second(self, unit: Unit) -> u64 {
        let (before, after) = match unit {
            Unit::Bytes => (self.earlier.bytes, self.tenant.bytes),
            Unit::Operations => (self.earlier.operations, self.tenant.operations),
        };
        let grown = u128::from(after.saturating_sub(before)) * u128::from(Span::SECOND.0);
        u64::try_from(grown / u128::from(self.apart.0.max(1))).unwrap_or(u64::MAX)
    }

    fn wait(self) -> Option<Span> {
        let operations = self.tenant.operations.saturating_sub(self.earlier.operations);
        let waited = self.tenant.waited_ns.saturating_sub(self.earlier.waited_ns);
        waited.checked_div(operations).map(Span)
    }
}

fn row(tenant: &TenantStatus, step: Option<Step<'_>>, period_ns: u64) -> Row {
    let unit = main_unit(tenant);
    let Levels { reservation, limit, allocated, measured, .. } = fare::levels(tenant, unit);
    let far = Span(period_ns.saturating_mul(PERIODS_APART));
    let rate = match step {
        Some(step) if step.apart > far => step.per_second(unit),
        _ => measured,
    };
    Row {
        name: tenant.name.clone(),
        unit,
        rate,
        reservation,
        limit,
        allocated,
        waiting_permille: tenant.waiting_permille,
        wait: step.and_then(Step::wait),
        wait_p99: tenant.wait_p99_ns.map(Span),
        met: fare::met(tenant),
        trail: Vec::new(),
    }
}

/// A row shows one unit: the one that is promised, else the one that is allocated; bytes where both
/// are.
fn main_unit(tenant: &TenantStatus) -> Unit {
    let promised = |unit: &Unit| {
        let levels = fare::levels(tenant, *unit);
        levels.reservation.or(levels.limit).is_some()
    };
    let units = fare::units(tenant);
    units.iter().copied().find(promised).or(units.first().copied()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(seconds: u64, mib: u64) -> Status {
        let tenant = TenantStatus {
            name: "kv".into(),
            limit_bytes_per_second: Some(9 << 20),
            period_bytes_per_second: 5 << 20,
            bytes: mib << 20,
            operations: mib,
            waited_ns: mib * 2_000_000,
            ..TenantStatus::default()
        };
        Status {
            uptime_ns: seconds * Span::SECOND.0,
            period_ns: Span::SECOND.0,
            tenants: vec![tenant],
            ..Status::default()
        }
    }

    #[test]
    fn near_looks_show_the_period_and_far_ones_what_was_between() {
        let mut history = History::default();
        history.take(status(10, 100));
        assert_eq!((history.rows()[0].rate, history.rows()[0].wait), (5 << 20, None));
        history.take(status(11, 107));
        assert_eq!(history.rows()[0].rate, 5 << 20);
        assert_eq!(history.rows()[0].wait, Some(Span(2_000_000)));
        history.take(status(21, 137));
        assert_eq!(history.rows()[0].rate, 3 << 20);
        assert_eq!(history.rows()[0].promise(), Some(9 << 20));
    }

    #[test]
    fn a_trail_is_a_minute_long() {
        let mut history = History::default();
        for second in 0..100 {
            history.take(status(second, 0));
        }
        assert_eq!(history.rows()[0].trail.len(), 61);
    }

    #[test]
    fn a_controller_that_was_restarted_begins_anew() {
        let mut history = History::default();
        history.take(status(100, 1_000));
        history.take(status(3, 1));
        assert_eq!(history.rows()[0].trail.len(), 1);
        assert_eq!(history.rows()[0].rate, 5 << 20);
    }
}
