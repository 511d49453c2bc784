//! The measured capacity of a resource of files, from reports that a test writes.

use tidegate_algo::concurrent::histogram::BucketIndex;
use tidegate_model::gate::Burst;
use tidegate_model::{Event, GateSpec, Span};
use tidegate_proto::controller::ConnectionId;
use tidegate_proto::message::{FromStage, Housekeeping, Rule, StageReport, StorageReport, ToStage};

use super::world::{ControllerTestbed, MS};

fn policy(resource: &str) -> String {
    format!(
        r#"
        [[resource]]
        name = "{resource}"
        path = "/data/**"
        capacity = "measured"
        latency = "p99 < 20ms"
        [[tenant]]
        name = "oltp"
        on.{resource} = {{ reservation = "500 iops" }}
        "#
    )
}

/// A stage in the world that answers with reports of the test only.
fn quiet_stage(world: &mut ControllerTestbed) -> ConnectionId {
    let stage = world.join("oltp", 0);
    world.stage(stage).is_deaf = true;
    stage
}

/// The next round, to which the stage answers with this about its storage.
fn round(world: &mut ControllerTestbed, stage: ConnectionId, storage: StorageReport) {
    world.run(Span(200 * MS));
    answer(world, stage, storage);
}

/// The stage answers to the round under way.
fn answer(world: &mut ControllerTestbed, stage: ConnectionId, storage: StorageReport) {
    let received = std::mem::take(&mut world.stage(stage).received);
    let asked = received.iter().rev().find_map(|message| match message {
        ToStage::Collect { round, .. } => Some(*round),
        _ => None,
    });
    let report = StageReport {
        round: asked.unwrap(),
        at_ns: world.now.0,
        processes: 1,
        ..StageReport::default()
    };
    world.send(stage, FromStage::Storage(storage));
    world.send(stage, FromStage::Report(report));
}

/// Reports of a storage that answers so many reads in each interval, each in the same time.
fn rounds(world: &mut ControllerTestbed, stage: ConnectionId, reads: u64, took: Span, count: u64) {
    for number in 1..=count {
        let all = reads * number;
        let storage = StorageReport {
            begun: all + 8,
            reads: all,
            read_bytes: all << 12,
            service: [(BucketIndex::of(took), all)].into(),
            ..StorageReport::default()
        };
        round(world, stage, storage);
    }
}

fn operations(world: &ControllerTestbed) -> u64 {
    world.status().budget_operations_per_second.unwrap()
}

#[test]
fn every_request_is_timed_and_bursts_are_no_longer_than_the_queue_may_be() {
    let mut world = ControllerTestbed::new(Some(&policy("disk")));
    let stage = world.join("oltp", 0);
    let rules = world.changes(stage).concat();
    let specs: Vec<&GateSpec> = rules
        .iter()
        .filter_map(|rule| match rule {
            Rule::Housekeeping(Housekeeping::SetGate { spec, .. }) => Some(spec),
            _ => None,
        })
        .collect();
    assert!(specs.contains(&&GateSpec::LatencyProbe), "{specs:?}");
    let burst = Burst::Time(Span(5 * MS));
    let buckets = specs.iter().filter(
        |spec| matches!(spec, GateSpec::TokenBucket { burst: found, .. } if *found == burst),
    );
    assert_eq!(buckets.count(), 2, "{specs:?}");
    let stated = policy("disk").replace("\"measured\"", "\"9k iops\"");
    let stated = stated.replace("latency = \"p99 < 20ms\"", "");
    world.apply(2, &stated);
    let rules = world.changes(stage).concat();
    let is_timed = |rule: &Rule| {
        matches!(
            rule,
            Rule::Housekeeping(Housekeeping::SetGate { spec: GateSpec::LatencyProbe, .. })
        )
    };
    assert!(!rules.iter().any(is_timed), "{rules:?}");
    assert_eq!((operations(&world), world.status().measured), (9_000, None));
}

#[test]
fn a_slow_storage_lowers_the_budget_and_an_event_says_so_once() {
    let mut world = ControllerTestbed::new(Some(&policy("disk")));
    let stage = quiet_stage(&mut world);
    assert_eq!(operations(&world), 100_000);
    rounds(&mut world, stage, 400, Span(60 * MS), 12);
    let measured = world.status().measured.unwrap();
    assert_eq!((measured.evidence.as_str(), measured.is_short), ("slow", false));
    assert!((500..2_500).contains(&operations(&world)), "{}", operations(&world));
    let p99 = Span(measured.latency_p99_ns.unwrap());
    assert!((60 * MS..68 * MS).contains(&p99.0), "{p99}");
    let found = |event: &&Event| matches!(event, Event::CapacityFound { .. });
    let events: Vec<&Event> = world.events.iter().filter(found).collect();
    let [Event::CapacityFound { resource, operations_per_second, reason, .. }] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(resource, "disk");
    assert!(*operations_per_second < 25_000 && reason.contains("longer than the bound"));
}

/// A database with few slow reads beside a backup with many quick ones, in one round.
fn round_of_two(world: &mut ControllerTestbed, stages: [ConnectionId; 2], number: u64, took: Span) {
    let storage = [(20, took), (5_000, Span(100_000))].map(|(reads, took)| {
        let all = reads * number;
        StorageReport {
            begun: all,
            reads: all,
            read_bytes: all << 12,
            service: [(BucketIndex::of(took), all)].into(),
            ..StorageReport::default()
        }
    });
    world.run(Span(200 * MS));
    for (stage, storage) in stages.into_iter().zip(storage) {
        answer(world, stage, storage);
    }
}

/// The bound is for the tenant with a reservation. Of all reads together, 99 of 100 are quick.
#[test]
fn slow_reads_of_one_tenant_are_not_hidden_by_quick_ones_of_another() {
    let text = policy("disk") + "[[tenant]]\nname = \"backup\"\n";
    let mut world = ControllerTestbed::new(Some(&text));
    let stages = ["oltp", "backup"].map(|tenant| {
        let stage = world.join(tenant, 0);
        world.stage(stage).is_deaf = true;
        stage
    });
    for number in 1..=12 {
        round_of_two(&mut world, stages, number, Span(60 * MS));
    }
    let measured = world.status().measured.unwrap();
    assert_eq!(measured.evidence, "slow");
    assert!((60 * MS..68 * MS).contains(&measured.latency_p99_ns.unwrap()), "{measured:?}");
    assert!(operations(&world) < 50_000, "{}", operations(&world));
    // The database reads from memory, so the bound is for the backup.
    round_of_two(&mut world, stages, 1_000, Span(10_000));
    let measured = world.status().measured.unwrap();
    assert!(measured.latency_p99_ns.unwrap() < MS, "{measured:?}");
}

#[test]
fn a_storage_that_yields_less_than_is_reserved_is_short() {
    let mut world = ControllerTestbed::new(Some(&policy("disk")));
    let stage = quiet_stage(&mut world);
    rounds(&mut world, stage, 20, Span(200 * MS), 20);
    assert!(world.status().measured.unwrap().is_short);
    assert_eq!(operations(&world), 500, "what is reserved is admitted");
}

#[test]
fn a_stalled_storage_keeps_its_estimate() {
    let mut world = ControllerTestbed::new(Some(&policy("disk")));
    let stage = quiet_stage(&mut world);
    rounds(&mut world, stage, 400, Span(5 * MS), 12);
    let before = operations(&world);
    let all = 400 * 12;
    let still = || StorageReport {
        begun: all + 8,
        reads: all,
        read_bytes: all << 12,
        service: [(BucketIndex::of(Span(5 * MS)), all)].into(),
        ..StorageReport::default()
    };
    for _ in 0..10 {
        round(&mut world, stage, still());
    }
    assert_eq!(world.status().measured.unwrap().evidence, "stalled");
    assert!(operations(&world) < before / 8, "{} of {before}", operations(&world));
    // It goes on: every request that waited is answered, after two seconds.
    let end = StorageReport {
        begun: all + 8,
        reads: all + 8,
        read_bytes: (all + 8) << 12,
        service: [(BucketIndex::of(Span(5 * MS)), all), (BucketIndex::of(Span(2_000 * MS)), 8)]
            .into(),
        ..StorageReport::default()
    };
    round(&mut world, stage, end);
    let after = operations(&world);
    assert!(after.abs_diff(before) * 8 < before, "{after} after {before}");
}

#[test]
fn the_search_goes_on_under_a_policy_with_the_same_resource() {
    let mut world = ControllerTestbed::new(Some(&policy("disk")));
    let stage = quiet_stage(&mut world);
    rounds(&mut world, stage, 400, Span(60 * MS), 12);
    let before = operations(&world);
    world.apply(2, &policy("disk").replace("20ms", "40ms"));
    assert_eq!(operations(&world), before);
    assert_eq!(world.status().measured.unwrap().latency_bound_ns, 40 * MS);
    world.apply(3, &policy("other"));
    assert_eq!(operations(&world), 100_000);
}

#[test]
fn senseless_reports_do_no_harm() {
    let mut world = ControllerTestbed::new(Some(&policy("disk")));
    let stage = quiet_stage(&mut world);
    for number in [u64::MAX, 0, u64::MAX - 1, 1, u64::MAX] {
        let storage = StorageReport {
            begun: number,
            reads: number,
            read_bytes: number,
            writes: number,
            written_bytes: number,
            service: (0..=u16::MAX).step_by(13).map(|index| (BucketIndex(index), number)).collect(),
        };
        round(&mut world, stage, storage);
        assert!(operations(&world) >= 500);
    }
}
