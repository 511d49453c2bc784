//! What the policy says about levels, seen by clients of block devices: `fio` counts.

use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_tests::cluster::{Cluster, volume};
use tidegate_tests::process::{self, Running};
use tidegate_tests::tools;

/// Seconds before a measurement: a tenant that was idle gets a period's worth at once.
const WARM_UP: u32 = 2;
/// Seconds of a measurement.
const SECONDS: u32 = 4;
/// A machine that stalls for longer than a period loses what was due meanwhile; nobody else may.
const ATTEMPTS: u32 = 3;

/// Two nodes, one of which imitates a device of a thousand operations per second.
fn cluster(policy: &str) -> Cluster {
    let nodes = "
        [[node]]
        name = \"fast\"
        directory = \"fast\"
        [[node]]
        name = \"slow\"
        directory = \"slow\"
        capacity = \"1k iops\"
        depth = 4
        model = { rate = \"1k iops\", variance = \"10%\" }
        [[gateway]]
        name = \"front\"
        nbd = \"unix:front.sock\"\n";
    let volumes = [
        volume("limited", "limited", "4MiB", &["fast"]),
        volume("reserved", "reserved", "4MiB", &["slow"]),
        volume("greedy", "greedy", "4MiB", &["slow"]),
    ];
    let mut cluster = Cluster::new(&format!("{nodes}{}", volumes.concat()), policy);
    cluster.up();
    cluster
}

/// Asks as much as it can, always with this many requests under way.
fn load(cluster: &Cluster, export: &str, depth: u32) -> Running {
    let mut command = Command::new(tools::need("fio"));
    command.args(["--name=job", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--size=4M"]);
    command.args(["--time_based", "--output-format=json"]);
    command.arg(format!("--uri={}", cluster.uri(export))).arg(format!("--iodepth={depth}"));
    command.arg(format!("--ramp_time={WARM_UP}")).arg(format!("--runtime={SECONDS}"));
    process::spawn(command.stdin(Stdio::null()))
}

/// Requests per second that were answered.
fn rate(load: Running) -> f64 {
    let outcome = load.finish().success();
    // What the engine says comes before.
    let (_, json) = outcome.stdout.split_at(outcome.stdout.find('{').expect("JSON"));
    let told: Value = serde_json::from_str(json).expect("JSON");
    let job = &told["jobs"][0];
    assert_eq!(job["error"], 0, "{job:#}");
    let count = |way: &str| job[way]["total_ios"].as_u64().expect("a count");
    (count("read") + count("write")) as f64 / f64::from(SECONDS)
}

#[test]
fn a_limit_is_reached_and_not_exceeded() {
    let cluster = cluster("[[tenant]]\nname = \"limited\"\nlimit = \"300 iops\"\n");
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let rate = rate(load(&cluster, "limited", 16));
        assert!(rate <= 300.0 * 1.02, "{rate} per second");
        seen.push(rate);
        if rate >= 300.0 * 0.98 {
            return;
        }
    }
    panic!("never 300 per second: {seen:?}");
}

#[test]
fn a_reservation_holds_against_a_greedy_neighbour() {
    let cluster = cluster(
        "[[tenant]]\nname = \"reserved\"\nreservation = \"600 iops\"\n\
         [[tenant]]\nname = \"greedy\"\nweight = 1000\n",
    );
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let loads = [load(&cluster, "reserved", 32), load(&cluster, "greedy", 64)];
        let [reserved, greedy] = loads.map(rate);
        seen.push((reserved, greedy));
        if reserved >= 600.0 * 0.98 && reserved + greedy >= 1000.0 * 0.95 {
            assert!(reserved <= 600.0 * 1.1, "the rest is the neighbour's: {seen:?}");
            return;
        }
    }
    panic!("never 600 per second, and the rest for the neighbour: {seen:?}");
}
