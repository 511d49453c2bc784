//! Detection of segments in use: whether any process maps one, whichever namespace, session or user
//! it belongs to.
//!
//! Numbers of processes do not help: a process in another PID namespace registers under a number
//! that means another process here, or none. The kernel can tell: it grants a write lease on a file
//! only if no other open file of the same inode may write to it, and a mapping keeps the file that
//! was mapped open. So the supervisor requests a lease on its own open file and gives it back at
//! once. The controller does the same on a file that it opens for that ([`is_used`]): a
//! supervisor that was killed cannot say whether its programs go on.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;

/// The file system in memory with the directories of all users' segments.
const MEMORY: &str = "/dev/shm";

/// Signal of the kernel to the holder of a lease that another process needs. The kernel's default
/// signal, `SIGIO`, ends the process; this signal is ignored by default.
const BREAK: libc::c_int = libc::SIGURG;
/// The kernel's `F_SETSIG`, which the libc crate does not have.
const SET_SIGNAL: libc::c_int = 10;

/// Whether a process maps the file, or has it open for writing, by another open file than this one.
///
/// The file must be open for reading and writing and belong to this user, unless that is root.
/// Forks of this process share the open file and are not seen.
///
/// # Errors
/// If the kernel grants no leases: they are switched off (`/proc/sys/fs/leases-enable`), the file
/// system has none, or the file is another user's.
pub fn is_used_by_others(file: impl AsFd) -> Result<bool, Errno> {
    let file = file.as_fd().as_raw_fd();
    let control = |command: libc::c_int, argument: libc::c_int| {
        // SAFETY: each of these commands takes a number; the descriptor is open.
        match unsafe { libc::fcntl(file, command, argument) } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
            _ => Ok(()),
        }
    };
    control(SET_SIGNAL, BREAK)?;
    match control(libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(()) => control(libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(Errno::AGAIN) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether any process maps the segment in the file of this name, which a supervisor has made for
/// this user. False if there is none, or none that can be seen from here, as in a container with
/// another `/dev/shm`.
///
/// The user's directory may hold anything, any number of files too; what is opened is the one file
/// of this name, of the user in this very file system, so that opening it has no effect and does
/// not block.
pub fn is_used(user: u32, name: &str) -> bool {
    let find = || -> Result<bool, Errno> {
        let memory = openat2(CWD, MEMORY, FOLDER, Mode::empty(), ResolveFlags::empty())?;
        let folder = open(&memory, &format!("tidegate-{user}"), FOLDER)?;
        let file = open(&folder, name, FILE)?;
        let status = fstat(&file)?;
        let kind = FileType::from_raw_mode(status.st_mode);
        let is_segment = kind.is_file() && status.st_uid == user;
        Ok(is_segment && is_used_by_others(&file)?)
    };
    !name.is_empty() && find().unwrap_or(false)
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const FILE: OFlags =
    OFlags::RDWR.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens what a directory itself holds: through no link, and nothing that is mounted there.
fn open(folder: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    openat2(folder, name, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use std::fs::{self, File};
    use std::os::unix::fs::{DirBuilderExt, symlink};
    use std::path::PathBuf;

    use super::*;

    /// Files in the directory of this user's segments, which are removed at the end.
    struct Files(PathBuf, Vec<PathBuf>);

    impl Files {
        fn path(&mut self, kind: &str) -> (String, PathBuf) {
            let name = format!("test-{}-{kind}", std::process::id());
            self.1.push(self.0.join(&name));
            (name.clone(), self.0.join(name))
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            self.1.iter().for_each(|path| _ = fs::remove_file(path));
        }
    }

    #[test]
    fn only_a_file_of_this_name_and_user_that_a_process_has_is_in_use() {
        let user = rustix::process::geteuid().as_raw();
        let folder = PathBuf::from(format!("{MEMORY}/tidegate-{user}"));
        let _ = fs::DirBuilder::new().mode(0o700).create(&folder);
        let mut files = Files(folder, Vec::new());
        let (name, path) = files.path("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        if is_used_by_others(&file).is_err() {
            return eprintln!("skipped: this kernel grants no leases on files");
        }
        assert!(is_used(user, &name), "as a supervisor has it");
        let (link, path) = files.path("link");
        symlink(&name, path).unwrap();
        let (fifo, path) = files.path("fifo");
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let outside = format!("../tidegate-{user}/{name}");
        for other in [&link, &fifo, &outside, "", ".", "no\0name", "nothing"] {
            assert!(!is_used(user, other), "{other:?}");
        }
        assert!(!is_used(user ^ 1, &name), "of another user");
        drop(file);
        assert!(!is_used(user, &name), "nobody has it any more");
    }
}
