//! The session between a controller and each of its peers: hello, version, acceptance or refusal,
//! and the next attempt after the end.
//!
//! A peer connects and sends its [`Hello`]. The controller's first answer accepts the peer or is a
//! refusal. After the end of a connection the peer connects again, at growing intervals, and holds
//! its last policy meanwhile. [`PeerSession`] is that side, for storage nodes, gateways and data
//! nodes; a stage also bounds the silence of its controller ([`crate::stage`]).
//!
//! On the controller's side `Sessions` is the only table of connections and peers, and
//! `same_version` the only comparison of versions; operators, who have no session, are answered by
//! the live controller. The parts of the [`Controller`](crate::controller::Controller) know peers
//! by `PeerId` and hand their messages to an `Outbox`.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::String;

use serde::Serialize;
use tidegate_model::policy::{Principal, Tenant};
use tidegate_model::{DataNodeId, Event, GatewayId, NodeId, Span, StageId, Time};

use crate::cluster::message::{FromNode, ToNode};
use crate::data_node::{FromDataNode, ToDataNode};
use crate::message::{FromGateway, FromStage, Hello, ToGateway, ToStage, VERSION};
use crate::retry::Retry;

/// The first and the longest wait between two attempts to connect. The first is short, because a
/// controller that restarts is back within a second.
const RETRY_MIN: Span = Span(50 * Span::MILLISECOND.0);
const RETRY_MAX: Span = Span(2 * Span::SECOND.0);

/// The wait after a controller reported that another attempt cannot help: it may be replaced.
const REFUSED_WAIT: Span = Span(60 * Span::SECOND.0);

/// Whether a peer is connected with its controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Standing {
    /// It has none.
    Alone = 0,
    /// It tries to connect.
    Seeking = 1,
    /// It sent its hello and has no answer yet.
    Greeting = 2,
    /// It is accepted.
    Joined = 3,
    /// It was refused, and tries again later.
    Refused = 4,
}

/// A message of a controller to one kind of peer.
pub trait FromController {
    /// The reason of a refusal, and whether another attempt can help; none for messages that only
    /// an accepted peer is sent.
    fn refusal(&self) -> Option<(&str, bool)>;
}

impl FromController for ToNode {
    fn refusal(&self) -> Option<(&str, bool)> {
        match self {
            Self::Refused { reason, retry, .. } => Some((reason, *retry)),
            _ => None,
        }
    }
}

impl FromController for ToGateway {
    fn refusal(&self) -> Option<(&str, bool)> {
        match self {
            Self::Refused { reason, .. } => Some((reason, false)),
            _ => None,
        }
    }
}

impl FromController for ToDataNode {
    fn refusal(&self) -> Option<(&str, bool)> {
        match self {
            Self::Refused { reason, .. } => Some((reason, false)),
            _ => None,
        }
    }
}

/// A peer's side of the session with its controller. The first attempt is due at once.
///
/// ```
/// use tidegate_model::{Span, Time};
/// use tidegate_proto::message::{ToGateway, VERSION};
/// use tidegate_proto::session::{PeerSession, Standing};
///
/// let mut session = PeerSession::default();
/// assert_eq!((session.standing(), session.next_attempt()), (Standing::Seeking, Time::ZERO));
/// session.on_connected();
/// assert_eq!((session.standing(), session.next_attempt()), (Standing::Greeting, Time::MAX));
/// session.on_message(Time::ZERO, &ToGateway::Count);
/// assert_eq!(session.standing(), Standing::Joined);
/// session.on_closed(Time::ZERO);
/// assert_eq!(session.next_attempt(), Time(50 * Span::MILLISECOND.0));
/// session.on_connected();
/// let refused = ToGateway::Refused { version: VERSION, reason: "unknown".into() };
/// session.on_message(Time::ZERO, &refused);
/// assert_eq!(session.standing(), Standing::Refused);
/// assert_eq!(session.next_attempt(), Time(60 * Span::SECOND.0));
/// ```
#[derive(Debug)]
pub struct PeerSession {
    standing: Standing,
    retry: Retry,
}

impl PeerSession {
    /// Whether the peer is connected.
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// When to connect; [`Time::MAX`] while there is a connection.
    pub const fn next_attempt(&self) -> Time {
        match self.standing {
            Standing::Greeting | Standing::Joined => Time::MAX,
            _ => self.retry.at(),
        }
    }

    /// There is a connection, and the hello is on its way.
    pub const fn on_connected(&mut self) {
        self.standing = Standing::Greeting;
    }

    /// The controller has sent a message. After a refusal there is no connection any more.
    pub fn on_message(&mut self, now: Time, message: &impl FromController) {
        match message.refusal() {
            None if self.standing != Standing::Joined => {
                self.retry.succeed();
                self.standing = Standing::Joined;
            }
            None => {}
            Some((_, may_help)) => {
                if !may_help {
                    self.retry.hold(REFUSED_WAIT);
                }
                self.retry.later(now);
                self.standing = Standing::Refused;
            }
        }
    }

    /// An attempt failed, or the connection ended.
    pub fn on_closed(&mut self, now: Time) {
        self.standing = Standing::Seeking;
        self.retry.later(now);
    }
}

impl Default for PeerSession {
    fn default() -> Self {
        Self { standing: Standing::Seeking, retry: Retry::new(RETRY_MIN, RETRY_MAX) }
    }
}

/// Why a connection ended whose peer said hello on another one: the process there is gone, or the
/// connection broke without a notice.
pub(crate) const REPLACED: &str = "it has connected anew";

/// A connection, as numbered by the caller. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The process at the other end of a connection and its user, as verified by the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The number of the user.
    pub uid: u32,
    /// The process.
    pub pid: u32,
    /// The user's name, or empty where the number has none.
    pub user: String,
}

impl Peer {
    /// The user's name, or its number where it has none.
    pub fn user_or_number(&self) -> String {
        if self.user.is_empty() { format!("{}", self.uid) } else { self.user.clone() }
    }

    /// Whether the policy lets it act for a tenant.
    pub fn may_act_for(&self, tenant: &Tenant) -> bool {
        tenant.admits(Principal::User { uid: self.uid, name: &self.user })
    }
}

/// A message to one of the controller's peers. On the wire it is the message alone: a peer knows
/// its own kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ToPeer {
    /// To a stage.
    Stage(ToStage),
    /// To a storage node.
    Node(ToNode),
    /// To a gateway.
    Gateway(ToGateway),
    /// To a data node.
    DataNode(ToDataNode),
}

impl ToPeer {
    /// The refusal of this hello, in its protocol; none for an operator's.
    pub fn refusal(hello: &Hello, Refusal { reason, retry }: Refusal) -> Option<Self> {
        let version = VERSION;
        Some(match hello {
            Hello::Stage { .. } => Self::Stage(ToStage::Refused { version, reason, retry }),
            Hello::Node { .. } => Self::Node(ToNode::Refused { version, reason, retry }),
            Hello::Gateway { .. } => Self::Gateway(ToGateway::Refused { version, reason }),
            Hello::DataNode { .. } => Self::DataNode(ToDataNode::Refused { version, reason }),
            Hello::Operator { .. } => return None,
        })
    }
}

/// A message of one of the controller's peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromPeer {
    /// From a stage.
    Stage(FromStage),
    /// From a storage node.
    Node(FromNode),
    /// From a gateway.
    Gateway(FromGateway),
    /// From a data node.
    DataNode(FromDataNode),
}

/// Why a peer is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// In words for people.
    pub reason: String,
    /// Whether another attempt later can help.
    pub retry: bool,
}

impl Refusal {
    /// A refusal for as long as the cluster file stays the same.
    pub(crate) fn unknown(kind: &str, name: &str) -> Self {
        let name = shortened(name);
        let reason =
            format!("the cluster has no {kind} named {name:?}; add it to the cluster file");
        Self { reason, retry: false }
    }
}

/// A name that comes from elsewhere, shortened before it is repeated.
pub(crate) fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}

/// Checks that a peer speaks this controller's version.
pub(crate) fn same_version(hello: &Hello) -> Result<(), Refusal> {
    let (kind, version) = match hello {
        Hello::Stage { version, .. } => ("stage", version),
        Hello::Operator { version } => ("operator", version),
        Hello::Node { version, .. } => ("node", version),
        Hello::Gateway { version, .. } => ("gateway", version),
        Hello::DataNode { version, .. } => ("data node", version),
    };
    if *version == VERSION {
        return Ok(());
    }
    let reason = format!(
        "the {kind} speaks version {version} of the protocol and the controller version \
         {VERSION}; run the same release on both"
    );
    Err(Refusal { reason, retry: false })
}

/// A peer that the controller has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerId {
    Stage(StageId),
    Node(NodeId),
    Gateway(GatewayId),
    DataNode(DataNodeId),
}

/// The accepted peers and their connections, at most one each.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    peers: BTreeMap<ConnectionId, PeerId>,
    connections: BTreeMap<PeerId, ConnectionId>,
}

impl Sessions {
    pub(crate) fn peer(&self, connection: ConnectionId) -> Option<PeerId> {
        self.peers.get(&connection).copied()
    }

    pub(crate) fn connection(&self, peer: PeerId) -> Option<ConnectionId> {
        self.connections.get(&peer).copied()
    }

    /// The gateways that are connected.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = ConnectionId> + '_ {
        let all = self
            .connections
            .range(PeerId::Gateway(GatewayId(0))..=PeerId::Gateway(GatewayId(u16::MAX)));
        all.map(|(_, connection)| *connection)
    }

    /// Gives a peer this connection. Returns its earlier one, which ends as [`REPLACED`].
    pub(crate) fn open(&mut self, connection: ConnectionId, peer: PeerId) -> Option<ConnectionId> {
        let earlier = self.close(peer);
        self.peers.insert(connection, peer);
        self.connections.insert(peer, connection);
        earlier
    }

    pub(crate) fn close(&mut self, peer: PeerId) -> Option<ConnectionId> {
        let connection = self.connections.remove(&peer)?;
        self.peers.remove(&connection);
        Some(connection)
    }
}

/// An action that a part of the controller requests, for peers that it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Send { to: PeerId, message: ToPeer },
    Close(PeerId),
    Publish(Event),
}

/// The actions that a part wants done, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Outbox(VecDeque<Action>);

impl Outbox {
    pub(crate) fn send(&mut self, to: PeerId, message: ToPeer) {
        self.0.push_back(Action::Send { to, message });
    }

    pub(crate) fn close(&mut self, peer: PeerId) {
        self.0.push_back(Action::Close(peer));
    }

    pub(crate) fn publish(&mut self, event: Event) {
        self.0.push_back(Action::Publish(event));
    }

    pub(crate) fn pop(&mut self) -> Option<Action> {
        self.0.pop_front()
    }
}
