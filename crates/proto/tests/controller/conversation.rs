//! Messages and their times.

use tidegate_algo::concurrent::histogram::BucketIndex;
use tidegate_model::gate::Throughput;
use tidegate_model::{Event, Span, StageId};
use tidegate_proto::message::{
    Enforcement, FromStage, Housekeeping, Rule, RuleError, StageInfo, StageReport, ToStage, VERSION,
};
use tidegate_proto::stats::delays::stages::StageGate;

use crate::world::{ControllerTestbed, MIB, MS};

const POLICY: &str = r#"
    budget = "1000MiB/s"
    period = "1s"
    redistribute = "100ms"
    [[tenant]]
    name = "oltp"
    reservation = "600MiB/s"
    [[tenant]]
    name = "backup"
    limit = "500MiB/s"
    users = ["1000"]
"#;

/// Whether a rate is so many MiB per second, but for what stages start with and for changes that
/// were too small to be sent.
fn is_about(rate: u64, mib: u64) -> bool {
    rate.abs_diff(mib * MIB) <= mib * MIB / 50
}

fn is_rate(rule: &Rule) -> bool {
    matches!(rule, Rule::Enforcement(Enforcement::Rate { .. }))
}

fn reasons(world: &ControllerTestbed) -> Vec<&str> {
    world
        .events
        .iter()
        .filter_map(|event| match event {
            Event::StageLeft { reason, .. } | Event::StageRefused { reason, .. } => {
                Some(reason.as_str())
            }
            _ => None,
        })
        .collect()
}

#[test]
fn a_policy_takes_effect_with_one_message() {
    let mut world = ControllerTestbed::new(None);
    let oltp = world.join("oltp", 100 * MIB);
    let unattributed = world.join("", 0);
    world.run(Span::SECOND);
    assert_eq!(world.stage(oltp).rate(), u64::MAX, "no policy, no gate");
    assert!(world.status().totals.unmatched_bytes > 0, "and still it is counted");
    world.changes(oltp);
    world.changes(unattributed);
    world.apply(1, POLICY);
    for connection in [oltp, unattributed] {
        let changes = world.changes(connection);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0][0], Rule::Housekeeping(Housekeeping::Clear));
    }
    assert_eq!(world.stage(oltp).default.as_deref(), Some("oltp"));
    assert_eq!(world.stage(unattributed).default, None);
    assert_eq!(world.stage(unattributed).channels.len(), 2);
    // A second one: everything anew in one message, and only rates in between.
    world.run(Span::SECOND);
    let between = world.changes(oltp);
    assert!(between.iter().flatten().all(is_rate), "{between:?}");
    world.apply(2, &POLICY.replace("600MiB/s", "700MiB/s"));
    assert_eq!(world.changes(oltp).len(), 1);
    assert_eq!(world.stage(oltp).revision, 2);
    let status = world.status();
    assert_eq!(status.stages[0].revision, 2);
    assert_eq!(status.tenants[0].reservation_bytes_per_second, Some(700 * MIB));
    assert!(status.tenants[0].bytes > 0, "counters outlive the policy");
}

#[test]
fn refusals_state_the_reason_and_whether_to_retry() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let info = |tenant: &str| StageInfo { tenant: tenant.into(), ..StageInfo::default() };
    let newer = format!("version {} of the protocol", VERSION + 1);
    let cases = [
        (world.hello(VERSION, 1_000, info("nobody")), "the policy has no tenant \"nobody\""),
        (world.hello(VERSION, 1_001, info("backup")), "user 1001 may not act for tenant"),
        (world.hello(VERSION + 1, 1_000, info("oltp")), &*newer),
    ];
    assert_eq!(world.closed, cases.map(|(connection, _)| connection));
    for (shown, (_, wanted)) in reasons(&world).iter().zip(cases) {
        assert!(shown.starts_with(wanted) || shown.contains(wanted), "{shown}");
    }
    // Only user 1000 reaches the backup's channel, by rules too.
    let other = world.hello(VERSION, 1_001, info(""));
    assert_eq!(world.stage(other).channels.iter().collect::<Vec<_>>(), ["oltp"]);
    // A policy that no longer admits a stage refuses it; it may ask again.
    let backup = world.join("backup", 0);
    world.apply(2, "budget = \"1000MiB/s\"\n[[tenant]]\nname = \"oltp\"");
    assert_eq!(world.closed.last(), Some(&backup));
    assert_eq!(world.status().stages.len(), 1);
    assert_eq!(world.status().totals.stages_refused, 4);
}

#[test]
fn a_stage_comes_back_under_its_number() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let first = world.join("oltp", u64::MAX);
    let id = world.stage(first).id;
    assert_eq!(id, StageId(1));
    let again = |pid| StageInfo { stage: id, tenant: "oltp".into(), pid, ..StageInfo::default() };
    // Its old connection is still open because its end went unnoticed: the same process goes on.
    let pid = world.stage(first).pid;
    let second = world.hello(VERSION, 1_000, again(pid));
    assert_eq!(world.closed, [first]);
    assert_eq!(world.stage(second).id, id);
    assert!(world.stage(second).rate() > 900 * MIB, "and is told everything");
    // Another process that claims the number gets its own.
    let thief = world.hello(VERSION, 1_000, again(pid + 1));
    assert_ne!(world.stage(thief).id, id);
    assert_eq!(world.status().stages.len(), 2);
    // A number of an earlier controller's run is as good as any.
    let info = StageInfo { stage: StageId(u64::MAX), ..StageInfo::default() };
    let old = world.hello(VERSION, 1_000, info);
    assert_eq!(world.stage(old).id, StageId(u64::MAX));
}

#[test]
fn a_silent_stage_keeps_its_share_for_a_while() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let [oltp, backup] = ["oltp", "backup"].map(|tenant| world.join(tenant, u64::MAX));
    world.run(Span::SECOND);
    let (kept, before) = (world.stage(backup).rate(), world.stage(oltp).rate());
    assert!(is_about(kept, 200) && is_about(before, 800), "{kept} {before}");
    world.stage(backup).is_deaf = true;
    world.run(Span(500 * MS));
    assert!(world.status().stages[1].is_silent);
    world.changes(backup);
    world.run(Span(1_200 * MS));
    assert!(world.changes(backup).is_empty(), "nothing of its own changes");
    assert_eq!(world.stage(oltp).rate(), before, "nothing of it is given away");
    world.run(Span(1_000 * MS));
    assert_eq!(world.closed, [backup]);
    assert_eq!(reasons(&world), ["it did not answer"]);
    assert!(is_about(world.stage(oltp).rate(), 1_000));
    // It comes back, and all is as before.
    let backup = world.join("backup", u64::MAX);
    world.run(Span::SECOND);
    assert!(is_about(world.stage(oltp).rate(), 800));
    assert!(is_about(world.stage(backup).rate(), 200));
}

#[test]
fn one_lost_moment_is_forgiven() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let oltp = world.join("oltp", u64::MAX);
    world.run(Span::SECOND);
    world.stage(oltp).is_deaf = true;
    world.run(Span(250 * MS));
    world.stage(oltp).is_deaf = false;
    world.run(Span(3 * Span::SECOND.0));
    assert!(world.closed.is_empty());
    assert!(!world.status().stages[0].is_silent);
}

#[test]
fn the_share_of_a_stage_without_processes_is_free() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let [oltp, backup] = ["oltp", "backup"].map(|tenant| world.join(tenant, u64::MAX));
    world.run(Span::SECOND);
    world.stage(backup).processes = 0;
    world.run(Span(200 * MS));
    assert!(world.stage(oltp).rate() > 990 * MIB);
    world.send(backup, FromStage::Disconnect);
    world.run(Span(20 * MS));
    assert!(is_about(world.stage(oltp).rate(), 1_000));
    assert_eq!(reasons(&world), ["disconnected"]);
}

#[test]
fn steady_demand_costs_no_messages() {
    let policy = "budget = \"1000MiB/s\"\ntenant = [{ name = \"a\" }, { name = \"b\" }]";
    let mut world = ControllerTestbed::new(Some(policy));
    let [steady, other] = ["a", "b"].map(|tenant| world.join(tenant, 100 * MIB));
    world.run(Span::SECOND);
    world.changes(steady);
    world.changes(other);
    // A little up and down, which moves both rates by less than a hundredth.
    for round in 0..20 {
        world.stage(steady).wants = 100 * MIB + MIB / 4 * (round % 3);
        world.run(Span(100 * MS));
    }
    assert!(world.changes(steady).is_empty());
    assert!(world.changes(other).is_empty());
    assert!(world.status().totals.rate_updates_suppressed > 0);
}

#[test]
fn a_tenant_divides_its_rate_over_its_stages() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let stages = [0; 3].map(|_| world.join("backup", u64::MAX));
    let oltp = world.join("oltp", u64::MAX);
    world.run(Span::SECOND);
    let rates = |world: &mut ControllerTestbed| stages.map(|stage| world.stage(stage).rate_mib());
    assert!(is_about(world.stage(oltp).rate(), 800));
    assert_eq!(rates(&mut world), [67, 67, 67]);
    world.stage(stages[0]).wants = 0;
    world.run(Span::SECOND);
    let [idle, busy, other] = rates(&mut world);
    assert!((1..=10).contains(&idle), "an idle stage can start: {idle}");
    assert!(busy == other && busy >= 95, "{busy} {other}");
    // Without oltp the tenant's limit binds, over all of its stages.
    world.leave(oltp);
    world.run(Span::SECOND);
    let all = rates(&mut world).iter().sum::<u64>();
    assert!((495..=500).contains(&all), "{all} of 500");
}

#[test]
fn rates_that_are_safe_without_a_controller_follow_the_number_of_stages() {
    let policy = format!("fallback = \"reservation\"\n{POLICY}");
    let mut world = ControllerTestbed::new(Some(&policy));
    let first = world.join("oltp", 0);
    let safe = |world: &mut ControllerTestbed, stage| {
        world.stage(stage).safe["oltp:bandwidth"].per_second()
    };
    assert_eq!(safe(&mut world, first), 600 * MIB);
    let second = world.join("oltp", 0);
    world.run(Span(20 * MS));
    assert_eq!([first, second].map(|stage| safe(&mut world, stage)), [300 * MIB, 300 * MIB]);
    world.leave(second);
    world.run(Span(20 * MS));
    assert_eq!(safe(&mut world, first), 600 * MIB);
}

#[test]
fn rates_in_operations_are_their_own() {
    let policy = "budget = \"10k iops\"\n[[tenant]]\nname = \"kv\"\nlimit = \"6k iops\"";
    let mut world = ControllerTestbed::new(Some(policy));
    let stage = world.join("kv", u64::MAX);
    world.run(Span(20 * MS));
    let rates: Vec<_> = world.stage(stage).rates.clone().into_iter().collect();
    let wanted = Throughput::Operations("6k iops".parse().unwrap());
    assert_eq!(rates, [("kv:operations".into(), wanted)]);
}

#[test]
fn a_stages_own_information_is_published() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let command = "x".repeat(10_000);
    let (tenant, host) = ("oltp".into(), "here".into());
    let info = StageInfo { command, tenant, host, ..StageInfo::default() };
    let stage = world.hello(VERSION, 1_000, info);
    let error = RuleError { rule: 3, reason: "too many gates".into() };
    world.send(stage, FromStage::Applied { revision: 9, error: Some(error) });
    assert_eq!(world.status().totals.rules_refused, 0, "nobody asked");
    let status = world.status().stages.remove(0);
    assert_eq!((status.command.len(), status.host.as_str()), (512, "here"));
    assert_eq!(status.tenant, "oltp");
    assert_eq!((status.revision, status.error.as_deref()), (1, None));
    assert_eq!(status.pid, world.stage(stage).pid);
}

/// Refusals of rules that were reported: stage, revision and reason.
fn refusals(world: &mut ControllerTestbed) -> Vec<(StageId, u64, String)> {
    let shown = |event| match event {
        Event::RulesRefused { stage, revision, reason } => Some((stage, revision, reason)),
        _ => None,
    };
    std::mem::take(&mut world.events).into_iter().filter_map(shown).collect()
}

#[test]
fn refused_rules_are_reported_once_and_shown_until_others_are_taken() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let stage = world.join("oltp", 500 * MIB);
    world.stage(stage).refuses = Some("more than 128 channels");
    world.apply(2, POLICY);
    let id = world.stage(stage).id;
    assert_eq!(refusals(&mut world), [(id, 2, "more than 128 channels".into())]);
    // Rates for the gates that it has since revision 1 are taken, and say nothing about the rest.
    world.stage(stage).refuses = Some("still more than 128 channels");
    world.changes(stage);
    let other = world.join("backup", 500 * MIB);
    world.run(Span(2 * Span::SECOND.0));
    assert!(world.changes(stage).iter().flatten().any(is_rate), "it was sent rates");
    let shown = |world: &ControllerTestbed| {
        let status = world.status();
        let stage = &status.stages[0];
        (stage.revision, stage.error.clone().unwrap_or_default(), status.totals.rules_refused)
    };
    assert_eq!(shown(&world), (1, "more than 128 channels".into(), 1));
    assert_eq!(refusals(&mut world), []);

    world.apply(3, POLICY);
    assert_eq!(shown(&world), (1, "still more than 128 channels".into(), 2));
    world.stage(stage).refuses = None;
    world.apply(4, POLICY);
    assert_eq!(shown(&world), (4, String::new(), 2));
    world.leave(other);
}

#[test]
fn a_refusal_explains_what_the_stage_cannot_know() {
    let mut world = ControllerTestbed::new(None);
    let stage = world.join("", 0);
    world.stage(stage).refuses = Some("more than 128 channels");
    world.apply(1, &POLICY.replace("users", "# users"));
    let (.., reason) = refusals(&mut world).remove(0);
    assert_eq!(
        reason,
        "more than 128 channels; it was sent the rules of 2 tenants because it names none: start \
         it with `tidegate run --tenant NAME`; there were none before, so nothing holds it back"
    );
}

#[test]
fn the_longest_waits_are_those_of_the_last_period() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let stages = [world.join("oltp", 0), world.join("oltp", 0)];
    let waits = |world: &ControllerTestbed| world.status().tenants[0].wait_p99_ns;
    world.run(Span(1_500 * MS));
    assert_eq!(waits(&world), None, "no request, no wait");
    // A hundredth waits on one stage alone, then one more on the other.
    let bucket = BucketIndex::of(Span(3 * MS));
    for stage in stages {
        world.stage(stage).operations = 500;
    }
    world.stage(stages[0]).waiting = [(bucket, 10)].into();
    world.run(Span::SECOND);
    assert_eq!(waits(&world), Some(0));
    for stage in stages {
        world.stage(stage).operations += 500;
    }
    world.stage(stages[0]).waiting = [(bucket, 20)].into();
    world.stage(stages[1]).waiting = [(bucket, 1)].into();
    world.run(Span::SECOND);
    let shown = waits(&world).unwrap();
    assert!((3 * MS..=3 * MS + 3 * MS / 8).contains(&shown), "{shown}");
    world.run(Span(1_100 * MS));
    assert_eq!(waits(&world), None, "that was before");
}

/// The gates that held a tenant's requests at stages, with the reasons in one string.
fn held(world: &ControllerTestbed, tenant: &str) -> (Vec<StageGate>, String) {
    let causes = world.controller.delays(world.now, tenant).unwrap().stage_causes;
    let why = causes.iter().map(|cause| format!("{}; {}", cause.why, cause.help)).collect();
    (causes.iter().map(|cause| cause.gate).collect(), why)
}

#[test]
fn a_wait_at_a_stage_is_explained_by_the_gate_that_held_it() {
    let mut world = ControllerTestbed::new(Some(
        r#"
        period = "1s"
        redistribute = "100ms"
        budget = "100MiB/s"
        tenant = [{ name = "backup", limit = "10MiB/s" }, { name = "oltp", weight = 300 },
                  { name = "idle" }]
        "#,
    ));
    let backup = world.join("backup", 50 * MIB);
    world.join("oltp", 500 * MIB);
    world.stage(backup).operations = 7;
    world.run(Span(5_000 * MS));
    // The first requests found the share of a stage that has just joined; then the limit decides.
    let (gates, why) = held(&world, "backup");
    assert_eq!(gates, [StageGate::BytesLimit], "{why}");
    assert!(why.starts_with("its limit of 10 MiB/s is used up: it had"), "{why}");
    let (gates, why) = held(&world, "oltp");
    assert_eq!(gates, [StageGate::BytesShare], "{why}");
    assert!(why.contains("(weight 300)") && why.contains("backup (10 MiB/s)"), "{why}");
    assert_eq!(held(&world, "idle").0, []);
    let unknown = world.controller.delays(world.now, "bacth").unwrap_err();
    assert_eq!(unknown.known, ["backup", "oltp", "idle"]);

    let delays = world.controller.delays(world.now, "backup").unwrap();
    assert_eq!(delays.stages.len(), 1);
    let (there, status) = (&delays.stages[0], &world.status().tenants[0]);
    assert_eq!(there.waits, status.stage_waits, "less than a minute has passed");
    assert_eq!(there.waits.total_ns(), status.waited_ns, "each wait is at one gate");
    assert_eq!(there.mean_ns, Some(status.waited_ns / 7));
    assert!(status.waited_ns > 4_000 * MS, "it waited all the time");

    // After a change of the policy the minute goes on, and the new gate counts.
    world.apply(2, r#"tenant = [{ name = "backup", limit = "20MiB/s" }, { name = "oltp" }]"#);
    let before = there.waits.total_ns();
    world.run(Span(5_000 * MS));
    let (gates, why) = held(&world, "oltp");
    let expected = "its share of bytes held it until the policy was changed; nothing has to \
                    change: the policy in force has no budget in bytes";
    assert_eq!((gates, &*why), (vec![StageGate::BytesShare], expected));
    let delays = world.controller.delays(world.now, "backup").unwrap();
    assert!(delays.stages[0].waits.total_ns() > before);
    assert!(held(&world, "backup").1.starts_with("its limit of 20 MiB/s is used up"));
    world.run(Span(61_000 * MS));
    assert_eq!(held(&world, "oltp").0, [], "nothing holds it any more");
}

/// No budget is stated there that could be larger.
#[test]
fn a_share_of_a_measured_capacity_is_raised_by_a_higher_bound() {
    let mut world = ControllerTestbed::new(Some(
        "[[resource]]\nname = \"scratch\"\npath = \"/scratch/**\"\ncapacity = \"measured\"\n\
         [[tenant]]\nname = \"oltp\"\n[[tenant]]\nname = \"backup\"\n",
    ));
    world.join("oltp", 2_000 * MIB);
    world.join("backup", 2_000 * MIB);
    world.run(Span(5_000 * MS));
    let (gates, why) = held(&world, "oltp");
    assert_eq!(gates, [StageGate::BytesShare], "{why}");
    let help = "; a reservation or a larger weight, or a higher bound of latency of scratch";
    assert!(why.ends_with(help), "{why}");
}

/// The share in force now stands beside the service of the same time, and not beside the minute's.
#[test]
fn a_share_is_explained_by_numbers_of_one_time() {
    let mut world = ControllerTestbed::new(Some(
        "period = \"1s\"\nredistribute = \"100ms\"\nbudget = \"100MiB/s\"\n\
         tenant = [{ name = \"oltp\" }, { name = \"backup\" }]\n",
    ));
    let oltp = world.join("oltp", 500 * MIB);
    world.join("backup", 500 * MIB);
    world.run(Span(5_000 * MS));
    let (gates, why) = held(&world, "oltp");
    assert_eq!(gates, [StageGate::BytesShare], "{why}");
    assert!(
        why.starts_with("its share is 50 MiB/s now (weight 100), and it had 50 MiB/s"),
        "{why}"
    );
    assert!(why.contains("in the last period; shares of others now: backup (50 MiB/s)"), "{why}");
    world.leave(oltp);
    world.run(Span(5_000 * MS));
    let (gates, why) = held(&world, "oltp");
    assert_eq!(gates, [StageGate::BytesShare], "{why}");
    let ended = "its share (weight 100) held these programs; all of them have ended; ";
    assert!(why.starts_with(ended), "{why}");
}

#[test]
fn histograms_are_requested_once_a_second_at_most() {
    for (period, least, most) in [("1s", 9, 11), ("100ms", 9, 11), ("16s", 4, 6)] {
        let mut world =
            ControllerTestbed::new(Some(&POLICY.replace("\"1s\"", &format!("{period:?}"))));
        let stage = world.join("oltp", 0);
        world.run(Span(10 * Span::SECOND.0));
        let received = &world.stage(stage).received;
        let is_detailed =
            |message: &&ToStage| matches!(message, ToStage::Collect { detail: true, .. });
        let count = received.iter().filter(is_detailed).count();
        assert!((least..=most).contains(&count), "{count} in 10 s with a period of {period}");
    }
}

#[test]
fn a_welcome_carries_the_settings_of_the_policy() {
    let mut world = ControllerTestbed::new(Some(&format!("fallback = \"reservation\"\n{POLICY}")));
    let stage = world.join("oltp", 0);
    let welcome = |world: &mut ControllerTestbed| {
        let received = std::mem::take(&mut world.stage(stage).received);
        received.into_iter().find_map(|message| match message {
            ToStage::Welcome { silence_max, fallback, .. } => Some((silence_max, fallback)),
            _ => None,
        })
    };
    let (silence_max, fallback) = welcome(&mut world).unwrap();
    assert_eq!(silence_max, Span(2 * Span::SECOND.0));
    assert_eq!(fallback, tidegate_model::policy::Fallback::Reservation);
    // A policy that says otherwise is sent before its rules; one that does not is not.
    world.apply(2, &POLICY.replace("period = \"1s\"", "period = \"10s\""));
    assert_eq!(welcome(&mut world).unwrap().0, Span(20 * Span::SECOND.0));
    world.apply(3, &POLICY.replace("period = \"1s\"", "period = \"10s\""));
    assert_eq!(welcome(&mut world), None);
}

#[test]
fn nonsense_in_reports_does_no_harm() {
    let mut world = ControllerTestbed::new(Some(POLICY));
    let stage = world.join("oltp", 100 * MIB);
    world.run(Span::SECOND);
    let absurd = |value: u64, at_ns| {
        let mut report = world.stages[&stage].report(value, world.now);
        report.at_ns = at_ns;
        report.channels[0].bytes = value;
        report.channels[0].operations = value;
        report.channels[0].waited_ns = value;
        report.channels.push(report.channels[0].clone());
        report.gates[0].waited_ns = value;
        report.gates[0].waiting = [(u16::MAX, value), (3, value), (3, 0)]
            .map(|(bucket, count)| (BucketIndex(bucket), count))
            .into();
        report.device_bytes = value;
        let mut other = report.channels[0].clone();
        other.name = "no such channel".into();
        report.channels.push(other.clone());
        report.channels.push(other);
        report
    };
    let at = world.now.0;
    let reports: Vec<StageReport> = [
        absurd(u64::MAX, at + 1),
        absurd(0, at + 2),
        absurd(u64::MAX, u64::MAX),
        absurd(7, 0),
        absurd(u64::MAX / 2, u64::MAX - 1),
        StageReport::default(),
    ]
    .into();
    for report in reports {
        world.send(stage, FromStage::Report(report));
        world.status();
        world.run(Span(100 * MS));
    }
    world.run(Span::SECOND);
    assert!(world.stage(stage).rate() >= 100 * MIB);
}

/// A program that waited for its limit ends. For a minute `explain` has the account that it had,
/// and the status names the stage; then both forget it. A policy in between moves the tenant's
/// index.
#[test]
fn an_ended_stage_keeps_its_account_for_a_minute() {
    let policy =
        |first: &str| format!("{first}[[tenant]]\nname = \"backup\"\nlimit = \"10MiB/s\"\n");
    let mut world = ControllerTestbed::new(Some(&policy("")));
    let stage = world.join("backup", 100 * MIB);
    world.run(Span(3_000 * MS));
    let before = world.controller.delays(world.now, "backup").unwrap();
    assert_eq!(before.stages[0].ended_ns, None);
    assert!(before.stages[0].waits.total_ns() > 0);

    world.leave(stage);
    world.run(Span(20_000 * MS));
    world.apply(2, &policy("[[tenant]]\nname = \"first\"\n"));
    let after = world.controller.delays(world.now, "backup").unwrap();
    assert_eq!(after.stages.len(), 1);
    let there = &after.stages[0];
    assert_eq!(there.waits, before.stages[0].waits);
    assert_eq!(there.ended_ns, Some(20_000 * MS));
    assert_eq!(after.stage_causes[0].gate, StageGate::BytesLimit);
    let why = &after.stage_causes[0].why;
    assert!(why.starts_with("its limit of 10 MiB/s is used up: it had"), "{why}");
    assert!(world.controller.delays(world.now, "first").unwrap().stages.is_empty());
    let status = world.status();
    assert_eq!((status.stages.len(), status.ended_stages.len()), (0, 1));
    let ended = &status.ended_stages[0];
    assert_eq!((&*ended.tenant, ended.ended_ns, ended.waits), ("backup", 20_000 * MS, there.waits));

    world.run(Span(41_000 * MS));
    assert!(world.controller.delays(world.now, "backup").unwrap().stages.is_empty());
    assert!(world.status().ended_stages.is_empty());
}

#[test]
fn a_stage_that_is_there_again_has_not_ended() {
    let mut world = ControllerTestbed::new(Some("[[tenant]]\nname = \"backup\"\n"));
    let info = StageInfo { tenant: "backup".into(), pid: 4_711, ..StageInfo::default() };
    for _ in 0..3 {
        let stage = world.hello(VERSION, 1_000, info.clone());
        world.run(Span(200 * MS));
        assert_eq!((world.status().stages.len(), world.status().ended_stages.len()), (1, 0));
        world.leave(stage);
    }
    assert_eq!(world.status().ended_stages.len(), 3);
}
