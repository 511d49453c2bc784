//! Volumes on the stores of this machine: created, adopted, grown, inspected, cleared.
//!
//! A node never makes a part by itself: a folder that is not mounted would be filled anew silently.
//! An operator makes volumes, while their nodes are stopped, and each operation can be interrupted
//! anywhere and is finished by a repetition:
//!
//! ```text
//!  create   1  a label for each part, pending     a crash before 3 ends: the volume is refused,
//!           2  the data of each part               and `create` goes on with the same UUID
//!           3  each label, no longer pending
//!  resize   1  the data of each part grow          a crash before 2 begins: the old size
//!           2  each label, one generation later    a crash in 2: refused, and `resize` goes on
//! ```
//!
//! Each step is durable before the next one begins.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_fabric::trusted::{self, Access, Folder, Purpose};
use tidegate_model::Bytes;
use tidegate_model::cluster::{Geometry, Label, PartIdentity, Uuid, VolumeStamp};

use crate::store::disk::{Disk, LocalDisks};
use crate::store::is_plain;
use crate::store::label::{Area, LabelAccessError, LabelLocation, parse_name};
use crate::store::lock::{Busy, StoreLock};
use crate::store::remedies::{geometry_hint, other_label, restore_hint};

mod foreign;
mod report;
mod resize;

use report::{compare, cut_off, lacks_data, report};

/// The location of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartStore {
    /// In a directory.
    Directory(PathBuf),
    /// On a file or device, with its usable size; none for the whole length.
    Device(PathBuf, Option<Bytes>),
}

/// A part as the cluster file describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPlan {
    /// The node that serves it.
    pub node: String,
    /// Its store.
    pub store: PartStore,
    /// The volume's name.
    pub volume: String,
    /// The part's index, counting from zero.
    pub index: u32,
    /// Its offset on a device.
    pub offset: Bytes,
    /// The volume's.
    pub geometry: Geometry,
    /// See [`crate::Config::fallback`].
    pub fallback: Option<PathBuf>,
}

/// Options of the creation of volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Creation {
    /// Adopt existing data without a label.
    pub adopt: bool,
    /// The volume's UUID, where other machines have parts of it, too; a new one if none is given.
    pub uuid: Option<Uuid>,
    /// Reserve the space of files, so that writes cannot run out of it.
    pub reserve: bool,
}

/// The state of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartReport {
    /// The part as the cluster file describes it.
    pub plan: PartPlan,
    /// Its label, if it has one that can be read.
    pub label: Option<Label>,
    /// It was never made, or made before there were labels.
    pub is_unmade: bool,
    /// There are data at its location, with or without a label. Always false for devices.
    pub has_data: bool,
    /// Why the part cannot be served, in words for people.
    pub fault: Option<String>,
}

/// Why an operation on a volume failed; it can be repeated once that is mended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}; {help}")]
pub struct VolumeError {
    /// The fault, and its location.
    pub what: String,
    /// How to mend it.
    pub help: String,
}

type VolumeResult<T> = Result<T, VolumeError>;

fn refuse<T>(what: impl Into<String>, help: impl Into<String>) -> VolumeResult<T> {
    Err(VolumeError { what: what.into(), help: help.into() })
}

/// Makes the parts of one volume that are not there yet, and gives them one UUID. Parts of a volume
/// that was created before are left alone.
///
/// # Errors
/// If a node runs, data would be taken over without [`Creation::adopt`], a part is missing of a
/// volume that was created before, or the system refuses.
pub fn create(parts: &[PartPlan], creation: Creation) -> VolumeResult<VolumeStamp> {
    let _locks = locks(parts, true)?;
    parts.iter().try_for_each(is_alone)?;
    create_on(&LocalDisks, parts, creation)
}

/// Grows the volume to this size. Its new generation counts once all of its parts have grown; it is
/// the next one, or the one that is given because parts on other machines have it.
///
/// # Errors
/// If a node runs, a part is missing or damaged, the volume would shrink, or there is no space.
pub fn resize(
    parts: &[PartPlan],
    size: Bytes,
    generation: Option<u64>,
) -> VolumeResult<VolumeStamp> {
    let _locks = locks(parts, false)?;
    resize::resize_on(&LocalDisks, parts, size, generation)
}

/// Inspects the parts of a volume, also while their nodes run, and compares them.
pub fn show(parts: &[PartPlan]) -> Vec<PartReport> {
    let mut reports: Vec<_> = parts.iter().map(|part| report(&LocalDisks, part)).collect();
    compare(&mut reports);
    reports
}

/// Clears the stored errors of the parts: an operator has checked what is lost. Labels with a
/// damaged copy are written anew. Returns the number of parts.
///
/// # Errors
/// If a node runs, or a label cannot be read or written.
pub fn clear_error(parts: &[PartPlan]) -> VolumeResult<usize> {
    let _locks = locks(parts, false)?;
    let mut cleared = 0;
    for part in parts {
        let PartOnDisk { location, label, .. } = found(&LocalDisks, part)?;
        let is_cleared =
            |label: &Label| label.error.is_some() || location.has_damaged_copy(&LocalDisks);
        let Some(mut label) = label.filter(is_cleared) else { continue };
        label.error = None;
        location.write(&LocalDisks, &mut label).map_err(|error| failed(&location.path, &error))?;
        cleared += 1;
    }
    Ok(cleared)
}

/// Locks the stores, so that no node uses them meanwhile.
fn locks(parts: &[PartPlan], is_made: bool) -> VolumeResult<Vec<StoreLock>> {
    // In one order, so that two commands on the same stores do not deadlock.
    let stores = parts.iter().map(|part| (part.store.path(), &part.store));
    let stores: BTreeMap<_, _> = stores.collect();
    let locked = |store: &&PartStore| {
        let path = store.path();
        let opened = match store {
            PartStore::Directory(_) if is_made => Folder::make(path, Purpose::Private).map(drop),
            PartStore::Directory(_) => Folder::open(path, Purpose::Private).map(drop),
            PartStore::Device(..) => trusted::open(path, Access::Read).map(drop),
        };
        let opened = opened.map_err(io::Error::from).and_then(|()| File::open(path));
        opened.and_then(StoreLock::take).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                let busy = error.get_ref().and_then(|busy| busy.downcast_ref::<Busy>());
                VolumeError {
                    what: format!("{} is in use: {error}", path.display()),
                    help: busy.map_or("try again later", Busy::help).into(),
                }
            }
            io::ErrorKind::NotFound if matches!(store, PartStore::Device(..)) => VolumeError {
                what: format!("cannot use {} as a node's store: {error}", path.display()),
                help: "make it with `truncate -s SIZE`, or use a directory instead".into(),
            },
            _ => failed(path, &error),
        })
    };
    stores.values().map(locked).collect()
}

impl PartStore {
    /// The directory, file or device.
    pub fn path(&self) -> &Path {
        match self {
            Self::Directory(path) | Self::Device(path, _) => path,
        }
    }
}

impl PartPlan {
    /// Its name in messages for people.
    fn name(&self) -> String {
        let Self { node, volume, index, .. } = self;
        format!("part {index} of volume {volume} at node {node}")
    }

    /// Whether the label of this part is in `folder`.
    pub fn has_label_in(&self, folder: &Path) -> bool {
        let location = LabelLocation::in_directory(folder, &self.volume, self.index, None);
        location.path.symlink_metadata().is_ok()
    }

    fn data(&self) -> PathBuf {
        match &self.store {
            PartStore::Directory(path) => path.join(format!("{}.{}", self.volume, self.index)),
            PartStore::Device(path, _) => path.clone(),
        }
    }

    fn offset(&self) -> Bytes {
        match &self.store {
            PartStore::Directory(_) => Bytes::ZERO,
            PartStore::Device(..) => self.offset,
        }
    }
}

/// The label and the data of a part, as found.
struct PartOnDisk {
    location: LabelLocation,
    label: Option<Label>,
    /// Length of the data in a directory; none if there are none.
    data: Option<Bytes>,
}

/// An error of the system, or one that contains its location and remedy.
fn failed(path: &Path, error: &dyn fmt::Display) -> VolumeError {
    let (text, path) = (error.to_string(), path.display().to_string());
    match text.split_once("; ").filter(|(what, _)| what.contains(&path)) {
        Some((what, help)) => VolumeError { what: what.into(), help: help.into() },
        None => VolumeError {
            what: format!("{path}: {text}"),
            help: "mend that and do it again".into(),
        },
    }
}

fn found(disk: &dyn Disk, part: &PartPlan) -> VolumeResult<PartOnDisk> {
    if !is_plain(&part.volume) {
        let what = format!("{:?} can be no volume's name here", part.volume);
        return refuse(what, "use up to 200 letters, digits, `-`, `_` and `.`");
    }
    let damaged = |error: LabelAccessError| VolumeError {
        what: format!("the label of {} cannot be read: {error}", part.name()),
        help: match error {
            LabelAccessError::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                "run the command as root or as the user that runs the node".into()
            }
            _ => "restore it from a backup; with a file, move `.label` away and use --adopt".into(),
        },
    };
    match &part.store {
        PartStore::Directory(folder) => {
            let fallback = part.fallback.as_deref();
            let location = LabelLocation::in_directory(folder, &part.volume, part.index, fallback);
            let label = location.read(disk).map_err(damaged)?;
            let data = match disk.length(&part.data()) {
                Ok(length) => Some(Bytes(length)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(failed(&part.data(), &error)),
            };
            Ok(PartOnDisk { location, label, data })
        }
        PartStore::Device(path, size) => {
            let area = area(disk, part, path, *size)?;
            let labels = area.read(disk).map_err(damaged)?;
            let is_meant = |label: &Label| {
                label.identity.volume == part.volume && label.identity.index == part.index
            };
            let slot = labels.iter().find(|(_, label)| label.as_ref().is_some_and(is_meant));
            let free = || labels.iter().find(|(_, label)| label.is_none());
            match slot.or_else(free) {
                Some((location, label)) => {
                    Ok(PartOnDisk { location: location.clone(), label: label.clone(), data: None })
                }
                None => refuse(
                    format!("{} has no room for the label of {}", path.display(), part.name()),
                    "put it on another device",
                ),
            }
        }
    }
}

/// The labels of a device, once the part is known to lie before them and beside all others.
fn area(disk: &dyn Disk, part: &PartPlan, path: &Path, size: Option<Bytes>) -> VolumeResult<Area> {
    let length = Bytes(disk.length(path).map_err(|error| failed(path, &error))?);
    let usable = length.min(size.unwrap_or(length));
    let area = Area::of(path, usable).map_err(|error| VolumeError {
        what: format!("{} does not fit on {}: {error}", part.name(), path.display()),
        help: "make the device larger, or let `size` say more of it".into(),
    })?;
    let end = part.offset.saturating_add(part.geometry.part_length(part.index));
    if end.0 > area.begin {
        let (begin, name, path) = (Bytes(area.begin), part.name(), path.display());
        return refuse(
            format!("{name} would end at {end} of {path}, whose labels begin at {begin}"),
            "make the device larger by 1MiB, let `size` say more of it, or make the volume smaller",
        );
    }
    let labels = area.read(disk).map_err(|error| failed(path, &error))?;
    for identity in labels.iter().filter_map(|(_, label)| Some(&label.as_ref()?.identity)) {
        let is_same = identity.volume == part.volume && identity.index == part.index;
        let is_beside = identity.offset >= end
            || identity.offset.saturating_add(identity.length()) <= part.offset;
        if !is_same && !is_beside {
            let (index, volume) = (identity.index, &identity.volume);
            return refuse(
                format!("{} would overlap part {index} of volume {volume}", part.name()),
                "give it another offset",
            );
        }
    }
    Ok(area)
}

/// Whether a label is that of the part, whatever its size.
fn is_same_part(label: &Label, part: &PartPlan) -> bool {
    let (found, wanted) = (&label.identity, &part.geometry);
    let is_same = found.volume == part.volume && found.index == part.index;
    let is_laid_out =
        (found.geometry.count, found.geometry.stripe) == (wanted.count, wanted.stripe);
    is_same && is_laid_out && found.offset == part.offset()
}

/// Whether the part's folder has no other part of its volume. One that has was made for a cluster
/// file with another order of nodes, and a new volume beside it would be taken for the old one.
fn is_alone(part: &PartPlan) -> VolumeResult<()> {
    let PartStore::Directory(folder) = &part.store else { return Ok(()) };
    let entries = std::fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    for entry in entries {
        let name = entry.map_err(|error| failed(folder, &error))?.file_name();
        let Some((volume, other)) = name.to_str().and_then(parse_name) else { continue };
        if volume == part.volume && other != part.index {
            return refuse(
                format!("{} would lie beside part {other} of it", part.name()),
                format!(
                    "is the order of `nodes` another one than when the volume was created? Restore \
                     it, or move {} away",
                    folder.join(name).display()
                ),
            );
        }
    }
    Ok(())
}

fn create_on(disk: &dyn Disk, parts: &[PartPlan], creation: Creation) -> VolumeResult<VolumeStamp> {
    let all = parts.iter().map(|part| Ok((part, found(disk, part)?)));
    let mut all = all.collect::<VolumeResult<Vec<_>>>()?;
    let stamp = stamp(&all, creation)?;
    if creation.adopt {
        all.iter().try_for_each(|(part, found)| foreign::refuse_foreign(disk, part, found))?;
    }
    for (part, found) in &mut all {
        if found.label.is_none() {
            let PartPlan { volume, index, geometry, .. } = PartPlan::clone(part);
            let offset = part.offset();
            let identity = PartIdentity { volume, index, offset, geometry, stamp };
            let label = Label { is_pending: true, ..Label::new(identity) };
            found
                .location
                .make(disk, &label)
                .map_err(|error| failed(&found.location.path, &error))?;
            found.label = Some(label);
        }
    }
    for (part, found) in &mut all {
        let Some(label) = &mut found.label else { continue };
        if let PartStore::Directory(folder) = &part.store
            && (label.is_pending || creation.adopt)
        {
            let made = make_data(disk, folder, (part, stamp), creation.reserve);
            let is_marked = made.map_err(|error| failed(&part.data(), &error))?;
            if is_marked != label.is_marked && !label.is_pending {
                label.is_marked = is_marked;
                let written = found.location.write(disk, label);
                written.map_err(|error| failed(&found.location.path, &error))?;
            }
            label.is_marked = is_marked;
        } else if creation.reserve && matches!(part.store, PartStore::Directory(_)) {
            let (path, length) = (part.data(), part.geometry.part_length(part.index));
            let reserved = disk.grow(&path, length.0, true).and_then(|()| disk.sync(&path));
            reserved.map_err(|error| failed(&path, &error))?;
        }
    }
    for (_, PartOnDisk { location, label, .. }) in &mut all {
        if let Some(label) = label.as_mut().filter(|label| label.is_pending) {
            label.is_pending = false;
            location.write(disk, label).map_err(|error| failed(&location.path, &error))?;
        }
    }
    Ok(stamp)
}

/// The identity that all parts are to have, if they can.
fn stamp(all: &[(&PartPlan, PartOnDisk)], creation: Creation) -> VolumeResult<VolumeStamp> {
    let labels = || all.iter().filter_map(|(part, found)| Some((*part, found.label.as_ref()?)));
    for (part, label) in labels() {
        if let Some((what, help)) = other_label(label, &part.volume, part.index) {
            return refuse(format!("{} {what}", part.name()), help);
        }
        if !is_same_part(label, part) || label.identity.geometry != part.geometry {
            let (name, geometry) = (part.name(), label.identity.geometry);
            return refuse(
                format!("{name} was made for a volume of {geometry}, not of {}", part.geometry),
                geometry_hint(&part.volume, geometry, part.geometry),
            );
        }
    }
    let first = labels().next().map(|(_, label)| label.identity.stamp);
    if let Some((part, label)) = labels().find(|(_, it)| Some(it.identity.stamp) != first) {
        let what = format!("{} is of another volume than the first part here", part.name());
        let uuid = label.identity.stamp.uuid;
        return refuse(what, format!("its UUID is {uuid}; bring back the right one"));
    }
    let is_created = labels().any(|(_, label)| !label.is_pending);
    for (part, found) in all {
        can_be_created(part, found, first.filter(|_| is_created), creation)?;
    }
    match (first, creation.uuid) {
        (Some(stamp), Some(uuid)) if stamp.uuid != uuid => {
            refuse(format!("the volume has the UUID {}", stamp.uuid), "give that one, or none")
        }
        (Some(stamp), _) => Ok(stamp),
        (None, uuid) => {
            let uuid = uuid.map_or_else(random, Ok);
            let uuid = uuid.map_err(|error| failed(Path::new("randomness"), &error))?;
            Ok(VolumeStamp { uuid, generation: 1 })
        }
    }
}

/// Checks that no existing data or label prevents a part from being made.
fn can_be_created(
    part: &PartPlan,
    found: &PartOnDisk,
    created: Option<VolumeStamp>,
    creation: Creation,
) -> VolumeResult<()> {
    let length = part.geometry.part_length(part.index);
    match (&found.label, found.data) {
        (None, Some(_)) if let Some(stamp) = created.filter(|_| creation.uuid.is_none()) => refuse(
            format!("{} has data without a label, and the volume was created before", part.name()),
            format!("if they are the volume's, take them over with --adopt --uuid {}", stamp.uuid),
        ),
        (None, _) if created.is_some() && creation.uuid.is_none() => refuse(
            format!("{} is missing, and the volume was created before", part.name()),
            "bring it back (is everything mounted?), or remove the other parts, or make it anew \
             and empty with --uuid",
        ),
        (None, Some(_)) if !creation.adopt => refuse(
            format!("{} has data without a label", part.name()),
            "take them over with --adopt, or move them away",
        ),
        (Some(_), Some(data)) if data < length => refuse(
            format!("{} {}", part.name(), cut_off(part, data, length)),
            restore_hint(&part.volume),
        ),
        (None, Some(data)) if data != length => refuse(
            format!("{} has {data} and is to have {length}", part.data().display()),
            "correct the volume's size, or move the file away",
        ),
        (Some(label), None)
            if !label.is_pending && matches!(part.store, PartStore::Directory(_)) =>
        {
            let what = format!("the data of {} are missing", part.name());
            refuse(what, format!("bring back {}", part.data().display()))
        }
        _ => Ok(()),
    }
}

/// Makes the data of a part, or takes over what is there. Says whether they bear the UUID.
fn make_data(
    disk: &dyn Disk,
    folder: &Path,
    (part, stamp): (&PartPlan, VolumeStamp),
    reserve: bool,
) -> io::Result<bool> {
    let (path, length) = (part.data(), part.geometry.part_length(part.index));
    let is_there = match disk.length(&path) {
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    if is_there {
        if reserve {
            disk.grow(&path, length.0, true)?;
        }
        let is_marked = disk.set_mark(&path, stamp.mark(part.index))?;
        disk.sync(&path)?;
        return Ok(is_marked);
    }
    // It gets its name only once it is complete.
    let begun = folder.join(format!(".{}.{}.new", part.volume, part.index));
    disk.create(&begun)?;
    disk.grow(&begun, length.0, reserve)?;
    let is_marked = disk.set_mark(&begun, stamp.mark(part.index))?;
    disk.sync(&begun)?;
    disk.rename(&begun, &path)?;
    disk.sync_folder(folder)?;
    Ok(is_marked)
}

fn random() -> io::Result<Uuid> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    // Version 4, variant 1.
    (bytes[6], bytes[8]) = (bytes[6] & 0x0f | 0x40, bytes[8] & 0x3f | 0x80);
    Ok(Uuid(bytes))
}

#[cfg(test)]
mod refusal_tests;
#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
