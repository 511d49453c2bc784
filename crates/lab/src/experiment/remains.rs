//! Remains of runs that were killed.
//!
//! A killed process removes nothing, and a disk in memory keeps its gigabyte until the machine
//! starts anew. So a run locks the files and directories that would outlive it, and the kernel ends
//! the locks with the process. The next run removes those that have a name of ours, belong to its
//! user and are not locked.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A lock on a file or directory of this run.
#[derive(Debug)]
pub(crate) struct RunLock {
    file: File,
}

impl RunLock {
    /// Locks a file or directory that this run has just made.
    ///
    /// # Errors
    /// If it cannot be locked, or is gone: another run had it for remains before it was locked.
    pub(crate) fn new(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        file.lock()?;
        let is_there = fs::metadata(path)?.ino() == file.metadata()?.ino();
        if is_there { Ok(Self { file }) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Ends it, as the kernel does when the process is killed.
    #[cfg(test)]
    pub(crate) fn end(&self) -> io::Result<()> {
        self.file.unlock()
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// A directory of this run. Dropping it removes it with all that is in it.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
    _lock: RunLock,
}

impl RunFolder {
    /// A new directory in `parent` with these permissions.
    ///
    /// # Errors
    /// If it cannot be made or locked.
    pub(crate) fn make(parent: &Path, prefix: &str, mode: u32) -> io::Result<Self> {
        let path = parent.join(run_name(prefix));
        DirBuilder::new().mode(mode).create(&path)?;
        Ok(Self { _lock: RunLock::new(&path)?, path })
    }

    /// The directories in `parent` of runs that were killed.
    pub(crate) fn remains(parent: &Path, prefix: &str) -> impl Iterator<Item = Self> {
        remains(parent, prefix).into_iter().map(|(path, lock)| Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Ends its lock, as the kernel does when the process is killed.
    #[cfg(test)]
    pub(crate) fn end_lock(&self) -> io::Result<()> {
        self._lock.end()
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // If another process has removed it already, nothing is left to do.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The name of a file or directory of this run: no other process has the same number.
pub(crate) fn run_name(prefix: &str) -> String {
    format!("{prefix}{}", std::process::id())
}

/// Files and directories with such names in `directory` that belong to this user and to no run that
/// goes on. Each is locked as long as its lock lives.
pub(crate) fn remains(directory: &Path, prefix: &str) -> Vec<(PathBuf, RunLock)> {
    let user = rustix::process::geteuid().as_raw();
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| is_run_name(&entry.file_name().to_string_lossy(), prefix));
    let left = named.filter_map(|entry| {
        let path = entry.path();
        let metadata = fs::symlink_metadata(&path).ok()?;
        let is_ours = metadata.uid() == user && (metadata.is_file() || metadata.is_dir());
        let file = is_ours.then(|| File::open(&path).ok()).flatten()?;
        file.try_lock().ok()?;
        Some((path, RunLock { file }))
    });
    left.collect()
}

/// Whether it is a name of [`run_name`]. A user's own files may begin alike.
fn is_run_name(name: &str, prefix: &str) -> bool {
    let number = name.strip_prefix(prefix);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_run_has_locked_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["files-1", "files-22", "files-", "files-report", "files-3x", "other-4"]
            .map(|name| folder.path().join(name));
        paths.iter().for_each(|path| fs::create_dir(path).unwrap());
        std::os::unix::fs::symlink(&paths[0], folder.path().join("files-5")).unwrap();
        fs::write(folder.path().join("files-6"), "").unwrap();
        let lock = RunLock::new(&paths[1]).unwrap();
        let found = || {
            let found = remains(folder.path(), "files-").into_iter();
            let mut found: Vec<_> =
                found.map(|(path, _)| path.file_name().unwrap().to_owned()).collect();
            found.sort();
            found
        };
        assert_eq!(found(), ["files-1", "files-6"]);
        drop(lock);
        assert_eq!(found(), ["files-1", "files-22", "files-6"]);
        assert!(remains(Path::new("/nonexistent"), "files-").is_empty());
        assert!(is_run_name(&run_name("files-"), "files-"));
    }
}
