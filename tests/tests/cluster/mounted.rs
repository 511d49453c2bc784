//! A file system on a volume, by way of the kernel: what people do with block devices.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tidegate_tests::cluster::{Cluster, directories, volume};
use tidegate_tests::loop_device::LoopDevice;
use tidegate_tests::process::{self, ProgramOutcome, Running};
use tidegate_tests::{eventually, tools, tree, wait_for};

use super::OPEN;

/// A volume as a file, the file as a device, and a file system on that: what was set up so far, to
/// be taken down in the other order also where a test fails.
struct Mount {
    folder: PathBuf,
    fuse: Option<Running>,
    device: Option<LoopDevice>,
    is_mounted: bool,
}

fn run(program: &str, arguments: &[&str]) -> ProgramOutcome {
    process::run(Command::new(tools::need(program)).args(arguments))
}

impl Mount {
    /// The volume as a device. Nothing if this kernel has no such things to give.
    fn attach(cluster: &mut Cluster, export: &str) -> Option<Self> {
        let folder = cluster.bed().subfolder("mnt");
        let mut mount = Self { folder, fuse: None, device: None, is_mounted: false };
        let mut command = Command::new(tools::need("nbdfuse"));
        command.arg(mount.folder()).arg(cluster.uri(export)).stdin(Stdio::null());
        mount.fuse = Some(process::spawn(&mut command));
        let file = mount.folder.join("nbd");
        eventually("the volume as a file", || file.exists());
        mount.device = Some(LoopDevice::attach(&file)?);
        Some(mount)
    }

    fn folder(&self) -> &Path {
        &self.folder
    }

    fn device(&self) -> &str {
        self.device.as_ref().expect("a device").path()
    }

    fn mount(&mut self, root: &Path) {
        run("mount", &[self.device(), &root.display().to_string()]).success();
        self.is_mounted = true;
    }

    fn umount(&mut self) {
        run("umount", &[self.device()]).success();
        self.is_mounted = false;
        // A test that made a mount namespace meanwhile has a copy of the mount until it ends.
        wait_for("the mount to be gone from every namespace", OTHERS, || {
            (!is_mounted_anywhere(self.device())).then_some(())
        });
    }
}

/// How long tests beside this one may keep a mount namespace.
const OTHERS: Duration = Duration::from_secs(120);

/// Whether a process has this device mounted, in whatever mount namespace it is.
fn is_mounted_anywhere(device: &str) -> bool {
    let named = format!(" {device} ");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mounts = processes.filter_map(|entry| fs::read(entry.path().join("mountinfo")).ok());
    mounts.into_iter().any(|mounts| String::from_utf8_lossy(&mounts).contains(&named))
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted {
            run("umount", &[self.device()]);
        }
        drop(self.device.take());
        if let Some(fuse) = self.fuse.take() {
            // The kernel lets go of a detached device when whoever still looks at it is done.
            let folder = self.folder.display().to_string();
            eventually("the volume's file to be free", || {
                run("umount", &[&folder]).code == Some(0)
            });
            fuse.finish();
        }
    }
}

#[test]
fn a_file_system_lives_on_a_striped_volume() {
    if !tools::is_root() || !Path::new("/dev/fuse").exists() {
        return tools::skipped("only root can mount, and only where there is /dev/fuse");
    }
    let [Some(_), Some(_), Some(_)] = ["nbdfuse", "mkfs.ext4", "losetup"].map(tools::want) else {
        return;
    };
    let nodes = ["a", "b", "c"];
    let db = volume("db", "oltp", "48MiB", &nodes);
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&nodes)), OPEN);
    cluster.up();
    let root = cluster.bed().subfolder("root");
    // A copy of something that no process changes meanwhile.
    let source = cluster.bed().path("original");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("crates");
    run("cp", &["-a", &crates.display().to_string(), &source.display().to_string()]).success();
    let Some(mut mount) = Mount::attach(&mut cluster, "db") else { return };
    run("mkfs.ext4", &["-q", mount.device()]).success();
    mount.mount(&root);
    let to = format!("{}/", root.display());
    run("cp", &["-a", &source.display().to_string(), &to]).success();
    mount.umount();
    run("e2fsck", &["-f", "-n", mount.device()]).success();
    drop(mount);
    // Everything ends suddenly, and somebody else looks at it.
    cluster.bed().kill_controller();
    cluster.up();
    let mut mount = Mount::attach(&mut cluster, "db").expect("another device");
    mount.mount(&root);
    let original = tree::listing(&source, &|_| false);
    assert!(original == tree::listing(&root.join("original"), &|_| false), "the copy differs");
    mount.umount();
    run("e2fsck", &["-f", "-n", mount.device()]).success();
}
