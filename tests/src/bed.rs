//! A place to test in: a folder, a controller of its own, and commands that talk to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Signal;
use serde_json::Value;

use crate::process::{self, ProgramOutcome, Running};
use crate::{built, eventually, wait_for};

/// The longest path that a Unix socket can have.
const SOCKET_PATH_MAX: usize = 107;

static BEDS: AtomicU32 = AtomicU32::new(0);

/// A folder on disk with a controller of its own. Dropped, the controller is ended and the folder
/// removed; where a test fails, the folder stays and the controller's log is printed.
#[derive(Debug)]
pub struct Bed {
    folder: PathBuf,
    controller: Option<Running>,
}

impl Bed {
    /// A folder, and no controller yet.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn empty() -> Self {
        let number = BEDS.fetch_add(1, Ordering::Relaxed);
        let folder = built::scratch().join(format!("bed-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder to test in");
        let bed = Self { folder, controller: None };
        let length = bed.socket().as_os_str().len();
        assert!(
            length <= SOCKET_PATH_MAX,
            "{} is too long for a socket; set TIDEGATE_TEST_DIR to a shorter folder",
            bed.folder.display()
        );
        bed
    }

    /// A folder, and a controller with this policy in force.
    ///
    /// # Panics
    /// If the controller does not come up or does not take the policy.
    #[track_caller]
    pub fn new(policy: &str) -> Self {
        let mut bed = Self::empty();
        bed.up();
        bed.apply(policy).success();
        bed
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A new folder in the folder.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn subfolder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).expect("a folder in the folder");
        path
    }

    /// Where the controller listens.
    pub fn socket(&self) -> PathBuf {
        self.path("controller.sock")
    }

    /// The command that starts a controller here.
    pub fn controller_command(&self) -> Command {
        let mut command = self.tidegate(&["up", "--no-http", "--log", "info"]);
        command.arg("--state").arg(self.path("state"));
        command
    }

    /// Starts a controller and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn up(&mut self) {
        self.up_with(&mut self.controller_command());
    }

    /// Starts a controller with this command and waits until it answers.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn up_with(&mut self, command: &mut Command) {
        let mut controller = process::spawn(command);
        wait_for("a controller that is ready", crate::PATIENCE, || {
            assert!(controller.is_running(), "the controller ends: {}", controller.stderr());
            controller.stdout().contains(" is ready at ").then_some(())
        });
        self.controller = Some(controller);
    }

    /// The controller.
    ///
    /// # Panics
    /// If there is none.
    pub fn controller(&mut self) -> &mut Running {
        self.controller.as_mut().expect("a controller was started")
    }

    /// Ends the controller as a user would.
    ///
    /// # Panics
    /// If it does not end well.
    #[track_caller]
    pub fn down(&mut self) -> ProgramOutcome {
        let controller = self.controller.take().expect("a controller was started");
        controller.signal(Signal::TERM);
        controller.finish().success()
    }

    /// Ends the controller as a power cut would.
    pub fn kill_controller(&mut self) {
        if let Some(controller) = self.controller.take() {
            controller.kill();
        }
    }

    /// `tidegate` with these arguments, talking to this bed's controller.
    pub fn tidegate(&self, arguments: &[&str]) -> Command {
        self.command(&built::tidegate(), arguments)
    }

    /// `tidegate-lab` with these arguments, likewise.
    pub fn tidegate_lab(&self, arguments: &[&str]) -> Command {
        self.command(&built::tidegate_lab(), arguments)
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        // Settings of the user who runs the tests are not for the tests.
        let set = std::env::vars_os().map(|(name, _)| name);
        for name in set.filter(|name| name.to_string_lossy().starts_with("TIDEGATE_")) {
            command.env_remove(name);
        }
        command.env("TIDEGATE_SOCKET", self.socket()).args(arguments);
        command
    }

    /// `tidegate run` of a program for a tenant, or by the policy's rules if that is empty. The
    /// program's arguments are for the caller to add.
    pub fn run(&self, tenant: &str, program: impl AsRef<Path>) -> Command {
        built::shim();
        let mut command = self.tidegate(&["run"]);
        if !tenant.is_empty() {
            command.args(["--tenant", tenant]);
        }
        command.arg("--").arg(program.as_ref()).current_dir(&self.folder);
        command
    }

    /// `tidegate run` of a shell script, which stops at its first failure.
    pub fn run_script(&self, tenant: &str, script: &str) -> Command {
        let mut command = self.run(tenant, "sh");
        command.args(["-euc", script]);
        command
    }

    /// Brings a policy into force, or not.
    ///
    /// # Panics
    /// If it cannot be written.
    #[track_caller]
    pub fn apply(&self, policy: &str) -> ProgramOutcome {
        self.apply_with(policy, &[])
    }

    /// [`Self::apply`] with more arguments.
    ///
    /// # Panics
    /// If it cannot be written.
    #[track_caller]
    pub fn apply_with(&self, policy: &str, arguments: &[&str]) -> ProgramOutcome {
        let number = BEDS.fetch_add(1, Ordering::Relaxed);
        let path = self.path(&format!("policy-{number}.toml"));
        fs::write(&path, policy).expect("the policy can be written");
        process::run(self.tidegate(&["apply"]).arg(path).args(arguments))
    }

    /// Returns the whole status that the controller reports.
    ///
    /// # Panics
    /// If it does not answer.
    #[track_caller]
    pub fn status(&self) -> Value {
        let outcome = process::run(&mut self.tidegate(&["status", "--json"])).success();
        serde_json::from_str(&outcome.stdout)
            .unwrap_or_else(|error| panic!("a status that is none: {error}\n{outcome:?}"))
    }

    /// Returns the status of a tenant that the controller reports.
    ///
    /// # Panics
    /// If there is no such tenant.
    #[track_caller]
    pub fn tenant(&self, name: &str) -> Value {
        let status = self.status();
        let tenants = status["tenants"].as_array().map_or(&[][..], Vec::as_slice);
        let found = tenants.iter().find(|tenant| tenant["name"] == name);
        found.unwrap_or_else(|| panic!("no tenant {name} in {status:#}")).clone()
    }

    /// Waits until the controller has counted this much for a tenant: `bytes` or `operations`.
    ///
    /// # Panics
    /// If it does not come to it.
    #[track_caller]
    pub fn wait_for_count(&self, tenant: &str, what: &str, at_least: u64) {
        let mut last = 0;
        eventually(&format!("{at_least} {what} of {tenant}"), || {
            last = self.tenant(tenant)[what].as_u64().unwrap_or(0);
            last >= at_least
        });
    }

    /// Waits until this many stages are connected.
    ///
    /// # Panics
    /// If they do not come, or go.
    #[track_caller]
    pub fn wait_for_stages(&self, count: usize) {
        eventually(&format!("{count} stages"), || {
            self.status()["stages"].as_array().is_some_and(|stages| stages.len() == count)
        });
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The controller's own end prints its log.
            eprintln!("-- left for you to look at: {}", self.folder.display());
            return;
        }
        self.controller = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}
