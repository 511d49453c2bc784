//! A session's own connection to memcached, which the session's worker reads.
//!
//! The relay's thread connects it and closes it when it is silent, so that a worker waits for
//! nothing. Everything else happens on the worker, or on threads that pass on its requests.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use tidegate_fabric::reactor::{Interest, Ready, Registrar};
use tidegate_fabric::stream::{Address, Stream};

use super::SILENCE;
use super::link::{MemcachedLink, Reader, ReplyBuffer};
use crate::engine::Work;
use crate::mutex::lock;

/// A session's own connection, while there is one.
pub(crate) struct WorkerLine {
    registrar: Registrar,
    token: u64,
    link: Mutex<Option<Arc<MemcachedLink>>>,
    input: Mutex<ReplyBuffer>,
    /// Requests came while there was no connection.
    is_wanted: AtomicBool,
    /// The session is closed: there will be no connection.
    is_closed: AtomicBool,
    /// memcached has answered the probe with which the connection begins.
    is_up: AtomicBool,
    /// The last try gave no connection yet: the next one waits for an inspection.
    is_delayed: AtomicBool,
    /// Inspections in a row that found requests and no reply since the last one.
    silences: AtomicU32,
}

impl WorkerLine {
    /// Not connected, until there are requests.
    pub(super) fn new(registrar: Registrar, token: u64) -> Self {
        Self {
            registrar,
            token,
            link: Mutex::default(),
            input: Mutex::default(),
            is_wanted: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_up: AtomicBool::new(false),
            is_delayed: AtomicBool::new(false),
            silences: AtomicU32::new(0),
        }
    }

    /// The connection, once memcached has answered there.
    pub(super) fn link(&self) -> Option<Arc<MemcachedLink>> {
        if self.is_up.load(Ordering::Acquire) { self.any_link() } else { None }
    }

    fn any_link(&self) -> Option<Arc<MemcachedLink>> {
        lock(&self.link).clone()
    }

    /// Requests a connection. Returns whether that is new.
    pub(super) fn wants_connection(&self) -> bool {
        !self.is_wanted.load(Ordering::Relaxed) && !self.is_wanted.swap(true, Ordering::Relaxed)
    }

    /// Connects, if a connection is wanted; after a failure only if `is_due`. A memcached that has
    /// as many connections as it may have refuses this one with an error or lets it wait, so no
    /// request goes there before the probe is answered.
    pub(super) fn connect(&self, address: &Address, is_due: bool) {
        if !self.is_wanted.load(Ordering::Relaxed)
            || (self.is_delayed.load(Ordering::Relaxed) && !is_due)
            || lock(&self.link).is_some()
        {
            return;
        }
        self.is_delayed.store(true, Ordering::Relaxed);
        // An error is not reported: if memcached is away, the relay's own connection is.
        let Ok(stream) = Stream::connect(address) else { return };
        let reader = Reader::Worker(self.registrar.clone(), self.token);
        let link = Arc::new(MemcachedLink::new(stream, reader));
        *lock(&self.input) = ReplyBuffer::default();
        self.silences.store(0, Ordering::Relaxed);
        let mut slot = lock(&self.link);
        if self.is_closed.load(Ordering::Relaxed)
            || self.registrar.add(&link.stream, self.token, Interest::READ).is_err()
        {
            return;
        }
        *slot = Some(link.clone());
        drop(slot);
        let mut exchange = lock(&link.exchange);
        exchange.probe();
        if !matches!(exchange.output.flush(&link.stream), Ok(true)) {
            link.wake_reader();
        }
    }

    /// Reads and writes what is ready; finished work is appended to `finished`.
    pub(super) fn on_ready(&self, ready: Ready, finished: &mut Vec<Work>) {
        let Some(link) = self.any_link() else { return };
        if self.exchange(&link, ready, finished).is_err() {
            self.close(finished);
        }
    }

    fn exchange(
        &self,
        link: &MemcachedLink,
        ready: Ready,
        finished: &mut Vec<Work>,
    ) -> io::Result<()> {
        if ready.write {
            let mut exchange = lock(&link.exchange);
            if exchange.output.flush(&link.stream)? {
                self.registrar.change(&link.stream, self.token, Interest::READ)?;
            }
        }
        if ready.read || ready.gone {
            self.silences.store(0, Ordering::Relaxed);
            let used = link.receive(&mut lock(&self.input), finished)?;
            if used > 0 && !self.is_up.load(Ordering::Relaxed) {
                self.is_delayed.store(false, Ordering::Relaxed);
                self.is_up.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Closes the connection; work without a reply fails, and is appended to `failed`.
    pub(super) fn close(&self, failed: &mut Vec<Work>) {
        let was_up = self.is_up.swap(false, Ordering::Relaxed);
        let Some(link) = lock(&self.link).take() else { return };
        let _ = self.registrar.remove(&link.stream);
        link.give_up(failed);
        // The next request wants another; one that memcached never answered is tried again later.
        if was_up {
            self.is_wanted.store(false, Ordering::Relaxed);
        }
    }

    /// Closes the connection for good.
    pub(super) fn end(&self, failed: &mut Vec<Work>) {
        let slot = lock(&self.link);
        self.is_closed.store(true, Ordering::Relaxed);
        drop(slot);
        self.close(failed);
    }

    /// Shuts the connection down: its worker is to close it.
    pub(super) fn shut_down(&self) {
        if let Some(link) = self.any_link() {
            let _ = shutdown(&link.stream, Shutdown::Both);
        }
    }

    /// Called every [`SILENCE`]: shuts the connection down at the third call in a row that finds
    /// requests and no reply since the one before.
    pub(super) fn inspect(&self) {
        let is_open = self.any_link().is_some_and(|link| lock(&link.exchange).has_requests());
        if is_open && self.silences.fetch_add(1, Ordering::Relaxed) >= 2 {
            self.shut_down();
        }
    }

    /// Reads, in the worker's place, the replies that are still to come, and closes the
    /// connection.
    pub(super) fn drain(&self, finished: &mut Vec<Work>) {
        let Some(link) = self.any_link() else { return };
        let _ = self.registrar.remove(&link.stream);
        let timeout = Timespec::try_from(SILENCE).ok();
        loop {
            let mut exchange = lock(&link.exchange);
            let Ok(is_written) = exchange.output.flush(&link.stream) else { break };
            if !exchange.has_work() {
                break;
            }
            drop(exchange);
            let events = if is_written { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            let mut socket = [PollFd::new(&link.stream, events)];
            if !poll(&mut socket, timeout.as_ref()).is_ok_and(|count| count > 0) {
                break;
            }
            let is_readable = socket[0].revents().intersects(!PollFlags::OUT);
            if is_readable && link.receive(&mut lock(&self.input), finished).is_err() {
                break;
            }
        }
        self.end(finished);
    }
}
