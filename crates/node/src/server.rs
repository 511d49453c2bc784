//! Gateways of other processes: connections for jobs and their replies.
//!
//! A few workers share the listening socket; the worker that accepts a connection owns it. A worker
//! reads the bytes that have arrived, submits the jobs as one batch, and writes all answers with
//! one system call. Jobs that other threads finish arrive as messages, are sorted to their
//! connections, and are answered likewise.
//!
//! A connection has bounds: on jobs, on bytes to be stored, on answers that the gateway has not
//! read. At a bound the worker stops reading until some are done: the gateway's socket fills up,
//! and the gateway waits. Nothing is dropped.
//!
//! A node that stops refuses new connections and announces the stop on open ones. Their gateways
//! send no more, receive their replies and disconnect; they wait for the node's next process.
//!
//! A closed connection stays registered until the last of its jobs has returned from the device: a
//! new one of the same gateway is not served before that ([`fence`]).

mod connection;
mod fence;
mod worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;

use tidegate_fabric::reactor::{MessageQueue, Reactor};
use tidegate_fabric::service::{Job, Service};
use tidegate_fabric::stream::{Address, Listener};
use tidegate_model::{PartNumber, Span};

use fence::Fences;
use worker::Worker;

use crate::threads;

/// Messages from other threads to a connection, by its number.
enum Message {
    Finished(u64, Job),
    /// A part, as the node numbers it, and its new incarnation.
    Incarnation(u64, PartNumber, u64),
    /// A new connection of its gateway replaces it.
    Replaced(u64),
    /// The connections that it replaces have ended.
    Fenced(u64),
    /// The connections of another link that it named have ended: the link's number, and that of the
    /// last connection.
    LinkFenced(u64, u32, u64),
}

/// Counters of the connections to a node's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Connections that are open.
    pub open: u32,
    /// Jobs that were answered since the node started.
    pub answered: u64,
    /// Connections that were closed because of a malformed or invalid frame.
    pub refused: u64,
}

/// State that workers share.
struct ServerContext {
    listener: Listener,
    service: Arc<dyn Service>,
    fences: Arc<Fences>,
    /// The node's.
    name: String,
    /// Whether connections get the code point of their class.
    dscp: bool,
    is_ending: AtomicBool,
    /// How long gateways get replies once the node ends, in nanoseconds; zero if its data end with
    /// it.
    drain_ns: AtomicU64,
    open: AtomicU32,
    answered: AtomicU64,
    refused: AtomicU64,
}

/// Workers that serve connections. Dropping it ends them: gateways are notified, their requests are
/// answered as far as the drain time allows, and then connections are closed.
pub(crate) struct Server {
    shared: Arc<ServerContext>,
    workers: Vec<(Arc<MessageQueue<Message>>, JoinHandle<()>)>,
}

impl Server {
    pub(crate) fn start(
        listener: Listener,
        service: Arc<dyn Service>,
        (name, dscp): (String, bool),
        (workers, busy_poll, drain): (usize, Span, Span),
    ) -> io::Result<Self> {
        let shared = Arc::new(ServerContext {
            listener,
            service,
            fences: Arc::default(),
            name,
            dscp,
            is_ending: AtomicBool::new(false),
            drain_ns: AtomicU64::new(drain.0),
            open: AtomicU32::new(0),
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        });
        let mut server = Self { shared, workers: Vec::new() };
        for number in 0..workers.max(1) {
            let reactor = Reactor::new()?.polling(busy_poll);
            let message_queue = reactor.message_queue();
            let worker = Worker::new(reactor, server.shared.clone())?;
            let thread = threads::spawn(format!("node-{number}"), move || worker.run())?;
            server.workers.push((message_queue, thread));
        }
        Ok(server)
    }

    /// Gateways get no replies once the node ends.
    pub(crate) fn forget_drain(&self) {
        self.shared.drain_ns.store(0, Ordering::Relaxed);
    }

    pub(crate) fn address(&self) -> &Address {
        self.shared.listener.address()
    }

    pub(crate) fn counts(&self) -> ServerCounts {
        ServerCounts {
            open: self.shared.open.load(Ordering::Relaxed),
            answered: self.shared.answered.load(Ordering::Relaxed),
            refused: self.shared.refused.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.listener.refuse();
        self.workers.iter().for_each(|(message_queue, _)| message_queue.wake());
        for (_, thread) in self.workers.drain(..) {
            // A worker's panic was reported already.
            let _ = thread.join();
        }
    }
}
