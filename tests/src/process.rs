//! Programs that scenarios start: watched, bounded in time, and ended with the scenario.

use std::ffi::OsStr;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;

use crate::{PATIENCE, wait_for};

/// How long a program may run. The longest takes some seconds on an idle machine; one that is still
/// there after this hangs.
const RUN_MAX: Duration = Duration::from_secs(150);

/// How a program ended, and what it said.
#[derive(Clone, PartialEq, Eq)]
pub struct ProgramOutcome {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// How long it ran.
    pub time: Duration,
}

impl fmt::Debug for ProgramOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, signal, stdout, stderr, .. } = self;
        write!(f, "code {code:?}, signal {signal:?}\n-- out:\n{stdout}\n-- err:\n{stderr}")
    }
}

impl ProgramOutcome {
    /// Itself, if it ended well.
    ///
    /// # Panics
    /// If it did not, with what it said.
    #[track_caller]
    pub fn success(self) -> Self {
        assert!(self.code == Some(0), "{self:?}");
        self
    }

    /// Itself, if it ended with this code.
    ///
    /// # Panics
    /// If it did not, with what it said.
    #[track_caller]
    pub fn failure(self, code: i32) -> Self {
        assert!(self.code == Some(code), "not exit code {code}: {self:?}");
        self
    }

    /// Standard error as one line, whatever the terminal's width broke it into.
    pub fn complaint(&self) -> String {
        let words = self.stderr.split_whitespace().filter(|word| *word != "│");
        words.collect::<Vec<_>>().join(" ")
    }

    /// The standard error of the program itself: without Tidegate's lines.
    pub fn own_stderr(&self) -> String {
        let own = self.stderr.lines().filter(|line| !line.starts_with("tidegate: "));
        own.map(|line| format!("{line}\n")).collect()
    }

    /// Tidegate's lines on standard error.
    pub fn notices(&self) -> String {
        let ours = self.stderr.lines().filter(|line| line.starts_with("tidegate: "));
        ours.map(|line| format!("{line}\n")).collect()
    }
}

/// `program` with these words, and `inner` behind them: its program, its arguments, its environment
/// and its folder.
pub fn around<'a>(
    program: impl AsRef<OsStr>,
    words: impl IntoIterator<Item = &'a str>,
    inner: &Command,
) -> Command {
    let mut outer = Command::new(program);
    outer.args(words).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    if let Some(folder) = inner.get_current_dir() {
        outer.current_dir(folder);
    }
    outer
}

/// Runs a program to its end, with nothing on its standard input.
///
/// # Panics
/// If it cannot be started, or does not end.
#[track_caller]
pub fn run(command: &mut Command) -> ProgramOutcome {
    spawn(command.stdin(Stdio::null())).finish()
}

/// Starts a program; its standard input is ours to write unless `command` says otherwise.
///
/// # Panics
/// If it cannot be started.
#[track_caller]
pub fn spawn(command: &mut Command) -> Running {
    // A group of its own, so that everything it starts can be ended with it, and nothing else.
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let started = Instant::now();
    let mut child =
        command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    let stdout = child.stdout.take().map(PipeOutput::listen).unwrap_or_default();
    let stderr = child.stderr.take().map(PipeOutput::listen).unwrap_or_default();
    Running { child, stdout, stderr, started, status: None, what: format!("{command:?}") }
}

/// A program that runs. Dropping it ends it and its process group.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: PipeOutput,
    stderr: PipeOutput,
    started: Instant,
    status: Option<ExitStatus>,
    what: String,
}

impl Running {
    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The program's standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// The whole lines that it has said so far on standard output, each of which is JSON.
    ///
    /// # Panics
    /// If one is not.
    #[track_caller]
    pub fn rows(&self) -> Vec<Value> {
        let printed = self.stdout();
        let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
    }

    /// The program's standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("a child can be waited for");
        }
        self.status.is_none()
    }

    /// Writes to its standard input.
    ///
    /// # Panics
    /// If it does not read.
    pub fn write_input(&mut self, text: &str) {
        let input = self.child.stdin.as_mut().expect("its input is a pipe");
        input.write_all(text.as_bytes()).expect("it reads its input");
    }

    /// Waits until it has said this on standard output.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn wait_for_output(&self, text: &str) {
        wait_for(&format!("{text:?} from {}", self.what), PATIENCE, || {
            // Looked at before what it said is: what it says last is not missed.
            let has_ended = !is_alive(self.pid()) && self.stdout.has_ended();
            let has_printed = self.stdout().contains(text);
            assert!(
                has_printed || !has_ended,
                "it ended without saying {text:?}: {}",
                self.stderr()
            );
            has_printed.then_some(())
        });
    }

    /// Sends a signal to it alone.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Ends it at once, as a power cut would.
    pub fn kill(mut self) -> ProgramOutcome {
        let _ = self.child.kill();
        self.finish()
    }

    /// Closes its standard input and waits for its end.
    ///
    /// # Panics
    /// If it does not end.
    #[track_caller]
    pub fn finish(mut self) -> ProgramOutcome {
        drop(self.child.stdin.take());
        let what = format!("the end of {}", self.what);
        wait_for(&what, RUN_MAX, || (!self.is_running()).then_some(()));
        let time = self.started.elapsed();
        // Something that it left running may hold the pipes: it need not be waited for.
        let all_printed = || self.stdout.has_ended() && self.stderr.has_ended();
        let start = Instant::now();
        wait_for("its last words", PATIENCE, || {
            (all_printed() || start.elapsed() > Duration::from_secs(2)).then_some(())
        });
        let status = self.status.expect("it has ended");
        ProgramOutcome {
            code: status.code(),
            signal: status.signal(),
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            time,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group's number cannot be another's while a process of the group runs or the child
        // has not been waited for; where both are over, there is no process to end.
        if self.is_running()
            && let Some(group) = Pid::from_raw(self.pid() as i32)
        {
            let _ = kill_process_group(group, Signal::KILL);
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("-- {}\n{}{}", self.what, self.stdout.text(), self.stderr.text());
        }
    }
}

/// Sends a signal to the process with this number.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// Whether a process with this number runs; one that has ended and was not waited for does not.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest.as_bytes()[0]);
    state.is_some_and(|state| state != b'Z' && state != b'X')
}

/// The bytes read from a pipe so far, and whether the pipe has ended.
#[derive(Debug, Default)]
struct PipeOutput(Arc<Mutex<(Vec<u8>, bool)>>);

impl PipeOutput {
    fn listen(mut pipe: impl Read + Send + 'static) -> Self {
        let output = Self::default();
        let shared = Arc::clone(&output.0);
        std::thread::spawn(move || {
            let mut chunk = [0; 16_384];
            while let Ok(count @ 1..) = pipe.read(&mut chunk) {
                let mut output = shared.lock().unwrap_or_else(PoisonError::into_inner);
                output.0.extend_from_slice(&chunk[..count]);
            }
            shared.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        });
        output
    }

    fn text(&self) -> String {
        let output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&output.0).into_owned()
    }

    fn has_ended(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}
