//! Which processes use a segment, and what the kernel says that they read and wrote.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::segment::{Segment, VARIABLE, is_alive};

/// Bytes of one process, as `/proc/<pid>/io` counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// By system calls, whatever answered them.
    pub(crate) by_calls: u64,
    /// By the device.
    pub(crate) by_device: u64,
}

impl Moved {
    fn and(self, other: Self) -> Self {
        Self {
            by_calls: self.by_calls.saturating_add(other.by_calls),
            by_device: self.by_device.saturating_add(other.by_device),
        }
    }

    fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        Self {
            by_calls: field("rchar:").saturating_add(field("wchar:")),
            by_device: field("read_bytes:").saturating_add(field("write_bytes:")),
        }
    }
}

#[derive(Debug)]
struct Process {
    /// Readable once it has ended; absent where the kernel has no more descriptors for us.
    pidfd: Option<OwnedFd>,
    parent: u32,
    moved: Moved,
}

/// The processes of a segment.
#[derive(Debug, Default)]
pub(crate) struct Census {
    processes: BTreeMap<u32, Process>,
    /// Of those that ended and whose parent is not counted itself.
    departed: Moved,
    /// The largest sum so far: sums only grow.
    most: Moved,
}

impl Census {
    /// Looks at the segment's list and at `/proc`.
    pub(crate) fn take(&mut self, segment: &Segment) {
        for cell in &segment.processes {
            let pid = cell.load(Ordering::Acquire);
            if pid != 0 && !self.processes.contains_key(&pid) {
                self.welcome(pid);
            }
        }
        let mut ended = Vec::new();
        for (pid, process) in &mut self.processes {
            // Read first: what ended between two looks still counts.
            if let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/io")) {
                process.moved = Moved::parse(&text);
            }
            if has_ended(*pid, process) {
                ended.push(*pid);
            }
        }
        self.bury(&ended);
        for pid in &ended {
            for cell in &segment.processes {
                let _ = cell.compare_exchange(*pid, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        let living = self.processes.values().map(|process| process.moved);
        let sum = living.fold(self.departed, Moved::and);
        self.most.by_calls = self.most.by_calls.max(sum.by_calls);
        self.most.by_device = self.most.by_device.max(sum.by_device);
    }

    fn welcome(&mut self, pid: u32) {
        let number = Pid::from_raw(pid as i32);
        let pidfd = number.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        let parent = parent.and_then(|parent| parent.trim().parse().ok()).unwrap_or(0);
        self.processes.insert(pid, Process { pidfd, parent, moved: Moved::default() });
    }

    /// The kernel adds what a process moved to its parent when the parent waits for it, so only
    /// those without a counted parent are added up here; of those that ended together, too.
    fn bury(&mut self, ended: &[u32]) {
        for pid in ended {
            let Some(process) = self.processes.get(pid) else { continue };
            if !self.processes.contains_key(&process.parent) {
                self.departed = self.departed.and(process.moved);
            }
        }
        ended.iter().for_each(|pid| drop(self.processes.remove(pid)));
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.processes.len() as u32
    }

    /// What they and those before them moved, in all.
    pub(crate) fn moved(&self) -> Moved {
        self.most
    }

    /// Descriptors that become readable when a process ends.
    pub(crate) fn watched(&self) -> impl Iterator<Item = &OwnedFd> {
        self.processes.values().filter_map(|process| process.pidfd.as_ref())
    }
}

/// Whether any process has this segment in its environment, or may have it in a moment. One that
/// was forked just now is found here before it has had the time to join.
pub(crate) fn has_heirs(segment: &Path) -> bool {
    let mut wanted = OsString::from(VARIABLE);
    wanted.push("=");
    wanted.push(segment);
    let Ok(entries) = std::fs::read_dir("/proc") else { return false };
    let own = std::process::id().to_string();
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let is_process = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        is_process && name != own.as_str() && is_heir(&entry.path(), wanted.as_encoded_bytes())
    })
}

/// How often a process is looked at that becomes another program each time.
const LOOKS: usize = 8;

/// Whether the process of this folder of `/proc` has `wanted` in its environment, or may have it in
/// a moment: `execve` gives a process its new memory first and its environment afterwards, and who
/// looks in between, or began to look before, sees none.
fn is_heir(folder: &Path, wanted: &[u8]) -> bool {
    for _ in 0..LOOKS {
        // Those of other users cannot be read, and cannot map the segment either.
        let Ok(environment) = std::fs::read(folder.join("environ")) else { return false };
        if !environment.is_empty() {
            return environment.split(|byte| *byte == 0).any(|one| one == wanted);
        }
        let Ok(stat) = std::fs::read_to_string(folder.join("stat")) else { return false };
        match environment_of(&stat) {
            Environment::None => return false,
            Environment::ToCome => return true,
            // It has come meanwhile.
            Environment::Some => {}
        }
    }
    true
}

/// What a process has of an environment.
#[derive(Debug, PartialEq, Eq)]
enum Environment {
    /// Nothing: it is empty, or the process has no memory, as kernel threads and zombies have not.
    None,
    /// Memory, and no place in it yet.
    ToCome,
    /// Something.
    Some,
}

/// What a process has of an environment, by its line in `/proc/<pid>/stat`.
fn environment_of(stat: &str) -> Environment {
    // The name, in parentheses, may hold anything; behind it come the fields from the third on.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let field = |number: usize| {
        let text = fields.split_ascii_whitespace().nth(number - 3);
        text.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    let (memory, begin, end) = (field(23), field(50), field(51));
    match (memory, end) {
        (0, _) => Environment::None,
        (_, 0) => Environment::ToCome,
        _ if end == begin => Environment::None,
        _ => Environment::Some,
    }
}

fn has_ended(pid: u32, process: &Process) -> bool {
    let Some(pidfd) = &process.pidfd else { return !is_alive(pid) };
    let mut polled = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read_by_name() {
        let text = "rchar: 10\nwchar: 20\nsyscr: 1\nsyscw: 2\nread_bytes: 300\nwrite_bytes: 400\n\
                    cancelled_write_bytes: 5\n";
        assert_eq!(Moved::parse(text), Moved { by_calls: 30, by_device: 700 });
        assert_eq!(Moved::parse("nonsense"), Moved::default());
    }

    #[test]
    fn a_process_in_the_middle_of_exec_is_told_from_others() {
        let stat = |memory: u64, begin: u64, end: u64| {
            let zeros = |count: usize| vec!["0"; count].join(" ");
            format!("7 (a) b) R {} {memory} {} {begin} {end} 0\n", zeros(19), zeros(26))
        };
        assert_eq!(environment_of(&stat(4096, 0, 0)), Environment::ToCome);
        assert_eq!(environment_of(&stat(4096, 70, 77)), Environment::Some);
        assert_eq!(environment_of(&stat(4096, 77, 77)), Environment::None);
        assert_eq!(environment_of(&stat(0, 0, 0)), Environment::None, "a zombie");
        assert_eq!(environment_of("nonsense"), Environment::None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(environment_of(&own), Environment::Some, "{own}");
    }

    #[test]
    fn a_process_is_counted_while_it_lives() {
        let segment = Segment::private().unwrap();
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        segment.processes[5].store(child.id(), Ordering::Release);
        let mut census = Census::default();
        census.take(&segment);
        assert_eq!(census.count(), 1);
        drop(child.stdin.take());
        child.wait().unwrap();
        census.take(&segment);
        assert_eq!(census.count(), 0, "its end is noticed");
        assert_eq!(segment.processes[5].load(Ordering::Acquire), 0);
        assert!(census.moved().by_calls > 0, "what it moved is kept");
    }
}
