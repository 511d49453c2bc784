//! `tidegate-lab bench`, as far as it starts processes. The values measured here have no meaning.

use serde_json::Value;

use crate::tidegate_lab;

/// Where programs are that a bench starts by their names.
const PATH: (&str, &str) = ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");

fn rows(name: &str, environment: &[(&str, &str)]) -> Vec<Value> {
    rows_of(&[name], environment)
}

/// The rows of the bench that these arguments name first.
fn rows_of(arguments: &[&str], environment: &[(&str, &str)]) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = tidegate_lab(directory.path());
    bench.envs(environment.iter().copied());
    bench.arg("bench").args(arguments).args(["--quick", "--json"]);
    let output = bench.output().unwrap();
    // Only rows in virtual time have a verdict: a short run of these misses promises every time.
    let code = if arguments.contains(&"--simulated") { 99 } else { 0 };
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "what it makes is gone at the end");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.filter(|row| row["bench"] == arguments[0]).collect()
}

#[test]
fn a_new_rate_takes_effect_and_is_timed() {
    let rows = rows("apply", &[]);
    assert_eq!(rows.len(), 6, "{rows:#?}");
    for row in &rows {
        let value = row["value"].as_f64().unwrap();
        let between = row["spread"].as_array();
        let is_between = |between: &Vec<Value>| {
            between[0].as_f64() <= Some(value) && between[1].as_f64() >= Some(value)
        };
        assert!(value > 0.0 && between.is_none_or(is_between), "{row}");
    }
    let promised: Vec<_> = rows.iter().filter(|row| row["promise"] == "<= 50").collect();
    assert_eq!(promised.len(), 2, "{rows:#?}");
    for row in promised {
        let reason = row["reason"].as_str().unwrap();
        assert!(row["kept"].is_null() && reason.starts_with("no verdict"), "{row}");
    }
}

#[test]
fn programs_that_cannot_be_run_have_a_reason() {
    let rows = rows("programs", &[("TIDEGATE_SHIM", "no-shim.so"), ("PATH", "/usr/bin:/bin")]);
    assert!(rows.len() >= 24, "{rows:#?}");
    for row in &rows {
        assert!(row["value"].is_null() && row["kept"].is_null(), "{row}");
        assert!(!row["reason"].as_str().unwrap().is_empty(), "{row}");
    }
}

/// Without a shim there is no stage to measure, and not every machine has all peers.
#[test]
fn a_tenant_is_measured_beside_another_one_at_each_gate() {
    let rows = rows("isolation", &[]);
    let case = |row: &&Value, gate: &str| row["case"].as_str().unwrap().starts_with(gate);
    let of = |gate: &str| rows.iter().filter(|row| case(row, gate)).count();
    assert!(matches!((of("stage, "), of("node, ")), (4 | 8, 6)), "{rows:#?}");
    assert_eq!(of("simulated node, "), 18);
    for row in rows.iter().filter(|row| !case(row, "simulated node, ")) {
        let reason = row["reason"].as_str().unwrap_or_default();
        let is_measured = |field: &str| row[field].as_f64().is_some_and(|value| value > 0.0);
        assert!(is_measured("value") && is_measured("peer_value") || !reason.is_empty(), "{row}");
        assert!(is_measured("value") || !case(&row, "node, "), "{row}");
    }
}

/// Where a shim or a compiler for C is missing, the only row says so.
#[test]
fn a_budget_over_hosts_is_measured() {
    let rows = rows("hosts", &[PATH]);
    assert!(matches!(rows.len(), 1 | 13), "{rows:#?}");
    for row in &rows {
        assert!(row["value"].is_number() || row["reason"].is_string(), "{row}");
        assert!(row["kept"].is_null(), "{row}");
    }
    let directory = tempfile::tempdir().unwrap();
    let output =
        tidegate_lab(directory.path()).args(["bench", "shim", "--stages", "20"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// Where root's rights or fio are missing, the only row says so.
#[test]
fn a_measured_capacity_is_compared_with_fio() {
    let rows = rows("capacity", &[PATH]);
    assert!(matches!(rows.len(), 1 | 6), "{rows:#?}");
    for row in &rows {
        assert!(row["value"].is_number() || row["reason"].is_string(), "{row}");
        assert!(row["kept"].is_null(), "{row}");
    }
}

/// Where PostgreSQL or root's rights are missing, the only row says so.
#[test]
fn a_database_is_measured_beside_a_backup_of_each_system() {
    let rows = rows("backups", &[]);
    assert!(matches!(rows.len(), 1 | 20), "{rows:#?}");
    for row in &rows {
        let reason = row["reason"].as_str().unwrap_or_default();
        let is_measured = |field: &str| row[field].as_f64().is_some_and(|value| value > 0.0);
        assert!(is_measured("value") && is_measured("peer_value") || !reason.is_empty(), "{row}");
        assert!(row["kept"].is_null(), "{row}");
    }
}

/// Three models of drives, each with the victim alone and beside one aggressor.
#[test]
fn isolation_in_virtual_time_is_the_same_in_each_run() {
    let first = rows_of(&["isolation", "--simulated"], &[]);
    assert_eq!(first, rows_of(&["isolation", "--simulated"], &[]));
    assert_eq!(first.len(), 3 * 6);
    for row in &first {
        let case = row["case"].as_str().unwrap();
        let value = row["value"].as_f64().unwrap();
        assert!(case.starts_with("simulated node, ") && value > 0.0, "{row}");
        assert_eq!(row["kept"].is_boolean(), !case.contains(", alone: "), "{row}");
        assert!(!case.ends_with("reads served") || row["kept"] == true, "{row}");
    }
    let directory = tempfile::tempdir().unwrap();
    let output =
        tidegate_lab(directory.path()).args(["bench", "shim", "--simulated"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn the_scheduler_is_measured_and_probed() {
    let measured = rows("scheduler", &[]);
    assert!(measured.iter().all(|row| row["kept"].is_null()), "{measured:#?}");
    let beside = |peer: &str| measured.iter().filter(|row| row["peer"] == peer).count();
    // Pairs, a stream that comes, its memory; and two threads that share.
    assert_eq!((beside("dmclock"), beside("one thread"), measured.len()), (7, 3, 10));
    let probed = rows_of(&["scheduler", "--probes"], &[]);
    assert!(probed.len() >= 19, "{probed:#?}");
    for row in &probed {
        // Times have no promise in so short a run; all other figures are the same on any machine.
        assert!(row["unit"] == "ns" || row["kept"] == true, "{row}");
        assert!(row["peer_value"].is_null(), "{row}");
        assert!(row["reason"].as_str().unwrap().contains("TIDEGATE_DMCLOCK"), "{row}");
    }
    let directory = tempfile::tempdir().unwrap();
    let output =
        tidegate_lab(directory.path()).args(["bench", "shim", "--probes"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
