//! The command line as its users meet it: a process with arguments, output and an exit code.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bench;
#[path = "../../../cli/tests/cli/command.rs"]
mod command;
mod help;
mod load;
mod lsm;
mod report;
mod repro;
mod sim;
mod sim_wrong;
#[path = "../../../cli/tests/cli/terminal.rs"]
mod terminal;
mod twin;

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;

/// `tidegate-lab` in `directory`, in an environment that says nothing about Tidegate or the
/// terminal.
fn tidegate_lab(directory: &Path) -> Command {
    command::isolated(assert_cmd::cargo::cargo_bin_cmd!("tidegate-lab"), directory)
}

fn transcript(arguments: &[&str], output: &Output) -> String {
    command::transcript("tidegate-lab", arguments, output)
}
