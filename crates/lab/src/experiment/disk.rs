//! The disk below a directory, and its speed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};
use serde::Serialize;

/// A block device, as the kernel limits it: the whole disk, not a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Disk {
    /// Its name, as in `/dev`.
    pub(crate) name: String,
    /// `major:minor`.
    pub(crate) number: String,
}

impl Disk {
    /// The disk that holds `directory`, or why none can be named.
    ///
    /// # Errors
    /// If the file system has no device of its own: memory, a network, layers or several disks.
    pub(crate) fn below(directory: &Path) -> Result<Self, String> {
        let found = rustix::fs::stat(directory).map_err(|error| error.to_string())?;
        let number = format!("{}:{}", major(found.st_dev), minor(found.st_dev));
        Self::numbered(Path::new("/sys/dev/block"), &number).ok_or_else(|| {
            format!("{} lies on no block device that the kernel names", directory.display())
        })
    }

    /// Sets a parameter of the disk's queue: its scheduler, its read-ahead.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn set_queue(&self, parameter: &str, value: &str) -> io::Result<()> {
        let queue = Path::new("/sys/block").join(&self.name).join("queue");
        fs::write(queue.join(parameter), value)
    }

    /// Reads and writes that it has completed so far, by the kernel's count.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub(crate) fn completed(&self) -> io::Result<u64> {
        let text = fs::read_to_string(Path::new("/sys/block").join(&self.name).join("stat"))?;
        completed(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The disk with this number, or of which that is a partition.
    fn numbered(devices: &Path, number: &str) -> Option<Self> {
        let mut path: PathBuf = devices.join(number).canonicalize().ok()?;
        if path.join("partition").exists() {
            path.pop();
        }
        let number = fs::read_to_string(path.join("dev")).ok()?.trim().to_owned();
        Some(Self { name: path.file_name()?.to_string_lossy().into_owned(), number })
    }
}

/// Reads and writes in the `stat` of a disk, which are the first of four numbers for each.
fn completed(stat: &str) -> Option<u64> {
    let mut numbers = stat.split_whitespace().map(|word| word.parse::<u64>().ok());
    Some(numbers.next()?? + numbers.nth(3)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_of_a_disk_are_counted() {
        let stat = "    9034        1   733  2118     56    2  688 74  0  1644  2192 0 0 0 0 0 0\n";
        assert_eq!(completed(stat), Some(9_034 + 56));
        assert_eq!(completed("1 2 3 4"), None);
        assert_eq!(completed(""), None);
    }

    #[test]
    fn a_partition_belongs_to_its_disk() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("devices/pci/nvme0n1");
        let part = disk.join("nvme0n1p2");
        fs::create_dir_all(&part).unwrap();
        fs::write(disk.join("dev"), "259:0\n").unwrap();
        fs::write(part.join("dev"), "259:2\n").unwrap();
        fs::write(part.join("partition"), "2\n").unwrap();
        let devices = root.path().join("dev/block");
        fs::create_dir_all(&devices).unwrap();
        std::os::unix::fs::symlink(&disk, devices.join("259:0")).unwrap();
        std::os::unix::fs::symlink(&part, devices.join("259:2")).unwrap();
        let expected = Disk { name: "nvme0n1".into(), number: "259:0".into() };
        assert_eq!(Disk::numbered(&devices, "259:0"), Some(expected.clone()));
        assert_eq!(Disk::numbered(&devices, "259:2"), Some(expected));
        assert_eq!(Disk::numbered(&devices, "0:42"), None);
    }
}
