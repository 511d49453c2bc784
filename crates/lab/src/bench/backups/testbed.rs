//! The testbed of the backups benchmark: a database and a snapshot of it on one disk, and the runs
//! of clients and of a backup, as the kernel counts what they move.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tidegate_model::{Rate, Span, Time};
use tidegate_proto::message::OperatorRequest;

use super::BackupPlan;
use super::database::{Postgres, Transactions, Workload, as_server_user, take_log};
use super::systems::{self, BackupSystem};
use crate::bench::mounted_disk::{MountedDisk, disk_folder};
use crate::experiment::cgroup::{Group, IoLimits, Throttle, memory_group};
use crate::experiment::child::{self, Child, Start};
use crate::experiment::controller::Controller;
use crate::experiment::remains::RunFolder;
use crate::experiment::scratch::Scratch;
use crate::experiment::witness::{CountedBytes, Witness};
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::operator::Operator;

/// The size of the device: the database, its log, and the snapshot fit.
const SIZE: u64 = 5 << 30;
/// Memory of the database's programs, and of those of the backup, with their page cache: less than
/// their files, so that they read the disk.
const DATABASE_MEMORY: u64 = 192 << 20;
const BACKUP_MEMORY: u64 = 64 << 20;
const POLL_INTERVAL: Span = Span(20 * Span::MILLISECOND.0);
/// How much longer than planned clients may take until they are given up.
const PATIENCE: Span = Span(30 * Span::SECOND.0);

/// The device below the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BackupDevice {
    /// A file system on the disk of this machine, without other limits.
    Disk,
    /// The same, of which the kernel gives both programs together what a volume of a cloud
    /// has.
    Volume,
}

impl BackupDevice {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Volume => "volume of 3,000 iops and 125 MiB/s",
        }
    }
}

/// The figures of one run. Bytes are those of the device, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BackupRun {
    pub(super) p99_ms: f64,
    /// Transactions per second.
    pub(super) transactions: f64,
    pub(super) database_bytes: f64,
    pub(super) backup_bytes: f64,
}

/// A database and its snapshot, on one device. Fields are dropped in order: processes first.
pub(super) struct BackupTestbed<'a> {
    plan: BackupPlan,
    interrupt: &'a Interrupt,
    database: Postgres,
    snapshot: PathBuf,
    /// Of each of our systems that has run on this device.
    controllers: Vec<(BackupSystem, Controller)>,
    /// The device's group, if it is not the whole disk.
    volume: Option<Group>,
    /// For limits of the backup alone.
    throttle: Throttle,
    database_memory: Group,
    backup_memory: Group,
    /// Sockets and outputs; then the disk, and the folder with its file.
    scratch: Scratch,
    disk: MountedDisk,
    _work: RunFolder,
}

impl<'a> BackupTestbed<'a> {
    /// Makes and fills the database, and copies it.
    ///
    /// # Errors
    /// If something that it needs is missing.
    pub(super) fn new(plan: BackupPlan, interrupt: &'a Interrupt) -> Result<Self, Failure> {
        let failed = |what: &str, error: io::Error| {
            Failure::new(Code::Failure, format!("cannot make {what}")).cause(error)
        };
        let refused = |why: String| Failure::new(Code::Failure, why);
        let here = std::env::current_dir().map_err(|error| failed("files here", error))?;
        let work = disk_folder(&here, ".tidegate-bench-backups-")
            .map_err(|error| failed("files here", error))?;
        let scratch = Scratch::new()?;
        // The database is that of another user.
        for folder in [work.path(), scratch.path()] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711))
                .map_err(|error| failed("folders for another user", error))?;
        }
        // The program that is missing most often is looked for first.
        Postgres::find(PathBuf::new(), PathBuf::new())?;
        let disk = MountedDisk::make(&work, SIZE, interrupt)?;
        let database = Postgres::find(disk.join("database"), scratch.join("run"))?;
        let throttle = Throttle::new(disk.disk.clone()).map_err(refused)?;
        let database_memory = memory_group("database", DATABASE_MEMORY).map_err(refused)?;
        let backup_memory = memory_group("backup", BACKUP_MEMORY).map_err(refused)?;
        let snapshot = disk.join("snapshot");
        let testbed = Self {
            plan,
            interrupt,
            database,
            snapshot,
            controllers: Vec::new(),
            volume: None,
            throttle,
            database_memory,
            backup_memory,
            scratch,
            disk,
            _work: work,
        };
        testbed.fill()?;
        Ok(testbed)
    }

    /// Puts another device below the files, and forgets what Tidegate knows of the last one.
    pub(super) fn change_device(&mut self, device: BackupDevice) -> Result<(), Failure> {
        self.controllers.clear();
        self.volume = None;
        if device == BackupDevice::Volume {
            let group = self.throttle.limited("volume", IoLimits::CLOUD_VOLUME);
            self.volume = Some(group.map_err(|why| Failure::new(Code::Failure, why))?);
        }
        Ok(())
    }

    fn fill(&self) -> Result<(), Failure> {
        self.database.create()?;
        let server = self.start_server(as_server_user(self.database.server()))?;
        let fill = self.database.fill(self.plan.scale);
        Child::start(&fill, self.scratch.path())?.wait(self.interrupt)?;
        drop(server);
        let mut copy = Command::new("cp");
        copy.arg("-R").arg(&self.database.data).arg(&self.snapshot);
        child::output(&mut copy, "cannot copy the database")?;
        // From here on the page cache of these files belongs to the groups.
        rustix::fs::sync();
        for folder in [&self.database.data, &self.snapshot] {
            forget(folder).map_err(|error| {
                Failure::new(Code::Failure, "the page cache keeps the database").cause(error)
            })?;
        }
        Ok(())
    }

    /// A process of the database or of the backup, in the groups for it.
    fn inside(&self, start: Start, memory: &Group) -> Start {
        let start = start.entering(&memory.processes());
        match &self.volume {
            Some(volume) => start.entering(&volume.processes()),
            None => start,
        }
    }

    fn start_server(&self, start: Start) -> Result<Child, Failure> {
        let start = self.inside(start, &self.database_memory);
        let is_ready = || self.database.is_ready();
        Child::start_until(&start, is_ready, self.scratch.path(), self.interrupt)
    }

    /// Starts the controller of one of our systems, if it does not run. A peer has none.
    fn start_controller(&mut self, system: BackupSystem, alone: Rate) -> Result<(), Failure> {
        let folder = self.disk.path();
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let Some(policy) = system.policy(&folder, alone) else { return Ok(()) };
        if self.controller(system).is_none() {
            let name = if system == BackupSystem::Measured { "measured" } else { "stated" };
            let controller = Controller::start(name, &policy, &self.scratch, self.interrupt)?;
            self.controllers.push((system, controller));
        }
        Ok(())
    }

    fn controller(&self, system: BackupSystem) -> Option<&Controller> {
        let mut all = self.controllers.iter();
        all.find(|(of, _)| *of == system).map(|(_, controller)| controller)
    }

    /// The rate of the backup alone, without control.
    pub(super) fn backup_alone(&self) -> Result<Rate, Failure> {
        let backup = self.start_backup(BackupSystem::Bare, Rate(0), None)?;
        let clock = Clock::start();
        let begin = Time(self.plan.warm.0);
        self.interrupt.sleep_until(clock, begin)?;
        let (before, begin) = (moved(&backup.0), clock.now());
        self.interrupt.sleep_until(clock, begin.after(self.plan.run))?;
        let seconds = clock.now().since(begin).as_seconds();
        Ok(Rate(((moved(&backup.0) - before) as f64 / seconds) as u64))
    }

    /// The backup, and the group of its own limit.
    fn start_backup(
        &self,
        system: BackupSystem,
        alone: Rate,
        controller: Option<&Controller>,
    ) -> Result<(Child, Option<Group>), Failure> {
        let mut start = systems::backup(system, &self.snapshot, alone);
        if let Some(controller) = controller {
            start = controller.run("backup", start);
        }
        start = self.inside(start, &self.backup_memory);
        let mut group = None;
        if system == BackupSystem::Throttled {
            let refused = |why: String| Failure::new(Code::Failure, why);
            if self.volume.is_some() {
                return Err(refused("the volume's own limit is the only one in version 1".into()));
            }
            let limit = system.limit(alone).unwrap_or(alone);
            let own = self.throttle.group("limited", limit).map_err(refused)?;
            start = start.entering(&own.processes());
            group = Some(own);
        }
        let mut child = Child::start(&start, self.scratch.path())?;
        child.has_ended()?;
        Ok((child, group))
    }

    /// Transactions per second of clients that wait for each other, without a backup.
    pub(super) fn most_transactions(&self, workload: Workload) -> Result<f64, Failure> {
        let _server = self.start_server(as_server_user(self.database.server()))?;
        let run = self.clients(workload, None, None)?;
        Ok(run.transactions)
    }

    /// A run of clients at a rate: alone, or beside a backup.
    pub(super) fn run(
        &mut self,
        workload: Workload,
        rate: f64,
        beside: Option<(BackupSystem, Rate)>,
    ) -> Result<BackupRun, Failure> {
        let is_idle = beside.is_some_and(|(system, _)| system == BackupSystem::Idle);
        self.disk.schedule(if is_idle { "bfq" } else { "none" })?;
        if let Some((system, alone)) = beside {
            self.start_controller(system, alone)?;
        }
        let controller = beside.and_then(|(system, _)| self.controller(system));
        let server = self.database.server();
        let server = controller.map_or_else(
            || server.clone(),
            |controller| controller.run("database", server.clone()),
        );
        let server = self.start_server(as_server_user(server))?;
        let backup = beside.map(|(system, alone)| self.start_backup(system, alone, controller));
        let backup = backup.transpose()?;
        let processes = (&server, backup.as_ref().map(|(child, _)| child));
        self.clients(workload, Some(rate), Some(processes))
    }

    fn clients(
        &self,
        workload: Workload,
        rate: Option<f64>,
        processes: Option<(&Child, Option<&Child>)>,
    ) -> Result<BackupRun, Failure> {
        let BackupPlan { warm, run, .. } = self.plan;
        let log = self.scratch.join("transactions");
        let seconds = (warm.0 + run.0).div_ceil(Span::SECOND.0);
        let start = self.database.clients(workload, seconds, rate, &log);
        let mut pgbench = Child::start(&start, self.scratch.path())?;
        let clock = Clock::start();
        self.interrupt.sleep_until(clock, Time(warm.0))?;
        let count = || {
            let (server, backup) = processes?;
            Some((clock.now(), moved(server), backup.map_or(0, moved)))
        };
        let before = count();
        while !pgbench.has_ended()? {
            if clock.now().0 > (warm.0 + run.0).saturating_add(PATIENCE.0) {
                return Err(Failure::new(Code::Failure, "pgbench does not end"));
            }
            self.interrupt.sleep_until(clock, clock.now().after(POLL_INTERVAL))?;
        }
        let after = count();
        let text = take_log(&log).unwrap_or_default();
        let Transactions { p99_ms, rate } = Transactions::parse(&text, warm).ok_or_else(|| {
            Failure::new(Code::Failure, "pgbench made fewer than a hundred transactions")
        })?;
        let mut figures = BackupRun { p99_ms, transactions: rate, ..BackupRun::default() };
        if let Some(((begin, server, backup), (end, server_end, backup_end))) = before.zip(after) {
            let seconds = end.since(begin).as_seconds();
            figures.database_bytes = server_end.saturating_sub(server) as f64 / seconds;
            figures.backup_bytes = backup_end.saturating_sub(backup) as f64 / seconds;
        }
        Ok(figures)
    }

    /// The capacity that Tidegate has measured, in words.
    pub(super) fn measured(&self) -> Option<String> {
        let controller = self.controller(BackupSystem::Measured)?;
        let mut operator = Operator::connect(controller.socket()).ok()?;
        let status = operator.call(&OperatorRequest::Status).ok()?;
        let status: Value = serde_json::from_str(&status).ok()?;
        let measured = status.get("measured")?;
        let number = |name: &str| measured.get(name)?.as_u64();
        let (operations, bytes) = (number("operations_per_second")?, number("bytes_per_second")?);
        Some(format!("Tidegate measured {operations} iops and {}", Rate(bytes)))
    }
}

/// Bytes that a process and all below it have moved from and to the disk.
fn moved(child: &Child) -> u64 {
    Witness::new(child.pid(), CountedBytes::DiskBothWays).sample().bytes
}

/// Drops the files of a folder from the page cache.
fn forget(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            forget(&entry.path())?;
        } else if entry.file_type()?.is_file() {
            let file = fs::File::open(entry.path())?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_forgotten_whole() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("base")).unwrap();
        fs::write(folder.path().join("base/1"), "x").unwrap();
        forget(folder.path()).unwrap();
        assert!(forget(&folder.path().join("none")).is_err());
    }
}
