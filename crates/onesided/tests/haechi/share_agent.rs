//! The agent of a data node: it takes shares from a controller and gives promises to the monitor.

use tidegate_algo::onesided::Rules;
use tidegate_model::{Iops, Policy, SessionSlot, Span, TenantIndex};
use tidegate_onesided::data_node::{Hello, SessionRegistry, ShareAgent, VERSION};
use tidegate_onesided::haechi::MonitorEvent;
use tidegate_onesided::haechi::monitor::GRACE;
use tidegate_proto::cluster::message::Share;
use tidegate_proto::data_node::{FromDataNode, Grant, TenantReport, ToDataNode};

use super::sim::{HaechiSim, LOCAL, PERIOD, percent, reserve};

/// Periods in a second.
const PERIODS: u64 = Span::SECOND.0 / PERIOD.0;

/// A data node with two clients of one tenant.
struct Testbed {
    sim: HaechiSim,
    share_agent: ShareAgent,
    /// Events that the agent has seen.
    seen: usize,
}

impl Testbed {
    fn new() -> Self {
        let sim = HaechiSim::new(Rules::SOUND, &[reserve(0), reserve(0)]);
        let mut registry = SessionRegistry::new(PERIOD, Iops(LOCAL * PERIODS));
        for session_slot in [0, 1].map(SessionSlot) {
            let hello = Hello {
                version: VERSION,
                tenant: "t".into(),
                reservation: None,
                limit: None,
                parts: 2,
                session_slot: None,
                is_bare: false,
            };
            registry.add(session_slot, "t", &hello);
        }
        let mut testbed = Self { sim, share_agent: ShareAgent::new(registry), seen: 0 };
        let text = "[[tenant]]\nname = \"t\"\nreservation = \"90k iops\"";
        let policy = Policy::parse(text).unwrap();
        testbed.send(ToDataNode::Policy { revision: 1, policy });
        testbed
    }

    fn send(&mut self, message: ToDataNode) {
        self.share_agent.on_message(message, &mut self.sim.monitor);
    }

    /// So much of every period is kept here from now on.
    fn grant(&mut self, serial: u64, reserved: u64) {
        self.share(serial, [reserved * PERIODS, u64::MAX]);
    }

    fn share(&mut self, serial: u64, [reserved, allowed]: [u64; 2]) {
        let share = Share { tenant: TenantIndex(0), reserved, allowed };
        self.send(ToDataNode::Grant(Grant { revision: 1, serial, shares: vec![share] }));
    }

    fn run_into_next(&mut self, span: Span) {
        self.sim.run_into_next(span);
        for event in &self.sim.events[self.seen..] {
            if let MonitorEvent::Over(summary) = event {
                self.share_agent.on_period(summary);
            }
        }
        self.seen = self.sim.events.len();
    }

    fn sent(&mut self) -> Vec<FromDataNode> {
        std::iter::from_fn(|| self.share_agent.poll_output()).collect()
    }

    fn promised(&self) -> [u64; 2] {
        [0, 1]
            .map(SessionSlot)
            .map(|session_slot| self.sim.monitor.promise(session_slot).unwrap().reservation)
    }

    fn report(&mut self) -> TenantReport {
        self.send(ToDataNode::Collect { round: 7 });
        match &self.sent()[..] {
            [FromDataNode::Report(report)] => {
                assert_eq!((report.round, report.revision, report.session_slots), (7, 1, 2));
                report.tenants[0]
            }
            sent => panic!("{sent:?}"),
        }
    }
}

fn granted(serial: u64) -> FromDataNode {
    FromDataNode::Granted { serial }
}

#[test]
fn a_share_that_falls_is_confirmed_when_it_has() {
    let mut testbed = Testbed::new();
    testbed.grant(1, 4_000);
    assert_eq!(testbed.sent(), [granted(1)], "nobody had anything");
    assert_eq!(testbed.promised(), [2_000; 2]);
    testbed.run_into_next(percent(30));
    testbed.run_into_next(percent(30));
    // A falling share is in force as it was until the period is over, and is reported so.
    testbed.grant(2, 1_000);
    testbed.grant(3, 1_200);
    assert_eq!(testbed.sent(), []);
    assert_eq!(testbed.report().reserved, 4_000 * PERIODS);
    testbed.run_into_next(Span::ZERO);
    assert_eq!(testbed.sent(), [], "nobody knows that it has begun");
    testbed.run_into_next(Span(2 * GRACE.0));
    assert_eq!(testbed.sent(), [granted(3)]);
    assert_eq!(testbed.report().reserved, 1_200 * PERIODS);
    assert_eq!(testbed.promised(), [600; 2]);
    // A rising share takes nothing from any client.
    testbed.grant(4, 2_000);
    assert_eq!(testbed.sent(), [granted(4)]);
    // After a new connection the node confirms no grant of the former one.
    testbed.grant(5, 1_000);
    testbed.share_agent.on_connected();
    testbed.run_into_next(Span(2 * GRACE.0));
    assert_eq!(testbed.sent(), [granted(0)]);
    assert_eq!(testbed.report().reserved, 1_000 * PERIODS);
}

/// A first limit is reported before it is in force: also a controller that did not grant it then
/// gives it to no other node.
#[test]
fn a_first_limit_is_reported_at_once() {
    let mut testbed = Testbed::new();
    testbed.run_into_next(percent(30));
    assert_eq!(testbed.report().allowed, u64::MAX);
    testbed.share(1, [0, 3_000 * PERIODS]);
    assert_eq!(testbed.sent(), [], "the clients have no limit until the period is over");
    assert_eq!(testbed.report().allowed, 3_000 * PERIODS);
    testbed.share(2, [0, 1_000 * PERIODS]);
    assert_eq!(testbed.report().allowed, 3_000 * PERIODS);
    testbed.run_into_next(Span(2 * GRACE.0));
    assert_eq!(testbed.sent(), [granted(2)]);
    assert_eq!(testbed.report().allowed, 1_000 * PERIODS);
}

#[test]
fn what_cannot_be_kept_is_owed() {
    let mut testbed = Testbed::new();
    testbed.sim.monitor.admit(reserve(3_000)).unwrap();
    testbed.grant(1, 8_000);
    assert!(testbed.share_agent.is_owed());
    assert_eq!(testbed.promised(), [4_000, 0], "half of it can be kept");
    testbed.grant(2, 7_000);
    assert_eq!(testbed.promised(), [3_500; 2]);
    assert!(!testbed.share_agent.is_owed());
    // Of another policy it says nothing.
    let share = Share { tenant: TenantIndex(0), reserved: 0, allowed: u64::MAX };
    testbed.send(ToDataNode::Grant(Grant { revision: 2, serial: 3, shares: vec![share] }));
    assert_eq!(testbed.promised(), [3_500; 2]);
}

/// A share with more reserved and a lower limit: the limit falls, also while the reservation cannot
/// rise yet. The controller learns that it has fallen, and gives the rest to another node.
#[test]
fn a_limit_falls_where_a_reservation_cannot_rise() {
    let mut testbed = Testbed::new();
    testbed.share(1, [2_000 * PERIODS, 9_000 * PERIODS]);
    testbed.sim.monitor.admit(reserve(8_000)).unwrap();
    testbed.share(2, [6_000 * PERIODS, 7_000 * PERIODS]);
    assert!(testbed.share_agent.is_owed());
    let promises = [0, 1].map(SessionSlot).map(|slot| testbed.sim.monitor.promise(slot).unwrap());
    let limit: u64 = promises.iter().map(|promise| promise.limit).sum();
    assert_eq!(limit, 7_000, "{promises:?}");
}

#[test]
fn unmet_demand_is_known_if_every_client_reports_it() {
    let mut testbed = Testbed::new();
    testbed.grant(1, 2_000);
    testbed.sent();
    testbed.run_into_next(Span(2 * GRACE.0));
    for (knowing, unmet_count) in [(0, None), (1, None), (2, Some(1_000)), (0, None)] {
        testbed.sim.clients[..knowing].iter_mut().for_each(|client| client.port.note_unmet(500));
        testbed.run_into_next(Span(2 * GRACE.0));
        let report = testbed.report();
        assert!(report.wants_more, "{report:?}");
        // Words have six bits for each.
        let unmet = report.unmet.map(|unmet| (unmet / PERIODS).next_multiple_of(50));
        assert_eq!(unmet, unmet_count, "{report:?}");
    }
}

#[test]
fn a_tenant_wants_more_that_is_still_busy_at_the_end() {
    let mut testbed = Testbed::new();
    testbed.grant(1, 2_000);
    testbed.sent();
    (0..3).for_each(|_| testbed.run_into_next(Span(2 * GRACE.0)));
    let TenantReport { clients, most, done, wants_more, operations, .. } = testbed.report();
    assert_eq!((clients, most, wants_more), (2, 9_000 * PERIODS, true));
    assert!(done > 9_000 * PERIODS && operations > 9_000, "{done} {operations}");
    // One that has what it wants before the end does not, though it was out of tokens until then.
    for _ in 0..2 {
        testbed.sim.clients.iter_mut().for_each(|client| client.wants = 0);
        testbed.run_into_next(Span(2 * GRACE.0));
    }
    testbed.sim.clients[1].is_stopped = true;
    let before = testbed.report();
    assert!(!before.wants_more && before.done < 100 * PERIODS, "{before:?}");
    testbed.sim.clients[0].wants = 950;
    testbed.run_into_next(Span(2 * GRACE.0));
    let report = testbed.report();
    assert!(!report.wants_more, "{report:?}");
    assert!(report.done.abs_diff(950 * PERIODS) < 100 * PERIODS, "{report:?}");
    assert_eq!(report.missed, before.missed);
}
