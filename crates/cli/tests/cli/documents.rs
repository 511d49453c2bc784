//! The example policies and the manual's page of commands.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate_model::Policy;

use crate::tidegate;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_example_policy_can_be_applied() {
    let mut count = 0;
    let folder = |name: &str| fs::read_dir(root().join(name)).unwrap();
    for entry in folder("policies").chain(folder("policies/profiles")) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let policy = Policy::parse(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        policy.feasible().unwrap_or_else(|error| panic!("{path:?}: {error}"));
        count += 1;
    }
    assert!(count >= 2);
}

#[test]
fn the_shared_disk_is_that_of_the_paper() {
    let text = fs::read_to_string(root().join("policies/shared-disk.toml")).unwrap();
    let policy = Policy::parse(&text).unwrap();
    let mib = |rate: Option<tidegate_model::Rate>| rate.unwrap().0 >> 20;
    let reserved = policy.tenants.iter().map(|tenant| mib(tenant.reservation.bandwidth));
    assert_eq!(reserved.collect::<Vec<_>>(), [150, 200, 300, 350]);
    assert_eq!(mib(policy.budget.bandwidth), 1000);
}

#[test]
fn the_manual_has_a_section_for_every_command() {
    let page = fs::read_to_string(root().join("docs/src/commands.md")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let help = tidegate(directory.path()).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in commands.take_while(|line| !line.is_empty()) {
        // The text of a long description goes on in a line without a name.
        let Some(name) = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')) else {
            continue;
        };
        let name = name.split(' ').next().unwrap();
        let section = format!("\n## `tidegate {name}`");
        assert!(name == "help" || page.contains(&section), "no section for {name}");
    }
}
