//! The scenario of several data nodes, `scenarios/haechi/nodes.toml`, at a hundredth of its speed.
//!
//! `TIDEGATE_ACCEPT=1 cargo test -p tidegate-sim --test nodes` writes the table beside it anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod folder;

use folder::Folder;
use tidegate_sim::one_sided::nodes::{
    self, NodesControl, OneSidedClusterReport, OneSidedClusterScenario,
};

const FOLDER: Folder = Folder("haechi");

/// How much slower than NICs are.
const SLOWER: u32 = 100;

fn read() -> OneSidedClusterScenario {
    FOLDER.read("nodes", OneSidedClusterScenario::parse).slowed(SLOWER)
}

/// Returns the largest shortfall of the five tenants with large reservations, in the worst of some
/// periods, in percent.
fn missing(outcome: &OneSidedClusterReport, periods: core::ops::Range<usize>) -> f64 {
    let samples = &outcome.samples[periods];
    let each = (0..5).flat_map(|it| samples.iter().map(move |sample| outcome.missing(it, sample)));
    each.fold(0.0, f64::max)
}

#[test]
fn promises_hold_for_all_nodes_together() {
    let scenario = read();
    let outcome = nodes::run(&scenario).unwrap();
    FOLDER.golden("nodes", &scenario.name, &outcome.table());
    let before = |control| {
        let outcome =
            nodes::run(&OneSidedClusterScenario { control, periods: 4, ..scenario.clone() })
                .unwrap();
        (missing(&outcome, 0..4), outcome.total())
    };
    let ((bare, total), (equal, _)) = (before(NodesControl::None), before(NodesControl::Equal));
    // Hot nodes move with the fifth period. Three later shares are where more is wanted, and how
    // much: clients know that here.
    for periods in [0..4, 7..14] {
        let split = missing(&outcome, periods);
        assert!(split < 1.0 && equal > 5.0 && bare > 15.0, "{split} {equal} {bare}");
    }
    // A tick of a monitor is 16 operations here, and what is given out in it comes late.
    assert!(outcome.total() > total * 0.9);
}
