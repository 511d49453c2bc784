//! The state directory, and the lock that makes it one daemon's own.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use tidegate_fabric::trusted::{Access, Folder, Purpose, TrustError};

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
        /// The process, if it is known.
        pid: Option<u32>,
    },
    /// It cannot be made or opened, or other users could change its contents.
    #[error("cannot use the state directory {path}: {error}")]
    Refused {
        /// The directory.
        path: PathBuf,
        /// The file or folder that is wrong, why, and how to mend it.
        error: TrustError,
    },
    /// Its lock cannot be taken or written.
    #[error("cannot use the state directory {path}: {error}")]
    Io {
        /// The path of the file that failed.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// A state directory that no other daemon can use while this value exists.
#[derive(Debug)]
pub(crate) struct StateDirectory {
    pub(crate) folder: Folder,
    /// The kernel frees the lock when the file is closed, however the process ends.
    _lock: File,
}

impl StateDirectory {
    /// Makes the directory if it does not exist, for its owner only, and locks it.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let refused = |error| StateError::Refused { path: path.into(), error };
        let folder = Folder::make(path, Purpose::Private).map_err(refused)?;
        let mut lock = folder.open_file("lock", Access::Create).map_err(refused)?;
        let lock_path = folder.path().join("lock");
        let failed = |error| StateError::Io { path: lock_path.clone(), error };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let _ = lock.read_to_string(&mut text);
                return Err(StateError::InUse { path: path.into(), pid: text.trim().parse().ok() });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        write_pid(&mut lock).map_err(failed)?;
        Ok(Self { folder, _lock: lock })
    }
}

fn write_pid(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    lock.rewind()?;
    writeln!(lock, "{}", std::process::id())
}
