//! A worker: one thread, its clients, and its conversations with the nodes.
//!
//! It works like the worker of block devices: everybody who has said something is read once, each
//! node is handed one batch of jobs, and each client is answered with one system call.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::reactor::{Mailbox, Reactor, Ready};
use tidegate_fabric::service::{Command, Fault, Job, Outlet, Part, Service, Session};
use tidegate_fabric::stream::Listener;
use tidegate_model::{Bytes, Class, ContextId, Tag, TenantId};
use tidegate_proto::memcached::conversation::{Ask, Ticket};

use super::connection::Connection;
use super::{Config, Owner};
use crate::clock;
use crate::config::StartError;
use crate::ketama::Ketama;
use crate::nodes::PartError;

/// Bytes read at once from one client.
const SCRATCH: usize = 128 << 10;

/// The listener's token.
const LISTENER: u64 = 1 << 63;

/// What other threads have for a worker.
#[derive(Debug)]
pub(super) enum Letter {
    /// A node has finished a job.
    Finished(Job),
    /// The gateway ends: at this time at the latest.
    End(Instant),
}

/// What all workers share.
#[derive(Debug)]
pub(super) struct Hall {
    pub(super) listener: Listener,
    /// Clients of all workers.
    pub(super) clients: AtomicUsize,
    /// How many there may be.
    pub(super) connections: usize,
}

/// Where something is asked, and on whose behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) node: usize,
    pub(super) tenant: TenantId,
}

/// What the connections of one worker share.
pub(super) struct Shop {
    pub(super) circle: Ketama,
    pub(super) owner: Owner,
    pub(super) nodes: Vec<Node>,
    pub(super) flights: Flights,
    pub(super) value_max: u32,
    pub(super) everywhere: Vec<Spot>,
}

/// A conversation with a node.
pub(super) struct Node {
    session: Box<dyn Session>,
    /// The pool's number there.
    part: u32,
    /// What goes there with the next batch.
    batch: Vec<Job>,
}

impl Node {
    pub(super) fn queue(&mut self, mut job: Job) {
        job.part = self.part;
        self.batch.push(job);
    }
}

/// Jobs that are out at nodes: each is the seat of its ticket.
#[derive(Debug, Default)]
pub(super) struct Flights {
    seats: Vec<Option<(u64, Ticket)>>,
    free: Vec<u32>,
}

impl Flights {
    /// A job for what is asked on the connection `token`.
    pub(super) fn launch(&mut self, token: u64, ask: &Ask<'_, Spot>) -> Job {
        let seat = self.free.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() as u32 - 1
        });
        self.seats[seat as usize] = Some((token, ask.ticket));
        let tag = Tag {
            tenant: ask.place.tenant,
            context: ContextId::NONE,
            class: Class::default(),
            operation: ask.operation,
            cost: ask.keys,
            delay: 0,
        };
        Job {
            ticket: u64::from(seat),
            tag,
            command: Command::KeyValue,
            part: 0,
            offset: 0,
            // A request is at most a value of 128 MiB and a line.
            length: ask.bytes.len() as u32,
            buffer: Buffer::from(ask.bytes),
            outcome: Ok(()),
        }
    }

    /// Whose job it was, and which.
    fn land(&mut self, job: &Job) -> Option<(u64, Ticket)> {
        let flight = self.seats.get_mut(usize::try_from(job.ticket).ok()?)?.take()?;
        self.free.push(job.ticket as u32);
        Some(flight)
    }

    /// The jobs of one connection.
    fn of(&self, token: u64) -> Vec<u64> {
        let seats = self.seats.iter().zip(0..);
        let own = seats.filter(|(seat, _)| seat.is_some_and(|(owner, _)| owner == token));
        own.map(|(_, number)| number).collect()
    }
}

impl Shop {
    /// Opens the pool at all nodes.
    pub(super) fn open(
        config: &Config,
        circle: Ketama,
        services: &[Arc<dyn Service>],
        mailbox: &Arc<Mailbox<Letter>>,
    ) -> Result<Self, StartError> {
        let outlet: Arc<dyn Outlet> = Arc::new(Desk(mailbox.clone()));
        let refuse = |index, reason| PartError { volume: config.pool.clone(), index, reason };
        if config.nodes.is_empty() || config.nodes.len() != services.len() {
            return Err(refuse(0, "a pool needs a node at each of its places".into()).into());
        }
        let mut nodes = Vec::new();
        for (index, service) in (0..).zip(services) {
            let mut session = service.session(outlet.clone());
            let (length, offset) = (Bytes(0), Bytes(0));
            let part = Part { volume: config.pool.clone(), index, length, offset };
            let part = session.open(&part).map_err(|reason| refuse(index, reason))?;
            session.tenants(&config.tenants);
            nodes.push(Node { session, part, batch: Vec::new() });
        }
        let places = if config.flush_all { nodes.len() } else { 0 };
        let everywhere = (0..places).map(|node| Spot { node, tenant: TenantId::NOBODY }).collect();
        let (owner, value_max) = (config.owner.clone(), config.value_max);
        Ok(Self { circle, owner, nodes, flights: Flights::default(), value_max, everywhere })
    }
}

/// A place for a client. Its generation is the upper half of the client's token, so that what was
/// meant for one client never reaches the next.
struct Seat {
    generation: u32,
    connection: Option<Connection>,
}

/// A worker, before and while it works.
pub(super) struct Worker {
    reactor: Reactor<Letter>,
    hall: Arc<Hall>,
    shop: Shop,
    seats: Vec<Seat>,
    free: Vec<u32>,
    /// Clients for whom something was done since they were last looked at.
    listed: Vec<u64>,
    done: Vec<Job>,
    scratch: Vec<u8>,
    end_at: Option<Instant>,
}

impl Worker {
    pub(super) fn new(reactor: Reactor<Letter>, hall: Arc<Hall>, shop: Shop) -> io::Result<Self> {
        reactor.add_shared(&hall.listener, LISTENER)?;
        let (seats, free, listed, done) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (scratch, end_at) = (vec![0; SCRATCH], None);
        Ok(Self { reactor, hall, shop, seats, free, listed, done, scratch, end_at })
    }

    /// Works until it is told to end.
    pub(super) fn run(mut self) {
        let (mut ready, mut mail) = (Vec::new(), Vec::new());
        loop {
            let patience = self.end_at.map(|at| at.saturating_duration_since(clock::now()));
            if let Err(error) = self.reactor.wait(patience, &mut ready, &mut mail) {
                tracing::error!("a worker of the gateway cannot wait any more: {error}");
                return;
            }
            for letter in mail.drain(..) {
                match letter {
                    Letter::Finished(job) => self.done.push(job),
                    Letter::End(at) => self.begin_to_end(at),
                }
            }
            for ready in ready.drain(..) {
                self.on_ready(ready);
            }
            self.settle();
            let is_late = self.end_at.is_some_and(|at| at <= clock::now());
            if self.end_at.is_some() && (is_late || self.free.len() == self.seats.len()) {
                return;
            }
        }
    }

    fn on_ready(&mut self, ready: Ready) {
        if ready.token == LISTENER {
            return self.accept();
        }
        let Some(connection) = seated(&mut self.seats, ready.token) else { return };
        let received = match ready {
            Ready { gone: true, .. } if !connection.interest.read => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            Ready { read: true, .. } => connection.receive(&mut self.scratch, &mut self.shop),
            _ => Ok(()),
        };
        match received {
            Ok(()) => self.list(ready.token),
            Err(_) => self.close(ready.token),
        }
    }

    /// Has a client looked at once everything that has happened was dealt with.
    fn list(&mut self, token: u64) {
        if let Some(connection) = seated(&mut self.seats, token)
            && !std::mem::replace(&mut connection.is_listed, true)
        {
            self.listed.push(token);
        }
    }

    fn accept(&mut self) {
        // The listener is level-triggered: who is not let in now is next time.
        let stream = match self.hall.listener.accept() {
            Ok(Some(stream)) if self.end_at.is_none() => stream,
            Ok(_) => return,
            Err(error) => {
                tracing::warn!("a client is turned away: {error}");
                return;
            }
        };
        if self.hall.clients.fetch_add(1, Ordering::Relaxed) >= self.hall.connections {
            self.hall.clients.fetch_sub(1, Ordering::Relaxed);
            let most = self.hall.connections;
            tracing::warn!("a client is turned away: {most} are connected, which is the limit");
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.seats.push(Seat { generation: 0, connection: None });
            self.seats.len() as u32 - 1
        });
        let seat = &mut self.seats[index as usize];
        let token = u64::from(seat.generation) << 32 | u64::from(index);
        let connection = seat.connection.insert(Connection::new(token, stream, &self.shop));
        let added = self.reactor.add(connection.stream(), token, connection.interest);
        if added.is_err() {
            self.close(token);
        }
    }

    /// Deals with everything that can be dealt with without waiting.
    fn settle(&mut self) {
        loop {
            for node in self.shop.nodes.iter_mut().filter(|node| !node.batch.is_empty()) {
                node.session.submit(&mut node.batch, &mut self.done);
            }
            self.land();
            if self.listed.is_empty() {
                return;
            }
            for token in std::mem::take(&mut self.listed) {
                self.look_after(token);
            }
        }
    }

    /// Passes finished jobs on to those who asked.
    fn land(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        for job in done.drain(..) {
            let Some((token, ticket)) = self.shop.flights.land(&job) else { continue };
            let Some(connection) = seated(&mut self.seats, token) else { continue };
            connection.answer(ticket, job.outcome.map(|()| job.buffer).map_err(complaint));
            self.list(token);
        }
        self.done = done;
    }

    /// Answers a client, takes what it had to wait with, and ends what is over.
    fn look_after(&mut self, token: u64) {
        let is_ending = self.end_at.is_some();
        let Some(connection) = seated(&mut self.seats, token) else { return };
        connection.is_listed = false;
        if connection.flush(&mut self.shop).is_err() || connection.is_over(is_ending) {
            return self.close(token);
        }
        let wanted = connection.wanted();
        if wanted != connection.interest {
            connection.interest = wanted;
            if self.reactor.change(connection.stream(), token, wanted).is_err() {
                self.close(token);
            }
        }
    }

    fn close(&mut self, token: u64) {
        let seat = &mut self.seats[token as u32 as usize];
        if seat.connection.take().is_none() {
            return;
        }
        // The highest bit is the listener's.
        seat.generation = (seat.generation + 1) & (u32::MAX >> 1);
        self.free.push(token as u32);
        self.hall.clients.fetch_sub(1, Ordering::Relaxed);
        let lost = self.shop.flights.of(token);
        if !lost.is_empty() {
            self.shop.nodes.iter_mut().for_each(|node| node.session.cancel(&lost));
        }
    }

    fn begin_to_end(&mut self, at: Instant) {
        self.end_at = Some(at);
        // One that is not there need not be removed.
        let _ = self.reactor.remove(&self.hall.listener);
        for index in 0..self.seats.len() {
            let generation = u64::from(self.seats[index].generation);
            self.list(generation << 32 | index as u64);
        }
    }
}

/// The client with this token, if it is still there.
fn seated(seats: &mut [Seat], token: u64) -> Option<&mut Connection> {
    let seat = seats.get_mut(token as u32 as usize)?;
    if seat.generation != (token >> 32) as u32 {
        return None;
    }
    seat.connection.as_mut()
}

/// A fault in memcached's words.
fn complaint(fault: Fault) -> &'static str {
    match fault {
        Fault::NoSpace => "SERVER_ERROR out of memory storing object\r\n",
        Fault::Ending => "SERVER_ERROR the gateway is ending\r\n",
        Fault::Invalid | Fault::ReadOnly | Fault::Unsupported => {
            "SERVER_ERROR the node does not take this request\r\n"
        }
        Fault::Io => "SERVER_ERROR the node is away\r\n",
    }
}

/// Where nodes put what they finish later.
struct Desk(Arc<Mailbox<Letter>>);

impl Outlet for Desk {
    fn finished(&self, jobs: &mut Vec<Job>) {
        let mut letters = jobs.drain(..).map(Letter::Finished).collect();
        self.0.append(&mut letters);
    }
}
