//! Reservations in one unit alone, at a node that counts operations and bytes.

use tidegate_model::policy::Fallback;
use tidegate_model::{Class, Discipline, TenantIndex};
use tidegate_proto::cluster::message::{BytePlan, Grant, Share, TenantPlan, ToNode};
use tidegate_proto::data::Command;
use tidegate_proto::data::pieces::PIECE;
use tidegate_proto::node::NodeRequest;

use crate::one_by_one::{OneByOne, tag};
use crate::world::{NodeTestbed, at, first_grant, plan};

const RESERVED: u64 = 40;

/// A node where `storm` has so much reserved in one unit alone, and `other` in none.
fn world(storm: BytePlan) -> NodeTestbed {
    let mut plan = plan(1, &["storm", "other"], Fallback::Keep);
    plan.discipline = Some(Discipline::Unified);
    let bytes = [Some(storm), Some(BytePlan::default())];
    let tenants = plan.tenants.into_iter().zip(bytes);
    plan.tenants = tenants.map(|(tenant, bytes)| TenantPlan { bytes, ..tenant }).collect();
    let mut world = NodeTestbed::with_plan(plan);
    let share = Share { tenant: TenantIndex(0), reserved: RESERVED, allowed: u64::MAX };
    let grant = match storm.is_reserved {
        true => Grant { bytes: vec![share], ..first_grant(1, 10, &[]) },
        false => Grant { shares: vec![share], ..first_grant(1, 10, &[]) },
    };
    world.node.on_message(at(0), ToNode::Grant(grant));
    assert!(world.answer().is_some());
    world
}

/// The number of urgent pieces of a storm that go before the first request of another tenant: of
/// 400 requests, each with so many pieces of so many bytes.
fn before_others(storm: BytePlan, (command, pieces, length): (Command, u32, u32)) -> usize {
    let mut world = world(storm);
    let [storm, other] = ["storm", "other"].map(|name| world.node.slot(name));
    let mut tag = tag(0);
    tag.class = Class::Urgent;
    let request = |piece: u32| -> NodeRequest<u32> {
        let request = world.node.request(storm, command, length, &tag, 0);
        if piece == 0 { request } else { request.continued() }
    };
    let mut requests: Vec<_> = (0..400).flat_map(|_| (0..pieces).map(request)).collect();
    world.node.put(at(0), &mut requests);
    world.node.on_request(at(0), other, 1, 1);
    world.serve(0).iter().position(|body| *body == 1).unwrap()
}

#[test]
fn a_reservation_in_bytes_is_one_of_no_more_operations_than_blocks() {
    let storm = BytePlan { is_reserved: true, ..BytePlan::default() };
    let flush = before_others(storm, (Command::Flush, 1, 0));
    assert_eq!(flush, 10, "of 40 KiB");
    assert_eq!(before_others(storm, (Command::Read, 1, 512)), 10);
    assert_eq!(before_others(storm, (Command::Read, 1, 8 << 10)), 5);
}

#[test]
fn a_reservation_in_operations_is_one_of_no_more_bytes_than_pieces() {
    let storm = BytePlan { reserves_operations: true, ..BytePlan::default() };
    assert_eq!(before_others(storm, (Command::Read, 64, PIECE)), 40, "of 400 requests of 8 MiB");
    assert_eq!(before_others(storm, (Command::Read, 1, 4 << 10)), 40);
    assert_eq!(before_others(storm, (Command::Flush, 1, 0)), 40);
}

/// Tenants `bytes` with so many KiB reserved and `operations` with so many operations, each alone;
/// and `both`, with counts of its own. The reserved counts that the node compares with, in
/// operations and in bytes, of a node of 100 operations and 1 MiB in a period of half a second.
fn reserved_counts(bytes: u64, operations: u64, both: [u64; 2]) -> [[u64; 2]; 3] {
    let mut plan = plan(1, &["bytes", "operations", "both"], Fallback::Keep);
    plan.period.0 /= 2;
    plan.capacity = [Some(200), Some(2 << 20)];
    let reserves = [[false, true], [true, false], [true, true]];
    for (tenant, [reserves_operations, is_reserved]) in plan.tenants.iter_mut().zip(reserves) {
        tenant.bytes = Some(BytePlan { reserves_operations, is_reserved, is_limited: false });
    }
    let mut world = NodeTestbed::with_plan(plan);
    let share = |tenant, reserved| Share { tenant: TenantIndex(tenant), reserved, allowed: 0 };
    let shares = vec![share(1, operations), share(2, both[0])];
    let bytes = vec![share(0, bytes), share(2, both[1])];
    world.grant(0, Grant { shares, bytes, ..first_grant(1, 10, &[]) });
    ["bytes", "operations", "both"].map(|name| {
        let status = world.tenant(0, name);
        [status.reserved, status.bytes.unwrap().reserved]
    })
}

/// Whatever a tenant is promised in one unit, it takes none of what others are promised in the
/// other.
#[test]
fn an_implied_reservation_takes_nothing_that_is_promised() {
    // 256 KiB would be 64 operations of 4 KiB, and 40 operations 5 MiB.
    let counts = reserved_counts(256, 40, [50, 512]);
    assert_eq!(counts[2], [50, 512]);
    assert_eq!(counts[0], [10, 256], "operations that are promised to nobody");
    assert_eq!(counts[1], [40, 256], "and KiB");
    // With nothing else promised, they get what goes with their own.
    assert_eq!(reserved_counts(256, 8, [0, 0])[..2], [[64, 256], [8, 768]]);
    // Where all is promised, nothing is implied.
    assert_eq!(reserved_counts(512, 50, [50, 512])[..2], [[0, 512], [50, 0]]);
    for both in 0..=50 {
        let counts = reserved_counts(500, 50, [both, 10 * both]);
        for (unit, capacity) in [100, 1024].into_iter().enumerate() {
            let sum: u64 = counts.iter().map(|counts| counts[unit]).sum();
            assert!(sum <= capacity, "{counts:?}");
        }
    }
}
