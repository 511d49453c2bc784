//! Check of crate dependencies: arrows point inward only (ARCHITECTURE.md).
//!
//! The table below is the architecture. It is compared with `cargo metadata`, so a manifest that
//! breaks it fails a test with the name of the edge. Development dependencies are exempt: a test
//! may look at anything.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Finding;

/// Each crate, with the crates of this workspace that it may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("tidegate-model", &[]),
    ("tidegate-algo", &["tidegate-model"]),
    ("tidegate-wire", &["tidegate-model"]),
    ("tidegate-proto", &["tidegate-algo", "tidegate-model"]),
    ("tidegate-onesided", &["tidegate-proto", "tidegate-algo", "tidegate-model"]),
    ("tidegate-sim", RINGS),
    ("tidegate-netsim", &["tidegate-sim", "tidegate-algo", "tidegate-model"]),
    ("tidegate-fabric", RINGS),
    ("tidegate-stage", LIVE),
    ("tidegate-node", STORAGE),
    ("tidegate-gateway", STORAGE),
    ("tidegate-controller", LIVE),
    ("tidegate-preload", &["tidegate-stage", "tidegate-model"]),
    ("tidegate-capi", &["tidegate-model", "tidegate-onesided", "tidegate-proto", "tidegate-stage"]),
    ("tidegate-console", CONSOLE),
];

const RINGS: &[&str] = &["tidegate-onesided", "tidegate-proto", "tidegate-algo", "tidegate-model"];
const LIVE: &[&str] =
    &["tidegate-fabric", "tidegate-onesided", "tidegate-proto", "tidegate-algo", "tidegate-model"];
/// The live crates that speak the protocols of stock clients.
const STORAGE: &[&str] = &[
    "tidegate-fabric",
    "tidegate-onesided",
    "tidegate-proto",
    "tidegate-wire",
    "tidegate-algo",
    "tidegate-model",
];
const CONSOLE: &[&str] =
    &["tidegate-stage", "tidegate-fabric", "tidegate-proto", "tidegate-algo", "tidegate-model"];

/// The outermost crates, on which nothing depends: they may use everything.
const OUTERMOST: &[&str] = &["tidegate", "tidegate-lab", "tidegate-tests", "xtask"];

/// The folders of the pure rings, below `crates/`.
const PURE_RINGS: &[&str] = &["model", "algo", "wire", "proto", "onesided"];

/// The simulators, which use std, and have no clock of their own either.
const SIMULATORS: &[&str] = &["sim", "netsim"];

/// Everything to mend in the checkout at `root`.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let metadata = metadata(root)?;
    let mut findings = edges(&metadata, root);
    findings.extend(stale(&metadata));
    for ring in PURE_RINGS {
        let path = format!("crates/{ring}/src/lib.rs");
        if let Ok(text) = fs::read_to_string(root.join(&path)) {
            findings.extend(purity(&path, &text));
        }
    }
    findings.extend(unlinted(root));
    Ok(findings)
}

/// The crates without a clock whose folder lacks the settings by which clippy refuses one.
fn unlinted(root: &Path) -> Vec<Finding> {
    let paths =
        PURE_RINGS.iter().chain(SIMULATORS).map(|name| format!("crates/{name}/clippy.toml"));
    let missing = paths.filter(|path| !root.join(path).is_file());
    let finding = |path: String| {
        Finding::new(&path, 1, "a crate without a clock needs it", "link crates/model/clippy.toml")
    };
    missing.map(finding).collect()
}

fn metadata(root: &Path) -> io::Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("cargo metadata failed: {}", stderr.trim())));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The edges of `metadata` that the table does not allow. `root` is where manifests are read, only
/// to name the line of an edge.
fn edges(metadata: &Value, root: &Path) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let is_ours = |name: &str| packages.iter().any(|package| text(package, "name") == name);
    let mut findings = Vec::new();
    for package in packages {
        let name = text(package, "name");
        if OUTERMOST.contains(&name) {
            continue;
        }
        let manifest = Path::new(text(package, "manifest_path"));
        let file = manifest.strip_prefix(root).unwrap_or(manifest).to_string_lossy();
        let Some((_, allowed)) = ARROWS.iter().find(|(row, _)| *row == name) else {
            let what = format!("{name} has no row in the table of arrows");
            let mend = "decide where it stands and add it to xtask/src/arrows.rs";
            findings.push(Finding::new(&file, 1, what, mend));
            continue;
        };
        let dependencies = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
        for dependency in dependencies.iter().filter(|entry| text(entry, "kind") != "dev") {
            let target = text(dependency, "name");
            if is_ours(target) && !allowed.contains(&target) {
                findings.push(Finding::new(
                    &file,
                    line_of(manifest, target),
                    format!("{name} may not depend on {target}"),
                    "arrows point inward (ARCHITECTURE.md)",
                ));
            }
        }
    }
    findings
}

/// The rows of the table that name no crate of `metadata`.
fn stale(metadata: &Value) -> Vec<Finding> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let exists = |name: &str| packages.iter().any(|package| text(package, "name") == name);
    let rows = ARROWS.iter().map(|(name, _)| *name).chain(OUTERMOST.iter().copied());
    let missing = rows.filter(|name| !exists(name)).map(|name| {
        let problem = format!("the table of arrows has a row for {name}, which does not exist");
        Finding::new("xtask/src/arrows.rs", 1, problem, "remove the row")
    });
    missing.collect()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// The line of a manifest that names `dependency` first; the first line if it cannot be found.
fn line_of(manifest: &Path, dependency: &str) -> usize {
    let text = fs::read_to_string(manifest).unwrap_or_default();
    text.lines().position(|line| line.starts_with(dependency)).map_or(1, |at| at + 1)
}

/// Returns a finding for each attribute that the root of a pure ring lacks.
fn purity(path: &str, text: &str) -> Vec<Finding> {
    ["#![no_std]", "#![forbid(unsafe_code)]"]
        .into_iter()
        .filter(|attribute| !text.lines().any(|line| line == *attribute))
        .map(|attribute| {
            let what = format!("a pure ring without `{attribute}`");
            Finding::new(path, 1, what, "add the attribute below the head comment")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(name: &str, dependencies: Value) -> Vec<String> {
        let others = ["tidegate-model", "tidegate-stage"]
            .map(|name| json!({ "name": name, "manifest_path": "", "dependencies": [] }));
        let package = json!({
            "name": name,
            "manifest_path": "/root/crates/a/Cargo.toml",
            "dependencies": dependencies,
        });
        let metadata = json!({ "packages": [package, others[0], others[1]] });
        edges(&metadata, Path::new("/root")).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn an_outward_edge_is_refused() {
        let planted = json!([{ "name": "tidegate-stage", "kind": null }]);
        let expected = "crates/a/Cargo.toml:1: tidegate-algo may not depend on tidegate-stage; \
                        arrows point inward (ARCHITECTURE.md)";
        assert_eq!(refused("tidegate-algo", planted), [expected]);
        let planted = json!([{ "name": "tidegate-stage", "kind": "build" }]);
        assert_eq!(refused("tidegate-algo", planted), [expected]);
    }

    #[test]
    fn inward_foreign_and_development_edges_are_allowed() {
        let fine = json!([
            { "name": "tidegate-model", "kind": null },
            { "name": "serde", "kind": null },
            { "name": "tidegate-stage", "kind": "dev" },
        ]);
        assert_eq!(refused("tidegate-algo", fine), [""; 0]);
        let fine = json!([{ "name": "tidegate-stage", "kind": null }]);
        assert_eq!(refused("tidegate", fine), [""; 0]);
    }

    #[test]
    fn a_crate_outside_the_table_is_refused() {
        let found = refused("tidegate-junk", json!([]));
        assert!(found[0].contains("tidegate-junk has no row"), "{found:?}");
    }

    #[test]
    fn a_row_without_a_crate_is_refused() {
        let rows = ARROWS.iter().map(|(name, _)| *name).chain(OUTERMOST.iter().copied());
        let all: Vec<Value> = rows.map(|name| json!({ "name": name })).collect();
        assert_eq!(stale(&json!({ "packages": all })), []);
        let found = stale(&json!({ "packages": all[1..] }));
        assert!(found[0].what.contains("tidegate-model, which does not exist"), "{found:?}");
    }

    #[test]
    fn pure_rings_are_declared_no_std() {
        let good = "//! Words.\n#![no_std]\n#![forbid(unsafe_code)]\n";
        assert_eq!(purity("a", good), []);
        let found = purity("a", "//! Words.\n#![no_std]\n");
        assert_eq!(found[0].what, "a pure ring without `#![forbid(unsafe_code)]`");
    }

    #[test]
    fn crates_without_a_clock_have_the_settings_of_clippy() {
        assert_eq!(unlinted(&crate::root()), []);
        let found = unlinted(Path::new("/nowhere"));
        assert_eq!(found.len(), 7);
        assert_eq!(found[6].file, "crates/netsim/clippy.toml");
    }

    #[test]
    fn the_table_has_no_cycle() {
        // A walk inward from any row comes to an end, at the latest after stage and the rings.
        fn depth(name: &str, left: usize) -> usize {
            assert!(left > 0, "{name} lies on a cycle");
            let row = ARROWS.iter().find(|(row, _)| *row == name);
            let inward = row.map_or(&[][..], |(_, allowed)| allowed);
            inward.iter().map(|next| depth(next, left - 1) + 1).max().unwrap_or(0)
        }
        assert!(ARROWS.iter().all(|(name, _)| depth(name, ARROWS.len() + 1) <= 6));
    }
}
