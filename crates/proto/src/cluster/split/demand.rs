//! Demand and service of tenants at a data node in the last minute: the data nodes' part of
//! `tidegate explain`.
//!
//! # Mechanism
//! A report has for each tenant the operations of the last period, and whether it wanted more. Each
//! new period that is reported goes into a part of the minute, five seconds long. Periods in which
//! a tenant did nothing and wanted nothing do not count in its rate.
//!
//! # Bound
//! A part has an entry for each tenant that did or wanted something in it.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::{Span, TenantIndex, Time, amounts};

use super::{DataNodeState, Split};
use crate::data_node::{DataNodeReport, TenantReport};
use crate::stats::delays::DelaysAtDataNode;

/// How far back it reaches, and how long a part is, at least.
const MINUTE: Span = Span(60 * Span::SECOND.0);
const SEGMENT: Span = Span(5 * Span::SECOND.0);

/// A report that follows another after more than this does not count for the time in between.
const STALE: Span = Span(15 * Span::SECOND.0);

/// A limit of which so much was used, in thousandths, was used up.
const USED_UP_PERMILLE: u128 = 970;

/// Operations and demand of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Demand {
    /// For how long it did or wanted something, wanted more, and had used up its limit.
    wanted: Span,
    starved: Span,
    limited: Span,
    /// Operations per second that it did, by nanoseconds for which it did so.
    done: u128,
    missed: u64,
}

impl Demand {
    fn add(&mut self, other: &Self) {
        let sum = |a: Span, b: Span| Span(a.0.saturating_add(b.0));
        self.wanted = sum(self.wanted, other.wanted);
        self.starved = sum(self.starved, other.starved);
        self.limited = sum(self.limited, other.limited);
        self.done += other.done;
        self.missed = self.missed.saturating_add(other.missed);
    }

    /// Operations per second, of the time in which it wanted some.
    fn rate(&self) -> u64 {
        let rate = self.done.checked_div(u128::from(self.wanted.0)).unwrap_or(0);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct MinuteSegment {
    began: Time,
    span: Span,
    tenants: BTreeMap<TenantIndex, Demand>,
}

/// The last minute of a data node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Minute {
    parts: VecDeque<MinuteSegment>,
    /// When the last period was reported.
    at: Option<Time>,
}

impl Minute {
    /// Takes in a report, if it is of another period than the one before.
    pub(super) fn read(
        &mut self,
        now: Time,
        before: Option<&DataNodeReport>,
        report: &DataNodeReport,
    ) {
        if before.is_some_and(|before| before.periods == report.periods) {
            return;
        }
        let since = self.at.replace(now);
        let Some(since) = since.filter(|since| now.since(*since) <= STALE) else { return };
        let span = now.since(since);
        while self.parts.front().is_some_and(|part| now.since(part.began) > MINUTE) {
            self.parts.pop_front();
        }
        if self.parts.back().is_none_or(|part| now.since(part.began) > SEGMENT) {
            let (span, tenants) = (Span::ZERO, BTreeMap::new());
            self.parts.push_back(MinuteSegment { began: since, span, tenants });
        }
        let Some(part) = self.parts.back_mut() else { return };
        part.span = Span(part.span.0.saturating_add(span.0));
        let missed = |tenant_report: &TenantReport| {
            let reported_before = before.and_then(|it| {
                it.tenants.iter().find(|before| before.tenant == tenant_report.tenant)
            });
            tenant_report.missed.saturating_sub(
                reported_before.map_or(tenant_report.missed, |before| before.missed),
            )
        };
        for tenant_report in report
            .tenants
            .iter()
            .filter(|tenant_report| tenant_report.done > 0 || tenant_report.wants_more)
        {
            let when = |is_so: bool| if is_so { span } else { Span::ZERO };
            let used = u128::from(tenant_report.done) * 1000;
            let is_limited = tenant_report.allowed < u64::MAX
                && used >= u128::from(tenant_report.allowed) * USED_UP_PERMILLE;
            part.tenants.entry(tenant_report.tenant).or_default().add(&Demand {
                wanted: span,
                starved: when(tenant_report.wants_more),
                limited: when(tenant_report.wants_more && is_limited),
                done: u128::from(tenant_report.done) * u128::from(span.0),
                missed: missed(tenant_report),
            });
        }
    }

    /// Tenants have other indexes now; those without one are forgotten.
    pub(super) fn renumber(&mut self, index: impl Fn(TenantIndex) -> Option<TenantIndex>) {
        for part in &mut self.parts {
            let tenants = core::mem::take(&mut part.tenants).into_iter();
            part.tenants = tenants.filter_map(|(from, it)| Some((index(from)?, it))).collect();
        }
    }

    /// The time for which there are reports, and the demand of the tenant with this index.
    fn of(&self, now: Time, index: TenantIndex) -> (Span, Demand) {
        let (mut span, mut sum) = (Span::ZERO, Demand::default());
        for part in self.parts.iter().filter(|part| now.since(part.began) <= MINUTE) {
            span = Span(span.0.saturating_add(part.span.0));
            part.tenants.get(&index).into_iter().for_each(|demand| sum.add(demand));
        }
        (span, sum)
    }
}

impl Split {
    /// How a tenant fared in the last minute at each data node where it has something, and why.
    pub(crate) fn demand(&self, now: Time, tenant: &str) -> Vec<DelaysAtDataNode> {
        let tenants = self.policy.iter().flat_map(|(_, policy)| &policy.tenants);
        let index = (0..)
            .map(TenantIndex)
            .zip(tenants)
            .find(|(_, it)| it.name == tenant)
            .map(|(index, _)| index);
        let Some(index) = index else { return Vec::new() };
        self.nodes.iter().filter_map(|node| node.demand(now, index)).collect()
    }
}

impl DataNodeState {
    fn demand(&self, now: Time, index: TenantIndex) -> Option<DelaysAtDataNode> {
        let report = self.report.as_ref()?;
        let tenant_report =
            report.tenants.iter().find(|tenant_report| tenant_report.tenant == index)?;
        let (span, demand) = self.minute.of(now, index);
        let (why, help) = self.reason(report, tenant_report, &demand);
        Some(DelaysAtDataNode {
            node: self.name.clone(),
            clients: tenant_report.clients,
            reserved_operations_per_second: tenant_report.reserved,
            limit_operations_per_second: (tenant_report.allowed < u64::MAX)
                .then_some(tenant_report.allowed),
            operations_per_second: demand.rate(),
            span_ns: span.0,
            demand_ns: demand.wanted.0,
            starved_ns: demand.starved.0,
            missed_operations: demand.missed,
            why,
            help,
        })
    }

    /// Why the tenant did not get more, and what would change it.
    fn reason(
        &self,
        report: &DataNodeReport,
        tenant_report: &TenantReport,
        demand: &Demand,
    ) -> (String, String) {
        let [got, reserved] = [demand.rate(), tenant_report.reserved].map(amounts::iops);
        if demand.wanted == Span::ZERO {
            return ("it asked for nothing".into(), "nothing has to change".into());
        }
        if demand.starved == Span::ZERO {
            return (
                format!("it got all that it asked for: {got}"),
                "nothing has to change".into(),
            );
        }
        let when = format!(
            "{} of the {} s in which it asked",
            seconds(demand.starved),
            seconds(demand.wanted)
        );
        if demand.limited.0 >= demand.starved.0.div_ceil(2) {
            let why = format!(
                "its limit here, {}, is used up: it got {got}, and wanted more in {when}",
                amounts::iops(tenant_report.allowed)
            );
            return (why, "raise its limit; it asks for more than that".into());
        }
        if demand.missed > 0 {
            let why = format!(
                "it missed {} operations of its share of {reserved}: it got {got}, and wanted more \
                 in {when}",
                amounts::count(demand.missed)
            );
            let help = "give its clients and the data node processors in time (`nice`), more \
                        clients or a larger window, or declare less for the node";
            return (why, help.into());
        }
        let promised = report.tenants.iter().fold(0u64, |sum, it| sum.saturating_add(it.reserved));
        let rest = amounts::iops(self.capacity().0.saturating_sub(promised));
        let why = format!(
            "it got {got}, of which {reserved} are reserved, and wanted more in {when}; what is \
             not reserved goes to all who ask, in the order in which they come"
        );
        let help = format!(
            "raise its reservation: {rest} of what {} can do are not promised; or lower the limits \
             of others",
            self.name
        );
        (why, help)
    }
}

/// In whole seconds, at least one.
const fn seconds(span: Span) -> u64 {
    let seconds = (span.0 + Span::SECOND.0 / 2) / Span::SECOND.0;
    if seconds == 0 { 1 } else { seconds }
}

#[cfg(test)]
mod tests {
    use tidegate_model::Iops;

    use super::*;

    fn tenant_report(done: u64, wants_more: bool, missed: u64) -> TenantReport {
        TenantReport {
            tenant: TenantIndex(1),
            reserved: 100,
            allowed: 400,
            clients: 2,
            done,
            wants_more,
            missed,
            ..TenantReport::default()
        }
    }

    /// The delays at a node that reports these numbers of its tenant, one a second.
    fn of(seconds: &[TenantReport]) -> DelaysAtDataNode {
        let (mut minute, mut before) = (Minute::default(), None::<DataNodeReport>);
        for (at, tenant_report) in (0u64..).zip(seconds) {
            let tenants = [*tenant_report].into();
            let report = DataNodeReport { periods: at, tenants, ..DataNodeReport::default() };
            let now = Time(at * Span::SECOND.0);
            // Five rounds in a period get the same report.
            for round in 0..5 {
                minute.read(now.after(Span(round)), before.as_ref(), &report);
                before = Some(report.clone());
            }
        }
        let capacity = Iops(1_000);
        let node = DataNodeState {
            name: "m".into(),
            report: before,
            minute,
            capacity,
            ..DataNodeState::default()
        };
        node.demand(Time((seconds.len() as u64 - 1) * Span::SECOND.0), TenantIndex(1)).unwrap()
    }

    #[test]
    fn a_rate_is_of_the_time_in_which_there_was_demand() {
        let idle = tenant_report(0, false, 0);
        let mut seconds = [idle; 40];
        seconds[10..20].fill(tenant_report(300, false, 0));
        let there = of(&seconds);
        assert_eq!((there.operations_per_second, there.demand_ns), (300, 10 * Span::SECOND.0));
        assert_eq!(there.span_ns, 39 * Span::SECOND.0);
        assert_eq!(there.why, "it got all that it asked for: 300 iops");
        assert_eq!(of(&[idle; 20]).why, "it asked for nothing");
    }

    #[test]
    fn the_reason_for_a_tenants_throughput_is_reported() {
        let limit = of(&[tenant_report(398, true, 0); 11]);
        assert_eq!(
            limit.why,
            "its limit here, 400 iops, is used up: it got 398 iops, and wanted more in 10 of the \
             10 s in which it asked"
        );
        let pool = of(&[tenant_report(250, true, 0); 11]);
        assert!(
            pool.why.starts_with("it got 250 iops, of which 100 iops are reserved"),
            "{pool:?}"
        );
        assert!(pool.help.contains("900 iops of what m can do are not promised"), "{pool:?}");
        let missing: Vec<_> = (0..11).map(|at| tenant_report(60, true, 40 * at)).collect();
        let missed = of(&missing);
        assert_eq!(missed.missed_operations, 400);
        assert!(missed.why.starts_with("it missed 400 operations of its share"), "{missed:?}");
    }

    #[test]
    fn a_minute_forgets_what_is_older() {
        let mut seconds = [tenant_report(0, false, 0); 100];
        seconds[..30].fill(tenant_report(300, true, 0));
        assert_eq!(of(&seconds).demand_ns, 0);
    }
}
