//! Limits on the number of HTTP connections.
//!
//! The rules are those of a gateway's clients ([`tidegate_algo::allocation::connection_quota`]). A
//! connection is pending until the head of its first request is complete. There is a bound on
//! pending connections, and at the bound the oldest one of the origin with the most is evicted: a
//! flood of half requests closes its own. Then the connection is open: of the open ones, one origin
//! may have three quarters, and the last eighth is kept for operators. An origin is a user of this
//! machine, for HTTP is served on loopback and the kernel reports the user at the other end; or, if
//! it does not, an address.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_algo::allocation::connection_quota::{
    OpenConnections, PendingConnections, QuotaExceeded,
};
use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_fabric::stream::user_of_peer;
use tidegate_model::{Origin, Time};
use tokio::sync::oneshot;

use crate::identity::may_operate;

/// The origin of a peer's TCP connection to `local`.
pub(crate) fn origin(local: SocketAddr, peer: SocketAddr) -> Origin {
    match user_of_peer(local, peer) {
        Some(user) => Origin::User(user),
        None => Origin::of_address(peer.ip()),
    }
}

#[derive(Debug)]
pub(crate) struct HttpConnections(Mutex<ConnectionTable>);

#[derive(Debug)]
struct ConnectionTable {
    pending: PendingConnections,
    open: OpenConnections,
    /// By number, the senders whose drop evicts a pending connection.
    evictions: BTreeMap<u64, oneshot::Sender<()>>,
    next: u64,
    refusals: LogLimiter,
}

/// One of them. It is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    connections: Arc<HttpConnections>,
    number: u64,
    origin: Origin,
    is_open: bool,
}

/// Done when a pending connection is evicted.
pub(crate) type Eviction = oneshot::Receiver<()>;

impl HttpConnections {
    /// At most so many open and so many pending connections.
    pub(crate) fn new(open: usize, pending: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(ConnectionTable {
            pending: PendingConnections::new(pending),
            open: OpenConnections::new(open),
            evictions: BTreeMap::new(),
            next: 0,
            refusals: LogLimiter::default(),
        })))
    }

    /// Adds a connection. Perhaps another one is evicted.
    pub(crate) fn admit(self: &Arc<Self>, origin: Origin, now: Time) -> (HttpConnection, Eviction) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let (sender, eviction) = oneshot::channel();
        state.evictions.insert(number, sender);
        if let Some(evicted) = state.pending.insert(number, origin) {
            state.evictions.remove(&evicted);
            state.log(now, origin, "too many have not yet sent a request");
        }
        let connection =
            HttpConnection { connections: self.clone(), number, origin, is_open: false };
        (connection, eviction)
    }

    /// Every change of it is whole before anything else can fail.
    fn state(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    /// Logs that a connection is refused, if a line is due.
    fn log(&mut self, now: Time, peer: Origin, reason: impl std::fmt::Display) {
        if let Some(unlogged) = self.refusals.admit(now) {
            tracing::warn!(%peer, %reason, unlogged, "HTTP connection refused");
        }
    }
}

impl HttpConnection {
    /// The head of its first request has arrived: the connection stays if that is within the
    /// quotas.
    ///
    /// # Errors
    /// The exceeded quota.
    pub(crate) fn open(&mut self, now: Time) -> Result<(), QuotaExceeded> {
        if self.is_open {
            return Ok(());
        }
        let mut state = self.connections.state();
        state.evictions.remove(&self.number);
        state.pending.remove(self.number);
        let is_operator = matches!(self.origin, Origin::User(user) if may_operate(user));
        // There are no tenants here: every origin counts as one.
        let kept = state.open.insert(self.origin, &self.origin.to_string(), is_operator);
        match &kept {
            Ok(()) => self.is_open = true,
            Err(excess) => state.log(now, self.origin, excess),
        }
        kept
    }
}

impl Drop for HttpConnection {
    fn drop(&mut self) {
        let mut state = self.connections.state();
        if self.is_open {
            state.open.remove(self.origin, &self.origin.to_string());
        } else {
            state.evictions.remove(&self.number);
            state.pending.remove(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(eviction: &mut Eviction) -> bool {
        eviction.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn half_requests_evict_only_each_other() {
        let connections = HttpConnections::new(16, 4);
        let admit = |user| connections.admit(Origin::User(user), Time::ZERO);
        let mut other = admit(1);
        let mut flood = Vec::from_iter((0..5).map(|_| admit(2)));
        let evicted = flood.iter_mut().map(|(_, eviction)| is_evicted(eviction));
        assert_eq!(evicted.collect::<Vec<_>>(), [true, true, false, false, false]);
        assert!(!is_evicted(&mut other.1) && other.0.open(Time::ZERO).is_ok());
        drop((other, flood));
        let state = connections.state();
        assert!(state.open.is_empty() && state.pending.is_empty() && state.evictions.is_empty());
    }

    #[test]
    fn no_user_has_all_open_connections_and_operators_find_one() {
        let connections = HttpConnections::new(16, 4);
        let open = |user| {
            let (mut connection, _) = connections.admit(Origin::User(user), Time::ZERO);
            connection.open(Time::ZERO).map(|()| connection)
        };
        let (us, [one, other]) = (nix::unistd::geteuid().as_raw(), [70_001, 70_002]);
        let first = Vec::from_iter((0..12).map(|_| open(one).unwrap()));
        assert_eq!(open(one).unwrap_err(), QuotaExceeded::Origin(Origin::User(one), 12));
        let second = Vec::from_iter((0..2).map(|_| open(other).unwrap()));
        assert_eq!(open(other).unwrap_err(), QuotaExceeded::Reserve(14));
        let operators = Vec::from_iter((0..2).map(|_| open(us).unwrap()));
        assert_eq!(open(us).unwrap_err(), QuotaExceeded::All(16));
        drop((first, second, operators));
        assert!(connections.state().open.is_empty());
    }
}
