//! Loop devices: block devices on files.

use std::path::Path;
use std::process::Command;

use crate::{process, tools};

/// A loop device on a file. Dropping it detaches it.
pub struct LoopDevice(String);

impl LoopDevice {
    /// A device on `file`, past the page cache; none where this kernel has no loop device to give.
    pub fn attach(file: &Path) -> Option<Self> {
        let mut command = Command::new(tools::want("losetup")?);
        let arguments = ["--find", "--show", "--direct-io=on"];
        let outcome = process::run(command.args(arguments).arg(file));
        if outcome.code != Some(0) {
            tools::skipped(&format!("no loop device: {}", outcome.complaint()));
            return None;
        }
        Some(Self(outcome.stdout.trim().to_owned()))
    }

    /// Its path in `/dev`.
    pub fn path(&self) -> &str {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        process::run(Command::new("losetup").args(["--detach", &self.0]));
    }
}
