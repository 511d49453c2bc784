//! Simulations under faults, each made from one number, and what must hold whatever happens.
//!
//! **Problem.** Promises are kept easily while nothing fails. They must also be kept while messages
//! are lost, late and doubled, links are cut, and processes die, stop and come back.
//!
//! **Mechanism.** A seed becomes a set-up, a load and a list of faults. In the *wild* periods
//! everything happens. Then faults end, and in the *healing* periods the system recovers. In the
//! *calm* periods every promise must be kept. The run is inspected `INSPECTIONS` times in a period,
//! and the first broken invariant ends it. Each [`Kind`] has its own set-ups and invariants; its
//! module lists them. The same seed gives the same run, to the last event ([`check`]).

mod bricks;
mod cluster;
mod data_nodes;
mod nodes;
mod stages;
mod storm;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::one_sided::faults::OneSidedTrial;
use crate::time::Picoseconds;
use crate::trial::{INSPECTIONS, Inspection, Phases, Trial};
use bricks::BrickTrial;
use cluster::ClusterTrial;
use data_nodes::DataNodeTrial;
use stages::StageTrial;
use storm::StormTrial;

/// A kind of simulation under faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Storage nodes, a policy and clients; a few faults in each run.
    Cluster,
    /// The same with promises in bytes, of the nodes as a named resource.
    Bytes,
    /// Three storage nodes under one policy; dozens of faults in each run.
    Storm,
    /// Bricks under DSFQ, with coordinators.
    Bricks,
    /// Clients with guarantees at one data node.
    OneSided,
    /// Data nodes among which a controller divides promises.
    DataNodes,
    /// Programs on several hosts whose links are cut, and one controller.
    Stages,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Cluster,
        Self::Bytes,
        Self::Storm,
        Self::Bricks,
        Self::OneSided,
        Self::DataNodes,
        Self::Stages,
    ];

    /// The kind with this name, which is an option of `cargo xtask seeds`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.to_string() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster",
            Self::Bytes => "bytes",
            Self::Storm => "storm",
            Self::Bricks => "bricks",
            Self::OneSided => "one-sided",
            Self::DataNodes => "data-nodes",
            Self::Stages => "stages",
        })
    }
}

/// A broken invariant, and the seed that shows it again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} seed {seed}, at {at}: {what}\nreplay: cargo xtask seeds --{kind} --seed {seed}")]
pub struct Violation {
    /// The kind of the run.
    pub kind: Kind,
    /// The seed of the run.
    pub seed: u64,
    /// When it was seen.
    pub at: Picoseconds,
    /// The broken invariant.
    pub what: String,
}

/// Runs a seed to its end and checks the invariants. Returns a number made from the run: runs that
/// differ have different ones.
///
/// # Errors
/// The first broken invariant.
pub fn check(kind: Kind, seed: u64) -> Result<u64, Violation> {
    let result = match kind {
        Kind::Cluster => run(ClusterTrial::new(seed)),
        Kind::Bytes => run(ClusterTrial::in_bytes(seed)),
        Kind::Storm => run(StormTrial::new(seed)),
        Kind::Bricks => run(BrickTrial::new(seed)),
        Kind::OneSided => run(OneSidedTrial::new(seed)),
        Kind::DataNodes => run(DataNodeTrial::new(seed)),
        Kind::Stages => run(StageTrial::new(seed)),
    };
    result.map_err(|(at, what)| Violation { kind, seed, at, what })
}

fn run(mut trial: impl Trial) -> Result<u64, (Picoseconds, String)> {
    let Phases { period, wild, heal, calm } = trial.phases();
    let interval = Picoseconds::from(period).0 / INSPECTIONS;
    for number in 1..=(wild + heal + calm) * INSPECTIONS {
        let is_calm = (number - 1) / INSPECTIONS >= wild + heal;
        let inspection = Inspection { part: number % INSPECTIONS, is_calm };
        let result = trial.run_until(Picoseconds(interval * number));
        result.and_then(|()| trial.inspect(inspection)).map_err(|what| (trial.now(), what))?;
    }
    Ok(trial.trace())
}

/// Runs seeds of a kind, some at a time, and returns the violations in the order of seeds. Runs
/// share no state.
#[expect(clippy::disallowed_methods, reason = "seeds share no state, and are told in order")]
pub fn violations(kind: Kind, seeds: Range<u64>) -> Vec<Violation> {
    let next = AtomicU64::new(seeds.start);
    let found = Mutex::new(BTreeMap::new());
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Err(violation) = check(kind, seed) {
                        let mut found = found.lock().expect("nothing panics while it is held");
                        found.insert(seed, violation);
                    }
                }
            });
        }
    });
    found.into_inner().expect("nothing panics while it is held").into_values().collect()
}
