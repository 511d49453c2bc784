//! Programs of this machine whose supervisors were killed or stopped: what they may still use is
//! given to no other.

use tidegate_model::{Span, StageId};
use tidegate_proto::controller::ConnectionId;
use tidegate_proto::message::{FromStage, Held, StageInfo, VERSION};

use crate::world::{ControllerTestbed, MIB, MS};

const POLICY: &str = "budget = \"100MiB/s\"
    [[tenant]]
    name = \"oltp\"
    reservation = \"40MiB/s\"
    [[tenant]]
    name = \"backup\"
";

/// Two stages of this machine that take what there is.
fn two(policy: &str) -> (ControllerTestbed, [ConnectionId; 2]) {
    let mut world = ControllerTestbed::new(Some(policy));
    world.is_watched = true;
    let stages = ["oltp", "backup"].map(|tenant| world.join(tenant, 200 * MIB));
    world.run(Span(1_050 * MS));
    (world, stages)
}

fn orphan(world: &ControllerTestbed) -> Option<StageId> {
    let mut orphans = world.controller.orphans();
    let orphan = orphans.next().map(|orphan| orphan.0);
    assert_eq!(orphans.next(), None);
    orphan
}

#[test]
fn a_killed_supervisors_share_is_kept_for_a_lease_and_then_its_safe_share() {
    let (mut world, [one, two]) = two(POLICY);
    let before = [one, two].map(|stage| world.stage(stage).rate_mib());
    assert!(before[0] >= 69 && before[0] + before[1] <= 100, "{before:?}");
    let safe = world.stage(one).safe["oltp:bandwidth"].per_second();
    assert_eq!(safe, 40 * MIB, "the segment has the safe rate before it is needed");
    assert_eq!(orphan(&world), None);
    let killed = world.now.0;
    world.leave(one);
    // Two periods, in which the segment may have its rates, and a margin for clocks that differ.
    while world.now.0 < killed + 2_200 * MS {
        assert_eq!(world.stage(two).rate_mib(), before[1], "at {}", world.now);
        world.run(Span(10 * MS));
    }
    world.run(Span(300 * MS));
    assert_eq!(world.stage(two).rate_mib(), 60);
    let alone: Vec<_> = world.status().stages.iter().map(|stage| stage.is_disconnected).collect();
    assert_eq!(alone, [true, false]);
    // A policy that changes meanwhile changes nothing for the program.
    world.apply(2, POLICY);
    world.run(Span(3_600 * Span::SECOND.0));
    assert_eq!(world.stage(two).rate_mib(), 60, "as long as the program runs");
    let orphan = orphan(&world).unwrap();
    world.controller.on_unused(world.now, orphan);
    world.settle();
    world.run(Span(150 * MS));
    assert!(world.stage(two).rate_mib() >= 98, "{}", world.stage(two).rate_mib());
    assert_eq!(world.status().stages.len(), 1);
}

#[test]
fn programs_go_on_whose_supervisors_are_killed_one_after_the_other() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    world.is_watched = true;
    let mut safe_rates = Vec::new();
    for _ in 0..4 {
        let stage = world.join("oltp", 200 * MIB);
        world.run(Span(1_050 * MS));
        safe_rates.push(world.stage(stage).safe["oltp:bandwidth"].per_second());
        world.leave(stage);
        world.run(Span(3_000 * MS));
    }
    // The first has all that is safe for the tenant, until its program ends.
    assert_eq!(safe_rates, [40 * MIB, 40 * MIB / 64, 40 * MIB / 64, 40 * MIB / 64]);
}

#[test]
fn a_supervisor_that_is_killed_with_its_program_frees_its_share_at_once() {
    let (mut world, [one, two]) = two(POLICY);
    world.leave(one);
    let killed = orphan(&world).unwrap();
    // The number of a stage that is connected, and of one that never was, mean nothing.
    let connected = world.stage(two).id;
    for stage in [connected, StageId(99), killed, killed] {
        world.controller.on_unused(world.now, stage);
    }
    world.settle();
    world.run(Span(150 * MS));
    assert!(world.stage(two).rate_mib() >= 98, "{}", world.stage(two).rate_mib());
}

/// A supervisor goes on as another process where its program has left something running.
#[test]
fn a_supervisor_that_stays_behind_is_the_same_stage() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    world.is_watched = true;
    let info = |pid: u32, stage: StageId, segment: &str| {
        let held = Held { segment: segment.into(), ..Held::default() };
        StageInfo { tenant: "oltp".into(), pid, stage, held, ..StageInfo::default() }
    };
    let first = world.hello(VERSION, 1_000, info(7, StageId(0), "stage-7-1"));
    let stage = world.stage(first).id;
    world.leave(first);
    assert_eq!(orphan(&world), Some(stage));
    let behind = world.hello(VERSION, 1_000, info(8, stage, "stage-7-1"));
    assert_eq!((world.stage(behind).id, orphan(&world)), (stage, None));
    assert_eq!(world.status().stages.len(), 1);
    // Another stage, another user, and one without a segment are others.
    world.leave(behind);
    for (uid, segment) in [(1_000, "stage-7-2"), (1_001, "stage-7-1"), (1_000, "")] {
        let other = world.hello(VERSION, uid, info(9, stage, segment));
        assert_ne!(world.stage(other).id, stage, "{uid} {segment:?}");
    }
    assert_eq!(orphan(&world), Some(stage));
}

#[test]
fn a_disconnect_message_leaves_no_orphan() {
    let (mut world, [one, two]) = two(POLICY);
    world.send(one, FromStage::Disconnect);
    assert_eq!(orphan(&world), None);
    world.run(Span(150 * MS));
    assert!(world.stage(two).rate_mib() >= 98, "{}", world.stage(two).rate_mib());
}

#[test]
fn a_stopped_supervisor_keeps_its_safe_share_and_has_all_of_it_again_when_it_returns() {
    let (mut world, [one, two]) = two(POLICY);
    let mut stopped = world.stages.remove(&one).unwrap();
    let stage = stopped.id;
    world.run(Span(1_500 * MS));
    assert!(world.stage(two).rate_mib() <= 31, "its segment has its rates");
    world.run(Span(2_000 * MS));
    assert_eq!(world.closed, [one], "it would learn in vain what it may use");
    assert_eq!(world.stage(two).rate_mib(), 60);
    assert_eq!(orphan(&world), Some(stage));
    // Its segment has gone over to the safe rates.
    stopped.rates = stopped.safe.clone();
    let one = world.rejoin(stopped, Span::ZERO);
    world.run(Span(500 * MS));
    let rates = [one, two].map(|stage| world.stage(stage).rate_mib());
    assert!(rates[0] >= 69 && rates[0] + rates[1] <= 100, "{rates:?}");
    assert_eq!((orphan(&world), world.status().stages.len()), (None, 2));
}

#[test]
fn under_a_policy_that_limits_nothing_without_a_controller_an_orphan_keeps_all_of_its_share() {
    let (mut world, [one, two]) = two(&format!("fallback = \"unlimited\"\n{POLICY}"));
    let before = world.stage(two).rate_mib();
    world.leave(one);
    world.run(Span(60 * Span::SECOND.0));
    assert_eq!(world.stage(two).rate_mib(), before, "its rates have no end");
}
