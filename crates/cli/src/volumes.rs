//! The parts of a cluster's volumes that lie on stores of this machine.

use std::path::Path;

use tidegate_model::cluster::{self, Geometry, Store};
use tidegate_model::{Bytes, Cluster};
use tidegate_node::volumes::{self, Creation, PartPlan, PartReport, PartStore, VolumeError};

use crate::failure::{Code, Failure};

/// The parts of a volume at the nodes for which `is_meant` is true. Those in memory are left out:
/// nobody creates them.
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
        })
    };
    (0..).zip(volume.nodes.iter().copied()).filter_map(part).collect()
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
        volumes::create(&here, Creation::default()).map_err(failure)?;
    }
    Ok(())
}

/// Refuses to start a cluster of which no part was ever created: whoever starts it for the first
/// time has to say so, and whoever forgot to mount its folders is told.
///
/// # Errors
/// If there are parts in files and none of them is there.
pub(crate) fn expect_some(cluster: &Cluster, base: &Path) -> Result<(), Failure> {
    let plans = cluster.volumes.iter().flat_map(|volume| parts(cluster, volume, base, |_| true));
    let plans: Vec<_> = plans.collect();
    let reports = volumes::show(&plans);
    // What is wrong with other parts their node says, or their gateway.
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

/// What is wrong with a volume, as a failure of the command.
pub(crate) fn failure(error: VolumeError) -> Failure {
    Failure::new(Code::Failure, error.what).help(error.help)
}
