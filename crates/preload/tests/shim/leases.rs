//! Threads that leave a gated call in every way there is: at no kind of gate may a neighbour
//! notice.
//!
//! A neighbour at the same gate, in another process, makes request after request meanwhile, and
//! none of them may take longer than it takes until a permit is passed on, and as long again. The
//! neighbour's waits for a processor do not count.
//!
//! A tenth of the promised numbers; with `TIDEGATE_LONG=1` all of them.

use std::sync::atomic::Ordering;

use tidegate_model::Time;
use tidegate_stage::Bypass;
use tidegate_stage::layout::GateKind;

use crate::support::{Bench, build, run};

/// The longest that a neighbour may wait.
const LONGEST_MS: u64 = 200;

/// A kind of gate: its name, and what makes a bench have it.
type Gate = (&'static str, fn(&Bench));

/// At each of them a request goes at once if nothing is wrong.
const GATES: [Gate; 4] = [
    ("queue", queue),
    ("pace", |bench| bucket(bench, GateKind::Bytes)),
    ("limit", |bench| bucket(bench, GateKind::Operations)),
    ("measure", |bench| bench.segment.gates[0].kind.store(0, Ordering::Relaxed)),
];

/// One at a time, in the order of arrival.
fn queue(bench: &Bench) {
    bench.segment.gates[0].kind.store(GateKind::Queue as u32, Ordering::Relaxed);
}

fn bucket(bench: &Bench, kind: GateKind) {
    let gate = &bench.segment.gates[0];
    gate.bucket.configure(1 << 40, 1 << 34, Time::ZERO);
    gate.kind.store(kind as u32, Ordering::Relaxed);
}

/// Lets threads leave in this way, `times` at a queue and a tenth of that at other gates. Returns
/// the longest wait of the queue's neighbour, in milliseconds.
#[track_caller]
fn neighbour_is_unaffected(how: &str, times: u64) -> u64 {
    let long = std::env::var_os("TIDEGATE_LONG").is_some();
    let times = if long { times } else { times / 10 };
    let mut longest = 0;
    for (name, gate) in GATES {
        let bench = Bench::new();
        gate(&bench);
        let times = if name == "queue" { times } else { times.div_ceil(10) };
        let waited = waits(&bench, how, times);
        assert!(waited <= LONGEST_MS, "{how} at {name}: a neighbour waited {waited} ms");
        if name == "queue" {
            longest = waited;
        }
        is_as_before(&bench, how, name);
    }
    longest
}

/// Returns the neighbour's longest wait, in milliseconds.
fn waits(bench: &Bench, how: &str, times: u64) -> u64 {
    let library = build(&bench.programs, "leaves.c", &["-shared", "-fPIC"]);
    let program = build(&bench.programs, "leases.c", &["-ldl"]);
    // A program that hangs ends in a failure.
    let mut command = bench.command("timeout");
    command.arg("250").arg(program).arg(how).arg(times.to_string()).arg(library);
    let output = run(&mut command);
    let numbers: Vec<u64> =
        output.split_whitespace().map(|it| it.parse().expect("digits")).collect();
    let [microseconds, requests] = numbers[..] else { panic!("two numbers: {output}") };
    eprintln!("{how}: {times} times, a neighbour waited {microseconds} us of {requests} requests");
    assert!(requests > 0, "{how}: the neighbour made none");
    microseconds / 1_000
}

/// Nothing passed by, and nothing is left at the queue.
#[track_caller]
fn is_as_before(bench: &Bench, how: &str, gate: &str) {
    // One that jumps out of the shim before it waits, unseen, is inside for its next calls.
    let nested = if how == "unseen" { Bypass::Failure } else { Bypass::Nested };
    for reason in [Bypass::QueueFull, Bypass::Failure, Bypass::VforkChild, nested] {
        assert_eq!(bench.bypassed(reason), (0, 0), "{how} at {gate}: {reason:?}");
    }
}

#[test]
fn threads_that_jump_out_of_a_call() {
    neighbour_is_unaffected("jump", 10_000);
}

#[test]
fn threads_that_jump_and_never_call_again() {
    neighbour_is_unaffected("never", 1_000);
}

#[test]
fn threads_that_jump_unseen_and_call_again() {
    neighbour_is_unaffected("unseen", 1_000);
}

#[test]
fn threads_that_are_cancelled() {
    neighbour_is_unaffected("cancel", 10_000);
}

#[test]
fn processes_that_are_stopped() {
    neighbour_is_unaffected("stop", 1_000);
    let bench = Bench::new();
    queue(&bench);
    // On a busy machine it may take some stops until one hits a process in service.
    let is_counted = (0..10).any(|_| {
        waits(&bench, "stop", 20);
        bench.bypassed(Bypass::OverDepth).0 > 0
    });
    assert!(is_counted, "more in service than may be is counted");
}

#[test]
fn processes_that_are_killed() {
    neighbour_is_unaffected("kill", 1_000);
}

#[test]
fn processes_that_run_another_program() {
    neighbour_is_unaffected("exec", 1_000);
}

#[test]
fn children_of_vfork() {
    neighbour_is_unaffected("vfork", 10_000);
}

#[test]
fn children_that_share_the_memory_of_their_parent() {
    neighbour_is_unaffected("clone", 10_000);
}

#[test]
fn threads_that_end() {
    neighbour_is_unaffected("exit", 10_000);
}

#[test]
fn libraries_that_are_unloaded() {
    neighbour_is_unaffected("dlclose", 1_000);
}
