//! The application comes first, at queues and in memory: a program that is stopped holds no other
//! up, and a run that cannot have its memory says so instead of killing the program later.

use std::process::{Command, Stdio};

use tidegate_tests::bed::Bed;
use tidegate_tests::{eventually, process, tools};

const QUEUE: &str = "[[tenant]]\nname = \"load\"\n\
                     [[channel]]\nname = \"all\"\ntenant = \"load\"\n\
                     gates = [{ kind = \"concurrency\", depth = 1 }]\n\
                     [[match]]\nchannel = \"all\"\noperation = [\"read\", \"write\"]\n";

/// How often more were in service than a queue's depth, as `status` has it.
fn over_depth(bed: &Bed) -> u64 {
    let status = bed.status();
    let bypasses = status["stages"][0]["coverage"]["bypasses"].as_array().cloned();
    let counted = bypasses.unwrap_or_default().into_iter().find(|it| it["reason"] == "over_depth");
    counted.and_then(|it| it["calls"].as_u64()).unwrap_or(0)
}

/// A program stops its child in the middle of requests. It goes on itself, and that both were in
/// service at once is counted.
#[track_caller]
fn a_permit_passes_on(before: &[&str]) {
    let bed = Bed::new(QUEUE);
    let program = tools::compiled("stopped", &[]);
    let mut command = bed.run("load", before.first().map_or(program.as_os_str(), |it| it.as_ref()));
    if let Some((_, rest)) = before.split_first() {
        command.args(rest).arg(&program);
    }
    let mut running = process::spawn(command.stdin(Stdio::piped()));
    running.wait_for_output("done");
    eventually("it is counted", || over_depth(&bed) > 0);
    running.write_input("\n");
    running.finish().success();
}

#[test]
fn the_permit_of_a_stopped_process_passes_on_and_is_counted() {
    a_permit_passes_on(&[]);
}

#[test]
fn the_permit_of_a_stopped_process_in_another_namespace_passes_on() {
    tools::need("unshare");
    if process::run(Command::new("unshare").args(["-pf", "true"])).code != Some(0) {
        return tools::skipped("this user may not make process namespaces");
    }
    a_permit_passes_on(&["unshare", "-pf"]);
    a_permit_passes_on(&["unshare", "-pf", "--mount-proc"]);
}

/// Runs a script under a stage where `/dev/shm` has so many KiB.
fn with_memory(bed: &Bed, kib: u32, script: &str) -> Option<process::ProgramOutcome> {
    tools::need("unshare");
    let mount = format!("mount -t tmpfs -o size={kib}k none /dev/shm && exec \"$@\"");
    let may =
        process::run(Command::new("unshare").args(["-m", "sh", "-euc", &mount, "sh", "true"]));
    if may.code != Some(0) {
        tools::skipped("file systems cannot be mounted here");
        return None;
    }
    let run = bed.run_script("load", script);
    let mut inside = Command::new("unshare");
    inside.args(["-m", "sh", "-euc", &mount, "sh"]).arg(run.get_program()).args(run.get_args());
    inside.current_dir(bed.folder()).env("TIDEGATE_SOCKET", bed.socket());
    Some(process::run(inside.stdin(Stdio::null())))
}

#[test]
fn a_run_without_memory_for_its_segment_is_refused_with_the_reason() {
    let bed = Bed::new(QUEUE);
    let Some(outcome) = with_memory(&bed, 1_024, "echo started") else { return };
    let outcome = outcome.failure(1);
    assert_eq!(outcome.stdout, "", "the program was not started");
    let complaint = outcome.complaint();
    assert!(complaint.contains("/dev/shm") && complaint.contains("remount"), "{outcome:?}");
}

#[test]
fn a_program_survives_that_the_memory_is_full_after_it_has_begun() {
    let bed = Bed::new(QUEUE);
    // Many threads and processes, so that pages of the segment are touched for the first time.
    let script = "head -c 20m /dev/zero > /dev/shm/filler 2> /dev/null || echo full
                  for n in 1 2 3 4 5 6 7 8; do
                      dd if=/dev/zero of=file$n bs=4k count=50 2> /dev/null &
                  done
                  wait; echo survived";
    let Some(outcome) = with_memory(&bed, 8_192, script) else { return };
    assert_eq!(outcome.success().stdout, "full\nsurvived\n");
}
