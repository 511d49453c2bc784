//! `tidegate-lab load` as scripts meet it.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::Value;

use crate::tidegate_lab;

/// A memcached without a key.
fn empty_cache(directory: &Path) {
    let listener = UnixListener::bind(directory.join("cache.sock")).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                let lines = bytes[..count].iter().filter(|byte| **byte == b'\n').count();
                let _ = stream.write_all(&b"END\r\n".repeat(lines));
            }
        }
    });
}

const CACHE: &str = "memcached+unix:///?socket=cache.sock";

#[test]
fn a_load_is_reported_and_its_expectations_decide() {
    let directory = tempfile::tempdir().unwrap();
    empty_cache(directory.path());
    let mut load = tidegate_lab(directory.path());
    load.args(["load", CACHE, "--rate", "2k iops", "--duration", "100ms", "--warmup", "10ms"]);
    load.args(["--json", "--expect", "max<1ns", "--expect", "p99<1h"]);
    let output = load.output().unwrap();
    assert_eq!(output.status.code(), Some(99), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["rate_per_second"], 2_000);
    assert_eq!(report["all"]["count"].as_u64().unwrap() + report["unsent"].as_u64().unwrap(), 200);
    assert_eq!(report["missed"], report["all"]["count"]);
    assert_eq!(report["expectations"][0]["kept"], false);
    assert_eq!(report["expectations"][1]["kept"], true);
    let [service, response] = ["service", "response"].map(|kind| report["all"][kind].clone());
    assert!(service["p50_ns"].as_u64() <= response["p50_ns"].as_u64(), "{report}");
    assert!(service["p50_ns"].as_u64() <= service["max_ns"].as_u64(), "{report}");
}

#[test]
fn people_get_a_table() {
    let directory = tempfile::tempdir().unwrap();
    empty_cache(directory.path());
    let mut load = tidegate_lab(directory.path());
    load.args(["load", CACHE, "--depth", "4", "--duration", "50ms", "--warmup", "0s"]);
    let output = load.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("iops, ") && text.contains(" without a value\n"), "{text}");
    assert!(text.contains("\nTIME") && text.contains("\nresponse  all"), "{text}");
    assert!(output.stderr.is_empty(), "progress is for terminals");
}

#[test]
fn what_cannot_be_loaded_has_its_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, code, expected) in [
        (&["load", CACHE][..], 5, "no server answers at cache.sock"),
        (&["load", "http://somewhere"], 2, "memcached://HOST:PORT"),
        (&["load", CACHE, "--rate", "500"], 2, "has no unit"),
        (&["load", CACHE, "--read", "7"], 2, "write it like 70%"),
        (&["load", CACHE, "--expect", "p99"], 2, "p99<2ms"),
    ] {
        let output = tidegate_lab(directory.path()).args(arguments).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complaint}");
        assert!(complaint.contains(expected), "{arguments:?}: {complaint}");
    }
}
