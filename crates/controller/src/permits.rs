//! Limits on the number of connections, for all and per user.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_model::Time;

/// Permits that are kept for operators: if all others are taken, operators must still be able to
/// connect.
const RESERVED: usize = 16;

/// Permits for connections. A permit is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermits {
    all: usize,
    per_user: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// By user; only users with permits.
    users: BTreeMap<PeerKind, usize>,
    refusals: LogLimiter,
}

/// The kind of peer that needs a permit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerKind {
    /// A user who may operate the controller.
    Operator,
    /// Another user.
    User(u32),
    /// The user of this name, who runs programs on other machines.
    Certificate(String),
    /// A member of the cluster, or a peer that has not said hello yet.
    Remote,
}

impl fmt::Display for PeerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => f.write_str("operator"),
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Certificate(name) => write!(f, "user {name}"),
            Self::Remote => f.write_str("member of the cluster"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    permits: Arc<ConnectionPermits>,
    peer: PeerKind,
}

impl ConnectionPermits {
    pub(crate) fn new(all: usize, per_user: usize) -> Arc<Self> {
        Arc::new(Self { all, per_user, taken: Mutex::default() })
    }

    /// A permit, or none if none is left for this peer. Refusals are logged seldom.
    pub(crate) fn take(self: &Arc<Self>, peer: PeerKind, now: Time) -> Option<ConnectionPermit> {
        let mut taken = self.taken();
        let reserved = match &peer {
            PeerKind::Operator => 0,
            _ => RESERVED.min(self.all / 2),
        };
        let of_user = match &peer {
            PeerKind::Operator | PeerKind::Remote => 0,
            PeerKind::User(_) | PeerKind::Certificate(_) => {
                taken.users.get(&peer).copied().unwrap_or(0)
            }
        };
        if taken.all + reserved >= self.all || of_user >= self.per_user {
            if let Some(unlogged) = taken.refusals.admit(now) {
                let (all, open) = (self.all, taken.all);
                tracing::warn!(%peer, open, all, unlogged, "too many connections: one is refused");
            }
            return None;
        }
        taken.all += 1;
        if matches!(peer, PeerKind::User(_) | PeerKind::Certificate(_)) {
            *taken.users.entry(peer.clone()).or_default() += 1;
        }
        Some(ConnectionPermit { permits: self.clone(), peer })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.permits.taken();
        taken.all -= 1;
        if let Some(count) = taken.users.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                taken.users.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_algo::shaping::log_limiter;

    use super::*;

    #[test]
    fn no_user_has_all_and_operators_find_a_permit() {
        let permits = ConnectionPermits::new(8, 3);
        let take = |peer| permits.take(peer, Time::ZERO);
        let mut first = Vec::from_iter((0..3).map(|_| take(PeerKind::User(1)).unwrap()));
        assert!(take(PeerKind::User(1)).is_none());
        let second = take(PeerKind::User(2)).unwrap();
        assert!(take(PeerKind::Certificate("3".into())).is_none(), "the rest is kept");
        let operators = Vec::from_iter((0..4).map(|_| take(PeerKind::Operator).unwrap()));
        assert!(take(PeerKind::Operator).is_none());
        drop((first.pop(), operators));
        assert!(take(PeerKind::User(1)).is_some());
        drop((first, second));
        let taken = permits.taken();
        assert_eq!((taken.all, taken.users.len()), (0, 0));
    }

    #[test]
    fn refusals_are_logged_rarely_and_counted() {
        let permits = ConnectionPermits::new(8, 0);
        for now in 0..100 {
            assert!(permits.take(PeerKind::User(1), Time(now)).is_none());
        }
        let later = Time::ZERO.after(log_limiter::INTERVAL);
        assert_eq!(permits.taken().refusals.admit(later), Some(95));
    }
}
