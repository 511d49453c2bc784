//! The door's thread: it finds out who comes, hands out the region, hears from the controller which
//! policy holds, and moves the memory away from those who may not have it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::process::geteuid;
use std::os::fd::{AsFd, OwnedFd};
use tidegate_fabric::memory::handover;
use tidegate_fabric::reactor::{Interest, Reactor, Ready};
use tidegate_fabric::retry::Retry;
use tidegate_fabric::stream::{Door, Listener, Stream};
use tidegate_fabric::tls::Way;
use tidegate_fabric::unix::Link;
use tidegate_model::{Span, Time};
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::data_node::message::{Notice, ToDataNode};
use tidegate_proto::data_node::{Hello, ToClient, VERSION, Visitor};
use tidegate_proto::message;

use super::host::Host;
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
/// Clients look for a node that is gone every two seconds.
const RETURN_MAX: Span = Span(2_500 * Span::MILLISECOND.0);

/// How long clients have to leave the memory that the node moves away from.
const MOVE_MAX: Span = Span::SECOND;

/// What the pulse tells the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Letter {
    /// The client of this seat is to be shut out.
    Fence(u16),
    /// A period is over: there may be something to say to the controller.
    Period,
}

/// Who may connect: every user if root runs the node, as whose client it is decides the policy.
pub(super) fn admits() -> Door {
    match geteuid().is_root() {
        true => Door { mode: 0o666, own_user_only: false, is_public: false },
        false => Door::PRIVATE,
    }
}

/// Somebody who is connected.
struct Guest {
    stream: Stream,
    visitor: Visitor,
    decoder: Decoder<Hello>,
    /// What it said and was not answered yet, and the memory that it brought.
    hello: Option<Hello>,
    file: Option<OwnedFd>,
    /// Whether it has the region.
    is_in: bool,
    seat: Option<u16>,
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
                    Letter::Period => {}
                }
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
        let visitor = visitor::of(&stream).and_then(|visitor| {
            self.reactor.add(&stream, token, Interest::READ)?;
            Ok(visitor)
        });
        match visitor {
            Ok(visitor) => {
                let (decoder, hello, file) = (Decoder::new(), None, None);
                let guest =
                    Guest { stream, visitor, decoder, hello, file, is_in: false, seat: None };
                self.guests.insert(token, guest);
            }
            Err(error) => tracing::warn!("a client was not let in: {error}"),
        }
    }

    /// Takes in what a guest says: its hello, and then nothing until it leaves.
    fn hear(&mut self, token: u64) {
        let Some(guest) = self.guests.get_mut(&token) else { return };
        match guest.hear() {
            Ok(false) => {}
            Ok(true) => {
                self.take_back(token);
                self.answer(token);
            }
            Err(error) => {
                let pid = guest.visitor.peer.pid;
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    tracing::warn!(pid, "a client is sent away: {error}");
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
        if let Some(guest) = self.guests.remove(&token)
            && guest.is_in
        {
            self.host.leave(guest.seat);
        }
    }

    /// Answers a guest's hello, unless the memory is about to move or the policy to come.
    fn answer(&mut self, token: u64) {
        let is_held = self.moving.or(self.beginning).or(self.waiting).is_some();
        let Some(guest) = self.guests.get_mut(&token).filter(|_| !is_held) else { return };
        let Some(hello) = guest.hello.take() else { return };
        let pid = guest.visitor.peer.pid;
        let answered = match self.host.seat(&guest.visitor, &hello) {
            Ok((welcome, region)) => {
                guest.is_in = true;
                guest.seat = welcome.seat.as_ref().map(|seat| seat.number);
                tracing::info!(pid, tenant = welcome.tenant, seat = guest.seat, "a client came");
                let mut bytes = Vec::new();
                encode(&ToClient::Welcome(welcome), &mut bytes).map_err(io::Error::other).and_then(
                    |()| match handover::send(&guest.stream, &bytes, region.as_fd())? {
                        count if count == bytes.len() => Ok(()),
                        // Nothing else was sent on this connection, so there was room for it.
                        _ => Err(io::ErrorKind::WriteZero.into()),
                    },
                )
            }
            Err(reason) => {
                tracing::info!(pid, "a client is refused: {reason}");
                let _ = guest.say(&ToClient::Refused { version: VERSION, reason });
                Err(io::ErrorKind::UnexpectedEof.into())
            }
        };
        if let Err(error) = answered {
            if error.kind() != io::ErrorKind::UnexpectedEof {
                tracing::warn!(pid, "a client could not be answered: {error}");
            }
            self.leave(token);
        }
    }

    /// Begins to move away from the client of a seat.
    fn fence(&mut self, seat: u16) {
        let client = self.guests.iter().find(|(_, guest)| guest.seat == Some(seat));
        // Who has left by itself has no memory any more.
        let Some((&token, _)) = client else { return };
        self.leave(token);
        self.moving.get_or_insert(self.clock.now().after(MOVE_MAX));
        for guest in self.guests.values_mut().filter(|guest| guest.is_in) {
            // Who does not hear it is closed later.
            let _ = guest.say(&ToClient::Moving);
        }
    }

    /// Moves, once nobody uses the memory any more or time is up, and answers who came meanwhile.
    fn move_if_due(&mut self) {
        let Some(deadline) = self.moving else { return };
        if self.clock.now() < deadline && self.guests.values().any(|guest| guest.is_in) {
            return;
        }
        let gone: Vec<Guest> =
            self.guests.extract_if(.., |_, guest| guest.is_in).map(|it| it.1).collect();
        let started = self.clock.now();
        match self.host.move_memory() {
            Ok(()) => {
                let took_ms = self.clock.now().since(started).0 / Span::MILLISECOND.0;
                tracing::warn!(took_ms, "the memory was moved; clients come again");
                self.host.notice(Notice::Moved { took: self.clock.now().since(started) });
            }
            Err(error) => {
                tracing::error!("the memory cannot be moved, so nobody is shut out: {error}");
                self.host.stay(gone.iter().map(|guest| guest.seat));
            }
        }
        self.moving = None;
        self.answer_all();
    }

    /// Opens to those who came before there was a policy, if none is to be expected any more.
    fn begin_if_due(&mut self) {
        let now = self.clock.now();
        let is_over = |until: &mut Option<Time>| until.take_if(|until| now >= *until).is_some();
        let is_alone = is_over(&mut self.waiting);
        if is_alone {
            self.host.settle();
        }
        if is_over(&mut self.beginning) || is_alone {
            self.answer_all();
        }
    }

    /// Answers those who could not be answered before.
    fn answer_all(&mut self) {
        let waiting: Vec<u64> = self.guests.keys().copied().collect();
        waiting.into_iter().for_each(|token| self.answer(token));
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
    /// Whether it has said hello just now.
    fn hear(&mut self) -> io::Result<bool> {
        let mut piece = [0; 4096];
        match handover::receive(&self.stream, &mut piece) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((count, file)) => {
                self.decoder.extend(&piece[..count]);
                self.file = self.file.take().or(file);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        let Some(hello) = self.decoder.next_message().map_err(io::Error::other)? else {
            return Ok(false);
        };
        if self.is_in || self.hello.is_some() {
            return Err(io::Error::other("it said hello twice"));
        }
        self.hello = Some(hello);
        Ok(true)
    }

    fn say(&mut self, message: &ToClient) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes).map_err(io::Error::other)?;
        self.stream.send(&[io::IoSlice::new(&bytes)]).map(|_| ())
    }
}
