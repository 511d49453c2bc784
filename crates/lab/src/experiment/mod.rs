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
//! latency of a key-value store. [`table3`] finds that such programs are unchanged. [`pshift`],
//! [`dsfq`], [`haechi`] and [`e2e`] have the experiments of the other papers, [`end_to_end`] the
//! demo of the whole way of a request, and [`verdict`] judges the claims of all of them.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use tidegate_console::clock;
use tidegate_console::failure::{Code, Failure};

pub(crate) mod cgroup;
mod chart;
pub(crate) mod child;
pub(crate) mod controller;
pub(crate) mod disk;
mod disk_reader;
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
pub(crate) mod note_line;
mod others;
pub(crate) mod pace;
mod packages;
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
pub(crate) mod remains;
mod report;
mod run_report;
mod score;
pub(crate) mod scratch;
mod setup;
pub(crate) mod stage_segment;
mod summary;
pub(crate) mod table3;
pub(crate) mod training;
pub(crate) mod verdict;
pub(crate) mod witness;

use disk::Disk;
use disk_reader::DiskReader;
use files::{FileLayout, Files};
use live::{Form, Live};
use live_verdict::LiveVerdict;
use machine::Machine;
use memory_disk::MemoryDisk;
use plan::{ExperimentPlan, Mib};
use quiet::PriorityBoost;
use recording::{Control, Recording};
use report::ExperimentReport;
use score::{Numbers, Score};
use scratch::Scratch;
use setup::Testbed;
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint};
use training::{TenantProgram, TenantWorkload};

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
            let file = &files.path(ExperimentPlan::NAMES[0]);
            let reader = DiskReader { file, scratch: &scratch, interrupt: &interrupt };
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
