//! A virtual machine whose disk is a volume, with a kernel that knows nothing of us.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_tests::cluster::{Cluster, directories, volume};
use tidegate_tests::{built, process, tools};

use super::OPEN;

/// The numbers that the guest writes, a line each.
const NUMBERS: std::ops::Range<u32> = 100_000..300_000;

/// The modules that the kernel needs to see the disk; tests/programs/guest.sh says in which
/// order.
const MODULES: [&str; 6] = [
    "virtio",
    "virtio_blk",
    "virtio_pci",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_ring",
];

/// The guest's files, packed as its kernel wants them.
fn packed(cluster: &mut Cluster, busybox: &Path, kernel: &Path) -> PathBuf {
    let root = cluster.bed().subfolder("guest");
    for folder in ["bin", "dev", "proc"] {
        fs::create_dir(root.join(folder)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    let init = root.join("init");
    fs::copy(tools::source("guest.sh"), &init).unwrap();
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755)).unwrap();
    for module in MODULES {
        let file = format!("{module}.ko");
        fs::copy(kernel.join(&file), root.join(&file)).unwrap();
    }
    let packed = cluster.bed().path("guest.cpio");
    let script = "cd \"$1\"; \"$2\" find . | \"$2\" cpio -o -H newc >\"$3\"";
    let mut pack = Command::new("sh");
    pack.args(["-euc", script, "sh"]).args([&root, busybox, &packed]);
    process::run(&mut pack).success();
    packed
}

#[test]
fn a_virtual_machine_and_its_host_read_what_it_wrote() {
    let [Some(qemu), Some(busybox)] = ["qemu-system-x86_64", "busybox"].map(tools::want) else {
        return;
    };
    let kernel = built::guest_folder();
    let image = kernel.join("vmlinuz");
    if !image.exists() {
        return tools::skipped("no kernel was fetched; make test-guest does that, and runs this");
    }
    let nodes = ["a", "b", "c"];
    let db = volume("db", "oltp", "4MiB", &nodes);
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&nodes)), OPEN);
    cluster.up();
    let packed = packed(&mut cluster, &busybox, &kernel);
    let mut machine = Command::new(qemu);
    // Emulated, which works on every machine and takes some seconds.
    machine.args(["-accel", "tcg", "-m", "256", "-nodefaults", "-no-user-config", "-no-reboot"]);
    machine.args(["-display", "none", "-serial", "stdio"]);
    machine.arg("-kernel").arg(image).arg("-initrd").arg(packed);
    machine.args(["-append", "console=ttyS0 quiet panic=-1"]);
    machine.arg("-drive").arg(format!("file={},format=raw,if=virtio", cluster.uri("db")));
    let report = process::run(&mut machine).success();
    let output = |what: &str| {
        let found = report.stdout.lines().find_map(|line| line.trim().strip_prefix(what));
        found.unwrap_or_else(|| panic!("the guest does not say{what}: {report:?}")).to_owned()
    };
    assert_eq!(output("guest: size "), (4 << 20).to_string());
    assert_eq!(output("guest: wrote "), output("guest: read "));
    // Data that a guest made durable outlives all processes here.
    cluster.bed().kill_controller();
    cluster.up();
    cluster.client("nbdcopy", &[&cluster.uri("db"), "disk"]).success();
    let written: String = NUMBERS.map(|number| format!("{number}\n")).collect();
    let disk = fs::read(cluster.bed().path("disk")).unwrap();
    assert!(disk.starts_with(written.as_bytes()), "the host reads something else");
    assert!(disk[written.len()..].iter().all(|byte| *byte == 0), "more was written");
}
