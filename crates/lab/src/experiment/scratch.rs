//! A temporary directory of an experiment: sockets, state, and the output and files of programs.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use tidegate_console::failure::{Code, Failure};

/// The directory. Dropping it removes it.
#[derive(Debug)]
pub(crate) struct Scratch(TempDir);

impl Scratch {
    /// A new directory for small files.
    pub(crate) fn new() -> Result<Self, Failure> {
        Self::within(&std::env::temp_dir(), "tgd-").map_err(|error| {
            Failure::new(Code::Failure, "cannot make a directory for small files")
                .cause(error)
                .help("say where there is room for small files with TMPDIR")
        })
    }

    /// A new directory below another, which only we can read. Its name is short, for the name of a
    /// socket has at most 107 bytes.
    pub(crate) fn within(directory: &Path, prefix: &str) -> io::Result<Self> {
        Builder::new().prefix(prefix).tempdir_in(directory).map(Self)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}
