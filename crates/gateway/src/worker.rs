//! A worker: one thread, its clients, and its conversations with the nodes.
//!
//! Each time it wakes up it reads once from everybody who has said something, hands each node one
//! batch of jobs, and answers each client with one system call. So the busier it is, the less a
//! request costs. What nodes finish later arrives by mail.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidegate_fabric::reactor::{Reactor, Ready};
use tidegate_fabric::service::{Fault, Job};
use tidegate_fabric::stream::{Listener, Stream};

use crate::clock;
use crate::connection::{Connection, Goodbye, Shop};
use crate::flights::Landed;

/// Bytes read at once from one client, besides the rest of a large write: the heads of two thousand
/// reads, or thirty-one small writes.
const SCRATCH: usize = 128 << 10;

/// Clients let in at once, before those who are inside are looked at again.
const ACCEPT_MAX: usize = 16;

/// How long nobody is let in after that failed: usually there are no descriptors left, and there
/// will be when somebody leaves.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Tokens from here on are listeners'.
const LISTENER: u64 = 1 << 63;

/// Tokens from here on, below the listeners', are those of nodes.
pub(crate) const LINK: u64 = 1 << 62;

/// What other threads have for a worker.
#[derive(Debug)]
pub(crate) enum Letter {
    /// A node has finished a job.
    Finished(Job),
    /// The gateway ends: at this time at the latest.
    End(Instant),
}

/// What all workers of a gateway share.
#[derive(Debug)]
pub(crate) struct Hall {
    pub(crate) listeners: Vec<Listener>,
    /// Clients of all workers.
    pub(crate) clients: AtomicUsize,
}

/// A worker, before and while it works.
pub(crate) struct Worker {
    reactor: Reactor<Letter>,
    hall: Arc<Hall>,
    shop: Shop,
    seats: Vec<Seat>,
    free: Vec<u32>,
    /// Who has not chosen an export, with the time until which they may, the first one first.
    shaking: VecDeque<(Instant, u64)>,
    /// Clients for whom something was done since they were last looked at.
    listed: Vec<u64>,
    done: Vec<Job>,
    scratch: Vec<u8>,
    /// When clients are let in again.
    accept_at: Option<Instant>,
    end_at: Option<Instant>,
}

/// A place for a client. Its generation is the upper half of the client's token, so that what was
/// meant for one client never reaches the next.
struct Seat {
    generation: u32,
    connection: Option<Connection>,
}

impl Worker {
    pub(crate) fn new(reactor: Reactor<Letter>, hall: Arc<Hall>, shop: Shop) -> io::Result<Self> {
        let worker = Self {
            reactor,
            hall,
            shop,
            seats: Vec::new(),
            free: Vec::new(),
            shaking: VecDeque::new(),
            listed: Vec::new(),
            done: Vec::new(),
            scratch: vec![0; SCRATCH],
            accept_at: None,
            end_at: None,
        };
        worker.listen()?;
        Ok(worker)
    }

    fn listen(&self) -> io::Result<()> {
        for (token, listener) in (LISTENER..).zip(&self.hall.listeners) {
            self.reactor.add_shared(listener, token)?;
        }
        Ok(())
    }

    fn stop_listening(&self) {
        for listener in &self.hall.listeners {
            // One that is not there need not be removed.
            let _ = self.reactor.remove(listener);
        }
    }

    /// Works until it is told to end.
    pub(crate) fn run(mut self) {
        let (mut ready, mut mail) = (Vec::new(), Vec::new());
        loop {
            let patience = self.patience();
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
            self.shop.nodes.on_time(clock::now(), &self.reactor, &mut self.done);
            self.settle();
            self.on_time(clock::now());
            if self.end_at.is_some() && self.seats.iter().all(|seat| seat.connection.is_none()) {
                return;
            }
        }
    }

    /// How long there is nothing to do but to wait for others.
    fn patience(&self) -> Option<Duration> {
        let shaking = self.shaking.front().map(|(deadline, _)| *deadline);
        let nodes = self.shop.nodes.deadline();
        let next = [shaking, nodes, self.accept_at, self.end_at].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(clock::now()))
    }

    fn on_ready(&mut self, ready: Ready) {
        if ready.token >= LISTENER {
            return self.accept((ready.token - LISTENER) as usize);
        }
        if ready.token >= LINK {
            return self.shop.nodes.on_ready(ready, &mut self.done);
        }
        let Some(seat) = seated(&mut self.seats, ready.token) else { return };
        let received = match ready {
            // What was sent before the end is still to be read.
            Ready { gone: true, .. } if !seat.interest.read => Err(Goodbye::Closed),
            Ready { read: true, .. } => seat.receive(&mut self.scratch, &mut self.shop),
            _ => Ok(()),
        };
        match received {
            Ok(()) => self.list(ready.token),
            Err(goodbye) => self.close(ready.token, Some(&goodbye)),
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

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_MAX {
            if self.end_at.is_some() {
                return;
            }
            match self.hall.listeners[listener].accept() {
                Ok(Some(stream)) => self.admit(stream),
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    tracing::warn!("a client is turned away: {error}");
                }
                Err(error) => {
                    tracing::error!("cannot accept a connection: {error}");
                    self.stop_listening();
                    self.accept_at = Some(clock::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, stream: Stream) {
        let limits = self.shop.limits;
        if self.hall.clients.fetch_add(1, Ordering::Relaxed) >= limits.connections {
            self.hall.clients.fetch_sub(1, Ordering::Relaxed);
            let most = limits.connections;
            tracing::warn!("a client is turned away: {most} are connected, which is the limit");
            return;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.seats.push(Seat { generation: 0, connection: None });
            self.seats.len() as u32 - 1
        });
        let seat = &mut self.seats[index as usize];
        let token = u64::from(seat.generation) << 32 | u64::from(index);
        let connection = seat.connection.insert(Connection::new(token, stream));
        let added = self.reactor.add(connection.stream(), token, connection.interest);
        self.shaking.push_back((clock::now() + limits.handshake, token));
        match added {
            Ok(()) => self.list(token),
            Err(error) => self.close(token, Some(&Goodbye::Io(error))),
        }
    }

    /// Deals with everything that can be dealt with without waiting.
    fn settle(&mut self) {
        loop {
            self.shop.nodes.submit(&self.reactor, &mut self.done);
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
            let volumes = &self.shop.volumes;
            let landed = self.shop.flights.land(|volume| *volumes.layout(volume), job);
            if let Some(landed) = landed {
                let token = landed.flight.connection;
                if let Some(connection) = seated(&mut self.seats, token) {
                    connection.answer(landed);
                    self.list(token);
                }
            }
        }
        self.done = done;
    }

    /// Writes what is to be written to a client, takes what it had to wait with, and ends what is
    /// over.
    fn look_after(&mut self, token: u64) {
        let is_ending = self.end_at.is_some();
        let Some(connection) = seated(&mut self.seats, token) else { return };
        connection.is_listed = false;
        let went_on = connection.flush().and_then(|()| connection.go_on(&mut self.shop));
        match went_on {
            Err(goodbye) => return self.close(token, Some(&goodbye)),
            Ok(true) => return self.list(token),
            Ok(false) if connection.is_over(is_ending) => return self.close(token, None),
            Ok(false) => {}
        }
        let wanted = connection.wanted(&self.shop.limits);
        if wanted != connection.interest {
            connection.interest = wanted;
            if let Err(error) = self.reactor.change(connection.stream(), token, wanted) {
                self.close(token, Some(&Goodbye::Io(error)));
            }
        }
    }

    fn close(&mut self, token: u64, goodbye: Option<&Goodbye>) {
        let seat = &mut self.seats[token as u32 as usize];
        let Some(connection) = seat.connection.take() else { return };
        // The highest bits are the listeners' and the nodes'.
        seat.generation = (seat.generation + 1) & (u32::MAX >> 2);
        self.free.push(token as u32);
        self.hall.clients.fetch_sub(1, Ordering::Relaxed);
        if connection.requests() > 0 && !connection.is_leaving() {
            let lost = self.shop.flights.errands(|flight| flight.connection == token);
            self.shop.nodes.cancel(&lost);
        }
        self.shop.nodes.leave(connection.tenant());
        match goodbye {
            None | Some(Goodbye::Closed) => {}
            Some(goodbye) => tracing::warn!("a client's connection is closed: {goodbye}"),
        }
    }

    /// Does what is to be done at a time that has come.
    fn on_time(&mut self, now: Instant) {
        while let Some((_, token)) = self.shaking.pop_front_if(|(deadline, _)| *deadline <= now) {
            if seated(&mut self.seats, token).is_some_and(|connection| connection.is_shaking()) {
                self.close(token, Some(&Goodbye::TooLate));
            }
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            if let Err(error) = self.listen() {
                tracing::error!("cannot listen any more: {error}");
                self.stop_listening();
                self.accept_at = Some(now + ACCEPT_PAUSE);
            }
        }
        if self.end_at.is_some_and(|at| at <= now) {
            self.end_now();
        }
    }

    fn begin_to_end(&mut self, at: Instant) {
        self.end_at = Some(at);
        self.accept_at = None;
        self.shop.is_ending = true;
        self.stop_listening();
        for token in self.tokens() {
            match seated(&mut self.seats, token) {
                Some(connection) if connection.is_shaking() => self.close(token, None),
                _ => self.list(token),
            }
        }
    }

    /// Whoever still waits is told that it was for nothing.
    fn end_now(&mut self) {
        for flight in self.shop.flights.abandon() {
            let token = flight.connection;
            if let Some(connection) = seated(&mut self.seats, token) {
                let outcome = Err(Fault::Ending);
                connection.answer(Landed { flight, outcome, extents: Vec::new() });
            }
        }
        for token in self.tokens() {
            if let Some(connection) = seated(&mut self.seats, token) {
                // A client that does not read is not waited for.
                let _ = connection.flush();
            }
            self.close(token, None);
        }
    }

    /// All who are connected.
    fn tokens(&self) -> Vec<u64> {
        let taken = self.seats.iter().enumerate().filter(|(_, seat)| seat.connection.is_some());
        taken.map(|(index, seat)| u64::from(seat.generation) << 32 | index as u64).collect()
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
