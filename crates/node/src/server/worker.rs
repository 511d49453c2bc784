//! A worker thread of a storage node, with the connections of gateways that it serves: it accepts
//! them, passes finished jobs to their connections, sends signs of life to gateways that wait, and
//! at the node's end waits until they have their replies.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_fabric::clock::Clock;
use tidegate_fabric::reactor::{Reactor, Ready};
use tidegate_fabric::service::Job;
use tidegate_fabric::stream::Stream;
use tidegate_model::{Span, Time};
use tidegate_proto::data::ALIVE_EVERY;

use super::connection::{Closed, Connection, ConnectionSink, Remains};
use super::fence::FenceDenied;
use super::{Message, ServerContext};

/// The listening socket. Connections count from one.
const LISTENER: u64 = 0;

/// The idle time after which a worker without free descriptors listens again.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// One thread with its connections.
pub(super) struct Worker {
    reactor: Reactor<Message>,
    shared: Arc<ServerContext>,
    connections: BTreeMap<u64, Connection>,
    /// Closed connections with jobs at the device.
    closed: BTreeMap<u64, Remains>,
    next: u64,
    /// Whether the worker waits for new connections: not while there is no descriptor for one.
    is_listening: bool,
    clock: Clock,
    /// The log lines about connections that no gateway has claimed, and about those of gateways.
    failures: LogLimiter,
    closes: LogLimiter,
    /// The deadline for replies to gateways while the node ends; none before that.
    drains_until: Option<Time>,
    /// The time of the next sign of life to waiting gateways.
    reassure_at: Time,
    /// Kept for their memory.
    jobs: Vec<Job>,
    done: Vec<Job>,
}

impl Worker {
    pub(super) fn new(reactor: Reactor<Message>, shared: Arc<ServerContext>) -> io::Result<Self> {
        reactor.add_shared(&shared.listener, LISTENER)?;
        let connections = BTreeMap::new();
        Ok(Self {
            reactor,
            shared,
            connections,
            closed: BTreeMap::new(),
            next: 1,
            is_listening: true,
            clock: Clock::start(),
            failures: LogLimiter::default(),
            closes: LogLimiter::default(),
            drains_until: None,
            reassure_at: Time::ZERO,
            jobs: Vec::new(),
            done: Vec::new(),
        })
    }

    /// Serves until the node ends and its gateways have their replies.
    pub(super) fn run(mut self) {
        let (mut ready, mut messages) = (Vec::new(), Vec::new());
        while !self.is_over() {
            if let Err(error) = self.reactor.wait(self.patience(), &mut ready, &mut messages) {
                // The descriptors are ours and the arguments too; there is nothing to wait for.
                tracing::error!(%error, "a worker of the node cannot wait for events");
                break;
            }
            let is_idle = ready.is_empty() && messages.is_empty();
            if !self.is_listening && is_idle && self.drains_until.is_none() {
                self.is_listening =
                    self.reactor.add_shared(&self.shared.listener, LISTENER).is_ok();
            }
            self.sort(&mut messages);
            for ready in ready.drain(..) {
                match ready.token {
                    LISTENER => self.accept(),
                    _ => self.serve(ready),
                }
            }
            self.reassure();
        }
        for connection in std::mem::take(&mut self.connections).into_values() {
            self.close(connection, &Closed::Ending);
        }
    }

    /// Whether the worker is finished. The first call after the node's end began notifies the
    /// gateways, which are served until they disconnect: each does once it has its replies.
    fn is_over(&mut self) -> bool {
        if !self.shared.is_ending.load(Ordering::Acquire) {
            return false;
        }
        let now = self.clock.now();
        if self.drains_until.is_none() {
            let drain = Span(self.shared.drain_ns.load(Ordering::Relaxed));
            self.drains_until = Some(now.after(drain));
            if std::mem::take(&mut self.is_listening) {
                let _ = self.reactor.remove(&self.shared.listener);
            }
            if drain > Span::ZERO {
                for number in self.connections.keys().copied().collect::<Vec<_>>() {
                    self.with(number, |connection, _| connection.begin_to_end());
                }
            }
        }
        self.connections.is_empty() || self.drains_until.is_some_and(|until| until <= now)
    }

    /// How long to wait for events.
    fn patience(&self) -> Option<Duration> {
        let owes = self.connections.values().any(Connection::owes);
        let reassure = owes.then(|| self.clock.until(self.reassure_at));
        let drain = self.drains_until.map(|until| self.clock.until(until));
        let is_away = !self.is_listening && self.drains_until.is_none();
        let listen = is_away.then_some(LISTEN_AGAIN);
        reassure.into_iter().chain(drain).chain(listen).min()
    }

    /// Sends signs of life to waiting gateways, if one is due.
    fn reassure(&mut self) {
        let now = self.clock.now();
        if now < self.reassure_at {
            return;
        }
        self.reassure_at = now.after(ALIVE_EVERY);
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            self.with(number, |connection, _| connection.reassure());
        }
    }

    /// Passes finished jobs to their connections. Those of one connection are mostly adjacent.
    fn sort(&mut self, messages: &mut Vec<Message>) {
        let mut messages = messages.drain(..).peekable();
        while let Some(message) = messages.next() {
            let number = match message {
                Message::Finished(number, job) => {
                    self.done.push(job);
                    number
                }
                Message::Incarnation(number, part, incarnation) => {
                    self.with(number, |connection, worker| {
                        connection.on_incarnation(part, incarnation)?;
                        connection.serve(&mut worker.jobs, &mut worker.done)
                    });
                    continue;
                }
                Message::Replaced(number) => {
                    self.with(number, |_, _| Err(Closed::Replaced));
                    continue;
                }
                Message::Fenced(number) => {
                    self.with(number, |connection, worker| {
                        connection.on_fenced()?;
                        connection.serve(&mut worker.jobs, &mut worker.done)
                    });
                    continue;
                }
                Message::LinkFenced(number, link, last) => {
                    self.with(number, |connection, worker| {
                        connection.on_link_fenced(link, last)?;
                        connection.serve(&mut worker.jobs, &mut worker.done)
                    });
                    continue;
                }
            };
            if matches!(messages.peek(), Some(Message::Finished(next, _)) if *next == number) {
                continue;
            }
            let mut done = std::mem::take(&mut self.done);
            if self.closed.get_mut(&number).is_some_and(|closed| closed.on_finished(done.len())) {
                self.closed.remove(&number);
            }
            self.with(number, |connection, worker| {
                connection.answer(&mut done);
                connection.serve(&mut worker.jobs, &mut worker.done)
            });
            // The connection that waits may be closed.
            done.clear();
            self.done = done;
        }
    }

    fn serve(&mut self, ready: Ready) {
        self.with(ready.token, |connection, worker| match ready.gone && !connection.is_read() {
            true => Err(Closed::Left),
            false => connection.serve(&mut worker.jobs, &mut worker.done),
        });
    }

    /// Runs an action on a connection, and closes it on failure.
    fn with(
        &mut self,
        number: u64,
        act: impl FnOnce(&mut Connection, &mut Self) -> Result<(), Closed>,
    ) {
        let Some(mut connection) = self.connections.remove(&number) else { return };
        let acted = connection.span().in_scope(|| act(&mut connection, self));
        let acted = acted.and_then(|()| connection.watch(&self.reactor));
        self.shared.answered.fetch_add(connection.take_answered(), Ordering::Relaxed);
        match acted {
            Ok(()) => drop(self.connections.insert(number, connection)),
            Err(closed) => self.close(connection, &closed),
        }
    }

    fn accept(&mut self) {
        match self.shared.listener.accept() {
            Ok(None) => {}
            Ok(Some(stream)) => {
                if let Err(error) = self.welcome(stream)
                    && let Some(unlogged) = self.due_failure()
                {
                    tracing::warn!(%error, unlogged, "a connection failed");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                if let Some(unlogged) = self.due_failure() {
                    tracing::warn!(%error, unlogged, "a connection is refused");
                }
            }
            // The listener refuses all connections.
            Err(_) if self.shared.is_ending.load(Ordering::Acquire) => {}
            // Connections that wait would wake this thread again at once, and for nothing.
            Err(error) => {
                if let Some(unlogged) = self.due_failure() {
                    tracing::warn!(%error, unlogged, "no new connections for a while");
                }
                let _ = self.reactor.remove(&self.shared.listener);
                self.is_listening = false;
            }
        }
    }

    /// Whether a line about a failed connection is due, and how many were left out before it.
    fn due_failure(&mut self) -> Option<u64> {
        self.failures.admit(self.clock.now())
    }

    fn welcome(&mut self, stream: Stream) -> io::Result<()> {
        let number = self.next;
        self.next += 1;
        let sink = Arc::new(ConnectionSink {
            message_queue: self.reactor.message_queue(),
            connection: number,
        });
        let session = self.shared.service.session(sink.clone());
        let about = (self.shared.name.clone(), self.shared.dscp);
        let fences = self.shared.fences.clone();
        let connection = Connection::new(stream, (sink, session), about, fences, &self.reactor)?;
        self.shared.open.fetch_add(1, Ordering::Relaxed);
        self.connections.insert(number, connection);
        Ok(())
    }

    fn close(&mut self, mut connection: Connection, reason: &Closed) {
        let gateway = connection.gateway();
        match reason {
            Closed::Left | Closed::Ending | Closed::Denied(FenceDenied { is_new: false, .. }) => {
                tracing::debug!(gateway, %reason, "a gateway's connection is closed");
            }
            Closed::Replaced => {
                tracing::info!(gateway, %reason, "a gateway's connection is closed");
            }
            Closed::Refused(_) | Closed::Io(_) | Closed::Denied(_) => {
                let is_refused = matches!(reason, Closed::Refused(_));
                self.shared.refused.fetch_add(is_refused.into(), Ordering::Relaxed);
                let limiter = match gateway {
                    Some(_) => &mut self.closes,
                    None => &mut self.failures,
                };
                if let Some(unlogged) = limiter.admit(self.clock.now()) {
                    tracing::warn!(gateway, %reason, unlogged, "a gateway's connection is closed");
                }
            }
        }
        connection.part(reason);
        self.shared.open.fetch_sub(1, Ordering::Relaxed);
        let number = connection.number();
        if let Some(closed) = connection.end() {
            self.closed.insert(number, closed);
        }
    }
}
