//! The disk of the backups benchmark: a file system on a loop device, so that its read-ahead, its
//! scheduler and its limits are the benchmark's own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::experiment::child;
use crate::experiment::disk::Disk;
use crate::experiment::loop_device::LoopDevice;
use crate::experiment::scratch::Scratch;
use tidegate_console::failure::{Code, Failure};

/// The size of the device: the database, its log, and the snapshot fit. The file has holes.
const SIZE: u64 = 5 << 30;
/// The kernel's usual read-ahead. Some clouds set megabytes: then one read of a backup has the disk
/// read megabytes, and no gate in front of it can make them smaller.
const READ_AHEAD_KIB: &str = "128";

/// A mounted file system. Dropping it unmounts it, and then detaches the device.
pub(super) struct BackupDisk {
    mount: PathBuf,
    pub(super) disk: Disk,
    _device: LoopDevice,
}

impl BackupDisk {
    /// A file system on a file of its own in `work`.
    ///
    /// # Errors
    /// If we are not root, or the kernel has no loop device to give.
    pub(super) fn make(work: &Scratch) -> Result<Self, Failure> {
        let failed =
            |error: io::Error| Failure::new(Code::Failure, "cannot make a disk").cause(error);
        let (image, mount) = (work.join("disk"), work.join("mount"));
        fs::create_dir(&mount).map_err(failed)?;
        fs::File::create(&image).and_then(|file| file.set_len(SIZE)).map_err(failed)?;
        let device = LoopDevice::attach(&image)?;
        let name = device.path().trim_start_matches("/dev/").to_owned();
        let number = fs::read_to_string(format!("/sys/block/{name}/dev")).map_err(failed)?;
        let disk = Disk { name, number: number.trim().to_owned() };
        fs::write(queue(&disk, "read_ahead_kb"), READ_AHEAD_KIB).map_err(failed)?;
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(device.path());
        child::output(&mut make, "cannot make a file system")?;
        let mut command = Command::new("mount");
        command.args(["-o", "noatime"]).arg(device.path()).arg(&mount);
        child::output(&mut command, "cannot mount a file system")?;
        Ok(Self { mount, disk, _device: device })
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.mount.join(name)
    }

    pub(super) fn path(&self) -> &Path {
        &self.mount
    }

    /// Chooses the scheduler of the device.
    ///
    /// # Errors
    /// If the kernel has no such scheduler.
    pub(super) fn schedule(&self, name: &str) -> Result<(), Failure> {
        fs::write(queue(&self.disk, "scheduler"), name).map_err(|error| {
            Failure::new(Code::Failure, format!("the kernel has no scheduler {name}")).cause(error)
        })
    }
}

fn queue(disk: &Disk, name: &str) -> PathBuf {
    Path::new("/sys/block").join(&disk.name).join("queue").join(name)
}

impl Drop for BackupDisk {
    fn drop(&mut self) {
        let mut command = Command::new("umount");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = command.arg(&self.mount).status();
    }
}
