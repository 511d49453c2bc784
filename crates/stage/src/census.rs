//! The processes that use a segment: those that have registered, as `/proc` shows them, and whether
//! others may still join; and the kernel's counts of the bytes that they have read and written.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tidegate_model::{Span, Time};

use crate::segment::{Segment, VARIABLE};
use crate::usage::{Identity, is_alive};

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
    /// The number under which it has registered: its own in its PID namespace.
    registered: u32,
    parent: u32,
    moved: Moved,
}

/// The processes of a segment.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// By their numbers in the supervisor's PID namespace.
    processes: BTreeMap<u32, Process>,
    /// Numbers that no process was found for, with how often it was looked for.
    unmatched: BTreeMap<u32, u32>,
    /// When all processes of the machine were last looked through.
    searched: Time,
    /// Of those that ended and whose parent is not counted itself.
    departed: Moved,
    /// The largest sum so far: sums only grow.
    most: Moved,
}

impl Census {
    /// Reads the segment's list and `/proc`.
    pub(crate) fn take(&mut self, segment: &Segment, now: Time) {
        let free = |number: u32| {
            for (index, cell) in segment.processes.iter().enumerate() {
                if cell.load(Ordering::Acquire) == number {
                    // While the cell is not free, for its next process has requests of its own.
                    segment.storage.lose(index);
                    let _ = cell.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed);
                }
            }
        };
        let registered = segment.processes.iter().map(|cell| cell.load(Ordering::Acquire));
        let fresh = registered.filter(|number| *number != 0 && !self.has_registered(*number));
        let fresh = Vec::from_iter(fresh);
        self.match_registered(&fresh, segment.identity(), now).into_iter().for_each(free);
        let mut ended = Vec::new();
        for (pid, process) in &mut self.processes {
            // Read first: what ended between two checks still counts.
            if let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/io")) {
                process.moved = Moved::parse(&text);
            }
            if has_ended(*pid, process) {
                ended.push(*pid);
            }
        }
        // A number may be that of several processes, each in a namespace of its own.
        let numbers =
            self.remove_ended(&ended).into_iter().filter(|number| !self.has_registered(*number));
        numbers.for_each(free);
        let living = self.processes.values().map(|process| process.moved);
        let sum = living.fold(self.departed, Moved::and);
        self.most.by_calls = self.most.by_calls.max(sum.by_calls);
        self.most.by_device = self.most.by_device.max(sum.by_device);
    }

    fn has_registered(&self, number: u32) -> bool {
        self.processes.values().any(|process| process.registered == number)
    }

    /// Finds the processes that have registered under these numbers. Gives the numbers that no
    /// process has.
    fn match_registered(
        &mut self,
        numbers: &[u32],
        identity: Option<Identity>,
        now: Time,
    ) -> Vec<u32> {
        let mut missing = Vec::new();
        for number in numbers {
            // Without a file the stage is this process's and its forks'.
            if identity.is_none_or(|file| file.is_mapped_by(*number) == Some(true)) {
                self.add_process(*number, *number);
            } else {
                missing.push(*number);
            }
        }
        let Some(identity) = identity.filter(|_| !missing.is_empty()) else { return Vec::new() };
        if now.since(self.searched) < SEARCH {
            return Vec::new();
        }
        self.searched = now;
        for pid in processes() {
            let is_new = !self.processes.contains_key(&pid);
            let Some(number) = innermost(&status_of(pid)).filter(|_| is_new) else { continue };
            if missing.contains(&number) && identity.is_mapped_by(pid) == Some(true) {
                self.add_process(pid, number);
            }
        }
        missing.retain(|number| !self.has_registered(*number));
        self.unmatched.retain(|number, _| missing.contains(number));
        missing.retain(|number| {
            let checks = self.unmatched.entry(*number).or_default();
            *checks += 1;
            *checks >= CHECKS_BEFORE_REMOVAL || !is_alive(*number)
        });
        missing
    }

    fn add_process(&mut self, pid: u32, registered: u32) {
        let number = Pid::from_raw(pid as i32);
        let pidfd = number.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let status = status_of(pid);
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        let parent = parent.and_then(|parent| parent.trim().parse().ok()).unwrap_or(0);
        self.processes.insert(pid, Process { pidfd, registered, parent, moved: Moved::default() });
    }

    /// The kernel adds what a process moved to its parent when the parent waits for it, so only
    /// those without a counted parent are added up here; of those that ended together, too. Gives
    /// the numbers under which they had registered.
    fn remove_ended(&mut self, ended: &[u32]) -> Vec<u32> {
        for pid in ended {
            let Some(process) = self.processes.get(pid) else { continue };
            if !self.processes.contains_key(&process.parent) {
                self.departed = self.departed.and(process.moved);
            }
        }
        let removed = ended.iter().filter_map(|pid| self.processes.remove(pid));
        removed.map(|process| process.registered).collect()
    }

    pub(crate) fn count(&self) -> u32 {
        self.processes.len() as u32
    }

    /// Bytes that running and ended processes moved, in all; this sum never falls.
    pub(crate) fn moved(&self) -> Moved {
        self.most
    }

    /// Descriptors that become readable when a process ends.
    pub(crate) fn watched(&self) -> impl Iterator<Item = &OwnedFd> {
        self.processes.values().filter_map(|process| process.pidfd.as_ref())
    }
}

/// How often a process is looked for that has registered and cannot be found: between two programs
/// it maps nothing for a moment.
const CHECKS_BEFORE_REMOVAL: u32 = 4;
/// How often all processes of the machine are looked through at most: it takes milliseconds.
const SEARCH: Span = Span(250 * Span::MILLISECOND.0);

/// The numbers of all processes that this one sees.
fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn status_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

/// The number of a process in its own PID namespace, if that is another one than ours.
fn innermost(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut numbers = numbers.split_ascii_whitespace();
    let _ours = numbers.next()?;
    numbers.next_back()?.parse().ok()
}

/// Whether any process has this segment in its environment, or may have it in a moment. One that
/// was forked just now is found here before it has had the time to join.
pub(crate) fn has_heirs(segment: &Path) -> bool {
    let mut wanted = OsString::from(VARIABLE);
    wanted.push("=");
    wanted.push(segment);
    let own = std::process::id();
    let is_heir = |pid| is_heir(&Path::new("/proc").join(format!("{pid}")), &wanted);
    processes().any(|pid| pid != own && is_heir(pid))
}

/// How often a process is checked that becomes another program each time.
const READS_MAX: usize = 8;

/// Whether the process of this folder of `/proc` has `wanted` in its environment, or may have it in
/// a moment: `execve` gives a process its new memory first and its environment afterwards, and a
/// reader in between, or one that began before, sees none.
fn is_heir(folder: &Path, wanted: &OsStr) -> bool {
    for _ in 0..READS_MAX {
        // Those of other users cannot be read, and cannot map the segment either.
        let Ok(environment) = std::fs::read(folder.join("environ")) else { return false };
        if !environment.is_empty() {
            return environment
                .split(|byte| *byte == 0)
                .any(|one| one == wanted.as_encoded_bytes());
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

/// State of a process's environment in memory.
#[derive(Debug, PartialEq, Eq)]
enum Environment {
    /// Nothing: it is empty, or the process has no memory, as kernel threads and zombies have not.
    None,
    /// Memory, and no place in it yet.
    ToCome,
    /// Something.
    Some,
}

/// Returns the state of a process's environment, by its line in `/proc/<pid>/stat`.
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
    fn a_process_of_another_namespace_is_known_by_its_number_there() {
        assert_eq!(innermost("Name:\tsh\nNSpid:\t4711\t12\t1\nVmPeak: 3"), Some(1));
        assert_eq!(innermost("Name:\tsh\nNSpid:\t4711\n"), None, "it is in ours");
        assert_eq!(innermost("nonsense"), None);
    }

    /// The number under which a process has registered may be another's here: of the first process
    /// of a namespace it is 1, and that one lives for as long as the machine runs.
    #[test]
    fn a_number_of_another_process_is_no_process_here() {
        let (segment, path) = Segment::create().unwrap();
        segment.processes[7].store(std::process::id(), Ordering::Release);
        let mut stranger =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        segment.processes[5].store(stranger.id(), Ordering::Release);
        let mut census = Census::default();
        for check in 1..=CHECKS_BEFORE_REMOVAL {
            census.take(&segment, Time::ZERO.after(Span(SEARCH.0 * u64::from(check))));
        }
        assert_eq!(census.count(), 1, "this process alone maps the segment");
        assert_eq!(segment.processes[5].load(Ordering::Acquire), 0, "its cell is free again");
        drop(stranger.stdin.take());
        stranger.wait().unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_process_in_the_middle_of_exec_is_recognized() {
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
    fn a_process_is_counted_while_it_runs() {
        let segment = Segment::private().unwrap();
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        segment.processes[5].store(child.id(), Ordering::Release);
        let mut census = Census::default();
        census.take(&segment, Time::ZERO);
        assert_eq!(census.count(), 1);
        drop(child.stdin.take());
        child.wait().unwrap();
        census.take(&segment, Time::ZERO);
        assert_eq!(census.count(), 0, "its end is noticed");
        assert_eq!(segment.processes[5].load(Ordering::Acquire), 0);
        assert!(census.moved().by_calls > 0, "what it moved is kept");
    }
}
