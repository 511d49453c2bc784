//! `tidegate bench`, as far as it starts processes. What it measures here says nothing.

use serde_json::Value;

use crate::tidegate;

/// The rows of one bench.
fn rows(name: &str, environment: &[(&str, &str)]) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = tidegate(directory.path());
    bench.envs(environment.iter().copied()).args(["bench", name, "--quick", "--json"]);
    let output = bench.output().unwrap();
    // On a busy machine a promise may be missed.
    assert!(matches!(output.status.code(), Some(0 | 99)), "{output:?}");
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "what it makes is gone at the end");
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.filter(|row| row["bench"] == name).collect()
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
    assert_eq!(rows.iter().filter(|row| row["promise"] == "<= 50").count(), 2, "{rows:#?}");
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
