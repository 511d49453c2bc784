//! Programs that forbid themselves system calls that the shim makes.

use tidegate_model::{Conditions, Operation};
use tidegate_stage::Bypass;
use tidegate_stage::layout::GateKind;

use crate::support::{Bench, Count, build, directory, run};

/// The reason under which the shim counts calls that a sandbox keeps from the gates.
const SANDBOXED: Bypass = Bypass::Sandboxed;

/// Runs a program that locks itself in like this. Returns the count of its writes through a gate,
/// and the count of calls that bypassed the gate. The gate is a bucket, so it reads the clock.
fn locked_in(how: &str) -> (Count, Count) {
    let bench = Bench::new();
    bench.limit(1 << 20, 1);
    let program = build(&bench.programs, "sandbox.c", &["-ldl"]);
    run(bench.command(program).arg(how));
    (bench.count(Operation::Write), bench.bypassed(SANDBOXED))
}

const GATED: (Count, Count) = ((10, 100), (0, 0));

#[test]
fn what_is_open_before_a_filter_stays_gated() {
    for how in ["filter", "syscall", "unseen", "stacked", "fork", "thread"] {
        assert_eq!(locked_in(how), GATED, "{how}");
    }
}

#[test]
fn filters_by_libseccomp_are_seen() {
    let bench = Bench::new();
    let program = build(&bench.programs, "sandbox.c", &["-ldl"]);
    let status = bench.command(program).arg("library").status().unwrap();
    if status.code() == Some(77) {
        return;
    }
    assert!(status.success(), "{status}");
    assert_eq!(bench.count(Operation::Write), (10, 100));
}

#[test]
fn what_is_opened_behind_a_filter_passes_and_is_counted() {
    // The relative name cannot be completed, and the descriptor not be inspected.
    assert_eq!(locked_in("later"), ((0, 0), (11, 100)));
}

#[test]
fn filters_that_do_not_matter_change_nothing() {
    assert_eq!(locked_in("unneeded"), GATED);
    assert_eq!(locked_in("refused"), GATED);
}

#[test]
fn threads_that_may_not_sleep_do_not_wait() {
    assert_eq!(locked_in("no-futex"), ((0, 0), (10, 100)));
}

#[test]
fn strict_mode_is_survived() {
    for how in ["strict", "strict-jump"] {
        assert_eq!(locked_in(how), ((0, 0), (10, 100)), "{how}");
    }
}

#[test]
fn a_forbidden_time_stamp_counter_is_not_read() {
    assert_eq!(locked_in("counter"), ((10, 100), (10, 100)));
}

#[test]
fn a_mapping_behind_a_filter_is_not_inspected() {
    assert_eq!(locked_in("mapping"), ((10, 100), (1, 4096)));
}

#[test]
fn a_program_started_behind_a_filter_starts_without_the_shim() {
    let bench = Bench::new();
    let program = build(&bench.programs, "sandbox.c", &["-ldl"]);
    let started = build(&bench.programs, "environment.c", &[]);
    let output = run(bench.command(program).arg("exec").arg(started));
    assert_eq!(output.trim(), "not told");
    assert_eq!(bench.bypassed(SANDBOXED).0, 1);
}

#[test]
fn threads_that_may_not_identify_themselves_skip_queues() {
    let bench = Bench::new();
    bench.segment.gates[1].kind.store(GateKind::Queue as u32, std::sync::atomic::Ordering::Relaxed);
    let program = build(&bench.programs, "sandbox.c", &["-ldl"]);
    run(bench.command(program).arg("filter"));
    assert_eq!((bench.count(Operation::Write), bench.bypassed(SANDBOXED)), ((0, 0), (10, 100)));
}

#[test]
fn rules_on_the_caller_hold_behind_a_filter() {
    let directory = directory();
    let rule = |change: &dyn Fn(&mut Conditions)| {
        let path = vec![format!("{}/**", directory.display())];
        let mut conditions = Conditions { path, ..Conditions::default() };
        change(&mut conditions);
        conditions
    };
    let rules = [
        (rule(&|rule| rule.workflow = vec!["other".into()]), 2),
        (rule(&|rule| rule.user = vec!["4000000".into()]), 3),
        (rule(&|rule| rule.cgroup = vec!["/not/there".into()]), 4),
        (rule(&|rule| rule.process = vec!["sandbox".into()]), 5),
    ];
    let bench = Bench::with(directory.clone(), &rules, Some(0));
    let program = build(&bench.programs, "sandbox.c", &["-ldl"]);
    run(bench.command(&program).arg("filter"));
    assert_eq!((bench.channel(5).1, bench.bypassed(SANDBOXED).1), (100, 0), "a known thread");
    run(bench.command(&program).arg("thread"));
    // A new thread asks for its name and its user, which it may.
    assert_eq!((bench.channel(5).1, bench.bypassed(SANDBOXED).1), (200, 0));
}
