//! The event loop of a worker thread: its own sockets, and messages from other threads.
//!
//! # Problem
//! A request passes through several threads' hands: a socket's worker, a device's, perhaps another
//! worker's. If each of them locked the connection to answer on it, the lock would be the busiest
//! word in the machine; if each answer woke the worker, waking would cost more than the work.
//!
//! # Mechanism
//! A worker owns its sockets outright and no other thread touches them. A thread that finishes
//! something for it puts that into the worker's [`Mailbox`], a vector behind a lock that is held
//! for one append, and signals an `eventfd` only if the worker is asleep or about to be: a worker
//! under load finds its messages without a system call on either side. Sockets are level-triggered:
//! the next wait names again the sockets that a worker leaves unread, so a worker may stop whenever
//! it has had enough of one connection.
//!
//! To wait without missing a message, the worker declares itself asleep under the lock, and only if
//! the mailbox is empty then. A thread that appends afterwards sees the declaration, takes it back
//! and signals the `eventfd`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Sockets that one wait may name. The next wait names the others.
const WAIT_MAX: usize = 64;

/// The token of the mailbox's `eventfd`. No socket may use it.
const BELL: u64 = u64::MAX;

/// Events to wait for on a descriptor. Its end is reported in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Until there is something to read.
    pub read: bool,
    /// Until there is room to write.
    pub write: bool,
}

impl Interest {
    /// Something to read: the usual state of a connection.
    pub const READ: Self = Self { read: true, write: false };
    /// Nothing but its end: for one that has to wait for us.
    pub const NONE: Self = Self { read: false, write: false };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN | EventFlags::RDHUP, self.read);
        flags.set(EventFlags::OUT, self.write);
        flags
    }
}

/// A descriptor on which something can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number that it was added with.
    pub token: u64,
    /// Reading gives bytes, the end, or an error.
    pub read: bool,
    /// Writing takes bytes or gives an error.
    pub write: bool,
    /// The peer is gone: nothing that is written reaches it. Reported whatever the interest is, so
    /// that a connection that is not read from must be closed now.
    pub gone: bool,
}

/// Waits for one worker's sockets and mail. Letters are of type `T`.
#[derive(Debug)]
pub struct Reactor<T> {
    epoll: OwnedFd,
    mailbox: Arc<Mailbox<T>>,
}

impl<T> Reactor<T> {
    /// One that waits for nothing but mail.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        let inner = Inner { letters: Vec::new(), is_rung: false, is_asleep: false };
        let inner = Mutex::new(inner);
        Ok(Self { epoll, mailbox: Arc::new(Mailbox { inner, bell }) })
    }

    /// Where other threads put what is for this one.
    pub fn mailbox(&self) -> Arc<Mailbox<T>> {
        self.mailbox.clone()
    }

    /// Adds a descriptor. One that is closed leaves by itself.
    ///
    /// # Errors
    /// If the kernel has no room, or the descriptor is here already.
    ///
    /// # Panics
    /// If `token` is `u64::MAX`.
    pub fn add(&self, descriptor: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        assert_ne!(token, BELL, "the greatest token is taken");
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(token), interest.flags())?)
    }

    /// Adds a descriptor that several workers wait to read from: one of them is woken.
    ///
    /// # Errors
    /// As [`Self::add`].
    ///
    /// # Panics
    /// As [`Self::add`].
    pub fn add_shared(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        assert_ne!(token, BELL, "the greatest token is taken");
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        Ok(epoll::add(&self.epoll, descriptor, EventData::new_u64(token), flags)?)
    }

    /// Changes what to wait for on a descriptor that is here.
    ///
    /// # Errors
    /// If it is not.
    pub fn change(&self, descriptor: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, descriptor, EventData::new_u64(token), interest.flags())?)
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// If it is not here.
    pub fn remove(&self, descriptor: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, descriptor)?)
    }

    /// Waits until there is something to do, at most for `patience`, for good if that is none.
    /// Appends what is ready to `ready` and all letters to `mail`; perhaps neither got any.
    ///
    /// # Errors
    /// Whatever the kernel says, except that a signal came.
    pub fn wait(
        &mut self,
        patience: Option<Duration>,
        ready: &mut Vec<Ready>,
        mail: &mut Vec<T>,
    ) -> io::Result<()> {
        let patience = match self.mailbox.falls_asleep() {
            true => patience,
            false => Some(Duration::ZERO),
        };
        let timeout = patience.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
        let nothing = Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [nothing; WAIT_MAX];
        let count = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for event in &events[..count] {
            // The structure is packed, so its fields are copied rather than referred to.
            let (flags, token) = ({ event.flags }, { event.data }.u64());
            match token {
                BELL => self.mailbox.silence(),
                _ => ready.push(Ready {
                    token,
                    read: flags.intersects(!EventFlags::OUT),
                    write: flags.intersects(!(EventFlags::IN | EventFlags::RDHUP)),
                    gone: flags.intersects(EventFlags::HUP | EventFlags::ERR),
                }),
            }
        }
        self.mailbox.take(mail);
        Ok(())
    }
}

/// Where other threads put what is for a worker.
#[derive(Debug)]
pub struct Mailbox<T> {
    inner: Mutex<Inner<T>>,
    bell: OwnedFd,
}

#[derive(Debug)]
struct Inner<T> {
    letters: Vec<T>,
    /// A thread rang since the worker was last awake.
    is_rung: bool,
    /// The worker waits, or will without looking here again.
    is_asleep: bool,
}

impl<T> Mailbox<T> {
    /// Puts one letter in.
    pub fn push(&self, letter: T) {
        let mut inner = self.inner();
        inner.letters.push(letter);
        self.wake(inner);
    }

    /// Puts all of `letters` in, and leaves the vector empty with its memory.
    pub fn append(&self, letters: &mut Vec<T>) {
        if !letters.is_empty() {
            let mut inner = self.inner();
            inner.letters.append(letters);
            self.wake(inner);
        }
    }

    /// Puts all of `letters` in.
    pub fn extend(&self, letters: impl IntoIterator<Item = T>) {
        let mut inner = self.inner();
        inner.letters.extend(letters);
        self.wake(inner);
    }

    /// Has the worker look at something that is not a letter: wakes it, or keeps it from sleeping,
    /// for it may have looked already and not be asleep yet.
    pub fn ring(&self) {
        let mut inner = self.inner();
        inner.is_rung = true;
        self.wake(inner);
    }

    fn wake(&self, mut inner: MutexGuard<'_, Inner<T>>) {
        let was_asleep = std::mem::take(&mut inner.is_asleep);
        drop(inner);
        if was_asleep {
            // It fails only if the counter is about to overflow, and then the bell has rung.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Declares the worker asleep, if there is no message and no thread rang.
    fn falls_asleep(&self) -> bool {
        let mut inner = self.inner();
        inner.is_asleep = inner.letters.is_empty() && !inner.is_rung;
        inner.is_asleep
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    fn take(&self, mail: &mut Vec<T>) {
        let mut inner = self.inner();
        (inner.is_asleep, inner.is_rung) = (false, false);
        match mail.is_empty() {
            true => std::mem::swap(mail, &mut inner.letters),
            false => mail.append(&mut inner.letters),
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
    use std::os::unix::net::UnixStream;
    use std::thread;

    const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

    fn wait(reactor: &mut Reactor<u32>, patience: Option<Duration>) -> (Vec<Ready>, Vec<u32>) {
        let (mut ready, mut mail) = (Vec::new(), Vec::new());
        reactor.wait(patience, &mut ready, &mut mail).unwrap();
        (ready, mail)
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
    fn the_end_of_a_connection_is_told_to_whoever_wants_nothing() {
        let mut reactor = Reactor::new().unwrap();
        let (one, mut other) = UnixStream::pair().unwrap();
        reactor.add(&one, 7, Interest::NONE).unwrap();
        other.write_all(b"x").unwrap();
        assert!(wait(&mut reactor, Some(Duration::ZERO)).0.is_empty());
        drop(other);
        assert!(wait(&mut reactor, PATIENCE).0[0].gone);
    }

    #[test]
    fn no_letter_is_missed() {
        const LETTERS: u32 = 20_000;
        let mut reactor = Reactor::new().unwrap();
        let mailbox = reactor.mailbox();
        let sender = thread::spawn(move || {
            for letter in 0..LETTERS {
                match letter % 3 {
                    0 => mailbox.append(&mut vec![letter]),
                    _ => mailbox.push(letter),
                }
            }
        });
        let mut seen = Vec::new();
        while seen.len() < LETTERS as usize {
            let (_, mut mail) = wait(&mut reactor, PATIENCE);
            assert!(!mail.is_empty(), "a wait of twenty seconds: a letter was missed");
            seen.append(&mut mail);
        }
        assert!(seen.into_iter().eq(0..LETTERS));
        sender.join().unwrap();
    }

    /// A thread rings after it has put something where the worker looks before it waits; the worker
    /// may have looked just before that.
    #[test]
    fn a_ring_before_the_wait_is_heard() {
        let mut reactor = Reactor::<u32>::new().unwrap();
        let mailbox = reactor.mailbox();
        mailbox.ring();
        let since = std::time::Instant::now();
        assert_eq!(wait(&mut reactor, PATIENCE), (vec![], vec![]));
        assert!(since.elapsed() < PATIENCE.unwrap(), "the ring was lost");
        // Once.
        assert!(mailbox.falls_asleep());
    }

    #[test]
    fn a_ring_wakes_without_a_letter() {
        let mut reactor = Reactor::<u32>::new().unwrap();
        let mailbox = reactor.mailbox();
        let (started, is_started) = std::sync::mpsc::channel();
        let worker = thread::spawn(move || {
            started.send(()).unwrap();
            wait(&mut reactor, PATIENCE)
        });
        is_started.recv().unwrap();
        while !worker.is_finished() {
            mailbox.ring();
            thread::yield_now();
        }
        assert_eq!(worker.join().unwrap(), (vec![], vec![]));
    }
}
