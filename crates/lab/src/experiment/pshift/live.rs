//! pShift, live: a scenario's nodes in this process, each before a back end that is slowed to the
//! rate of the scenario, and `tidegate up` beside them as their controller.
//!
//! Nothing is taken from the simulated run but what both worlds are to have in common: what tenants
//! are promised, and when they move. Replies are counted by tenant.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use tidegate_fabric::stream::Address;
use tidegate_model::{Bytes, Iops, Span, Time};
use tidegate_node::volumes::{Creation, PartPlan, PartStore, create};
use tidegate_node::{Config, Running, Speed, StoreConfig};
use tidegate_proto::controller::status::Status;
use tidegate_proto::message::OperatorRequest;
use tidegate_proto::node::Pacing;
use tidegate_sim::cluster::{ClusterReport, SimPromise};
use tidegate_sim::scenario::{self, Control, Scenario};

use super::load::{Load, PART, RequestForm, geometry};
use super::simulated::PshiftRun;
use super::{FigureContext, seconds};
use crate::experiment::child::{Child, Start};
use crate::experiment::controller::Controller;
use crate::experiment::quiet::Quiet;
use crate::experiment::scratch::Scratch;
use tidegate_console::clock::Clock;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::operator::Operator;
use tidegate_console::programs;

/// How long a cluster may take until all of it is there.
const PATIENCE: Span = Span(10 * Span::SECOND.0);
const POLL_INTERVAL: Span = Span(10 * Span::MILLISECOND.0);

/// The first period begins at least so long after the load was made ready.
const HEADROOM: Span = Span(50 * Span::MILLISECOND.0);

/// The store behind the model of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// A file, read past the page cache where that is possible.
    File,
    Memory,
    /// A memcached server for each node, asked to get and to set by turns.
    Memcached,
}

impl Back {
    /// A memcached if there is one on this machine, else memory.
    pub(super) fn memcached() -> Self {
        let mut command = Command::new("memcached");
        command.arg("-V").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => Self::Memcached,
            _ => Self::Memory,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::File => "files behind a device model",
            Self::Memory => "memory behind a device model",
            Self::Memcached => "memcached behind a device model",
        }
    }
}

/// Result of a live run.
pub(super) struct Lived {
    pub(super) shown: PshiftRun,
    /// How quiet this machine was. Disturbed periods are left out, unless they are too many.
    pub(super) quiet: Quiet,
    /// The program that is missing, if one is: then nothing was run.
    pub(super) missing: Option<String>,
    /// Messages and bytes between controller and nodes in a period, on average.
    pub(super) messages: f64,
    pub(super) bytes: f64,
    /// Time of a distribution, from its first question to its last confirmation: the median. It
    /// includes waits for a processor.
    pub(super) distribution_ms: f64,
    /// Processor time of the controller in a period, on average: to ask, to read what nodes answer,
    /// to solve, to send its shares, and to answer requests for its status.
    pub(super) processor_ms: f64,
}

/// Bytes that a link of one gigabit per second carries in a millisecond.
const GIGABIT: f64 = 125_000.0;

impl Lived {
    /// Nothing was run, for want of a program.
    fn missing(plan: ClusterReport, why: String) -> Self {
        let outcome = ClusterReport { samples: Vec::new(), ..plan };
        Self {
            shown: PshiftRun { outcome, seconds: 0.0 },
            quiet: Quiet::default(),
            missing: Some(why),
            messages: 0.0,
            bytes: 0.0,
            distribution_ms: 0.0,
            processor_ms: 0.0,
        }
    }

    /// For how long the controller works on what it says and hears in a period, and a link of one
    /// gigabit per second carries it.
    pub(super) fn communication_ms(&self) -> f64 {
        self.processor_ms + self.bytes / GIGABIT
    }

    /// The same in percent of the period.
    pub(super) fn communication_percent(&self) -> f64 {
        self.communication_ms() * 100.0 / (seconds(self.shown.outcome.period) * 1_000.0)
    }
}

/// The same scenario at a part of its rates.
pub(super) fn scaled(scenario: &Scenario, by: u64) -> Scenario {
    let mut scaled = scenario.clone();
    let less = |level: &mut Iops| *level = Iops(level.0 / by);
    less(&mut scaled.nodes.rate);
    scaled.tenants.reservation.as_mut().map(less);
    scaled.tenants.limit.as_mut().map(less);
    scaled
}

/// Runs a scenario. `plan` is what the simulation made of it.
///
/// # Errors
/// If something cannot be started, a request fails, or the user ends the command. All that was
/// started has ended then.
pub(super) fn run(
    context: &FigureContext,
    scenario: &Scenario,
    plan: ClusterReport,
    back: Back,
) -> Result<Lived, Failure> {
    if let Err(failure) = programs::tidegate() {
        return Ok(Lived::missing(plan, format!("not seen live: {failure}")));
    }
    let clock = Clock::start();
    context.note(&format!("live: {}", scenario.name));
    let scratch = Scratch::new()?;
    let controller = controller(scenario, &plan, &scratch, &context.interrupt)?;
    // Fields are dropped, and so ended, before the controller and what it lies on.
    let testbed =
        PshiftTestbed::start(scenario, &scratch, back, controller.socket(), &context.interrupt)?;
    let way = if back == Back::Memcached { RequestForm::KeyValue } else { RequestForm::Read };
    let services: Vec<_> = testbed.nodes.iter().map(Running::service).collect();
    let mut load = Load::new(scenario, &plan, clock, way, &services)?;
    let begin = first_period(scenario, controller.socket(), clock, &context.interrupt)?;
    let from = begin.after(Span(scenario.period.0 * u64::from(scenario.skip)));
    let to = from.after(Span(scenario.period.0 * u64::from(scenario.periods)));
    let watching = Watching { controller: &controller, clock, from, to };
    let interrupt = context.interrupt.clone();
    let (result, watched) = thread::scope(|scope| {
        let watcher = scope.spawn(move || watching.run(&interrupt, scenario));
        let result = load.run(&context.interrupt, begin, from, to);
        (result, watcher.join())
    });
    let counted = result?;
    let watched = watched.map_err(|_| Failure::new(Code::Failure, "the watcher broke down"))??;
    let quiet = counted.quiet;
    let outcome = ClusterReport {
        samples: quiet_samples(counted.samples, &quiet),
        submitted: counted.requested,
        answered: counted.answered,
        to_nodes: 0,
        from_nodes: 0,
        events: 0,
        ..plan
    };
    let took = seconds(clock.now().since(Time::ZERO));
    Ok(watched.lived(PshiftRun { outcome, seconds: took }, scenario, quiet))
}

/// Samples of quiet periods; all of them if too many are disturbed.
fn quiet_samples(samples: Vec<Vec<u32>>, quiet: &Quiet) -> Vec<Vec<u32>> {
    let periods: Vec<bool> = quiet.seconds().collect();
    if quiet.disturbance().is_some() || periods.is_empty() {
        return samples;
    }
    let count = samples.len() / periods.len();
    let chunks = samples.chunks(count.max(1)).zip(periods);
    chunks.filter(|(_, is_quiet)| *is_quiet).flat_map(|(chunk, _)| chunk.to_vec()).collect()
}

/// Nodes, and what stands behind them.
struct PshiftTestbed {
    nodes: Vec<Running>,
    _servers: Vec<Child>,
}

impl PshiftTestbed {
    fn start(
        scenario: &Scenario,
        scratch: &Scratch,
        back: Back,
        controller: &Path,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let (mut nodes, mut servers) = (Vec::new(), Vec::new());
        for number in 0..scenario.nodes.count {
            let path = scratch.join(&format!("n{number}.store"));
            let store = match back {
                Back::Memory => StoreConfig::Memory { capacity: capacity(scenario) },
                Back::File => {
                    folder(scenario, number, &path)?;
                    StoreConfig::Directory { path }
                }
                Back::Memcached => {
                    servers.push(memcached(number, &path, scratch, interrupt)?);
                    StoreConfig::Memcached { address: Address::Unix(path) }
                }
            };
            let running = tidegate_node::start(config(scenario, number, store, controller));
            nodes.push(running.map_err(|error| {
                Failure::new(Code::Failure, format!("cannot start node n{number}")).cause(error)
            })?);
        }
        Ok(Self { nodes, _servers: servers })
    }
}

/// A folder with a file for each tenant's part: a device has labels for no more than 128.
fn folder(scenario: &Scenario, number: u16, path: &Path) -> Result<(), Failure> {
    fs::create_dir(path).map_err(|error| {
        let what = format!("cannot make {}", path.display());
        Failure::new(Code::Failure, what).cause(error)
    })?;
    let plan = |tenant| PartPlan {
        node: format!("n{number}"),
        store: PartStore::Directory(path.into()),
        volume: format!("t{tenant}"),
        index: number.into(),
        offset: Bytes(0),
        geometry: geometry(scenario.nodes.count as usize),
        fallback: None,
    };
    (0..scenario.tenants.count).try_for_each(|tenant| {
        let created = create(&[plan(tenant)], Creation::default()).map(drop);
        created.map_err(|error| Failure::new(Code::Failure, error.what).help(error.help))
    })
}

/// Room for a part of each tenant.
fn capacity(scenario: &Scenario) -> Bytes {
    Bytes(PART.0 * u64::from(scenario.tenants.count))
}

fn config(scenario: &Scenario, number: u16, store: StoreConfig, controller: &Path) -> Config {
    let scenario::Nodes { rate, spread_percent, depth, pacing, .. } = scenario.nodes;
    Config {
        controller: Some(Address::Unix(controller.into()).into()),
        depth,
        capacity: Some(rate),
        pacing: match pacing {
            scenario::Pacing::Even => Pacing::Even,
            scenario::Pacing::Paper => Pacing::Paper,
        },
        speed: Some(Speed { rate, variance: spread_percent, seed: u64::from(number) }),
        ..Config::new(format!("n{number}"), store)
    }
}

fn memcached(
    number: u16,
    socket: &Path,
    scratch: &Scratch,
    interrupt: &Interrupt,
) -> Result<Child, Failure> {
    // Root is refused unless it says who it is to be.
    let user = if rustix::process::geteuid().is_root() { &["-u", "root"][..] } else { &[] };
    let arguments = ["-t", "1", "-m", "64", "-U", "0", "-s"].into_iter().map(Into::into);
    let start = Start {
        name: format!("memcached-{number}"),
        program: "memcached".into(),
        arguments: arguments.chain([socket.into()]).chain(user.iter().map(Into::into)).collect(),
        ..Start::default()
    };
    Child::start_listening(&start, socket, scratch.path(), interrupt)
}

/// A controller that leads the nodes of the scenario, with its policy in force.
fn controller(
    scenario: &Scenario,
    plan: &ClusterReport,
    scratch: &Scratch,
    interrupt: &Interrupt,
) -> Result<Controller, Failure> {
    let file = scratch.join("cluster.toml");
    fs::write(&file, cluster(scenario)).map_err(|error| {
        Failure::new(Code::Failure, "cannot write the experiment's cluster").cause(error)
    })?;
    let policy = policy(scenario, &plan.promises);
    Controller::lead("controller", &file, &policy, scratch, interrupt)
}

/// The cluster as its controller knows it: its nodes, and the nodes that each tenant can reach. The
/// controller needs no knowledge of the store behind a node.
fn cluster(scenario: &Scenario) -> String {
    let mut text = String::new();
    for node in 0..scenario.nodes.count {
        let rate = scenario.nodes.rate.0;
        let _ = writeln!(
            text,
            "[[node]]\nname = \"n{node}\"\nmemory = true\ncapacity = \"{rate} iops\"\n"
        );
    }
    for tenant in 0..usize::from(scenario.tenants.count) {
        let nodes: Vec<u16> = match &scenario.load.on {
            Some(on) => on[tenant].clone(),
            None => (0..scenario.nodes.count).collect(),
        };
        let size = nodes.len() as u64 * (PART.0 >> 10);
        let nodes: Vec<String> = nodes.iter().map(|node| format!("\"n{node}\"")).collect();
        let _ = writeln!(
            text,
            "[[volume]]\nname = \"t{tenant}\"\nsize = \"{size}KiB\"\ntenant = \"t{tenant}\"\n\
             nodes = [{}]\n",
            nodes.join(", ")
        );
    }
    text
}

fn policy(scenario: &Scenario, promises: &[SimPromise]) -> String {
    let (period, redistribute) = (scenario.period, scenario.redistribute);
    let mut text = format!("period = \"{period}\"\nredistribute = \"{redistribute}\"\n");
    for (tenant, promise) in promises.iter().enumerate() {
        let _ = writeln!(text, "\n[[tenant]]\nname = \"t{tenant}\"");
        if scenario.control == Control::Tokens {
            if promise.reservation.0 > 0 {
                let _ = writeln!(text, "reservation = \"{} iops\"", promise.reservation.0);
            }
            if let Some(limit) = promise.limit {
                let _ = writeln!(text, "limit = \"{} iops\"", limit.0);
            }
        }
    }
    text
}

/// When the first period begins in which all nodes are led.
fn first_period(
    scenario: &Scenario,
    socket: &Path,
    clock: Clock,
    interrupt: &Interrupt,
) -> Result<Time, Failure> {
    let mut operator = Operator::connect(socket)?;
    let since = clock.now();
    loop {
        let before = clock.now();
        let status: Status = operator.call_as(&OperatorRequest::Status)?;
        let Some(cluster) = status.cluster else {
            return Err(Failure::new(Code::Failure, "the controller knows of no cluster"));
        };
        let here = cluster.nodes.iter().filter(|node| node.is_connected).count();
        let left = Span(scenario.period.0.saturating_sub(cluster.into_ns));
        if here == usize::from(scenario.nodes.count) && cluster.revision > 0 && left > HEADROOM {
            return Ok(before.after(left));
        }
        if clock.now().since(since) > PATIENCE {
            let what = format!("{here} of {} nodes found their controller", cluster.nodes.len());
            return Err(Failure::new(Code::Failure, what));
        }
        interrupt.sleep_until(clock, before.after(POLL_INTERVAL))?;
    }
}

/// Asks the controller now and then, as `tidegate top` does.
struct Watching<'a> {
    controller: &'a Controller,
    clock: Clock,
    from: Time,
    to: Time,
}

/// Answers of the controller.
#[derive(Debug, Default)]
struct Watched {
    /// Messages and bytes of each period before the one in which it was asked.
    traffic: Vec<(u64, u64)>,
    /// How long a distribution of each period took, in nanoseconds.
    distributions: Vec<u64>,
    /// Processor time of the controller.
    processor_us: f64,
}

impl Watching<'_> {
    fn run(&self, interrupt: &Interrupt, scenario: &Scenario) -> Result<Watched, Failure> {
        let mut operator = Operator::connect(self.controller.socket())?;
        let mut watched = Watched::default();
        interrupt.sleep_until(self.clock, self.from)?;
        let before_us = self.controller.cpu_us();
        // Once in a period, between two distributions: to be asked costs the controller, too.
        let mut next = self.from.after(Span(scenario.redistribute.0 / 2));
        while next < self.to {
            interrupt.sleep_until(self.clock, next)?;
            next = next.after(scenario.period);
            let status: Status = operator.call_as(&OperatorRequest::Status)?;
            let Some(cluster) = status.cluster else { continue };
            watched.traffic.push((cluster.traffic.messages, cluster.traffic.bytes));
            watched.distributions.push(cluster.round_ns);
        }
        interrupt.sleep_until(self.clock, self.to)?;
        watched.processor_us = self.controller.cpu_us() - before_us;
        Ok(watched)
    }
}

impl Watched {
    fn lived(mut self, shown: PshiftRun, scenario: &Scenario, quiet: Quiet) -> Lived {
        let periods = self.traffic.len().max(1) as f64;
        let sum = |of: fn(&(u64, u64)) -> u64| self.traffic.iter().map(of).sum::<u64>() as f64;
        self.distributions.sort_unstable();
        let median = self.distributions.get(self.distributions.len() / 2).copied();
        Lived {
            shown,
            quiet,
            missing: None,
            messages: sum(|traffic| traffic.0) / periods,
            bytes: sum(|traffic| traffic.1) / periods,
            distribution_ms: median.unwrap_or(0) as f64 / 1e6,
            processor_ms: self.processor_us / 1e3 / f64::from(scenario.periods),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::pshift::simulated;
    use tidegate_model::{Cluster, Policy};

    #[test]
    fn texts_are_read_by_those_they_are_for() {
        for text in [simulated::EXPERIMENT_3_LIMITS, simulated::EXPERIMENT_5] {
            let scenario = simulated::scenario(text).unwrap();
            let count = usize::from(scenario.tenants.count);
            let promise = SimPromise { reservation: Iops(3), limit: Some(Iops(6)), demand: 9 };
            let policy = Policy::parse(&policy(&scenario, &vec![promise; count])).unwrap();
            let cluster = Cluster::parse(&cluster(&scenario)).unwrap();
            assert_eq!((policy.period, policy.tenants.len()), (scenario.period, count));
            assert_eq!(cluster.nodes.len(), usize::from(scenario.nodes.count));
            for volume in &cluster.volumes {
                assert_eq!(volume.layout().part_length(0), PART);
            }
            let reachable_nodes =
                tidegate_algo::allocation::admission::reachable_nodes(&policy, &cluster);
            assert_eq!(
                reachable_nodes[0].len(),
                scenario.load.on.as_ref().map_or(8, |on| on[0].len())
            );
        }
    }

    #[test]
    fn a_scaled_scenario_promises_the_same_part() {
        let whole = simulated::scenario(simulated::EXPERIMENT_3_LIMITS).unwrap();
        let part = scaled(&whole, 50);
        assert_eq!((part.nodes.rate, part.tenants.reservation), (Iops(1_000), Some(Iops(600))));
        assert_eq!((part.tenants.limit, part.tenants.count), (Some(Iops(1_200)), 4));
    }

    #[test]
    fn the_controllers_reports_are_averaged() {
        let traffic = vec![(10, 100_000), (20, 300_000)];
        let distributions = vec![4_000_000];
        let watched = Watched { traffic, distributions, processor_us: 20_000.0 };
        let scenario = simulated::scenario(simulated::EXPERIMENT_4_200).unwrap();
        let outcome = ClusterReport { period: Span::SECOND, ..ClusterReport::default() };
        let lived = watched.lived(PshiftRun { outcome, seconds: 1.0 }, &scenario, Quiet::default());
        assert_eq!((lived.messages, lived.bytes), (15.0, 200_000.0));
        assert_eq!((lived.distribution_ms, lived.processor_ms), (4.0, 5.0));
        // 5 ms of the controller, and 1.6 ms of the link, of a second.
        assert!((lived.communication_percent() - 0.66).abs() < 1e-9);
    }
}
