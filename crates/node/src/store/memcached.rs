//! A memcached, or several behind one address: key-value requests are passed on as they came.
//!
//! # Mechanism
//! All requests share one connection. Whoever has work writes its requests there by the batch, and
//! a thread of the store's own reads the replies, which come in the same order, and finishes the
//! work by the batch. Nobody blocks on the connection but that thread, and only to read: what the
//! kernel does not take at once it writes later. So a request costs a fraction of a system call,
//! and memcached is as busy as the node's depth allows.
//!
//! A quiet request has no reply that one could wait for; it is followed by a question that has one
//! ([`BARRIER`]). Only what ends where memcached thinks that it ends is passed on: one byte more or
//! less and every later reply would be somebody else's.
//!
//! # When it goes away
//! What was asked and not answered fails, and so does what comes later, until it is back: one try
//! every [`RETRY`], made by whoever has work then.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::{Interest, Mailbox, Reactor};
use tidegate_fabric::service::{Command, Fault, Job, OpenPart, Part, PartState};
use tidegate_fabric::stream::{Address, Outgoing, Stream};
use tidegate_model::{Span, Time};
use tidegate_proto::memcached::Verb;
use tidegate_proto::memcached::reply::{BARRIER, Boundary, Shape};
use tidegate_proto::memcached::request::{Step, VALUE_MAX_MAX, next};

use super::{Medium, OpenError};
use crate::clock::Clock;
use crate::engine::{Engine, Sink, Work};
use crate::mutex::lock;

/// The time between two tries to connect.
const RETRY: Span = Span(100 * Span::MILLISECOND.0);

/// How long memcached may say nothing while something is asked, twice in a row, before the
/// connection is given up. Chosen by hand: a memcached that works answers within a millisecond.
const SILENCE: Duration = Duration::from_secs(2);

/// Bytes read at once.
const INPUT: usize = 64 << 10;

/// Where the parts are: there are none, and every volume is the whole of memcached.
pub(crate) struct Memcached {
    pub(crate) address: Address,
}

impl Medium for Memcached {
    fn open(&self, _: &Part) -> Result<OpenPart, OpenError> {
        // Nothing is flushed here, so there is nothing to compare.
        Ok(OpenPart { number: 0, state: PartState { incarnation: 1, identity: None } })
    }

    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>) {
        // Requests with keys are the relay's; memcached has no blocks.
        jobs.for_each(|job| job.outcome = Err(Fault::Unsupported));
    }

    fn describe(&self) -> String {
        format!("memcached at {}", self.address)
    }
}

/// The engine that passes requests on.
pub(crate) struct Relay {
    medium: Arc<dyn Medium>,
    address: Address,
    clock: Clock,
    sink: Arc<dyn Sink>,
    standing: Mutex<Standing>,
}

#[derive(Default)]
struct Standing {
    link: Option<(Arc<Link>, JoinHandle<()>)>,
    /// Not before then is a connection tried again.
    retry_at: Time,
    is_ending: bool,
}

/// A connection.
struct Link {
    stream: Stream,
    exchange: Mutex<Exchange>,
    /// Wakes the reader: there is more to write than the kernel took, or it is to end.
    bell: Arc<Mailbox<()>>,
}

/// What is on its way there and back. One lock, so that what waits is in the order of the wire.
#[derive(Default)]
struct Exchange {
    output: Outgoing,
    waiting: VecDeque<Awaited>,
    /// The connection is of no use any more.
    is_over: bool,
    /// Once nothing waits any more, it is over.
    is_ending: bool,
}

struct Awaited {
    work: Work,
    boundary: Boundary,
}

impl Relay {
    /// An engine that connects when it first has work, and finishes into `sink`.
    pub(crate) fn new(
        address: Address,
        medium: Arc<dyn Medium>,
        clock: Clock,
        sink: Arc<dyn Sink>,
    ) -> Self {
        Self { medium, address, clock, sink, standing: Mutex::default() }
    }

    /// The connection that there is, or a new one.
    fn link(&self) -> Option<Arc<Link>> {
        let mut standing = lock(&self.standing);
        if let Some((link, _)) = &standing.link
            && !lock(&link.exchange).is_over
        {
            return Some(link.clone());
        }
        let now = self.clock.now();
        if standing.is_ending || now < standing.retry_at {
            return None;
        }
        standing.retry_at = now.after(RETRY);
        match self.connect() {
            Ok((link, reader)) => {
                // The reader before has ended with its connection, or is about to.
                standing.link = Some((link.clone(), reader));
                Some(link)
            }
            Err(error) => {
                tracing::warn!("memcached at {} cannot be reached: {error}", self.address);
                None
            }
        }
    }

    fn connect(&self) -> io::Result<(Arc<Link>, JoinHandle<()>)> {
        let stream = Stream::connect(&self.address)?;
        let reactor = Reactor::new()?;
        let (exchange, bell) = (Mutex::default(), reactor.mailbox());
        reactor.add(&stream, 0, Interest::READ)?;
        let link = Arc::new(Link { stream, exchange, bell });
        let (reading, sink) = (link.clone(), self.sink.clone());
        let reader = thread::Builder::new().name("memcached".into());
        let reader = reader.spawn(move || reading.work(reactor, &*sink))?;
        Ok((link, reader))
    }
}

impl Engine for Relay {
    fn run(&self, work: &mut Vec<Work>, done: &mut Vec<Work>) {
        let link = self.link();
        let mut exchange = link.as_ref().map(|link| lock(&link.exchange));
        for mut work in work.drain(..) {
            let shape = match work.job.command {
                Command::KeyValue => shape(&work.job.buffer).ok_or(Fault::Invalid),
                _ => {
                    self.medium.perform(&mut std::iter::once(&mut work.job));
                    done.push(work);
                    continue;
                }
            };
            match (shape, exchange.as_deref_mut().filter(|exchange| !exchange.is_over)) {
                (Ok(shape), Some(exchange)) => exchange.ask(work, shape),
                (shape, _) => {
                    work.job.outcome = Err(shape.err().unwrap_or(Fault::Io));
                    done.push(work);
                }
            }
        }
        if let (Some(mut exchange), Some(link)) = (exchange, &link) {
            // What the kernel does not take, and what is wrong with it, is the reader's to see to.
            if !matches!(exchange.output.flush(&link.stream), Ok(true)) {
                drop(exchange);
                link.bell.push(());
            }
        }
    }

    fn stop(&self) {
        let mut standing = lock(&self.standing);
        standing.is_ending = true;
        let link = standing.link.take();
        drop(standing);
        if let Some((link, reader)) = link {
            lock(&link.exchange).is_ending = true;
            link.bell.push(());
            let _ = reader.join();
        }
    }
}

impl Exchange {
    fn ask(&mut self, mut work: Work, shape: Shape) {
        // The buffer will be the reply's.
        self.output.push_buffer(std::mem::take(&mut work.job.buffer));
        if shape == Shape::Quiet {
            self.output.push(BARRIER);
        }
        self.waiting.push_back(Awaited { work, boundary: Boundary::new(shape) });
    }
}

/// What the reply to a request looks like; none if it is not exactly one request with a key.
fn shape(bytes: &[u8]) -> Option<Shape> {
    let Step::Request(request) = next(bytes, VALUE_MAX_MAX) else { return None };
    let is_one = request.bytes.len() == bytes.len()
        && (request.verb.operation().is_some() || request.verb == Verb::FlushAll);
    is_one.then(|| if request.quiet { Shape::Quiet } else { request.verb.shape() })
}

impl Link {
    /// The reader's life: until the connection ends or is to end.
    fn work(&self, reactor: Reactor<()>, sink: &dyn Sink) {
        if let Err(error) = self.serve(reactor, sink) {
            tracing::warn!("the connection with memcached has ended: {error}");
        }
        let mut exchange = lock(&self.exchange);
        exchange.is_over = true;
        let given_up = std::mem::take(&mut exchange.waiting);
        drop(exchange);
        let failed = given_up.into_iter().map(|Awaited { mut work, .. }| {
            work.job.outcome = Err(Fault::Io);
            work
        });
        let mut failed: Vec<Work> = failed.collect();
        if !failed.is_empty() {
            sink.finished(&mut failed);
        }
    }

    fn serve(&self, mut reactor: Reactor<()>, sink: &dyn Sink) -> io::Result<()> {
        let (mut input, mut length, mut silences) = (vec![0; INPUT], 0, 0);
        let (mut ready, mut mail, mut finished) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let mut exchange = lock(&self.exchange);
            let is_written = exchange.output.flush(&self.stream)?;
            let is_asked = !exchange.waiting.is_empty();
            if exchange.is_ending && !is_asked {
                return Ok(());
            }
            drop(exchange);
            reactor.change(&self.stream, 0, Interest { read: true, write: !is_written })?;
            reactor.wait(Some(SILENCE), &mut ready, &mut mail)?;
            let is_silent = ready.is_empty() && mail.is_empty() && is_asked;
            silences = if is_silent { silences + 1 } else { 0 };
            if silences == 2 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            mail.clear();
            if !ready.drain(..).any(|ready| ready.read || ready.gone) {
                continue;
            }
            if length == input.len() {
                // A reply larger than all before.
                input.resize(2 * length, 0);
            }
            length += match rustix::io::read(&self.stream, &mut input[length..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
                Err(error) => return Err(error.into()),
            };
            let used = self.replies(&input[..length], &mut finished);
            if !finished.is_empty() {
                sink.finished(&mut finished);
            }
            let used = used?;
            input.copy_within(used..length, 0);
            length -= used;
        }
    }

    /// Finishes the work whose replies are there, and says how many bytes they are.
    fn replies(&self, input: &[u8], finished: &mut Vec<Work>) -> io::Result<usize> {
        let strange = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut exchange = lock(&self.exchange);
        let mut used = 0;
        while used < input.len() {
            let rest = &input[used..];
            let Some(first) = exchange.waiting.front_mut() else {
                return Err(strange("it says what nobody has asked".into()));
            };
            let found = first.boundary.find(rest).map_err(|error| strange(error.to_string()))?;
            let Some(whole) = found else { break };
            if let Some(Awaited { mut work, .. }) = exchange.waiting.pop_front() {
                work.job.buffer = Buffer::from(&rest[..whole.length]);
                work.job.outcome = Ok(());
                finished.push(work);
            }
            used += whole.with_barrier;
        }
        Ok(used)
    }
}

#[cfg(test)]
#[path = "memcached_tests.rs"]
mod tests;
