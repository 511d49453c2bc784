//! The loads of the capacity benchmark: fio on one file past the page cache.

use std::ffi::OsString;
use std::path::Path;

use tidegate_model::Span;

use crate::experiment::fio::{FioJob, FioOutput};

/// The size of the file.
pub(super) const SIZE_MIB: u64 = 512;
/// Requests outstanding: fio alone at each of them, and Tidegate's tenant at the last.
pub(super) const DEPTHS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The least bound of latency.
const LEAST_BOUND: Span = Span(5 * Span::MILLISECOND.0);
/// fio's time before what it measures.
const RAMP: Span = Span(300 * Span::MILLISECOND.0);

/// Requests of 4 KiB at random offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CapacityLoad {
    Reads,
    /// Seven reads for three writes.
    Mixed,
}

impl CapacityLoad {
    pub(super) const ALL: [Self; 2] = [Self::Reads, Self::Mixed];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Reads => "random reads",
            Self::Mixed => "reads and writes, 70:30",
        }
    }

    /// The bound of latency for this load, as many times the 99th percentile at depth 1 as the
    /// documentation recommends: more where times vary, as those of writes do. It is five
    /// milliseconds at least: within less, runs on two processors differed by more than a half.
    pub(super) fn bound(self, alone: Span) -> Span {
        let times = match self {
            Self::Reads => 6,
            Self::Mixed => 10,
        };
        Span(times * alone.0).max(LEAST_BOUND)
    }

    /// fio's arguments: `depth` threads that wait for their system calls, as most programs do.
    pub(super) fn arguments(
        self,
        file: &Path,
        depth: u32,
        length: Span,
        output: &Path,
    ) -> Vec<OsString> {
        let milliseconds = |span: Span| span.0 / Span::MILLISECOND.0;
        let mut words = common(file, output);
        words.extend([
            format!("--name={depth}").into(),
            format!("--numjobs={depth}").into(),
            "--bs=4k".into(),
            "--thread".into(),
            "--group_reporting=1".into(),
            "--time_based=1".into(),
            "--norandommap=1".into(),
            "--unified_rw_reporting=1".into(),
            format!("--runtime={}ms", milliseconds(length)).into(),
            format!("--ramp_time={}ms", milliseconds(RAMP)).into(),
        ]);
        match self {
            Self::Reads => words.push("--rw=randread".into()),
            Self::Mixed => words.extend(["--rw=randrw".into(), "--rwmixread=70".into()]),
        }
        words
    }
}

/// fio's arguments to write the file once.
pub(super) fn fill(file: &Path, output: &Path) -> Vec<OsString> {
    let mut words = common(file, output);
    words.extend(["--name=fill", "--rw=write", "--bs=1M", "--end_fsync=1"].map(OsString::from));
    words
}

fn common(file: &Path, output: &Path) -> Vec<OsString> {
    let path = |name: &str, path: &Path| {
        let mut option = OsString::from(format!("--{name}="));
        option.push(path);
        option
    };
    let mut words = vec![path("filename", file), path("output", output)];
    words.push(format!("--size={SIZE_MIB}M").into());
    let fixed = ["--ioengine=psync", "--direct=1", "--output-format=json", "--eta=never"];
    words.extend(fixed.map(OsString::from));
    words
}

/// One run of fio without Tidegate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AloneRun {
    pub(super) depth: u32,
    pub(super) iops: f64,
    pub(super) p99: Span,
}

impl AloneRun {
    /// Reads fio's report; none if it has no requests, or an error.
    pub(super) fn parse(text: &str, depth: u32) -> Option<Self> {
        let [FioJob { read: both, error: 0, .. }] =
            <[FioJob; 1]>::try_from(FioOutput::parse(text)?.jobs).ok()?
        else {
            return None;
        };
        let p99 = Span(both.clat_ns.percentile("99.000000")? as u64);
        Some(Self { depth, iops: both.iops.filter(|iops| *iops > 0.0)?, p99 })
    }
}

/// The most that runs have served of which the 99th percentile is within the bound.
pub(super) fn most_within(runs: &[AloneRun], bound: Span) -> Option<AloneRun> {
    let within = runs.iter().copied().filter(|run| run.p99 <= bound);
    within.max_by(|one, other| one.iops.total_cmp(&other.iops))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fio::command_line;

    #[test]
    fn each_load_has_its_command() {
        let (file, output) = (Path::new("/d/file"), Path::new("o"));
        let line = |load: CapacityLoad| {
            command_line(&load.arguments(file, 16, Span(1_500 * Span::MILLISECOND.0), output))
        };
        let reads = line(CapacityLoad::Reads);
        assert!(reads.starts_with("--filename=/d/file --output=o --size=512M"), "{reads}");
        assert!(reads.contains("--numjobs=16 --bs=4k"), "{reads}");
        assert!(reads.ends_with("--runtime=1500ms --ramp_time=300ms --rw=randread"), "{reads}");
        let mixed = line(CapacityLoad::Mixed);
        assert!(mixed.ends_with("--rw=randrw --rwmixread=70"), "{mixed}");
        assert!(command_line(&fill(file, output)).contains("--rw=write --bs=1M"));
    }

    #[test]
    fn a_report_of_both_directions_is_understood_or_refused() {
        let text = |error: u32, iops: u32| {
            format!(
                "{{\"jobs\":[{{\"jobname\":\"4\",\"error\":{error},\"mixed\":{{\"iops\":{iops},\
                 \"clat_ns\":{{\"percentile\":{{\"99.000000\":250000}}}}}}}}]}}"
            )
        };
        let run = AloneRun { depth: 4, iops: 900.0, p99: Span(250_000) };
        assert_eq!(AloneRun::parse(&text(0, 900), 4), Some(run));
        assert_eq!(AloneRun::parse(&text(5, 900), 4), None);
        assert_eq!(AloneRun::parse(&text(0, 0), 4), None);
        assert_eq!(AloneRun::parse("", 4), None);
    }

    #[test]
    fn a_bound_is_no_wait_for_a_processor() {
        let milliseconds = |count| Span(count * Span::MILLISECOND.0);
        let bounds = |alone| CapacityLoad::ALL.map(|load| load.bound(alone));
        assert_eq!(bounds(Span(300_000)), [LEAST_BOUND; 2]);
        assert_eq!(bounds(milliseconds(2)), [milliseconds(12), milliseconds(20)]);
    }

    #[test]
    fn the_most_within_the_bound_counts() {
        let run = |depth, iops, p99| AloneRun { depth, iops, p99: Span(p99) };
        let runs = [run(1, 500.0, 1), run(2, 900.0, 2), run(4, 850.0, 3), run(8, 990.0, 9)];
        assert_eq!(most_within(&runs, Span(3)), Some(runs[1]));
        assert_eq!(most_within(&runs, Span(9)), Some(runs[3]));
        assert_eq!(most_within(&runs, Span(0)), None);
    }
}
