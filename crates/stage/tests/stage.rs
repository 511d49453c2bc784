//! A stage inside this process, driven through its public interface: rules in, requests through,
//! counters out. Time is real here, so nothing is asserted about how fast something was; only that
//! it happened, that it did not happen too early, and in which order.
#![cfg(all(feature = "agent", feature = "transform"))]
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tidegate_model::gate::{Burst, Throughput};
use tidegate_model::{
    Bytes, ChannelSpec, Class, Conditions, GateSpec, Iops, Operation, OperationSet, Rate, Span,
    TenantId,
};
use tidegate_proto::message::{Differentiation, Rule};
use tidegate_stage::layout::GateKind;
use tidegate_stage::transform::{Keys, TransformError};
use tidegate_stage::{Request, Scope, Settings, Stage, StageAgent, Subject};

/// A stage that no controller reaches: its rules are the test's.
fn agent() -> StageAgent {
    let socket = "/nonexistent/controller.sock".into();
    StageAgent::start(Settings { socket, ..Settings::default() }).unwrap()
}

fn channel(name: &str, tenant: u16, gates: &[&str]) -> Rule {
    Rule::channel(ChannelSpec {
        name: name.into(),
        tenant: TenantId(tenant),
        class: Class::High,
        gates: gates.iter().map(ToString::to_string).collect(),
    })
}

fn rule(conditions: Conditions, channel: &str) -> Rule {
    Rule::insert(u32::MAX, conditions, channel)
}

fn bucket(rate: u64, burst: u64) -> GateSpec {
    let rate = Throughput::Bandwidth(Rate(rate));
    GateSpec::TokenBucket { rate, burst: Burst::Size(Bytes(burst)) }
}

fn rate(gate: &str, rate: u64) -> Rule {
    Rule::rate(gate, Throughput::Bandwidth(Rate(rate)))
}

/// A stage with one gate in one channel, where every request goes.
fn stage_with(spec: GateSpec) -> StageAgent {
    let agent = agent();
    agent
        .apply(vec![Rule::gate("g", spec), channel("c", 7, &["g"]), Rule::default_channel("c")])
        .unwrap();
    agent
}

fn write(stage: &Stage, bytes: u64) {
    stage.enforce(&Request::new(Operation::Write, bytes)).complete(bytes);
}

fn counted(stage: &Stage, channel: usize) -> (u64, u64) {
    let passed = &stage.layout().channels[channel].passed;
    (passed.operations(), passed.bytes())
}

/// Waits until `condition` holds; fails after a minute.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn without_rules_everything_passes() {
    let agent = agent();
    let admission = agent.stage().enforce(&Request::new(Operation::Read, 1 << 30));
    assert!(!admission.is_gated());
    assert_eq!(admission.tag().tenant, TenantId::UNATTRIBUTED);
}

#[test]
fn what_matches_no_rule_goes_to_the_default_and_never_fails() {
    let agent = stage_with(GateSpec::NoOp);
    let only_reads =
        Conditions { operation: OperationSet::of(&[Operation::Read]), ..Conditions::default() };
    agent.apply(vec![channel("reads", 9, &["g"]), rule(only_reads, "reads")]).unwrap();
    let tenant = |operation| agent.stage().classify(&Request::new(operation, 1)).tenant;
    assert_eq!(tenant(Operation::Read), TenantId(9));
    assert_eq!(tenant(Operation::Write), TenantId(7));
    agent.apply(vec![Rule::Differentiation(Differentiation::Remove { index: 0 })]).unwrap();
    assert_eq!(tenant(Operation::Read), TenantId(7), "a rule can be taken away again");
}

#[test]
fn a_bucket_holds_its_rate_with_many_threads_from_the_start() {
    for (threads, size) in [(1, 4_096), (8, 4_096), (8, 131_072), (64, 16_384)] {
        let (per_second, burst) = (64 << 20, 640 << 10);
        let begin = Instant::now();
        let agent = stage_with(bucket(per_second, burst));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        write(agent.stage(), size);
                    }
                });
            }
            eventually("half a second, and a write in it", || {
                begin.elapsed() > Duration::from_millis(500) && counted(agent.stage(), 0).1 > 0
            });
            stop.store(true, Ordering::Relaxed);
        });
        let (_, bytes) = counted(agent.stage(), 0);
        let seconds = begin.elapsed().as_secs_f64();
        let most = (burst as f64 + per_second as f64 * seconds) * 1.001;
        assert!(bytes as f64 <= most, "{threads} threads of {size}: {bytes} of {most}");
    }
}

#[test]
fn a_request_larger_than_the_burst_passes_and_leaves_a_debt() {
    let agent = stage_with(bucket(1 << 30, 4_096));
    write(agent.stage(), 64 * 4_096);
    let begin = Instant::now();
    write(agent.stage(), 1);
    // The debt is 63 times the burst: 240 microseconds of the rate.
    assert!(begin.elapsed() >= Duration::from_micros(200));
    assert_eq!(counted(agent.stage(), 0), (2, 64 * 4_096 + 1));
}

#[test]
fn a_new_rate_reaches_sleepers() {
    let agent = stage_with(bucket(1, 1));
    write(agent.stage(), 1);
    let passed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                // At one byte per second this sleeps for twelve days.
                write(agent.stage(), 1 << 20);
                passed.fetch_add(1, Ordering::Relaxed);
            });
        }
        let sleepers = &agent.stage().layout().gates[0].sleepers;
        eventually("four sleepers", || sleepers.load(Ordering::Relaxed) == 4);
        assert_eq!(passed.load(Ordering::Relaxed), 0);
        agent.apply(vec![rate("g", 1 << 40)]).unwrap();
    });
    assert_eq!(passed.load(Ordering::Relaxed), 4);
}

#[test]
fn a_starved_gate_delays_no_other_gate() {
    let agent = agent();
    let writes =
        Conditions { operation: OperationSet::of(&[Operation::Write]), ..Conditions::default() };
    let rules = vec![
        Rule::gate("starved", bucket(1, 1)),
        Rule::gate("open", GateSpec::NoOp),
        channel("slow", 1, &["starved"]),
        channel("fast", 2, &["open"]),
        rule(writes, "slow"),
        Rule::default_channel("fast"),
    ];
    agent.apply(rules).unwrap();
    let stage = agent.stage();
    // Passes, for the bucket is full, and leaves a debt of 34 years.
    write(stage, 1 << 30);
    std::thread::scope(|scope| {
        scope.spawn(|| write(stage, 1 << 20));
        // Numbers go by name: "open" is 0.
        let sleepers = &stage.layout().gates[1].sleepers;
        eventually("a sleeper", || sleepers.load(Ordering::Relaxed) == 1);
        for _ in 0..10_000 {
            stage.enforce(&Request::new(Operation::Read, 4_096)).complete(4_096);
        }
        assert_eq!(sleepers.load(Ordering::Relaxed), 1, "the starved one is still there");
        agent.apply(vec![rate("starved", 1 << 40)]).unwrap();
    });
}

#[test]
fn a_gate_that_goes_lets_its_sleepers_go() {
    let agent = stage_with(bucket(1, 1));
    write(agent.stage(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| write(agent.stage(), 1 << 30));
        let sleepers = &agent.stage().layout().gates[0].sleepers;
        eventually("a sleeper", || sleepers.load(Ordering::Relaxed) == 1);
        let rules = vec![
            Rule::CLEAR,
            Rule::gate("other", GateSpec::NoOp),
            channel("c", 7, &["other"]),
            Rule::default_channel("c"),
        ];
        agent.apply(rules).unwrap();
    });
    assert_eq!(counted(agent.stage(), 0).0, 2, "the channel of the same name kept its counters");
}

/// How many requests wait for tokens, at gates that are there and at others.
fn sleepers(stage: &Stage) -> [u32; 2] {
    let mut counts = [0; 2];
    for gate in &stage.layout().gates {
        let is_retired = gate.kind.load(Ordering::Relaxed) == GateKind::Retired as u32;
        counts[usize::from(is_retired)] += gate.sleepers.load(Ordering::Relaxed);
    }
    counts
}

/// Each new bucket is full, which is enough for one of the requests.
#[test]
fn sleepers_of_a_gate_that_goes_wait_at_the_gate_that_takes_its_place() {
    const SLEEPERS: u32 = 6;
    let agent = stage_with(bucket(1, 1));
    write(agent.stage(), 1_000);
    let passed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..SLEEPERS {
            scope.spawn(|| {
                write(agent.stage(), 1_000);
                passed.fetch_add(1, Ordering::Relaxed);
            });
        }
        eventually("all sleep", || sleepers(agent.stage()) == [SLEEPERS, 0]);
        for round in 1..=SLEEPERS {
            let gate = if round % 2 == 0 { "g" } else { "h" };
            let place = [Rule::CLEAR, Rule::gate(gate, bucket(1, 1)), channel("c", 7, &[gate])];
            agent.apply([&place[..], &[Rule::default_channel("c")]].concat()).unwrap();
            eventually("one passes, the others sleep again", || {
                let left = SLEEPERS - round;
                passed.load(Ordering::Relaxed) >= round && sleepers(agent.stage()) == [left, 0]
            });
            assert_eq!(passed.load(Ordering::Relaxed), round, "requests that none of them held");
        }
    });
    assert_eq!(counted(agent.stage(), 0), (u64::from(SLEEPERS) + 1, 7_000));
}

/// The bucket holds one operation, and earns two in a second.
#[test]
fn sleepers_of_a_gate_that_counts_in_another_unit_wait_for_its_tokens() {
    let agent = stage_with(bucket(1, 1));
    write(agent.stage(), 1_000);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| write(agent.stage(), 1));
        }
        eventually("all sleep", || sleepers(agent.stage()) == [3, 0]);
        let rate = Throughput::Operations(Iops(2));
        let burst = Burst::Time(Span(500_000_000));
        let begin = Instant::now();
        agent.apply(vec![Rule::gate("g", GateSpec::TokenBucket { rate, burst })]).unwrap();
        eventually("all pass", || counted(agent.stage(), 0) == (4, 1_003));
        assert!(begin.elapsed() >= Duration::from_millis(950), "{:?}", begin.elapsed());
    });
}

/// The first gate has tokens for three requests.
#[test]
fn a_request_that_waits_at_another_gate_takes_no_tokens_twice() {
    let agent = agent();
    let with = |gate: &'static str, rate| {
        let gates = [("first", bucket(1, 3_900)), (gate, bucket(rate, 1))];
        let mut rules = vec![Rule::CLEAR];
        rules.extend(gates.into_iter().map(|(name, spec)| Rule::gate(name, spec)));
        rules.extend([channel("c", 7, &["first", gate]), Rule::default_channel("c")]);
        rules
    };
    agent.apply(with("slow", 1)).unwrap();
    write(agent.stage(), 1_000);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| write(agent.stage(), 1_000));
        }
        eventually("both sleep", || sleepers(agent.stage()) == [2, 0]);
        agent.apply(with("fast", 1 << 30)).unwrap();
        eventually("both pass", || counted(agent.stage(), 0) == (3, 3_000));
    });
}

#[test]
fn what_is_not_used_is_given_back() {
    let agent = stage_with(bucket(1_000, 1 << 20));
    // Reads at the end of a file ask for a lot and get nothing.
    for _ in 0..1_000 {
        agent.stage().enforce(&Request::new(Operation::Read, 1 << 20)).complete(0);
    }
    write(agent.stage(), 1 << 20);
    assert_eq!(counted(agent.stage(), 0), (1_001, 1 << 20));
}

#[test]
fn operations_cost_operations() {
    let rate = Throughput::Operations(Iops(1_000));
    let agent = stage_with(GateSpec::TokenBucket { rate, burst: Burst::Size(Bytes(1)) });
    let begin = Instant::now();
    for _ in 0..21 {
        agent.stage().enforce(&Request::new(Operation::Stat, 0)).complete(0);
    }
    assert!(begin.elapsed() >= Duration::from_millis(19), "twenty after the first");
    assert_eq!(counted(agent.stage(), 0), (21, 0));
}

#[test]
fn a_concurrency_gate_bounds_what_is_in_service() {
    let agent = stage_with(GateSpec::Concurrency { depth: 3 });
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let admission = agent.stage().enforce(&Request::new(Operation::Read, 1));
                    let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    admission.complete(1);
                }
            });
        }
    });
    assert_eq!(counted(agent.stage(), 0).0, 2_400);
    assert!(most.load(Ordering::SeqCst) <= 3);
}

#[test]
fn a_priority_gate_serves_the_urgent_context_first() {
    let order = vec!["foreground".into(), "compaction*".into()];
    let agent = stage_with(GateSpec::Priority { depth: 1, order });
    let stage = agent.stage();
    let queue = &stage.layout().gates[0];
    let first = stage.enforce(&Request::new(Operation::Read, 1));
    let served = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (waiting, context) in ["anything", "compaction_l0", "foreground"].iter().enumerate() {
            let served = &served;
            scope.spawn(move || {
                let _scope = Scope::enter(context);
                let admission = stage.enforce(&Request::new(Operation::Read, 1));
                served.lock().unwrap().push(*context);
                admission.complete(1);
            });
            // One after the other, so that arrival alone would serve them the other way round.
            eventually("it waits", || waiting_at(stage) == waiting + 1);
        }
        first.complete(1);
    });
    assert_eq!(*served.lock().unwrap(), ["foreground", "compaction_l0", "anything"]);
    assert_eq!(queue.delayed.load(Ordering::Relaxed), 3);
}

/// How many requests wait at the first queue: those that arrived beyond the one in service.
fn waiting_at(stage: &Stage) -> usize {
    stage.waiting_in_queue(0)
}

#[test]
fn what_cannot_be_timed_counts_and_has_no_latency() {
    let agent = stage_with(GateSpec::LatencyProbe);
    let (stage, storage) = (agent.stage(), &agent.stage().layout().storage);
    let timed = || storage.service.counts().total();
    let write = Request::new(Operation::Write, 4_096);
    stage.enforce(&write.untimed()).complete(4_096);
    stage.enforce(&Request::new(Operation::Read, 100).untimed()).complete(100);
    assert_eq!((storage.writes.operations(), storage.writes.bytes()), (1, 4_096));
    assert_eq!((storage.reads.operations(), storage.reads.bytes()), (1, 100));
    assert_eq!((storage.begun.operations(), timed()), (2, 0));
    // A read beyond the end of a file did not reach the storage.
    stage.enforce(&Request::new(Operation::Read, 100)).complete(0);
    assert_eq!((storage.reads.operations(), timed()), (2, 0));
    stage.enforce(&write).complete(4_096);
    assert_eq!((storage.begun.operations(), timed()), (4, 1));
}

#[test]
fn rules_can_be_replaced_while_requests_pass() {
    let agent = stage_with(GateSpec::NoOp);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let tag = agent.stage().classify(&Request::new(Operation::Read, 4_096));
                    assert!([1, 2, 7].contains(&tag.tenant.0), "{tag:?} is half of two tables");
                }
            });
        }
        for round in 0..500 {
            let (name, tenant) = if round % 2 == 0 { ("even", 1) } else { ("odd", 2) };
            let rules = vec![
                Rule::CLEAR,
                Rule::gate("g", GateSpec::NoOp),
                channel(name, tenant, &["g"]),
                Rule::default_channel(name),
            ];
            agent.apply(rules).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn paths_contexts_and_sizes_distinguish_requests() {
    let agent = agent();
    let by_path = Conditions { path: vec!["/data/**".into()], ..Conditions::default() };
    let by_context = Conditions { context: vec!["flush".into()], ..Conditions::default() };
    let by_size = Conditions { size: ">=1MiB".parse().unwrap(), ..Conditions::default() };
    let by_process = Conditions { process: vec!["no such program".into()], ..by_path.clone() };
    let rules = vec![
        Rule::gate("g", GateSpec::NoOp),
        channel("rest", 1, &["g"]),
        channel("data", 2, &["g"]),
        channel("flush", 3, &["g"]),
        channel("large", 4, &["g"]),
        channel("never", 5, &["g"]),
        rule(by_process, "never"),
        rule(by_context, "flush"),
        rule(by_path, "data"),
        rule(by_size, "large"),
        Rule::default_channel("rest"),
    ];
    agent.apply(rules).unwrap();
    let tenant = |path: &str, size| {
        let request = Request::new(Operation::Write, size).on(Subject::Path(path.as_bytes()));
        agent.stage().classify(&request).tenant.0
    };
    assert_eq!(tenant("/home/a", 1), 1);
    assert_eq!(tenant("/data/a/b", 1), 2);
    assert_eq!(tenant("/home/a", 1 << 20), 4);
    let without_path = |size| agent.stage().classify(&Request::new(Operation::Write, size));
    assert_eq!(without_path(1).tenant.0, 1, "it is in no folder");
    assert_eq!(without_path(1 << 20).tenant.0, 4);
    let _scope = Scope::enter("flush");
    assert_eq!(tenant("/data/a/b", 1), 3);
}

#[test]
fn an_open_file_is_known_by_its_path_until_it_is_closed() {
    let agent = agent();
    let directory = std::env::current_dir().unwrap();
    let here = format!("{}/**", directory.display());
    let by_path = Conditions { path: vec![here], ..Conditions::default() };
    let rules = vec![
        Rule::gate("g", GateSpec::NoOp),
        channel("here", 1, &["g"]),
        channel("rest", 2, &["g"]),
        rule(by_path, "here"),
        Rule::default_channel("rest"),
    ];
    agent.apply(rules).unwrap();
    let file = std::fs::File::open("Cargo.toml").unwrap();
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
    let request = Request::new(Operation::Read, 1).on(Subject::Descriptor(descriptor));
    assert_eq!(agent.stage().classify(&request).tenant, TenantId(1));
    drop(file);
    tidegate_stage::files::forget(descriptor);
    let other = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&other), descriptor, "the number is used again");
    assert_eq!(agent.stage().classify(&request).tenant, TenantId::UNATTRIBUTED, "not on storage");
}

#[test]
fn content_is_transformed_and_restored() {
    let agent = agent();
    let rules = vec![
        Rule::gate("small", GateSpec::Compress { level: 3 }),
        Rule::gate("secret", GateSpec::Encrypt { key: "k".into() }),
        channel("c", 1, &["small", "secret"]),
        Rule::default_channel("c"),
    ];
    agent.apply(rules).unwrap();
    let layered = agent.layered(Keys::default().with("k", &[7; 32]));
    let content = b"tide ".repeat(2_000);
    let request = Request::new(Operation::Write, content.len() as u64);
    let (admission, written) = layered.write(&request, &content, b"block 9").unwrap();
    assert!(written.len() < 200, "compressed before it is encrypted");
    let read = layered.restore(&admission, &written, b"block 9", 1 << 20).unwrap();
    assert_eq!(read, content);
    let restore = |content: &[u8], associated: &[u8], largest| {
        layered.restore(&admission, content, associated, largest).unwrap_err()
    };
    assert_eq!(restore(&written, b"block 8", 1 << 20), TransformError::NotAuthentic);
    assert_eq!(restore(&written[1..], b"block 9", 1 << 20), TransformError::NotAuthentic);
    assert_eq!(restore(&[], b"block 9", 1 << 20), TransformError::NotAuthentic);
    assert_eq!(restore(&written, b"block 9", 100), TransformError::TooLarge);
    let without = agent.layered(Keys::default());
    let error = without.write(&request, &content, b"").unwrap_err();
    assert_eq!(error, TransformError::NoKey("k".into()));
}

#[test]
fn content_is_not_copied_without_a_transformation() {
    let agent = stage_with(GateSpec::NoOp);
    let layered = agent.layered(Keys::default());
    let content = [1; 100];
    let request = Request::new(Operation::Write, 100);
    let (_admission, written) = layered.write(&request, &content, b"").unwrap();
    assert!(std::ptr::eq(written.as_ptr(), content.as_ptr()));
}
