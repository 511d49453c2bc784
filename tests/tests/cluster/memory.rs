//! A data node whose memory clients read and write themselves: while its processes are stopped,
//! while a client is, and after either is gone.

use rustix::process::Signal;
use serde_json::Value;
use tidegate_tests::cluster::Cluster;
use tidegate_tests::process::{self, ProgramOutcome, Running};
use tidegate_tests::{PATIENCE, eventually, wait_for};

const FILE: &str = r#"
    [[data-node]]
    name = "m"
    listen = "unix:m.sock"
    memory = "32MiB"
    capacity = "8k iops"
    client = "4k iops"
    period = "100ms"
"#;

const POLICY: &str = r#"
    [[tenant]]
    name = "web"
    reservation = "2k iops"
    [[tenant]]
    name = "batch"
    limit = "1k iops"
    users = ["4294967290"]
"#;

/// A controller and a data node, in a process each.
fn cluster() -> Cluster {
    let mut cluster = Cluster::new(FILE, POLICY);
    cluster.up_data_nodes(&["m"]);
    cluster
}

pub(super) fn kv(cluster: &mut Cluster, arguments: &[&str]) -> ProgramOutcome {
    let at = cluster.path("m.sock");
    process::run(cluster.bed().tidegate(&["kv"]).args(arguments).arg("--at").arg(at))
}

/// A load that ends by itself.
fn load(cluster: &mut Cluster, arguments: &[&str]) -> ProgramOutcome {
    let at = cluster.path("m.sock");
    process::run(cluster.bed().tidegate_lab(&["kv"]).args(arguments).arg("--at").arg(at))
}

/// Clients of tenant web that do not end by themselves.
fn bench(cluster: &mut Cluster, clients: &str) -> Running {
    let at = cluster.path("m.sock");
    let arguments = ["kv", "--json", "--seconds", "3600", "--keys", "200"];
    let mut command = cluster.bed().tidegate_lab(&arguments);
    command.args(["--clients", clients, "--tenant", "web"]).arg("--at").arg(at);
    process::spawn(command.args(["--read-percent", "80"]))
}

/// Waits for a row that comes after those that there are, of which this holds.
#[track_caller]
pub(super) fn row(what: &str, bench: &Running, holds: impl Fn(&Value) -> bool) -> Value {
    let seen = bench.rows().len();
    wait_for(what, PATIENCE, || bench.rows().into_iter().skip(seen).find(|row| holds(row)))
}

/// No value came back that was not stored under its key, and none was damaged.
#[track_caller]
pub(super) fn expect_right(bench: &Running) {
    let rows = bench.rows();
    assert!(rows.iter().all(|row| row["wrong"] == 0), "{rows:?}");
}

#[test]
fn values_come_back_and_impossible_requests_are_refused() {
    let mut cluster = cluster();
    kv(&mut cluster, &["put", "k", "one", "--tenant", "web"]).success();
    kv(&mut cluster, &["put", "k", "two"]).success();
    assert_eq!(kv(&mut cluster, &["get", "k"]).success().stdout, "two");
    let report = kv(&mut cluster, &["get", "k", "--json"]).success().stdout;
    assert_eq!(report, "{\"key\":\"k\",\"value\":\"two\"}\n");
    kv(&mut cluster, &["delete", "k"]).success();
    let outcome = kv(&mut cluster, &["get", "k"]).failure(1);
    assert!(outcome.complaint().contains("\"k\" has no value at"), "{outcome:?}");
    kv(&mut cluster, &["delete", "k"]).failure(1);
    let outcome = kv(&mut cluster, &["put", "k", &"x".repeat(5000)]).failure(2);
    assert!(outcome.complaint().contains("the value has 5000 bytes"), "{outcome:?}");
    let outcome = kv(&mut cluster, &["get", "k", "--tenant", "wbe"]).failure(1);
    assert!(outcome.complaint().contains("the policy has no tenant \"wbe\""), "{outcome:?}");
    let outcome = kv(&mut cluster, &["get", "k", "--tenant", "batch"]).failure(1);
    assert!(outcome.complaint().contains("may not act for tenant \"batch\""), "{outcome:?}");
    let much = ["--tenant", "web", "--reservation", "3k iops", "--seconds", "1"];
    let outcome = load(&mut cluster, &much).failure(1);
    assert!(outcome.complaint().contains("200 operations per period are left"), "{outcome:?}");
    let second = ["--role", "data-node", "--name", "m"];
    let outcome = process::run(&mut cluster.command(&second)).failure(1);
    assert!(outcome.complaint().contains("listens on unix:"), "{outcome:?}");
    cluster.kill("m");
    let outcome = kv(&mut cluster, &["get", "k"]).failure(5);
    assert!(outcome.complaint().contains("no data node listens there"), "{outcome:?}");
}

#[test]
fn values_that_cannot_be_stored_are_refused_with_the_reason() {
    let mut cluster = Cluster::new(&FILE.replace("32MiB", "4MiB"), POLICY);
    cluster.up_data_nodes(&["m"]);
    for (key, bytes) in [(String::new(), 0), ("k".repeat(251), 251)] {
        for act in [&["get", &key][..], &["put", &key, "v"], &["delete", &key]] {
            let outcome = kv(&mut cluster, act).failure(2);
            let message = format!("a key has from 1 to 250 bytes, this one has {bytes}");
            assert!(outcome.complaint().contains(&message), "{outcome:?}");
        }
    }
    let fill = ["--tenant", "web", "--keys", "2000", "--seconds", "1"];
    let outcome = load(&mut cluster, &fill).failure(1);
    for text in ["m.sock: the store is full", "delete something, or give it more memory"] {
        assert!(outcome.complaint().contains(text), "{outcome:?}");
    }
    eventually("what is in use", || {
        let [used, memory] =
            ["used_bytes", "memory_bytes"].map(|of| seen(&mut cluster)[of].as_u64());
        used > memory.map(|memory| memory / 2)
    });
}

/// Returns the status of the data node that the controller reports.
fn seen(cluster: &mut Cluster) -> Value {
    cluster.bed().status()["cluster"]["data_nodes"][0].clone()
}

#[test]
fn data_nodes_and_what_tenants_do_there_are_seen() {
    let mut cluster = cluster();
    let bench = bench(&mut cluster, "2");
    row("work", &bench, |row| row["operations"].as_u64() > Some(0));
    eventually("clients and what they do", || {
        let node = seen(&mut cluster);
        let tenant = &node["tenants"][0];
        let is_some = |value: &Value| value.as_u64() > Some(0);
        node["clients"] == 2
            && tenant["name"] == "web"
            && tenant["clients"] == 2
            && [&tenant["total_operations"], &node["operations_per_second"], &node["used_bytes"]]
                .into_iter()
                .all(is_some)
    });
    let report = process::run(&mut cluster.bed().tidegate(&["status"])).success().stdout;
    let lines =
        ["policy revision 1; 1 data node with 2 clients", "DATA NODE  STATE", "m          up"];
    assert!(lines.into_iter().all(|line| report.contains(line)), "{report}");
    cluster.component("m").signal(Signal::STOP);
    eventually("a warning", || {
        let report = process::run(&mut cluster.bed().tidegate(&["status"])).success().stdout;
        report.contains("data-node m has stopped answering")
            || report.contains("data-node m is away")
    });
    cluster.component("m").signal(Signal::CONT);
    eventually("the data node again", || seen(&mut cluster)["is_silent"] == false);
}

#[test]
fn gets_go_on_while_the_data_node_is_stopped() {
    let mut cluster = cluster();
    let bench = bench(&mut cluster, "2");
    let kept = |row: &Value| row["periods"].as_u64() > Some(0) && row["clients_alone"] == 0;
    row("periods", &bench, kept);
    cluster.component("m").signal(Signal::STOP);
    // Their tokens are what is reserved for them, which no client has to give up.
    let alone = |row: &Value| row["clients_alone"] == 2;
    row("clients that are alone", &bench, alone);
    let row_alone = row("another row of them", &bench, alone);
    assert!(row_alone["operations"].as_u64() > Some(0), "{row_alone}");
    cluster.component("m").signal(Signal::CONT);
    row("a monitor again", &bench, kept);
    assert!(bench.rows().iter().all(|row| row["moves"] == 0), "nobody was accused of anything");
    expect_right(&bench);
    assert!(bench.rows().iter().all(|row| row["missing"] == 0), "no value was lost");
}

/// The processes that the load has started.
pub(super) fn children(bench: &Running) -> Vec<u32> {
    let path = format!("/proc/{0}/task/{0}/children", bench.pid());
    let report = std::fs::read_to_string(path).unwrap();
    report.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn a_stopped_client_loses_its_session_slot_and_no_value_is_lost() {
    let mut cluster = cluster();
    let stopped = bench(&mut cluster, "1");
    let bench = bench(&mut cluster, "1");
    row("work", &stopped, |row| row["operations"].as_u64() > Some(0));
    row("work", &bench, |row| row["operations"].as_u64() > Some(0));
    let client = children(&stopped)[0];
    process::send(client, Signal::STOP);
    eventually("an eviction", || {
        cluster.component("m").stderr().contains("client lost its session slot")
    });
    eventually("a move", || cluster.component("m").stderr().contains("the memory was moved"));
    row("other memory", &bench, |row| row["operations"].as_u64() > Some(0));
    process::send(client, Signal::CONT);
    row("work of the one that was stopped", &stopped, |row| row["moves"] == 1);
    row("work of the other", &bench, |row| row["operations"].as_u64() > Some(0));
    for bench in [&stopped, &bench] {
        expect_right(bench);
        assert!(bench.rows().iter().all(|row| row["missing"] == 0), "no value was lost");
    }
}

#[test]
fn clients_outlive_their_data_node_and_bring_its_memory_to_the_next() {
    let mut cluster = cluster();
    let bench = bench(&mut cluster, "2");
    row("work", &bench, |row| row["operations"].as_u64() > Some(0));
    cluster.kill("m");
    row("clients that are alone", &bench, |row| row["clients_alone"] == 2);
    cluster.start("data-node", "m");
    row("a monitor", &bench, |row| row["clients_alone"] == 0 && row["periods"].as_u64() > Some(0));
    assert!(cluster.component("m").stderr().contains("returned this node's memory"));
    expect_right(&bench);
    assert!(bench.rows().iter().all(|row| row["missing"] == 0), "no value was lost");
    drop(bench);
    // Where no process has it any more, it is gone.
    cluster.kill("m");
    cluster.start("data-node", "m");
    let outcome = kv(&mut cluster, &["get", "key:", "--tenant", "web"]).failure(1);
    assert!(outcome.complaint().contains("has no value"), "{outcome:?}");
}

#[test]
fn a_policy_that_is_applied_holds_from_the_next_period_on() {
    let mut cluster = cluster();
    let arguments =
        ["--tenant", "web", "--reservation", "3k iops", "--seconds", "1", "--keys", "50"];
    load(&mut cluster, &arguments).failure(1);
    cluster.bed().apply(&POLICY.replace("2k iops", "3k iops")).success();
    eventually("the policy at the data node", || {
        cluster.component("m").stderr().contains("policy applied revision=2")
    });
    let outcome = load(&mut cluster, &arguments);
    // Whether the machine is fast enough to keep it is another matter.
    assert!(matches!(outcome.code, Some(0 | 99)), "{outcome:?}");
}

#[test]
fn what_a_tenant_got_at_a_data_node_is_explained() {
    let mut cluster = cluster();
    let bench = bench(&mut cluster, "1");
    row("work", &bench, |row| row["operations"].as_u64() > Some(0));
    wait_for("an explanation", PATIENCE, || {
        let report =
            process::run(&mut cluster.bed().tidegate(&["explain", "web"])).success().stdout;
        let is_shown =
            report.contains("at data nodes while it asked") && report.contains("\nm: it ");
        is_shown.then_some(())
    });
    let report = process::run(&mut cluster.bed().tidegate(&["explain", "web", "--json"])).success();
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    assert!(report["data_nodes"][0]["operations_per_second"].as_u64() > Some(0), "{report}");
}

/// Writes garbage over all of the memory that a client of a data node has been given.
#[test]
fn clients_go_on_after_another_has_written_garbage_over_all_memory() {
    let mut cluster = cluster();
    let bench = bench(&mut cluster, "2");
    for _ in 0..3 {
        row("work", &bench, |row| row["operations"].as_u64() > Some(0));
        // Its own clients map the memory by a descriptor that anybody of their user can open.
        let client = children(&bench)[0];
        let descriptors = std::fs::read_dir(format!("/proc/{client}/fd")).unwrap();
        let is_region = |path: &std::path::PathBuf| {
            std::fs::read_link(path)
                .is_ok_and(|target| target.to_string_lossy().contains("tidegate-region"))
        };
        let paths = descriptors.filter_map(|it| Some(it.ok()?.path()));
        let region = paths.filter(is_region).last().unwrap();
        let damages = cluster.component("m").stderr().matches("was damaged by a client").count();
        let noise: Vec<u8> =
            (0..1u32 << 20).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        let file = std::fs::OpenOptions::new().write(true).open(region).unwrap();
        for at in 0..32 {
            std::os::unix::fs::FileExt::write_all_at(&file, &noise, at << 20).unwrap();
        }
        eventually("other memory", || {
            cluster.component("m").stderr().matches("was damaged by a client").count() > damages
        });
    }
    row("work after that", &bench, |row| row["operations"].as_u64() > Some(0) && row["wrong"] == 0);
    assert_eq!(children(&bench).len(), 2, "no client has died");
    eventually("a warning", || {
        let report = process::run(&mut cluster.bed().tidegate(&["status"])).stdout;
        report.contains("clients damaged the memory of data node m")
    });
}
