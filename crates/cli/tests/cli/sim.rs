//! `tidegate sim`: scenarios in, tables, objects, series and pictures out.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{tidegate, transcript};

const DTM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/dtm/three-classes.toml");

/// Two hosts over one link, one of which sends to the other for two milliseconds.
const PACKETS: &str = r#"
name = "one that sends"
seed = 1
length = "2ms"
sample = "1ms"
[network.topology.dumbbell]
pairs = 1
edge = { rate = "10Gbps", delay = "1us" }
middle = { rate = "10Gbps", delay = "1us" }
[network.switch]
buffer = "1MB"
[transport]
law = "dctcp"
[[application]]
from = 0
to = [1]
[application.workload]
name = "one"
class = "high"
reads = "0%"
sizes = { fixed = "10kB" }
offsets = "sequential"
space = "1GB"
load = { open = { rate = "1Gbps" } }
"#;

/// What a run says on standard output; it succeeds.
#[track_caller]
fn said(directory: &Path, arguments: &[&str]) -> String {
    let output = tidegate(directory).arg("sim").args(arguments).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

/// Everything that a run says that is refused.
#[track_caller]
fn refused(directory: &Path, arguments: &[&str]) -> String {
    let output = tidegate(directory).arg("sim").args(arguments).output().unwrap();
    transcript(&[], &output).replace("$ tidegate \n", "")
}

#[test]
fn the_discrete_time_model() {
    let directory = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| said(directory.path(), &[&["--model", "dtm", DTM], more].concat());
    assert!(run(&[]).contains("high      50.0 %  49.9 %"), "{}", run(&[]));
    let got = |more: &[&str]| {
        let json: Value = serde_json::from_str(&run(&[&["--json"], more].concat())).unwrap();
        json["flows"][0]["got_percent"].as_f64().unwrap()
    };
    assert!((49.0..51.0).contains(&got(&[])), "{}", got(&[]));
    assert!((33.0..40.0).contains(&got(&["--law", "dctcp"])), "{}", got(&["--law", "dctcp"]));
    run(&["--out", "run"]);
    let csv = fs::read_to_string(directory.path().join("run/series.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 400 * 3);
    assert!(directory.path().join("run/series.svg").exists());
}

#[test]
fn a_scenario_of_the_other_model_is_refused_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("packets.toml"), PACKETS).unwrap();
    fs::copy(DTM, directory.path().join("dtm.toml")).unwrap();
    let texts = [
        refused(directory.path(), &["dtm.toml", "--out", "run"]),
        refused(directory.path(), &["packets.toml", "--model", "dtm", "--out", "run"]),
        refused(directory.path(), &["dtm.toml", "--model", "dtm", "--law", "dcqcn"]),
    ];
    insta::assert_snapshot!(texts.join("\n"));
    assert!(!directory.path().join("run").exists());
    said(directory.path(), &["packets.toml"]);
}
