//! The scenarios under `scenarios/dsfq/`: each is read, run and compared with the table beside it.
//!
//! A table changes when the machines do, and is to be looked at before it is accepted:
//! `TIDEGATE_ACCEPT=1 cargo test -p tidegate-sim --test bricks` writes it anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod folder;

use folder::Folder;
use tidegate_model::{Discipline, Iops, Span};
use tidegate_sim::bricks::{self, DsfqReport, DsfqScenario};

const FOLDER: Folder = Folder("dsfq");

/// A scenario, but shorter.
fn read(name: &str) -> DsfqScenario {
    let read = FOLDER.read(name, DsfqScenario::parse);
    let sample = Span(2 * Span::SECOND.0);
    DsfqScenario { length: Span(10 * sample.0), sample, ..read }
}

/// Runs a scenario and compares.
#[track_caller]
fn golden(name: &str) -> DsfqReport {
    let scenario = read(name);
    let outcome = bricks::run(&scenario).unwrap();
    FOLDER.golden(name, &scenario.name, &outcome.table());
    let [measured, bound] = [outcome.unfairness.measured(), outcome.unfairness.bound()];
    assert!(measured <= bound, "{measured} is above {bound}");
    outcome
}

/// Returns the bytes served to g for each byte served to f, on one brick or on all.
fn ratio(outcome: &DsfqReport, brick: Option<usize>) -> f64 {
    outcome.mean(1, brick) / outcome.mean(0, brick)
}

#[track_caller]
fn near(value: f64, expected: f64) {
    assert!((value / expected - 1.0).abs() < 0.05, "{value} instead of {expected}");
}

#[test]
fn one_brick_one_to_two() {
    near(ratio(&golden("figure-8"), None), 2.0);
}

#[test]
fn equal_totals() {
    let outcome = golden("figure-9a");
    near(ratio(&outcome, None), 1.0);
    assert!(ratio(&outcome, Some(0)) < 0.5);
    near(ratio(&golden("figure-9b"), None), 4.0);
}

#[test]
fn a_striped_stream() {
    let outcome = golden("figure-10");
    near(ratio(&outcome, None), 1.0);
    near(outcome.mean(1, Some(1)), outcome.mean(1, Some(0)));
    near(outcome.mean(1, Some(2)), outcome.mean(1, Some(0)));
}

#[test]
fn a_minimum_share_is_kept() {
    let outcome = golden("figure-12");
    let whole = outcome.mean(0, Some(0)) + outcome.mean(1, Some(0));
    assert!(outcome.mean(1, Some(0)) >= whole / 12.0 * 0.98);
    let mut total = read("figure-12");
    total.discipline = Discipline::DsfqTotal;
    let total = bricks::run(&total).unwrap();
    assert!(total.mean(1, Some(0)) < outcome.mean(1, Some(0)));
}

#[test]
fn loads_that_change() {
    golden("figure-13");
    golden("figure-14");
}

#[test]
fn bursts_are_a_loophole_of_the_hybrid_and_none_with_a_debt() {
    assert!(ratio(&golden("burst"), None) > 1.5);
    let mut owed = read("burst");
    owed.discipline = Discipline::Unified;
    near(ratio(&bricks::run(&owed).unwrap(), None), 1.0);
}

/// Streams spread over several shards, of whose schedulers each sees a part of them: they have the
/// same shares, within the lead of a shard.
#[test]
fn with_several_shards_shares_are_the_same() {
    let with = |name: &str, shards| {
        let mut scenario = read(name);
        scenario.bricks.shards = shards;
        bricks::run(&scenario).unwrap()
    };
    for shards in [2, 4] {
        near(ratio(&with("figure-8", shards), None), 2.0);
        near(ratio(&with("figure-9a", shards), None), 1.0);
        near(ratio(&with("figure-9b", shards), None), 4.0);
        near(ratio(&with("figure-10", shards), None), 1.0);
        let [reserved, limited] =
            [2, 3].map(|stream| with("unified", shards).operations(stream, None));
        near(reserved, 130.0);
        near(limited, 60.0);
    }
    assert_ne!(with("figure-9a", 1).table(), with("figure-9a", 2).table());
}

/// Runs `classes` with 1, 2 and 4 shards under three seeds, and checks each result.
fn each_shape(change: impl Fn(&mut DsfqScenario), check: impl Fn(&DsfqReport, &str)) {
    for shards in [1, 2, 4] {
        for seed in 1..=3 {
            let (skip, length) = (Span(2 * Span::SECOND.0), Span(4 * Span::SECOND.0));
            let mut scenario = DsfqScenario { seed, skip, length, ..read("classes") };
            scenario.bricks.shards = shards;
            change(&mut scenario);
            check(&bricks::run(&scenario).unwrap(), &format!("{shards} shards, seed {seed}"));
        }
    }
}

/// At a full brick classes have 3:2:1 of the requests, whatever the shards and the weights of the
/// streams. Streams of one class share its turns by weight.
#[test]
fn classes_have_their_turns() {
    let check = |outcome: &DsfqReport, shape: &str| {
        let of = |stream| outcome.operations(stream, None);
        let classes = [of(0) + of(1), of(2), of(3)];
        let all: f64 = classes.iter().sum();
        for (served, weight) in classes.iter().zip([3.0, 2.0, 1.0]) {
            let share = served * 6.0 / weight / all;
            assert!((share - 1.0).abs() < 0.05, "{shape}: {classes:?}");
        }
        near(of(0) / of(1), 2.0);
        assert!(all > 1_850.0, "the disk does 2,000 a second, these {all}");
    };
    check(&golden("classes"), "as written");
    each_shape(|_| {}, check);
}

/// An urgent request within its reservation waits for one service, also while the reservations of
/// all other streams are served.
#[test]
fn an_urgent_request_waits_for_one_service() {
    let bricks::Bricks { base, per_mib, spread_percent, .. } = read("classes").bricks;
    assert_eq!(per_mib, Span::ZERO, "each request takes as long, whatever its size");
    let longest = Span(base.0 * u64::from(100 + spread_percent) / 100);
    let reserve = |scenario: &mut DsfqScenario| {
        scenario.stream[..4].iter_mut().for_each(|stream| stream.reservation = Some(Iops(400)));
    };
    each_shape(reserve, |outcome, shape| {
        let waits = |stream: usize| {
            let samples = 0..outcome.samples.len();
            samples.map(move |sample| outcome.cell(sample, stream, None).wait_most_ns)
        };
        let [wait, other] = [4, 3].map(|stream| Span(waits(stream).max().unwrap_or(0)));
        assert!(wait <= longest, "{shape}: {wait}, and a service takes {longest}");
        assert!(other > Span(10 * longest.0), "{shape}: low waits for {other}");
        let served = outcome.operations(4, None);
        assert!((80.0..200.0).contains(&served), "{shape}: {served} a second, not all urgent");
    });
}

#[test]
fn what_no_request_carries_is_announced() {
    let outcome = golden("partition");
    near(ratio(&outcome, None), 1.0);
    assert!(outcome.announced > 0);
    let silent = bricks::run(&DsfqScenario { exchange: false, ..read("partition") }).unwrap();
    near(ratio(&silent, Some(0)), 1.0);
    assert_eq!(silent.announced, 0);
}

#[test]
fn a_reservation_a_limit_and_equal_totals() {
    let outcome = golden("unified");
    near(ratio(&outcome, None), 1.0);
    let [reserved, limited] = [2, 3].map(|stream| outcome.operations(stream, None));
    near(reserved, 130.0);
    near(limited, 60.0);
    // At most as many as are at the disks may have begun before the first sample.
    let begun = 18.0 / (outcome.sample.as_seconds() * outcome.samples.len() as f64);
    assert!(reserved >= 130.0 - begun && limited <= 60.0 + begun, "{reserved} {limited}");
}

/// The paper's rates of its bricks (§4). The defaults were found with this test.
#[test]
fn bricks_are_as_fast_as_the_papers() {
    for (size, expected) in [("16KiB", 6e6), ("1MiB", 200e6)] {
        let text = format!(
            "name = 'x'\nseed = 1\ndiscipline = 'fifo'\nskip = '5s'\nlength = '60s'\n\
             sample = '1s'\nbricks = {{ count = 1 }}\n[[stream]]\nname = 'f'\n\
             threads = [{{ on = [0], count = 30, size = ['1KiB', '{size}'] }}]\n\
             [[stream]]\nname = 'g'\nthreads = []"
        );
        let outcome = bricks::run(&DsfqScenario::parse(&text).unwrap()).unwrap();
        let off = outcome.mean(0, None) / expected - 1.0;
        assert!(off.abs() < 0.01, "{size}: {off}");
    }
}

#[test]
fn a_seed_is_a_run() {
    let scenario = read("unified");
    let outcome = bricks::run(&scenario).unwrap();
    assert_eq!(outcome, bricks::run(&scenario).unwrap());
    assert_ne!(outcome, bricks::run(&DsfqScenario { seed: 1, ..scenario }).unwrap());
}
