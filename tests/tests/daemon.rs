//! The daemon as operators treat it: it is hung up on, and its log is read.

use std::fs;
use std::process::Stdio;

use rustix::process::Signal;
use tidegate_tests::bed::Bed;
use tidegate_tests::{eventually, process, tools};

const POLICY: &str = "[[tenant]]\nname = \"load\"\n";

fn revision(bed: &Bed) -> u64 {
    bed.status()["revision"].as_u64().unwrap_or(0)
}

#[track_caller]
fn logs(bed: &mut Bed, text: &str) {
    eventually(&format!("{text:?} in the log"), || bed.controller().stderr().contains(text));
}

/// A terminal that is closed, or an operator who wants the policy to be read: neither ends it.
#[test]
fn a_hangup_reads_the_policy_again_and_ends_no_daemon() {
    let mut bed = Bed::empty();
    let policy = bed.path("policy.toml");
    fs::write(&policy, POLICY).unwrap();
    let mut command = bed.controller_command();
    bed.up_with(command.arg("--policy").arg(&policy));
    assert_eq!(revision(&bed), 1);
    let hang_up = |bed: &mut Bed| bed.controller().signal(Signal::HUP);

    hang_up(&mut bed);
    logs(&mut bed, "has not changed");
    fs::write(&policy, format!("{POLICY}limit = \"1MiB/s\"\n")).unwrap();
    hang_up(&mut bed);
    eventually("the changed policy", || revision(&bed) == 2);
    assert_eq!(bed.tenant("load")["limit_bytes_per_second"], 1 << 20);

    // A faulty policy is refused, and the one in force stays.
    fs::write(&policy, "[[tenant]]\nname = 7\n").unwrap();
    hang_up(&mut bed);
    logs(&mut bed, "the policy in force stays");
    assert_eq!(revision(&bed), 2);

    // A policy that an operator has applied meanwhile came from elsewhere.
    bed.apply("[[tenant]]\nname = \"other\"\n").success();
    fs::write(&policy, POLICY).unwrap();
    hang_up(&mut bed);
    logs(&mut bed, ", and stays");
    assert_eq!(revision(&bed), 3);
    bed.tenant("other");
}

#[test]
fn a_hangup_without_a_policy_file_is_a_line_of_the_log() {
    let mut bed = Bed::empty();
    bed.up();
    bed.controller().signal(Signal::HUP);
    logs(&mut bed, "no policy file to read again");
    bed.apply(POLICY).success();
}

/// A program that has ended is no warning.
#[test]
fn an_orderly_end_of_a_stage_is_no_warning() {
    let mut bed = Bed::new(POLICY);
    let running = process::spawn(bed.run("load", "cat").stdin(Stdio::piped()));
    bed.wait_for_stages(1);
    let pid = running.pid();
    running.finish().success();
    logs(&mut bed, "stage disconnected");
    let log = bed.controller().stderr();
    let line = log.lines().find(|line| line.contains("stage disconnected")).unwrap();
    assert!(line.contains(" INFO ") && line.contains(&format!("pid={pid}")), "{line}");
    assert!(line.contains("tenant=\"load\""), "{line}");
    assert!(!log.contains(" WARN "), "{log}");
}

/// A supervisor or a shell that stops to read: `tidegate up | head -1`.
#[test]
fn a_daemon_goes_on_where_its_output_is_closed() {
    let bed = Bed::empty();
    // The reader has ended before the daemon begins.
    let words = ["-c", "exec > >(:); wait $!; exec \"$0\" \"$@\""];
    let mut shell = process::around(tools::need("bash"), words, &bed.controller_command());
    let mut running = process::spawn(shell.stdin(Stdio::null()));
    eventually("a line about it", || running.stderr().contains("standard output is closed"));
    process::run(&mut bed.tidegate(&["status"])).success();
    assert!(running.is_running());
    running.signal(Signal::TERM);
    running.finish().success();
}
