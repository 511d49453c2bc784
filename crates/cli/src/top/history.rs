//! History of a status: the last minute of every tenant, node and gateway.

use std::collections::{BTreeMap, VecDeque};

use tidegate_model::gate::Unit;
use tidegate_model::{Span, Time};
use tidegate_proto::controller::status::Status;

use crate::health::{self, Levels, Met, TenantHealth};

/// How far back a trail goes.
pub(super) const TRAIL: Span = Span(60 * Span::SECOND.0);

/// Looks that lie this many periods apart are measured by what was counted between them. Below it
/// the controller's own measure is better: it is taken at the ends of its cycles, where the
/// counters are true.
const PERIODS_APART: u64 = 2;

/// One tenant at one look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TenantRow {
    pub(super) name: String,
    pub(super) unit: Unit,
    /// The rate since the last look, per second.
    pub(super) rate: u64,
    pub(super) reservation: Option<u64>,
    pub(super) limit: Option<u64>,
    pub(super) allocated: Option<u64>,
    /// Whether no program acts for it, so that stages allocate it nothing.
    pub(super) is_only_at_nodes: bool,
    /// Operations that wait at nodes.
    pub(super) queued: u64,
    /// The part of the last period in which a request waited, in thousandths.
    pub(super) waiting_permille: u64,
    /// How long a request waited on average since the last look.
    pub(super) wait: Option<Span>,
    /// How long 99 of 100 requests of the last period waited at most.
    pub(super) wait_p99: Option<Span>,
    pub(super) met: Met,
    /// Rates of the last minute, oldest first.
    pub(super) trail: Trail,
}

/// The values of a quantity, look by look, oldest first.
pub(super) type Trail = Vec<(Time, u64)>;

/// The trails of things with names.
#[derive(Debug, Default)]
struct Trails(BTreeMap<String, VecDeque<(Time, u64)>>);

impl Trails {
    /// Stores the present values of these names, and forgets all other names.
    fn take<'a>(&mut self, now: Time, values: impl Iterator<Item = (&'a str, u64)>) {
        let mut earlier = std::mem::take(&mut self.0);
        for (name, value) in values {
            let mut trail = earlier.remove(name).unwrap_or_default();
            trail.push_back((now, value));
            while trail.front().is_some_and(|(at, _)| now.since(*at) > TRAIL) {
                trail.pop_front();
            }
            self.0.insert(name.to_owned(), trail);
        }
    }

    fn of(&self, name: &str) -> Trail {
        self.0.get(name).into_iter().flatten().copied().collect()
    }
}

impl TenantRow {
    /// The tenant's promise: its reservation, or else its limit.
    pub(super) fn promise(&self) -> Option<u64> {
        self.reservation.or(self.limit)
    }
}

/// The last look and the trails that led there.
#[derive(Debug, Default)]
pub(super) struct History {
    status: Status,
    tenants: Trails,
    nodes: Trails,
    gateways: Trails,
    data_nodes: Trails,
    rows: Vec<TenantRow>,
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
        let earlier: BTreeMap<_, _> =
            health::tenants(&before).map(|tenant| (tenant.status.name.as_str(), tenant)).collect();
        let rows = health::tenants(&self.status).map(|tenant| {
            let earlier = earlier.get(tenant.status.name.as_str()).copied();
            let apart = now.since(Time(before.uptime_ns));
            let interval = earlier.map(|earlier| Interval { earlier, tenant, apart });
            row(tenant, interval, self.status.period_ns)
        });
        self.rows = rows.collect();
        self.tenants.take(now, self.rows.iter().map(|row| (row.name.as_str(), row.rate)));
        for row in &mut self.rows {
            row.trail = self.tenants.of(&row.name);
        }
        let Some(cluster) = &self.status.cluster else { return };
        let nodes = cluster.nodes.iter();
        self.nodes
            .take(now, nodes.map(|node| (node.name.as_str(), node.served_operations_per_second)));
        let gateways = cluster.gateways.iter();
        self.gateways.take(
            now,
            gateways.map(|gateway| (gateway.name.as_str(), gateway.requests_per_second)),
        );
        let data_nodes = cluster.data_nodes.iter();
        self.data_nodes
            .take(now, data_nodes.map(|node| (node.name.as_str(), node.operations_per_second)));
    }

    /// Operations per second that a node served.
    pub(super) fn of_node(&self, name: &str) -> Trail {
        self.nodes.of(name)
    }

    /// Operations per second that clients did at a data node.
    pub(super) fn of_data_node(&self, name: &str) -> Trail {
        self.data_nodes.of(name)
    }

    /// Requests per second of a gateway.
    pub(super) fn of_gateway(&self, name: &str) -> Trail {
        self.gateways.of(name)
    }

    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    /// The tenants in the order of the policy.
    pub(super) fn rows(&self) -> &[TenantRow] {
        &self.rows
    }
}

/// From one look to the next.
#[derive(Clone, Copy)]
struct Interval<'a> {
    earlier: TenantHealth<'a>,
    tenant: TenantHealth<'a>,
    apart: Span,
}

impl Interval<'_> {
    fn per_second(self, unit: Unit) -> u64 {
        let (before, after) = match unit {
            Unit::Bytes => (self.earlier.status.bytes, self.tenant.status.bytes),
            Unit::Operations => (self.earlier.operations(), self.tenant.operations()),
        };
        let grown = u128::from(after.saturating_sub(before)) * u128::from(Span::SECOND.0);
        u64::try_from(grown / u128::from(self.apart.0.max(1))).unwrap_or(u64::MAX)
    }

    fn wait(self) -> Option<Span> {
        let (earlier, tenant) = (self.earlier.status, self.tenant.status);
        let operations = tenant.operations.saturating_sub(earlier.operations);
        let waited = tenant.waited_ns.saturating_sub(earlier.waited_ns);
        waited.checked_div(operations).map(Span)
    }
}

fn row(tenant: TenantHealth<'_>, interval: Option<Interval<'_>>, period_ns: u64) -> TenantRow {
    let unit = main_unit(tenant);
    let Levels { reservation, limit, allocated, measured, .. } = health::levels(tenant, unit);
    let far = Span(period_ns.saturating_mul(PERIODS_APART));
    let rate = match interval {
        Some(interval) if interval.apart > far => interval.per_second(unit),
        _ => measured,
    };
    let is_only_at_nodes = tenant.is_only_at_nodes();
    TenantRow {
        name: tenant.status.name.clone(),
        unit,
        rate,
        reservation,
        limit,
        allocated: allocated.filter(|_| !is_only_at_nodes),
        is_only_at_nodes,
        queued: tenant.queued(),
        waiting_permille: tenant.status.waiting_permille,
        wait: interval.and_then(Interval::wait),
        wait_p99: tenant.status.wait_p99_ns.map(Span),
        met: health::met(tenant),
        trail: Vec::new(),
    }
}

/// A row shows one unit: the one that is promised, else the one that is allocated or served by
/// nodes; bytes where both are, or operations at nodes alone.
fn main_unit(tenant: TenantHealth<'_>) -> Unit {
    let promised = |unit: &Unit| {
        let levels = health::levels(tenant, *unit);
        levels.reservation.or(levels.limit).is_some()
    };
    let units = health::units(tenant);
    if tenant.is_only_at_nodes() && units.contains(&Unit::Operations) {
        return Unit::Operations;
    }
    units.iter().copied().find(promised).or(units.first().copied()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tidegate_proto::cluster::status::{ClusterStatus, ClusterTenant, NodeStatus};
    use tidegate_proto::controller::status::TenantStatus;

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
    fn near_polls_show_the_period_and_far_ones_the_time_between() {
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
    fn what_nodes_serve_has_a_past_too() {
        let mut history = History::default();
        for (second, total) in [(10, 5_000), (11, 6_000), (21, 26_000)] {
            let name = String::from("kv");
            let there = ClusterTenant {
                name: name.clone(),
                last_served_operations: 900,
                total_served_operations: total,
                waiting_operations: 3,
                ..ClusterTenant::default()
            };
            let node = NodeStatus { name: "a".into(), ..NodeStatus::default() };
            let nodes = vec![NodeStatus { served_operations_per_second: total, ..node }];
            let (period_ns, tenants) = (Span::SECOND.0, vec![there]);
            let cluster = ClusterStatus { period_ns, tenants, nodes, ..ClusterStatus::default() };
            let tenants = vec![TenantStatus { name, ..TenantStatus::default() }];
            let cluster = Some(cluster);
            history.take(Status { tenants, cluster, ..status(second, 0) });
        }
        let row = &history.rows()[0];
        assert_eq!((row.unit, row.rate, row.queued), (Unit::Operations, 2_000, 3));
        let rates: Vec<_> = row.trail.iter().map(|(_, rate)| *rate).collect();
        assert_eq!(rates, [900, 900, 2_000]);
        assert_eq!(history.of_node("a").len(), 3);
        assert_eq!(history.of_node("b"), []);
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
