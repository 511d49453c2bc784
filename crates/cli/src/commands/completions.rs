//! `tidegate completions`: what a shell needs to complete a command line.

use std::process::ExitCode;

use clap_complete::Shell;
use serde_json::json;

use super::Common;
use crate::failure::Failure;
use crate::output;

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate completions bash > /etc/bash_completion.d/tidegate
  tidegate completions zsh  > ~/.zfunc/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
pub(crate) struct Args {
    /// The shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    shell: String,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let shell = match args.shell.as_str() {
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::tree(), "tidegate", &mut script);
    let script = String::from_utf8_lossy(&script);
    if common.json {
        output::print_json(&json!({ "shell": args.shell, "script": script }))?;
    } else {
        output::print(&script)?;
    }
    Ok(ExitCode::SUCCESS)
}
