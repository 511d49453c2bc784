//! Faults of a volume's parts, each with the command that mends it.

use std::io;

use tidegate_model::Bytes;
use tidegate_model::cluster::{Label, SyncError};

use super::{PartOnDisk, PartPlan, PartReport, PartStore, found, is_same_part};
use crate::store::disk::Disk;
use crate::store::label::LabelLocation;
use crate::store::remedies::{geometry_hint, other_data, other_label, pending, restore_hint};

/// Inspects a part: its label, its data, and why it cannot be served.
pub(super) fn report(disk: &dyn Disk, part: &PartPlan) -> PartReport {
    let (mut is_unmade, mut has_data) = (false, false);
    let (label, fault) = match found(disk, part) {
        Err(error) => (None, Some(error.to_string())),
        Ok(PartOnDisk { label: None, data, .. }) => {
            (is_unmade, has_data) = (true, data.is_some());
            let fault = match data {
                Some(_) => "its data have no label; take them over with `volume create --adopt`",
                None => "it is not there; bring it back, or make it with `volume create`",
            };
            (None, Some(format!("{}: {fault}", part.name())))
        }
        Ok(PartOnDisk { location, label: Some(label), data }) => {
            has_data = data.is_some();
            let fault = unfit((part, &location), disk, &label, data);
            let fault = fault.or_else(|| exchanged(disk, part, &label));
            (Some(label), fault)
        }
    };
    PartReport { plan: part.clone(), label, is_unmade, has_data, fault }
}

/// Why the data beside a label are not the label's.
fn exchanged(disk: &dyn Disk, part: &PartPlan, label: &Label) -> Option<String> {
    let PartStore::Directory(_) = part.store else { return None };
    let mark = disk.mark(&part.data()).ok()?;
    let (what, help) = other_data(disk, &part.data(), label, mark)?;
    Some(format!("{} {what}; {help}", part.name()))
}

/// The data that a directory lacks, compared with their label.
pub(super) fn lacks_data(part: &PartPlan, label: &Label, data: Option<Bytes>) -> Option<String> {
    let PartStore::Directory(_) = part.store else { return None };
    let length = label.identity.length();
    match data {
        None => Some(format!("lacks its data: {} is not there", part.data().display())),
        Some(data) if data < length => Some(cut_off(part, data, length)),
        Some(_) => None,
    }
}

pub(super) fn cut_off(part: &PartPlan, found: Bytes, length: Bytes) -> String {
    let path = part.data();
    format!("lost data: {} has {found} of the {length} that it had", path.display())
}

/// Reports the faults that only a comparison of a volume's parts shows: parts of two volumes, and
/// an interrupted resize.
pub(super) fn compare(reports: &mut [PartReport]) {
    let identities = || reports.iter().filter_map(|report| Some(&report.label.as_ref()?.identity));
    let stamps = || identities().map(|identity| identity.stamp);
    let Some(first) = stamps().next() else { return };
    let latest = stamps().fold(0, |latest, stamp| latest.max(stamp.generation));
    let largest = identities().fold(Bytes::ZERO, |size, it| size.max(it.geometry.size));
    let is_mixed = stamps().any(|stamp| stamp.uuid != first.uuid);
    let is_interrupted = stamps().any(|stamp| stamp.generation != latest)
        || identities().any(|identity| identity.geometry.size != largest);
    for PartReport { plan, label, fault, .. } in reports {
        let Some(label) = label.as_ref().filter(|label| is_same_part(label, plan)) else {
            continue;
        };
        let (name, volume) = (plan.name(), &plan.volume);
        let Label { identity, is_pending, .. } = label;
        if is_mixed {
            fault.get_or_insert_with(|| {
                let uuid = identity.stamp.uuid;
                format!(
                    "{name} has the UUID {uuid}, and not all parts here have it; bring back \
                         those that belong together"
                )
            });
        } else if is_interrupted && !is_pending {
            let size = identity.geometry.size;
            *fault = Some(format!(
                "{name} has {size}: a resize of the volume to {largest} was interrupted; run \
                 `tidegate volume resize CLUSTER {volume} {largest}`"
            ));
        }
    }
}

/// Why a part with this label cannot be served.
fn unfit(
    (part, location): (&PartPlan, &LabelLocation),
    disk: &dyn Disk,
    label: &Label,
    data: Option<Bytes>,
) -> Option<String> {
    let (found, volume) = (label.identity.geometry, &part.volume);
    let fault = if label.is_pending {
        pending(location, disk, volume)
    } else if let Some((what, help)) = other_label(label, volume, part.index) {
        format!("{what}; {help}")
    } else if !is_same_part(label, part) || found != part.geometry {
        let (wanted, hint) = (part.geometry, geometry_hint(volume, found, part.geometry));
        format!("was made for a volume of {found}, and the cluster file says {wanted}; {hint}")
    } else if let Some(what) = lacks_data(part, label, data) {
        format!("{what}; {}", restore_hint(volume))
    } else if label.error.is_none() && location.has_damaged_copy(disk) {
        format!(
            "has a label of which one copy is damaged, at {}: an error that was stored there is \
             lost; check the data, and run `tidegate volume clear-error CLUSTER {volume}`, which \
             writes it anew",
            location.path.display()
        )
    } else {
        let SyncError { errno, .. } = label.error?;
        let error = io::Error::from_raw_os_error(errno);
        format!(
            "may have lost acknowledged writes: a sync failed: {error}; check it, and run \
             `tidegate volume clear-error CLUSTER {volume}`"
        )
    };
    Some(format!("{} {fault}", part.name()))
}
