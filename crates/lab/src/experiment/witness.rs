//! Independent measurement of an experiment: the bytes that a tenant's processes made the disk
//! read, as the kernel counts them.
//!
//! It is the same in every set-up and knows nothing of Tidegate: the sum of `read_bytes` in
//! `/proc/<pid>/io` over a process and all below it, or of `rchar` where files are in the page
//! cache. The kernel adds what a process read to its parent when the parent takes note of its end,
//! so nothing is lost with those that have gone.
//!
//! It also counts the time for which those processes were ready to run and had no processor. A
//! tenant that falls short for want of a processor was not let down by the control of the disk.

use std::fs;

use tidegate_model::Span;

use super::child::tree;

/// Which bytes are a tenant's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedBytes {
    /// Those that the disk read, for processes whose first thread reads.
    Disk,
    /// The same, and those that the disk wrote.
    DiskBothWays,
    /// Those that system calls returned, wherever they came from, to any thread.
    Calls,
}

impl CountedBytes {
    /// Its lines in the kernel's counts.
    const fn prefixes(self) -> &'static [&'static str] {
        match self {
            Self::Disk => &["read_bytes:"],
            Self::DiskBothWays => &["read_bytes:", "write_bytes:"],
            Self::Calls => &["rchar:"],
        }
    }
}

/// Counts for one tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Witness {
    root: u32,
    counted: CountedBytes,
    seen: Seen,
}

/// Counts of a tenant so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Bytes that were moved for the tenant.
    pub(crate) bytes: u64,
    /// How long its processes waited for a processor, in nanoseconds, added up over processes.
    pub(crate) starved_ns: u64,
}

impl Witness {
    /// A witness for the process `root` and all below it.
    pub(crate) fn new(root: u32, counted: CountedBytes) -> Self {
        Self { root, counted, seen: Seen::default() }
    }

    /// Updates the counts, and returns them.
    pub(crate) fn sample(&mut self) -> Seen {
        let mut now = Seen::default();
        // Parents come before their children, so what moves from one to the other meanwhile is
        // missed once and never counted twice; what was seen before is not taken back.
        for pid in tree(self.root) {
            now.bytes += read_bytes(pid, self.counted).unwrap_or(0);
            now.starved_ns += match self.counted {
                CountedBytes::Disk | CountedBytes::DiskBothWays => starved_ns(pid).unwrap_or(0),
                CountedBytes::Calls => starved_threads_ns(pid),
            };
        }
        self.seen.bytes = self.seen.bytes.max(now.bytes);
        self.seen.starved_ns = self.seen.starved_ns.max(now.starved_ns);
        self.seen
    }
}

fn read_bytes(pid: u32, counted: CountedBytes) -> Option<u64> {
    bytes(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?, counted)
}

fn bytes(io: &str, counted: CountedBytes) -> Option<u64> {
    let number = |prefix: &&str| -> Option<u64> {
        io.lines().find_map(|line| line.strip_prefix(prefix)?.trim().parse().ok())
    };
    counted.prefixes().iter().map(number).sum()
}

/// Of the process's first thread, which is the one that reads.
fn starved_ns(pid: u32) -> Option<u64> {
    starved(&fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?)
}

/// Of the thread that waited longest: any of them may be the one that reads.
fn starved_threads_ns(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let waits = threads
        .filter_map(|thread| starved(&fs::read_to_string(thread.path().join("schedstat")).ok()?));
    waits.max().unwrap_or(0)
}

/// How long this thread has waited for a processor so far, by the kernel's count; zero if the
/// kernel does not count.
pub(crate) fn waited() -> Span {
    let schedstat = fs::read_to_string("/proc/thread-self/schedstat");
    Span(schedstat.ok().and_then(|schedstat| starved(&schedstat)).unwrap_or(0))
}

fn starved(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let io = "rchar: 5\nwchar: 0\nsyscr: 1\nsyscw: 0\nread_bytes: 734003200\n\
                  write_bytes: 4096\ncancelled_write_bytes: 0\n";
        assert_eq!(bytes(io, CountedBytes::Disk), Some(734_003_200));
        assert_eq!(bytes(io, CountedBytes::Calls), Some(5));
        assert_eq!(bytes(io, CountedBytes::DiskBothWays), Some(734_003_200 + 4096));
        assert_eq!(bytes("", CountedBytes::DiskBothWays), None);
        assert_eq!(bytes("rchar: 5\n", CountedBytes::Disk), None);
        assert_eq!(starved("181245 77123 12\n"), Some(77_123));
        assert_eq!(starved(""), None);
    }

    #[test]
    fn a_process_that_is_not_there_has_read_nothing() {
        for counted in [CountedBytes::Disk, CountedBytes::DiskBothWays, CountedBytes::Calls] {
            assert_eq!(Witness::new(u32::MAX, counted).sample(), Seen::default());
        }
    }
}
