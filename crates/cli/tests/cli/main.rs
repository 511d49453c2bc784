//! The command line as its users meet it: a process with arguments, output and an exit code.
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod check;
mod codes;
mod command;
mod documents;
mod help;
mod live;
mod terminal;

use std::path::Path;
use std::process::Output;

use assert_cmd::Command;

/// `tidegate` in `directory`, in an environment that says nothing about Tidegate or the
/// terminal.
fn tidegate(directory: &Path) -> Command {
    command::isolated(assert_cmd::cargo::cargo_bin_cmd!("tidegate"), directory)
}

fn transcript(arguments: &[&str], output: &Output) -> String {
    command::transcript("tidegate", arguments, output)
}
