//! The key-value front end: a pool of memcached nodes, as one memcached.
//!
//! A client speaks to the gateway as to any memcached. What the protocol means is
//! [`tidegate_proto::memcached`]'s business; here a key finds its node ([`crate::ketama`]) and its
//! tenant, requests go to nodes as jobs, and replies go back. Nothing is kept, so gateways of the
//! same pool are all alike, and a client may use any of them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_fabric::reactor::{Mailbox, Reactor};
use tidegate_fabric::service::Service;
use tidegate_fabric::stream::{Address, Door, Listener};
use tidegate_model::{Operation, TenantId};

use crate::clock;
use crate::config::StartError;
use crate::ketama::{Ketama, Place};

mod connection;
mod worker;

use worker::{Hall, Letter, Shop, Worker};

/// Whose a request is, by its key and what it does. Number 1 is the first name of
/// [`Config::tenants`].
pub type Owner = Arc<dyn Fn(&[u8], Operation) -> TenantId + Send + Sync>;

/// What a key-value gateway serves, where, and for whom.
#[derive(Clone)]
pub struct Config {
    /// Where clients come in.
    pub address: Address,
    /// Who may.
    pub door: Door,
    /// The pool's name, which nodes are asked for.
    pub pool: String,
    /// The nodes as keys are spread over them, in the order of the services.
    pub nodes: Vec<Place>,
    /// The tenants' names.
    pub tenants: Vec<String>,
    /// Whose requests are.
    pub owner: Owner,
    /// The longest value, in bytes.
    pub value_max: u32,
    /// Whether a client may empty the pool, of everybody's keys.
    pub flush_all: bool,
    /// Threads, at least one.
    pub workers: usize,
    /// Connections at a time; whoever comes then is turned away.
    pub connections: usize,
    /// How long requests may still be served once the gateway is told to end.
    pub drain: Duration,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, pool, nodes, tenants, .. } = self;
        let mut told = f.debug_struct("Config");
        told.field("address", address).field("pool", pool);
        told.field("nodes", nodes).field("tenants", tenants).finish_non_exhaustive()
    }
}

/// A key-value gateway that serves. Dropped, it ends.
#[derive(Debug)]
pub struct Running {
    hall: Arc<Hall>,
    drain: Duration,
    workers: Vec<(Arc<Mailbox<Letter>>, JoinHandle<()>)>,
}

/// Starts a key-value gateway in threads of its own, over `services`: the node at each place of
/// [`Config::nodes`].
///
/// # Errors
/// If the address is taken, a node refuses the pool, or the process lacks something.
pub fn start(config: Config, services: &[Arc<dyn Service>]) -> Result<Running, StartError> {
    let listener = Listener::bind(&config.address, config.door)?;
    let (clients, connections) = (AtomicUsize::new(0), config.connections);
    let hall = Arc::new(Hall { listener, clients, connections });
    let circle = Ketama::plain(&config.nodes);
    let mut ready = Vec::new();
    for _ in 0..config.workers.max(1) {
        let reactor = Reactor::new()?;
        let mailbox = reactor.mailbox();
        let shop = Shop::open(&config, circle.clone(), services, &mailbox)?;
        ready.push((mailbox, Worker::new(reactor, hall.clone(), shop)?));
    }
    // From here on dropping it ends those that have been started.
    let mut running = Running { hall, drain: config.drain, workers: Vec::new() };
    for (number, (mailbox, worker)) in ready.into_iter().enumerate() {
        let thread = thread::Builder::new().name(format!("memcached-{number}"));
        running.workers.push((mailbox, thread.spawn(move || worker.run())?));
    }
    Ok(running)
}

impl Running {
    /// Where it listens, with the port that the kernel chose.
    pub fn address(&self) -> &Address {
        self.hall.listener.address()
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.hall.clients.load(Ordering::Relaxed)
    }

    /// Ends: nobody is let in any more, and what is under way is finished as long as
    /// [`Config::drain`] allows.
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
        let at = clock::now() + self.drain;
        self.workers.iter().for_each(|(mailbox, _)| mailbox.push(Letter::End(at)));
        let ended: Vec<_> = self.workers.drain(..).map(|(_, thread)| thread.join()).collect();
        ended.iter().all(Result::is_ok)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
