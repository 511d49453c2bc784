//! The load on RocksDB, on a store of some megabytes and for a few seconds. Without RocksDB's
//! library nothing is tested, and the output says so.

use std::path::Path;

use serde_json::Value;

use crate::tidegate_lab;

/// A command of the load in `directory`; why nothing can be tested, if that is so.
fn load(directory: &Path, words: &[&str]) -> Result<(), String> {
    let mut command = tidegate_lab(directory);
    let output = command.args(["lsm-load", "store", "--keys=4000"]).args(words).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    if stderr.contains("RocksDB's library is not here") {
        assert!(stderr.contains("apt-get install librocksdb"), "{stderr}");
        return Err(stderr);
    }
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    Ok(())
}

/// The lines of a load.
fn lines(directory: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(directory.join("lines")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn number(line: &Value, name: &str) -> u64 {
    line[name].as_u64().unwrap_or_else(|| panic!("no {name} in {line}"))
}

fn sum(lines: &[Value], name: &str) -> u64 {
    lines.iter().map(|line| number(line, name)).sum()
}

#[test]
fn every_operation_is_counted_once_and_percentiles_are_in_order() {
    // Files in memory cannot be read past the page cache.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = directory.path();
    if let Err(why) = load(directory, &["--fill"]) {
        println!("skipped: {why}");
        return;
    }
    let bursts = ["--valley=200", "--peak=800", "--first-valley=300", "--peak-length=400"];
    let rest = ["--valley-length=100", "--seconds=2", "--lines=lines"];
    let all: Vec<&str> = bursts.into_iter().chain(rest).collect();
    load(directory, &all).unwrap();
    let lines = lines(directory);
    let (totals, seconds) = lines.split_last().unwrap();
    assert_eq!(seconds.len(), 2);
    // Three whole peaks, a valley after each, the first valley, and half a peak.
    let due = 3 * (320 + 20) + 60 + 160;
    assert_eq!((number(totals, "due"), sum(seconds, "due")), (due, due));
    assert_eq!(number(totals, "operations") + number(totals, "unserved"), due);
    assert_eq!(sum(seconds, "operations"), number(totals, "operations"));
    for (at, second) in seconds.iter().enumerate() {
        assert_eq!(number(second, "second"), at as u64);
        let [median, high, highest] =
            ["p50_us", "p99_us", "max_us"].map(|name| number(second, name));
        assert!(median <= high && high <= highest, "{second}");
        assert!(number(second, "reads") <= number(second, "operations"), "{second}");
    }
    let (reads, operations) = (sum(seconds, "reads"), number(totals, "operations"));
    assert!(0 < reads && reads < operations, "{reads} of {operations}");
    // The tables are on the disk, and the store's cache is empty at first.
    assert!(sum(seconds, "disk_read_bytes") > 0, "{lines:?}");
    assert!(totals["library"].as_str().unwrap().contains("/librocksdb"), "{totals}");
}

#[test]
fn mixtures_and_limiters_of_the_store_are_those_that_are_asked_for() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = directory.path();
    if let Err(why) = load(directory, &["--fill"]) {
        println!("skipped: {why}");
        return;
    }
    let one_second = ["--peak=500", "--seconds=1", "--lines=lines"];
    let totals_of = |words: &[&str]| {
        load(directory, &[&one_second, words].concat()).unwrap();
        let lines = lines(directory);
        (number(&lines[0], "reads"), number(&lines[1], "operations"))
    };
    let (reads, operations) = totals_of(&["--read-percent=100", "--limiter=20MiB/s"]);
    assert_eq!(reads, operations);
    let (reads, operations) = totals_of(&["--read-percent=0", "--limiter=20MiB/s", "--auto-tuned"]);
    assert!(reads == 0 && operations > 0);
}

#[test]
fn a_store_that_cannot_be_opened_is_an_error_in_its_own_words() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(directory.path().join("store"), "no folder").unwrap();
    let mut command = tidegate_lab(directory.path());
    let output = command.args(["lsm-load", "store", "--keys=1", "--fill"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("the load on RocksDB failed"), "{stderr}");
}
