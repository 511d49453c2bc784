//! The run along the whole way of a request, at small size: an act with every gate on, its end by
//! the user, and a machine without its programs.
//!
//! A slow machine may serve a tenant less than its promise, so no verdict is expected here. No
//! machine may serve more than a resource has.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use tidegate_tests::bed::Bed;
use tidegate_tests::{built, eventually, process, tools};

/// The most that is counted beyond a capacity: requests at the edges of a run of some seconds.
const USED_PERCENT_MAX: f64 = 108.0;

/// Whether this machine can run it.
fn is_able() -> bool {
    if !tools::is_root() || !Path::new("/dev/fuse").exists() {
        tools::skipped("only root can mount, and only where there is /dev/fuse");
        return false;
    }
    let programs = ["fio", "nbdfuse", "losetup", "mkfs.ext4", "memcached"];
    programs.into_iter().all(|program| tools::want(program).is_some())
}

fn command(bed: &Bed, arguments: &[&str]) -> Command {
    built::shim();
    let mut command = bed.tidegate_lab(&["demo", "end-to-end"]);
    // Whatever is left lies in the bed's folder.
    command.args(arguments).env("TMPDIR", bed.folder()).current_dir(bed.folder());
    command.stdin(Stdio::null());
    command
}

/// Mounts and loop devices below the bed's folder.
fn left(bed: &Bed) -> Vec<String> {
    let folder = bed.folder().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let devices = process::run(&mut Command::new("losetup")).stdout;
    let lines = mounts.lines().chain(devices.lines());
    lines.filter(|line| line.contains(&folder)).map(str::to_owned).collect()
}

#[track_caller]
fn expect_nothing_left(bed: &Bed) {
    eventually("the loop device to be free", || left(bed).is_empty());
    let entries = fs::read_dir(bed.folder()).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let scratch: Vec<String> = names.filter(|name| name.starts_with("tgd-")).collect();
    assert!(scratch.is_empty(), "left behind: {scratch:?}");
}

#[test]
fn one_policy_holds_along_the_whole_way_and_nothing_is_left() {
    if !is_able() {
        return;
    }
    let bed = Bed::empty();
    let mut command = command(&bed, &["--act", "5", "--seconds", "7", "--json", "--out", "out"]);
    let outcome = process::run(&mut command);
    // Kept; or this machine was too busy to tell; or to keep it.
    assert!([Some(0), Some(1), Some(99)].contains(&outcome.code), "{outcome:?}");
    let rows: Vec<Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let tenants: Vec<&str> = rows.iter().filter_map(|row| row["tenant"].as_str()).collect();
    assert_eq!(tenants, ["db", "neighbour", "neighbour", "web", "reader"], "{outcome:?}");
    for row in &rows {
        let used = row["resource_used_percent"].as_f64().unwrap();
        assert!((1.0..USED_PERCENT_MAX).contains(&used), "{row}");
        let key = format!("had_{}_per_second", row["unit"].as_str().unwrap());
        assert!(row[&key][0].as_f64().is_none_or(|rate| rate > 0.0), "{row}");
    }
    let page = fs::read_to_string(bed.path("out/end-to-end.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("everything, and a change"), "{page}");
    expect_nothing_left(&bed);
}

#[test]
fn an_end_by_the_user_leaves_nothing() {
    if !is_able() {
        return;
    }
    let bed = Bed::empty();
    let running = process::spawn(&mut command(&bed, &["--act", "5", "--seconds", "600"]));
    // The first mount is for its files, and is gone before the act begins.
    eventually("the act's loads", || {
        let folders = fs::read_dir(bed.folder()).unwrap().flatten();
        folders.into_iter().any(|folder| folder.path().join("backup-files.stderr").exists())
    });
    assert!(left(&bed).iter().any(|line| line.contains("/files ext4 ")), "{:?}", left(&bed));
    running.signal(Signal::INT);
    running.finish().failure(130);
    expect_nothing_left(&bed);
}

/// The directory for temporary files has 4 MiB.
#[test]
fn a_directory_without_space_is_named_before_anything_starts() {
    if !is_able() {
        return;
    }
    built::shim();
    let bed = Bed::empty();
    let small = bed.subfolder("small");
    let script = "mount -t tmpfs -o size=4m,mode=0700 none \"$TMPDIR\"; exec \"$@\"";
    for (words, needed) in [(&["demo"][..], 32), (&["demo", "end-to-end", "--short"], 256)] {
        let inner = bed.tidegate_lab(words);
        let words = ["--mount", "sh", "-euc", script, "sh"];
        let mut command = process::around(tools::need("unshare"), words, &inner);
        command.env("TMPDIR", &small).current_dir(bed.folder());
        let outcome = process::run(command.stdin(Stdio::null())).failure(1);
        let stated = format!("{} (TMPDIR)", small.display());
        let stdout = &outcome.stdout;
        assert!(stdout.contains(&format!("{needed} MiB ")) && stdout.contains(&stated), "{stdout}");
        // Long lines are broken.
        let complaint = outcome.complaint().replace("\n  │ ", " ").replace("\n        ", " ");
        let missing = format!("has room for 4 MiB of {needed} MiB");
        let remedy = format!("{needed} MiB of room with TMPDIR=DIR");
        assert!(complaint.contains(&missing) && complaint.contains(&remedy), "{complaint}");
    }
    assert_eq!(fs::read_dir(&small).unwrap().count(), 0);
}

#[test]
fn what_is_missing_is_named_with_its_packages() {
    let bed = Bed::empty();
    let mut command = command(&bed, &["--short"]);
    let outcome = process::run(command.env("PATH", bed.folder())).failure(1);
    let complaint = outcome.complaint();
    assert!(complaint.contains("what is not here: fio, nbdfuse, losetup"), "{complaint}");
    let install = "apt-get install fio libnbd-bin mount e2fsprogs memcached";
    assert!(complaint.contains(install), "{complaint}");
}
