//! The scenarios under `scenarios/`: each is read, and the small ones are run and compared with the
//! table beside them.
//!
//! A table changes when the machines do, and is to be looked at before it is accepted:
//! `TIDEGATE_ACCEPT=1 cargo test -p tidegate-sim --test scenarios` writes it anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod folder;

use std::fs;

use folder::Folder;
use tidegate_model::Span;
use tidegate_sim::cluster::{self, ClusterReport};
use tidegate_sim::scenario::Scenario;

const FOLDER: Folder = Folder("pshift");

fn read(name: &str) -> Scenario {
    FOLDER.read(name, Scenario::parse)
}

#[test]
fn every_scenario_can_be_run() {
    let files = fs::read_dir(FOLDER.path("")).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "toml"));
    let names: Vec<_> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    assert!(names.len() >= 10, "{names:?}");
    names.iter().for_each(|name| _ = read(name));
}

/// Runs a scenario with larger samples, which are easier to read, and compares.
#[track_caller]
fn golden(name: &str, sample: &str) -> ClusterReport {
    let mut scenario = read(name);
    scenario.sample = sample.parse::<Span>().unwrap();
    let outcome = cluster::run(&scenario).unwrap();
    FOLDER.golden(name, &scenario.name, &outcome.table());
    outcome
}

fn near(served: &[u64], expected: &[u64]) -> bool {
    served.iter().zip(expected).all(|(one, other)| one.abs_diff(*other) * 100 <= *other)
}

#[test]
fn four_tenants_round_robin() {
    let outcome = golden("experiment-3-in-turn", "200ms");
    // 50,000 times 1/4, and 1/3, 1/2 and 1 more.
    assert!(near(&outcome.served(0), &[12_500, 29_166, 54_166, 104_166]));
}

#[test]
fn four_tenants_with_reservations() {
    let outcome = golden("experiment-3-reservations", "200ms");
    assert_eq!(outcome.met(0, 1_000), 4);
}

#[test]
fn four_tenants_with_reservations_and_limits() {
    let outcome = golden("experiment-3-limits", "200ms");
    assert_eq!((outcome.met(0, 1_000), outcome.above_limit(0)), (4, 0));
}

/// Tenants spread over several shards, of whose schedulers each sees a part of them.
#[test]
fn with_several_shards_the_same_holds() {
    let with = |name: &str, shards| {
        let mut scenario = read(name);
        scenario.nodes.shards = shards;
        cluster::run(&scenario).unwrap()
    };
    for shards in [2, 4] {
        let in_turn = with("experiment-3-in-turn", shards);
        assert!(near(&in_turn.served(0), &[12_500, 29_166, 54_166, 104_166]), "{shards}");
        let limits = with("experiment-3-limits", shards);
        assert_eq!((limits.met(0, 1_000), limits.above_limit(0)), (4, 0), "{shards}");
    }
    // Another order, so that it is known that there were several.
    let [one, four] = [1, 4].map(|shards| with("experiment-3-in-turn", shards));
    assert_ne!(one.table(), four.table());
}

#[test]
fn limits_of_striped_volumes_at_low_depth() {
    for (name, limit) in [("striped-500", 500), ("striped-2000", 2_000)] {
        let outcome = golden(name, "200ms");
        let served: Vec<u64> =
            (0..outcome.periods()).map(|period| outcome.served(period)[0]).collect();
        assert!(served.iter().all(|served| *served <= limit), "{served:?}");
        let all = limit * outcome.periods() as u64;
        assert!(served.iter().sum::<u64>() >= all * 99 / 100, "{served:?}");
    }
}

#[test]
fn two_hundred_tenants_on_slow_nodes() {
    let outcome = cluster::run(&read("experiment-5")).unwrap();
    for period in 0..2 {
        assert!(outcome.met(period, 990) >= 199, "{}", outcome.met(period, 990));
        // A request that a node began in one period may be answered in the next.
        let pairs = outcome.served(period).into_iter().zip(&outcome.promises);
        let above = pairs.map(|(served, promise)| {
            served.saturating_sub(promise.limit.map_or(u64::MAX, |limit| 5 * limit.0))
        });
        assert!(above.max() <= Some(1));
    }
}
