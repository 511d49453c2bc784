//! Faults of labels and data that are not the part's own, each with its remedy.
//!
//! Data in a directory bear a mark, the attribute `user.tidegate.uuid`, which names the volume and
//! the part that they were made for. A label names them as well. Exchanged files are recognised by
//! both, and are never taken over as if they were the part's own.

use std::path::Path;

use tidegate_model::cluster::{Geometry, Label, PartIdentity, Uuid};

use super::disk::Disk;
use super::label::{LabelLocation, parse_name};

/// A fault, and how to mend it.
type FoundFault = (String, String);

/// Why a label cannot be that of part `index` of `volume`, whatever its size.
pub(crate) fn other_label(label: &Label, volume: &str, index: u32) -> Option<FoundFault> {
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
) -> Option<FoundFault> {
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
pub(crate) fn owned(disk: &dyn Disk, path: &Path, mark: Uuid) -> Option<FoundFault> {
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

/// The remedy for a file that was lost or truncated.
pub(crate) fn restore_hint(volume: &str) -> String {
    format!("restore it from a backup (then run `tidegate volume create CLUSTER {volume} --adopt`)")
}

/// The advice where a label has another geometry than the cluster file. A part alone does not show
/// whether a resize was interrupted, so one command helps in each case: the larger size is what the
/// volume is to have, and `resize` to it grows the volume, finishes that, or finds it done.
pub(crate) fn geometry_hint(volume: &str, found: Geometry, wanted: Geometry) -> String {
    if (found.count, found.stripe) != (wanted.count, wanted.stripe) {
        return "correct the cluster file".into();
    }
    let (found, wanted) = (found.size, wanted.size);
    let resize = format!("run `tidegate volume resize CLUSTER {volume} {}`", found.max(wanted));
    match wanted > found {
        true => format!("{resize}, which grows the volume, or finishes that if it was begun"),
        false => format!(
            "{resize}, which finishes a resize if one was interrupted, and write size = \
             \"{found}\" into the cluster file"
        ),
    }
}

/// Why a part cannot be served whose label marks its volume as incomplete.
pub(crate) fn pending(location: &LabelLocation, disk: &dyn Disk, volume: &str) -> String {
    let create = format!("`tidegate volume create CLUSTER {volume}`");
    match location.has_damaged_copy(disk) {
        true => format!(
            "has a label of which one copy is damaged, at {}, and the other was written before \
             the volume was complete; run {create}, which writes it anew and leaves the data as \
             they are",
            location.path.display()
        ),
        false => format!("was begun and not finished; run {create} again"),
    }
}
