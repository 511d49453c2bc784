//! `cargo xtask seeds`: simulations under faults, or histories of flushes; as many as one likes, or
//! one again.

use std::path::Path;
use std::process::{Command, ExitCode};

const USAGE: &str = "\
Runs simulations under faults, each made from a number; of every kind, or of one:
--cluster storage nodes, --bytes storage nodes that promise bytes, --storm storage
nodes under dozens of faults, --bricks bricks under DSFQ, --one-sided clients of a
data node, --data-nodes data nodes that share promises, --stages programs of several
hosts. With --durability it runs histories of writes, flushes, kills, crashes and
failing syncs over nodes and gateways as they are.

Usage: cargo xtask seeds [--KIND] COUNT        the first so many
       cargo xtask seeds [--KIND] --seed N     one, again";

/// The kinds that the simulator runs.
const KINDS: [&str; 7] =
    ["--cluster", "--bytes", "--storm", "--bricks", "--one-sided", "--data-nodes", "--stages"];

/// The command with these arguments.
pub(crate) fn run(root: &Path, arguments: &[&str]) -> ExitCode {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    match *arguments {
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        [number] | ["--seed", number] if is_number(number) => {}
        [kind, number] | [kind, "--seed", number] if KINDS.contains(&kind) && is_number(number) => {
        }
        ["--durability", number] if is_number(number) => {
            return durability(root, "TIDEGATE_HISTORIES", number);
        }
        ["--durability", "--seed", number] if is_number(number) => {
            return durability(root, "TIDEGATE_HISTORY", number);
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    let mut command = cargo(root);
    // Optimised, but with every check on.
    command
        .args(["run", "--quiet", "--release", "--locked", "--package", "tidegate-sim"])
        .args(["--example", "seeds", "--"])
        .args(arguments)
        .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")
        .env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    finished(command)
}

/// The flush oracle, which is a test.
fn durability(root: &Path, name: &str, number: &str) -> ExitCode {
    let mut command = cargo(root);
    command
        .args(["test", "--quiet", "--package", "tidegate-tests", "--test", "main", "--"])
        .args(["--nocapture", "durability::"])
        .env(name, number);
    finished(command)
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

fn finished(mut command: Command) -> ExitCode {
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cargo cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}
