//! `tidegate explain`: why requests of a tenant were delayed, and what would change it.

use std::process::ExitCode;

use tidegate_model::{Rule, Waits};
use tidegate_proto::message::Request;
use tidegate_proto::meters::delays::{Cause, Delays};

use super::Common;
use crate::amounts;
use crate::failure::Failure;
use crate::operator::{self, Operator};
use crate::output::{self, Paint, Tone};
use crate::table::{Cell, Table};

/// Explain why requests of a tenant were delayed in the last minute, and what would change it
///
/// For each node of the cluster, how long requests were there, and what held them: the tenant's own
/// limit, what is reserved for others, the turn of others, or the device and their own earlier
/// requests. With --json, the answer is that of GET /v1/tenants/TENANT/delays.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tenant, by its name in the policy
    #[arg(value_name = "TENANT")]
    tenant: String,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let request = Request::Delays { tenant: args.tenant };
    let answer = Operator::connect(&common.socket())?.ask(&request)?;
    if common.json {
        output::print(&format!("{answer}\n"))?;
    } else {
        let delays: Delays = operator::read(&answer)?;
        output::print(&told(&delays, Paint::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn told(delays: &Delays, paint: Paint) -> String {
    let mut parts = vec![summary(delays)];
    if !delays.nodes.is_empty() {
        parts.push(nodes(delays, paint));
    }
    if !delays.causes.is_empty() {
        parts.push(delays.causes.iter().map(|it| cause(it, paint)).collect());
    }
    parts.join("\n")
}

fn summary(delays: &Delays) -> String {
    let Delays { tenant, span_ns, waits, .. } = delays;
    let span = amounts::age(*span_ns);
    match delays.mean_ns {
        _ if *span_ns == 0 => {
            format!("{tenant}: nodes were not read often enough yet; ask again in some seconds\n")
        }
        Some(mean) => format!(
            "{tenant}: {} operations in the last {span}, {} each at nodes\n",
            amounts::count(waits.operations),
            amounts::span(mean),
        ),
        None if waits.total_ns() == 0 => format!("{tenant}: no requests in the last {span}\n"),
        None => format!(
            "{tenant}: none of its requests went to a store in the last {span}; on average {} \
             waited\n",
            amounts::count(waits.total_ns().div_ceil(*span_ns)),
        ),
    }
}

/// How long a request was at each node, on average, and for what.
fn nodes(delays: &Delays, paint: Paint) -> String {
    let mut table = Table::new()
        .left("NODE")
        .right("SERVED")
        .right("OPERATIONS")
        .right("MEAN")
        .right("LIMIT")
        .right("RESERVATION")
        .right("TURN")
        .right("DEVICE");
    for there in &delays.nodes {
        let waits = &there.waits;
        let mut row: Vec<Cell> = vec![
            there.node.as_str().into(),
            amounts::iops(there.operations_per_second).into(),
            amounts::count(waits.operations).into(),
            there.mean_ns.map_or("-".into(), amounts::span).into(),
        ];
        row.extend(Rule::ALL.map(|rule| Cell::from(mean(waits, rule))));
        table.row(row);
    }
    table.render(paint, usize::MAX)
}

/// How long `rule` held a request on average.
fn mean(waits: &Waits, rule: Rule) -> String {
    waits.of(rule).checked_div(waits.operations).map_or("-".into(), amounts::span)
}

fn cause(cause: &Cause, paint: Paint) -> String {
    let Cause { rule, permille, why, help, .. } = cause;
    let head = paint.tone(Tone::Bold, rule.name());
    format!("{head}, {}: {why}\n  help: {help}\n", amounts::permille(*permille))
}
