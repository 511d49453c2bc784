//! Processes that fork, run other programs, and end.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;

use tidegate_model::{Conditions, Operation};
use tidegate_stage::Bypass;

use crate::support::{Bench, build, directory, run};

#[test]
fn every_process_of_the_tree_counts() {
    let bench = Bench::new();
    let program = build(&bench.programs, "processes.c", &[]);
    let path = format!("{}:/usr/bin:/bin", bench.programs.display());
    run(bench.command(program).env("PATH", path));
    // 6 by forks, 800 by threads, 14 by a chain of programs.
    assert_eq!(bench.count(Operation::Write), (820, 8200));
    assert_eq!(bench.bypassed(Bypass::Unloaded).0, 0);
    assert_eq!(bench.bypassed(Bypass::Failure).0, 0);
    let processes = bench.segment.processes.iter().map(|cell| cell.load(Ordering::Relaxed));
    assert!(processes.filter(|pid| *pid != 0).count() >= 5);
}

#[test]
fn signal_handlers_jumps_and_cancelled_threads() {
    let bench = Bench::new();
    let handlers: u64 = bench.program("signals.c", &[]).trim().parse().unwrap();
    assert_eq!(bench.count(Operation::Write), (handlers + 2, handlers * 10 + 1100));
    assert_eq!(bench.bypassed(Bypass::Nested).0, 0);
}

#[test]
fn handlers_that_interrupt_a_gate() {
    let bench = Bench::new();
    bench.limit(10_000, 1_000);
    let handlers: u64 = bench.program("gated.c", &[]).trim().parse().unwrap();
    assert!(handlers > 0);
    // Whatever comes from inside the gate passes by, and is counted there.
    assert_eq!(bench.bypassed(Bypass::Nested), (handlers, handlers * 10));
    assert_eq!(bench.count(Operation::Write).1, 10_000 + 10);
}

#[test]
fn a_limit_holds_for_the_tree() {
    let bench = Bench::new();
    bench.limit(1 << 20, 10_000);
    let milliseconds: u64 = bench.program("limited.c", &[]).trim().parse().unwrap();
    // 512 KiB by four processes, in writes, prints and copies, at 1 MiB a second.
    assert_eq!(bench.count(Operation::Write).1, 512 << 10);
    assert!((470..5_000).contains(&milliseconds), "{milliseconds} ms");
}

#[test]
fn a_library_that_is_opened_later() {
    let bench = Bench::new();
    let library = build(&bench.programs, "library.c", &["-shared", "-fPIC"]);
    let program = build(&bench.programs, "opener.c", &[]);
    run(bench.command(program).arg(library));
    assert_eq!(bench.count(Operation::Write), (4, 220));
}

/// The output of `program` when it is started in this way.
fn started(bench: &Bench, starter: &Path, how: &str, program: &Path) -> String {
    run(bench.command(starter).arg(how).arg(program)).trim().to_owned()
}

#[test]
fn programs_without_the_shim_are_counted_by_reason() {
    let bench = Bench::new();
    let starter = build(&bench.programs, "starter.c", &[]);
    let program = build(&bench.programs, "environment.c", &[]);
    let copy = |name: &str| {
        let path = bench.programs.join(name);
        std::fs::copy(&program, &path).unwrap();
        path
    };

    for how in ["spawn", "execv", "vfork"] {
        assert_eq!(started(&bench, &starter, how, &program), "told");
    }
    assert_eq!(bench.count(Operation::Write), (3, 30));
    for how in ["spawn-empty", "execve-empty"] {
        assert_eq!(started(&bench, &starter, how, &program), "not told");
    }
    assert_eq!(bench.bypassed(Bypass::Unloaded).0, 2);

    let script = bench.programs.join("script");
    std::fs::write(&script, format!("#! {}\n", program.display())).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(started(&bench, &starter, "vfork", &script), "told");
    assert_eq!(bench.count(Operation::Write), (4, 40));

    std::fs::remove_file(&program).unwrap();
    let fixed = build(&bench.programs, "environment.c", &["-static"]);
    assert_eq!(started(&bench, &starter, "spawn", &fixed), "told");
    assert_eq!(bench.bypassed(Bypass::StaticProgram).0, 1);

    let go = build(&bench.programs, "environment.c", &["-DGO"]);
    assert_eq!(started(&bench, &starter, "spawn", &go), "told");
    assert_eq!(bench.bypassed(Bypass::GoProgram).0, 1);
    assert_eq!(bench.count(Operation::Write), (5, 50), "what it does through libc is seen");

    // A program whose loader is another one: this one is glibc's under a name that is not.
    let loader = bench.programs.join("ld-other.so.1");
    std::os::unix::fs::symlink("/lib64/ld-linux-x86-64.so.2", &loader).unwrap();
    let linker = format!("-Wl,--dynamic-linker={}", loader.display());
    let foreign = build(&bench.programs, "environment.c", &[&linker]);
    for how in ["spawn", "execv", "vfork"] {
        assert_eq!(started(&bench, &starter, how, &foreign), "not told");
    }
    assert_eq!(bench.bypassed(Bypass::ForeignProgram).0, 3);

    if rustix::process::getuid().is_root() {
        build(&bench.programs, "environment.c", &[]);
        let other = copy("other");
        std::os::unix::fs::chown(&other, Some(1), None).unwrap();
        std::fs::set_permissions(&other, PermissionsExt::from_mode(0o4755)).unwrap();
        // Another user may not write here, so it fails; that it was started is what counts.
        bench.command(&starter).arg("spawn").arg(&other).output().unwrap();
        assert_eq!(bench.bypassed(Bypass::SetuidProgram).0, 1);
    }
}

#[test]
fn no_descriptor_is_taken_when_the_standard_ones_are_closed() {
    let bench = Bench::new();
    let starter = build(&bench.programs, "starter.c", &[]);
    let program = build(&bench.programs, "environment.c", &[]);
    started(&bench, &starter, "closed", &program);
    // The file gets number 0, and what is said to number 1 goes nowhere.
    assert_eq!(bench.count(Operation::Write), (1, 10));
}

/// A channel for each of these patterns, from 1 on; number 0 for the rest.
fn by_pattern(patterns: &[&str], set_condition: impl Fn(&mut Conditions, Vec<String>)) -> Bench {
    let directory = directory();
    let rules: Vec<_> = patterns
        .iter()
        .zip(1..)
        .map(|(pattern, channel)| {
            let path = vec![format!("{}/**", directory.display())];
            let mut conditions = Conditions { path, ..Conditions::default() };
            set_condition(&mut conditions, vec![(*pattern).to_owned()]);
            (conditions, channel)
        })
        .collect();
    Bench::with(directory, &rules, Some(0))
}

#[test]
fn threads_by_name_even_if_another_gives_it() {
    let names = ["first", "second", "third", "hints"];
    let bench = by_pattern(&names, |conditions, name| conditions.workflow = name);
    bench.program("names.c", &[]);
    let bytes = [1, 2, 3, 4].map(|channel| bench.channel(channel).1);
    assert_eq!(bytes, [10, 20, 10, 55]);
}

#[test]
fn threads_by_the_last_hint_that_they_gave() {
    let hints = ["hint-long", "hint-short", "hint-medium", "hint-*"];
    let bench = by_pattern(&hints, |conditions, hint| conditions.context = hint);
    bench.program("names.c", &[]);
    let counts = [1, 2, 3, 4].map(|channel| bench.channel(channel));
    assert_eq!(counts, [(2, 15), (1, 10), (2, 20), (0, 0)]);
}

#[test]
fn scopes_that_the_program_enters() {
    let contexts = ["flush", "comp*", "hint-*", "?*"];
    let bench = by_pattern(&contexts, |conditions, context| conditions.context = context);
    bench.program("scope.c", &[]);
    let counts = [0, 1, 2, 3, 4].map(|channel| bench.channel(channel).1);
    assert_eq!(counts[1..], [20, 200, 0, 0]);
    assert!(counts[0] >= 2, "outside of every scope");
}

#[test]
fn without_a_segment_everything_passes() {
    let bench = Bench::new();
    let program = build(&bench.programs, "environment.c", &[]);
    for segment in ["", "/nowhere", "/etc/passwd"] {
        let mut command = bench.command(&program);
        assert_eq!(run(command.env("TIDEGATE_SEGMENT", segment)).trim(), "told");
        let output = command.env("TIDEGATE_DEBUG", "1").output().unwrap().stderr;
        let output = String::from_utf8_lossy(&output).into_owned();
        assert_eq!(output, format!("tidegate: no segment of this release at {segment}\n"));
    }
    assert_eq!(run(bench.command(&program).env_remove("TIDEGATE_SEGMENT")).trim(), "told");
    assert_eq!(bench.count(Operation::Write), (0, 0));
    assert_eq!(run(Command::new(&program).current_dir(&bench.directory)).trim(), "not told");
}
