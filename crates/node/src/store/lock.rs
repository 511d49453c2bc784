//! The lock of a store: it admits one node at a time, or one command that changes its volumes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FlockOperation, flock, major, minor};

/// A store that is locked. Dropped, it is free at once, also where a child of this process has not
/// yet closed the descriptor that it inherited.
#[derive(Debug)]
pub(crate) struct StoreLock(File);

impl StoreLock {
    /// Locks a directory, file or device.
    ///
    /// # Errors
    /// Kind `ResourceBusy`, with a [`Busy`] in it, if it is locked.
    pub(crate) fn take(file: File) -> io::Result<Self> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(io::Error::new(io::ErrorKind::ResourceBusy, Busy(holder(&file))))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for StoreLock {
    fn drop(&mut self) {
        // Closing it does the same a moment later.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// The process that has locked a store, as far as the system reports it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Holder {
    /// A node of this process.
    #[error("a node of this process uses it")]
    Own,
    /// A node with this process number.
    #[error("a node uses it (process {0}: {1})")]
    Node(u32, String),
    /// A command that changes volumes.
    #[error("another tidegate command is at work on it (process {0}: {1})")]
    Command(u32, String),
    /// Another process, or one that is not visible from here.
    #[error("a node or another tidegate command uses it")]
    Unknown,
}

/// A store is in use.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Busy(Holder);

impl Busy {
    /// The way to free the store.
    pub(crate) const fn help(&self) -> &'static str {
        match self.0 {
            Holder::Own | Holder::Node(..) => "stop that node first",
            Holder::Command(..) => "wait until it has ended, and try again",
            Holder::Unknown => "wait until the command has ended, or stop the node",
        }
    }

    pub(crate) const fn is_node(&self) -> bool {
        matches!(self.0, Holder::Own | Holder::Node(..))
    }
}

/// The process that has locked the file.
fn holder(file: &File) -> Holder {
    /// The kernel writes the list page by page and goes on by counting, so a lock that is released
    /// between two pages hides another one. Hardly ever does that happen several times in a row.
    const READS: usize = 16;
    let Ok(stat) = file.metadata() else { return Holder::Unknown };
    let (device, inode) = ((major(stat.dev()), minor(stat.dev())), stat.ino());
    let found = || {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| locker(line, device, inode))
    };
    match (0..READS).find_map(|_| found()) {
        Some(pid) if pid == std::process::id() => Holder::Own,
        Some(pid) => match fs::read(format!("/proc/{pid}/cmdline")) {
            Ok(bytes) => classified(pid, &bytes),
            Err(_) => Holder::Unknown,
        },
        None => Holder::Unknown,
    }
}

/// The process that holds the lock of a line like
/// `1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF`, if it is a lock of this file.
fn locker(line: &str, (major, minor): (u32, u32), inode: u64) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    // A process that waits for the lock has an arrow first.
    words.next().filter(|kind| *kind == "FLOCK")?;
    let mut words = words.skip(2);
    let pid = words.next()?.parse().ok()?;
    let mut numbers = words.next()?.split(':');
    let mut hexadecimal = || u32::from_str_radix(numbers.next()?, 16).ok();
    let found = (hexadecimal()?, hexadecimal()?);
    let is_same = found == (major, minor) && numbers.next()?.parse() == Ok(inode);
    is_same.then_some(pid)
}

/// Classifies a process by its command line.
fn classified(pid: u32, line: &[u8]) -> Holder {
    /// Enough to recognise it, on one line.
    const SHOWN_MAX: usize = 80;
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let text = words.join(" ");
    let is_shown = |char: &char| !char.is_control();
    let shown: String = text.trim().chars().filter(is_shown).take(SHOWN_MAX).collect();
    let has = |word: &str| words.iter().skip(1).any(|it| it == word);
    match (has("up"), has("volume")) {
        (true, _) => Holder::Node(pid, shown),
        (_, true) => Holder::Command(pid, shown),
        _ => Holder::Unknown,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_lock_is_reported_with_its_holder() {
        let line = "12: FLOCK  ADVISORY  WRITE 4711 fe:0a:1234 0 EOF";
        assert_eq!(locker(line, (0xfe, 0x0a), 1234), Some(4711));
        assert_eq!(locker(line, (0xfe, 0x0b), 1234), None);
        assert_eq!(locker(line, (0xfe, 0x0a), 1235), None);
        assert_eq!(locker("3: POSIX  ADVISORY  WRITE 9 fe:0a:1234 0 0", (0xfe, 10), 1234), None);
        let waits = "12: -> FLOCK  ADVISORY  WRITE 4712 fe:0a:1234 0 EOF";
        assert_eq!(locker(waits, (0xfe, 0x0a), 1234), None);
        let command = |line: &[u8]| Busy(classified(7, line)).to_string();
        assert_eq!(
            command(b"tidegate\0volume\0create\0c.toml\0"),
            "another tidegate command is at work on it (process 7: tidegate volume create c.toml)"
        );
        assert_eq!(
            command(b"tidegate\0up\0volume\0"),
            "a node uses it (process 7: tidegate up volume)"
        );
        assert_eq!(command(b"flock\0"), "a node or another tidegate command uses it");
        let folder = tempfile::tempdir().unwrap();
        let open = || File::open(folder.path()).unwrap();
        let lock = StoreLock::take(open()).unwrap();
        let error = StoreLock::take(open()).unwrap_err();
        assert_eq!(error.to_string(), "a node of this process uses it");
        let inherited = lock.0.try_clone().unwrap();
        drop(lock);
        StoreLock::take(open()).unwrap();
        drop(inherited);
    }

    #[test]
    fn a_holder_is_found_while_other_locks_come_and_go() {
        /// They fill more than two pages of the list.
        const OTHERS: usize = 160;
        let folder = tempfile::tempdir().unwrap();
        let open = |name: usize| File::create(folder.path().join(name.to_string())).unwrap();
        let others: Vec<File> = (0..OTHERS).map(open).collect();
        let lock = StoreLock::take(open(OTHERS)).unwrap();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for operation in [FlockOperation::LockExclusive, FlockOperation::Unlock] {
                        others.iter().for_each(|file| flock(file, operation).unwrap());
                    }
                }
            });
            let missed = (0..2000).filter(|_| holder(&lock.0) != Holder::Own).count();
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(missed, 0);
        });
    }
}
