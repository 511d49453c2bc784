//! Parts as files of a directory: `volume.index`, each exactly as long as its part.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, FallocateFlags, FlockOperation, RenameFlags, fallocate, flock, renameat_with,
};
use tidegate_fabric::service::{Job, OpenPart, Part, PartState};
use tidegate_model::Bytes;

use super::file::{Files, Range};
use super::incarnation;
use super::parts::{Found, Parts, place};
use super::{Medium, OpenError, Transfer, name_of};

/// Parts as files of a directory.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Reserve a part's space when it is made, rather than when it is written.
    reserve: bool,
    parts: Parts<Files>,
    /// Locked: two nodes that write one file would each believe to be alone.
    _lock: File,
}

impl Directory {
    /// The directory at `path`, which is made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made or read, or another node uses it (`ResourceBusy`).
    pub(crate) fn new(path: &Path, reserve: bool) -> io::Result<Self> {
        fs::create_dir_all(path)?;
        let lock = lock(File::open(path)?)?;
        // A directory that cannot be written is told now and not when the first volume comes.
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?;
        Ok(Self { path: path.into(), reserve, parts: Parts::default(), _lock: lock })
    }

    fn find(&self, part: &Part) -> Result<Found<Files>, OpenError> {
        let path = self.path.join(format!("{}.{}", part.volume, part.index));
        let failed = |error| OpenError::Io { path: path.clone(), error };
        match fs::metadata(&path) {
            Ok(metadata) => {
                let (found, wanted) = (Bytes(metadata.len()), part.length);
                if found != wanted {
                    let what = format!("{} ({})", path.display(), name_of(part));
                    return Err(OpenError::WrongSize { what, found, wanted });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make(&path, part).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        let files = Files::open(&path).map_err(failed)?;
        if !files.is_direct() {
            tracing::info!("{}: through the page cache; no O_DIRECT here", path.display());
        }
        let incarnation = incarnation::of_file(files.file(), 0).map_err(failed)?;
        let state = PartState { incarnation, identity: None };
        Ok(Found { state, has_failed: false, place: files })
    }

    /// Makes a file of the part's length. It has its name only once it has its length, so whoever
    /// is interrupted in between leaves nothing that looks like a store.
    fn make(&self, path: &Path, part: &Part) -> io::Result<()> {
        let begun = self.path.join(format!(".{}.{}.new", part.volume, part.index));
        let _ = fs::remove_file(&begun);
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&begun)?;
        let made = self
            .fill(&file, part.length.0)
            .and_then(|()| Ok(renameat_with(CWD, &begun, CWD, path, RenameFlags::NOREPLACE)?));
        if made.is_err() {
            let _ = fs::remove_file(&begun);
        }
        made
    }

    fn fill(&self, file: &File, length: u64) -> io::Result<()> {
        file.set_len(length)?;
        if self.reserve && length > 0 {
            fallocate(file, FallocateFlags::empty(), 0, length)?;
        }
        file.sync_all()
    }
}

impl Medium for Directory {
    fn open(&self, part: &Part) -> Result<OpenPart, OpenError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let name = &part.volume;
        if name.is_empty()
            || name.len() > 200
            || name.starts_with('.')
            || !name.bytes().all(is_plain)
        {
            return Err(OpenError::Name(name.clone()));
        }
        // Where it begins is of no meaning here, and must not make two of one.
        let part = Part { offset: Bytes::ZERO, ..part.clone() };
        self.parts.open(&part, |_| self.find(&part))
    }

    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>) {
        let parts = self.parts.read();
        for job in jobs {
            job.outcome =
                place(&parts, job).and_then(|files| Range { files, base: 0 }.perform(job));
        }
    }

    fn transfer(&self, job: &Job) -> Option<Transfer> {
        let parts = self.parts.read();
        let files = place(&parts, job).ok()?;
        Range { files, base: 0 }.transfer(job)
    }

    fn describe(&self) -> String {
        format!("directory {}", self.path.display())
    }
}

/// Locks a file for this process's life, so that no other node uses it.
pub(super) fn lock(file: File) -> io::Result<File> {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "another node uses it"))
        }
        Err(error) => Err(error.into()),
    }
}
