//! The policy's levels as clients of block devices see them: `fio` counts, and says whether
//! `tidegate-lab load` and the controller count alike.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_tests::cluster::{Cluster, volume};
use tidegate_tests::nbd::Client;
use tidegate_tests::process::{self, Running};
use tidegate_tests::{PATIENCE, eventually, tools};

/// Seconds before a measurement: a tenant that was idle gets a period's worth at once.
const WARM_UP: u32 = 2;
/// Seconds of a measurement.
const SECONDS: u32 = 4;
/// A machine that stalls for longer than a period loses what was due meanwhile; no other machine
/// may.
const ATTEMPTS: u32 = 6;

/// Four nodes, two of which imitate a device of a thousand operations per second.
fn cluster(policy: &str) -> Cluster {
    let fast = ["fast", "other"].map(|name| format!("[[node]]\nname = {name:?}\nmemory = true\n"));
    let slow = ["slow", "slower"].map(|name| {
        format!(
            "[[node]]\nname = {name:?}\nmemory = true\ncapacity = \"1k iops\"\ndepth = 4\n\
             model = {{ rate = \"1k iops\", variance = \"10%\" }}\n"
        )
    });
    let endpoint = "[[gateway]]\nname = \"front\"\nnbd = \"unix:front.sock\"\n";
    // One stripe each, so that a client can choose a node.
    let halves =
        |name| format!("{}stripe = \"2MiB\"\n", volume(name, name, "4MiB", &["slow", "slower"]));
    let offered = |volume: String| format!("{volume}tenants = \"slow\"\n");
    let volumes = [
        volume("limited", "limited", "4MiB", &["fast"]),
        volume("striped", "striped", "4MiB", &["fast", "other"]),
        offered(halves("reserved")),
        halves("greedy"),
    ];
    let file = format!("{}{}{endpoint}{}", fast.concat(), slow.concat(), volumes.concat());
    let mut cluster = Cluster::new(&file, policy);
    cluster.up();
    cluster
}

/// Asks as much as it can for two mebibytes from here, always with this many requests under way.
pub(super) fn load(uri: &str, depth: u32, offset: &str) -> Running {
    let mut command = Command::new(tools::need("fio"));
    command.args(["--name=job", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--size=2M"]);
    command.args(["--time_based", "--output-format=json"]).arg(format!("--offset={offset}"));
    command.arg(format!("--uri={uri}")).arg(format!("--iodepth={depth}"));
    command.arg(format!("--ramp_time={WARM_UP}")).arg(format!("--runtime={SECONDS}"));
    process::spawn(command.stdin(Stdio::null()))
}

/// Requests per second that were answered.
pub(super) fn rate(load: Running) -> f64 {
    let outcome = load.finish().success();
    // Lines of the engine come before the JSON.
    let (_, json) = outcome.stdout.split_at(outcome.stdout.find('{').expect("JSON"));
    let report: Value = serde_json::from_str(json).expect("JSON");
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{job:#}");
    let count = |way: &str| job[way]["total_ios"].as_u64().expect("a count");
    (count("read") + count("write")) as f64 / f64::from(SECONDS)
}

/// Measures until both are as many as this, give or take two percent, the one on two nodes give or
/// take ten below: what one node may still do when another has nothing to do is moved a few times
/// in a period. More than this is not excused by anything.
#[track_caller]
fn achieves(cluster: &Cluster, limit: f64) {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let loads = ["limited", "striped"].map(|export| load(&cluster.uri(export), 16, "0"));
        let [limited, striped] = loads.map(rate);
        seen.push((limited, striped));
        let most = limit * 1.02;
        assert!(limited <= most && striped <= most, "more than {limit} per second: {seen:?}");
        if limited >= limit * 0.98 && striped >= limit * 0.9 {
            return;
        }
    }
    panic!("never {limit} per second: {seen:?}");
}

#[test]
fn a_limit_is_reached_and_not_exceeded() {
    let policy = |limit: u32| {
        let tenant = |name| format!("[[tenant]]\nname = {name:?}\nlimit = \"{limit} iops\"\n");
        ["limited", "striped"].map(tenant).concat()
    };
    let mut cluster = cluster(&policy(300));
    achieves(&cluster, 300.0);
    cluster.bed().apply(&policy(500)).success();
    achieves(&cluster, 500.0);
}

/// The report of `tidegate-lab load` on this export.
#[track_caller]
fn own_load(cluster: &mut Cluster, export: &str, arguments: &[&str]) -> Value {
    let uri = cluster.uri(export);
    let mut command = cluster.bed().tidegate_lab(&["load", &uri, "--json"]);
    let outcome = process::run(command.args(arguments)).success();
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

#[test]
fn our_own_load_sees_the_limit_that_fio_sees() {
    let limit = 400.0;
    let mut cluster = cluster("[[tenant]]\nname = \"limited\"\nlimit = \"400 iops\"\n");
    let [warmup, duration] = [WARM_UP, SECONDS].map(|seconds| format!("{seconds}s"));
    let arguments = ["--depth", "16", "--warmup", &warmup, "--duration", &duration];
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let report = own_load(&mut cluster, "limited", &arguments);
        assert_eq!(report["failed"], 0, "{report:#}");
        let own = report["achieved_per_second"].as_f64().expect("a rate");
        let rates = [own, rate(load(&cluster.uri("limited"), 16, "0"))];
        seen.push(rates);
        assert!(rates.iter().all(|rate| *rate <= limit * 1.02), "too much: {seen:?}");
        if rates.iter().all(|rate| *rate >= limit * 0.98) {
            return;
        }
    }
    panic!("never {limit} per second for both: {seen:?}");
}

/// All that is sent falls in one period of a minute, or in two, and the controller knows of both.
#[test]
fn our_own_load_counts_what_the_controller_counts() {
    let mut cluster = cluster("period = \"60s\"\n[[tenant]]\nname = \"limited\"\n");
    let arguments = ["--rate", "500 iops", "--depth", "1000", "--read", "50%"];
    let times = ["--warmup", "0s", "--duration", "1s"];
    let report = own_load(&mut cluster, "limited", &[&arguments[..], &times].concat());
    let count = |what: &Value| what.as_u64().expect("a count");
    let sent = count(&report["all"]["count"]);
    assert_eq!(sent + count(&report["unsent"]), 500, "what was due was sent, or is said not to be");
    eventually("what was sent", || {
        let status = cluster.bed().status();
        let tenant = &status["cluster"]["tenants"][0];
        assert_eq!(tenant["name"], "limited", "{status:#}");
        count(&tenant["served_operations"]) + count(&tenant["last_served_operations"]) == sent
    });
}

/// The reserved tenant has 600 per second wherever it goes, and the greedy one the rest there.
#[track_caller]
fn holds(cluster: &Cluster, offset: &str) {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let loads = [("reserved", 32), ("greedy", 64)];
        let loads = loads.map(|(export, depth)| load(&cluster.uri(export), depth, offset));
        let [reserved, greedy] = loads.map(rate);
        seen.push((reserved, greedy));
        // A neighbour that is kept from a processor loses the capacity that it leaves.
        let is_own = (600.0 * 0.98..=600.0 * 1.1).contains(&reserved);
        if is_own && reserved + greedy >= 1000.0 * 0.95 {
            return;
        }
    }
    panic!("never 600 per second, and the rest for the neighbour: {seen:?}");
}

#[test]
fn a_reservation_holds_against_a_greedy_neighbour_on_any_node() {
    let cluster = cluster(
        "[[tenant]]\nname = \"reserved\"\nreservation = \"600 iops\"\n\
         [[tenant]]\nname = \"greedy\"\nweight = 1000\n",
    );
    holds(&cluster, "0");
    holds(&cluster, "2M");
}

/// How long so many reads or writes take, one after the other.
fn time(client: &mut Client, count: u32, is_write: bool) -> Duration {
    let since = Instant::now();
    for _ in 0..count {
        match is_write {
            true => client.write(0, &[1; 512]).unwrap(),
            false => drop(client.read(0, 512).unwrap()),
        }
    }
    since.elapsed()
}

#[test]
fn whose_a_request_is_decides_its_level() {
    // At ten in a second, thirty need the whole of one second and parts of two others, and seven
    // hundred need seventy.
    const HELD: (u32, Duration) = (30, Duration::from_secs(1));
    const FREE: (u32, Duration) = (700, PATIENCE);
    let policy = "[[tenant]]\nname = \"slow\"\nlimit = \"10 iops\"\n\
                  [[match]]\ntenant = \"slow\"\nvolume = \"lim*\"\noperation = \"write\"\n";
    let mut cluster = cluster(policy);
    let held = |client: &mut Client, is_write| {
        let time = time(client, HELD.0, is_write);
        assert!(time >= HELD.1, "{time:?}");
    };
    let free = |client: &mut Client, is_write| {
        let time = time(client, FREE.0, is_write);
        assert!(time < FREE.1, "{time:?}");
    };
    // By the volume, by what the client says, and by a rule.
    free(&mut cluster.enter("reserved"), true);
    held(&mut cluster.enter("reserved@slow"), false);
    let mut client = cluster.enter("limited");
    held(&mut client, true);
    free(&mut client, false);
    // Another policy holds for clients that are there already.
    cluster.bed().apply("[[tenant]]\nname = \"limited\"\n").success();
    free(&mut client, true);
}
