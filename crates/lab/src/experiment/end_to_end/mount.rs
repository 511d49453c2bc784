//! A file system on a volume, without a module of the kernel for NBD: nbdfuse makes the volume a
//! file, a loop device makes that a block device, and ext4 lies on it.

use std::path::Path;

use crate::experiment::child::{Child, Start};
use crate::experiment::loop_device::LoopDevice;
use crate::experiment::mount_point::{self, MountPoint};
use crate::experiment::scratch::Scratch;
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;

/// The parts that are set up so far. Dropping it takes them down in the other order.
pub(super) struct Mount {
    root: MountPoint,
    device: Option<LoopDevice>,
    /// The folder with the volume as a file.
    folder: MountPoint,
    fuse: Option<Child>,
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
        let folder = MountPoint::new(&scratch.join("volume"))?;
        let mut mount = Self { root: MountPoint::new(root)?, device: None, folder, fuse: None };
        let folder = mount.folder.path();
        let file = folder.join("nbd");
        let start = Start {
            name: "nbdfuse".into(),
            program: "nbdfuse".into(),
            arguments: vec![folder.into(), uri.into()],
            ..Start::default()
        };
        mount.fuse = Some(Child::start_until(&start, || file.exists(), scratch.path(), interrupt)?);
        let device = LoopDevice::attach(&file);
        interrupt.check()?;
        let device = mount.device.insert(device?).path().to_owned();
        if !is_formatted {
            mount_point::format(&device, mount_point::WITHOUT_JOURNAL, interrupt)?;
        }
        mount.root.mount(&device, interrupt)?;
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.root.unmount();
        drop(self.device.take());
        if let Some(mut fuse) = self.fuse.take() {
            self.folder.unmount();
            fuse.end();
        }
    }
}
