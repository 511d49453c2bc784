//! A program that cannot be gated is reported, whoever starts it and in whatever way; and under
//! `--fail-closed` it does not run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, ProgramOutcome};
use tidegate_tests::{built, eventually, tools};

use crate::limits::held;
use crate::transparent::FREE;

/// How many ways to start a program `starts.c` knows.
const WAYS: usize = 15;

/// `tidegate run --fail-closed` of a program, in the bed's folder.
fn closed(bed: &Bed, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = bed.tidegate(&["run", "--fail-closed", "--tenant", "free", "--"]);
    command.arg(program).current_dir(bed.folder());
    command
}

/// The files that `mark.c` has written, by the way in which it was started.
fn mark_files(bed: &Bed) -> Vec<String> {
    let entries = fs::read_dir(bed.folder()).unwrap().map(Result::unwrap);
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut mark_files: Vec<String> = names.filter(|name| name.starts_with("mark-")).collect();
    mark_files.sort();
    mark_files
}

/// Nothing of it ran, and each attempt failed in the way of its call.
#[track_caller]
fn all_refused(bed: &Bed, outcome: &ProgramOutcome) {
    assert_eq!(mark_files(bed), [] as [&str; 0], "{outcome:?}");
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), WAYS, "{outcome:?}");
    // The shell that `system` and `popen` start is gated, and says 126 of what it may not start.
    let is_refused = |line: &&str| line.ends_with(": Permission denied") || line.ends_with(": 126");
    assert!(lines.iter().all(|line| is_refused(&line.trim())), "{outcome:?}");
}

#[test]
fn fail_closed_holds_for_every_way_to_start_a_program() {
    let bed = Bed::new(FREE);
    let program = tools::compiled("mark", &["-static"]);
    let starts = tools::compiled("starts", &[]);
    let outcome = process::run(closed(&bed, &starts).arg(&program)).success();
    all_refused(&bed, &outcome);
    let notices = outcome.notices();
    assert_eq!(notices.matches("was not started (static_program): ").count(), WAYS, "{notices}");
    assert!(notices.contains(&format!("refused: {WAYS} calls")), "{notices}");
}

#[test]
fn fail_closed_holds_where_the_environment_is_cleared() {
    let bed = Bed::new(FREE);
    let (program, starts) = (tools::compiled("mark", &[]), tools::compiled("starts", &[]));
    let outcome = process::run(closed(&bed, &starts).arg(&program)).success();
    assert_eq!(mark_files(&bed).len(), WAYS, "with its environment all of them run: {outcome:?}");
    mark_files(&bed).iter().for_each(|mark| fs::remove_file(bed.path(mark)).unwrap());
    let outcome = process::run(closed(&bed, &starts).arg(&program).arg("cleared")).success();
    all_refused(&bed, &outcome);
    let env = format!("env -i {} mark-env || echo refused", program.display());
    let outcome = process::run(closed(&bed, "sh").args(["-c", &env])).success();
    assert_eq!((outcome.stdout.as_str(), mark_files(&bed).len()), ("refused\n", 0), "{outcome:?}");
    assert!(outcome.notices().contains("(unloaded)"), "{outcome:?}");
}

#[test]
fn every_way_to_start_a_program_past_the_gates_is_reported() {
    let bed = Bed::new(FREE);
    let program = tools::compiled("mark", &["-static"]);
    let starts = tools::compiled("starts", &[]);
    let outcome = process::run(bed.run("free", &starts).arg(&program)).success();
    assert_eq!(mark_files(&bed).len(), WAYS, "{outcome:?}");
    let notices = outcome.notices();
    assert!(notices.contains(&format!("static_program: {WAYS} calls")), "{notices}");
    let names = notices.lines().find(|line| line.ends_with(" ran without limits (static_program)"));
    let name = program.file_name().unwrap().to_string_lossy().into_owned();
    assert!(names.is_some_and(|names| names.contains(&name)), "{notices}");
}

/// Children of a shell, however deep.
#[test]
fn fail_closed_holds_for_children_of_children() {
    let bed = Bed::new(FREE);
    let program = tools::compiled("mark", &["-static"]);
    let script = format!("sh -c 'env A=b nice sh -c \"{} mark-deep\"'; echo $?", program.display());
    let outcome = process::run(closed(&bed, "sh").args(["-c", &script])).success();
    assert_eq!((outcome.stdout.as_str(), mark_files(&bed).len()), ("126\n", 0), "{outcome:?}");
}

/// A folder that all users may write to, and a program there that all may run.
fn open_to_all(bed: &Bed) -> PathBuf {
    let everybody = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    };
    everybody(bed.folder());
    let program = bed.path("program");
    fs::copy(tools::compiled("mark", &[]), &program).unwrap();
    everybody(&program);
    program
}

/// A program that may not open the segment runs without gates; under `--fail-closed` it does not
/// run at all.
#[track_caller]
fn unreachable(bed: &Bed, script: &str) {
    let open = process::run(&mut bed.run_script("free", script)).success();
    assert_eq!(mark_files(bed).len(), 1, "{open:?}");
    let notices = open.notices();
    assert!(notices.contains("ran without limits (unreachable)"), "{notices}");
    assert!(notices.contains("unreachable: 1 call;"), "{notices}");
    fs::remove_file(bed.path(&mark_files(bed)[0])).unwrap();
    let closed = process::run(closed(bed, "sh").args(["-c", script]));
    assert_ne!(closed.code, Some(0), "{closed:?}");
    assert_eq!(mark_files(bed).len(), 0, "{closed:?}");
    // Not a line of its own: the program that could not start another writes at the same time.
    assert!(closed.stderr.contains("was not started (unreachable)"), "{closed:?}");
}

#[test]
fn a_change_of_user_is_reported_and_refused_where_limits_must_hold() {
    if !tools::is_root() {
        return tools::skipped("only root may change its user");
    }
    tools::need("setpriv");
    let bed = Bed::new(FREE);
    let program = open_to_all(&bed);
    let program = program.display();
    unreachable(&bed, &format!("setpriv --reuid 65534 --clear-groups {program} mark-setpriv"));
    if tools::find("su").is_some() {
        let change = format!("su nobody -s /bin/sh -c 'exec {program} mark-su'");
        let open = process::run(&mut bed.run_script("free", &change)).success();
        assert!(open.notices().contains("ran without limits (unreachable)"), "{open:?}");
        assert_eq!(mark_files(&bed), ["mark-su"], "{open:?}");
        fs::remove_file(bed.path("mark-su")).unwrap();
        let closed = process::run(closed(&bed, "sh").args(["-c", &change]));
        assert!(closed.stderr.contains("was not started (unreachable)"), "{closed:?}");
        assert_eq!((closed.code == Some(0), mark_files(&bed).len()), (false, 0), "{closed:?}");
    }
    // The controller's answer says so, too.
    let script = format!("setpriv --reuid 65534 --clear-groups {program} mark-2");
    let running = held(&bed, "free", &script);
    eventually("status names the reason", || {
        let stages = bed.status()["stages"].clone();
        let reasons = stages[0]["coverage"]["bypasses"].as_array().cloned().unwrap_or_default();
        reasons.iter().any(|reason| reason["reason"] == "unreachable" && reason["calls"] == 1)
    });
    running.finish().success();
}

#[test]
fn another_root_without_the_segment_is_reported_and_refused_where_limits_must_hold() {
    if !tools::is_root() {
        return tools::skipped("only root may change its root directory");
    }
    let bed = Bed::new(FREE);
    let root = bed.subfolder("root");
    let program = tools::compiled("mark", &[]);
    let needed = process::run(Command::new("ldd").arg(&program)).success().stdout;
    let libraries = needed.split_whitespace().filter(|word| word.starts_with('/'));
    let shim = built::shim();
    let also = process::run(Command::new("ldd").arg(&shim)).success().stdout;
    let also = also.split_whitespace().filter(|word| word.starts_with('/'));
    for library in libraries.chain(also).map(Path::new).chain([shim.as_path()]) {
        let copy = root.join(library.strip_prefix("/").unwrap());
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(library, copy).unwrap();
    }
    fs::copy(&program, root.join("program")).unwrap();
    let script = "chroot root /program mark-root && mv root/mark-root mark-root";
    unreachable(&bed, script);
}

/// A program itself detects, before it begins, a missing stage that its parent's hooks did not see.
#[test]
fn a_program_that_finds_no_stage_ends_before_its_first_instruction() {
    let bed = Bed::empty();
    let program = tools::compiled("mark", &[]);
    let run = |segment: Option<&str>, closed: &str| {
        let mut command = Command::new(&program);
        command.arg("mark-1").current_dir(bed.folder()).env("LD_PRELOAD", built::shim());
        command.env("TIDEGATE_FAIL_CLOSED", closed);
        segment.map(|segment| command.env("TIDEGATE_SEGMENT", segment));
        process::run(&mut command)
    };
    for segment in [Some("/nowhere"), None] {
        let outcome = run(segment, "1").failure(126);
        assert!(outcome.notices().contains("--fail-closed"), "{outcome:?}");
        assert_eq!(mark_files(&bed).len(), 0, "{outcome:?}");
    }
    run(Some("/nowhere"), "0").success();
    assert_eq!(mark_files(&bed), ["mark-1"]);
}

#[test]
fn a_program_that_may_be_run_but_not_read_is_refused_where_limits_must_hold() {
    let bed = Bed::new(FREE);
    let program = open_to_all(&bed);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o111)).unwrap();
    if tools::is_root() {
        return tools::skipped("root may read every file");
    }
    let outcome = process::run(closed(&bed, &program).arg("mark-1")).failure(126);
    assert_eq!(mark_files(&bed).len(), 0, "{outcome:?}");
}

/// The loader leaves out a library that it cannot map, and goes on.
#[test]
fn a_program_that_the_loader_left_the_shim_out_of_is_reported_and_fails_where_limits_must_hold() {
    let bed = Bed::new(FREE);
    let program = tools::compiled("mark", &[]);
    // Room for the program with its C library, and not for the shim.
    let script = format!("ulimit -v 4500; exec {} mark-small", program.display());
    let run_with = |command: &mut Command| process::run(command.args(["--", "sh", "-c", &script]));
    let mut open = bed.tidegate(&["run", "--report", "--tenant", "free"]);
    let open = run_with(open.current_dir(bed.folder())).success();
    assert_eq!(mark_files(&bed).len(), 1, "{open:?}");
    let notices = open.notices();
    assert!(notices.contains("not_loaded: 1 call; the loader left the shim out"), "{notices}");
    assert!(notices.contains("nothing is known of 1 program that ran without"), "{notices}");
    let mut closed = bed.tidegate(&["run", "--fail-closed", "--tenant", "free"]);
    let closed = run_with(closed.current_dir(bed.folder())).failure(126);
    assert!(closed.notices().contains("without the shim"), "{closed:?}");
}

#[test]
fn programs_that_ran_without_the_shim_are_reported_beside_unseen_bytes() {
    let bed = Bed::new(FREE);
    let program = tools::compiled("mark", &["-static"]);
    let mut command = bed.tidegate(&["run", "--report", "--tenant", "free", "--"]);
    let outcome = process::run(command.arg(&program).arg("mark-first").current_dir(bed.folder()));
    let notices = outcome.success().notices();
    assert!(notices.contains("nothing is known of 1 program that ran without"), "{notices}");
    // Where all have the shim there is nothing to add.
    let script = "true; (true & wait); exec true";
    let outcome = process::run(
        bed.tidegate(&["run", "--report", "--tenant", "free"]).args(["--", "sh", "-c", script]),
    );
    let notices = outcome.success().notices();
    assert!(notices.contains("were not seen\n"), "{notices}");
    assert!(!notices.contains("not_loaded"), "{notices}");
}

/// The programs of a run within a run belong to the inner one, which counts them.
#[test]
fn programs_of_a_run_within_a_run_are_not_missed() {
    let bed = Bed::new(FREE);
    let mut outer = bed.tidegate(&["run", "--report", "--tenant", "free", "--"]);
    outer.arg(tidegate_tests::built::tidegate()).args(["run", "--tenant", "free", "--"]);
    let script = "true; (true & wait); exec true";
    let outcome = process::run(outer.args(["sh", "-c", script]).current_dir(bed.folder()));
    let notices = outcome.success().notices();
    assert!(notices.contains("were not seen"), "the outer run has reported: {notices}");
    assert!(!notices.contains("not_loaded") && !notices.contains("nothing is known"), "{notices}");
}

/// The numbers of a report for scripts are in fields, not in a sentence.
#[test]
fn a_report_in_json_has_numbers() {
    let bed = Bed::new(FREE);
    let mut command = bed.tidegate(&["--json", "run", "--report", "--tenant", "free", "--"]);
    let script = "dd if=/dev/zero of=file bs=1024 count=3 2> /dev/null; cat file | cat > /dev/null";
    let outcome = process::run(command.args(["sh", "-c", script]).current_dir(bed.folder()));
    let outcome = outcome.success();
    let lines = outcome.stderr.lines().map(serde_json::from_str::<serde_json::Value>);
    let reports: Vec<_> = lines.map_while(Result::ok).collect();
    let report = reports.iter().find(|it| it["passed_bytes"].is_u64());
    let report = report.unwrap_or_else(|| panic!("no report: {outcome:?}"));
    assert!(report["passed_bytes"].as_u64() >= Some(6 * 1024), "written and read: {report}");
    assert!(report["not_storage_bytes"].as_u64() >= Some(6 * 1024), "the pipe's ends: {report}");
    assert_eq!(report["unseen_programs"], 0, "{report}");
    let reasons = report["reasons"].as_array().into_iter().flatten();
    assert!(reasons.clone().any(|it| it["reason"] == "not_storage"), "{report}");
}
