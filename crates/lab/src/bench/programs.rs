//! The overhead of Tidegate for whole programs that no policy limits. Each program runs alone and
//! under `tidegate run`, in turns, on the same files, many times.
//!
//! A controller is started with a policy of one tenant without limits: every request is classified
//! and counted, and none waits. Under it, `tidegate run` keeps a stage open for a shell that only
//! waits. A runner (`runner.c`) starts the programs: once without anything, once with the two
//! variables that `tidegate run` gave the shell, which is all that makes a program a part of that
//! stage. So the start of `tidegate run` itself is in no ratio; it is a row of its own.
//!
//! The ratio of a pair of runs that follow each other is less disturbed by a busy machine than
//! either of them, and the median of many ratios less than each. A pair's order alternates. Of a
//! run counts the time from its start to its end, and in a row of its own the processor time, which
//! a busy machine disturbs less: where programs only compute more, both ratios are the same.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tidegate_model::{Span, Time};
use tidegate_stage::Stage;
use tidegate_stage::segment::VARIABLE;

use super::Row;
use super::child::{self, compile};
use super::sample::Median;
use super::window::{BUSY, WindowPlan};
use crate::experiment::child::{Child, Start};
use crate::experiment::controller::Controller;
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::programs;

const BENCH: &str = "programs";
/// How much longer a program may run.
const RATIO: f64 = 1.02;
const TENANT: &str = "free";
/// A policy without limits.
const FREE: &str = "[[tenant]]\nname = \"free\"\n";
/// Pairs of runs of a program: at least, and until the promise is kept for certain, at most
/// so many and for so long.
const PAIRS_MIN: usize = 9;
const PAIRS_MAX: usize = 41;
const PATIENCE: Span = Span(12 * Span::SECOND.0);
/// The same where it is only to be seen that everything works.
const PAIRS_QUICK: usize = 2;
/// Starts are short.
const STARTS: usize = 21;
/// How long `tidegate run` may take until its shell prints its arguments.
const START: Span = Span(10 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(5 * Span::MILLISECOND.0);
/// Why there is no verdict.
const UNCERTAIN: &str = "too few or too different runs to be certain";
/// Between the words of a command, for the runner.
const BETWEEN: &str = "\u{1f}";

/// A program, and what it does, in its directory.
struct BenchProgram {
    name: &'static str,
    what: &'static str,
    command: &'static [&'static str],
    /// The files and folders that the program makes, removed before each run: a file system that
    /// finds a file replaced may write it to the disk at once, and the program would wait for it.
    makes: &'static [&'static str],
}

const PROGRAMS: [BenchProgram; 12] = [
    BenchProgram {
        name: "fio",
        what: "read and write 512 MiB by 16 KiB at random",
        command: &[
            "fio",
            "--name=work",
            "--filename=data",
            "--size=64M",
            "--rw=randrw",
            "--bs=16k",
            "--io_size=512M",
            "--ioengine=psync",
            "--invalidate=0",
            "--fallocate=none",
        ],
        makes: &[],
    },
    BenchProgram {
        name: "cp",
        what: "a file of 256 MiB",
        command: &["cp", "--reflink=never", "data", "copy"],
        makes: &["copy"],
    },
    BenchProgram {
        name: "tar",
        what: "4,000 files of 32 KiB into an archive",
        command: &["tar", "cf", "all.tar", "tree"],
        makes: &["all.tar"],
    },
    BenchProgram {
        name: "dd",
        what: "a file of 256 MiB by 64 KiB",
        command: &["dd", "if=data", "of=copy", "bs=64k"],
        makes: &["copy"],
    },
    BenchProgram {
        name: "rsync",
        what: "2,000 files of 32 KiB",
        command: &["rsync", "-a", "tree/", "copy/"],
        makes: &["copy"],
    },
    BenchProgram {
        name: "sqlite3",
        what: "40,000 rows: insert, index, update, delete, vacuum",
        command: &["sqlite3", "work.db", ".read script"],
        makes: &["work.db"],
    },
    BenchProgram {
        name: "git",
        what: "check out 2,000 files of 32 KiB",
        command: &["git", "-C", "tree", "checkout-index", "-q", "-a", "--prefix=../copy/"],
        makes: &["copy"],
    },
    BenchProgram {
        name: "python3",
        what: "copy and hash 64 MiB by 64 KiB, write and read 1,000 small files",
        command: &["python3", "work.py"],
        makes: &["copy", "small"],
    },
    BenchProgram {
        name: "java",
        what: "copy 128 MiB by 64 KiB, read it by 16 KiB",
        command: &["java", "-cp", ".", "Work"],
        makes: &["copy"],
    },
    BenchProgram {
        name: "node",
        what: "copy 128 MiB by 64 KiB, with calls that wait and with streams",
        command: &["node", "work.js"],
        makes: &["copy", "streamed"],
    },
    BenchProgram {
        name: "qemu-img",
        what: "256 MiB from raw to qcow2",
        command: &["qemu-img", "convert", "-f", "raw", "-O", "qcow2", "data", "copy.qcow2"],
        makes: &["copy.qcow2"],
    },
    BenchProgram {
        name: "db_bench",
        what: "fill with 50,000 keys and read them",
        command: &["db_bench", "--benchmarks=fillrandom,readrandom", "--num=50000", "--db=db"],
        makes: &["db"],
    },
];

/// A directory below the working directory: the one for temporary files is often in memory, which
/// the shim does not count as storage.
fn work_directory() -> io::Result<Scratch> {
    Scratch::within(&std::env::current_dir()?, ".tidegate-bench-programs-")
}

/// How long a run took, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RunTime {
    wall: f64,
    processor: f64,
}

impl RunTime {
    fn parse(answer: &str) -> Result<Self, String> {
        let mut words = answer.split(' ').map(str::parse);
        match (words.next(), words.next()) {
            (Some(Ok(wall)), Some(Ok(processor))) => Ok(Self { wall, processor }),
            _ => Err(format!("it failed ({answer})")),
        }
    }
}

/// Two runs of one program.
#[derive(Clone, Copy, Debug)]
struct ProgramPair {
    bare: RunTime,
    gated: RunTime,
}

/// Which of a run's times.
type Metric = fn(&RunTime) -> f64;

impl ProgramPair {
    fn ratio(&self, part: Metric) -> f64 {
        part(&self.gated) / part(&self.bare)
    }
}

/// A command, whether it runs in the stage, and the files and folders that it makes.
#[derive(Clone, Copy)]
struct GatedCommand<'a> {
    command: &'a [&'a str],
    is_gated: bool,
    makes: &'a [&'a str],
}

/// A stage under a controller that runs on while programs come and go.
struct ProgramTestbed<'a> {
    runner: child::Child,
    segment: Stage,
    work_directory: Scratch,
    /// The shell that `tidegate run` started, and whose stage `segment` belongs to. Fields drop in
    /// the order of their declaration: the shell ends before the controller.
    _shell: Child,
    controller: Controller,
    _scratch: Scratch,
    interrupt: &'a Interrupt,
}

impl<'a> ProgramTestbed<'a> {
    fn make(shim: &Path, interrupt: &'a Interrupt) -> Result<Self, String> {
        let text = |failure: Failure| failure.to_string();
        let program = compile("cc", include_str!("runner.c"), &["-x", "c", "-O2"], &[])?;
        let work_directory = work_directory().map_err(|error| format!("no files here: {error}"))?;
        let scratch = Scratch::new().map_err(text)?;
        let controller =
            Controller::start("controller", FREE, &scratch, interrupt).map_err(text)?;
        let (shell, segment) = shell(&controller, &scratch, interrupt).map_err(text)?;
        let runner =
            program.start(&[shim.as_os_str(), VARIABLE.as_ref(), segment.as_os_str()], &[])?;
        let segment = Stage::attach(&segment).map_err(|error| format!("no segment: {error}"))?;
        Ok(Self {
            runner,
            segment,
            work_directory,
            _shell: shell,
            controller,
            _scratch: scratch,
            interrupt,
        })
    }

    /// Runs a command in `directory`, without files and folders of the run before.
    fn run(&mut self, directory: &Path, job: GatedCommand<'_>) -> Result<RunTime, String> {
        for made in job.makes {
            let path = directory.join(made);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
        let how = if job.is_gated { "+" } else { "-" };
        let directory = directory.to_str().ok_or("the working directory's name is no text")?;
        let words = [how, directory].into_iter().chain(job.command.iter().copied());
        let line = words.collect::<Vec<_>>().join(BETWEEN);
        self.interrupt.check().map_err(|failure| failure.to_string())?;
        RunTime::parse(&self.runner.query(&line).ok_or("the runner has ended")?)
    }

    /// Runs two commands in turns: of two pairs that follow each other, one begins with the second.
    fn pair(
        &mut self,
        directory: &Path,
        [bare, gated]: [GatedCommand<'_>; 2],
        number: usize,
    ) -> Result<ProgramPair, String> {
        if number % 2 == 1 {
            let gated = self.run(directory, gated)?;
            return Ok(ProgramPair { bare: self.run(directory, bare)?, gated });
        }
        let bare = self.run(directory, bare)?;
        Ok(ProgramPair { bare, gated: self.run(directory, gated)? })
    }

    /// Bytes that have passed the stage's gates.
    fn passed(&self) -> u64 {
        let channels = self.segment.layout().channels.iter();
        channels.map(|channel| channel.passed.bytes()).sum()
    }

    /// Pairs of runs of one program, as many as it takes to be sure.
    fn pairs(
        &mut self,
        program: &BenchProgram,
        plan: WindowPlan,
    ) -> Result<Vec<ProgramPair>, String> {
        let directory = self.work_directory.join(program.name);
        let made = prepare(program.name, &directory);
        let mut pairs = Vec::new();
        let job =
            |is_gated| GatedCommand { command: program.command, is_gated, makes: program.makes };
        // Not counted: it fills caches and makes the files that later runs write anew.
        let begin = made.and_then(|()| self.run(&directory, job(false)));
        let before = self.passed();
        let clock = Clock::start();
        let wanted = if plan.is_full() { PAIRS_MIN..PAIRS_MAX } else { PAIRS_QUICK..PAIRS_QUICK };
        let mut measured = begin.map(|_| ());
        while measured.is_ok() {
            let is_enough = pairs.len() >= wanted.start
                && (is_kept(&pairs) || pairs.len() >= wanted.end || clock.now() > after(PATIENCE));
            if is_enough {
                break;
            }
            let pair = self.pair(&directory, [job(false), job(true)], pairs.len());
            measured = pair.map(|pair| pairs.push(pair));
        }
        // The next program is to have the memory for its own files.
        let _ = fs::remove_dir_all(&directory);
        measured?;
        match self.passed() > before {
            true => Ok(pairs),
            false => Err("the shim gated nothing: is the working directory in memory?".into()),
        }
    }

    /// Measures the cost of a start: of `tidegate run` itself, and of a program in its stage.
    fn starts(&mut self, report: &mut dyn FnMut(Row)) -> Result<(), String> {
        let tidegate = programs::tidegate().map_err(|failure| failure.to_string())?;
        let socket = self.controller.socket().to_owned();
        let [tidegate, socket] = [&tidegate, &socket].map(|path| path.to_string_lossy());
        let run = [&*tidegate, "--socket", &*socket, "run", "--tenant", TENANT, "--", "true"];
        let job = |command, is_gated| GatedCommand { command, is_gated, makes: &[] };
        let cases = [
            ("start of `tidegate run -- true`", job(&run, false)),
            ("start of `true` in a stage", job(&["true"], true)),
        ];
        for (case, gated) in cases {
            let (directory, bare) = (self.work_directory.path().to_owned(), job(&["true"], false));
            let pairs = (0..STARTS).map(|number| self.pair(&directory, [bare, gated], number));
            let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
            let added = pairs.iter().map(|pair| (pair.gated.wall - pair.bare.wall) / 1e6);
            let bare = Median::of(pairs.iter().map(|pair| pair.bare.wall / 1e6));
            let Some(added) = Median::of(added) else { continue };
            let row = Row::less(BENCH, format!("{case}, added"), "ms", None).of_median(Some(added));
            let alone = bare.map_or(0.0, |bare| bare.value);
            report(row.noted(format!("`true` by itself takes {alone:.1} ms")));
        }
        Ok(())
    }
}

/// A time of the clock that has just been started.
fn after(span: Span) -> Time {
    Time::ZERO.after(span)
}

/// Starts `tidegate run` with a shell that waits, and returns the path of its segment.
fn shell(
    controller: &Controller,
    scratch: &Scratch,
    interrupt: &Interrupt,
) -> Result<(Child, PathBuf), Failure> {
    // Written under another name first, so that the file is complete under its own.
    let script = format!("printf %s \"${VARIABLE}\" > \"$0.new\"; mv \"$0.new\" \"$0\"; read line");
    let file = scratch.join("segment");
    let arguments = vec!["-c".into(), script.into(), file.clone().into()];
    let start = Start { name: "shell".into(), program: "sh".into(), arguments, ..Start::default() };
    let mut shell = Child::start(&controller.run(TENANT, start), scratch.path())?;
    let clock = Clock::start();
    while !file.exists() {
        if shell.has_ended()? || clock.now() > after(START) {
            return Err(Failure::new(Code::Failure, "`tidegate run` did not start"));
        }
        interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
    }
    let printed = fs::read_to_string(&file);
    let fail =
        |error: io::Error| Failure::new(Code::Failure, "the shell printed nothing").cause(error);
    Ok((shell, printed.map_err(fail)?.into()))
}

/// Makes a program's input, or returns the reason why that is not possible.
fn prepare(name: &str, directory: &Path) -> Result<(), String> {
    fs::create_dir(directory).map_err(|error| error.to_string())?;
    let mut command = Command::new("sh");
    command.args(["-euc", include_str!("programs.sh"), "sh", name]).arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.output().map_err(|error| format!("sh: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(stderr.lines().last().unwrap_or("its files cannot be made").to_owned()),
    }
}

fn wall(run: &RunTime) -> f64 {
    run.wall
}

fn processor(run: &RunTime) -> f64 {
    run.processor
}

fn ratio(pairs: &[ProgramPair], part: Metric) -> Option<Median> {
    Median::of(pairs.iter().map(|pair| pair.ratio(part)))
}

/// Whether a ratio keeps the promise, if that is certain: on a busy machine few pairs may say
/// anything.
fn verdict(ratio: Median, pairs: usize) -> Option<bool> {
    let is_certain = ratio.high <= RATIO || ratio.low > RATIO;
    (is_certain && pairs >= PAIRS_MIN).then_some(ratio.value <= RATIO)
}

/// Whether the promise is kept for certain. Other load on the machine can make a promise look
/// missed; then more pairs decide.
fn is_kept(pairs: &[ProgramPair]) -> bool {
    ratio(pairs, wall).is_some_and(|ratio| verdict(ratio, pairs.len()) == Some(true))
}

fn rows_of(program: &BenchProgram, pairs: Result<Vec<ProgramPair>, String>) -> [Row; 2] {
    let case = |part| format!("{} ({}), {part}", program.name, program.what);
    let none = |part| Row::less(BENCH, case(part), "ratio", None);
    let pairs = match pairs {
        Ok(pairs) => pairs,
        Err(reason) => {
            let time = none("run time").promised(RATIO).because(reason.clone());
            return [time, none("processor time").because(reason)];
        }
    };
    let row = |part, of: Metric, is_promised: bool| {
        let Some(ratio) = ratio(&pairs, of) else { return none(part).because(BUSY) };
        let row = none(part).of_median(Some(ratio));
        match (is_promised, verdict(ratio, pairs.len())) {
            (false, _) => row,
            (true, Some(_)) => row.promised(RATIO),
            (true, None) => row.promised(RATIO).undecided(UNCERTAIN),
        }
    };
    let time = row("run time", wall, true);
    // The processor time is promised only where the run time gives no verdict.
    let processor = row("processor time", processor, time.kept.is_none());
    let seconds = Median::of(pairs.iter().map(|pair| pair.bare.wall / 1e9));
    let seconds = seconds.map_or(0.0, |seconds| seconds.value);
    [time.noted(format!("{} pairs of {seconds:.2} s", pairs.len())), processor]
}

/// Measures everything.
pub(super) fn rows(
    plan: WindowPlan,
    shim: Result<&Path, String>,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(Row),
) -> Result<(), Failure> {
    let testbed = shim.and_then(|shim| ProgramTestbed::make(shim, interrupt));
    interrupt.check()?;
    match testbed {
        Ok(mut testbed) => {
            if let Err(reason) = testbed.starts(report) {
                let row = Row::less(BENCH, "start of `tidegate run -- true`, added", "ms", None);
                report(row.because(reason));
            }
            for program in &PROGRAMS {
                let pairs = testbed.pairs(program, plan);
                interrupt.check()?;
                rows_of(program, pairs).into_iter().for_each(&mut *report);
            }
        }
        Err(reason) => {
            for program in &PROGRAMS {
                rows_of(program, Err(reason.clone())).into_iter().for_each(&mut *report);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(count: usize, ratio: impl Fn(usize) -> f64) -> Vec<ProgramPair> {
        let run = |time| RunTime { wall: time, processor: 2.0 };
        let pair = |number| ProgramPair { bare: run(4e8), gated: run(4e8 * ratio(number)) };
        (0..count).map(pair).collect()
    }

    #[test]
    fn a_ratio_is_judged_only_when_it_is_certain() {
        let judged = |pairs| rows_of(&PROGRAMS[0], Ok(pairs));
        let [time, processor] = judged(pairs(11, |_| 1.01));
        assert_eq!((time.kept, time.promise.as_deref()), (Some(true), Some("<= 1.02")));
        assert_eq!((processor.kept, processor.value), (None, Some(1.0)));
        assert_eq!(time.note.as_deref(), Some("11 pairs of 0.40 s"));
        assert_eq!(judged(pairs(11, |_| 1.03))[0].kept, Some(false));
        // Few pairs, and pairs that differ.
        let [time, processor] = judged(pairs(2, |_| 1.03));
        assert_eq!((time.kept, time.reason.as_deref()), (None, Some(UNCERTAIN)));
        assert_eq!(processor.reason.as_deref(), Some(UNCERTAIN));
        let [time, processor] = judged(pairs(21, |number| 0.9 + number as f64 / 100.0));
        assert_eq!((time.kept, processor.kept), (None, Some(true)));
    }

    #[test]
    fn what_cannot_be_run_has_a_reason() {
        let [time, processor] = rows_of(&PROGRAMS[0], Err("fio is not installed".into()));
        assert_eq!((time.value, time.kept), (None, None));
        assert_eq!(processor.reason.as_deref(), Some("fio is not installed"));
        assert!(RunTime::parse("! 127").is_err());
        assert_eq!(RunTime::parse("5 3"), Ok(RunTime { wall: 5.0, processor: 3.0 }));
    }

    #[test]
    fn a_program_that_is_not_installed_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let prepared = prepare("no-such-program", &directory.path().join("a"));
        assert_eq!(prepared, Err("no-such-program is not installed".into()));
    }
}
