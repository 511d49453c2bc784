//! The clients that people have, unmodified.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;

use rustix::process::{Pid, Signal, kill_process};
use tidegate_fabric::service::Command;

use crate::memory::Behaviour;
use crate::{Testbed, eventually};

/// Runs a program of a package; what it says, or nothing if it is not installed.
fn run(package: &str, program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = process::Command::new("timeout");
    let output = command.arg("60").arg(program).args(arguments).output().unwrap();
    // That is how timeout says that there is no such program.
    if output.status.code() == Some(127) {
        eprintln!("skipped: there is no {program} (apt-get install {package})");
        return None;
    }
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let failed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {printed}{failed}");
    Some(printed)
}

/// A file of bytes that repeat nowhere, with a hole in its middle.
fn file(testbed: &Testbed, length: usize) -> (PathBuf, Vec<u8>) {
    let mut state = 0x9e37_79b9_u32;
    let mut bytes: Vec<u8> = (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    bytes[length / 4..length / 2].fill(0);
    let path = testbed.folder.path().join("original");
    std::fs::write(&path, &bytes).unwrap();
    (path, bytes)
}

#[test]
fn nbdinfo_sees_sizes_flags_and_holes() {
    let testbed = Testbed::new();
    let Some(printed) = run("libnbd-bin", "nbdinfo", &[&testbed.uri("striped")]) else { return };
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "export=\"striped\":",
        "export-size: 8388608 (8M)",
        "base:allocation",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: false",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(printed.contains(line), "no {line} in {printed}");
    }
    let printed = run("libnbd-bin", "nbdinfo", &[&testbed.uri("rom")]).unwrap();
    assert!(
        printed.contains("is_read_only: true") && printed.contains("can_trim: false"),
        "{printed}"
    );
    let listed = run("libnbd-bin", "nbdinfo", &["--list", &testbed.uri("")]).unwrap();
    assert!(["plain", "striped", "rom"].iter().all(|name| listed.contains(name)), "{listed}");
    let write = ["-f", "raw", "-c", "write -P 7 1M 64k", &testbed.uri("striped")];
    if run("qemu-utils", "qemu-io", &write).is_some() {
        let map = run("libnbd-bin", "nbdinfo", &["--map", &testbed.uri("striped")]).unwrap();
        let lines: Vec<Vec<&str>> =
            map.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["0", "1048576", "3", "hole,zero"]);
        assert_eq!(lines[1], ["1048576", "65536", "0", "data"]);
        assert_eq!(lines[2], ["1114112", "7274496", "3", "hole,zero"]);
    }
}

#[test]
fn nbdcopy_brings_there_and_back() {
    let testbed = Testbed::with(tidegate_gateway::Limits::default(), 2);
    testbed.nodes[1].set(Behaviour::Later);
    let (original, bytes) = file(&testbed, 8 << 20);
    let copy = testbed.folder.path().join("copy").display().to_string();
    let original = original.display().to_string();
    let there = ["--flush", &original, &testbed.uri("striped")];
    if run("libnbd-bin", "nbdcopy", &there).is_some() {
        run("libnbd-bin", "nbdcopy", &[&testbed.uri("striped"), &copy]);
        assert!(std::fs::read(&copy).unwrap() == bytes);
        run("libnbd-bin", "nbdcopy", &[&testbed.uri("striped"), &testbed.uri("plain")]);
        run("libnbd-bin", "nbdcopy", &[&testbed.uri("plain"), &copy]);
        assert!(std::fs::read(&copy).unwrap() == bytes);
        assert!(testbed.nodes.iter().all(|node| node.seen(Command::Flush) > 0));
    }
}

#[test]
fn qemu_copies_maps_and_writes_patterns() {
    let testbed = Testbed::new();
    let (original, bytes) = file(&testbed, 8 << 20);
    let uri = testbed.uri("striped");
    let original = original.display().to_string();
    let there = ["convert", "-n", "-f", "raw", "-O", "raw", &original, &uri];
    if run("qemu-utils", "qemu-img", &there).is_none() {
        return;
    }
    let same = ["compare", "-f", "raw", "-F", "raw", &original, &uri];
    assert!(run("qemu-utils", "qemu-img", &same).unwrap().contains("identical"));
    let map = run("qemu-utils", "qemu-img", &["map", "--output=json", "-f", "raw", &uri]).unwrap();
    let hole = format!("\"start\": {}, \"length\": {}", bytes.len() / 4, bytes.len() / 4);
    assert!(map.contains(&hole), "{map}");
    let bench = ["bench", "-f", "raw", "-t", "none", "-c", "2000", "-d", "16", "-s", "4096", &uri];
    run("qemu-utils", "qemu-img", &bench);
    let steps = [
        "write -P 0x5a 12k 40k",
        "write -f -P 0xa5 1000 5000",
        "flush",
        "write -z 2M 64k",
        "write -z -u 3M 1M",
        "discard 5M 128k",
        "read -P 0x5a 16k 36k",
        "read -P 0xa5 1000 5000",
        "read -P 0 2M 64k",
        "read -P 0 3M 1M",
        "read -P 0 5M 128k",
        "aio_write -P 9 6M 100k",
        "aio_flush",
        "read -P 9 6M 100k",
    ];
    let mut arguments = vec!["-f", "raw"];
    steps.iter().for_each(|step| arguments.extend(["-c", step]));
    let printed =
        run("qemu-utils", "qemu-io", &[&arguments[..], &[uri.as_str()]].concat()).unwrap();
    assert!(!printed.contains("failed") && !printed.contains("error"), "{printed}");
}

#[test]
fn fio_reads_what_it_wrote() {
    let testbed = Testbed::with(tidegate_gateway::Limits::default(), 2);
    testbed.nodes[0].set(Behaviour::Later);
    let uri = format!("--uri={}", testbed.uri("striped"));
    let job = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randrw",
        "--bsrange=512-96k",
        "--size=8M",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--verify_backlog=64",
        "--randseed=7",
        "--io_size=16M",
        "--output-format=terse",
        "--fsync=32",
    ];
    let known = run("fio", "fio", &["--enghelp"]);
    if known.is_some_and(|engines| engines.contains("nbd")) {
        run("fio", "fio", &job);
        assert!(testbed.nodes.iter().all(|node| node.seen(Command::Read) > 0));
    } else {
        eprintln!("skipped: fio has no ioengine=nbd");
    }
}

/// A mount that is undone, whatever happens.
struct Mount(process::Child);

impl Drop for Mount {
    fn drop(&mut self) {
        // It unmounts then, and ends.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn nbdfuse_shows_a_file() {
    let testbed = Testbed::new();
    let folder = testbed.folder.path().join("mount");
    std::fs::create_dir(&folder).unwrap();
    let mut command = process::Command::new("nbdfuse");
    let fuse = command.arg(folder.join("disk")).arg(testbed.uri("striped")).spawn();
    let (Ok(fuse), true) = (fuse, Path::new("/dev/fuse").exists()) else {
        eprintln!("skipped: there is no nbdfuse (apt-get install libnbd-bin), or no /dev/fuse");
        return;
    };
    let mut mount = Mount(fuse);
    let path = folder.join("disk");
    let mut is_denied = false;
    eventually("a file", || {
        is_denied = mount.0.try_wait().unwrap().is_some();
        is_denied || std::fs::metadata(&path).is_ok_and(|file| file.len() == 8 << 20)
    });
    if is_denied {
        eprintln!("skipped: nbdfuse may not mount here");
        return;
    }
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at / 3) as u8).collect();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&bytes, 12_345).unwrap();
    file.sync_all().unwrap();
    let mut back = vec![0; bytes.len()];
    file.read_exact_at(&mut back, 12_345).unwrap();
    assert!(back == bytes);
    assert!(testbed.nodes.iter().all(|node| node.seen(Command::Flush) > 0));
}
