//! Programs on other hosts under one controller: `tidegate run --controller` over TLS.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use tidegate_tests::cluster::Cluster;
use tidegate_tests::eventually;
use tidegate_tests::process;

const POLICY: &str = "budget = \"100MiB/s\"
    [[tenant]]
    name = \"oltp\"
    limit = \"8MiB/s\"
    users = [\"cert:ann\"]
    [[tenant]]
    name = \"backup\"
";

/// A controller for programs alone, and its address.
fn controller() -> (Cluster, String) {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    drop(held);
    let file = format!(
        "[tls]\ndirectory = \"tls\"\n[controller]\nlisten = [\"unix:SOCKET\", {address:?}]\n"
    );
    let mut cluster = Cluster::new(&file, POLICY);
    let mut certify = Command::new(tidegate_tests::built::tidegate());
    certify.arg("certify").arg(cluster.file()).arg("--state").arg(cluster.state());
    process::run(certify.args(["--user", "ann,bob"])).success();
    let mut command = cluster.command(&["--role", "controller"]);
    cluster.bed().up_with(&mut command);
    cluster.bed().apply(POLICY).success();
    (cluster, address)
}

/// `tidegate run` of a script on another host, by this user.
fn run(cluster: &mut Cluster, address: &str, user: &str, script: &str) -> Command {
    tidegate_tests::built::shim();
    let tls = cluster.path("tls");
    let folder = cluster.bed().folder().to_owned();
    let mut command = Command::new(tidegate_tests::built::tidegate());
    command.args(["run", "--controller", address, "--user", user, "--tenant", "oltp"]);
    command.arg("--tls").arg(tls).args(["--fail-closed", "--", "sh", "-euc", script]);
    // No controller of this machine is asked.
    command.env("TIDEGATE_SOCKET", Path::new("/nonexistent")).current_dir(folder);
    command
}

#[test]
fn a_program_of_another_host_is_held_to_the_policy_of_its_certificate() {
    let (mut cluster, address) = controller();
    let script = "dd if=/dev/zero of=file bs=64k count=32 2> /dev/null; touch done
                  while [ ! -e stop ]; do sleep 0.05; done";
    let program = process::spawn(&mut run(&mut cluster, &address, "ann", script));
    cluster.bed().wait_for_stages(1);
    let done = cluster.bed().path("done");
    eventually("the writes", || done.exists());
    let bed = cluster.bed();
    eventually("the bytes at the controller", || bed.tenant("oltp")["bytes"] == 32 * (64 << 10));
    let stage = bed.status()["stages"][0].clone();
    assert_eq!((&stage["user"], &stage["tenant"]), (&"cert:ann".into(), &"oltp".into()));
    assert_eq!(stage["allocated_bytes_per_second"], 8 << 20);
    std::fs::write(bed.path("stop"), "").unwrap();
    program.finish().success();
    cluster.bed().wait_for_stages(0);
}

#[test]
fn refusals_have_their_reasons() {
    let (mut cluster, address) = controller();
    let mut refused = |user: &str, address: &str, reason: &str| {
        let failed = process::run(&mut run(&mut cluster, address, user, "touch ran")).failure(5);
        assert!(
            failed.complaint().replace("\n  │ ", " ").contains(reason),
            "{}",
            failed.complaint()
        );
    };
    refused("bob", &address, "certificate \"bob\" may not act for tenant \"oltp\"");
    refused("controller", &address, "controller is for a party of the cluster");
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    refused("ann", &gone, &format!("nobody listens at {gone}"));
    let missing = process::run(&mut run(&mut cluster, &address, "nobody", "touch ran")).failure(1);
    assert!(missing.complaint().contains("tidegate certify"), "{}", missing.complaint());
    assert!(!cluster.bed().path("ran").exists());
}
