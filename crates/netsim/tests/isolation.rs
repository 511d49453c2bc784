//! A tenant with a reservation at the node that ships, beside ten loads, in front of drives in
//! virtual time.
//!
//! The tables are the golden files in `golden`; `UPDATE_GOLDEN=1` writes them anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

use std::fmt::Write;
use std::path::Path;

use tidegate_model::Span;
use tidegate_netsim::isolation::NODE_DRIVE_MODELS;
use tidegate_sim::isolation::{AGGRESSORS, Comparison, IsolationSetup, served_percent};

const MS: u64 = Span::MILLISECOND.0;

fn beside_all(model: usize, length: Span) -> Comparison {
    let setup = IsolationSetup { depth: 32, skip: Span(length.0 / 2), length, seed: 1 };
    NODE_DRIVE_MODELS[model].compare(setup, &AGGRESSORS, || true).unwrap()
}

/// The comparison as aligned text.
fn table(comparison: &Comparison) -> String {
    let Comparison { capacity, requested, alone, rows, .. } = comparison;
    let mut table = format!(
        "{capacity} small reads per second; the victim requests {requested}, alone p99 {} and \
         p99.9 {}\n{:24} {:>6} {:>6} {:>7} {:>6} {:>10}\n",
        alone.p99, alone.p999, "beside", "p99", "p99.9", "served%", "used%", "p99 without"
    );
    for row in rows {
        writeln!(
            table,
            "{:24} {:6.2} {:6.2} {:7.1} {:6.1} {:11.2}",
            row.aggressor,
            comparison.times(|figures| figures.p99, &row.with),
            comparison.times(|figures| figures.p999, &row.with),
            served_percent(&row.with),
            comparison.used_percent(row),
            comparison.times(|figures| figures.p99, &row.without),
        )
        .unwrap();
    }
    table
}

/// Compares a table with its golden file.
#[track_caller]
fn golden(name: &str, comparison: &Comparison) {
    let table = table(comparison);
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
    let comparison = beside_all(0, Span::SECOND);
    golden("one-channel", &comparison);
    served(&comparison);
}

#[test]
fn eight_channels() {
    let comparison = beside_all(1, Span::SECOND);
    golden("eight-channels", &comparison);
    served(&comparison);
}

#[test]
fn flash() {
    golden("flash", &beside_all(2, Span(400 * MS)));
}
