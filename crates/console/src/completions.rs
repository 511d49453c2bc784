//! The command `completions` of both programs: a script for a shell.

use std::process::ExitCode;

use clap_complete::Shell;
use serde_json::json;

use crate::command_line::Common;
use crate::failure::Failure;
use crate::output;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

/// Prints the script for the command line that `tree` describes.
///
/// # Errors
/// If standard output cannot be written.
pub fn run(args: &Args, mut tree: clap::Command, common: &Common) -> Result<ExitCode, Failure> {
    let shell = match args.shell.as_str() {
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut script = Vec::new();
    let name = tree.get_name().to_owned();
    clap_complete::generate(shell, &mut tree, name, &mut script);
    let script = String::from_utf8_lossy(&script);
    if common.json {
        output::print_json(&json!({ "shell": args.shell, "script": script }))?;
    } else {
        output::print(&script)?;
    }
    Ok(ExitCode::SUCCESS)
}
