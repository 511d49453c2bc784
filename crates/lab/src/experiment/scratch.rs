//! A temporary directory of an experiment: sockets, state, and the output and files of programs.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use tidegate_console::failure::{Code, Failure};

/// The option that names the directory for temporary files.
const OPTION: &str = "TMPDIR=DIR";

/// The beginning of the names of temporary directories.
const PREFIX: &str = "tgd-";

/// The room in a directory below which it counts as full, in MiB. File systems stop early.
const FULL_MIB: u64 = 8;

/// The room in a directory for files of ours, in MiB; none if the file system does not say.
fn free_mib(directory: &Path) -> Option<u64> {
    let all = rustix::fs::statvfs(directory).ok()?;
    Some(((u128::from(all.f_bavail) * u128::from(all.f_frsize)) >> 20) as u64)
}

/// Refuses a directory with less room than `needed` MiB; `option` names another one.
pub(crate) fn check_space(directory: &Path, needed: u64, option: &str) -> Result<(), Failure> {
    let Some(free) = free_mib(directory).filter(|free| *free < needed) else { return Ok(()) };
    let path = directory.display();
    let failure =
        Failure::new(Code::Failure, format!("{path} has room for {free} MiB of {needed} MiB"));
    Err(failure.help(remedy(needed, option)))
}

/// The advice for a directory with less than `needed` MiB free.
pub(crate) fn remedy(needed: u64, option: &str) -> String {
    format!("name a directory with {needed} MiB of room with {option}")
}

/// The directory. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Scratch(TempDir);

impl Scratch {
    /// A new directory for small files.
    pub(crate) fn new() -> Result<Self, Failure> {
        Self::within(&std::env::temp_dir(), PREFIX).map_err(|error| {
            Failure::new(Code::Failure, "cannot make a directory for small files")
                .cause(error)
                .help(format!("name a directory with room for small files with {OPTION}"))
        })
    }

    /// A new directory for files of up to `needed` MiB together.
    pub(crate) fn with_space(needed: u64) -> Result<Self, Failure> {
        check_space(&std::env::temp_dir(), needed, OPTION)?;
        Self::new()
    }

    /// Adds the remedy to a failure, if the directory is full.
    pub(crate) fn explained(&self, failure: Failure, needed: u64) -> Failure {
        match free_mib(self.path()).is_some_and(|free| free < FULL_MIB) {
            true => {
                let path = std::env::temp_dir();
                failure.help(format!("{} is full: {}", path.display(), remedy(needed, OPTION)))
            }
            false => failure,
        }
    }

    /// A new directory below another, which only we can read. Its name is short, for the name of a
    /// socket has at most 107 bytes.
    pub(crate) fn within(directory: &Path, prefix: &str) -> io::Result<Self> {
        Builder::new().prefix(prefix).tempdir_in(directory).map(Self)
    }

    /// Whether such a directory may have this path.
    pub(crate) fn is_name(path: &Path) -> bool {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_space_is_refused_before_anything_is_written() {
        let directory = std::env::temp_dir();
        assert!(check_space(&directory, 0, OPTION).is_ok());
        let refused = check_space(&directory, u64::MAX, OPTION).unwrap_err().to_string();
        assert!(refused.contains("has room for") && refused.contains("MiB"), "{refused}");
        assert!(
            check_space(Path::new("/nonexistent"), u64::MAX, OPTION).is_ok(),
            "it is not known"
        );
    }
}
