//! `tidegate run`: a program under the policy.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tidegate_stage::supervise::{self, Exit, Options, RunError, Verbosity};

use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::programs;

/// Run a program under the policy
///
/// The program needs no change. Its input, output and exit code are its own: a program that ends by
/// a signal gives 128 and the signal's number, one that is not found 127, one that cannot be
/// started 126. Without a controller it runs unhindered, and says so, until there is one.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tidegate run [OPTIONS] [--] PROGRAM [ARGUMENTS]...")]
#[command(after_help = "\
Examples:
  tidegate run --tenant oltp -- fio jobs/oltp.fio
  tidegate run --tenant backup --report -- tar cf backup.tar /data
  tidegate run -- bash          (the policy's rules say which requests belong to which tenant)")]
pub(crate) struct Args {
    /// The tenant that the program acts for; without it, the policy's rules decide
    #[arg(long, short, value_name = "NAME", default_value = "", hide_default_value = true)]
    #[arg(env = "TIDEGATE_TENANT", hide_env_values = true)]
    tenant: String,

    /// Do not start the program if there are no rules for it, nor any program below that cannot be
    /// covered
    #[arg(long, env = "TIDEGATE_FAIL_CLOSED", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    fail_closed: bool,

    /// Print no messages, not even warnings of a missing controller or of requests that passed
    #[arg(long, short, env = "TIDEGATE_QUIET", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true, conflicts_with = "report")]
    quiet: bool,

    /// Say at the end what passed the gates and what did not, on standard error
    #[arg(long, env = "TIDEGATE_REPORT", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    report: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let report = match (args.quiet, args.report) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Always,
        (false, false) => Verbosity::Warn,
    };
    let mut command = args.command.into_iter();
    let options = Options {
        tenant: args.tenant,
        socket: common.socket(),
        shim: programs::shim()?,
        program: command.next().unwrap_or_default(),
        arguments: command.collect(),
        fail_closed: args.fail_closed,
        report,
    };
    match supervise::run(&options) {
        Ok(Exit::Code(code)) => Ok(ExitCode::from(code)),
        Ok(Exit::Signal(signal)) => Ok(ExitCode::from(signal_code(signal))),
        Err(error) => Err(not_started(&error)),
    }
}

/// The exit code that shells report for a program that ended by a signal.
fn signal_code(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
}

fn not_started(error: &RunError) -> Failure {
    Failure::quoted(Code::Other(error.code()), &error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_reported_as_in_shells() {
        assert_eq!(signal_code(9), 137);
        assert_eq!(signal_code(64), 192);
    }
}
