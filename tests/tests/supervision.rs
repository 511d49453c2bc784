//! A supervisor stays for as long as a program of its stage runs, wherever that program went, and
//! no longer: it leaves no process, no stage and no memory behind.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tidegate_tests::bed::Bed;
use tidegate_tests::process;
use tidegate_tests::{eventually, tools};

const POLICY: &str = "[[tenant]]\nname = \"load\"\nlimit = \"20MiB/s\"\n";

/// Whether this user may make process namespaces.
fn has_namespaces() -> bool {
    tools::need("unshare");
    let possible = process::run(Command::new("unshare").args(["-pf", "true"])).code == Some(0);
    if !possible {
        tools::skipped("this user may not make process namespaces");
    }
    possible
}

/// The file of the stage whose script has written its name.
#[track_caller]
fn segment(bed: &Bed) -> PathBuf {
    let name = || fs::read_to_string(bed.path("segment")).ok().filter(|name| name.ends_with('\n'));
    let name = tidegate_tests::wait_for("the segment's name", tidegate_tests::PATIENCE, name);
    PathBuf::from(name.trim())
}

/// Waits until nothing is left of the stage: its connection, its memory, its supervisor.
#[track_caller]
fn nothing_is_left(bed: &Bed) {
    bed.wait_for_stages(0);
    let segment = segment(bed);
    eventually("the stage's memory is freed", || !segment.exists());
}

/// A script that writes for as long as there is no file `stop`, and says how often it did.
const LOOP: &str = "while [ ! -e stop ]; do dd if=/dev/zero of=file bs=16k count=4 2> /dev/null; \
                    echo >> rounds; done";

#[track_caller]
fn goes_on(bed: &Bed) {
    let rounds = || fs::metadata(bed.path("rounds")).map_or(0, |file| file.len());
    let before = rounds();
    eventually("the program goes on", || rounds() >= before + 2);
}

/// A report that cannot be written is lost. It costs the program nothing.
#[test]
fn a_program_runs_although_the_disk_behind_standard_error_is_full() {
    let bed = Bed::new(POLICY);
    let run = ["run", "--report", "--tenant", "load", "--", "sh", "-c", "echo done; exit 7"];
    let full = fs::File::options().write(true).open("/dev/full").expect("a full device");
    let output = bed.tidegate(&run).stderr(full).output().expect("tidegate starts");
    assert_eq!((output.status.code(), &*output.stdout), (Some(7), &b"done\n"[..]));
}

#[test]
fn programs_in_another_pid_namespace_leave_no_supervisor_behind() {
    if !has_namespaces() {
        return;
    }
    let bed = Bed::new(POLICY);
    let script = "echo $TIDEGATE_SEGMENT > segment
                  unshare -pf sh -c 'dd if=/dev/zero of=a bs=64k count=4; :' 2> /dev/null
                  unshare -pf --mount-proc sh -c 'cp a b; cp a c; :'";
    process::run(&mut bed.run_script("load", script)).success();
    nothing_is_left(&bed);
}

/// Their numbers mean other processes to the supervisor: those are not part of the stage.
#[test]
fn processes_of_another_pid_namespace_are_counted_as_what_they_are() {
    if !has_namespaces() {
        return;
    }
    let bed = Bed::new(POLICY);
    let script = format!(
        "echo $TIDEGATE_SEGMENT > segment; exec unshare -pf sh -c '{LOOP}; read x < held || :; :'"
    );
    let running = process::spawn(bed.run_script("load", &script).stdin(Stdio::null()));
    bed.wait_for_stages(1);
    goes_on(&bed);
    // `unshare`, the shell, and for moments what the shell runs.
    eventually("the programs are counted", || {
        let count = bed.status()["stages"][0]["processes"].as_u64();
        count >= Some(2) && count <= Some(4)
    });
    fs::write(bed.path("held"), "").unwrap();
    fs::write(bed.path("stop"), "").unwrap();
    running.finish().success();
    nothing_is_left(&bed);
}

/// The direct child is killed; what it has started in a namespace of its own goes on, gated.
#[test]
fn a_killed_child_leaves_its_namespace_gated_and_nothing_after_it() {
    if !has_namespaces() {
        return;
    }
    let bed = Bed::new(POLICY);
    let script = format!(
        "echo $TIDEGATE_SEGMENT > segment; echo $$ > pid
         exec unshare -pf sh -c '{LOOP}; :' < /dev/null > /dev/null 2>&1"
    );
    let running = process::spawn(bed.run_script("load", &script).stdin(Stdio::null()));
    goes_on(&bed);
    let pid = fs::read_to_string(bed.path("pid")).unwrap().trim().parse().unwrap();
    process::send(pid, Signal::KILL);
    running.finish().failure(128 + 9);
    goes_on(&bed);
    let moved = bed.tenant("load")["bytes"].as_u64().unwrap();
    bed.wait_for_count("load", "bytes", moved + 1);
    bed.wait_for_stages(1);
    fs::write(bed.path("stop"), "").unwrap();
    nothing_is_left(&bed);
}

/// A daemon forks twice, leads a session of its own, closes every descriptor, and clears its
/// environment.
#[test]
fn a_daemon_keeps_its_stage_until_it_ends() {
    let bed = Bed::new(POLICY);
    let daemon = tools::compiled("daemon", &[]);
    let script = format!("echo $TIDEGATE_SEGMENT > segment; {}", daemon.display());
    process::run(&mut bed.run_script("load", &script)).success();
    let pid = || fs::read_to_string(bed.path("pid")).ok()?.trim().parse::<u32>().ok();
    let pid = tidegate_tests::wait_for("its number", tidegate_tests::PATIENCE, pid);
    goes_on(&bed);
    bed.wait_for_stages(1);
    let moved = bed.tenant("load")["bytes"].as_u64().unwrap();
    bed.wait_for_count("load", "bytes", moved + 1);
    process::send(pid, Signal::KILL);
    nothing_is_left(&bed);
}
