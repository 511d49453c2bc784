//! All of a cluster in one process, and what it keeps.

use std::fs;
use std::iter::from_fn;
use std::time::Instant;

use tidegate_tests::cluster::{Cluster, directories, volume};
use tidegate_tests::nbd::Client;
use tidegate_tests::{PATIENCE, eventually};

use super::{OPEN, noise};

/// No multiple of what three stripes hold, so that parts are of different lengths.
const SIZE: usize = (8 << 20) + (68 << 10);

fn cluster() -> Cluster {
    let striped = volume("db", "oltp", "8260KiB", &["a", "b", "c"]);
    let plain = volume("archive", "backup", "8260KiB", &["c"]);
    let mut cluster =
        Cluster::new(&format!("{}{striped}{plain}", directories(&["a", "b", "c"])), OPEN);
    cluster.up();
    cluster
}

#[test]
fn what_is_copied_in_comes_out() {
    let mut cluster = cluster();
    let bytes = noise(&cluster.bed().path("original"), SIZE);
    let size = cluster.client("nbdinfo", &["--size", &cluster.uri("db")]).success();
    assert_eq!(size.stdout.trim(), SIZE.to_string());
    cluster.client("nbdcopy", &["--flush", "original", &cluster.uri("db")]).success();
    cluster.client("nbdcopy", &[&cluster.uri("db"), &cluster.uri("archive")]).success();
    for export in ["db", "archive"] {
        cluster.client("nbdcopy", &[&cluster.uri(export), "copy"]).success();
        let copy = fs::read(cluster.bed().path("copy")).unwrap();
        assert!(copy == bytes, "{export} differs from what was copied to it");
    }
    // On the nodes the bytes are where the manual says that they are.
    for (node, stripe) in [("a", 0), ("b", 1), ("c", 2)] {
        let part_bytes = fs::read(cluster.path(&format!("{node}/db.{stripe}"))).unwrap();
        let begin = stripe << 16;
        assert!(
            part_bytes[..1 << 16] == bytes[begin..begin + (1 << 16)],
            "the first stripe at {node}"
        );
        let next = begin + (3 << 16);
        assert!(
            part_bytes[1 << 16..2 << 16] == bytes[next..next + (1 << 16)],
            "the second at {node}"
        );
    }
}

#[test]
fn shown_addresses_can_be_typed() {
    let file = directories(&["a"]).replace("unix:front.sock", "127.0.0.1:0");
    let mut cluster =
        Cluster::new(&format!("{file}{}", volume("db", "oltp", "1MiB", &["a"])), OPEN);
    cluster.up();
    let output = cluster.bed().controller().stdout();
    let uri = output.split_whitespace().find(|word| word.starts_with("nbd://127.0.0.1:"));
    let uri = uri.unwrap_or_else(|| panic!("no address in {output}"));
    let size = cluster.client("nbdinfo", &["--size", uri]).success();
    assert_eq!(size.stdout.trim(), "1048576");
}

#[test]
fn gateways_of_the_same_volume_see_the_same() {
    let more = "[[gateway]]\nname = \"side\"\nnbd = \"unix:side.sock\"\n";
    let db = volume("db", "oltp", "1MiB", &["a", "b"]);
    let mut cluster = Cluster::new(&format!("{}{more}{db}", directories(&["a", "b"])), OPEN);
    cluster.up();
    let mut front = cluster.enter("db");
    let mut side = Client::enter(&cluster.path("side.sock"), "db").unwrap();
    for round in 0..32 {
        let (one, other) = match round % 2 {
            0 => (&mut front, &mut side),
            _ => (&mut side, &mut front),
        };
        one.write(60 << 10, &[round; 8 << 10]).unwrap();
        assert_eq!(other.read(60 << 10, 8 << 10).unwrap(), [round; 8 << 10]);
    }
}

#[test]
fn patterns_stay_where_they_are_put() {
    let cluster = cluster();
    let output = cluster.qemu_io(
        "db",
        &[
            // Over the borders of stripes, of nodes, and of blocks.
            "write -P 0x11 60k 200k",
            "write -P 0x22 65535 2",
            "write -f -P 0x33 196607 3",
            "write -z 128k 4k",
            "discard 1M 192k",
            "aio_write -P 0x44 2M 1M",
            "aio_write -P 0x55 5000 100",
            "aio_flush",
            "flush",
            "read -P 0x11 60k 4095",
            "read -P 0x22 65535 2",
            "read -P 0x11 65537 1000",
            "read -P 0x33 196607 3",
            "read -P 0 128k 4k",
            "read -P 0x11 132k 59k",
            "read -P 0 1M 192k",
            "read -P 0x44 2M 1M",
            "read -P 0x55 5000 100",
            // The very end, and nothing beyond it.
            "write -P 0x66 8256k 4k",
            "read -P 0x66 8256k 4k",
        ],
    );
    let output = output.success();
    assert!(!output.stdout.contains("failed"), "{output:?}");
    let beyond = cluster.qemu_io("db", &["read 8256k 8k"]);
    assert!(beyond.stdout.contains("failed") || beyond.code != Some(0), "{beyond:?}");
}

#[test]
fn a_restart_keeps_what_was_written() {
    let mut cluster = cluster();
    cluster.qemu_io("db", &["write -P 0x11 0 1M", "write -P 0x22 100k 100k"]).success();
    let ended = cluster.bed().down();
    assert!(!ended.stderr.contains("ERROR"), "{ended:?}");
    cluster.expect_nothing_left();
    cluster.up();
    let steps = ["read -P 0x11 0 100k", "read -P 0x22 100k 100k", "read -P 0x11 200k 824k"];
    let output = cluster.qemu_io("db", &steps).success();
    assert!(!output.stdout.contains("failed"), "{output:?}");
}

#[test]
fn what_was_acknowledged_survives_a_sudden_end() {
    let mut cluster = cluster();
    let first = vec![7; 300 << 10];
    let mut client = cluster.enter("db");
    client.write(1 << 20, &first).unwrap();
    client.flush().unwrap();
    // Writes in flight when the cluster ends have no guarantee.
    client.submit_write(2 << 20, &first).unwrap();
    cluster.bed().kill_controller();
    cluster.up();
    let mut client = cluster.enter("db");
    assert!(client.read(1 << 20, first.len()).unwrap() == first, "it was flushed");
    let second = vec![8; 130 << 10];
    client.write_durably((1 << 20) + 5000, &second).unwrap();
    cluster.bed().kill_controller();
    cluster.up();
    let mut client = cluster.enter("db");
    assert!(client.read((1 << 20) + 5000, second.len()).unwrap() == second, "it was durable");
    assert!(client.read(1 << 20, 5000).unwrap() == first[..5000], "what is around it stays");
}

/// Requests that would wait for a minute do not delay its end, and get an error.
#[test]
fn an_end_under_load_is_clean() {
    let policy = "[[tenant]]\nname = \"oltp\"\nlimit = \"1 iops\"\n";
    let file = format!("{}{}", directories(&["a"]), volume("db", "oltp", "1MiB", &["a"]));
    let mut cluster = Cluster::new(&file, policy);
    cluster.up();
    // A node that was read has the policy: it received that before.
    eventually("the limit", || {
        !cluster.bed().status()["cluster"]["nodes"][0]["counted_ns"].is_null()
    });
    let mut client = cluster.enter("db");
    for block in 0..64 {
        client.submit_write(block * 4096, &[7; 4096]).unwrap();
    }
    client.receive().unwrap().1.unwrap();
    let since = Instant::now();
    cluster.bed().down();
    // A gateway gives what is under way five seconds.
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    cluster.expect_nothing_left();
    let rest: Vec<_> = from_fn(|| client.receive().ok()).map(|(_, outcome)| outcome).collect();
    let report = rest.iter().filter(|outcome| outcome.is_err()).count();
    assert!(rest.len() == 63 && report >= 32, "{report} of {} are told", rest.len());
}
