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
