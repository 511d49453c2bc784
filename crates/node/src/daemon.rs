//! A running storage node: its start, its status, and its end, in which gateways get their replies
//! and written data become durable.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use tidegate_fabric::clock::Clock;
use tidegate_fabric::reactor::{MessageQueue, Reactor};
use tidegate_fabric::service::Service;
use tidegate_fabric::stream::{Address, BindError, Listener, ListenerAccess};
use tidegate_model::Span;
use tidegate_proto::cluster::message::NodeInfo;
use tidegate_proto::data::DRAIN_MAX;
use tidegate_proto::node::{self, NodeStatus};
use tidegate_proto::session::Standing;

use crate::agent::{Agent, Watch};
use crate::config::{Config, StoreConfig};
use crate::engine::memcached::{Memcached, Relay};
use crate::engine::model::Modelled;
use crate::engine::pool::ThreadPool;
use crate::engine::ring::Ring;
use crate::engine::{Engine, Inline, Sink, Work};
use crate::live::{Live, LiveNode, Local};
use crate::path_check::PathCheck;
use crate::server::{Server, ServerCounts};
use crate::store::block::{self, WITH_LEVELS};
use crate::store::lock::Busy;
use crate::store::sync::sync_all;
use crate::store::{DeviceStore, Directory, Medium, Memory};
use crate::threads;

/// The most requests at the device at a time: more threads than this help no device.
const DEPTH_MAX: u32 = 4096;

/// Why a node cannot start. No resource of it is left then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be used.
    #[error("cannot use {path} as the node's store: {error}{}", advice(.error))]
    Store {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The address cannot be listened on.
    #[error("{0}")]
    Bind(BindError),
    /// The depth is out of range.
    #[error("a depth of {0} cannot be; choose one from 1 to {DEPTH_MAX}")]
    Depth(u32),
    /// The system has no more threads or descriptors.
    #[error("cannot start the node: {0}")]
    Io(io::Error),
}

/// The way to make a store usable, after a semicolon.
fn advice(error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::ResourceBusy => {
            let busy = error.get_ref().and_then(|busy| busy.downcast_ref::<Busy>());
            let help = busy.filter(|busy| !busy.is_node()).map(Busy::help);
            help.unwrap_or(
                "wait until that process has ended, or give each node a store of its own",
            )
        }
        io::ErrorKind::NotFound => "make it with `truncate -s SIZE`, or use a directory instead",
        // An error without a number contains its own advice.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_some() => {
            "choose another place, or let the node's user write there"
        }
        _ => return String::new(),
    };
    format!("; {advice}")
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A node that runs. Dropping it ends it.
pub struct Running {
    pub(crate) live: Arc<Live>,
    watch: Arc<Watch>,
    waker: Arc<MessageQueue<()>>,
    agent: Option<JoinHandle<()>>,
    server: Option<Server>,
    /// For stores whose files other programs could move.
    path_check: Option<PathCheck>,
    /// It ends as if its process had died.
    is_aborted: bool,
}

/// The status of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Queues, counts and capacity.
    pub node: NodeStatus,
    /// A description of the store.
    pub store: String,
    /// Parts that are refused or not durable: volume, index and reason.
    pub faults: Vec<(String, u32, String)>,
    /// Why the whole store is unavailable now, if that is known.
    pub store_fault: Option<String>,
    /// The state of the link to its controller.
    pub standing: Standing,
    /// Counters of the connections to its own address.
    pub connections: ServerCounts,
}

/// Starts a node.
///
/// # Errors
/// See [`StartError`].
pub fn start(config: Config) -> Result<Running, StartError> {
    let _span = tracing::error_span!(parent: None, "node", node = config.name).entered();
    if !(1..=DEPTH_MAX).contains(&config.depth) {
        return Err(StartError::Depth(config.depth));
    }
    // A process that holds the address is alive, so the node binds it before it touches the store.
    let access = ListenerAccess { is_public: config.guard.is_some(), ..ListenerAccess::PRIVATE };
    let listen = |address: &Address| {
        Listener::bind(address, access).map(|listener| listener.behind(config.guard.clone()))
    };
    let listener = config.listen.as_ref().map(listen).transpose().map_err(StartError::Bind)?;
    let medium = medium(&config)?;
    let clock = Clock::start();
    let reactor = Reactor::new()?;
    let waker = reactor.message_queue();
    let node = LiveNode::new(clock.now(), info(&config), node_config(&config));
    let live = Arc::new(Live::new(node, medium, clock, waker.clone()));
    let weak_live = Arc::downgrade(&live);
    live.medium.watch(Box::new(move |part, incarnation| {
        if let Some(live) = weak_live.upgrade() {
            live.announce(part, incarnation);
        }
    }));
    let watch = Arc::new(Watch::new());
    let agent = Agent::new(live.clone(), watch.clone(), reactor, config.controller.clone())?;
    live.set_engine(engine(&config, &live)?);
    // The engine has threads by now.
    let agent = Some(threads::spawn("agent", move || agent.run()).inspect_err(|_| live.end())?);
    let mut running =
        Running { live, watch, waker, agent, server: None, path_check: None, is_aborted: false };
    if matches!(config.store, StoreConfig::Directory { .. } | StoreConfig::Device { .. }) {
        running.path_check = Some(PathCheck::start(running.live.medium.clone())?);
    }
    if let Some(listener) = listener {
        let service = running.service();
        let drain = if running.live.medium.outlives_node() { DRAIN_MAX } else { Span::ZERO };
        let bounds = (config.workers, config.busy_poll, drain);
        let about = (config.name, config.dscp);
        running.server = Some(Server::start(listener, service, about, bounds)?);
    }
    Ok(running)
}

fn medium(config: &Config) -> Result<Arc<dyn Medium>, StartError> {
    let failed = |path: &PathBuf, error| StartError::Store { path: path.clone(), error };
    Ok(match &config.store {
        StoreConfig::Memory { capacity } => Arc::new(Memory::new(*capacity)),
        StoreConfig::Directory { path } => {
            let directory = Directory::new(path).map_err(|error| failed(path, error))?;
            Arc::new(directory.with_fallback(config.fallback.as_deref()))
        }
        StoreConfig::Device { path, size } => {
            Arc::new(DeviceStore::new(path, *size).map_err(|error| failed(path, error))?)
        }
        #[cfg(feature = "faults")]
        StoreConfig::Faulty { disk } => Arc::new(crate::store::faulty::Faulty::new(disk.clone())),
        StoreConfig::Memcached { address } => Arc::new(Memcached { address: address.clone() }),
    })
}

fn info(config: &Config) -> NodeInfo {
    NodeInfo {
        name: config.name.clone(),
        pid: std::process::id(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        release: env!("CARGO_PKG_VERSION").into(),
        revision: 0,
    }
}

fn node_config(config: &Config) -> node::Config {
    let Config { depth, capacity, latency, pacing, discipline, cost, workers, .. } = *config;
    let is_modelled = config.speed.is_some();
    let is_memory = matches!(config.store, StoreConfig::Memory { .. }) && !is_modelled;
    // How many requests a model or a memory serves at the same time is known.
    let servers = match is_memory {
        true => u32::try_from(workers).ok(),
        false => is_modelled.then_some(1),
    };
    // Memory is quicker than a clock, and than a lock that threads share: a shard for each worker.
    // A slower store gains nothing by more than one, which keeps the order exactly.
    let (shards, is_sampled) = if is_memory { (workers, false) } else { (1, true) };
    // No request overtakes one that a device has taken. A model's requests overtake each other.
    let is_store =
        matches!(config.store, StoreConfig::Directory { .. } | StoreConfig::Device { .. });
    let is_guarded = is_store && !is_modelled;
    node::Config {
        depth,
        shards,
        capacity,
        latency,
        servers,
        is_sampled,
        is_guarded,
        pacing,
        discipline,
        cost,
    }
}

/// Logs where priorities of requests reach a device that does not look at them.
fn note_scheduler(config: &Config) {
    let (StoreConfig::Directory { path } | StoreConfig::Device { path, .. }) = &config.store else {
        return;
    };
    let scheduler = block::scheduler(path).filter(|it| config.io_priority && it != WITH_LEVELS);
    if let Some(scheduler) = scheduler {
        tracing::info!(
            node = config.name,
            scheduler,
            wanted = WITH_LEVELS,
            "the device's scheduler does not order requests by their priority"
        );
    }
}

fn engine(config: &Config, live: &Arc<Live>) -> Result<Box<dyn Engine>, StartError> {
    note_scheduler(config);
    let medium = live.medium.clone();
    let sink: Arc<dyn Sink> = Arc::new(Back(Arc::downgrade(live)));
    let depth = config.depth;
    let plain = |sink: Arc<dyn Sink>| -> io::Result<Box<dyn Engine>> {
        match &config.store {
            StoreConfig::Memory { .. } => return Ok(Box::new(Inline { medium })),
            #[cfg(feature = "faults")]
            StoreConfig::Faulty { .. } => return Ok(Box::new(Inline { medium })),
            StoreConfig::Memcached { address } => {
                let (node, address) = (config.name.clone(), address.clone());
                return Ok(Box::new(Relay::start(node, address, medium, sink)?));
            }
            StoreConfig::Directory { .. } | StoreConfig::Device { .. } => {}
        }
        match Ring::start(depth, config.io_priority, medium.clone(), sink.clone()) {
            Ok(ring) => Ok(Box::new(ring)),
            Err(error) => {
                tracing::info!(%error, threads = depth, "no io_uring: threads serve the store");
                Ok(Box::new(ThreadPool::start(depth as usize, config.io_priority, medium, sink)?))
            }
        }
    };
    Ok(match config.speed {
        None => plain(sink)?,
        Some(speed) => Box::new(Modelled::start(speed, live.clock, sink, plain)?),
    })
}

/// Back to the node, as long as there is one. The node owns its engine.
struct Back(Weak<Live>);

impl Sink for Back {
    fn finished(&self, work: &mut Vec<Work>) {
        match self.0.upgrade() {
            Some(live) => live.finished(work),
            None => work.clear(),
        }
    }
}

impl Running {
    /// The node, for gateways of this process.
    pub fn service(&self) -> Arc<dyn Service> {
        Arc::new(Local(self.live.clone()))
    }

    /// The address of its listener; with the kernel's choice if the port was 0.
    pub fn address(&self) -> Option<&Address> {
        self.server.as_ref().map(Server::address)
    }

    /// The status of the node.
    pub fn status(&self) -> Status {
        Status {
            node: self.live.status(),
            store: self.live.medium.describe(),
            faults: self.live.faults(),
            store_fault: self.live.store_fault(),
            standing: self.watch.standing(),
            connections: self.server.as_ref().map(Server::counts).unwrap_or_default(),
        }
    }

    /// Makes written data durable, part by part, within the time that a node may take to end.
    /// Several nodes of a process do this before the first one refuses requests, so that none is
    /// unreachable while others sync.
    pub fn sync(&self) {
        let until = self.live.clock.now().after(DRAIN_MAX);
        sync_all(&*self.live.medium, || self.live.clock.now() > until);
    }

    /// Ends the node. Where its data outlive it, gateways are notified first and get their replies,
    /// for at most [`DRAIN_MAX`], and written data become durable. Then connections are closed,
    /// waiting requests fail, requests at the device finish, and the controller is notified.
    pub fn stop(self) {
        drop(self);
    }

    /// Ends the node like the death of its process, as far as gateways see: they get no notice and
    /// no replies, and nothing is synced. For tests.
    pub fn abort(mut self) {
        self.is_aborted = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        match (self.is_aborted, &self.server) {
            // Most of it while gateways are still served: while they wait, little is left.
            (false, _) => self.sync(),
            (true, Some(server)) => server.forget_drain(),
            (true, None) => {}
        }
        (self.server, self.path_check) = (None, None);
        self.live.end();
        if !self.is_aborted {
            self.sync();
        }
        self.watch.is_ending.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(agent) = self.agent.take() {
            let _ = agent.join();
        }
    }
}
