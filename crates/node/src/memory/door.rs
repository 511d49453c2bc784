//! The door's thread: it finds out who comes, hands out the region, hears from the controller which
//! policy holds, and moves the memory away from those who may not have it.

mod moving;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::process::geteuid;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_fabric::memory::handover;
use tidegate_fabric::memory::region::Region;
use tidegate_fabric::memory::verbs::Client;
use tidegate_fabric::reactor::{Interest, Reactor, Ready};
use tidegate_fabric::retry::Retry;
use tidegate_fabric::stream::{Door, Listener, Stream};
use tidegate_fabric::tls::Way;
use tidegate_fabric::unix::Link;
use tidegate_model::{Span, Time};
use tidegate_onesided::data_node::card::Request;
use tidegate_onesided::data_node::{Hello, ToClient, VERSION, Visitor, Welcome};
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::data_node::ToDataNode;
use tidegate_proto::message;

use super::host::{Denied, Host};
use super::visitor;
use crate::clock::Clock;

const LISTENER: u64 = 0;
const CONTROLLER: u64 = 1;
/// Tokens from here on are guests'.
const GUESTS: u64 = 2;

/// The first and the longest wait between two attempts to connect to the controller, and the wait
/// after it refused us.
const RETRY: [Span; 2] = [Span(50 * Span::MILLISECOND.0), Span(2 * Span::SECOND.0)];
const REFUSED_WAIT: Span = Span(60 * Span::SECOND.0);

/// Connections at a time: all seats, and whoever else asks.
const GUESTS_MAX: usize = 512;

/// How long clients that come first wait for the policy. A controller that is there has told it
/// within milliseconds.
const BEGINNING_MAX: Span = Span::SECOND;

/// How long those who come wait for a client that brings the memory of this node's former life.
/// Clients look for a node that is gone every two seconds. One that is late is still in time as
/// long as nobody has been given other memory.
const RETURN_MAX: Span = Span(2_500 * Span::MILLISECOND.0);

/// How long clients have to leave the memory that the node moves away from.
const MOVE_MAX: Span = Span::SECOND;

/// How long it waits before it tries to use its card again.
const CARD_WAIT: Span = Span::SECOND;

/// Messages from the pulse to the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letter {
    /// The client of this seat is to be shut out.
    Fence(u16),
    /// The node's own card does not reach the memory any more.
    Lost,
    /// The memory is damaged.
    Damaged,
    /// Blocks run low in memory that must not be swept.
    BlocksLow,
    /// A period is over: there may be something to say to the controller.
    Period,
    /// The slot of a client that has left is free.
    SlotFree,
}

/// Users who may connect: all if root runs the node, for the policy names the tenant of each.
pub(super) fn admits() -> Door {
    match geteuid().is_root() {
        true => Door { mode: 0o666, own_user_only: false, is_public: false },
        false => Door::PRIVATE,
    }
}

/// Somebody who is connected.
struct Guest {
    stream: Stream,
    /// Nobody, before a certificate has told.
    visitor: Visitor,
    ear: Ear,
    /// Its hello until that is answered, and the memory that it brought.
    hello: Option<Hello>,
    file: Option<OwnedFd>,
    /// Whether it has the region.
    is_in: bool,
    seat: Option<u16>,
    /// Its queue pairs, if its card reaches the memory.
    client: Option<Client>,
}

/// The message that the door expects of a guest.
enum Ear {
    Hello(Decoder<Hello>),
    /// It has a seat, and asks the node's card for a connection.
    Request(Decoder<Request>),
    /// None: it only leaves.
    Silence,
}

/// The message that a guest has sent.
enum Heard {
    /// No complete message.
    Nothing,
    Hello,
    Request(Request),
}

/// The door's thread.
pub(super) struct DoorKeeper {
    reactor: Reactor<Letter>,
    listener: Listener,
    host: Arc<Host>,
    clock: Clock,
    name: String,
    guests: BTreeMap<u64, Guest>,
    next: u64,
    /// Until when guests may leave the memory, if the node is about to move.
    moving: Option<Time>,
    /// Until when the controller may say which policy holds, at the beginning.
    beginning: Option<Time>,
    /// Until when somebody may bring the memory of this node's former life.
    waiting: Option<Time>,
    controller: Option<Way>,
    link: Option<Link<ToDataNode>>,
    retry: Retry,
}

impl DoorKeeper {
    pub(super) fn new(
        reactor: Reactor<Letter>,
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
            guests: BTreeMap::new(),
            next: GUESTS,
            moving: None,
            beginning,
            waiting,
            controller,
            link: None,
            retry: Retry::new(RETRY[0], RETRY[1]),
        })
    }

    /// Keeps the door until the node ends.
    pub(super) fn run(mut self, is_ending: &AtomicBool) {
        let (mut ready, mut letters) = (Vec::new(), Vec::new());
        let mut is_slot_free = false;
        while !is_ending.load(Ordering::Acquire) {
            self.connect_if_due();
            self.move_if_due();
            self.begin_if_due();
            if let Err(error) = self.reactor.wait(self.patience(), &mut ready, &mut letters) {
                // The descriptors are ours and the arguments too; there is nothing to wait for.
                return tracing::error!("the data node's door cannot wait: {error}");
            }
            for letter in letters.drain(..) {
                match letter {
                    Letter::Fence(seat) => self.fence(seat),
                    Letter::Lost => self.lose(),
                    Letter::Damaged => self.remake(),
                    Letter::BlocksLow => self.bring_back_blocks(),
                    Letter::Period => {}
                    Letter::SlotFree => is_slot_free = true,
                }
            }
            if std::mem::take(&mut is_slot_free) {
                self.answer_all();
            }
            for Ready { token, .. } in ready.drain(..) {
                match token {
                    LISTENER => self.accept(),
                    CONTROLLER => self.hear_controller(),
                    guest => self.hear(guest),
                }
            }
            self.say();
        }
        self.host.end();
        self.say();
    }

    /// How long there is nothing to do unless somebody says something.
    fn patience(&self) -> Option<Duration> {
        let attempt = match (&self.controller, &self.link) {
            (Some(_), None) => Some(self.retry.at()),
            _ => None,
        };
        let begin = self.beginning.into_iter().chain(self.waiting);
        let next = attempt.into_iter().chain(self.moving).chain(begin).min();
        next.map(|next| self.clock.until(next))
    }

    fn accept(&mut self) {
        let stream = match self.listener.accept() {
            Ok(Some(stream)) => stream,
            Ok(None) => return,
            Err(error) => return tracing::warn!("a client was not let in: {error}"),
        };
        if self.guests.len() >= GUESTS_MAX {
            tracing::warn!("too many are connected; those who have said nothing are sent away");
            self.guests.retain(|_, guest| guest.is_in || guest.hello.is_some());
            if self.guests.len() >= GUESTS_MAX {
                return;
            }
        }
        let token = self.next;
        self.next += 1;
        let visitor = match stream.seal() {
            Some(_) => Ok(Visitor::default()),
            None => visitor::of(&stream),
        };
        let visitor = visitor.and_then(|visitor| {
            self.reactor.add(&stream, token, Interest::READ)?;
            Ok(visitor)
        });
        match visitor {
            Ok(visitor) => {
                self.guests.insert(token, Guest::new(stream, visitor));
            }
            Err(error) => tracing::warn!("a client was not let in: {error}"),
        }
    }

    /// Takes in what a guest says: its hello, what its card asks for, and then nothing until it
    /// leaves.
    fn hear(&mut self, token: u64) {
        let Some(guest) = self.guests.get_mut(&token) else { return };
        match guest.hear() {
            Ok(Heard::Nothing) => {}
            Ok(Heard::Hello) => {
                self.take_back(token);
                self.answer(token);
            }
            Ok(Heard::Request(request)) => self.connect_card(token, &request),
            Err(error) => {
                let client = guest.visitor.name();
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    tracing::warn!(client, "a client is sent away: {error}");
                }
                self.leave(token);
            }
        }
    }

    /// Goes on with the memory that a guest has brought, if it is this node's.
    fn take_back(&mut self, token: u64) {
        let Some(file) = self.guests.get_mut(&token).and_then(|guest| guest.file.take()) else {
            return;
        };
        match self.host.adopt(file) {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("a client has brought back this node's memory");
                self.waiting = None;
                self.answer_all();
            }
            Err(error) => tracing::warn!("this node's memory came back, and is of no use: {error}"),
        }
    }

    fn leave(&mut self, token: u64) {
        let Some(guest) = self.guests.remove(&token) else { return };
        // Its card first: whoever has the seat next is not to be disturbed.
        if let Some((card, client)) = self.host.card().zip(guest.client) {
            card.fence(client);
        }
        if guest.is_in {
            self.host.leave(guest.seat);
        }
    }

    /// Answers a guest's hello, unless the memory is about to move or the policy to come.
    fn answer(&mut self, token: u64) {
        let is_held = self.moving.or(self.beginning).or(self.waiting).is_some();
        let Some(guest) = self.guests.get_mut(&token).filter(|_| !is_held) else { return };
        let Some(hello) = guest.hello.take() else { return };
        let client = guest.visitor.name();
        let answered = match self.host.seat(&guest.visitor, &hello) {
            Ok((welcome, region)) => {
                if self.host.is_incomplete() {
                    // From here on clients have the new memory, and nobody brings the former back.
                    self.host.settle();
                }
                guest.is_in = true;
                guest.seat = welcome.seat.as_ref().map(|seat| seat.number);
                tracing::info!(client, tenant = welcome.tenant, seat = guest.seat, "a client came");
                let region = self.host.card().is_none().then_some(region);
                guest.welcome(welcome, region.as_deref())
            }
            Err(Denied::Wait) => {
                guest.hello = Some(hello);
                return;
            }
            Err(Denied::Damaged) => {
                guest.hello = Some(hello);
                return self.remake();
            }
            Err(Denied::Refused(reason)) => {
                tracing::info!(client, "a client is refused: {reason}");
                let _ = guest.say(&ToClient::Refused { version: VERSION, reason });
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        };
        if let Err(error) = answered {
            if error.kind() != io::ErrorKind::UnexpectedEof {
                tracing::warn!(client, "a client could not be answered: {error}");
            }
            self.leave(token);
        }
    }

    /// Has a guest's card reach the memory.
    fn connect_card(&mut self, token: u64, request: &Request) {
        let guest = self.guests.get_mut(&token);
        let Some((card, guest)) = self.host.card().zip(guest) else { return };
        let connected = card.connect(request).map_err(io::Error::other);
        let answered = connected.and_then(|(client, answer)| {
            guest.client = Some(client);
            guest.say(&ToClient::Reach(answer))
        });
        if let Err(error) = answered {
            let client = guest.visitor.name();
            tracing::warn!(client, "a client's card could not be connected: {error}");
            let reason = error.to_string();
            // It may have left by itself.
            let _ = guest.say(&ToClient::Refused { version: VERSION, reason });
            self.leave(token);
        }
    }

    /// Opens to those who came before there was a policy, if none is to be expected any more.
    fn begin_if_due(&mut self) {
        let now = self.clock.now();
        let is_over = |until: &mut Option<Time>| until.take_if(|until| now >= *until).is_some();
        let is_alone = is_over(&mut self.waiting);
        if is_over(&mut self.beginning) || is_alone {
            self.answer_all();
        }
    }

    /// Answers those who could not be answered before: first those who had a seat in the memory
    /// that was left, then those who are new, each in the order in which they came.
    fn answer_all(&mut self) {
        let had_seat = |guest: &Guest| guest.hello.as_ref().is_some_and(|it| it.seat.is_some());
        let guests = self.guests.iter();
        let mut waiting: Vec<_> = guests.map(|(token, it)| (!had_seat(it), *token)).collect();
        waiting.sort_unstable();
        waiting.into_iter().for_each(|(_, token)| self.answer(token));
    }

    fn connect_if_due(&mut self) {
        let Some(way) = &self.controller else { return };
        if self.link.is_some() || !self.retry.is_due(self.clock.now()) {
            return;
        }
        let connected = way.connect().map(Link::from).and_then(|mut link| {
            let (version, name) = (message::VERSION, self.name.clone());
            link.send(&message::Hello::DataNode { version, name })?;
            self.reactor.add(&link, CONTROLLER, Interest::READ)?;
            Ok(link)
        });
        match connected {
            Ok(link) => {
                self.link = Some(link);
                self.host.connected();
            }
            Err(error) => {
                tracing::debug!("no controller at {}: {error}", way.address);
                self.retry.later(self.clock.now());
            }
        }
    }

    fn hear_controller(&mut self) {
        loop {
            let Some(link) = &mut self.link else { return };
            let heard = link.flush().and_then(|()| link.receive());
            match heard {
                Ok(None) => return self.watch_link(),
                Ok(Some(ToDataNode::Refused { reason, .. })) => {
                    tracing::warn!("the controller refuses this data node: {reason}");
                    self.retry.hold(REFUSED_WAIT);
                    return self.part();
                }
                Ok(Some(message)) => {
                    if let ToDataNode::Policy { revision, .. } = &message {
                        tracing::info!(revision, "policy");
                        self.retry.succeed();
                    }
                    // Without shares a policy promises nothing yet.
                    if matches!(message, ToDataNode::Grant(_)) {
                        self.beginning = self.beginning.map(|_| Time::ZERO);
                    }
                    self.host.hear(message);
                }
                Err(error) => {
                    tracing::warn!("the link to the controller ended: {error}");
                    return self.part();
                }
            }
        }
    }

    /// Says to the controller what there is to say.
    fn say(&mut self) {
        while let Some(message) = self.host.said() {
            let Some(link) = &mut self.link else { continue };
            match link.send(&message) {
                Ok(()) => self.watch_link(),
                Err(error) => {
                    tracing::warn!("the link to the controller ended: {error}");
                    self.part();
                }
            }
        }
    }

    /// Waits for what the link waits for.
    fn watch_link(&self) {
        let Some(link) = &self.link else { return };
        let write = link.interest().contains(PollFlags::OUT);
        // The descriptor is there; where it cannot be watched, the next period says it again.
        let _ = self.reactor.change(link, CONTROLLER, Interest { read: true, write });
    }

    /// There is no controller any more: what it said last goes on to hold.
    fn part(&mut self) {
        if let Some(link) = self.link.take() {
            let _ = self.reactor.remove(&link);
            self.retry.later(self.clock.now());
        }
    }
}

impl Guest {
    fn new(stream: Stream, visitor: Visitor) -> Self {
        let ear = Ear::Hello(Decoder::new());
        Self {
            stream,
            visitor,
            ear,
            hello: None,
            file: None,
            is_in: false,
            seat: None,
            client: None,
        }
    }

    /// Receives once, and returns the message if one is complete.
    fn hear(&mut self) -> io::Result<Heard> {
        let mut piece = [0; 4096];
        let count = match handover::receive(&self.stream, &mut piece) {
            Ok((count, file)) if count > 0 => {
                self.file = self.file.take().or(file);
                count
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Heard::Nothing),
            ended => {
                // Where it came through a lock, that knows why it goes.
                let reason = self.stream.seal().and_then(|seal| seal.end());
                let error = ended.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                return Err(reason.unwrap_or(error));
            }
        };
        match &mut self.ear {
            Ear::Hello(decoder) => {
                decoder.extend(&piece[..count]);
                let Some(hello) = decoder.next_message().map_err(io::Error::other)? else {
                    return Ok(Heard::Nothing);
                };
                if let Some(seal) = self.stream.seal() {
                    self.visitor = Visitor::far(seal.names().first().map_or("", String::as_str));
                }
                (self.hello, self.ear) = (Some(hello), Ear::Silence);
                Ok(Heard::Hello)
            }
            Ear::Request(decoder) => {
                decoder.extend(&piece[..count]);
                let Some(request) = decoder.next_message().map_err(io::Error::other)? else {
                    return Ok(Heard::Nothing);
                };
                self.ear = Ear::Silence;
                Ok(Heard::Request(request))
            }
            Ear::Silence => Err(io::Error::other("it says what nobody has asked for")),
        }
    }

    /// Says that it has the memory: by a descriptor, or by its card, which is to ask for the way.
    fn welcome(&mut self, welcome: Welcome, region: Option<&Region>) -> io::Result<()> {
        let message = ToClient::Welcome(welcome);
        let Some(region) = region else {
            self.ear = Ear::Request(Decoder::new());
            return self.say(&message);
        };
        let mut bytes = Vec::new();
        encode(&message, &mut bytes).map_err(io::Error::other)?;
        match handover::send(&self.stream, &bytes, region.as_fd())? {
            count if count == bytes.len() => Ok(()),
            // Nothing else was sent on this connection, so there was room for it.
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn say(&mut self, message: &ToClient) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes).map_err(io::Error::other)?;
        self.stream.send(&[io::IoSlice::new(&bytes)]).map(|_| ())
    }
}
