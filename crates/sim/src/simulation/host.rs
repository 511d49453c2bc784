//! Simulated host of a process, and the messages on its link to the controller.

use tidegate_proto::controller::{ConnectionId, FromPeer, ToPeer};
use tidegate_proto::message::Hello;

use super::{Agenda, Event};
use crate::alarm::Alarm;
use crate::event::EventQueue;
use crate::link::{Conduct, Link};
use crate::rng::Stream;
use crate::time::Picoseconds;

/// Message between a peer and the controller.
#[derive(Clone, Debug)]
pub(super) struct PeerMessage {
    pub(super) peer: u16,
    pub(super) connection: ConnectionId,
    pub(super) content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    Hello(Hello),
    ToPeer(ToPeer),
    FromPeer(FromPeer),
    /// The peer has closed the connection, or its process is gone.
    PeerClosed,
    /// The controller has closed it, or its process is gone.
    ControllerClosed,
}

/// The host of one peer.
#[derive(Debug)]
pub(crate) struct Host<P> {
    /// The peer's process, while there is one.
    pub(crate) process: Option<P>,
    /// Which of the host's processes this is; what belongs to earlier ones is void.
    pub(crate) incarnation: u32,
    pub(super) alarm: Alarm,
    /// Until when the process stands still.
    pub(super) stopped_until: Picoseconds,
    pub(super) to_peer: Link,
    pub(super) from_peer: Link,
    /// The connection that the peer has open.
    pub(super) at_peer: Option<ConnectionId>,
    /// When the peer last received a message of the controller.
    pub(super) last_received: Picoseconds,
    /// The connection that the controller has open.
    pub(super) at_controller: Option<ConnectionId>,
}

impl<P> Host<P> {
    /// A host without a process, with a link that behaves like this.
    pub(super) fn new(seed: u64, conduct: &Conduct, peer: u64) -> Self {
        let link = |name| Link::new(conduct.clone(), Stream::new(seed, name, peer));
        Self {
            process: None,
            incarnation: 0,
            alarm: Alarm::OFF,
            stopped_until: Picoseconds::ZERO,
            to_peer: link("link to node"),
            from_peer: link("link from node"),
            at_peer: None,
            last_received: Picoseconds::ZERO,
            at_controller: None,
        }
    }
}

impl<E: Clone> Agenda<E> {
    /// Puts the copies of a message on their way, as many as the link lets through.
    pub(super) fn post(&mut self, link: &mut Link, now: Picoseconds, message: PeerMessage) {
        for at in link.send(now) {
            self.0.push(at, Event::Message(Box::new(message.clone())));
        }
    }

    /// Announces the beginning or the end of a connection.
    pub(super) fn announce(&mut self, link: &Link, now: Picoseconds, message: PeerMessage) {
        if !link.conduct().is_cut(now) {
            self.0.push(now.after(link.conduct().most), Event::Message(Box::new(message)));
        }
    }
}
