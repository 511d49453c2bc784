//! The commands, one file each: `Args` holds the arguments of a command, `run` runs it.

use std::process::ExitCode;

use clap::Subcommand;
use tidegate_console::command_line::{self, Common, Program, tree};
use tidegate_console::failure::Failure;
use tidegate_console::{completions, manual};

use crate::private_controller;

mod apply;
mod calibrate;
mod certify;
mod check;
mod explain;
mod kv;
mod moved;
mod private;
mod record;
mod run;
mod scheduler;
mod status;
mod top;
mod up;
mod volume;

const AFTER_HELP: &str = "\
Most flags can be set in the environment: --socket is TIDEGATE_SOCKET, and so on.

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

/// One line for each command, in the order in which a newcomer needs them. A new one is a file in
/// this directory, a `mod` line above, and a line here and in `run`.
#[derive(Debug, Subcommand)]
enum TidegateCommand {
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
    Record(record::Args),
    Kv(kv::Args),
    #[command(name = private_controller::COMMAND, hide = true)]
    Private(private::Args),
    #[command(after_help = "\
Examples:
  tidegate completions bash > /etc/bash_completion.d/tidegate
  tidegate completions zsh  > ~/.zfunc/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
    Completions(completions::Args),
    #[command(after_help = "\
Examples:
  tidegate man | man -l -
  tidegate man /usr/local/share/man/man1")]
    Man(manual::Args),
}

impl Program for TidegateCommand {
    const NAME: &str = "tidegate";
    const ABOUT: &str = "End-to-end quality of service for shared storage";
    const AFTER_HELP: &str = AFTER_HELP;

    fn refused(error: &clap::Error) -> Option<Failure> {
        moved::failure(error)
    }

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
            Self::Record(args) => record::run(args, common),
            Self::Kv(args) => kv::run(args, common),
            Self::Private(args) => private::run(args),
            Self::Completions(args) => completions::run(&args, tree::<Self>(), common),
            Self::Man(args) => manual::run(&args, tree::<Self>(), common),
        }
    }
}

/// Runs the command that the arguments of this process choose.
pub(crate) fn main() -> ExitCode {
    command_line::main::<TidegateCommand>()
}
