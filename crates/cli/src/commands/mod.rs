//! The commands, one file each: `Args` is what a command is told, `run` is what it does.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use clap::{CommandFactory, Parser, Subcommand};
use tidegate_fabric::place::default_socket;

use crate::failure::{Code, Failure};

mod apply;
mod bench;
mod certify;
mod check;
mod completions;
mod demo;
mod explain;
mod kv;
mod load;
mod man;
mod repro;
mod run;
mod scheduler;
mod sim;
mod status;
mod top;
mod up;
mod volume;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100)]
#[command(about = "End-to-end quality of service for shared storage", after_help = AFTER_HELP)]
#[command(arg_required_else_help = true, subcommand_required = true)]
struct CommandLine {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Every flag can be set in the environment: --socket is TIDEGATE_SOCKET, and so on.

Exit codes:
   0  ok
   1  failure
   2  usage
   3  an invalid policy
   4  an infeasible policy: it promises more than there is
   5  no controller answers
  99  a promised level was missed

First steps:
  tidegate up &
  tidegate apply policies/shared-disk.toml
  tidegate run --tenant oltp -- fio jobs/oltp.fio
  tidegate top";

/// What every command understands.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Answer in JSON on standard output, and report errors in JSON on standard error
    #[arg(long, global = true, env = "TIDEGATE_JSON", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    pub(crate) json: bool,

    /// The controller's socket; by default tidegate/controller.sock in /run for root, else in
    /// $XDG_RUNTIME_DIR
    #[arg(long, global = true, value_name = "PATH", env = "TIDEGATE_SOCKET")]
    #[arg(hide_env_values = true)]
    socket: Option<PathBuf>,
}

impl Common {
    /// Where the controller listens, if the user says so.
    pub(crate) fn chosen_socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Where the controller listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(default_socket)
    }
}

/// One line for each command, in the order in which a newcomer needs them. A new one is a file in
/// this directory, a `mod` line above, and a line here and in `run`.
#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Args),
    Volume(volume::Args),
    Apply(apply::Args),
    Check(check::Args),
    Certify(certify::Args),
    Run(run::Args),
    Status(status::Args),
    Scheduler(scheduler::Args),
    Top(top::Args),
    Explain(explain::Args),
    Sim(sim::Args),
    Demo(demo::Args),
    Repro(repro::Args),
    Bench(bench::Args),
    Load(load::Args),
    Kv(kv::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Command {
    fn run(self, common: &Common) -> Result<ExitCode, Failure> {
        match self {
            Self::Up(args) => up::run(args, common),
            Self::Volume(args) => volume::run(args, common),
            Self::Apply(args) => apply::run(args, common),
            Self::Check(args) => check::run(args, common),
            Self::Certify(args) => certify::run(args, common),
            Self::Run(args) => run::run(args, common),
            Self::Status(args) => status::run(args, common),
            Self::Scheduler(args) => scheduler::run(args, common),
            Self::Top(args) => top::run(args, common),
            Self::Explain(args) => explain::run(args, common),
            Self::Sim(args) => sim::run(args, common),
            Self::Demo(args) => demo::run(args, common),
            Self::Repro(args) => repro::run(args, common),
            Self::Bench(args) => bench::run(args, common),
            Self::Load(args) => load::run(args, common),
            Self::Kv(args) => kv::run(args, common),
            Self::Completions(args) => completions::run(args, common),
            Self::Man(args) => man::run(args, common),
        }
    }
}

/// The command line as data, for completions and manual pages.
fn tree() -> clap::Command {
    CommandLine::command()
}

/// Does what the command line says.
pub(crate) fn main() -> ExitCode {
    let CommandLine { common, command } = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) if error.use_stderr() && asks_for_json() => return misused(&error).tell(true),
        // Help is no error, and people get the parser's own words.
        Err(error) => error.exit(),
    };
    command.run(&common).unwrap_or_else(|failure| failure.tell(common.json))
}

/// Whether a command line that makes no sense asks for JSON all the same.
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
