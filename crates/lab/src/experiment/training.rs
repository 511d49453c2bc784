//! The programs of the tenants in PAIO's figure 10: fio, or training jobs in Python.
//!
//! A training job is `examples/python/train.py`, which reads shards of images with PyTorch's
//! loader, or with threads and NumPy, and knows nothing of Tidegate. Shards stay in the page cache,
//! so no disk and no neighbour of it decides what a run shows. The capacity that jobs share is then
//! a number that is given ([`SCALE_PERCENT`]), and not a disk's.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use tidegate_model::Span;

use super::child::Start;
use super::files::FileLayout;
use super::fio::{self, Amount, FioWork};
use super::plan::{ExperimentPlan, PlannedTenant};
use super::scratch::Scratch;
use super::witness::CountedBytes;
use tidegate_console::failure::{Code, Failure};

/// The program of a job.
const TRAIN: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python/train.py"));

/// Rates of training jobs, in per cent of the paper's: 200 MiB/s in all, for which two processors
/// read, unpack and train.
const SCALE_PERCENT: u64 = 20;

/// Bytes of a record of a shard.
const RECORD: u64 = 3073;

/// The shards of a job: whole records, some 2 MiB each.
const SHARDS: FileLayout = FileLayout::Shards { count: 8, bytes: 683 * RECORD };

/// Jobs share processors, so a reader may come late for its tokens. It loses none within this time;
/// with the default of 10 ms a job lost some 3 % on a busy machine.
const BURST: Span = Span(100 * Span::MILLISECOND.0);

/// How long the paper's experiment takes without control, in seconds.
pub(crate) const PAPER_SECONDS: u64 = 52 * 60;

/// Why the kernel does not limit training jobs.
pub(crate) const NO_DISK: &str =
    "files in the page cache reach no disk that the kernel could limit";

/// The user's choice of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TenantWorkload {
    /// fio, which reads past the page cache
    #[default]
    Fio,
    /// Training jobs in Python that read shards, with PyTorch if it is installed, else with NumPy
    Torch,
}

/// The program that every tenant runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TenantProgram {
    Fio { version: String },
    Training(Trainer),
}

/// A Python interpreter that can run training jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trainer {
    python: PathBuf,
    /// Releases of Python and of the library.
    framework: String,
}

impl TenantProgram {
    /// Finds the program.
    ///
    /// # Errors
    /// If it is not installed.
    pub(crate) fn find(workload: TenantWorkload) -> Result<Self, Failure> {
        match workload {
            TenantWorkload::Fio => Ok(Self::Fio { version: fio::version()? }),
            TenantWorkload::Torch => Trainer::find().map(Self::Training),
        }
    }

    /// Its name and release, for people.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Fio { version } => version,
            Self::Training(trainer) => &trainer.framework,
        }
    }

    pub(crate) const fn layout(&self) -> FileLayout {
        match self {
            Self::Fio { .. } => FileLayout::FIO,
            Self::Training(_) => SHARDS,
        }
    }

    pub(crate) const fn counted(&self) -> CountedBytes {
        match self {
            Self::Fio { .. } => CountedBytes::Disk,
            Self::Training(_) => CountedBytes::Calls,
        }
    }

    /// Whether runs depend on the speed of a disk.
    pub(crate) const fn reads_disk(&self) -> bool {
        matches!(self, Self::Fio { .. })
    }

    /// Writes what it needs into the directory for small files.
    pub(crate) fn prepare(&self, scratch: &Scratch) -> Result<(), Failure> {
        match self {
            Self::Fio { .. } => Ok(()),
            Self::Training(_) => fs::write(script(scratch), TRAIN).map_err(|error| {
                Failure::new(Code::Failure, "cannot write the training program").cause(error)
            }),
        }
    }

    /// How it is started for a tenant whose files are at `files`.
    pub(crate) fn start(
        &self,
        tenant: &PlannedTenant,
        block: u64,
        files: &Path,
        scratch: &Scratch,
    ) -> Start {
        let name = tenant.name;
        let report_path = report_path(name, scratch);
        match self {
            Self::Fio { .. } => {
                let amount = Amount::Bytes(tenant.work);
                let work = FioWork { name, file: files, block, amount };
                Start {
                    name: name.into(),
                    program: "fio".into(),
                    arguments: fio::arguments(work, &report_path),
                    ..Start::default()
                }
            }
            Self::Training(trainer) => {
                let passes = (tenant.work / SHARDS.bytes()).to_string();
                let started = self.started_path(name, scratch).unwrap_or_default();
                let arguments: [OsString; 8] = [
                    script(scratch).into(),
                    files.into(),
                    "--passes".into(),
                    passes.into(),
                    "--report".into(),
                    report_path.into(),
                    "--started".into(),
                    started.into(),
                ];
                Start {
                    name: name.into(),
                    program: trainer.python.clone().into(),
                    arguments: arguments.into(),
                    environment: quiet_environment(),
                    group: None,
                }
            }
        }
    }

    /// The file that appears before a tenant's first read, where that is long after its start: an
    /// import of PyTorch takes seconds.
    pub(crate) fn started_path(&self, tenant: &str, scratch: &Scratch) -> Option<PathBuf> {
        match self {
            Self::Fio { .. } => None,
            Self::Training(_) => Some(scratch.join(&format!("{tenant}.started"))),
        }
    }

    /// The bytes that a tenant has read, as it reports.
    pub(crate) fn reported_bytes(&self, tenant: &str, scratch: &Scratch) -> Result<u64, Failure> {
        let path = report_path(tenant, scratch);
        match self {
            Self::Fio { .. } => fio::read_report(&path).map(|report| report.bytes),
            Self::Training(_) => {
                let text = fs::read_to_string(path).unwrap_or_default();
                let report: Result<TrainingReport, _> = serde_json::from_str(&text);
                report.map(|report| report.bytes).map_err(|error| {
                    Failure::new(Code::Failure, "a training job's report cannot be read")
                        .cause(error)
                })
            }
        }
    }
}

/// The report of a training job, as far as it is read here.
#[derive(Deserialize)]
struct TrainingReport {
    bytes: u64,
}

fn report_path(tenant: &str, scratch: &Scratch) -> PathBuf {
    scratch.join(&format!("{tenant}.json"))
}

fn script(scratch: &Scratch) -> PathBuf {
    scratch.join("train.py")
}

/// One thread for arithmetic in each job: idle threads of four jobs would spin on two processors.
fn quiet_environment() -> Vec<(OsString, OsString)> {
    let names = ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"];
    names.map(|name| (name.into(), "1".into())).into()
}

impl Trainer {
    /// The interpreter of `PATH`, or the system's; one with PyTorch before one with NumPy.
    fn find() -> Result<Self, Failure> {
        let candidates = ["python3", "/usr/bin/python3"];
        let mut found: Vec<Self> = candidates.into_iter().filter_map(Self::of).collect();
        found.sort_by_key(|trainer| !trainer.framework.contains("PyTorch"));
        found.into_iter().next().ok_or_else(|| {
            Failure::new(Code::Failure, "no python3 here has PyTorch or NumPy")
                .help("install one of them, for example with `apt-get install python3-numpy`")
        })
    }

    fn of(python: &str) -> Option<Self> {
        let mut command = Command::new(python);
        command.args(["-c", TRAIN, "--version"]).stdin(Stdio::null());
        let output = command.output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8(output.stdout).ok()?;
        let (python, framework) = text.trim().split_once('\n')?;
        Some(Self { python: python.into(), framework: framework.into() })
    }
}

/// The experiment with training jobs, with set-ups of `seconds`.
pub(crate) fn plan(seconds: u64) -> ExperimentPlan {
    let plan = ExperimentPlan::scaled(SCALE_PERCENT, seconds).with_work_in(SHARDS.bytes());
    ExperimentPlan { burst: Some(BURST), ..plan }
}

/// Notes for readers of the numbers.
pub(crate) fn notes(program: &TenantProgram) -> Vec<String> {
    vec![
        format!(
            "Tenants are training jobs ({}) that read shards of images from the page cache. A job \
             counts from its first shard on, and bytes are those that its reads return.",
            program.name()
        ),
        format!(
            "SCALED to {SCALE_PERCENT} % of the paper's rates, so that processors are enough for \
             all jobs"
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_whole_passes_over_the_shards() {
        let planned = plan(60);
        let passes: Vec<u64> = planned
            .tenants
            .iter()
            .map(|tenant| {
                assert_eq!(tenant.work % SHARDS.bytes(), 0);
                tenant.work / SHARDS.bytes()
            })
            .collect();
        // In proportion to the paper's 6, 5, 5 and 4 epochs.
        assert_eq!(passes, [224, 187, 187, 149]);
        assert!(plan(1).tenants.iter().all(|tenant| tenant.work >= SHARDS.bytes()));
    }

    #[test]
    fn a_job_is_an_ordinary_command_and_its_report_is_read() {
        let trainer = Trainer { python: "/usr/bin/python3".into(), framework: "NumPy".into() };
        let program = TenantProgram::Training(trainer);
        let scratch = Scratch::new().unwrap();
        program.prepare(&scratch).unwrap();
        let planned = plan(60);
        let start = program.start(&planned.tenants[3], 0, Path::new("/d/I4"), &scratch);
        let folder = scratch.path().display().to_string();
        let line = fio::command_line([&start.program].into_iter().chain(&start.arguments));
        assert_eq!(
            line.replace(&folder, "DIR"),
            "/usr/bin/python3 DIR/train.py /d/I4 --passes 149 --report DIR/I4.json \
             --started DIR/I4.started"
        );
        assert!(start.environment.contains(&("OMP_NUM_THREADS".into(), "1".into())));
        let reported = || program.reported_bytes("I4", &scratch);
        assert!(reported().unwrap_err().to_string().contains("report cannot be read"));
        fs::write(scratch.join("I4.json"), "{\"bytes\": 12, \"loss\": null}\n").unwrap();
        assert_eq!(reported().unwrap(), 12);
        let fio = TenantProgram::Fio { version: "fio-3.33".into() };
        assert_eq!(
            fio.start(&planned.tenants[0], 1 << 20, Path::new("f"), &scratch).program,
            "fio"
        );
        assert_eq!((fio.started_path("I1", &scratch), fio.layout().needed_mib(4)), (None, 960));
    }
}
