//! One connection to a memcached: requests in the order of the wire, and their replies.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::{Interest, MessageQueue, Registrar};
use tidegate_fabric::service::{Command, Fault};
use tidegate_fabric::stream::{Outgoing, Stream};
use tidegate_wire::memcached;
use tidegate_wire::memcached::reply::{BARRIER, Boundary, Shape, is_barrier_reply};
use tidegate_wire::memcached::request::{Parsed, VALUE_MAX_MAX, parse};

use crate::engine::Work;
use crate::mutex::lock;
use crate::store::Medium;

/// Bytes read at once.
pub(super) const INPUT: usize = 64 << 10;

/// A connection. Any thread writes requests; one reads the replies.
pub(super) struct MemcachedLink {
    pub(super) stream: Stream,
    pub(super) exchange: Mutex<Exchange>,
    reader: Reader,
}

/// The thread that reads the replies, and writes later any bytes that the kernel does not take at
/// once.
pub(super) enum Reader {
    /// One of the relay's own. A message wakes it.
    Thread(Arc<MessageQueue<()>>),
    /// A session's worker, in whose reactor the stream has this token.
    Worker(Registrar, u64),
}

/// Bytes to send, and requests that wait for a reply. One lock keeps both in the wire's order.
#[derive(Default)]
pub(super) struct Exchange {
    pub(super) output: Outgoing,
    waiting: VecDeque<Awaited>,
    /// The connection is broken.
    is_over: bool,
    /// It ends once no request waits.
    pub(super) is_ending: bool,
}

pub(super) struct Awaited {
    /// None for a probe.
    work: Option<Work>,
    boundary: Boundary,
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
    pub(super) fn probe(&mut self) {
        self.output.push(BARRIER);
        self.waiting.push_back(Awaited { work: None, boundary: Boundary::new(Shape::Line) });
    }

    /// Whether a reply is to come, be it a probe's.
    pub(super) fn has_requests(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether work waits for its reply.
    pub(super) fn has_work(&self) -> bool {
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
    pub(super) fn new(stream: Stream, reader: Reader) -> Self {
        Self { stream, exchange: Mutex::default(), reader }
    }

    /// Passes on all of `work`, where there is a connection; work that fails at once is appended
    /// to `done`.
    pub(super) fn pass_on(
        link: Option<&Self>,
        medium: &dyn Medium,
        work: impl Iterator<Item = Work>,
        done: &mut Vec<Work>,
    ) {
        let mut exchange = link.map(|link| lock(&link.exchange));
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
        if let (Some(mut exchange), Some(link)) = (exchange, link) {
            // The reader handles bytes that the kernel does not take, and errors.
            if !matches!(exchange.output.flush(&link.stream), Ok(true)) {
                link.wake_reader();
            }
        }
    }

    /// Makes the reader write. A worker's interest changes under the lock of the exchange, so that
    /// the last change is the right one.
    pub(super) fn wake_reader(&self) {
        match &self.reader {
            Reader::Thread(queue) => queue.push(()),
            Reader::Worker(registrar, token) => {
                let interest = Interest { read: true, write: true };
                // One that is not there is closed, and its work failed.
                let _ = registrar.change(&self.stream, *token, interest);
            }
        }
    }

    /// Reads once, and finishes the work whose replies have arrived. Returns their length in bytes.
    pub(super) fn receive(
        &self,
        input: &mut ReplyBuffer,
        finished: &mut Vec<Work>,
    ) -> io::Result<usize> {
        match rustix::io::read(&self.stream, input.spare_capacity()) {
            Ok(0) => return Err(io::Error::other("it closed the connection")),
            Ok(count) => input.length += count,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.replies(input, finished)
    }

    /// Passes on nothing more here, and fails the requests without a reply.
    pub(super) fn give_up(&self, failed: &mut Vec<Work>) {
        let mut exchange = lock(&self.exchange);
        exchange.is_over = true;
        let given_up = std::mem::take(&mut exchange.waiting);
        drop(exchange);
        failed.extend(given_up.into_iter().filter_map(|awaited| awaited.work).map(|mut work| {
            work.body.job.outcome = Err(Fault::Io);
            work
        }));
    }

    /// Finishes the work whose replies have arrived, and returns their length in bytes.
    fn replies(&self, input: &mut ReplyBuffer, finished: &mut Vec<Work>) -> io::Result<usize> {
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
            let answered = exchange.waiting.pop_front().and_then(|first| first.work);
            if answered.is_none() && !is_barrier_reply(rest) {
                let text = String::from_utf8_lossy(&rest[..whole.length]);
                return Err(strange(format!("it refuses the connection: {}", text.trim())));
            }
            if let Some(mut work) = answered {
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
pub(super) struct ReplyBuffer {
    bytes: Buffer,
    /// The bytes that were read.
    length: usize,
    /// The least length of the first reply.
    least: usize,
}

impl Default for ReplyBuffer {
    fn default() -> Self {
        Self { bytes: Buffer::with_length(INPUT), length: 0, least: 0 }
    }
}

impl ReplyBuffer {
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
