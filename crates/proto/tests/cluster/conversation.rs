//! Messages, their times, and their effects.

use tidegate_model::{Event, Span, Time};
use tidegate_proto::cluster::message::{NodeInfo, ToNode};
use tidegate_proto::cluster::{LEASE, NodeSetup, Setup};
use tidegate_proto::controller::{ConnectionId, Controller, Output, Peer, ToPeer};
use tidegate_proto::message::{Hello, VERSION};
use tidegate_sim::cluster::ClusterTestbed;
use tidegate_sim::simulation::Fault;

use crate::{MS, slow};

const PERIOD: Span = Span(Span::SECOND.0);

fn policy(tenants: &str) -> String {
    format!("period = \"1s\"\nredistribute = \"200ms\"\ntenant = [{tenants}]")
}

const GOLD: &str = "{ name = \"gold\", reservation = \"1k iops\" }, { name = \"base\" }";

#[test]
fn a_limit_is_used_up_and_not_exceeded_while_demand_moves() {
    let mut world = ClusterTestbed::new(&policy("{ name = \"t\", limit = \"900 iops\" }"), 1000, 3);
    for second in 0..6 {
        for node in 0..3 {
            world.demand(node, "t", if node == second % 3 { 1000 } else { 100 });
        }
        world.run(PERIOD);
    }
    // The testbed has checked that it is never more.
    let served: u64 = (4..6).map(|period| world.served(period, "t")).sum();
    assert!(served >= 1800 - 90, "served {served} of 1800");
}

#[test]
fn a_silent_nodes_part_is_moved_when_its_lease_is_over() {
    let mut world = ClusterTestbed::new(&policy(GOLD), 1500, 2);
    for node in 0..2 {
        world.demand(node, "gold", 800);
        world.demand(node, "base", 2000);
    }
    world.run(Span(3 * PERIOD.0));
    world.befall(Fault::Cut(0, true));
    world.demand(1, "gold", 1200);
    let periods = u64::from(LEASE) + 3;
    world.run(Span(periods * PERIOD.0));
    assert!(
        world
            .events()
            .iter()
            .any(|event| matches!(event, Event::NodeSilent { is_silent: true, .. }))
    );
    // All of the promise is kept at the other node alone.
    let status = world.node(1);
    assert_eq!(status.tenants[1].reserved, 1000, "{status:?}");
    world.befall(Fault::Cut(0, false));
    world.run(Span(2 * PERIOD.0));
    assert!(world.status().nodes.iter().all(|node| !node.is_silent));
    let status = world.node(0);
    assert!(!status.is_abandoned && status.lease_periods > 0, "{status:?}");
}

/// Tokens without demand wait at a tenant's nodes alike, also at one whose process is new.
#[test]
fn a_node_that_returns_gets_its_share_of_tokens_without_demand() {
    let mut world = ClusterTestbed::new(&policy(GOLD), 2_000, 2);
    world.run(Span(3_000 * MS));
    world.befall(Fault::Dies(0));
    world.run(Span(5_000 * MS));
    world.befall(Fault::Returns(0));
    world.run(Span(5_000 * MS));
    for node in 0..2 {
        assert_eq!(world.node(node).tenants[1].reserved, 500);
    }
}

#[test]
fn a_new_controller_leaves_in_force_what_is_until_leases_are_over() {
    let tenants = "{ name = \"gold\", reservation = \"1k iops\", limit = \"1200 iops\" },\n\
                   { name = \"base\" }";
    let mut world = ClusterTestbed::new(&policy(tenants), 1500, 2);
    for node in 0..2 {
        world.demand(node, "gold", 700);
        world.demand(node, "base", 2000);
    }
    world.run(Span(3 * PERIOD.0 + 450 * MS));
    world.befall(Fault::ControllerDies);
    world.run(Span(300 * MS));
    world.befall(Fault::ControllerReturns);
    // The demand moves to one node; the new controller moves the tokens after it.
    world.demand(0, "gold", 200);
    world.demand(1, "gold", 1200);
    world.run(Span(6 * PERIOD.0));
    let served = world.served(8, "gold");
    assert!((980..=1200).contains(&served), "served {served}");
}

/// A process that served under an earlier run of the controller has used an unknown part of the
/// limit. The process that follows it is given nothing of this period, and all of the next.
#[test]
fn a_process_that_a_new_controller_never_knew_used_its_part() {
    let mut world = ClusterTestbed::new(&policy("{ name = \"t\", limit = \"900 iops\" }"), 1000, 1);
    world.demand(0, "t", 2000);
    world.run(Span(3 * PERIOD.0 + 500 * MS));
    world.befall(Fault::ControllerDies);
    world.run(Span(100 * MS));
    world.befall(Fault::ControllerReturns);
    // The fifth period has begun, and the process has served in it.
    world.run(Span(500 * MS));
    world.befall(Fault::Dies(0));
    world.run(Span(100 * MS));
    world.befall(Fault::Returns(0));
    // The testbed has checked that it is never more.
    world.run(Span(2 * PERIOD.0));
    let served = [4, 5].map(|period| world.served(period, "t"));
    assert!((50..=200).contains(&served[0]), "{served:?}");
    assert!((850..=900).contains(&served[1]), "{served:?}");
}

/// The controller and all nodes forget what was used of the period's limit. So nothing more of it
/// is given out; all of the next period's is.
#[test]
fn a_limit_is_not_given_out_again_when_the_controller_and_all_nodes_restart_in_a_period() {
    let mut world = ClusterTestbed::new(&policy("{ name = \"t\", limit = \"900 iops\" }"), 1000, 2);
    (0..2).for_each(|node| world.demand(node, "t", 1000));
    world.run(Span(3 * PERIOD.0 + 500 * MS));
    let before = world.served(3, "t");
    world.befall(Fault::ControllerDies);
    (0..2).for_each(|node| world.befall(Fault::Dies(node)));
    world.befall(Fault::ControllerReturns);
    (0..2).for_each(|node| world.befall(Fault::Returns(node)));
    // The testbed checks that it is never more.
    world.run(Span(2 * PERIOD.0));
    let served = [3, 4].map(|period| world.served(period, "t"));
    assert!(before >= 400 && served[0] <= before + 100, "{before}, {served:?}");
    assert!((850..=900).contains(&served[1]), "{served:?}");
}

/// A process that dies has served requests since its last report. Until the period ends no other
/// node is given the part of the reservation that they may have used; then all of it is in force.
#[test]
fn a_process_that_dies_used_its_part_of_a_reservation() {
    let mut world = ClusterTestbed::new(&policy(GOLD), 2_000, 2);
    (0..2).for_each(|node| world.demand(node, "gold", 400));
    world.run(Span(3 * PERIOD.0 + 590 * MS));
    assert_eq!([0, 1].map(|node| world.node(node).tenants[1].reserved), [500; 2]);
    world.befall(Fault::Dies(0));
    world.befall(Fault::Returns(0));
    // The testbed has checked that no more is reserved, the dead process included.
    world.run(Span(400 * MS));
    let reserved = [0, 1].map(|node| world.node(node).tenants[1].reserved);
    assert_eq!(reserved.iter().sum::<u64>(), 500, "{reserved:?}");
    world.run(Span(300 * MS));
    let reserved = [0, 1].map(|node| world.node(node).tenants[1].reserved);
    assert_eq!(reserved.iter().sum::<u64>(), 1_000, "{reserved:?}");
}

#[test]
fn a_lower_limit_holds_from_the_next_interval_on() {
    let with = |limit| policy(&format!("{{ name = \"t\", limit = \"{limit} iops\" }}"));
    let mut world = ClusterTestbed::new(&with(1000), 1500, 2);
    world.links(slow(1, 3));
    (0..2).for_each(|node| world.demand(node, "t", 800));
    world.run(Span(2 * PERIOD.0 + 310 * MS));
    let before = world.served(2, "t");
    world.unchecked_until = 3;
    world.apply(&with(300));
    world.run(Span(500 * MS));
    let after = world.served(2, "t");
    assert!(before > 300 && after <= before + 1600 / 5, "{before}, then {after}");
    world.run(Span(2 * PERIOD.0));
    assert!((290..=300).contains(&world.served(3, "t")), "{}", world.served(3, "t"));
}

#[test]
fn a_period_of_another_length_begins_where_the_last_one_ends() {
    let policy = |period| {
        format!(
            "period = \"{period}ms\"\nredistribute = \"50ms\"\n\
             tenant = [{{ name = \"t\", limit = \"1k iops\" }}]"
        )
    };
    let mut world = ClusterTestbed::new(&policy(1000), 1500, 2);
    (0..2).for_each(|node| world.demand(node, "t", 800));
    world.run(Span(2 * PERIOD.0 + 310 * MS));
    world.unchecked_until = 4;
    world.apply(&policy(200));
    let at = world.status();
    assert_eq!((at.period, at.into_ns), (3, 0), "what is over by the new measure ends");
    world.run(Span(900 * MS));
    assert!((190..=200).contains(&world.served(5, "t")), "{}", world.served(5, "t"));
}

#[test]
fn what_cannot_be_met_is_named() {
    let tenants = "{ name = \"gold\", reservation = \"900 iops\" },\n\
                   { name = \"silver\", reservation = \"900 iops\" }";
    let mut world = ClusterTestbed::new(&policy(tenants), 1000, 3);
    world.demand(1, "gold", 1500);
    world.demand(1, "silver", 1500);
    world.run(Span(3 * PERIOD.0 + 100 * MS));
    let short = world.status().shortfall.unwrap();
    assert_eq!(short.nodes, ["n1"]);
    assert!(short.line.starts_with("n1 can do "), "{}", short.line);
    let of = |tenant: &str| world.served(2, tenant);
    assert!(of("gold").abs_diff(of("silver")) < 100, "{} and {}", of("gold"), of("silver"));
    let is_gold = |event: &Event| match event {
        Event::ReservationMissed { tenant, .. } => tenant == "gold",
        _ => false,
    };
    assert!(world.events().iter().any(is_gold));
}

/// A client that stops between the last report and the end of a period was expected to go on.
#[test]
fn a_client_that_asks_for_less_than_was_expected_misses_nothing() {
    let mut world = ClusterTestbed::new(&policy(GOLD), 1500, 2);
    world.demand(0, "gold", 1010);
    world.run(Span(3 * PERIOD.0 - 60 * MS));
    world.demand(0, "gold", 0);
    world.run(Span(2 * PERIOD.0));
    let served = world.served(2, "gold");
    assert!((900..990).contains(&served), "{served}");
    let missed = world.events().iter().filter(|it| matches!(it, Event::ReservationMissed { .. }));
    assert_eq!(missed.count(), 0, "none of its requests waited");
}

#[test]
fn communication_takes_less_than_a_hundredth_of_the_period() {
    let tenants: Vec<String> = (0..200)
        .map(|n| format!("{{ name = \"t{n}\", reservation = \"20 iops\", limit = \"50 iops\" }}"))
        .collect();
    let mut world = ClusterTestbed::new(&policy(&tenants.join(",")), 1000, 8);
    for tenant in 0..200 {
        for node in 0..4 {
            let rate = 10 + u32::from(node);
            world.demand((tenant * 3 + node) % 8, &format!("t{tenant}"), rate);
        }
    }
    world.is_watched = false;
    world.run(Span(3 * PERIOD.0 + 100 * MS));
    let traffic = world.status().traffic;
    // Of the 125 MB that a link of one gigabit per second carries in the period.
    assert!((1..1_250_000).contains(&traffic.bytes), "{traffic:?}");
    assert!(traffic.messages <= 8 * (6 * 6 + 4), "{traffic:?}");
}

#[test]
fn strangers_and_other_versions_are_refused() {
    let nodes = vec![NodeSetup { name: "a".into(), ..NodeSetup::default() }];
    let mut cluster = Controller::of_nodes(Time::ZERO, Setup { nodes, ..Setup::default() }, None);
    let info = |name: &str| NodeInfo { name: name.into(), ..NodeInfo::default() };
    for (version, name) in [(VERSION, "b"), (VERSION + 1, "a")] {
        let hello = Hello::Node { version, info: info(name) };
        cluster.on_hello(Time::ZERO, ConnectionId(1), Peer::default(), hello);
        let sent = cluster.poll_output();
        let Some(Output::Send { message: ToPeer::Node(ToNode::Refused { .. }), .. }) = sent else {
            panic!("{sent:?}")
        };
        assert_eq!(cluster.poll_output(), Some(Output::Close { connection: ConnectionId(1) }));
        assert!(matches!(cluster.poll_output(), Some(Output::Event(Event::NodeRefused { .. }))));
    }
}

#[test]
fn a_period_that_does_not_divide_rounds_for_the_promise() {
    let text = "period = \"333ms\"\nredistribute = \"100ms\"\n\
                tenant = [{ name = \"t\", reservation = \"10 iops\", limit = \"20 iops\" },\n\
                          { name = \"s\", reservation = \"10 iops\", limit = \"10 iops\" }]";
    let status = ClusterTestbed::new(text, 100, 1).status();
    let (t, s) = (&status.tenants[0], &status.tenants[1]);
    assert_eq!((t.reserved_operations, t.limit_operations), (4, Some(6)));
    assert_eq!((s.reserved_operations, s.limit_operations), (3, Some(3)));
}
