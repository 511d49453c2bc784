//! `tidegate run`: runs a program under the policy.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde_json::{Value, json};
use tidegate_fabric::stream::Way;
use tidegate_fabric::tls::Guard;
use tidegate_model::cluster::Address;
use tidegate_model::{Cluster, Rate};
use tidegate_stage::supervise::{
    self, ChannelBytes, CoverageReport, Exit, Options, PassedCalls, RunError, RunNotice, Verbosity,
};

use tidegate_console::address::resolved;
use tidegate_console::certificate::client_identity;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::programs;

use crate::private_controller::PrivateController;
use crate::profiles;

/// Run a program under the policy
///
/// The program needs no change. Its input, output and exit code are its own: a program that ends by
/// a signal gives 128 and the signal's number, one that is not found 127, one that cannot be
/// started 126. Without a controller the program runs without limits until there is one, and a
/// message says so.
#[derive(Debug, clap::Args)]
#[command(override_usage = "tidegate run [OPTIONS] [--] PROGRAM [ARGUMENTS]...")]
#[command(after_help = "\
Examples:
  tidegate run --tenant oltp -- fio jobs/oltp.fio
  tidegate run --tenant backup --report -- tar cf backup.tar /data
  tidegate run --controller storage.example.com:7300 --tls tls --user ann -- make
  tidegate run --profile lsm --budget 200MiB/s -- db_bench --db=/srv/db --benchmarks=fillrandom
  tidegate run -- bash          (the policy's rules say which requests belong to which tenant)")]
pub(crate) struct Args {
    /// The tenant that the program acts for; without it, the policy's rules decide
    #[arg(long, short, value_name = "NAME", default_value = "", hide_default_value = true)]
    #[arg(env = "TIDEGATE_TENANT", hide_env_values = true)]
    tenant: String,

    /// The controller on another machine, over TLS, instead of the one at the socket; not with
    /// --socket
    #[arg(long, value_name = "HOST:PORT", env = "TIDEGATE_CONTROLLER", hide_env_values = true)]
    controller: Option<String>,

    /// The folder of certificates, for --controller
    #[arg(long, value_name = "DIR", env = "TIDEGATE_TLS", hide_env_values = true)]
    tls: Option<PathBuf>,

    /// Show the certificate of this name there, and so be the user cert:NAME of the policy
    #[arg(long, value_name = "NAME", env = "TIDEGATE_USER", hide_env_values = true)]
    #[arg(default_value = Cluster::CLIENT)]
    user: String,

    /// Run the program under a policy of its own, without a controller of others: lsm for RocksDB,
    /// or the policy in a file, like ./my.toml
    #[arg(long, value_name = "NAME|FILE", env = "TIDEGATE_PROFILE", hide_env_values = true)]
    #[arg(conflicts_with = "controller")]
    profile: Option<String>,

    /// All that the program may move per second, like 200MiB/s, instead of the profile's capacity
    #[arg(long, value_name = "RATE", env = "TIDEGATE_BUDGET", hide_env_values = true)]
    #[arg(requires = "profile", value_parser = bandwidth)]
    budget: Option<Rate>,

    /// Do not start the program if there are no rules for it, and start no program under it that
    /// the shim cannot cover
    #[arg(long, env = "TIDEGATE_FAIL_CLOSED", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    fail_closed: bool,

    /// Print no messages, not even warnings of a missing controller or of requests that passed
    #[arg(long, short, env = "TIDEGATE_QUIET", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true, conflicts_with = "report")]
    quiet: bool,

    /// Print at the end how many bytes passed the gates and how many did not, on standard error
    #[arg(long, env = "TIDEGATE_REPORT", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    report: bool,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    #[arg(value_hint = clap::ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

fn bandwidth(text: &str) -> Result<Rate, String> {
    match text.parse() {
        Ok(Rate(0)) => Err("nothing could be moved; write it like 200MiB/s".into()),
        Ok(rate) => Ok(rate),
        Err(error) => Err(error.to_string()),
    }
}

impl Args {
    /// The controller of this run alone, if a profile is named.
    fn private(&self, common: &Common) -> Result<Option<PrivateController>, Failure> {
        let Some(name) = &self.profile else { return Ok(None) };
        if let Some(socket) = common.socket_argument() {
            let socket = socket.display();
            let text = format!("a run with a profile has its own controller, and not {socket}");
            return Err(Failure::new(Code::Usage, text).help("leave out --socket, or --profile"));
        }
        let policy = profiles::find(name, self.budget)?;
        policy.check_feasible()?;
        PrivateController::start(&policy).map(Some)
    }

    /// The way to the controller on another machine, if one is named.
    fn remote(&self, common: &Common) -> Result<Option<Way>, Failure> {
        let Some(text) = &self.controller else { return Ok(None) };
        if let Some(socket) = common.socket_argument() {
            let socket = socket.display();
            let text = format!("a program has one controller, and two are named: {text}, {socket}");
            let help = "leave out --socket, or --controller and TIDEGATE_CONTROLLER";
            return Err(Failure::new(Code::Usage, text).help(help));
        }
        let address = text.parse().ok().filter(|address| matches!(address, Address::Tcp { .. }));
        let Some(address) = address else {
            let failure = Failure::new(Code::Usage, format!("{text:?} is no HOST:PORT"));
            let help = "write it like storage.example.com:7300; a socket of this machine is named \
                        with --socket";
            return Err(failure.help(help));
        };
        let Some(directory) = &self.tls else {
            let failure = Failure::new(Code::Usage, format!("{address} asks for a certificate"));
            return Err(failure.help("name the folder of certificates with --tls"));
        };
        let guard = Guard::new(&client_identity(directory, &self.user)?);
        let tls = Some((guard, Cluster::CONTROLLER.to_owned()));
        Ok(Some(Way { address: resolved(&address, Path::new(""))?, tls }))
    }
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let report = match (args.quiet, args.report) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Always,
        (false, false) => Verbosity::Warn,
    };
    let remote = args.remote(common)?;
    let shim = programs::shim()?;
    let private = args.private(common)?;
    let mut command = args.command.into_iter();
    let options = Options {
        tenant: args.tenant,
        socket: private.as_ref().map_or_else(|| common.socket(), PrivateController::socket),
        remote,
        shim,
        program: command.next().unwrap_or_default(),
        arguments: command.collect(),
        fail_closed: args.fail_closed,
        report,
        lines: if common.json { json_line } else { text_lines },
    };
    match supervise::run(&options) {
        Ok(Exit::Code(code)) => Ok(ExitCode::from(code)),
        Ok(Exit::Signal(signal)) => Ok(ExitCode::from(signal_code(signal))),
        Err(error) => Err(not_started(&error)),
    }
}

fn text_lines(notice: &RunNotice) -> String {
    let line = |message: &String| format!("tidegate: {message}\n");
    match notice {
        RunNotice::Text(message) => line(message),
        RunNotice::Coverage(report) => report.lines().iter().map(line).collect(),
    }
}

fn json_line(notice: &RunNotice) -> String {
    let object = match notice {
        RunNotice::Text(message) => json!({ "warning": message }),
        RunNotice::Coverage(report) => coverage_json(report),
    };
    format!("{object}\n")
}

fn coverage_json(report: &CoverageReport) -> Value {
    let gated = if report.has_rules { report.passed_bytes } else { 0 };
    let reason = |it: &PassedCalls| {
        let PassedCalls { reason, calls, bytes, advice } = *it;
        json!({ "reason": reason, "calls": calls, "bytes": bytes, "advice": advice })
    };
    let channel = |it: &ChannelBytes| {
        let ChannelBytes { channel, operations, bytes } = it;
        json!({ "channel": channel, "operations": operations, "bytes": bytes })
    };
    json!({
        "passed_bytes": gated,
        "without_rules_bytes": report.passed_bytes - gated,
        "not_storage_bytes": report.not_storage_bytes,
        "unseen_bytes": report.unseen_bytes,
        "unseen_programs": report.unseen_programs,
        "channels": report.channels.iter().map(channel).collect::<Vec<_>>(),
        "unmatched_bytes": report.unmatched_bytes,
        "reasons": report.reasons.iter().map(reason).collect::<Vec<_>>(),
    })
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
    fn messages_are_lines_of_text_or_json() {
        let notice = RunNotice::Text("a \"b\"".into());
        assert_eq!(text_lines(&notice), "tidegate: a \"b\"\n");
        assert_eq!(json_line(&notice), "{\"warning\":\"a \\\"b\\\"\"}\n");
    }

    #[test]
    fn numbers_are_fields_for_programs() {
        let mapping = PassedCalls { reason: "mapping", calls: 2, bytes: 0, advice: "none" };
        let report = CoverageReport {
            passed_bytes: 5,
            not_storage_bytes: 6,
            unseen_bytes: 7,
            unseen_programs: 1,
            has_rules: true,
            reasons: vec![mapping],
            channels: vec![ChannelBytes { channel: "flush".into(), operations: 1, bytes: 4 }],
            unmatched_bytes: 1,
            ..CoverageReport::default()
        };
        let expected = json!({
            "passed_bytes": 5, "without_rules_bytes": 0, "not_storage_bytes": 6, "unseen_bytes": 7,
            "unseen_programs": 1, "unmatched_bytes": 1,
            "channels": [{ "channel": "flush", "operations": 1, "bytes": 4 }],
            "reasons": [{ "reason": "mapping", "calls": 2, "bytes": 0, "advice": "none" }],
        });
        let line = json_line(&RunNotice::Coverage(report.clone()));
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
        let refused =
            json_line(&RunNotice::Coverage(CoverageReport { has_rules: false, ..report }));
        let refused: Value = serde_json::from_str(&refused).unwrap();
        assert_eq!(
            (&refused["passed_bytes"], &refused["without_rules_bytes"]),
            (&json!(0), &json!(5))
        );
    }

    #[test]
    fn signals_are_reported_as_in_shells() {
        assert_eq!(signal_code(9), 137);
        assert_eq!(signal_code(64), 192);
    }
}
