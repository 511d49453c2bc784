//! Detection of segments in use: whether any process maps one, whichever namespace, session or user
//! it belongs to.
//!
//! Numbers of processes do not help: a process in another PID namespace registers under a number
//! that means another process here, or none. The kernel can tell: it grants a write lease on a file
//! only if no other open file of the same inode may write to it, and a mapping keeps the file that
//! was mapped open. So the supervisor requests a lease on its own open file and gives it back at
//! once. The controller does the same on a file that it opens for that ([`in_use`]): a
//! supervisor that was killed cannot say whether its programs go on.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
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

/// Those of a user's supervisors, by their process numbers, of whose segments any process maps one.
/// The numbers are those of the supervisors' own namespaces, as in the segments' names. Supervisors
/// without a segment that can be seen from here are left out, as those in a container with another
/// `/dev/shm`.
///
/// The user's directory may hold anything; what is opened is a file of the user in this very file
/// system, so that opening it has no effect and does not block. The directory is read once.
pub fn in_use(user: u32, supervisors: &BTreeSet<u32>) -> BTreeSet<u32> {
    let folder = || {
        let memory = openat2(CWD, MEMORY, FOLDER, Mode::empty(), ResolveFlags::empty())?;
        open(&memory, &format!("tidegate-{user}"), FOLDER)
    };
    folder().map_or_else(|_: Errno| BTreeSet::new(), |folder| used_in(&folder, user, supervisors))
}

/// Whether any process maps a segment of this user's supervisor; see [`in_use`].
pub fn of_supervisor(user: u32, process: u32) -> bool {
    !in_use(user, &BTreeSet::from([process])).is_empty()
}

/// Those of the supervisors with a segment in this directory that is used.
fn used_in(folder: &OwnedFd, user: u32, supervisors: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut used = BTreeSet::new();
    let Ok(entries) = Dir::read_from(folder) else { return used };
    for entry in entries.map_while(Result::ok) {
        let Ok(name) = entry.file_name().to_str() else { continue };
        let number =
            name.strip_prefix("stage-").and_then(|rest| rest.split_once('-')?.0.parse().ok());
        let wanted = number.filter(|it| supervisors.contains(it) && !used.contains(it));
        if let Some(number) = wanted
            && is_used(folder, name, user)
        {
            used.insert(number);
        }
    }
    used
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn is_used(folder: &OwnedFd, name: &str, user: u32) -> bool {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let Ok(file) = open(folder, name, flags) else { return false };
    let is_segment = fstat(&file).is_ok_and(|status| {
        let kind = FileType::from_raw_mode(status.st_mode);
        kind.is_file() && status.st_uid == user
    });
    is_segment && is_used_by_others(&file).unwrap_or(false)
}

/// Opens what a directory itself holds: through no link, and nothing that is mounted there.
fn open(folder: &OwnedFd, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    openat2(folder, name, flags, Mode::empty(), resolve)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn segments_that_are_used_are_found_by_the_numbers_in_their_names() {
        let folder = tempfile::tempdir_in(MEMORY).unwrap();
        let make = |name: &str| File::create(folder.path().join(name)).unwrap();
        // Files that stay open for writing are used.
        let used = ["stage-1-a", "stage-2-b", "stage-2-c", "other-3-d"].map(make);
        for name in ["stage-4-e", "stage-11-f", "stage-x-g", "stage-5"] {
            drop(make(name));
        }
        if is_used_by_others(File::open(folder.path().join("stage-4-e")).unwrap()).is_err() {
            eprintln!("skipped: this kernel grants no leases on files");
            return;
        }
        let opened = OwnedFd::from(File::open(folder.path()).unwrap());
        let user = rustix::process::geteuid().as_raw();
        let found = |supervisors: &[u32]| {
            used_in(&opened, user, &supervisors.iter().copied().collect())
                .into_iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(found(&[1, 2, 3, 4, 5, 11]), [1, 2]);
        assert_eq!(found(&[2, 4]), [2]);
        drop(used);
        assert_eq!(found(&[1, 2]), [0; 0]);
    }
}
