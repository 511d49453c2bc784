//! Stages of other hosts: what one that is cut off may still use is given to no other.

use tidegate_model::Span;
use tidegate_proto::message::FromStage;

use crate::world::{ControllerTestbed, MIB, MS};

const POLICY: &str = "budget = \"100MiB/s\"
    [[tenant]]
    name = \"oltp\"
    reservation = \"40MiB/s\"
    [[tenant]]
    name = \"backup\"
";

fn hosts() -> ControllerTestbed {
    let mut world = ControllerTestbed::new(Some(POLICY));
    world.is_remote = true;
    world
}

#[test]
fn the_share_of_a_host_that_is_cut_off_is_kept_for_its_lease_and_then_its_safe_share() {
    let mut world = hosts();
    let [one, two] = [world.join("oltp", 200 * MIB), world.join("backup", 200 * MIB)];
    world.run(Span(1_050 * MS));
    let before = [one, two].map(|stage| world.stage(stage).rate_mib());
    assert!(before[0] >= 69 && before[0] + before[1] <= 100, "{before:?}");
    // Its last report is an interval old at most.
    let received = world.now.0 - 100 * MS;
    world.leave(one);
    // Two periods, and a margin for clocks that differ.
    while world.now.0 < received + 2_200 * MS {
        assert_eq!(world.stage(two).rate_mib(), before[1], "at {}", world.now);
        world.run(Span(10 * MS));
    }
    world.run(Span(300 * MS));
    assert_eq!(world.stage(two).rate_mib(), 60, "the reservation is safe at the other host");
    let stages = world.status().stages;
    assert_eq!(stages.iter().filter(|stage| stage.is_silent).count(), 1);
    // Ten minutes later nobody counts on it any more.
    world.run(Span(601 * Span::SECOND.0));
    assert!(world.stage(two).rate_mib() >= 98, "{}", world.stage(two).rate_mib());
    assert_eq!(world.status().stages.len(), 1);
}

#[test]
fn a_host_that_returns_has_its_share_again() {
    let mut world = hosts();
    let [one, two] = [world.join("oltp", 200 * MIB), world.join("backup", 200 * MIB)];
    world.run(Span(1_050 * MS));
    let (pid, stage) = (world.stage(one).pid, world.stage(one).id);
    world.leave(one);
    world.run(Span(4_000 * MS));
    let info = tidegate_proto::message::StageInfo {
        tenant: "oltp".into(),
        pid,
        stage,
        revision: 1,
        ..Default::default()
    };
    let one = world.hello(tidegate_proto::message::VERSION, 1_000, info);
    world.stage(one).wants = 200 * MIB;
    world.run(Span(500 * MS));
    let rates = [one, two].map(|stage| world.stage(stage).rate_mib());
    assert!(rates[0] >= 69 && rates[0] + rates[1] <= 100, "{rates:?}");
    assert_eq!(world.status().stages.len(), 2, "it is the same stage");
}

#[test]
fn a_host_that_disconnects_frees_its_share_at_once() {
    let mut world = hosts();
    let [one, two] = [world.join("oltp", 200 * MIB), world.join("backup", 200 * MIB)];
    world.run(Span(1_050 * MS));
    world.send(one, FromStage::Disconnect);
    world.run(Span(150 * MS));
    assert!(world.stage(two).rate_mib() >= 98, "{}", world.stage(two).rate_mib());
}

#[test]
fn a_restarted_controller_gives_out_nothing_that_a_host_that_is_cut_off_may_have() {
    let mut world = hosts();
    let [one, two] = [world.join("oltp", 200 * MIB), world.join("backup", 200 * MIB)];
    world.run(Span(1_050 * MS));
    let before = [one, two].map(|stage| world.stage(stage).rate_mib());
    let mut stages = world.restart();
    world.run(Span(100 * MS));
    // The first is cut off. The second returns, and has what it had until a lease is over.
    let two = world.rejoin(stages.remove(&two).unwrap(), Span::SECOND);
    assert_eq!(world.stage(two).rate_mib(), before[1]);
    // A new program starts with half of a hundredth.
    let new = world.join("backup", 200 * MIB);
    while world.now.0 < (1_050 + 2_200) * MS {
        let rates = [two, new].map(|stage| world.stage(stage).rate());
        let sum = before[0] * MIB + rates.iter().sum::<u64>();
        assert!(sum <= 102 * MIB, "{rates:?} at {}", world.now);
        assert!(rates[1] >= MIB / 4, "{rates:?} at {}", world.now);
        world.run(Span(10 * MS));
    }
    // Then the first has its reservation without a controller.
    world.run(Span(300 * MS));
    let rates = [two, new].map(|stage| world.stage(stage).rate_mib());
    assert!((58..=60).contains(&rates.iter().sum::<u64>()), "{rates:?}");
    let silent = world.status().stages.into_iter().find(|stage| stage.is_silent).unwrap();
    assert_eq!(
        (silent.tenant.as_str(), silent.allocated_bytes_per_second),
        ("oltp", Some(40 * MIB))
    );
    // It returns, and the tenants have their shares again.
    let mut first = stages.remove(&one).unwrap();
    first.rates = first.safe.clone();
    let one = world.rejoin(first, Span::ZERO);
    world.run(Span(500 * MS));
    assert!(world.stage(one).rate_mib() >= 65, "{}", world.stage(one).rate_mib());
    assert!(!world.status().stages.iter().any(|stage| stage.is_silent));
}

#[test]
fn hosts_that_all_return_to_a_restarted_controller_leave_nothing_behind() {
    let mut world = hosts();
    let tenants = ["oltp", "oltp", "oltp", "backup"];
    tenants.into_iter().for_each(|tenant| _ = world.join(tenant, 200 * MIB));
    world.run(Span(1_050 * MS));
    let stages = world.restart();
    let back = stages.into_values().map(|stage| world.rejoin(stage, Span::SECOND));
    let back: Vec<_> = back.collect();
    let sum = |world: &mut ControllerTestbed| {
        back.iter().map(|stage| world.stage(*stage).rate()).sum::<u64>()
    };
    for _ in 0..250 {
        world.run(Span(10 * MS));
        let sum = sum(&mut world);
        assert!((98 * MIB..=101 * MIB).contains(&sum), "{sum} at {}", world.now);
    }
    assert_eq!(world.status().stages.len(), 4);
    // The last program of other hosts that ends leaves nothing for the next run to wait for.
    back.into_iter().for_each(|stage| world.send(stage, FromStage::Disconnect));
    assert_eq!(world.outstanding, Default::default());
    world.restart();
    let one = world.join("oltp", 200 * MIB);
    assert!(world.stage(one).rate_mib() >= 98, "{}", world.stage(one).rate_mib());
}

#[test]
fn a_policy_with_shorter_leases_waits_for_the_longer_one_of_a_host_that_is_cut_off() {
    let mut world = ControllerTestbed::new(Some(&format!("period = \"5s\"\n{POLICY}")));
    world.is_remote = true;
    let [one, two] = [world.join("oltp", 200 * MIB), world.join("backup", 200 * MIB)];
    world.run(Span(1_050 * MS));
    let kept = world.stage(one).rate_mib();
    world.leave(one);
    world.apply(2, &format!("period = \"1s\"\n{POLICY}"));
    world.run(Span(9_000 * MS));
    assert!(world.stage(two).rate_mib() + kept <= 100, "{}", world.stage(two).rate_mib());
    world.run(Span(1_500 * MS));
    assert_eq!(world.stage(two).rate_mib(), 60);
}

#[test]
fn a_program_that_claims_more_than_its_tenant_can_have_is_not_believed() {
    let mut world = hosts();
    let one = world.join("oltp", 200 * MIB);
    world.run(Span(1_050 * MS));
    let mut stages = world.restart();
    let mut liar = stages.remove(&one).unwrap();
    liar.tenant = "backup".into();
    let most = tidegate_model::gate::Throughput::new(tidegate_model::gate::Unit::Bytes, u64::MAX);
    liar.rates = [("backup:bandwidth".into(), most)].into();
    liar.safe = liar.rates.clone();
    let liar = world.rejoin(liar, Span(u64::MAX));
    assert!(world.stage(liar).rate_mib() <= 100, "{}", world.stage(liar).rate_mib());
    world.run(Span(2_500 * MS));
    let status = world.status();
    let sum: u64 = status.stages.iter().filter_map(|it| it.allocated_bytes_per_second).sum();
    assert!(sum <= 101 * MIB, "{sum}");
}
