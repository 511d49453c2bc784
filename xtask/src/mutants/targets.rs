//! Files that `cargo xtask mutants` changes: the wire's parsers, the token paths, the stores, the
//! segment with its leases, and the code that decides what a daemon trusts.

/// The files of one crate, and the tests that are to notice.
pub(super) struct MutantTarget {
    /// The crate's folder below `crates/`.
    pub(super) package: &'static str,
    /// Files, as patterns from the root of the repository.
    pub(super) files: &'static [&'static str],
    /// Features that the tests need.
    pub(super) features: &'static [&'static str],
    /// The tests, as arguments of `cargo test`.
    pub(super) tests: &'static [&'static str],
}

pub(super) const TARGETS: &[MutantTarget] = &[
    MutantTarget {
        package: "model",
        files: &["crates/model/src/cluster/identity.rs"],
        features: &[],
        tests: &["--lib"],
    },
    MutantTarget {
        package: "wire",
        files: &[
            "crates/wire/src/memcached.rs",
            "crates/wire/src/memcached/*.rs",
            "crates/wire/src/nbd/*.rs",
        ],
        features: &[],
        tests: &["--lib"],
    },
    MutantTarget {
        package: "proto",
        files: &[
            "crates/proto/src/codec.rs",
            "crates/proto/src/data.rs",
            "crates/proto/src/data/*.rs",
            "crates/proto/src/data_node.rs",
            "crates/proto/src/pages.rs",
        ],
        features: &[],
        tests: &["--lib", "--test", "node"],
    },
    MutantTarget {
        package: "onesided",
        files: &[
            "crates/onesided/src/session_slots.rs",
            "crates/onesided/src/haechi/words.rs",
            "crates/onesided/src/kv/block.rs",
            "crates/onesided/src/kv/inspect.rs",
            "crates/onesided/src/kv/layout.rs",
            "crates/onesided/src/kv/locations.rs",
            "crates/onesided/src/kv/slot.rs",
            "crates/onesided/src/one_sided.rs",
        ],
        features: &["kv"],
        tests: &["--lib", "--test", "kv"],
    },
    MutantTarget {
        package: "fabric",
        files: &[
            "crates/fabric/src/memory/handover.rs",
            "crates/fabric/src/default_paths.rs",
            "crates/fabric/src/socket/address.rs",
            "crates/fabric/src/tls/identity.rs",
            "crates/fabric/src/tls/words.rs",
            "crates/fabric/src/trusted.rs",
            "crates/fabric/src/trusted/*.rs",
            "crates/fabric/src/unix.rs",
            "crates/fabric/src/wire.rs",
        ],
        features: &[],
        tests: &["--lib", "--test", "memory"],
    },
    MutantTarget {
        package: "gateway",
        files: &[
            "crates/gateway/src/memcached.rs",
            "crates/gateway/src/memcached/*.rs",
            "crates/gateway/src/nbd.rs",
        ],
        features: &[],
        // The tests of whole gateways take ten times as long, and notice no more of these files.
        tests: &["--lib"],
    },
    MutantTarget {
        package: "algo",
        files: &[
            "crates/algo/src/classify/access.rs",
            "crates/algo/src/capacity/device_time.rs",
            "crates/algo/src/allocation/memory_budget.rs",
            "crates/algo/src/concurrent/published.rs",
            "crates/algo/src/allocation/pshift.rs",
            "crates/algo/src/allocation/pshift/*.rs",
            "crates/algo/src/scheduling/queue.rs",
            "crates/algo/src/scheduling/scheduler.rs",
            "crates/algo/src/scheduling/scheduler/*.rs",
            "crates/algo/src/shaping/token_bucket.rs",
            "crates/algo/src/concurrent/versioned.rs",
        ],
        features: &["parallel"],
        tests: &[
            "--lib",
            "--test",
            "exact",
            "--test",
            "laws",
            "--test",
            "pshift",
            "--test",
            "pshift_parallel",
            "--test",
            "pshift_shortfall",
            "--test",
            "versioned",
        ],
    },
    MutantTarget {
        package: "node",
        files: &[
            "crates/node/src/pieces.rs",
            "crates/node/src/store.rs",
            "crates/node/src/store/*.rs",
            "crates/node/src/volumes.rs",
            "crates/node/src/volumes/*.rs",
        ],
        features: &[],
        tests: &["--lib", "--test", "node"],
    },
    MutantTarget {
        package: "controller",
        files: &[
            "crates/controller/src/store.rs",
            "crates/controller/src/store/caught.rs",
            "crates/controller/src/token.rs",
        ],
        features: &[],
        tests: &["--lib"],
    },
    MutantTarget {
        package: "stage",
        files: &[
            "crates/stage/src/files/entry.rs",
            "crates/stage/src/layout.rs",
            "crates/stage/src/lease.rs",
            "crates/stage/src/record.rs",
            "crates/stage/src/segment.rs",
        ],
        features: &[],
        tests: &[
            "--lib",
            "--test",
            "changes",
            "--test",
            "dead",
            "--test",
            "descriptors",
            "--test",
            "fork",
            "--test",
            "stage",
        ],
    },
];
