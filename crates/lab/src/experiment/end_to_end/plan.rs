//! End-to-end demo, its plan: the promises, the tenants, and the gates that are on in each act.
//!
//! # The numbers
//! Rates are so small that two processors can deliver them beside other work. So only gates decide
//! how much each tenant gets. Each node imitates a device of [`NODE_IOPS`] on top of real files,
//! and the data node a network card of [`MEMORY_IOPS`]: a run on a fast disk would measure the
//! processor. From 40 to 80 % of each capacity is promised; the rest is for tenants that ask for
//! more.

use std::fmt::Write;
use std::path::Path;

/// The rate of the device behind each node, in operations per second.
pub(super) const NODE_IOPS: u64 = 500;
/// The nodes of the volumes; the last node holds keys.
pub(super) const NODES: [&str; 3] = ["a", "b", "c"];
pub(super) const KEY_NODE: &str = "k";
/// The rate of the data node, in operations per second.
pub(super) const MEMORY_IOPS: u64 = 2_000;
/// The budget of programs on the mounted file system together. The volume below it is promised a
/// little more, for what the file system adds.
pub(super) const FILES_IOPS: u64 = 300;
const VOLUME_IOPS: u64 = 360;
/// The size of the neighbour's requests.
pub(super) const NEIGHBOUR_BYTES: u64 = 16 << 10;

/// One of the policy's resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Cluster,
    Files,
    Memory,
}

impl Resource {
    pub(super) const ALL: [Self; 3] = [Self::Files, Self::Cluster, Self::Memory];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Files => "files",
            Self::Memory => "memory",
        }
    }

    /// In operations per second.
    pub(super) const fn capacity(self) -> u64 {
        match self {
            Self::Cluster => NODE_IOPS * (NODES.len() as u64 + 1),
            Self::Files => FILES_IOPS,
            Self::Memory => MEMORY_IOPS,
        }
    }
}

/// The unit in which a promise counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Operations,
    /// Bytes of requests of this size.
    Bytes(u64),
}

/// The promise of a tenant on a resource, before and after the policy changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TenantPromise {
    pub(super) tenant: &'static str,
    pub(super) resource: Resource,
    pub(super) unit: Unit,
    /// Per second.
    pub(super) rates: [u64; 2],
    /// The load whose service is compared with it.
    pub(super) load: DemoLoad,
}

/// A program that puts something under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DemoLoad {
    /// fio on a file of the mounted file system, a thread for each request.
    Database,
    /// fio by NBD.
    Neighbour,
    /// A client of the pool.
    Web,
    /// A client of the data node.
    Reader,
    /// The backup's programs, one at each of these.
    BackupFiles,
    BackupVolume,
    BackupKeys,
    BackupMemory,
}

impl DemoLoad {
    pub(super) const ALL: [Self; 8] = [
        Self::Database,
        Self::Neighbour,
        Self::Web,
        Self::Reader,
        Self::BackupFiles,
        Self::BackupVolume,
        Self::BackupKeys,
        Self::BackupMemory,
    ];

    pub(super) const fn tenant(self) -> &'static str {
        match self {
            Self::Database => "db",
            Self::Neighbour => "neighbour",
            Self::Web => "web",
            Self::Reader => "reader",
            Self::BackupFiles | Self::BackupVolume | Self::BackupKeys | Self::BackupMemory => {
                "backup"
            }
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::BackupFiles => "backup-files",
            Self::BackupVolume => "backup-volume",
            Self::BackupKeys => "backup-keys",
            Self::BackupMemory => "backup-memory",
            _ => self.tenant(),
        }
    }

    /// The backup's program beside this one.
    pub(super) const fn beside(self) -> Self {
        match self {
            Self::Database | Self::BackupFiles => Self::BackupFiles,
            Self::Neighbour | Self::BackupVolume => Self::BackupVolume,
            Self::Web | Self::BackupKeys => Self::BackupKeys,
            Self::Reader | Self::BackupMemory => Self::BackupMemory,
        }
    }

    /// Requests under way at a time. A greedy program has many.
    pub(super) const fn depth(self) -> u32 {
        match self {
            Self::Database => 8,
            Self::Neighbour | Self::Reader => 16,
            Self::Web => 8,
            Self::BackupFiles => 32,
            Self::BackupVolume | Self::BackupKeys => 128,
            Self::BackupMemory => 64,
        }
    }

    /// Whether the requests of this load use the resource. Those to the mounted file system arrive
    /// at the nodes too.
    pub(super) fn uses(self, resource: Resource) -> bool {
        let is_on_files = matches!(self, Self::Database | Self::BackupFiles);
        let is_on_memory = matches!(self, Self::Reader | Self::BackupMemory);
        match resource {
            Resource::Files => is_on_files,
            Resource::Memory => is_on_memory,
            Resource::Cluster => !is_on_memory,
        }
    }
}

/// Every promise that is judged.
pub(super) const PROMISES: [TenantPromise; 5] = [
    TenantPromise {
        tenant: "db",
        resource: Resource::Files,
        unit: Unit::Operations,
        rates: [180, 240],
        load: DemoLoad::Database,
    },
    TenantPromise {
        tenant: "neighbour",
        resource: Resource::Cluster,
        unit: Unit::Operations,
        rates: [600, 500],
        load: DemoLoad::Neighbour,
    },
    TenantPromise {
        tenant: "neighbour",
        resource: Resource::Cluster,
        unit: Unit::Bytes(NEIGHBOUR_BYTES),
        rates: [9 << 20, 7 << 20],
        load: DemoLoad::Neighbour,
    },
    TenantPromise {
        tenant: "web",
        resource: Resource::Cluster,
        unit: Unit::Operations,
        rates: [300, 375],
        load: DemoLoad::Web,
    },
    TenantPromise {
        tenant: "reader",
        resource: Resource::Memory,
        unit: Unit::Operations,
        rates: [800, 1_000],
        load: DemoLoad::Reader,
    },
];

/// Tenants and their classes.
const TENANTS: [(&str, &str); 5] = [
    ("db", "high"),
    ("neighbour", "medium"),
    ("web", "urgent"),
    ("reader", "medium"),
    ("backup", "low"),
];

/// A kind of gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Programs run under `tidegate run`.
    Stage,
    /// Nodes go by the policy (`unified`), and not by order of arrival (`fifo`).
    Nodes,
    /// Classes of requests, from the policy to the nodes.
    Tag,
    /// Clients of the data node take tokens.
    Engine,
    /// Requests have the I/O priority of their class at the device.
    Priority,
}

impl Gate {
    const ALL: [Self; 5] = [Self::Stage, Self::Nodes, Self::Tag, Self::Engine, Self::Priority];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Nodes => "gateway and nodes",
            Self::Tag => "tag",
            Self::Engine => "engine",
            Self::Priority => "device priority",
        }
    }

    /// The purpose of the gate, printed where its absence broke no promise.
    pub(super) const fn purpose(self) -> &'static str {
        match self {
            Self::Stage => {
                "it tells programs apart on one mounted file system, whose requests the nodes see \
                 as those of one tenant"
            }
            Self::Nodes => "they keep reservations over all nodes against clients of any protocol",
            Self::Tag => "it decides the order within a reservation, and divides what is left",
            Self::Engine => "it keeps reservations where no process of the node sees a request",
            Self::Priority => {
                "it decides where the device itself has a queue in order of priority (bfq); the \
                 devices here are imitated, and nodes give them no more than they can do"
            }
        }
    }
}

/// A part of the run, with some gates on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Act {
    pub(super) title: &'static str,
    pub(super) gates: &'static [Gate],
    /// The policy changes in the middle.
    pub(super) changes: bool,
    /// The gate that is off alone.
    pub(super) without: Option<Gate>,
    /// Whether a short run has it.
    pub(super) is_short: bool,
}

const fn act(title: &'static str, gates: &'static [Gate], without: Option<Gate>) -> Act {
    Act { title, gates, changes: false, without, is_short: true }
}

use Gate::{Engine, Nodes, Priority, Stage, Tag};

/// The index in [`ACTS`] of the act with everything on.
#[cfg(test)]
pub(super) const EVERYTHING: usize = 4;

pub(super) const ACTS: [Act; 10] = [
    act("nothing on", &[], None),
    Act { is_short: false, ..act("stage only", &[Stage], None) },
    Act { is_short: false, ..act("gateway and nodes", &[Nodes], None) },
    Act { is_short: false, ..act("with the tag", &[Stage, Nodes, Tag], None) },
    Act { changes: true, ..act("everything, and a change", &Gate::ALL, None) },
    act("without the stage", &[Nodes, Tag, Engine, Priority], Some(Stage)),
    act("without gateway and nodes", &[Stage, Tag, Engine, Priority], Some(Nodes)),
    act("without the engine", &[Stage, Nodes, Tag, Priority], Some(Engine)),
    Act { is_short: false, ..act("without the tag", &[Stage, Nodes, Engine, Priority], Some(Tag)) },
    Act {
        is_short: false,
        ..act("without device priority", &[Stage, Nodes, Tag, Engine], Some(Priority))
    },
];

impl Act {
    pub(super) fn has(&self, gate: Gate) -> bool {
        self.gates.contains(&gate)
    }
}

/// The policy, before (0) or after (1) its change, for a file system that is mounted at `mount`.
pub(super) fn policy(act: &Act, phase: usize, mount: &Path) -> String {
    let mut text = String::new();
    if act.has(Tag) {
        text += "class_weights = { high = 3, medium = 2, low = 1 }\n\n";
    }
    let _ = write!(
        text,
        "[[resource]]\nname = \"cluster\"\n\n\
         [[resource]]\nname = \"files\"\npath = \"{}/**\"\ncapacity = \"{FILES_IOPS} iops\"\n\n\
         [[resource]]\nname = \"memory\"\ndata_nodes = [\"m\"]\n",
        mount.display()
    );
    for (tenant, class) in TENANTS {
        let _ = write!(text, "\n[[tenant]]\nname = \"{tenant}\"\n");
        if act.has(Tag) {
            let _ = writeln!(text, "class = \"{class}\"");
        }
        if tenant == "db" {
            let _ = write!(text, "[tenant.on.cluster]\nreservation = \"{VOLUME_IOPS} iops\"\n");
        }
        for resource in Resource::ALL {
            let own =
                |promise: &&TenantPromise| promise.tenant == tenant && promise.resource == resource;
            let levels: Vec<String> =
                PROMISES.iter().filter(own).map(|p| level(p, phase)).collect();
            if !levels.is_empty() {
                let name = resource.name();
                let levels = levels.join(", ");
                let _ = write!(text, "[tenant.on.{name}]\nreservation = [{levels}]\n");
            }
        }
    }
    text + "\n[[match]]\ntenant = \"backup\"\nvolume = \"cache\"\nkey = \"backup:\"\n"
}

fn level(promise: &TenantPromise, phase: usize) -> String {
    let rate = promise.rates[phase];
    match promise.unit {
        Unit::Operations => format!("\"{rate} iops\""),
        Unit::Bytes(_) => format!("\"{}MiB/s\"", rate >> 20),
    }
}

/// The cluster's file, with everything below `folder`.
pub(super) fn cluster(act: &Act, folder: &Path) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    let scheduler = if act.has(Nodes) { "unified" } else { "fifo" };
    // Threads that poll would compete with the tenants for two processors.
    let mut text = format!("scheduler = \"{scheduler}\"\nbusy_poll = \"0s\"\n");
    let imitated = format!(
        "capacity = [\"{NODE_IOPS} iops\", \"1GiB/s\"]\ndepth = 4\n\
         model = {{ rate = \"{NODE_IOPS} iops\" }}\n"
    );
    for node in NODES {
        let (socket, store) = (at(&format!("{node}.sock")), at(node));
        let _ = write!(
            text,
            "\n[[node]]\nname = \"{node}\"\naddress = \"unix:{socket}\"\n\
             directory = \"{store}\"\nio_priority = {}\n{imitated}",
            act.has(Priority)
        );
    }
    let _ = write!(
        text,
        "\n[[node]]\nname = \"{KEY_NODE}\"\naddress = \"unix:{}\"\nmemcached = \"unix:{}\"\n\
         {imitated}",
        at("k.sock"),
        at(MEMCACHED),
    );
    let _ = write!(
        text,
        "\n[[gateway]]\nname = \"blocks\"\nnbd = \"unix:{}\"\n\
         \n[[gateway]]\nname = \"keys\"\nmemcached = \"unix:{}\"\n\
         \n[[pool]]\nname = \"cache\"\ntenant = \"web\"\nnodes = [\"{KEY_NODE}\"]\n",
        at(NBD),
        at(KEYS),
    );
    for (volume, tenant) in [("db", "db"), ("neighbour", "neighbour"), ("archive", "backup")] {
        let _ = write!(
            text,
            "\n[[volume]]\nname = \"{volume}\"\nsize = \"{VOLUME_MIB}MiB\"\n\
             tenant = \"{tenant}\"\nnodes = {NODES:?}\n"
        );
    }
    let _ = write!(
        text,
        "\n[[data-node]]\nname = \"m\"\nlisten = \"unix:{}\"\nmemory = \"16MiB\"\n\
         capacity = \"{MEMORY_IOPS} iops\"\nclient = \"{MEMORY_IOPS} iops\"\nfabric = \"model\"\n",
        at(MEMORY),
    );
    text
}

/// The size of each volume.
pub(super) const VOLUME_MIB: u64 = 64;
/// The part of it that clients read. The file system needs some of the rest.
pub(super) const READ_MIB: u64 = 32;

/// Sockets below the folder.
pub(super) const MEMCACHED: &str = "memcached.sock";
pub(super) const NBD: &str = "nbd.sock";
pub(super) const KEYS: &str = "keys.sock";
pub(super) const MEMORY: &str = "m.sock";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_policies_of_every_act_are_valid() {
        for act in &ACTS {
            for phase in [0, 1] {
                let text = policy(act, phase, Path::new("/mnt/db"));
                let policy = tidegate_model::Policy::parse(&text);
                assert!(policy.is_ok(), "{}: {policy:?}\n{text}", act.title);
            }
        }
    }

    #[test]
    fn a_gate_is_off_alone() {
        for act in &ACTS {
            if let Some(gate) = act.without {
                assert!(!act.has(gate), "{}", act.title);
                assert_eq!(act.gates.len(), Gate::ALL.len() - 1, "{}", act.title);
            }
        }
        assert_eq!(ACTS[EVERYTHING].gates.len(), Gate::ALL.len());
    }

    #[test]
    fn promises_fit_each_capacity_and_leave_some_for_others() {
        for phase in [0, 1] {
            for resource in Resource::ALL {
                let mine = PROMISES.iter().filter(|promise| {
                    promise.resource == resource && promise.unit == Unit::Operations
                });
                let sum: u64 = mine.map(|promise| promise.rates[phase]).sum();
                let own = if resource == Resource::Cluster { VOLUME_IOPS } else { 0 };
                let percent = (sum + own) * 100 / resource.capacity();
                assert!((40..=80).contains(&percent), "{resource:?}: {percent} %");
            }
        }
    }
}
