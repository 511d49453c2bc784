//! Requests at a block device have the I/O priority of their class, as the kernel's own trace of
//! requests shows.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tidegate_tests::cluster::{Cluster, GATEWAY, volume};
use tidegate_tests::loop_device::LoopDevice;
use tidegate_tests::{eventually, process, tools};

/// The numbers of a device, as the kernel's trace has them: `7,3`.
fn numbers(device: &LoopDevice) -> String {
    let name = device.path().trim_start_matches("/dev/");
    let numbers = fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
    numbers.trim().replace(':', ",")
}

/// The kernel's trace of requests to block devices, in an instance of its own.
struct Trace {
    root: PathBuf,
    instance: PathBuf,
}

impl Trace {
    /// None where the kernel has no such trace, or one without priorities.
    fn start(root: PathBuf) -> Option<Self> {
        let mut mount = Command::new("mount");
        let mounted = process::run(mount.args(["-t", "tracefs", "none"]).arg(&root));
        if mounted.code != Some(0) {
            tools::skipped(&format!("no tracefs: {}", mounted.complaint()));
            return None;
        }
        let instance = root.join(format!("instances/tidegate-{}", std::process::id()));
        fs::create_dir(&instance).unwrap();
        let trace = Self { root, instance };
        let event = trace.instance.join("events/block/block_rq_issue");
        let format = fs::read_to_string(event.join("format")).unwrap_or_default();
        if !format.contains("ioprio") {
            tools::skipped("the kernel's block_rq_issue has no ioprio");
            return None;
        }
        fs::write(event.join("enable"), "1").unwrap();
        Some(trace)
    }

    /// The priorities of reads of this device, each once: `be,2`, or `none,0`.
    fn priorities(&self, device: &str) -> Vec<String> {
        let text = fs::read_to_string(self.instance.join("trace")).unwrap();
        let reads = text.lines().filter_map(|line| line.split(&format!(" {device} R")).nth(1));
        let priority = |line: &str| {
            let after = line.split(" + ").nth(1)?.split_whitespace().nth(1)?.to_owned();
            // The kernel writes class, hint and level.
            let mut fields = after.split(',');
            Some(format!("{},{}", fields.next()?, fields.nth(1)?))
        };
        let mut found: Vec<String> = reads.filter_map(priority).collect();
        found.sort();
        found.dedup();
        found
    }

    fn clear(&self) {
        fs::write(self.instance.join("trace"), "").unwrap();
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let event = self.instance.join("events/block/block_rq_issue/enable");
        let _ = fs::write(event, "0");
        let _ = fs::remove_dir(&self.instance);
        process::run(Command::new("umount").arg(&self.root));
    }
}

#[test]
fn requests_have_the_priority_of_their_class_at_the_device() {
    if !tools::is_root() {
        return tools::skipped("loop devices and traces need root");
    }
    let classes = ["urgent", "high", "medium", "low"];
    let policy =
        classes.map(|class| format!("[[tenant]]\nname = \"{class}\"\nclass = \"{class}\"\n"));
    let mut cluster = Cluster::new("[[node]]\nname = \"a\"\nmemory = true\n", &policy.concat());
    let files = ["with", "without"].map(|name| cluster.bed().path(name));
    let [Some(with), Some(without)] = files.map(|file| {
        fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
        LoopDevice::attach(&file)
    }) else {
        return;
    };
    let folder = cluster.bed().subfolder("trace");
    let Some(trace) = Trace::start(folder) else { return };
    let node = |name: &str, device: &LoopDevice, more: &str| {
        format!("[[node]]\nname = \"{name}\"\ndevice = {:?}\n{more}", device.path())
    };
    let nodes = node("a", &with, "") + &node("b", &without, "io_priority = false\n");
    let gateway = format!("[[gateway]]\nname = {GATEWAY:?}\nnbd = \"unix:{GATEWAY}.sock\"\n");
    let at = |name: &str, tenant: &str, node: &str, offset: &str| {
        format!("{}offsets = [{offset:?}]\n", volume(name, tenant, "1MiB", &[node]))
    };
    let offsets = ["0B", "1MiB", "2MiB", "3MiB"];
    let on_a =
        classes.into_iter().zip(offsets).map(|(class, offset)| at(class, class, "a", offset));
    let on_a: String = on_a.collect();
    let on_b = at("plain", "low", "b", "0B");
    cluster.write(&format!("{nodes}{gateway}{on_a}{on_b}"));
    cluster.up();

    for (class, expected) in classes.into_iter().zip(["be,0", "be,2", "be,4", "be,6"]) {
        let mut client = cluster.enter(class);
        trace.clear();
        client.read(0, 4096).unwrap();
        eventually("the read is traced", || !trace.priorities(&numbers(&with)).is_empty());
        assert_eq!(trace.priorities(&numbers(&with)), [expected], "{class}");
    }
    let mut client = cluster.enter("plain");
    trace.clear();
    client.read(0, 4096).unwrap();
    eventually("the read is traced", || !trace.priorities(&numbers(&without)).is_empty());
    // A thread that has set none: older kernels trace that, newer ones the level they take for it,
    // which follows from how nice the process is (`ionice(1)`).
    let nice = rustix::process::getpriority_process(None).unwrap();
    let (found, level) = (trace.priorities(&numbers(&without)), format!("be,{}", (nice + 20) / 5));
    assert!(found == ["none,0"] || found == [level], "{found:?}, where it is switched off");
}
