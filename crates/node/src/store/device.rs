//! Parts as ranges of one file or block device.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{SeekFrom, seek};
use tidegate_fabric::service::{Job, OpenPart, Part};
use tidegate_model::Bytes;
use tidegate_model::cluster::Label;

use super::disk::{Disk, LocalDisks};
use super::file::{Files, Range};
use super::label::Area;
use super::labelled::OpenLabel;
use super::lock::StoreLock;
use super::parts::{FoundPart, OpenedPart, Parts, StoresErrors, Watcher, storage};
use super::remedies;
use super::{Medium, OpenError, Transfer, name_of};

/// Parts as ranges of one file or block device. The labels are at the end of its usable space.
pub(crate) struct DeviceStore {
    path: PathBuf,
    files: Files,
    length: Bytes,
    disk: Arc<dyn Disk>,
    parts: Parts<DevicePart>,
    /// Locked: two nodes that write one device would corrupt it.
    _lock: StoreLock,
}

struct DevicePart {
    base: u64,
    label: OpenLabel,
}

impl StoresErrors for DevicePart {
    fn store_error(&self, errno: i32) -> u64 {
        self.label.store_error(errno)
    }
}

impl DeviceStore {
    /// The file or device at `path`, which exists and keeps its length; at most `size` of it is
    /// used.
    pub(crate) fn new(path: &Path, size: Option<Bytes>) -> io::Result<Self> {
        let files = Files::open(path)?;
        let lock = StoreLock::take(files.file().try_clone()?)?;
        let length = Bytes(seek(files.file(), SeekFrom::End(0))?);
        let length = length.min(size.unwrap_or(length));
        if !files.is_direct() {
            tracing::info!(path = %path.display(), "no O_DIRECT: requests use the page cache");
        }
        let (disk, parts) = (Arc::new(LocalDisks), Parts::default());
        Ok(Self { path: path.into(), files, length, disk, parts, _lock: lock })
    }

    #[cfg(test)]
    pub(super) fn fail_next_sync(&self) {
        self.files.fails_next_sync.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn range(&self, base: u64) -> Range<'_> {
        Range { files: &self.files, base }
    }

    fn find(
        &self,
        part: &Part,
        others: &[OpenedPart<DevicePart>],
    ) -> Result<FoundPart<DevicePart>, OpenError> {
        let (start, end) = (part.offset, part.offset.saturating_add(part.length));
        let what = name_of(part);
        let failed = |error| OpenError::Io { path: self.path.clone(), error };
        let path = self.path.display();
        let unfit = |found: String| OpenError::Unfit { what: name_of(part), found };
        let area = Area::of(&self.path, self.length).map_err(|error| {
            unfit(format!(
                "does not fit on {path}: {error}; make the device larger, or let `size` say more \
                 of it"
            ))
        })?;
        if end.0 > area.begin {
            return Err(OpenError::Full { what, end, capacity: Bytes(area.begin) });
        }
        let overlaps = |other: &&OpenedPart<DevicePart>| {
            let other = &other.part;
            start < other.offset.saturating_add(other.length) && other.offset < end
        };
        if let Some(other) = others.iter().find(overlaps) {
            return Err(OpenError::Overlap { what, other: name_of(&other.part) });
        }
        let labels =
            area.read(&*self.disk).map_err(|error| unfit(format!("at {path}: {error}")))?;
        let label = labels.into_iter().find_map(|(location, label)| {
            let is_meant = |label: &Label| {
                label.identity.volume == part.volume && label.identity.index == part.index
            };
            Some((location, label.filter(is_meant)?))
        });
        let label = label.ok_or_else(|| {
            unfit(format!(
                "is not on {path}: bring it back, or make its volume with `tidegate volume create` \
                 (with --adopt if its data are there)"
            ))
        })?;
        if label.1.is_pending {
            return Err(unfit(remedies::pending(&label.0, &*self.disk, &part.volume)));
        }
        let label = OpenLabel::find(self.disk.clone(), label, part, self.files.file())?;
        if let Err(error) = self.files.sync() {
            label.store_error(error.raw_os_error().unwrap_or(libc::EIO));
        }
        let (state, has_failed) = (label.state().map_err(failed)?, label.has_failed());
        Ok(FoundPart { state, has_failed, storage: DevicePart { base: start.0, label } })
    }
}

impl Medium for DeviceStore {
    fn open(&self, part: &Part) -> Result<OpenPart, OpenError> {
        self.parts.open(part, |others| self.find(part, others))
    }

    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>) {
        for job in jobs {
            let found = storage(&self.parts.read(), job).map(|part| part.base);
            let done = match found {
                Ok(base) => self.range(base).perform(job),
                Err(fault) => Err(fault.into()),
            };
            // The lost data may be of any part.
            if let Some(errno) = done.err().and_then(|failure| failure.sync_error) {
                self.parts.fail(errno, |_| true);
            }
            job.outcome = done.map_err(|failure| failure.fault);
        }
    }

    fn transfer(&self, job: &Job) -> Option<Transfer> {
        let parts = self.parts.read();
        self.range(storage(&parts, job).ok()?.base).transfer(job)
    }

    fn on_failure(&self, job: &Job, errno: i32) {
        if let Some(errno) = self.files.sync_error(job.command, errno) {
            self.parts.fail(errno, |_| true);
        }
    }

    fn watch(&self, watcher: Watcher) {
        self.parts.watch(watcher);
    }

    fn inspect(&self) {
        self.parts.inspect(|_| self.files.presence(self.length));
    }

    fn faults(&self) -> Vec<(String, u32, String)> {
        self.parts.faults(|part| part.label.fault())
    }

    fn durable_parts(&self) -> u32 {
        self.parts.read().len() as u32
    }

    fn describe(&self) -> String {
        format!("device {}, {}", self.path.display(), self.length)
    }
}
