//! Why a file or a folder is not trusted, and how to mend it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::owners::name;

/// A path that cannot be used.
#[derive(Debug)]
pub struct TrustError {
    /// The faulty file, or the faulty folder on the way to it.
    pub path: PathBuf,
    /// Its fault.
    pub problem: TrustProblem,
}

/// A fault of a file or a folder.
#[derive(Debug)]
pub enum TrustProblem {
    /// It belongs to a user who is neither root nor the daemon's own.
    Owner {
        /// The user that it belongs to.
        uid: u32,
    },
    /// Other users may write to it.
    Writable {
        /// Its permission bits.
        mode: u32,
        /// Whether it is a folder.
        is_folder: bool,
    },
    /// Other users may read a secret.
    Readable {
        /// Its permission bits.
        mode: u32,
    },
    /// Private state would lie in a folder where every user makes files.
    Shared {
        /// That folder.
        parent: PathBuf,
    },
    /// It is a symbolic link where none may be.
    Link {
        /// Where it leads, if that is known.
        target: Option<PathBuf>,
    },
    /// The same file has other names, so that another user may have put it here.
    Names,
    /// It is of another kind.
    Kind {
        /// The expected kind.
        wanted: &'static str,
    },
    /// It is longer than any file of its kind.
    Length {
        /// The most, in bytes.
        most: u64,
    },
    /// The kernel refuses.
    Io(io::Error),
}

impl TrustError {
    pub(super) fn new(path: &Path, problem: TrustProblem) -> Self {
        Self { path: path.into(), problem }
    }

    /// The kind of error: that of the kernel, or `PermissionDenied` for a path that is not trusted.
    pub fn kind(&self) -> io::ErrorKind {
        match &self.problem {
            TrustProblem::Io(error) => error.kind(),
            _ => io::ErrorKind::PermissionDenied,
        }
    }
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.problem {
            TrustProblem::Owner { uid } => {
                let us = rustix::process::geteuid().as_raw();
                write!(
                    f,
                    "{path} belongs to {}, who could change what {} trusts there; use a path whose \
                     folders belong to root or to this user, or change its owner (chown {us} \
                     {path})",
                    name(*uid),
                    name(us)
                )
            }
            TrustProblem::Writable { mode, is_folder } => {
                let what = if *is_folder { "replace what lies in it" } else { "change it" };
                write!(
                    f,
                    "{path} has mode {mode:04o}, so other users could {what}; take that from them \
                     (chmod go-w {path})"
                )
            }
            TrustProblem::Readable { mode } => write!(
                f,
                "{path} has mode {mode:04o}, so other users could read the secret in it; replace \
                 the secret if anybody may have, and close it (chmod 600 {path})"
            ),
            TrustProblem::Shared { parent } => write!(
                f,
                "{path} is in {}, where every user makes files, and is not this user's own; use \
                 another folder, or one there that belongs to this user and has mode 0700",
                parent.display()
            ),
            TrustProblem::Link { target: Some(target) } => write!(
                f,
                "{path} is a link to {} that another user could have made; remove it",
                target.display()
            ),
            TrustProblem::Link { target: None } => write!(
                f,
                "{path} is a symbolic link, and files of a daemon are none; remove it, or put the \
                 file itself there"
            ),
            TrustProblem::Names => write!(
                f,
                "{path} is a file with more names than this one, which another user could have \
                 given it; copy it to a file of its own"
            ),
            TrustProblem::Kind { wanted } => write!(f, "{path} is not {wanted}; move it away"),
            TrustProblem::Length { most } => write!(
                f,
                "{path} is longer than {} MiB; see whether it is the right file",
                most >> 20
            ),
            TrustProblem::Io(error) => write!(f, "{path}: {error}"),
        }
    }
}

impl std::error::Error for TrustError {}

impl From<TrustError> for io::Error {
    fn from(error: TrustError) -> Self {
        match error.problem {
            TrustProblem::Io(error) => error,
            _ => Self::new(error.kind(), error),
        }
    }
}
