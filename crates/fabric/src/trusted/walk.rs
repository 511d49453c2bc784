//! Opens a folder one path component at a time, and checks who may change each component.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, mkdirat, open, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{FOLDER_MODE, Folder, Purpose, TrustError, TrustProblem, owners};

/// Links on one path; the kernel's own limit.
pub(super) const LINKS_MAX: usize = 40;

/// How an entry on the way is opened: neither read nor followed, only examined and passed through.
const PASSED: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Finds the folder at `path`, and makes what is missing if it may.
pub(super) fn folder(path: &Path, purpose: Purpose, make: bool) -> Result<Folder, TrustError> {
    let mut walk = Walk::start(path, purpose)?;
    while let Some(name) = walk.ahead.pop() {
        walk.step(&name, make)?;
    }
    let Folder { path, is_shared, .. } = &walk.at;
    if *is_shared && purpose == Purpose::Private {
        return Err(TrustError::new(path, TrustProblem::Shared { parent: path.clone() }));
    }
    Ok(walk.at)
}

/// Finds the folder that a file is in, and the file's name there: where the path ends with a link
/// that a trusted user made, those of what it leads to.
pub(super) fn file(path: &Path) -> Result<(Folder, OsString), TrustError> {
    let mut walk = Walk::start(path, Purpose::Source)?;
    while let Some(name) = walk.ahead.pop() {
        if !walk.ahead.is_empty() || walk.links_at(&name)? {
            walk.step(&name, false)?;
        } else {
            return Ok((walk.at, name));
        }
    }
    Err(TrustError::new(path, TrustProblem::Kind { wanted: "a file" }))
}

/// Where a walk is, and what lies ahead.
struct Walk {
    at: Folder,
    /// Components that are still to go, the next one last.
    ahead: Vec<OsString>,
    links: usize,
    purpose: Purpose,
}

impl Walk {
    fn start(path: &Path, purpose: Purpose) -> Result<Self, TrustError> {
        let absolute = std::path::absolute(path);
        let absolute = absolute.map_err(|error| TrustError::new(path, TrustProblem::Io(error)))?;
        let mut walk = Self { at: root()?, ahead: Vec::new(), links: 0, purpose };
        walk.push(&absolute);
        Ok(walk)
    }

    fn push(&mut self, path: &Path) {
        let names = path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        let at = self.ahead.len();
        self.ahead.extend(names);
        self.ahead[at..].reverse();
    }

    /// Goes into the folder of this name, makes it, or follows a link.
    fn step(&mut self, name: &OsStr, make: bool) -> Result<(), TrustError> {
        let path = match name == ".." {
            true => self.at.path.parent().unwrap_or(Path::new("/")).to_path_buf(),
            false => self.at.path.join(name),
        };
        let failed = |error: Errno| TrustError::new(&path, TrustProblem::Io(error.into()));
        let found = match openat(&self.at.fd, name, PASSED, Mode::empty()) {
            Err(Errno::NOENT) if make => {
                self.make(name).map_err(failed)?;
                openat(&self.at.fd, name, PASSED, Mode::empty()).map_err(failed)?
            }
            found => found.map_err(failed)?,
        };
        let stat = fstat(&found).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.at = self.enter(found, path, stat)?,
            FileType::Symlink => self.follow(&found, &path, &stat)?,
            _ => return Err(TrustError::new(&path, TrustProblem::Kind { wanted: "a folder" })),
        }
        Ok(())
    }

    /// Makes a folder, durably. Whether it is the one that was made is checked when it is opened.
    fn make(&self, name: &OsStr) -> Result<(), Errno> {
        let mode = mode_of_new(self.purpose, geteuid().is_root());
        match mkdirat(&self.at.fd, name, Mode::from_raw_mode(mode)) {
            Err(Errno::EXIST) => Ok(()),
            made => made,
        }?;
        // A folder that may be written but not read cannot be flushed, and its entry is as durable
        // as its file system makes it.
        let folder = openat(&self.at.fd, ".", OFlags::CLOEXEC, Mode::empty());
        folder.map_or(Ok(()), rustix::fs::fsync)
    }

    fn enter(&self, fd: OwnedFd, path: PathBuf, stat: Stat) -> Result<Folder, TrustError> {
        let entered = checked(fd, path, stat)?;
        let is_ours = stat.st_uid == geteuid().as_raw() && !entered.is_shared;
        if self.at.is_shared && self.purpose == Purpose::Private && !is_ours {
            let parent = self.at.path.clone();
            return Err(TrustError::new(&entered.path, TrustProblem::Shared { parent }));
        }
        Ok(entered)
    }

    /// Follows a link that only a trusted user can have made.
    fn follow(&mut self, link: &OwnedFd, path: &Path, stat: &Stat) -> Result<(), TrustError> {
        let failed = |error: Errno| TrustError::new(path, TrustProblem::Io(error.into()));
        let target = readlinkat(link, "", Vec::new()).map_err(failed)?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        let is_planted = self.at.is_shared && stat.st_nlink > 1;
        if is_planted || !owners::is_trusted(stat.st_uid) {
            return Err(TrustError::new(path, TrustProblem::Link { target: Some(target) }));
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(failed(Errno::LOOP));
        }
        if target.is_absolute() {
            self.at = root()?;
        }
        self.push(&target);
        Ok(())
    }

    /// Whether the entry of this name is a link.
    fn links_at(&self, name: &OsStr) -> Result<bool, TrustError> {
        let stat = rustix::fs::statat(&self.at.fd, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        let failed = |error: Errno| {
            TrustError::new(&self.at.path.join(name), TrustProblem::Io(error.into()))
        };
        let kind = FileType::from_raw_mode(stat.map_err(failed)?.st_mode);
        Ok(kind == FileType::Symlink)
    }
}

/// The mode of a folder that is made. A daemon of root serves every user; any other its own.
fn mode_of_new(purpose: Purpose, is_root: bool) -> u32 {
    match purpose {
        Purpose::Public if is_root => 0o755,
        Purpose::Public | Purpose::Private | Purpose::Source => FOLDER_MODE,
    }
}

fn root() -> Result<Folder, TrustError> {
    let path = PathBuf::from("/");
    let failed = |error: Errno| TrustError::new(Path::new("/"), TrustProblem::Io(error.into()));
    let fd = open(&path, PASSED, Mode::empty()).map_err(failed)?;
    let stat = fstat(&fd).map_err(failed)?;
    checked(fd, path, stat)
}

/// A folder whose entries only trusted users can change, or its owner's alone.
fn checked(fd: OwnedFd, path: PathBuf, stat: Stat) -> Result<Folder, TrustError> {
    if !owners::is_trusted(stat.st_uid) {
        return Err(TrustError::new(&path, TrustProblem::Owner { uid: stat.st_uid }));
    }
    let mode = stat.st_mode & 0o7777;
    let is_written = owners::others_write(fd.as_fd(), &stat);
    let is_sticky = mode & 0o1000 != 0;
    if is_written && !is_sticky {
        return Err(TrustError::new(&path, TrustProblem::Writable { mode, is_folder: true }));
    }
    Ok(Folder { fd, path, stat, is_shared: is_written })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_sockets_are_made_for_every_user_by_root_alone() {
        for (purpose, by_root, by_others) in [
            (Purpose::Public, 0o755, 0o700),
            (Purpose::Private, 0o700, 0o700),
            (Purpose::Source, 0o700, 0o700),
        ] {
            let modes = [mode_of_new(purpose, true), mode_of_new(purpose, false)];
            assert_eq!(modes, [by_root, by_others], "{purpose:?}");
        }
    }
}
