//! A node's tenants, before there is a plan and while plans change.

use tidegate_model::policy::Fallback;
use tidegate_model::{Discipline, Event, Iops};
use tidegate_proto::cluster::message::{NodeInfo, Plan, ToNode};
use tidegate_proto::node::{Config, Node, Output};

use crate::one_by_one::OneByOne;
use crate::world::{NodeTestbed, UNATTRIBUTED, at, first_grant, now_grant, plan};

#[test]
fn before_the_first_plan_all_requests_are_unattributed() {
    let config = Config { depth: 2, capacity: Some(Iops(700)), ..Config::default() };
    let info = NodeInfo { name: "n".into(), ..NodeInfo::default() };
    let node = Node::new(at(0), info, config);
    assert_eq!(node.slot("a"), UNATTRIBUTED);
    (0..3).for_each(|job| node.on_request(at(0), UNATTRIBUTED, 0, job));
    let first = node.next_dispatch(at(0)).unwrap();
    assert_eq!((first.body, first.units(), first.slot()), (0, 1, UNATTRIBUTED));
    assert_eq!(node.next_dispatch(at(0)).unwrap().body, 1);
    assert!(node.next_dispatch(at(0)).is_none(), "two at the device");
    node.on_done(at(1), first);
    assert_eq!(node.next_dispatch(at(1)).unwrap().body, 2);
    let status = node.status(at(1));
    assert_eq!((status.name.as_str(), status.period_left_ns), ("n", None));
    assert_eq!((status.in_flight, status.capacity_per_second), (2, 700));
    assert_eq!(status.tenants[0].served_total, 3);
    assert_eq!(node.poll_output(), None);
}

/// Requests that came before the plan are served in turn with those of a tenant that has the whole
/// node reserved, in this period and in the next. A request without a tenant that comes later waits
/// until there are no such requests.
#[test]
fn requests_from_before_the_first_plan_are_served_beside_reserved_ones() {
    let config = Config { depth: 1, ..Config::default() };
    let mut world = NodeTestbed {
        node: Node::new(at(0), NodeInfo { name: "n".into(), ..NodeInfo::default() }, config),
    };
    world.node.on_connected(at(0));
    (0..20).for_each(|job| world.node.on_request(at(0), UNATTRIBUTED, 1, job));
    world.node.on_message(at(0), ToNode::Plan(plan(1, &["a"], Fallback::Keep)));
    world.collect(0, 10, 0).unwrap();
    world.grant(0, first_grant(1, 10, &[(0, 1_000, 0)]));
    world.node.on_request(at(0), UNATTRIBUTED, 1, 99);
    world.push(0, "a", 100..200);
    let next = |now| {
        let next = world.node.next_dispatch(at(now)).unwrap();
        let body = next.body;
        world.node.on_done(at(now), next);
        body
    };
    for now in [10, 1_010] {
        let mut early = 0;
        for _ in 0..20 {
            early += usize::from(next(now) < 20);
        }
        assert_eq!(early, 10, "in turn, at {now} ms");
    }
    let rest: Vec<u32> = (0..81).map(|_| next(1_020)).collect();
    assert!(rest[..80].iter().all(|job| *job >= 100), "{rest:?}");
    assert_eq!(rest[80], 99);
}

#[test]
fn a_plan_keeps_what_stays() {
    let mut world = NodeTestbed::with_plan(plan(1, &["a", "limited", "l2"], Fallback::Keep));
    let old = ["a", "limited", "l2"].map(|name| world.node.slot(name));
    world.grant(0, now_grant(1, 10, 0, &[(0, 7, 0), (1, 0, 4), (2, 9, 9)]));
    world.push(0, "a", 0..2);
    world.push(0, "limited", 10..20);
    world.push(0, "l2", 20..30);
    assert_eq!(world.serve(0), [0, 20, 1, 10]);
    // One leaves, one comes, and indexes change.
    world.node.on_message(at(500), ToNode::Plan(plan(2, &["l2", "new", "a"], Fallback::Keep)));
    assert_eq!(world.node.poll_output(), Some(Output::Event(Event::PolicyApplied { revision: 2 })));
    assert_eq!((world.node.info().revision, world.node.info().revision), (2, 2));
    assert_eq!((world.node.slot("a"), world.node.slot("l2")), (old[0], old[2]));
    assert_eq!(world.node.slot("limited"), UNATTRIBUTED);
    assert!(!old.contains(&world.node.slot("new")) && world.node.slot("new") != UNATTRIBUTED);
    // Grants are void, service stays; waiting requests of the tenant that left are unattributed.
    assert_eq!(world.tenant(500, "a").reserved, 0);
    assert_eq!((world.tenant(500, "a").served, world.tenant(500, "l2").served), (2, 1));
    let (default_tenant, l2) = (world.tenant(500, ""), world.tenant(500, "l2"));
    assert_eq!((default_tenant.waiting, l2.waiting, l2.allowed), (9, 9, Some(0)));
    assert_eq!(world.serve(500), (11..20).collect::<Vec<_>>());
    // A request for the slot of the one that left.
    world.node.on_request(at(501), old[1], 1, 99);
    assert_eq!(world.serve(501), [99]);
    // The same plan again is no new one.
    world.node.on_message(at(502), ToNode::Plan(plan(2, &["l2", "new", "a"], Fallback::Keep)));
    assert_eq!(world.node.poll_output(), None);
}

#[test]
fn another_discipline_changes_the_order_and_nothing_else() {
    let with = |discipline| Plan { discipline, ..plan(1, &["a", "limited"], Fallback::Keep) };
    let mut world = NodeTestbed::with_plan(with(None));
    assert_eq!(world.node.discipline(), Discipline::Token);
    world.grant(0, now_grant(1, 10, 0, &[(0, 1, 0), (1, 0, 4)]));
    world.push(0, "limited", 0..10);
    world.push(0, "a", 10..13);
    world.node.on_message(at(0), ToNode::Plan(with(Some(Discipline::Fifo))));
    assert_eq!((world.node.poll_output(), world.node.plans()), (None, 1));
    assert_eq!(world.node.discipline(), Discipline::Fifo);
    // This discipline limits no tenant; but counts are there for the one that comes next.
    assert_eq!((world.tenant(0, "a").reserved, world.tenant(0, "limited").allowed), (1, Some(4)));
    let first = world.node.next_dispatch(at(0)).unwrap();
    assert_eq!(first.body, 0);
    world.node.on_done(at(0), first);
    world.node.on_message(at(0), ToNode::Plan(with(Some(Discipline::Unified))));
    assert_eq!(world.serve(0), [10, 11, 12], "limited has had what it may have by now");
    world.node.on_message(at(0), ToNode::Plan(with(None)));
    assert_eq!(world.node.discipline(), Discipline::Token);
}

/// A controller that lost its state counts revisions from the beginning: the number is the same,
/// and the tenants are others.
#[test]
fn another_plan_of_the_same_revision_is_taken() {
    let mut world = NodeTestbed::with_plan(plan(1, &["a", "b"], Fallback::Keep));
    world.grant(0, now_grant(1, 10, 0, &[(0, 7, 0), (1, 5, 0)]));
    world.node.on_message(at(500), ToNode::Plan(plan(1, &["b", "c"], Fallback::Keep)));
    assert_eq!(world.node.poll_output(), Some(Output::Event(Event::PolicyApplied { revision: 1 })));
    assert_eq!(world.node.plans(), 2);
    assert_eq!((world.node.slot("a"), world.tenant(500, "b").reserved), (UNATTRIBUTED, 0));
    // A grant by index is for the tenants of the present plan.
    world.grant(500, now_grant(2, 10, 500, &[(0, 4, 0), (1, 3, 0)]));
    assert_eq!(world.tenant(500, "b").reserved, 4);
    assert_eq!(world.tenant(500, "c").reserved, 3);
    world.node.on_message(at(501), ToNode::Plan(plan(1, &["b", "c"], Fallback::Keep)));
    assert_eq!((world.node.poll_output(), world.node.plans()), (None, 2));
}

#[test]
fn another_period_begins_where_the_last_one_did() {
    let world = NodeTestbed::with_plan(plan(1, &["a"], Fallback::Keep));
    let mut shorter = plan(2, &["a"], Fallback::Keep);
    shorter.period.0 /= 2;
    world.node.on_message(at(300), ToNode::Plan(shorter.clone()));
    assert_eq!(world.node.next_deadline(), at(500));
    shorter.revision = 3;
    shorter.period.0 /= 5;
    world.node.on_message(at(320), ToNode::Plan(shorter));
    assert_eq!(world.node.next_deadline(), at(320), "it is over already");
    world.node.advance(at(320));
    assert_eq!(world.node.next_deadline(), at(420));
}

#[test]
fn what_waits_can_be_taken_out() {
    let mut world = NodeTestbed::with_plan(plan(1, &["a", "limited"], Fallback::Keep));
    world.push(0, "a", 0..6);
    world.push(0, "limited", 6..9);
    let at_device = world.node.next_dispatch(at(0)).unwrap();
    let cancelled = world.node.cancel(at(1), |job| job % 2 == 0).into_iter();
    assert_eq!(cancelled.map(|request| request.body).collect::<Vec<_>>(), [2, 4, 6, 8]);
    world.node.on_done(at(1), at_device);
    assert_eq!(world.serve(1), [1, 3, 5]);
    assert_eq!(world.tenant(1, "limited").waiting, 1);
}
