//! Processor time that a live measurement lost to others: processes that the measurement did not
//! start, and the hypervisor.
//!
//! A thread also waits for a processor that the measurement's own load has. Such a wait is part of
//! what is measured, and no disturbance: a machine that its own load fills would never be quiet.
//! So a wait for a processor counts as far as others had processors meanwhile.

use std::collections::BTreeMap;
use std::fs;

use tidegate_model::Span;

/// The kernel's flag of its own threads, in a process's `stat`. They work for the load, too.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The number of the first process namespace. In any other, other processes are out of sight.
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// How long others have had processors at some moment, since the machine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OthersTime(Option<Span>);

impl OthersTime {
    /// Added up over processors, to a few hundredths of a second.
    pub(crate) fn now() -> Self {
        let namespace = fs::read_link("/proc/self/ns/pid");
        let sees_all = namespace.is_ok_and(|namespace| namespace.as_os_str() == FIRST_NAMESPACE);
        Self(sees_all.then(count))
    }

    /// The part of a wait since `before` that others may have caused: all of it where others are
    /// out of sight.
    pub(crate) fn share_of(self, waited: Span, before: Self) -> Span {
        let others = self.0.zip(before.0).map(|(now, before)| now.0.saturating_sub(before.0));
        Span(waited.0.min(others.unwrap_or(u64::MAX)))
    }

    #[cfg(test)]
    pub(crate) fn of(others: Span) -> Self {
        Self(Some(others))
    }

    /// In nanoseconds, for the report.
    pub(crate) fn ns(self) -> Option<u64> {
        self.0.map(|span| span.0)
    }
}

fn count() -> Span {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let processes: BTreeMap<u32, ProcessStat> =
        pids.filter_map(|pid| Some((pid, ProcessStat::of(pid)?))).collect();
    let stolen = fs::read_to_string("/proc/stat").ok().and_then(|stat| stolen(&stat));
    let ticks = foreign(&processes, std::process::id()).saturating_add(stolen.unwrap_or(0));
    let second = rustix::param::clock_ticks_per_second().max(1);
    Span(ticks.saturating_mul(Span::SECOND.0 / second))
}

/// One process, as its `stat` has it. Times are on processors, in ticks of usually ten
/// milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    parent: u32,
    is_kernel: bool,
    /// Its own time.
    pub(crate) own: u64,
    /// That of children that it has waited for.
    children: u64,
}

impl ProcessStat {
    /// None if there is no such process.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Self::read(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        // The name before may have spaces and parentheses of its own.
        let (_, after) = stat.rsplit_once(')')?;
        let words: Vec<&str> = after.split_whitespace().collect();
        let number = |index: usize| words.get(index)?.parse::<u64>().ok();
        // utime, stime, cutime and cstime.
        let (own, children) = (number(11)? + number(12)?, number(13)? + number(14)?);
        let parent = words.get(1)?.parse().ok()?;
        Some(Self { parent, is_kernel: number(6)? & KERNEL_THREAD != 0, own, children })
    }
}

/// The ticks of all processes but the kernel's, and `own` with all below it.
fn foreign(processes: &BTreeMap<u32, ProcessStat>, own: u32) -> u64 {
    let is_own = |pid: u32| {
        // Processes may change while they are read, so a chain may be a circle.
        let mut chain = std::iter::successors(Some(pid), |pid| {
            processes.get(pid).map(|process| process.parent)
        });
        chain.by_ref().take(processes.len() + 1).any(|pid| pid == own)
    };
    let foreign = processes.iter().filter(|(pid, process)| !process.is_kernel && !is_own(**pid));
    foreign.map(|(_, process)| process.own + process.children).sum()
}

/// The ticks that the hypervisor took, from `/proc/stat`.
fn stolen(stat: &str) -> Option<u64> {
    stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_understood() {
        let stat = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 50 6 700 8 20 0 1 0 9\n";
        let process = ProcessStat { parent: 3, is_kernel: false, own: 56, children: 708 };
        assert_eq!(ProcessStat::read(stat), Some(process));
        let thread = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 1 2 0 0 20 0 1 0 9\n";
        assert!(ProcessStat::read(thread).unwrap().is_kernel);
        assert_eq!(ProcessStat::read("7 (cut"), None);
        assert_eq!(stolen("cpu  1 2 3 4 5 6 7 80 9 10\ncpu0 1\n"), Some(80));
        assert_eq!(stolen(""), None);
    }

    #[test]
    fn own_load_is_not_others() {
        let process = |parent, is_kernel, own| ProcessStat { parent, is_kernel, own, children: 0 };
        let mut processes = BTreeMap::from([
            (1, process(0, false, 1)),
            (2, process(0, true, 10)),
            (3, process(2, true, 100)),
            (40, process(1, false, 1_000)),
            (41, process(40, false, 10_000)),
            (42, process(41, false, 100_000)),
            (50, process(1, false, 1_000_000)),
        ]);
        assert_eq!(foreign(&processes, 41), 1_001_001, "neither the parent's nor the neighbour's");
        processes.insert(60, process(61, false, 7));
        processes.insert(61, process(60, false, 0));
        assert_eq!(foreign(&processes, 41), 1_001_008, "a circle ends");
    }

    #[test]
    fn a_wait_counts_as_far_as_others_had_a_processor() {
        let [before, after] = [5, 12].map(|ms| OthersTime(Some(Span(ms * Span::MILLISECOND.0))));
        let waited = |ms| Span(ms * Span::MILLISECOND.0);
        assert_eq!(after.share_of(waited(3), before), waited(3));
        assert_eq!(after.share_of(waited(30), before), waited(7), "the rest is the own load's");
        assert_eq!(before.share_of(waited(30), after), Span::ZERO, "processes have gone");
        assert_eq!(after.share_of(waited(30), OthersTime(None)), waited(30), "out of sight");
    }

    #[test]
    fn the_time_of_others_is_read_on_this_machine() {
        assert!(count() > Span::ZERO, "this machine has been started by other processes");
    }
}
