//! `tidegate check`: checks a policy, and whether its promises can be kept.

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use tidegate_algo::allocation::admission::{self, AdmissionRefusal, Shortage, Unkept};
use tidegate_fabric::default_paths::default_state;
use tidegate_fabric::headroom::headroom;
use tidegate_model::gate::{Throughput, Unit};
use tidegate_model::policy::{GateKind, Infeasible, Whole};
use tidegate_model::{Bytes, Iops, Policy, Span};

use crate::calibrate::CalibrationSettings;
use crate::inputs::{Inputs, Named, duration};
use crate::memory_demand::MemoryDemand;
use crate::volumes::{self, VolumeFaults};
use tidegate_console::amounts;
use tidegate_console::cluster_file::ClusterFile;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure, FailureReport};
use tidegate_console::output::{self, Paint, Tone};
use tidegate_console::policy_file::PolicyFile;
use tidegate_console::text_file::Reader;

/// Check a policy without a controller: its form, its meaning, and whether it can be kept
///
/// With a cluster, also check the cluster, and whether its nodes can keep the policy's promises;
/// promises that data nodes could not keep are a warning, and so are components that may use more
/// memory than this machine has left. The parts of volumes that were created on
/// this machine are checked, too, also while their nodes run: a part that is missing, foreign or
/// mismatched is a fault. Exits with 0 for a policy that can be applied, 1 if a volume has a fault,
/// 3 for an invalid policy and 4 for one that promises more than the capacity.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate check policies/shared-disk.toml
  tidegate check policies/cluster.toml --cluster examples/cluster.toml
  tidegate check --calibrate /srv --latency 5ms")]
pub(crate) struct Args {
    /// The policy, or - for standard input; by default the one that the cluster names
    #[arg(value_name = "FILE", required_unless_present_any = ["cluster", "calibrate"])]
    file: Option<PathBuf>,

    /// The cluster that has to keep the policy
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CLUSTER", hide_env_values = true)]
    cluster: Option<PathBuf>,

    /// The directory that `tidegate up` has as --state, for volumes in relative paths
    #[arg(long, value_name = "DIR", env = "TIDEGATE_STATE", hide_env_values = true)]
    state: Option<PathBuf>,

    /// Instead, measure this folder's file system, for the capacity of a resource: small and large
    /// reads and writes with direct I/O, on a file of --size that is removed afterwards. The
    /// measurement slows down other programs on the device, and they lower its result
    #[arg(long, value_name = "DIR", conflicts_with_all = ["file", "cluster", "state"])]
    #[arg(env = "TIDEGATE_CALIBRATE", hide_env_values = true)]
    calibrate: Option<PathBuf>,

    /// The size of the file for --calibrate: more than the device's own cache, at least 64 MiB
    #[arg(long, value_name = "SIZE", requires = "calibrate", default_value = "1GiB")]
    #[arg(value_parser = |text: &str| text.parse::<Bytes>(), env = "TIDEGATE_SIZE")]
    #[arg(hide_env_values = true)]
    size: Bytes,

    /// How long --calibrate runs each of its patterns
    #[arg(long, value_name = "TIME", requires = "calibrate", default_value = "3s")]
    #[arg(value_parser = duration, env = "TIDEGATE_PER_PATTERN", hide_env_values = true)]
    per_pattern: Span,

    /// The time that 99 of 100 requests may take at most, such as 5ms: --calibrate measures with
    /// as many requests at a time as keep it
    #[arg(long, value_name = "TIME", requires = "calibrate", value_parser = duration)]
    #[arg(env = "TIDEGATE_LATENCY", hide_env_values = true)]
    latency: Option<Span>,
}

/// The answer for programs.
#[derive(Debug, Serialize)]
struct CheckAnswer<'a> {
    verdict: &'static str,
    file: &'a str,
    tenants: u64,
    channels: u64,
    rules: u64,
    sums: Vec<Sum>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<ClusterSummary<'a>>,
    warnings: Vec<String>,
    /// Faults of the parts of volumes on this machine.
    faults: Vec<String>,
}

/// The answer for programs where the policy is not valid.
#[derive(Debug, Serialize)]
struct Refused<'a> {
    verdict: &'static str,
    #[serde(flatten)]
    report: FailureReport<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shortage: Option<Cut<'a>>,
    /// The first sum of reservations of a resource or a group that does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    excess: Option<Excess<'a>>,
}

/// Reservations that exceed the capacity of a resource or the promise of a group.
#[derive(Debug, Serialize)]
struct Excess<'a> {
    resource: Option<&'a str>,
    unit: &'static str,
    available_per_second: u64,
    reserved_per_second: u64,
    promised: Vec<Promised<'a>>,
}

/// The reservation of a tenant or a group.
#[derive(Debug, Serialize)]
struct Promised<'a> {
    name: &'a str,
    reserved_per_second: u64,
}

/// The sum of reservations and the budget in one unit, per second: of a resource, or in a policy
/// without resources of everything.
#[derive(Debug, Serialize)]
struct Sum {
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    unit: &'static str,
    reserved_per_second: u64,
    budget_per_second: Option<u64>,
}

/// The cluster that is to keep the policy.
#[derive(Debug, Serialize)]
struct ClusterSummary<'a> {
    file: &'a str,
    nodes: u64,
    gateways: u64,
    data_nodes: u64,
    volumes: u64,
    pools: u64,
    /// None if a node does not state its capacity.
    capacity_operations_per_second: Option<u64>,
    /// None if a node does not state its bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes_per_second: Option<u64>,
    /// Sums over data nodes: of their capacities, and of the rates of one client at each.
    data_node_operations_per_second: u64,
    data_node_client_operations_per_second: u64,
    unkept: Vec<Missing>,
}

/// A promise that data nodes could not keep.
#[derive(Debug, Serialize)]
struct Missing {
    /// The tenant; none for all tenants together.
    tenant: Option<String>,
    promised_operations_per_second: u64,
    kept_operations_per_second: u64,
    /// The number of clients at each data node that it takes to reach the promise.
    #[serde(skip_serializing_if = "Option::is_none")]
    clients: Option<u64>,
}

impl ClusterSummary<'_> {
    /// Returns the components of the cluster as a line. Kinds without a component are left out if
    /// the cluster has other kinds.
    fn render(&self) -> String {
        let can = |rate: u64| format!(" that can do {}", amounts::iops(rate));
        let file = format!(" of {}", self.file);
        let nodes = amounts::plural(self.nodes, "node");
        let in_bytes = |rate: u64| format!(" and {}", amounts::bandwidth(rate));
        let in_bytes = self.capacity_bytes_per_second.map_or_else(String::new, in_bytes);
        let nodes_can = |rate: u64| can(rate) + &in_bytes;
        let nodes_can = self.capacity_operations_per_second.map_or_else(String::new, nodes_can);
        let data_nodes = amounts::plural(self.data_nodes, "data node");
        let one = amounts::iops(self.data_node_client_operations_per_second);
        let data_nodes_can =
            format!("{}, {one} for one client at each", can(self.data_node_operations_per_second));
        let all = match (self.nodes, self.data_nodes) {
            (0, 1..) => data_nodes + &file + &data_nodes_can,
            (_, 0) => nodes + &file + &nodes_can,
            _ => nodes + &file + &nodes_can + ", and " + &data_nodes + &data_nodes_can,
        };
        format!(
            "{all}, with {}, {} and {}\n",
            amounts::plural(self.gateways, "gateway"),
            amounts::plural(self.volumes, "volume"),
            amounts::plural(self.pools, "pool"),
        )
    }
}

/// The tenants with too large promises, and the nodes that cannot keep them.
#[derive(Debug, Serialize)]
struct Cut<'a> {
    nodes: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_operations_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes_per_second: Option<u64>,
    tenants: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    promised_operations_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    promised_bytes_per_second: Option<u64>,
}

/// Why a policy is refused, and the proofs if it cannot be kept.
struct Refusals {
    failure: Failure,
    proofs: Vec<AdmissionRefusal>,
}

impl From<Failure> for Refusals {
    fn from(failure: Failure) -> Self {
        Self { failure, proofs: Vec::new() }
    }
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    if let Some(folder) = &args.calibrate {
        let settings = CalibrationSettings {
            length: args.per_pattern,
            latency: args.latency,
            file_max: args.size.0,
        };
        return super::calibrate::run(folder, settings, common);
    }
    let (file, cluster) = match examine(&args) {
        Ok(examined) => examined,
        // A program that requests a verdict gets one on standard output, whatever it is.
        Err(Refusals { failure, proofs }) if common.json => {
            let (verdict, report) = (failure.word(), failure.to_json());
            let (shortage, excess) = (proofs.iter().find_map(cut), proofs.iter().find_map(excess));
            output::print_json(&Refused { verdict, report, shortage, excess })?;
            return Err(failure.already_reported());
        }
        Err(Refusals { failure, .. }) => return Err(failure),
    };
    let policy = &file.policy;
    let base = args.state.unwrap_or_else(default_state);
    let VolumeFaults { faults, mut unseen } = match &cluster {
        Some(cluster) => volumes::inspect(&cluster.cluster, &base),
        None => VolumeFaults::default(),
    };
    let mut warnings = warnings(&file, cluster.as_ref());
    warnings.append(&mut unseen);
    let verdict = CheckAnswer {
        verdict: if faults.is_empty() { "valid" } else { "failure" },
        file: &file.name,
        tenants: policy.tenants.len() as u64,
        channels: policy.channels.len() as u64,
        rules: policy.matches.len() as u64,
        sums: sums(policy),
        cluster: cluster.as_ref().map(|cluster| cluster_summary(policy, cluster)),
        warnings,
        faults,
    };
    if common.json {
        output::print_json(&verdict)?;
    } else {
        output::print(&render(&verdict, Paint::stdout()))?;
    }
    Ok(if verdict.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads everything, and compares what is promised with what there is.
fn examine(args: &Args) -> Result<(PolicyFile, Option<ClusterFile>), Refusals> {
    let (cluster, policy) = (args.cluster.as_deref(), args.file.as_deref());
    let read = Inputs::read(cluster, policy, Named::Otherwise, Reader::User)?;
    let Some(file) = read.policy.or(read.named) else {
        let failure = Failure::new(Code::Usage, "the cluster names no policy");
        return Err(failure.help("name one: tidegate check POLICY --cluster FILE").into());
    };
    let cluster = read.cluster.as_ref();
    let admitted = admission::admit(&file.policy, cluster.map(|file| &file.cluster));
    let proofs = admitted.err().unwrap_or_default();
    let failures: Vec<Failure> =
        proofs.iter().map(|refusal| file.refused(cluster, refusal)).collect();
    match Failure::all(failures) {
        Some(failure) => Err(Refusals { failure, proofs }),
        None => Ok((file, read.cluster)),
    }
}

fn cut(refusal: &AdmissionRefusal) -> Option<Cut<'_>> {
    let AdmissionRefusal::Shortage(Shortage { nodes, capacity, tenants, promised }) = refusal
    else {
        return None;
    };
    let amount = |level: &Throughput, unit| (level.unit() == unit).then_some(level.per_second());
    Some(Cut {
        nodes,
        capacity_operations_per_second: amount(capacity, Unit::Operations),
        capacity_bytes_per_second: amount(capacity, Unit::Bytes),
        tenants,
        promised_operations_per_second: amount(promised, Unit::Operations),
        promised_bytes_per_second: amount(promised, Unit::Bytes),
    })
}

fn excess(refusal: &AdmissionRefusal) -> Option<Excess<'_>> {
    let AdmissionRefusal::Infeasible(infeasible) = refusal else { return None };
    let Infeasible { whole, resource, unit, available, reserved, parts } = infeasible;
    // A budget and its reservations are in `sums` of a policy that fits, and in the message.
    if *whole == Whole::Budget {
        return None;
    }
    Some(Excess {
        resource: resource.as_deref(),
        unit: unit.name(),
        available_per_second: *available,
        reserved_per_second: *reserved,
        promised: parts
            .iter()
            .map(|(name, reserved)| Promised { name, reserved_per_second: *reserved })
            .collect(),
    })
}

fn cluster_summary<'a>(policy: &Policy, file: &'a ClusterFile) -> ClusterSummary<'a> {
    let cluster = &file.cluster;
    let capacities = cluster.nodes.iter().map(|node| node.capacity);
    let sum = |rates: &mut dyn Iterator<Item = Iops>| {
        rates.fold(0, |sum: u64, rate| sum.saturating_add(rate.0))
    };
    ClusterSummary {
        file: &file.name,
        nodes: cluster.nodes.len() as u64,
        gateways: cluster.gateways.len() as u64,
        data_nodes: cluster.data_nodes.len() as u64,
        volumes: cluster.volumes.len() as u64,
        pools: cluster.pools.len() as u64,
        capacity_operations_per_second: capacities
            .map(|capacity| capacity.map(|iops| iops.0))
            .sum(),
        capacity_bytes_per_second: cluster
            .nodes
            .iter()
            .map(|node| node.bandwidth.map(|rate| rate.0))
            .sum::<Option<u64>>()
            .filter(|_| !cluster.nodes.is_empty()),
        data_node_operations_per_second: sum(&mut cluster
            .data_nodes
            .iter()
            .map(|node| node.capacity)),
        data_node_client_operations_per_second: sum(&mut cluster
            .data_nodes
            .iter()
            .map(|node| node.client)),
        unkept: admission::unkept(policy, cluster).into_iter().map(missing).collect(),
    }
}

fn missing(unkept: Unkept) -> Missing {
    let (tenant, promised, kept, clients) = match unkept {
        Unkept::Sum { promised, capacity } => (None, promised, capacity, None),
        Unkept::Client { tenant, promised, most, clients } => {
            (Some(tenant), promised, most, Some(clients))
        }
    };
    Missing {
        tenant,
        promised_operations_per_second: promised.0,
        kept_operations_per_second: kept.0,
        clients,
    }
}

/// The sums of each resource, or of everything.
fn sums(policy: &Policy) -> Vec<Sum> {
    if policy.resources.is_empty() {
        return sums_of(policy, None);
    }
    let resources = policy.resources.iter();
    resources.flat_map(|it| sums_of(&policy.at(it.gate()), Some(&it.name))).collect()
}

fn sums_of(policy: &Policy, resource: Option<&String>) -> Vec<Sum> {
    let sum = |unit| {
        // A measured capacity is not known before programs run.
        let is_measured = policy.measured_at(GateKind::Stage).is_some();
        let budget = policy.budget.get(unit).filter(|_| !is_measured);
        let (reserved_per_second, budget_per_second) = (policy.reserved(unit), budget);
        let (resource, unit) = (resource.cloned(), unit.name());
        Sum { resource, unit, reserved_per_second, budget_per_second }
    };
    let mut sums = vec![sum(Unit::Bytes), sum(Unit::Operations)];
    sums.retain(|sum| sum.reserved_per_second > 0 || sum.budget_per_second.is_some());
    sums
}

/// Warnings about valid settings that are hardly meant.
fn warnings(file: &PolicyFile, cluster: Option<&ClusterFile>) -> Vec<String> {
    let mut warnings = file.doubts();
    warnings.extend(cluster.into_iter().flat_map(ClusterFile::doubts));
    let cluster = cluster.map(|file| &file.cluster);
    warnings.extend(admission::all_warnings(&file.policy, cluster));
    let memory = cluster.map(MemoryDemand::of_this_machine);
    warnings.extend(memory.and_then(|demand| demand.warning(headroom())));
    warnings
}

fn render(verdict: &CheckAnswer<'_>, paint: Paint) -> String {
    let mut text = format!(
        "{}: {}: {}, {}, {}\n",
        verdict.file,
        paint.tone(Tone::Good, "valid"),
        amounts::plural(verdict.tenants, "tenant"),
        amounts::plural(verdict.channels, "channel"),
        amounts::plural(verdict.rules, "rule"),
    );
    for Sum { resource, unit, reserved_per_second: reserved, budget_per_second } in &verdict.sums {
        let level = if *unit == "bytes" { amounts::bandwidth } else { amounts::iops };
        let on = resource.as_ref().map_or_else(String::new, |name| format!("on {name} "));
        text += &match budget_per_second {
            Some(budget) => {
                let share = u128::from(*reserved) * 1000 / u128::from(*budget).max(1);
                let share = amounts::permille(u64::try_from(share).unwrap_or(u64::MAX));
                format!("  {on}reserved {} of {} ({share})\n", level(*reserved), level(*budget))
            }
            None => format!("  {on}reserved {}\n", level(*reserved)),
        };
    }
    if let Some(cluster_summary) = &verdict.cluster {
        text += &format!("  on {}", cluster_summary.render());
    }
    for warning in &verdict.warnings {
        text += &format!("  {}: {warning}\n", paint.tone(Tone::Warn, "warning"));
    }
    for fault in &verdict.faults {
        text += &format!("  {}: {fault}\n", paint.tone(Tone::Bad, "fault"));
    }
    text
}
