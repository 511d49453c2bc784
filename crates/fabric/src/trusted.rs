//! Files that a daemon trusts: state, secrets, sockets' folders, certificates, volumes.
//!
//! # Problem
//! A daemon that runs as root acts on what lies below the paths that it was given. If another user
//! owns a folder on the way, that user replaces the last part of the path by a link, and root
//! truncates a file elsewhere; or plants a token, and is let in; or swaps a folder between the
//! check and the use.
//!
//! # Mechanism
//! [`Folder::make`] and [`Folder::open`] walk a path from `/`, one component at a time, each opened
//! relative to the one before with `O_NOFOLLOW`. Each folder on the way is checked through its
//! descriptor before the next component is looked up in it:
//!
//! - its owner is root, the daemon's own user, the owner of `/`, or a user named with
//!   [`trust_owner`];
//! - no other user may write to it, unless it is sticky as `/tmp` is. A group that has no other
//!   member than the owner counts as the owner.
//!
//! So every user who could change an entry is trusted already, and what the check saw stays true
//! afterwards, by path and by descriptor alike. A walk of single components with `O_NOFOLLOW` has
//! the effect of `openat2` with `RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH`, and works on every kernel
//! and below every seccomp filter.
//!
//! A link among the folders on the way is followed by hand, if a trusted user made it, and its
//! target is walked and checked like any other path: `/var/run` and `/dev/disk/by-id` are links.
//! A file of a daemon's own folder is never a link.
//!
//! Private state ([`Purpose::Private`]) is refused in a folder like `/tmp`, where every user makes
//! entries; below a folder there that is ours, and that others cannot write, it is accepted.
//!
//! # Durability
//! [`Folder::replace`] and [`Folder::create`] write a new file aside, flush it, rename it and flush
//! the folder: after a crash there is the old file or the new one, whole.

mod error;
mod owners;
#[cfg(test)]
mod tests;
mod walk;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, fsync, openat, renameat,
    renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

pub use error::{TrustError, TrustProblem};
pub use owners::{trust_owner, user_number};

/// The mode of a daemon's own files.
pub const FILE_MODE: u32 = 0o600;
/// The mode of a daemon's own folders.
pub const FOLDER_MODE: u32 = 0o700;

/// The longest file that is read as a whole, in bytes: no policy, certificate or key comes near.
const READ_MAX: u64 = 16 << 20;

/// The purpose of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A daemon's own data. Made with mode 0700.
    Private,
    /// Sockets. Made with mode 0755 by root, whose daemons serve every user, and with 0700 by other
    /// users; may be, or lie in, a folder like `/tmp`.
    Public,
    /// Files that are only read. Never made.
    Source,
}

/// Whether other users may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// Every user may.
    Open,
    /// No other user may: a token, a key. A file of root may be readable for the daemon's own
    /// group.
    Secret,
}

/// The access for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read; it exists.
    Read,
    /// To read and to write; it exists.
    Write,
    /// To read and to write; it is made with mode 0600 if it does not exist.
    Create,
}

/// A folder that only trusted users can change, opened.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
    stat: Stat,
    /// Other users may make entries here, as in `/tmp`.
    is_shared: bool,
}

/// A file that did not exist before, nor a link: another process may have put one in its place
/// since the name was removed.
const NEW: OFlags = OFlags::RDWR
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl Folder {
    /// The folder at `path`, which exists.
    ///
    /// # Errors
    /// See [`TrustProblem`].
    pub fn open(path: &Path, purpose: Purpose) -> Result<Self, TrustError> {
        walk::folder(path, purpose, false)
    }

    /// The folder at `path`; it and those above it are made if they do not exist.
    ///
    /// # Errors
    /// See [`TrustProblem`].
    pub fn make(path: &Path, purpose: Purpose) -> Result<Self, TrustError> {
        walk::folder(path, purpose, true)
    }

    /// Where it is, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file of the folder, which is a regular file, no link, of a trusted owner, and not
    /// writable by others.
    ///
    /// # Errors
    /// See [`TrustProblem`]; kind `NotFound` if it does not exist and is not to be made.
    pub fn open_file(&self, name: impl AsRef<OsStr>, access: Access) -> Result<File, TrustError> {
        let name = name.as_ref();
        self.named(name)?;
        let file = self.opened(name, access)?;
        let stat = self.examine(&file, name, Secrecy::Open)?;
        if stat.st_nlink > 1 && (self.is_shared || access != Access::Read) {
            return Err(self.problem(name, TrustProblem::Names));
        }
        if access != Access::Read && FileType::from_raw_mode(stat.st_mode).is_file() {
            self.tighten(&file, name, &stat)?;
        }
        Ok(file)
    }

    /// Reads a file of the folder.
    ///
    /// # Errors
    /// See [`TrustProblem`]; kind `NotFound` if it does not exist.
    pub fn read(&self, name: impl AsRef<OsStr>, secrecy: Secrecy) -> Result<Vec<u8>, TrustError> {
        let name = name.as_ref();
        let file = self.open_file(name, Access::Read)?;
        self.examine(&file, name, secrecy)?;
        let mut bytes = Vec::new();
        let read = file.take(READ_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.problem(name, TrustProblem::Io(error)))?;
        match bytes.len() as u64 > READ_MAX {
            true => Err(self.problem(name, TrustProblem::Length { most: READ_MAX })),
            false => Ok(bytes),
        }
    }

    /// Makes a file that does not exist yet, durably.
    ///
    /// # Errors
    /// See [`TrustProblem`]; kind `AlreadyExists` if there is one.
    pub fn create(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        mode: u32,
    ) -> Result<(), TrustError> {
        self.put(name.as_ref(), bytes, mode, true)
    }

    /// Makes a file, or puts a new one in the place of the old one, durably: a crash leaves one of
    /// the two, whole.
    ///
    /// # Errors
    /// See [`TrustProblem`]; the old file is as it was then.
    pub fn replace(
        &self,
        name: impl AsRef<OsStr>,
        bytes: &[u8],
        mode: u32,
    ) -> Result<(), TrustError> {
        self.put(name.as_ref(), bytes, mode, false)
    }

    /// Begins a file of the folder under another name; [`Begun::publish`] gives it its own.
    ///
    /// # Errors
    /// See [`TrustProblem`].
    pub fn begin(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<Begun<'_>, TrustError> {
        let name = name.as_ref();
        self.named(name)?;
        let mut aside = std::ffi::OsString::from(".");
        aside.push(name);
        aside.push(".new");
        let failed = |error: Errno| self.problem(&aside, TrustProblem::Io(error.into()));
        // One that a crash left behind.
        match unlinkat(&self.fd, &aside, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        let mode = Mode::from_raw_mode(mode);
        let file = openat(&self.fd, &aside, NEW, mode).map_err(failed)?;
        // The umask may have taken bits of the mode.
        fchmod(&file, mode).map_err(failed)?;
        Ok(Begun { folder: self, file: file.into(), name: name.into(), aside, is_done: false })
    }

    /// Gives a file another name in the folder, durably.
    ///
    /// # Errors
    /// Kind `NotFound` if it does not exist; see [`TrustProblem`].
    pub fn rename(&self, from: &str, to: &str) -> Result<(), TrustError> {
        let failed = |error: io::Error| self.problem(OsStr::new(from), TrustProblem::Io(error));
        renameat(&self.fd, from, &self.fd, to).map_err(|error| failed(error.into()))?;
        self.sync()
    }

    /// Whether the folder has an entry of this name, of whatever kind.
    pub fn has(&self, name: impl AsRef<OsStr>) -> bool {
        statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Flushes the folder, so that its entries survive a crash of the machine.
    ///
    /// # Errors
    /// If the device cannot write.
    pub fn sync(&self) -> Result<(), TrustError> {
        let synced = openat(&self.fd, ".", OFlags::CLOEXEC, Mode::empty()).and_then(fsync);
        synced.map_err(|error| TrustError::new(&self.path, TrustProblem::Io(error.into())))
    }

    fn put(&self, name: &OsStr, bytes: &[u8], mode: u32, is_new: bool) -> Result<(), TrustError> {
        let begun = self.begin(name, mode)?;
        let written = (&begun.file).write_all(bytes);
        written.map_err(|error| self.problem(name, TrustProblem::Io(error)))?;
        begun.publish(is_new).map(drop)
    }

    /// Opens an entry, and refuses a link before anything happens to what it leads to.
    fn opened(&self, name: &OsStr, access: Access) -> Result<File, TrustError> {
        // A pipe or a terminal would make the daemon wait, or become its master.
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = flags
            | match access {
                Access::Read => OFlags::RDONLY,
                Access::Write => OFlags::RDWR,
                Access::Create => OFlags::RDWR | OFlags::CREATE,
            };
        match openat(&self.fd, name, flags, Mode::from_raw_mode(FILE_MODE)) {
            Ok(file) => Ok(file.into()),
            Err(Errno::LOOP) => Err(self.problem(name, TrustProblem::Link { target: None })),
            Err(error) => Err(self.problem(name, TrustProblem::Io(error.into()))),
        }
    }

    /// Whether the file that was opened can be trusted.
    fn examine(&self, file: &File, name: &OsStr, secrecy: Secrecy) -> Result<Stat, TrustError> {
        let fail = |problem| Err(self.problem(name, problem));
        let stat = match fstat(file) {
            Ok(stat) => stat,
            Err(error) => return fail(TrustProblem::Io(error.into())),
        };
        match problem(file, &stat, owners::is_trusted) {
            Some(TrustProblem::Writable { .. }) if self.keeps_others_out() => {}
            Some(problem) => return fail(problem),
            None => {}
        }
        if secrecy == Secrecy::Secret && owners::others_read(file.as_fd(), &stat) {
            return fail(TrustProblem::Readable { mode: stat.st_mode & 0o7777 });
        }
        Ok(stat)
    }

    /// Whether only the owner gets at what lies here, whatever its own mode says.
    fn keeps_others_out(&self) -> bool {
        self.stat.st_mode & 0o077 == 0
    }

    /// Takes from a file of ours what earlier releases left to others.
    fn tighten(&self, file: &File, name: &OsStr, stat: &Stat) -> Result<(), TrustError> {
        let own = rustix::process::geteuid().as_raw();
        let Some(mode) = closed_mode(stat.st_mode, stat.st_uid, own) else { return Ok(()) };
        let changed = fchmod(file, Mode::from_raw_mode(mode));
        changed.map_err(|error| self.problem(name, TrustProblem::Io(error.into())))
    }

    /// A name is one component.
    fn named(&self, name: &OsStr) -> Result<(), TrustError> {
        let is_plain = Path::new(name).file_name() == Some(name);
        match is_plain {
            true => Ok(()),
            false => Err(self.problem(name, TrustProblem::Io(io::ErrorKind::InvalidInput.into()))),
        }
    }

    fn problem(&self, name: &OsStr, problem: TrustProblem) -> TrustError {
        TrustError::new(&self.path.join(name), problem)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A file that does not have its name yet. Dropped, it is removed.
#[derive(Debug)]
pub struct Begun<'a> {
    folder: &'a Folder,
    /// Open to read and to write.
    pub file: File,
    name: std::ffi::OsString,
    aside: std::ffi::OsString,
    is_done: bool,
}

impl Begun<'_> {
    /// Flushes the file, gives it its name and flushes the folder.
    ///
    /// # Errors
    /// Kind `AlreadyExists` if `is_new` and there is a file of that name; see [`TrustProblem`].
    pub fn publish(mut self, is_new: bool) -> Result<File, TrustError> {
        let Self { folder, name, aside, .. } = &self;
        let failed = |error: io::Error| folder.problem(name, TrustProblem::Io(error));
        let file = self.file.try_clone().map_err(failed)?;
        file.sync_all().map_err(failed)?;
        let renamed = match is_new {
            true => rename_new(folder, aside, name),
            false => renameat(&folder.fd, aside, &folder.fd, name),
        };
        renamed.map_err(|error| failed(error.into()))?;
        folder.sync()?;
        self.is_done = true;
        Ok(file)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            let _ = unlinkat(&self.folder.fd, &self.aside, AtFlags::empty());
        }
    }
}

/// The mode that closes a file to all but its owner; none if the file is closed already, or is not
/// our own.
fn closed_mode(mode: u32, uid: u32, own: u32) -> Option<u32> {
    (uid == own && mode & 0o077 != 0).then_some(mode & 0o700)
}

/// Renames unless there is such an entry. Some file systems cannot say so in one call.
fn rename_new(folder: &Folder, from: &OsStr, to: &OsStr) -> rustix::io::Result<()> {
    match renameat_with(&folder.fd, from, &folder.fd, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(&folder.fd, from, &folder.fd, to, AtFlags::empty())?;
            unlinkat(&folder.fd, from, AtFlags::empty())
        }
        renamed => renamed,
    }
}

/// Reads the file at `path`: a certificate, a policy. If a trusted user made it a link, what it
/// leads to is checked in its place.
///
/// # Errors
/// See [`TrustProblem`]; kind `NotFound` if it does not exist.
pub fn read(path: &Path, secrecy: Secrecy) -> Result<Vec<u8>, TrustError> {
    let (folder, name) = walk::file(path)?;
    folder.read(name, secrecy)
}

/// Opens the file or the block device at `path`. If a trusted user made it a link, what it leads to
/// is checked in its place.
///
/// # Errors
/// See [`TrustProblem`]; kind `NotFound` if it does not exist.
pub fn open(path: &Path, access: Access) -> Result<File, TrustError> {
    let (folder, name) = walk::file(path)?;
    folder.open_file(name, access)
}

/// Whether an opened file or block device of a volume can be trusted: its owner is a trusted user,
/// or the one whose folder it lies in, and no other user may write to it. Unlike with files of a
/// daemon's own folder, a private folder is no excuse for an open file, and its mode is left as it
/// is: the operator chooses the users that may read a volume. The folders on the way are examined
/// by [`Folder::open`].
///
/// # Errors
/// See [`TrustProblem`].
pub fn examine_volume_file(file: &File, path: &Path) -> Result<(), TrustError> {
    let failed = |error: Errno| TrustError::new(path, TrustProblem::Io(error.into()));
    let stat = fstat(file).map_err(failed)?;
    let may_own = |uid| owners::is_trusted(uid) || owns_folder(uid, path);
    match problem(file, &stat, may_own) {
        Some(problem) => Err(TrustError::new(path, problem)),
        None => Ok(()),
    }
}

fn owns_folder(uid: u32, path: &Path) -> bool {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    rustix::fs::stat(folder.unwrap_or(Path::new("."))).is_ok_and(|stat| stat.st_uid == uid)
}

/// Why a file that was opened is not trusted, whichever folder it lies in.
fn problem(file: &File, stat: &Stat, may_own: impl Fn(u32) -> bool) -> Option<TrustProblem> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if !kind.is_file() && !kind.is_block_device() {
        return Some(TrustProblem::Kind { wanted: "a file" });
    }
    if !may_own(stat.st_uid) {
        return Some(TrustProblem::Owner { uid: stat.st_uid });
    }
    // Members of the group `disk` are as good as root, on every system.
    let is_open = match kind.is_block_device() {
        true => stat.st_mode & 0o002 != 0,
        false => owners::others_write(file.as_fd(), stat),
    };
    is_open.then_some(TrustProblem::Writable { mode: stat.st_mode & 0o7777, is_folder: false })
}
