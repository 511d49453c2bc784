//! The scenario of an end-to-end simulation: a TOML file with strict keys.

use serde::Deserialize;
use tidegate_model::{Bytes, Class, Portion, Span};

use super::location::StripeLocation;
use crate::net;
use crate::storage::{Geometry, MemoryParameters, Parameters};
use crate::transport;
use tidegate_sim::scenario::{ScenarioError, must, optional, read, read_table, text};
use tidegate_sim::workload::{self, Load};

/// Pages of all drives together: 64 TiB of 8 KiB each. A page that was never written takes a
/// fortieth of a byte.
const PAGES_MAX: u64 = 1 << 33;
/// Moments of all applications together, each of which takes 48 bytes: a gigabyte.
const MOMENTS_MAX: u64 = 20_000_000;
/// Hosts that applications send to, counted once for each of them: so many connections, each of
/// which has two flows.
const CONNECTIONS_MAX: usize = 1_000_000;
/// Requests that are under way or wait together, each of which takes some hundred bytes.
pub(super) const REQUESTS_MAX: u64 = 10_000_000;
/// Pages that were written before the run, each of which takes some sixteen bytes.
const WRITTEN_MAX: u64 = 1 << 28;

/// One simulation, but for its seed's consequences.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The scenario's name, for people.
    pub name: String,
    /// The seed of every random number of the run.
    pub seed: u64,
    /// How long it runs, from 1 us to 1,000 s.
    #[serde(deserialize_with = "text")]
    pub length: Span,
    /// How much of that is not counted.
    #[serde(default, deserialize_with = "text")]
    pub skip: Span,
    /// How finely series are; it divides neither and need not.
    #[serde(default = "sample", deserialize_with = "text")]
    pub sample: Span,
    /// Hosts, links and switches.
    pub network: net::NetworkPlan,
    /// How flows are controlled, unless an application has its own control.
    pub transport: transport::FlowPlan,
    /// Promises to classes, on each link that they share.
    #[serde(default)]
    pub promises: Promises,
    /// Hosts that store. Without it, hosts take in all that applications send, and send no replies.
    #[serde(default)]
    pub storage: Option<Storage>,
    /// The applications.
    pub application: Vec<Application>,
}

const fn sample() -> Span {
    Span::MILLISECOND
}

/// Promises to classes, on each link that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Promises {
    /// The parts of high, medium and low; 3, 2 and 1 in the paper. A class without one is promised
    /// nothing.
    pub weights: [u32; 3],
    /// How often the simulation lists the flows of each link, and updates promises; 100 us, chosen
    /// by hand: some round trips, and a thousandth of what such an episode lasts.
    #[serde(deserialize_with = "text")]
    pub every: Span,
    /// Which part of a link's payload is divided, by default all of it. A promise that is too low
    /// squeezes all flows alike; the flows that one too high favours never reach it, and the shares
    /// are lost.
    #[serde(deserialize_with = "text")]
    pub of: Portion,
    /// Whether links are watched for flows without a promise, as in figure 15a of the paper.
    pub yields: bool,
}

impl Default for Promises {
    fn default() -> Self {
        Self { weights: [3, 2, 1], every: Span(100_000), of: Portion::WHOLE, yields: false }
    }
}

/// Hosts that store, all alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Which hosts do.
    pub servers: Vec<u32>,
    /// How many drives each has, 1 to 64.
    #[serde(default = "one")]
    pub drives: u32,
    /// The parameters of a drive.
    #[serde(default)]
    pub drive: Parameters,
    /// The persistent memory of each, if there is some.
    #[serde(default)]
    pub memory: Option<MemoryParameters>,
    /// So much lies on one drive before the next one; 1 MiB, chosen by hand. A request lies
    /// wholly where it begins. Applications see the same storage: the same offset of two that use
    /// the same servers is the same place.
    #[serde(default = "stripe", deserialize_with = "text")]
    pub stripe: Bytes,
    /// How commands and their data are carried.
    #[serde(default)]
    pub fabrics: Fabrics,
}

const fn one() -> u32 {
    1
}

const fn stripe() -> Bytes {
    Bytes(1 << 20)
}

/// How commands and their data are carried: NVMe over Fabrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fabrics {
    /// How many commands of a connection may be under way, 1 to 65,535; 128, as Linux has it.
    /// Others wait at their host.
    pub depth: u32,
    /// Up to this size what is written goes with its command; above it, the server requests it. 8
    /// KiB: what the TCP transport has for commands of administration; controllers choose it for
    /// others.
    #[serde(deserialize_with = "text")]
    pub in_capsule: Bytes,
}

impl Default for Fabrics {
    fn default() -> Self {
        Self { depth: 128, in_capsule: Bytes(8 << 10) }
    }
}

/// An application: its host, its servers and its workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Application {
    /// The host on which it runs.
    pub from: u32,
    /// The hosts that it sends to, in turn; all servers if none is named and there are some.
    #[serde(default)]
    pub to: Vec<u32>,
    /// The device of a server that it uses.
    #[serde(default)]
    pub device: ServerDevice,
    /// Its workload, with its name and class.
    pub workload: workload::WorkloadPlan,
    /// The class that servers and drives take its requests for, where they go by a tag of their
    /// own; by default its workload's.
    #[serde(default, deserialize_with = "optional")]
    pub storage_class: Option<Class>,
    /// How its flows are controlled.
    #[serde(default)]
    pub transport: Option<transport::FlowPlan>,
    /// How long a request may take; those that take longer are counted, and laws that go by
    /// deadlines go by this one.
    #[serde(default, deserialize_with = "optional")]
    pub deadline: Option<Span>,
    /// In which time its flows are promised to carry a message, by which laws that go by promises
    /// then go instead of by the shares of classes (Eq. 2 of the paper).
    #[serde(default, deserialize_with = "optional")]
    pub latency: Option<Span>,
    /// Its own part of each link, in place of a part of its class's: a weight beside those of
    /// classes, 1 to 1,000,000. So applications can differ beyond three classes.
    #[serde(default)]
    pub weight: Option<u32>,
    /// The application, by its index among all, with which it has that part together, as those of
    /// one tenant have; itself if unset. Policies set it, and no scenario.
    #[serde(skip)]
    pub with: Option<u32>,
}

/// The device of a server that an application uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerDevice {
    /// Its drives.
    #[default]
    Drive,
    /// Its persistent memory.
    Memory,
}

impl Application {
    /// The class that servers and drives take its requests for.
    pub(super) fn class_at_storage(&self) -> Class {
        self.storage_class.unwrap_or(self.workload.class)
    }
}

impl Scenario {
    /// Reads a scenario from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong, with its line where there is one.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        read(text, Self::check)
    }

    /// The same of a text that was read already, and perhaps changed since: points of a sweep.
    ///
    /// # Errors
    /// As [`Self::parse`], without lines.
    pub fn of(table: toml::Table) -> Result<Self, ScenarioError> {
        read_table(table, Self::check)
    }

    /// Whether it can be run. Code that builds or changes a scenario calls this, too.
    ///
    /// # Errors
    /// The first thing that contradicts another, and what to write instead.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let lengths = Span(1_000)..=Span(1_000 * Span::SECOND.0);
        must(lengths.contains(&self.length), "length: from \"1us\" to \"1000s\"")?;
        must(self.skip < self.length, "skip: less than length")?;
        must(self.sample >= Span(1_000), "sample: at least \"1us\"")?;
        must(self.promises.every >= Span(1_000), "promises.every: at least \"1us\"")?;
        must(self.promises.of.0 > 0, "promises.of: more than \"0%\"")?;
        let some = self.promises.weights.iter().any(|weight| *weight > 0);
        must(some, "promises.weights: at least one that is more than 0")?;
        let within = |key: &'static str| move |error: ScenarioError| error.within(key);
        self.network.check().map_err(within("network"))?;
        self.transport.check().map_err(within("transport"))?;
        let hosts = self.network.graph().map_err(within("network"))?.hosts() as u32;
        let count = (1..=10_000).contains(&self.application.len());
        must(count, "application: from 1 to 10000 of them")?;
        if let Some(storage) = &self.storage {
            storage.check(hosts).map_err(within("storage"))?;
        }
        self.application.iter().enumerate().try_for_each(|(number, one)| {
            let within = |error: ScenarioError| error.within(&format!("application.{number}"));
            self.check_application(one, hosts).map_err(within)
        })?;
        self.check_memory()
    }

    /// Whether a machine has room for what is kept of all applications.
    fn check_memory(&self) -> Result<(), ScenarioError> {
        let count = self.application.len() as u64;
        let moments = (self.length.0 / self.sample.0).saturating_mul(count);
        let most = format!(
            "sample: {moments} moments of all applications; at most {MOMENTS_MAX}: choose a longer \
             sample"
        );
        must(moments <= MOMENTS_MAX, &most)?;
        let connections: usize = self.application.iter().map(|one| self.targets(one).len()).sum();
        let most = format!(
            "application: {connections} connections to hosts; at most {CONNECTIONS_MAX} in all: \
             name fewer hosts in to"
        );
        must(connections <= CONNECTIONS_MAX, &most)?;
        let outstanding = |one: &Application| match &one.workload.load {
            Load::Closed(closed) => u64::from(closed.outstanding),
            Load::Open(_) | Load::Trace(_) => 0,
        };
        let all: u64 = self.application.iter().map(outstanding).sum();
        let most = format!(
            "application: {all} requests outstanding; at most {REQUESTS_MAX} of all together: \
             lower load.closed.outstanding"
        );
        must(all <= REQUESTS_MAX, &most)
    }

    fn check_application(&self, one: &Application, hosts: u32) -> Result<(), ScenarioError> {
        let Application { from, to, device, workload, transport, .. } = one;
        workload.check().map_err(|error| error.within("workload"))?;
        let own = transport.as_ref().map_or(Ok(()), transport::FlowPlan::check);
        own.map_err(|error| error.within("transport"))?;
        let known = |host: &u32| *host < hosts;
        must(known(from), &format!("from: hosts count from 0 to {}", hosts - 1))?;
        must(to.iter().all(known), &format!("to: hosts count from 0 to {}", hosts - 1))?;
        must(!self.targets(one).contains(from), "to: another host than its own")?;
        must(!self.targets(one).is_empty(), "to: at least one host, where there is no storage")?;
        let fits = one.weight.is_none_or(|weight| (1..=1_000_000).contains(&weight));
        must(fits, "weight: from 1 to 1000000")?;
        must(one.latency != Some(Span::ZERO), "latency: more than \"0s\"")?;
        must(one.deadline != Some(Span::ZERO), "deadline: more than \"0s\"")?;
        let is_one = one.weight.is_none() || one.latency.is_none();
        must(is_one, "weight: not beside latency; a flow goes by one promise")?;
        let Some(storage) = &self.storage else {
            return must(*device == ServerDevice::Drive, "device: there is no storage");
        };
        let serves = self.targets(one).iter().all(|host| storage.servers.contains(host));
        must(serves, "to: only servers, where there is storage")?;
        let there = *device == ServerDevice::Drive || storage.memory.is_some();
        must(there, "device: servers have no storage.memory")
    }

    /// Where an offset lies of an application with so many servers.
    pub(super) fn locate(&self, offset: Bytes, servers: u32) -> StripeLocation {
        let (stripe, drives) =
            self.storage.as_ref().map_or((stripe(), 1), |storage| (storage.stripe, storage.drives));
        StripeLocation::of(offset, stripe, servers, drives)
    }

    /// The hosts to which an application sends.
    pub(super) fn targets<'a>(&'a self, one: &'a Application) -> &'a [u32] {
        match &self.storage {
            Some(storage) if one.to.is_empty() => &storage.servers,
            _ => &one.to,
        }
    }
}

impl Storage {
    fn check(&self, hosts: u32) -> Result<(), ScenarioError> {
        let known = self.servers.iter().all(|host| *host < hosts);
        let some = known && !self.servers.is_empty();
        must(some, &format!("servers: hosts, which count from 0 to {}", hosts - 1))?;
        let mut once = self.servers.clone();
        once.sort_unstable();
        once.dedup();
        must(once.len() == self.servers.len(), "servers: each host once")?;
        must((1..=64).contains(&self.drives), "drives: from 1 to 64")?;
        must(self.stripe.0 > 0, "stripe: at least 1 byte")?;
        let Geometry { blocks, pages, .. } = self.drive.geometry;
        let planes = u64::from(self.drive.geometry.planes());
        let pages = planes * u64::from(blocks) * u64::from(pages);
        let count = u64::from(self.drives) * self.servers.len() as u64;
        let most = format!(
            "drive.geometry: {count} drives of {pages} pages; at most {PAGES_MAX} in all: \
             choose fewer blocks"
        );
        must(pages * count <= PAGES_MAX, &most)?;
        let filled = u128::from(pages * count) * u128::from(self.drive.before.filled.0);
        let most = format!(
            "drive.before.filled: {pages} pages of {count} drives; at most {WRITTEN_MAX} \
             in all, since each that is written takes memory here: fill a smaller part"
        );
        must(filled / u128::from(Portion::WHOLE.0) <= u128::from(WRITTEN_MAX), &most)?;
        let depths = (1..=65_535).contains(&self.fabrics.depth);
        must(depths, "fabrics.depth: from 1 to 65535")?;
        self.drive.check().map_err(|error| error.within("drive"))?;
        let memory = self.memory.as_ref().map_or(Ok(()), MemoryParameters::check);
        memory.map_err(|error| error.within("memory"))
    }
}
