//! The testbed of the hosts benchmark: a controller, programs under `tidegate run` on several
//! hosts, and the samples of a run.
//!
//! A host is a folder for its state and a certificate of its own. All programs map one file, the
//! *board*: the bench writes there which of them send requests, and reads there what each has read.
//! So a change of demand reaches all programs at once, and one system call samples all of them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use tidegate_model::{Span, Time};
use tidegate_stage::Segment;
use tidegate_stage::layout::GateKind;

use super::link::Link;
use super::plan::{CUT_HOST, HostsDivision, HostsSize, INTERVAL, Step, StepChange, TENANTS};
use super::score::{HostsRates, HostsSample, HostsTrace};
use crate::bench::child::{CompiledProgram, compile};
use crate::bench::path::free_port;
use crate::experiment::child::{self, Child, Start};
use crate::experiment::controller::Controller;
use crate::experiment::quiet::QuietProbe;
use crate::experiment::scratch::Scratch;
use crate::experiment::stage_segment;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::programs;

/// Four samples in an interval.
const SAMPLE_INTERVAL: Span = Span(INTERVAL.0 / 4);
/// How long programs may take until they have begun.
const BEGINS: Span = Span(60 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(20 * Span::MILLISECOND.0);
/// How long all programs send requests before a run: shares settle in some intervals.
const SETTLES: Span = Span(2 * Span::SECOND.0);
/// The bytes that programs read again and again: pages that stay in the page cache.
const FILE_BYTES: usize = 16 * 4096;

/// The words of a stage on the board: its order, whether it has begun, and the bytes it has read.
const WORDS: usize = 3;
const WORD: usize = size_of::<u64>();

/// The work of a program, as its order on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
enum Order {
    Pause = 0,
    Request = 1,
    End = 2,
}

/// The shared file of all programs.
struct Board {
    file: File,
    path: PathBuf,
    stages: usize,
}

impl Board {
    fn make(path: PathBuf, stages: usize) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.set_len((stages * WORDS * WORD) as u64)?;
        Ok(Self { file, path, stages })
    }

    fn order(&self, stage: usize, order: Order) -> io::Result<()> {
        let at = (stage * WORDS * WORD) as u64;
        self.file.write_all_at(&(order as u64).to_ne_bytes(), at)
    }

    /// The word with this number of each stage.
    fn words(&self, number: usize) -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; self.stages * WORDS * WORD];
        self.file.read_exact_at(&mut bytes, 0)?;
        let (words, _) = bytes.as_chunks::<WORD>();
        Ok(words.iter().skip(number).step_by(WORDS).map(|word| u64::from_ne_bytes(*word)).collect())
    }

    fn has_begun(&self) -> io::Result<bool> {
        Ok(self.words(1)?.iter().all(|word| *word == 1))
    }

    fn read(&self) -> io::Result<Vec<u64>> {
        self.words(2)
    }
}

fn failure(message: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(Code::Failure, message).cause(error)
}

/// Programs on hosts under one controller. Dropping it ends them: programs first.
pub(super) struct HostsTestbed<'a> {
    size: HostsSize,
    interrupt: &'a Interrupt,
    supervisors: Vec<Child>,
    segments: Vec<Segment>,
    board: Board,
    link: Link,
    _controller: Controller,
    program: CompiledProgram,
    /// Sockets, state and the board, in memory; and the file that programs read, on a disk.
    scratch: Scratch,
    work: Scratch,
}

impl<'a> HostsTestbed<'a> {
    /// Starts the controller and all programs, which pause.
    ///
    /// # Errors
    /// If something is missing, or the user interrupts the run.
    pub(super) fn start(
        division: HostsDivision,
        size: HostsSize,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Failure> {
        let refused = |why: String| Failure::new(Code::Failure, why);
        let flags = ["-x", "c", "-O2", "-Wall"];
        let program = compile("cc", include_str!("requests.c"), &flags, &[]).map_err(refused)?;
        let no_files = failure("cannot write the bench's files");
        // The file system of temporary files may be on a disk, whose pauses would reach the board.
        let scratch = Scratch::within(Path::new("/dev/shm"), "tgd-").map_err(&no_files)?;
        // A file in memory is no storage, and its requests pass no gate.
        let work = std::env::current_dir()
            .and_then(|directory| Scratch::within(&directory, ".tidegate-bench-hosts-"))
            .map_err(&no_files)?;
        fs::write(work.join("file"), vec![7u8; FILE_BYTES]).map_err(&no_files)?;
        let board = Board::make(scratch.join("board"), size.stages).map_err(&no_files)?;
        let (controller, address) = lead(division, size, &scratch, interrupt)?;
        let link = Link::to(address).map_err(failure("there is no link to the controller"))?;
        let mut testbed = Self {
            size,
            interrupt,
            supervisors: Vec::new(),
            segments: Vec::new(),
            board,
            link,
            _controller: controller,
            program,
            scratch,
            work,
        };
        testbed.start_programs(division, address)?;
        Ok(testbed)
    }

    fn start_programs(
        &mut self,
        division: HostsDivision,
        address: SocketAddr,
    ) -> Result<(), Failure> {
        let no_files = failure("cannot write the bench's files");
        for host in 0..self.size.hosts {
            fs::create_dir(self.scratch.join(&HostsSize::host_name(host))).map_err(&no_files)?;
        }
        for stage in 0..self.size.stages {
            let start = self.stage(division, stage, address)?;
            self.supervisors.push(Child::start(&start, self.scratch.path())?);
        }
        let clock = Clock::start();
        while !self.board.has_begun().map_err(&no_files)? {
            for supervisor in &mut self.supervisors {
                supervisor.has_ended()?;
            }
            if clock.now().0 > BEGINS.0 {
                return Err(Failure::new(Code::Failure, "not all programs have begun"));
            }
            self.interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        let segments = self.supervisors.iter().map(stage_segment::attach);
        self.segments = segments.collect::<io::Result<_>>().map_err(failure(NO_SEGMENT))?;
        Ok(())
    }

    /// `tidegate run` of a stage's program on its host.
    fn stage(
        &self,
        division: HostsDivision,
        stage: usize,
        address: SocketAddr,
    ) -> Result<Start, Failure> {
        let name = HostsSize::host_name(self.size.host(stage));
        let address = if self.is_apart(stage) { self.link.address() } else { address };
        let tls = self.scratch.join("tls");
        let tenant = division.tenant(self.size, stage);
        let words = ["run", "--fail-closed", "--quiet", "--tenant", &tenant, "--user", &name];
        let mut arguments: Vec<OsString> = words.map(OsString::from).into();
        arguments.extend(["--controller".into(), address.to_string().into()]);
        arguments.extend(["--tls".into(), tls.into(), "--".into()]);
        arguments.extend([self.program.path().into(), self.board.path.clone().into()]);
        arguments.extend([stage.to_string().into(), self.work.join("file").into()]);
        // A state of its own, as on a host of its own; no controller of this machine is asked.
        let state = self.scratch.join(&name);
        let environment = vec![
            ("XDG_RUNTIME_DIR".into(), state.into()),
            ("TIDEGATE_SOCKET".into(), "/nonexistent".into()),
        ];
        let program = programs::tidegate()?.into();
        let name = format!("stage-{stage}");
        Ok(Start { name, program, arguments, environment, group: None })
    }

    /// Whether a stage is on the host whose link is cut.
    fn is_apart(&self, stage: usize) -> bool {
        self.size.host(stage) == CUT_HOST
    }

    /// Carries out a plan. `note` gets a line for people now and then.
    pub(super) fn run(
        &mut self,
        steps: &[Step],
        note: &mut dyn FnMut(&str),
    ) -> Result<HostsTrace, Failure> {
        let no_board = failure("the programs' board cannot be used");
        let clock = Clock::start();
        let first = steps.first().map_or(&[][..], |step| step.requests.as_slice());
        self.order(first).map_err(&no_board)?;
        self.interrupt.sleep_until(clock, Time(SETTLES.0))?;
        let (clock, probe) = (Clock::start(), QuietProbe::start());
        let mut trace = HostsTrace::default();
        for step in steps {
            self.interrupt.sleep_until(clock, step.begin)?;
            self.begin(step).map_err(&no_board)?;
            let mut due = step.begin;
            while due < step.end {
                self.interrupt.sleep_until(clock, due)?;
                trace.samples.push(self.sample(clock).map_err(&no_board)?);
                due = due.after(SAMPLE_INTERVAL);
                if due.0 % Span::SECOND.0 == 0 {
                    note(&self.line(step, &trace));
                    for supervisor in &mut self.supervisors {
                        supervisor.has_ended()?;
                    }
                }
            }
        }
        trace.samples.push(self.sample(clock).map_err(&no_board)?);
        trace.quiet = probe.finish().seconds().collect();
        Ok(trace)
    }

    fn begin(&self, step: &Step) -> io::Result<()> {
        match step.change {
            StepChange::Demand => self.order(&step.requests),
            StepChange::Cut => {
                self.link.cut();
                Ok(())
            }
            StepChange::StillCut => Ok(()),
            StepChange::Return => {
                self.link.restore();
                Ok(())
            }
        }
    }

    fn order(&self, requests: &[bool]) -> io::Result<()> {
        requests.iter().enumerate().try_for_each(|(stage, requests)| {
            self.board.order(stage, if *requests { Order::Request } else { Order::Pause })
        })
    }

    fn sample(&self, clock: Clock) -> io::Result<HostsSample> {
        let (at, read) = (clock.now(), self.board.read()?);
        let rates = || self.segments.iter().map(rate).collect::<Option<Vec<u64>>>();
        // Rates that move between two reads are no sum of any moment.
        let rates = rates().filter(|seen| rates().as_ref() == Some(seen));
        let rates = rates.map(|rates| {
            let apart = rates.iter().enumerate().filter(|(stage, _)| self.is_apart(*stage));
            HostsRates { all: rates.iter().sum(), apart: apart.map(|(_, rate)| rate).sum() }
        });
        Ok(HostsSample { at, read, rates })
    }

    /// The last second of a run, in words.
    fn line(&self, step: &Step, trace: &HostsTrace) -> String {
        let Some(last) = trace.samples.last() else { return String::new() };
        let before = trace.samples.iter().rev();
        let before = before.take_while(|sample| last.at.since(sample.at) <= Span::SECOND).last();
        let Some(before) = before.filter(|before| before.at < last.at) else {
            return String::new();
        };
        let mut line = format!("{} s, {}:", last.at.0 / Span::SECOND.0, step.name);
        for (tenant, one) in TENANTS.iter().enumerate() {
            let own = (0..self.size.stages).filter(|stage| self.size.tenant(*stage) == tenant);
            let bytes: u64 = own.map(|stage| last.read[stage] - before.read[stage]).sum();
            let seconds = last.at.since(before.at).as_seconds();
            let mib = bytes as f64 / f64::from(1 << 20) / seconds;
            line += &format!(" {} {mib:.1}", one.name);
        }
        line + " MiB/s"
    }
}

impl Drop for HostsTestbed<'_> {
    fn drop(&mut self) {
        for stage in 0..self.size.stages {
            // A program that does not end by its order is ended as a child.
            let _ = self.board.order(stage, Order::End);
        }
    }
}

/// Starts the controller, which listens on TCP with certificates for all hosts.
fn lead(
    division: HostsDivision,
    size: HostsSize,
    scratch: &Scratch,
    interrupt: &Interrupt,
) -> Result<(Controller, SocketAddr), Failure> {
    let no_files = failure("cannot write the bench's files");
    let file = scratch.join("cluster.toml");
    let port = free_port().map_err(failure("there is no port to listen at"))?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let text = format!(
        "[tls]\ndirectory = \"{}\"\n[controller]\nlisten = [\"unix:{}\", \"{address}\"]\n",
        scratch.join("tls").display(),
        scratch.join("controller.sock").display(),
    );
    fs::write(&file, text).map_err(&no_files)?;
    let mut certify = Command::new(programs::tidegate()?);
    certify.arg("certify").arg(&file).arg("--state").arg(scratch.path());
    certify.args(["--user", &size.users()]);
    child::output(&mut certify, "tidegate certify failed")?;
    let policy = division.policy(size);
    Ok((Controller::lead("controller", &file, &policy, scratch, interrupt)?, address))
}

const NO_SEGMENT: &str = "a program's rates cannot be read";

/// The rate in force at a stage, in bytes per second; none before there is one.
fn rate(stage: &Segment) -> Option<u64> {
    let is_bucket = |kind: u32| kind == GateKind::Bytes as u32;
    let mut gates = stage.gates.iter().filter(|gate| is_bucket(gate.kind.load(Ordering::Acquire)));
    gates.next().map(|gate| gate.bucket.per_second()).filter(|rate| *rate < u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_has_three_words_for_each_stage() {
        let folder = tempfile::tempdir().unwrap();
        let board = Board::make(folder.path().join("board"), 3).unwrap();
        assert!(!board.has_begun().unwrap());
        let word = |stage: usize, number: usize, value: u64| {
            let at = ((stage * WORDS + number) * WORD) as u64;
            board.file.write_all_at(&value.to_ne_bytes(), at).unwrap();
        };
        for stage in 0..3 {
            word(stage, 1, 1);
            word(stage, 2, 100 + stage as u64);
        }
        board.order(1, Order::Request).unwrap();
        board.order(2, Order::End).unwrap();
        assert!(board.has_begun().unwrap());
        assert_eq!(board.words(0).unwrap(), [0, 1, 2]);
        assert_eq!(board.read().unwrap(), [100, 101, 102]);
    }
}
