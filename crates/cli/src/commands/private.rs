//! The hidden command that [`crate::private_controller`] runs as a process.

use std::process::ExitCode;

use tidegate_console::failure::Failure;

use crate::private_controller;

/// Run the controller of one `tidegate run --profile`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process that runs the program, and which started this one
    supervisor: u32,

    /// Where the policy on standard input came from
    origin: String,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    private_controller::serve(args.supervisor, args.origin)?;
    Ok(ExitCode::SUCCESS)
}
