//! PAIO table 3: the lines that are changed of a program so that its I/O is controlled.
//!
//! The paper adds 85 lines to RocksDB, which distinguish flushes and compactions and hand them to a
//! stage, and none to TensorFlow. Here both use cases run programs as the distribution has them. It
//! is found out while they run under `tidegate run`: each file of code that the process has in its
//! memory is a package's, byte for byte, or the shim; no word of its command line names Tidegate;
//! and Tidegate has counted the requests that the lines are for.
//!
//! ```text
//!   tidegate run ── db_bench ──▶ /proc/<pid>: exe, cmdline, maps ──▶ packages' sums
//!        │
//!        └─▶ report: bytes of each kind of request
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint};
use tidegate_console::programs;
use tidegate_console::table::{Cell, Table};
use tidegate_model::Span;

use super::child::{self, Child, Start, tree};
use super::files::Files;
use super::packages::{FileSource, sources};
use super::paper::{ClaimSource, LIVE, tenths, timed};
use super::run_report;
use super::scratch::Scratch;
use super::training::{self, TenantProgram, TenantWorkload};
use super::verdict::{Check, Claim, at_least, at_most, between};

/// Lines that the paper adds to RocksDB, and to TensorFlow.
const PAPER_LINES: [f64; 2] = [85.0, 0.0];

/// The channels of the profile for kinds of work that the paper's lines distinguish.
const KINDS: [&str; 3] = ["flush", "compaction-l0", "compaction-deep"];

/// How often to see what a process has in its memory.
const POLL_INTERVAL: Span = Span(5 * Span::MILLISECOND.0);

/// The program of the first use case.
const BENCHMARK: &str = "db_bench";

/// 16 MB of keys and values in files of 256 kB: compactions of two kinds happen within a second.
const LOAD: [&str; 9] = [
    "--benchmarks=fillrandom,waitforcompaction",
    "--num=60000",
    "--key_size=16",
    "--value_size=256",
    "--write_buffer_size=262144",
    "--target_file_size_base=262144",
    "--max_bytes_for_level_base=1048576",
    "--compression_type=none",
    "--seed=1",
];

/// No request is held up for long: only what is counted matters.
const BUDGET: &str = "--budget=2GiB/s";

/// A policy for a training job.
const JOB: &str = "\
budget = \"2GiB/s\"
[[tenant]]
name = \"job\"
[[match]]
tenant = \"job\"
";

/// The observations of a program that ran under `tidegate run`.
#[derive(Clone, Debug, Default, PartialEq)]
struct UnchangedRun {
    /// The words of its command line, without folders of ours.
    words: Vec<String>,
    /// The files of code that were in its memory, the program itself among them.
    code: BTreeMap<PathBuf, FileSource>,
    /// The shim's file is not the program's.
    shim: PathBuf,
    /// Bytes of each channel.
    channels: BTreeMap<String, u64>,
}

/// A run, or why there is none.
type RunOrMissing = Result<UnchangedRun, String>;

impl UnchangedRun {
    fn files(&self, is_it: impl Fn(&FileSource) -> bool) -> Vec<String> {
        let is_own =
            |(file, source): &(&PathBuf, &FileSource)| **file != self.shim && is_it(source);
        let own = self.code.iter().filter(is_own);
        own.map(|(file, _)| file.display().to_string()).collect()
    }

    fn changed(&self) -> Vec<String> {
        self.files(|source| matches!(source, FileSource::Changed(_)))
    }

    /// Why nothing can be said about changed lines, if that is so.
    fn unknown(&self) -> Option<String> {
        let unknown = self.files(|source| *source == FileSource::Unknown);
        let has_program = !self.words.is_empty() && !self.code.is_empty();
        match (has_program, unknown.is_empty()) {
            (false, _) => Some("the program ended before it was seen".into()),
            (true, false) => Some(format!(
                "no package of this system has {}, so nothing is known to compare with",
                unknown.join(", ")
            )),
            (true, true) => None,
        }
    }

    /// Words of the command line that name Tidegate.
    fn naming_words(&self) -> Vec<&String> {
        let names = |word: &&String| word.to_ascii_lowercase().contains("tidegate");
        self.words.iter().filter(names).collect()
    }

    fn packages(&self) -> BTreeSet<&str> {
        let sources = self.code.values();
        let packages = sources.filter_map(|source| match source {
            FileSource::Package(name) => Some(name.as_str()),
            FileSource::Changed(_) | FileSource::Unknown => None,
        });
        packages.collect()
    }

    /// Changed lines: none where no file is changed. Of a changed file they cannot be counted.
    fn lines(&self) -> Option<f64> {
        (self.unknown().is_none() && self.changed().is_empty()).then_some(0.0)
    }

    fn checks(&self, paper_lines: f64) -> Vec<Check> {
        let changed = self.changed();
        let mut checks =
            vec![at_most("files of code that are changed", "", 0.0, changed.len() as f64)];
        if changed.is_empty() {
            checks.push(between("lines changed", "", [0.0, paper_lines], self.lines()));
        }
        let words = self.naming_words().len() as f64;
        checks.push(at_most("words of its command line that name Tidegate", "", 0.0, words));
        checks
    }

    fn measured(&self) -> Map<String, Value> {
        let measured = json!({
            "lines_changed": self.lines(),
            "command_line": self.words,
            "files_of_code": self.code.len(),
            "files_changed": self.changed(),
            "packages": self.packages(),
            "bytes": self.channels,
        });
        if let Value::Object(measured) = measured { measured } else { Map::new() }
    }
}

/// Runs both programs with files in `directory`, and judges. Returns claims and the table, which is
/// printed if it is to be.
///
/// # Errors
/// If something breaks, or the user ends the command.
pub(crate) fn run(directory: &Path, is_printed: bool) -> Result<(Vec<Claim>, String), Failure> {
    let interrupt = Interrupt::listen()?;
    let folders = || Folders::new(directory);
    let (store, store_seconds) = timed(|| store(&folders()?, &interrupt));
    let (job, job_seconds) = timed(|| job(&folders()?, &interrupt));
    let (store, job) = (store?, job?);
    let claims = vec![of_store(&store, store_seconds), of_job(&job, job_seconds)];
    let table = table(&store, &job.map(|(run, _)| run));
    if is_printed {
        output::print(&format!("{}\n", table.render(Paint::stdout(), usize::MAX)))?;
    }
    Ok((claims, table.render(Paint::none(), usize::MAX)))
}

/// Folders of a run.
struct Folders {
    /// The files of the program: on a disk, because Tidegate leaves files in memory alone.
    data: Scratch,
    /// Outputs, and the state of `tidegate run`.
    scratch: Scratch,
}

impl Folders {
    fn new(directory: &Path) -> Result<Self, Failure> {
        let data = Scratch::within(directory, "tgd-").map_err(|error| {
            let what = format!("cannot make a directory in {}", directory.display());
            Failure::new(Code::Failure, what).cause(error)
        })?;
        Ok(Self { data, scratch: Scratch::new()? })
    }

    /// The words of a command line, in which paths below these folders are cut: their names are
    /// ours.
    fn words(&self, line: &str) -> Vec<String> {
        let folders = [&self.data, &self.scratch].map(|one| one.path().to_string_lossy());
        words(line, &folders.each_ref().map(|one| &**one))
    }
}

/// RocksDB's own benchmark under the profile.
fn store(folders: &Folders, interrupt: &Interrupt) -> Result<RunOrMissing, Failure> {
    let Some(program) = child::in_path(BENCHMARK) else {
        return Ok(Err(format!(
            "{BENCHMARK} is not here; install it, for example with `apt-get install rocksdb-tools`"
        )));
    };
    let mut folder = OsString::from("--db=");
    folder.push(folders.data.join("store"));
    let start = Start {
        name: BENCHMARK.into(),
        program: program.clone().into(),
        arguments: [folder].into_iter().chain(LOAD.map(OsString::from)).collect(),
        ..Start::default()
    };
    let options = ["--profile=lsm", BUDGET].map(OsString::from);
    under_tidegate(start, &options, &program, folders, interrupt)
}

/// A training job, and the bytes that it says it has read.
fn job(
    folders: &Folders,
    interrupt: &Interrupt,
) -> Result<Result<(UnchangedRun, u64), String>, Failure> {
    let program = match TenantProgram::find(TenantWorkload::Torch) {
        Ok(program) => program,
        Err(failure) => return Ok(Err(failure.to_line())),
    };
    let Folders { data, scratch } = folders;
    program.prepare(scratch)?;
    let plan = training::plan(1);
    let tenant = &plan.tenants[0];
    let files = Files::write(data.path(), &[tenant.name], program.layout(), interrupt)?;
    let start = program.start(tenant, 0, &files.path(tenant.name), scratch);
    let policy = scratch.join("job.toml");
    fs::write(&policy, JOB)
        .map_err(|error| Failure::new(Code::Failure, "cannot write a policy").cause(error))?;
    let interpreter = PathBuf::from(&start.program);
    let mut profile = OsString::from("--profile=");
    profile.push(&policy);
    match under_tidegate(start, &[profile], &interpreter, folders, interrupt)? {
        Ok(run) => Ok(Ok((run, program.reported_bytes(tenant.name, scratch)?))),
        Err(why) => Ok(Err(why)),
    }
}

/// Runs a program under `tidegate run` with these options to its end, and sees what it is.
fn under_tidegate(
    start: Start,
    options: &[OsString],
    program: &Path,
    folders: &Folders,
    interrupt: &Interrupt,
) -> Result<RunOrMissing, Failure> {
    let scratch = &folders.scratch;
    let found = programs::tidegate().and_then(|path| programs::shim().map(|shim| (path, shim)));
    let (tidegate, shim) = match found {
        Ok(found) => found,
        Err(failure) => return Ok(Err(failure.to_line())),
    };
    let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let words = ["--json", "run"].map(OsString::from).into_iter().chain(options.iter().cloned());
    let words = words.chain(["--fail-closed", "--report", "--"].map(OsString::from));
    let mut start = start.started_by(tidegate.into(), words);
    start.environment.push(("TIDEGATE_STATE".into(), scratch.join("state").into()));
    let mut child = Child::start(&start, scratch.path())?;
    let (clock, program) = (Clock::start(), whole(program));
    let (mut words, mut code) = (Vec::new(), BTreeSet::new());
    while !child.has_ended()? {
        for pid in tree(child.pid()).into_iter().filter(|pid| is_program(*pid, &program)) {
            code.extend(mapped_code(&read(pid, "maps")));
            let line = read(pid, "cmdline");
            if !line.is_empty() {
                words = folders.words(&line);
            }
        }
        interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
    }
    let stderr = scratch.join(&format!("{}.stderr", start.name));
    let channels = run_report::channels(&fs::read_to_string(stderr).unwrap_or_default());
    let code: Vec<PathBuf> = code.into_iter().collect();
    Ok(Ok(UnchangedRun { words, code: sources(&code)?, shim: whole(&shim), channels }))
}

fn read(pid: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

fn is_program(pid: u32, program: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
}

/// The files of code in a list of mappings.
fn mapped_code(maps: &str) -> BTreeSet<PathBuf> {
    let file = |line: &str| {
        let is_code = line.split(' ').nth(1)?.contains('x');
        line.find('/').filter(|_| is_code).map(|at| PathBuf::from(&line[at..]))
    };
    maps.lines().filter_map(file).collect()
}

/// The words of a command line, in which paths below these folders are cut.
fn words(line: &str, folders: &[&str]) -> Vec<String> {
    let cut = |word: &str| {
        let before = folders.iter().find_map(|folder| word.split_once(folder)).map(|cut| cut.0);
        before.map_or(word.to_owned(), |before| format!("{before}DIR"))
    };
    line.trim_end_matches('\0').split('\0').map(cut).collect()
}

fn claim(text: &str, seconds: f64, measured: Map<String, Value>, checks: Vec<Check>) -> Claim {
    let (paper, figure) = ("paio", "table3");
    let source = ClaimSource { paper, figure, world: LIVE, seed: None, seconds };
    source.claim(text, measured.into(), checks)
}

/// How many kinds of work have bytes of their own.
fn kinds(run: &UnchangedRun) -> usize {
    KINDS.iter().filter(|kind| run.channels.get(**kind).is_some_and(|bytes| *bytes > 0)).count()
}

fn of_store(run: &RunOrMissing, seconds: f64) -> Claim {
    let text = "RocksDB's flushes and compactions are distinguished with few changed lines (the \
                paper: 85), and here with none";
    let run = match run {
        Ok(run) => run,
        Err(why) => return claim(text, seconds, Map::new(), vec![]).skipped(Some(why.as_str())),
    };
    let mut checks = run.checks(PAPER_LINES[0]);
    let what = "kinds of background work that are distinguished";
    checks.push(at_least(what, "", KINDS.len() as f64, kinds(run) as f64));
    claim(text, seconds, run.measured(), checks).skipped(run.unknown().as_deref())
}

fn of_job(run: &Result<(UnchangedRun, u64), String>, seconds: f64) -> Claim {
    let text = "the reads of a training job are controlled without a changed line";
    let (run, reported) = match run {
        Ok((run, reported)) => (run, *reported),
        Err(why) => return claim(text, seconds, Map::new(), vec![]).skipped(Some(why.as_str())),
    };
    let mut checks = run.checks(PAPER_LINES[1]);
    let counted = run.channels.get("job").copied().unwrap_or(0);
    let percent = (reported > 0).then(|| counted as f64 * 100.0 / reported as f64);
    checks.push(at_least("bytes that Tidegate counts, of those it reads", "%", 100.0, percent));
    let mut measured = run.measured();
    measured.insert("reported_bytes".into(), reported.into());
    measured.insert("counted_percent".into(), json!(percent.map(tenths)));
    claim(text, seconds, measured, checks).skipped(run.unknown().as_deref())
}

fn table(store: &RunOrMissing, job: &RunOrMissing) -> Table {
    let mut table = Table::new().left("PROGRAM").each_right([
        "LINES CHANGED",
        "IN THE PAPER",
        "FILES OF CODE",
        "CHANGED",
        "PACKAGES",
    ]);
    let rows = [("RocksDB", store, PAPER_LINES[0]), ("training job", job, PAPER_LINES[1])];
    for (name, run, paper) in rows {
        let Ok(run) = run else { continue };
        let lines = run.lines().map_or("-".into(), |lines| lines.to_string());
        let numbers = [run.code.len(), run.changed().len(), run.packages().len()];
        let mut cells = vec![Cell::from(name), lines.into(), paper.to_string().into()];
        cells.extend(numbers.map(|number| Cell::from(number.to_string())));
        table.row(cells);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::verdict::Verdict;

    fn unchanged() -> UnchangedRun {
        let package = |name: &str| FileSource::Package(name.into());
        let code = [
            ("/usr/bin/db_bench", package("rocksdb-tools")),
            ("/usr/lib/librocksdb.so.7.8.3", package("librocksdb7.8")),
            ("/opt/shim.so", FileSource::Unknown),
        ];
        UnchangedRun {
            words: vec!["db_bench".into(), "--db=DIR".into()],
            code: code.map(|(file, source)| (PathBuf::from(file), source)).into(),
            shim: "/opt/shim.so".into(),
            channels: KINDS.map(|kind| (kind.to_owned(), 1)).into(),
        }
    }

    fn with(source: FileSource) -> UnchangedRun {
        let mut run = unchanged();
        run.code.insert("/usr/lib/librocksdb.so.7.8.3".into(), source);
        run
    }

    fn verdict(run: UnchangedRun) -> Verdict {
        of_store(&Ok(run), 1.0).verdict
    }

    #[test]
    fn lines_are_counted_only_where_every_file_is_a_packages() {
        let claim = of_store(&Ok(unchanged()), 1.0);
        assert_eq!(claim.verdict, Verdict::Reproduced);
        assert_eq!(claim.measured["lines_changed"], json!(0.0));
        assert_eq!(claim.measured["packages"], json!(["librocksdb7.8", "rocksdb-tools"]));
        let changed = with(FileSource::Changed("librocksdb7.8".into()));
        assert_eq!(verdict(changed), Verdict::NotReproduced);
        let own = of_store(&Ok(with(FileSource::Unknown)), 1.0);
        assert_eq!(own.verdict, Verdict::Skipped);
        assert!(own.reason.unwrap().contains("no package of this system has /usr/lib/librocksdb"));
        assert_eq!(verdict(UnchangedRun::default()), Verdict::Skipped, "it was not seen");
        let missing = of_store(&Err("no db_bench".into()), 1.0);
        assert_eq!(missing.verdict, Verdict::Skipped);
        assert_eq!(missing.reason.as_deref(), Some("no db_bench"));
    }

    #[test]
    fn a_program_that_names_tidegate_or_of_which_kinds_are_missing_does_not_count() {
        let mut run = unchanged();
        run.words.push("--fs_uri=tidegate://".into());
        assert_eq!(verdict(run), Verdict::NotReproduced);
        let mut run = unchanged();
        run.channels.insert("compaction-deep".into(), 0);
        assert_eq!(verdict(run), Verdict::Differs);
    }

    #[test]
    fn all_that_a_training_job_reads_is_counted() {
        let of = |counted: u64| {
            let mut run = unchanged();
            run.channels = [("job".to_owned(), counted)].into();
            of_job(&Ok((run, 1_000)), 1.0).verdict
        };
        let expected = [Verdict::Reproduced, Verdict::Differs, Verdict::NotReproduced];
        assert_eq!([1_000, 600, 0].map(of), expected);
    }

    #[test]
    fn a_row_is_of_a_program_that_ran() {
        let text = |job| table(&Ok(unchanged()), &job).render(Paint::none(), usize::MAX);
        assert_eq!(text(Ok(unchanged())).lines().count(), 3);
        let one = text(Err("no python3".into()));
        assert_eq!(one.lines().count(), 2, "{one}");
        assert!(one.contains("RocksDB") && one.contains("85"), "{one}");
    }

    #[test]
    fn code_and_words_of_a_process_are_read() {
        let maps = "5500-5600 r-xp 00000000 fe:00 12   /usr/bin/db_bench\n\
                    5600-5700 rw-p 00000000 fe:00 12   /usr/bin/db_bench\n\
                    7f00-7f01 r-xp 00000000 00:00 0    [vdso]\n\
                    7f02-7f03 r--p 00000000 fe:00 13   /usr/lib/locale/a b\n\
                    7f04-7f05 r-xp 00000000 fe:00 14   /usr/lib/a b.so\n";
        let expected = ["/usr/bin/db_bench", "/usr/lib/a b.so"].map(PathBuf::from);
        assert_eq!(mapped_code(maps), expected.into());
        let line = "db_bench\0--db=/tmp/tgd-1/tidegate\0/var/x\0-v\0";
        let words = words(line, &["/var", "/tmp/tgd-1"]);
        assert_eq!(words, ["db_bench", "--db=DIR", "DIR", "-v"]);
        assert!(is_program(std::process::id(), &std::env::current_exe().unwrap()));
    }
}
