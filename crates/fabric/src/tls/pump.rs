//! The thread that moves bytes through all locks of a process.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::passage::{Over, Passage, Scratch};
use super::words;
use crate::clock;
use crate::reactor::{Interest, Mailbox, Reactor, Ready};

/// What peers may take up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How long a handshake may take, and how long a peer may take for what was said last. A
    /// handshake is two flights of a few kilobytes; ten seconds are for a slow line and a busy
    /// machine.
    pub(super) patience: Duration,
    /// Connections from outside that are in their handshake at a time. Each holds three descriptors
    /// and some kilobytes, and costs a signature: what strangers may take up.
    pub(super) guests: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { patience: Duration::from_secs(10), guests: 256 }
    }
}

/// The thread that moves bytes through all locks of a process; one is enough. Once its last handle
/// is dropped it sends what is still to be sent, as far as the kernel takes it, and ends.
#[derive(Clone, Debug)]
pub struct Pump(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    mailbox: Arc<Mailbox<Letter>>,
    /// Those from outside that are in their handshake.
    guests: Arc<AtomicUsize>,
    bounds: Bounds,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
pub(super) enum Letter {
    Enter(Box<Passage>),
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
        let (mailbox, guests) = (engine.reactor.mailbox(), engine.guests.clone());
        let thread = thread::Builder::new().name("tls".into()).spawn(move || engine.run())?;
        let thread = Mutex::new(Some(thread));
        Ok(Self(Arc::new(Handle { mailbox, guests, bounds, thread })))
    }

    /// Drives a passage from now on, to its end.
    ///
    /// # Errors
    /// Kind `PermissionDenied` if it is one from outside, and there are too many.
    pub(super) fn enter(&self, passage: Passage) -> io::Result<()> {
        let guests = &self.0.guests;
        if passage.is_guest() && guests.fetch_add(1, Ordering::Relaxed) >= self.0.bounds.guests {
            guests.fetch_sub(1, Ordering::Relaxed);
            let reason = format!("{} others are in their TLS handshake", self.0.bounds.guests);
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        self.0.mailbox.push(Letter::Enter(Box::new(passage)));
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.mailbox.push(Letter::End);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
pub(super) struct Engine {
    bounds: Bounds,
    reactor: Reactor<Letter>,
    guests: Arc<AtomicUsize>,
    /// By number. The tokens of its two sides are twice that, and one more inside.
    passages: BTreeMap<u64, Seat>,
    next: u64,
    /// When to look at whose deadline, the first one first: all are given the same time.
    deadlines: VecDeque<(Instant, u64)>,
    scratch: Scratch,
    is_ending: bool,
}

/// A passage, and what the reactor waits for outside and inside.
struct Seat {
    passage: Box<Passage>,
    watched: [Option<Interest>; 2],
    /// It is counted as one in its handshake.
    is_counted: bool,
    /// When it is over, unless what it is given time for has come to its end.
    deadline: Option<Instant>,
    /// Nobody is inside any more, and the deadline is about that.
    is_leaving: bool,
}

impl Engine {
    pub(super) fn new(bounds: Bounds) -> io::Result<Self> {
        Ok(Self {
            bounds,
            reactor: Reactor::new()?,
            guests: Arc::new(AtomicUsize::new(0)),
            passages: BTreeMap::new(),
            next: 0,
            deadlines: VecDeque::new(),
            scratch: Scratch::new(),
            is_ending: false,
        })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.passages.is_empty()
    }

    fn run(mut self) {
        let (mut ready, mut mail) = (Vec::new(), Vec::new());
        while !self.is_ending {
            let patience = self.deadlines.front().map(|(at, _)| clock::until(*at));
            if self.round(patience, &mut ready, &mut mail).is_err() {
                // The descriptors are ours and the arguments too; there is nothing to wait for.
                return;
            }
        }
        // Whoever was inside has left: what was said last is sent as far as that needs no waiting.
        let left = Ready { token: 0, read: true, write: true, gone: true };
        for seat in self.passages.values_mut() {
            let _ = seat.passage.turn(None, Some(left), &mut self.scratch);
        }
    }

    /// Waits once, and does what is to be done. Says how many descriptors were ready. The vectors
    /// are empty before and after.
    pub(super) fn round(
        &mut self,
        patience: Option<Duration>,
        ready: &mut Vec<Ready>,
        mail: &mut Vec<Letter>,
    ) -> io::Result<usize> {
        self.reactor.wait(patience, ready, mail)?;
        let count = ready.len();
        for letter in mail.drain(..) {
            match letter {
                Letter::Enter(passage) => self.enter(passage),
                Letter::End => self.is_ending = true,
            }
        }
        ready.drain(..).for_each(|ready| self.on_ready(ready));
        self.on_deadline();
        Ok(count)
    }

    pub(super) fn enter(&mut self, passage: Box<Passage>) {
        let number = self.next;
        self.next += 1;
        let deadline = clock::now() + self.bounds.patience;
        let seat = Seat {
            is_counted: passage.is_guest(),
            passage,
            watched: [None, None],
            deadline: Some(deadline),
            is_leaving: false,
        };
        self.deadlines.push_back((deadline, number));
        self.passages.insert(number, seat);
        self.turn(number, None, None);
    }

    fn on_ready(&mut self, ready: Ready) {
        match ready.token % 2 {
            0 => self.turn(ready.token / 2, Some(ready), None),
            _ => self.turn(ready.token / 2, None, Some(ready)),
        }
    }

    fn turn(&mut self, number: u64, outside: Option<Ready>, inside: Option<Ready>) {
        // Of two that are ready, the first may have ended it.
        let Some(seat) = self.passages.get_mut(&number) else { return };
        let turned = seat.passage.turn(outside, inside, &mut self.scratch);
        if turned.is_err() {
            return self.remove(number);
        }
        if let Err(error) = seat.watch(&self.reactor, number) {
            // There is no memory left for it.
            seat.passage.end(words::gone(&error), &mut self.scratch);
            return self.remove(number);
        }
        if seat.passage.has_left() {
            if !std::mem::replace(&mut seat.is_leaving, true) {
                let at = clock::now() + self.bounds.patience;
                seat.deadline = Some(at);
                self.deadlines.push_back((at, number));
            }
        } else if !seat.passage.is_shaking() {
            seat.deadline = None;
        }
        if !seat.passage.is_shaking() && std::mem::take(&mut seat.is_counted) {
            self.guests.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn on_deadline(&mut self) {
        while let Some((at, number)) =
            self.deadlines.pop_front_if(|(at, _)| clock::until(*at).is_zero())
        {
            let Some(seat) = self.passages.get_mut(&number) else { continue };
            if seat.deadline != Some(at) {
                continue;
            }
            let reason = match seat.passage.is_shaking() {
                true => "the peer has not finished its TLS handshake in time",
                false => "the peer does not read",
            };
            let over = Over::Broken(io::ErrorKind::TimedOut, reason.into());
            seat.passage.end(over, &mut self.scratch);
            self.remove(number);
        }
    }

    /// Descriptors that are closed leave the reactor by themselves.
    fn remove(&mut self, number: u64) {
        if self.passages.remove(&number).is_some_and(|seat| seat.is_counted) {
            self.guests.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Seat {
    /// Waits for what the passage waits for.
    fn watch(&mut self, reactor: &Reactor<Letter>, number: u64) -> io::Result<()> {
        let wanted = self.passage.wanted();
        let sides = [self.passage.outer(), self.passage.inner()];
        for (place, side) in sides.into_iter().enumerate() {
            let token = number * 2 + place as u64;
            match (self.watched[place], wanted[place]) {
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
