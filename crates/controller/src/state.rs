//! The state directory, and the lock that makes it one daemon's own.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another daemon has it.
    #[error(
        "another controller{} uses {path}; stop it, or choose another --state directory",
        .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process, if it could be found out.
        pid: Option<u32>,
    },
    /// It cannot be made or opened.
    #[error("cannot use the state directory {path}: {error}")]
    Io {
        /// What was opened.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// A state directory that nobody else has while this lives.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) path: PathBuf,
    /// The kernel frees the lock when the file is closed, however the process ends.
    _lock: File,
}

impl State {
    /// Makes the directory if need be, for its owner only, and locks it.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let failed = |path: &Path, error| StateError::Io { path: path.into(), error };
        let make = DirBuilder::new().recursive(true).mode(0o700).create(path);
        make.map_err(|error| failed(path, error))?;
        let lock_path = path.join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut lock = options.open(&lock_path).map_err(|error| failed(&lock_path, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let _ = lock.read_to_string(&mut text);
                return Err(StateError::InUse { path: path.into(), pid: text.trim().parse().ok() });
            }
            Err(TryLockError::Error(error)) => return Err(failed(&lock_path, error)),
        }
        write_pid(&mut lock).map_err(|error| failed(&lock_path, error))?;
        Ok(Self { path: path.into(), _lock: lock })
    }

    /// The file of this name in the directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}

/// Makes the directory that a socket lies in: open to all if the daemon serves all, else the
/// owner's alone. One that exists stays as it is.
pub(crate) fn make_socket_directory(path: &Path, is_shared: bool) -> io::Result<()> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
        return Ok(());
    };
    if fs::metadata(parent).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    let mode = if is_shared { 0o755 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(parent)
}
