//! Readiness of TLS streams in a reactor, as far as `epoll` does not know it.
//!
//! A TLS stream may hold decrypted bytes, or the reason of its end, while its socket is quiet; it
//! is *listed* then, and each wait reports it until it is read. And a handshake has a deadline.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::TlsStream;
use crate::clock;
use crate::readiness::Ready;

/// Deadlines from which on those of closed connections are looked for and dropped.
const DEADLINES_MAX: usize = 1024;

/// The `epoll` set of a reactor, and the events of TLS streams that it does not see. One thread
/// waits and uses the streams.
#[derive(Debug)]
pub(crate) struct Events {
    epoll: OwnedFd,
    /// A TLS stream was added. Until then a wait costs only one load of this flag.
    has_tls: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    listed: Vec<Weak<TlsStream>>,
    /// Deadlines of handshakes, the first one first: all of a process have the same time.
    deadlines: VecDeque<(Instant, Weak<TlsStream>)>,
}

impl Events {
    pub(crate) fn new(epoll: OwnedFd) -> Self {
        Self { epoll, has_tls: AtomicBool::new(false), inner: Mutex::default() }
    }

    /// Registers the deadline of a stream's handshake.
    pub(super) fn expect(&self, deadline: Instant, stream: Weak<TlsStream>) {
        let mut inner = self.inner();
        if inner.deadlines.len() >= DEADLINES_MAX {
            inner.deadlines.retain(|(_, stream)| stream.strong_count() > 0);
        }
        inner.deadlines.push_back((deadline, stream));
    }

    /// Reports a stream as readable from the next wait on, as long as it is.
    pub(super) fn list(&self, stream: Weak<TlsStream>) {
        self.inner().listed.push(stream);
    }

    pub(super) fn set_used(&self) {
        self.has_tls.store(true, Ordering::Relaxed);
    }

    /// How long a wait may take that was to take `patience` at most.
    pub(crate) fn patience(&self, patience: Option<Duration>) -> Option<Duration> {
        if !self.has_tls.load(Ordering::Relaxed) {
            return patience;
        }
        let inner = self.inner();
        if !inner.listed.is_empty() {
            return Some(Duration::ZERO);
        }
        let deadline = inner.deadlines.front().map(|(at, _)| clock::until(*at));
        patience.into_iter().chain(deadline).min()
    }

    /// Ends handshakes that have taken too long, and appends the streams that can be read.
    pub(crate) fn report(&self, ready: &mut Vec<Ready>) {
        if !self.has_tls.load(Ordering::Relaxed) {
            return;
        }
        loop {
            // Not under the lock: the stream takes it.
            let is_due = |(at, _): &mut (Instant, _)| clock::until(*at).is_zero();
            let due = self.inner().deadlines.pop_front_if(is_due);
            let Some((_, stream)) = due else { break };
            if let Some(stream) = stream.upgrade() {
                stream.expire();
            }
        }
        let mut listed = std::mem::take(&mut self.inner().listed);
        listed.retain(|stream| {
            let Some(token) = stream.upgrade().and_then(|stream| stream.readable_as()) else {
                return false;
            };
            match ready.iter_mut().find(|ready| ready.token == token) {
                Some(ready) => ready.read = true,
                None => ready.push(Ready { token, read: true, write: false, gone: false }),
            }
            true
        });
        self.inner().listed.append(&mut listed);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Every change of it is whole before anything else can fail.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
