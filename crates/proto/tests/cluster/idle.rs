//! Questions and messages of an idle cluster follow changes.

use tidegate_model::{Event, Span};
use tidegate_proto::cluster::LEASE;
use tidegate_proto::cluster::message::ToNode;
use tidegate_sim::cluster::ClusterTestbed;
use tidegate_sim::link::Conduct;
use tidegate_sim::simulation::Fault;

use crate::MS;

const PERIOD: Span = Span(Span::SECOND.0);

/// So many tenants, of which each second one is limited.
fn policy(tenants: usize) -> String {
    let tenant = |at: usize| match at % 2 {
        0 => format!("{{ name = \"t{at}\", reservation = \"50 iops\" }}"),
        _ => format!("{{ name = \"t{at}\", limit = \"300 iops\" }}"),
    };
    let tenants: Vec<String> = (0..tenants).map(tenant).collect();
    format!("period = \"1s\"\nredistribute = \"200ms\"\ntenant = [{}]", tenants.join(","))
}

/// Two nodes, at which nothing has come for some periods.
fn idle(tenants: usize) -> ClusterTestbed {
    let mut world = ClusterTestbed::new(&policy(tenants), 1000, 2);
    world.is_watched = tenants < 10;
    world.run(Span(3 * PERIOD.0 + 50 * MS));
    world.forget_sent();
    world
}

/// Says what a node is to say: how many of its controller's messages are of this kind.
fn count(world: &ClusterTestbed, is: impl Fn(&ToNode) -> bool) -> usize {
    world.sent().filter(|message| is(message)).count()
}

const COLLECT: fn(&ToNode) -> bool = |message| matches!(message, ToNode::Collect { .. });
const GRANT: fn(&ToNode) -> bool = |message| matches!(message, ToNode::Grant(_));
const RENEWAL: fn(&ToNode) -> bool = |message| matches!(message, ToNode::Renew { .. });

#[test]
fn an_idle_node_costs_four_short_messages_in_a_period_whatever_the_number_of_tenants() {
    for tenants in [3, 500] {
        let mut world = idle(tenants);
        world.run(PERIOD);
        assert_eq!([COLLECT, GRANT, RENEWAL].map(|kind| count(&world, kind)), [2, 0, 2]);
        let traffic = world.status().traffic;
        assert_eq!(traffic.messages, 2 * 4, "{traffic:?}");
        assert!(traffic.bytes < 2 * 100, "{traffic:?}");
        // All have what they are promised, and go on to.
        world.run(Span(5 * PERIOD.0));
        for node in 0..2 {
            let status = world.node(node);
            assert_eq!((status.lease_periods, status.is_abandoned), (LEASE, false));
            assert_eq!((status.tenants[1].reserved, status.tenants[2].allowed), (25, Some(150)));
        }
    }
}

#[test]
fn only_what_changes_is_renewed_while_one_tenant_of_many_is_busy() {
    let mut world = idle(500);
    world.demand(0, "t7", 100);
    world.run(Span(3 * PERIOD.0));
    world.forget_sent();
    world.run(PERIOD);
    let traffic = world.status().traffic;
    assert!(traffic.bytes < 2_000, "{traffic:?}");
    assert_eq!(count(&world, COLLECT), 7, "the idle node is asked once");
}

#[test]
fn a_tenant_that_wakes_has_its_tokens_within_an_interval() {
    // Whenever it wakes, and for how long no tenant had asked for anything.
    for moment in [1, 99, 150, 199, 270, 560, 790, 810, 970, 999] {
        let mut world = idle(3);
        world.run(Span(2 * PERIOD.0 + (moment + 950) * MS));
        let begun = world.status().period;
        let reserved = |world: &ClusterTestbed| world.node(1).tenants[1].reserved;
        assert_eq!(reserved(&world), 25, "half of it waits at each node");
        world.demand(1, "t0", 200);
        // To the next distribution, and what that takes.
        let mut waited = 0;
        while reserved(&world) < 45 && waited < 1_000 {
            world.run(Span(5 * MS));
            waited += 5;
        }
        assert!(waited <= 200 + 20, "{waited} ms after {moment} ms of period {begun}");
    }
}

#[test]
fn an_idle_node_that_is_cut_off_falls_back_when_its_lease_is_over_and_is_silent() {
    let mut world = idle(3);
    world.befall(Fault::Cut(0, true));
    let cut_at = world.status().period;
    let is_abandoned = |world: &ClusterTestbed, node| world.node(node).is_abandoned;
    // A lease that was given in the period before holds for this one and two more.
    world.run(Span(u64::from(LEASE) * PERIOD.0));
    assert!(!is_abandoned(&world, 0));
    let silent = |event: &Event| matches!(event, Event::NodeSilent { is_silent: true, .. });
    assert!(world.events().iter().any(silent), "its controller has noticed");
    world.run(PERIOD);
    assert!(is_abandoned(&world, 0), "{} periods after {cut_at}", LEASE + 1);
    // Its tokens go to the other node once it can have been granted no more.
    world.run(Span(3 * PERIOD.0));
    let status = world.node(1);
    assert_eq!((status.tenants[1].reserved, status.tenants[2].allowed), (50, Some(300)));
    world.befall(Fault::Cut(0, false));
    world.run(Span(3 * PERIOD.0));
    let status = world.node(0);
    assert_eq!((status.tenants[1].reserved, status.is_abandoned), (25, false));
}

/// A node that was cut off for long takes a grant in the middle of a period. What it served before
/// is not bound by the controller's counts, and a check that looks at it only then knows that.
#[test]
fn a_lease_that_was_over_in_a_period_is_known_after_the_next_grant() {
    let mut world = idle(3);
    world.befall(Fault::Cut(0, true));
    world.run(Span(5 * PERIOD.0));
    let period = world.node(0).period;
    world.run(Span(world.node(0).period_left_ns.unwrap() + MS));
    world.befall(Fault::Cut(0, false));
    world.run(Span(PERIOD.0 / 2));
    let was_abandoned =
        |world: &ClusterTestbed| world.statuses()[0].1.clone().unwrap().is_abandoned;
    let status = world.node(0);
    assert_eq!((status.period, status.is_abandoned), (period + 1, false));
    assert!(was_abandoned(&world));
    world.run(PERIOD);
    assert_eq!(world.node(0).period, period + 2);
    assert!(!was_abandoned(&world));
}

#[test]
fn a_renewal_that_is_lost_is_followed_by_all_counts() {
    let mut world = idle(3);
    // Until the last distribution of the period, and beyond its once more.
    world.run(Span(745 * MS));
    world.links(Conduct { lost: 1_000_000, ..Conduct::default() });
    world.run(Span(150 * MS));
    assert_eq!(count(&world, RENEWAL) + count(&world, GRANT), 2, "they are sent, and lost");
    world.links(Conduct::default());
    world.forget_sent();
    world.run(Span(2 * PERIOD.0));
    assert!(count(&world, GRANT) >= 2, "{:?}", world.sent().collect::<Vec<_>>());
    world.forget_sent();
    world.run(Span(2 * PERIOD.0));
    assert_eq!(count(&world, GRANT), 0, "they are renewed again");
    for node in 0..2 {
        let status = world.node(node);
        assert_eq!((status.tenants[1].reserved, status.lease_periods), (25, LEASE));
    }
}

#[test]
fn a_process_that_returns_to_an_idle_cluster_has_its_part_soon() {
    let mut world = idle(3);
    world.befall(Fault::Dies(0));
    world.run(Span(20 * MS));
    world.befall(Fault::Returns(0));
    world.run(Span(2 * PERIOD.0));
    let status = world.node(0);
    assert_eq!((status.tenants[1].reserved, status.tenants[2].allowed), (25, Some(150)));
    world.forget_sent();
    world.run(PERIOD);
    assert_eq!(world.status().traffic.messages, 2 * 4, "and rests like the others");
}
