//! Parts as ranges of one file or block device.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use tidegate_fabric::service::{Job, OpenPart, Part, PartState};
use tidegate_model::Bytes;

use super::directory::lock;
use super::file::{Files, Range};
use super::incarnation;
use super::parts::{Found, OpenedPart, Parts, place};
use super::{Medium, OpenError, Transfer, name_of};

/// Parts as ranges of one file or block device.
#[derive(Debug)]
pub(crate) struct Device {
    path: PathBuf,
    files: Files,
    length: Bytes,
    /// Where each part begins.
    parts: Parts<u64>,
    /// Locked: two nodes that write one device would each believe to be alone.
    _lock: File,
}

impl Device {
    /// The file or device at `path`, which is there and keeps its length.
    ///
    /// # Errors
    /// If it cannot be opened, or another node uses it (`ResourceBusy`).
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let files = Files::open(path)?;
        let lock = lock(files.file().try_clone()?)?;
        let length = Bytes(seek(files.file(), SeekFrom::End(0))?);
        if !files.is_direct() {
            tracing::info!("{}: through the page cache; no O_DIRECT here", path.display());
        }
        Ok(Self { path: path.into(), files, length, parts: Parts::default(), _lock: lock })
    }

    fn range(&self, base: u64) -> Range<'_> {
        Range { files: &self.files, base }
    }
}

impl Medium for Device {
    fn open(&self, part: &Part) -> Result<OpenPart, OpenError> {
        let (start, end) = (part.offset, part.offset.saturating_add(part.length));
        self.parts.open(part, |others| {
            let what = name_of(part);
            if end > self.length {
                return Err(OpenError::NoRoom { what, end, room: self.length });
            }
            let overlaps = |other: &&OpenedPart<u64>| {
                let other = &other.part;
                start < other.offset.saturating_add(other.length) && other.offset < end
            };
            if let Some(other) = others.iter().find(overlaps) {
                return Err(OpenError::Overlap { what, other: name_of(&other.part) });
            }
            let incarnation = incarnation::of_file(self.files.file(), 0);
            let incarnation =
                incarnation.map_err(|error| OpenError::Io { path: self.path.clone(), error })?;
            let state = PartState { incarnation, identity: None };
            Ok(Found { state, has_failed: false, place: start.0 })
        })
    }

    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>) {
        let parts = self.parts.read();
        for job in jobs {
            job.outcome = place(&parts, job).and_then(|base| self.range(*base).perform(job));
        }
    }

    fn transfer(&self, job: &Job) -> Option<Transfer> {
        let parts = self.parts.read();
        self.range(*place(&parts, job).ok()?).transfer(job)
    }

    fn describe(&self) -> String {
        format!("device {}, {}", self.path.display(), self.length)
    }
}
