//! `cargo xtask mutants`: whether the tests notice mistakes. cargo-mutants makes small mistakes in
//! the source, one at a time, and runs the tests of the crate; a mistake that no test notices is
//! one that could be made.
//!
//! What is changed says `.cargo/mutants.toml`: the wire's parsers, the token paths, the stores, the
//! segment and what a daemon trusts. All of it takes a night; a shard is a sample of it.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

const USAGE: &str = "\
Makes small mistakes in the source and runs the tests, to see whether they notice.

Usage: cargo xtask mutants [--shard K/N] [FILE...]

  --shard K/N   only the Kth of N even samples, counting from 0
  FILE          only these files, instead of those that .cargo/mutants.toml names

What is missed is listed in target/mutants/mutants.out/missed.txt. cargo-mutants is installed
below target/tools if it is not there.

Exit codes: 0 at least 95 % are noticed, 1 fewer, 2 usage.";

/// Of a hundred mistakes, this many are to be noticed. Some of the rest change nothing that a test
/// could see.
const NOTICED_PERCENT: usize = 95;

/// The command with these arguments.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    let (shard, files) = match *arguments {
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["--shard", shard, ref files @ ..] if is_shard(shard) => (Some(shard), files),
        ref files if files.iter().all(|file| root.join(file).is_file()) => (None, files),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match mutate(root, shard, files) {
        Ok((noticed, all)) => {
            println!("{noticed} of {all} mistakes are noticed");
            // None at all is no proof.
            ExitCode::from(u8::from(all == 0 || noticed * 100 < all * NOTICED_PERCENT))
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn is_shard(text: &str) -> bool {
    let Some((one, all)) = text.split_once('/') else { return false };
    match (one.parse::<u32>(), all.parse::<u32>()) {
        (Ok(one), Ok(all)) => one < all,
        _ => false,
    }
}

/// Runs it; how many mistakes were noticed, of how many.
fn mutate(root: &Path, shard: Option<&str>, files: &[&str]) -> Result<(usize, usize), String> {
    let tools = root.join("target/tools");
    install(root, &tools)?;
    let out = root.join("target/mutants");
    let mut command = Command::new(tools.join("bin/cargo-mutants"));
    command.arg("mutants").args(["--no-shuffle", "--output"]).arg(&out).current_dir(root);
    if let Some(shard) = shard {
        command.args(["--shard", shard]);
    }
    if !files.is_empty() {
        command.arg("--no-config");
        for file in files {
            command.args(["--file", file]);
        }
    }
    // It ends with 2 if something was missed, and with 3 if something hung.
    let status = command.status().map_err(|error| format!("cargo-mutants: {error}"))?;
    if !matches!(status.code(), Some(0 | 2 | 3)) {
        return Err(format!("cargo-mutants failed ({status})"));
    }
    let lines = |name: &str| {
        let text = fs::read_to_string(out.join("mutants.out").join(name)).unwrap_or_default();
        text.lines().count()
    };
    // One that hangs is noticed by whoever waits.
    let noticed = lines("caught.txt") + lines("timeout.txt");
    Ok((noticed, noticed + lines("missed.txt")))
}

fn install(root: &Path, tools: &Path) -> Result<(), String> {
    if tools.join("bin/cargo-mutants").is_file() {
        return Ok(());
    }
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["install", "--locked", "cargo-mutants", "--root"])
        .arg(tools)
        .current_dir(root)
        .stdout(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("cargo-mutants cannot be installed ({status})")),
        Err(error) => Err(format!("cargo cannot be started: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_several() {
        assert!(is_shard("0/8") && is_shard("7/8"));
        assert!(!is_shard("8/8") && !is_shard("1") && !is_shard("a/b") && !is_shard("0/0"));
    }
}
