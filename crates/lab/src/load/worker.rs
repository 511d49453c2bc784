//! A thread of the load generator, which sends the requests of some connections and receives their
//! replies.
//!
//! It reads the clock once per round, sends whatever is due in one write per connection, and waits
//! in the kernel until the next request is due or an answer comes. It is never late on purpose:
//! when it is behind it sends at once, and the lateness is part of the response times.

use std::io::{self, Read, Write};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tidegate_fabric::reactor::{Interest, Reactor};
use tidegate_model::{Span, Time};

use super::pace::{Direction, Ending, LoadStats, Pace};
use super::schedule::Dice;
use super::wire::{Decoded, Dialect, Stream};
use tidegate_console::clock::Clock;

/// How long answers are waited for after the end.
const GRACE: Span = Span(5 * Span::SECOND.0);

/// The longest wait before the worker checks again whether it is to stop.
const POLL_INTERVAL: Span = Span(100 * Span::MILLISECOND.0);

/// The timer's token; lower ones are indices of connections.
const TIMER: u64 = 1 << 32;

/// The first size of a connection's input buffer: a few dozen small answers.
const INPUT: usize = 256 << 10;

/// The counters and the stop flag that workers share with other threads.
#[derive(Debug, Default)]
pub(crate) struct LoadCounters {
    /// Answers of all workers, of any kind.
    pub(crate) answers: AtomicU64,
    /// Those of them that were failures.
    pub(crate) failures: AtomicU64,
    /// Set when the load is to end.
    pub(crate) stop: Arc<AtomicBool>,
}

pub(crate) struct LoadConnection {
    stream: Stream,
    dialect: Box<dyn Dialect>,
    in_flight: u32,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    /// The part of the input that is there and not consumed.
    unread: Range<usize>,
    is_choked: bool,
}

impl LoadConnection {
    /// A connection over a stream that does not block.
    pub(crate) fn new(stream: Stream, dialect: Box<dyn Dialect>) -> Self {
        let (output, input) = (Vec::new(), vec![0; INPUT]);
        let (in_flight, written, unread, is_choked) = (0, 0, 0..0, false);
        Self { stream, dialect, in_flight, output, written, input, unread, is_choked }
    }

    /// Writes what there is room for.
    fn flush(&mut self) -> io::Result<()> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads once; whether there may be more.
    fn fill(&mut self) -> io::Result<bool> {
        let Range { start, end } = self.unread.clone();
        self.input.copy_within(start..end, 0);
        self.unread = 0..end - start;
        if self.unread.end == self.input.len() {
            // An answer larger than all before.
            self.input.resize(2 * self.input.len(), 0);
        }
        match self.stream.read(&mut self.input[self.unread.end..]) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has hung up")),
            Ok(count) => {
                self.unread.end += count;
                Ok(self.unread.end == self.input.len())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// A thread's work.
pub(crate) struct Worker {
    pub(crate) connections: Vec<LoadConnection>,
    pub(crate) pace: Pace,
    /// How many requests a connection may carry.
    pub(crate) depth: u32,
    /// Of a thousand requests, so many are reads.
    pub(crate) reads_permille: u64,
    pub(crate) dice: Dice,
    pub(crate) clock: Clock,
    pub(crate) until: Time,
    pub(crate) shared: Arc<LoadCounters>,
}

impl Worker {
    /// Works until the end of the run.
    pub(crate) fn run(mut self) -> io::Result<LoadStats> {
        let mut reactor: Reactor<()> = Reactor::new()?;
        for (connection, token) in self.connections.iter().zip(0..) {
            reactor.add(&connection.stream, token, Interest::READ)?;
        }
        // The kernel makes waits longer by 50 us to save wake-ups. Where it will not, the lateness
        // is measured like any other.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let alarm = Alarm::new()?;
        reactor.add(&alarm.0, TIMER, Interest::READ)?;
        let (mut ready, mut mail, mut next) = (Vec::new(), Vec::new(), 0);
        loop {
            let now = self.clock.now();
            let is_stopped = self.shared.stop.load(Ordering::Relaxed);
            if !is_stopped {
                self.send(now, &mut next);
            }
            for (connection, token) in self.connections.iter_mut().zip(0..) {
                connection.flush()?;
                let is_choked = !connection.output.is_empty();
                if is_choked != connection.is_choked {
                    connection.is_choked = is_choked;
                    let interest = Interest { read: true, write: is_choked };
                    reactor.change(&connection.stream, token, interest)?;
                }
            }
            let Some(patience) = self.patience(is_stopped) else {
                return Ok(self.pace.end(now));
            };
            if patience > Span(0) {
                alarm.set(patience)?;
            }
            // The kernel counts this time in whole milliseconds, and the alarm in nanoseconds.
            reactor.wait(Some(Duration::from_nanos(patience.0)), &mut ready, &mut mail)?;
            let now = self.clock.now();
            for ready in ready.drain(..).filter(|ready| ready.read || ready.gone) {
                if ready.token == TIMER {
                    continue;
                }
                // Tokens are indices of connections.
                self.receive(now, ready.token as usize)?;
            }
        }
    }

    /// Sends what is due, one connection after the other.
    fn send(&mut self, now: Time, next: &mut usize) {
        while self.pace.has_headroom() && self.pace.next_due(now).is_some_and(|due| due <= now) {
            let count = self.connections.len();
            let free = (0..count).map(|more| (*next + more) % count);
            let mut free =
                free.filter(|connection| self.connections[*connection].in_flight < self.depth);
            // There is room for as many requests as all connections may carry.
            let Some(chosen) = free.next() else { return };
            *next = (chosen + 1) % count;
            let is_read = self.dice.below(1_000) < self.reads_permille;
            let kind = if is_read { Direction::Read } else { Direction::Write };
            let slot = self.pace.sent(now, kind);
            let connection = &mut self.connections[chosen];
            connection.dialect.encode(slot, kind, &mut self.dice, &mut connection.output);
            connection.in_flight += 1;
        }
    }

    /// How long there is nothing to do unless an answer comes; none if it is all over.
    fn patience(&self, is_stopped: bool) -> Option<Span> {
        let now = self.clock.now();
        let due = if is_stopped { None } else { self.pace.next_due(now) };
        let is_idle = self.pace.in_flight() == 0;
        match due {
            Some(due) if self.pace.has_headroom() => Some(due.since(now).min(POLL_INTERVAL)),
            Some(_) => Some(self.until.since(now).min(POLL_INTERVAL)),
            None if is_idle || is_stopped || now >= self.until.after(GRACE) => None,
            // The rest of the window, in which nothing more is due, and a while after it.
            None => Some(POLL_INTERVAL),
        }
    }

    fn receive(&mut self, now: Time, index: usize) -> io::Result<()> {
        let connection = &mut self.connections[index];
        let (mut answers, mut failures) = (0, 0);
        loop {
            let may_be_more = connection.fill()?;
            loop {
                let decoded =
                    connection.dialect.decode(&connection.input[connection.unread.clone()]);
                match decoded
                    .map_err(|message| io::Error::new(io::ErrorKind::InvalidData, message))?
                {
                    Decoded::Nothing => break,
                    Decoded::Some(length) => connection.unread.start += length,
                    Decoded::Answer { length, slot, ending } => {
                        connection.unread.start += length;
                        connection.in_flight = connection.in_flight.saturating_sub(1);
                        if !self.pace.answered(now, slot, ending) {
                            let message = "the server sent a reply without a request";
                            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                        }
                        answers += 1;
                        failures += u64::from(ending == Ending::Failed);
                    }
                }
            }
            if !may_be_more {
                break;
            }
        }
        self.shared.answers.fetch_add(answers, Ordering::Relaxed);
        self.shared.failures.fetch_add(failures, Ordering::Relaxed);
        Ok(())
    }
}

/// Wakes a worker in time.
struct Alarm(OwnedFd);

impl Alarm {
    fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Goes off once, after `span`, which is not zero; what was set before is forgotten.
    fn set(&self, span: Span) -> io::Result<()> {
        let it_value =
            Timespec::try_from(Duration::from_nanos(span.0)).map_err(io::Error::other)?;
        let it_interval = Timespec::default();
        let timer = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &timer)?;
        Ok(())
    }
}
