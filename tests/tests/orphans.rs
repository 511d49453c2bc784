//! Programs whose supervisor is killed or stopped: others are given nothing that such a program may
//! still use, and it goes on with its safe share.

use std::fs::{self, File};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tidegate_fabric::segment_use::is_used_by_others;
use tidegate_tests::bed::Bed;
use tidegate_tests::process::{self, Running};
use tidegate_tests::{eventually, tools};

/// Operations per second of all programs, and those that are safe for the first tenant: its
/// reservation. A file grows by a kilobyte with each of them.
const BUDGET: u64 = 400;
const SAFE: u64 = 100;
const POLICY: &str = "budget = \"400 iops\"
    [[tenant]]
    name = \"one\"
    reservation = \"100 iops\"
    [[tenant]]
    name = \"two\"
";

/// Whether the kernel can say who uses a file in memory.
fn has_leases() -> bool {
    let file = tempfile::tempfile_in("/dev/shm");
    let has = file.is_ok_and(|file: File| is_used_by_others(&file).is_ok());
    if !has {
        tools::skipped("this kernel grants no leases on files");
    }
    has
}

/// A program that writes without an end, and its supervisor. Dropped, both end.
struct Writer(Running);

impl Writer {
    fn start(bed: &Bed, tenant: &str) -> Self {
        let mut command = bed.run(tenant, tools::need("dd"));
        command.args(["if=/dev/zero", &format!("of={tenant}.out"), "bs=1k"]).stdin(Stdio::null());
        Self(process::spawn(&mut command))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The program has the supervisor's group, so the number is the group's while it runs.
        if let Some(group) = Pid::from_raw(self.0.pid() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn operations(bed: &Bed, tenant: &str) -> u64 {
    fs::metadata(bed.path(&format!("{tenant}.out"))).map_or(0, |file| file.len() / 1_024)
}

/// The stage of a tenant, as the controller sees it.
fn stage(bed: &Bed, tenant: &str) -> Value {
    let status = bed.status();
    let stages = status["stages"].as_array().cloned().unwrap_or_default();
    stages.into_iter().find(|stage| stage["tenant"] == tenant).unwrap_or_default()
}

fn is_at(stage: &Value, is_silent: bool, operations: std::ops::RangeInclusive<u64>) -> bool {
    let allocated = stage["allocated_operations_per_second"].as_u64();
    stage["is_silent"] == is_silent && allocated.is_some_and(|it| operations.contains(&it))
}

/// Both programs at full speed; and both tenants have more than is safe for the first.
fn two_writers(bed: &Bed) -> [Writer; 2] {
    let writers = ["one", "two"].map(|tenant| Writer::start(bed, tenant));
    for tenant in ["one", "two"] {
        eventually(&format!("{tenant} writes"), || operations(bed, tenant) > 50);
        eventually(&format!("{tenant} has a share"), || {
            is_at(&stage(bed, tenant), false, SAFE + 20..=BUDGET - SAFE)
        });
    }
    writers
}

/// Checks that both together have no more than the budget, and the first no more than is safe,
/// while it does 200 operations. The excess may be bursts and requests under way.
#[track_caller]
fn keep_to_the_budget(bed: &Bed) {
    let counts = || ["one", "two"].map(|tenant| operations(bed, tenant));
    let (begin, before) = (Instant::now(), counts());
    eventually("the program without a supervisor goes on", || counts()[0] >= before[0] + 200);
    let (after, took): (_, Duration) = (counts(), begin.elapsed());
    let [one, two] = [0, 1].map(|index| after[index] - before[index]);
    let most = |rate: u64| (rate as f64 * 1.05 * took.as_secs_f64()) as u64 + 20;
    assert!(one <= most(SAFE), "{one} operations in {took:?}");
    assert!(one + two <= most(BUDGET), "{one} and {two} operations in {took:?}");
}

#[test]
fn a_program_whose_supervisor_was_killed_goes_on_with_its_safe_share() {
    if !has_leases() {
        return;
    }
    let bed = Bed::new(POLICY);
    let [one, _two] = two_writers(&bed);
    one.0.signal(Signal::KILL);
    eventually("the safe share is kept", || is_at(&stage(&bed, "one"), true, SAFE..=SAFE));
    eventually("the rest is the other's", || {
        is_at(&stage(&bed, "two"), false, BUDGET - SAFE - 5..=BUDGET - SAFE)
    });
    keep_to_the_budget(&bed);
    drop(one);
    bed.wait_for_stages(1);
    eventually("all is the other's", || is_at(&stage(&bed, "two"), false, BUDGET - 5..=BUDGET));
}

#[test]
fn a_program_whose_supervisor_was_stopped_has_its_share_again_when_that_goes_on() {
    if !has_leases() {
        return;
    }
    let bed = Bed::new(POLICY);
    let [one, _two] = two_writers(&bed);
    one.0.signal(Signal::STOP);
    eventually("the safe share is kept", || is_at(&stage(&bed, "one"), true, SAFE..=SAFE));
    keep_to_the_budget(&bed);
    one.0.signal(Signal::CONT);
    eventually("it has its share again", || is_at(&stage(&bed, "one"), false, SAFE + 20..=BUDGET));
    bed.wait_for_stages(2);
}
