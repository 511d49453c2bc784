//! fio, the program that all tenants run: its arguments, and its report.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use tidegate_model::{Rate, Span};

use super::child::cannot_start;
use super::plan::{JOBS, MIB, REGION};
use tidegate_console::failure::{Code, Failure};
use tidegate_console::output::shell_word;

/// How much to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// So many bytes, by all jobs together.
    Bytes(u64),
    /// As much as goes into this time, by twice as many jobs on the same file.
    Time(Span),
}

/// A job for fio.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FioWork<'a> {
    pub(crate) name: &'a str,
    pub(crate) file: &'a Path,
    /// The size of a request, in bytes.
    pub(crate) block: u64,
    pub(crate) amount: Amount,
}

/// Arguments with which fio reads as every tenant does and writes its report to `report_path`.
pub(crate) fn arguments(work: FioWork<'_>, report_path: &Path) -> Vec<OsString> {
    let FioWork { name, file, block, amount } = work;
    let option = |name: &str, value: &dyn std::fmt::Display| format!("--{name}={value}").into();
    let mebibytes = |bytes: u64| format!("{}M", bytes / MIB);
    let block = if block < MIB { format!("{}k", block >> 10) } else { mebibytes(block) };
    let path = |name: &str, path: &Path| {
        let mut option = OsString::from(format!("--{name}="));
        option.push(path);
        option
    };
    let (jobs, region) = match amount {
        Amount::Bytes(_) => (JOBS, REGION),
        Amount::Time(_) => (2 * JOBS, REGION / 2),
    };
    let mut arguments: Vec<OsString> = vec![
        option("name", &name),
        path("filename", file),
        option("rw", &"read"),
        option("bs", &block),
        option("direct", &1),
        option("ioengine", &"psync"),
        option("numjobs", &jobs),
        option("size", &mebibytes(region)),
        option("offset_increment", &mebibytes(region)),
    ];
    match amount {
        Amount::Bytes(bytes) => arguments.push(option("io_size", &mebibytes(bytes / jobs))),
        Amount::Time(time) => arguments.extend([
            option("time_based", &1),
            option("runtime", &format!("{}ms", time.0 / Span::MILLISECOND.0)),
        ]),
    }
    arguments.extend([
        option("group_reporting", &1),
        option("output-format", &"json"),
        path("output", report_path),
        option("eta", &"never"),
    ]);
    arguments
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FioReport {
    pub(crate) bytes: u64,
    /// The read rate that fio reports.
    pub(crate) rate: Rate,
}

pub(crate) fn read_report(report_path: &Path) -> Result<FioReport, Failure> {
    let text = fs::read_to_string(report_path).unwrap_or_default();
    parse(&text).ok_or_else(senseless)
}

/// The failure of a report that is none.
pub(crate) fn senseless() -> Failure {
    Failure::new(Code::Failure, "fio's report cannot be read")
        .help("run `fio --version`: releases from 3.0 on are known to work")
}

fn parse(text: &str) -> Option<FioReport> {
    let reads = FioOutput::parse(text)?.reads()?;
    Some(FioReport { bytes: reads.io_bytes?, rate: Rate(reads.bw_bytes?) })
}

/// A report of fio in JSON, as far as it is read here: what its jobs did since they began.
#[derive(Deserialize)]
pub(crate) struct FioOutput {
    /// The time of the report, in milliseconds since 1970.
    pub(crate) timestamp_ms: Option<u64>,
    pub(crate) jobs: Vec<FioJob>,
}

/// One job, or all processes of a job together.
#[derive(Deserialize)]
pub(crate) struct FioJob {
    #[serde(default)]
    pub(crate) jobname: String,
    /// The number of the error that ended it; zero for none.
    #[serde(default)]
    pub(crate) error: i64,
    /// Its reads; all requests if it was to report them together.
    #[serde(default, alias = "mixed")]
    pub(crate) read: FioSide,
    #[serde(default)]
    pub(crate) write: FioSide,
    #[serde(default)]
    pub(crate) trim: FioSide,
}

/// Requests of one direction. A number that fio did not write is none.
#[derive(Default, Deserialize)]
pub(crate) struct FioSide {
    pub(crate) io_bytes: Option<u64>,
    /// Bytes per second.
    pub(crate) bw_bytes: Option<u64>,
    /// Requests per second.
    pub(crate) iops: Option<f64>,
    pub(crate) total_ios: Option<u64>,
    /// How long it ran, in milliseconds.
    pub(crate) runtime: Option<u64>,
    /// From the submission of a request to its completion.
    #[serde(default)]
    pub(crate) clat_ns: FioLatency,
    /// From the start of a request to its completion.
    #[serde(default)]
    pub(crate) lat_ns: FioLatency,
}

/// Latencies, in nanoseconds.
#[derive(Default, Deserialize)]
pub(crate) struct FioLatency {
    pub(crate) mean: Option<f64>,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

impl FioLatency {
    /// The quantile that fio calls so, for example `99.900000`.
    pub(crate) fn percentile(&self, name: &str) -> Option<f64> {
        self.percentile.get(name).copied()
    }
}

impl FioOutput {
    /// The reports of a text. Notes of fio's may come before them.
    pub(crate) fn all(text: &str) -> impl Iterator<Item = Option<Self>> {
        let text = &text[text.find('{').unwrap_or(text.len())..];
        serde_json::Deserializer::from_str(text).into_iter().map(Result::ok)
    }

    /// The first report of a text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::all(text).next()?
    }

    /// The reads of the only job; none if there are more, or there was an error.
    pub(crate) fn reads(self) -> Option<FioSide> {
        let [FioJob { read, error: 0, .. }] = <[FioJob; 1]>::try_from(self.jobs).ok()? else {
            return None;
        };
        Some(read)
    }
}

/// fio's name and release.
pub(crate) fn version() -> Result<String, Failure> {
    let output = Command::new("fio").arg("--version").output();
    let output = output.map_err(|error| cannot_start(&"fio".into(), error))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A command as one would type it.
pub(crate) fn command_line<'a>(words: impl IntoIterator<Item = &'a OsString>) -> String {
    let quoted = words.into_iter().map(|word| shell_word(&word.to_string_lossy()));
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_reads_its_part_of_the_file() {
        let file = Path::new("/var/tmp/a b/I1");
        let amount = Amount::Bytes(7_500 << 20);
        let work = FioWork { name: "I1", file, block: MIB, amount };
        let words = arguments(work, Path::new("/tmp/I1.json"));
        assert_eq!(
            command_line(&words),
            "--name=I1 '--filename=/var/tmp/a b/I1' --rw=read --bs=1M --direct=1 \
             --ioengine=psync --numjobs=5 --size=48M --offset_increment=48M \
             --io_size=1500M --group_reporting=1 --output-format=json \
             --output=/tmp/I1.json --eta=never"
        );
        let probe = Amount::Time(Span(1500 * Span::MILLISECOND.0));
        let work = FioWork { amount: probe, block: MIB / 4, ..work };
        let words = arguments(work, Path::new("p.json"));
        let line = command_line(&words);
        assert!(line.contains("--numjobs=10 --size=24M --offset_increment=24M"), "{line}");
        assert!(line.contains("--bs=256k"), "{line}");
        assert!(line.contains("--time_based=1 --runtime=1500ms"), "{line}");
    }

    #[test]
    fn a_report_is_understood_or_refused() {
        let report = |error: i64| {
            format!(
                "fio: a note\n{{ \"jobs\": [ {{ \"jobname\": \"I1\", \"error\": {error}, \
                 \"read\": {{ \"io_bytes\": 10, \"bw_bytes\": 5, \"iops\": 0.5 }} }} ] }}"
            )
        };
        assert_eq!(parse(&report(0)), Some(FioReport { bytes: 10, rate: Rate(5) }));
        assert_eq!(parse(&report(5)), None);
        assert_eq!(parse(""), None);
        assert_eq!(parse("{}"), None);
    }

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        let words = ["a", "it's", "", "x=1,2"].map(OsString::from);
        assert_eq!(command_line(&words), r"a 'it'\''s' '' x=1,2");
    }
}
