//! Commands that `tidegate-lab` has now: whoever types their old names is told the new ones.

use std::ffi::OsString;

use tidegate_console::failure::{Code, Failure};

/// A command of `tidegate-lab`, under the name that it had in `tidegate`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Moved {
    #[command(hide = true)]
    Sim(Rest),
    #[command(hide = true)]
    Demo(Rest),
    #[command(hide = true)]
    Repro(Rest),
    #[command(hide = true)]
    Bench(Rest),
    #[command(hide = true)]
    Load(Rest),
}

/// The arguments of a command that has moved.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

impl Moved {
    /// The usage error that names the command to type instead.
    pub(crate) fn failure(&self) -> Failure {
        let (name, rest) = match self {
            Self::Sim(rest) => ("sim", rest),
            Self::Demo(rest) => ("demo", rest),
            Self::Repro(rest) => ("repro", rest),
            Self::Bench(rest) => ("bench", rest),
            Self::Load(rest) => ("load", rest),
        };
        rest.failure(name, name)
    }
}

impl Rest {
    /// The usage error for `tidegate OLD`, which is `tidegate-lab NEW` now.
    pub(crate) fn failure(&self, old: &str, new: &str) -> Failure {
        let mut command = format!("tidegate-lab {new}");
        for argument in &self.arguments {
            command.extend([" ", &argument.to_string_lossy()]);
        }
        Failure::new(Code::Usage, format!("`tidegate {old}` has moved to `tidegate-lab {new}`"))
            .help(format!("run: {command}"))
    }
}
