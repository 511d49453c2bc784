//! The endpoint's thread: it identifies clients, hands out the region, receives the policy from the
//! controller, and moves the memory away from clients that may not use it.

mod moving;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::geteuid;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_fabric::clock::Clock;
use tidegate_fabric::controller::ControllerLink;
use tidegate_fabric::memory::handover;
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::verbs::ClientNumber;
use tidegate_fabric::reactor::{Interest, Reactor, Ready};
use tidegate_fabric::stream::Way;
use tidegate_fabric::stream::{Listener, ListenerAccess, Stream};
use tidegate_model::{SessionSlot, Span, Time};
use tidegate_onesided::data_node::rnic::ConnectRequest;
use tidegate_onesided::data_node::{ClientIdentity, Hello, ToClient, VERSION, Welcome};
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::data_node::ToDataNode;
use tidegate_proto::message;
use tracing::debug_span;
use tracing::field::Empty;

use super::host::{Denied, Host};
use super::identity;

const LISTENER: u64 = 0;
const CONTROLLER: u64 = 1;
/// Tokens from here on are those of connections.
const FIRST_CONNECTION: u64 = 2;

/// Connections at a time: all session slots, and pending connections.
const CONNECTIONS_MAX: usize = 512;

/// Lines about accepted clients that are logged in an interval: an hour's log of a client that
/// connects again and again has some megabytes. Chosen by hand.
const SESSION_LINES: u32 = 50;

/// How long the first clients wait for the policy. A reachable controller sends it within
/// milliseconds.
const BEGINNING_MAX: Span = Span::SECOND;

/// How long new clients wait for a client that returns the memory of this node's earlier
/// incarnation. Clients retry a lost node every two seconds. A later client is still in time as
/// long as no client was given other memory.
const RETURN_MAX: Span = Span(2_500 * Span::MILLISECOND.0);

/// The time that clients have to leave memory that the node moves away from.
const MOVE_MAX: Span = Span::SECOND;

/// The interval between two attempts to use its RNIC again.
const RNIC_WAIT: Span = Span::SECOND;

/// Messages from the pulse to the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The client of this session slot is to be shut out.
    Fence(SessionSlot),
    /// The node's own RNIC does not reach the memory any more.
    Lost,
    Damaged,
    /// Blocks run low in memory that must not be swept.
    BlocksLow,
    /// A period has ended: there may be a message for the controller.
    Period,
    /// The slot of a client that has left is free.
    SlotFree,
}

/// Users who may connect: all if root runs the node, for the policy names the tenant of each. They
/// may bring memory.
pub(super) fn admits() -> ListenerAccess {
    let users = match geteuid().is_root() {
        true => ListenerAccess::EVERYBODY,
        false => ListenerAccess::PRIVATE,
    };
    ListenerAccess { takes_descriptors: true, ..users }
}

/// A connection to the endpoint, identified or pending.
struct ClientConnection {
    stream: Stream,
    /// The default before a certificate is verified.
    identity: ClientIdentity,
    expected: Expected,
    /// Its hello until that is answered, and the memory that it has returned.
    hello: Option<Hello>,
    file: Option<OwnedFd>,
    /// Whether it has the region.
    is_in: bool,
    session_slot: Option<SessionSlot>,
    /// Its queue pairs, if its RNIC reaches the memory.
    client: Option<ClientNumber>,
    /// Of the lines about it, at level debug.
    span: tracing::Span,
}

/// The message that the endpoint expects on a connection.
enum Expected {
    Hello(Decoder<Hello>),
    /// It has a session slot, and requests a connection of the node's RNIC.
    Request(Decoder<ConnectRequest>),
    /// None: the client only disconnects.
    Silence,
}

/// The message that a client has sent.
enum Received {
    /// No complete message.
    Nothing,
    Hello,
    Request(ConnectRequest),
}

pub(super) struct Endpoint {
    reactor: Reactor<Message>,
    listener: Listener,
    host: Arc<Host>,
    clock: Clock,
    name: String,
    connections: BTreeMap<u64, ClientConnection>,
    next: u64,
    /// The deadline for clients to leave the memory, if the node is about to move.
    moving: Option<Time>,
    /// The deadline of the wait for the policy, after the start.
    beginning: Option<Time>,
    /// The deadline for clients to return the memory of this node's earlier incarnation.
    waiting: Option<Time>,
    controller: Option<ControllerLink<ToDataNode>>,
    /// The log lines about refused clients, and about accepted ones.
    refusals: LogLimiter,
    sessions: LogLimiter,
    /// Whether a session slot is free, or one has its former client again.
    is_slot_free: bool,
}

impl Endpoint {
    pub(super) fn new(
        reactor: Reactor<Message>,
        listener: Listener,
        host: Arc<Host>,
        clock: Clock,
        name: String,
        controller: Option<Way>,
    ) -> io::Result<Self> {
        reactor.add(&listener, LISTENER, Interest::READ)?;
        let beginning = controller.is_some().then(|| clock.now().after(BEGINNING_MAX));
        let waiting = host.is_incomplete().then(|| clock.now().after(RETURN_MAX));
        if waiting.is_none() {
            host.settle();
        }
        Ok(Self {
            reactor,
            listener,
            host,
            clock,
            name,
            connections: BTreeMap::new(),
            next: FIRST_CONNECTION,
            moving: None,
            beginning,
            waiting,
            controller: controller.map(|way| ControllerLink::new(way, CONTROLLER, "data node")),
            refusals: LogLimiter::default(),
            sessions: LogLimiter::new(SESSION_LINES),
            is_slot_free: false,
        })
    }

    /// Serves clients until the node ends.
    pub(super) fn run(mut self, is_ending: &AtomicBool) {
        let (mut ready, mut messages) = (Vec::new(), Vec::new());
        while !is_ending.load(Ordering::Acquire) {
            self.connect_if_due();
            self.move_if_due();
            self.begin_if_due();
            if let Err(error) = self.reactor.wait(self.patience(), &mut ready, &mut messages) {
                // The descriptors are ours and the arguments too; there is nothing to wait for.
                return tracing::error!(%error, "the data node's listener cannot wait for events");
            }
            for message in messages.drain(..) {
                match message {
                    Message::Fence(session_slot) => self.fence(session_slot),
                    Message::Lost => self.lose(),
                    Message::Damaged => self.remake(),
                    Message::BlocksLow => self.bring_back_blocks(),
                    Message::Period => {}
                    Message::SlotFree => self.is_slot_free = true,
                }
            }
            self.answer_waiting();
            for Ready { token, .. } in ready.drain(..) {
                match token {
                    LISTENER => self.accept(),
                    CONTROLLER => self.receive_from_controller(),
                    connection => self.receive(connection),
                }
            }
            self.answer_waiting();
            self.send();
        }
        self.host.end();
        self.send();
    }

    /// How long to wait for a message.
    fn patience(&self) -> Option<Duration> {
        let attempt = self.controller.as_ref().map(ControllerLink::next_attempt);
        let attempt = attempt.filter(|attempt| *attempt != Time::MAX);
        let begin = self.beginning.into_iter().chain(self.waiting);
        let next = attempt.into_iter().chain(self.moving).chain(begin).min();
        next.map(|next| self.clock.until(next))
    }

    fn accept(&mut self) {
        let stream = match self.listener.accept() {
            Ok(Some(stream)) => stream,
            Ok(None) => return,
            Err(error) => return self.warn_unaccepted(&error),
        };
        if self.connections.len() >= CONNECTIONS_MAX {
            if let Some(unlogged) = self.due_refusal() {
                tracing::warn!(unlogged, "too many connections: those without a hello are closed");
            }
            self.connections.retain(|_, connection| connection.is_in || connection.hello.is_some());
        }
        let token = self.next;
        self.next += 1;
        let identity = match stream.names() {
            Some(_) => Ok(ClientIdentity::default()),
            None => identity::of(&stream),
        };
        let identity = identity.and_then(|identity| {
            if self.connections.len() >= CONNECTIONS_MAX && !self.displace(identity.peer.uid) {
                return Err(io::Error::other("its user has too many pending connections"));
            }
            self.reactor.add(&stream, token, Interest::READ)?;
            Ok(identity)
        });
        match identity {
            Ok(identity) => {
                self.connections.insert(token, ClientConnection::new(stream, identity));
            }
            Err(error) => self.warn_unaccepted(&error),
        }
    }

    /// Closes the latest pending connection of the user who has most of them, for a connection of
    /// `newcomer`; false if that is the newcomer. So no user keeps the clients of others from their
    /// memory, not even while all hellos wait for the policy or for returned memory.
    fn displace(&mut self, newcomer: u32) -> bool {
        let pending = self.connections.iter().filter(|(_, connection)| !connection.is_in);
        let pending = pending.map(|(token, connection)| (*token, connection.identity.peer.uid));
        let Some(token) = displaced(pending, newcomer) else { return false };
        self.leave(token);
        true
    }

    fn warn_unaccepted(&mut self, error: &io::Error) {
        if let Some(unlogged) = self.due_refusal() {
            tracing::warn!(%error, unlogged, "client not accepted");
        }
    }

    /// Whether a line about a refused or failed client is due, and how many were left out before.
    fn due_refusal(&mut self) -> Option<u64> {
        self.refusals.admit(self.clock.now())
    }

    /// Receives a client's messages: its hello, its RNIC's request, and then nothing until it
    /// disconnects.
    fn receive(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let _entered = connection.span.clone().entered();
        match connection.receive() {
            Ok(Received::Nothing) => {}
            Ok(Received::Hello) => {
                self.take_back(token);
                self.answer(token);
            }
            Ok(Received::Request(request)) => self.connect_rnic(token, &request),
            Err(error) => {
                if error.kind() != io::ErrorKind::UnexpectedEof
                    && let Some(unlogged) = self.refusals.admit(self.clock.now())
                {
                    let peer = connection.identity.name();
                    tracing::warn!(peer, %error, unlogged, "a client's connection is closed");
                }
                self.leave(token);
            }
        }
    }

    /// Continues with the memory that a client has returned, if it is this node's.
    fn take_back(&mut self, token: u64) {
        let Some(file) =
            self.connections.get_mut(&token).and_then(|connection| connection.file.take())
        else {
            return;
        };
        match self.host.adopt(file) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("a client has returned this node's memory");
                self.waiting = None;
                self.answer_all();
            }
            Err(error) => {
                if let Some(unlogged) = self.due_refusal() {
                    tracing::warn!(%error, unlogged, "this node's returned memory cannot be used");
                }
            }
        }
    }

    fn leave(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        // Its RNIC first: its operations must not reach the slot's next client.
        if let Some((rnic, client)) = self.host.rnic().zip(connection.client) {
            rnic.fence(client);
        }
        if connection.is_in {
            self.host.leave(connection.session_slot);
        }
    }

    /// Answers a client's hello, unless the memory is about to move or the policy to arrive.
    fn answer(&mut self, token: u64) {
        let is_held = self.moving.or(self.beginning).or(self.waiting).is_some();
        let Some(connection) = self.connections.get_mut(&token).filter(|_| !is_held) else {
            return;
        };
        let Some(hello) = connection.hello.take() else { return };
        let peer = connection.identity.name();
        let answered = match self.host.open_session(&connection.identity, &hello) {
            Ok((welcome, region)) => {
                // Clients may have waited for the slot of one that has come back.
                self.is_slot_free |= hello.session_slot.is_some();
                if self.host.is_incomplete() {
                    // From here on clients have the new memory, and no client can return the
                    // former.
                    self.host.settle();
                }
                connection.is_in = true;
                connection.session_slot =
                    welcome.session_slot.as_ref().map(|session_slot| session_slot.number);
                connection.span.record("tenant", &welcome.tenant);
                connection.span.record("session_slot", connection.session_slot.map(|slot| slot.0));
                if self.sessions.admit(self.clock.now()).is_some() {
                    tracing::info!(
                        peer,
                        tenant = welcome.tenant,
                        session_slot = connection.session_slot.map(|session_slot| session_slot.0),
                        "client connected"
                    );
                }
                let region = self.host.rnic().is_none().then_some(region);
                connection.welcome(welcome, region.as_deref())
            }
            Err(Denied::Wait) => {
                connection.hello = Some(hello);
                return;
            }
            Err(Denied::Damaged) => {
                connection.hello = Some(hello);
                return self.remake();
            }
            Err(Denied::Refused(reason)) => {
                if let Some(unlogged) = self.refusals.admit(self.clock.now()) {
                    tracing::info!(peer, %reason, unlogged, "client refused");
                }
                let _ = connection.send(&ToClient::Refused { version: VERSION, reason });
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        };
        if let Err(error) = answered {
            if error.kind() != io::ErrorKind::UnexpectedEof
                && let Some(unlogged) = self.refusals.admit(self.clock.now())
            {
                tracing::warn!(peer, %error, unlogged, "no answer sent to a client");
            }
            self.leave(token);
        }
    }

    /// Connects a client's RNIC to the memory.
    fn connect_rnic(&mut self, token: u64, request: &ConnectRequest) {
        let connection = self.connections.get_mut(&token);
        let Some((rnic, connection)) = self.host.rnic().zip(connection) else { return };
        let connected = rnic.connect(request).map_err(io::Error::other);
        let answered = connected.and_then(|(client, answer)| {
            connection.client = Some(client);
            connection.send(&ToClient::Rnic(answer))
        });
        if let Err(error) = answered {
            let reason = error.to_string();
            // It may have disconnected by itself.
            let refusal = ToClient::Refused { version: VERSION, reason };
            let _ = connection.send(&refusal);
            if let Some(unlogged) = self.refusals.admit(self.clock.now()) {
                let peer = connection.identity.name();
                tracing::warn!(peer, %error, unlogged, "a client's RNIC cannot be connected");
            }
            self.leave(token);
        }
    }

    /// Admits clients that connected before the policy arrived, if no policy is expected any more.
    fn begin_if_due(&mut self) {
        let now = self.clock.now();
        let is_over = |until: &mut Option<Time>| until.take_if(|until| now >= *until).is_some();
        let is_alone = is_over(&mut self.waiting);
        if is_over(&mut self.beginning) || is_alone {
            self.answer_all();
        }
    }

    /// Answers the waiting clients if that may have another result than before.
    fn answer_waiting(&mut self) {
        while std::mem::take(&mut self.is_slot_free) {
            self.answer_all();
        }
    }

    /// Answers the waiting clients: first those with a session slot in the former memory, then new
    /// ones, each in order of arrival.
    fn answer_all(&mut self) {
        let had_slot = |connection: &ClientConnection| {
            connection.hello.as_ref().is_some_and(|it| it.session_slot.is_some())
        };
        let connections = self.connections.iter();
        let mut waiting: Vec<_> = connections.map(|(token, it)| (!had_slot(it), *token)).collect();
        waiting.sort_unstable();
        waiting.into_iter().for_each(|(_, token)| self.answer(token));
    }

    fn connect_if_due(&mut self) {
        let Some(controller) = &mut self.controller else { return };
        let now = self.clock.now();
        if controller.next_attempt() > now {
            return;
        }
        let hello = message::Hello::DataNode { version: message::VERSION, name: self.name.clone() };
        if controller.connect(&self.reactor, now, &hello) {
            self.host.connected();
        }
    }

    /// Handles the controller's messages. Without a controller its last messages hold.
    fn receive_from_controller(&mut self) {
        let Some(controller) = &mut self.controller else { return };
        while let Some(message) = controller.receive(&self.reactor, self.clock.now()) {
            if let ToDataNode::Policy { revision, .. } = &message {
                tracing::info!(revision, "policy applied");
            }
            // Without shares a policy has no promises yet.
            if matches!(message, ToDataNode::Grant(_)) {
                self.beginning = self.beginning.map(|_| Time::ZERO);
            }
            self.host.receive(message);
        }
    }

    /// Sends the messages for the controller.
    fn send(&mut self) {
        while let Some(message) = self.host.poll_output() {
            if let Some(controller) = &mut self.controller {
                controller.send(&self.reactor, self.clock.now(), &message);
            }
        }
    }
}

/// Of pending connections with their users, the one that is closed for a connection of `newcomer`:
/// the latest of the user with most of them. None if the newcomer has as many.
fn displaced(pending: impl Iterator<Item = (u64, u32)>, newcomer: u32) -> Option<u64> {
    // By user: how many, and the latest.
    let mut users: BTreeMap<u32, (usize, u64)> = BTreeMap::new();
    for (token, user) in pending {
        let of_user = users.entry(user).or_default();
        *of_user = (of_user.0 + 1, of_user.1.max(token));
    }
    let own = users.get(&newcomer).map_or(0, |(count, _)| *count);
    let most = users.into_values().max_by_key(|(count, _)| *count);
    most.filter(|(count, _)| *count > own).map(|(_, token)| token)
}

impl ClientConnection {
    fn new(stream: Stream, identity: ClientIdentity) -> Self {
        let (expected, peer) = (Expected::Hello(Decoder::new()), identity.name());
        Self {
            stream,
            identity,
            expected,
            hello: None,
            file: None,
            is_in: false,
            session_slot: None,
            client: None,
            span: debug_span!("connection", peer, tenant = Empty, session_slot = Empty),
        }
    }

    /// Receives once, and returns the message if one is complete.
    fn receive(&mut self) -> io::Result<Received> {
        let mut chunk = [0; 4096];
        let count = match handover::receive_on(&self.stream, &mut chunk) {
            Ok((count, file)) if count > 0 => {
                self.file = self.file.take().or(file);
                count
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Received::Nothing);
            }
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => return Err(error),
        };
        match &mut self.expected {
            Expected::Hello(decoder) => {
                decoder.extend(&chunk[..count]);
                let Some(hello) = decoder.next_message().map_err(io::Error::other)? else {
                    return Ok(Received::Nothing);
                };
                if let Some(names) = self.stream.names() {
                    self.identity = ClientIdentity::far(names.first().map_or("", String::as_str));
                }
                (self.hello, self.expected) = (Some(hello), Expected::Silence);
                Ok(Received::Hello)
            }
            Expected::Request(decoder) => {
                decoder.extend(&chunk[..count]);
                let Some(request) = decoder.next_message().map_err(io::Error::other)? else {
                    return Ok(Received::Nothing);
                };
                self.expected = Expected::Silence;
                Ok(Received::Request(request))
            }
            Expected::Silence => Err(io::Error::other("a message after the last expected one")),
        }
    }

    /// Sends the welcome: with a descriptor, or with the RNIC's name, so that the client requests
    /// the route.
    fn welcome(&mut self, welcome: Welcome, region: Option<&Region>) -> io::Result<()> {
        let message = ToClient::Welcome(welcome);
        let Some(region) = region else {
            self.expected = Expected::Request(Decoder::new());
            return self.send(&message);
        };
        let mut bytes = Vec::new();
        encode(&message, &mut bytes).map_err(io::Error::other)?;
        match handover::send_on(&self.stream, &bytes, region.as_fd())? {
            count if count == bytes.len() => Ok(()),
            // Nothing else was sent on this connection, so the socket's buffer had space for it.
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn send(&mut self, message: &ToClient) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes).map_err(io::Error::other)?;
        self.stream.send(&[io::IoSlice::new(&bytes)]).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_with_many_pending_connections_makes_way_for_others() {
        let pending = |of_each: &[(u32, u64)]| {
            let users = of_each.iter().flat_map(|(user, count)| (0..*count).map(move |_| *user));
            (0..).zip(users).collect::<Vec<(u64, u32)>>()
        };
        let displaced = |of_each, newcomer| displaced(pending(of_each).into_iter(), newcomer);
        let flood = &[(0, 3), (65_534, 500), (1_000, 9)];
        assert_eq!(displaced(flood, 0), Some(502), "the latest of the flood");
        assert_eq!(displaced(flood, 1_001), Some(502));
        assert_eq!(displaced(flood, 65_534), None);
        assert_eq!(displaced(&[(0, 256), (1, 256)], 1), None, "equal ones stay");
        assert_eq!(displaced(&[], 0), None);
    }
}
