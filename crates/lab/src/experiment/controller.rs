//! Tidegate itself, as a user would run it: `tidegate up`, `tidegate apply`, `tidegate run`, on a
//! socket and in a directory of their own.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_model::Span;
use tidegate_proto::controller::status::Status;
use tidegate_proto::message::OperatorRequest;

use super::child::{self, Child, Start};
use super::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::operator::Operator;
use tidegate_console::programs;

/// How long a controller may take until it answers.
const PATIENCE: Span = Span(10 * Span::SECOND.0);
/// How long nodes and gateways may take until they are connected.
const CONNECTS: Span = Span(15 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(10 * Span::MILLISECOND.0);

/// A controller with a policy in force. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Controller {
    process: Child,
    program: PathBuf,
    socket: PathBuf,
}

impl Controller {
    /// Starts a controller called `name` and puts `policy` in force.
    pub(crate) fn start(
        name: &str,
        policy: &str,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        Self::start_with(name, &[], policy, scratch, interrupt)
    }

    /// Starts a controller that leads the nodes of the cluster in the file `cluster`, which run
    /// elsewhere, and puts `policy` in force.
    pub(crate) fn lead(
        name: &str,
        cluster: &Path,
        policy: &str,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let arguments = [cluster.into(), "--role".into(), "controller".into()];
        Self::start_with(name, &arguments, policy, scratch, interrupt)
    }

    /// Starts a controller with all nodes and gateways of the cluster in the file `cluster`, whose
    /// volumes are made if they are not there, and puts `policy` in force.
    pub(crate) fn all(
        name: &str,
        cluster: &Path,
        policy: &str,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        Self::start_with(name, &[cluster.into(), "--create".into()], policy, scratch, interrupt)
    }

    fn start_with(
        name: &str,
        arguments: &[OsString],
        policy: &str,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let program = programs::tidegate()?;
        let socket = scratch.join(&format!("{name}.sock"));
        let mut start = up(name, &program, &socket, scratch);
        start.arguments.extend_from_slice(arguments);
        let mut process = Child::start(&start, scratch.path())?;
        let clock = Clock::start();
        while let Err(failure) = Operator::connect_for(&socket, PATIENCE) {
            if process.has_ended()? || clock.now().0 > PATIENCE.0 {
                return Err(failure);
            }
            interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        let controller = Self { process, program, socket };
        controller.apply(policy, &scratch.join(&format!("{name}.toml")))?;
        Ok(controller)
    }

    /// `command`, run under this controller for a tenant.
    pub(crate) fn run(&self, tenant: &str, command: Start) -> Start {
        let socket = ["--socket".into(), self.socket.clone().into()];
        // Where it cannot be controlled the experiment says nothing, so it is not to start then.
        let run = ["run", "--fail-closed", "--tenant", tenant, "--"].map(OsString::from);
        command.started_by(self.program.clone().into(), socket.into_iter().chain(run))
    }

    /// Makes the volumes of the cluster in the file `cluster`, before its nodes run.
    pub(crate) fn create_volumes(&self, cluster: &Path, scratch: &Scratch) -> Result<(), Failure> {
        let mut command = self.command();
        command.args(["volume", "create"]).arg(cluster).arg("--state").arg(scratch.path());
        child::output(&mut command, "the experiment's volumes cannot be made").map(drop)
    }

    /// A node or gateway of the cluster in the file `cluster`, which this controller leads.
    pub(crate) fn part(&self, cluster: &Path, role: &str, name: &str, scratch: &Scratch) -> Start {
        let mut start = up(name, &self.program, &self.socket, scratch);
        let words = ["--role", role, "--name", name].map(OsString::from);
        start.arguments.push(cluster.into());
        start.arguments.extend(words);
        start
    }

    /// Waits until every node, gateway and data node is connected and the cluster has a policy.
    ///
    /// # Errors
    /// If that takes longer than [`CONNECTS`], or the user ends the command.
    pub(crate) fn wait_for_cluster(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        let mut operator = Operator::connect(&self.socket)?;
        let clock = Clock::start();
        loop {
            let status: Status = operator.call_as(&OperatorRequest::Status)?;
            let is_ready = status.cluster.as_ref().is_some_and(|cluster| {
                cluster.revision > 0
                    && cluster.nodes.iter().all(|node| node.is_connected)
                    && cluster.gateways.iter().all(|gateway| gateway.is_connected)
                    && cluster.data_nodes.iter().all(|node| node.is_connected)
            });
            if is_ready {
                return Ok(());
            }
            if clock.now().0 > CONNECTS.0 {
                let what = "not all of the experiment's cluster found its controller";
                return Err(Failure::new(Code::Failure, what));
            }
            interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
    }

    /// A command of `tidegate` for this controller, without its words.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--socket").arg(&self.socket);
        command
    }

    /// Where it listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Processor time that it has used so far, in microseconds; see [`Child::cpu_us`].
    pub(crate) fn cpu_us(&self) -> f64 {
        self.process.cpu_us()
    }

    /// Puts `policy` in force with `tidegate apply`, by way of `file`.
    pub(crate) fn apply(&self, policy: &str, file: &Path) -> Result<(), Failure> {
        let fail = |error| {
            Failure::new(Code::Failure, "cannot write the experiment's policy").cause(error)
        };
        fs::write(file, policy).map_err(fail)?;
        child::output(
            self.command().arg("apply").arg(file),
            "the controller refuses the experiment's policy",
        )
        .map(drop)
    }
}

fn up(name: &str, program: &Path, socket: &Path, scratch: &Scratch) -> Start {
    let state = scratch.join(&format!("{name}.state"));
    let arguments =
        ["--socket".into(), socket.into(), "up".into(), "--no-http".into(), "--state".into()];
    let arguments = arguments.into_iter().chain([state.into()]).collect();
    let name = name.into();
    Start { name, program: program.into(), arguments, ..Start::default() }
}
