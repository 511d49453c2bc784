//! A recording of a cluster, and what its twin says of another policy, beside what then happens.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use serde_json::Value;
use tidegate_tests::cluster::{Cluster, volume};
use tidegate_tests::process;

use super::levels::{load, rate};

/// A machine that stalls for longer than a period moves what it measures meanwhile.
const ATTEMPTS: u32 = 4;

const BEFORE: &str = "[[tenant]]\nname = \"oltp\"\n[[tenant]]\nname = \"backup\"\n";

/// A limit in the place of even shares.
const AFTER: &str = "[[tenant]]\nname = \"oltp\"\n[[tenant]]\nname = \"backup\"\n\
                     limit = \"200 iops\"\n";

/// That limit, per second.
const LIMIT: f64 = 200.0;
/// The capacity of the node's device, per second.
const RATE: f64 = 1_000.0;

/// A node that serves a thousand requests per second, one after the other.
fn cluster() -> Cluster {
    let node = "[[node]]\nname = \"slow\"\nmemory = true\ncapacity = \"1k iops\"\ndepth = 4\n\
                model = { rate = \"1k iops\", variance = \"0%\" }\n";
    let gateway = "[[gateway]]\nname = \"front\"\nnbd = \"unix:front.sock\"\n";
    let volumes = ["oltp", "backup"].map(|name| volume(name, name, "4MiB", &["slow"])).concat();
    let mut cluster = Cluster::new(&format!("{node}{gateway}{volumes}"), BEFORE);
    cluster.up();
    cluster
}

fn record(cluster: &mut Cluster, arguments: &[&str]) -> Command {
    let mut command = cluster.bed().tidegate(&["record", "--json"]);
    command.args(arguments);
    command
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// The answered requests per second of both clients.
fn measured(cluster: &Cluster) -> [f64; 2] {
    ["oltp", "backup"].map(|export| load(&cluster.uri(export), 8, "0")).map(rate)
}

/// The same, as one of the rows of the twin says.
fn rates(tenants: &Value) -> [f64; 2] {
    ["oltp", "backup"].map(|name| {
        let tenants = tenants.as_array().expect("a list");
        let tenant = tenants.iter().find(|tenant| tenant["tenant"] == name).expect("the tenant");
        tenant["requests_per_second"].as_f64().expect("a rate")
    })
}

#[test]
fn the_twin_predicts_what_then_happens() {
    let mut cluster = cluster();
    let path = cluster.bed().path("load.recording");
    let after = cluster.bed().path("after.toml");
    let before = cluster.bed().path("first.toml");
    fs::write(&after, AFTER).unwrap();
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        cluster.bed().apply(BEFORE).success();
        let _ = fs::remove_file(&path);
        // The recording is that of the middle of the load.
        let clients = ["oltp", "backup"].map(|export| load(&cluster.uri(export), 8, "0"));
        tidegate_tests::eventually("both clients ask", || {
            let status = cluster.bed().status();
            let tenants = status["cluster"]["tenants"].as_array().expect("a list");
            let asks = |it: &serde_json::Value| it["last_served_operations"].as_u64() > Some(200);
            tenants.len() == 2 && tenants.iter().all(asks)
        });
        let duration = ["--duration", "3s", "--output", path.to_str().unwrap()];
        let recorded = process::run(&mut record(&mut cluster, &duration)).success();
        let _ = clients.map(rate);
        let recorded = json(&recorded.stdout);
        assert_eq!((&recorded["lost"], &recorded["failed"]), (&0.into(), &0.into()));
        let files = [("--policy", &before), ("--policy", &after), ("--load", &path)];
        let mut command = cluster.bed().tidegate_lab(&["sim", "--json"]);
        for (option, path) in files {
            command.arg(option).arg(path);
        }
        let twin_says = process::run(command.arg("--cluster").arg(cluster.file())).success();
        let twin_says = json(&twin_says.stdout);
        assert_eq!(twin_says["requests"], recorded["requests"]);
        // The same policy gives what was recorded, and the other what then happens.
        let pair = |a: [f64; 2], b: [f64; 2]| [(a[0], b[0]), (a[1], b[1])];
        let same = pair(rates(&twin_says["policies"][0]["tenants"]), rates(&twin_says["recorded"]));
        cluster.bed().apply(AFTER).success();
        let other = pair(rates(&twin_says["policies"][1]["tenants"]), measured(&cluster));
        let most = LIMIT * 1.05;
        assert!(other[1].0 <= most && other[1].1 <= most, "beyond the limit: {other:?}");
        // While other programs keep clients and nodes from the processors, less is done than the
        // device could do, and not the same in one attempt and the next.
        let done = |pairs: &[(f64, f64)]| pairs.iter().map(|(_, seen)| seen).sum::<f64>();
        let is_disturbed = [&same, &other].into_iter().any(|pairs| done(pairs) < RATE * 0.98);
        let all = [same, other].concat();
        let is_near = |(twin_says, seen): &(f64, f64)| (twin_says - seen).abs() <= 0.05 * seen;
        if all.iter().all(is_near) {
            return;
        }
        seen.push((is_disturbed, all));
    }
    let undisturbed = seen.iter().filter(|(is_disturbed, _)| !is_disturbed).count();
    assert_eq!(undisturbed, 0, "never within five percent, twin and seen: {seen:?}");
    eprintln!("no verdict: the machine was busy in each attempt: {seen:?}");
}

#[test]
fn a_recording_is_refused_or_ends_with_a_reason() {
    let mut cluster = cluster();
    let path = cluster.bed().path("load.recording");
    let short = ["--duration", "200ms", "--output", path.to_str().unwrap()];
    let recorded = process::run(&mut record(&mut cluster, &short)).success();
    assert_eq!(json(&recorded.stdout)["requests"], 0);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("tidegate recording 1\nend "), "{text}");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "it is the caller's alone");
    let again = process::run(&mut record(&mut cluster, &short)).failure(1);
    assert!(again.stderr.contains("remove this one"), "{again:?}");
    fs::remove_file(&path).unwrap();
    // Only one records at a time, and the end of the controller is the end of the recording.
    let long = ["--output", path.to_str().unwrap()];
    let long = process::spawn(&mut record(&mut cluster, &long));
    tidegate_tests::eventually("the recording has begun", || {
        fs::metadata(&path).is_ok_and(|file| file.len() > 0)
    });
    let second = cluster.bed().path("second.recording");
    let second = ["--output", second.to_str().unwrap()];
    let second = process::run(&mut record(&mut cluster, &second)).failure(1);
    assert!(second.stderr.contains("another recording is under way"), "{second:?}");
    cluster.bed().kill_controller();
    let ended = long.finish().failure(5);
    assert!(ended.stderr.contains("is a recording up to here"), "{ended:?}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "tidegate recording 1\n");
}
