//! Monitoring of a cluster: the counts that its components report are those of its clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_tests::cluster::{Cluster, GATEWAY, directories, volume};
use tidegate_tests::process;
use tidegate_tests::{PATIENCE, eventually, tools, wait_for};

use super::OPEN;

const NODES: [&str; 3] = ["a", "b", "c"];

/// Requests of one client. They fill the volume four times.
const REQUESTS: u64 = 4 * (6 << 20) / (4 << 10);

/// Reads and writes of 4 KiB, so many and no more, and says how many it counted of each.
fn load(cluster: &Cluster) -> [u64; 2] {
    let mut command = Command::new(tools::need("fio"));
    command.args(["--name=job", "--ioengine=nbd", "--rw=randrw", "--bs=4k", "--size=6M"]);
    command.args(["--loops=4", "--iodepth=16", "--randseed=7", "--output-format=json"]);
    command.arg(format!("--uri={}", cluster.uri("db"))).stdin(Stdio::null());
    let outcome = process::run(&mut command).success();
    // Lines of the engine come before the JSON.
    let (_, json) = outcome.stdout.split_at(outcome.stdout.find('{').expect("JSON"));
    let report: Value = serde_json::from_str(json).expect("JSON");
    ["read", "write"].map(|kind| report["jobs"][0][kind]["total_ios"].as_u64().expect("a count"))
}

fn gateway(cluster: &mut Cluster) -> Value {
    cluster.bed().status()["cluster"]["gateways"][0].clone()
}

/// Waits until the gateway and the nodes have reported exactly so many requests of 4 KiB.
#[track_caller]
fn expect(cluster: &mut Cluster, requests: u64) {
    let mut report = Value::Null;
    let nodes = |report: &Value| -> u64 {
        let nodes = report["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        nodes.iter().filter_map(|node| node["total_served_operations"].as_u64()).sum()
    };
    eventually("as many as the client counted", || {
        report = cluster.bed().status()["cluster"].clone();
        assert!(nodes(&report) <= requests, "{report:#}");
        nodes(&report) == requests && report["gateways"][0]["requests"] == requests
    });
    let (gateway, tenant) = (&report["gateways"][0], &report["tenants"][1]);
    assert_eq!(gateway["bytes"], requests << 12, "{gateway:#}");
    assert_eq!((&gateway["errors"], &gateway["faults"][0]), (&0.into(), &Value::Null));
    assert_eq!((&gateway["offers"][0]["name"], &tenant["name"]), (&"db".into(), &"oltp".into()));
    assert_eq!(tenant["total_served_operations"], requests, "{tenant:#}");
    assert_eq!(tenant["gateway_requests"], requests, "{tenant:#}");
    let there = tenant["nodes"].as_array().expect("where it was served");
    let there: u64 = there.iter().filter_map(|at| at["total_served_operations"].as_u64()).sum();
    assert_eq!(there, requests, "{tenant:#}");
}

/// Waits until `/metrics` has the latencies of exactly so many reads and writes, at the gateway and
/// at all nodes together, and as many queue times at nodes.
#[track_caller]
fn expect_latencies(address: &str, reads_and_writes: [u64; 2]) {
    let mut metrics = String::new();
    eventually("a latency for each request that the client counted", || {
        metrics = answer(address, "/metrics");
        ["read", "write"].iter().zip(reads_and_writes).all(|(operation, count)| {
            let at_nodes = |name: &str| -> u64 {
                let of_node = |node: &&str| {
                    let labels =
                        format!("node=\"{node}\",tenant=\"oltp\",operation=\"{operation}\"");
                    let rest = metrics.split_once(&format!("\n{name}_count{{{labels}}} "))?.1;
                    rest.lines().next()?.parse::<u64>().ok()
                };
                NODES.iter().filter_map(of_node).sum()
            };
            let names = ["tidegate_node_request_seconds", "tidegate_node_queue_seconds"];
            assert!(names.iter().all(|name| at_nodes(name) <= count), "{metrics}");
            let labels = format!("gateway=\"front\",tenant=\"oltp\",operation=\"{operation}\"");
            let name = "\ntidegate_gateway_request_seconds";
            metrics.contains(&format!("{name}_count{{{labels}}} {count}\n"))
                && metrics.contains(&format!("{name}_bucket{{le=\"+Inf\",{labels}}} {count}\n"))
                && names.iter().all(|name| at_nodes(name) == count)
        })
    });
    assert!(metrics.contains("\n# TYPE tidegate_gateway_request_seconds histogram\n"), "{metrics}");
}

#[test]
fn the_status_agrees_with_the_counts_of_clients() {
    let db = volume("db", "oltp", "6MiB", &NODES);
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&NODES)), OPEN);
    let (file, state) = (cluster.file(), cluster.state());
    let mut command = cluster.bed().tidegate(&["up", "--http", "127.0.0.1:0", "--log", "info"]);
    command.env_remove("TIDEGATE_SOCKET").stdin(Stdio::null());
    command.arg(file).args(["--role", "controller", "--state"]).arg(state);
    cluster.bed().up_with(&mut command);
    let output = cluster.bed().controller().stdout();
    let address = output.split("http://").nth(1).and_then(|rest| rest.split(';').next());
    let address = address.expect("an address");
    NODES.iter().for_each(|name| cluster.start("node", name));
    cluster.start("gateway", GATEWAY);
    // From the first request on: service before the first plan has no tenant.
    eventually("all of them", || {
        let report = cluster.bed().status()["cluster"].clone();
        let is_here = |node: &Value| node["reported_ns"].is_u64();
        gateway(&mut cluster)["is_connected"] == true
            && report["nodes"].as_array().is_some_and(|nodes| nodes.iter().all(is_here))
    });
    let [reads, writes] = load(&cluster);
    assert_eq!(reads + writes, REQUESTS);
    expect(&mut cluster, REQUESTS);
    expect_latencies(address, [reads, writes]);
    let first = gateway(&mut cluster);

    cluster.kill(GATEWAY);
    eventually("its end", || gateway(&mut cluster)["is_connected"] == false);
    let screen = process::run(&mut cluster.bed().tidegate(&["status"])).success().stdout;
    let away = screen.lines().find(|line| line.starts_with("front "));
    assert!(away.is_some_and(|line| line.contains(" away ")), "{screen}");
    assert!(screen.contains("warning: gateway front is away"), "{screen}");
    expect(&mut cluster, REQUESTS);

    cluster.start("gateway", GATEWAY);
    load(&cluster);
    expect(&mut cluster, 2 * REQUESTS);
    expect_latencies(address, [2 * reads, 2 * writes]);
    let second = gateway(&mut cluster);
    assert_ne!(first["started_ms"], second["started_ms"]);
    // A node too: what was counted by the process before goes on counting.
    cluster.kill("b");
    cluster.start("node", "b");
    load(&cluster);
    expect(&mut cluster, 3 * REQUESTS);
    expect_latencies(address, [3 * reads, 3 * writes]);
    let output = cluster.bed().controller().stderr();
    for (what, times) in [("gateway joined", 2), ("gateway left", 1), ("node joined", 4)] {
        assert_eq!(output.lines().filter(|line| line.contains(what)).count(), times, "{output}");
    }
    let screen = process::run(&mut cluster.bed().tidegate(&["status"])).success().stdout;
    let heads = ["TENANT", "NODE", "GATEWAY"].map(|head| screen.contains(&format!("\n{head} ")));
    assert_eq!(heads, [true; 3], "{screen}");
    assert!(!screen.contains("STAGE") && !screen.contains("ALLOCATED"), "{screen}");
}

/// The answer to `GET` of a path at this address.
fn answer(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the probe listens");
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("the probe reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the probe answers");
    answer
}

/// A load balancer asks the process that serves, and not the controller.
#[test]
fn a_gateway_of_its_own_is_ready_while_its_nodes_are_there() {
    let file = format!(
        "{}[[volume]]\nname = \"db\"\nsize = \"1MiB\"\ntenant = \"t\"\nnodes = [\"a\", \"b\"]\n",
        directories(&["a", "b"])
    );
    let mut cluster = Cluster::new(&file, "[[tenant]]\nname = \"t\"\n");
    let mut command = cluster.command(&["--role", "controller"]);
    cluster.bed().up_with(&mut command);
    ["a", "b"].iter().for_each(|name| cluster.start("node", name));
    let probe = ["--role", "gateway", "--name", "front", "--probe", "127.0.0.1:0"];
    let gateway = process::spawn(&mut cluster.command(&probe));
    gateway.wait_for_output("/readyz says so");
    let output = gateway.stdout();
    let address =
        output.split("ready while http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.expect("an address");
    let is_ready = || answer(address, "/readyz").starts_with("HTTP/1.1 200 ");
    eventually("that it is ready", is_ready);
    cluster.kill("b");
    eventually("that it is not", || !is_ready());
    let report = answer(address, "/readyz");
    assert!(report.starts_with("HTTP/1.1 503 ") && report.contains("node b at unix:"), "{report}");
    assert!(answer(address, "/healthz").starts_with("HTTP/1.1 200 "), "it lives");
    cluster.start("node", "b");
    eventually("that it is again", is_ready);
    // One line when it went and one when it came back, whatever the number of workers. The last one
    // may come after the first answer that the gateway is ready.
    eventually("that the log says so", || gateway.stderr().contains("node is back"));
    let log = gateway.stderr();
    let of_b: Vec<&str> = log.lines().filter(|line| line.contains("node=\"b\"")).collect();
    assert!(of_b.len() == 2 && of_b[0].contains("node is away"), "{log}");
    assert!(of_b[1].contains("node is back"), "{log}");
}

/// Programs search a log by field: what a line is about is in its own fields or in its spans'.
#[test]
fn lines_of_the_log_name_peer_tenant_volume_and_node() {
    let db = volume("db", "oltp", "1MiB", &["a"]);
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&["a"])), OPEN);
    let mut command = cluster.command(&["--role", "controller"]);
    cluster.bed().up_with(&mut command);
    cluster.start("node", "a");
    let (file, state) = (cluster.file(), cluster.state());
    let levels = ["--log", "debug", "--log-format", "json"];
    let mut command = cluster.bed().tidegate(&["up", "--role", "gateway", "--name", GATEWAY]);
    command.env_remove("TIDEGATE_SOCKET").stdin(Stdio::null());
    command.args(levels).arg(file).arg("--state").arg(state);
    let gateway = process::spawn(&mut command);
    gateway.wait_for_output(": front of the cluster at ");
    let line = |message: &str| {
        wait_for(message, PATIENCE, || {
            let log = gateway.stderr();
            let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.into_iter().find(|line| line["fields"]["message"] == message)
        })
    };
    let mut client = cluster.enter("db");
    client.read(0, 512).unwrap();
    let mut stream = client.into_stream();
    stream.write_all(&[0; 64]).unwrap();
    let closed = line("a client's connection is closed");
    let peer = format!("user {}", rustix::process::geteuid().as_raw());
    let fields = &closed["fields"];
    assert_eq!([&fields["peer"], &fields["tenant"]], [&peer, "oltp"], "{closed}");
    let spans = ["gateway", "connection"].map(|name| span(&closed, name));
    assert_eq!(spans[0]["gateway"], GATEWAY, "{closed}");
    let about = ["peer", "tenant", "volume"].map(|field| &spans[1][field]);
    assert_eq!(about, [&peer, "oltp", "db"], "{closed}");
    cluster.kill("a");
    let away = line("node is away");
    assert_eq!([&away["fields"]["node"], &span(&away, "link")["node"]], ["a"; 2], "{away}");
}

/// The span of this name that a line of the log is in.
#[track_caller]
fn span<'a>(line: &'a Value, name: &str) -> &'a Value {
    let spans = line["spans"].as_array().expect("spans");
    spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("{name}: {line}"))
}
