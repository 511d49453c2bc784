//! `cargo xtask seeds`: simulated clusters under fire, or clients with one-sided access; as many as
//! one likes, or one again.

use std::path::Path;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Runs simulated clusters under fire, each made from a number; with --one-sided clients
with one-sided access and their data node.

Usage: cargo xtask seeds [--one-sided] COUNT        the first so many
       cargo xtask seeds [--one-sided] --seed N     one, again";

/// The command with these arguments.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    match *arguments {
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [number] | ["--seed", number] if is_number(number) => {}
        ["--one-sided", number] | ["--one-sided", "--seed", number] if is_number(number) => {}
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    // Optimised, but with every check on.
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["run", "--quiet", "--release", "--locked", "--package", "tidegate-sim"])
        .args(["--example", "seeds", "--"])
        .args(arguments)
        .current_dir(root)
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true")
        .status();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}
