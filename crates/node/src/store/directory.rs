//! Parts as files of a directory: `VOLUME.INDEX`, each as long as its part, and a label beside.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tidegate_fabric::service::{Job, OpenPart, Part};
use tidegate_fabric::trusted::{Folder, Purpose};
use tidegate_model::Bytes;
use tidegate_model::cluster::Label;

use super::disk::{Disk, LocalDisks};
use super::file::{Failure, Files, Range};
use super::label::LabelLocation;
use super::labelled::OpenLabel;
use super::lock::StoreLock;
use super::parts::{FoundPart, Parts, Presence, StoresErrors, Watcher, storage};
use super::remedies;
use super::{Medium, OpenError, Transfer, name_of};

/// Parts as files of a directory.
pub(crate) struct Directory {
    path: PathBuf,
    /// The folder for labels that this directory's file system refuses.
    fallback: Option<PathBuf>,
    disk: Arc<dyn Disk>,
    parts: Parts<FilePart>,
    /// Locked: two nodes that write one file would corrupt it. None while the directory does not
    /// exist.
    lock: Mutex<Option<StoreLock>>,
}

struct FilePart {
    files: Files,
    label: OpenLabel,
}

impl StoresErrors for FilePart {
    fn store_error(&self, errno: i32) -> u64 {
        self.label.store_error(errno)
    }
}

impl Directory {
    /// The directory at `path`. A missing one is looked up again when a part is opened: it may not
    /// be mounted yet.
    ///
    /// # Errors
    /// If it cannot be read or written, or is in use (`ResourceBusy`).
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let lock = match locked(path) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), "the directory is missing; is it mounted?");
                None
            }
            Err(error) => return Err(error),
        };
        let (disk, parts) = (Arc::new(LocalDisks), Parts::default());
        Ok(Self { path: path.into(), fallback: None, disk, parts, lock: Mutex::new(lock) })
    }

    /// The same with a folder for labels that the directory's file system refuses.
    pub(crate) fn with_fallback(self, folder: Option<&Path>) -> Self {
        Self { fallback: folder.map(Path::to_path_buf), ..self }
    }

    #[cfg(test)]
    pub(super) fn fail_next_sync(&self, part: tidegate_model::PartNumber) {
        let parts = self.parts.read();
        let files = &parts[part.index()].storage.files;
        files.fails_next_sync.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn find(&self, part: &Part) -> Result<FoundPart<FilePart>, OpenError> {
        let unfit = |found: String| OpenError::Unfit { what: name_of(part), found };
        let folder = self.path.display();
        let mut lock = crate::mutex::lock(&self.lock);
        if lock.is_none() {
            let found = locked(&self.path);
            *lock = Some(found.map_err(|error| {
                unfit(format!(
                    "is not here: {folder}: {error}; is it mounted? A new volume is made with \
                     `tidegate volume create`"
                ))
            })?);
        }
        drop(lock);
        let path = self.path.join(format!("{}.{}", part.volume, part.index));
        let fallback = self.fallback.as_deref();
        let location = LabelLocation::in_directory(&self.path, &part.volume, part.index, fallback);
        let label = location.read(&*self.disk);
        let label = label.map_err(|error| unfit(format!("cannot be used: {error}")))?;
        let length = match self.disk.length(&path) {
            Ok(length) => Some(length),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unfit(format!("cannot be used: {error}"))),
        };
        let (Some(label), Some(length)) = (label, length) else {
            let what_is_left = if path.exists() {
                "its data are there and its label is not: if they are the volume's, take them over \
                 with `tidegate volume create --adopt`"
            } else {
                "bring it back, or make its volume with `tidegate volume create`"
            };
            return Err(unfit(format!("is not in {folder}: {what_is_left}")));
        };
        if label.is_pending {
            return Err(unfit(remedies::pending(&location, &*self.disk, &part.volume)));
        }
        self.check(&path, &label, Bytes(length), part)?;
        self.opened(&path, (location, label), part)
    }

    /// Whether the data are those that the label was made for.
    fn check(
        &self,
        path: &Path,
        label: &Label,
        found: Bytes,
        part: &Part,
    ) -> Result<(), OpenError> {
        super::labelled::fits(label, part)?;
        // An interrupted resize leaves more than the label's length.
        if found < part.length {
            let found = format!(
                "lost data: {} has {found} of the {} that it had; {}",
                path.display(),
                part.length,
                remedies::restore_hint(&part.volume)
            );
            return Err(OpenError::Unfit { what: name_of(part), found });
        }
        let mark = self.disk.mark(path);
        let mark = mark.map_err(|error| OpenError::Io { path: path.into(), error })?;
        match remedies::other_data(&*self.disk, path, label, mark) {
            None => Ok(()),
            Some((what, help)) => {
                let found = format!("{what}; {help}");
                Err(OpenError::Unfit { what: name_of(part), found })
            }
        }
    }

    fn opened(
        &self,
        path: &Path,
        label: (LabelLocation, Label),
        part: &Part,
    ) -> Result<FoundPart<FilePart>, OpenError> {
        let failed = |error| OpenError::Io { path: path.into(), error };
        let files = Files::open(path).map_err(failed)?;
        if !files.is_direct() {
            tracing::info!(path = %path.display(), "no O_DIRECT: requests use the page cache");
        }
        let label = OpenLabel::find(self.disk.clone(), label, part, files.file())?;
        // The kernel reports here, once, writes that failed while no process had the file open.
        if let Err(error) = files.sync() {
            label.store_error(error.raw_os_error().unwrap_or(libc::EIO));
        }
        let (state, has_failed) = (label.state().map_err(failed)?, label.has_failed());
        Ok(FoundPart { state, has_failed, storage: FilePart { files, label } })
    }
}

/// Whether a volume's name can be that of files.
pub(crate) fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty()
        && name.len() <= Label::NAME_MAX
        && !name.starts_with('.')
        && name.bytes().all(is_plain)
}

impl Medium for Directory {
    fn open(&self, part: &Part) -> Result<OpenPart, OpenError> {
        if !is_plain(&part.volume) {
            return Err(OpenError::Name(part.volume.clone()));
        }
        // The offset has no meaning here, and must not make two parts of one.
        let part = Part { offset: Bytes::ZERO, ..part.clone() };
        self.parts.open(&part, |_| self.find(&part))
    }

    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>) {
        for job in jobs {
            let done = {
                let parts = self.parts.read();
                let part = storage(&parts, job).map_err(Failure::from);
                part.and_then(|part| Range { files: &part.files, base: 0 }.perform(job))
            };
            if let Some(errno) = done.err().and_then(|failure| failure.sync_error) {
                self.parts.fail(errno, |number| number == job.part);
            }
            job.outcome = done.map_err(|failure| failure.fault);
        }
    }

    fn transfer(&self, job: &Job) -> Option<Transfer> {
        let parts = self.parts.read();
        let part = storage(&parts, job).ok()?;
        Range { files: &part.files, base: 0 }.transfer(job)
    }

    fn on_failure(&self, job: &Job, errno: i32) {
        let lost = match self.parts.read().get(job.part.index()) {
            Some(part) => part.storage.files.sync_error(job.command, errno),
            None => None,
        };
        if let Some(errno) = lost {
            self.parts.fail(errno, |number| number == job.part);
        }
    }

    fn watch(&self, watcher: Watcher) {
        self.parts.watch(watcher);
    }

    fn inspect(&self) {
        self.parts.inspect(|opened| match opened.storage.files.presence(opened.part.length) {
            Presence::Present => opened.storage.label.presence(),
            other => other,
        });
    }

    fn faults(&self) -> Vec<(String, u32, String)> {
        self.parts.faults(|part| part.label.fault())
    }

    fn durable_parts(&self) -> u32 {
        self.parts.read().len() as u32
    }

    fn describe(&self) -> String {
        format!("directory {}", self.path.display())
    }
}

/// A directory that this process may write, locked.
fn locked(path: &Path) -> io::Result<StoreLock> {
    // It may have been mounted since the node's folders were examined.
    Folder::open(path, Purpose::Private)?;
    let lock = StoreLock::take(File::open(path)?)?;
    // A directory that cannot be written is an error now and not at the first write.
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?;
    Ok(lock)
}
