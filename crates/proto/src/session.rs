//! The session between a controller and each of its peers: hello, version, acceptance or refusal,
//! and the next attempt after the end.
//!
//! A peer connects and sends its [`Hello`]. The controller's first answer accepts the peer or is a
//! refusal. After the end of a connection the peer connects again, at growing intervals, and holds
//! its last policy meanwhile. [`PeerSession`] is the peer's side of the session, for every kind of
//! peer; a stage also bounds the silence of its controller ([`crate::stage`]).
//!
//! Two processes that use one name by mistake end each other's connections. The controller refuses
//! the earlier one, which tries again after [`REFUSED_WAIT`]. If the refusal is lost, the intervals
//! still grow: only a connection that lasted for [`STEADY`] longest intervals makes the next
//! failure a first one. `Takeovers` reports them to operators.
//!
//! On the controller's side `Sessions` is the only table of connections and peers, and
//! `same_version` the only comparison of versions; operators, who have no session, are answered by
//! the live controller. The parts of the [`Controller`](crate::controller::Controller) know peers
//! by `PeerId` and hand their messages to an `Outbox`.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use serde::Serialize;
use tidegate_model::policy::{Principal, Tenant};
use tidegate_model::{DataNodeId, Event, GatewayId, NodeId, Span, StageId, Time};

use crate::data_node::{FromDataNode, ToDataNode};
use crate::message::cluster::{FromNode, NodeInfo, ToNode};
use crate::message::{FromGateway, FromStage, Hello, ProcessId, ToGateway, ToStage, VERSION};
use crate::outstanding::Outstanding;
use crate::retry::Retry;
use crate::status::cluster::{ClusterStatus, TakeoverStatus};
use version::VersionMismatch;

pub mod version;

/// The first and the longest wait between two attempts to connect. The first is short, because a
/// controller that restarts is back within a second.
const RETRY_MIN: Span = Span(50 * Span::MILLISECOND.0);
const RETRY_MAX: Span = Span(2 * Span::SECOND.0);

/// The wait after a controller reported that another attempt cannot help: it may be replaced.
const REFUSED_WAIT: Span = Span(60 * Span::SECOND.0);

/// How long a connection has to last until the next failure counts as a first one, in longest
/// waits. More than one: else two processes that replace each other's connections would reset each
/// other's waits for ever. Five, as a controller that restarts again and again is no controller to
/// hurry to.
const STEADY: u64 = 5;

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

impl FromController for ToStage {
    fn refusal(&self) -> Option<(&str, bool)> {
        match self {
            Self::Refused { reason, retry, .. } => Some((reason, *retry)),
            Self::Welcome { version, .. } if *version != VERSION => {
                Some(("its version differs", false))
            }
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
    /// How long a connection has to last until the next failure counts as a first one.
    steady: Span,
    /// When the connection was accepted; of no meaning without one.
    joined_at: Time,
}

impl PeerSession {
    /// A session whose attempts are `first` apart after the first failure, then twice as far each
    /// time, up to `longest`.
    pub(crate) const fn retrying(first: Span, longest: Span) -> Self {
        let (retry, steady) = (Retry::new(first, longest), Span(STEADY * longest.0));
        Self { standing: Standing::Seeking, retry, steady, joined_at: Time::ZERO }
    }

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
                (self.standing, self.joined_at) = (Standing::Joined, now);
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
        if self.standing == Standing::Joined && now.since(self.joined_at) >= self.steady {
            self.retry.succeed();
        }
        self.standing = Standing::Seeking;
        self.retry.later(now);
    }

    /// An attempt failed because nobody listens. The next one follows within `pause`.
    pub(crate) fn on_absent(&mut self, now: Time, pause: Span) {
        self.on_closed(now);
        self.retry.by(now.after(pause));
    }
}

impl Default for PeerSession {
    fn default() -> Self {
        Self::retrying(RETRY_MIN, RETRY_MAX)
    }
}

/// Why a connection ended whose peer said hello on another one: the process there is gone, or the
/// connection broke without a notice.
pub(crate) const REPLACED: &str = "a new connection has taken its place";

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
    /// The same process of this machine, beyond doubt; none if that cannot be told.
    pub process: Option<ProcessId>,
    /// The user's name, or empty where the number has none.
    pub user: String,
    /// The address of its end, for people; empty on this machine.
    pub address: String,
    /// The names in its certificate; none for a process of this machine, which the kernel names.
    pub certificate: Option<Vec<String>>,
    /// Whether the caller finds out when no program of this stage is left
    /// ([`crate::controller::Controller::on_unused`]): until then the end of the connection does
    /// not prove that there is none.
    pub is_watched: bool,
}

impl Peer {
    /// The user's name, or its number where it has none.
    pub fn user_or_number(&self) -> String {
        if self.user.is_empty() { format!("{}", self.uid) } else { self.user.clone() }
    }

    /// The peer's user, for people, with the kind of its identity.
    pub(crate) fn account(&self) -> String {
        match &self.certificate {
            Some(names) => format!("certificate {:?}", names.join(", ")),
            None => format!("user {}", self.user_or_number()),
        }
    }

    /// Whether the connection may be cut without a notice, so that its end does not prove that the
    /// peer has ended.
    pub(crate) const fn is_remote(&self) -> bool {
        self.certificate.is_some()
    }

    /// Whether its programs may go on without the connection.
    pub(crate) const fn may_go_on(&self) -> bool {
        self.is_remote() || self.is_watched
    }

    /// The process that said this hello, for people: the same text for the same process, where its
    /// number is known.
    fn process(&self, hello: &Hello) -> String {
        match hello {
            _ if self.address.is_empty() => {
                format!("process {} on the controller's machine", self.pid)
            }
            // The port is another one on each connection.
            Hello::Node { info: NodeInfo { pid, host, .. }, .. } => {
                let ip = self.address.rsplit_once(':').map_or(&*self.address, |(ip, _)| ip);
                format!("process {pid} on {} ({ip})", shortened(host))
            }
            _ => self.address.clone(),
        }
    }

    /// Whether the policy lets it act for a tenant.
    pub fn may_act_for(&self, tenant: &Tenant) -> bool {
        tenant.admits(match &self.certificate {
            Some(names) => Principal::Certificate(names),
            None => Principal::User { uid: self.uid, name: &self.user },
        })
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
    VersionMismatch::check((kind, *version), ("controller", VERSION))
        .map_err(|mismatch| Refusal { reason: mismatch.to_string(), retry: false })
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
    /// Of storage nodes, gateways and data nodes, which the cluster file names.
    takeovers: BTreeMap<PeerId, Takeovers>,
}

/// The time in which takeovers count as recent. Two processes of one name take over from each other
/// once in [`REFUSED_WAIT`].
const RECENTLY: Span = Span(5 * REFUSED_WAIT.0);

/// Takeovers from which on operators are warned. One is a restart whose earlier process had not
/// ended yet, or a connection that broke without a notice.
const WARNED: usize = 2;

/// Takeovers that are remembered of one peer: more than two processes make that keep their waits.
const TAKEOVERS_MAX: usize = 64;

/// The processes that used one peer's name.
#[derive(Debug, Default)]
struct Takeovers {
    /// The process that was accepted last, and the one from which it took over.
    process: String,
    earlier: String,
    /// When a process took over from another one that was connected, recently.
    times: VecDeque<Time>,
}

impl Takeovers {
    /// A process was accepted while the one before was connected or not. Returns whether it is
    /// another one that was connected.
    fn note(&mut self, now: Time, process: String, is_connected: bool) -> bool {
        let is_takeover = is_connected && self.process != process;
        let earlier = core::mem::replace(&mut self.process, process);
        if is_takeover {
            self.earlier = earlier;
            if self.times.len() == TAKEOVERS_MAX {
                self.times.pop_front();
            }
            self.times.push_back(now);
        }
        is_takeover
    }

    fn status(&self, now: Time) -> Option<TakeoverStatus> {
        let times = self.times.iter().filter(|at| now.since(**at) <= RECENTLY).count();
        (times >= WARNED).then(|| TakeoverStatus {
            times: times as u64,
            within_ns: RECENTLY.0,
            process: self.process.clone(),
            earlier: self.earlier.clone(),
        })
    }
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

    /// Notes which process said the hello of a peer, before [`Self::open`]. Returns the refusal of
    /// the process that is still connected under the peer's name, if that is another one.
    pub(crate) fn take_over(
        &mut self,
        now: Time,
        id: PeerId,
        peer: &Peer,
        hello: &Hello,
    ) -> Option<ToPeer> {
        let (kind, name) = match hello {
            Hello::Node { info, .. } => ("node", &info.name),
            Hello::Gateway { name, .. } => ("gateway", name),
            Hello::DataNode { name, .. } => ("data node", name),
            Hello::Stage { .. } | Hello::Operator { .. } => return None,
        };
        let (process, is_connected) = (peer.process(hello), self.connections.contains_key(&id));
        if !self.takeovers.entry(id).or_default().note(now, process.clone(), is_connected) {
            return None;
        }
        let reason = format!(
            "another process uses the name of this {kind}, {name:?}: {process}; end one of the \
             two, or give each a name of its own in the cluster file"
        );
        ToPeer::refusal(hello, Refusal { reason, retry: false })
    }

    /// Adds the peers whose names several processes use.
    pub(crate) fn fill_status(&self, now: Time, status: &mut ClusterStatus) {
        for (peer, takeovers) in &self.takeovers {
            let takeover = match *peer {
                PeerId::Node(NodeId(index)) => {
                    status.nodes.get_mut(usize::from(index)).map(|node| &mut node.takeover)
                }
                PeerId::Gateway(index) => {
                    status.gateways.get_mut(usize::from(index.0)).map(|it| &mut it.takeover)
                }
                PeerId::DataNode(index) => {
                    status.data_nodes.get_mut(usize::from(index.0)).map(|it| &mut it.takeover)
                }
                PeerId::Stage(_) => None,
            };
            if let Some(takeover) = takeover {
                *takeover = takeovers.status(now);
            }
        }
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
    Remember(Outstanding),
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

    pub(crate) fn remember(&mut self, outstanding: Outstanding) {
        self.0.push_back(Action::Remember(outstanding));
    }

    pub(crate) fn pop(&mut self) -> Option<Action> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests;
