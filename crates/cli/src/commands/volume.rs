//! `tidegate volume`: creates and grows volumes, shows the identity and faults of their parts, and
//! clears stored errors, on the stores of this machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_fabric::default_paths::default_state;
use tidegate_fabric::headroom::headroom;
use tidegate_model::cluster::{self, Cluster, Store, Uuid};
use tidegate_model::{Bytes, NodeId};
use tidegate_node::volumes::{self, Creation, PartPlan, PartReport};

use crate::memory_demand::MemoryDemand;
use crate::volumes::{expect_in_place, failure, parts};
use tidegate_console::amounts;
use tidegate_console::cluster_file::ClusterFile;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output;
use tidegate_console::table::Table;
use tidegate_console::text_file::Reader;

/// Create and grow volumes, and show their parts
///
/// The commands work on the stores of this machine while their nodes are stopped; show works at
/// any time. A volume whose nodes are on several machines is created on each of them with --node
/// for the nodes there and one --uuid for all. Each command can be run again after it was
/// interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate volume create examples/cluster.toml --state /srv/tidegate
  tidegate volume create cluster.toml db --state /srv/tidegate --adopt
  tidegate volume resize cluster.toml db 2TiB --state /srv/tidegate
  tidegate volume show cluster.toml --state /srv/tidegate
  tidegate volume clear-error cluster.toml db --state /srv/tidegate")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Debug, clap::Subcommand)]
enum VolumeCommand {
    /// Make the missing parts of volumes, and give them their identity
    Create {
        #[command(flatten)]
        selection: StoreSelection,

        /// The volumes; all of the cluster if none is named
        #[arg(value_name = "VOLUME")]
        volumes: Vec<String>,

        /// Take over data that are there without an identity, of the right size
        #[arg(long)]
        adopt: bool,

        /// Give the volume this UUID, which it has on other machines
        #[arg(long, value_name = "UUID")]
        uuid: Option<Uuid>,

        /// Reserve the space now, so that writes cannot run out of it
        #[arg(long)]
        reserve: bool,
    },
    /// Grow a volume
    Resize {
        #[command(flatten)]
        selection: StoreSelection,

        /// The volume
        volume: String,

        /// Its new size, like 2TiB; the cluster file has to say the same afterwards
        size: Bytes,

        /// Give the parts here this generation, which those on other machines have
        #[arg(long, value_name = "NUMBER")]
        generation: Option<u64>,
    },
    /// Show the identity of each part, and its faults
    Show {
        #[command(flatten)]
        selection: StoreSelection,

        /// The volumes; all of the cluster if none is named
        #[arg(value_name = "VOLUME")]
        volumes: Vec<String>,
    },
    /// Clear the error of a failed sync, once the lost data are restored
    ClearError {
        #[command(flatten)]
        selection: StoreSelection,

        /// The volume
        volume: String,
    },
}

#[derive(Debug, clap::Args)]
struct StoreSelection {
    /// The cluster's file
    #[arg(value_name = "CLUSTER", env = "TIDEGATE_CLUSTER", hide_env_values = true)]
    cluster: PathBuf,

    /// The directory that `tidegate up` has as --state
    #[arg(long, value_name = "DIR", env = "TIDEGATE_STATE", hide_env_values = true)]
    state: Option<PathBuf>,

    /// Only the stores of this node; may be repeated
    #[arg(long, value_name = "NAME")]
    node: Vec<String>,
}

/// A volume of the file, and its parts on the stores that are meant; none where those are memory.
type Meant = (cluster::Volume, Vec<PartPlan>);

impl StoreSelection {
    /// The named volumes, or all.
    fn meant(&self, names: &[String]) -> Result<Vec<Meant>, Failure> {
        self.chosen(names, |_, _, _| Ok(())).map(|(_, meant)| meant)
    }

    /// The same, with the cluster, once `is_well` has found nothing wrong with the parts of any.
    fn chosen(
        &self,
        names: &[String],
        is_well: impl Fn(&Cluster, &Path, &[PartPlan]) -> Result<(), Failure>,
    ) -> Result<(Cluster, Vec<Meant>), Failure> {
        let file = ClusterFile::read(&self.cluster, Reader::Daemon)?;
        let cluster = &file.cluster;
        let base = self.state.clone().unwrap_or_else(default_state);
        let has_volume = |name: &&String| cluster.volume_named(name).is_none();
        let has_node = |name: &&String| !cluster.nodes.iter().any(|node| node.name == **name);
        let missing = names.iter().find(has_volume).map(|name| ("volume", name));
        if let Some((kind, name)) =
            missing.or_else(|| self.node.iter().find(has_node).map(|name| ("node", name)))
        {
            let what = format!("the cluster has no {kind} {name:?}");
            return Err(Failure::new(Code::Usage, what).help("name one of its file"));
        }
        let is_meant = |node: &str| self.node.is_empty() || self.node.iter().any(|it| it == node);
        let chosen = cluster.volumes.iter();
        let chosen = chosen.filter(|volume| names.is_empty() || names.contains(&volume.name));
        let with_parts = |volume: &cluster::Volume| {
            let parts = parts(cluster, volume, &base, is_meant);
            is_well(cluster, &base, &parts)?;
            Ok((volume.clone(), parts))
        };
        let meant = chosen.map(with_parts).collect::<Result<_, Failure>>()?;
        Ok((file.cluster, meant))
    }

    /// The warning for volumes that nodes keep in memory, if the nodes here may use more memory
    /// than is left.
    fn memory_warning(&self, cluster: &Cluster, meant: &[Meant]) -> Option<String> {
        let is_in_memory = |node: &NodeId| {
            let node = cluster.node(*node).filter(|node| node.store == Store::Memory);
            node.is_some_and(|node| self.node.is_empty() || self.node.contains(&node.name))
        };
        if !meant.iter().flat_map(|(volume, _)| &volume.nodes).any(is_in_memory) {
            return None;
        }
        let demand = match self.node.as_slice() {
            [] => MemoryDemand::of_this_machine(cluster),
            names => MemoryDemand::of(cluster, |name| names.iter().any(|it| it == name), |_| false),
        };
        demand.warning(headroom())
    }
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    match args.command {
        VolumeCommand::Create { selection, volumes, adopt, uuid, reserve } => {
            let creation = Creation { adopt, uuid, reserve };
            let (cluster, meant) = selection.chosen(&volumes, expect_in_place)?;
            create(&meant, &selection.node, creation, common)?;
            if let Some(warning) = selection.memory_warning(&cluster, &meant) {
                let text = format!("warning: {warning}\n");
                print_answer(common, json!({ "warning": warning }), &text)?;
            }
        }
        VolumeCommand::Resize { selection, volume, size, generation } => {
            for (volume, parts) in selection.meant(&[volume])? {
                if parts.is_empty() {
                    return Err(nothing_here(&volume, &selection.node));
                }
                let stamp = volumes::resize(&parts, size, generation).map_err(failure)?;
                let (name, generation) = (&volume.name, stamp.generation);
                print_answer(
                    common,
                    json!({ "volume": name, "size_bytes": size.0, "generation": generation }),
                    &format!(
                        "volume {name} has {size} now (generation {generation})\nnext: write size \
                         = \"{size}\" into {}, and start the cluster\n",
                        selection.cluster.display()
                    ),
                )?;
            }
        }
        VolumeCommand::Show { selection, volumes } => {
            return show(&selection.meant(&volumes)?, common);
        }
        VolumeCommand::ClearError { selection, volume } => {
            for (volume, parts) in selection.meant(&[volume])? {
                let cleared = volumes::clear_error(&parts).map_err(failure)?;
                let parts = amounts::plural(cleared as u64, "part");
                let name = &volume.name;
                print_answer(
                    common,
                    json!({ "volume": name, "cleared": cleared }),
                    &format!("volume {name}: errors of {parts} cleared\n"),
                )?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// There is no part of the volume to work on.
fn nothing_here(volume: &cluster::Volume, nodes: &[String]) -> Failure {
    let name = &volume.name;
    match nodes {
        [] => Failure::new(Code::Failure, format!("the nodes of volume {name} keep it in memory"))
            .help("write its size into the cluster file, and start the cluster again"),
        _ => Failure::new(Code::Failure, format!("no part of volume {name} is at these nodes"))
            .help("name others with --node, or none for all"),
    }
}

fn create(
    meant: &[Meant],
    nodes: &[String],
    creation: Creation,
    common: &Common,
) -> Result<(), Failure> {
    if creation.uuid.is_some() && meant.len() != 1 {
        let failure = Failure::new(Code::Usage, "--uuid is for one volume");
        return Err(failure.help("name the volume that has it"));
    }
    for (volume, parts) in meant {
        if parts.is_empty() {
            let name = &volume.name;
            let why = match nodes {
                [] => "its nodes keep it in memory, empty after each start",
                _ => "none of its parts is kept by these nodes",
            };
            let text = format!("volume {name}: nothing to create: {why}\n");
            print_answer(common, json!({ "volume": name, "uuid": null, "parts": 0 }), &text)?;
            continue;
        }
        let stamp = volumes::create(parts, creation).map_err(failure)?;
        let (name, uuid) = (&volume.name, stamp.uuid.to_string());
        let count = amounts::plural(parts.len() as u64, "part");
        let text = format!("volume {name}: {count} with UUID {uuid}\n");
        print_answer(common, json!({ "volume": name, "uuid": uuid, "parts": parts.len() }), &text)?;
    }
    Ok(())
}

fn print_answer(common: &Common, answer: Value, text: &str) -> Result<(), Failure> {
    if common.json { output::print(&format!("{answer}\n")) } else { output::print(text) }
}

/// Exits with 1 if something is wrong with a part.
fn show(meant: &[Meant], common: &Common) -> Result<ExitCode, Failure> {
    let reports: Vec<_> = meant.iter().flat_map(|(_, parts)| volumes::show(parts)).collect();
    if common.json {
        let parts: Vec<_> = reports.iter().map(part_json).collect();
        output::print(&format!("{}\n", json!({ "parts": parts })))?;
    } else {
        output::print(&render(&reports))?;
    }
    let is_well = reports.iter().all(|report| report.fault.is_none());
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn part_json(report: &PartReport) -> Value {
    let PartReport { plan, label, fault, .. } = report;
    let label = label.as_ref();
    json!({
        "volume": plan.volume,
        "part": plan.index,
        "node": plan.node,
        "store": plan.store.path(),
        "uuid": label.map(|label| label.identity.stamp.uuid.to_string()),
        "generation": label.map(|label| label.identity.stamp.generation),
        "size_bytes": label.map(|label| label.identity.geometry.size.0),
        "part_bytes": label.map(|label| label.identity.geometry.part_length(plan.index).0),
        "stripe_bytes": label.map(|label| label.identity.geometry.stripe.0),
        "parts": label.map(|label| label.identity.geometry.count),
        "error_count": label.map(|label| label.error_count),
        "error_errno": label.and_then(|label| label.error).map(|error| error.errno),
        "error_at_seconds": label.and_then(|label| label.error).map(|error| error.at_seconds),
        "fault": fault,
    })
}

fn render(reports: &[PartReport]) -> String {
    let mut table = Table::new()
        .left("VOLUME")
        .right("PART")
        .left("NODE")
        .each_right(["SIZE", "OF", "GENERATION"])
        .each_left(["UUID", "STATE"]);
    for PartReport { plan, label, fault, .. } in reports {
        let or = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let identity = label.as_ref().map(|label| &label.identity);
        table.row([
            plan.volume.as_str().into(),
            plan.index.to_string().into(),
            plan.node.as_str().into(),
            or(identity.map(|identity| identity.geometry.part_length(plan.index).to_string()))
                .into(),
            or(identity.map(|identity| identity.geometry.size.to_string())).into(),
            or(identity.map(|identity| identity.stamp.generation.to_string())).into(),
            or(identity.map(|identity| identity.stamp.uuid.to_string())).into(),
            if fault.is_some() { "FAULT" } else { "good" }.into(),
        ]);
    }
    let mut text = table.render(output::Paint::stdout(), usize::MAX);
    for fault in reports.iter().filter_map(|report| report.fault.as_ref()) {
        text += &format!("fault: {fault}\n");
    }
    text
}
