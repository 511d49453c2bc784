//! `tidegate-lab sim --load`: a recording, a cluster and policies in, a table or an object out.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::{tidegate_lab, transcript};

const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/twin");

/// Runs it in the folder of the example.
fn twin(arguments: &[&str]) -> Output {
    let mut command = tidegate_lab(Path::new(FILES));
    command.args(["sim", "--load", "morning.recording"]).args(arguments).output().unwrap()
}

const ALL: [&str; 6] =
    ["--cluster", "cluster.toml", "--policy", "policy.toml", "--policy", "change.toml"];

#[test]
fn a_change_of_the_policy_is_tried() {
    let output = twin(&ALL);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    insta::assert_snapshot!(String::from_utf8_lossy(&output.stdout));
    assert_eq!(twin(&ALL).stdout, output.stdout, "two runs are the same");
}

#[test]
fn programs_get_the_same_as_an_object() {
    let output = twin(&[&ALL[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The oracle counts lines.
    let text = fs::read_to_string(Path::new(FILES).join("morning.recording")).unwrap();
    let requests = |tenant: &str| {
        let of = |line: &&str| {
            let fields: Vec<&str> = line.split(' ').collect();
            fields.len() == 7 && (tenant.is_empty() || fields[3] == tenant)
        };
        text.lines().filter(of).count()
    };
    assert_eq!(json["requests"], requests(""));
    for (number, tenant) in ["oltp", "etl", "backup"].into_iter().enumerate() {
        let recorded = &json["recorded"][number];
        assert_eq!(recorded["tenant"], tenant);
        assert_eq!(recorded["requests"], requests(&number.to_string()));
    }
    let change = &json["policies"][1];
    assert_eq!(change["policy"], "change.toml");
    let [oltp, _, backup] = [0, 1, 2].map(|number| &change["tenants"][number]);
    assert_eq!(oltp["reservation"]["periods"], 6);
    assert!(backup["requests_per_second"].as_u64().unwrap() <= 525, "{backup}");
    assert!(backup["waits"]["limit_ns"].as_u64().unwrap() > 0, "{backup}");
    assert!(backup["reservation"].is_null());
}

#[test]
fn the_beginning_of_a_recording_is_tried() {
    let of = |more: &[&str]| {
        let output = twin(&[&ALL[..], &["--json"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(output.stderr.is_empty(), "progress is for a terminal: {output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let (all, part) = (of(&[]), of(&["--span", "200ms"]));
    assert_eq!(part["span_ns"], 200_000_000u64);
    let requests = |json: &Value| json["requests"].as_u64().unwrap();
    assert!((1..requests(&all)).contains(&requests(&part)));
    assert_eq!(part["policies"][1]["tenants"][0]["reservation"]["periods"], 2);
    assert_eq!(of(&["--span", "1h"]), all);
    assert_eq!(twin(&[&ALL[..], &["--span", "0s"]].concat()).status.code(), Some(2));
    assert_eq!(twin(&[&ALL[..], &["--span", "1ns"]].concat()).status.code(), Some(3));
}

/// Another policy was in force than the one that is named.
#[test]
fn a_replay_that_is_far_from_the_recording_is_doubted() {
    let wrong = [&ALL[..4], &["--recorded-under", "change.toml"]].concat();
    let text = String::from_utf8(twin(&wrong).stdout).unwrap();
    let warning = "warning: the replay does not repeat the recording, so do not trust what it \
                   predicts; nodes have the speed that the cluster file declares: remove";
    assert!(text.lines().nth(1).unwrap().starts_with(warning), "{text}");
    let output = twin(&[&wrong[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["fit"]["distance"].as_f64().unwrap() > 0.2, "{json}");
    assert!(json["fit"]["warning"].is_string(), "{json}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("greedy.toml"), "[[tenant]]\nname = \"oltp\"\nreservation = \"9k iops\"\n")
        .unwrap();
    let cluster = fs::read_to_string(Path::new(FILES).join("cluster.toml")).unwrap();
    fs::write(path("bare.toml"), cluster.replace("capacity = \"1k iops\"\n", "")).unwrap();
    fs::write(path("other.toml"), cluster.replace("\"logs\"", "\"log\"")).unwrap();
    fs::write(path("wrong.recording"), "tidegate recording 1\ntenant 1 oltp\n").unwrap();
    let wrong = path("wrong.recording");
    let policy = ["--policy", "policy.toml"];
    let with = |cluster: &str, policy: &[&str]| {
        transcript(&[], &twin(&[&["--cluster", cluster], policy].concat()))
    };
    let texts = [
        transcript(&[], &twin(&policy)),
        with("cluster.toml", &["--policy", &path("greedy.toml")]),
        with(&path("bare.toml"), &policy),
        with(&path("other.toml"), &policy),
        with("cluster.toml", &[&policy[..], &["--service", "0s"]].concat()),
        {
            let mut command = tidegate_lab(Path::new(FILES));
            command.args(["sim", "--load", &wrong, "--cluster", "cluster.toml"]).args(policy);
            transcript(&[], &command.output().unwrap())
        },
    ];
    for wrong in [
        &[&ALL[..], &["--policy", "policy.toml"]].concat()[..],
        &[&ALL[..], &["--model", "dtm"]].concat(),
    ] {
        assert_eq!(twin(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let mut scenario = tidegate_lab(Path::new(FILES));
    scenario.args(["sim", "../e2e/12-write-only.toml", "--cluster", "cluster.toml"]);
    assert_eq!(scenario.output().unwrap().status.code(), Some(2), "a cluster has no scenario");
    let folder = directory.path().display().to_string();
    insta::assert_snapshot!(texts.join("\n").replace(&folder, "DIR"));
}

/// Such a rule matches none of the requests, and the command says so.
#[test]
fn rules_that_a_recording_cannot_decide_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("offset.toml");
    let mut policy = fs::read_to_string(Path::new(FILES).join("policy.toml")).unwrap();
    policy += "[[match]]\ntenant = \"etl\"\nvolume = \"logs\"\noffset = \"<1MiB\"\n";
    fs::write(&path, policy).unwrap();
    let arguments = ["--cluster", "cluster.toml", "--policy", path.to_str().unwrap()];
    let text = String::from_utf8(twin(&arguments).stdout).unwrap();
    assert!(text.contains("warning: 1 rule of "), "{text}");
    let json: Value =
        serde_json::from_slice(&twin(&[&arguments[..], &["--json"]].concat()).stdout).unwrap();
    assert_eq!(json["policies"][0]["rules_without_effect"], 1);
}
