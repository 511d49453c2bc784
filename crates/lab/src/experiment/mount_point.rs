//! File systems of an experiment: ext4 on a block device, mounted for a while.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tidegate_model::Span;

use super::child;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// How long the kernel may take to let go of a file system.
const PATIENCE: Span = Span(5 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(20 * Span::MILLISECOND.0);

/// A directory at which a file system may be mounted. Dropping it unmounts that.
#[derive(Debug)]
pub(crate) struct MountPoint {
    path: PathBuf,
}

impl MountPoint {
    /// Makes the directory.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn new(path: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(path).map_err(|error| {
            Failure::new(Code::Failure, "cannot make a folder to mount at").cause(error)
        })?;
        Ok(Self { path: path.into() })
    }

    /// Where the file system of a block device is mounted, by a run that was killed.
    pub(crate) fn all_of(device: &str) -> Vec<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let paths = mounts.lines().filter_map(|line| {
            let (source, rest) = line.split_once(' ')?;
            let path = rest.split(' ').next()?;
            (source == device).then(|| Self { path: path.replace("\\040", " ").into() })
        });
        paths.collect()
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts the file system of a block device here.
    ///
    /// # Errors
    /// If the kernel refuses, or the user ends the command.
    pub(crate) fn mount(&self, device: &str, interrupt: &Interrupt) -> Result<(), Failure> {
        let path = self.path.display().to_string();
        let arguments = ["-o", "noatime", device, &path];
        child::run("mount", &arguments, "cannot mount the file system", interrupt)
    }

    /// Unmounts what is mounted here. A lazy end is the last resort: it leaves nothing behind once
    /// the last user is gone.
    pub(crate) fn unmount(&self) {
        let path = self.path.display().to_string();
        if is_mounted(&path) && !until(|| succeeds("umount", &[&path])) {
            succeeds("umount", &["--lazy", &path]);
        }
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Options of an ext4 without a journal. All of it is written at once, and nothing in the
/// background: that would disturb what is measured.
pub(crate) const WITHOUT_JOURNAL: &[&str] =
    &["-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=0"];

/// The same with a journal.
pub(crate) const WITH_JOURNAL: &[&str] = &["-E", "lazy_itable_init=0,lazy_journal_init=0"];

/// Makes an ext4 with these options on a block device.
///
/// # Errors
/// If the tool fails, or the user ends the command.
pub(crate) fn format(device: &str, options: &[&str], interrupt: &Interrupt) -> Result<(), Failure> {
    let arguments = [&["-q"], options, &[device]].concat();
    child::run("mkfs.ext4", &arguments, "cannot make a file system", interrupt)
}

/// Runs a command of which a failure has no effect but to be tried again.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = child::apart(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether something is mounted there: the kernel's list writes blanks as `\040`.
fn is_mounted(path: &str) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.contains(&format!(" {} ", path.replace(' ', "\\040")))
}

fn until(done: impl Fn() -> bool) -> bool {
    let clock = Clock::start();
    while !done() {
        if clock.now().0 > PATIENCE.0 {
            return false;
        }
        clock.sleep_until(clock.now().after(POLL_INTERVAL));
    }
    true
}
