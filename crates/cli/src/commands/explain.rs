//! `tidegate explain`: why requests of a tenant were delayed, and what would change it.

use std::process::ExitCode;

use tidegate_model::{WaitRule, Waits};
use tidegate_proto::message::OperatorRequest;
use tidegate_proto::stats::delays::stages::{DelaysAtStage, StageGate, StageWaits};
use tidegate_proto::stats::delays::{Cause, Delays, DelaysAtDataNode};
use tidegate_proto::stats::path::{PathDelays, PathPart};

use tidegate_console::amounts;
use tidegate_console::command_line::Common;
use tidegate_console::failure::Failure;
use tidegate_console::operator::{self, Operator};
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::table::{Cell, Table};

/// Explain why requests of a tenant were delayed in the last minute, and what would change it
///
/// For requests over gateways: the mean time at the gateway, between gateway and node, in the
/// node's queue by rule, and at the store. For each stage (a program under `tidegate run`): how
/// long requests waited before their calls, and at which gate: the tenant's own limit, its share of
/// a budget, or gates that the policy adds to channels. For each node of the cluster: how long
/// requests were there, and what held them: the tenant's own limit, reservations of others, turns
/// of others, or the device and their own earlier requests. With --json, the answer is that of GET
/// /v1/tenants/TENANT/delays.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tenant, by its name in the policy
    #[arg(value_name = "TENANT")]
    tenant: String,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let request = OperatorRequest::Delays { tenant: args.tenant };
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
    let mut paragraphs = Vec::new();
    if !delays.stages.is_empty() {
        paragraphs.push(stages_summary(delays) + "\n" + &stages(&delays.stages, paint));
        let causes = delays.stage_causes.iter();
        let causes =
            causes.map(|it| paragraph(it.gate.name(), it.permille, [&it.why, &it.help], paint));
        paragraphs.extend((!delays.stage_causes.is_empty()).then(|| causes.collect()));
    }
    if let Some(path) = &delays.path {
        paragraphs.push(path_summary(delays, path) + "\n" + &path_table(path, paint));
    }
    // A tenant that is at stages alone has nothing to say of nodes.
    if delays.stages.is_empty() || !delays.nodes.is_empty() || !delays.data_nodes.is_empty() {
        paragraphs.push(summary(delays));
    }
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

/// A tenant's requests over gateways, and how long its clients waited.
fn path_summary(delays: &Delays, path: &PathDelays) -> String {
    format!(
        "{}: {} requests over gateways in the last {}, {} each\n",
        delays.tenant,
        amounts::count(path.requests),
        amounts::age(delays.span_ns),
        path.mean_ns.map_or("-".into(), amounts::span),
    )
}

/// Where a request spent its time, on average: the parts add up to the whole.
fn path_table(path: &PathDelays, paint: Paint) -> String {
    let mut table = Table::new().left("ON THE WAY").right("MEAN").right("PART");
    for PathPart { place, ns } in &path.parts {
        let name = match &**place {
            "gateway" => "at the gateway",
            "link" => "between gateway and node",
            "limit" => "queue: its own limit",
            "reservation" => "queue: reservations of others",
            "turn" => "queue: turns of others",
            "full" => "queue: own requests, full store",
            "store" => "at the store",
            other => other,
        };
        table.row([
            name.into(),
            Cell::from(ns.checked_div(path.requests).map_or("-".into(), amounts::span)),
            amounts::permille(permille(*ns, path.total_ns)).into(),
        ]);
    }
    table.render(paint, usize::MAX)
}

fn permille(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 1000).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

/// A tenant's requests at all stages together, and how long they waited there.
fn stages_summary(delays: &Delays) -> String {
    let mut all = StageWaits::default();
    delays.stages.iter().for_each(|there| all += there.waits);
    let span = delays.stages.iter().map(|there| there.span_ns).max().unwrap_or(0);
    let (tenant, span) = (&delays.tenant, amounts::age(span));
    match all.total_ns().checked_div(all.requests) {
        Some(mean) => format!(
            "{tenant}: {} requests in the last {span}, {} each at gates of stages\n",
            amounts::count(all.requests),
            amounts::span(mean),
        ),
        None => format!("{tenant}: no request passed gates of stages in the last {span}\n"),
    }
}

/// How long a request waited at each stage, on average, and at which gate.
fn stages(stages: &[DelaysAtStage], paint: Paint) -> String {
    let mut table = Table::new()
        .right("STAGE")
        .left("HOST")
        .right("REQUESTS")
        .right("BYTES")
        .right("WAITING")
        .right("MEAN")
        .right("LIMIT")
        .right("SHARE")
        .right("CHANNEL")
        .left("PROGRAM");
    for there in stages {
        let waits = &there.waits;
        let mean = |gates: &[StageGate]| {
            let sum = gates.iter().fold(0u64, |sum, gate| sum.saturating_add(waits.of(*gate)));
            Cell::from(sum.checked_div(waits.requests).map_or("-".into(), amounts::span))
        };
        let program = match there.ended_ns {
            Some(ended) => format!("{} (ended {} ago)", there.command, amounts::age(ended)),
            None => there.command.clone(),
        };
        table.row([
            there.stage.to_string().into(),
            there.host.as_str().into(),
            amounts::count(waits.requests).into(),
            amounts::bytes(waits.bytes).into(),
            there.waiting_requests.to_string().into(),
            mean(&StageGate::ALL),
            mean(&[StageGate::BytesLimit, StageGate::OperationsLimit]),
            mean(&[StageGate::BytesShare, StageGate::OperationsShare]),
            mean(&[StageGate::Channel]),
            program.into(),
        ]);
    }
    table.render(paint, usize::MAX)
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
        row.extend(WaitRule::ALL.map(|rule| Cell::from(mean(waits, rule))));
        table.row(row);
    }
    table.render(paint, usize::MAX)
}

/// How long `rule` held a request on average.
fn mean(waits: &Waits, rule: WaitRule) -> String {
    waits.of(rule).checked_div(waits.operations).map_or("-".into(), amounts::span)
}

fn cause(cause: &Cause, paint: Paint) -> String {
    let Cause { rule, permille, why, help, .. } = cause;
    paragraph(rule.name(), *permille, [why, help], paint)
}

/// One paragraph: the part of the waiting, the evidence and the remedy.
fn paragraph(head: &str, permille: u64, [why, help]: [&str; 2], paint: Paint) -> String {
    let head = paint.tone(Tone::Bold, &head.replace('_', " "));
    format!("{head}, {}: {why}\n  help: {help}\n", amounts::permille(permille))
}

#[cfg(test)]
mod tests {
    use tidegate_model::Span;
    use tidegate_proto::stats::delays::DelaysAtNode;
    use tidegate_proto::stats::delays::stages::StageCause;

    use super::*;

    /// The answer about a tenant that had these waits at node `a` in ten seconds.
    fn of(waits: Waits) -> String {
        let mean_ns = waits.total_ns().checked_div(waits.operations);
        let (node, operations_per_second) = ("a".into(), waits.operations / 10);
        let demand_ns = 8 * Span::SECOND.0;
        let there = DelaysAtNode { node, waits, mean_ns, operations_per_second, demand_ns };
        let causes = vec![Cause {
            rule: WaitRule::Turn,
            permille: 750,
            node: "a".into(),
            why: "it takes turns".into(),
            help: "a larger weight".into(),
        }];
        let (tenant, span_ns, nodes) = ("web".into(), 10 * Span::SECOND.0, vec![there]);
        let delays = Delays { tenant, span_ns, waits, mean_ns, nodes, causes, ..Delays::default() };
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
    fn a_program_under_run_is_shown_which_gate_held_it() {
        let waits = StageWaits {
            requests: 1_000,
            bytes: 4 << 20,
            operations_limit_ns: 9_000_000_000,
            channel_ns: 1_000_000_000,
            ..StageWaits::default()
        };
        let there = DelaysAtStage {
            stage: 1,
            host: "here".into(),
            command: "fio".into(),
            span_ns: 10 * Span::SECOND.0,
            waits,
            mean_ns: Some(10_000_000),
            waiting_requests: 3,
            ended_ns: None,
        };
        let cause = StageCause {
            gate: StageGate::OperationsLimit,
            permille: 900,
            why: "its limit is used up".into(),
            help: "raise the limit".into(),
        };
        let (stages, stage_causes) = (vec![there], vec![cause]);
        let delays = Delays { tenant: "web".into(), stages, stage_causes, ..Delays::default() };
        insta::assert_snapshot!(render(&delays, Paint::none()), @r"
        web: 1k requests in the last 10 s, 10 ms each at gates of stages

        STAGE  HOST  REQUESTS  BYTES  WAITING   MEAN  LIMIT  SHARE  CHANNEL  PROGRAM
            1  here        1k  4 MiB        3  10 ms   9 ms      0     1 ms  fio

        operations limit, 90 %: its limit is used up
          help: raise the limit
        ");
    }

    #[test]
    fn the_way_over_a_gateway_is_one_sum() {
        let part = |place: &str, ns| PathPart { place: place.into(), ns };
        let path = PathDelays {
            requests: 2_000,
            total_ns: 4_000_000_000,
            mean_ns: Some(2_000_000),
            parts: vec![
                part("gateway", 200_000_000),
                part("link", 800_000_000),
                part("turn", 2_000_000_000),
                part("store", 1_000_000_000),
            ],
        };
        let (tenant, span_ns) = ("web".into(), 10 * Span::SECOND.0);
        let delays = Delays { tenant, span_ns, path: Some(path), ..Delays::default() };
        let shown = render(&delays, Paint::none());
        let rows: Vec<Vec<&str>> = shown
            .lines()
            .map(|line| line.split("  ").filter(|it| !it.is_empty()).collect())
            .collect();
        assert_eq!(rows[0], ["web: 2k requests over gateways in the last 10 s, 2 ms each"]);
        let expected = [
            ["at the gateway", "100 us", "5.0 %"],
            ["between gateway and node", "400 us", "20 %"],
            ["queue: turns of others", "1 ms", "50 %"],
            ["at the store", "500 us", "25 %"],
        ];
        for (row, expected) in rows[3..].iter().zip(expected) {
            let row: Vec<&str> = row.iter().map(|cell| cell.trim()).collect();
            assert_eq!(row, expected, "{shown}");
        }
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
