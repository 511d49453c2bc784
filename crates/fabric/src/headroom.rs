//! Memory that is left for this process, as far as the kernel reports it.
//!
//! The kernel gives out more memory than there is, and kills a process once the memory is used. So
//! a program that promises memory compares the promise with this number first.

use std::fmt;
use std::fs;

use tidegate_model::Bytes;

/// The folder of all control groups, of the kernel's second version of them.
const GROUPS: &str = "/sys/fs/cgroup";

/// How much memory is left, and by which bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// Memory that a process can still use.
    pub bytes: Bytes,
    /// The bound that leaves the least.
    pub bound: MemoryBound,
}

/// A bound on the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBound {
    /// The memory of the machine.
    Machine,
    /// The limit of the process's control group, or of a group around it.
    ControlGroup,
}

impl fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "this machine",
            Self::ControlGroup => "this process's control group",
        })
    }
}

/// The memory that this process can still use; none if the kernel does not report it.
pub fn headroom() -> Option<Headroom> {
    headroom_by(|path| fs::read_to_string(path).ok())
}

fn headroom_by(read: impl Fn(&str) -> Option<String>) -> Option<Headroom> {
    let machine = read("/proc/meminfo").and_then(|text| available(&text));
    let group = read("/proc/self/cgroup").and_then(|text| least_of_groups(group(&text)?, &read));
    let machine = machine.map(|bytes| Headroom { bytes, bound: MemoryBound::Machine });
    let group = group.map(|bytes| Headroom { bytes, bound: MemoryBound::ControlGroup });
    machine.into_iter().chain(group).min_by_key(|headroom| headroom.bytes)
}

/// The memory that the machine has left, by the kernel's `MemAvailable`.
fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kib << 10))
}

/// The path of a process's control group, without a slash at its end.
fn group(cgroup: &str) -> Option<&str> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.trim_end_matches('/'))
}

/// The memory that a control group and all groups around it have left; none without a bound.
fn least_of_groups(mut path: &str, read: impl Fn(&str) -> Option<String>) -> Option<Bytes> {
    let mut least: Option<Bytes> = None;
    loop {
        let file = |name: &str| read(&format!("{GROUPS}{path}/{name}"));
        let of_group = file("memory.max").zip(file("memory.current")).and_then(|(most, used)| {
            left(most.trim(), used.trim(), &file("memory.stat").unwrap_or_default())
        });
        least = least.into_iter().chain(of_group).min();
        let Some(end) = path.rfind('/') else { return least };
        path = &path[..end];
    }
}

/// The memory that a control group has left; none if the group has no bound. Cached pages of files
/// that were not used lately do not count as used: the kernel frees them first.
fn left(most: &str, used: &str, stat: &str) -> Option<Bytes> {
    let (most, used): (u64, u64) = (most.parse().ok()?, used.parse().ok()?);
    let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    let cached: u64 = cached.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    Some(Bytes(most.saturating_sub(used.saturating_sub(cached))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Option<Headroom> {
        headroom_by(|path| {
            let file = files.iter().find(|(name, _)| *name == path);
            file.map(|(_, text)| (*text).to_owned())
        })
    }

    const MEMINFO: (&str, &str) =
        ("/proc/meminfo", "MemTotal:  8000 kB\nMemAvailable:    4096 kB\nBuffers: 1 kB\n");
    const CGROUP: (&str, &str) = ("/proc/self/cgroup", "0::/a/b\n");

    #[test]
    fn the_least_bound_decides() {
        let machine = Some(Headroom { bytes: Bytes(4 << 20), bound: MemoryBound::Machine });
        assert_eq!(found(&[MEMINFO]), machine);
        assert_eq!(found(&[("/proc/meminfo", "MemTotal: 8 kB")]), None);
        let files = [
            MEMINFO,
            CGROUP,
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "7\n"),
            ("/sys/fs/cgroup/a/memory.max", "2000000\n"),
            ("/sys/fs/cgroup/a/memory.current", "1500000\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 200000\nactive_file 9\n"),
        ];
        let group = Headroom { bytes: Bytes(700_000), bound: MemoryBound::ControlGroup };
        assert_eq!(found(&files), Some(group));
        assert_eq!(found(&files[..4]), machine, "a group without a bound");
    }

    #[test]
    fn a_process_in_the_outermost_group_has_its_bound() {
        let files = [
            ("/proc/self/cgroup", "1:name=x:/y\n0::/\n"),
            ("/sys/fs/cgroup/memory.max", "100"),
            ("/sys/fs/cgroup/memory.current", "70"),
        ];
        let group = Headroom { bytes: Bytes(30), bound: MemoryBound::ControlGroup };
        assert_eq!(found(&files), Some(group));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(headroom().is_some_and(|headroom| headroom.bytes > Bytes::ZERO));
    }
}
