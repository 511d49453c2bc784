//! Labels of parts on their media: their locations, and how they are read and written.
//!
//! In a directory, a part's label is a file beside its data, `VOLUME.INDEX.label`. On a device, the
//! last mebibyte of the usable space is an area of slots, one for each part. Either way a label is
//! two blocks of 4 KiB with a copy in each, written alternately ([`Label`]). Their space is taken
//! when the label is made, so that a full disk cannot keep an error from being stored.
//!
//! A file system may refuse all writes after an error. A label in a directory then has one more
//! copy in a folder elsewhere, the *fallback*, which counts while it is the latest.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tidegate_model::Bytes;
use tidegate_model::cluster::{Label, LabelError};

use super::disk::Disk;

/// The distance between the copies of a label.
const BLOCK: u64 = 4 << 10;

/// The size of a label with its copy, in bytes.
const SLOT: u64 = 2 * BLOCK;

/// The size of all labels of a device, in bytes, at the end of its usable space.
pub(crate) const AREA: u64 = 1 << 20;

/// The most parts of a device.
const SLOTS: u64 = AREA / SLOT;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelLocation {
    pub(crate) path: PathBuf,
    offset: u64,
    /// The file that is written if a write to this one fails.
    fallback: Option<PathBuf>,
}

/// Why a label cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LabelAccessError {
    /// Its bytes are no label.
    #[error("{0}")]
    Label(LabelError),
    /// The system refuses a call.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for LabelAccessError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The volume and the index in the name of a part's data or label.
pub(crate) fn parse_name(name: &str) -> Option<(&str, u32)> {
    let (volume, index) = name.strip_suffix(".label").unwrap_or(name).rsplit_once('.')?;
    Some((volume, index.parse().ok()?))
}

impl LabelLocation {
    /// The label of a part in a directory, with a folder for the copy that the directory refuses.
    pub(crate) fn in_directory(
        folder: &Path,
        volume: &str,
        index: u32,
        fallback: Option<&Path>,
    ) -> Self {
        let name = format!("{volume}.{index}.label");
        let path = folder.join(&name);
        let fallback = fallback.map(|folder| folder.join(name)).filter(|copy| *copy != path);
        Self { path, offset: 0, fallback }
    }

    /// Returns the label; none if there is none.
    pub(crate) fn read(&self, disk: &dyn Disk) -> Result<Option<Label>, LabelAccessError> {
        let mut bytes = vec![0; SLOT as usize];
        match disk.read(&self.path, self.offset, &mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        }
        let label = parse(&bytes)?;
        Ok(label.map(|label| self.fallen_back(disk, &label).unwrap_or(label)))
    }

    /// The copy in the fallback, if it is later than this label of the same part.
    fn fallen_back(&self, disk: &dyn Disk, label: &Label) -> Option<Label> {
        let mut bytes = [0; Label::LENGTH];
        disk.read(self.fallback.as_ref()?, 0, &mut bytes).ok()?;
        let copy = Label::parse(&bytes).ok()?;
        let is_later = copy.identity.stamp.uuid == label.identity.stamp.uuid
            && copy.identity.index == label.identity.index
            && copy.sequence > label.sequence;
        is_later.then_some(copy)
    }

    /// Writes a copy to the fallback.
    fn fall_back(&self, disk: &dyn Disk, label: &Label) -> io::Result<&Path> {
        let path = self.fallback.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        disk.create(path)?;
        disk.write(path, 0, &label.to_bytes())?;
        disk.sync(path)?;
        disk.sync_folder(folder)?;
        disk.sync_folder(folder.parent().unwrap_or(Path::new("/")))?;
        Ok(path)
    }

    /// Whether one of its two copies was written and cannot be read any more.
    pub(crate) fn has_damaged_copy(&self, disk: &dyn Disk) -> bool {
        let mut bytes = vec![0; SLOT as usize];
        let is_read = disk.read(&self.path, self.offset, &mut bytes).is_ok();
        let is_damaged = |block: &[u8]| {
            let copy = block.first_chunk::<{ Label::LENGTH }>();
            copy.is_some_and(|copy| *copy != [0; Label::LENGTH] && Label::parse(copy).is_err())
        };
        is_read && bytes.chunks_exact(BLOCK as usize).any(is_damaged)
    }

    /// Makes the label, which takes its space.
    pub(crate) fn make(&self, disk: &dyn Disk, label: &Label) -> io::Result<()> {
        let mut bytes = vec![0; SLOT as usize];
        let copy = self.copy(label) as usize;
        bytes[copy..copy + Label::LENGTH].copy_from_slice(&label.to_bytes());
        if self.offset != 0 {
            disk.write(&self.path, self.offset, &bytes)?;
            return disk.sync(&self.path);
        }
        // It gets its name only once it is complete.
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let begun = self.path.with_file_name(format!(".{name}.new"));
        disk.create(&begun)?;
        disk.write(&begun, 0, &bytes)?;
        disk.sync(&begun)?;
        disk.rename(&begun, &self.path)?;
        disk.sync_folder(self.path.parent().unwrap_or(Path::new("/")))
    }

    /// Writes the label over the older one of its copies, or to the fallback. It is durable then.
    ///
    /// # Errors
    /// If the system refuses both; the newer copy is as it was.
    pub(crate) fn write(&self, disk: &dyn Disk, label: &mut Label) -> io::Result<()> {
        let later = Label { sequence: label.sequence + 1, ..label.clone() };
        let offset = self.offset + self.copy(&later);
        let written = disk.write(&self.path, offset, &later.to_bytes());
        if let Err(error) = written.and_then(|()| disk.sync(&self.path)) {
            let Ok(fallback) = self.fall_back(disk, &later) else { return Err(error) };
            let (path, fallback) = (self.path.display(), fallback.display());
            tracing::warn!(
                %path,
                %error,
                %fallback,
                "the label is written to another file from now on"
            );
        }
        *label = later;
        Ok(())
    }

    fn copy(&self, label: &Label) -> u64 {
        label.sequence % 2 * BLOCK
    }
}

fn parse(bytes: &[u8]) -> Result<Option<Label>, LabelAccessError> {
    let copies = [0, BLOCK as usize].map(|at| {
        let mut copy = [0; Label::LENGTH];
        copy.copy_from_slice(&bytes[at..at + Label::LENGTH]);
        let is_clear = copy.iter().all(|byte| *byte == 0);
        (is_clear, Label::parse(&copy))
    });
    match copies {
        // Space that was never written, or whose first write was interrupted, had no label before.
        [(true, _), (_, Err(LabelError::Absent | LabelError::Damaged))]
        | [(_, Err(LabelError::Absent | LabelError::Damaged)), (true, _)] => Ok(None),
        [(_, one), (_, other)] => match Label::latest([one, other]) {
            Ok(label) => Ok(Some(label)),
            // Foreign data, where no label was ever written.
            Err(LabelError::Absent) => Ok(None),
            Err(error) => Err(LabelAccessError::Label(error)),
        },
    }
}

/// The labels of a device.
#[derive(Debug)]
pub(crate) struct Area {
    path: PathBuf,
    /// Its offset, which is the end of the space for parts.
    pub(crate) begin: u64,
}

impl Area {
    /// The area of a device with so much usable space.
    ///
    /// # Errors
    /// If that is too little for one.
    pub(crate) fn of(path: &Path, usable: Bytes) -> io::Result<Self> {
        let begin = (usable.0 & !(BLOCK - 1)).checked_sub(AREA).filter(|begin| *begin > 0);
        let begin = begin.ok_or_else(|| {
            let message = format!("{usable} are too few for parts and a label area of 1 MiB");
            io::Error::new(io::ErrorKind::InvalidInput, message)
        })?;
        Ok(Self { path: path.into(), begin })
    }

    fn location(&self, slot: u64) -> LabelLocation {
        LabelLocation { path: self.path.clone(), offset: self.begin + slot * SLOT, fallback: None }
    }

    /// All labels, by slot; none where a slot is free.
    pub(crate) fn read(
        &self,
        disk: &dyn Disk,
    ) -> Result<Vec<(LabelLocation, Option<Label>)>, LabelAccessError> {
        let mut bytes = vec![0; AREA as usize];
        disk.read(&self.path, self.begin, &mut bytes)?;
        let slots = (0..SLOTS).zip(bytes.chunks_exact(SLOT as usize));
        slots.map(|(slot, bytes)| Ok((self.location(slot), parse(bytes)?))).collect()
    }
}

#[cfg(test)]
#[path = "label_tests.rs"]
mod tests;
