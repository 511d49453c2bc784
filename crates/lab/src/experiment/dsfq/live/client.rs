//! DSFQ, live: a scenario's threads are jobs of one fio process, a stock client of the gateways.
//! All its jobs begin and end together.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use tidegate_model::{Bytes, Iops, Span};

use super::testbed::{DsfqTestbed, VOLUME_MIB, volume};
use crate::experiment::child::{Child, Start};
use crate::experiment::fio::{self, FioJob, FioOutput};
use crate::experiment::quiet::{Quiet, QuietProbe};
use tidegate_console::clock::Clock;
use tidegate_console::failure::Failure;
use tidegate_console::interrupt::Interrupt;
use tidegate_console::programs;

/// Nothing counts for so long, while queues fill and totals become level, and then everything for
/// as long. fio can leave out a beginning by itself, but counts wrongly then where it keeps a pace.
const HALF: Span = Span(1_400 * Span::MILLISECOND.0);
/// It goes on for so long after its last report.
const MORE: Span = Span(100 * Span::MILLISECOND.0);
/// The time between two checks whether fio has ended.
const POLL_INTERVAL: Span = Span(5 * Span::MILLISECOND.0);

/// Threads of one stream that ask one node through one gateway.
#[derive(Clone, Debug)]
pub(super) struct Threads {
    pub(super) stream: String,
    pub(super) node: usize,
    pub(super) gateway: usize,
    pub(super) count: u32,
    /// How often each asks, if it does not ask again as soon as it has an answer.
    pub(super) pace: Option<Iops>,
}

/// Answers to the threads of one stream at one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Number of answers.
    pub(super) requests: u64,
    /// Sum of the answers' latencies, in nanoseconds.
    pub(super) took_ns: f64,
}

/// Measurements of the interval that counts.
pub(super) struct Measurement {
    pub(super) length: Span,
    /// By volume.
    pub(super) seen: BTreeMap<String, Seen>,
}

/// The program that is missing, if one is.
pub(super) fn missing() -> Option<String> {
    if let Err(failure) = programs::tidegate() {
        return Some(format!("not seen live: {failure}"));
    }
    let mut command = Command::new("fio");
    command.arg("--enghelp=nbd").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => None,
        Ok(_) => Some("not seen live: this fio has no NBD engine".into()),
        Err(error) => Some(format!("not seen live: fio cannot be started: {error}")),
    }
}

/// Runs threads against a cluster. Returns their measurements, and how quiet this machine was. fio
/// counts all seconds together, so that none can be left out.
///
/// # Errors
/// If fio or a part of the cluster ends badly, or the user ends the command.
pub(super) fn run(
    testbed: &mut DsfqTestbed,
    threads: &[Threads],
    interrupt: &Interrupt,
) -> Result<(Measurement, Quiet), Failure> {
    let report_path = testbed.scratch.join("fio.json");
    let arguments = arguments((&testbed.nbd_sockets, testbed.block), threads, &report_path);
    let start = Start { name: "fio".into(), program: "fio".into(), arguments, ..Start::default() };
    let mut child = Child::start(&start, testbed.scratch.path())?;
    let (clock, watch) = (Clock::start(), QuietProbe::start());
    while !child.has_ended()? {
        testbed.check()?;
        interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
    }
    let text = fs::read_to_string(&report_path).unwrap_or_default();
    Ok((parse(&text).ok_or_else(fio::senseless)?, watch.finish()))
}

fn arguments(
    (nbd_sockets, block): (&[impl AsRef<Path>], Bytes),
    threads: &[Threads],
    report_path: &Path,
) -> Vec<OsString> {
    let milliseconds = |span: Span| span.0 / Span::MILLISECOND.0;
    let options = format!(
        "--rw=randread --bs={} --size={VOLUME_MIB}M --norandommap=1 --time_based=1 \
         --runtime={}ms --status-interval={}ms --thread=1 --output-format=json --eta=never",
        block.0,
        2 * milliseconds(HALF) + milliseconds(MORE),
        milliseconds(HALF),
    );
    let mut words: Vec<OsString> = options.split_whitespace().map(OsString::from).collect();
    let with = |option: &str, path: &Path| {
        let mut word = OsString::from(option);
        word.push(path);
        word
    };
    words.push(with("--output=", report_path));
    for Threads { stream, node, gateway, count, pace } in threads {
        let volume = volume(stream, *node);
        // fio accepts an engine's options only after the engine.
        words.extend([format!("--name={volume}").into(), "--ioengine=nbd".into()]);
        let nbd_socket = nbd_sockets[*gateway].as_ref();
        words.push(with(&format!("--uri=nbd+unix:///{volume}?socket="), nbd_socket));
        match pace {
            None => words.push(format!("--iodepth={count}").into()),
            // Not all of them at the same moments.
            Some(Iops(pace)) => {
                let options = [format!("--numjobs={count}"), format!("--rate_iops={pace}")];
                words.extend(options.map(OsString::from));
                words.push("--rate_process=poisson".into());
            }
        }
    }
    words
}

/// Answers to all jobs between fio's first report and its second; `None` if a report is unusable.
fn parse(text: &str) -> Option<Measurement> {
    let reports: Vec<FioOutput> = FioOutput::all(text).take(2).collect::<Option<_>>()?;
    let [from, to] = &reports[..] else { return None };
    let length = Span(to.timestamp_ms?.checked_sub(from.timestamp_ms?)? * Span::MILLISECOND.0);
    let (from, mut seen) = (seen(from)?, seen(to)?);
    for (volume, from) in from {
        let seen = seen.get_mut(&volume)?;
        seen.requests -= from.requests;
        seen.took_ns -= from.took_ns;
    }
    Some(Measurement { length, seen })
}

/// The answers of a report by volume; nothing if there was an error.
fn seen(report: &FioOutput) -> Option<BTreeMap<String, Seen>> {
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    for FioJob { jobname, error, read, .. } in &report.jobs {
        let requests = read.total_ios.filter(|_| *error == 0)?;
        let seen = seen.entry(jobname.clone()).or_default();
        seen.requests += requests;
        seen.took_ns += requests as f64 * read.lat_ns.mean?;
    }
    Some(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_between_two_reports() {
        let report = |at: u64, error: i64, jobs: &[(&str, u64, f64)]| {
            let job = |(name, ios, mean): &(&str, u64, f64)| {
                format!(
                    "{{\"jobname\":\"{name}\",\"error\":{error},\"read\":{{\"total_ios\":{ios},\
                     \"lat_ns\":{{\"mean\":{mean:.1}}}}}}}"
                )
            };
            let jobs: Vec<String> = jobs.iter().map(job).collect();
            format!("{{\"timestamp_ms\":{at},\"jobs\":[{}]}}\n", jobs.join(","))
        };
        let first = report(1_500, 0, &[("f-0", 10, 2.0), ("g-1", 4, 1.0), ("g-1", 2, 1.0)]);
        let second = report(3_000, 0, &[("f-0", 30, 4.0), ("g-1", 8, 1.0), ("g-1", 7, 2.0)]);
        let measurement = parse(&format!("a note\n{first}{second}{first}")).unwrap();
        assert_eq!(measurement.length, Span(1_500 * Span::MILLISECOND.0));
        assert_eq!(measurement.seen["f-0"], Seen { requests: 20, took_ns: 100.0 });
        assert_eq!(measurement.seen["g-1"], Seen { requests: 9, took_ns: 16.0 });
        assert!(parse(&first).is_none());
        assert!(parse(&(first + &report(3_000, 5, &[("f-0", 30, 4.0)]))).is_none());
        assert!(parse("").is_none());
    }

    #[test]
    fn every_volume_has_its_jobs() {
        let threads = |stream: &str, node, count, pace| Threads {
            stream: stream.into(),
            node,
            gateway: 0,
            count,
            pace,
        };
        let threads = [threads("f", 0, 30, None), threads("g", 1, 2, Some(Iops(26)))];
        let words = arguments((&[Path::new("/d")], Bytes(8 << 10)), &threads, Path::new("/o"));
        let line = fio::command_line(&words);
        let (all, jobs) = line.split_once(" --name=").unwrap();
        assert!(all.ends_with("--output=/o"), "{line}");
        assert_eq!(
            jobs,
            "f-0 --ioengine=nbd '--uri=nbd+unix:///f-0?socket=/d' --iodepth=30 --name=g-1 \
             --ioengine=nbd '--uri=nbd+unix:///g-1?socket=/d' --numjobs=2 --rate_iops=26 \
             --rate_process=poisson"
        );
    }
}
