//! Loop devices: block devices on files.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use super::child;
use super::disk::Disk;
use tidegate_console::failure::{Code, Failure};

/// A block device on a file. Dropping it detaches it.
pub(crate) struct LoopDevice {
    path: String,
}

impl LoopDevice {
    /// A device on a new file of so many bytes, which has holes.
    ///
    /// # Errors
    /// If the file cannot be made, or as [`Self::attach`].
    pub(crate) fn on_new_file(file: &Path, bytes: u64) -> Result<Self, Failure> {
        File::create(file).and_then(|file| file.set_len(bytes)).map_err(|error| {
            Failure::new(Code::Failure, "cannot make a loop device's file").cause(error)
        })?;
        Self::attach(file)
    }

    /// A device on `file`, past the page cache.
    ///
    /// # Errors
    /// If the kernel has none to give.
    pub(crate) fn attach(file: &Path) -> Result<Self, Failure> {
        let mut command = child::apart("losetup");
        command.args(["--find", "--show", "--direct-io=on"]).arg(file);
        let output = child::output(&mut command, "there is no loop device to be had")?;
        let device = Self { path: String::from_utf8_lossy(&output).trim().to_owned() };
        device.reset_scheduler();
        Ok(device)
    }

    /// The devices on `file`, of a run that was killed.
    pub(crate) fn all_on(file: &Path) -> Vec<Self> {
        let mut command = child::apart("losetup");
        command.args(["--noheadings", "--output", "NAME", "--associated"]).arg(file);
        let output = child::output(&mut command, "").unwrap_or_default();
        let names = String::from_utf8_lossy(&output).into_owned();
        names.split_whitespace().map(|path| Self { path: path.into() }).collect()
    }

    /// Sets the scheduler to none, as the kernel does for a new loop device. A device keeps the one
    /// that its last user chose, also when it is detached, and BFQ lets a small read wait for tens
    /// of milliseconds while the device is full.
    fn reset_scheduler(&self) {
        // A kernel that does not say has no schedulers.
        let _ = self.disk().map(|disk| disk.set_queue("scheduler", "none"));
    }

    /// The disk that it is to the kernel.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub(crate) fn disk(&self) -> Result<Disk, Failure> {
        let name = self.path.trim_start_matches("/dev/").to_owned();
        let number = fs::read_to_string(format!("/sys/block/{name}/dev")).map_err(|error| {
            Failure::new(Code::Failure, "the kernel does not know the loop device").cause(error)
        })?;
        Ok(Disk { name, number: number.trim().to_owned() })
    }

    /// Its path in `/dev`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.reset_scheduler();
        let mut command = child::apart("losetup");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = command.args(["--detach", &self.path]).status();
    }
}
