//! A disk of a benchmark: a file system on a loop device, so that its read-ahead, its scheduler and
//! its limits are the benchmark's own.

use std::path::{Path, PathBuf};

use crate::experiment::disk::Disk;
use crate::experiment::loop_device::LoopDevice;
use crate::experiment::mount_point::{self, MountPoint};
use crate::experiment::scratch::Scratch;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// The kernel's usual read-ahead. Some clouds set megabytes: then one read of a backup has the disk
/// read megabytes, and no gate in front of it can make them smaller.
const READ_AHEAD_KIB: &str = "128";

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
    pub(super) fn make(work: &Scratch, bytes: u64, interrupt: &Interrupt) -> Result<Self, Failure> {
        let device = LoopDevice::on_new_file(&work.join("disk"), bytes)?;
        let disk = device.disk()?;
        disk.set_queue("read_ahead_kb", READ_AHEAD_KIB).map_err(|error| {
            Failure::new(Code::Failure, "the kernel does not set the read-ahead").cause(error)
        })?;
        mount_point::format(device.path(), mount_point::WITH_JOURNAL, interrupt)?;
        let mount = MountPoint::new(&work.join("mount"))?;
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
