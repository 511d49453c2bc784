//! Each fuzz target for a moment, with a fixed seed: whoever breaks one learns it here, and whoever
//! wants to find more runs `cargo xtask fuzz`.

use std::path::Path;
use std::time::Duration;

use tidegate_tests::fuzz::engine::{self, Budget};

/// The same on every machine, so that a failure can be repeated.
const SEED: u64 = 2022;

fn brief(name: &str, inputs: u64) {
    let target = tidegate_tests::fuzz::target(name).expect("a target of this name");
    let artifacts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/artifacts");
    // A slow machine tries fewer inputs; it does not fail for that.
    let budget = Budget { inputs, time: Duration::from_millis(1_900) };
    if let Err(found) = engine::run(target, SEED, budget, &artifacts) {
        panic!("{found}");
    }
}

#[test]
fn codec() {
    brief("codec", 20_000);
}

#[test]
fn policy() {
    brief("policy", 2_000);
}

#[test]
fn table() {
    brief("table", 10_000);
}

#[test]
fn queue() {
    brief("queue", 5_000);
}

#[test]
fn stage() {
    brief("stage", 1_000);
}

#[test]
fn controller() {
    brief("controller", 1_000);
}

#[test]
fn nbd() {
    brief("nbd", 10_000);
}

#[test]
fn memcached() {
    brief("memcached", 5_000);
}

#[test]
fn cluster_file() {
    brief("cluster_file", 5_000);
}

#[test]
fn data_wire() {
    brief("data_wire", 20_000);
}

#[test]
fn node_machine() {
    brief("node_machine", 5_000);
}

#[test]
fn cluster_machine() {
    brief("cluster_machine", 1_000);
}

/// In this input the lease of a node is over when a period begins. It serves ten requests by the
/// policy's fallback, and takes the next grant two milliseconds later, between two looks at its
/// status. Its tokens have gone to the other node.
#[test]
fn a_lease_that_is_over_for_a_moment_is_noticed() {
    let target = tidegate_tests::fuzz::target("cluster_machine").expect("a target of this name");
    engine::try_one(target, include_bytes!("data/cluster_machine-c3902420a5d3f01c")).unwrap();
}

#[test]
fn pshift() {
    brief("pshift", 10_000);
}

#[test]
fn recordings() {
    brief("recording", 5_000);
}

#[test]
fn traces() {
    brief("trace_msr", 5_000);
    brief("trace_systor", 5_000);
    brief("trace_ascii", 5_000);
    brief("trace_fio", 5_000);
}
