//! Growing a volume: the data first, and then one label after the other.

use tidegate_model::Bytes;
use tidegate_model::cluster::{Label, VolumeStamp};

use super::{
    PartOnDisk, PartPlan, PartStore, VolumeResult, area, failed, found, is_same_part, lacks_data,
    refuse,
};
use crate::store::disk::Disk;
use crate::store::label::LabelLocation;
use crate::store::remedies::{other_label, restore_hint};

/// A part in its requested state, and its present label.
type Grown = (PartPlan, LabelLocation, Label);

/// The most generations that parts may be behind those on other machines. A generation cannot be
/// taken back, so one that was mistyped must not use them up. Chosen by hand.
const GENERATIONS_AHEAD: u64 = 1_000;

/// The state of a volume according to all of its labels.
struct Labelled {
    /// The largest size that one of them has, and the latest generation.
    size: Bytes,
    stamp: VolumeStamp,
    /// They differ: some have grown and others not yet.
    is_interrupted: bool,
}

/// Grows the volume, and first finishes a resize that was interrupted: the largest size in a label
/// is the target of that resize.
pub(super) fn resize_on(
    disk: &dyn Disk,
    parts: &[PartPlan],
    size: Bytes,
    generation: Option<u64>,
) -> VolumeResult<VolumeStamp> {
    if !size.0.is_multiple_of(4096) {
        return refuse(format!("{size} is no size of a volume"), "use a multiple of 4KiB");
    }
    let all = parts.iter().map(|part| grown(disk, part));
    let mut all = all.collect::<VolumeResult<Vec<_>>>()?;
    let found = labelled(&all)?;
    let Labelled { size: largest, stamp, is_interrupted } = found;
    let volume = &parts[0].volume;
    if size < largest && is_interrupted {
        return refuse(
            format!("a resize of volume {volume} to {largest} was interrupted"),
            format!("finish it with `tidegate volume resize CLUSTER {volume} {largest}`"),
        );
    }
    if size < largest {
        let what = format!("the volume has {largest} already");
        return refuse(what, "volumes only grow; name a larger size");
    }
    all.iter().try_for_each(|(part, ..)| has_space(disk, part, size))?;
    if is_interrupted {
        commit(disk, &mut all, largest, stamp)?;
    }
    let next = stamp.generation.saturating_add(u64::from(size > largest));
    let generation = generation.unwrap_or(next);
    let latest = next.saturating_add(GENERATIONS_AHEAD);
    if !(next..=latest).contains(&generation) {
        return refuse(
            format!("the volume has generation {} already", stamp.generation),
            format!("name a generation from {next} to {latest}, or none"),
        );
    }
    let stamp = VolumeStamp { generation, ..stamp };
    commit(disk, &mut all, size, stamp)?;
    Ok(stamp)
}

/// Whether a part that grows on a device stays before the labels and beside all other parts.
fn has_space(disk: &dyn Disk, part: &PartPlan, size: Bytes) -> VolumeResult<()> {
    let PartStore::Device(path, usable) = &part.store else { return Ok(()) };
    let mut part = part.clone();
    part.geometry.size = size;
    area(disk, &part, path, *usable).map(drop)
}

/// Gives all parts this size and stamp: first the data, then the labels.
fn commit(disk: &dyn Disk, all: &mut [Grown], size: Bytes, stamp: VolumeStamp) -> VolumeResult<()> {
    for (part, ..) in &mut *all {
        part.geometry.size = size;
    }
    for (part, _, label) in all.iter().filter(|(part, ..)| is_file(part)) {
        let (path, length) = (part.data(), part.geometry.part_length(part.index));
        if label.identity.geometry.size != size {
            let grown = disk.grow(&path, length.0, false).and_then(|()| disk.sync(&path));
            grown.map_err(|error| failed(&path, &error))?;
        }
    }
    for (part, location, label) in all {
        let identity = &mut label.identity;
        if (identity.geometry, identity.stamp) != (part.geometry, stamp) {
            (identity.geometry, identity.stamp) = (part.geometry, stamp);
            location.write(disk, label).map_err(|error| failed(&location.path, &error))?;
        }
    }
    Ok(())
}

fn is_file(part: &PartPlan) -> bool {
    matches!(part.store, PartStore::Directory(_))
}

/// The part, if it exists as it was created.
fn grown(disk: &dyn Disk, part: &PartPlan) -> VolumeResult<Grown> {
    let PartOnDisk { location, label, data } = found(disk, part)?;
    let other = label.as_ref().and_then(|label| other_label(label, &part.volume, part.index));
    if let Some((what, help)) = other {
        return refuse(format!("{} {what}", part.name()), help);
    }
    let Some(label) = label.filter(|label| !label.is_pending && is_same_part(label, part)) else {
        let help = "bring it back, or finish `tidegate volume create`";
        return refuse(format!("{} is not there as it was created", part.name()), help);
    };
    if let Some(what) = lacks_data(part, &label, data) {
        let what = format!("{} {what}", part.name());
        return refuse(what, restore_hint(&part.volume));
    }
    Ok((part.clone(), location, label))
}

fn labelled(all: &[Grown]) -> VolumeResult<Labelled> {
    let identities = || all.iter().map(|(.., label)| &label.identity);
    let Some(first) = identities().next() else {
        return refuse("no part of the volume is here", "name the nodes of this machine");
    };
    let uuid = first.stamp.uuid;
    if let Some((part, ..)) = all.iter().find(|(.., it)| it.identity.stamp.uuid != uuid) {
        let what = format!("{} is of another volume than the others", part.name());
        return refuse(what, "bring back the right one");
    }
    let size = identities().fold(Bytes::ZERO, |size, it| size.max(it.geometry.size));
    let generation = identities().fold(0, |latest, it| latest.max(it.stamp.generation));
    let stamp = VolumeStamp { uuid, generation };
    let is_interrupted =
        identities().any(|it| it.geometry.size != size || it.stamp.generation != generation);
    Ok(Labelled { size, stamp, is_interrupted })
}
