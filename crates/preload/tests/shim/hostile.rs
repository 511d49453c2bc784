//! Programs that do what is allowed and unkind.

use std::path::PathBuf;
use std::process::Output;

use tidegate_model::{Conditions, Operation};
use tidegate_stage::Bypass;

use crate::support::{Bench, build, directory, run, shim};

/// The library that the same source makes which makes a program.
fn library(bench: &Bench, name: &str) -> PathBuf {
    let folder = bench.programs.join("library");
    std::fs::create_dir(&folder).expect("a new directory");
    build(&folder, name, &["-shared", "-fPIC", "-DLIBRARY"])
}

/// Runs the program `loading`, and returns its bench and its output.
fn loading(how: &str) -> (Bench, Output) {
    let bench = Bench::new();
    let program = build(&bench.programs, "loading.c", &["-ldl"]);
    let library = library(&bench, "loading.c");
    // A program that hangs ends in a failure.
    let mut command = bench.command("timeout");
    let output = command.arg("20").arg(program).arg(how).arg(library).output();
    let output = output.expect("timeout is there");
    (bench, output)
}

#[test]
fn a_library_whose_constructor_waits_for_a_thread() {
    let (bench, output) = loading("thread");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(bench.count(Operation::Write), (1, 10));
}

#[test]
fn the_loaders_last_error_is_the_programs() {
    let (_, output) = loading("error");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_function_whose_library_comes_late() {
    let (_, output) = loading("late");
    assert!(output.status.success() || output.status.code() == Some(77), "{output:?}");
}

/// A tenant's bucket is not emptied for ever by a length that no request has.
#[test]
fn an_asynchronous_request_is_charged_what_the_kernel_moves_at_most() {
    let bench = Bench::new();
    bench.program("huge.c", &["-lrt"]);
    assert_eq!(bench.count(Operation::Write), (1, 0x7fff_f000));
}

#[test]
fn a_number_that_is_used_until_it_is_closed() {
    let bench = Bench::new();
    let program = build(&bench.programs, "closing.c", &[]);
    let library = library(&bench, "closing.c");
    let both = format!("{}:{}", shim().display(), library.display());
    run(bench.command(program).env("LD_PRELOAD", both));
    assert_eq!(bench.count(Operation::Write), (1, 10), "what goes to the socket is not storage");
    assert_eq!(bench.bypassed(Bypass::Failure), (0, 0));
}

#[test]
fn a_thread_that_is_cancelled_at_a_gate() {
    let bench = Bench::new();
    // The first request passes at once and leaves a debt of a second. The second request waits that
    // long, and with it the thread that cancels: a thread leaves when it is through.
    bench.limit(10_000, 1);
    bench.program_with("cancelled.c", "anywhere");
    let bytes = bench.count(Operation::Write).1;
    assert!(bytes >= 10_000 && bytes.is_multiple_of(10_000), "{bytes}");
}

#[test]
fn a_thread_that_will_be_cancelled_starts_a_program() {
    Bench::new().program_with("cancelled.c", "spawn");
}

#[test]
fn the_group_of_a_thread_that_will_be_cancelled_is_read() {
    let directory = directory();
    let group = Conditions { cgroup: vec!["/no/such/group".into()], ..Conditions::default() };
    let bench = Bench::with(directory, &[(group, 1)], Some(0));
    bench.program_with("cancelled.c", "truncate");
}

#[test]
fn flags_and_refusals_move_what_they_move() {
    let bench = Bench::new();
    bench.program("flags.c", &[]);
    // By calls; then the copies: 300 + 100 + 1000 on both sides, 50 from a pipe and 50 to one.
    assert_eq!(bench.count(Operation::Write).1, 12_488 + 1_450);
    assert_eq!(bench.count(Operation::Read).1, 4_496 + 1_450);
    assert_eq!(bench.bypassed(Bypass::Failure), (0, 0));
}

#[test]
fn a_thread_with_descriptors_of_its_own() {
    for how in ["unshare", "close_range"] {
        let bench = Bench::new();
        bench.program_with("parted.c", how);
        assert_eq!(bench.count(Operation::Write), (2, 20), "{how}");
    }
}

/// The kernel decides on the result of a call; if the C library itself follows the pointer, the C
/// library decides.
#[test]
fn a_pointer_into_nowhere_is_answered_as_without_the_shim() {
    let bench = Bench::new();
    let program = build(&bench.programs, "pointers.c", &[]);
    let plain = run(std::process::Command::new(&program).current_dir(&bench.directory));
    let shimmed = run(&mut bench.command(&program));
    let different: Vec<_> =
        plain.lines().zip(shimmed.lines()).filter(|(plain, shimmed)| plain != shimmed).collect();
    assert!(different.is_empty(), "{} differ: {different:#?}", different.len());
    assert_eq!(plain.lines().count(), shimmed.lines().count());
    assert!(plain.matches("Bad address").count() > 200, "{plain}");
    assert_eq!(bench.bypassed(Bypass::Failure), (0, 0));
}

/// The most bytes that the shim takes of a signal handler's stack, as the shim's page promises.
const STACK_MAX: u64 = 2_048;
/// The same for a build without optimisation.
const STACK_MAX_DEBUG: u64 = 10_240;

/// The bytes that the shim adds to a signal handler's stack, by call.
fn stacks(bench: &Bench) -> Vec<(String, u64)> {
    // Bound at its start: to look a function up takes more of the stack than anything else.
    let program = build(&bench.programs, "stacks.c", &["-Wl,-z,now"]);
    let sizes = |output: String| {
        let line = |line: &str| {
            let (name, size) = line.split_once(' ')?;
            Some((name.to_owned(), size.parse::<u64>().ok()?))
        };
        output.lines().filter_map(line).collect::<Vec<_>>()
    };
    let plain = sizes(run(std::process::Command::new(&program).current_dir(&bench.directory)));
    let shimmed = sizes(run(&mut bench.command(&program)));
    let added = plain.into_iter().zip(shimmed).map(|((name, plain), (_, shimmed))| {
        println!("{name}: {plain} bytes without the shim, {shimmed} with it");
        (name, shimmed.saturating_sub(plain))
    });
    added.collect()
}

/// `cargo test --release -p tidegate-preload --test shim -- stack --nocapture` shows by call what
/// the page promises.
#[test]
fn a_call_in_a_signal_handler_takes_little_of_its_stack() {
    let most = if cfg!(debug_assertions) { STACK_MAX_DEBUG } else { STACK_MAX };
    for limit in [None, Some(100_000)] {
        let bench = Bench::new();
        // With a burst of one byte each call waits for the debt of the one before it.
        limit.inspect(|limit| bench.limit(*limit, 1));
        let added = stacks(&bench);
        assert_eq!(added.len(), 20);
        let large: Vec<_> = added.iter().filter(|(_, added)| *added > most).collect();
        assert!(large.is_empty(), "more than {most} bytes: {large:?}");
    }
}
