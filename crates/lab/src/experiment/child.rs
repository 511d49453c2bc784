//! Processes that the experiment starts, and ends.
//!
//! Each process leads a process group of its own, so a Ctrl-C on the terminal reaches the
//! experiment alone, which then ends the processes in order. It sends each a signal to end, and
//! kills those that do not end, with all processes below them. If the experiment is killed itself,
//! the kernel sends that signal ([`tether`]).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::Deserialize;
use tidegate_fabric::tether;
use tidegate_model::Span;

use super::others::ProcessStat;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// How long a process may take to end after SIGTERM.
const PATIENCE: Span = Span(3 * Span::SECOND.0);
/// How long a process may take until it listens.
const LISTENS: Span = Span(10 * Span::SECOND.0);
/// How often to check whether it has.
const POLL_INTERVAL: Span = Span(5 * Span::MILLISECOND.0);

#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    /// The name for people, and for the file that holds its standard error.
    pub(crate) name: String,
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The `cgroup.procs` of the control group that it is to run in.
    pub(crate) group: Option<PathBuf>,
}

impl Start {
    /// The same program, which enters one more control group first: that of this `cgroup.procs`.
    /// Only root may enter groups, so whatever changes the user comes after this.
    pub(crate) fn entering(self, processes: &Path) -> Self {
        self.started_by("sh".into(), ["-c".into(), ENTER.into(), processes.into()])
    }

    /// The same program, started by `starter`, whose own arguments come before it.
    pub(crate) fn started_by(
        self,
        starter: OsString,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Self {
        let own = [self.program].into_iter().chain(self.arguments);
        let arguments = arguments.into_iter().chain(own).collect();
        Self { program: starter, arguments, ..self }
    }
}

/// A process of ours. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    process: Process,
    status: Option<ExitStatus>,
    /// Where its standard error goes.
    stderr: PathBuf,
}

/// Enters the group named first, then becomes the program named second: so all that it does counts
/// from its first request on, and it keeps its number.
const ENTER: &str = "echo $$ > \"$0\" && exec \"$@\"";

impl Child {
    /// Starts a process with its output in a file in `directory`.
    pub(crate) fn start(start: &Start, directory: &Path) -> Result<Self, Failure> {
        let stderr = directory.join(format!("{}.stderr", start.name));
        let inside = start.group.as_ref().map(|group| start.clone().entering(group));
        let Start { program, arguments, environment, .. } = inside.as_ref().unwrap_or(start);
        let mut command = Command::new(program);
        command.args(arguments).envs(environment.iter().cloned());
        // The user set these variables for the command that they typed, not for its children.
        for (name, _) in std::env::vars_os() {
            let is_ours = name.to_string_lossy().starts_with("TIDEGATE_");
            if is_ours && name != "TIDEGATE_SHIM" {
                command.env_remove(name);
            }
        }
        let spawned = File::create(&stderr).and_then(|stderr| {
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr);
            tether::tie(command.process_group(0));
            command.spawn()
        });
        let process = spawned.map_err(|error| cannot_start(&start.program, error))?;
        Ok(Self { name: start.name.clone(), process, status: None, stderr })
    }

    /// Starts a process, and waits until it listens on the Unix socket at `socket`.
    ///
    /// # Errors
    /// If it cannot be started, ends, or does not listen in time; if the user ends the command.
    pub(crate) fn start_listening(
        start: &Start,
        socket: &Path,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        // The socket is there before its process listens.
        let is_listening = || UnixStream::connect(socket).is_ok();
        Self::start_until(start, is_listening, directory, interrupt)
    }

    /// Starts a process, and waits until it listens, as `is_listening` finds out.
    ///
    /// # Errors
    /// If it cannot be started, ends, or does not listen in time; if the user ends the command.
    pub(crate) fn start_until(
        start: &Start,
        is_listening: impl Fn() -> bool,
        directory: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let mut child = Self::start(start, directory)?;
        let clock = Clock::start();
        while !is_listening() {
            if child.has_ended()? || clock.now().0 > LISTENS.0 {
                let message = format!("{} does not listen", start.name);
                return Err(Failure::new(Code::Failure, message).cause(child.last_words()));
            }
            interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        Ok(child)
    }

    /// Processor time that it has used so far, in microseconds.
    pub(crate) fn cpu_us(&self) -> f64 {
        let ticks = ProcessStat::of(self.pid()).map_or(0, |stat| stat.own);
        ticks as f64 * 1e6 / rustix::param::clock_ticks_per_second() as f64
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has ended and the kernel still has its counts, until [`Self::has_ended`] notices.
    pub(crate) fn is_ending(&self) -> bool {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let waited =
            pid.filter(|_| self.status.is_none()).map(|pid| waitid(WaitId::Pid(pid), options));
        waited.is_some_and(|waited| waited.is_ok_and(|status| status.is_some()))
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// If it ended other than well.
    pub(crate) fn has_ended(&mut self) -> Result<bool, Failure> {
        if self.status.is_none() {
            self.status = self.process.try_wait().map_err(|error| self.failed(&error))?;
        }
        match self.status {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(status) => Err(self.failed(&Ended(status))),
        }
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// If it has failed, or the user ends the command.
    pub(crate) fn wait(&mut self, interrupt: &Interrupt) -> Result<(), Failure> {
        let clock = Clock::start();
        while !self.has_ended()? {
            interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        Ok(())
    }

    /// Ends it: SIGTERM first, then SIGKILL.
    pub(crate) fn end(&mut self) {
        let clock = Clock::start();
        // For those that only wait for us.
        drop(self.process.stdin.take());
        let below = tree(self.pid());
        self.signal(Signal::TERM);
        while self.is_alive() && clock.now().0 < PATIENCE.0 {
            clock.sleep_until(clock.now().after(POLL_INTERVAL));
        }
        if self.is_alive() {
            let later = tree(self.pid());
            self.signal(Signal::KILL);
            let _ = self.process.wait();
            // Its descendants, from before and after the signal, have lost their parent.
            for pid in below.into_iter().chain(later).collect::<BTreeSet<_>>() {
                if pid != self.pid() {
                    signal(pid, Signal::KILL);
                }
            }
        }
    }

    /// The last line that it wrote to standard error.
    pub(crate) fn last_words(&self) -> String {
        let stderr = fs::read_to_string(&self.stderr).unwrap_or_default();
        stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
    }

    fn is_alive(&mut self) -> bool {
        self.status.is_none() && {
            self.status = self.process.try_wait().ok().flatten();
            self.status.is_none()
        }
    }

    fn signal(&self, wanted: Signal) {
        // Not once it was waited for: another process may have its number by then.
        if self.status.is_none() {
            signal(self.pid(), wanted);
        }
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Failure {
        let words = self.last_words();
        let fail =
            |detail: &str| Failure::new(Code::Failure, format!("{} {why}{detail}", self.name));
        // Our own commands say what is wrong and how to mend it, if they were asked for JSON.
        match serde_json::from_str::<CommandError>(&words) {
            Ok(CommandError { error, help: Some(help) }) => fail(&format!(": {error}")).help(help),
            Ok(CommandError { error, help: None }) => fail(&format!(": {error}")),
            Err(_) if words.is_empty() => fail(""),
            Err(_) => fail(&format!(": {words}")),
        }
    }
}

/// The file of the program of this name, in the first folder of PATH that has one.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Whether a program of this name is in a folder of PATH.
pub(crate) fn is_there(program: &str) -> bool {
    in_path(program).is_some()
}

/// A command that Ctrl-C on the terminal does not reach. It makes or removes something of the
/// kernel's, and its end decides whether that is there.
pub(crate) fn apart(program: &str) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    command
}

/// Runs a command to its end. Ctrl-C on the terminal ends it too; then that is the reason.
///
/// # Errors
/// If it fails, or the user ends it.
pub(crate) fn run(
    program: &str,
    arguments: &[&str],
    message: &str,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let output = output(Command::new(program).args(arguments), message);
    interrupt.check()?;
    output.map(drop)
}

/// Runs a command without input to its end, and returns its standard output.
///
/// # Errors
/// If it cannot be started; if it fails, then with `message` and its standard error as the cause.
pub(crate) fn output(command: &mut Command, message: &str) -> Result<Vec<u8>, Failure> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| cannot_start(&command.get_program().to_owned(), error))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Failure::new(Code::Failure, message).cause(why))
        }
    }
}

/// A failure of one of our own commands.
#[derive(Deserialize)]
struct CommandError {
    error: String,
    help: Option<String>,
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

struct Ended(ExitStatus);

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) => write!(f, "ended with code {code}"),
            (None, Some(signal)) => write!(f, "was ended by signal {signal}"),
            (None, None) => f.write_str("ended"),
        }
    }
}

pub(crate) fn cannot_start(program: &OsString, error: io::Error) -> Failure {
    let program = program.to_string_lossy();
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let failure = Failure::new(Code::Failure, format!("cannot start {program}")).cause(error);
    match is_missing {
        true => failure.help(format!("install it, for example with `apt-get install {program}`")),
        false => failure,
    }
}

fn signal(pid: u32, signal: Signal) {
    // It may have ended a moment ago; then there is nothing to do.
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// A process and all below it, parents before their children.
pub(crate) fn tree(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        // Each thread has children of its own.
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        for thread in threads {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            let pids = children.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
            for pid in pids {
                // Numbers are used again; a tree that was read while it changed ends all the same.
                if !found.contains(&pid) {
                    found.push(pid);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Start {
        Start {
            name: name.into(),
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            ..Start::default()
        }
    }

    fn wait(child: &mut Child) -> Result<bool, Failure> {
        let clock = Clock::start();
        while clock.now().0 < 10 * Span::SECOND.0 {
            if child.has_ended()? {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    #[test]
    fn a_child_succeeds_or_its_error_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let mut good = Child::start(&shell("good", "exit 0"), directory.path()).unwrap();
        let clock = Clock::start();
        while !good.is_ending() {
            assert!(clock.now().0 < 10 * Span::SECOND.0, "it does not end");
            std::thread::yield_now();
        }
        assert!(wait(&mut good).unwrap() && !good.is_ending());
        let bad = shell("bad", "echo first >&2; echo no room >&2; exit 7");
        let mut bad = Child::start(&bad, directory.path()).unwrap();
        assert_eq!(wait(&mut bad).unwrap_err().to_string(), "bad ended with code 7: no room");
        let ours = shell("ours", r#"echo '{"error":"no shim","help":"build it"}' >&2; exit 1"#);
        let mut ours = Child::start(&ours, directory.path()).unwrap();
        let failure = serde_json::to_value(wait(&mut ours).unwrap_err().to_json()).unwrap();
        assert_eq!(failure["error"], "ours ended with code 1: no shim");
        assert_eq!(failure["help"], "build it");
        let missing = Start { program: "no-such-program".into(), ..Start::default() };
        let failure = Child::start(&missing, directory.path()).unwrap_err();
        assert_eq!(failure.to_string(), "cannot start no-such-program");
    }

    #[test]
    fn a_command_apart_is_in_no_group_with_us() {
        let mut command = apart("sh");
        let output = output(command.args(["-c", "echo $$ $(cut -d ' ' -f 5 /proc/$$/stat)"]), "");
        let output = String::from_utf8(output.unwrap()).unwrap();
        let [pid, group] = output.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("{output:?}");
        };
        assert_eq!(pid, group, "the terminal's Ctrl-C reaches it");
    }

    #[test]
    fn all_below_a_child_ends_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let script = "trap '' TERM; sleep 600 & echo $! > \"$0\"; wait; wait; sleep 600";
        let mut start = shell("parent", script);
        let file = directory.path().join("pid");
        start.arguments.push(file.clone().into());
        let mut parent = Child::start(&start, directory.path()).unwrap();
        let clock = Clock::start();
        let below = loop {
            let text = fs::read_to_string(&file).unwrap_or_default();
            if let Ok(pid) = text.trim().parse::<u32>() {
                break pid;
            }
            assert!(clock.now().0 < 10 * Span::SECOND.0, "the shell did not start");
            std::thread::yield_now();
        };
        assert_eq!(tree(parent.pid()), [parent.pid(), below]);
        parent.end();
        let gone = || !Path::new(&format!("/proc/{below}/fd/0")).exists();
        while !gone() && clock.now().0 < 10 * Span::SECOND.0 {
            std::thread::yield_now();
        }
        assert!(gone(), "what was below the child lives on");
    }
}
