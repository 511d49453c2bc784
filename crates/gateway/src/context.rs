//! State that the workers of one server share: its listeners, limits and counters.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_algo::allocation::connection_quota::OpenConnections;
use tidegate_fabric::stream::{Address, BindError, Listener, ListenerAccess};

use crate::config::{Limits, StartError};
use crate::counters::ServerCounters;

/// State that the workers behind the same listeners share.
#[derive(Debug)]
pub(crate) struct ServerContext {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) limits: Limits,
    /// Clients of all of them.
    pub(crate) clients: AtomicUsize,
    /// The clients with an export, or a first request.
    pub(crate) open: Mutex<OpenConnections>,
    /// The bytes that their requests and replies take up, as their workers reported last.
    pub(crate) memory: AtomicUsize,
    /// The bytes that they may take up, besides the minimum of each client.
    pub(crate) memory_limit: usize,
    /// Counters of requests and clients.
    pub(crate) counts: ServerCounters,
}

impl ServerContext {
    /// Opens the listeners, for so many threads.
    ///
    /// # Errors
    /// If an address cannot be listened on.
    pub(crate) fn open<'a>(
        binds: &[(Address, ListenerAccess)],
        names: impl Iterator<Item = &'a str>,
        (limits, threads): (Limits, usize),
    ) -> Result<Self, StartError> {
        let listeners = binds.iter().map(|(address, access)| {
            let failed = |error| BindError::Io(address.clone(), error);
            Listener::bind(address, *access)?.naming_senders().map_err(failed)
        });
        let listeners = listeners.collect::<Result<_, BindError>>()?;
        let (clients, memory) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let open = Mutex::new(OpenConnections::new(limits.connections));
        // Without a listener there is no worker.
        let workers = if binds.is_empty() { 0 } else { threads };
        let memory_limit = limits.budget(threads).capacity().saturating_mul(workers);
        let counts = ServerCounters::new(names);
        Ok(Self { listeners, limits, clients, open, memory, memory_limit, counts })
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|listener| listener.address().clone()).collect()
    }

    /// Locks `open`.
    pub(crate) fn connections(&self) -> MutexGuard<'_, OpenConnections> {
        // Every change of it is whole before anything else can fail.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many clients there are.
    pub(crate) fn present(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }
}
