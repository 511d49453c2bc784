//! `tidegate up`: the daemons, in the foreground.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde_json::json;
use tidegate_controller::{Config, ServeError, serve_with};
use tidegate_fabric::place::default_socket;
use tidegate_proto::controller::status::Status;
use tidegate_proto::message::Request;

use super::Common;
use crate::amounts;
use crate::failure::{Code, Failure};
use crate::operator::Operator;
use crate::output;
use crate::policy_file::PolicyFile;

/// Run the controller in the foreground until it is told to end
///
/// Policies are kept in the state directory and are in force again after a restart. SIGTERM and
/// SIGINT end it; programs that run under it go on with their last rates.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate up &
  tidegate up --policy policies/shared-disk.toml --http 127.0.0.1:7272")]
pub(crate) struct Args {
    /// Apply this policy first, or - for the one on standard input
    #[arg(long, value_name = "FILE", env = "TIDEGATE_POLICY", hide_env_values = true)]
    policy: Option<PathBuf>,

    /// The directory of policies, token and lock; by default /var/lib/tidegate for root, else
    /// tidegate in $XDG_STATE_HOME or ~/.local/state
    #[arg(long, value_name = "DIR", env = "TIDEGATE_STATE", hide_env_values = true)]
    state: Option<PathBuf>,

    /// Where to serve metrics and the HTTP interface, on loopback
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7171")]
    #[arg(value_parser = address, env = "TIDEGATE_HTTP", hide_env_values = true)]
    http: SocketAddr,

    /// Serve no HTTP
    #[arg(long, env = "TIDEGATE_NO_HTTP", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true, conflicts_with = "http")]
    no_http: bool,

    /// Which part of a cluster to run
    #[arg(long, default_value = "controller", env = "TIDEGATE_ROLE", hide_env_values = true)]
    role: Role,

    /// What to log on standard error: error, warn, info, debug, or per module
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    #[arg(env = "TIDEGATE_LOG", hide_env_values = true)]
    log: String,
}

/// A part of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// The control plane: it holds the policy and divides the budget.
    Controller,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address and a port, like 127.0.0.1:7171".into())
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let Role::Controller = args.role;
    // A policy that is wrong is a reason not to start, so it is read before anything exists.
    let policy = args.policy.as_deref().map(PolicyFile::read).transpose()?;
    policy.as_ref().map_or(Ok(()), PolicyFile::check_feasible)?;
    let mut config = Config { socket: common.socket(), log: args.log, ..Config::default() };
    config.http = (!args.no_http).then_some(args.http);
    if let Some(state) = args.state {
        config.state = state;
    }
    let (socket, json) = (config.socket.clone(), common.json);
    // The daemon is asked as any operator would ask it.
    serve_with(config, move |http| {
        let status = first_questions(&socket, policy)?;
        output::print(&ready(&status, &socket, http, json))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Applies the policy, if there is one, and asks how things are then.
fn first_questions(socket: &Path, policy: Option<PolicyFile>) -> Result<Status, Failure> {
    let mut operator = Operator::connect(socket)?;
    if let Some(file) = policy {
        let (policy, source) = (file.text, file.origin);
        operator.ask(&Request::Apply { policy, source, dry_run: false, expect: 0 })?;
    }
    operator.ask_for(&Request::Status)
}

/// What is said once everything is there: one line about it, and what to do next.
fn ready(status: &Status, socket: &Path, http: Option<SocketAddr>, json: bool) -> String {
    let Status { release, revision, tenants, .. } = status;
    if json {
        let told = json!({
            "ready": true,
            "release": release,
            "pid": std::process::id(),
            "socket": socket,
            "http": http.map(|address| format!("http://{address}")),
            "revision": revision,
            "tenants": tenants.len(),
        });
        return format!("{told}\n");
    }
    let http = http.map(|address| format!(", http://{address}")).unwrap_or_default();
    let policy = match revision {
        0 => "no policy yet".into(),
        _ => {
            let tenants = amounts::plural(tenants.len() as u64, "tenant");
            format!("policy revision {revision} with {tenants}")
        }
    };
    let next = match tenants.first() {
        None => "tidegate apply FILE".into(),
        Some(tenant) => format!("tidegate run --tenant {} -- PROGRAM, tidegate top", tenant.name),
    };
    let elsewhere = match socket == default_socket() {
        true => String::new(),
        false => format!(" (with TIDEGATE_SOCKET={})", socket.display()),
    };
    format!(
        "tidegate {release} is ready at {}{http}; {policy}\nnext: {next}{elsewhere}\n",
        socket.display()
    )
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Log { filter, error } => {
                Self::new(Code::Usage, format!("{filter:?} is no log filter"))
                    .cause(error)
                    .help("write it like info, or warn,tidegate_controller=debug")
            }
            error => Self::quoted(Code::Failure, &error.to_string()),
        }
    }
}
