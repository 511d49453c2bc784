//! `tidegate sim`: scenarios in, tables, objects, series and pictures out.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{tidegate, transcript};

const DTM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/dtm/three-classes.toml");

const TRACES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/traces");

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

/// The two applications of the example: requests that were answered, and the first's bytes.
fn done(said: &str) -> (u64, u64, u64) {
    let json: Value = serde_json::from_str(said).unwrap();
    let number = |place: usize, key: &str| json["applications"][place][key].as_u64().unwrap();
    (number(0, "done_requests"), number(0, "done_bytes"), number(1, "done_requests"))
}

/// The oracle is a reader of the lines that knows nothing of windows and formats.
#[test]
fn a_recording_is_replayed_from_beside_its_scenario() {
    let directory = tempfile::tempdir().unwrap();
    let example = Path::new(TRACES).join("replay.toml");
    let (requests, bytes, others) =
        done(&said(directory.path(), &[example.to_str().unwrap(), "--json"]));
    let text = fs::read_to_string(Path::new(TRACES).join("desktops.csv")).unwrap();
    let lines = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let wanted: Vec<u64> = lines
        .filter(|fields| fields[3] == "6" && !fields[2].is_empty())
        .filter(|fields| ("1455592741".."1455592743").contains(&fields[0]))
        .map(|fields| fields[5].parse().unwrap())
        .collect();
    assert_eq!((requests, bytes), (wanted.len() as u64, wanted.iter().sum()));
    assert!(others > 0);
}

#[test]
fn a_recording_with_a_line_that_is_wrong_ends_the_run_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let example = fs::read_to_string(Path::new(TRACES).join("replay.toml")).unwrap();
    let text = fs::read_to_string(Path::new(TRACES).join("desktops.csv")).unwrap();
    let last = text.lines().last().unwrap();
    fs::write(directory.path().join("replay.toml"), &example).unwrap();
    fs::write(directory.path().join("other.toml"), example.replace("systor", "msr")).unwrap();
    fs::write(directory.path().join("none.toml"), example.replace("desktops.csv", "no.csv"))
        .unwrap();
    fs::write(directory.path().join("desktops.csv"), text.replace(last, "1455592743,?,R,6,0,0"))
        .unwrap();
    let texts = ["replay.toml", "other.toml", "none.toml"]
        .map(|name| refused(directory.path(), &[name, "--out", "run"]));
    insta::assert_snapshot!(texts.join("\n"));
    assert_eq!(fs::read_dir(directory.path().join("run")).unwrap().count(), 0);
}

#[test]
fn what_links_did_is_written_for_those_that_were_used() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("packets.toml"), PACKETS).unwrap();
    said(directory.path(), &["packets.toml", "--out", "run"]);
    let csv = fs::read_to_string(directory.path().join("run/links.csv")).unwrap();
    let mut lines = csv.lines();
    let heads = "ns,from,to,class,queue_bytes,sent_bytes,marked_packets,dropped_packets";
    assert_eq!(lines.next(), Some(heads));
    // Three links there and three back, of one class, in two moments.
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 12, "{csv}");
    assert!(rows.iter().all(|row| row[3] == "high"));
    // 1 Gbit/s of payload for two milliseconds, with headers.
    let sent = rows.iter().filter(|row| row[1] == "switch 0" && row[2] == "switch 1");
    let sent: u64 = sent.map(|row| row[5].parse::<u64>().unwrap()).sum();
    assert!((250_000..280_000).contains(&sent), "{sent}");
}
