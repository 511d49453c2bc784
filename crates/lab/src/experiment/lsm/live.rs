//! The runs: each system by turns, on a fresh copy of one store, in one control group of the
//! kernel's that stands for the paper's slower disk.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::programs;
use tidegate_model::{Rate, Span};

use super::LsmOptions;
use super::plan::{DISK_MIB, LsmPlan, LsmSystem};
use crate::experiment::cgroup::{IoLimits, Throttle};
use crate::experiment::child::{Child, Start};
use crate::experiment::disk::Disk;
use crate::experiment::paper::FigureContext;
use crate::experiment::quiet::{PriorityBoost, Quiet, QuietProbe};
use crate::experiment::scratch::{Scratch, check_space};
use crate::lsm::{self, Args, LsmPlannedLoad, LsmSecond, LsmTotals, RocksDb};

/// A load may take so much longer than planned until it is given up: it opens and closes its store.
const PATIENCE: Span = Span(60 * Span::SECOND.0);
/// How long it may take to fill the first store.
const FILLS: Span = Span(300 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(20 * Span::MILLISECOND.0);

/// The kernel's limit has no effect if a run reads more than this percentage of it.
const LIMIT_PERCENT_MAX: u64 = 115;

/// Requests per second are not limited: the greatest number that the kernel takes.
const UNLIMITED: u64 = 0xffff_ffff;

/// The measurements of a run of one system.
#[derive(Clone, Debug)]
pub(super) struct LsmRun {
    pub(super) seconds: Vec<LsmSecond>,
    pub(super) totals: LsmTotals,
    pub(super) quiet: Quiet,
    /// Bytes of each channel by its name, of a run under Tidegate.
    pub(super) channels: BTreeMap<String, u64>,
}

/// The runs of one system, or why there are none.
#[derive(Clone, Debug)]
pub(super) struct LsmSystemRuns {
    pub(super) system: LsmSystem,
    pub(super) runs: Result<Vec<LsmRun>, String>,
}

/// Everything that runs have in common.
struct LsmTestbed<'a> {
    plan: &'a LsmPlan,
    context: &'a FigureContext,
    throttle: Throttle,
    /// This program, and the command `tidegate`.
    lab: PathBuf,
    tidegate: PathBuf,
    /// Outputs, and the state of `tidegate run`.
    scratch: Scratch,
    /// The stores.
    disk: Scratch,
}

/// Runs all systems, or says what is missing.
///
/// # Errors
/// If something breaks, or the user ends the command.
pub(super) fn run(
    plan: &LsmPlan,
    options: &LsmOptions,
    context: &FigureContext,
) -> Result<Result<Vec<LsmSystemRuns>, String>, Failure> {
    let can_auto_tune = match RocksDb::open() {
        Ok(library) => library.can_auto_tune(),
        Err(why) => return Ok(Err(why)),
    };
    let prepared = LsmTestbed::new(plan, options, context)?;
    let testbed = match prepared {
        Ok(testbed) => testbed,
        Err(why) => return Ok(Err(why)),
    };
    let _priority_boost = PriorityBoost::raise();
    testbed.fill()?;
    let mut all = LsmSystem::ALL.map(|system| LsmSystemRuns { system, runs: Ok(Vec::new()) });
    for round in 1..=options.rounds {
        for one in &mut all {
            if one.system == LsmSystem::AutoTuned && !can_auto_tune {
                one.runs = Err("this version of RocksDB makes no auto-tuned limiter for C".into());
            }
            let Ok(runs) = &mut one.runs else { continue };
            context.note(&format!("{}, round {round} of {}", one.system.name(), options.rounds));
            let run = testbed.run(one.system)?;
            if let Err(why) = testbed.is_limited(&run) {
                return Ok(Err(why));
            }
            runs.push(run);
        }
    }
    Ok(Ok(all.into()))
}

impl<'a> LsmTestbed<'a> {
    fn new(
        plan: &'a LsmPlan,
        options: &LsmOptions,
        context: &'a FigureContext,
    ) -> Result<Result<Self, String>, Failure> {
        let throttle = Disk::below(&options.directory).and_then(Throttle::new);
        let throttle = match throttle {
            Ok(throttle) => throttle,
            Err(why) => return Ok(Err(why)),
        };
        let tidegate = match programs::tidegate().and_then(|path| programs::shim().map(|_| path)) {
            Ok(path) => path,
            Err(failure) => return Ok(Err(failure.to_string())),
        };
        check_space(&options.directory, DISK_MIB, "--directory DIR")?;
        let disk = Scratch::within(&options.directory, "tgd-lsm-").map_err(|error| {
            let what = format!("cannot make a directory in {}", options.directory.display());
            Failure::new(Code::Failure, what).cause(error)
        })?;
        let lab = std::env::current_exe().map_err(|error| {
            Failure::new(Code::Failure, "cannot find this program's file").cause(error)
        })?;
        let scratch = Scratch::new()?;
        Ok(Ok(Self { plan, context, throttle, lab, tidegate, scratch, disk }))
    }

    fn filled(&self) -> PathBuf {
        self.disk.join("filled")
    }

    fn fill(&self) -> Result<(), Failure> {
        self.context.note("filling a store");
        let keys = format!("--keys={}", self.plan.keys);
        let arguments = [lsm::COMMAND.into(), self.filled().into(), keys.into(), "--fill".into()];
        let start = Start {
            name: "the filling of a store".into(),
            program: self.lab.clone().into(),
            arguments: arguments.into(),
            ..Start::default()
        };
        self.wait(&start, FILLS)
    }

    /// Runs a program to its end.
    fn wait(&self, start: &Start, patience: Span) -> Result<(), Failure> {
        let mut child = Child::start(start, self.scratch.path())?;
        let clock = Clock::start();
        while !child.has_ended()? {
            if clock.now().0 > patience.0 {
                return Err(Failure::new(Code::Failure, format!("{} does not end", start.name)));
            }
            let next = clock.now().after(POLL_INTERVAL);
            self.context.interrupt.sleep_until(clock, next)?;
        }
        Ok(())
    }

    fn run(&self, system: LsmSystem) -> Result<LsmRun, Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Failure::new(Code::Failure, what).cause(error.to_string())
        };
        let store = self.disk.join("copy");
        copy(&self.filled(), &store).map_err(|error| failed("cannot copy a store", &error))?;
        // The last run's writes are no part of this one.
        rustix::fs::sync();
        let limits = IoLimits { bandwidth: self.plan.limit, iops: UNLIMITED };
        let group = self.throttle.limited("lsm", limits);
        let group = group.map_err(|why| failed("cannot limit the disk", &why))?;
        let lines = self.scratch.join("lines");
        let mut start = self.load(&self.plan.load(system), &store, &lines);
        if system == LsmSystem::Tidegate {
            start = self.under_tidegate(start);
        }
        start.group = Some(group.processes());
        let probe = QuietProbe::start();
        self.wait(&start, Span(self.plan.bursts.total.0 + PATIENCE.0))?;
        let quiet = probe.finish();
        let text = fs::read_to_string(&lines)
            .map_err(|error| failed("the load has left no lines", &error))?;
        let (seconds, totals) =
            parse(&text).map_err(|error| failed("the load's lines are damaged", &error))?;
        let stderr = self.scratch.join(&format!("{}.stderr", start.name));
        let stderr = fs::read_to_string(stderr).unwrap_or_default();
        fs::remove_dir_all(&store).map_err(|error| failed("cannot remove a store", &error))?;
        Ok(LsmRun { seconds, totals, quiet, channels: channels(&stderr) })
    }

    fn load(&self, load: &LsmPlannedLoad, store: &Path, lines: &Path) -> Start {
        let mut arguments: Vec<OsString> =
            vec![lsm::COMMAND.into(), store.into(), "--lines".into(), lines.into()];
        arguments.extend(Args::words(load).into_iter().map(OsString::from));
        let (name, program) = ("the load".into(), self.lab.clone().into());
        Start { name, program, arguments, ..Start::default() }
    }

    /// The same program, as a user would run it under the profile.
    fn under_tidegate(&self, command: Start) -> Start {
        let budget = format!("--budget={}", self.plan.budget);
        let words = ["--json", "run", "--profile=lsm", &budget, "--fail-closed", "--report", "--"];
        let mut arguments: Vec<OsString> = words.map(OsString::from).into();
        arguments.push(command.program);
        arguments.extend(command.arguments);
        let state = ("TIDEGATE_STATE".into(), self.scratch.join("state").into());
        let program = self.tidegate.clone().into();
        Start { program, arguments, environment: vec![state], ..command }
    }

    /// Whether the kernel's limit has an effect.
    fn is_limited(&self, run: &LsmRun) -> Result<(), String> {
        let seconds = run.seconds.len().max(1) as u64;
        let read = run.seconds.iter().map(|second| second.disk_read_bytes).sum::<u64>() / seconds;
        if read <= self.plan.limit.0 / 100 * LIMIT_PERCENT_MAX {
            return Ok(());
        }
        let (description, limit) = (self.throttle.description(), self.plan.limit);
        Err(format!("{description} lets through {} of {limit}", Rate(read)))
    }
}

/// Copies a store that is closed. Tables never change, so the copy shares them with the first.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.path().extension().is_some_and(|extension| extension == "sst") {
            fs::hard_link(entry.path(), target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// The lines of a load: each second, and all of them.
fn parse(text: &str) -> Result<(Vec<LsmSecond>, LsmTotals), serde_json::Error> {
    let (seconds, totals) = text.trim_end().rsplit_once('\n').unwrap_or(("", text));
    let seconds = seconds.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    Ok((seconds, serde_json::from_str(totals)?))
}

/// The report of `tidegate run`, as far as it is used here.
#[derive(Deserialize)]
struct LsmReport {
    channels: Vec<LsmChannel>,
}

#[derive(Deserialize)]
struct LsmChannel {
    channel: String,
    bytes: u64,
}

/// Bytes of each channel, from what `tidegate run` wrote on standard error.
fn channels(stderr: &str) -> BTreeMap<String, u64> {
    let report = stderr.lines().rev().find_map(|line| serde_json::from_str::<LsmReport>(line).ok());
    let channels = report.map(|report| report.channels).unwrap_or_default();
    channels.into_iter().map(|one| (one.channel, one.bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_load_are_read() {
        let second = LsmSecond { second: 1, operations: 3, p99_us: 7, ..LsmSecond::default() };
        let totals = LsmTotals { operations: 3, library: "x.so".into(), ..LsmTotals::default() };
        let text = [
            serde_json::to_string(&LsmSecond::default()).unwrap(),
            serde_json::to_string(&second).unwrap(),
            serde_json::to_string(&totals).unwrap(),
        ];
        let text = text.join("\n") + "\n";
        assert_eq!(parse(&text).unwrap(), (vec![LsmSecond::default(), second], totals));
        assert!(parse("").is_err() && parse("cut").is_err());
    }

    #[test]
    fn channels_are_read_from_the_last_report() {
        let report = "{\"warning\":\"x\"}\n{\"passed_bytes\":3,\"channels\":[\
                      {\"channel\":\"flush\",\"operations\":1,\"bytes\":3}]}\nend\n";
        assert_eq!(channels(report), BTreeMap::from([("flush".to_owned(), 3)]));
        assert!(channels("").is_empty());
    }

    #[test]
    fn a_copy_shares_tables_and_nothing_else() {
        use std::os::unix::fs::MetadataExt;

        let directory = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        fs::create_dir(&from).unwrap();
        for name in ["1.sst", "MANIFEST-2", "CURRENT"] {
            fs::write(from.join(name), name).unwrap();
        }
        copy(&from, &to).unwrap();
        let node = |path: PathBuf| fs::metadata(path).unwrap().ino();
        for name in ["1.sst", "MANIFEST-2", "CURRENT"] {
            assert_eq!(fs::read_to_string(to.join(name)).unwrap(), name);
            let is_shared = node(from.join(name)) == node(to.join(name));
            assert_eq!(is_shared, name == "1.sst", "{name}");
        }
    }
}
