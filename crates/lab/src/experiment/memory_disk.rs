//! A disk in memory: ext4 on a loop device on a file in shared memory.
//!
//! To the kernel it is a disk: requests past the page cache reach it, and its control groups limit
//! it. It has no moving parts and no neighbours, so it never stalls.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::loop_device::LoopDevice;
use super::mount_point::{self, MountPoint};
use super::plan::MIB;
use super::scratch::{self, Scratch};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// Where the kernel keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// The size of a disk with space for files of so many MiB. The file system keeps a twentieth for
/// root, and needs a fiftieth and some MiB for itself.
const fn size_mib(space_mib: u64) -> u64 {
    space_mib + space_mib / 8 + 32
}

const MESSAGE: &str = "cannot make a disk in memory";

/// The disk. Dropping it removes all of it.
pub(crate) struct MemoryDisk {
    // Dropped in this order.
    root: MountPoint,
    _device: LoopDevice,
    _image: Image,
    _scratch: Scratch,
}

fn image_path() -> PathBuf {
    Path::new(MEMORY).join(format!("tidegate-disk-{}", std::process::id()))
}

/// The file in memory.
struct Image(PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl MemoryDisk {
    /// Whether a disk with space for files of so many MiB can be made.
    ///
    /// # Errors
    /// If the user is not root, or memory is short.
    pub(crate) fn check(space_mib: u64) -> Result<(), Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::new(Code::Failure, MESSAGE)
                .cause("loop devices are for root")
                .help("run it as root, or name a directory on a disk with --directory"));
        }
        scratch::check_space(Path::new(MEMORY), size_mib(space_mib), "--directory DIR")
    }

    /// Makes a disk with space for files of so many MiB.
    ///
    /// # Errors
    /// As [`Self::check`], or if the kernel has no loop devices.
    pub(crate) fn new(space_mib: u64, interrupt: &Interrupt) -> Result<Self, Failure> {
        Self::check(space_mib)?;
        let path = image_path();
        let fail = |error: io::Error| Failure::new(Code::Failure, MESSAGE).cause(error);
        let file = File::create_new(&path).map_err(fail)?;
        let image = Image(path);
        file.set_len(size_mib(space_mib) * MIB).map_err(fail)?;
        let device = LoopDevice::attach(&image.0)?;
        mount_point::format(device.path(), mount_point::WITHOUT_JOURNAL, interrupt)?;
        let scratch = Scratch::new()?;
        let root = MountPoint::new(&scratch.join("disk"))?;
        root.mount(device.path(), interrupt)?;
        Ok(Self { root, _device: device, _image: image, _scratch: scratch })
    }

    /// A directory on it.
    pub(crate) fn path(&self) -> &Path {
        self.root.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::child;
    use crate::experiment::disk::Disk;

    #[test]
    fn a_disk_in_memory_is_one_to_the_kernel_and_is_gone_afterwards() {
        if MemoryDisk::check(16).is_err() || !child::is_there("mkfs.ext4") {
            eprintln!("SKIPPED: only root has loop devices");
            return;
        }
        let disk = MemoryDisk::new(16, &Interrupt::default()).unwrap();
        let (root, image) = (disk.path().to_owned(), image_path());
        scratch::check_space(&root, 16, "").unwrap();
        fs::write(root.join("file"), vec![1; 16 << 20]).unwrap();
        let device = Disk::below(&root).unwrap();
        assert!(device.name.starts_with("loop"), "{device:?}");
        // Where the kernel has others, they are none of the next user's business.
        let scheduler = format!("/sys/block/{}/queue/scheduler", device.name);
        let is_none =
            || fs::read_to_string(&scheduler).is_ok_and(|text| text.starts_with("[none]"));
        assert!(is_none());
        let _ = device.set_queue("scheduler", "mq-deadline");
        drop(disk);
        assert!(!image.exists() && !root.exists());
        let backing = format!("/sys/block/{}/loop/backing_file", device.name);
        let left = fs::read_to_string(backing).unwrap_or_default();
        assert!(!left.contains(&*image.to_string_lossy()), "{left}");
        assert!(is_none(), "the next one who has the device finds it as it was");
    }
}
