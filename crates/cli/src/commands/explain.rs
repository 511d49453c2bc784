//! `tidegate explain`: why requests of a tenant were delayed, and what would change it.

use std::process::ExitCode;

use tidegate_model::{Rule, Waits};
use tidegate_proto::message::Request;
use tidegate_proto::stats::delays::{Cause, Delays, DelaysAtDataNode};

use tidegate_console::amounts;
use tidegate_console::command_line::Common;
use tidegate_console::failure::Failure;
use tidegate_console::operator::{self, Operator};
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::table::{Cell, Table};

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
    let answer = Operator::connect(&common.socket())?.call(&request)?;
    if common.json {
        output::print(&format!("{answer}\n"))?;
    } else {
        let delays: Delays = operator::read(&answer)?;
        output::print(&render(&delays, Paint::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn render(delays: &Delays, paint: Paint) -> String {
    let mut paragraphs = vec![summary(delays)];
    if !delays.nodes.is_empty() {
        paragraphs.push(nodes(delays, paint));
    }
    if !delays.data_nodes.is_empty() {
        paragraphs.push(data_nodes(delays, paint));
        let reasons = delays.data_nodes.iter();
        paragraphs.push(reasons.map(|there| reason(there, paint)).collect());
    }
    if !delays.causes.is_empty() {
        paragraphs.push(delays.causes.iter().map(|it| cause(it, paint)).collect());
    }
    paragraphs.join("\n")
}

fn summary(delays: &Delays) -> String {
    let Delays { tenant, span_ns, waits, .. } = delays;
    let span = amounts::age(*span_ns);
    match delays.mean_ns {
        // At data nodes no request is seen by a node.
        _ if waits.total_ns() == 0 && waits.operations == 0 && !delays.data_nodes.is_empty() => {
            at_data_nodes(delays)
        }
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
            "{tenant}: nothing was served in the last {span}; on average {} waited\n",
            amounts::plural(waits.total_ns().div_ceil(*span_ns), "operation"),
        ),
    }
}

/// The service of a tenant at data nodes alone.
fn at_data_nodes(delays: &Delays) -> String {
    let span = delays.data_nodes.iter().map(|there| there.span_ns).max().unwrap_or(0);
    let demand = delays.data_nodes.iter().map(|there| there.demand_ns).max().unwrap_or(0);
    let rate = delays
        .data_nodes
        .iter()
        .fold(0u64, |sum, there| sum.saturating_add(there.operations_per_second));
    let tenant = &delays.tenant;
    match (span, demand) {
        (0, _) => format!("{tenant}: data nodes were not read often enough yet; ask again soon\n"),
        (_, 0) => format!("{tenant}: no requests in the last {}\n", amounts::age(span)),
        _ => format!(
            "{tenant}: {} at data nodes while it asked, which was {} of the last {}\n",
            amounts::iops(rate),
            amounts::age(demand),
            amounts::age(span),
        ),
    }
}

/// The service of a tenant at each data node, as a table.
fn data_nodes(delays: &Delays, paint: Paint) -> String {
    let mut table = Table::new()
        .left("DATA NODE")
        .right("SERVED")
        .right("ASKED FOR")
        .right("WANTED MORE")
        .right("RESERVED")
        .right("LIMIT")
        .right("MISSED")
        .right("CLIENTS");
    for there in &delays.data_nodes {
        table.row([
            there.node.as_str().into(),
            amounts::iops(there.operations_per_second).into(),
            amounts::age(there.demand_ns).into(),
            amounts::age(there.starved_ns).into(),
            amounts::iops(there.reserved_operations_per_second).into(),
            there.limit_operations_per_second.map_or("-".into(), amounts::iops).into(),
            amounts::count(there.missed_operations).into(),
            there.clients.to_string().into(),
        ]);
    }
    table.render(paint, usize::MAX)
}

/// Why it got no more there.
fn reason(there: &DelaysAtDataNode, paint: Paint) -> String {
    let DelaysAtDataNode { node, why, help, .. } = there;
    format!("{}: {why}\n  help: {help}\n", paint.tone(Tone::Bold, node))
}

/// How long a request was at each node, on average, and for what.
fn nodes(delays: &Delays, paint: Paint) -> String {
    let mut table = Table::new()
        .left("NODE")
        .right("SERVED")
        .right("ASKED FOR")
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
            amounts::age(there.demand_ns).into(),
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

#[cfg(test)]
mod tests {
    use tidegate_model::Span;
    use tidegate_proto::stats::delays::DelaysAtNode;

    use super::*;

    /// The answer about a tenant that had these waits at node `a` in ten seconds.
    fn of(waits: Waits) -> String {
        let mean_ns = waits.total_ns().checked_div(waits.operations);
        let (node, operations_per_second) = ("a".into(), waits.operations / 10);
        let demand_ns = 8 * Span::SECOND.0;
        let there = DelaysAtNode { node, waits, mean_ns, operations_per_second, demand_ns };
        let causes = vec![Cause {
            rule: Rule::Turn,
            permille: 750,
            node: "a".into(),
            why: "it takes turns".into(),
            help: "a larger weight".into(),
        }];
        let (tenant, span_ns, nodes) = ("web".into(), 10 * Span::SECOND.0, vec![there]);
        let data_nodes = Vec::new();
        let delays = Delays { tenant, span_ns, waits, mean_ns, nodes, causes, data_nodes };
        render(&delays, Paint::none())
    }

    #[test]
    fn a_mean_is_shown_where_something_was_served() {
        let waits = Waits { turn_ns: 3_000_000_000, device_ns: 1_000_000_000, ..Waits::ZERO };
        insta::assert_snapshot!(of(Waits { operations: 2_000, ..waits }), @r"
        web: 2k operations in the last 10 s, 2 ms each at nodes

        NODE    SERVED  ASKED FOR  OPERATIONS  MEAN  LIMIT  RESERVATION    TURN  DEVICE
        a     200 iops        8 s          2k  2 ms      0            0  1.5 ms  500 us

        turn, 75 %: it takes turns
          help: a larger weight
        ");
        insta::assert_snapshot!(of(waits), @r"
        web: nothing was served in the last 10 s; on average 1 operation waited

        NODE  SERVED  ASKED FOR  OPERATIONS  MEAN  LIMIT  RESERVATION  TURN  DEVICE
        a     0 iops        8 s           0     -      -            -     -       -

        turn, 75 %: it takes turns
          help: a larger weight
        ");
    }

    #[test]
    fn a_tenant_of_data_nodes_is_answered() {
        let there = DelaysAtDataNode {
            node: "m".into(),
            clients: 2,
            reserved_operations_per_second: 2_000,
            operations_per_second: 3_000,
            span_ns: 60 * Span::SECOND.0,
            demand_ns: 20 * Span::SECOND.0,
            starved_ns: 10 * Span::SECOND.0,
            why: "it wanted more".into(),
            help: "reserve more".into(),
            ..DelaysAtDataNode::default()
        };
        let delays = Delays { tenant: "web".into(), data_nodes: vec![there], ..Delays::default() };
        insta::assert_snapshot!(render(&delays, Paint::none()), @r"
        web: 3k iops at data nodes while it asked, which was 20 s of the last 1 min

        DATA NODE   SERVED  ASKED FOR  WANTED MORE  RESERVED  LIMIT  MISSED  CLIENTS
        m          3k iops       20 s         10 s   2k iops      -       0        2

        m: it wanted more
          help: reserve more
        ");
    }

    #[test]
    fn an_idle_tenant_has_no_mean() {
        let nothing = Delays { tenant: "web".into(), ..Delays::default() };
        let early = "web: nodes were not read often enough yet; ask again in some seconds\n";
        assert_eq!(render(&nothing, Paint::none()), early);
        let idle = Delays { span_ns: 10 * Span::SECOND.0, ..nothing };
        assert_eq!(render(&idle, Paint::none()), "web: no requests in the last 10 s\n");
    }
}
