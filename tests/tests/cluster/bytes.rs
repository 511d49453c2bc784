//! Promises of the nodes as a named resource: operations and bytes at once, and a request of any
//! size is one operation.
//!
//! Times are bounded from below only, and compared with those of other tenants under the same
//! clock: a slow machine may take longer, none may take less.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_tests::cluster::{Cluster, GATEWAY, volume};
use tidegate_tests::{eventually, process};

const MIB: usize = 1 << 20;

/// A striped cluster whose tenants are promised this of the nodes. The first two mebibytes of a
/// volume are at one node.
fn cluster(tenants: &[(&str, &str)]) -> Cluster {
    cluster_in_stripes("2MiB", tenants)
}

fn cluster_in_stripes(stripe: &str, tenants: &[(&str, &str)]) -> Cluster {
    let nodes = ["a", "b"].map(|name| {
        format!(
            "[[node]]\nname = {name:?}\nmemory = true\nscheduler = \"unified\"\n\
             capacity = [\"100k iops\", \"1GiB/s\"]\n"
        )
    });
    let striped =
        |name| volume(name, name, "8MiB", &["a", "b"]) + &format!("stripe = {stripe:?}\n");
    let volumes = tenants.iter().map(|(name, _)| striped(name));
    let gateway = format!("[[gateway]]\nname = \"{GATEWAY}\"\nnbd = \"unix:{GATEWAY}.sock\"\n");
    let file = nodes.concat() + &gateway + &volumes.collect::<String>();
    let tenants = tenants.iter().map(|(name, promise)| {
        format!("[[tenant]]\nname = {name:?}\n[tenant.on.cluster]\n{promise}\n")
    });
    let policy = "[[resource]]\nname = \"cluster\"\n".to_owned() + &tenants.collect::<String>();
    let mut cluster = Cluster::new(&file, &policy);
    cluster.up();
    cluster
}

/// How long it takes to read so often so many bytes, a few requests at a time.
fn time_to_read(cluster: &Cluster, export: &str, count: usize, length: usize) -> Duration {
    let mut client = cluster.enter(export);
    let start = Instant::now();
    client.submit_reads(0, length, count).expect("the gateway reads");
    for _ in 0..count {
        client.receive().expect("the gateway answers").1.expect("the gateway reads");
    }
    start.elapsed()
}

#[test]
fn limits_in_both_units_hold_whatever_the_size() {
    let cluster = cluster(&[("slow", "limit = [\"200 iops\", \"4MiB/s\"]")]);
    // Three seconds' worth of each kind, of which a period that is nearly over gives one at once;
    // and a request that begins with its tenant's last token.
    let large = time_to_read(&cluster, "slow", 12, MIB);
    assert!(large >= Duration::from_millis(1_700), "12 MiB in {large:?}");
    let small = time_to_read(&cluster, "slow", 600, 4096);
    assert!(small >= Duration::from_millis(1_900), "600 requests in {small:?}");
}

/// Both may do two operations in a second. The eight pieces of the large request are one of them,
/// so it is answered before the fourth of the small ones.
#[test]
fn a_request_of_any_size_is_one_operation() {
    let limit = "limit = \"2 iops\"";
    let cluster = cluster(&[("large", limit), ("small", limit)]);
    let [mut large, mut small] = ["large", "small"].map(|export| cluster.enter(export));
    large.submit_read(0, MIB).expect("the gateway reads");
    small.submit_reads(0, 4096, 4).expect("the gateway reads");
    let large = thread::spawn(move || large.receive().map(|_| Instant::now()));
    for _ in 0..4 {
        small.receive().expect("the gateway answers").1.expect("the gateway reads");
    }
    let small = Instant::now();
    let large = large.join().expect("no panic").expect("the gateway answers");
    assert!(large < small, "{:?} later", large.saturating_duration_since(small));
}

/// Both may do four operations in a second. The large request is one at each of two nodes, and not
/// one for each of its 32 stripes, so it is answered before the last of sixteen small ones.
#[test]
fn a_request_over_many_stripes_is_one_operation_at_each_node() {
    let limit = "limit = \"4 iops\"";
    let cluster = cluster_in_stripes("64KiB", &[("large", limit), ("small", limit)]);
    let [mut large, mut small] = ["large", "small"].map(|export| cluster.enter(export));
    large.submit_read(0, 2 * MIB).expect("the gateway reads");
    small.submit_reads(0, 4096, 16).expect("the gateway reads");
    let large = thread::spawn(move || large.receive().map(|_| Instant::now()));
    for _ in 0..16 {
        small.receive().expect("the gateway answers").1.expect("the gateway reads");
    }
    let small = Instant::now();
    let large = large.join().expect("no panic").expect("the gateway answers");
    assert!(large < small, "{:?} later", large.saturating_duration_since(small));
}

#[test]
fn promises_in_bytes_are_proved_and_shown() {
    let mut cluster = cluster(&[
        ("sure", "reservation = [\"1k iops\", \"100MiB/s\"]"),
        ("slow", "limit = \"4MiB/s\""),
    ]);
    assert!(!time_to_read(&cluster, "sure", 64, 65_536).is_zero());
    eventually("the nodes have reported bytes", || {
        let status = cluster.bed().status();
        let sure = &status["cluster"]["tenants"][0];
        let promised = (sure["reserved_operations"].as_u64(), sure["reserved_bytes"].as_u64());
        assert_eq!(promised, (Some(1_000), Some(100 << 20)));
        assert_eq!(sure["limit_bytes"], Value::Null);
        assert_eq!(status["cluster"]["tenants"][1]["limit_bytes"].as_u64(), Some(4 << 20));
        assert_eq!(status["cluster"]["nodes"][1]["declared_bytes_per_second"], 1 << 30);
        let bytes = ["served_bytes", "last_served_bytes"].map(|name| sure[name].as_u64());
        let is_seen = bytes.iter().flatten().sum::<u64>() > 0;
        if !is_seen {
            time_to_read(&cluster, "sure", 64, 65_536);
        }
        is_seen
    });
    let greedy = "[[resource]]\nname = \"cluster\"\n[[tenant]]\nname = \"sure\"\n\
                  [tenant.on.cluster]\nreservation = \"3GiB/s\"\n";
    let refused = cluster.bed().apply(greedy);
    assert!(refused.stderr.contains("can do 2GiB/s"), "{refused:?}");
    let _ = process::run(&mut cluster.bed().tidegate(&["status"])).success();
}
