//! The scenarios of the discrete-time model under `scenarios/dtm/`: each is run and compared with
//! the table beside it.
//!
//! `TIDEGATE_ACCEPT=1 cargo test -p tidegate-sim --test dtm` writes that anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

#[path = "../../sim/tests/folder/mod.rs"]
mod folder;

use folder::Folder;
use tidegate_netsim::dtm::{self, DtmPlan, DtmReport};

const FOLDER: Folder = Folder("dtm");

fn golden(name: &str) -> DtmReport {
    let plan = FOLDER.read(name, DtmPlan::parse);
    let outcome = dtm::run(&plan).unwrap();
    FOLDER.golden(name, &plan.name, &outcome.table(20));
    outcome
}

#[test]
fn three_classes() {
    let outcome = golden("three-classes");
    assert!(outcome.settled().unwrap() < 100);
}

#[test]
fn latencies() {
    golden("latencies");
}
