//! The stage's machine in virtual time, without I/O.

use super::plan::{Gate, GateSetup, Plan, SetChannel, SetGate};
use super::*;
use crate::message::{Differentiation, Housekeeping, RuleError};
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;
use tidegate_model::gate::{Burst, Throughput, Unit};
use tidegate_model::{
    Bytes, ChannelSpec, Class, Conditions, GateSpec, Iops, Rate, StageId, TenantId,
};

mod holds;

const MS: u64 = 1_000_000;

fn bucket(rate: u64) -> GateSpec {
    let rate = Throughput::Bandwidth(Rate(rate));
    GateSpec::TokenBucket { rate, burst: Burst::Size(Bytes(10)) }
}

fn set_channel(name: &str, gates: &[&str]) -> Rule {
    Rule::channel(ChannelSpec {
        name: name.into(),
        tenant: TenantId(1),
        class: Class::High,
        gates: gates.iter().map(|gate| gate.to_string()).collect(),
    })
}

fn rate(gate: &str, rate: u64) -> Rule {
    Rule::rate(gate, Throughput::Bandwidth(Rate(rate)))
}

fn outputs(machine: &mut Machine) -> Vec<Output> {
    core::iter::from_fn(|| machine.poll_output()).collect()
}

fn welcome(fallback: Fallback) -> ToStage {
    let silence_max = Span::SECOND;
    ToStage::Welcome { version: VERSION, stage: StageId(7), silence_max, fallback }
}

/// A stage that is connected and welcomed at time zero.
fn connected(fallback: Fallback) -> Machine {
    let mut machine = Machine::new(Time::ZERO, StageInfo::default(), false);
    machine.on_deadline(Time::ZERO);
    assert_eq!(outputs(&mut machine), [Output::Connect]);
    machine.on_connected(Time::ZERO);
    machine.on_message(Time::ZERO, welcome(fallback));
    assert!(matches!(outputs(&mut machine)[..], [Output::Hello(_)]));
    machine
}

fn install(machine: &mut Machine, rules: Vec<Rule>) -> Change {
    machine.on_message(Time::ZERO, ToStage::Apply { revision: 1, rules });
    let mut outputs = outputs(machine);
    let applied = Output::Send(FromStage::Applied { revision: 1, error: None });
    assert_eq!(outputs.pop(), Some(applied));
    match outputs.pop() {
        Some(Output::Install(change)) => change,
        other => panic!("{other:?}"),
    }
}

fn refuse(machine: &mut Machine, rules: Vec<Rule>) -> RuleError {
    machine.on_message(Time::ZERO, ToStage::Apply { revision: 9, rules });
    match &outputs(machine)[..] {
        [before @ .., Output::Send(FromStage::Applied { revision: 9, error: Some(error) })] => {
            assert!(before.iter().all(|output| matches!(output, Output::Notice(_))), "{before:?}");
            error.clone()
        }
        other => panic!("{other:?}"),
    }
}

fn set_bucket(number: u8, fresh: bool, rate: u64) -> SetGate {
    set_leased(number, fresh, (rate, rate))
}

/// A bucket with a rate, and another one that is safe.
fn set_leased(number: u8, fresh: bool, (rate, safe): (u64, u64)) -> SetGate {
    let setup = GateSetup::Bucket { unit: Unit::Bytes, rate, burst: 10, safe };
    SetGate { number, fresh, setup }
}

#[test]
fn rules_become_numbers_and_names_keep_them() {
    let mut machine = connected(Fallback::Keep);
    let rules = vec![
        Rule::gate("kv", bucket(100)),
        set_channel("kv", &["kv"]),
        Rule::default_channel("kv"),
    ];
    let change = install(&mut machine, rules.clone());
    assert_eq!(change.gates, [set_bucket(0, true, 100)]);
    assert_eq!(change.channels, [SetChannel { number: 0, fresh: true, probed: false }]);
    assert!(change.words.is_some());

    let mut again = vec![Rule::CLEAR];
    again.push(Rule::gate("first", GateSpec::LatencyProbe));
    again.extend(rules);
    again.push(set_channel("also", &["first", "kv"]));
    let change = install(&mut machine, again);
    let opened = SetGate { number: 1, fresh: true, setup: GateSetup::Open };
    assert_eq!(change.gates, [opened], "the bucket is as it was");
    let kept = SetChannel { number: 0, fresh: false, probed: false };
    assert_eq!(change.channels, [SetChannel { number: 1, fresh: true, probed: true }, kept]);
}

#[test]
fn a_rate_alone_compiles_nothing() {
    let mut machine = connected(Fallback::Keep);
    let rules = vec![
        Rule::gate("kv", bucket(100)),
        set_channel("kv", &["kv"]),
        Rule::default_channel("kv"),
    ];
    install(&mut machine, rules);
    let change = install(&mut machine, vec![rate("kv", 50)]);
    assert_eq!(change, Change { gates: vec![set_bucket(0, false, 50)], ..Change::default() });
    machine.on_message(Time::ZERO, ToStage::Apply { revision: 1, rules: vec![rate("kv", 50)] });
    assert_eq!(outputs(&mut machine).len(), 1, "the same rate again changes nothing");
}

/// Its tokens would be those of another unit.
#[test]
fn a_bucket_that_counts_in_another_unit_begins_anew() {
    let mut machine = connected(Fallback::Keep);
    install(&mut machine, vec![Rule::gate("kv", bucket(100))]);
    let rate = Throughput::new(Unit::Operations, 100);
    let operations = GateSpec::TokenBucket { rate, burst: Burst::DEFAULT };
    let change = install(&mut machine, vec![Rule::gate("kv", operations)]);
    assert!(change.gates[0].fresh);
    let change = install(&mut machine, vec![Rule::gate("kv", bucket(100))]);
    assert_eq!(change.gates, [set_bucket(0, true, 100)]);
}

#[test]
fn one_wrong_rule_changes_nothing() {
    let mut machine = connected(Fallback::Keep);
    let mut rules = vec![
        Rule::gate("kv", bucket(100)),
        set_channel("kv", &["kv"]),
        Rule::default_channel("kv"),
    ];
    rules.push(Rule::gate("q", GateSpec::Concurrency { depth: 1 }));
    install(&mut machine, rules.clone());
    let in_operations = Rule::rate("kv", Throughput::Operations(Iops(5)));
    let no_rule = Rule::Differentiation(Differentiation::Remove { index: 0 });
    let nowhere = Rule::insert(0, Conditions::default(), "x");
    let (unused_gate, unused_channel) = (Housekeeping::UnusedGate, Housekeeping::UnusedChannel);
    let cases = [
        (rate("x", 1), "there is no gate \"x\""),
        (in_operations, "counts in another unit"),
        (no_rule, "there is no rule 0"),
        (nowhere, "there is no channel \"x\""),
        (Rule::Housekeeping(unused_gate), "no such rule"),
        (Rule::Housekeeping(unused_channel), "no such rule"),
        (rate("q", 1), "a concurrency gate has no such state"),
        (Rule::gate("z", GateSpec::Compress { level: 3 }), "needs the layered interface"),
        (set_channel("kv", &["missing"]), "there is no gate \"missing\""),
        (set_channel("kv", &["kv"; 9]), "has more than 8 gates"),
    ];
    for (rule, reason) in cases {
        let error = refuse(&mut machine, vec![rate("kv", 1), rule]);
        assert_eq!(error.rule, 1);
        assert!(error.reason.contains(reason), "{} should say {reason}", error.reason);
    }
    let change = install(&mut machine, vec![rate("kv", 2)]);
    assert_eq!(change.gates, [set_bucket(0, false, 2)], "none of the first halves took effect");
}

#[test]
fn what_goes_is_retired_and_its_number_used_last() {
    let mut machine = connected(Fallback::Keep);
    let queue = |depth| GateSpec::Concurrency { depth };
    install(&mut machine, vec![Rule::gate("a", queue(1)), Rule::gate("b", queue(2))]);
    let clear = Rule::CLEAR;
    assert_eq!(install(&mut machine, vec![clear, Rule::gate("b", queue(2))]).retired, [0]);
    let change = install(&mut machine, vec![Rule::gate("c", queue(3))]);
    assert_eq!(change.gates[0].number, 2);
    assert!(matches!(change.gates[0].setup, GateSetup::Queue { queue: 2, depth: 3, .. }));
}

#[test]
fn a_full_stage_can_be_made_anew() {
    let mut machine = connected(Fallback::Keep);
    let mut rules = |generation: u32| {
        let clear = Rule::CLEAR;
        let queues = (0..16).map(|i| {
            Rule::gate(alloc::format!("{generation}:{i}"), GateSpec::Concurrency { depth: 1 })
        });
        let channels = (0..128).map(|i| set_channel(&alloc::format!("{generation}/{i}"), &[]));
        let rules = core::iter::once(clear).chain(queues).chain(channels).collect();
        install(&mut machine, rules)
    };
    assert_eq!(rules(1).gates.len(), 16);
    let change = rules(2);
    assert_eq!(change.gates.len(), 16);
    assert_eq!(change.retired.len(), 16, "there are gates enough not to use these again yet");
    assert!(change.channels.iter().all(|channel| channel.fresh));
}

#[test]
fn without_a_controller_it_tries_again_with_growing_pauses() {
    let mut machine = Machine::new(Time::ZERO, StageInfo::default(), false);
    let mut now = Time::ZERO;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        machine.on_deadline(now);
        assert!(outputs(&mut machine).contains(&Output::Connect));
        machine.on_closed(now, "nobody listens");
        outputs(&mut machine);
        assert_eq!(machine.session.standing(), Standing::Seeking);
        let retry = machine.session.next_attempt();
        pauses.push(retry.since(now).0 / MS);
        now = retry;
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
}

/// A controller that starts on the same machine hears of a stage at once, however long there was
/// none.
#[test]
fn without_a_listener_the_pauses_stay_short() {
    let mut machine = Machine::new(Time::ZERO, StageInfo::default(), false);
    let mut now = Time::ZERO;
    let mut pause = |machine: &mut Machine, is_absent: bool| {
        machine.on_deadline(now);
        assert!(outputs(machine).contains(&Output::Connect));
        match is_absent {
            true => machine.on_absent(now, "nobody listens"),
            false => machine.on_closed(now, "it closed the connection"),
        }
        outputs(machine);
        let pause = machine.session.next_attempt().since(now);
        now = machine.session.next_attempt();
        pause.0 / MS
    };
    let pauses = [(); 8].map(|()| pause(&mut machine, true));
    assert_eq!(pauses, [100, 200, 250, 250, 250, 250, 250, 250]);
    assert_eq!(pause(&mut machine, false), 5_000, "one that listens and closes is left alone");
}

#[test]
fn a_controller_that_welcomes_and_closes_at_once_is_called_less_and_less_often() {
    let mut machine = Machine::new(Time::ZERO, StageInfo::default(), false);
    // Connects when that is due, is welcomed, stays for so long: the pause until the next attempt.
    let mut attempt = |lasting: Span| {
        let now = machine.session.next_attempt();
        machine.on_deadline(now);
        assert!(outputs(&mut machine).contains(&Output::Connect));
        machine.on_connected(now);
        machine.on_message(now, welcome(Fallback::Keep));
        assert!(machine.is_connected());
        let end = now.after(lasting);
        machine.on_closed(end, "connection reset");
        outputs(&mut machine);
        machine.session.next_attempt().since(end).0 / MS
    };
    let short = [(); 8].map(|()| attempt(Span(MS)));
    assert_eq!(short, [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    let steady = Span(25 * Span::SECOND.0);
    assert_eq!(attempt(Span(steady.0 - 1)), 5_000, "not long enough");
    assert_eq!(attempt(steady), 100, "after a connection that lasted, a failure is a first one");
}

#[test]
fn a_lost_controller_leaves_the_rates_until_the_fallback() {
    for (fallback, expected) in [
        (Fallback::Keep, None),
        (Fallback::Reservation, Some(set_bucket(0, false, 100))),
        (Fallback::Unlimited, Some(set_leased(0, false, (u64::MAX, 100)))),
    ] {
        let mut machine = connected(fallback);
        let rules = vec![
            Rule::gate("kv", bucket(100)),
            set_channel("kv", &["kv"]),
            Rule::default_channel("kv"),
        ];
        install(&mut machine, rules);
        install(&mut machine, vec![rate("kv", 300)]);
        machine.on_closed(Time(5 * MS), "connection reset");
        let lost = outputs(&mut machine);
        assert!(matches!(lost[..], [Output::Notice(_)]), "{lost:?}");
        machine.on_deadline(Time(999 * MS));
        assert_eq!(outputs(&mut machine), [Output::Connect], "still within the silence");
        machine.on_deadline(Time(1_000 * MS));
        let installed = outputs(&mut machine).into_iter().find_map(|output| match output {
            Output::Install(change) => Some(change.gates[0].clone()),
            _ => None,
        });
        assert_eq!(installed, expected);
        machine.on_deadline(Time(2_000 * MS));
        assert!(outputs(&mut machine).is_empty(), "said once");
    }
}

/// A stage with a rate of 300 and a safe rate of 100.
fn with_safe_rate(fallback: Fallback) -> Machine {
    let mut machine = connected(fallback);
    let rules = vec![
        Rule::gate("kv", bucket(100)),
        set_channel("kv", &["kv"]),
        Rule::default_channel("kv"),
    ];
    install(&mut machine, rules);
    let change = install(&mut machine, vec![rate("kv", 300)]);
    assert_eq!(change.gates, [set_leased(0, false, (300, 100))]);
    machine
}

#[test]
fn the_segment_keeps_rates_for_as_long_as_the_controller_keeps_them_for_a_silent_stage() {
    let machine = Machine::new(Time::ZERO, StageInfo::default(), false);
    assert_eq!(machine.kept_until(Time(5)), Time::MAX, "no controller has given any");
    assert_eq!(with_safe_rate(Fallback::Keep).kept_until(Time(5)), Time(1_000 * MS + 5));
    assert_eq!(with_safe_rate(Fallback::Unlimited).kept_until(Time(5)), Time::MAX);
    let mut remote = with_safe_rate(Fallback::Keep);
    remote.on_message(Time(5), ToStage::Lease { round: 0, length: Span(700 * MS) });
    assert_eq!(remote.kept_until(Time(5)), Time(700 * MS), "no longer than its own lease");
    let mut ended = with_safe_rate(Fallback::Keep);
    ended.on_end();
    assert_eq!(ended.kept_until(Time(5)), Time::MAX, "whoever is left keeps them");
}

#[test]
fn rates_that_were_not_renewed_in_time_are_gone_with_the_connection() {
    let mut machine = with_safe_rate(Fallback::Keep);
    machine.on_lapsed();
    assert_eq!(outputs(&mut machine), [], "the controller still keeps them");
    machine.on_closed(Time(5_000 * MS), "it closed the connection");
    machine.on_lapsed();
    let safe = Change { gates: vec![set_bucket(0, false, 100)], ..Change::default() };
    let lapsed = outputs(&mut machine);
    assert!(matches!(&lapsed[..], [Output::Notice(_), Output::Install(it)] if *it == safe));
    machine.on_deadline(Time(5_100 * MS));
    machine.on_connected(Time(5_100 * MS));
    machine.on_message(Time(5_100 * MS), welcome(Fallback::Keep));
    outputs(&mut machine);
    let change = install(&mut machine, vec![rate("kv", 300)]);
    assert_eq!(change.gates, [set_leased(0, false, (300, 100))]);
    // With no controller at all for longer than the silence, the fallback says what holds.
    machine.on_closed(Time(6_000 * MS), "gone");
    machine.on_deadline(Time(9_000 * MS));
    outputs(&mut machine);
    machine.on_lapsed();
    assert_eq!(outputs(&mut machine), []);
}

#[test]
fn a_controller_that_hangs_is_left() {
    let mut machine = connected(Fallback::Keep);
    assert_eq!(machine.next_deadline(), Some(Time(1_000 * MS)));
    machine.on_message(Time(600 * MS), ToStage::Collect { round: 1, detail: false });
    assert_eq!(outputs(&mut machine), [Output::Report { round: 1, detail: false }]);
    machine.on_deadline(Time(1_000 * MS));
    assert!(machine.is_connected());
    machine.on_deadline(Time(1_600 * MS));
    assert!(outputs(&mut machine).contains(&Output::Close));
    assert!(!machine.is_connected());
}

#[test]
fn a_refusal_is_reported_once_and_is_final() {
    let refusal = |retry| ToStage::Refused { version: VERSION, reason: "who?".into(), retry };
    let mut machine = connected(Fallback::Keep);
    machine.on_message(Time::ZERO, refusal(false));
    let shown = outputs(&mut machine);
    assert!(matches!(&shown[..], [Output::Close, Output::Notice(text)] if text.contains("who?")));
    assert!(machine.last_notice().is_some_and(|it| it.contains("who?")) && machine.is_refused());
    machine.on_deadline(Time(60_000 * MS));
    assert!(!outputs(&mut machine).contains(&Output::Connect), "refused for good");

    let mut machine = connected(Fallback::Keep);
    machine.on_message(Time::ZERO, refusal(true));
    outputs(&mut machine);
    machine.on_deadline(Time(100 * MS));
    assert_eq!(outputs(&mut machine), [Output::Connect]);
    machine.on_connected(Time(100 * MS));
    assert!(machine.is_refused(), "there is no other answer yet");
    machine.on_message(Time(100 * MS), welcome(Fallback::Keep));
    assert_eq!((machine.last_notice(), machine.is_refused()), (None, false));
    machine.on_message(Time(100 * MS), refusal(true));
    machine.on_closed(Time(200 * MS), "nothing listens");
    let notice = machine.last_notice();
    assert_eq!((notice, machine.is_refused()), (Some("no controller: nothing listens"), false));

    let mut machine = connected(Fallback::Keep);
    let other = ToStage::Refused { version: 90, reason: "old".into(), retry: false };
    machine.on_message(Time::ZERO, other);
    let shown = outputs(&mut machine);
    assert!(
        matches!(&shown[..], [_, Output::Notice(text)] if text.contains("version 90")),
        "{shown:?}"
    );
}

#[test]
fn the_end_is_announced() {
    let mut machine = connected(Fallback::Keep);
    machine.on_end();
    let report = Output::Report { round: 0, detail: true };
    let disconnect = Output::Send(FromStage::Disconnect);
    assert_eq!(outputs(&mut machine), [report, disconnect, Output::Close]);
    machine.on_deadline(Time(60_000 * MS));
    assert!(!outputs(&mut machine).contains(&Output::Connect));
}

fn encrypt(key: &str) -> GateSpec {
    GateSpec::Encrypt { key: key.into() }
}

fn number_of(plan: &Plan, name: &str) -> u8 {
    plan.gates().find(|(found, _)| *found == name).unwrap().1.number
}

#[test]
fn a_number_of_a_transformation_is_never_used_for_anything_else() {
    let mut plan = Plan::new(true);
    let mut transformed = [false; 256];
    for round in 0..600 {
        // Kinds go round among names, and names and keys change now and then.
        let rules = ["a", "b", "c"].iter().enumerate().map(|(index, name)| {
            let name = alloc::format!("{name}{}", round / 7 % 50);
            match (round + index) % 3 {
                0 => Rule::gate(&name, encrypt(&alloc::format!("k{}", round / 3))),
                1 => Rule::gate(&name, bucket(round as u64 + 1)),
                _ => Rule::gate(&name, GateSpec::Concurrency { depth: 1 }),
            }
        });
        let clear = (round % 2 == 0).then_some(Rule::CLEAR);
        plan.apply(&clear.into_iter().chain(rules).collect::<Vec<_>>()).unwrap();
        for (name, gate) in plan.gates() {
            let transformed = &mut transformed[usize::from(gate.number)];
            assert!(!*transformed || gate.spec.transforms(), "{name} in round {round}");
            *transformed |= gate.spec.transforms();
            let is_alike = |other: &Gate| {
                (other.number != gate.number) || (name, other) == (name, gate) || {
                    other.spec.transforms() && other.spec == gate.spec
                }
            };
            assert!(plan.gates().all(|(_, other)| is_alike(other)), "{name} shares its number");
        }
    }
    assert!(transformed.iter().filter(|one| **one).count() < 20, "and keys use up few of them");
}

#[test]
fn a_transformation_has_one_number_whatever_its_gates_are_called() {
    let mut plan = Plan::new(true);
    let one = |name: &str, key: &str| {
        let clear = Rule::CLEAR;
        vec![clear, Rule::gate("other", bucket(1)), Rule::gate(name, encrypt(key))]
    };
    plan.apply(&one("secret", "first")).unwrap();
    let first = number_of(&plan, "secret");
    let change = plan.apply(&one("renamed", "first")).unwrap().unwrap();
    assert_eq!(number_of(&plan, "renamed"), first);
    assert!(change.retired.is_empty(), "{change:?}");
    let change = plan.apply(&one("renamed", "second")).unwrap().unwrap();
    assert_ne!(number_of(&plan, "renamed"), first, "another key in place is another thing");
    assert_eq!(change.retired, [first]);
    plan.apply(&one("renamed", "first")).unwrap();
    assert_eq!(number_of(&plan, "renamed"), first, "and the old one comes back");
    // In place, from a gate that counts to one that encrypts and back.
    let bucket_number = number_of(&plan, "other");
    let change = plan.apply(&[Rule::gate("other", encrypt("first"))]).unwrap().unwrap();
    assert_eq!((number_of(&plan, "other"), &change.retired[..]), (first, &[bucket_number][..]));
    let change = plan.apply(&[Rule::gate("other", bucket(1))]).unwrap().unwrap();
    assert_ne!(number_of(&plan, "other"), first);
    assert!(change.gates.iter().all(|gate| gate.fresh) && change.retired.is_empty(), "{change:?}");
}

#[test]
fn a_stage_full_of_buckets_still_accepts_encryption() {
    let mut plan = Plan::new(true);
    for round in 0..100 {
        let names = (0..5).map(|gate| Rule::gate(alloc::format!("{round}:{gate}"), bucket(1)));
        let clear = core::iter::once(Rule::CLEAR);
        plan.apply(&clear.chain(names).collect::<Vec<_>>()).unwrap();
    }
    plan.apply(&[Rule::gate("secret", encrypt("k"))]).unwrap();
    let most = (0..249).map(|gate| Rule::gate(alloc::format!("more {gate}"), bucket(1)));
    plan.apply(&most.collect::<Vec<_>>()).unwrap();
    let error = plan.apply(&[Rule::gate("one more", bucket(1))]).unwrap_err();
    assert!(error.reason.contains("more than 255 gates, where 1 numbers"), "{error:?}");
}

#[test]
fn a_channel_names_a_gate_once() {
    let mut machine = connected(Fallback::Keep);
    for spec in [GateSpec::Concurrency { depth: 1 }, bucket(1)] {
        let error =
            refuse(&mut machine, vec![Rule::gate("a", spec), set_channel("c", &["a", "a"])]);
        assert!(error.reason.contains(r#"channel "c" names gate "a" twice"#), "{error:?}");
    }
}

#[test]
fn channels_that_pass_queue_gates_in_contradictory_order_are_refused() {
    let mut machine = connected(Fallback::Keep);
    let depth = 1;
    let queues = [
        Rule::gate("a", GateSpec::Concurrency { depth }),
        Rule::gate("b", GateSpec::FairQueue { depth, weights: Vec::new() }),
        Rule::gate("c", GateSpec::Priority { depth, order: Vec::new() }),
        Rule::gate("bucket", bucket(1)),
        Rule::gate("other bucket", bucket(1)),
    ];
    let with = |channels: &[Rule]| queues.iter().chain(channels).cloned().collect::<Vec<_>>();
    let ab = set_channel("ab", &["a", "bucket", "b"]);
    let error = refuse(&mut machine, with(&[ab.clone(), set_channel("ba", &["b", "a"])]));
    let shown = r#"channel "ba" passes queue gate "b" before "a", and channel "ab" the other"#;
    assert!(error.reason.contains(shown), "{error:?}");
    assert!(error.reason.contains("in the same order"), "{error:?}");
    let bc = set_channel("bc", &["b", "c"]);
    let error =
        refuse(&mut machine, with(&[ab.clone(), bc.clone(), set_channel("ca", &["c", "a"])]));
    let shown = r#"channel "ca" passes queue gate "c" before "a", and channel "ab", channel "bc""#;
    assert!(error.reason.contains(shown), "a circle of three as well: {error:?}");
    // A request that waits at a bucket holds no permit, and one order is no contradiction.
    let fine = [
        ab,
        bc,
        set_channel("ac", &["a", "bucket", "other bucket", "c"]),
        set_channel("abc", &["other bucket", "bucket", "a", "b", "c"]),
    ];
    install(&mut machine, with(&fine));
}

/// A stage of another host with a bucket: 50 in force, and `safe` without a controller.
fn leased(fallback: Fallback, safe: u64) -> Machine {
    let mut machine = connected(fallback);
    machine.on_message(Time::ZERO, ToStage::Lease { round: 0, length: Span::SECOND });
    install(&mut machine, vec![Rule::gate("kv", bucket(safe)), rate("kv", 50)]);
    machine
}

#[test]
fn rates_last_for_a_lease_from_the_last_report_that_arrived() {
    let mut machine = leased(Fallback::Keep, 20);
    let at = |ms: u64| Time(ms * MS);
    machine.on_message(at(300), ToStage::Collect { round: 1, detail: false });
    machine.on_message(at(600), ToStage::Collect { round: 2, detail: false });
    // Round 2 is heard of, and not yet received as far as this stage knows.
    machine.on_message(at(600), ToStage::Lease { round: 1, length: Span::SECOND });
    machine.on_message(at(900), ToStage::Collect { round: 3, detail: false });
    outputs(&mut machine);
    assert_eq!(machine.next_deadline(), Some(at(1_300)));
    machine.on_deadline(Time(at(1_300).0 - 1));
    assert_eq!(outputs(&mut machine), []);
    machine.on_deadline(at(1_300));
    // A controller that asks and receives nothing is told by a new hello.
    let change = Change { gates: vec![set_bucket(0, false, 20)], ..Change::default() };
    let found = outputs(&mut machine);
    assert!(
        found.contains(&Output::Close) && found.contains(&Output::Install(change)),
        "{found:?}"
    );
    assert!(machine.next_deadline().is_some_and(|next| next > at(1_300)), "it does not spin");
}

#[test]
fn no_rate_rises_after_a_lease() {
    for fallback in [Fallback::Keep, Fallback::Reservation] {
        let mut machine = leased(fallback, 80);
        machine.on_deadline(Time(Span::SECOND.0));
        let installs = |output: &Output| matches!(output, Output::Install(_));
        assert!(!outputs(&mut machine).iter().any(installs), "50 are left, of 80 that are safe");
    }
}

#[test]
fn a_controller_that_asks_for_no_limits_gives_no_lease() {
    let mut machine = leased(Fallback::Keep, 20);
    machine.on_message(Time::ZERO, welcome(Fallback::Unlimited));
    machine.on_deadline(Time(Span::SECOND.0));
    let change = Change { gates: vec![set_leased(0, false, (u64::MAX, 20))], ..Change::default() };
    assert!(outputs(&mut machine).contains(&Output::Install(change)));
}
