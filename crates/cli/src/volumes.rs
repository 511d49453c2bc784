//! The parts of a cluster's volumes that lie on stores of this machine.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use tidegate_model::cluster::{self, Geometry, Store};
use tidegate_model::{Bytes, Cluster};
use tidegate_node::volumes::{self, Creation, PartPlan, PartReport, PartStore, VolumeError};

use crate::memory_demand::is_far;
use tidegate_console::failure::{Code, Failure};

/// The folder of the state folder for labels of parts that their own file system takes no more.
pub(crate) const FALLBACK: &str = "labels";

/// The parts of a volume at the nodes for which `is_meant` is true. Those in memory are left out:
/// they need no creation.
pub(crate) fn parts(
    cluster: &Cluster,
    volume: &cluster::Volume,
    base: &Path,
    is_meant: impl Fn(&str) -> bool,
) -> Vec<PartPlan> {
    let part = |(index, id)| {
        let node = cluster.node(id)?;
        let store = match &node.store {
            Store::Directory(path) => PartStore::Directory(base.join(path)),
            Store::Device { path, size } => PartStore::Device(base.join(path), *size),
            Store::Memory | Store::Memcached(_) => return None,
        };
        is_meant(&node.name).then(|| PartPlan {
            node: node.name.clone(),
            store,
            volume: volume.name.clone(),
            index,
            offset: volume.offsets.get(index as usize).copied().unwrap_or(Bytes::ZERO),
            geometry: Geometry::of(volume),
            fallback: Some(base.join(FALLBACK)),
        })
    };
    (0..).zip(volume.nodes.iter().copied()).filter_map(part).collect()
}

/// Why a part is not in its node's folder, where it lies in the folder of another node on this
/// machine, as after the folders of two nodes were exchanged.
fn misplaced(cluster: &Cluster, base: &Path, part: &PartPlan) -> Option<String> {
    let PartPlan { node, volume, index, store: PartStore::Directory(own), .. } = part else {
        return None;
    };
    if part.has_label_in(own) {
        return None;
    }
    let place = cluster.nodes.iter().find_map(|other| match &other.store {
        Store::Directory(path) if other.name != *node => Some(base.join(path))
            .filter(|path| path != own && part.has_label_in(path))
            .map(|path| (other, path)),
        _ => None,
    });
    place.map(|(other, path)| {
        format!(
            "part {index} of volume {volume} is not at node {node}: it lies in {} of node {}",
            path.display(),
            other.name
        )
    })
}

/// Refuses to make parts anew that lie in the folders of other nodes.
pub(crate) fn expect_in_place(
    cluster: &Cluster,
    base: &Path,
    parts: &[PartPlan],
) -> Result<(), Failure> {
    match parts.iter().find_map(|part| misplaced(cluster, base, part)) {
        None => Ok(()),
        Some(what) => Err(Failure::new(Code::Failure, what).help(
            "are the folders of two nodes exchanged? Put each back, or move the part's files",
        )),
    }
}

/// Creates all volumes of the cluster whose stores are those of the nodes that are meant.
///
/// # Errors
/// If one cannot be created. Those before it are.
pub(crate) fn create_all(
    cluster: &Cluster,
    base: &Path,
    is_meant: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    for volume in &cluster.volumes {
        let here = parts(cluster, volume, base, &is_meant);
        let all = parts(cluster, volume, base, |_| true);
        if here.is_empty() {
            continue;
        }
        if here.len() < all.len() {
            let what = format!("volume {} has parts at nodes that do not run here", volume.name);
            let help = "create it with `tidegate volume create`, which gives all of them one UUID";
            return Err(Failure::new(Code::Usage, what).help(help));
        }
        expect_in_place(cluster, base, &here)?;
        volumes::create(&here, Creation::default()).map_err(failure)?;
    }
    Ok(())
}

/// Refuses to start a cluster of which no part was ever created: its first start needs an option,
/// and an operator who forgot to mount its folders gets an error.
///
/// # Errors
/// If there are parts in files and none of them is there.
pub(crate) fn expect_some(cluster: &Cluster, base: &Path) -> Result<(), Failure> {
    let plans = cluster.volumes.iter().flat_map(|volume| parts(cluster, volume, base, |_| true));
    let plans: Vec<_> = plans.collect();
    let reports = volumes::show(&plans);
    // Faults of other parts are reported by their node or their gateway.
    let is_unmade = |report: &PartReport| report.is_unmade;
    let Some(first) = reports.first().filter(|_| reports.iter().all(is_unmade)) else {
        return Ok(());
    };
    let what = first.fault.clone().unwrap_or_default();
    Err(Failure::new(Code::Failure, what).help(
        "if the volumes are new, create them: add --create; if they were made before there were \
         identities, take them over with `tidegate volume create --adopt`",
    ))
}

/// The faults that an inspection of the volumes on this machine found.
#[derive(Debug, Default)]
pub(crate) struct VolumeFaults {
    /// Parts that could not be served.
    pub(crate) faults: Vec<String>,
    /// Volumes that were not created yet, and stores that this user cannot read.
    pub(crate) unseen: Vec<String>,
}

/// Reads the labels of all parts on this machine. Nothing is locked, so nodes may run meanwhile.
/// Where no volume of the cluster was ever created there is nothing to find.
pub(crate) fn inspect(cluster: &Cluster, base: &Path) -> VolumeFaults {
    let mut found = VolumeFaults::default();
    let is_readable = |node: &cluster::Node| match path_of(node, base) {
        Some(path) => !matches!(access(&path, Access::READ_OK), Err(Errno::ACCESS)),
        None => true,
    };
    let (seen, unreadable): (Vec<_>, Vec<_>) = cluster.nodes.iter().partition(|it| is_readable(it));
    for node in unreadable {
        let path = path_of(node, base).unwrap_or_default();
        found.unseen.push(format!(
            "the volumes of node {} were not looked at: {}: Permission denied; check them as the \
             node's user",
            node.name,
            path.display()
        ));
    }
    let is_seen =
        |name: &str| seen.iter().any(|node| node.name == name && !is_elsewhere(node, base));
    let mut unmade = Vec::new();
    let mut has_any = false;
    for volume in &cluster.volumes {
        let parts = parts(cluster, volume, base, is_seen);
        found.faults.extend(parts.iter().filter_map(|part| misplaced(cluster, base, part)));
        let reports = volumes::show(&parts);
        if reports.iter().all(|report| report.is_unmade && !report.has_data) {
            unmade.extend(reports.first().map(|_| &volume.name));
            continue;
        }
        has_any = true;
        found.faults.extend(reports.into_iter().filter_map(|report| report.fault));
    }
    for name in unmade.into_iter().filter(|_| has_any) {
        found.unseen.push(format!(
            "volume {name} is not there; if it is new, run `tidegate volume create CLUSTER {name}`"
        ));
    }
    found
}

fn path_of(node: &cluster::Node, base: &Path) -> Option<PathBuf> {
    match &node.store {
        Store::Directory(path) | Store::Device { path, .. } => Some(base.join(path)),
        Store::Memory | Store::Memcached(_) => None,
    }
}

/// Whether a node runs on another machine: it is reached over the network, and its store is not
/// here. One that is reached otherwise is here, whether its store is or not.
fn is_elsewhere(node: &cluster::Node, base: &Path) -> bool {
    node.address.as_ref().is_some_and(is_far)
        && path_of(node, base).is_some_and(|path| !path.exists())
}

/// The failure of a command because of a fault of a volume.
pub(crate) fn failure(error: VolumeError) -> Failure {
    Failure::new(Code::Failure, error.what).help(error.help)
}
