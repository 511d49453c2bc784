//! The beginnings of periods, the counts in force without messages, and the reports.

use tidegate_model::policy::Fallback;
use tidegate_model::{Discipline, PeriodNumber, Span, TenantIndex, Time};
use tidegate_proto::cluster::message::{FromNode, Grant, Plan, RoundId, TenantReport, ToNode};
use tidegate_proto::node::Output;

use crate::world::{MS, NodeTestbed, at, first_grant, now_grant, plan};

#[test]
fn periods_begin_by_themselves() {
    let world = NodeTestbed::with_plan(plan(1, &["a"], Fallback::Keep));
    let period = |world: &NodeTestbed, now| world.node.status(at(now)).period;
    assert_eq!(world.period_end(0), at(1_000));
    world.node.advance(at(1_000));
    assert_eq!((period(&world, 1_000), world.period_end(1_000)), (11, at(2_000)));
    // A deadline that comes late does not move the periods.
    world.node.advance(at(2_030));
    assert_eq!((period(&world, 2_030), world.period_end(2_030)), (12, at(3_000)));
    // A machine that slept.
    world.node.advance(at(86_400_500));
    assert_eq!(period(&world, 86_400_500), 10 + 86_400);
    assert_eq!(world.period_end(86_400_500), at(86_401_000));
}

#[test]
fn a_controller_sets_the_clock() {
    let mut world = NodeTestbed::with_plan(plan(1, &["a"], Fallback::Keep));
    // The controller has begun the next one.
    assert!(world.collect(990, 11, 3).is_some());
    assert_eq!(world.period_end(990), at(1_987));
    // Messages are on their way for a while: the earliest beginning of a period is believed.
    assert!(world.collect(1_200, 11, 190).is_some());
    assert_eq!(world.period_end(1_200), at(1_987));
    assert!(world.collect(1_400, 11, 415).is_some());
    assert_eq!(world.period_end(1_400), at(1_985));
    // The node begins the next one first: it reports no other, and waits for the controller.
    world.node.advance(at(1_985));
    assert!(world.collect(1_988, 11, 990).is_none());
    assert_eq!(world.period_end(1_988), at(2_998));
    // Grants carry the time as well.
    world.grant(2_010, now_grant(1, 12, 14, &[]));
    assert_eq!(world.period_end(2_010), at(2_996));
    // Another controller, another count of periods: what was served stays.
    world.push(2_100, "a", 0..3);
    world.serve(2_100);
    world.node.on_connected(at(2_200));
    let report = world.collect(2_200, 1_790_000_000, 700).unwrap();
    assert_eq!(report.tenants[0].served, 3);
    assert_eq!(world.period_end(2_200), at(2_500));
}

/// On a new connection, the first message is of the period that has ended while it was on its way.
#[test]
fn a_late_message_on_a_new_connection_does_not_bring_a_period_back() {
    let mut world = NodeTestbed::with_plan(plan(1, &["limited"], Fallback::Keep));
    world.grant(500, first_grant(1, 11, &[(0, 20, 30)]));
    world.node.advance(at(1_000));
    world.push(1_010, "limited", 0..9);
    world.node.on_connected(at(1_020));
    assert!(world.collect(1_030, 10, 990).is_none(), "the period is over here");
    let status = world.node.status(at(1_030));
    assert_eq!(status.period, 11);
    // The period ends when that of the controller does, as far as the message says.
    assert_eq!(world.period_end(1_030), at(2_040));
    assert!(world.collect(1_040, 11, 30).is_some());
    assert_eq!(world.period_end(1_040), at(2_010));
}

/// Limit and reservation of a limited tenant in each period after the last message.
fn in_silence(fallback: Fallback) -> Vec<(Option<u64>, u64)> {
    let mut world = NodeTestbed::with_plan(plan(1, &["limited"], fallback));
    world.grant(500, first_grant(1, 11, &[(0, 20, 30)]));
    world.grant(1_500, now_grant(2, 11, 500, &[(0, 10, 99)]));
    world.node.on_disconnected(at(1_600));
    let counts = |period: u64| {
        world.node.advance(at(period * 1_000));
        let tenant = world.tenant(period * 1_000, "limited");
        (tenant.allowed, tenant.reserved)
    };
    (2..6).map(counts).collect()
}

#[test]
fn a_lease_ends_in_the_fallback_of_the_policy() {
    let held = (Some(30), 20);
    let then = |allowed| vec![held, held, (allowed, 0), (allowed, 0)];
    assert_eq!(in_silence(Fallback::Keep), then(Some(30)));
    assert_eq!(in_silence(Fallback::Reservation), then(Some(20)));
    assert_eq!(in_silence(Fallback::Unlimited), then(None));
}

#[test]
fn a_node_that_never_had_a_grant_keeps_no_tenant_waiting() {
    let mut world = NodeTestbed::with_plan(plan(1, &["limited"], Fallback::Keep));
    world.push(0, "limited", 0..3);
    assert_eq!((world.serve(999), world.serve(1_999)), (vec![], vec![]));
    assert_eq!(world.serve(2_000), [0, 1, 2]);
    assert!(world.node.status(at(2_000)).is_abandoned);
    // The first grant ends it, for tenants that it does not name as well.
    world.grant(2_100, now_grant(1, 12, 100, &[]));
    world.push(2_100, "limited", 3..5);
    assert!(world.serve(2_200).is_empty());
    assert!(!world.node.status(at(2_200)).is_abandoned);
}

#[test]
fn connections_come_and_go_and_requests_do_not_notice() {
    let mut world = NodeTestbed::with_plan(plan(1, &["limited"], Fallback::Keep));
    world.grant(0, first_grant(1, 10, &[(0, 0, 1_000)]));
    world.push(0, "limited", 0..1_000);
    let mut served = Vec::new();
    for step in 1..1_000 {
        match step {
            300 | 700 => world.node.on_disconnected(at(step)),
            500 | 900 => world.node.on_connected(at(step)),
            _ => {}
        }
        served.push(world.serve(step).len());
    }
    assert_eq!(served.iter().sum::<usize>(), 1_000);
    assert!(served[1..].iter().all(|served| *served == 1), "{served:?}");
    // Messages to a controller that is gone are dropped.
    let round_id = RoundId { period: PeriodNumber(10), round: 4 };
    let collect = ToNode::Collect { round_id, into: Span(999 * MS), complete: true };
    world.node.on_message(at(999), collect);
    world.node.on_disconnected(at(999));
    assert_eq!(world.node.poll_output(), None);
    assert!(world.node.end(at(999)).is_empty());
    assert_eq!(world.node.poll_output(), Some(Output::Send(FromNode::Disconnect)));
}

#[test]
fn reports_are_differential_or_complete() {
    let mut world = NodeTestbed::with_plan(plan(1, &["a", "b", "c"], Fallback::Keep));
    let report = |world: &mut NodeTestbed, now: u64, complete| {
        let round_id = RoundId { period: PeriodNumber(now / 1_000 + 10), round: 7 };
        let collect = ToNode::Collect { round_id, into: Span(now % 1_000 * MS), complete };
        world.node.on_message(at(now), collect);
        match world.node.poll_output() {
            Some(Output::Send(FromNode::Report(report))) => {
                assert_eq!((report.round_id, report.revision), (round_id, 1));
                report
            }
            other => panic!("{other:?}"),
        }
    };
    let row = |tenant, served, expected| TenantReport {
        tenant,
        served,
        expected,
        waiting: 0,
        is_elastic: false,
    };
    // 3 and 5 in 200 ms, extrapolated to 800 ms more.
    world.push(100, "a", 0..3);
    world.push(100, "b", 0..5);
    world.serve(100);
    let tenants = [row(TenantIndex(0), 3, 12), row(TenantIndex(1), 5, 20)];
    assert_eq!(report(&mut world, 200, true).tenants, tenants);
    // Nothing came. Instead of 3 that may be chance, and half of that is expected for 600 ms;
    // instead of 5 it is none. Asked again, nothing has changed.
    let tenants = [row(TenantIndex(0), 3, 4), row(TenantIndex(1), 5, 0)];
    assert_eq!(report(&mut world, 400, false).tenants, tenants);
    assert_eq!(report(&mut world, 400, false).tenants, []);
    assert_eq!(report(&mut world, 400, true).tenants, tenants);
    world.push(500, "b", 5..6);
    world.serve(500);
    assert_eq!(
        report(&mut world, 600, false).tenants,
        [row(TenantIndex(0), 3, 0), row(TenantIndex(1), 6, 2)]
    );
    // The next period: what was served in the last one is in a complete report.
    let first = report(&mut world, 1_000, true);
    assert_eq!(
        (first.tenants[0].served, first.before),
        (0, vec![(TenantIndex(0), 3), (TenantIndex(1), 6)])
    );
    // Capacity to the end of the period: never busy, so what is believed of unknown devices.
    assert_eq!(first.capacity_left, 1_000_000);
    assert_eq!(report(&mut world, 1_500, false).capacity_left, 500_000);
}

/// A node whose plan was lost says so whenever it is asked.
#[test]
fn without_the_controllers_plan_there_is_an_answer() {
    let mut world = NodeTestbed::with_plan(plan(0, &["a"], Fallback::Keep));
    assert_eq!((world.node.next_deadline(), world.node.info().revision), (Time::MAX, 0));
    assert_eq!(world.collect(5, 7, 0).map(|report| report.revision), Some(0));
    let mut world = NodeTestbed::with_plan(plan(1, &["a"], Fallback::Keep));
    world.push(10, "a", 0..1);
    world.serve(10);
    // Periods became longer, and so have smaller numbers.
    let report = world.collect(20, 3, 0).unwrap();
    assert_eq!((report.revision, report.tenants), (1, vec![]));
}

#[test]
fn a_late_first_grant_revives_nothing_of_a_lease_that_is_over() {
    let mut world = NodeTestbed::with_plan(plan(1, &["a", "l", "lesser"], Fallback::Keep));
    world.grant(900, first_grant(1, 11, &[(1, 0, 5), (2, 0, 7)]));
    // Two periods more, and one in which nothing holds but the fallback.
    world.node.advance(at(4_010));
    assert!(world.node.status(at(4_010)).is_abandoned);
    // With what period 14 begins; for this node it has.
    world.grant(4_020, first_grant(2, 14, &[(1, 0, 3)]));
    for now in [4_030, 5_010] {
        world.node.advance(at(now));
        let allowed = |name| world.tenant(now, name).allowed;
        assert_eq!((allowed("l"), allowed("lesser")), (Some(3), Some(0)), "at {now}");
    }
}

/// Requests that wait for their limit wake no thread up: the node asks to be woken when a period
/// begins, and when the pace lets the next one go.
#[test]
fn who_waits_for_a_limit_is_not_looked_at_meanwhile() {
    for discipline in [Discipline::Token, Discipline::Unified] {
        let plan = plan(1, &["limited"], Fallback::Keep);
        let mut world = NodeTestbed::with_plan(Plan { discipline: Some(discipline), ..plan });
        world.grant(0, Grant { lease: 100, ..first_grant(1, 10, &[(0, 0, 4)]) });
        world.push(0, "limited", 0..1_000);
        let (mut wakes, mut served) = (0, world.serve(0).len());
        while world.node.next_deadline() < at(60_000) {
            let now = world.node.next_deadline();
            world.node.advance(now);
            wakes += 1;
            served += world.serve(now.0 / MS).len();
        }
        assert_eq!((wakes, served), (59 + 3 * 60, 4 * 60), "{discipline}");
    }
}

/// The node's messages within so many milliseconds, each with its time.
fn sent(world: &mut NodeTestbed, from: u64, to: u64) -> Vec<(u64, FromNode)> {
    let sent = |ms| {
        if world.node.next_deadline() <= at(ms) {
            world.node.advance(at(ms));
        }
        let Output::Send(message) = world.node.poll_output()? else { return None };
        Some((ms, message))
    };
    (from..to).filter_map(sent).collect()
}

#[test]
fn a_resting_node_reports_a_request_until_it_is_polled() {
    let mut world = NodeTestbed::with_plan(plan(1, &["a"], Fallback::Keep));
    assert!(world.collect(0, 10, 0).unwrap().tenants.is_empty());
    assert_eq!(sent(&mut world, 1, 3_000), [], "nothing has come");
    world.push(3_010, "a", 0..1);
    world.serve(3_020);
    let awake = |ms| (ms, FromNode::Awake);
    assert_eq!(sent(&mut world, 3_021, 3_500), [awake(3_200), awake(3_400)]);
    let round_id = RoundId { period: PeriodNumber(13), round: 1 };
    let collect = ToNode::Collect { round_id, into: Span(500 * MS), complete: false };
    world.node.on_message(at(3_500), collect);
    let Some(FromNode::Report(report)) = world.answer() else { panic!("it does not rest") };
    assert_eq!((report.tenants[0].tenant, report.tenants[0].served), (TenantIndex(0), 1));
    assert_eq!(sent(&mut world, 3_501, 5_000), [], "it has been asked");
}

#[test]
fn a_node_does_not_rest_while_the_last_period_is_unreported() {
    let mut world = NodeTestbed::with_plan(plan(1, &["a"], Fallback::Keep));
    world.push(100, "a", 0..1);
    world.serve(100);
    let rests = |world: &mut NodeTestbed, now: u64, period: u64| {
        let (round_id, into) =
            (RoundId { period: PeriodNumber(period), round: 0 }, Span(now % 1_000 * MS));
        world.node.on_message(at(now), ToNode::Collect { round_id, into, complete: true });
        matches!(world.answer().unwrap(), FromNode::Rest { .. })
    };
    assert!(!rests(&mut world, 900, 10));
    assert!(!rests(&mut world, 1_000, 11), "what was served before is to be told");
    // A rate that was estimated fades, and then is none.
    let first = (12..40).find(|period| rests(&mut world, (period - 10) * 1_000, *period));
    assert!(first.is_some());
}
