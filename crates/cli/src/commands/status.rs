//! `tidegate status`: how everything is, on one screen.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use tidegate_model::Span;
use tidegate_model::gate::Unit;
use tidegate_proto::cluster::status::ClusterStatus;
use tidegate_proto::controller::status::{StageStatus, Status, TenantStatus, Totals};
use tidegate_proto::message::Request;

use super::Common;
use crate::amounts;
use crate::failure::Failure;
use crate::fare::{self, Met, Warning};
use crate::operator::{self, Operator};
use crate::output::{self, Paint, Tone};
use crate::table::{Cell, Table};

/// Show how the controller, the tenants and the stages fare
///
/// Measured is what flowed in the last period. A promise is met where a tenant gets its reservation
/// or all that it asks for. With --json, the answer is that of GET /v1/status.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: Args, common: &Common) -> Result<ExitCode, Failure> {
    let socket = common.socket();
    let answer = Operator::connect(&socket)?.ask(&Request::Status)?;
    if common.json {
        output::print(&format!("{answer}\n"))?;
    } else {
        let status: Status = operator::read(&answer)?;
        // A file is as wide as it has to be.
        let width = if io::stdout().is_terminal() { output::columns() } else { usize::MAX };
        let screen = Screen { paint: Paint::stdout(), width };
        output::print(&screen.told(&status, &socket.display().to_string()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What the status is written on.
#[derive(Clone, Copy, Debug)]
struct Screen {
    paint: Paint,
    width: usize,
}

impl Screen {
    fn told(self, status: &Status, socket: &str) -> String {
        let warnings = fare::warnings(status);
        let mut parts = vec![self.health(status, socket, warnings.len())];
        if !status.tenants.is_empty() {
            parts.push(self.tenants(status));
        }
        if !status.stages.is_empty() {
            parts.push(self.stages(&status.stages));
        }
        if let Some(cluster) = &status.cluster {
            parts.push(self.at_nodes(cluster));
            parts.push(self.nodes(cluster));
        }
        if !warnings.is_empty() {
            parts.push(warnings.iter().map(|warning| self.warning(warning)).collect());
        }
        parts.join("\n")
    }

    fn health(self, status: &Status, socket: &str, warnings: usize) -> String {
        let (tone, health) = match warnings {
            0 => (Tone::Good, "healthy".to_owned()),
            1 => (Tone::Warn, "1 warning".to_owned()),
            _ => (Tone::Warn, format!("{warnings} warnings")),
        };
        let Totals { stages, processes, cycle_ns, .. } = status.totals;
        let policy = match status.revision {
            0 => "no policy".into(),
            revision => format!("policy revision {revision}"),
        };
        // Without stages there is nothing to collect, and so no cycle.
        let cycle = match stages {
            0 => String::new(),
            _ => {
                let (length, pause) = (cycle_ns, status.redistribute_ns);
                format!("; a cycle of {} every {}", amounts::span(length), amounts::span(pause))
            }
        };
        format!(
            "tidegate {} at {socket}, up {}: {}\n{policy}; {}, {}{cycle}\n",
            status.release,
            amounts::age(status.uptime_ns),
            self.paint.tone(tone, &health),
            amounts::plural(stages, "stage"),
            amounts::plural(processes, "process"),
        )
    }

    fn tenants(self, status: &Status) -> String {
        let mut table = Table::new()
            .left("TENANT")
            .left("CLASS")
            .right("WEIGHT")
            .right("RESERVED")
            .right("LIMIT")
            .right("ALLOCATED")
            .right("MEASURED")
            .right("WAITING")
            .right("P99 WAIT")
            .left("MET");
        for tenant in &status.tenants {
            table.row(tenant_row(tenant));
        }
        if let Some(row) = budget_row(status) {
            table.row(row);
        }
        table.render(self.paint, usize::MAX)
    }

    fn stages(self, stages: &[StageStatus]) -> String {
        let mut table = Table::new()
            .right("STAGE")
            .right("PID")
            .left("USER")
            .left("TENANT")
            .right("PROCESSES")
            .right("ALLOCATED")
            .right("MEASURED")
            .right("COVERED")
            .left("COMMAND");
        for stage in stages {
            table.row(stage_row(stage));
        }
        table.render(self.paint, self.width)
    }

    /// What tenants get at all nodes together.
    fn at_nodes(self, cluster: &ClusterStatus) -> String {
        let mut table = Table::new().left("AT NODES").right("RESERVED").right("LIMIT");
        table = table.right("MEASURED").left("MET");
        let per_second = |count| per_second(count, cluster.period_ns);
        for tenant in &cluster.tenants {
            let met = match (tenant.reserved_operations, tenant.is_met) {
                (0, _) => Met::Nothing,
                (_, true) if tenant.last_served_operations == 0 => Met::Idle,
                (_, true) => Met::Yes,
                (_, false) => Met::No,
            };
            let reserved = Some(tenant.reserved_operations).filter(|count| *count > 0);
            table.row([
                tenant.name.as_str().into(),
                reserved.map_or("-".into(), per_second).into(),
                tenant.limit_operations.map_or("-".into(), per_second).into(),
                per_second(tenant.last_served_operations).into(),
                Cell::toned(met.tone(), met.word()),
            ]);
        }
        table.render(self.paint, usize::MAX)
    }

    fn nodes(self, cluster: &ClusterStatus) -> String {
        let mut table = Table::new().left("NODE").left("STATE").right("CAPACITY");
        table = table.right("DECLARED").right("PID").left("HOST");
        let per_second = |count| per_second(count, cluster.period_ns);
        for node in &cluster.nodes {
            let (tone, state) = match (node.is_connected, node.is_silent) {
                (true, false) => (Tone::Good, "up"),
                (true, true) => (Tone::Warn, "silent"),
                (false, _) => (Tone::Bad, "away"),
            };
            let declared = node.declared_operations_per_second;
            table.row([
                node.name.as_str().into(),
                Cell::toned(tone, state),
                node.reported_ns
                    .map_or("-".into(), |_| per_second(node.capacity_operations))
                    .into(),
                declared.map_or("-".into(), amounts::iops).into(),
                node.pid.to_string().into(),
                node.host.as_str().into(),
            ]);
        }
        let mut text = table.render(self.paint, usize::MAX);
        if let Some(shortfall) = &cluster.shortfall {
            text += &format!("{}\n", self.paint.tone(Tone::Warn, &shortfall.line));
        }
        text
    }

    fn warning(self, warning: &Warning) -> String {
        let Warning { text, help } = warning;
        let head = self.paint.tone(Tone::Warn, "warning");
        format!("{head}: {text}\n  help: {help}\n")
    }
}

/// A count of operations in a period.
fn per_second(count: u64, period_ns: u64) -> String {
    let count = u128::from(count) * u128::from(Span::SECOND.0) / u128::from(period_ns.max(1));
    amounts::iops(u64::try_from(count).unwrap_or(u64::MAX))
}

fn tenant_row(tenant: &TenantStatus) -> [Cell; 10] {
    let met = fare::met(tenant);
    [
        tenant.name.as_str().into(),
        tenant.class.as_str().into(),
        tenant.weight.to_string().into(),
        fare::text(tenant, |levels| levels.reservation, "-").into(),
        fare::text(tenant, |levels| levels.limit, "-").into(),
        fare::text(tenant, |levels| levels.allocated, "no bound").into(),
        fare::text(tenant, |levels| Some(levels.measured), "-").into(),
        amounts::permille(tenant.waiting_permille).into(),
        tenant.wait_p99_ns.map_or("-".into(), amounts::span).into(),
        Cell::toned(met.tone(), met.word()),
    ]
}

/// The sums, beside the budget if there is one.
fn budget_row(status: &Status) -> Option<[Cell; 10]> {
    let totals = &status.totals;
    let join = |pairs: [(Unit, Option<u64>); 2]| {
        let shown = pairs.iter().filter_map(|(unit, value)| Some(fare::level(*unit, (*value)?)));
        shown.collect::<Vec<_>>().join(", ")
    };
    let (bytes, operations) = (status.budget_bytes_per_second, status.budget_operations_per_second);
    bytes.or(operations)?;
    let allocated = [
        (Unit::Bytes, bytes.and(totals.allocated_bytes_per_second)),
        (Unit::Operations, operations.and(totals.allocated_operations_per_second)),
    ];
    let measured = [
        (Unit::Bytes, bytes.map(|_| totals.period_bytes_per_second)),
        (Unit::Operations, operations.map(|_| totals.period_operations_per_second)),
    ];
    let budget = join([(Unit::Bytes, bytes), (Unit::Operations, operations)]);
    let faint = |text: String| Cell::toned(Tone::Faint, text);
    Some([
        faint("budget".into()),
        Cell::default(),
        Cell::default(),
        Cell::default(),
        faint(budget),
        faint(join(allocated)),
        faint(join(measured)),
        Cell::default(),
        Cell::default(),
        Cell::default(),
    ])
}

fn stage_row(stage: &StageStatus) -> [Cell; 9] {
    let covered = fare::covered(stage);
    let tone = if covered.is_much_unseen() { Tone::Warn } else { Tone::Plain };
    let or = |text: &str, other: &str| if text.is_empty() { other } else { text }.to_owned();
    [
        stage.id.to_string().into(),
        stage.pid.to_string().into(),
        or(&stage.user, &stage.uid.to_string()).into(),
        or(&stage.tenant, "(rules)").into(),
        stage.processes.to_string().into(),
        stage.allocated_bytes_per_second.map_or("no bound".into(), amounts::bandwidth).into(),
        amounts::bandwidth(stage.interval_bytes_per_second).into(),
        Cell::toned(tone, covered.permille().map_or("-".into(), amounts::permille)),
        stage.command.as_str().into(),
    ]
}
