//! Session slots of a data node: one tenant's clients cannot take all of them, and clients that
//! were killed give theirs back.

use rustix::process::Signal;
use tidegate_tests::cluster::Cluster;
use tidegate_tests::process::{self, Running};
use tidegate_tests::{PATIENCE, wait_for};

use super::memory::{children, kv, row};

const FILE: &str = r#"
    [[data-node]]
    name = "m"
    listen = "unix:m.sock"
    memory = "16MiB"
    capacity = "8k iops"
    client = "4k iops"
    period = "100ms"
    seats = 6
"#;

const POLICY: &str = r#"
    [[tenant]]
    name = "web"
    reservation = "2k iops"
    [[tenant]]
    name = "batch"
"#;

/// Clients of tenant batch that do not end by themselves.
fn bench(cluster: &mut Cluster, clients: &str) -> Running {
    let at = cluster.path("m.sock");
    let arguments = ["kv", "--json", "--seconds", "3600", "--keys", "20"];
    let mut command = cluster.bed().tidegate_lab(&arguments);
    process::spawn(command.args(["--clients", clients, "--tenant", "batch"]).arg("--at").arg(at))
}

#[test]
fn a_tenant_with_a_reservation_gets_a_slot_though_another_fills_the_node() {
    let mut cluster = Cluster::new(FILE, POLICY);
    cluster.up_data_nodes(&["m"]);
    let greedy = bench(&mut cluster, "5");
    row("work", &greedy, |row| row["operations"].as_u64() > Some(0));
    let refused = kv(&mut cluster, &["get", "k", "--tenant", "batch"]).failure(1).complaint();
    assert!(refused.contains("kept for tenants with a reservation: web"), "{refused}");
    assert!(refused.contains("5 of them by tenant \"batch\""), "{refused}");
    kv(&mut cluster, &["put", "k", "one", "--tenant", "web"]).success();
}

#[test]
fn slots_of_killed_clients_are_given_out_again() {
    let mut cluster = Cluster::new(FILE, POLICY);
    cluster.up_data_nodes(&["m"]);
    for _ in 0..2 {
        let greedy = bench(&mut cluster, "5");
        row("work", &greedy, |row| row["operations"].as_u64() > Some(0));
        let clients = children(&greedy);
        assert_eq!(clients.len(), 5);
        clients.iter().for_each(|pid| process::send(*pid, Signal::KILL));
        // The connections end with the processes, which are gone once no client can use them.
        wait_for("the end of the clients", PATIENCE, || children(&greedy).is_empty().then_some(()));
    }
    kv(&mut cluster, &["put", "k", "one", "--tenant", "batch"]).success();
}
