//! An open part's label: it identifies the part and stores its errors.

use std::io;
use std::sync::{Arc, Mutex};

use tidegate_fabric::clock::unix_ms;
use tidegate_fabric::service::{Part, PartState};
use tidegate_model::UnixTime;
use tidegate_model::cluster::{Geometry, Label, SyncError};

use super::disk::Disk;
use super::incarnation;
use super::label::LabelLocation;
use super::parts::Presence;
use super::remedies::{geometry_hint, other_label};
use super::{OpenError, name_of};
use crate::mutex::lock;

pub(super) struct OpenLabel {
    disk: Arc<dyn Disk>,
    location: LabelLocation,
    label: Mutex<Label>,
    /// Incarnations consist of these data and the number of errors.
    file: std::fs::File,
}

impl OpenLabel {
    /// The label at `location`, if it is that of `part`.
    pub(super) fn find(
        disk: Arc<dyn Disk>,
        (location, label): (LabelLocation, Label),
        part: &Part,
        file: &std::fs::File,
    ) -> Result<Self, OpenError> {
        fits(&label, part)?;
        let failed = |error| OpenError::Io { path: location.path.clone(), error };
        let file = file.try_clone().map_err(failed)?;
        Ok(Self { disk, location, label: Mutex::new(label), file })
    }

    /// The state of the part, in the form that is sent to gateways.
    pub(super) fn state(&self) -> io::Result<PartState> {
        let label = lock(&self.label);
        let incarnation = incarnation::of_file(&self.file, label.error_count)?;
        Ok(PartState { incarnation, identity: Some(label.identity.stamp) })
    }

    /// Whether an error is stored.
    pub(super) fn has_failed(&self) -> bool {
        lock(&self.label).error.is_some()
    }

    /// Whether errors of the part can be stored in the label.
    pub(super) fn presence(&self) -> Presence {
        let path = &self.location.path;
        match path.symlink_metadata() {
            Ok(found) if found.is_file() => Presence::Present,
            Ok(_) => Presence::Displaced(format!(
                "has something else than its label at {}; bring the label back",
                path.display()
            )),
            Err(error) => Presence::Displaced(format!(
                "lacks its label: {}: {error}; bring it back",
                path.display()
            )),
        }
    }

    /// The stored error, for people.
    pub(super) fn fault(&self) -> Option<String> {
        lock(&self.label)
            .error
            .map(|error| describe(error, &self.location.path.display().to_string()))
    }

    /// Stores the result of a sync; returns the incarnation from here on.
    pub(super) fn store_error(&self, errno: i32) -> u64 {
        let mut label = lock(&self.label);
        let at_seconds = unix_ms() / 1_000;
        label.error_count += 1;
        label.error = Some(SyncError { errno, at_seconds });
        let (volume, part) = (&label.identity.volume, label.identity.index);
        let error = io::Error::from_raw_os_error(errno);
        tracing::error!(
            volume,
            part,
            %error,
            "a sync failed; acknowledged writes may be lost, and every flush fails until \
             `tidegate volume clear-error CLUSTER VOLUME`"
        );
        if let Err(error) = self.location.write(&*self.disk, &mut label) {
            let path = self.location.path.display();
            tracing::error!(%path, %error, "the error cannot be stored; do not restart the node");
        }
        // A file that cannot be queried any more counts as another one.
        let count = label.error_count;
        incarnation::of_file(&self.file, count).unwrap_or_else(|_| incarnation::of_memory())
    }
}

/// A stored error, for people.
pub(crate) fn describe(error: SyncError, location: &str) -> String {
    let SyncError { errno, at_seconds } = error;
    let error = io::Error::from_raw_os_error(errno);
    format!(
        "a sync failed at {}: {error}; acknowledged writes may be lost: check \
         {location}, restore what is missing, and run `tidegate volume clear-error`",
        UnixTime(at_seconds)
    )
}

/// Whether a label is that of a part.
pub(super) fn fits(label: &Label, part: &Part) -> Result<(), OpenError> {
    let refuse = |found: String| Err(OpenError::Unfit { what: name_of(part), found });
    let identity = &label.identity;
    if let Some((what, help)) = other_label(label, &part.volume, part.index) {
        return refuse(format!("{what}; {help}"));
    }
    let Geometry { size, count, stripe } = identity.geometry;
    if count != part.geometry.count || stripe != part.geometry.stripe {
        let (found, wanted) = (identity.geometry, part.geometry);
        return Err(OpenError::Geometry { what: name_of(part), found, wanted });
    }
    if size != part.geometry.size {
        let wanted = part.geometry.size;
        let volume = &part.volume;
        let hint = geometry_hint(volume, identity.geometry, part.geometry);
        return refuse(format!(
            "belongs to a volume of {size}, and the cluster file says {wanted}; {hint}"
        ));
    }
    if identity.offset != part.offset {
        let (found, wanted) = (identity.offset, part.offset);
        return refuse(format!(
            "begins at {found} of the device, and the cluster file says {wanted}; correct the file"
        ));
    }
    Ok(())
}
