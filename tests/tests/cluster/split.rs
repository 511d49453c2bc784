//! One promise over several data nodes: it is where its tenant's clients want it, and stays there
//! while the controller is away.

use tidegate_tests::cluster::Cluster;
use tidegate_tests::process::{self, Running};
use tidegate_tests::{PATIENCE, eventually, wait_for};

/// So little that any machine can do it.
const NODE: &str = r#"
    [[data-node]]
    name = "NAME"
    listen = "unix:NAME.sock"
    memory = "16MiB"
    capacity = "2k iops"
    client = "1k iops"
    period = "100ms"
    window = 16
    fabric = "model"
"#;

const POLICY: &str = r#"
    redistribute = "50ms"
    [[tenant]]
    name = "web"
    reservation = "400 iops"
    [[tenant]]
    name = "batch"
    reservation = "200 iops"
    limit = "600 iops"
"#;

/// Clients of a tenant at a data node, which do not end by themselves.
fn bench(cluster: &mut Cluster, node: &str, tenant: &str) -> Running {
    let at = cluster.path(&format!("{node}.sock"));
    let arguments = ["kv", "--json", "--seconds", "3600", "--keys", "50"];
    let mut command = cluster.bed().tidegate_lab(&arguments);
    process::spawn(command.args(["--clients", "2", "--tenant", tenant]).arg("--at").arg(at))
}

/// Waits until so much is reserved for these clients together.
#[track_caller]
fn until_reserved(bench: &Running, expected: u64) {
    let seen = bench.rows().len();
    wait_for(&format!("{expected} operations per second"), PATIENCE, || {
        bench.rows().into_iter().skip(seen).find(|row| row["reserved_per_second"] == expected)
    });
}

fn all_right(benches: &[&Running]) {
    for row in benches.iter().flat_map(|bench| bench.rows()) {
        assert!(row["wrong"] == 0 && row["missing"] == 0, "{row}");
    }
}

#[test]
fn a_promise_is_where_it_is_wanted() {
    let file = ["a", "b"].map(|name| NODE.replace("NAME", name)).concat();
    let mut cluster = Cluster::new(&file, POLICY);
    cluster.up_data_nodes(&["a", "b"]);
    // A tenant that reads all that it can at one node has its whole reservation there, and so has
    // another tenant at the other node.
    let at_a = bench(&mut cluster, "a", "web");
    let other = bench(&mut cluster, "b", "batch");
    until_reserved(&at_a, 400);
    until_reserved(&other, 200);
    // Its clients go elsewhere.
    all_right(&[&at_a]);
    drop(at_a);
    let at_b = bench(&mut cluster, "b", "web");
    until_reserved(&at_b, 400);
    // Without a controller nothing changes, and the next one finds what there is.
    cluster.bed().kill_controller();
    let before = at_b.rows().len();
    wait_for("more rows", PATIENCE, || at_b.rows().get(before + 3).cloned());
    until_reserved(&at_b, 400);
    let mut command = cluster.command(&["--role", "controller"]);
    cluster.bed().up_with(&mut command);
    eventually("the next controller at the data node", || {
        cluster.component("b").stderr().matches("policy applied revision=").count() == 2
    });
    until_reserved(&at_b, 400);
    cluster.bed().apply(&POLICY.replace("400 iops", "300 iops")).success();
    until_reserved(&at_b, 300);
    all_right(&[&at_b, &other]);
}
