//! `tidegate check`: is this a policy, and can it be kept?

use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;
use tidegate_algo::admission::{self, Shortage};
use tidegate_model::gate::Unit;
use tidegate_model::{Cluster, Policy};

use super::Common;
use crate::amounts;
use crate::cluster_file::ClusterFile;
use crate::failure::{Code, Failure, Told};
use crate::output::{self, Paint, Tone};
use crate::policy_file::PolicyFile;

/// Check a policy without a controller: its form, its meaning, and whether it can be kept
///
/// With a cluster, the same for the cluster, and whether its nodes can keep what the policy
/// promises. Exits with 0 for a policy that can be applied, 3 for one that is invalid and 4 for one
/// that promises more than there is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate check policies/shared-disk.toml
  tidegate check policies/cluster.toml --cluster examples/cluster.toml")]
pub(crate) struct Args {
    /// The policy, or - for standard input; by default the one that the cluster names
    #[arg(value_name = "FILE", required_unless_present = "cluster")]
    file: Option<PathBuf>,

    /// The cluster that is to keep it
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CLUSTER", hide_env_values = true)]
    cluster: Option<PathBuf>,
}

/// The answer for programs.
#[derive(Debug, Serialize)]
struct Verdict<'a> {
    verdict: &'static str,
    file: &'a str,
    tenants: u64,
    channels: u64,
    rules: u64,
    sums: Vec<Sum>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<Place<'a>>,
    warnings: Vec<String>,
}

/// The answer for programs where the policy is not valid.
#[derive(Debug, Serialize)]
struct Refused<'a> {
    verdict: &'static str,
    #[serde(flatten)]
    told: Told<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shortage: Option<Cut<'a>>,
}

/// What is promised of what there is, in one unit.
#[derive(Debug, Serialize)]
struct Sum {
    unit: &'static str,
    reserved_per_second: u64,
    budget_per_second: Option<u64>,
}

/// What a policy is to be kept on.
#[derive(Debug, Serialize)]
struct Place<'a> {
    file: &'a str,
    nodes: u64,
    gateways: u64,
    data_nodes: u64,
    volumes: u64,
    pools: u64,
    /// None if a node does not say.
    capacity_operations_per_second: Option<u64>,
}

/// Who is promised too much, and where.
#[derive(Debug, Serialize)]
struct Cut<'a> {
    nodes: &'a [String],
    capacity_operations_per_second: u64,
    tenants: &'a [String],
    promised_operations_per_second: u64,
}

/// Why a policy is refused, and the proof if its cluster cannot keep it.
struct Refusal {
    failure: Failure,
    shortage: Option<Shortage>,
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, shortage: None }
    }
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    let (file, cluster) = match examine(&args) {
        Ok(examined) => examined,
        // A program that asks for a verdict gets one on standard output, whatever it is.
        Err(Refusal { failure, shortage }) if common.json => {
            let (verdict, told) = (failure.word(), failure.to_json());
            let shortage = shortage.as_ref().map(cut);
            output::print_json(&Refused { verdict, told, shortage })?;
            return Err(failure.untold());
        }
        Err(Refusal { failure, .. }) => return Err(failure),
    };
    let policy = &file.policy;
    let verdict = Verdict {
        verdict: "valid",
        file: &file.name,
        tenants: policy.tenants.len() as u64,
        channels: policy.channels.len() as u64,
        rules: policy.matches.len() as u64,
        sums: sums(policy),
        cluster: cluster.as_ref().map(place),
        warnings: warnings(policy, cluster.as_ref()),
    };
    if common.json {
        output::print_json(&verdict)?;
    } else {
        output::print(&told(&verdict, Paint::stdout()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads everything, and compares what is promised with what there is.
fn examine(args: &Args) -> Result<(PolicyFile, Option<ClusterFile>), Refusal> {
    let cluster = args.cluster.as_deref().map(ClusterFile::read).transpose()?;
    let named = || cluster.as_ref().and_then(ClusterFile::policy);
    let Some(file) = args.file.clone().or_else(named) else {
        let failure = Failure::new(Code::Usage, "the cluster names no policy");
        return Err(failure.help("name one: tidegate check POLICY --cluster FILE").into());
    };
    let file = PolicyFile::read(&file)?;
    file.check_feasible()?;
    if let Some(cluster) = &cluster
        && let Err(shortage) = admission::admit(&file.policy, &cluster.cluster)
    {
        let failure = cluster.infeasible(&shortage);
        return Err(Refusal { failure, shortage: Some(shortage) });
    }
    Ok((file, cluster))
}

fn cut(shortage: &Shortage) -> Cut<'_> {
    Cut {
        nodes: &shortage.nodes,
        capacity_operations_per_second: shortage.capacity.0,
        tenants: &shortage.tenants,
        promised_operations_per_second: shortage.promised.0,
    }
}

fn place(file: &ClusterFile) -> Place<'_> {
    let cluster = &file.cluster;
    let capacities = cluster.nodes.iter().map(|node| node.capacity);
    Place {
        file: &file.name,
        nodes: cluster.nodes.len() as u64,
        gateways: cluster.gateways.len() as u64,
        data_nodes: cluster.data_nodes.len() as u64,
        volumes: cluster.volumes.len() as u64,
        pools: cluster.pools.len() as u64,
        capacity_operations_per_second: capacities
            .map(|capacity| capacity.map(|iops| iops.0))
            .sum(),
    }
}

fn sums(policy: &Policy) -> Vec<Sum> {
    let sum = |unit, name| {
        let reserved = policy.tenants.iter().filter_map(|tenant| tenant.reservation.get(unit));
        let reserved_per_second = reserved.fold(0, u64::saturating_add);
        let budget_per_second = policy.budget.get(unit);
        Sum { unit: name, reserved_per_second, budget_per_second }
    };
    let mut sums = vec![sum(Unit::Bytes, "bytes"), sum(Unit::Operations, "operations")];
    sums.retain(|sum| sum.reserved_per_second > 0 || sum.budget_per_second.is_some());
    sums
}

/// What is allowed, but hardly meant.
fn warnings(policy: &Policy, cluster: Option<&ClusterFile>) -> Vec<String> {
    let mut warnings = Vec::new();
    for (unit, name, example) in
        [(Unit::Bytes, "bandwidth", "1000MiB/s"), (Unit::Operations, "operations", "50k iops")]
    {
        let reserves = policy.tenants.iter().any(|tenant| tenant.reservation.get(unit).is_some());
        // In a cluster, what nodes can do is the budget for operations.
        let is_bounded =
            policy.budget.get(unit).is_some() || unit == Unit::Operations && cluster.is_some();
        if reserves && !is_bounded {
            warnings.push(format!(
                "{name} is reserved, but without a budget of it nobody is held back to keep the \
                 reservation; add budget = \"{example}\", for example"
            ));
        }
    }
    if policy.tenants.is_empty() {
        warnings.push("there is no tenant, so nobody is promised anything".into());
    }
    if let Some(cluster) = cluster {
        warnings.extend(admission::warnings(policy, &cluster.cluster));
        warnings.extend(data_node_warnings(policy, &cluster.cluster));
    }
    warnings
}

/// What clients of data nodes cannot be promised: those that come last are refused. Promises in
/// operations are kept there, beside those that are kept at storage nodes.
fn data_node_warnings(policy: &Policy, cluster: &Cluster) -> Option<String> {
    let nodes = &cluster.data_nodes;
    let capacity = nodes.iter().map(|node| node.capacity.0).fold(0, u64::saturating_add);
    let reserved = policy.tenants.iter().filter_map(|it| it.reservation.get(Unit::Operations));
    let reserved = reserved.fold(0, u64::saturating_add);
    (!nodes.is_empty() && reserved > capacity).then(|| {
        format!(
            "tenants are promised {} together, and data nodes can do {}; if all of them come \
             there, those who come last are refused",
            amounts::iops(reserved),
            amounts::iops(capacity),
        )
    })
}

fn told(verdict: &Verdict<'_>, paint: Paint) -> String {
    let mut text = format!(
        "{}: {}: {}, {}, {}\n",
        verdict.file,
        paint.tone(Tone::Good, verdict.verdict),
        amounts::plural(verdict.tenants, "tenant"),
        amounts::plural(verdict.channels, "channel"),
        amounts::plural(verdict.rules, "rule"),
    );
    for Sum { unit, reserved_per_second: reserved, budget_per_second } in &verdict.sums {
        let level = if *unit == "bytes" { amounts::bandwidth } else { amounts::iops };
        text += &match budget_per_second {
            Some(budget) => {
                let share = u128::from(*reserved) * 1000 / u128::from(*budget).max(1);
                let share = amounts::permille(u64::try_from(share).unwrap_or(u64::MAX));
                format!("  reserved {} of {} ({share})\n", level(*reserved), level(*budget))
            }
            None => format!("  reserved {}\n", level(*reserved)),
        };
    }
    if let Some(place) = &verdict.cluster {
        text += &format!(
            "  on {}{} of {}{}, with {}, {} and {}\n",
            amounts::plural(place.nodes, "node"),
            match place.data_nodes {
                0 => String::new(),
                count => format!(" and {}", amounts::plural(count, "data node")),
            },
            place.file,
            place.capacity_operations_per_second.map_or(String::new(), |capacity| {
                format!(" that can do {}", amounts::iops(capacity))
            }),
            amounts::plural(place.gateways, "gateway"),
            amounts::plural(place.volumes, "volume"),
            amounts::plural(place.pools, "pool"),
        );
    }
    for warning in &verdict.warnings {
        text += &format!("  {}: {warning}\n", paint.tone(Tone::Warn, "warning"));
    }
    text
}
