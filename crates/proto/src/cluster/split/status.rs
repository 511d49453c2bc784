//! Status and events of data nodes, for people and programs.

use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::{Event, Span, Time};

use super::{DataNodeState, Split};
use crate::cluster::status::{DataNodeStatus, TenantAtDataNode};
use crate::data_node::{DataNodeReport, Notice, TenantReport};

/// A data node is silent once it has not answered for this many rounds and for this long.
const SILENT_ROUNDS: u64 = 3;
const SILENT: Span = Span::SECOND;

/// A share counts as kept from this part of it on, in thousandths: counting by the period is never
/// exact.
const KEPT_PERMILLE: u128 = 970;

/// A capacity that changes by more than one part in so many causes an event.
const CHANGE_PART: u64 = 20;

impl Split {
    pub(crate) fn status(&self, now: Time) -> Vec<DataNodeStatus> {
        let names = self.policy.iter().flat_map(|(_, policy)| &policy.tenants);
        let names: Vec<&str> = names.map(|tenant| tenant.name.as_str()).collect();
        let patience = SILENT.0.max(SILENT_ROUNDS * self.interval().0);
        let status = |node: &DataNodeState| node.status(now, &names, Span(patience));
        self.nodes.iter().map(status).collect()
    }

    /// Compares a report with the last one, and returns the events that result.
    pub(super) fn compare(&mut self, index: usize, report: &DataNodeReport) -> Vec<Event> {
        let mut events = Vec::new();
        let node = &mut self.nodes[index];
        let (before, after) = (node.published_capacity, report.capacity);
        if before.0.abs_diff(after.0) > before.0 / CHANGE_PART {
            node.published_capacity = after;
            events.push(Event::CapacityLearned {
                node: node.name.clone(),
                before_operations_per_second: before.0,
                operations_per_second: after.0,
            });
        }
        let periods = node.report.as_ref().map_or(0, |report| report.periods);
        if report.periods == periods {
            return events;
        }
        for tenant_report in report.tenants.iter().filter(|tenant_report| !is_met(tenant_report)) {
            let Some(tenant) = self.tenants.get(tenant_report.tenant.index()) else {
                continue;
            };
            events.push(Event::ShareMissed {
                node: node.name.clone(),
                tenant: tenant.name.clone(),
                done_operations_per_second: tenant_report.done,
                reserved_operations_per_second: tenant_report.reserved,
            });
        }
        events
    }
}

impl DataNodeState {
    fn status(&self, now: Time, names: &[&str], patience: Span) -> DataNodeStatus {
        let DataNodeReport {
            capacity,
            periods,
            operations,
            session_slots,
            tenants,
            pool,
            memory,
            used,
            ..
        } = self.report.clone().unwrap_or_default();
        let is_connected = self.is_connected;
        let away = now.since(self.seen);
        let capacity = if self.report.is_some() { capacity } else { self.capacity };
        let tenant_report = |tenant_report: &TenantReport| {
            Some(tenant(names.get(tenant_report.tenant.index())?, tenant_report))
        };
        DataNodeStatus {
            name: self.name.clone(),
            takeover: None,
            is_connected,
            is_silent: is_connected && away > patience,
            reported_ns: self.report.as_ref().map(|_| away.0),
            capacity_operations_per_second: capacity.0,
            promised_operations_per_second: tenants
                .iter()
                .map(|tenant_report| tenant_report.reserved)
                .sum(),
            operations_per_second: tenants.iter().map(|tenant_report| tenant_report.done).sum(),
            pool_operations_per_second: pool,
            clients: session_slots,
            memory_bytes: memory.0,
            used_bytes: used.0,
            periods,
            total_operations: operations,
            memory_damages: self.damages,
            damaged_structure: self.damaged.clone(),
            tenants: tenants.iter().filter_map(tenant_report).collect(),
        }
    }
}

fn tenant(name: &str, tenant_report: &TenantReport) -> TenantAtDataNode {
    TenantAtDataNode {
        name: String::from(name),
        clients: tenant_report.clients,
        reserved_operations_per_second: tenant_report.reserved,
        limit_operations_per_second: (tenant_report.allowed < u64::MAX)
            .then_some(tenant_report.allowed),
        operations_per_second: tenant_report.done,
        is_met: is_met(tenant_report),
        total_operations: tenant_report.operations,
        total_missed_operations: tenant_report.missed,
    }
}

/// Whether a tenant got its share, or all that it asked for.
fn is_met(tenant_report: &TenantReport) -> bool {
    let promised = u128::from(tenant_report.reserved.min(tenant_report.most));
    !tenant_report.wants_more || u128::from(tenant_report.done) * 1000 >= promised * KEPT_PERMILLE
}

/// Turns a notice of a data node into an event.
pub(super) fn event(node: &str, notice: Notice) -> Event {
    let node = String::from(node);
    match notice {
        Notice::Overstepped { tenant, session_slot, issued, tokens } => Event::ClientOverstepped {
            node,
            tenant,
            session_slot,
            issued_operations: issued,
            token_operations: tokens,
        },
        Notice::Evicted { tenant, session_slot } => {
            Event::ClientEvicted { node, tenant, session_slot }
        }
        Notice::Unused { tenant, session_slot, periods } => {
            Event::ReservationUnused { node, tenant, session_slot, periods }
        }
        Notice::Moved { took } => Event::MemoryMoved { node, took_ns: took.0 },
        Notice::Damaged { structure, is_store_kept, took } => {
            Event::MemoryDamaged { node, structure, is_store_kept, took_ns: took.0 }
        }
        Notice::Late { by } => Event::MonitorLate { node, late_ns: by.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::split::NodeSetup;
    use crate::data_node::FromDataNode;
    use crate::session::Action;
    use tidegate_model::{Bytes, DataNodeId, Iops, Policy, SessionSlot};

    fn split() -> Split {
        let policy = "[[tenant]]\nname = \"a\"\nreservation = \"100 iops\"";
        let node =
            |name: &str| NodeSetup { name: name.into(), capacity: Iops(400), client: Iops(300) };
        let policy = Policy::parse(policy).unwrap();
        let nodes = ["m", "n"].map(node).into();
        let mut split = Split::new(Time(0), nodes, Some((1, policy)));
        split.on_hello(Time(0), "m").unwrap();
        split
    }

    fn tenant_report(periods: u64, done: u64, wants_more: bool) -> DataNodeReport {
        let tenant = TenantReport {
            reserved: 100,
            allowed: u64::MAX,
            clients: 2,
            most: 100,
            done,
            wants_more,
            operations: 7,
            missed: 3,
            ..TenantReport::default()
        };
        DataNodeReport {
            revision: 1,
            capacity: Iops(380),
            periods,
            session_slots: 2,
            tenants: [tenant].into(),
            memory: Bytes(8_320),
            used: Bytes(4_160),
            ..DataNodeReport::default()
        }
    }

    /// Answers the last question with a report, and returns the events that result.
    fn report(split: &mut Split, now: u64, report: DataNodeReport) -> Vec<Event> {
        let report = DataNodeReport { round: split.round, ..report };
        split.on_message(Time(now), DataNodeId(0), FromDataNode::Report(report));
        let actions = core::iter::from_fn(|| split.outbox.pop());
        let event = |action| match action {
            Action::Publish(event) => Some(event),
            _ => None,
        };
        actions.filter_map(event).collect()
    }

    #[test]
    fn the_status_of_a_data_node_follows_its_reports() {
        let mut split = split();
        report(&mut split, 5, tenant_report(1, 100, true));
        let status = split.status(Time(9));
        assert_eq!(status.len(), 2);
        let [m, n] = [&status[0], &status[1]];
        assert!(m.is_connected && !m.is_silent && !n.is_connected);
        assert_eq!((m.reported_ns, n.reported_ns), (Some(4), None));
        assert_eq!(
            (m.capacity_operations_per_second, n.capacity_operations_per_second),
            (380, 400)
        );
        assert_eq!((m.clients, m.used_bytes, m.memory_bytes), (2, 4_160, 8_320));
        assert_eq!((m.operations_per_second, m.promised_operations_per_second), (100, 100));
        assert_eq!((m.tenants[0].name.as_str(), m.tenants[0].is_met), ("a", true));
        assert!(split.status(Time(9 + SILENT.0)).first().is_some_and(|node| node.is_silent));
    }

    #[test]
    fn missed_reservations_and_learned_capacities_are_reported_once() {
        let mut split = split();
        let events = report(&mut split, 1, tenant_report(1, 90, true));
        let missed =
            |event: &Event| matches!(event, Event::ShareMissed { tenant, .. } if tenant == "a");
        assert_eq!(events.iter().filter(|event| missed(event)).count(), 1);
        // The same period again, one that wanted no more, and one that got nearly all.
        for (periods, done, wants_more) in [(1, 90, true), (2, 90, false), (3, 98, true)] {
            assert_eq!(report(&mut split, 2, tenant_report(periods, done, wants_more)), []);
        }
        let less = DataNodeReport { capacity: Iops(300), ..tenant_report(4, 100, true) };
        let learned = Event::CapacityLearned {
            node: "m".into(),
            before_operations_per_second: 400,
            operations_per_second: 300,
        };
        assert_eq!(report(&mut split, 3, less.clone()), [learned]);
        assert_eq!(report(&mut split, 4, less), []);
    }

    #[test]
    fn a_notice_of_a_node_is_published() {
        let notice = Notice::Overstepped {
            tenant: "a".into(),
            session_slot: SessionSlot(3),
            issued: 120,
            tokens: 100,
        };
        let mut split = split();
        while split.outbox.pop().is_some() {}
        split.on_message(Time(1), DataNodeId(0), FromDataNode::Noticed(notice));
        let expected_event = Event::ClientOverstepped {
            node: "m".into(),
            tenant: "a".into(),
            session_slot: SessionSlot(3),
            issued_operations: 120,
            token_operations: 100,
        };
        assert_eq!(split.outbox.pop(), Some(Action::Publish(expected_event)));
    }
}
