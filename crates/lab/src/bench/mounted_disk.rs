//! A disk of a benchmark: a file system on a loop device, so that its read-ahead, its scheduler and
//! its limits are the benchmark's own.

use std::io;
use std::path::{Path, PathBuf};

use crate::experiment::disk::Disk;
use crate::experiment::loop_device::LoopDevice;
use crate::experiment::mount_point::{self, MountPoint};
use crate::experiment::remains::RunFolder;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// The kernel's usual read-ahead. Some clouds set megabytes: then one read of a backup has the disk
/// read megabytes, and no gate in front of it can make them smaller.
const READ_AHEAD_KIB: &str = "128";

/// The file behind the device, in its folder.
const FILE: &str = "disk";

/// A new folder in `parent` for the file and the mount of a disk, which only we can read. Disks and
/// folders there of runs of this bench that were killed are removed first: a gigabyte each.
///
/// # Errors
/// If it cannot be made.
pub(super) fn disk_folder(parent: &Path, prefix: &str) -> io::Result<RunFolder> {
    for folder in RunFolder::remains(parent, prefix) {
        // Dropped in this order: mounts, devices, the folder.
        for device in LoopDevice::all_on(&folder.path().join(FILE)) {
            drop(MountPoint::all_of(device.path()));
        }
    }
    RunFolder::make(parent, prefix, 0o700)
}

/// A mounted file system. Dropping it unmounts it, and then detaches the device.
pub(super) struct MountedDisk {
    mount: MountPoint,
    pub(super) disk: Disk,
    _device: LoopDevice,
}

impl MountedDisk {
    /// A file system of so many bytes, on a file of its own in `work`, which has holes.
    ///
    /// # Errors
    /// If we are not root, the kernel has no loop device to give, or the user ends the command.
    pub(super) fn make(
        work: &RunFolder,
        bytes: u64,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let device = LoopDevice::on_new_file(&work.path().join(FILE), bytes)?;
        let disk = device.disk()?;
        disk.set_queue("read_ahead_kb", READ_AHEAD_KIB).map_err(|error| {
            Failure::new(Code::Failure, "the kernel does not set the read-ahead").cause(error)
        })?;
        mount_point::format(device.path(), mount_point::WITH_JOURNAL, interrupt)?;
        let mount = MountPoint::new(&work.path().join("mount"))?;
        mount.mount(device.path(), interrupt)?;
        Ok(Self { mount, disk, _device: device })
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(super) fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Chooses the scheduler of the device.
    ///
    /// # Errors
    /// If the kernel has no such scheduler.
    pub(super) fn schedule(&self, name: &str) -> Result<(), Failure> {
        self.disk.set_queue("scheduler", name).map_err(|error| {
            Failure::new(Code::Failure, format!("the kernel has no scheduler {name}")).cause(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::experiment::child;
    use crate::experiment::remains;

    const PREFIX: &str = ".tidegate-bench-test-";

    #[test]
    fn the_next_bench_removes_the_disk_of_one_that_was_killed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = disk_folder(parent.path(), PREFIX).unwrap();
        assert!(remains::remains(parent.path(), PREFIX).is_empty(), "this run goes on");
        let is_root = rustix::process::geteuid().is_root() && child::is_there("mkfs.ext4");
        let disk =
            is_root.then(|| MountedDisk::make(&folder, 16 << 20, &Interrupt::default()).unwrap());
        if disk.is_none() {
            eprintln!("SKIPPED in part: only root has loop devices");
        }
        // The kernel ends the lock of a process that is killed, and nothing else.
        folder.end_lock().unwrap();
        let path = parent.path().join(format!("{PREFIX}1"));
        fs::rename(folder.path(), &path).unwrap();
        let next = disk_folder(parent.path(), PREFIX).unwrap();
        assert!(!path.exists() && next.path().exists());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&*parent.path().to_string_lossy()), "{mounts}");
        assert!(LoopDevice::all_on(&path.join(FILE)).is_empty());
        // The device may be another's by now.
        std::mem::forget((disk, folder));
    }
}
