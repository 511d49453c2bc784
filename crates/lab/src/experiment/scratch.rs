//! A temporary directory of an experiment: sockets, state, and the output and files of programs.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tidegate_console::failure::{Code, Failure};

/// The directory. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A new directory for small files.
    ///
    /// # Errors
    /// If there is no room for it.
    pub(crate) fn new() -> Result<Self, Failure> {
        // Short, for the name of a socket has at most 107 bytes.
        let path = std::env::temp_dir().join(format!("tgd-{}", std::process::id()));
        Self::at(path.clone()).map_err(|error| {
            Failure::new(Code::Failure, format!("cannot make {}", path.display()))
                .cause(error)
                .help("say where there is room for small files with TMPDIR")
        })
    }

    /// A new directory at `path` that only we can read.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn at(path: PathBuf) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A path in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
