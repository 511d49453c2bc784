//! Training jobs as the four tenants of PAIO's figure 10, at small size.
//!
//! A slow machine may serve a job less than its promise, so no verdict is expected here. No machine
//! may serve more than a limit.

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use tidegate_tests::bed::Bed;
use tidegate_tests::{built, process, tools};

/// The most that counts beyond a rate: a burst, and the last requests of a run of some seconds.
const RATE_MAX: f64 = 1.1;

/// When a recording's last job has ended, and the jobs.
fn jobs(recording: &Value) -> (f64, &[Value]) {
    let jobs = recording["tenants"].as_array().unwrap();
    let ends = jobs.iter().map(|job| job["ended_seconds"].as_f64().unwrap());
    (ends.fold(0.0, f64::max), jobs)
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

#[test]
fn training_jobs_read_all_shards_and_no_more_than_they_may() {
    if tools::python_with("numpy").or_else(|| tools::python_with("torch")).is_none() {
        return;
    }
    built::shim();
    let bed = Bed::empty();
    let words = ["repro", "paio", "10", "--workload", "torch", "--seconds", "4", "--json"];
    let mut command = bed.tidegate_lab(&words);
    command.arg("--directory").arg(bed.subfolder("data")).arg("--out").arg(bed.path("out"));
    let outcome = process::run(command.current_dir(bed.folder()).stdin(Stdio::null()));
    // Kept; or this machine was too busy to tell; or to keep it.
    assert!([Some(0), Some(1), Some(99)].contains(&outcome.code), "{outcome:?}");
    let claims: Vec<Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(claims.len(), 6, "{outcome:?}");
    for claim in &claims {
        assert_eq!((&claim["paper"], &claim["figure"]), (&"paio".into(), &"10".into()), "{claim}");
        let workload = claim["measured"]["workload"].as_str().unwrap();
        assert!(workload.starts_with("Python 3."), "{claim}");
    }
    assert_eq!(claims[5]["ours"], true);
    let samples = fs::read_to_string(bed.path("out/training-samples.json")).unwrap();
    let samples: Value = serde_json::from_str(&samples).unwrap();
    let recordings = samples["recordings"].as_array().unwrap();
    let controls: Vec<&str> = recordings.iter().map(|it| it["control"].as_str().unwrap()).collect();
    assert_eq!(controls, ["none", "static", "tidegate"]);
    let shared = ["disk", "budget", "budget"].map(|name| number(&samples["plan"], name));
    for (recording, shared) in recordings.iter().zip(shared) {
        let (end, jobs) = jobs(recording);
        let mut all = 0.0;
        for (index, job) in jobs.iter().enumerate() {
            let work = number(job, "work_bytes");
            assert_eq!(number(job, "read_bytes_by_fio"), work, "{job}");
            let last = recording["samples"].as_array().unwrap().last().unwrap();
            let seen = last["read_bytes"][index].as_f64().unwrap();
            assert!(seen >= work, "the kernel saw {seen} of {job}");
            all += work;
            if recording["control"] == "static" {
                let took = number(job, "ended_seconds") - number(job, "started_seconds");
                let rate = work / took / number(job, "promise_bytes_per_second");
                assert!(rate < RATE_MAX, "{rate} of its limit: {job}");
            }
        }
        assert!(all / end < shared * RATE_MAX, "{all} bytes in {end} s: {}", recording["control"]);
    }
    let report = fs::read_to_string(bed.path("out/training-report.html")).unwrap();
    assert_eq!(report.matches("<svg").count(), 3);
    assert_eq!(fs::read_dir(bed.path("data")).unwrap().count(), 0, "shards are left");
}
