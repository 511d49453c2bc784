//! A data node whose memory RNICs reach: clients come by certificate, go on while the node is
//! stopped, and are shut out one by one.
//!
//! Where there is no RDMA device the tests say so and end, but for the first; `make test-verbs`
//! runs them in a virtual machine that has one. That is in software and emulated, and does some
//! hundred operations a second, so promises here are small.

use std::process::Command;

use rustix::process::Signal;
use tidegate_tests::cluster::Cluster;
use tidegate_tests::process::{self, ProgramOutcome, Running};
use tidegate_tests::{eventually, tools};

use super::memory::{children, expect_right, row};

/// The node; where it listens is missing.
const FILE: &str = r#"
    [tls]
    directory = "tls"
    [[data-node]]
    name = "m"
    memory = "8MiB"
    capacity = "400 iops"
    client = "200 iops"
    fabric = "verbs"
    period = "1s"
"#;

const POLICY: &str = r#"
    [[tenant]]
    name = "web"
    reservation = "60 iops"
    [[tenant]]
    name = "batch"
    users = ["ann"]
"#;

/// Where clients go, and what they show there.
struct Rdma {
    cluster: Cluster,
    at: Vec<String>,
}

impl Rdma {
    /// A controller and a data node, in a process each, on a device.
    fn up(is_far: bool) -> Option<Self> {
        let devices = std::fs::read_dir("/sys/class/infiniband");
        if devices.ok().and_then(|mut devices| devices.next()).is_none() {
            tools::skipped("there is no RDMA device");
            return None;
        }
        let tcp_address = format!("127.0.0.1:{}", tools::free_port());
        let listen = if is_far { tcp_address.as_str() } else { "unix:m.sock" };
        let mut cluster = Cluster::new(&format!("{FILE}listen = {listen:?}"), POLICY);
        certify(&cluster, &["--user", "ann"]).success();
        cluster.up_data_nodes(&["m"]);
        let path = |name: &str| cluster.path(name).display().to_string();
        let at = match is_far {
            true => vec!["--at".into(), tcp_address, "--tls".into(), path("tls")],
            false => vec!["--at".into(), path("m.sock")],
        };
        Some(Self { cluster, at })
    }

    fn kv(&mut self, arguments: &[&str]) -> ProgramOutcome {
        let mut command = self.cluster.bed().tidegate(&["kv"]);
        process::run(command.args(arguments).args(&self.at))
    }

    /// A load that ends by itself.
    fn load(&mut self, arguments: &[&str]) -> ProgramOutcome {
        let mut command = self.cluster.bed().tidegate_lab(&["kv"]);
        process::run(command.args(arguments).args(&self.at))
    }

    /// A client of tenant web that does not end by itself.
    fn bench(&mut self) -> Running {
        let arguments = ["kv", "--json", "--seconds", "3600", "--keys", "8"];
        let mut command = self.cluster.bed().tidegate_lab(&arguments);
        command.args(["--value", "100B", "--depth", "8", "--tenant", "web"]).args(&self.at);
        process::spawn(command.args(["--read-percent", "90", "--reservation", "30 iops"]))
    }
}

fn certify(cluster: &Cluster, arguments: &[&str]) -> ProgramOutcome {
    let mut command = Command::new(tidegate_tests::built::tidegate());
    command.arg("certify").arg(cluster.file()).arg("--state").arg(cluster.state());
    process::run(command.args(arguments))
}

#[test]
fn a_missing_device_is_reported_with_the_remedy() {
    let file = format!("{FILE}listen = \"unix:m.sock\"\ndevice = \"none_0\"");
    let cluster = Cluster::new(&file, POLICY);
    certify(&cluster, &[]).success();
    let node = ["--role", "data-node", "--name", "m"];
    let refused = process::run(&mut cluster.command(&node)).failure(1).complaint();
    let remedies = ["install libibverbs1", "`rdma link` lists those", "install ibverbs-providers"];
    let is_helped = remedies.iter().any(|remedy| refused.contains(remedy));
    assert!(refused.contains("m: no RDMA: ") && is_helped, "{refused}");
    cluster.expect_nothing_left();
    let refused = certify(&cluster, &["--user", "M"]).failure(2).complaint();
    assert!(refused.contains("user M would have the certificate of another"), "{refused}");
}

#[test]
fn who_comes_shows_a_certificate_and_has_what_its_tenant_is_promised() {
    let Some(mut rdma) = Rdma::up(true) else { return };
    rdma.kv(&["put", "k", "one", "--tenant", "web"]).success();
    rdma.kv(&["put", "k", "two", "--tenant", "batch", "--user", "ann"]).success();
    assert_eq!(rdma.kv(&["get", "k", "--tenant", "web"]).success().stdout, "two");
    let refused = rdma.kv(&["get", "k", "--tenant", "batch"]).failure(1).complaint();
    assert!(refused.contains("user client may not act for tenant \"batch\""), "{refused}");
    let refused = rdma.kv(&["get", "k"]).failure(1).complaint();
    assert!(refused.contains("no rule of the policy says whose client this is"), "{refused}");
    let refused = rdma.load(&["--bare", "--tenant", "web"]).failure(1).complaint();
    assert!(refused.contains("only root and the data node's own user"), "{refused}");
    let refused = rdma.kv(&["get", "k", "--device", "none_0", "--tenant", "web"]).failure(1);
    assert!(refused.complaint().contains("there is no device none_0"), "{refused:?}");
    let at = rdma.at.clone();
    rdma.at.truncate(2);
    let refused = rdma.kv(&["get", "k"]).failure(2).complaint();
    assert!(refused.contains("asks for a certificate"), "{refused}");
    rdma.at = at;
    let bench = ["--tenant", "web", "--seconds", "3", "--keys", "8", "--value", "100B"];
    let bench = rdma.load(&[&bench[..], &["--depth", "8", "--reservation", "30 iops"]].concat());
    // Whether an emulated machine is fast enough to keep it is another matter.
    assert!(matches!(bench.code, Some(0 | 99)), "{bench:?}");
    rdma.cluster.kill("m");
    let refused = rdma.kv(&["get", "k", "--tenant", "web"]).failure(5).complaint();
    assert!(refused.contains("no data node listens there"), "{refused}");
    // Only the node had its memory.
    rdma.cluster.start("data-node", "m");
    rdma.kv(&["get", "k", "--tenant", "web"]).failure(1);
}

#[test]
fn gets_go_on_while_the_data_node_is_stopped() {
    let Some(mut rdma) = Rdma::up(true) else { return };
    let bench = rdma.bench();
    let has_monitor =
        |row: &serde_json::Value| row["periods"].as_u64() > Some(0) && row["clients_alone"] == 0;
    row("periods", &bench, has_monitor);
    rdma.cluster.component("m").signal(Signal::STOP);
    row("a client that is alone", &bench, |row| row["clients_alone"] == 1);
    let alone = row("another row", &bench, |row| row["clients_alone"] == 1);
    assert!(alone["operations"].as_u64() > Some(0), "{alone}");
    rdma.cluster.component("m").signal(Signal::CONT);
    row("a monitor again", &bench, has_monitor);
    expect_right(&bench);
    let rows = bench.rows();
    assert!(rows.iter().all(|row| row["moves"] == 0 && row["missing"] == 0), "{rows:?}");
}

#[test]
fn a_client_is_shut_out_and_the_other_does_not_notice() {
    let Some(mut rdma) = Rdma::up(false) else { return };
    let (stopped, bench) = (rdma.bench(), rdma.bench());
    row("work", &stopped, |row| row["operations"].as_u64() > Some(0));
    row("work", &bench, |row| row["operations"].as_u64() > Some(0));
    let client = children(&stopped)[0];
    process::send(client, Signal::STOP);
    eventually("an eviction", || {
        rdma.cluster.component("m").stderr().contains("client lost its session slot")
    });
    row("work of the other", &bench, |row| row["operations"].as_u64() > Some(0));
    process::send(client, Signal::CONT);
    row("work of the one that was stopped", &stopped, |row| row["moves"] == 1);
    row("more of it", &stopped, |row| row["operations"].as_u64() > Some(0));
    expect_right(&stopped);
    expect_right(&bench);
    let rows = bench.rows();
    assert!(rows.iter().all(|row| row["moves"] == 0 && row["missing"] == 0), "{rows:?}");
    assert!(!rdma.cluster.component("m").stderr().contains("the memory was moved"));
}

/// Takes the device's network away, or gives it back.
fn link(device: &str, state: &str) {
    let mut command = Command::new("/bin/busybox");
    process::run(command.args(["ip", "link", "set", device, state])).success();
}

#[test]
fn what_was_stored_is_there_after_the_network_was_away() {
    // `TIDEGATE_TEST_LINK` names a device that was made for this test; no other device is taken
    // down.
    let Ok(device) = std::env::var("TIDEGATE_TEST_LINK") else { return };
    let Some(mut rdma) = Rdma::up(true) else { return };
    rdma.kv(&["put", "k", "one", "--tenant", "web"]).success();
    let bench = rdma.bench();
    row("work", &bench, |row| row["operations"].as_u64() > Some(0));
    link(&device, "down");
    let has_logged = |text: &str| rdma.cluster.component("m").stderr().contains(text);
    eventually("the loss", || has_logged("the node's own RNIC has lost the memory"));
    link(&device, "up");
    eventually("the RNIC again", || has_logged("the node's own RNIC reaches the memory again"));
    // The load has failed, or has come again; what it stored does not matter here.
    drop(bench);
    assert_eq!(rdma.kv(&["get", "k", "--tenant", "web"]).success().stdout, "one");
}
