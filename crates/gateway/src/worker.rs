//! A worker: one thread, its clients, and its links to the nodes.
//!
//! Each time it wakes up it reads once from every client that has sent bytes, sends each node one
//! batch of jobs, and writes to each client with one system call. So the busier it is, the less a
//! request costs. Jobs that nodes finish later arrive as messages.
//!
//! A worker also accepts clients, within the limits of its server ([`limits`]), starts TLS on their
//! connections, closes clients whose handshake takes too long, passes new owner tables to them, and
//! at the gateway's end fails the requests that are not finished in time.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_algo::allocation::connection_quota::PendingConnections;
use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_fabric::reactor::{Interest, Reactor, Ready};
use tidegate_fabric::service::Job;
use tidegate_fabric::stream::Stream;
use tidegate_model::{Origin, Span, Time};
use tracing::debug_span;
use tracing::field::Empty;

mod completions;
mod frontend;
mod limits;

pub(crate) use frontend::{Charge, Client, Frontend};

use crate::clock;
use crate::context::ServerContext;
use crate::counters::TurnedAway;
use crate::message::{LINK, Message};
use crate::nodes::LONG;
use crate::owners::{OwnerTable, Register};
use crate::programs::Programs;
use crate::recorder::Recorded;
use crate::volumes::VolumeIndex;

/// Bytes read at once from one client, besides the rest of a large write: the heads of two thousand
/// reads, or thirty-one small writes.
const SCRATCH: usize = 128 << 10;

/// Clients accepted in a row, before connected clients are served again.
const ACCEPT_MAX: usize = 16;

/// How long no client is accepted after an error: usually there are no descriptors left until a
/// client disconnects.
const ACCEPT_PAUSE: Span = Span(100 * Span::MILLISECOND.0);

/// How long clients wait after the start for the policy, which grants access. A reachable
/// controller sends it within milliseconds.
const POLICY_WAIT: Span = Span::SECOND;

/// Tokens from here on are listeners'.
const LISTENER: u64 = 1 << 63;

/// A worker, before and while it works.
pub(crate) struct Worker<S: Frontend> {
    reactor: Reactor<Message>,
    context: Arc<ServerContext>,
    register: Arc<Register>,
    table: Arc<OwnerTable>,
    programs: Arc<Programs>,
    frontend: S,
    slots: Vec<ClientSlot<S::Client>>,
    free: Vec<u32>,
    /// Clients in their handshake, each with its deadline, the earliest first.
    deadlines: VecDeque<(Time, u64)>,
    pending: PendingConnections,
    /// The log lines about clients without an export or a first request, about programs that do not
    /// have their tenant, about other clients, and about failures to accept one.
    refusals: LogLimiter,
    fallbacks: LogLimiter,
    closes: LogLimiter,
    accept_failures: LogLimiter,
    /// Clients with an event since they were last served.
    listed: Vec<u64>,
    /// The same, of those with long replies to write: one after the other, behind all others.
    bulky: VecDeque<u64>,
    /// Clients that wait for memory.
    waiting: Vec<u64>,
    /// The next search for clients that hold memory and move nothing, if others wait for memory.
    memory_at: Time,
    /// The bytes that were reported last.
    memory_reported: usize,
    done: Vec<Job>,
    scratch: Vec<u8>,
    /// When clients are accepted again.
    accept_at: Time,
    /// The deadline of the shutdown; none until the gateway is asked to stop.
    end_at: Option<Time>,
}

/// A slot for a client. Its generation is the upper half of the client's token, so that an event of
/// one client never reaches the next.
struct ClientSlot<C> {
    generation: u32,
    entry: Option<ClientEntry<C>>,
}

/// A client, and its worker's state of it.
struct ClientEntry<C> {
    client: C,
    /// Its origin, and the tenant that it is counted for; none while it is pending.
    origin: Origin,
    open: Option<Box<str>>,
    /// Events that the reactor waits for.
    interest: Interest,
    /// It is on the list of clients with an event.
    is_listed: bool,
    /// It is on the list of clients that wait for memory.
    is_waiting: bool,
    /// The bytes that it had moved at the last search for clients that hold memory.
    moved: u64,
    /// It has held memory and moved hardly anything since the search before.
    is_stalled: bool,
    /// Its entry in a recording.
    recorded: Option<Recorded>,
    /// Of the lines about it, at level debug: it is entered at each event.
    span: tracing::Span,
}

impl<S: Frontend> Worker<S> {
    pub(crate) fn new(
        reactor: Reactor<Message>,
        context: Arc<ServerContext>,
        register: Arc<Register>,
        frontend: S,
    ) -> io::Result<Self> {
        let limits = context.limits;
        let mut worker = Self {
            reactor,
            context,
            table: register.table(),
            programs: Arc::default(),
            register,
            frontend,
            slots: Vec::new(),
            free: Vec::new(),
            deadlines: VecDeque::new(),
            pending: PendingConnections::new(limits.pending),
            refusals: LogLimiter::default(),
            fallbacks: LogLimiter::default(),
            closes: LogLimiter::default(),
            accept_failures: LogLimiter::default(),
            listed: Vec::new(),
            bulky: VecDeque::new(),
            waiting: Vec::new(),
            memory_at: Time::MAX,
            memory_reported: 0,
            done: Vec::new(),
            scratch: vec![0; SCRATCH],
            accept_at: Time::MAX,
            end_at: None,
        };
        worker.on_table();
        match worker.table.is_known() {
            true => worker.listen()?,
            // Clients wait in the queues of the listeners meanwhile.
            false => worker.accept_at = clock::now().after(POLICY_WAIT),
        }
        Ok(worker)
    }

    fn listen(&self) -> io::Result<()> {
        for (token, listener) in (LISTENER..).zip(&self.context.listeners) {
            self.reactor.add_shared(listener, token)?;
        }
        Ok(())
    }

    fn stop_listening(&self) {
        for listener in &self.context.listeners {
            // One that is not there need not be removed.
            let _ = self.reactor.remove(listener);
        }
    }

    /// Runs until the gateway is asked to stop.
    pub(crate) fn run(mut self) {
        let (mut ready, mut messages) = (Vec::new(), Vec::new());
        loop {
            let patience = self.patience();
            if let Err(error) = self.reactor.wait(patience, &mut ready, &mut messages) {
                tracing::error!(%error, "a worker of the gateway cannot wait for events");
                return;
            }
            let now = clock::now();
            self.frontend.nodes().now = now;
            for message in messages.drain(..) {
                match message {
                    Message::Finished(job) => self.done.push(job),
                    Message::Incarnation { node, part, incarnation } => {
                        self.frontend.nodes().on_incarnation(node, part, incarnation);
                    }
                    Message::CheckClients { volume } => self.check_clients(volume),
                    Message::End(at) => self.begin_to_end(at),
                }
            }
            if let Some(table) = self.register.newer(&self.table) {
                self.table = table;
                self.on_table();
            }
            if let Some(programs) = self.register.programs.newer(&self.programs) {
                self.programs = programs.clone();
                self.frontend.on_programs(programs);
            }
            for ready in ready.drain(..) {
                self.on_ready(ready);
            }
            self.frontend.nodes().on_deadline(now, &self.reactor, &mut self.done);
            self.settle();
            self.on_deadline(clock::now());
            if self.frontend.budget().used() != self.memory_reported {
                // Closed clients have freed memory for those that wait.
                self.settle();
            }
            if self.end_at.is_some() && self.free.len() == self.slots.len() {
                return;
            }
        }
    }

    /// How long to wait for events.
    fn patience(&self) -> Option<Duration> {
        if !self.bulky.is_empty() {
            return Some(Duration::ZERO);
        }
        let handshake = self.deadlines.front().map_or(Time::MAX, |(deadline, _)| *deadline);
        let own = handshake.min(self.accept_at).min(self.end_at.unwrap_or(Time::MAX));
        let own = own.min(self.memory_at);
        clock::until(own.min(self.frontend.nodes_deadline()))
    }

    /// The owner table changed.
    fn on_table(&mut self) {
        if self.table.is_known() && self.accept_at != Time::MAX {
            self.accept_at = Time::ZERO;
        }
        self.frontend.nodes().tenants(&self.table);
        self.frontend.on_table(&self.table);
        for entry in self.slots.iter_mut().filter_map(|slot| slot.entry.as_mut()) {
            entry.client.on_table(&self.frontend);
        }
    }

    fn on_ready(&mut self, ready: Ready) {
        if ready.token >= LISTENER {
            return self.accept((ready.token - LISTENER) as usize);
        }
        if ready.token >= LINK {
            return self.frontend.nodes().on_ready(ready, &self.reactor, &mut self.done);
        }
        let Some(entry) = client_entry(&mut self.slots, ready.token) else { return };
        let _entered = entry.span.clone().entered();
        let received = match ready {
            // Bytes that the client sent before it closed the connection are still to be read.
            Ready { gone: true, .. } if !entry.interest.read => Ok(false),
            // The event may be older than the client's state: one with a long reply waits for its
            // turn before its interest follows. Bytes read now would be taken before held ones.
            Ready { read: true, .. } if entry.client.wanted(&self.frontend).read => {
                entry.client.receive(&mut self.scratch, &mut self.frontend)
            }
            _ => Ok(true),
        };
        if let Some(denial) = entry.client.take_denial() {
            self.turn_away(Some(ready.token), TurnedAway::AccessDenied, &denial);
        }
        self.report_fallback(ready.token);
        match received {
            Ok(true) if self.open(ready.token) => self.list(ready.token),
            Ok(true) => {}
            Ok(false) => self.close(ready.token),
            Err(close_reason) => self.close_for(ready.token, &close_reason),
        }
    }

    /// Queues a client to be served after all current events.
    fn list(&mut self, token: u64) {
        if let Some(entry) = client_entry(&mut self.slots, token)
            && !std::mem::replace(&mut entry.is_listed, true)
        {
            self.listed.push(token);
        }
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_MAX {
            if self.end_at.is_some() {
                return;
            }
            match self.context.listeners[listener].accept() {
                Ok(Some(stream)) => self.admit(stream),
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.turn_away(None, TurnedAway::AccessDenied, &error);
                }
                Err(error) => {
                    let now = clock::now();
                    if let Some(unlogged) = self.accept_failures.admit(now) {
                        tracing::error!(%error, unlogged, "cannot accept a connection");
                    }
                    self.stop_listening();
                    self.accept_at = now.after(ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    fn admit(&mut self, stream: Stream) {
        let Ok(origin) = stream.origin() else { return };
        self.context.clients.fetch_add(1, Ordering::Relaxed);
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(ClientSlot { generation: 0, entry: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        let token = u64::from(slot.generation) << 32 | u64::from(index);
        let client = self.frontend.welcome(token, stream);
        self.deadlines.push_back((clock::after(self.context.limits.handshake), token));
        let (interest, is_listed) = (Interest::READ, false);
        let added = self.reactor.add(client.stream(), token, interest);
        let (is_waiting, moved, is_stalled, open) = (false, 0, false, None);
        slot.entry = Some(ClientEntry {
            client,
            origin,
            open,
            interest,
            is_listed,
            is_waiting,
            moved,
            is_stalled,
            recorded: None,
            span: debug_span!("connection", peer = %origin, tenant = Empty, volume = Empty),
        });
        self.frontend.budget().enter();
        if let Err(error) = added {
            return self.close_because(token, &error);
        }
        self.list(token);
        if let Some(evicted) = self.pending.insert(token, origin) {
            let why = "too many handshakes are pending";
            self.turn_away(Some(evicted), TurnedAway::PendingQuota, &why);
            self.close(evicted);
        }
    }

    /// Handles everything that needs no waiting, except that long replies are written to one client
    /// only before the next poll for events.
    fn settle(&mut self) {
        let mut may_write_bulk = true;
        loop {
            self.frontend.nodes().submit(&self.reactor, &mut self.done);
            self.complete();
            if self.frontend.budget().resumes() {
                for token in std::mem::take(&mut self.waiting) {
                    if let Some(entry) = client_entry(&mut self.slots, token) {
                        entry.is_waiting = false;
                        self.list(token);
                    }
                }
            }
            self.report_memory();
            if self.listed.is_empty() {
                let next = if may_write_bulk { self.bulky.pop_front() } else { None };
                match next {
                    Some(token) => self.make_progress(token),
                    None => return,
                }
                may_write_bulk = false;
            }
            for token in std::mem::take(&mut self.listed) {
                match client_entry(&mut self.slots, token).map(|entry| entry.client.unsent()) {
                    Some(unsent) if unsent > LONG => self.bulky.push_back(token),
                    _ => self.make_progress(token),
                }
            }
        }
    }

    /// Writes a client's pending output, consumes its held input, and closes a finished connection.
    fn make_progress(&mut self, token: u64) {
        let is_ending = self.end_at.is_some();
        let Some(entry) = client_entry(&mut self.slots, token) else { return };
        let _entered = entry.span.clone().entered();
        entry.is_listed = false;
        match entry.client.make_progress(&mut self.frontend) {
            Err(close_reason) => return self.close_for(token, &close_reason),
            Ok(true) => return self.list(token),
            Ok(false) if entry.client.is_over(is_ending) => return self.close(token),
            Ok(false) if entry.client.is_encrypting() => return self.encrypt(token),
            Ok(false) => {}
        }
        if entry.client.is_waiting_for_memory() && !std::mem::replace(&mut entry.is_waiting, true) {
            self.frontend.budget().wait();
            self.waiting.push(token);
            if self.memory_at == Time::MAX {
                self.memory_at = clock::after(self.context.limits.stall);
            }
        }
        let wanted = entry.client.wanted(&self.frontend);
        if wanted != entry.interest {
            entry.interest = wanted;
            if let Err(error) = self.reactor.change(entry.client.stream(), token, wanted) {
                self.close_because(token, &error);
            }
        }
    }

    /// Switches a client to another stream, and waits for events of that instead of the old one.
    fn encrypt(&mut self, token: u64) {
        let Some(entry) = client_entry(&mut self.slots, token) else { return };
        let _ = self.reactor.remove(entry.client.stream());
        entry.interest = Interest::READ;
        let encrypted = entry
            .client
            .encrypt(&self.frontend)
            .and_then(|()| Ok(self.reactor.add(entry.client.stream(), token, Interest::READ)?));
        if let Err(close_reason) = encrypted {
            self.close_because(token, &close_reason);
        }
    }

    /// Closes a client's connection, with a warning unless the client has merely disconnected.
    fn close_for(&mut self, token: u64, close_reason: &<S::Client as Client>::CloseReason) {
        let entry = client_entry(&mut self.slots, token);
        if entry.is_some_and(|entry| entry.client.has_left(close_reason)) {
            tracing::debug!(reason = %close_reason, "client disconnected");
            return self.close(token);
        }
        self.close_because(token, close_reason);
    }

    fn close_because(&mut self, token: u64, reason: &dyn std::fmt::Display) {
        let entry = client_entry(&mut self.slots, token);
        if let Some(ClientEntry { origin: peer, open, .. }) = entry {
            let tenant = open.as_deref();
            let limiter = match tenant {
                Some(_) => &mut self.closes,
                None => &mut self.refusals,
            };
            if let Some(unlogged) = limiter.admit(clock::now()) {
                tracing::warn!(%peer, tenant, %reason, unlogged, "a client's connection is closed");
            }
        }
        self.close(token);
    }

    fn close(&mut self, token: u64) {
        let slot = &mut self.slots[token as u32 as usize];
        let Some(ClientEntry { client, origin, open, .. }) = slot.entry.take() else { return };
        match open {
            Some(tenant) => self.context.connections().remove(origin, &tenant),
            None => drop(self.pending.remove(token)),
        }
        // The highest bits are the listeners' and the nodes'.
        slot.generation = (slot.generation + 1) & (u32::MAX >> 2);
        self.free.push(token as u32);
        self.context.clients.fetch_sub(1, Ordering::Relaxed);
        let Charge { all, at_nodes, .. } = client.charge();
        self.frontend.budget().leave(token, all, at_nodes);
        if client.has_requests() {
            let lost = self.frontend.sub_requests(token);
            self.frontend.nodes().cancel_held(&lost, &mut self.done);
            self.frontend.abandon(token);
            if client.is_waiting() {
                self.frontend.nodes().cancel(&lost, &self.reactor, &mut self.done);
            }
        }
    }

    /// Consumes the input of a client that sends nothing more, as far as its bounds allow. Returns
    /// whether the client has announced its disconnect.
    fn drain_input(&mut self, token: u64) -> bool {
        let Some(entry) = client_entry(&mut self.slots, token) else { return false };
        while !entry.client.is_leaving() && entry.client.wanted(&self.frontend).read {
            match entry.client.receive(&mut self.scratch, &mut self.frontend) {
                Ok(true) => {}
                Ok(false) | Err(_) => break,
            }
        }
        let is_leaving = entry.client.is_leaving();
        self.list(token);
        is_leaving
    }

    /// Closes the disconnected clients of a volume, also those with unread bytes.
    fn check_clients(&mut self, volume: VolumeIndex) {
        for token in self.tokens() {
            let Some(entry) = client_entry(&mut self.slots, token) else { continue };
            if entry.client.volume() != Some(volume) || !entry.client.stream().has_ended() {
                continue;
            }
            match self.drain_input(token) {
                // All its requests are in flight, and it may wait for the replies.
                true => self.frontend.abandon(token),
                false => self.close(token),
            }
        }
        self.frontend.nodes().on_clients_checked(volume);
    }

    /// Acts on the deadlines that have passed.
    fn on_deadline(&mut self, now: Time) {
        while let Some((_, token)) = self.deadlines.pop_front_if(|(deadline, _)| *deadline <= now) {
            let entry = client_entry(&mut self.slots, token);
            if entry.is_some_and(|entry| entry.client.is_handshaking()) {
                let why = "its handshake took too long";
                self.turn_away(Some(token), TurnedAway::HandshakeTimeout, &why);
                self.close(token);
            }
        }
        if self.accept_at <= now {
            self.accept_at = Time::MAX;
            if let Err(error) = self.listen() {
                tracing::error!(%error, "cannot listen any more");
                self.stop_listening();
                self.accept_at = now.after(ACCEPT_PAUSE);
            }
        }
        if self.memory_at <= now {
            self.memory_at = Time::MAX;
            self.close_stalled();
        }
        if self.end_at.is_some_and(|at| at <= now) {
            self.end_now();
        }
    }

    fn begin_to_end(&mut self, at: Time) {
        self.end_at = Some(at);
        self.accept_at = Time::MAX;
        self.frontend.begin_to_end();
        self.stop_listening();
        for token in self.tokens() {
            match client_entry(&mut self.slots, token) {
                Some(entry) if entry.client.is_handshaking() => self.close(token),
                _ => self.list(token),
            }
        }
    }

    /// Sends all waiting clients a fault, and closes every connection.
    fn end_now(&mut self) {
        for (token, answer) in self.frontend.abandon_all() {
            if let Some(entry) = client_entry(&mut self.slots, token) {
                entry.client.answer(answer, &mut self.frontend);
            }
        }
        for token in self.tokens() {
            if let Some(entry) = client_entry(&mut self.slots, token) {
                // The worker does not wait for a client that does not read.
                let _ = entry.client.make_progress(&mut self.frontend);
            }
            self.close(token);
        }
    }

    /// All connected clients.
    fn tokens(&self) -> Vec<u64> {
        let taken = self.slots.iter().enumerate().filter(|(_, slot)| slot.entry.is_some());
        taken.map(|(index, slot)| u64::from(slot.generation) << 32 | index as u64).collect()
    }
}

/// The client with this token, if it is still connected.
fn client_entry<C>(slots: &mut [ClientSlot<C>], token: u64) -> Option<&mut ClientEntry<C>> {
    let slot = slots.get_mut(token as u32 as usize)?;
    if slot.generation != (token >> 32) as u32 {
        return None;
    }
    slot.entry.as_mut()
}
