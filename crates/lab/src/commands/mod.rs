//! The commands, one file each: `Args` holds the arguments of a command, `run` runs it.

use std::process::ExitCode;

use clap::Subcommand;
use tidegate_console::command_line::{self, Common, Program, tree};
use tidegate_console::failure::Failure;
use tidegate_console::{completions, manual};

use crate::{kv, lsm};

mod bench;
mod data_node;
mod demo;
mod load;
mod repro;
mod sim;

const AFTER_HELP: &str = "\
Most flags can be set in the environment: --json is TIDEGATE_JSON, and so on. The experiments on
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
enum LabCommand {
    Demo(demo::Args),
    Sim(sim::Args),
    Repro(repro::Args),
    Bench(bench::Args),
    Load(load::Args),
    Kv(kv::Args),
    #[command(hide = true)]
    DataNode(data_node::Args),
    #[command(hide = true)]
    LsmLoad(lsm::Args),
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

impl Program for LabCommand {
    const NAME: &str = "tidegate-lab";
    const ABOUT: &str = "Simulate, reproduce, measure and demonstrate Tidegate";
    const AFTER_HELP: &str = AFTER_HELP;

    fn run(self, common: &Common) -> Result<ExitCode, Failure> {
        match self {
            Self::Demo(args) => demo::run(args, common),
            Self::Sim(args) => sim::run(args, common),
            Self::Repro(args) => repro::run(args, common),
            Self::Bench(args) => bench::run(args, common),
            Self::Load(args) => load::run(args, common),
            Self::Kv(args) => kv::run(args, common),
            Self::DataNode(args) => data_node::run(&args, common),
            Self::LsmLoad(args) => lsm::run(&args, common),
            Self::Completions(args) => completions::run(&args, tree::<Self>(), common),
            Self::Man(args) => manual::run(&args, tree::<Self>(), common),
        }
    }
}

/// Runs the command that the arguments of this process choose.
pub(crate) fn main() -> ExitCode {
    command_line::main::<LabCommand>()
}
