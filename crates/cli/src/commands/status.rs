//! `tidegate status`: prints the controller's status as tables, with warnings.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use tidegate_model::gate::Unit;
use tidegate_proto::cluster::status::{ClusterStatus, DataNodeStatus, GatewayStatus, NodeStatus};
use tidegate_proto::controller::status::{
    EndedStageStatus, MeasuredStatus, StageStatus, Status, Totals,
};
use tidegate_proto::message::OperatorRequest;

use crate::health::{self, DataPlanes, PeerHealth, TenantHealth, Warning, resources};
use tidegate_console::amounts;
use tidegate_console::command_line::Common;
use tidegate_console::failure::Failure;
use tidegate_console::operator::{self, Operator};
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::table::{Align, Cell, Table};

/// The most ended stages on the screen; the JSON has them all.
const ENDED_MAX: usize = 8;

/// Show the state of the controller, the tenants, the stages and the cluster
///
/// Measured is the service of the last period, through stages and at nodes. A promise is met if the
/// tenant gets its reservation, or less because none of its requests waits. If the policy names
/// resources, a table has their promises to tenants and groups, with the gate that held requests
/// longest in the last minute. With --json, the answer is that of GET /v1/status and the warnings.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args, common: &Common) -> Result<ExitCode, Failure> {
    let socket = common.socket();
    let answer = Operator::connect(&socket)?.call(&OperatorRequest::Status)?;
    let status: Status = operator::read(&answer)?;
    if common.json {
        let warnings = health::warnings(&status);
        output::print_json(&StatusAndWarnings { status: &status, warnings })?;
    } else {
        // A file is as wide as it has to be.
        let width = if io::stdout().is_terminal() { output::columns() } else { usize::MAX };
        let screen = Screen { paint: Paint::stdout(), width };
        output::print(&screen.render(&status, &socket.display().to_string()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The output of `--json`.
#[derive(Debug, serde::Serialize)]
struct StatusAndWarnings<'a> {
    #[serde(flatten)]
    status: &'a Status,
    /// Faults that an operator should mend, the worst first.
    warnings: Vec<Warning>,
}

/// The terminal or file that the status is written on.
#[derive(Clone, Copy, Debug)]
struct Screen {
    paint: Paint,
    width: usize,
}

impl Screen {
    fn render(self, status: &Status, socket: &str) -> String {
        let warnings = health::warnings(status);
        let mut paragraphs = vec![self.health(status, socket, warnings.len())];
        if !status.tenants.is_empty() {
            paragraphs.push(self.tenants(status));
        }
        if !status.resources.is_empty() {
            paragraphs.push(self.resources(status));
        }
        if let Some(measured) = &status.measured {
            paragraphs.push(capacity(measured));
        }
        if !status.stages.is_empty() {
            paragraphs.push(self.stages(&status.stages));
        }
        if !status.ended_stages.is_empty() {
            paragraphs.push(self.ended_stages(&status.ended_stages));
        }
        if let Some(cluster) = &status.cluster {
            if !cluster.nodes.is_empty() || cluster.data_nodes.is_empty() {
                paragraphs.push(self.nodes(cluster));
            }
            if !cluster.data_nodes.is_empty() {
                paragraphs.push(self.data_nodes(&cluster.data_nodes));
            }
            if !cluster.gateways.is_empty() {
                paragraphs.push(self.gateways(&cluster.gateways));
            }
        }
        if !warnings.is_empty() {
            paragraphs.push(warnings.iter().map(|warning| self.warning(warning)).collect());
        }
        paragraphs.join("\n")
    }

    fn health(self, status: &Status, socket: &str, warnings: usize) -> String {
        let (tone, health) = match warnings {
            0 => (Tone::Good, "healthy".to_owned()),
            1 => (Tone::Warn, "1 warning".to_owned()),
            _ => (Tone::Warn, format!("{warnings} warnings")),
        };
        let mut facts = vec![match status.revision {
            0 => "no policy".into(),
            revision => format!("policy revision {revision}"),
        }];
        let pause = amounts::span(status.redistribute_ns);
        let Totals { stages, processes, cycle_ns, .. } = status.totals;
        if health::data_planes(status).stages {
            let (stages, processes) =
                (amounts::plural(stages, "stage"), amounts::plural(processes, "process"));
            facts.push(format!("{stages}, {processes}"));
        }
        // Without stages there is nothing to collect, and so no cycle.
        if stages > 0 {
            facts.push(format!("a cycle of {} every {pause}", amounts::span(cycle_ns)));
        }
        if let Some(cluster) = &status.cluster {
            let clients: u64 = cluster.gateways.iter().map(|gateway| gateway.clients).sum();
            let data_node_clients: u64 =
                cluster.data_nodes.iter().map(|node| u64::from(node.clients)).sum();
            let clients = amounts::plural(clients + data_node_clients, "client");
            facts.push(format!("{} with {clients}", health::components(cluster)));
            if !cluster.nodes.is_empty() || cluster.data_nodes.is_empty() {
                let round = amounts::span(cluster.round_ns);
                facts.push(format!("a distribution of {round} every {pause}"));
            }
        }
        format!(
            "tidegate {} at {socket}, up {}: {}\n{}\n",
            status.release,
            amounts::age(status.uptime_ns),
            self.paint.tone(tone, &health),
            facts.join("; "),
        )
    }

    fn tenants(self, status: &Status) -> String {
        let columns = columns(health::data_planes(status));
        let heads = columns.iter();
        let mut table =
            heads.fold(Table::new(), |table, (head, align, _)| table.column(head, *align, 0));
        for tenant in health::tenants(status) {
            table.row(columns.iter().map(|(.., cell)| cell(tenant)).collect::<Vec<_>>());
        }
        if let Some(budget) = Budget::of(status) {
            let cells =
                columns.iter().map(|(head, ..)| Cell::toned(Tone::Faint, budget.cell(head)));
            table.row(cells.collect::<Vec<_>>());
        }
        table.render(self.paint, usize::MAX)
    }

    /// The promises of each named resource, with a line for its capacity.
    fn resources(self, status: &Status) -> String {
        let mut table = Table::new()
            .each_left(["RESOURCE", "PROMISED TO"])
            .each_right(["RESERVED", "LIMIT", "MEASURED"])
            .each_left(["MET", "HELD BY"]);
        let mut promises = resources::promises(status).peekable();
        for resource in &status.resources {
            let faint = |text: String| Cell::toned(Tone::Faint, text);
            let capacity = resources::capacity(resource);
            let name = resource.name.as_str();
            let gates = faint(format!("all, at {}", resource.guarded_by));
            let blank = || Cell::from("");
            table.row([name.into(), gates, blank(), faint(capacity), blank(), blank(), blank()]);
            while let Some(promise) = promises.next_if(|it| std::ptr::eq(it.resource, resource)) {
                let met = promise.met();
                table.row([
                    name.into(),
                    promise.name().into(),
                    promise.reserved().into(),
                    promise.limit().into(),
                    promise.measured().into(),
                    Cell::toned(met.tone(), met.words()),
                    promise.held().into(),
                ]);
            }
        }
        table.render(self.paint, usize::MAX)
    }

    fn stages(self, stages: &[StageStatus]) -> String {
        let mut table = Table::new()
            .each_right(["STAGE", "PID"])
            .each_left(["USER", "TENANT"])
            .each_right(["PROCESSES", "ALLOCATED", "MEASURED", "COVERED"])
            .left("COMMAND");
        for stage in stages {
            table.row(stage_row(stage));
        }
        table.render(self.paint, self.width)
    }

    /// Stages that ended in the last minute.
    fn ended_stages(self, stages: &[EndedStageStatus]) -> String {
        let mut table = Table::new()
            .right("ENDED STAGE")
            .each_left(["TENANT", "AGO"])
            .each_right(["REQUESTS", "BYTES", "MEAN WAIT", "NO RULE"])
            .left("COMMAND");
        for stage in stages.iter().take(ENDED_MAX) {
            let waits = &stage.waits;
            let mean = waits.total_ns().checked_div(waits.requests);
            let tenant = if stage.tenant.is_empty() { "(rules)" } else { &stage.tenant };
            table.row([
                stage.id.to_string().into(),
                tenant.into(),
                amounts::age(stage.ended_ns).into(),
                amounts::count(waits.requests).into(),
                amounts::bytes(waits.bytes).into(),
                mean.map_or("-".into(), amounts::span).into(),
                amounts::bytes(stage.unmatched_bytes).into(),
                stage.command.as_str().into(),
            ]);
        }
        table.render(self.paint, self.width)
    }

    fn nodes(self, cluster: &ClusterStatus) -> String {
        let mut table = Table::new()
            .each_left(["NODE", "STATE", "SCHEDULER"])
            .each_right(["CAPACITY", "DECLARED", "SERVED", "QUEUED", "AT STORE", "PID"])
            .left("HOST");
        for node in &cluster.nodes {
            let state = PeerHealth::of_node(node);
            let unknown = if node.reported_ns.is_some() { "not measured yet" } else { "-" };
            let capacity = health::capacity(cluster, node).map_or(unknown.into(), amounts::iops);
            let declared = node.declared_operations_per_second.map_or("-".into(), amounts::iops);
            table.row([
                node.name.as_str().into(),
                Cell::toned(state.tone(), state.word()),
                scheduler(node).into(),
                capacity.into(),
                declared.into(),
                amounts::iops(node.served_operations_per_second).into(),
                amounts::count(node.waiting_operations).into(),
                health::at_store(node).into(),
                pid(node.pid).into(),
                node.host.as_str().into(),
            ]);
        }
        table.render(self.paint, usize::MAX)
    }

    fn data_nodes(self, nodes: &[DataNodeStatus]) -> String {
        let mut table = Table::new().each_left(["DATA NODE", "STATE"]).each_right([
            "CAPACITY", "PROMISED", "MEASURED", "OF POOL", "CLIENTS", "TENANTS", "IN USE",
        ]);
        for node in nodes {
            let state = PeerHealth::of_data_node(node);
            table.row([
                node.name.as_str().into(),
                Cell::toned(state.tone(), state.word()),
                amounts::iops(node.capacity_operations_per_second).into(),
                amounts::iops(node.promised_operations_per_second).into(),
                amounts::iops(node.operations_per_second).into(),
                amounts::iops(node.pool_operations_per_second).into(),
                node.clients.to_string().into(),
                node.tenants.len().to_string().into(),
                health::memory(node).into(),
            ]);
        }
        table.render(self.paint, usize::MAX)
    }

    fn gateways(self, gateways: &[GatewayStatus]) -> String {
        let mut table = Table::new()
            .each_left(["GATEWAY", "STATE"])
            .each_right(["CLIENTS", "REQUESTS", "THROUGHPUT", "FAILED", "PID"])
            .each_left(["HOST", "ADDRESS"]);
        for gateway in gateways {
            let state = PeerHealth::of_gateway(gateway);
            table.row([
                gateway.name.as_str().into(),
                Cell::toned(state.tone(), state.word()),
                gateway.clients.to_string().into(),
                format!("{}/s", amounts::count(gateway.requests_per_second)).into(),
                amounts::bandwidth(gateway.bytes_per_second).into(),
                amounts::count(gateway.errors).into(),
                pid(gateway.pid).into(),
                gateway.host.as_str().into(),
                health::addresses(gateway).into(),
            ]);
        }
        table.render(self.paint, self.width)
    }

    fn warning(self, warning: &Warning) -> String {
        let Warning { text, help } = warning;
        let head = self.paint.tone(Tone::Warn, "warning");
        format!("{head}: {text}\n  help: {help}\n")
    }
}

/// In what order a node serves, or is to serve.
fn scheduler(node: &NodeStatus) -> &str {
    node.scheduler.as_deref().or(node.assigned_scheduler.as_deref()).unwrap_or("-")
}

/// The process of who was ever here.
fn pid(pid: u32) -> String {
    if pid == 0 { "-".into() } else { pid.to_string() }
}

/// A column of tenants: its head, its side, and what stands in it.
type Column = (&'static str, Align, fn(TenantHealth<'_>) -> Cell);

/// The columns that are not empty there.
fn columns(data_planes: DataPlanes) -> Vec<Column> {
    use Align::{Left, Right};
    let DataPlanes { stages, nodes } = data_planes;
    let columns: [(bool, Column); 12] = [
        (true, ("TENANT", Left, |it| it.status.name.as_str().into())),
        (true, ("CLASS", Left, |it| it.status.class.as_str().into())),
        (true, ("WEIGHT", Right, |it| it.status.weight.to_string().into())),
        (true, ("RESERVED", Right, |it| health::text(it, |levels| levels.reservation, "-").into())),
        (true, ("LIMIT", Right, |it| health::text(it, |levels| levels.limit, "-").into())),
        (
            stages,
            ("ALLOCATED", Right, |it| match it.is_only_at_nodes() {
                true => "-".into(),
                false => health::text(it, |levels| levels.allocated, "no bound").into(),
            }),
        ),
        (
            true,
            ("MEASURED", Right, |it| health::text(it, |levels| Some(levels.measured), "-").into()),
        ),
        (stages && nodes, ("AT NODES", Right, |it| amounts::iops(it.at_nodes()).into())),
        (nodes, ("QUEUED", Right, |it| amounts::count(it.queued()).into())),
        (stages, ("WAITING", Right, |it| amounts::permille(it.status.waiting_permille).into())),
        (
            stages,
            ("P99 WAIT", Right, |it| {
                it.status.wait_p99_ns.map_or("-".into(), amounts::span).into()
            }),
        ),
        (
            true,
            ("MET", Left, |it| {
                let met = health::met(it);
                Cell::toned(met.tone(), met.words())
            }),
        ),
    ];
    columns.into_iter().filter(|(is_wanted, _)| *is_wanted).map(|(_, column)| column).collect()
}

/// The search for a measured capacity, as a sentence.
fn capacity(measured: &MeasuredStatus) -> String {
    let MeasuredStatus { resource, latency_bound_ns, latency_p99_ns, .. } = measured;
    let yields = match measured.operations_per_second {
        0 => "is not known yet".to_owned(),
        operations => format!(
            "was {} and {} when it last held requests back",
            amounts::iops(operations),
            amounts::bandwidth(measured.bytes_per_second),
        ),
    };
    let now = match measured.evidence.as_str() {
        "easy" => "it can do more",
        "full" => "it is fully used",
        "slow" => "it is too slow for the bound, and gets less",
        "stalled" => "it answers nothing",
        _ => "not all of it is wanted",
    };
    let p99 = latency_p99_ns.map_or_else(String::new, |p99| {
        let [p99, bound] = [p99, *latency_bound_ns].map(amounts::span);
        format!("; 99 of 100 requests take {p99} there, of {bound} allowed")
    });
    format!("The capacity of {resource} is measured: it {yields}. Now {now}{p99}.\n")
}

/// The budget of all stages together, and the parts that are allocated and used.
struct Budget {
    budget: String,
    allocated: String,
    measured: String,
}

impl Budget {
    /// The budget, if there is one.
    fn of(status: &Status) -> Option<Self> {
        let totals = &status.totals;
        let join = |pairs: [(Unit, Option<u64>); 2]| {
            let shown =
                pairs.iter().filter_map(|(unit, level)| Some(amounts::rate(*unit, (*level)?)));
            shown.collect::<Vec<_>>().join(", ")
        };
        let (bytes, operations) =
            (status.budget_bytes_per_second, status.budget_operations_per_second);
        bytes.or(operations)?;
        Some(Self {
            budget: join([(Unit::Bytes, bytes), (Unit::Operations, operations)]),
            allocated: join([
                (Unit::Bytes, bytes.and(totals.allocated_bytes_per_second)),
                (Unit::Operations, operations.and(totals.allocated_operations_per_second)),
            ]),
            measured: join([
                (Unit::Bytes, bytes.map(|_| totals.period_bytes_per_second)),
                (Unit::Operations, operations.map(|_| totals.period_operations_per_second)),
            ]),
        })
    }

    /// The text in the column with this head.
    fn cell(&self, head: &str) -> &str {
        match head {
            "TENANT" => "budget",
            "LIMIT" => &self.budget,
            "ALLOCATED" => &self.allocated,
            "MEASURED" => &self.measured,
            _ => "",
        }
    }
}

fn stage_row(stage: &StageStatus) -> [Cell; 9] {
    let covered = health::covered(stage);
    let tone = if covered.is_much_unseen() { Tone::Warn } else { Tone::Plain };
    let or = |text: &str, other: &str| if text.is_empty() { other } else { text }.to_owned();
    let (allocated, measured) = stage_rates(stage);
    [
        stage.id.to_string().into(),
        stage.pid.to_string().into(),
        or(&stage.user, &stage.uid.to_string()).into(),
        or(&stage.tenant, "(rules)").into(),
        stage.processes.to_string().into(),
        allocated.into(),
        measured.into(),
        Cell::toned(tone, covered.permille().map_or("-".into(), amounts::permille)),
        stage.command.as_str().into(),
    ]
}

/// The rates allowed to a stage and the rates that it used, in the units of its bounds. Without a
/// bound, the bytes that it used.
fn stage_rates(stage: &StageStatus) -> (String, String) {
    let bounds = [
        (Unit::Bytes, stage.allocated_bytes_per_second, stage.interval_bytes_per_second),
        (
            Unit::Operations,
            stage.allocated_operations_per_second,
            stage.interval_operations_per_second,
        ),
    ];
    let bounds = bounds.into_iter().filter_map(|(unit, bound, used)| Some((unit, bound?, used)));
    let texts =
        bounds.map(|(unit, bound, used)| (amounts::rate(unit, bound), amounts::rate(unit, used)));
    let (allocated, measured): (Vec<_>, Vec<_>) = texts.unzip();
    if allocated.is_empty() {
        return ("no bound".into(), amounts::bandwidth(stage.interval_bytes_per_second));
    }
    (allocated.join(", "), measured.join(", "))
}

#[cfg(test)]
mod tests {
    use tidegate_proto::controller::status::{HeldStatus, PromiseStatus, ResourceStatus};
    use tidegate_proto::stats::delays::stages::StageWaits;

    use super::*;

    /// The cells of each line of the status, without the blanks around them.
    fn lines(status: &Status) -> Vec<String> {
        let screen = Screen { paint: Paint::none(), width: usize::MAX };
        let shown = screen.render(status, "socket");
        let cells = |line: &str| {
            let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
            cells.collect::<Vec<_>>().join(" | ")
        };
        shown.lines().map(cells).collect()
    }

    #[test]
    fn a_resource_is_shown_with_its_promises() {
        let held = HeldStatus { by: "operations_share".into(), permille: 700, wait_ns: 7 };
        let ml = PromiseStatus {
            name: "ml".into(),
            group: Some("team".into()),
            limit_operations_per_second: Some(30),
            operations_per_second: 25,
            bytes_per_second: Some(1 << 20),
            is_met: true,
            held: Some(held),
            ..PromiseStatus::default()
        };
        let team = PromiseStatus {
            name: "team".into(),
            reservation_operations_per_second: Some(100),
            reservation_bytes_per_second: Some(10 << 20),
            operations_per_second: 25,
            bytes_per_second: Some(1 << 20),
            ..PromiseStatus::default()
        };
        let files = ResourceStatus {
            name: "files".into(),
            guarded_by: "stages".into(),
            capacity_operations_per_second: Some(1000),
            tenants: vec![ml],
            groups: vec![team],
            ..ResourceStatus::default()
        };
        let shown = lines(&Status { resources: vec![files], ..Status::default() });
        for line in [
            "RESOURCE | PROMISED TO | RESERVED | LIMIT | MEASURED | MET | HELD BY",
            "files | all, at stages | 1k iops",
            "files | ml (team) | - | 30 iops | 25 iops | - | operations share 70 %",
            "files | group team | 10 MiB/s, 100 iops | - | 1 MiB/s, 25 iops | NO | -",
        ] {
            assert!(shown.iter().any(|it| it == line), "{line}: {shown:#?}");
        }
    }

    #[test]
    fn a_capacity_that_no_store_has_shown_is_no_number() {
        let node = |name: &str, measured: Option<u64>, reported_ns: Option<u64>| NodeStatus {
            name: name.into(),
            is_connected: reported_ns.is_some(),
            capacity_operations: measured.unwrap_or(0),
            measured_operations_per_second: measured,
            served_operations_per_second: 10,
            reported_ns,
            ..NodeStatus::default()
        };
        let nodes =
            vec![node("a", None, Some(1)), node("b", Some(5), Some(1)), node("c", None, None)];
        let cluster = ClusterStatus { nodes, period_ns: 1_000_000_000, ..ClusterStatus::default() };
        let shown = lines(&Status { cluster: Some(cluster), ..Status::default() });
        for start in
            ["a | up | - | not measured yet | - | 10", "b | up | - | 10", "c | away | - | - |"]
        {
            assert!(shown.iter().any(|it| it.starts_with(start)), "{start}: {shown:#?}");
        }
    }

    #[test]
    fn a_stage_is_shown_in_the_units_of_its_bounds() {
        let rates = |bytes, operations| {
            let stage = StageStatus {
                allocated_bytes_per_second: bytes,
                allocated_operations_per_second: operations,
                interval_bytes_per_second: 1 << 20,
                interval_operations_per_second: 256,
                ..StageStatus::default()
            };
            let (allocated, measured) = stage_rates(&stage);
            [allocated, measured]
        };
        assert_eq!(rates(None, None), ["no bound", "1 MiB/s"]);
        assert_eq!(rates(Some(2 << 20), None), ["2 MiB/s", "1 MiB/s"]);
        assert_eq!(rates(None, Some(397)), ["397 iops", "256 iops"]);
        assert_eq!(rates(Some(0), Some(397)), ["0 B/s, 397 iops", "1 MiB/s, 256 iops"]);
    }

    #[test]
    fn an_ended_stage_is_shown() {
        let waits = StageWaits {
            requests: 10,
            bytes: 4 << 20,
            channel_ns: 20_000_000,
            ..StageWaits::default()
        };
        let ended = EndedStageStatus {
            id: 7,
            tenant: "web".into(),
            command: "fio".into(),
            ended_ns: 20_000_000_000,
            unmatched_bytes: 3 << 20,
            waits,
            ..EndedStageStatus::default()
        };
        let shown = lines(&Status { ended_stages: vec![ended], ..Status::default() });
        let line = "7 | web | 20 s | 10 | 4 MiB | 2 ms | 3 MiB | fio";
        assert!(shown.iter().any(|it| it == line), "{shown:#?}");
    }
}
