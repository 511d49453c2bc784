//! Labels and data of another part at a part's location, each with a remedy.
//!
//! Data in a directory bear a mark, the attribute `user.tidegate.uuid`, which names the volume and
//! the part that they were made for. A label names them as well. Exchanged files are recognised by
//! both, and are never taken over as if they were the part's own.

use std::path::Path;

use tidegate_model::cluster::{Label, PartIdentity, Uuid};

use super::{PartOnDisk, PartPlan, PartStore, VolumeResult, refuse};
use crate::store::disk::Disk;
use crate::store::label::{LabelLocation, parse_name};

/// A fault, and how to mend it.
type Fault = (String, String);

/// Why a label cannot be that of part `index` of `volume`, whatever its size.
pub(crate) fn other_label(label: &Label, volume: &str, index: u32) -> Option<Fault> {
    let identity = &label.identity;
    let is_own = identity.volume == volume && identity.index == index;
    (!is_own).then(|| {
        let (volume, index) = (&identity.volume, identity.index);
        (
            format!("is not here: the label says part {index} of volume {volume:?}"),
            "bring back the right files, data and label".into(),
        )
    })
}

/// Why data with this mark, or none, are not those that the label beside them was made with.
pub(crate) fn other_data(
    disk: &dyn Disk,
    path: &Path,
    label: &Label,
    mark: Option<Uuid>,
) -> Option<Fault> {
    if label.fits_mark(mark) {
        return None;
    }
    let (shown_path, volume) = (path.display(), &label.identity.volume);
    let adopt = format!("`tidegate volume create CLUSTER {volume} --adopt`");
    let Some(mark) = mark else {
        let what = format!("has data without the attribute user.tidegate.uuid: {shown_path}");
        let help =
            format!("bring back the right file; if it is a backup that was restored, run {adopt}");
        return Some((what, help));
    };
    Some(owned(disk, path, mark).unwrap_or_else(|| {
        (
            format!("has the data of another part: {shown_path}"),
            format!(
                "bring back the right file; if the part is to have these data all the same, run \
                 `setfattr -x user.tidegate.uuid {shown_path}` and {adopt}"
            ),
        )
    }))
}

/// The fault of data whose mark is that of another label in the same folder.
fn owned(disk: &dyn Disk, path: &Path, mark: Uuid) -> Option<Fault> {
    let folder = path.parent()?;
    let PartIdentity { volume, index, .. } = owner(disk, folder, mark)?;
    let what = format!("has the data of part {index} of volume {volume}: {}", path.display());
    let place = folder.join(format!("{volume}.{index}"));
    Some((what, format!("bring back the right file; this one belongs at {}", place.display())))
}

/// The part in this folder whose data bear that mark.
fn owner(disk: &dyn Disk, folder: &Path, mark: Uuid) -> Option<PartIdentity> {
    let names = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter(|name| name.ends_with(".label"))
        .filter_map(|name| {
            let (volume, index) = parse_name(&name)?;
            let location = LabelLocation::in_directory(folder, volume, index, None);
            Some(location.read(disk).ok()??.identity)
        })
        .find(|identity| identity.stamp.mark(identity.index) == mark)
}

/// Refuses to take over data that are another part's: those of a label in the same folder, or with
/// another mark than the part's label has.
pub(super) fn refuse_foreign(
    disk: &dyn Disk,
    part: &PartPlan,
    found: &PartOnDisk,
) -> VolumeResult<()> {
    let (PartStore::Directory(_), Some(_)) = (&part.store, found.data) else { return Ok(()) };
    let path = part.data();
    let mark = disk.mark(&path).map_err(|error| super::failed(&path, &error))?;
    let Some(mark) = mark else { return Ok(()) };
    let fault = match &found.label {
        Some(label) if label.fits_mark(Some(mark)) => None,
        Some(label) if !label.is_pending => other_data(disk, &path, label, Some(mark)),
        // The volume's own label may be lost, and with it the UUID that the mark is made of.
        _ => owned(disk, &path, mark),
    };
    match fault {
        Some((what, help)) => refuse(format!("{} {what}", part.name()), help),
        None => Ok(()),
    }
}
