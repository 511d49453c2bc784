//! `tidegate scheduler`: shows the scheduling discipline of storage nodes, and changes it.

use std::process::ExitCode;

use clap::builder::FalseyValueParser;
use serde::Serialize;
use tidegate_model::Discipline;
use tidegate_proto::cluster::status::NodeStatus;
use tidegate_proto::controller::status::Status;
use tidegate_proto::message::OperatorRequest;

use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::operator::Operator;
use tidegate_console::output::{self, Paint};
use tidegate_console::table::Table;

/// Show by which rule each node of a cluster chooses the next request, or choose another rule
///
/// Requests that wait stay where they are, and only their order changes. The choice holds until
/// --default takes it back, also when a node or the controller is started again.
#[derive(Debug, clap::Args)]
#[command(override_usage = "\
tidegate scheduler
       tidegate scheduler <NODE|--all> <SCHEDULER|--default>")]
#[command(after_help = "\
Schedulers: fifo, round-robin, token, sfq, dsfq-total, dsfq-hybrid, unified

Examples:
  tidegate scheduler
  tidegate scheduler a dsfq-hybrid
  tidegate scheduler --all unified
  tidegate scheduler a --default")]
pub(crate) struct Args {
    /// A node, and its scheduler
    #[arg(value_names = ["NODE", "SCHEDULER"], num_args = 0..=2)]
    words: Vec<String>,

    /// Choose for all nodes
    #[arg(long, env = "TIDEGATE_ALL", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    all: bool,

    /// Take back the choice: the scheduler is that of the cluster's file again
    #[arg(long, env = "TIDEGATE_DEFAULT", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    default: bool,
}

/// A node, for programs.
#[derive(Debug, Serialize)]
struct SchedulerRow<'a> {
    node: &'a str,
    scheduler: &'a str,
    is_chosen: bool,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let choice = choice(&args)?;
    let mut operator = Operator::connect(&common.socket())?;
    let nodes: Vec<NodeStatus> = match choice {
        Some(request) => operator.call_as(&request)?,
        None => match operator.call_as::<Status>(&OperatorRequest::Status)?.cluster {
            Some(cluster) => cluster.nodes,
            None => {
                let failure = Failure::new(Code::Failure, "this controller has no cluster");
                return Err(failure.help("start it with `tidegate up CLUSTER`"));
            }
        },
    };
    if common.json {
        output::print_json(&nodes.iter().map(line).collect::<Vec<_>>())?;
    } else {
        output::print(&render(&nodes))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The choice of a scheduler in the arguments, if there is one.
fn choice(args: &Args) -> Result<Option<OperatorRequest>, Failure> {
    let words: Vec<&str> = args.words.iter().map(String::as_str).collect();
    let (node, name) = match (&words[..], args.all, args.default) {
        ([], false, false) => return Ok(None),
        ([node, name], false, false) => (Some(node), Some(name)),
        ([node], false, true) => (Some(node), None),
        ([name], true, false) => (None, Some(name)),
        ([], true, true) => (None, None),
        _ => {
            let what = "a choice names a node or --all, and a scheduler or --default";
            let help = "write tidegate scheduler NODE unified, for example";
            return Err(Failure::new(Code::Usage, what).help(help));
        }
    };
    let known = |name: &&str| {
        name.parse::<Discipline>()
            .map_err(|error| Failure::quoted(Code::Usage, &format!("{name:?} is {error}")))
    };
    let scheduler = name.map(known).transpose()?;
    Ok(Some(OperatorRequest::Choose { node: node.map(|node| (*node).to_owned()), scheduler }))
}

fn line(node: &NodeStatus) -> SchedulerRow<'_> {
    let scheduler = node.assigned_scheduler.as_deref().unwrap_or_default();
    SchedulerRow { node: &node.name, scheduler, is_chosen: node.is_scheduler_chosen }
}

fn render(nodes: &[NodeStatus]) -> String {
    let mut table = Table::new().left("NODE").left("SCHEDULER").left("CHOSEN BY");
    for SchedulerRow { node, scheduler, is_chosen } in nodes.iter().map(line) {
        let by = if is_chosen { "this command" } else { "the file" };
        table.row([node.into(), scheduler.into(), by.into()]);
    }
    table.render(Paint::stdout(), usize::MAX)
}
