//! The runs: each system by turns, on a fresh copy of one store. Where the paper limits the disk,
//! they are in one control group of the kernel's.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_console::amounts;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::programs;
use tidegate_model::{Rate, Span};

use super::LsmOptions;
use super::kept_runs::KeptRuns;
use super::plan::{DISK_MIB, LsmDisk, LsmPlan, LsmSystem, silk_profile};
use super::runs::{LsmRun, LsmSystemRuns};
use crate::experiment::cgroup::{Group, IoLimits, Throttle};
use crate::experiment::child::{self, Child, Start};
use crate::experiment::disk::Disk;
use crate::experiment::disk_reader::DiskReader;
use crate::experiment::files::{FileLayout, Files};
use crate::experiment::memory_disk::MemoryDisk;
use crate::experiment::paper::FigureContext;
use crate::experiment::quiet::{PriorityBoost, QuietProbe};
use crate::experiment::run_report;
use crate::experiment::scratch::{Scratch, check_space};
use crate::experiment::{DiskChoice, OpenDisk};
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

/// The name of the file on which a disk is measured.
const PROBE: &str = "probe";

/// Everything that runs have in common.
struct LsmTestbed<'a> {
    plan: &'a LsmPlan,
    context: &'a FigureContext,
    /// None if the disk has no limit.
    throttle: Option<Throttle>,
    programs: LsmPrograms,
    /// Outputs, and the state of `tidegate run`.
    scratch: Scratch,
    /// The stores.
    disk: Scratch,
}

/// The programs of the runs.
struct LsmPrograms {
    /// This one.
    lab: PathBuf,
    tidegate: PathBuf,
}

/// A result, or what this machine lacks for it.
type OrMissing<T> = Result<T, String>;

/// Runs all systems, or says what is missing. The plan gets the rate of its disk.
///
/// # Errors
/// If something breaks, or the user ends the command.
pub(super) fn run(
    plan: &mut LsmPlan,
    options: &LsmOptions,
    context: &FigureContext,
    kept: &mut KeptRuns,
) -> Result<OrMissing<Vec<LsmSystemRuns>>, Failure> {
    let can_auto_tune = match RocksDb::open() {
        Ok(library) => library.can_auto_tune(),
        Err(why) => return Ok(Err(why)),
    };
    let programs = match LsmPrograms::find()? {
        Ok(programs) => programs,
        Err(why) => return Ok(Err(why)),
    };
    // Dropped after the test bed, whose stores lie on it.
    let open_disk = match open_disk(plan, options, context)? {
        Ok(disk) => disk,
        Err(why) => return Ok(Err(why)),
    };
    let _priority_boost = PriorityBoost::raise();
    if plan.limit.is_none() {
        let rate = match kept.disk_rate() {
            Some(rate) => rate,
            None => measured(open_disk.path(), plan, context)?,
        };
        kept.set_disk_rate(rate);
        *plan = plan.clone().measured(rate);
    }
    let testbed = match LsmTestbed::new(plan, open_disk.path(), programs, context)? {
        Ok(testbed) => testbed,
        Err(why) => return Ok(Err(why)),
    };
    testbed.fill()?;
    testbed.run_all(options.rounds, can_auto_tune, kept)
}

impl LsmPrograms {
    fn find() -> Result<OrMissing<Self>, Failure> {
        let tidegate = match programs::tidegate().and_then(|path| programs::shim().map(|_| path)) {
            Ok(path) => path,
            Err(failure) => return Ok(Err(failure.to_string())),
        };
        let lab = std::env::current_exe().map_err(|error| {
            Failure::new(Code::Failure, "cannot find this program's file").cause(error)
        })?;
        Ok(Ok(Self { lab, tidegate }))
    }
}

/// The disk of the plan.
fn open_disk(
    plan: &LsmPlan,
    options: &LsmOptions,
    context: &FigureContext,
) -> Result<OrMissing<OpenDisk>, Failure> {
    if plan.limit.is_none() && !child::is_there("fio") {
        let why = "fio is not here, which measures the disk; `apt-get install fio` installs it";
        return Ok(Err(why.into()));
    }
    let choice = match plan.experiment.disk {
        LsmDisk::Limited | LsmDisk::Real => DiskChoice::Below(options.directory.clone()),
        LsmDisk::InMemory => DiskChoice::InMemory,
    };
    if plan.experiment.disk == LsmDisk::InMemory {
        if let Err(failure) = MemoryDisk::check(DISK_MIB) {
            return Ok(Err(failure.to_line()));
        }
        if !child::is_there("mkfs.ext4") {
            return Ok(Err("mkfs.ext4 is not here, which formats a disk in memory".into()));
        }
    }
    choice.open(DISK_MIB, &context.interrupt).map(Ok)
}

/// The rate at which the disk reads by itself, in its slowest second.
fn measured(directory: &Path, plan: &LsmPlan, context: &FigureContext) -> Result<Rate, Failure> {
    context.note("measuring the disk");
    let (interrupt, scratch) = (&context.interrupt, Scratch::new()?);
    let files = Files::write(directory, &[PROBE], FileLayout::FIO, interrupt)?;
    let file = files.path(PROBE);
    let seconds = plan.bursts.total.0 / Span::SECOND.0;
    DiskReader { file: &file, scratch: &scratch, interrupt }.sustained(seconds)
}

impl<'a> LsmTestbed<'a> {
    fn new(
        plan: &'a LsmPlan,
        directory: &Path,
        programs: LsmPrograms,
        context: &'a FigureContext,
    ) -> Result<OrMissing<Self>, Failure> {
        // A store past the page cache needs a disk, also one without a limit.
        let disk = match Disk::below(directory) {
            Ok(disk) => disk,
            Err(why) => return Ok(Err(why)),
        };
        let throttle = match plan.limit.map(|_| Throttle::new(disk)).transpose() {
            Ok(throttle) => throttle,
            Err(why) => return Ok(Err(why)),
        };
        check_space(directory, DISK_MIB, "--directory DIR")?;
        let disk = Scratch::within(directory, "tgd-lsm-").map_err(|error| {
            let what = format!("cannot make a directory in {}", directory.display());
            Failure::new(Code::Failure, what).cause(error)
        })?;
        let scratch = Scratch::new()?;
        Ok(Ok(Self { plan, context, throttle, programs, scratch, disk }))
    }

    /// Runs every system in every round, but for runs that an earlier command has kept. Each round
    /// begins with another system, so that none is always the first on a disk that changes.
    fn run_all(
        &self,
        rounds: u16,
        can_auto_tune: bool,
        kept: &mut KeptRuns,
    ) -> Result<OrMissing<Vec<LsmSystemRuns>>, Failure> {
        let systems = self.plan.experiment.systems().iter();
        let mut all: Vec<LsmSystemRuns> =
            systems.map(|system| LsmSystemRuns { system: *system, runs: Ok(Vec::new()) }).collect();
        let mut left = u64::from(rounds) * all.len() as u64;
        for round in 1..=rounds {
            for turn in 0..all.len() {
                let at = (turn + usize::from(round - 1)) % all.len();
                let one = &mut all[at];
                let time = amounts::age(self.plan.bursts.total.0.saturating_mul(left));
                left -= 1;
                if one.system == LsmSystem::AutoTuned && !can_auto_tune {
                    one.runs =
                        Err("this version of RocksDB makes no auto-tuned limiter for C".into());
                }
                let Ok(runs) = &mut one.runs else { continue };
                let name = one.system.name();
                let note = format!("{name}, round {round} of {rounds}, about {time} left in all");
                self.context.note(&note);
                let run = match kept.run(one.system, round) {
                    Some(run) => run.clone(),
                    None => self.run(one.system)?,
                };
                if let Err(why) = self.is_limited(&run) {
                    return Ok(Err(why));
                }
                kept.push(one.system, round, &run)?;
                runs.push(run);
            }
        }
        Ok(Ok(all))
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
            program: self.programs.lab.clone().into(),
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
        let group = self.group().map_err(|why| failed("cannot limit the disk", &why))?;
        let lines = self.scratch.join("lines");
        let mut start = self.load(&self.plan.load(system), &store, &lines);
        start = match system {
            LsmSystem::RocksDb | LsmSystem::AutoTuned | LsmSystem::Static => start,
            LsmSystem::Tidegate => self.under_tidegate("lsm".into(), start),
            LsmSystem::Silk => {
                let profile = self.scratch.join("silk.toml");
                fs::write(&profile, silk_profile())
                    .map_err(|error| failed("cannot write a profile", &error))?;
                self.under_tidegate(profile.into(), start)
            }
        };
        start.group = group.as_ref().map(Group::processes);
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
        Ok(LsmRun { seconds, totals, quiet, channels: run_report::channels(&stderr) })
    }

    /// The control group of a run, if its disk is limited.
    fn group(&self) -> Result<Option<Group>, String> {
        let limited = |(throttle, bandwidth): (&Throttle, Rate)| {
            throttle.limited("lsm", IoLimits { bandwidth, iops: UNLIMITED })
        };
        self.throttle.as_ref().zip(self.plan.limit).map(limited).transpose()
    }

    fn load(&self, load: &LsmPlannedLoad, store: &Path, lines: &Path) -> Start {
        let mut arguments: Vec<OsString> =
            vec![lsm::COMMAND.into(), store.into(), "--lines".into(), lines.into()];
        arguments.extend(Args::words(load).into_iter().map(OsString::from));
        let (name, program) = ("the load".into(), self.programs.lab.clone().into());
        Start { name, program, arguments, ..Start::default() }
    }

    /// The same program, as a user would run it under this profile.
    fn under_tidegate(&self, profile: OsString, command: Start) -> Start {
        let budget = format!("--budget={}", self.plan.budget);
        let before = ["--json", "run", "--profile"].map(OsString::from);
        let after = [&*budget, "--fail-closed", "--report", "--"].map(OsString::from);
        let arguments = before.into_iter().chain([profile]).chain(after);
        let state = ("TIDEGATE_STATE".into(), self.scratch.join("state").into());
        let environment = vec![state];
        let command = command.started_by(self.programs.tidegate.clone().into(), arguments);
        Start { environment, ..command }
    }

    /// Whether the kernel's limit has an effect, if there is to be one.
    fn is_limited(&self, run: &LsmRun) -> OrMissing<()> {
        let Some((throttle, limit)) = self.throttle.as_ref().zip(self.plan.limit) else {
            return Ok(());
        };
        let seconds = run.seconds.len().max(1) as u64;
        let read = run.seconds.iter().map(|second| second.disk_read_bytes).sum::<u64>() / seconds;
        if read <= limit.0 / 100 * LIMIT_PERCENT_MAX {
            return Ok(());
        }
        Err(format!("{} lets through {} of {limit}", throttle.description(), Rate(read)))
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
