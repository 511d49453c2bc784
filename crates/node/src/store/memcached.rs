//! A memcached, or several behind one address: key-value requests are passed on unchanged.
//!
//! # Mechanism
//! All requests share one connection. A thread that has work writes its requests there by the
//! batch. A thread of the store's own reads the replies, which come in the same order, and finishes
//! the work by the batch. Only that thread blocks on the connection, and only to read: it writes
//! later any bytes that the kernel does not take at once. So a request costs a fraction of a system
//! call, and memcached is as busy as the node's depth allows.
//!
//! A quiet request may have no reply; a request with a reply follows it ([`BARRIER`]). Only a
//! request whose end memcached finds at the same byte is passed on: one byte more or less, and
//! every later reply would go to a wrong request.
//!
//! # Loss of the connection The same thread connects, at the start and again whenever the
//! connection has ended, one try every [`RETRY`]; with or without work. Each connection begins with
//! a probe ([`BARRIER`]), and so does each silence of [`SILENCE`] without requests: memcached
//! counts as reachable once it has replied. While it is unreachable, requests fail at once, and the
//! node reports it ([`Engine::fault`]). The log gets one line when it becomes unreachable and one
//! when it is reachable again.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::{Interest, MessageQueue, Reactor};
use tidegate_fabric::service::{Command, Fault, Job, OpenPart, Part, PartState};
use tidegate_fabric::stream::{Address, Outgoing, Stream};
use tidegate_model::PartNumber;
use tidegate_wire::memcached;
use tidegate_wire::memcached::reply::{BARRIER, Boundary, Shape};
use tidegate_wire::memcached::request::{Parsed, VALUE_MAX_MAX, parse};

use super::{Medium, OpenError};
use crate::engine::{Engine, Sink, Work};
use crate::mutex::lock;
use crate::threads;

/// The time between two tries to connect.
const RETRY: Duration = Duration::from_millis(100);

/// How long memcached may send nothing while a request is open, twice in a row, before the
/// connection is closed. Chosen by hand: a working memcached answers within a millisecond.
const SILENCE: Duration = Duration::from_secs(2);

/// The `nice` value of the thread for bulk: where processors are scarce, short requests go first.
/// Chosen by hand: it has a tenth of the weight of any other thread.
const BULK_NICE: i32 = 10;

/// Bytes read at once.
const INPUT: usize = 64 << 10;

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

/// A connection.
struct MemcachedLink {
    stream: Stream,
    exchange: Mutex<Exchange>,
    /// Wakes the reader: bytes wait for the kernel, or the connection has to end.
    waker: Arc<MessageQueue<()>>,
}

/// Bytes to send, and requests that wait for a reply. One lock keeps both in the wire's order.
#[derive(Default)]
struct Exchange {
    output: Outgoing,
    waiting: VecDeque<Awaited>,
    /// The connection is broken.
    is_over: bool,
    /// It ends once no request waits.
    is_ending: bool,
}

struct Awaited {
    /// None for a probe.
    work: Option<Work>,
    boundary: Boundary,
}

impl Relay {
    /// An engine of this node that finishes into `sink`. memcached need not be reachable.
    ///
    /// # Errors
    /// If there can be no thread.
    pub(crate) fn start(
        node: String,
        address: Address,
        medium: Arc<dyn Medium>,
        sink: Arc<dyn Sink>,
    ) -> io::Result<Self> {
        let short = RelayConnection::start(node, address, false, sink)?;
        Ok(Self { medium, short, bulk: Mutex::default() })
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
        let shared = Arc::new(RelayState { node, address, is_bulk, sink, standing, ended });
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

    /// Passes on all of `work`; work that fails at once is appended to `done`.
    fn pass_on(&self, medium: &dyn Medium, work: impl Iterator<Item = Work>, done: &mut Vec<Work>) {
        let link = self.link();
        let mut exchange = link.as_ref().map(|link| lock(&link.exchange));
        for mut work in work {
            let shape = match work.body.job.command {
                Command::KeyValue => shape(&work.body.job.buffer).ok_or(Fault::Invalid),
                _ => {
                    medium.perform(&mut std::iter::once(&mut work.body.job));
                    done.push(work);
                    continue;
                }
            };
            match (shape, exchange.as_deref_mut().filter(|exchange| !exchange.is_over)) {
                (Ok(shape), Some(exchange)) => exchange.send_request(work, shape),
                (shape, _) => {
                    work.body.job.outcome = Err(shape.err().unwrap_or(Fault::Io));
                    done.push(work);
                }
            }
        }
        if let (Some(mut exchange), Some(link)) = (exchange, &link) {
            // The reader handles bytes that the kernel does not take, and errors.
            if !matches!(exchange.output.flush(&link.stream), Ok(true)) {
                drop(exchange);
                link.waker.push(());
            }
        }
    }

    fn stop(&self) {
        let mut standing = lock(&self.shared.standing);
        standing.is_ending = true;
        let link = standing.link.take();
        drop(standing);
        self.shared.ended.notify_all();
        if let Some(link) = link {
            lock(&link.exchange).is_ending = true;
            link.waker.push(());
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
        let waker = reactor.message_queue();
        reactor.add(&stream, 0, Interest::READ)?;
        let mut exchange = Exchange::default();
        exchange.probe();
        let link = Arc::new(MemcachedLink { stream, exchange: Mutex::new(exchange), waker });
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
                let served = link.serve(reactor, self);
                lock(&self.standing).link = None;
                link.give_up(&*self.sink);
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

    /// Memcached has answered.
    fn on_answer(&self) {
        let before = std::mem::replace(&mut lock(&self.standing).reachability, Reachability::Up);
        if let (Reachability::Away(_), false) = (before, self.is_bulk) {
            // The line that ends a warning has its level, so that an operator sees both.
            tracing::warn!("memcached at {} behind node {} is back", self.address, self.node);
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
                "memcached at {} behind node {} is away: {error}; requests for its keys fail until \
                 it is back",
                self.address,
                self.node
            );
        }
    }
}

impl Engine for Relay {
    fn run(&self, work: &mut Vec<Work>, done: &mut Vec<Work>) {
        let is_bulk = |work: &mut Work| work.body.owner.is_bulk.load(Ordering::Relaxed);
        let bulk: Vec<Work> = work.extract_if(.., is_bulk).collect();
        if !work.is_empty() {
            self.short.pass_on(&*self.medium, work.drain(..), done);
        }
        if !bulk.is_empty() {
            let line = self.bulk();
            let line = line.as_deref().unwrap_or(&self.short);
            line.pass_on(&*self.medium, bulk.into_iter(), done);
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
        self.short.stop();
        let bulk = lock(&self.bulk).clone();
        if let Some(bulk) = bulk {
            bulk.stop();
        }
    }
}

impl Exchange {
    fn send_request(&mut self, mut work: Work, shape: Shape) {
        // The buffer will be the reply's.
        self.output.push_buffer(std::mem::take(&mut work.body.job.buffer));
        if shape == Shape::Quiet {
            self.output.push(BARRIER);
        }
        self.waiting.push_back(Awaited { work: Some(work), boundary: Boundary::new(shape) });
    }

    /// Sends memcached a probe.
    fn probe(&mut self) {
        self.output.push(BARRIER);
        self.waiting.push_back(Awaited { work: None, boundary: Boundary::new(Shape::Line) });
    }

    /// Whether work waits for its reply.
    fn has_work(&self) -> bool {
        self.waiting.iter().any(|awaited| awaited.work.is_some())
    }
}

/// The shape of the reply to a request; none if `bytes` is not one request of a kind that is passed
/// on.
fn shape(bytes: &[u8]) -> Option<Shape> {
    let Parsed::Request(request) = parse(bytes, VALUE_MAX_MAX) else { return None };
    let is_one = request.bytes.len() == bytes.len()
        && (request.command.operation().is_some()
            || request.command == memcached::Command::FlushAll);
    is_one.then(|| if request.quiet { Shape::Quiet } else { request.command.shape() })
}

impl MemcachedLink {
    /// Passes on nothing more here, and fails the requests without a reply.
    fn give_up(&self, sink: &dyn Sink) {
        let mut exchange = lock(&self.exchange);
        exchange.is_over = true;
        let given_up = std::mem::take(&mut exchange.waiting);
        drop(exchange);
        let failed = given_up.into_iter().filter_map(|awaited| awaited.work).map(|mut work| {
            work.body.job.outcome = Err(Fault::Io);
            work
        });
        let mut failed: Vec<Work> = failed.collect();
        if !failed.is_empty() {
            sink.finished(&mut failed);
        }
    }

    /// Runs until the connection fails, which is an error, or has to end.
    fn serve(&self, mut reactor: Reactor<()>, shared: &RelayState) -> io::Result<()> {
        let (mut input, mut silences) = (Input::default(), 0);
        let (mut ready, mut mail, mut finished) = (Vec::new(), Vec::new(), Vec::new());
        let mut has_received = false;
        loop {
            let mut exchange = lock(&self.exchange);
            let is_written = exchange.output.flush(&self.stream)?;
            let has_requests = !exchange.waiting.is_empty();
            if exchange.is_ending && !exchange.has_work() {
                return Ok(());
            }
            drop(exchange);
            reactor.change(&self.stream, 0, Interest { read: true, write: !is_written })?;
            reactor.wait(Some(SILENCE), &mut ready, &mut mail)?;
            let is_silent = ready.is_empty() && mail.is_empty();
            silences = if is_silent && has_requests { silences + 1 } else { 0 };
            if silences == 2 {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
            }
            if is_silent && !has_requests {
                lock(&self.exchange).probe();
            }
            mail.clear();
            if !ready.drain(..).any(|ready| ready.read || ready.gone) {
                continue;
            }
            match rustix::io::read(&self.stream, input.spare_capacity()) {
                Ok(0) => return Err(io::Error::other("it closed the connection")),
                Ok(count) => input.length += count,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let used = self.replies(&mut input, &mut finished);
            if !finished.is_empty() {
                shared.sink.finished(&mut finished);
            }
            let used = used?;
            if used > 0 && !std::mem::replace(&mut has_received, true) {
                shared.on_answer();
            }
        }
    }

    /// Finishes the work whose replies have arrived, and returns their length in bytes.
    fn replies(&self, input: &mut Input, finished: &mut Vec<Work>) -> io::Result<usize> {
        let strange = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut exchange = lock(&self.exchange);
        let mut used = 0;
        while used < input.length {
            let rest = &input.bytes[used..input.length];
            let Some(first) = exchange.waiting.front_mut() else {
                return Err(strange("it sent a reply without a request".into()));
            };
            let found = first.boundary.find(rest).map_err(|error| strange(error.to_string()))?;
            let Some(whole) = found else {
                let least = first.boundary.min_length(rest);
                drop(exchange);
                input.consume(used, least);
                return Ok(used);
            };
            if let Some(mut work) = exchange.waiting.pop_front().and_then(|first| first.work) {
                work.body.job.buffer = match used == 0 && whole.with_barrier == input.length {
                    true => input.take(whole.length),
                    false => Buffer::from(&rest[..whole.length]),
                };
                work.body.job.outcome = Ok(());
                finished.push(work);
            }
            used += whole.with_barrier;
        }
        drop(exchange);
        input.consume(used, 0);
        Ok(used)
    }
}

/// The bytes from memcached that are not yet a complete reply. A long reply is read into its final
/// buffer.
struct Input {
    bytes: Buffer,
    /// The bytes that were read.
    length: usize,
    /// The least length of the first reply.
    least: usize,
}

impl Default for Input {
    fn default() -> Self {
        Self { bytes: Buffer::with_length(INPUT), length: 0, least: 0 }
    }
}

impl Input {
    /// The buffer for the next read, which ends with a long reply.
    fn spare_capacity(&mut self) -> &mut [u8] {
        let end = if self.least > INPUT { self.least } else { INPUT }.max(self.length + 1);
        if end > self.bytes.len() {
            // A reply with lengths of its parts only gets twice as much each time.
            let wanted = if end > self.least { 2 * self.bytes.len() } else { end };
            let mut bytes = Buffer::with_length(wanted);
            bytes[..self.length].copy_from_slice(&self.bytes[..self.length]);
            self.bytes = bytes;
        }
        let end = if self.least > self.length { end } else { self.bytes.len() };
        &mut self.bytes[self.length..end]
    }

    /// Drops `used` bytes. The next reply has `least` bytes or more.
    fn consume(&mut self, used: usize, least: usize) {
        if used < self.length {
            self.bytes.copy_within(used..self.length, 0);
        }
        self.length -= used;
        self.least = least;
    }

    /// The bytes that were read are one reply: takes its first `length` bytes.
    fn take(&mut self, length: usize) -> Buffer {
        if length <= INPUT {
            return Buffer::from(&self.bytes[..length]);
        }
        let mut reply = std::mem::replace(&mut self.bytes, Buffer::with_length(INPUT));
        reply.set_length(length);
        reply
    }
}

#[cfg(test)]
#[path = "memcached_tests.rs"]
mod tests;
