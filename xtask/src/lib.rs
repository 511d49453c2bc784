//! Checks of the repository, as functions: each takes the root of a checkout and returns what is
//! to mend. The command line (`main.rs`) prints it; `tests/repository.rs` demands that it be empty.

use std::fmt;
use std::path::{Path, PathBuf};

pub mod arrows;
pub mod circles;
pub mod commands;
pub mod files;
pub mod links;
pub mod source;
pub mod tidy;

/// One thing to mend, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the root of the checkout.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The fault.
    pub what: String,
    /// The remedy.
    pub mend: String,
}

impl Finding {
    /// A finding at one line of a file.
    pub fn new(
        file: &str,
        line: usize,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        Finding { file: file.into(), line, what: what.into(), mend: mend.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.file, self.line, self.what, self.mend)
    }
}

/// The root of the checkout that this program was built from.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}
