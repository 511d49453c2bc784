//! The setups of the isolation benchmark: starts and ends each gate, or its peer, between the
//! tenants and the device.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use tidegate_model::{Rate, Span};
use tidegate_sim::isolation::{Aggressor, LoadTenant, RESERVED_PERCENT};

use super::SIZE_MIB;
use super::jobs::{FioFigures, JobTarget};
use crate::experiment::cgroup::{Group, IoLimits, Throttle};
use crate::experiment::child::{Child, Start};
use crate::experiment::controller::Controller;
use crate::experiment::disk::Disk;
use crate::experiment::loop_device::LoopDevice;
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::programs;

const POLL_INTERVAL: Span = Span(5 * Span::MILLISECOND.0);
/// The budget of a stage, given by hand, in hundredths of the device: more would queue there.
const BUDGET_PERCENT: u64 = 90;

/// The rates of a gate's device without control: 4 KiB reads per second, and bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct BareRates {
    pub(super) iops: u64,
    pub(super) bytes: u64,
}

impl BareRates {
    fn percent(self, percent: u64) -> Self {
        Self { iops: self.iops * percent / 100, bytes: self.bytes * percent / 100 }
    }

    /// The rest of it for aggressors, in setups that only have limits.
    fn rest(self) -> Self {
        self.percent(100 - RESERVED_PERCENT)
    }
}

/// A path of the tenants' requests to the device. Dropping it ends its processes.
pub(super) struct PathSetup {
    pub(super) name: &'static str,
    targets: [JobTarget; LoadTenant::ALL.len()],
    means: Means,
    processes: Vec<Child>,
    /// Dropped after the group that it limits, and after the processes.
    _throttle: Option<Throttle>,
    _device: Option<LoopDisk>,
}

/// The means by which the tenants are told apart, as far as fio must be started in some way.
enum Means {
    /// By their exports, or not at all.
    Target,
    /// Programs in the stages of a controller.
    Stage(Controller),
    /// The aggressors' control group.
    Group(Group),
    /// I/O priorities.
    Priority,
}

/// Where the files and processes of setups are.
pub(super) struct BenchFiles<'a> {
    /// For large files.
    pub(super) work: &'a Scratch,
    /// For sockets and small files.
    pub(super) scratch: &'a Scratch,
    pub(super) interrupt: &'a Interrupt,
}

fn failure(message: &'static str) -> impl Fn(std::io::Error) -> Failure {
    move |error| Failure::new(Code::Failure, message).cause(error)
}

fn uri(socket: &Path, export: &str) -> JobTarget {
    let mut uri = OsString::from(format!("nbd+unix:///{export}?socket="));
    uri.push(socket);
    JobTarget::Nbd(uri)
}

impl BenchFiles<'_> {
    /// The tenants' files of the setups without a device or volumes of their own: the aggressors
    /// share one.
    fn file(&self, tenant: LoadTenant) -> PathBuf {
        self.work.join(if tenant == LoadTenant::Victim { "victim" } else { "other" })
    }

    fn files(&self) -> [JobTarget; 3] {
        LoadTenant::ALL.map(|tenant| JobTarget::File {
            path: self.file(tenant).into(),
            offset: 0,
            is_device: false,
        })
    }

    /// The bare files, which are filled here.
    pub(super) fn bare(&self) -> Result<PathSetup, Failure> {
        let mut setup = PathSetup::new("no control", self.files(), Means::Target, Vec::new());
        setup.fill(&LoadTenant::ALL[..2], self)?;
        Ok(setup)
    }

    /// Programs under `tidegate run`, with a budget of less than the device does.
    pub(super) fn stage(&self, capacity: BareRates) -> Result<PathSetup, Failure> {
        let budget = capacity.percent(BUDGET_PERCENT);
        let policy = format!(
            "budget = [\"{} iops\", \"{}\"]\n{}",
            budget.iops,
            Rate(budget.bytes),
            tenants(capacity)
        );
        let controller = Controller::start("stage", &policy, self.scratch, self.interrupt)?;
        Ok(PathSetup::new("stage", self.files(), Means::Stage(controller), Vec::new()))
    }

    /// The aggressors in a control group with limits, on a loop device.
    pub(super) fn cgroup(&self, capacity: BareRates) -> Result<PathSetup, Failure> {
        let name = "cgroup throttling";
        let device = LoopDisk::make(&self.work.join("throttled"))?;
        let refused = |why: String| Failure::new(Code::Failure, why);
        let rest = capacity.rest();
        let throttle = Throttle::new(device.disk.clone()).map_err(refused)?;
        let limits = IoLimits { bandwidth: Rate(rest.bytes), iops: rest.iops };
        let group = throttle.limited("aggressors", limits).map_err(refused)?;
        let setup = PathSetup::new(name, device.targets(), Means::Group(group), Vec::new());
        let mut setup = PathSetup { _throttle: Some(throttle), _device: Some(device), ..setup };
        setup.fill(&LoadTenant::ALL[..2], self)?;
        Ok(setup)
    }

    /// A loop device with the kernel's scheduler BFQ, which knows the I/O priority of a thread.
    pub(super) fn bfq(&self) -> Result<PathSetup, Failure> {
        let device = LoopDisk::make(&self.work.join("scheduled"))?;
        let chosen = device.disk.set_queue("scheduler", "bfq");
        chosen.map_err(failure("the kernel has no scheduler BFQ"))?;
        let setup = PathSetup::new("BFQ", device.targets(), Means::Priority, Vec::new());
        let mut setup = PathSetup { _device: Some(device), ..setup };
        setup.fill(&LoadTenant::ALL[..2], self)?;
        Ok(setup)
    }

    /// A gateway and a node on files, in one process.
    pub(super) fn node(&self, capacity: BareRates) -> Result<PathSetup, Failure> {
        let directory = self.scratch.join("node");
        let (cluster, policy) = (directory.join("cluster.toml"), directory.join("policy.toml"));
        let (controller, socket) = (directory.join("c.sock"), directory.join("nbd.sock"));
        let store = self.work.join("store");
        let volume = |tenant: LoadTenant| {
            let name = tenant.name();
            format!(
                "[[volume]]\nname = \"{name}\"\nsize = \"{SIZE_MIB}MiB\"\ntenant = \"{name}\"\n\
                 nodes = [\"node\"]\n"
            )
        };
        let text = format!(
            "policy = \"{}\"\n[[node]]\nname = \"node\"\naddress = \"unix:{}\"\n\
             directory = \"{}\"\ncapacity = \"{} iops\"\nscheduler = \"unified\"\n\
             [[gateway]]\nname = \"front\"\nnbd = \"unix:{}\"\n{}",
            policy.display(),
            directory.join("node.sock").display(),
            store.display(),
            capacity.iops,
            socket.display(),
            LoadTenant::ALL.map(volume).concat(),
        );
        let written = fs::create_dir(&directory)
            .and_then(|()| fs::create_dir(&store))
            .and_then(|()| fs::write(&policy, tenants(capacity)))
            .and_then(|()| fs::write(&cluster, text));
        written.map_err(failure("cannot write the bench's files"))?;
        let mut arguments: Vec<OsString> = vec!["--socket".into(), controller.into(), "up".into()];
        arguments.push(cluster.into());
        arguments.extend(["--no-http", "--create", "--state"].map(OsString::from));
        arguments.push(directory.into());
        let (name, program) = ("node".into(), programs::tidegate()?.into());
        let start = Start { name, program, arguments, ..Start::default() };
        let child = self.start(&start, &socket)?;
        let targets = LoadTenant::ALL.map(|tenant| uri(&socket, tenant.name()));
        let mut setup = PathSetup::new("node", targets, Means::Target, vec![child]);
        setup.fill(&LoadTenant::ALL, self)?;
        Ok(setup)
    }

    /// Stock servers of the bare files, one for the victim and one for the aggressors; with a rate
    /// for that of the aggressors, or without.
    pub(super) fn nbdkit(&self, rest: Option<BareRates>) -> Result<PathSetup, Failure> {
        let name = if rest.is_some() { "nbdkit's rate filter" } else { "no control" };
        let folder = if rest.is_some() { "rate" } else { "plain" };
        let mut processes = Vec::new();
        for tenant in &LoadTenant::ALL[..2] {
            let socket = self.scratch.join(&format!("{folder}-{}.sock", tenant.name()));
            let mut arguments: Vec<OsString> =
                vec!["-f".into(), "-U".into(), socket.clone().into()];
            let rest = rest.filter(|_| *tenant == LoadTenant::Other).map(BareRates::rest);
            arguments.extend(rest.map(|_| "--filter=rate".into()));
            arguments.extend(["file".into(), self.file(*tenant).into()]);
            // Without these the kernel's cache would answer, and not the device.
            arguments.extend(["cache=none", "fadvise=random"].map(OsString::from));
            arguments.extend(rest.map(|rest| format!("rate={}", 8 * rest.bytes).into()));
            let name = format!("nbdkit-{folder}-{}", tenant.name());
            let start = Start { name, program: "nbdkit".into(), arguments, ..Start::default() };
            processes.push(self.start(&start, &socket)?);
        }
        let targets = LoadTenant::ALL.map(|tenant| {
            let server = if tenant == LoadTenant::Victim { tenant } else { LoadTenant::Other };
            uri(&self.scratch.join(&format!("{folder}-{}.sock", server.name())), "")
        });
        Ok(PathSetup::new(name, targets, Means::Target, processes))
    }

    fn start(&self, start: &Start, socket: &Path) -> Result<Child, Failure> {
        Child::start_listening(start, socket, self.scratch.path(), self.interrupt)
    }
}

fn tenants(capacity: BareRates) -> String {
    let tenant = |tenant: LoadTenant| {
        let (name, class) = (tenant.name(), tenant.class());
        let promised = match tenant {
            LoadTenant::Victim => {
                format!("reservation = \"{} iops\"\n", capacity.percent(RESERVED_PERCENT).iops)
            }
            LoadTenant::Other | LoadTenant::Twin => String::new(),
        };
        format!("[[tenant]]\nname = \"{name}\"\nclass = \"{class}\"\n{promised}")
    };
    LoadTenant::ALL.map(tenant).concat()
}

/// A run of fio that is under way.
struct RunningFio {
    child: Child,
    output: PathBuf,
}

impl PathSetup {
    fn new(
        name: &'static str,
        targets: [JobTarget; 3],
        means: Means,
        processes: Vec<Child>,
    ) -> Self {
        Self { name, targets, means, processes, _throttle: None, _device: None }
    }

    /// Starts fio for a tenant.
    fn fio(
        &self,
        tenant: LoadTenant,
        mut arguments: Vec<OsString>,
        output: PathBuf,
        files: &BenchFiles<'_>,
    ) -> Result<RunningFio, Failure> {
        let (name, program) = (format!("fio-{}", tenant.name()), "fio".into());
        let mut group = None;
        match &self.means {
            Means::Priority => {
                let priority = if tenant == LoadTenant::Victim { 0 } else { 7 };
                arguments.push(format!("--prio={priority}").into());
            }
            Means::Group(aggressors) if tenant != LoadTenant::Victim => {
                group = Some(aggressors.processes());
            }
            Means::Target | Means::Stage(_) | Means::Group(_) => {}
        }
        let start = Start { name, program, arguments, group, ..Start::default() };
        let start = match &self.means {
            Means::Stage(controller) => controller.run(tenant.name(), start),
            _ => start,
        };
        // The report of the run before is none of this one.
        let _ = fs::remove_file(&output);
        Ok(RunningFio { child: Child::start(&start, files.scratch.path())?, output })
    }

    fn finish(
        &mut self,
        mut run: RunningFio,
        files: &BenchFiles<'_>,
    ) -> Result<FioFigures, Failure> {
        let clock = Clock::start();
        while !run.child.has_ended()? {
            for process in &mut self.processes {
                process.has_ended()?;
            }
            files.interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        let text = fs::read_to_string(&run.output).unwrap_or_default();
        FioFigures::parse(&text).ok_or_else(crate::experiment::fio::senseless)
    }

    fn target(&self, tenant: LoadTenant) -> &JobTarget {
        &self.targets[tenant as usize]
    }

    /// Writes the tenants' data once, so that reads find something.
    fn fill(&mut self, tenants: &[LoadTenant], files: &BenchFiles<'_>) -> Result<(), Failure> {
        for tenant in tenants {
            let output = files.scratch.join("fill.json");
            let arguments = self.target(*tenant).fill(&output);
            let run = self.fio(*tenant, arguments, output, files)?;
            self.finish(run, files)?;
        }
        Ok(())
    }

    /// An aggressor without a victim.
    pub(super) fn aggressor(
        &mut self,
        aggressor: &Aggressor,
        length: Span,
        files: &BenchFiles<'_>,
    ) -> Result<FioFigures, Failure> {
        let run = self.attack(aggressor, length, files)?;
        self.finish(run, files)
    }

    fn attack(
        &self,
        aggressor: &Aggressor,
        length: Span,
        files: &BenchFiles<'_>,
    ) -> Result<RunningFio, Failure> {
        let output = files.scratch.join("aggressor.json");
        let target = self.target(aggressor.tenant);
        let arguments = target.aggressor(aggressor.jobs, length, &output);
        self.fio(aggressor.tenant, arguments, output, files)
    }

    /// The victim's figures, and the aggressor's beside it if there is one.
    pub(super) fn run(
        &mut self,
        aggressor: Option<&Aggressor>,
        rate: u64,
        length: Span,
        files: &BenchFiles<'_>,
    ) -> Result<(FioFigures, Option<FioFigures>), Failure> {
        let beside =
            aggressor.map(|aggressor| self.attack(aggressor, length, files)).transpose()?;
        let output = files.scratch.join("victim.json");
        let arguments = self.target(LoadTenant::Victim).victim(rate, length, &output);
        let victim = self.fio(LoadTenant::Victim, arguments, output, files)?;
        let victim = self.finish(victim, files)?;
        let beside = beside.map(|run| self.finish(run, files)).transpose()?;
        Ok((victim, beside))
    }
}

/// A loop device on a file of its own.
struct LoopDisk {
    disk: Disk,
    _device: LoopDevice,
}

impl LoopDisk {
    /// A device with room for the victim and the aggressors.
    fn make(file: &Path) -> Result<Self, Failure> {
        let device = LoopDevice::on_new_file(file, (2 * SIZE_MIB) << 20)?;
        Ok(Self { disk: device.disk()?, _device: device })
    }

    fn targets(&self) -> [JobTarget; 3] {
        LoadTenant::ALL.map(|tenant| JobTarget::File {
            path: format!("/dev/{}", self.disk.name).into(),
            offset: if tenant == LoadTenant::Victim { 0 } else { SIZE_MIB },
            is_device: true,
        })
    }
}
