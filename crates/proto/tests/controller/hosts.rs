//! Stages of other hosts: what one that is cut off may still use is given to no other. The testbed
//! checks after each step that no more than the budget was in force, at both sides of each cut.

use tidegate_model::gate::{Throughput, Unit};
use tidegate_model::{Span, StageId};
use tidegate_proto::controller::{ConnectionId, Peer};
use tidegate_proto::message::{Held, HeldBucket, Hello, StageInfo, VERSION};
use tidegate_sim::simulation::Fault;
use tidegate_sim::stages::{ProgramId, StageTestbed};

use crate::world::{ControllerTestbed, MIB, MS};

const POLICY: &str = "budget = \"100MiB/s\"
    [[tenant]]
    name = \"oltp\"
    reservation = \"40MiB/s\"
    [[tenant]]
    name = \"backup\"
";

/// A program of each tenant that takes what there is.
fn two(policy: &str) -> (StageTestbed, [ProgramId; 2]) {
    let mut world = StageTestbed::new(policy);
    let programs = ["oltp", "backup"].map(|tenant| world.join(tenant, 200 * MIB));
    world.run(Span(1_050 * MS));
    (world, programs)
}

fn rate_mib(world: &StageTestbed, program: ProgramId) -> u64 {
    world.rate(program) / MIB
}

#[test]
fn the_share_of_a_host_that_is_cut_off_is_kept_for_its_lease_and_then_its_safe_share() {
    let (mut world, [one, two]) = two(POLICY);
    let before = [one, two].map(|program| rate_mib(&world, program));
    assert!(before[0] >= 69 && before[0] + before[1] <= 100, "{before:?}");
    // Its last report is an interval old at most.
    let received = world.now().0 - 100 * MS;
    world.befall(Fault::Cut(one, true));
    // Two periods, and a margin for clocks that differ.
    while world.now().0 < received + 2_200 * MS {
        assert_eq!(rate_mib(&world, two), before[1], "at {}", world.now());
        world.run(Span(10 * MS));
    }
    assert_eq!(rate_mib(&world, one), 40, "its lease was over before");
    world.run(Span(300 * MS));
    assert_eq!(rate_mib(&world, two), 60, "the reservation is safe at the other host");
    let stages = world.status().stages;
    assert_eq!(stages.iter().filter(|stage| stage.is_silent).count(), 1);
    // Ten minutes later nobody counts on it any more.
    world.befall(Fault::Dies(one));
    world.run(Span(601 * Span::SECOND.0));
    assert!(rate_mib(&world, two) >= 98, "{}", rate_mib(&world, two));
    assert_eq!(world.status().stages.len(), 1);
}

#[test]
fn a_host_that_returns_has_its_share_again() {
    let (mut world, [one, two]) = two(POLICY);
    world.befall(Fault::Cut(one, true));
    world.run(Span(4_000 * MS));
    world.befall(Fault::Cut(one, false));
    world.run(Span(500 * MS));
    let rates = [one, two].map(|program| rate_mib(&world, program));
    assert!(rates[0] >= 69 && rates[0] + rates[1] <= 100, "{rates:?}");
    assert_eq!(world.status().stages.len(), 2, "it is the same stage");
}

#[test]
fn a_host_that_disconnects_frees_its_share_at_once() {
    let (mut world, [one, two]) = two(POLICY);
    world.end(one);
    world.run(Span(150 * MS));
    assert!(rate_mib(&world, two) >= 98, "{}", rate_mib(&world, two));
}

#[test]
fn a_restarted_controller_gives_out_nothing_that_a_host_that_is_cut_off_may_have() {
    let (mut world, [one, two]) = two(POLICY);
    let before = [one, two].map(|program| rate_mib(&world, program));
    // The first is cut off. The second returns, and has what it had until a lease is over.
    world.befall(Fault::Cut(one, true));
    world.restart();
    world.befall(Fault::Cut(two, true));
    world.run(Span(100 * MS));
    world.befall(Fault::Cut(two, false));
    world.run(Span(25 * MS));
    assert_eq!(world.status().stages.len(), 1);
    assert_eq!(rate_mib(&world, two), before[1]);
    // A new program starts with half of a hundredth.
    let new = world.join("backup", 200 * MIB);
    world.run(Span(MS));
    while world.now().0 < (1_050 + 2_200) * MS {
        let rates = [two, new].map(|program| world.rate(program));
        let sum = before[0] * MIB + rates.iter().sum::<u64>();
        assert!(sum <= 102 * MIB, "{rates:?} at {}", world.now());
        assert!(rates[1] >= MIB / 4, "{rates:?} at {}", world.now());
        world.run(Span(10 * MS));
    }
    // Then the first has its reservation without a controller.
    world.run(Span(300 * MS));
    let rates = [two, new].map(|program| rate_mib(&world, program));
    assert!((58..=60).contains(&rates.iter().sum::<u64>()), "{rates:?}");
    let silent = world.status().stages.into_iter().find(|stage| stage.is_silent).unwrap();
    assert_eq!(
        (silent.tenant.as_str(), silent.allocated_bytes_per_second),
        ("oltp", Some(40 * MIB))
    );
    assert_eq!(rate_mib(&world, one), 40);
    // It returns, and the tenants have their shares again.
    world.befall(Fault::Cut(one, false));
    world.run(Span(500 * MS));
    assert!(rate_mib(&world, one) >= 65, "{}", rate_mib(&world, one));
    assert!(!world.status().stages.iter().any(|stage| stage.is_silent));
}

#[test]
fn hosts_that_all_return_to_a_restarted_controller_leave_nothing_behind() {
    let mut world = StageTestbed::new(POLICY);
    let tenants = ["oltp", "oltp", "oltp", "backup"];
    let programs = tenants.map(|tenant| world.join(tenant, 200 * MIB));
    world.run(Span(1_050 * MS));
    world.restart();
    for _ in 0..250 {
        world.run(Span(10 * MS));
        let sum: u64 = programs.iter().map(|program| world.rate(*program)).sum();
        assert!((98 * MIB..=101 * MIB).contains(&sum), "{sum} at {}", world.now());
    }
    assert_eq!(world.status().stages.len(), 4);
    // The last program of other hosts that ends leaves nothing for the next run to wait for.
    programs.into_iter().for_each(|program| world.end(program));
    world.run(Span(MS));
    assert_eq!(*world.outstanding(), Default::default());
    world.restart();
    let one = world.join("oltp", 200 * MIB);
    world.run(Span(MS));
    assert!(rate_mib(&world, one) >= 98, "{}", rate_mib(&world, one));
}

#[test]
fn a_policy_with_shorter_leases_waits_for_the_longer_one_of_a_host_that_is_cut_off() {
    let (mut world, [one, two]) = two(&format!("period = \"5s\"\n{POLICY}"));
    let kept = rate_mib(&world, one);
    world.befall(Fault::Cut(one, true));
    world.apply(&format!("period = \"1s\"\n{POLICY}"));
    world.run(Span(9_000 * MS));
    assert!(rate_mib(&world, two) + kept <= 100, "{}", rate_mib(&world, two));
    world.run(Span(1_500 * MS));
    assert_eq!(rate_mib(&world, two), 60);
}

/// The hello of a program of `backup` that reports the highest rates, for ever.
fn forged(stage: StageId) -> StageInfo {
    let most = Throughput::new(Unit::Bytes, u64::MAX);
    let bucket =
        HeldBucket { gate: "backup:bandwidth".into(), rate: most, safe: most, held: Span::ZERO };
    let held = Held { buckets: [bucket].into(), lease: Span(u64::MAX), ..Held::default() };
    StageInfo { tenant: "backup".into(), stage, revision: 1, held, ..StageInfo::default() }
}

/// Its host is cut off after the hello, so what the controller believes is kept for it: the safe
/// rate of its tenant at most, whatever rates it reported, and until ten minutes after its lease,
/// which is as long as those that the controller gives.
#[test]
fn a_program_that_claims_more_than_its_tenant_can_have_is_not_believed() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let honest = world.join("oltp", 200 * MIB);
    world.run(Span(1_050 * MS));
    let peer = Peer { certificate: Some(Vec::new()), ..Peer::default() };
    let hello = Hello::Stage { version: VERSION, info: forged(StageId(1_000)) };
    world.controller.on_hello(world.now, ConnectionId(1_000), peer, hello);
    world.settle();
    // Until the end of its lease it has the share that the controller had sent.
    for (seconds, expected) in [(1, 68..=71), (4, 83..=86), (610, 98..=100)] {
        world.run(Span(seconds * Span::SECOND.0));
        let rate = world.stage(honest).rate_mib();
        assert!(expected.contains(&rate), "{rate} at {}", world.now);
    }
}
