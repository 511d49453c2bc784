//! The repository keeps its own rules.

use xtask::{Finding, arrows, circles, commands, links, tidy};

#[track_caller]
fn nothing_to_mend(findings: Vec<Finding>) {
    let listed: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(listed.is_empty(), "{} to mend:\n{}", listed.len(), listed.join("\n"));
}

#[test]
fn is_tidy() {
    nothing_to_mend(tidy::check(&xtask::root()).unwrap());
}

#[test]
fn arrows_point_inward() {
    nothing_to_mend(arrows::check(&xtask::root()).unwrap());
}

#[test]
fn modules_form_no_circles() {
    nothing_to_mend(circles::check(&xtask::root()).unwrap());
}

#[test]
fn links_resolve() {
    nothing_to_mend(links::check(&xtask::root()).unwrap());
}

#[test]
fn commands_of_pages_run_tests() {
    nothing_to_mend(commands::check(&xtask::root()).unwrap());
}
