//! `tidegate run`: starts a program under a stage and keeps the stage for as long as anything of
//! the program's process tree uses it.
//!
//! The supervisor is the program's parent and nothing else: it passes signals on, ends as the
//! program ends, and owns no thread. When the program has ended and processes that it started still
//! use the stage (a daemon, a background job), the supervisor goes on in the background, so that a
//! shell that waits for the program does not wait for them.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::sys::signal::{self, SaFlags, SigAction, SigHandler, SigSet, SigmaskHow};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
#[cfg(feature = "tls")]
use tidegate_fabric::stream::Way;
use tidegate_model::Span;

use crate::agent::Driver;
use crate::bypass::{BYPASSES, Bypass};
use crate::census;
use crate::clock::kernel_time;
use crate::inspect::{self, Verdict};
use crate::report;
use crate::segment::{Segment, VARIABLE};
use crate::settings::Settings;
use crate::sweep;
pub use coverage::{ChannelBytes, CoverageReport, PassedCalls};

mod coverage;

/// How long the program's start waits for a controller's rules, so that its first request meets
/// them. A controller on the same machine answers within a millisecond.
const RULES_WAIT: Span = Span(2 * Span::SECOND.0);
/// How long it waits once the controller has welcomed the stage: rules come right behind the
/// welcome, or there is no policy yet.
const FIRST_RULES_WAIT: Span = Span(100 * Span::MILLISECOND.0);
/// Signals that are passed on to the program.
const FORWARDED: [signal::Signal; 7] = [
    signal::SIGHUP,
    signal::SIGINT,
    signal::SIGQUIT,
    signal::SIGTERM,
    signal::SIGUSR1,
    signal::SIGUSR2,
    signal::SIGALRM,
];
/// Tells the shim in each program below that it is to end rather than run without its stage.
const FAIL_CLOSED: &str = "TIDEGATE_FAIL_CLOSED";

/// How long a program may take from its start to the shim's first instruction, if the program that
/// started it has ended meanwhile. Chosen by hand.
const START_MAX: Span = Span::SECOND;
/// The exit code of a run with `--fail-closed` in which a program ran without limits.
const NOT_COVERED: u8 = 126;

/// How much the supervisor reports to the user, most of it on coverage when the program has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbosity {
    /// Nothing at all, not even that no controller is there.
    Quiet,
    /// Calls, bytes and programs that passed the gates by, except harmless ones.
    #[default]
    Warn,
    /// Everything.
    Always,
}

/// The program to run, and its settings.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tenant it acts for; empty to go by the policy's rules alone.
    pub tenant: String,
    /// The controller's socket, if the controller is on this machine.
    pub socket: PathBuf,
    /// The way to a controller on another machine, which is used instead of the socket.
    #[cfg(feature = "tls")]
    pub remote: Option<Way>,
    /// The shim, `libtidegate_preload.so`.
    pub shim: PathBuf,
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Whether not to start, rather than to start without limits, if there are no rules or the
    /// program cannot be covered.
    pub fail_closed: bool,
    /// How much the supervisor reports to the user.
    pub report: Verbosity,
    /// The lines on standard error for a message to the user.
    pub lines: fn(&RunNotice) -> String,
}

/// A message to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunNotice {
    /// A sentence without a line break.
    Text(String),
    /// The traffic through the gates and past them, when the program has ended.
    Coverage(CoverageReport),
}

impl Options {
    /// Writes a message to standard error, unless the user wants none. The disk behind it may be
    /// full; the program runs all the same.
    fn print(&self, notice: &RunNotice) {
        if self.report != Verbosity::Quiet {
            let _ = io::stderr().write_all((self.lines)(notice).as_bytes());
        }
    }

    fn complain(&self, message: &str) {
        self.print(&RunNotice::Text(message.into()));
    }
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this code.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

/// Why the program was not started.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The shim is not at the given path.
    #[error(
        "there is no shim at {0}; build it with `cargo build -p tidegate-preload` or say where it \
         is with TIDEGATE_SHIM"
    )]
    NoShim(PathBuf),
    /// No segment could be made.
    #[error("cannot make a segment in /dev/shm: {0}")]
    Segment(io::Error),
    /// The program could not be started.
    #[error("cannot start {}: {}", .0.display(), .1)]
    Start(OsString, io::Error),
    /// No rules arrived, and the program was not to start without.
    #[error(
        "not started, because there are no rules for it yet ({0}); see that a controller \
         runs with a policy that admits the program, or leave out --fail-closed"
    )]
    NoRules(String),
    /// The policy's rules are more than a stage can hold, and the program was not to start without.
    #[error(
        "not started, because {0}; apply a smaller policy, name the tenant with --tenant, or leave \
         out --fail-closed"
    )]
    TooManyRules(String),
    /// The program cannot be covered, and was not to start then.
    #[error("not started, because the shim cannot be loaded into {}; {}", .0.display(), .1)]
    NotCovered(OsString, &'static str),
    /// The supervisor itself failed.
    #[error("the supervisor failed: {0}")]
    Supervise(io::Error),
}

impl RunError {
    /// The exit code that it deserves, as shells have it: 127 for a program that is not there, 126
    /// for one that cannot be started.
    pub fn code(&self) -> u8 {
        match self {
            Self::Start(_, error) if error.kind() == io::ErrorKind::NotFound => 127,
            Self::Start(..) | Self::NotCovered(..) => NOT_COVERED,
            Self::NoRules(_) | Self::TooManyRules(_) => 5,
            Self::NoShim(_) | Self::Segment(_) | Self::Supervise(_) => 1,
        }
    }
}

/// Runs a program under a stage until it ends.
///
/// To be called from a process with one thread: it forks.
///
/// # Errors
/// If the program was not started. Once it runs, nothing that happens to the stage is an error.
pub fn run(options: &Options) -> Result<Exit, RunError> {
    let shim = options.shim.canonicalize().map_err(|_| RunError::NoShim(options.shim.clone()))?;
    let print_line = |text: &str| options.complain(text);
    let uncovered = uncovered(&options.program, options.fail_closed);
    if let Some(reason) = uncovered {
        warn_uncovered(options, reason, print_line)?;
    }
    sweep::sweep();
    let handling = Handling::take().map_err(RunError::Supervise)?;
    let (segment, path) = Segment::create().map_err(RunError::Segment)?;
    let file = Removed(path);
    segment.header.strict.store(u32::from(options.fail_closed), Ordering::Relaxed);
    let settings = Settings {
        tenant: options.tenant.clone(),
        socket: options.socket.clone(),
        #[cfg(feature = "tls")]
        remote: options.remote.clone(),
        command: command_line(options),
        layered: false,
    };
    let mut driver = Driver::new(Arc::new(segment), &settings);
    wait_for_rules(&mut driver, options, print_line)?;

    let signals = Signals::take().map_err(RunError::Supervise)?;
    // The loader of another C library would fail on the shim rather than leave it out.
    let shim = (uncovered != Some(Bypass::ForeignProgram)).then_some(shim);
    if uncovered.is_none() {
        driver.segment().header.started.fetch_add(1, Ordering::Relaxed);
    }
    let mut child = start(options, shim.as_deref(), &file.0, &signals, handling)?;
    let mut programs = Programs { options, read: 0, names: BTreeMap::new() };
    let code =
        supervise(&mut driver, &mut child, &signals, &mut programs).map_err(RunError::Supervise)?;
    programs.report();
    let missing = count_missing(&mut driver, &file.0);
    report_coverage(options, &driver, uncovered.is_some());
    let code = match code {
        Exit::Code(0) if missing > 0 && options.fail_closed => {
            print_line(&format!(
                "{missing} programs ran without the shim although nothing was to run without \
                 limits (--fail-closed): the exit code is {NOT_COVERED}"
            ));
            Exit::Code(NOT_COVERED)
        }
        code => code,
    };
    if !is_used(&driver, &file.0) {
        driver.end();
        return Ok(code);
    }
    signals.give_back();
    stay_behind(driver, file);
    Ok(code)
}

/// The segment's file, gone when its agent is.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn command_line(options: &Options) -> String {
    let words = std::iter::once(&options.program).chain(&options.arguments);
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Warns the user of a program that cannot be covered, before it is started.
fn warn_uncovered(
    options: &Options,
    reason: Bypass,
    print_line: impl Fn(&str),
) -> Result<(), RunError> {
    let (_, name, advice) = BYPASSES[reason as usize];
    if options.fail_closed {
        return Err(RunError::NotCovered(options.program.clone(), advice));
    }
    let program = options.program.display();
    print_line(&format!("{program} runs without limits ({name}): {advice}"));
    Ok(())
}

/// Waits for the first rules, but not for long: without a controller the program runs unhindered.
fn wait_for_rules(
    driver: &mut Driver,
    options: &Options,
    print_line: impl Fn(&str),
) -> Result<(), RunError> {
    let mut deadline = kernel_time().after(RULES_WAIT);
    let (mut was_connected, mut has_notice) = (false, false);
    let mut reason = String::from("the controller has not answered");
    while !driver.is_ready() && kernel_time() < deadline {
        let patience = Span(20 * Span::MILLISECOND.0);
        driver.run_once(&[], patience).map_err(RunError::Supervise)?;
        if let Some(notice) = driver.notices.pop() {
            (reason, has_notice) = (notice, true);
            break;
        }
        if driver.is_connected() && !was_connected {
            was_connected = true;
            deadline = deadline.min(kernel_time().after(FIRST_RULES_WAIT));
        }
    }
    if driver.is_ready() {
        return Ok(());
    }
    // A notice while the connection goes on is about the rules.
    let is_refused = has_notice && driver.is_connected();
    if options.fail_closed {
        if is_refused {
            return Err(RunError::TooManyRules(reason));
        }
        if was_connected {
            reason = "the controller has no policy".into();
        }
        return Err(RunError::NoRules(reason));
    }
    match driver.is_connected() {
        true if is_refused => print_line(&format!("{reason}; running without limits until it can")),
        true => print_line("the controller has no policy yet; running without limits until it has"),
        false => print_line(&format!(
            "{reason}; running without limits until a controller accepts this stage (to start \
             nothing then, use --fail-closed)"
        )),
    }
    Ok(())
}

fn start(
    options: &Options,
    shim: Option<&Path>,
    segment: &Path,
    signals: &Signals,
    handling: Handling,
) -> Result<Child, RunError> {
    let mut command = Command::new(&options.program);
    command.args(&options.arguments).env(VARIABLE, segment);
    if options.fail_closed {
        command.env(FAIL_CLOSED, "1");
    }
    if let Some(shim) = shim {
        let mut preload = OsString::from(shim);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command.env("LD_PRELOAD", preload);
    }
    let mask = signals.before;
    // SAFETY: between fork and exec only sigaction and pthread_sigmask are called, which are
    // async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            handling.give_back()?;
            Ok(mask.thread_set_mask()?)
        });
    }
    command.spawn().map_err(|error| RunError::Start(options.program.clone(), error))
}

/// Keeps the stage until the program has ended.
fn supervise(
    driver: &mut Driver,
    child: &mut Child,
    signals: &Signals,
    programs: &mut Programs<'_>,
) -> io::Result<Exit> {
    let pid = Pid::from_child(child);
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        driver.run_once(&[signals.as_fd(), ended.as_fd()], Span::SECOND)?;
        driver.notices.clear();
        programs.read(driver.segment());
        for signal in signals.received() {
            let _ = kill_process(pid, signal);
        }
        if let Some(status) = child.try_wait()? {
            driver.final_check();
            programs.read(driver.segment());
            let code = status.code().map(|code| Exit::Code(code as u8));
            return Ok(code.unwrap_or(Exit::Signal(status.signal().unwrap_or(0))));
        }
    }
}

/// Counts the programs that were started and in which the shim never was. The supervisor waits for
/// programs that are being started in this moment, a second at most.
fn count_missing(driver: &mut Driver, path: &Path) -> u64 {
    let deadline = kernel_time().after(START_MAX);
    let missing = |driver: &Driver| driver.segment().header.programs_missing();
    while missing(driver) > 0 && kernel_time() < deadline && is_used(driver, path) {
        if driver.run_once(&[], Span(20 * Span::MILLISECOND.0)).is_err() {
            break;
        }
    }
    let missing = missing(driver);
    let count = &driver.segment().bypasses[Bypass::NotLoaded as usize];
    (0..missing).for_each(|_| count.count(0, 0));
    missing
}

/// Whether a program still uses the stage, or may in a moment.
///
/// A process that replaces its program maps nothing between the two, and shows in its environment
/// that it will; one that has overwritten its environment maps the segment. Checked one after the
/// other, for a process may go from one to the other meanwhile.
fn is_used(driver: &Driver, path: &Path) -> bool {
    let is_mapped = || {
        let by_kernel = driver.segment().is_used_by_others();
        by_kernel.unwrap_or_else(|| driver.census().count() > 0)
    };
    is_mapped() || census::has_heirs(path) || is_mapped()
}

/// Goes on as a process of its own, for what the program left running.
fn stay_behind(mut driver: Driver, file: Removed) {
    // SAFETY: this process has one thread, so the child is whole.
    match unsafe { libc::fork() } {
        0 => {
            // No process is to wait for this one, on a terminal or at the end of a pipe.
            let _ = rustix::process::setsid();
            let _ = std::env::set_current_dir("/");
            if let Ok(null) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null") {
                let _ = rustix::stdio::dup2_stdin(&null);
                let _ = rustix::stdio::dup2_stdout(&null);
                let _ = rustix::stdio::dup2_stderr(&null);
            }
            while is_used(&driver, &file.0) {
                driver.notices.clear();
                if driver.run_once(&[], Span::SECOND).is_err() {
                    break;
                }
            }
            driver.end();
            drop(file);
            std::process::exit(0);
        }
        // The child owns the file now; also if there is none, for the processes still use it.
        _ => std::mem::forget(file),
    }
}

/// How two signals were handled before, which a process inherits and the supervisor cannot use: it
/// waits for its child, which the kernel reaps itself where `SIGCHLD` is ignored, and it reports a
/// segment that is larger than files may be, of which `SIGXFSZ` would kill it.
#[derive(Clone, Copy)]
struct Handling([(signal::Signal, SigAction); 2]);

impl Handling {
    fn take() -> io::Result<Self> {
        let take = |signal, handler| {
            let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
            // SAFETY: neither the default nor ignoring a signal runs code of this process.
            io::Result::Ok((signal, unsafe { signal::sigaction(signal, &action) }?))
        };
        Ok(Self([
            take(signal::SIGCHLD, SigHandler::SigDfl)?,
            take(signal::SIGXFSZ, SigHandler::SigIgn)?,
        ]))
    }

    /// Handles them as before, for the program.
    fn give_back(&self) -> io::Result<()> {
        for (signal, action) in &self.0 {
            // SAFETY: the action was in force before; a handler is none that another program left.
            unsafe { signal::sigaction(*signal, action) }?;
        }
        Ok(())
    }
}

/// Signals that arrive as data. Those that stop the process are left alone: they come to the whole
/// group, and a supervisor that did not stop would keep the shell waiting.
struct Signals {
    file: SignalFd,
    before: SigSet,
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Signals {
    fn take() -> io::Result<Self> {
        let set = SigSet::from_iter(FORWARDED);
        let before = set.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        let file = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { file, before })
    }

    fn give_back(&self) {
        let _ = self.before.thread_set_mask();
    }

    /// Returns the signals to pass on. Signals from the terminal have reached the program already;
    /// an alarm, which the kernel sends as well, comes to this process alone.
    fn received(&self) -> impl Iterator<Item = Signal> + '_ {
        std::iter::from_fn(|| self.file.read_signal().ok()?)
            .filter(|info| info.ssi_code <= libc::SI_USER || info.ssi_signo == libc::SIGALRM as u32)
            .filter_map(|info| Signal::from_named_raw(info.ssi_signo as i32))
    }
}

/// Programs without the shim, for the user.
struct Programs<'a> {
    options: &'a Options,
    read: u32,
    /// The names that are reported at the end, by reason.
    names: BTreeMap<&'static str, Vec<String>>,
}

/// How many names of programs are reported for one reason.
const NAMES: usize = 3;

impl Programs<'_> {
    /// Reads the processes' notes, and reports refused programs at once: their callers only see
    /// that the call was not permitted.
    fn read(&mut self, segment: &Segment) {
        for program in segment.programs.since(&mut self.read) {
            let (_, reason, advice) = BYPASSES[program.reason as usize];
            if program.is_refused {
                let name = &program.name;
                self.options.complain(&format!("{name} was not started ({reason}): {advice}"));
                continue;
            }
            let names = self.names.entry(reason).or_default();
            if names.len() <= NAMES && !names.contains(&program.name) {
                names.push(program.name);
            }
        }
    }

    /// Says which programs ran without limits.
    fn report(&self) {
        for (reason, names) in &self.names {
            let more = if names.len() > NAMES { " and others" } else { "" };
            let names = names[..names.len().min(NAMES)].join(", ");
            self.options.complain(&format!("{names}{more} ran without limits ({reason})"));
        }
    }
}

/// Says what passed the gates by; `is_first_unseen` if the shim was not in the first program.
fn report_coverage(options: &Options, driver: &Driver, is_first_unseen: bool) {
    let coverage = report::coverage(driver.segment(), driver.census());
    let has_rules = driver.segment().header.generation.load(Ordering::Relaxed) > 0;
    let others = (has_rules, u64::from(is_first_unseen));
    let report = CoverageReport::new(&coverage, others, options.report == Verbosity::Always);
    let report = report.with_channels(report::channels(driver.segment(), driver.plan()));
    if !report.is_empty() {
        options.print(&RunNotice::Coverage(report));
    }
}

/// Why the shim will not see this program, if it will not. A program that cannot be inspected is
/// started all the same, and the error of its start is better than a guess.
fn uncovered(program: &OsStr, fail_closed: bool) -> Option<Bypass> {
    let name = CString::new(program.as_encoded_bytes()).ok()?;
    let search = std::env::var_os("PATH");
    match inspect::program_in(&name, search.as_deref().map(OsStr::as_encoded_bytes)) {
        // Of such a one nothing is known; most have the shim.
        Ok(Verdict::Not(Bypass::Unreadable)) if !fail_closed => None,
        Ok(Verdict::Not(reason)) => Some(reason),
        Ok(Verdict::Covered | Verdict::Script) | Err(_) => None,
    }
}
