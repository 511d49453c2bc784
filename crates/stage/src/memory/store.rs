//! The blocking client of a data node's key-value store: each call waits for its operation.
//!
//! # Problem
//! A [`Connection`] is to be polled every few milliseconds, or its tokens go to others and later
//! its session slot. A program that wants a value now and then does not do that; and it has
//! threads.
//!
//! # Mechanism
//! A thread that needs an operation begins it, and polls until it has ended; the lock is free
//! while the thread sleeps. So operations of several threads are in flight at the same time, and a
//! thread that polls also collects the results of the other threads. The store's own thread, the
//! *agent*, polls when no other thread does.
//!
//! Each operation has a number. Operations that begin together have consecutive numbers, so that
//! each thread can compute its own. A thread that times out abandons its operations: a note lists
//! the numbers that no thread waits for any more. If the node moves to other memory, all operations
//! begin anew.
//!
//! # Bound
//! Beside what the same costs in a [`Connection`] a get that waits for nothing takes a lock and
//! gives it back, copies the value once, and allocates nothing (but what it gives out). Operations
//! go in batches of [`BATCH`] at most. The agent wakes up about 250 times a second. To find the
//! node again that is gone or has moved holds up all others for at most the store's patience.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_model::{Span, Time};

#[cfg(feature = "verbs")]
use super::Way;
use super::{Answer, Connection, Error, NAP, OperationOutcome, Refused, Settings, forks};
use crate::clock::kernel_time;

/// Operations that are begun together: as many as a word has bits.
const BATCH: usize = u64::BITS as usize;

/// How long the agent waits where another thread is polling, below the time that makes a client
/// one that was away.
const KEEP: Span = Span(4 * Span::MILLISECOND.0);

/// A client of one data node, for any number of threads. Their operations share what is promised to
/// it; each waits until it has ended, [`Settings::patience`] at most.
///
/// Dropping it gives its session slot back.
pub struct Store {
    shared: Arc<StoreContext>,
    /// Always there until the end.
    agent: Option<JoinHandle<()>>,
    patience: Span,
    /// Of which process it is.
    forks: u32,
}

struct StoreContext {
    state: Mutex<StoreState>,
    /// Signals the end of an operation that a thread waits for, or capacity to begin one.
    has_news: Condvar,
}

struct StoreState {
    connection: Connection,
    /// The number of the next operation.
    next: u64,
    /// How often all that was under way was lost in a move.
    moves: u64,
    /// How many threads sleep, and how many of those have still to begin something.
    sleepers: u32,
    short: u32,
    /// Operations that have just ended; empty while the lock is free.
    outcomes: Vec<OperationOutcome>,
    /// Operations that have ended and belong to a sleeping thread.
    ended: Vec<OperationOutcome>,
    /// Numbers of which some are in flight without a waiter, and how many.
    left: Vec<(Range<u64>, u32)>,
    is_closing: bool,
}

impl Store {
    /// Requests the memory of the data node that listens at `path`.
    ///
    /// # Errors
    /// If it cannot be had, or there is no thread to be had.
    pub fn open(path: impl AsRef<Path>, settings: Settings) -> Result<Self, Error> {
        let patience = settings.patience;
        Self::keeping(|| Connection::open(path, settings), patience)
    }

    /// Requests the memory, reached by RNICs, of the data node at the end of this way.
    ///
    /// # Errors
    /// As [`Self::open`].
    #[cfg(feature = "verbs")]
    pub fn open_remote(way: Way, settings: Settings) -> Result<Self, Error> {
        let patience = settings.patience;
        Self::keeping(|| Connection::open_remote(way, settings), patience)
    }

    fn keeping(
        open: impl FnOnce() -> Result<Connection, Error>,
        patience: Span,
    ) -> Result<Self, Error> {
        forks::count().map_err(Error::Memory)?;
        let state = StoreState {
            connection: open()?,
            next: 0,
            moves: 0,
            sleepers: 0,
            short: 0,
            outcomes: Vec::new(),
            ended: Vec::new(),
            left: Vec::new(),
            is_closing: false,
        };
        let shared = Arc::new(StoreContext { state: Mutex::new(state), has_news: Condvar::new() });
        let kept = Arc::clone(&shared);
        let agent = thread::Builder::new().name("tidegate-store".into());
        let agent = agent.spawn(move || kept.keep()).map_err(Error::Memory)?;
        Ok(Self { shared, agent: Some(agent), patience, forks: forks::forks() })
    }

    /// The same, where operations may take so long.
    #[must_use]
    pub fn with_patience(mut self, patience: Span) -> Self {
        self.patience = patience;
        self
    }

    /// The value of a key, if it has one.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Returns the result of `read` on the value of a key, if the key has one. All other users of
    /// the store wait meanwhile, so `read` must not use the store.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn get_with<T>(
        &self,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Error> {
        let (mut read, mut seen) = (Some(read), Ok(None));
        self.get_many(&[key], |_, value| {
            seen = value.map(|value| value.zip(read.take()).map(|(value, read)| read(value)));
        })?;
        seen
    }

    /// Reports for each key, by its index in `keys`, its value, if it has one, or why it cannot be
    /// read; in the order of completion. Many are looked up at the same time. As for
    /// [`Self::get_with`], `report` must not use the store.
    ///
    /// # Errors
    /// See [`Error`]. Keys that were not reported yet are dropped.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut report: impl FnMut(usize, Result<Option<&[u8]>, Error>),
    ) -> Result<(), Error> {
        for (number, keys) in keys.chunks(BATCH).enumerate() {
            self.run(
                keys.len(),
                |connection, index, name| connection.begin_get(keys[index].as_ref(), name),
                |connection, index, answer| {
                    let index = number * BATCH + index;
                    match answer {
                        Ok(Answer::Found(value)) => {
                            report(index, Ok(Some(connection.value(&value))));
                            connection.release(value);
                        }
                        answer => report(index, answer.and_then(plain).map(|_| None)),
                    }
                },
            )?;
        }
        Ok(())
    }

    /// Gives a key a value, whether it has one or not.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.single(|connection, name| connection.begin_put(key, value, name)).map(|_| ())
    }

    /// Deletes a key's value, and returns whether it had one.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn delete(&self, key: &[u8]) -> Result<bool, Error> {
        let answer = self.single(|connection, name| connection.begin_delete(key, name))?;
        Ok(answer == Answer::Deleted)
    }

    /// Does one operation that reads no value.
    fn single(
        &self,
        begin: impl Fn(&mut Connection, u64) -> Result<(), Refused>,
    ) -> Result<Answer, Error> {
        let mut result = None;
        self.run(
            1,
            |connection, _, name| begin(connection, name),
            |_, _, answer| result = Some(answer.and_then(plain)),
        )?;
        result.expect("what has ended was told")
    }

    /// Begins operations, [`BATCH`] at most, and waits until all of them have ended.
    fn run(
        &self,
        count: usize,
        begin: impl Fn(&mut Connection, usize, u64) -> Result<(), Refused>,
        mut end: impl FnMut(&mut Connection, usize, Result<Answer, Error>),
    ) -> Result<(), Error> {
        if forks::forks() != self.forks {
            return Err(Error::Forked);
        }
        let mut state = lock(&self.shared.state);
        let mut batch = Batch::new(&mut state, count);
        let mut until = None;
        loop {
            // Results that other threads collected come first, so that a move does not begin them
            // again.
            batch.take_out(&mut state, &mut end);
            batch.begin(&mut state, &begin, &mut end);
            let polled = state.poll();
            batch.take_out(&mut state, &mut end);
            self.shared.notify(&mut state);
            if batch.is_over() {
                return Ok(());
            }
            let now = state.connection.now();
            let until = *until.get_or_insert_with(|| now.after(self.patience));
            if polled.is_err() || now >= until {
                batch.leave(&mut state);
                return Err(polled.err().unwrap_or_else(|| state.late()));
            }
            state = self.shared.sleep(state, until, batch.is_short());
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Some(agent) = self.agent.take() else { return };
        if forks::forks() != self.forks {
            // There is no such thread here, and the lock may be held for good.
            return std::mem::forget(agent);
        }
        lock(&self.shared.state).is_closing = true;
        agent.thread().unpark();
        // It ends by itself; had it panicked, that was reported.
        let _ = agent.join();
    }
}

/// Returns the answer of a plain result, or the error that the answer stands for.
fn plain(answer: Answer) -> Result<Answer, Error> {
    match answer {
        Answer::Full => Err(Error::Full),
        Answer::Throttled => Err(Error::Throttled),
        Answer::Crowded => Err(Error::Crowded),
        Answer::Contended => Err(Error::Contended),
        Answer::Corrupt => Err(Error::Corrupt),
        answer => Ok(answer),
    }
}

fn lock(state: &Mutex<StoreState>) -> MutexGuard<'_, StoreState> {
    // A thread that panicked did so in its own code on values; the state is as it should be.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Operations that one thread waits for.
struct Batch {
    names: Range<u64>,
    /// A bit for each of them: those that are begun, and those that have ended.
    begun: u64,
    ended: u64,
    /// The moves before they were begun.
    moves: u64,
}

impl Batch {
    fn new(state: &mut StoreState, count: usize) -> Self {
        let names = state.next..state.next + count as u64;
        state.next = names.end;
        Self { names, begun: 0, ended: 0, moves: state.moves }
    }

    fn count(&self) -> usize {
        (self.names.end - self.names.start) as usize
    }

    fn is_over(&self) -> bool {
        self.ended.count_ones() as usize == self.count()
    }

    /// Begins as many as the window allows.
    fn begin(
        &mut self,
        state: &mut StoreState,
        begin: impl Fn(&mut Connection, usize, u64) -> Result<(), Refused>,
        mut end: impl FnMut(&mut Connection, usize, Result<Answer, Error>),
    ) {
        if self.moves != state.moves {
            // After a move, operations that had not ended are no longer in flight.
            (self.moves, self.begun) = (state.moves, self.ended);
        }
        for index in 0..self.count() {
            let bit = 1 << index;
            if self.begun & bit != 0 {
                continue;
            }
            match begin(&mut state.connection, index, self.names.start + index as u64) {
                Err(Refused::Busy) => return,
                Ok(()) => {}
                Err(refused) => {
                    self.ended |= bit;
                    end(&mut state.connection, index, Err(refused.into()));
                }
            }
            self.begun |= bit;
        }
    }

    /// Whether the window was too small to begin all of them.
    fn is_short(&self) -> bool {
        self.begun.count_ones() as usize != self.count()
    }

    /// Takes out what has ended.
    fn take_out(
        &mut self,
        state: &mut StoreState,
        mut end: impl FnMut(&mut Connection, usize, Result<Answer, Error>),
    ) {
        let mut take = |connection: &mut Connection, outcome: OperationOutcome| {
            let index = (outcome.token - self.names.start) as usize;
            self.ended |= 1 << index;
            end(connection, index, Ok(outcome.answer));
        };
        let StoreState { connection, outcomes, ended, .. } = state;
        for list in [ended, outcomes] {
            for outcome in list.extract_if(.., |outcome| self.names.contains(&outcome.token)) {
                take(connection, outcome);
            }
        }
    }

    /// Waits for none of them any more.
    fn leave(self, state: &mut StoreState) {
        let is_lost = self.moves != state.moves;
        let count = (self.begun & !self.ended).count_ones();
        if count > 0 && !is_lost {
            state.left.push((self.names, count));
        }
    }
}

impl StoreState {
    fn poll(&mut self) -> Result<(), Error> {
        match self.connection.poll(&mut self.outcomes) {
            Err(Error::Moved) => {
                self.moves += 1;
                self.left.clear();
                // Values were in buffers that are gone; they are looked for again.
                self.ended.retain(|outcome| !matches!(outcome.answer, Answer::Found(_)));
                Ok(())
            }
            polled => polled,
        }
    }

    /// Keeps results for the threads that sleep, and drops those that no thread waits for.
    fn sort(&mut self) {
        for outcome in self.outcomes.drain(..) {
            let is_left = |(names, _): &(Range<u64>, u32)| names.contains(&outcome.token);
            let Some(index) = self.left.iter().position(is_left) else {
                self.ended.push(outcome);
                continue;
            };
            self.left[index].1 -= 1;
            if self.left[index].1 == 0 {
                self.left.swap_remove(index);
            }
            if let Answer::Found(value) = outcome.answer {
                self.connection.release(value);
            }
        }
    }

    /// Why something was not done in time.
    fn late(&self) -> Error {
        match self.connection.is_gone() {
            true => Error::Gone,
            false => Error::Late { is_alone: self.connection.is_alone() },
        }
    }
}

impl StoreContext {
    /// Passes on what has ended.
    fn notify(&self, state: &mut StoreState) {
        state.sort();
        if state.short > 0 || !state.ended.is_empty() {
            self.has_news.notify_all();
        }
    }

    /// Sleeps until there is something to do, or something has ended.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, StoreState>,
        until: Time,
        is_short: bool,
    ) -> MutexGuard<'a, StoreState> {
        let next = state.connection.next_deadline().min(until);
        if next <= state.connection.now() {
            return state;
        }
        let wait = next.since(kernel_time());
        if wait < NAP {
            drop(state);
            thread::yield_now();
            return lock(&self.state);
        }
        (state.sleepers, state.short) = (state.sleepers + 1, state.short + u32::from(is_short));
        let slept = self.has_news.wait_timeout(state, Duration::from_nanos(wait.0));
        let (mut state, _) = slept.unwrap_or_else(PoisonError::into_inner);
        (state.sleepers, state.short) = (state.sleepers - 1, state.short - u32::from(is_short));
        state
    }

    /// Sees to it that the connection is polled, until the store is closed.
    fn keep(&self) {
        loop {
            let state = match self.state.try_lock() {
                Ok(state) => Some(state),
                Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            let now = kernel_time();
            let mut next = now.after(KEEP);
            if let Some(mut state) = state {
                if state.is_closing {
                    return;
                }
                if state.sleepers == 0 && state.connection.next_deadline() <= now {
                    // The next caller gets the error.
                    let _ = state.poll();
                    self.notify(&mut state);
                }
                if state.sleepers == 0 {
                    next = next.min(state.connection.next_deadline());
                }
            }
            thread::park_timeout(Duration::from_nanos(next.since(kernel_time()).0));
        }
    }
}
