//! fio's options for the loads of the isolation benchmark: the victim's and the aggressors'.

use std::ffi::OsString;
use std::path::Path;

use tidegate_model::Span;
use tidegate_sim::isolation::{LARGE_WRITES, LoadJob, LoadOperation, PAUSE, READS, VICTIM_DEPTH};

use super::SIZE_MIB;
use crate::experiment::fio::{FioJob, FioOutput};

/// fio's times before the measured window: its start, and the first requests.
const RAMP: Span = Span(300 * Span::MILLISECOND.0);

/// fio's options of a job's requests.
fn requests(job: &LoadJob) -> Vec<String> {
    let direction = match job.operation {
        LoadOperation::Read => "randread",
        LoadOperation::Write { is_sequential: true } => "write",
        LoadOperation::Write { is_sequential: false } | LoadOperation::WriteAndFlush => "randwrite",
        LoadOperation::Mixed => "randrw",
        LoadOperation::Trim => "randtrim",
    };
    let size = |bytes: u32| format!("{}k", bytes >> 10);
    let sizes = match job.sizes {
        [(bytes, _)] => format!("--bs={}", size(*bytes)),
        sizes => {
            let parts = sizes.iter().map(|(bytes, weight)| format!("{}/{weight}", size(*bytes)));
            format!("--bssplit={}", parts.collect::<Vec<_>>().join(":"))
        }
    };
    let mut words = vec![format!("--rw={direction}"), sizes];
    if job.operation == LoadOperation::WriteAndFlush {
        words.push("--fsync=1".into());
    }
    if let Some(burst) = job.burst {
        words.push(format!("--thinktime={}ms", PAUSE.0 / Span::MILLISECOND.0));
        words.push(format!("--thinktime_blocks={burst}"));
    }
    words
}

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
    fn options(&self, job: &LoadJob, words: &mut Vec<OsString>) {
        let mut add = |text: String| words.push(text.into());
        let is_sequential = job.operation == LoadOperation::Write { is_sequential: true };
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
                let threads = job.clients();
                // fio frees a range of a file with an engine of its own.
                let is_freed = job.operation == LoadOperation::Trim && !is_device;
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
        words.extend(requests(job).into_iter().map(OsString::from));
    }

    /// The number of fio's jobs, each of which has a rate of its own.
    fn count(&self, job: &LoadJob) -> u32 {
        match self {
            Self::Nbd(_) => job.connections,
            Self::File { .. } => job.clients(),
        }
    }

    /// fio's arguments for the jobs of an aggressor.
    pub(super) fn aggressor(&self, jobs: &[LoadJob], length: Span, output: &Path) -> Vec<OsString> {
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
        let job = LoadJob { depth: VICTIM_DEPTH, ..READS };
        self.options(&job, &mut words);
        let each = rate / u64::from(self.count(&job));
        words.push(format!("--rate_iops={each}").into());
        words
    }

    /// fio's arguments to write all of it once.
    pub(super) fn fill(&self, output: &Path) -> Vec<OsString> {
        let words = ["--end_fsync=1", "--output-format=json", "--eta=never", "--name=fill"];
        let mut words: Vec<OsString> = words.map(OsString::from).into();
        words.push(format!("--output={}", output.display()).into());
        let writes = LoadJob { depth: 1, ..LARGE_WRITES };
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
    use tidegate_sim::isolation::AGGRESSORS;

    #[test]
    fn each_load_has_its_options() {
        let options = AGGRESSORS.map(|aggressor| requests(&aggressor.jobs[0]).join(" "));
        let expected = [
            "--rw=write --bs=1024k",
            "--rw=randwrite --bs=4k",
            "--rw=randread --bs=4k",
            "--rw=randread --bs=4k",
            "--rw=randwrite --bs=4k --fsync=1",
            "--rw=randtrim --bs=128k",
            "--rw=randrw --bssplit=4k/60:64k/30:1024k/10",
            "--rw=randread --bs=128k --thinktime=100ms --thinktime_blocks=8",
            "--rw=randread --bs=4k",
            "--rw=write --bs=1024k",
        ];
        assert_eq!(options, expected);
    }

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
            let trims = file(is_device).aggressor(AGGRESSORS[5].jobs, Span::SECOND, output);
            assert!(command_line(&trims).contains(&format!("--ioengine={engine}")));
        }
    }
}
