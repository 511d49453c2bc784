//! Growing a volume: the data first, and then one label after the other.

use tidegate_model::Bytes;
use tidegate_model::cluster::{Geometry, Label, VolumeStamp};

use super::{Found, Outcome, PartPlan, PartStore, failed, found, is_same_part, refuse};
use crate::store::disk::Disk;
use crate::store::label::Spot;

/// A part as it is to be, and its label as it is.
type Grown = (PartPlan, Spot, Label);

pub(super) fn resize_on(disk: &dyn Disk, parts: &[PartPlan], size: Bytes) -> Outcome<VolumeStamp> {
    if !size.0.is_multiple_of(4096) {
        return refuse(format!("{size} is no size of a volume"), "use a multiple of 4KiB");
    }
    let all = parts.iter().map(|part| grown(disk, part, size));
    let mut all = all.collect::<Outcome<Vec<_>>>()?;
    let stamp = stamp(&all, size)?;
    for (part, ..) in all.iter().filter(|(part, ..)| is_file(part)) {
        let (path, length) = (part.data(), part.geometry.part_length(part.index));
        let grown = disk.grow(&path, length.0, false).and_then(|()| disk.sync(&path));
        grown.map_err(|error| failed(&path, &error))?;
    }
    for (part, spot, label) in &mut all {
        if label.identity.geometry.size == size {
            continue;
        }
        (label.identity.geometry, label.identity.stamp) = (part.geometry, stamp);
        spot.write(disk, label).map_err(|error| failed(&spot.path, &error))?;
    }
    Ok(stamp)
}

fn is_file(part: &PartPlan) -> bool {
    matches!(part.store, PartStore::Directory(_))
}

/// The part as it is to be, if it is there as it was created.
fn grown(disk: &dyn Disk, part: &PartPlan, size: Bytes) -> Outcome<Grown> {
    let part = PartPlan { geometry: Geometry { size, ..part.geometry }, ..part.clone() };
    let Found { spot, label, data } = found(disk, &part)?;
    let Some(label) = label.filter(|label| !label.is_pending && is_same_part(label, &part)) else {
        let help = "bring it back, or finish `tidegate volume create`";
        return refuse(format!("{} is not there as it was created", part.name()), help);
    };
    if label.identity.geometry.size > size {
        let what = format!("the volume has {} already", label.identity.geometry.size);
        return refuse(what, "volumes only grow; name a larger size");
    }
    let is_short = data.is_some_and(|data| data < label.identity.length());
    if is_short || data.is_none() && is_file(&part) {
        let what = format!("the data of {} are missing or cut off", part.name());
        return refuse(what, format!("bring back {}", part.data().display()));
    }
    Ok((part, spot, label))
}

/// The identity that all parts have in the end.
fn stamp(all: &[Grown], size: Bytes) -> Outcome<VolumeStamp> {
    let stamps = || all.iter().map(|(.., label)| label.identity.stamp);
    let Some(latest) = stamps().max_by_key(|stamp| stamp.generation) else {
        return refuse("no part of the volume is here", "name the nodes of this machine");
    };
    if let Some((part, ..)) = all.iter().find(|(.., it)| it.identity.stamp.uuid != latest.uuid) {
        let what = format!("{} is of another volume than the others", part.name());
        return refuse(what, "bring back the right one");
    }
    let is_begun = all.iter().any(|(.., label)| label.identity.geometry.size == size);
    let generation = latest.generation + u64::from(!is_begun);
    let is_behind = |label: &Label| {
        let found = &label.identity;
        found.geometry.size != size && found.stamp.generation + 1 != generation
    };
    match all.iter().find(|(.., label)| is_behind(label)) {
        None => Ok(VolumeStamp { generation, ..latest }),
        Some((part, ..)) => refuse(
            format!("another resize was interrupted at {}", part.name()),
            "finish it first: run it again with the size that it had",
        ),
    }
}
