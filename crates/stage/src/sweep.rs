//! Removal of shared-memory segments whose agent has died.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use tidegate_fabric::segment_use::is_used_by_others;

use crate::census::has_heirs;
use crate::segment::{Segment, directory};
use crate::usage::is_alive;

/// How long a new file is left alone by those that sweep.
const BEING_MADE: Duration = Duration::from_secs(60);

/// Removes segment files of this user that no agent keeps and no process maps any more: agents that
/// were killed left them behind.
#[expect(clippy::disallowed_methods, reason = "the age of a file is on the clock of its system")]
pub(crate) fn sweep() {
    let Ok(directory) = directory() else { return };
    let Ok(entries) = std::fs::read_dir(&directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let is_ours = entry.file_name().as_encoded_bytes().starts_with(b"stage-");
        // One that was just made is perhaps not locked yet.
        let age = entry.metadata().and_then(|data| data.modified()).map(|time| time.elapsed());
        let is_old = age.is_ok_and(|age| age.is_ok_and(|age| age > BEING_MADE));
        if is_ours && is_old && !is_kept(&path) && !is_mapped(&path) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether an agent holds its lock on the file. Not whether it runs: its number means nothing in
/// another namespace that has the same `/dev/shm`.
fn is_kept(path: &Path) -> bool {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return true };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
}

/// Whether a process uses the stage, or may in a moment.
fn is_mapped(path: &Path) -> bool {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty());
    if let Ok(is_used) = file.and_then(is_used_by_others) {
        return is_used || has_heirs(path);
    }
    Segment::attach(path).is_ok_and(|segment| {
        let pids = segment.processes.iter().map(|pid| pid.load(Ordering::Relaxed));
        pids.filter(|pid| *pid != 0).any(is_alive)
    })
}
