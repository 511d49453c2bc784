//! One policy over two resources: a program under `tidegate run` in a folder and an NBD client of
//! a volume belong to one tenant, each resource holds the tenant's limit there, and a change of
//! the policy reaches both while they wait.
//!
//! Service is compared with the time that has passed under the limit: a slow machine may serve
//! less, and no machine more.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_tests::cluster::{Cluster, directories, volume};
use tidegate_tests::{eventually, process};

use super::OPEN;

/// The limits of `db` in a second: operations of the nodes, and MiB of the folder.
const LIMITS: (u64, u64) = (20, 1);

/// A minute's worth of work of each kind, at [`LIMITS`].
const WORK: (usize, u64) = (1_200, 60);

/// Both resources, and a tenant that may do this much of each in a second.
fn policy(folder: &str, (operations, mebibytes): (u64, u64)) -> String {
    format!(
        "[[resource]]\nname = \"cluster\"\n\
         [[resource]]\nname = \"scratch\"\npath = \"{folder}/**\"\ncapacity = \"10GiB/s\"\n\
         [[tenant]]\nname = \"db\"\n[tenant.on.cluster]\nlimit = \"{operations} iops\"\n\
         [tenant.on.scratch]\nlimit = \"{mebibytes}MiB/s\"\n"
    )
}

#[test]
fn one_policy_holds_at_files_and_at_nodes_and_changes_at_both() {
    let nodes = ["a", "b", "c"];
    let db = volume("data", "db", "8MiB", &nodes);
    let open = OPEN.replace("oltp", "db");
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&nodes)), &open);
    cluster.up();
    let folder = cluster.bed().subfolder("scratch").display().to_string();
    cluster.bed().apply(&policy(&folder, LIMITS)).success();
    eventually("the limit at the nodes", || {
        cluster.bed().status()["cluster"]["tenants"][0]["limit_operations"] == LIMITS.0
    });

    let start = Instant::now();
    let served = Arc::new(AtomicU64::new(0));
    let mut client = cluster.enter("data");
    client.submit_reads(0, 4096, WORK.0).expect("the gateway reads");
    let count = Arc::clone(&served);
    let reader = thread::spawn(move || {
        for _ in 0..WORK.0 {
            client.receive().expect("the gateway answers").1.expect("it is read");
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut write = |file: &str| {
        let mut command = cluster.bed().run("db", "dd");
        command.args(["if=/dev/zero", &format!("of={file}"), "bs=64k"]);
        command.arg(format!("count={}", WORK.1 * 16)).stdin(Stdio::null());
        process::spawn(&mut command)
    };
    let mut inside = write("scratch/file");
    // The same work in a folder of no resource is neither held nor counted.
    write("file").finish().success();
    eventually("some of both", || {
        served.load(Ordering::Relaxed) > 2 * LIMITS.0
            && cluster.bed().tenant("db")["bytes"].as_u64().expect("bytes") > 2 << 20
    });
    let (operations, bytes) =
        (served.load(Ordering::Relaxed), cluster.bed().tenant("db")["bytes"].as_u64());
    let passed = start.elapsed().as_secs() + 2;
    assert!(operations <= LIMITS.0 * passed, "{operations} operations in {passed} s");
    let bytes = bytes.expect("bytes") >> 20;
    assert!(bytes <= LIMITS.1 * passed, "{bytes} MiB in {passed} s");
    assert!(inside.is_running() && !reader.is_finished(), "a minute's work in {passed} s");

    cluster.bed().apply(&policy(&folder, (100_000, 1_000))).success();
    inside.finish().success();
    reader.join().expect("no panic");
    let all = start.elapsed();
    assert!(all < Duration::from_secs(58), "the change did not reach what waited: {all:?}");
}
