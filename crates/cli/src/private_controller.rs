//! A controller for one run of a program: `tidegate run --profile`.
//!
//! It is a process of its own, for the supervisor of a program has one thread and owns nothing but
//! the stage. The process runs a hidden command of this program ([`serve`]) and is started and
//! ended by the supervisor ([`PrivateController`]). It gets its policy on standard input, and says
//! on standard output that the policy is in force. The supervisor makes the controller's folder,
//! and the controller removes it at its end.
//!
//! The controller ends with the supervisor, however that ends: the kernel sends it SIGTERM then
//! (`PR_SET_PDEATHSIG`). Programs that the run leaves behind go on with the policy's `fallback`.
//! Where both processes are killed in one moment, the folder stays, and the next run removes it.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use tidegate_controller::{Config, LogFormat, Logging, ServeError, serve_with};
use tidegate_fabric::default_paths::default_state;
use tidegate_fabric::trusted::{Folder, Purpose};
use tidegate_proto::message::OperatorRequest;

use tidegate_console::failure::{Code, Failure};
use tidegate_console::operator::Operator;
use tidegate_console::policy_file::PolicyFile;

/// The name of the hidden command.
pub(crate) const COMMAND: &str = "private-controller";

/// The folder of all private controllers, in the state directory.
const RUNS: &str = "runs";

/// The socket's file in the folder of a controller.
const SOCKET: &str = "controller.sock";

/// The line that the controller prints once its policy is in force.
const READY: &str = "ready";

/// A running controller. Dropped, it is ended.
#[derive(Debug)]
pub(crate) struct PrivateController {
    process: Child,
    folder: PathBuf,
}

impl PrivateController {
    /// Starts a controller with this policy, and waits until the policy is in force.
    ///
    /// # Errors
    /// If it does not start. The controller has printed the reason.
    pub(crate) fn start(policy: &PolicyFile) -> Result<Self, Failure> {
        let failed = |error: io::Error| {
            Failure::new(Code::Failure, "cannot start a controller for this run").cause(error)
        };
        let state = state();
        remove_left_behind(&state.join(RUNS));
        let folder = folder(&state, std::process::id());
        Folder::make(&folder, Purpose::Private).map_err(|error| {
            Failure::quoted(Code::Failure, &format!("cannot make {}: {error}", folder.display()))
        })?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // Variables of this run are not for its controller.
        let variables = std::env::vars_os().map(|(name, _)| name);
        for name in variables.filter(|name| name.to_string_lossy().starts_with("TIDEGATE_")) {
            command.env_remove(name);
        }
        command.env("TIDEGATE_STATE", &state).arg(COMMAND);
        command.arg(std::process::id().to_string()).arg(&policy.origin);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C on a terminal is for the program, which may go on.
        command.process_group(0);
        let process = command.spawn().map_err(failed)?;
        let mut controller = Self { process, folder };
        controller.hand_over(&policy.text).map_err(failed)?;
        Ok(controller)
    }

    /// Sends the policy, and waits for the answer.
    fn hand_over(&mut self, policy: &str) -> io::Result<()> {
        let (stdin, stdout) = (self.process.stdin.take(), self.process.stdout.take());
        // A controller that has ended reads nothing; that it printed nothing says so, too.
        let _ = stdin.map(|mut stdin| stdin.write_all(policy.as_bytes()));
        let mut line = String::new();
        stdout.map(BufReader::new).map(|mut from| from.read_line(&mut line)).transpose()?;
        match line.trim_end() == READY {
            true => Ok(()),
            false => Err(io::Error::other("it ended before its policy was in force")),
        }
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }
}

impl Drop for PrivateController {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        let _ = self.process.wait();
    }
}

/// The state directory that `tidegate up` would have.
fn state() -> PathBuf {
    let state = std::env::var_os("TIDEGATE_STATE").filter(|path| !path.is_empty());
    state.map_or_else(default_state, PathBuf::from)
}

/// The folder of the controller of this supervisor.
fn folder(state: &Path, supervisor: u32) -> PathBuf {
    state.join(RUNS).join(supervisor.to_string())
}

/// Removes the folders of runs whose supervisor is gone. Each has the number of that process.
fn remove_left_behind(runs: &Path) {
    for entry in fs::read_dir(runs).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u32>().ok());
        let is_gone = number.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        if is_gone {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Runs a controller until SIGTERM or the end of the process `supervisor`, which started this one.
/// Its policy is on standard input; `origin` says where the policy came from.
///
/// # Errors
/// If it cannot start.
pub(crate) fn serve(supervisor: u32, origin: String) -> Result<(), Failure> {
    let removed = RemovedFolder(folder(&state(), supervisor));
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(io::Error::from)
        .map_err(|error| Failure::new(Code::Failure, "cannot follow the run").cause(error))?;
    // The end of a supervisor that had ended before that moment sends no signal.
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    if parent.and_then(|pid| u32::try_from(pid).ok()) != Some(supervisor) {
        return Ok(());
    }
    let mut policy = String::new();
    io::stdin()
        .read_to_string(&mut policy)
        .map_err(|error| Failure::new(Code::Failure, "cannot read the policy").cause(error))?;
    let socket = removed.0.join(SOCKET);
    let config = Config {
        socket: socket.clone(),
        state: removed.0.clone(),
        http: None,
        log: Logging { filter: "error".into(), format: LogFormat::Text },
        ..Config::default()
    };
    let ready = move |_| {
        let request = OperatorRequest::Apply { policy, source: origin, dry_run: false, expect: 0 };
        Operator::connect(&socket)?.call(&request)?;
        let mut stdout = io::stdout();
        writeln!(stdout, "{READY}")
            .and_then(|()| stdout.flush())
            .map_err(|error| Failure::new(Code::Failure, "the run is gone").cause(error))?;
        Ok::<_, Ended>(())
    };
    serve_with(config, ready, || {}).map_err(|ended| ended.0)
}

/// A folder that is removed with everything in it at the end.
struct RemovedFolder(PathBuf);

impl Drop for RemovedFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Why the controller ended: its own error, or that of putting the policy in force.
struct Ended(Failure);

impl From<ServeError> for Ended {
    fn from(error: ServeError) -> Self {
        Self(Failure::quoted(Code::Failure, &error.to_string()))
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}
