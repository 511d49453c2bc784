//! Groups at storage nodes. The testbed checks each millisecond that the counts in force for the
//! tenants of a group add up to no more than the group's promise.

use proptest::prelude::*;
use tidegate_model::{Event, Span};
use tidegate_sim::cluster::ClusterTestbed;
use tidegate_sim::simulation::Fault;

use crate::slow;

const PERIOD: Span = Span(Span::SECOND.0);

/// Tenants `a` and `b` of a group with this promise, of which `a` has one of its own, and `out`
/// beside them.
fn policy(group: &str, a: &str) -> String {
    format!(
        r#"
        period = "1s"
        redistribute = "100ms"
        [[resource]]
        name = "cluster"
        [[group]]
        name = "g"
        on.cluster = {{ {group} }}
        [[tenant]]
        name = "a"
        group = "g"
        on.cluster = {{ {a} }}
        [[tenant]]
        name = "b"
        group = "g"
        [[tenant]]
        name = "out"
        on.cluster = {{ weight = 10000 }}
        "#
    )
}

fn demand(world: &mut ClusterTestbed, tenant: &str, rates: [u32; 3]) {
    for (node, rate) in rates.into_iter().enumerate() {
        world.demand(node as u16, tenant, rate);
    }
}

/// The group's limit is used up by whichever tenants ask, at whichever nodes, and `a` has what it
/// is promised of it.
#[test]
fn a_groups_limit_bounds_its_tenants_together_over_all_nodes() {
    let policy = policy("limit = \"900 iops\"", "reservation = \"600 iops\"");
    let mut world = ClusterTestbed::new(&policy, 1000, 3);
    demand(&mut world, "b", [1000, 0, 100]);
    world.run(Span(3 * PERIOD.0));
    assert!(world.served(2, "b") >= 810, "alone, b had {}", world.served(2, "b"));

    demand(&mut world, "a", [0, 700, 100]);
    world.run(Span(3 * PERIOD.0));
    let [a, b] = ["a", "b"].map(|tenant| world.served(5, tenant));
    assert!(a >= 590, "a had {a} of 600");
    assert!((855..=900).contains(&(a + b)), "both had {a} + {b} of 900");
}

/// Tenants of a group that ask for more than it may have divide its limit by their weights.
#[test]
fn the_limit_of_a_group_is_divided_by_weight() {
    let tenants = ["a", "b"].iter().zip([100, 300]);
    let tenants = tenants.map(|(name, weight)| {
        format!("[[tenant]]\nname = {name:?}\ngroup = \"g\"\non.cluster.weight = {weight}\n")
    });
    let tenants: String = tenants.collect();
    let policy = format!(
        "period = \"1s\"\nredistribute = \"100ms\"\n[[resource]]\nname = \"cluster\"\n\
         [[group]]\nname = \"g\"\non.cluster.limit = \"802 iops\"\n{tenants}"
    );
    let mut world = ClusterTestbed::new(&policy, 1000, 3);
    demand(&mut world, "a", [400; 3]);
    demand(&mut world, "b", [400; 3]);
    world.run(Span(4 * PERIOD.0));
    let [a, b] = ["a", "b"].map(|tenant| world.served(3, tenant));
    assert!((190..=210).contains(&a), "a had {a} of 200");
    assert!((580..=610).contains(&b), "b had {b} of 600");
}

/// Tenant `out` has a hundred times the weight, so tokens alone give the others their service.
#[test]
fn a_reservation_that_one_does_not_use_goes_to_its_group_first() {
    let policy = policy("reservation = \"1k iops\"", "reservation = \"600 iops\"");
    let mut world = ClusterTestbed::new(&policy, 500, 3);
    demand(&mut world, "out", [1500; 3]);
    demand(&mut world, "b", [500; 3]);
    world.run(Span(4 * PERIOD.0));
    let b = world.served(3, "b");
    assert!(b >= 900, "alone in its group, b had {b} of 1000");

    demand(&mut world, "a", [300; 3]);
    world.run(Span(3 * PERIOD.0));
    let [a, b] = ["a", "b"].map(|tenant| world.served(6, tenant));
    assert!(a >= 590 && b >= 350, "a had {a} of 600, b had {b} of 400");
}

/// Whether the last period met the reservations of `a` and of the group.
fn is_met(world: &ClusterTestbed) -> (bool, bool) {
    let status = world.status();
    assert_eq!(status.groups[0].name, "g");
    (status.tenants[0].is_met, status.groups[0].is_met)
}

/// Tenant `a` begins to ask in the middle of period 4. By then half of its reservation has lapsed
/// to `b`, so nothing is missed although `a` gets less than it asks for and less than it has
/// reserved. In the next periods `a` has its whole reservation again.
#[test]
fn a_reservation_that_lapsed_to_the_group_is_not_missed() {
    let policy = policy("reservation = \"1k iops\"", "reservation = \"600 iops\"");
    let mut world = ClusterTestbed::new(&policy, 500, 3);
    demand(&mut world, "out", [1500; 3]);
    demand(&mut world, "b", [500; 3]);
    world.run(Span(4 * PERIOD.0));
    assert_eq!(is_met(&world), (true, true), "{:?}", world.status().groups);

    world.run(Span(PERIOD.0 / 2));
    demand(&mut world, "a", [300; 3]);
    world.run(Span(PERIOD.0 / 2 + PERIOD.0 / 4));
    let had = world.served(4, "a");
    assert!((200..400).contains(&had), "half of 600 had lapsed, and a had {had}");
    assert_eq!(is_met(&world), (true, true), "{:?}", world.status().groups);
    let missed = world.events().iter().filter(|it| matches!(it, Event::ReservationMissed { .. }));
    assert_eq!(missed.count(), 0);

    world.run(Span(2 * PERIOD.0));
    assert!(world.served(5, "a") >= 590, "a had {} of 600", world.served(5, "a"));
    assert_eq!(is_met(&world), (true, true), "{:?}", world.status().groups);
}

/// Two of three nodes are gone, and with them half of what is promised.
#[test]
fn a_group_misses_what_nodes_can_no_longer_do() {
    let policy = policy("reservation = \"1k iops\"", "reservation = \"600 iops\"");
    let mut world = ClusterTestbed::new(&policy, 500, 3);
    demand(&mut world, "a", [400; 3]);
    demand(&mut world, "b", [400; 3]);
    world.run(Span(3 * PERIOD.0));
    assert_eq!(is_met(&world), (true, true), "{:?}", world.status().groups);

    world.befall(Fault::Dies(1));
    world.befall(Fault::Dies(2));
    world.run(Span(3 * PERIOD.0));
    let (_, of_group) = is_met(&world);
    assert!(!of_group, "{:?}", world.status().groups);
    let served = world.status().groups[0].last_served_operations;
    assert!((1..=510).contains(&served), "one node of 500 is left, and served {served}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever tenants ask for, while links delay, nodes are cut off and come back, the controller
    /// dies and is started again, and the part of `a` changes.
    #[test]
    fn no_group_is_given_more_than_its_promise(
        group in 100..1500_u64,
        own in 0..=100_u64,
        steps in prop::collection::vec((any::<[[u8; 3]; 3]>(), 0..12_u16, 1..900_u64), 1..8),
    ) {
        let fields = format!("reservation = \"{group} iops\", limit = \"{} iops\"", group + 50);
        let own = format!("reservation = \"{} iops\"", (own * group / 100).max(1));
        let mut world = ClusterTestbed::new(&policy(&fields, &own), 500, 3);
        let mut is_led = true;
        world.links(slow(0, 30));
        for (rates, node, ms) in steps {
            for (tenant, rates) in ["a", "b", "out"].into_iter().zip(rates) {
                demand(&mut world, tenant, rates.map(|rate| u32::from(rate) * 4));
            }
            let fault = match node {
                0..6 => Fault::Cut(node % 3, node < 3),
                6..9 => Fault::Hangs(node % 3),
                9 | 10 => {
                    is_led = !is_led;
                    if is_led { Fault::ControllerReturns } else { Fault::ControllerDies }
                }
                _ => {
                    if is_led {
                        world.apply(&policy(&fields, "reservation = \"50 iops\""));
                    }
                    Fault::Cut(0, false)
                }
            };
            world.befall(fault);
            world.run(Span(ms * Span::MILLISECOND.0));
        }
    }
}
