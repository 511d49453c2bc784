//! A cluster to test with: a bed whose controller has nodes and gateways, in the same process or in
//! processes of their own.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::bed::Bed;
use crate::nbd::Client;
use crate::process::{self, ProgramOutcome, Running};
use crate::{PATIENCE, eventually, tools, wait_for};

/// The name of the gateway in every file here.
pub const GATEWAY: &str = "front";

/// A cluster's file, its policy and what runs of it.
#[derive(Debug)]
pub struct Cluster {
    /// By name, nodes and gateways in processes of their own. They end before the bed does.
    components: BTreeMap<String, Running>,
    /// Its volumes were created.
    is_created: bool,
    bed: Bed,
}

/// The file of a cluster with directories as nodes, and one gateway, all behind Unix sockets.
pub fn directories(names: &[&str]) -> String {
    let node = |name: &&str| {
        format!("[[node]]\nname = {name:?}\naddress = \"unix:{name}.sock\"\ndirectory = {name:?}\n")
    };
    let nodes: String = names.iter().map(node).collect();
    format!("{nodes}[[gateway]]\nname = \"{GATEWAY}\"\nnbd = \"unix:{GATEWAY}.sock\"\n")
}

/// A volume of a cluster's file.
pub fn volume(name: &str, tenant: &str, size: &str, nodes: &[&str]) -> String {
    format!(
        "[[volume]]\nname = {name:?}\ntenant = {tenant:?}\nsize = {size:?}\nnodes = {nodes:?}\n"
    )
}

impl Cluster {
    /// A cluster of which nothing runs yet.
    ///
    /// # Panics
    /// If its files cannot be written.
    pub fn new(file: &str, policy: &str) -> Self {
        let (bed, components) = (Bed::empty(), BTreeMap::new());
        let cluster = Self { bed, components, is_created: false };
        fs::write(cluster.bed.path("first.toml"), policy).expect("the policy can be written");
        cluster.write(file);
        cluster
    }

    /// Writes another file for it. One that says by itself where the controller listens names the
    /// socket as `SOCKET`.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, file: &str) {
        let socket = self.bed.socket();
        let tail = match file.contains("[controller]") {
            true => "",
            false => "\n[controller]\nlisten = \"unix:SOCKET\"\n",
        };
        let file = format!("{file}{tail}").replace("SOCKET", &socket.display().to_string());
        let text = format!("policy = \"first.toml\"\n{file}");
        fs::write(self.file(), text).expect("the cluster's file can be written");
    }

    /// Its file.
    pub fn file(&self) -> PathBuf {
        self.bed.path("cluster.toml")
    }

    /// Its folder, its controller and its policy.
    pub fn bed(&mut self) -> &mut Bed {
        &mut self.bed
    }

    /// Where the cluster keeps its state.
    pub fn state(&self) -> PathBuf {
        self.bed.path("state")
    }

    /// A path in the state.
    pub fn path(&self, name: &str) -> PathBuf {
        self.state().join(name)
    }

    /// `tidegate up` of the cluster, or of the part of it that the arguments say.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.bed.tidegate(&["up", "--no-http", "--log", "info"]);
        // Where the controller is says the file.
        command.env_remove("TIDEGATE_SOCKET").stdin(Stdio::null());
        command.arg(self.file()).arg("--state").arg(self.state()).args(arguments);
        command
    }

    /// `tidegate volume` on its stores, with the file behind the first of these words.
    ///
    /// # Panics
    /// If there is no word.
    #[track_caller]
    pub fn volume_command(&self, words: &[&str]) -> Command {
        let (first, rest) = words.split_first().expect("a word");
        let mut command = self.bed.tidegate(&["volume", first]);
        command.arg(self.file()).args(rest).arg("--state").arg(self.state());
        command
    }

    /// Runs [`Self::volume_command`].
    ///
    /// # Panics
    /// If there is no word.
    #[track_caller]
    pub fn volume(&self, words: &[&str]) -> ProgramOutcome {
        process::run(&mut self.volume_command(words))
    }

    /// Runs all of it in one process.
    ///
    /// # Panics
    /// If it does not come up.
    #[track_caller]
    pub fn up(&mut self) {
        let mut command = self.command(&["--create"]);
        self.is_created = true;
        self.bed.up_with(&mut command);
    }

    /// Runs it in a process for the controller, one for each of these nodes, and one for the
    /// gateway, and waits until every volume can be read.
    ///
    /// # Panics
    /// If it does not come up.
    #[track_caller]
    pub fn up_apart(&mut self, nodes: &[&str], volumes: &[&str]) {
        let mut command = self.command(&["--role", "controller"]);
        self.bed.up_with(&mut command);
        nodes.iter().for_each(|name| self.start("node", name));
        self.start("gateway", GATEWAY);
        for volume in volumes {
            let mut client = self.enter(volume);
            eventually("all nodes", || client.read(0, 1 << 20).is_ok());
        }
    }

    /// Runs a controller and these data nodes, in a process each.
    ///
    /// # Panics
    /// If they do not come up.
    #[track_caller]
    pub fn up_data_nodes(&mut self, names: &[&str]) {
        let mut command = self.command(&["--role", "controller"]);
        self.bed.up_with(&mut command);
        names.iter().for_each(|name| self.start("data-node", name));
    }

    /// Starts a part in a process of its own and waits until it says that it is there.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn start(&mut self, role: &str, name: &str) {
        if !std::mem::replace(&mut self.is_created, true) {
            self.volume(&["create"]).success();
        }
        let component = process::spawn(&mut self.command(&["--role", role, "--name", name]));
        component.wait_for_output(&format!(": {name} of the cluster at "));
        self.components.insert(name.into(), component);
    }

    /// A part that runs in a process of its own.
    ///
    /// # Panics
    /// If it does not run.
    pub fn component(&self, name: &str) -> &Running {
        &self.components[name]
    }

    /// Ends a part as a power cut would.
    ///
    /// # Panics
    /// If it does not run.
    pub fn kill(&mut self, name: &str) -> ProgramOutcome {
        self.components.remove(name).expect("the part runs").kill()
    }

    /// Ends a part in order, as `systemctl stop` does.
    ///
    /// # Panics
    /// If it does not run.
    pub fn stop(&mut self, name: &str) -> ProgramOutcome {
        let component = self.components.remove(name).expect("the part runs");
        component.signal(Signal::TERM);
        component.finish()
    }

    /// Where the gateway listens.
    pub fn endpoint(&self) -> PathBuf {
        self.path(&format!("{GATEWAY}.sock"))
    }

    /// An export, as clients write it.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.endpoint().display())
    }

    /// A client of an export.
    ///
    /// # Panics
    /// If the gateway does not admit it.
    #[track_caller]
    pub fn enter(&self, export: &str) -> Client {
        wait_for("a gateway", PATIENCE, || Client::enter(&self.endpoint(), export).ok())
    }

    /// Runs a program that comes as a package.
    ///
    /// # Panics
    /// If it is not there.
    #[track_caller]
    pub fn client(&self, program: &str, arguments: &[&str]) -> ProgramOutcome {
        let mut command = Command::new(tools::need(program));
        process::run(command.args(arguments).current_dir(self.bed.folder()))
    }

    /// Runs `qemu-io`, which ends at the first step that fails.
    ///
    /// # Panics
    /// If it is not there.
    #[track_caller]
    pub fn qemu_io(&self, export: &str, steps: &[&str]) -> ProgramOutcome {
        let mut arguments = vec!["-f", "raw"];
        steps.iter().for_each(|step| arguments.extend(["-c", step]));
        let uri = self.uri(export);
        arguments.push(&uri);
        self.client("qemu-io", &arguments)
    }

    /// Looks for sockets and for files that were begun.
    ///
    /// # Panics
    /// If there are any.
    #[track_caller]
    pub fn expect_nothing_left(&self) {
        let mut found = Vec::new();
        collect(self.bed.folder(), &mut found).expect("the folder can be read");
        assert!(found.is_empty(), "left behind: {found:?}");
    }
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            collect(&entry.path(), found)?;
        } else if kind.is_socket() || entry.file_name().to_string_lossy().ends_with(".new") {
            found.push(entry.path());
        }
    }
    Ok(())
}
