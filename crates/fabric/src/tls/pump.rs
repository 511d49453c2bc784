//! The thread that moves the bytes of all TLS connections of a process.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_algo::allocation::connection_quota::PendingConnections;
use tidegate_model::Origin;

use super::connection::{Over, Scratch, TlsConnection};
use super::words;
use crate::clock;
use crate::reactor::{Interest, MessageQueue, Reactor, Ready};

/// Bounds on the resources that peers may take up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How long a handshake may take, and how long a peer may take for what was said last. A
    /// handshake is two exchanges of a few kilobytes; ten seconds are for a slow line and a busy
    /// machine.
    pub(super) patience: Duration,
    /// Connections from outside that are in their handshake at a time. Each holds three descriptors
    /// and some kilobytes, and costs a signature: what strangers may take up. At the bound a new
    /// one takes the place of the oldest one from the address or user that has the most.
    pub(super) inbound: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), inbound: 256 }
    }
}

/// The thread that moves the bytes of all TLS connections of a process; one is enough. Once its
/// last handle is dropped it sends what is still to be sent, as far as the kernel takes it, and
/// ends.
#[derive(Clone, Debug)]
pub struct Pump(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    message_queue: Arc<MessageQueue<Message>>,
    handshakes: Arc<Mutex<Handshakes>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Connections from outside that are in their handshake, and the numbers of all connections.
#[derive(Debug)]
pub(super) struct Handshakes {
    pending: PendingConnections,
    /// Those of them that the engine has, or will have; it ends the evicted ones a moment later.
    open: usize,
    most: usize,
    next: u64,
}

impl Handshakes {
    fn new(bounds: Bounds) -> Self {
        let most = bounds.inbound.saturating_mul(2);
        Self { pending: PendingConnections::new(bounds.inbound), open: 0, most, next: 0 }
    }

    /// The number of the next connection.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The number of a connection from outside, and that of the one to be ended for it; none if the
    /// engine is so far behind that there are twice as many as there may be.
    fn insert(&mut self, origin: Origin) -> Option<(u64, Option<u64>)> {
        if self.open >= self.most {
            return None;
        }
        self.open += 1;
        let number = self.number();
        Some((number, self.pending.insert(number, origin)))
    }

    /// A connection from outside is through its handshake, or over.
    fn remove(&mut self, number: u64) {
        self.open = self.open.saturating_sub(1);
        self.pending.remove(number);
    }
}

fn locked(handshakes: &Mutex<Handshakes>) -> MutexGuard<'_, Handshakes> {
    // Every change of it is whole before anything else can fail.
    handshakes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(super) enum Message {
    /// A connection of this number.
    Enter(u64, Box<TlsConnection>),
    /// Others need the place of this one, unless it is through its handshake.
    Evict(u64),
    End,
}

impl Pump {
    /// Starts it.
    ///
    /// # Errors
    /// If there is no descriptor or thread left.
    pub fn start() -> io::Result<Self> {
        Self::within(Bounds::default())
    }

    pub(super) fn within(bounds: Bounds) -> io::Result<Self> {
        let engine = Engine::new(bounds)?;
        let (message_queue, handshakes) =
            (engine.reactor.message_queue(), engine.handshakes.clone());
        let thread = thread::Builder::new().name("tls".into()).spawn(move || engine.run())?;
        let thread = Mutex::new(Some(thread));
        Ok(Self(Arc::new(Handle { message_queue, handshakes, thread })))
    }

    /// Drives a connection from now on, to its end; `origin` is where it comes from, if it comes
    /// from outside.
    ///
    /// # Errors
    /// Kind `PermissionDenied` if it is one from outside, and there are too many.
    pub(super) fn enter(
        &self,
        connection: TlsConnection,
        origin: Option<Origin>,
    ) -> io::Result<()> {
        let mut handshakes = locked(&self.0.handshakes);
        let entered = match origin {
            Some(origin) => handshakes.insert(origin),
            None => Some((handshakes.number(), None)),
        };
        let most = handshakes.most;
        drop(handshakes);
        let Some((number, evicted)) = entered else {
            let reason = format!("{most} others are in their TLS handshake");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        };
        if let Some(evicted) = evicted {
            self.0.message_queue.push(Message::Evict(evicted));
        }
        self.0.message_queue.push(Message::Enter(number, Box::new(connection)));
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.message_queue.push(Message::End);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// The state of the thread that moves bytes.
pub(super) struct Engine {
    bounds: Bounds,
    reactor: Reactor<Message>,
    handshakes: Arc<Mutex<Handshakes>>,
    /// By number. The tokens of its two sides are twice that, and one more inside.
    connections: BTreeMap<u64, Entry>,
    /// When to look at the deadline of a connection, by number, the first one first: all are given
    /// the same time.
    deadlines: VecDeque<(Instant, u64)>,
    scratch: Scratch,
    is_ending: bool,
}

/// A connection, and what the reactor waits for outside and inside.
struct Entry {
    connection: Box<TlsConnection>,
    watched: [Option<Interest>; 2],
    /// It is counted as one in its handshake.
    is_counted: bool,
    /// When it is over, unless what it is given time for has come to its end.
    deadline: Option<Instant>,
    /// The owner of the inner side has left, and the deadline is about that.
    is_leaving: bool,
}

impl Engine {
    pub(super) fn new(bounds: Bounds) -> io::Result<Self> {
        Ok(Self {
            bounds,
            reactor: Reactor::new()?,
            handshakes: Arc::new(Mutex::new(Handshakes::new(bounds))),
            connections: BTreeMap::new(),
            deadlines: VecDeque::new(),
            scratch: Scratch::new(),
            is_ending: false,
        })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    fn run(mut self) {
        let (mut ready, mut messages) = (Vec::new(), Vec::new());
        while !self.is_ending {
            let patience = self.deadlines.front().map(|(at, _)| clock::until(*at));
            if self.round(patience, &mut ready, &mut messages).is_err() {
                // The descriptors are ours and the arguments too; there is nothing to wait for.
                return;
            }
        }
        // The owners of inner sides have left: their last data is sent as far as that needs no
        // waiting.
        let left = Ready { token: 0, read: true, write: true, gone: true };
        for entry in self.connections.values_mut() {
            let _ = entry.connection.advance(None, Some(left), &mut self.scratch);
        }
    }

    /// Waits once, and does what is to be done. Says how many descriptors were ready. The vectors
    /// are empty before and after.
    pub(super) fn round(
        &mut self,
        patience: Option<Duration>,
        ready: &mut Vec<Ready>,
        messages: &mut Vec<Message>,
    ) -> io::Result<usize> {
        self.reactor.wait(patience, ready, messages)?;
        let count = ready.len();
        for message in messages.drain(..) {
            match message {
                Message::Enter(number, connection) => self.enter(number, connection),
                Message::Evict(number) => self.evict(number),
                Message::End => self.is_ending = true,
            }
        }
        ready.drain(..).for_each(|ready| self.on_ready(ready));
        self.on_deadline();
        Ok(count)
    }

    pub(super) fn enter(&mut self, number: u64, connection: Box<TlsConnection>) {
        let deadline = clock::now() + self.bounds.patience;
        let entry = Entry {
            is_counted: connection.is_inbound(),
            connection,
            watched: [None, None],
            deadline: Some(deadline),
            is_leaving: false,
        };
        self.deadlines.push_back((deadline, number));
        self.connections.insert(number, entry);
        self.advance(number, None, None);
    }

    /// Ends a connection that is still in its handshake: there are too many of its origin.
    fn evict(&mut self, number: u64) {
        let Some(entry) = self.connections.get_mut(&number) else { return };
        if entry.connection.is_shaking() {
            let reason = "too many connections are in their TLS handshake, most of them from the \
                          same address";
            let over = Over::Broken(io::ErrorKind::PermissionDenied, reason.into());
            entry.connection.end(over, &mut self.scratch);
            self.remove(number);
        }
    }

    fn on_ready(&mut self, ready: Ready) {
        match ready.token % 2 {
            0 => self.advance(ready.token / 2, Some(ready), None),
            _ => self.advance(ready.token / 2, None, Some(ready)),
        }
    }

    fn advance(&mut self, number: u64, outside: Option<Ready>, inside: Option<Ready>) {
        // Of two that are ready, the first may have ended it.
        let Some(entry) = self.connections.get_mut(&number) else { return };
        let advanced = entry.connection.advance(outside, inside, &mut self.scratch);
        if advanced.is_err() {
            return self.remove(number);
        }
        if let Err(error) = entry.watch(&self.reactor, number) {
            // There is no memory left for it.
            entry.connection.end(words::gone(&error), &mut self.scratch);
            return self.remove(number);
        }
        if entry.connection.has_left() {
            if !std::mem::replace(&mut entry.is_leaving, true) {
                let at = clock::now() + self.bounds.patience;
                entry.deadline = Some(at);
                self.deadlines.push_back((at, number));
            }
        } else if !entry.connection.is_shaking() {
            entry.deadline = None;
        }
        if !entry.connection.is_shaking() && std::mem::take(&mut entry.is_counted) {
            locked(&self.handshakes).remove(number);
        }
    }

    fn on_deadline(&mut self) {
        while let Some((at, number)) =
            self.deadlines.pop_front_if(|(at, _)| clock::until(*at).is_zero())
        {
            let Some(entry) = self.connections.get_mut(&number) else { continue };
            if entry.deadline != Some(at) {
                continue;
            }
            let reason = match entry.connection.is_shaking() {
                true => "the peer has not finished its TLS handshake in time",
                false => "the peer does not read",
            };
            let over = Over::Broken(io::ErrorKind::TimedOut, reason.into());
            entry.connection.end(over, &mut self.scratch);
            self.remove(number);
        }
    }

    /// Descriptors that are closed leave the reactor by themselves.
    fn remove(&mut self, number: u64) {
        if self.connections.remove(&number).is_some_and(|entry| entry.is_counted) {
            locked(&self.handshakes).remove(number);
        }
    }
}

impl Entry {
    /// Waits for what the connection waits for.
    fn watch(&mut self, reactor: &Reactor<Message>, number: u64) -> io::Result<()> {
        let wanted = self.connection.wanted();
        let sides = [self.connection.outer(), self.connection.inner()];
        for (index, side) in sides.into_iter().enumerate() {
            let token = number * 2 + index as u64;
            match (self.watched[index], wanted[index]) {
                (None, Some(interest)) => reactor.add(side, token, interest)?,
                (Some(_), None) => reactor.remove(side)?,
                (Some(was), Some(interest)) if was != interest => {
                    reactor.change(side, token, interest)?;
                }
                _ => {}
            }
        }
        self.watched = wanted;
        Ok(())
    }
}
