//! All of the run's processes: memcached, and for each act the cluster, the controller and the
//! mounted file system. Programs that this machine lacks are named before anything starts.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::geteuid;

use super::mount::Mount;
use super::plan::{self, Act, KEYS, MEMCACHED, MEMORY, NBD, VOLUME_MIB};
use crate::experiment::child::{self, Child, Start};
use crate::experiment::controller::Controller;
use crate::experiment::scratch::Scratch;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::programs;

/// Programs that the run starts, each with its package in Debian and Ubuntu.
const NEEDED: [(&str, &str); 6] = [
    ("fio", "fio"),
    ("nbdfuse", "libnbd-bin"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("memcached", "memcached"),
];

/// The files on the mounted file system, of the database and of the backup.
pub(super) const FILES: [&str; 2] = ["database", "copies"];
/// The size of each.
pub(super) const FILE_MIB: u64 = 8;
/// Room for the volumes, the daemons' state and their logs, in MiB.
pub(super) const SPACE_MIB: u64 = 3 * VOLUME_MIB + 64;

/// The parts that outlive acts: the folder with all stores, and the server of keys.
pub(super) struct Testbed {
    memcached: Child,
    pub(super) scratch: Scratch,
    pub(super) interrupt: Interrupt,
}

/// The cluster of one act. Fields are dropped, and so ended, in their order.
pub(super) struct ActSetup {
    _mount: Mount,
    pub(super) controller: Controller,
}

/// Whether this machine has what the run needs.
///
/// # Errors
/// If it does not, with all that is missing and the packages to install.
pub(super) fn check() -> Result<(), Failure> {
    let mut lacks = Vec::new();
    let mut packages = Vec::new();
    for (program, package) in NEEDED {
        if !child::is_there(program) {
            lacks.push(program.to_owned());
            packages.push(package);
        }
    }
    if lacks.is_empty() && !has_engine() {
        lacks.push("fio's engine for NBD".into());
    }
    if !geteuid().is_root() {
        lacks.push("root, to mount a file system".into());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(device).exists() {
            lacks.push(format!("{device} (load the kernel's module for it)"));
        }
    }
    if lacks.is_empty() {
        return programs::tidegate().and_then(|_| programs::shim()).map(drop);
    }
    let failure = Failure::new(
        Code::Failure,
        format!("the demo needs what is not here: {}", lacks.join(", ")),
    );
    packages.dedup();
    Err(match packages.is_empty() {
        true => failure.help("`tidegate-lab demo` needs less"),
        false => failure.help(format!("install it with `apt-get install {}`", packages.join(" "))),
    })
}

fn has_engine() -> bool {
    let mut command = Command::new("fio");
    command.arg("--enghelp=nbd").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Testbed {
    /// Starts the server of keys.
    pub(super) fn start(interrupt: Interrupt) -> Result<Self, Failure> {
        let scratch = Scratch::with_space(SPACE_MIB)?;
        let socket = scratch.join(MEMCACHED);
        let words = ["-t", "1", "-m", "64", "-U", "0", "-u", "root", "-s"].map(OsString::from);
        let start = Start {
            name: "memcached".into(),
            program: "memcached".into(),
            arguments: words.into_iter().chain([socket.clone().into()]).collect(),
            ..Start::default()
        };
        let memcached = Child::start_listening(&start, &socket, scratch.path(), &interrupt)?;
        for node in plan::NODES {
            fs::create_dir(scratch.join(node)).map_err(|error| {
                Failure::new(Code::Failure, "cannot make a node's folder").cause(error)
            })?;
        }
        Ok(Self { memcached, scratch, interrupt })
    }

    /// Starts the cluster as an act has it, and mounts the database's file system.
    ///
    /// # Errors
    /// If something does not start, or the user ends the command. All that was started has ended
    /// then.
    pub(super) fn set_up(&mut self, act: &Act, is_formatted: bool) -> Result<ActSetup, Failure> {
        self.memcached.has_ended()?;
        let cluster = self.scratch.join("cluster.toml");
        fs::write(&cluster, plan::cluster(act, self.scratch.path())).map_err(|error| {
            Failure::new(Code::Failure, "cannot write the cluster's file").cause(error)
        })?;
        let policy = plan::policy(act, 0, &self.mount_point());
        let controller =
            Controller::all("cluster", &cluster, &policy, &self.scratch, &self.interrupt)?;
        controller.wait_for_cluster(&self.interrupt)?;
        let uri = self.uri("db");
        let mount =
            Mount::attach(&uri, &self.mount_point(), is_formatted, &self.scratch, &self.interrupt)?;
        Ok(ActSetup { _mount: mount, controller })
    }

    /// Gives the file system its files, and memcached its values.
    pub(super) fn fill(&mut self) -> Result<(), Failure> {
        let setup = self.set_up(&plan::ACTS[0], false)?;
        for file in FILES {
            let path = self.mount_point().join(file);
            let size = format!("--size={FILE_MIB}M");
            let name = format!("--filename={}", path.display());
            let write = ["--name=fill", "--rw=write", "--bs=1M", "--end_fsync=1", "--eta=never"];
            let arguments = [&write[..], &[&size, &name]].concat();
            child::run("fio", &arguments, "cannot write the database's files", &self.interrupt)?;
        }
        drop(setup);
        Ok(())
    }

    pub(super) fn mount_point(&self) -> PathBuf {
        self.scratch.join("files")
    }

    pub(super) fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.scratch.join(NBD).display())
    }

    pub(super) fn keys(&self) -> PathBuf {
        self.scratch.join(KEYS)
    }

    pub(super) fn memory(&self) -> PathBuf {
        self.scratch.join(MEMORY)
    }
}
