//! The session between a controller and one of its peers: hello, acceptance or refusal, and the
//! next attempt after its end.
//!
//! Storage nodes, gateways and data nodes use [`PeerSession`]. A peer connects and sends its
//! [`Hello`](crate::message::Hello). The controller's first answer accepts the peer or is a
//! refusal. After the end of a connection the peer connects again, at growing intervals, and holds
//! its last policy meanwhile. A stage differs: its controller also limits how long it may hear
//! nothing ([`crate::stage`]).

use tidegate_model::{Span, Time};

use crate::cluster::message::ToNode;
use crate::data_node::ToDataNode;
use crate::message::ToGateway;
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
/// let mut session = PeerSession::new();
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
    /// A session with a controller that the peer has not yet tried to reach.
    pub const fn new() -> Self {
        Self { standing: Standing::Seeking, retry: Retry::new(RETRY_MIN, RETRY_MAX) }
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
        Self::new()
    }
}
