//! The commands, one file each: `Args` holds the arguments of a command, `run` runs it.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tidegate_console::command_line::{self, Common};
use tidegate_console::failure::Failure;
use tidegate_console::{completions, manual};

use crate::kv;

mod bench;
mod demo;
mod load;
mod repro;
mod sim;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(name = "tidegate-lab", version, max_term_width = 100)]
#[command(about = "Simulate, reproduce, measure and demonstrate Tidegate")]
#[command(after_help = AFTER_HELP)]
#[command(arg_required_else_help = true, subcommand_required = true)]
struct CommandLine {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Every flag can be set in the environment: --json is TIDEGATE_JSON, and so on. The experiments on
real systems start the command `tidegate` that lies beside this one.

Exit codes:
   0  ok
   1  failure
   2  usage
   3  an invalid scenario, policy or cluster
   4  an infeasible policy: it promises more than there is
   5  a server does not answer
  99  a promised level was missed

First steps:
  tidegate-lab demo
  tidegate-lab sim scenarios/e2e/12-write-only.toml
  tidegate-lab repro e2e";

/// One line for each command, in the order in which a newcomer needs them. A new one is a file in
/// this directory, a `mod` line above, and a line here and in `run`.
#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Args),
    Sim(sim::Args),
    Repro(repro::Args),
    Bench(bench::Args),
    Load(load::Args),
    Kv(kv::Args),
    #[command(after_help = "\
Examples:
  tidegate-lab completions bash > /etc/bash_completion.d/tidegate-lab
  tidegate-lab completions zsh  > ~/.zfunc/_tidegate-lab
  tidegate-lab completions fish > ~/.config/fish/completions/tidegate-lab.fish")]
    Completions(completions::Args),
    #[command(after_help = "\
Examples:
  tidegate-lab man | man -l -
  tidegate-lab man /usr/local/share/man/man1")]
    Man(manual::Args),
}

impl command_line::CommandLine for CommandLine {
    fn run(self, common: &Common) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Demo(args) => demo::run(args, common),
            Command::Sim(args) => sim::run(args, common),
            Command::Repro(args) => repro::run(args, common),
            Command::Bench(args) => bench::run(args, common),
            Command::Load(args) => load::run(args, common),
            Command::Kv(args) => kv::run(args, common),
            Command::Completions(args) => completions::run(&args, Self::command(), common),
            Command::Man(args) => manual::run(&args, Self::command(), common),
        }
    }

    fn common(&self) -> Common {
        self.common.clone()
    }
}

/// Runs the command that the arguments of this process choose.
pub(crate) fn main() -> ExitCode {
    command_line::main::<CommandLine>()
}
