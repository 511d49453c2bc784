//! The event loop of a worker thread: its own sockets, and messages from other threads.
//!
//! # Problem
//! A request passes through several threads: a socket's worker, a device's, perhaps another worker.
//! If each of them locked the connection to answer on it, the lock would be the most contended word
//! of the machine; if each answer woke the worker, wakeups would cost more than the work.
//!
//! # Mechanism
//! A worker owns its sockets outright and no other thread touches them. A thread that finishes
//! something for it puts that into the worker's [`MessageQueue`], a vector behind a lock that is
//! held for one append, and signals an `eventfd` only if the worker is asleep or about to be: a
//! worker under load finds its messages without a system call on either side. Sockets are
//! level-triggered: the next wait names again the sockets that a worker leaves unread, so a worker
//! may stop reading one connection at any time.
//!
//! To wait without missing a message, the worker declares itself asleep under the lock, and only if
//! the message queue is empty then. A thread that appends afterwards sees the declaration, takes it
//! back and signals the `eventfd`.
//!
//! A worker whose work comes in short intervals polls before it sleeps, if its owner wants that
//! ([`Reactor::polling`], [`BusyPoll`]).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::thread::sched_yield;
use tidegate_algo::scheduling::busy_poll::BusyPoll;
use tidegate_model::Span;

use crate::clock::Clock;
pub use crate::readiness::{Interest, Ready};
use crate::stream::{Listener, Stream};
use crate::tls::Events;

/// Sockets that one wait may name. The next wait names the others.
const WAIT_MAX: usize = 64;

/// The token of the message queue's `eventfd`. No socket may use it.
const WAKE_TOKEN: u64 = u64::MAX;

/// A descriptor that a reactor waits for.
pub trait EventSource: AsFd {
    /// The stream that it is, if it is one. An encrypted one has events of its own.
    fn stream(&self) -> Option<&Stream> {
        None
    }
}

impl EventSource for Stream {
    fn stream(&self) -> Option<&Stream> {
        Some(self)
    }
}

impl EventSource for Listener {}
impl EventSource for OwnedFd {}
impl EventSource for UnixStream {}

/// Adds descriptors to a worker's reactor, from any thread. Plain ones only: streams with TLS are
/// their worker's.
#[derive(Clone, Debug)]
pub struct Registrar {
    events: Arc<Events>,
}

impl Registrar {
    /// As [`Reactor::add`].
    ///
    /// # Errors
    /// As there.
    pub fn add(&self, descriptor: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        assert_ne!(token, WAKE_TOKEN, "the greatest token is taken");
        let data = EventData::new_u64(token);
        Ok(epoll::add(&*self.events, descriptor, data, interest.flags())?)
    }

    /// As [`Reactor::change`].
    ///
    /// # Errors
    /// As there.
    pub fn change(&self, descriptor: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let data = EventData::new_u64(token);
        Ok(epoll::modify(&*self.events, descriptor, data, interest.flags())?)
    }

    /// As [`Reactor::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&self, descriptor: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&*self.events, descriptor)?)
    }
}

/// Waits for one worker's sockets and messages. Messages are of type `T`.
#[derive(Debug)]
pub struct Reactor<T> {
    registrar: Registrar,
    message_queue: Arc<MessageQueue<T>>,
    /// None where it sleeps at once.
    busy_poll: Option<(Clock, BusyPoll)>,
}

impl<T> Reactor<T> {
    /// One that waits for nothing but messages.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake_fd, EventData::new_u64(WAKE_TOKEN), EventFlags::IN)?;
        let inner = Inner { messages: Vec::new(), is_wake_requested: false, is_asleep: false };
        let inner = Mutex::new(inner);
        let message_queue = Arc::new(MessageQueue { inner, wake_fd });
        let registrar = Registrar { events: Arc::new(Events::new(epoll)) };
        Ok(Self { registrar, message_queue, busy_poll: None })
    }

    /// Polls before it sleeps, for at most `limit`, while its work comes in short intervals
    /// ([`BusyPoll`]). Never, if that is zero.
    #[must_use]
    pub fn polling(self, limit: Span) -> Self {
        let busy_poll = (limit > Span::ZERO).then(|| (Clock::start(), BusyPoll::new(limit)));
        Self { busy_poll, ..self }
    }

    /// The queue of messages from other threads to this one.
    pub fn message_queue(&self) -> Arc<MessageQueue<T>> {
        self.message_queue.clone()
    }

    /// For other threads that add descriptors here.
    pub fn registrar(&self) -> Registrar {
        self.registrar.clone()
    }

    /// Adds a descriptor. One that is closed leaves by itself.
    ///
    /// # Errors
    /// If the kernel has no room, or the descriptor is here already.
    ///
    /// # Panics
    /// If `token` is `u64::MAX`.
    pub fn add(&self, source: &impl EventSource, token: u64, interest: Interest) -> io::Result<()> {
        match source.stream().and_then(Stream::tls) {
            Some(stream) => stream.register(&self.registrar.events, token, interest),
            None => self.registrar.add(source, token, interest),
        }
    }

    /// Adds a descriptor that several workers wait to read from: one of them is woken.
    ///
    /// # Errors
    /// As [`Self::add`].
    ///
    /// # Panics
    /// As [`Self::add`].
    pub fn add_shared(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        assert_ne!(token, WAKE_TOKEN, "the greatest token is taken");
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        Ok(epoll::add(&*self.registrar.events, descriptor, EventData::new_u64(token), flags)?)
    }

    /// Changes what to wait for on a descriptor that is here.
    ///
    /// # Errors
    /// If it is not.
    pub fn change(
        &self,
        source: &impl EventSource,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        match source.stream().and_then(Stream::tls) {
            Some(stream) => {
                stream.change(interest);
                Ok(())
            }
            None => self.registrar.change(source, token, interest),
        }
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// If it is not here.
    pub fn remove(&self, source: &impl EventSource) -> io::Result<()> {
        if let Some(stream) = source.stream().and_then(Stream::tls) {
            stream.deregister();
        }
        self.registrar.remove(source)
    }

    /// Waits until a descriptor is ready or a message arrives, at most for `patience`, for good if
    /// that is none. Appends what is ready to `ready` and all messages to `messages`; perhaps
    /// neither got any.
    ///
    /// # Errors
    /// Any error of the kernel, except an interruption by a signal.
    pub fn wait(
        &mut self,
        patience: Option<Duration>,
        ready: &mut Vec<Ready>,
        messages: &mut Vec<T>,
    ) -> io::Result<()> {
        let nothing = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [nothing; WAIT_MAX];
        let count = match self.busy_poll.take() {
            Some((clock, mut busy_poll)) => {
                let begun = clock.now();
                let found = self.poll((clock, &mut busy_poll), patience, &mut events);
                let count = match found {
                    Ok(None) => {
                        let count = self.sleep(patience, &mut events);
                        busy_poll.on_sleep(clock.now().since(begun));
                        count
                    }
                    Ok(Some(count)) => Ok(count),
                    Err(error) => Err(error),
                };
                self.busy_poll = Some((clock, busy_poll));
                count?
            }
            None => self.sleep(patience, &mut events)?,
        };
        for event in &events[..count] {
            // The structure is packed, so its fields are copied rather than referred to.
            let (flags, token) = ({ event.flags }, { event.data }.u64());
            match token {
                WAKE_TOKEN => self.message_queue.drain_wake_fd(),
                _ => ready.push(Ready {
                    token,
                    read: flags.intersects(!EventFlags::OUT),
                    write: flags.intersects(!(EventFlags::IN | EventFlags::RDHUP)),
                    gone: flags.intersects(EventFlags::HUP | EventFlags::ERR),
                }),
            }
        }
        self.registrar.events.report(ready);
        self.message_queue.take(messages);
        Ok(())
    }

    /// Sleeps until there are events or messages. Returns how many events there are.
    fn sleep(&self, patience: Option<Duration>, events: &mut [Event]) -> io::Result<usize> {
        let patience = match self.message_queue.falls_asleep() {
            true => patience,
            false => Some(Duration::ZERO),
        };
        let patience = self.registrar.events.patience(patience);
        let timeout = patience.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        self.read_events(events, timeout.as_ref())
    }

    /// Looks for events and messages without a sleep. Returns how many events there are, and none
    /// where the worker is to sleep now.
    fn poll(
        &self,
        (clock, busy_poll): (Clock, &mut BusyPoll),
        patience: Option<Duration>,
        events: &mut [Event],
    ) -> io::Result<Option<usize>> {
        let begun = clock.now();
        let length = busy_poll.length(begun);
        let most = self.registrar.events.patience(patience).unwrap_or(Duration::MAX);
        let end = begun.after(length.min(Span(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX))));
        let mut now = begun;
        while now < end {
            let count = self.read_events(events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
            if count > 0 || self.message_queue.is_ready() {
                return Ok(Some(count));
            }
            let before = clock.now();
            sched_yield();
            now = clock.now();
            if !busy_poll.on_yield(now, now.since(before)) {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Takes events from the kernel, and waits for the first one as long as `timeout` says.
    fn read_events(&self, events: &mut [Event], timeout: Option<&Timespec>) -> io::Result<usize> {
        match epoll::wait(&*self.registrar.events, events, timeout) {
            Ok(count) => Ok(count),
            Err(rustix::io::Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

/// The queue of messages from other threads to a worker.
#[derive(Debug)]
pub struct MessageQueue<T> {
    inner: Mutex<Inner<T>>,
    wake_fd: OwnedFd,
}

#[derive(Debug)]
struct Inner<T> {
    messages: Vec<T>,
    /// A thread has requested a wakeup since the worker was last awake.
    is_wake_requested: bool,
    /// The worker waits, or will wait without another check.
    is_asleep: bool,
}

impl<T> MessageQueue<T> {
    /// Puts one message in.
    pub fn push(&self, message: T) {
        let mut inner = self.inner();
        inner.messages.push(message);
        self.notify(inner);
    }

    /// Puts all of `messages` in, and leaves the vector empty with its memory.
    pub fn append(&self, messages: &mut Vec<T>) {
        if !messages.is_empty() {
            let mut inner = self.inner();
            inner.messages.append(messages);
            self.notify(inner);
        }
    }

    /// Puts all of `messages` in.
    pub fn extend(&self, messages: impl IntoIterator<Item = T>) {
        let mut inner = self.inner();
        inner.messages.extend(messages);
        self.notify(inner);
    }

    /// Makes the worker check state that is not a message: wakes it, or keeps it from sleeping, for
    /// it may have checked already and not be asleep yet.
    pub fn wake(&self) {
        let mut inner = self.inner();
        inner.is_wake_requested = true;
        self.notify(inner);
    }

    fn notify(&self, mut inner: MutexGuard<'_, Inner<T>>) {
        let was_asleep = std::mem::take(&mut inner.is_asleep);
        drop(inner);
        if was_asleep {
            // It fails only if the counter is about to overflow, and then the descriptor is
            // readable.
            let _ = rustix::io::write(&self.wake_fd, &1u64.to_ne_bytes());
        }
    }

    /// Declares the worker asleep, if there is no message and no wakeup was requested.
    fn falls_asleep(&self) -> bool {
        let mut inner = self.inner();
        inner.is_asleep = inner.messages.is_empty() && !inner.is_wake_requested;
        inner.is_asleep
    }

    /// Whether there is a message, or a wakeup was requested.
    fn is_ready(&self) -> bool {
        let inner = self.inner();
        !inner.messages.is_empty() || inner.is_wake_requested
    }

    fn drain_wake_fd(&self) {
        let _ = rustix::io::read(&self.wake_fd, &mut [0u8; 8]);
    }

    fn take(&self, messages: &mut Vec<T>) {
        let mut inner = self.inner();
        (inner.is_asleep, inner.is_wake_requested) = (false, false);
        match messages.is_empty() {
            true => std::mem::swap(messages, &mut inner.messages),
            false => messages.append(&mut inner.messages),
        }
    }

    /// Appending leaves a vector whole, whatever happens to the thread that does it.
    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::thread;

    const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

    fn wait(reactor: &mut Reactor<u32>, patience: Option<Duration>) -> (Vec<Ready>, Vec<u32>) {
        let (mut ready, mut messages) = (Vec::new(), Vec::new());
        reactor.wait(patience, &mut ready, &mut messages).unwrap();
        (ready, messages)
    }

    #[test]
    fn a_socket_is_named_until_it_was_read() {
        let mut reactor = Reactor::new().unwrap();
        let (mut one, mut other) = UnixStream::pair().unwrap();
        reactor.add(&one, 7, Interest::READ).unwrap();
        assert_eq!(wait(&mut reactor, Some(Duration::ZERO)), (vec![], vec![]));
        other.write_all(b"x").unwrap();
        let named = Ready { token: 7, read: true, write: false, gone: false };
        assert_eq!(wait(&mut reactor, PATIENCE).0, [named]);
        assert_eq!(wait(&mut reactor, PATIENCE).0, [named]);
        one.read_exact(&mut [0]).unwrap();
        assert!(wait(&mut reactor, Some(Duration::ZERO)).0.is_empty());
        reactor.change(&one, 7, Interest { read: true, write: true }).unwrap();
        let named = Ready { token: 7, read: false, write: true, gone: false };
        assert_eq!(wait(&mut reactor, PATIENCE).0, [named]);
    }

    #[test]
    fn the_end_of_a_connection_is_reported_without_any_interest() {
        let mut reactor = Reactor::new().unwrap();
        let (one, mut other) = UnixStream::pair().unwrap();
        reactor.add(&one, 7, Interest::NONE).unwrap();
        other.write_all(b"x").unwrap();
        assert!(wait(&mut reactor, Some(Duration::ZERO)).0.is_empty());
        drop(other);
        assert!(wait(&mut reactor, PATIENCE).0[0].gone);
    }

    #[test]
    fn no_message_is_missed() {
        receive_all(Reactor::new().unwrap());
    }

    /// Also where the worker sometimes polls and sometimes sleeps.
    #[test]
    fn no_message_is_missed_while_it_polls() {
        receive_all(Reactor::new().unwrap().polling(Span::MILLISECOND));
    }

    #[test]
    fn a_poll_finds_bytes_messages_and_wakeups_and_ends_with_patience() {
        let mut reactor = Reactor::new().unwrap().polling(Span::SECOND);
        // Short sleeps first, so that it polls.
        for _ in 0..20 {
            assert_eq!(wait(&mut reactor, Some(Duration::from_micros(1))), (vec![], vec![]));
        }
        let (one, mut other) = UnixStream::pair().unwrap();
        reactor.add(&one, 7, Interest::READ).unwrap();
        other.write_all(b"x").unwrap();
        assert_eq!(wait(&mut reactor, PATIENCE).0[0].token, 7);
        reactor.remove(&one).unwrap();
        reactor.message_queue().push(5);
        assert_eq!(wait(&mut reactor, PATIENCE).1, [5]);
        reactor.message_queue().wake();
        assert_eq!(wait(&mut reactor, PATIENCE), (vec![], vec![]));
    }

    fn receive_all(mut reactor: Reactor<u32>) {
        const MESSAGES: u32 = 20_000;
        let message_queue = reactor.message_queue();
        let sender = thread::spawn(move || {
            for message in 0..MESSAGES {
                match message % 3 {
                    0 => message_queue.append(&mut vec![message]),
                    _ => message_queue.push(message),
                }
            }
        });
        let mut seen = Vec::new();
        while seen.len() < MESSAGES as usize {
            let (_, mut messages) = wait(&mut reactor, PATIENCE);
            assert!(!messages.is_empty(), "a wait of a minute: a message was missed");
            seen.append(&mut messages);
        }
        assert!(seen.into_iter().eq(0..MESSAGES));
        sender.join().unwrap();
    }

    /// A thread wakes the worker after it has changed state that the worker checks before it waits;
    /// the worker may have checked just before that.
    #[test]
    fn a_wakeup_before_the_wait_is_not_lost() {
        let mut reactor = Reactor::<u32>::new().unwrap();
        let message_queue = reactor.message_queue();
        message_queue.wake();
        let since = std::time::Instant::now();
        assert_eq!(wait(&mut reactor, PATIENCE), (vec![], vec![]));
        assert!(since.elapsed() < PATIENCE.unwrap(), "the wakeup was lost");
        // Once.
        assert!(message_queue.falls_asleep());
    }

    #[test]
    fn a_wakeup_without_a_message_wakes() {
        let mut reactor = Reactor::<u32>::new().unwrap();
        let message_queue = reactor.message_queue();
        let (started, is_started) = std::sync::mpsc::channel();
        let worker = thread::spawn(move || {
            started.send(()).unwrap();
            wait(&mut reactor, PATIENCE)
        });
        is_started.recv().unwrap();
        while !worker.is_finished() {
            message_queue.wake();
            thread::yield_now();
        }
        assert_eq!(worker.join().unwrap(), (vec![], vec![]));
    }
}
