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
use super::remains::{self, RunLock};
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

/// Unmounts the disk of a run that was killed, and removes the directories for that.
fn remove_mount(mount: &MountPoint) {
    mount.unmount();
    let directories = mount.path().ancestors().take(2);
    let is_ours = |directory: &&Path| directory.parent().is_some_and(Scratch::is_name);
    // They are empty, or another's.
    directories.filter(|it| is_ours(it) || Scratch::is_name(it)).for_each(|directory| {
        let _ = fs::remove_dir(directory);
    });
}

/// The disk. Dropping it removes all of it.
pub(crate) struct MemoryDisk {
    // Dropped in this order.
    root: MountPoint,
    _device: LoopDevice,
    _image: Image,
    _scratch: Scratch,
}

/// The beginning of the names of files in memory.
const PREFIX: &str = "tidegate-loop-";

fn image_path() -> PathBuf {
    Path::new(MEMORY).join(remains::run_name(PREFIX))
}

/// The file in memory, which is removed when this is dropped.
struct Image {
    path: PathBuf,
    _lock: RunLock,
}

impl Image {
    fn new(path: PathBuf, bytes: u64) -> io::Result<Self> {
        let file = File::create_new(&path)?;
        let image = Self { _lock: RunLock::new(&path)?, path };
        file.set_len(bytes)?;
        Ok(image)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
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
        let fail = |error: io::Error| Failure::new(Code::Failure, MESSAGE).cause(error);
        let image = Image::new(image_path(), size_mib(space_mib) * MIB).map_err(fail)?;
        let device = LoopDevice::attach(&image.path)?;
        mount_point::format(device.path(), mount_point::WITHOUT_JOURNAL, interrupt)?;
        let scratch = Scratch::new()?;
        let root = MountPoint::new(&scratch.join("disk"))?;
        root.mount(device.path(), interrupt)?;
        Ok(Self { root, _device: device, _image: image, _scratch: scratch })
    }

    /// Removes the disks of runs that were killed, and returns their files.
    pub(crate) fn remove_remains() -> Vec<PathBuf> {
        let removed =
            remains::remains(Path::new(MEMORY), PREFIX).into_iter().map(|(path, lock)| {
                // Dropped in this order.
                let image = Image { path: path.clone(), _lock: lock };
                for device in LoopDevice::all_on(&image.path) {
                    MountPoint::all_of(device.path()).iter().for_each(remove_mount);
                }
                path
            });
        removed.collect()
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
        assert!(!MemoryDisk::remove_remains().contains(&image), "this run goes on");
        drop(disk);
        assert!(!image.exists() && !root.exists());
        let backing = format!("/sys/block/{}/loop/backing_file", device.name);
        let left = fs::read_to_string(backing).unwrap_or_default();
        assert!(!left.contains(&*image.to_string_lossy()), "{left}");
        assert!(is_none(), "the next one who has the device finds it as it was");
        // One name of a file is free at a time.
        expect_removed(MemoryDisk::new(16, &Interrupt::default()).unwrap());
    }
    /// The disk of a run that is killed: the kernel ends its lock, and nothing else.
    fn expect_removed(disk: MemoryDisk) {
        let MemoryDisk { root, _device: device, _image: image, _scratch: scratch } = disk;
        let (path, directory) = (image.path.clone(), scratch.path().to_owned());
        let Image { _lock: lock, .. } = &image;
        lock.end().unwrap();
        assert!(MemoryDisk::remove_remains().contains(&path));
        assert!(!path.exists() && !directory.exists());
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&*root.path().to_string_lossy()), "{mounts}");
        assert!(LoopDevice::all_on(&path).is_empty());
        // The device may be another's by now.
        std::mem::forget((root, device, image, scratch));
    }
}
