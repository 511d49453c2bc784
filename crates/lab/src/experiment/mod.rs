//! The experiments of `tidegate-lab demo` and `tidegate-lab repro`.
//!
//! The main one is PAIO §9.3 (figure 10): four tenants with different promises read from one disk,
//! three times: without control, under static limits, and under Tidegate. A [`plan`] has each
//! tenant's promise, work and start. In each *set-up* ([`setup`]) the tenants are fio processes, in
//! control groups or under Tidegate as a user would run it. A [`witness`] that is independent of
//! Tidegate counts the bytes that the disk reads for each tenant; a [`recording`] keeps these
//! counts, a [`score`] judges them, and a [`report`] shows them.
//!
//! ```text
//!   plan ──▶ setup ──▶ recording ──▶ score ──▶ summary, report, verdict
//!              │           ▲
//!              ▼           │
//!         fio, fio, …   witness: /proc/<pid>/io, four times a second
//! ```
//!
//! [`figure4`] measures the cost of a stage in the process that calls it, and [`lsm`] the tail
//! latency of a key-value store. [`pshift`], [`dsfq`], [`haechi`] and [`e2e`] have the experiments
//! of the other papers, [`end_to_end`] the demo of the whole way of a request, and [`verdict`]
//! judges the claims of all of them.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;
use tidegate_model::{Rate, Span, Time};

use tidegate_console::clock::{self, Clock};
use tidegate_console::failure::{Code, Failure};

pub(crate) mod cgroup;
mod chart;
pub(crate) mod child;
pub(crate) mod controller;
pub(crate) mod disk;
pub(crate) mod dsfq;
pub(crate) mod e2e;
pub(crate) mod end_to_end;
pub(crate) mod figure10;
pub(crate) mod figure4;
mod files;
pub(crate) mod fio;
pub(crate) mod haechi;
pub(crate) mod kept;
mod live;
mod live_verdict;
pub(crate) mod loop_device;
pub(crate) mod lsm;
pub(crate) mod machine;
mod memory_disk;
pub(crate) mod moments;
pub(crate) mod mount_point;
mod others;
pub(crate) mod pace;
pub(crate) mod page;
pub(crate) mod paper;
mod plan;
pub(crate) mod plot;
mod policies;
pub(crate) mod pshift;
mod pulse;
pub(crate) mod quiet;
pub(crate) mod recorded;
mod recording;
mod remains;
mod report;
mod score;
pub(crate) mod scratch;
mod setup;
mod summary;
pub(crate) mod training;
pub(crate) mod verdict;
pub(crate) mod witness;

use cgroup::Throttle;
use child::{Child, Start};
use disk::Disk;
use files::{FileLayout, Files};
use fio::{Amount, FioWork};
use live::{Form, Live};
use live_verdict::LiveVerdict;
use machine::Machine;
use memory_disk::MemoryDisk;
use plan::{BLOCK, ExperimentPlan, Mib};
use quiet::PriorityBoost;
use recording::{Control, Recording};
use report::ExperimentReport;
use score::{Numbers, Score};
use scratch::Scratch;
use setup::Testbed;
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint};
use training::{TenantProgram, TenantWorkload};
use witness::{CountedBytes, Witness};

/// How long the disk is measured by itself, at least and at most: as long as a set-up takes within
/// these. Virtual disks may be faster in the first seconds than for good; one was 770 MiB/s for
/// eight seconds, and then 560 to 670.
const PROBE_SECONDS: [u64; 2] = [2, 12];

/// How long it is measured under the kernel's limit, and with small requests.
const PROBE_LIMITED: Span = Span(1000 * Span::MILLISECOND.0);

/// The interval of samples while it is measured.
const POLL_INTERVAL: Span = Span(10 * Span::MILLISECOND.0);

/// A limit of the kernel that lets through more than this percentage of it has no effect. On some
/// file systems and devices it has none, and the kernel reports no error.
const LIMIT_PERCENT_MAX: u64 = 115;

/// The disk of an experiment.
#[derive(Clone, Debug)]
pub(crate) enum DiskChoice {
    /// The one below this directory.
    Below(PathBuf),
    /// One that is made in memory.
    InMemory,
}

/// The same, ready for files.
enum OpenDisk {
    Below(PathBuf),
    InMemory(MemoryDisk),
}

impl OpenDisk {
    /// A directory on it.
    fn path(&self) -> &Path {
        match self {
            Self::Below(directory) => directory,
            Self::InMemory(disk) => disk.path(),
        }
    }
}

impl DiskChoice {
    /// Makes the disk, with space for so many MiB, if it is to be made.
    fn open(&self, space_mib: u64, interrupt: &Interrupt) -> Result<OpenDisk, Failure> {
        Ok(match self {
            Self::Below(directory) => OpenDisk::Below(directory.clone()),
            Self::InMemory => OpenDisk::InMemory(MemoryDisk::new(space_mib, interrupt)?),
        })
    }

    /// Removes the files and disks of runs that were killed, and returns what it has removed.
    fn remove_remains(&self) -> Vec<PathBuf> {
        let mut removed = MemoryDisk::remove_remains();
        if let Self::Below(directory) = self {
            removed.extend(Files::remove_remains(directory));
        }
        removed
    }

    const fn option(&self) -> &'static str {
        match self {
            Self::Below(_) => "--directory",
            Self::InMemory => "--disk memory",
        }
    }
}

/// The user's choices.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The program of the tenants.
    pub(crate) workload: TenantWorkload,
    /// How long a set-up takes that wastes nothing.
    pub(crate) seconds: u64,
    /// Where the report goes.
    pub(crate) out: PathBuf,
    /// Where the tenants' files lie.
    pub(crate) disk: DiskChoice,
    /// Why a run before this one proved nothing, if there was one.
    pub(crate) repeats: Option<String>,
    pub(crate) no_cgroups: bool,
    pub(crate) plain: bool,
    pub(crate) json: bool,
}

impl Options {
    /// The options that the numbers depend on, as they are written.
    pub(crate) fn words(&self) -> String {
        let Self { workload, seconds, disk, no_cgroups, .. } = self;
        let disk = match disk {
            DiskChoice::Below(directory) => {
                format!("--directory {}", output::shell_word(&directory.to_string_lossy()))
            }
            DiskChoice::InMemory => "--disk memory".into(),
        };
        let rest = match workload {
            TenantWorkload::Torch => " --workload torch",
            TenantWorkload::Fio if *no_cgroups => " --no-cgroups",
            TenantWorkload::Fio => "",
        };
        format!(" --seconds {seconds} {disk}{rest}")
    }
}

/// Result of the experiment.
#[derive(Debug)]
pub(crate) struct DemoOutcome {
    workload: TenantWorkload,
    plan: ExperimentPlan,
    machine: Machine,
    notes: Vec<String>,
    results: Vec<(Recording, Score)>,
    /// The page to look at.
    report: PathBuf,
    /// The samples from which the report was made.
    samples: PathBuf,
    /// A chart of each set-up, as SVG.
    pictures: Vec<String>,
}

impl DemoOutcome {
    /// Whether Tidegate kept every promise, and the run can tell.
    pub(crate) fn is_kept(&self) -> bool {
        let score = self.score(Control::Tidegate);
        score.is_some_and(|score| score.verdict() == LiveVerdict::Kept)
    }

    /// Why the run proves nothing, if that is so: other load disturbed it, or promises were missed
    /// through no fault of Tidegate's.
    pub(crate) fn excuse(&self) -> Option<String> {
        let score = self.score(Control::Tidegate)?;
        let unproven = score.disturbance().or_else(|| score.unseen());
        unproven.or_else(|| {
            let bare = self.score(Control::None)?.budget_used;
            let (share, low) = (summary::share(bare), summary::lowest(bare));
            (!bare.is_kept()).then(|| {
                format!(
                    "the disk itself gave less than the budget: without control it was used in \
                     {share} of the time, and down to {low}"
                )
            })
        })
    }

    fn score(&self, control: Control) -> Option<&Score> {
        self.results.iter().find(|(recording, _)| recording.control == control).map(|(_, s)| s)
    }

    pub(crate) fn pictures(&self) -> &[String] {
        &self.pictures
    }

    /// The table and the verdict, as they are printed.
    pub(crate) fn description(&self, paint: Paint) -> String {
        summary::description(self, paint)
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        let setups = self.results.iter().map(|(recording, score)| {
            json!({
                "control": recording.control,
                "means": recording.means,
                "load": recording.load_percent as f64 / 100.0,
                "result": Numbers::from(score),
            })
        });
        json!({
            "kept": self.is_kept(),
            "excuse": self.excuse(),
            "scale_percent": self.plan.scale_percent,
            "budget_bytes_per_second": self.plan.budget.0,
            "disk_bytes_per_second": self.plan.disk.0,
            "machine": self.machine,
            "notes": self.notes,
            "setups": setups.collect::<Vec<_>>(),
            "report": self.report,
            "samples": self.samples,
        })
    }
}

/// Whether this user can have a disk in memory that is large enough.
pub(crate) fn has_memory_disk() -> bool {
    MemoryDisk::check(FileLayout::FIO.needed_mib(ExperimentPlan::NAMES.len())).is_ok()
}

/// Room for sockets, the controller's state and logs, in MiB.
const SCRATCH_MIB: u64 = 32;

/// Runs the experiment.
///
/// # Errors
/// If the machine lacks what it needs, something breaks, or the user ends it. Promises that are not
/// kept are no error here.
pub(crate) fn run(options: &Options) -> Result<DemoOutcome, Failure> {
    let interrupt = Interrupt::listen()?;
    let at_ms = clock::unix_ms();
    let form = Form::wanted(options.plain, options.json);
    let mut live = Live::new(form);
    fs::create_dir_all(&options.out).map_err(|error| unwritable(&options.out, error))?;
    let program = TenantProgram::find(options.workload)?;
    let needed_mib = program.layout().needed_mib(ExperimentPlan::NAMES.len());
    for removed in options.disk.remove_remains() {
        let text = format!("removed {}, which a run that was killed had left", removed.display());
        live.print(&text)?;
    }
    // Dropped after the test bed, whose files lie on it.
    let open_disk = options.disk.open(needed_mib, &interrupt)?;
    let directory = open_disk.path();
    let disk = Disk::below(directory);
    let machine = Machine::inspect(directory, &disk, program.name().into());
    live.print(&machine.description())?;
    live.print(&format!(
        "needs {needed_mib} MiB of room in {} ({}) and {SCRATCH_MIB} MiB in {} (TMPDIR)",
        directory.display(),
        options.disk.option(),
        std::env::temp_dir().display(),
    ))?;
    // Jobs compute as well, and their own load is no reason to lack a processor.
    let _priority_boost = (!program.reads_disk()).then(PriorityBoost::raise);
    let bench = Bench::prepare((options, directory), program, disk, &machine, interrupt)?;
    let Bench { testbed, probe, notes } = bench;
    live.print(&probe)?;
    for note in &notes {
        live.print(note)?;
    }
    let mut results = Vec::new();
    for control in Control::ALL {
        let recording = testbed.run(control, &mut live);
        let recording =
            recording.map_err(|failure| testbed.scratch.explained(failure, SCRATCH_MIB))?;
        live.ended(&recording)?;
        let score = Score::new(&testbed.plan, &recording);
        results.push((recording, score));
    }
    let plan = testbed.plan.clone();
    let workload = options.workload;
    let prefix = if workload == TenantWorkload::Torch { "training-" } else { "" };
    let [report, samples] =
        ["report.html", "samples.json"].map(|name| options.out.join(format!("{prefix}{name}")));
    let pictures = Vec::new();
    let mut outcome =
        DemoOutcome { workload, plan, machine, notes, results, report, samples, pictures };
    outcome.pictures = write(&outcome, at_ms, &probe)?;
    live.print(&format!("\n{}", outcome.description(Paint::stdout())))?;
    Ok(outcome)
}

/// The test bed, and the results of its preparation.
struct Bench {
    testbed: Testbed,
    /// The disk's rate by itself, in words.
    probe: String,
    notes: Vec<String>,
}

impl Bench {
    fn prepare(
        (options, directory): (&Options, &Path),
        program: TenantProgram,
        disk: Result<Disk, String>,
        machine: &Machine,
        interrupt: Interrupt,
    ) -> Result<Self, Failure> {
        let mut notes = Vec::new();
        match &options.repeats {
            Some(why) => notes.push(format!(
                "An earlier run, on a disk that others share, proved nothing: {why}."
            )),
            // After an earlier run, the load is that of this one.
            None => notes.extend(load_note(machine)),
        }
        let scratch = Scratch::with_space(SCRATCH_MIB)?;
        program.prepare(&scratch)?;
        // The kernel would write a build's output to the disk while the demo measures it.
        rustix::fs::sync();
        let names: Vec<&str> = ExperimentPlan::NAMES.to_vec();
        let files = Files::write(directory, &names, program.layout(), &interrupt)?;
        let (plan, probe, throttle) = if program.reads_disk() {
            let reader = DiskReader { files: &files, scratch: &scratch, interrupt: &interrupt };
            let (plan, measured) = reader.plan(options.seconds)?;
            notes.extend(plan.scale_note(measured));
            let probe =
                format!("The disk reads {} by itself, in its slowest second.", Mib(measured));
            let throttle = match (options.no_cgroups, disk) {
                (true, _) => Err("control groups were not wanted".into()),
                (false, Err(why)) => Err(why),
                (false, Ok(disk)) => reader.throttle(disk, plan.disk)?,
            };
            (plan, probe, throttle)
        } else {
            notes.extend(training::notes(&program));
            let plan = training::plan(options.seconds);
            let probe = format!("Capacity is given: {}, in place of a disk's.", Mib(plan.disk));
            (plan, probe, Err(training::NO_DISK.into()))
        };
        if let Err(why) = &throttle {
            notes
                .push(format!("Static limits are Tidegate's buckets and not the kernel's: {why}."));
        }
        let testbed = Testbed { program, plan, files, scratch, throttle, interrupt };
        testbed.rehearse()?;
        Ok(Self { testbed, probe, notes })
    }
}

/// A note on other load, if there is much of it.
fn load_note(machine: &Machine) -> Option<String> {
    let load = machine::load_percent();
    (load > 100 * machine.cores as u64).then(|| {
        format!(
            "This machine is busy: a load of {:.1} on {} before anything was started. Numbers of a \
             quiet machine are better.",
            load as f64 / 100.0,
            tidegate_console::amounts::plural(machine.cores as u64, "core"),
        )
    })
}

/// Measures the disk.
struct DiskReader<'a> {
    files: &'a Files,
    scratch: &'a Scratch,
    interrupt: &'a Interrupt,
}

impl DiskReader<'_> {
    /// The experiment for this disk, and the disk's rate by itself.
    fn plan(&self, seconds: u64) -> Result<(ExperimentPlan, Rate), Failure> {
        let [least, most] = PROBE_SECONDS;
        let time = Span(Span::SECOND.0 * seconds.clamp(least, most));
        let measured = self.read_for(time, BLOCK, None)?;
        let mut plan = ExperimentPlan::new(measured, seconds);
        // A disk that has to move its heads does better with large requests than with fine counts.
        if plan.block < BLOCK && self.read_for(PROBE_LIMITED, plan.block, None)? < plan.disk {
            plan.block = BLOCK;
        }
        Ok((plan, measured))
    }

    /// How fast the disk reads for four jobs with requests of `block` bytes, in a control group if
    /// one is named: in its slowest whole second, or in all of `time` if that has none.
    fn read_for(&self, time: Span, block: u64, group: Option<PathBuf>) -> Result<Rate, Failure> {
        let report_path = self.scratch.join("probe.json");
        let file = self.files.path(ExperimentPlan::NAMES[0]);
        let work = FioWork { name: "probe", file: &file, block, amount: Amount::Time(time) };
        let start = Start {
            name: "probe".into(),
            program: "fio".into(),
            arguments: fio::arguments(work, &report_path),
            group,
            ..Start::default()
        };
        let mut process = Child::start(&start, self.scratch.path())?;
        let (clock, mut witness) =
            (Clock::start(), Witness::new(process.pid(), CountedBytes::Disk));
        let mut slowest = SlowestSecond::default();
        while !process.has_ended().map_err(no_direct)? {
            slowest.sample(clock.now(), witness.sample().bytes);
            self.interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        let report = fio::read_report(&report_path)?;
        // The witness has missed the beginning and the end, but not most of it.
        if witness.sample().bytes < report.bytes / 2 {
            let why = "the kernel counts no reads of a disk for files in that directory";
            return Err(no_direct(Failure::new(Code::Failure, why)));
        }
        Ok(slowest.rate.map_or(report.rate, |rate| Rate(rate.0.min(report.rate.0))))
    }

    /// The kernel's limits on this disk, or why they are not used.
    fn throttle(&self, disk: Disk, limit: Rate) -> Result<Result<Throttle, String>, Failure> {
        let throttle = match Throttle::new(disk) {
            Ok(throttle) => throttle,
            Err(why) => return Ok(Err(why)),
        };
        let group = match throttle.group("probe", limit) {
            Ok(group) => group,
            Err(why) => return Ok(Err(why)),
        };
        let measured = self.read_for(PROBE_LIMITED, BLOCK, Some(group.processes()))?;
        drop(group);
        if measured.0 > limit.0 / 100 * LIMIT_PERCENT_MAX {
            let description = throttle.description();
            let why = format!("{description} lets through {} of {}", Mib(measured), Mib(limit));
            return Ok(Err(why));
        }
        Ok(Ok(throttle))
    }
}

/// The rate of the slowest whole second of a measurement, from the first bytes on.
#[derive(Debug, Default)]
struct SlowestSecond {
    /// When the running second began, and the bytes until then.
    second: Option<(Time, u64)>,
    rate: Option<Rate>,
}

impl SlowestSecond {
    /// Takes in the bytes of the whole measurement until `now`.
    fn sample(&mut self, now: Time, bytes: u64) {
        let Some((began, before)) = self.second else {
            self.second = (bytes > 0).then_some((now, bytes));
            return;
        };
        let passed = now.since(began);
        if passed < Span::SECOND {
            return;
        }
        let scaled = u128::from(bytes - before) * u128::from(Span::SECOND.0);
        let rate = Rate(u64::try_from(scaled / u128::from(passed.0)).unwrap_or(u64::MAX));
        self.rate = Some(self.rate.map_or(rate, |least| least.min(rate)));
        self.second = Some((now, bytes));
    }
}

fn no_direct(failure: Failure) -> Failure {
    failure.help(
        "name a directory on a real disk with --directory: the experiment reads past the page \
         cache (O_DIRECT), and file systems in memory are no disks",
    )
}

/// Writes the report and what it was made from, and returns the report's charts.
fn write(outcome: &DemoOutcome, at_ms: u64, probe: &str) -> Result<Vec<String>, Failure> {
    #[derive(Serialize)]
    struct Samples<'a> {
        plan: &'a ExperimentPlan,
        machine: &'a Machine,
        notes: &'a [String],
        recordings: Vec<&'a Recording>,
    }
    let DemoOutcome { plan, machine, notes, results, .. } = outcome;
    let report = ExperimentReport { plan, machine, at_ms, probe, notes, results };
    fs::write(&outcome.report, report.render())
        .map_err(|error| unwritable(&outcome.report, error))?;
    let recordings = results.iter().map(|(recording, _)| recording).collect();
    let samples = Samples { plan, machine, notes, recordings };
    let text = serde_json::to_string(&samples)
        .map_err(|error| Failure::new(Code::Failure, "cannot write JSON").cause(error))?;
    fs::write(&outcome.samples, text).map_err(|error| unwritable(&outcome.samples, error))?;
    Ok(report.drawn())
}

fn unwritable(path: &Path, error: std::io::Error) -> Failure {
    Failure::new(Code::Failure, format!("cannot write {}", path.display()))
        .cause(error)
        .help("say where the report may go with --out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_whole_second_counts() {
        let mut slowest = SlowestSecond::default();
        let mut bytes = 0;
        for step in 0..600 {
            slowest.sample(Time(step * 10 * Span::MILLISECOND.0), bytes);
            bytes += match step {
                0..50 => 0,
                50..250 => 100,
                250..400 => 60,
                _ => 80,
            };
        }
        assert_eq!(slowest.rate, Some(Rate(6_000)));
        let mut short = SlowestSecond::default();
        short.sample(Time(0), 1);
        short.sample(Time(Span::SECOND.0 - 1), 1 << 40);
        assert_eq!(short.rate, None);
    }
}
