//! A file system on a volume, without a module of the kernel for NBD: nbdfuse makes the volume a
//! file, a loop device makes that a block device, and ext4 lies on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tidegate_model::Span;

use crate::experiment::child::{self, Child, Start};
use crate::experiment::loop_device::LoopDevice;
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// How long the kernel may take to let go of a file system or a device.
const PATIENCE: Span = Span(5 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(20 * Span::MILLISECOND.0);

/// The parts that are set up so far. Dropping it takes them down in the other order.
pub(super) struct Mount {
    root: PathBuf,
    device: Option<LoopDevice>,
    /// The folder with the volume as a file.
    folder: PathBuf,
    fuse: Option<Child>,
}

/// Runs a command to its end.
///
/// # Errors
/// If it fails. Ctrl-C on the terminal ends it too; then that is the reason.
pub(super) fn run(
    program: &str,
    arguments: &[&str],
    message: &str,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let output = child::output(Command::new(program).args(arguments), message);
    interrupt.check()?;
    output.map(drop)
}

/// Runs a command of which a failure has no effect but to be tried again.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
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

impl Mount {
    /// Mounts the volume behind `uri` at `root`, with a new file system if it is to be formatted.
    ///
    /// # Errors
    /// If a step fails, or the user ends the command. Earlier steps are undone then.
    pub(super) fn attach(
        uri: &str,
        root: &Path,
        is_formatted: bool,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let folder = scratch.join("volume");
        let made = fs::create_dir_all(&folder).and_then(|()| fs::create_dir_all(root));
        made.map_err(|error| {
            Failure::new(Code::Failure, "cannot make a folder to mount at").cause(error)
        })?;
        let mut mount = Self { root: root.into(), device: None, folder, fuse: None };
        let file = mount.folder.join("nbd");
        let start = Start {
            name: "nbdfuse".into(),
            program: "nbdfuse".into(),
            arguments: vec![mount.folder.clone().into(), uri.into()],
            ..Start::default()
        };
        mount.fuse = Some(Child::start_until(&start, || file.exists(), scratch.path(), interrupt)?);
        let device = LoopDevice::attach(&file);
        interrupt.check()?;
        let device = mount.device.insert(device?).path().to_owned();
        if !is_formatted {
            let options = ["-q", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=0"];
            let arguments = [&options[..], &[&device]].concat();
            run("mkfs.ext4", &arguments, "cannot make a file system on the volume", interrupt)?;
        }
        let root = root.display().to_string();
        let arguments = ["-o", "noatime", &device, &root];
        run("mount", &arguments, "cannot mount the volume", interrupt)?;
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let [root, folder] = [&self.root, &self.folder].map(|path| path.display().to_string());
        // A lazy end is the last resort: it leaves nothing behind once the last user is gone.
        let unmount = |path: &str| {
            until(|| succeeds("umount", &[path])) || succeeds("umount", &["--lazy", path])
        };
        if is_mounted(&root) {
            unmount(&root);
        }
        drop(self.device.take());
        if let Some(mut fuse) = self.fuse.take() {
            if is_mounted(&folder) {
                unmount(&folder);
            }
            fuse.end();
        }
    }
}
