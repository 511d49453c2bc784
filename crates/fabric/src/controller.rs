//! A peer's link to its controller: connects, sends its hello, and connects again after each end.
//!
//! [`PeerSession`] decides when; the owner of a reactor calls [`ControllerLink::connect`] at
//! [`ControllerLink::next_attempt`], and [`ControllerLink::receive`] when the link is ready. A peer
//! never waits for its controller: all calls return at once.

use std::io;

use rustix::event::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tidegate_model::Time;
use tidegate_proto::message::Hello;
use tidegate_proto::session::{FromController, PeerSession, Standing};

use crate::reactor::{Interest, Reactor};
use crate::stream::Way;
use crate::unix::MessageLink;

/// The link of a peer that receives `In`. Its socket is in the reactor under one token.
#[derive(Debug)]
pub struct ControllerLink<In> {
    way: Way,
    token: u64,
    /// The kind of peer, for the log.
    kind: &'static str,
    link: Option<MessageLink<In>>,
    session: PeerSession,
}

impl<In: DeserializeOwned + FromController> ControllerLink<In> {
    /// A link with these connection settings, of a peer of this kind. It connects at the first
    /// [`Self::connect`].
    pub fn new(way: Way, token: u64, kind: &'static str) -> Self {
        Self { way, token, kind, link: None, session: PeerSession::default() }
    }

    /// Whether the peer is connected with its controller.
    pub const fn standing(&self) -> Standing {
        self.session.standing()
    }

    /// Whether there is a connection, perhaps not accepted yet.
    pub const fn is_open(&self) -> bool {
        self.link.is_some()
    }

    /// When to call [`Self::connect`]; [`Time::MAX`] while there is a connection.
    pub const fn next_attempt(&self) -> Time {
        self.session.next_attempt()
    }

    /// Connects and sends the hello. Returns whether there is a connection.
    pub fn connect<T>(&mut self, reactor: &Reactor<T>, now: Time, hello: &Hello) -> bool {
        let connected = self.way.connect().map(MessageLink::from).and_then(|mut link| {
            link.send(hello)?;
            reactor.add(&link, self.token, Interest::READ)?;
            Ok(link)
        });
        match connected {
            Ok(link) => {
                self.link = Some(link);
                self.session.on_connected();
            }
            Err(error) => {
                tracing::debug!(address = %self.way.address, %error, "no controller answers");
                self.session.on_closed(now);
            }
        }
        self.link.is_some()
    }

    /// The next message of the controller, if one has arrived. A refusal ends the connection and is
    /// not returned.
    pub fn receive<T>(&mut self, reactor: &Reactor<T>, now: Time) -> Option<In> {
        let link = self.link.as_mut()?;
        let message = match link.flush().and_then(|()| link.receive()) {
            Ok(Some(message)) => message,
            Ok(None) => {
                self.watch(reactor, now);
                return None;
            }
            Err(error) => {
                self.fail(reactor, now, &error);
                return None;
            }
        };
        self.session.on_message(now, &message);
        if let Some((reason, _)) = message.refusal() {
            tracing::warn!(kind = self.kind, %reason, "the controller refuses this process");
            self.close(reactor);
            return None;
        }
        Some(message)
    }

    /// Sends a message, if there is a connection.
    pub fn send<T>(&mut self, reactor: &Reactor<T>, now: Time, message: &impl Serialize) {
        let Some(link) = &mut self.link else { return };
        match link.send(message) {
            Ok(()) => self.watch(reactor, now),
            Err(error) => self.fail(reactor, now, &error),
        }
    }

    /// Registers the events that the link waits for.
    fn watch<T>(&mut self, reactor: &Reactor<T>, now: Time) {
        let Some(link) = &self.link else { return };
        let write = link.interest().contains(PollFlags::OUT);
        if let Err(error) = reactor.change(link, self.token, Interest { read: true, write }) {
            self.fail(reactor, now, &error);
        }
    }

    fn fail<T>(&mut self, reactor: &Reactor<T>, now: Time, error: &io::Error) {
        match error.kind() {
            // With TLS, only now is it certain that no process listens.
            io::ErrorKind::ConnectionRefused => {
                tracing::debug!(address = %self.way.address, %error, "no controller answers");
            }
            _ => tracing::warn!(%error, "the link to the controller ended"),
        }
        self.close(reactor);
        self.session.on_closed(now);
    }

    fn close<T>(&mut self, reactor: &Reactor<T>) {
        if let Some(link) = self.link.take() {
            let _ = reactor.remove(&link);
        }
    }
}
