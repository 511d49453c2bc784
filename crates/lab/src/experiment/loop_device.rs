//! Loop devices: block devices on files.

use std::path::Path;
use std::process::{Command, Stdio};

use super::child;
use tidegate_console::failure::Failure;

/// A block device on a file. Dropping it detaches it.
pub(crate) struct LoopDevice {
    path: String,
}

impl LoopDevice {
    /// A device on `file`, past the page cache.
    ///
    /// # Errors
    /// If the kernel has none to give.
    pub(crate) fn attach(file: &Path) -> Result<Self, Failure> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--direct-io=on"]).arg(file);
        let output = child::output(&mut command, "there is no loop device to be had")?;
        Ok(Self { path: String::from_utf8_lossy(&output).trim().to_owned() })
    }

    /// Its path in `/dev`.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let mut command = Command::new("losetup");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = command.args(["--detach", &self.path]).status();
    }
}
