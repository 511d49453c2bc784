//! `tidegate top`: the health of tenants, stages and the cluster, live.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use tidegate_model::Span;

use crate::top::{self, Form, Options};
use tidegate_console::command_line::Common;
use tidegate_console::failure::Failure;

/// Looks that follow closer than this show nothing new: the controller's own cycle is not shorter.
const INTERVAL_MIN: Span = Span(50 * Span::MILLISECOND.0);

/// Watch tenants, stages and the cluster live: rate against promise, and who waits
///
/// On a terminal it fills the screen, and the keys are shown at the bottom. Elsewhere, or with
/// --plain, it prints one line for each tenant and interval; with --json one object for each
/// interval, that of GET /v1/status with the time in at_ms.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate top
  tidegate top --interval 10s --plain | tee top.log
  tidegate top --json --count 5 | jq .totals.period_bytes_per_second")]
pub(crate) struct Args {
    /// The time between two updates, at least 50ms
    #[arg(long, short, value_name = "SPAN", default_value = "1s", value_parser = interval)]
    #[arg(env = "TIDEGATE_INTERVAL", hide_env_values = true)]
    interval: Span,

    /// End after this many updates
    #[arg(long, short = 'n', value_name = "NUMBER", env = "TIDEGATE_COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..), hide_env_values = true)]
    count: Option<u64>,

    /// Print lines, also on a terminal
    #[arg(long, env = "TIDEGATE_PLAIN", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    plain: bool,
}

fn interval(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    if span < INTERVAL_MIN {
        return Err(format!("{span} is too short; use at least {INTERVAL_MIN}"));
    }
    Ok(span)
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let form = match (common.json, args.plain) {
        (true, _) => Form::Json,
        (false, true) => Form::Lines,
        (false, false) if io::stdout().is_terminal() => Form::Screen,
        (false, false) => Form::Lines,
    };
    let (interval, count) = (args.interval, args.count);
    top::run(&Options { socket: common.socket(), interval, count, form })
}
