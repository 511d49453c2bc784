//! `cargo xtask loom`: the lock-free modules of `algo` under every order of their steps.
//!
//! The atomics of these modules are loom's then, which runs each test once for every order, and
//! with every value that a read may see. The build for that lies beside the rest of the target
//! folder.

use std::path::Path;
use std::process::{Command, ExitCode};

/// Runs the models, those whose names contain the given words if there are any.
pub(crate) fn run(root: &Path, names: &[&str]) -> ExitCode {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let status = Command::new(cargo)
        .args([
            "test",
            "--release",
            "-p",
            "tidegate-algo",
            "--test",
            "loom",
            "--test",
            "versioned",
            "--",
        ])
        .args(names)
        .env("RUSTFLAGS", format!("{flags} --cfg loom"))
        .env("CARGO_TARGET_DIR", root.join("target/loom"))
        .current_dir(root)
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo xtask loom: {error}");
            ExitCode::FAILURE
        }
    }
}
