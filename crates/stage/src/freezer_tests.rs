//! Control groups of version 2 have a freezer, too.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use super::*;

/// A program in a control group of its own, of version 2.
struct Frozen {
    group: PathBuf,
    program: Child,
}

impl Frozen {
    /// None where this user cannot make one.
    fn start() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let group = format!("tidegate-test-{}", std::process::id());
        let group = PathBuf::from(mount.split(' ').nth(4)?).join(group);
        fs::create_dir(&group).ok()?;
        let program = Command::new("sleep").arg("600").spawn().unwrap();
        let it = Self { group, program };
        it.write("cgroup.procs", &it.program.id().to_string()).ok()?;
        Some(it)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.group.join(file), text)
    }

    /// Freezes or thaws it, and waits until the kernel says that it is so.
    fn freeze(&self, flag: &str) {
        self.write("cgroup.freeze", flag).unwrap();
        let (is_so, started) = (format!("frozen {flag}"), Instant::now());
        let is_so = || {
            let events = fs::read_to_string(self.group.join("cgroup.events")).unwrap();
            events.contains(&is_so)
        };
        while !is_so() {
            assert!(started.elapsed() < Duration::from_secs(60), "it is not {flag}");
            thread::yield_now();
        }
    }

    fn is_frozen(&self) -> bool {
        let (folder, proc) = open_proc().unwrap();
        let process = self.program.id();
        is_frozen(&folder, ThreadId { proc, process, thread: process })
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = self.write("cgroup.freeze", "0");
        let _ = self.program.kill();
        let _ = self.program.wait();
        let _ = fs::remove_dir(&self.group);
    }
}

#[test]
fn a_thread_in_a_freezer_of_either_version_is_stopped() {
    let frozen = ["__refrigerator", "do_freezer_trap", "get_signal", "get_signal.isra.0"];
    assert!(frozen.iter().all(|function| is_freezer(function.as_bytes())));
    let asleep = ["", "0", "futex_wait_queue", "do_wait", "do_signal_stop", "ptrace_stop"];
    assert!(!asleep.iter().any(|function| is_freezer(function.as_bytes())));
    // And what this kernel says, where this user may make a control group.
    let Some(program) = Frozen::start() else { return };
    for _ in 0..3 {
        // The kernel counts a thread as frozen, or thawed, shortly before it sleeps or wakes.
        for (flag, is_frozen) in [("1", true), ("0", false)] {
            program.freeze(flag);
            let started = Instant::now();
            while program.is_frozen() != is_frozen {
                assert!(started.elapsed() < Duration::from_secs(60), "frozen is not {flag}");
                thread::yield_now();
            }
        }
    }
}
