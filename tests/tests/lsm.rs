//! Stock RocksDB under the profile for log-structured merge trees: each kind of its requests goes
//! to its channel, and the controller of the run lives as long as the run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, ProgramOutcome};
use tidegate_tests::{built, eventually, tools};

/// `tidegate run` with a profile and these options. Its state is in the bed.
fn run(bed: &Bed, options: &[&str], program: &[&str]) -> Command {
    built::shim();
    let mut command = bed.tidegate(&["run"]);
    command.args(options).arg("--").args(program);
    command.env("TIDEGATE_STATE", bed.path("state")).current_dir(bed.folder());
    command
}

/// The folders of controllers of runs.
fn controllers(bed: &Bed) -> Vec<PathBuf> {
    let entries = fs::read_dir(bed.path("state/runs")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The report of a run, which is the last object on standard error. The program may have printed
/// its progress in the same line.
fn report(outcome: &ProgramOutcome) -> Value {
    let lines = outcome.stderr.rsplit(['\n', '\r']);
    let mut objects = lines.filter_map(|line| serde_json::from_str::<Value>(line.trim()).ok());
    let report = objects.find(|object| object.get("passed_bytes").is_some());
    report.unwrap_or_else(|| panic!("no report: {outcome:?}"))
}

/// The bytes of a channel.
fn bytes(report: &Value, channel: &str) -> u64 {
    let channels = report["channels"].as_array().map_or(&[][..], Vec::as_slice);
    let found = channels.iter().find(|it| it["channel"] == channel);
    let found = found.unwrap_or_else(|| panic!("no channel {channel} in {report:#}"));
    found["bytes"].as_u64().unwrap_or_else(|| panic!("no bytes of {channel} in {report:#}"))
}

/// A counter of RocksDB's own statistics.
fn counter(outcome: &ProgramOutcome, name: &str) -> u64 {
    let prefix = format!("{name} COUNT : ");
    let found = outcome.stdout.lines().find_map(|line| line.strip_prefix(&prefix));
    let number = found.and_then(|number| number.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no {name} in {outcome:?}"))
}

/// The bytes that compactions from level 0, and those of deeper levels, have read and written, by
/// RocksDB's own log.
fn compacted(bed: &Bed) -> [u64; 2] {
    let log = fs::read_to_string(bed.path("db/LOG")).unwrap();
    let events = log.lines().filter_map(|line| line.split_once("EVENT_LOG_v1 "));
    let events = events.filter_map(|(_, event)| serde_json::from_str::<Value>(event).ok());
    let (mut jobs, mut sums) = (BTreeMap::new(), [0; 2]);
    for event in events {
        let job = event["job"].as_u64().unwrap_or(0);
        if event["event"] == "compaction_started" {
            let read = event["input_data_size"].as_u64().unwrap();
            jobs.insert(job, (usize::from(event.get("files_L0").is_none()), read));
        } else if event["event"] == "compaction_finished" {
            let (kind, read) = jobs[&job];
            sums[kind] += read + event["total_output_size"].as_u64().unwrap();
        }
    }
    sums
}

#[test]
fn each_kind_of_request_of_rocksdb_goes_to_its_channel() {
    tools::need("db_bench");
    let bed = Bed::empty();
    // 16 MB in files of 256 kB: three levels, and so compactions from level 0 and of deeper levels.
    let program = [
        "db_bench",
        "--db=db",
        "--benchmarks=fillrandom,waitforcompaction,readrandom",
        "--num=60000",
        "--reads=2000",
        "--key_size=16",
        "--value_size=256",
        "--write_buffer_size=262144",
        "--target_file_size_base=262144",
        "--max_bytes_for_level_base=1048576",
        "--compression_type=none",
        "--max_background_jobs=4",
        "--seed=1",
        "--statistics",
    ];
    let options = ["--profile", "lsm", "--budget", "2GiB/s", "--report", "--json"];
    let outcome = process::run(&mut run(&bed, &options, &program)).success();
    let report = report(&outcome);
    let [foreground, flush, from_level_0, deep] =
        ["store", "flush", "compaction-l0", "compaction-deep"].map(|name| bytes(&report, name));
    assert!(foreground > 0 && from_level_0 > 0 && deep > 0, "{report:#}");
    // Every byte is in one channel.
    assert_eq!(report["unmatched_bytes"], 0, "{report:#}");
    assert_eq!(report["passed_bytes"], foreground + flush + from_level_0 + deep, "{report:#}");
    // RocksDB counts the bytes of tables. Its threads also write a little to its log and manifest,
    // and a compaction opens its inputs before it gives its first hint.
    let about = |found: u64, counted: u64| found.abs_diff(counted) <= counted / 10;
    let flushed = counter(&outcome, "rocksdb.flush.write.bytes");
    assert!(about(flush, flushed), "{flush} in the channel, {flushed} flushed");
    let [counted_from_0, counted_deep] = compacted(&bed);
    assert!(about(from_level_0, counted_from_0), "{from_level_0} and not {counted_from_0}");
    assert!(about(deep, counted_deep), "{deep} and not {counted_deep}");
    // The log has all that was put.
    assert!(foreground > 60_000 * 272, "{foreground}");
    assert_eq!(controllers(&bed), [""; 0].map(PathBuf::from), "the controller has ended");
}

/// The process of the controller in this folder.
fn controller_in(folder: &Path) -> Option<u32> {
    fs::read_to_string(folder.join("lock")).ok()?.trim().parse().ok()
}

#[test]
fn the_controller_of_a_run_ends_with_it_however_that_ends() {
    let bed = Bed::empty();
    let sleep = ["sh", "-c", "echo $$ > pid && exec sleep 1000"];
    let program = || fs::read_to_string(bed.path("pid")).ok()?.trim().parse::<u32>().ok();
    for signal in [Signal::TERM, Signal::KILL] {
        let _ = fs::remove_file(bed.path("pid"));
        let running = process::spawn(&mut run(&bed, &["--profile", "lsm"], &sleep));
        eventually("the program runs", || program().is_some());
        let folders = controllers(&bed);
        let [folder] = &folders[..] else { panic!("{folders:?}") };
        let controller = controller_in(folder).unwrap();
        assert!(process::is_alive(controller));
        process::send(running.pid(), signal);
        eventually("the controller ends", || !process::is_alive(controller));
        eventually("its folder is gone", || controllers(&bed).is_empty());
        if signal == Signal::KILL {
            // The program outlives a killed supervisor, as it does without a profile.
            process::send(program().unwrap(), Signal::KILL);
        }
        running.finish();
    }
}

#[test]
fn a_run_has_a_controller_of_its_own_under_a_policy_of_the_users() {
    let bed = Bed::empty();
    let policy = "budget = \"1GiB/s\"\n[[tenant]]\nname = \"own\"\n[[match]]\ntenant = \"own\"\n";
    fs::write(bed.path("own.toml"), policy).unwrap();
    let copy = ["sh", "-c", "head -c 1000000 /dev/zero > file"];
    let options = ["--profile", "./own.toml", "--report", "--json"];
    let outcome = process::run(&mut run(&bed, &options, &copy)).success();
    assert!(bytes(&report(&outcome), "own") >= 1_000_000, "{outcome:?}");
    // The exit code is the program's.
    process::run(&mut run(&bed, &["--profile", "lsm"], &["sh", "-c", "exit 7"])).failure(7);
}

#[test]
fn a_store_and_a_training_job_run_as_their_packages_have_them() {
    tools::need("db_bench");
    built::shim();
    built::tidegate();
    let bed = Bed::empty();
    let mut command = bed.tidegate_lab(&["repro", "paio", "table3", "--json"]);
    command.arg("--directory").arg(bed.subfolder("data")).arg("--out").arg(bed.path("out"));
    let outcome = process::run(command.current_dir(bed.folder()));
    let claims: Vec<Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(claims.len(), 2, "{outcome:?}");
    for claim in claims {
        if claim["verdict"] == "skipped" {
            // Programs that a user has built are compared with no package.
            tools::skipped(claim["reason"].as_str().unwrap());
            continue;
        }
        assert_eq!(claim["verdict"], "reproduced", "{claim:#}");
        assert_eq!(claim["measured"]["lines_changed"], 0.0, "{claim:#}");
        assert!(claim["measured"]["files_of_code"].as_u64().unwrap() > 3, "{claim:#}");
    }
}

#[test]
fn what_a_run_with_a_profile_cannot_be_is_refused() {
    let bed = Bed::empty();
    let refused = |options: &[&str], code: i32, wanted: &str| {
        let outcome = process::run(&mut run(&bed, options, &["true"])).failure(code);
        assert!(outcome.stderr.contains(wanted), "{outcome:?}\n  should contain\n{wanted}");
    };
    refused(&["--profile", "lms"], 2, "known are lsm");
    refused(&["--profile", "lsm", "--budget", "200"], 2, "200");
    refused(&["--budget", "200MiB/s"], 2, "--profile");
    refused(&["--profile", "lsm", "--socket", "x"], 2, "leave out --socket, or --profile");
    let bad = "[[tenant]]\nname = \"a\"\n[[channel]]\nname = \"c\"\ntenant = \"a\"\n\
               background = \"low\"\n";
    fs::write(bed.path("bad.toml"), bad).unwrap();
    refused(&["--profile", "bad.toml"], 3, "a has no");
    assert!(!bed.path("state/runs").exists());
    let options = ["--profile", "bad.toml", "--budget", "1GiB/s"];
    process::run(&mut run(&bed, &options, &["true"])).success();
}
