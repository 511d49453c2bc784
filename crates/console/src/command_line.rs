//! The options of every command, and how a command ends: with an exit code, and with its failure
//! in words or in JSON.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use clap::builder::FalseyValueParser;
use tidegate_fabric::place::default_socket;

use crate::failure::{Code, Failure};

/// The options that every command has.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// Answer in JSON on standard output, and report errors in JSON on standard error
    #[arg(long, global = true, env = "TIDEGATE_JSON", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    pub json: bool,

    /// The controller's socket; by default tidegate/controller.sock in /run for root, else in
    /// $XDG_RUNTIME_DIR
    #[arg(long, global = true, value_name = "PATH", env = "TIDEGATE_SOCKET")]
    #[arg(hide_env_values = true)]
    socket: Option<PathBuf>,
}

impl Common {
    /// Where the controller listens, if the user says so.
    pub fn chosen_socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Where the controller listens.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }
}

/// A program's whole command line.
pub trait CommandLine: Parser {
    /// Runs the command that was chosen.
    ///
    /// # Errors
    /// If the command fails; the failure says with which exit code.
    fn run(self, common: &Common) -> Result<ExitCode, Failure>;

    /// The common options, as they were given.
    fn common(&self) -> Common;
}

/// Parses the arguments of this process, runs the command, and reports its failure.
pub fn main<Line: CommandLine>() -> ExitCode {
    let line = match Line::try_parse() {
        Ok(line) => line,
        Err(error) if error.use_stderr() && asks_for_json() => return misused(&error).tell(true),
        // Help is no error, and people get the parser's own words.
        Err(error) => error.exit(),
    };
    let common = line.common();
    line.run(&common).unwrap_or_else(|failure| failure.tell(common.json))
}

/// Whether arguments that the parser refuses ask for JSON.
fn asks_for_json() -> bool {
    let is_set =
        |value: OsString| !["", "0", "false", "no", "off"].map(OsString::from).contains(&value);
    let mut arguments = env::args_os().take_while(|argument| argument != "--");
    arguments.any(|argument| argument == "--json")
        || env::var_os("TIDEGATE_JSON").is_some_and(is_set)
}

fn misused(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let message = first.strip_prefix("error: ").unwrap_or(first);
    Failure::new(Code::Usage, message).help("see the command with --help")
}
