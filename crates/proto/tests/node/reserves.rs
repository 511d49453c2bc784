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
        let request = world.node.request(storm, (command, length), &tag, 0);
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
