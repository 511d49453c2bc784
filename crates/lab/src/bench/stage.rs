//! Benchmark of a stage: the time to classify a request, to pass its gates and to count it.

use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsRawFd;

use tidegate_model::gate::{Burst, Throughput};
use tidegate_model::{Bytes, ChannelSpec, Class, Conditions, GateSpec, Operation, Rate, TenantId};
use tidegate_proto::message::Rule;
use tidegate_stage::{Request, Scope, Settings, StageAgent, Subject};

use super::Row;
use super::window::{WindowPlan, ours};

const BENCH: &str = "stage";
/// The most time of a request, in nanoseconds (classify, decide, count; a no-op).
const NOOP_NS: f64 = 20.0;
/// The same as a rate.
const NOOP_MILLIONS: f64 = 40.0;
/// The sizes of requests.
pub(super) const PAGE: u64 = 4 << 10;
pub(super) const LARGE: u64 = 128 << 10;
/// The least throughput of two threads on two channels, as a multiple of one thread's.
const SCALING: f64 = 1.8;

/// A stage that no controller reaches, with these rules.
pub(super) fn agent(rules: Vec<Rule>) -> Option<StageAgent> {
    let socket = "/nonexistent/controller.sock".into();
    let agent = StageAgent::start(Settings { socket, ..Settings::default() }).ok()?;
    agent.apply(rules).ok()?;
    Some(agent)
}

/// A stage with one gate, where every request goes.
pub(super) fn one_gate(spec: GateSpec) -> Option<StageAgent> {
    agent(vec![Rule::gate("g", spec), channel("c", &["g"]), Rule::default_channel("c")])
}

fn channel(name: &str, gates: &[&str]) -> Rule {
    Rule::channel(ChannelSpec {
        name: name.into(),
        tenant: TenantId(1),
        class: Class::Medium,
        gates: gates.iter().map(ToString::to_string).collect(),
    })
}

fn in_context(name: &str) -> Conditions {
    Conditions { context: vec![name.into()], ..Conditions::default() }
}

/// A bucket that no request waits at: nearly a tebibyte per second.
pub(super) fn bucket() -> GateSpec {
    let rate = Throughput::Bandwidth(Rate((1 << 40) - 1));
    GateSpec::TokenBucket { rate, burst: Burst::Size(Bytes(1 << 39)) }
}

/// So many rules, half of them on contexts and half on paths, before a default.
fn with_rules(count: usize) -> Option<StageAgent> {
    let mut rules = vec![Rule::gate("g", bucket()), channel("c", &["g"]), channel("rest", &["g"])];
    rules.extend((0..count).map(|number| {
        let mut conditions = in_context(&context(number));
        if number % 2 == 1 {
            conditions.path = vec![format!("/data/{number}/**")];
            conditions.context.clear();
        }
        Rule::insert(u32::MAX, conditions, "c")
    }));
    rules.push(Rule::default_channel("rest"));
    agent(rules)
}

fn context(number: usize) -> String {
    format!("context {number}")
}

/// Makes requests of `bytes` and completes them. Part of its caller, as in a program that knows
/// what its requests are about.
#[inline(always)]
fn requests(agent: &StageAgent, bytes: u64, subject: Subject<'_>, calls: u64) {
    for _ in 0..calls {
        let request = Request::new(black_box(Operation::Write), black_box(bytes)).on(subject);
        agent.stage().enforce(&request).complete(black_box(bytes));
    }
}

pub(super) fn rows(plan: WindowPlan, report: &mut dyn FnMut(Row)) {
    if noop(plan, report).and_then(|()| full(plan, report)).is_none() {
        let row = Row::nanoseconds(BENCH, "enforce and complete", None);
        report(row.because("no stage can be made here"));
    }
}

/// Requests through a gate that does nothing. Their content is not passed: 128 KiB is a number.
fn noop(plan: WindowPlan, report: &mut dyn FnMut(Row)) -> Option<()> {
    const CONTEXTS: [&str; 2] = ["even", "odd"];
    let [even, odd] = CONTEXTS;
    let stage = &agent(vec![
        Rule::gate("g", GateSpec::NoOp),
        channel("c", &["g"]),
        channel(even, &["g"]),
        channel(odd, &["g"]),
        Rule::insert(u32::MAX, in_context(even), even),
        Rule::insert(u32::MAX, in_context(odd), odd),
        Rule::default_channel("c"),
    ])?;
    // Each thread in its own context, and so in its own channel; or all of them in one.
    let own = |bytes| {
        move |thread: usize, calls| {
            let _scope = Scope::enter(CONTEXTS[thread % 2]);
            requests(stage, bytes, Subject::None, calls);
        }
    };
    let one = |_: usize, calls| requests(stage, LARGE, Subject::None, calls);
    let (empty, large) = (own(0), own(LARGE));
    let measured = ours(plan, [(1, &empty), (1, &large), (2, &large), (2, &one)]);
    let [empty, large, two, shared] = measured;
    report(Row::nanoseconds(BENCH, "no-op, 0 B", empty).promised(NOOP_NS));
    report(Row::nanoseconds(BENCH, "no-op, 128 KiB", large).promised(NOOP_NS));
    let rate = large.map(|ns| 1_000.0 / ns);
    report(Row::more(BENCH, "no-op, 128 KiB, as a rate", "M/s", rate).promised(NOOP_MILLIONS));
    let times = large.zip(two).map(|(one, two)| 2.0 * one / two);
    let case = "no-op, two threads on two channels, beside one thread";
    report(Row::more(BENCH, case, "times", times).promised(SCALING));
    report(Row::nanoseconds(BENCH, "no-op, two threads on one channel", shared));
    Some(())
}

/// Requests through a bucket that never makes them wait, with more and more rules.
fn full(plan: WindowPlan, report: &mut dyn FnMut(Row)) -> Option<()> {
    let (none, some, many) = (&with_rules(0)?, &with_rules(8)?, &with_rules(100)?);
    // A file of its own for each: what is known of a descriptor is known under one set of rules.
    let program = std::env::current_exe().ok()?;
    let files = [File::open(&program).ok()?, File::open(&program).ok()?];
    let [first, second] = files.each_ref().map(|file| Subject::Descriptor(file.as_raw_fd()));
    let last = |rules: usize| context(rules - 2);
    let (of_some, of_many) = (last(8), last(100));
    let bucket = |_: usize, calls| requests(none, PAGE, Subject::None, calls);
    let eight = |_: usize, calls| {
        let _scope = Scope::enter(&of_some);
        requests(some, PAGE, first, calls);
    };
    let hundred = |_: usize, calls| {
        let _scope = Scope::enter(&of_many);
        requests(many, PAGE, second, calls);
    };
    let measured = ours(plan, [(1, &bucket), (1, &eight), (1, &hundred), (2, &bucket)]);
    let [bucket, eight, hundred, two] = measured;
    report(Row::nanoseconds(BENCH, "token bucket, 4 KiB", bucket));
    report(Row::nanoseconds(BENCH, "token bucket, open file, last of 8 rules", eight));
    report(Row::nanoseconds(BENCH, "token bucket, open file, last of 100 rules", hundred));
    report(Row::nanoseconds(BENCH, "token bucket, two threads on one channel", two));
    Some(())
}
