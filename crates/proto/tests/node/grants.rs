//! Which grants are taken, what they do, and what is answered.

use tidegate_model::policy::Fallback;
use tidegate_proto::cluster::message::{Grant, ToNode};

use crate::world::{NodeTestbed, at, first_grant, now_grant, plan};

fn world() -> NodeTestbed {
    NodeTestbed::with_plan(plan(1, &["a", "limited"], Fallback::Keep))
}

#[test]
fn reserved_requests_go_first() {
    let mut world = world();
    world.push(10, "limited", 0..2);
    world.push(10, "a", 10..14);
    assert_eq!(world.serve(10), [10, 11, 12, 13]); // what is limited waits to be allowed
    world.push(20, "a", 14..16);
    assert_eq!(world.grant(20, now_grant(5, 10, 20, &[(1, 2, 100)])), [(1, 2, 100)]);
    assert_eq!(world.serve(20), [0, 14, 15]);
    // The second one is reserved, and not yet within the pace of 100 in 980 ms.
    assert_eq!(world.serve(30), [1]);
}

#[test]
fn a_grant_counts_once_and_in_order() {
    let mut world = world();
    assert_eq!(world.grant(10, now_grant(7, 10, 10, &[(1, 5, 50)])), [(1, 5, 50)]);
    // Late, doubled, and a question: all answered with what is in force.
    assert_eq!(world.grant(11, now_grant(6, 10, 5, &[(1, 9, 90)])), [(1, 5, 50)]);
    assert_eq!(world.grant(12, now_grant(7, 10, 5, &[(1, 5, 50)])), [(1, 5, 50)]);
    assert_eq!(
        world.grant(13, now_grant(0, 10, 0, &[(0, 0, 0), (1, 0, 0)])),
        [(0, 0, u64::MAX), (1, 5, 50)]
    );
    // Another revision, a period that is over, one that is far ahead, a tenant that is not there.
    let other = Grant { revision: 2, ..now_grant(8, 10, 10, &[(1, 9, 90)]) };
    assert_eq!(world.grant(14, other), []);
    assert_eq!(world.grant(15, now_grant(9, 9, 900, &[(1, 9, 90)])), []);
    assert_eq!(world.grant(16, first_grant(9, 12, &[(1, 9, 90)])), []);
    assert_eq!(world.grant(17, now_grant(10, 10, 17, &[(7, 9, 90), (1, 6, 60)])), [(1, 6, 60)]);
    assert_eq!(world.tenant(17, "limited").allowed, Some(60));
    // More reserved than allowed is as much allowed; a tenant without limit is not given one.
    assert_eq!(
        world.grant(18, now_grant(11, 10, 18, &[(1, 8, 3), (0, 1, 2)])),
        [(1, 8, 8), (0, 1, u64::MAX)]
    );
}

#[test]
fn what_is_in_force_is_never_below_what_was_served() {
    let mut world = world();
    world.grant(0, now_grant(1, 10, 0, &[(1, 0, 50)]));
    world.push(0, "limited", 0..40);
    assert_eq!(world.serve(400).len(), 21); // one, and the 20 of 400 ms
    assert_eq!(world.grant(400, now_grant(2, 10, 400, &[(1, 5, 10)])), [(1, 21, 21)]);
    assert!(world.serve(999).is_empty());
    assert_eq!(world.tenant(999, "limited").waiting, 19);
}

#[test]
fn the_counts_of_the_next_period_wait_for_it() {
    let mut world = world();
    world.grant(0, now_grant(1, 10, 0, &[(1, 0, 4)]));
    world.push(0, "limited", 0..9);
    // Two grants for the next period: both are part of what it begins with.
    assert_eq!(
        world.grant(800, first_grant(2, 11, &[(1, 1, 2), (0, 3, 0)])),
        [(1, 1, 2), (0, 3, u64::MAX)]
    );
    assert_eq!(world.grant(800, first_grant(3, 11, &[(1, 2, 3)])), [(1, 2, 3)]);
    assert_eq!(world.serve(999).len(), 4);
    assert_eq!(world.tenant(999, "limited").allowed, Some(4));
    assert_eq!(world.serve(1_000).len(), 1);
    let tenant = world.tenant(1_000, "limited");
    assert_eq!((tenant.reserved, tenant.allowed), (2, Some(3)));
    assert_eq!((tenant.served, tenant.served_before, tenant.served_total), (1, 4, 5));
    assert_eq!(world.tenant(1_000, "a").reserved, 3);
    // Changes within a period do not hold anew: a question about the next one shows it.
    world.grant(1_100, now_grant(4, 11, 100, &[(1, 0, 9)]));
    assert_eq!(world.grant(1_200, now_grant(0, 12, 0, &[(1, 0, 0)])), [(1, 2, 3)]);
    // One that comes after the period has begun says what holds anew, too.
    assert_eq!(world.grant(1_300, first_grant(5, 11, &[(1, 1, 7)])), [(1, 1, 7)]);
    assert_eq!(world.grant(1_400, now_grant(0, 12, 0, &[(1, 0, 0)])), [(1, 1, 7)]);
    // A tenant that the first grant of a period does not name has nothing in it.
    world.grant(1_500, first_grant(6, 12, &[(0, 1, 0)]));
    assert_eq!(world.grant(1_600, now_grant(0, 12, 0, &[(1, 0, 0)])), [(1, 0, 0)]);
    assert_eq!(world.serve(2_999).len(), 0);
    assert_eq!(world.tenant(2_999, "limited").allowed, Some(0));
}

#[test]
fn a_lease_is_renewed_by_what_differs_from_it() {
    let mut world = world();
    let _ = world.grant(800, first_grant(1, 11, &[(0, 3, 0), (1, 2, 4)]));
    assert_eq!(world.renew(1_800, 1, first_grant(2, 12, &[])), Some(vec![]));
    assert_eq!(world.renew(2_800, 2, first_grant(3, 13, &[(1, 1, 3)])), Some(vec![(1, 1, 3)]));
    // Two for one period: the later one builds on the earlier.
    assert_eq!(world.renew(2_900, 3, first_grant(4, 13, &[])), Some(vec![]));
    assert_eq!(world.renew(2_910, 3, first_grant(4, 13, &[])), Some(vec![]), "it came twice");
    let counts = |world: &NodeTestbed, now| {
        let [a, limited] = ["a", "limited"].map(|name| world.tenant(now, name));
        (a.reserved, limited.reserved, limited.allowed)
    };
    for (now, expected) in [(1_500, (3, 2, Some(4))), (2_500, (3, 2, Some(4)))] {
        let mut world = self::world();
        let _ = world.grant(800, first_grant(1, 11, &[(0, 3, 0), (1, 2, 4)]));
        let _ = world.renew(1_400, 1, first_grant(2, 12, &[]));
        world.node.advance(at(now));
        assert_eq!(counts(&world, now), expected);
    }
    world.node.advance(at(3_100));
    assert_eq!(counts(&world, 3_100), (3, 1, Some(3)));
    assert_eq!(world.node.status(at(3_100)).lease_periods, 2);
    // One that comes when its period has begun, and what it names.
    assert_eq!(world.renew(3_200, 4, first_grant(5, 13, &[(0, 9, 0)])).unwrap()[0].1, 9);
    assert_eq!(counts(&world, 3_200), (9, 1, Some(3)));
}

#[test]
fn a_lease_that_was_not_taken_is_not_renewed() {
    let taken =
        |world: &mut NodeTestbed, base, grant: Grant| world.renew(1_500, base, grant).is_some();
    let mut world = world();
    assert!(!taken(&mut world, 0, first_grant(1, 12, &[])), "there is none");
    let _ = world.grant(1_500, first_grant(2, 12, &[(0, 3, 0)]));
    assert!(!taken(&mut world, 1, first_grant(3, 12, &[])), "another one holds");
    assert!(!taken(&mut world, 2, now_grant(3, 11, 500, &[])), "it is no lease");
    assert!(!taken(&mut world, 2, first_grant(3, 13, &[])), "it is for a period that is far");
    let other = Grant { revision: 2, ..first_grant(3, 12, &[]) };
    assert!(!taken(&mut world, 2, other), "it belongs to another plan");
    // The lease ends as it would have.
    let reserved: Vec<u64> = (12..16)
        .map(|period| {
            let now = (period - 10) * 1_000;
            world.node.advance(at(now));
            world.tenant(now, "a").reserved
        })
        .collect();
    assert_eq!(reserved, [3, 3, 3, 0]);
    assert!(world.node.status(at(5_000)).is_abandoned);
    assert_eq!(world.renew(5_100, 2, first_grant(3, 16, &[])), None, "it is over");
    // Counts of a period that did not begin are none to build on: another controller counts
    // otherwise.
    let mut world = self::world();
    let _ = world.grant(500, first_grant(2, 11, &[(0, 3, 0)]));
    world.node.on_connected(at(600));
    assert!(world.collect(600, 20, 600).is_some());
    assert_eq!(world.renew(700, 2, first_grant(3, 21, &[])), None);
    // And a plan voids them.
    let mut world = self::world();
    let _ = world.grant(500, first_grant(2, 11, &[(0, 3, 0)]));
    world.node.on_message(at(600), ToNode::Plan(plan(1, &["b"], Fallback::Keep)));
    assert_eq!(world.renew(700, 2, first_grant(3, 11, &[])), None);
}
