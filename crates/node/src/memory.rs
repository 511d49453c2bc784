//! A data node: memory that clients read and write themselves, those on this machine or those that
//! an RNIC reaches.
//!
//! ```text
//!  client ── hello, once ──▶ endpoint ──▶ host: session slots ◀─────── pulse: the monitor, each ms
//!    │                        ▲                                     │
//!    │                        └── policy, shares ── controller      ▼
//!    └───── reads, writes, tokens ──────────────────────────▶ region: words, store
//! ```
//!
//! # Mechanism
//! The node makes a region and formats it, and has two threads. The *pulse* sleeps until the
//! monitor has something to do, about once a millisecond, and sweeps the store now and then. The
//! *endpoint* waits on the socket and on the controller: it identifies clients and hands out the
//! region. No request of a client passes either, so clients continue while both are stopped.
//!
//! A client that was given the region keeps it. The node *moves* to shut out a client that does
//! more than it may, or that has stopped and lost its session slot. A move makes all other clients
//! reconnect, waits until none of them uses the region, copies the store to a new region and hands
//! that out. Where an RNIC carries operations out, no client has the region. The node destroys the
//! queue pairs of the client to shut out (`rnic`), and does not move.
//!
//! # Bound
//! A move takes as long as clients need to notice it (10 ms if they do something), and to copy the
//! store.
//!
//! Memory lives as long as a process has it. A restarted node continues with the memory of its
//! earlier incarnation if a client returns it: a file beside the socket names that memory. Behind
//! an RNIC only the node has it, so the memory ends with the node's process.

/// Checks that so much memory is left, as far as the kernel reports: without it, the kernel would
/// not refuse the memory but kill a process later.
fn check_headroom(size: Bytes) -> Result<(), StartError> {
    match headroom() {
        Some(Headroom { bytes, bound }) if bytes < size => {
            let error = io::Error::other(format!("{bound} has {bytes} left"));
            Err(StartError::Memory { size, error })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod damage_tests;
mod endpoint;
mod host;
mod identity;
mod inspector;
mod pulse;
mod rnic;
#[cfg(test)]
mod slot_tests;
mod sweeper;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tidegate_fabric::clock::Clock;
use tidegate_fabric::headroom::{Headroom, headroom};
use tidegate_fabric::memory::verbs::RdmaError;
use tidegate_fabric::reactor::{MessageQueue, Reactor};
use tidegate_fabric::stream::Way;
use tidegate_fabric::stream::{Address, BindError, Listener, ListenerAccess};
use tidegate_fabric::tls::Guard;
use tidegate_model::Bytes;
use tidegate_model::cluster::DataNode;
pub use tidegate_onesided::data_node::TokenRules;
use tidegate_onesided::kv::OpenError;

use crate::threads;
use endpoint::{Endpoint, Message};
use host::Host;

/// Configuration of a data node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The node as the cluster file describes it.
    pub node: DataNode,
    /// The rules by which it gives tokens out.
    pub rules: TokenRules,
    /// The address on which it listens: that of the file, as this machine resolves it.
    pub listen: Address,
    /// The TLS guard that admits clients over TCP.
    pub guard: Option<Guard>,
    /// The connection settings of the controller, which sends the policy and this node's shares;
    /// none for a node without promises.
    pub controller: Option<Way>,
}

/// Why a data node cannot start. No resource of it is left then.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The socket cannot be listened on.
    #[error("{0}")]
    Bind(BindError),
    /// There is not enough memory.
    #[error(
        "{size} of memory cannot be had: {error}; write less in the cluster's file, or free some"
    )]
    Memory {
        /// The requested size.
        size: Bytes,
        /// The error of the kernel, or the amount of memory that is left.
        error: io::Error,
    },
    /// Clients over TCP could not be identified.
    #[error(
        "{0} does not authenticate clients; add [tls] to the cluster's file, or listen on a Unix \
         socket"
    )]
    Unguarded(Address),
    /// The memory cannot be reached by RDMA.
    #[error("{0}")]
    Rdma(RdmaError),
    /// There is no space for a store, or none that this release can use.
    #[error("{0}")]
    Store(OpenError),
    /// The system has no more threads or descriptors.
    #[error("cannot start the data node: {0}")]
    Io(io::Error),
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<RdmaError> for StartError {
    fn from(error: RdmaError) -> Self {
        Self::Rdma(error)
    }
}

/// A data node that runs. Dropping it ends it; clients keep the memory that they have.
pub struct Running {
    host: Arc<Host>,
    address: Address,
    is_ending: Arc<AtomicBool>,
    waker: Arc<MessageQueue<Message>>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts a data node.
///
/// # Errors
/// See [`StartError`].
pub fn start(config: Config) -> Result<Running, StartError> {
    let Config { node, rules, listen, guard, controller } = config;
    let _span = tracing::error_span!(parent: None, "data_node", node = node.name).entered();
    let (note, access) = match (&listen, &guard) {
        (Address::Unix(path), _) => (path.with_extension("region"), endpoint::admits()),
        // No file is written for TCP, which carries no descriptors.
        (Address::Tcp(_), Some(_)) => {
            (PathBuf::new(), ListenerAccess { is_public: true, ..ListenerAccess::PRIVATE })
        }
        (Address::Tcp(_), None) => return Err(StartError::Unguarded(listen)),
    };
    // A process that holds the address is alive, so the node binds it before it takes memory.
    let listener = Listener::bind(&listen, access).map_err(StartError::Bind)?.behind(guard);
    let address = listener.address().clone();
    let (name, clock) = (node.name.clone(), Clock::start());
    let host = Arc::new(Host::new(node, rules, note, clock)?);
    let reactor = Reactor::new()?;
    let waker = reactor.message_queue();
    let is_ending = Arc::new(AtomicBool::new(false));
    let endpoint = Endpoint::new(reactor, listener, host.clone(), clock, name, controller)?;
    let (threads, ending) = (Vec::new(), is_ending.clone());
    let mut running = Running { host, address, is_ending, waker, threads };
    running.threads.push(threads::spawn("memory-listener", move || endpoint.run(&ending))?);
    let (host, waker) = (running.host.clone(), running.waker.clone());
    let ending = running.is_ending.clone();
    let run = move || watch(&host, clock, &waker, &ending);
    running.threads.push(threads::spawn("memory-pulse", run)?);
    Ok(running)
}

/// Runs the monitor's thread until the node ends. Clients may write anything to the memory, so a
/// panic over it is treated as damage: the node makes new memory, and the thread continues with
/// that.
fn watch(host: &Host, clock: Clock, endpoint: &MessageQueue<Message>, is_ending: &AtomicBool) {
    let run = || pulse::run(host, clock, endpoint, is_ending);
    while catch_unwind(AssertUnwindSafe(run)).is_err() {
        host.fail();
        endpoint.push(Message::Damaged);
    }
}

impl Running {
    /// The address of its listener.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The number of clients with a session slot.
    pub fn client_count(&self) -> usize {
        self.host.client_count()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        self.waker.wake();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a thread of the data node has panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::Cluster;

    fn config(more: &str, listen: Address) -> Config {
        let text = format!(
            "[tls]\ndirectory = \"tls\"\n[[data-node]]\nname = \"m\"\nmemory = \"8MiB\"\n\
             capacity = \"1k iops\"\nclient = \"1k iops\"\n{more}"
        );
        let node = Cluster::parse(&text).unwrap().data_nodes.remove(0);
        Config { node, rules: TokenRules::Sound, listen, guard: None, controller: None }
    }

    #[test]
    fn by_rdma_nothing_starts_without_certificates_or_an_rnic() {
        let far: Address = "127.0.0.1:0".parse().unwrap();
        let verbs = "fabric = \"verbs\"\nlisten = \"127.0.0.1:0\"";
        let refused = start(config(verbs, far)).err().unwrap().to_string();
        assert!(
            refused.contains("127.0.0.1:0 does not authenticate clients; add [tls]"),
            "{refused}"
        );
        let folder = tempfile::tempdir().unwrap();
        let socket = Address::Unix(folder.path().join("m.sock"));
        let verbs = "fabric = \"verbs\"\ndevice = \"none_0\"\nlisten = \"unix:m.sock\"";
        let refused = start(config(verbs, socket)).err().unwrap();
        assert!(matches!(refused, StartError::Rdma(_)), "{refused}");
        assert!(!folder.path().join("m.sock").exists(), "nothing of it is left");
    }
}
