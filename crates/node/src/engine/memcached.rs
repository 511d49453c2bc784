//! A memcached, or several behind one address: key-value requests are passed on unchanged.
//!
//! # Mechanism
//! Sessions share connections. A thread that has work writes its requests to their sessions'
//! connections by the batch. One thread reads the replies of a connection, which come in the same
//! order, and finishes the work by the batch; it also writes any bytes that the kernel did not take
//! at once. So a request costs a fraction of a system call, and memcached is as busy as the node's
//! depth allows.
//!
//! A session of a worker in this process has a connection of its own, and the worker itself reads
//! it ([`WorkerLine`]): its replies need no wakeup of another thread. All other sessions use two
//! connections with a thread each: one for short requests, one for bulk. They also carry a worker's
//! requests while its own connection is down.
//!
//! A quiet request may have no reply; a request with a reply follows it, as a barrier. Only a
//! request whose end memcached finds at the same byte is passed on: one byte more or less, and
//! every later reply would go to a wrong request.
//!
//! # Loss of the connection
//! The thread for short requests connects, at the start and again whenever the connection has
//! ended, one try every [`RETRY`]; with or without work. It also connects the workers. Each of its
//! connections begins with a probe, and so does each silence of [`SILENCE`] without requests:
//! memcached counts as reachable once it has replied. While it is unreachable, requests fail at
//! once, and the node reports it ([`Engine::fault`]). The log gets one line when it becomes
//! unreachable and one when it is reachable again.

mod link;
mod worker_line;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_fabric::clock::Clock;
use tidegate_fabric::reactor::{Interest, Reactor, Ready, Registrar};
use tidegate_fabric::service::{Fault, Job, OpenPart, Part, PartState};
use tidegate_fabric::stream::{Address, Stream};
use tidegate_model::PartNumber;

use self::link::{MemcachedLink, ReplyBuffer};
pub(crate) use self::worker_line::WorkerLine;
use super::{Engine, Owner, Sink, Work};
use crate::mutex::lock;
use crate::store::{Medium, OpenError};
use crate::threads;

/// The time between two tries to connect.
const RETRY: Duration = Duration::from_millis(100);

/// How long memcached may send nothing while a request is open, twice in a row, before the
/// connection is closed; a worker's connection up to once more. Chosen by hand: a working memcached
/// answers within a millisecond.
const SILENCE: Duration = Duration::from_secs(2);

/// The `nice` value of the thread for bulk: where processors are scarce, short requests go first.
/// Chosen by hand: it has a tenth of the weight of any other thread.
const BULK_NICE: i32 = 10;

/// The store of parts: there are none, and every volume is the whole of memcached.
pub(crate) struct Memcached {
    pub(crate) address: Address,
}

impl Medium for Memcached {
    fn open(&self, _: &Part) -> Result<OpenPart, OpenError> {
        // Nothing is flushed here, so there is nothing to compare.
        Ok(OpenPart { number: PartNumber(0), state: PartState { incarnation: 1, identity: None } })
    }

    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>) {
        // Requests with keys are the relay's; memcached has no blocks.
        jobs.for_each(|job| job.outcome = Err(Fault::Unsupported));
    }

    fn describe(&self) -> String {
        format!("memcached at {}", self.address)
    }
}

/// The engine that relays requests.
pub(crate) struct Relay {
    medium: Arc<dyn Medium>,
    short: RelayConnection,
    /// For sessions that carry long requests and replies; none until one does.
    bulk: Mutex<Option<Arc<RelayConnection>>>,
}

/// A connection's state and thread.
struct RelayConnection {
    shared: Arc<RelayState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the relay shares with its thread.
struct RelayState {
    /// The node's name, for people.
    node: String,
    address: Address,
    /// It is the connection for bulk, which is not logged: the other connection's state counts for
    /// both.
    is_bulk: bool,
    sink: Arc<dyn Sink>,
    standing: Mutex<Standing>,
    /// Wakes the thread while it is not connected: the relay ends.
    ended: Condvar,
    /// The connections of workers, which this thread connects.
    workers: Mutex<Vec<Weak<WorkerLine>>>,
}

#[derive(Default)]
struct Standing {
    link: Option<Arc<MemcachedLink>>,
    reachability: Reachability,
    is_ending: bool,
}

/// The reachability of memcached.
#[derive(Default)]
enum Reachability {
    /// The first probe has no result yet.
    #[default]
    Unknown,
    Up,
    /// The reason why it is unreachable.
    Away(String),
}

impl Relay {
    /// An engine of this node that finishes into `sink`. memcached need not be reachable.
    pub(crate) fn start(
        node: String,
        address: Address,
        medium: Arc<dyn Medium>,
        sink: Arc<dyn Sink>,
    ) -> io::Result<Self> {
        let short = RelayConnection::start(node, address, false, sink)?;
        Ok(Self { medium, short, bulk: Mutex::default() })
    }

    /// The connection for a session's requests, if there is one.
    fn link(&self, owner: &Owner) -> Option<Arc<MemcachedLink>> {
        if owner.is_bulk.load(Ordering::Relaxed) {
            return self.bulk().as_deref().unwrap_or(&self.short).link();
        }
        let own = owner.line.get();
        own.and_then(|line| line.link()).or_else(|| {
            let short = self.short.link();
            if let (Some(line), Some(short)) = (own, &short)
                && line.wants_connection()
            {
                short.wake_reader();
            }
            short
        })
    }

    /// The connection for bulk, which is made on first use; none if that fails.
    fn bulk(&self) -> Option<Arc<RelayConnection>> {
        let mut bulk = lock(&self.bulk);
        if bulk.is_none() && !lock(&self.short.shared.standing).is_ending {
            let RelayState { node, address, sink, .. } = &*self.short.shared;
            let line = RelayConnection::start(node.clone(), address.clone(), true, sink.clone());
            *bulk = line.ok().map(Arc::new);
        }
        bulk.clone()
    }
}

impl RelayConnection {
    fn start(
        node: String,
        address: Address,
        is_bulk: bool,
        sink: Arc<dyn Sink>,
    ) -> io::Result<Self> {
        let (standing, ended) = (Mutex::default(), Condvar::new());
        let workers = Mutex::default();
        let shared =
            Arc::new(RelayState { node, address, is_bulk, sink, standing, ended, workers });
        // Connected here and not in the thread, so that the first request finds a connection.
        let first = shared.connect();
        let keeping = shared.clone();
        let thread = threads::spawn("memcached", move || {
            if is_bulk {
                // Without a process, Linux changes the calling thread alone. On failure, short
                // requests share the processors evenly.
                let _ = rustix::process::setpriority_process(None, BULK_NICE);
            }
            keeping.keep(first);
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The connection, if there is one.
    fn link(&self) -> Option<Arc<MemcachedLink>> {
        lock(&self.shared.standing).link.clone()
    }

    fn stop(&self) {
        let mut standing = lock(&self.shared.standing);
        standing.is_ending = true;
        let link = standing.link.take();
        drop(standing);
        self.shared.ended.notify_all();
        if let Some(link) = link {
            lock(&link.exchange).is_ending = true;
            link.wake_reader();
        }
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl RelayState {
    fn connect(&self) -> io::Result<(Arc<MemcachedLink>, Reactor<()>)> {
        let stream = Stream::connect(&self.address)?;
        let reactor = Reactor::new()?;
        reactor.add(&stream, 0, Interest::READ)?;
        let link =
            Arc::new(MemcachedLink::new(stream, link::Reader::Thread(reactor.message_queue())));
        lock(&link.exchange).probe();
        let mut standing = lock(&self.standing);
        if standing.is_ending {
            return Err(io::Error::other("the node ends"));
        }
        standing.link = Some(link.clone());
        drop(standing);
        Ok((link, reactor))
    }

    /// The thread: serves one connection after the other, until the relay ends.
    fn keep(&self, first: io::Result<(Arc<MemcachedLink>, Reactor<()>)>) {
        let mut connected = first;
        loop {
            let served = connected.and_then(|(link, reactor)| {
                let served = self.serve(&link, reactor);
                lock(&self.standing).link = None;
                let mut failed = Vec::new();
                link.give_up(&mut failed);
                self.finish(&mut failed);
                // Their workers find out by that.
                self.workers().iter().for_each(|line| line.shut_down());
                served
            });
            match served {
                Ok(()) => return,
                Err(error) => self.on_away(&error),
            }
            let standing = lock(&self.standing);
            let goes_on = |standing: &mut Standing| !standing.is_ending;
            let waited = self.ended.wait_timeout_while(standing, RETRY, goes_on);
            if waited.unwrap_or_else(PoisonError::into_inner).0.is_ending {
                return;
            }
            connected = self.connect();
        }
    }

    /// Runs until the connection fails, which is an error, or has to end.
    fn serve(&self, link: &MemcachedLink, mut reactor: Reactor<()>) -> io::Result<()> {
        let (mut input, mut silences) = (ReplyBuffer::default(), 0);
        let (mut ready, mut mail, mut finished) = (Vec::new(), Vec::new(), Vec::new());
        let (mut has_received, mut interest) = (false, Interest::READ);
        let mut inspected = Clock::start();
        self.tend_workers(true);
        loop {
            let mut exchange = lock(&link.exchange);
            let is_written = exchange.output.flush(&link.stream)?;
            let has_requests = exchange.has_requests();
            if exchange.is_ending && !exchange.has_work() {
                return Ok(());
            }
            drop(exchange);
            let wanted = Interest { read: true, write: !is_written };
            if std::mem::replace(&mut interest, wanted) != wanted {
                reactor.change(&link.stream, 0, wanted)?;
            }
            reactor.wait(Some(SILENCE), &mut ready, &mut mail)?;
            let is_silent = ready.is_empty() && mail.is_empty();
            silences = if is_silent && has_requests { silences + 1 } else { 0 };
            if silences == 2 {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
            }
            if is_silent && !has_requests {
                lock(&link.exchange).probe();
            }
            let is_due = Duration::from_nanos(inspected.now().0) >= SILENCE;
            if is_due || !mail.is_empty() {
                self.tend_workers(is_due);
            }
            if is_due {
                inspected = Clock::start();
            }
            mail.clear();
            if !ready.drain(..).any(|ready| ready.read || ready.gone) {
                continue;
            }
            let used = link.receive(&mut input, &mut finished);
            self.finish(&mut finished);
            let used = used?;
            if used > 0 && !std::mem::replace(&mut has_received, true) {
                self.on_answer();
            }
        }
    }

    /// The connections of workers that still exist.
    fn workers(&self) -> Vec<Arc<WorkerLine>> {
        lock(&self.workers).iter().filter_map(Weak::upgrade).collect()
    }

    /// Connects workers; where `is_due`, also those whose last connection could not be made, and
    /// closes connections that are silent.
    fn tend_workers(&self, is_due: bool) {
        for line in self.workers() {
            if is_due {
                line.inspect();
            }
            line.connect(&self.address, is_due);
        }
    }

    fn finish(&self, finished: &mut Vec<Work>) {
        if !finished.is_empty() {
            self.sink.finished(finished);
        }
    }

    /// Memcached has answered.
    fn on_answer(&self) {
        let before = std::mem::replace(&mut lock(&self.standing).reachability, Reachability::Up);
        if let (Reachability::Away(_), false) = (before, self.is_bulk) {
            // The line that ends a warning has its level, so that an operator sees both.
            tracing::warn!(node = self.node, address = %self.address, "memcached is back");
        }
    }

    /// The connection has ended, or there is none.
    fn on_away(&self, error: &io::Error) {
        let mut standing = lock(&self.standing);
        let before =
            std::mem::replace(&mut standing.reachability, Reachability::Away(error.to_string()));
        let is_reported = self.is_bulk || matches!(before, Reachability::Away(_));
        if !standing.is_ending && !is_reported {
            tracing::warn!(
                node = self.node,
                address = %self.address,
                %error,
                "memcached is away, and requests for its keys fail until it is back"
            );
        }
    }
}

impl Engine for Relay {
    fn run(&self, work: &mut Vec<Work>, done: &mut Vec<Work>) {
        while let Some(first) = work.first() {
            let owner = first.body.owner.clone();
            let link = self.link(&owner);
            let is_same = |work: &mut Work| Arc::ptr_eq(&work.body.owner, &owner);
            MemcachedLink::pass_on(
                link.as_deref(),
                &*self.medium,
                work.extract_if(.., is_same),
                done,
            );
        }
    }

    fn attach(&self, owner: &Owner, registrar: Registrar, token: u64) {
        let line = Arc::new(WorkerLine::new(registrar, token));
        let mut workers = lock(&self.short.shared.workers);
        workers.retain(|line| line.strong_count() > 0);
        workers.push(Arc::downgrade(&line));
        // A session is attached once.
        let _ = owner.line.set(line);
    }

    fn on_ready(&self, owner: &Owner, ready: Ready, done: &mut Vec<Work>) {
        if let Some(line) = owner.line.get() {
            line.on_ready(ready, done);
        }
    }

    fn detach(&self, owner: &Owner, done: &mut Vec<Work>) {
        if let Some(line) = owner.line.get() {
            line.end(done);
        }
    }

    fn fault(&self) -> Option<String> {
        match &lock(&self.short.shared.standing).reachability {
            Reachability::Away(reason) => {
                Some(format!("memcached at {} is away: {reason}", self.short.shared.address))
            }
            Reachability::Unknown | Reachability::Up => None,
        }
    }

    fn stop(&self) {
        let mut finished = Vec::new();
        self.short.shared.workers().iter().for_each(|line| line.drain(&mut finished));
        self.short.shared.finish(&mut finished);
        self.short.stop();
        let bulk = lock(&self.bulk).clone();
        if let Some(bulk) = bulk {
            bulk.stop();
        }
    }
}

#[cfg(test)]
#[path = "memcached_tests.rs"]
mod tests;
