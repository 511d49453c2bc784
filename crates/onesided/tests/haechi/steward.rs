//! The steward between a controller, which says what is kept at a data node, and its monitor.

use tidegate_algo::haechi::Rules;
use tidegate_model::{Iops, Policy, Span};
use tidegate_onesided::data_node::{Book, Hello, Steward, VERSION};
use tidegate_onesided::haechi::Event;
use tidegate_onesided::haechi::monitor::GRACE;
use tidegate_proto::cluster::message::Share;
use tidegate_proto::data_node::{FromDataNode, Grant, TenantReport, ToDataNode};

use super::world::{LOCAL, PERIOD, World, percent, reserve};

/// Periods in a second.
const PERIODS: u64 = Span::SECOND.0 / PERIOD.0;

/// A data node with two clients of one tenant.
struct Stand {
    world: World,
    steward: Steward,
    /// Events that the steward has seen.
    seen: usize,
}

impl Stand {
    fn new() -> Self {
        let world = World::new(Rules::SOUND, &[reserve(0), reserve(0)]);
        let mut book = Book::new(PERIOD, Iops(LOCAL * PERIODS));
        for seat in 0..2 {
            let hello = Hello {
                version: VERSION,
                tenant: "t".into(),
                reservation: None,
                limit: None,
                parts: 2,
                seat: None,
                is_bare: false,
            };
            book.seat(seat, "t", &hello);
        }
        let mut stand = Self { world, steward: Steward::new(book), seen: 0 };
        let text = "[[tenant]]\nname = \"t\"\nreservation = \"90k iops\"";
        let policy = Policy::parse(text).unwrap();
        stand.hear(ToDataNode::Policy { revision: 1, policy });
        stand
    }

    fn hear(&mut self, message: ToDataNode) {
        self.steward.on_message(message, &mut self.world.monitor);
    }

    /// So much of every period is kept here from now on.
    fn grant(&mut self, serial: u64, reserved: u64) {
        let share = Share { tenant: 0, reserved: reserved * PERIODS, allowed: u64::MAX };
        self.hear(ToDataNode::Grant(Grant { revision: 1, serial, shares: vec![share] }));
    }

    fn run_into_next(&mut self, span: Span) {
        self.world.run_into_next(span);
        for event in &self.world.events[self.seen..] {
            if let Event::Over(summary) = event {
                self.steward.on_period(summary);
            }
        }
        self.seen = self.world.events.len();
    }

    fn said(&mut self) -> Vec<FromDataNode> {
        std::iter::from_fn(|| self.steward.poll_output()).collect()
    }

    fn promised(&self) -> [u64; 2] {
        [0, 1].map(|seat| self.world.monitor.promise(seat).unwrap().reservation)
    }

    fn report(&mut self) -> TenantReport {
        self.hear(ToDataNode::Collect { round: 7 });
        match &self.said()[..] {
            [FromDataNode::Report(report)] => {
                assert_eq!((report.round, report.revision, report.seats), (7, 1, 2));
                report.tenants[0]
            }
            said => panic!("{said:?}"),
        }
    }
}

fn granted(serial: u64) -> FromDataNode {
    FromDataNode::Granted { serial }
}

#[test]
fn a_share_that_falls_is_confirmed_when_it_has() {
    let mut stand = Stand::new();
    stand.grant(1, 4_000);
    assert_eq!(stand.said(), [granted(1)], "nobody had anything");
    assert_eq!(stand.promised(), [2_000; 2]);
    stand.run_into_next(percent(30));
    stand.run_into_next(percent(30));
    // A falling share is in force as it was until the period is over, and is reported so.
    stand.grant(2, 1_000);
    stand.grant(3, 1_200);
    assert_eq!(stand.said(), []);
    assert_eq!(stand.report().reserved, 4_000 * PERIODS);
    stand.run_into_next(Span::ZERO);
    assert_eq!(stand.said(), [], "nobody knows that it has begun");
    stand.run_into_next(Span(2 * GRACE.0));
    assert_eq!(stand.said(), [granted(3)]);
    assert_eq!(stand.report().reserved, 1_200 * PERIODS);
    assert_eq!(stand.promised(), [600; 2]);
    // A rising share takes nothing from any client.
    stand.grant(4, 2_000);
    assert_eq!(stand.said(), [granted(4)]);
    // After a new connection the node confirms no grant of the former one.
    stand.grant(5, 1_000);
    stand.steward.on_connected();
    stand.run_into_next(Span(2 * GRACE.0));
    assert_eq!(stand.said(), [granted(0)]);
    assert_eq!(stand.report().reserved, 1_000 * PERIODS);
}

#[test]
fn what_cannot_be_kept_is_owed() {
    let mut stand = Stand::new();
    stand.world.monitor.admit(reserve(3_000)).unwrap();
    stand.grant(1, 8_000);
    assert!(stand.steward.is_owed());
    assert_eq!(stand.promised(), [4_000, 0], "half of it can be kept");
    stand.grant(2, 7_000);
    assert_eq!(stand.promised(), [3_500; 2]);
    assert!(!stand.steward.is_owed());
    // Of another policy it says nothing.
    let share = Share { tenant: 0, reserved: 0, allowed: u64::MAX };
    stand.hear(ToDataNode::Grant(Grant { revision: 2, serial: 3, shares: vec![share] }));
    assert_eq!(stand.promised(), [3_500; 2]);
}

#[test]
fn how_much_more_is_known_if_all_who_want_it_say_so() {
    let mut stand = Stand::new();
    stand.grant(1, 2_000);
    stand.said();
    stand.run_into_next(Span(2 * GRACE.0));
    for (knowing, told) in [(0, None), (1, None), (2, Some(1_000)), (0, None)] {
        stand.world.clients[..knowing].iter_mut().for_each(|client| client.port.note_unmet(500));
        stand.run_into_next(Span(2 * GRACE.0));
        let report = stand.report();
        assert!(report.wants_more, "{report:?}");
        // Words have six bits for each.
        let unmet = report.unmet.map(|unmet| (unmet / PERIODS).next_multiple_of(50));
        assert_eq!(unmet, told, "{report:?}");
    }
}

#[test]
fn a_tenant_wants_more_that_is_still_busy_at_the_end() {
    let mut stand = Stand::new();
    stand.grant(1, 2_000);
    stand.said();
    (0..3).for_each(|_| stand.run_into_next(Span(2 * GRACE.0)));
    let TenantReport { clients, most, done, wants_more, operations, .. } = stand.report();
    assert_eq!((clients, most, wants_more), (2, 9_000 * PERIODS, true));
    assert!(done > 9_000 * PERIODS && operations > 9_000, "{done} {operations}");
    // One that has what it wants before the end does not, though it was out of tokens until then.
    for _ in 0..2 {
        stand.world.clients.iter_mut().for_each(|client| client.wants = 0);
        stand.run_into_next(Span(2 * GRACE.0));
    }
    stand.world.clients[1].is_stopped = true;
    let before = stand.report();
    assert!(!before.wants_more && before.done < 100 * PERIODS, "{before:?}");
    stand.world.clients[0].wants = 950;
    stand.run_into_next(Span(2 * GRACE.0));
    let report = stand.report();
    assert!(!report.wants_more, "{report:?}");
    assert!(report.done.abs_diff(950 * PERIODS) < 100 * PERIODS, "{report:?}");
    assert_eq!(report.missed, before.missed);
}
