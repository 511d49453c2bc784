//! A running gateway: its start (listeners, workers and the agent), the counters that it shows, and
//! its end, at which requests in flight get [`crate::Limits::drain`] to finish.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tidegate_fabric::reactor::{MessageQueue, Reactor};
use tidegate_fabric::stream::{Address, Way};
use tidegate_model::cluster::Volume;
use tidegate_proto::stats::latency::RequestLatency;
use tidegate_proto::stats::message::{GatewayCounts, GatewayPressure};

use crate::agent::Agent;
use crate::clock;
use crate::config::{Config, Limits, StartError};
use crate::connection;
use crate::context::ServerContext;
use crate::in_flight::InFlight;
use crate::links::Common;
use crate::memcached;
use crate::message::Message;
use crate::nodes::{NodeLocation, Nodes};
use crate::owners::Register;
use crate::parts::PartError;
use crate::pool::Pool;
use crate::reachability::Reachability;
use crate::status::Stats;
use crate::volumes::{VolumeIndex, Volumes};
use crate::worker::{Frontend, Worker};

/// A gateway that serves. Dropped, it ends.
#[derive(Debug)]
pub struct Running {
    volumes: Vec<Address>,
    pools: Vec<Address>,
    stats: Arc<Stats>,
    limits: Limits,
    reachability: Arc<Reachability>,
    workers: Vec<(Arc<MessageQueue<Message>>, JoinHandle<()>)>,
    agent: Option<Agent>,
}

/// Starts a gateway in threads of its own, over `nodes`, which volumes and pools name by index. A
/// gateway holds no state that could be lost with it: an acknowledged write is at its node, and a
/// flush goes to every node of its volume.
///
/// # Errors
/// If an address is taken, a pool has no node, nodes in this process refuse every volume and there
/// is no pool, or a resource of the operating system is missing. No socket is left then. A node
/// behind a socket may connect later, and where only some volumes are refused the others are
/// served.
pub fn start(config: Config, nodes: &[NodeLocation]) -> Result<Running, StartError> {
    let common = common(&config)?;
    let Config { name, controller, binds, tls, parties, volumes, pools, workers, limits, .. } =
        config;
    let _span = tracing::error_span!(parent: None, "gateway", gateway = name).entered();
    let register = register(nodes.len(), &volumes, &pools, controller.is_none());
    let threads = workers.max(1);
    let reachability = Reachability::new(nodes.iter().map(NodeLocation::label).collect());
    let names = volumes.iter().filter(|_| !binds.is_empty()).map(|volume| &volume.name[..]);
    let volumes_context = Arc::new(ServerContext::open(&binds, names, (limits, threads))?);
    let (mut ready, mut contexts) = (Vec::new(), Vec::new());
    for number in (0..threads).filter(|_| !binds.is_empty()) {
        let volumes = Volumes::new(volumes.clone());
        ready.push(prepare("gateway", number, &volumes_context, &register, |reactor| {
            let links = (&common, &reachability.join());
            let nodes = Nodes::open(nodes, &volumes.parts(), links, reactor)?;
            expect_served(&nodes, &volumes, &pools)?;
            Ok(connection::Frontend {
                volumes,
                nodes,
                in_flight: InFlight::default(),
                context: volumes_context.clone(),
                budget: limits.budget(threads),
                tls: tls.clone(),
                table: register.table(),
                programs: Arc::default(),
                parties: parties.clone(),
                is_ending: false,
            })
        })?);
    }
    pools.iter().try_for_each(with_nodes)?;
    for pool in pools {
        let (binds, names) = ([(pool.address.clone(), pool.access)], [&*pool.name].into_iter());
        let context = Arc::new(ServerContext::open(&binds, names, (limits, threads))?);
        let (common, pool) = (common.of_pool(pool.nodes.len()), Arc::new(pool));
        for number in 0..threads {
            let pool = pool.clone();
            ready.push(prepare("memcached", number, &context, &register, |reactor| {
                let links = (&common, &reachability.join());
                let nodes = Nodes::open(nodes, &[pool.parts()], links, reactor)?;
                let shared = (context.clone(), limits.budget(threads));
                Ok(memcached::Frontend::new(pool, nodes, shared, register.table()))
            })?);
        }
        contexts.push(context);
    }
    // From here on dropping it ends the started workers.
    let mut running = Running {
        volumes: volumes_context.addresses(),
        pools: contexts.iter().flat_map(|context| context.addresses()).collect(),
        stats: Arc::new(Stats::open((volumes_context, reachability.clone()), contexts, register)),
        limits,
        reachability,
        workers: Vec::new(),
        agent: None,
    };
    running.spawn(ready, controller.map(|way| (way, name)))?;
    Ok(running)
}

/// Settings that the links to nodes have in common.
fn common(config: &Config) -> io::Result<Common> {
    let costs = (config.cost, config.limits.patience, config.dscp);
    Common::new(costs, &config.name, &config.volumes)
}

/// A register of the tenants of volumes and pools; `is_known` if no policy will be sent.
fn register(nodes: usize, volumes: &[Volume], pools: &[Pool], is_known: bool) -> Arc<Register> {
    let tenants = volumes.iter().map(|volume| &*volume.tenant);
    let tenants = tenants.chain(pools.iter().map(|pool| &*pool.tenant));
    Arc::new(Register::new(nodes, tenants, is_known))
}

/// Whether there is anything to serve: a pool, or a volume that no node of this process refuses.
fn expect_served(nodes: &Nodes, volumes: &Volumes, pools: &[Pool]) -> Result<(), StartError> {
    match nodes.refusal().filter(|_| pools.is_empty()) {
        Some(fault) => {
            let (volume, fault) = (volumes.volume(VolumeIndex(0)).name.clone(), fault.into());
            Err(StartError::Volume { volume, fault })
        }
        None => Ok(()),
    }
}

/// A pool has a node at least.
fn with_nodes(pool: &Pool) -> Result<(), PartError> {
    match pool.nodes.is_empty() {
        true => {
            let reason = "a pool needs a node".into();
            Err(PartError { volume: pool.name.clone(), index: 0, reason })
        }
        false => Ok(()),
    }
}

/// A worker that has all it needs.
struct Prepared {
    name: String,
    message_queue: Arc<MessageQueue<Message>>,
    run: Box<dyn FnOnce() + Send>,
}

fn prepare<S: Frontend<Client: Send> + Send + 'static>(
    kind: &str,
    number: usize,
    context: &Arc<ServerContext>,
    register: &Arc<Register>,
    frontend: impl FnOnce(&Reactor<Message>) -> Result<S, StartError>,
) -> Result<Prepared, StartError> {
    let reactor = Reactor::new()?.polling(context.limits.busy_poll);
    let message_queue = reactor.message_queue();
    let frontend = frontend(&reactor)?;
    let worker = Worker::new(reactor, context.clone(), register.clone(), frontend)?;
    let run = Box::new(move || worker.run());
    Ok(Prepared { name: format!("{kind}-{number}"), message_queue, run })
}

impl Running {
    /// The addresses of the listeners for volumes, in the order of the configuration; with the
    /// ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.volumes
    }

    /// The addresses of the listeners of each pool, likewise.
    pub fn pools(&self) -> &[Address] {
        &self.pools
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.stats.clients()
    }

    /// The memory that requests and replies of clients take up, in bytes. See
    /// [`Limits::all_bytes`] for its bound.
    pub fn memory(&self) -> usize {
        self.stats.memory()
    }

    /// The counters since the gateway started.
    pub fn counts(&self) -> GatewayCounts {
        self.stats.counts()
    }

    /// The use of its limits, and the clients that these have refused.
    pub fn pressure(&self) -> GatewayPressure {
        self.stats.pressure()
    }

    /// The latencies of requests since the gateway started, by tenant and operation.
    pub fn latency(&self) -> Vec<RequestLatency> {
        self.stats.latency()
    }

    /// Starts the workers, and the agent if there is a controller.
    fn spawn(
        &mut self,
        ready: Vec<Prepared>,
        controller: Option<(Way, String)>,
    ) -> Result<(), StartError> {
        for Prepared { name, message_queue, run } in ready {
            let span = tracing::Span::current();
            let thread = thread::Builder::new().name(name).spawn(move || span.in_scope(run))?;
            self.workers.push((message_queue, thread));
        }
        if let Some((way, name)) = controller {
            self.agent = Some(Agent::start(way, name, self.stats.clone())?);
        }
        Ok(())
    }

    /// The reasons why some volumes and pools cannot be served now, one sentence each.
    pub fn unready(&self) -> Vec<String> {
        self.reachability.reasons()
    }

    /// Whether every request of this volume fails, because its parts are refused or differ.
    pub fn is_refused(&self, volume: &str) -> bool {
        self.reachability.is_refused(volume)
    }

    /// Ends: no client is admitted any more, and requests in flight finish as far as
    /// [`crate::Limits::drain`] allows. Later requests, and those that are unfinished by then, fail
    /// with the error for a gateway that is ending.
    ///
    /// # Errors
    /// If a worker had panicked.
    pub fn stop(mut self) -> io::Result<()> {
        match self.end() {
            true => Ok(()),
            false => Err(io::Error::other("a worker of the gateway has panicked")),
        }
    }

    fn end(&mut self) -> bool {
        let at = clock::after(self.limits.drain);
        self.workers.iter().for_each(|(message_queue, _)| message_queue.push(Message::End(at)));
        let ended: Vec<_> = self.workers.drain(..).map(|(_, thread)| thread.join()).collect();
        // Last, so that the controller receives the final counters.
        self.agent = None;
        ended.iter().all(Result::is_ok)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
