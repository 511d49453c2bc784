//! The options of every command, and how a command ends: with an exit code, and with its failure
//! in words or in JSON.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{FalseyValueParser, Resettable};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tidegate_fabric::default_paths::default_socket;

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
    /// $XDG_RUNTIME_DIR or, where that is not set, controller.sock in the state directory
    #[arg(long, global = true, value_name = "PATH", env = "TIDEGATE_SOCKET")]
    #[arg(hide_env_values = true)]
    socket: Option<PathBuf>,

    /// Whether the socket is named by the arguments, and not by the environment.
    #[arg(skip)]
    is_socket_argument: bool,
}

impl Common {
    /// The controller's socket, if the user names it.
    pub fn chosen_socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The controller's socket, if the arguments name it.
    pub fn socket_argument(&self) -> Option<&Path> {
        self.chosen_socket().filter(|_| self.is_socket_argument)
    }

    /// Where the controller listens.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }
}

/// One of the two programs: its help, and its commands as an enum for the parser.
pub trait Program: Subcommand {
    /// The name that is typed.
    const NAME: &'static str;
    /// The purpose of the program, in a line.
    const ABOUT: &'static str;
    /// The end of its help: exit codes, and first steps.
    const AFTER_HELP: &'static str;

    /// Runs the command that was chosen.
    ///
    /// # Errors
    /// If the command fails; the failure has the exit code.
    fn run(self, common: &Common) -> Result<ExitCode, Failure>;

    /// The failure for arguments that the parser refuses, where a better message exists than the
    /// parser's.
    fn refused(_: &clap::Error) -> Option<Failure> {
        None
    }
}

/// The whole command line of a program.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
#[command(arg_required_else_help = true, subcommand_required = true)]
struct CommandLine<P: Program> {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: P,
}

impl<P: Program> CommandLine<P> {
    fn parse_arguments() -> Result<Self, clap::Error> {
        let mut tree = tree::<P>();
        let matches = tree.try_get_matches_from_mut(env::args_os());
        let matches = matches.map_err(without_environment::<P>)?;
        let line = Self::from_arg_matches(&matches);
        let mut line = line.map_err(|error| error.format(&mut tree))?;
        let source = matches.value_source("socket");
        line.common.is_socket_argument = source == Some(ValueSource::CommandLine);
        Ok(line)
    }
}

/// The same error without the environment, whose options the parser's usage would show as if they
/// were required. Help shows the variables, and stays.
fn without_environment<P: Program>(error: clap::Error) -> clap::Error {
    fn reset(command: clap::Command) -> clap::Command {
        command.mut_args(|option| option.env(Resettable::Reset)).mut_subcommands(reset)
    }
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || is_help {
        return error;
    }
    let parsed = reset(tree::<P>()).try_get_matches_from(env::args_os());
    // An error of a value in the environment is not there any more.
    parsed.err().filter(|other| other.kind() == error.kind()).unwrap_or(error)
}

/// The command line as data, for completions and manual pages.
pub fn tree<P: Program>() -> clap::Command {
    CommandLine::<P>::command().name(P::NAME).about(P::ABOUT).after_help(P::AFTER_HELP)
}

/// Parses the arguments of this process, runs the command, and reports its failure.
pub fn main<P: Program>() -> ExitCode {
    let CommandLine { common, command } = match CommandLine::<P>::parse_arguments() {
        Ok(line) => line,
        Err(error) => match (P::refused(&error), error.use_stderr() && wants_json()) {
            (Some(failure), json) => return failure.print(json),
            (None, true) => return misused(&error).print(true),
            // Help is no error, and people get the parser's own words.
            (None, false) => error.exit(),
        },
    };
    command.run(&common).unwrap_or_else(|failure| failure.print(common.json))
}

/// Whether arguments that the parser refuses contain `--json`.
fn wants_json() -> bool {
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
