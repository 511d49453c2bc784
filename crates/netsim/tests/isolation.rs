//! A tenant with a reservation at the node that ships, beside ten loads, in front of drives in
//! virtual time.
//!
//! The tables are the golden files in `golden`; `UPDATE_GOLDEN=1` writes them anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

use std::path::Path;

use tidegate_model::Span;
use tidegate_netsim::storage::{NodeDrive, Parameters};
use tidegate_sim::isolation::{
    AGGRESSORS, ChannelTimes, Channels, Comparison, Drive, IsolationSetup, compare, served_percent,
};

const US: u64 = Span::MICROSECOND.0;

fn beside_all<D: Drive>(length: Span, drive: impl Fn() -> D) -> Comparison {
    let setup = IsolationSetup { depth: 32, skip: Span(length.0 / 2), length, seed: 1 };
    compare(setup, &AGGRESSORS, drive, || true).unwrap()
}

fn channels(count: usize, spread_percent: u64) -> Comparison {
    let (each, per_mib) = (Span(400 * US), Span(5_000 * US));
    let times = ChannelTimes { read: each, write: each, per_mib, spread_percent };
    beside_all(Span::SECOND, || Channels::new(count, times, 1))
}

/// Compares a table with its golden file.
#[track_caller]
fn golden(name: &str, comparison: &Comparison) {
    let table = comparison.table();
    println!("{name}\n{table}");
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/isolation-{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &table).unwrap();
    }
    assert_eq!(table, std::fs::read_to_string(&golden).unwrap());
}

/// The victim has its reads.
#[track_caller]
fn served(comparison: &Comparison) {
    for row in &comparison.rows {
        let percent = served_percent(&row.with);
        assert!(percent >= 98.0, "{}: {percent}% of reads served", row.aggressor);
    }
}

#[test]
fn one_channel() {
    let comparison = channels(1, 50);
    golden("one-channel", &comparison);
    served(&comparison);
}

#[test]
fn eight_channels() {
    let comparison = channels(8, 20);
    golden("eight-channels", &comparison);
    served(&comparison);
}

#[test]
fn flash() {
    let mut drive = Parameters::default();
    (drive.geometry.channels, drive.geometry.chips) = (2, 2);
    (drive.geometry.blocks, drive.geometry.pages) = (256, 64);
    let length = Span(400 * Span::MILLISECOND.0);
    let comparison = beside_all(length, || NodeDrive::new(&drive, 1));
    golden("flash", &comparison);
}
