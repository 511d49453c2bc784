//! fio jobs of the isolation benchmark: the victim and its ten aggressors.

use std::ffi::OsString;
use std::path::Path;

use tidegate_model::Span;

use super::SIZE_MIB;
use crate::experiment::fio::{FioJob, FioOutput};

/// Requests that the victim has outstanding.
pub(super) const VICTIM_DEPTH: u32 = 4;
/// fio's times before the measured window: its start, and the first requests.
const RAMP: Span = Span(300 * Span::MILLISECOND.0);

/// The tenant that runs a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobTenant {
    /// It has a reservation, and the class `high`.
    Victim,
    /// It has no reservation, and the class `low`.
    Other,
    /// It has no reservation, and the victim's class.
    Twin,
}

impl JobTenant {
    pub(super) const ALL: [Self; 3] = [Self::Victim, Self::Other, Self::Twin];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Victim => "victim",
            Self::Other => "other",
            Self::Twin => "twin",
        }
    }
}

/// A stream of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// Options of fio: direction, size, and anything special.
    options: &'static str,
    /// Requests that are outstanding on each connection.
    depth: u32,
    connections: u32,
}

/// A load that disturbs the victim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aggressor {
    pub(super) name: &'static str,
    pub(super) tenant: JobTenant,
    pub(super) jobs: &'static [Job],
}

const fn job(options: &'static str, depth: u32, connections: u32) -> Job {
    Job { options, depth, connections }
}

pub(super) const READS: Job = job("--rw=randread --bs=4k", 32, 1);
pub(super) const LARGE_READS: Job = job("--rw=randread --bs=1M", 8, 1);
const LARGE_WRITES: Job = job("--rw=write --bs=1M", 8, 1);
const SMALL_WRITES: Job = job("--rw=randwrite --bs=4k", 16, 1);
const DEEP: Job = job("--rw=randread --bs=4k", 128, 1);
const CONNECTIONS: Job = job("--rw=randread --bs=4k", 2, 32);
const FLUSHES: Job = job("--rw=randwrite --bs=4k --fsync=1", 1, 4);
const TRIMS: Job = job("--rw=randtrim --bs=128k", 8, 1);
const MIXED: Job = job("--rw=randrw --bssplit=4k/60:64k/30:1M/10", 16, 1);
const BURSTS: Job = job("--rw=randread --bs=128k --thinktime=100ms --thinktime_blocks=8", 1, 32);

const fn other(name: &'static str, jobs: &'static [Job]) -> Aggressor {
    Aggressor { name, tenant: JobTenant::Other, jobs }
}

pub(super) const AGGRESSORS: [Aggressor; 10] = [
    other("large sequential writes", &[LARGE_WRITES]),
    other("small random writes", &[SMALL_WRITES]),
    other("deep queues", &[DEEP]),
    other("many connections", &[CONNECTIONS]),
    other("flush storms", &[FLUSHES]),
    other("trims", &[TRIMS]),
    other("mixed sizes", &[MIXED]),
    other("bursts after idling", &[BURSTS]),
    Aggressor { name: "a tenant of its class", tenant: JobTenant::Twin, jobs: &[READS] },
    other(
        "all together",
        &[LARGE_WRITES, SMALL_WRITES, DEEP, CONNECTIONS, FLUSHES, TRIMS, MIXED, BURSTS, READS],
    ),
];

/// Where a job's requests go.
#[derive(Clone, Debug)]
pub(super) enum JobTarget {
    /// A file, or a part of a block device that begins at `offset`.
    File { path: OsString, offset: u64, is_device: bool },
    /// An export of an NBD server.
    Nbd(OsString),
}

impl JobTarget {
    /// fio's options for a job: asynchronous over NBD; on files as many threads as it has requests
    /// outstanding, which wait for their system calls as those of most programs do.
    fn options(&self, job: &Job, words: &mut Vec<OsString>) {
        let mut add = |text: String| words.push(text.into());
        let is_sequential = job.options.contains("=write");
        match self {
            Self::Nbd(uri) => {
                add("--ioengine=nbd".into());
                add(format!("--iodepth={}", job.depth));
                add(format!("--numjobs={}", job.connections));
                add(format!("--size={SIZE_MIB}M"));
                let mut option = OsString::from("--uri=");
                option.push(uri);
                words.push(option);
            }
            Self::File { path, offset, is_device } => {
                let threads = job.depth * job.connections;
                // fio frees a range of a file with an engine of its own.
                let is_freed = job.options.contains("trim") && !is_device;
                add(format!("--ioengine={}", if is_freed { "falloc" } else { "psync" }));
                add(format!("--direct={}", u8::from(!is_freed)));
                add(format!("--numjobs={threads}"));
                add(format!("--offset={offset}M"));
                // Threads that write in sequence do not write the same.
                let size = if is_sequential { SIZE_MIB / u64::from(threads) } else { SIZE_MIB };
                add(format!("--size={size}M"));
                if is_sequential {
                    add(format!("--offset_increment={size}M"));
                }
                let mut option = OsString::from("--filename=");
                option.push(path);
                words.push(option);
            }
        }
        words.extend(job.options.split_whitespace().map(OsString::from));
    }

    fn requests(&self, job: &Job) -> u32 {
        match self {
            Self::Nbd(_) => job.connections,
            Self::File { .. } => job.depth * job.connections,
        }
    }

    /// fio's arguments for the jobs of an aggressor.
    pub(super) fn aggressor(&self, jobs: &[Job], length: Span, output: &Path) -> Vec<OsString> {
        let mut words = common(length, output);
        for (number, job) in jobs.iter().enumerate() {
            words.push(format!("--name=job-{number}").into());
            self.options(job, &mut words);
        }
        words
    }

    /// fio's arguments for the victim, which requests `rate` reads per second.
    pub(super) fn victim(&self, rate: u64, length: Span, output: &Path) -> Vec<OsString> {
        let mut words = common(length, output);
        words.push("--name=victim".into());
        let job = Job { depth: VICTIM_DEPTH, ..READS };
        self.options(&job, &mut words);
        let each = rate / u64::from(self.requests(&job));
        words.push(format!("--rate_iops={each}").into());
        words
    }

    /// fio's arguments to write all of it once.
    pub(super) fn fill(&self, output: &Path) -> Vec<OsString> {
        let words = ["--end_fsync=1", "--output-format=json", "--eta=never", "--name=fill"];
        let mut words: Vec<OsString> = words.map(OsString::from).into();
        words.push(format!("--output={}", output.display()).into());
        let writes = Job { depth: 1, ..LARGE_WRITES };
        self.options(&writes, &mut words);
        words
    }
}

/// Options of all jobs of a run; those of one job follow its name.
fn common(length: Span, output: &Path) -> Vec<OsString> {
    let milliseconds = |span: Span| span.0 / Span::MILLISECOND.0;
    let mut words: Vec<OsString> = [
        "--thread",
        "--group_reporting=1",
        "--time_based=1",
        "--norandommap=1",
        "--output-format=json",
        "--eta=never",
    ]
    .map(OsString::from)
    .into();
    words.push(format!("--runtime={}ms", milliseconds(length)).into());
    words.push(format!("--ramp_time={}ms", milliseconds(RAMP)).into());
    words.push(format!("--output={}", output.display()).into());
    words
}

/// The figures of one run of fio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FioFigures {
    /// Requests and bytes per second, of any kind.
    pub(super) iops: f64,
    pub(super) bytes: f64,
    /// The times of reads, in milliseconds.
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
}

impl FioFigures {
    /// Reads fio's report; none if it has no requests or an error.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut figures = Self { iops: 0.0, bytes: 0.0, p99_ms: 0.0, p999_ms: 0.0 };
        for FioJob { error, read, write, trim, .. } in FioOutput::parse(text)?.jobs {
            if error != 0 {
                return None;
            }
            let milliseconds = |name| read.clat_ns.percentile(name).unwrap_or(0.0) / 1e6;
            figures.p99_ms = figures.p99_ms.max(milliseconds("99.000000"));
            figures.p999_ms = figures.p999_ms.max(milliseconds("99.900000"));
            for side in [&read, &write, &trim] {
                figures.iops += side.iops?;
                figures.bytes += side.bw_bytes? as f64;
            }
        }
        (figures.iops > 0.0).then_some(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fio::command_line;

    #[test]
    fn a_report_is_understood_or_refused() {
        let text = |error: u32, iops: f64| {
            format!(
                "fio: a note\n{{\"jobs\":[{{\"error\":{error},\"read\":{{\"iops\":{iops},\
                 \"bw_bytes\":4096,\"clat_ns\":{{\"percentile\":{{\"99.000000\":2000000,\
                 \"99.900000\":3000000}}}}}},\"write\":{{\"iops\":{iops},\"bw_bytes\":4096,\
                 \"clat_ns\":{{}}}},\"trim\":{{\"iops\":0,\"bw_bytes\":0,\"clat_ns\":{{}}}}}}]}}"
            )
        };
        let figures = FioFigures { iops: 10.0, bytes: 8192.0, p99_ms: 2.0, p999_ms: 3.0 };
        assert_eq!(FioFigures::parse(&text(0, 5.0)), Some(figures));
        assert_eq!(FioFigures::parse(&text(5, 5.0)), None, "an error");
        assert_eq!(FioFigures::parse(&text(0, 0.0)), None, "nothing was done");
        assert_eq!(FioFigures::parse(""), None);
    }

    #[test]
    fn a_job_has_its_requests_outstanding_on_each_kind_of_target() {
        let output = Path::new("o");
        let nbd = JobTarget::Nbd("nbd+unix:///victim?socket=s".into());
        let line = command_line(&nbd.victim(2_000, Span::SECOND, output));
        assert!(line.contains("--ioengine=nbd --iodepth=4 --numjobs=1 --size=256M"), "{line}");
        assert!(line.ends_with("--rate_iops=2000"), "{line}");
        let file = |is_device| JobTarget::File { path: "f".into(), offset: 256, is_device };
        let line = command_line(&file(false).victim(2_000, Span::SECOND, output));
        assert!(line.contains("--direct=1 --numjobs=4 --offset=256M --size=256M"), "{line}");
        assert!(line.ends_with("--rate_iops=500"), "{line}");
        let writes = command_line(&file(false).aggressor(&[LARGE_WRITES], Span::SECOND, output));
        assert!(writes.contains("--size=32M --offset_increment=32M"), "{writes}");
        for (is_device, engine) in [(false, "falloc"), (true, "psync")] {
            let trims = file(is_device).aggressor(&[TRIMS], Span::SECOND, output);
            assert!(command_line(&trims).contains(&format!("--ioengine={engine}")));
        }
    }
}
