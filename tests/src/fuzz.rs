//! Fuzz targets: functions of bytes that must not panic, hang or contradict themselves.
//!
//! They are plain functions, so that three drivers can share them: a test runs each of them for a
//! moment with a fixed seed (`tests/fuzz.rs`), `cargo xtask fuzz` runs them for as long as one
//! likes, and the programs in `fuzz/` put libFuzzer in front of them, which is guided by coverage.

pub mod cluster_file;
pub mod cluster_machine;
pub mod codec;
pub mod controller;
pub mod data_wire;
pub mod engine;
pub mod memcached;
pub mod mutate;
pub mod nbd;
pub mod node_machine;
pub mod policy;
pub mod pshift;
pub mod queue;
pub mod recording;
pub mod stage;
pub mod table;
pub mod tape;
pub mod trace;

/// Something to be fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Does it with these bytes; panics if something is wrong.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that inputs are made of, for mutations that splice.
    pub words: &'static [&'static str],
}

/// All targets.
pub const TARGETS: [Target; 18] = [
    Target { name: "codec", run: codec::run, seeds: codec::seeds, words: &[] },
    Target { name: "policy", run: policy::run, seeds: policy::seeds, words: policy::WORDS },
    Target { name: "table", run: table::run, seeds: table::seeds, words: table::WORDS },
    Target { name: "queue", run: queue::run, seeds: queue::seeds, words: &[] },
    Target { name: "stage", run: stage::run, seeds: stage::seeds, words: &[] },
    Target { name: "nbd", run: nbd::run, seeds: nbd::seeds, words: &[] },
    Target { name: "controller", run: controller::run, seeds: controller::seeds, words: &[] },
    Target {
        name: "memcached",
        run: memcached::run,
        seeds: memcached::seeds,
        words: memcached::WORDS,
    },
    Target {
        name: "cluster_file",
        run: cluster_file::run,
        seeds: cluster_file::seeds,
        words: cluster_file::WORDS,
    },
    Target { name: "data_wire", run: data_wire::run, seeds: data_wire::seeds, words: &[] },
    Target { name: "node_machine", run: node_machine::run, seeds: node_machine::seeds, words: &[] },
    Target {
        name: "cluster_machine",
        run: cluster_machine::run,
        seeds: cluster_machine::seeds,
        words: &[],
    },
    Target { name: "pshift", run: pshift::run, seeds: pshift::seeds, words: &[] },
    Target {
        name: "recording",
        run: recording::run,
        seeds: recording::seeds,
        words: recording::WORDS,
    },
    Target { name: "trace_msr", run: trace::msr, seeds: trace::msr_seeds, words: trace::WORDS },
    Target {
        name: "trace_systor",
        run: trace::systor,
        seeds: trace::systor_seeds,
        words: trace::WORDS,
    },
    Target {
        name: "trace_ascii",
        run: trace::ascii,
        seeds: trace::ascii_seeds,
        words: trace::WORDS,
    },
    Target { name: "trace_fio", run: trace::fio, seeds: trace::fio_seeds, words: trace::WORDS },
];

/// The target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
