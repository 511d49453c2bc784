//! The block device below a store, as the kernel describes it in `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, major, minor, stat};

/// The scheduler that distinguishes the levels of best-effort priorities.
pub(crate) const WITH_LEVELS: &str = "bfq";

/// The I/O scheduler of the device that `path` is, or lies on. None where that is no single device
/// of the kernel, as below a network's file system.
pub(crate) fn scheduler(path: &Path) -> Option<String> {
    let status = stat(path).ok()?;
    let is_device = FileType::from_raw_mode(status.st_mode) == FileType::BlockDevice;
    let number = if is_device { status.st_rdev } else { status.st_dev };
    let folder = PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
    // A partition has the queue of its device.
    let queues = ["queue/scheduler", "../queue/scheduler"].map(|queue| folder.join(queue));
    let text = queues.iter().find_map(|file| fs::read_to_string(file).ok())?;
    in_force(&text).map(ToOwned::to_owned)
}

/// The one in brackets: `none [mq-deadline] bfq`.
fn in_force(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_in_brackets_is_in_force() {
        assert_eq!(in_force("none [mq-deadline] bfq\n"), Some("mq-deadline"));
        assert_eq!(in_force("[none]"), Some("none"));
        assert_eq!(in_force("none\n"), None);
        assert_eq!(scheduler(Path::new("/proc/self")), None, "no device is below it");
    }
}
