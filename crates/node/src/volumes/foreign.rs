//! Refuses to take over the data of another part.

use super::{PartOnDisk, PartPlan, PartStore, VolumeResult, refuse};
use crate::store::disk::Disk;
use crate::store::remedies::{other_data, owned};

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
