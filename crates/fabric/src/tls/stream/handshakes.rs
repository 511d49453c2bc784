//! The bound on connections that are in their TLS handshake.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tidegate_algo::allocation::connection_quota::PendingConnections;
use tidegate_model::Origin;

use super::TlsStream;

/// Bounds on the resources that peers may take up.
#[derive(Clone, Copy, Debug)]
pub(in crate::tls) struct Bounds {
    /// How long a handshake may take. A handshake is two exchanges of a few kilobytes; ten seconds
    /// are for a slow line and a busy machine.
    pub(in crate::tls) patience: Duration,
    /// Accepted connections that are in their handshake at a time. Each holds a descriptor and some
    /// kilobytes, and costs a signature. At the bound a new connection takes the place of the
    /// oldest one from the address or user that has the most.
    pub(in crate::tls) inbound: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), inbound: 256 }
    }
}

/// Accepted connections that are in their handshake, by number.
#[derive(Debug)]
pub(in crate::tls) struct Handshakes {
    pub(in crate::tls) bounds: Bounds,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    pending: PendingConnections,
    streams: HashMap<u64, Weak<TlsStream>>,
    next: u64,
}

impl Handshakes {
    pub(in crate::tls) fn new(bounds: Bounds) -> Self {
        let (pending, streams) = (PendingConnections::new(bounds.inbound), HashMap::new());
        Self { bounds, inner: Mutex::new(Inner { pending, streams, next: 0 }) }
    }

    /// Counts an accepted connection until its [`Pending`] is dropped. Ends another connection if
    /// there are too many.
    pub(in crate::tls) fn insert(self: &Arc<Self>, stream: &Arc<TlsStream>, origin: Origin) {
        let mut inner = self.inner();
        let number = inner.next;
        inner.next += 1;
        inner.streams.insert(number, Arc::downgrade(stream));
        let evicted = inner.pending.insert(number, origin);
        let evicted = evicted.and_then(|number| inner.streams.remove(&number)?.upgrade());
        // Both locks are taken in the other order when a connection leaves.
        drop(inner);
        stream.set_pending(Pending { handshakes: self.clone(), number });
        if let Some(evicted) = evicted {
            evicted.evict();
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every change of it is whole before anything else can fail.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entry of a connection that is in its handshake.
#[derive(Debug)]
pub(in crate::tls) struct Pending {
    handshakes: Arc<Handshakes>,
    number: u64,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut inner = self.handshakes.inner();
        inner.pending.remove(self.number);
        inner.streams.remove(&self.number);
    }
}
