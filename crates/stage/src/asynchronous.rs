//! Times of asynchronous requests: those that a program has handed to a ring of the kernel (Linux
//! AIO, `io_uring`), and whose completions it collects later.
//!
//! The kernel writes completions into memory of the program, without a time. (Rings whose
//! completions appear only while the program is in a call are not followed.) So the shim polls a
//! ring in each call of the program that it sees anyway: before and after the program submits, and
//! before and after it waits for completions. While a call waits at a gate, a [`Watch`] polls again
//! and again, or the times would be those of the gates. A completion that a poll finds happened
//! after the poll before, which gives its time a lower and an upper bound. The time is exact where
//! the program's call had to wait for this very completion.
//!
//! A time counts as one of the storage's if it is exact, or known within a factor of two. A program
//! that calls seldom gives few times, and a thread that polls late because the processors are busy
//! gives none. Requests that have the same key while they are in flight are not timed.
//!
//! All state is the process's own, of fixed size, and in atomics under one lock. A thread gives up
//! after some microseconds without the lock: its poll is left out, and the next one finds the same
//! completions with wider bounds.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tidegate_model::{Span, Time};

/// The most rings of a process that are followed; requests in others are not timed.
const RINGS_MAX: usize = 64;
/// The most requests in flight of a process that are followed.
const REQUESTS_MAX: usize = 4_096;
/// How many cells a request may be in, from that of its hash on.
const PROBES: usize = 16;
/// How often a thread tries to get the lock: some microseconds.
const TRIES: usize = 200;

/// A ring, by a number that no other ring of the process has meanwhile; never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingId(u64);

impl RingId {
    /// A context of Linux AIO, which is an address.
    pub fn of_context(address: usize) -> Self {
        Self((address as u64).max(1))
    }

    /// An `io_uring` by its descriptor. No context is at an odd address.
    pub fn of_descriptor(descriptor: i32) -> Self {
        Self(u64::from(descriptor.cast_unsigned()) << 1 | 1)
    }
}

/// A completion in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the program gave to the request.
    pub key: u64,
    /// Whether data was moved.
    pub moved: bool,
}

/// The completions in a ring, as one poll finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completions {
    /// The ring.
    pub ring: RingId,
    /// The position behind the last completion: counts up, modulo [`Self::modulus`].
    pub tail: u32,
    /// Where the position begins at zero again; zero if it counts through 2^32.
    pub modulus: u32,
    /// The most completions that are still in the ring behind the tail.
    pub size: u32,
}

impl Completions {
    /// How many completions there are from the position `before` on.
    fn since(self, before: u32) -> u32 {
        match self.modulus {
            0 => self.tail.wrapping_sub(before),
            modulus if self.tail >= before => (self.tail - before).min(modulus),
            modulus => (modulus - before.min(modulus)).saturating_add(self.tail),
        }
    }

    /// The position `back` before the tail.
    fn position(self, back: u32) -> u32 {
        match self.modulus {
            modulus if modulus > 0 && self.tail < back => modulus.saturating_add(self.tail) - back,
            _ => self.tail.wrapping_sub(back),
        }
    }
}

/// Bounds of the time that a request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    least: Span,
    most: Span,
}

/// Bounds so close together are known well enough, however short the time is: the kernel's timers
/// are no finer.
const CLOSE: Span = Span(200_000);

impl Bounds {
    /// The time, if it is known well enough: the middle.
    fn time(self) -> Option<Span> {
        let Self { least: Span(least), most: Span(most) } = self;
        let is_known = most <= (least + CLOSE.0).saturating_mul(2) || least == most;
        is_known.then(|| Span(least + (most - least) / 2))
    }
}

/// Polls a ring while a thread waits at a gate. Plain data, so that one of a call that the
/// thread has left by a jump does no harm.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Polls the ring, and says whether requests are in flight there.
    pub poll: fn(usize) -> bool,
    /// The ring, for `poll`.
    pub ring: usize,
}

/// A ring that is followed.
struct RingCell {
    /// Zero if the cell is free.
    id: AtomicU64,
    /// Requests in flight.
    open: AtomicU32,
    /// The position and the time of the last poll.
    tail: AtomicU32,
    polled: AtomicU64,
}

/// Requests in flight of one ring that have one key.
struct RequestCell {
    /// How many; zero if the cell is free.
    count: AtomicU32,
    ring: AtomicU64,
    key: AtomicU64,
    /// When the request was handed over, if it is one.
    begun: AtomicU64,
}

/// The requests in flight of a process, and their rings.
pub(crate) struct RequestsInFlight {
    /// 1 while a thread changes it.
    lock: AtomicU32,
    /// How many rings were ever followed: zero in most programs, which poll nothing.
    used: AtomicU32,
    rings: [RingCell; RINGS_MAX],
    /// Untouched pages of it cost nothing.
    requests: [RequestCell; REQUESTS_MAX],
}

/// Those of this process.
pub(crate) static IN_FLIGHT: RequestsInFlight = RequestsInFlight::new();

impl RequestsInFlight {
    const fn new() -> Self {
        Self {
            lock: AtomicU32::new(0),
            used: AtomicU32::new(0),
            rings: [const {
                RingCell {
                    id: AtomicU64::new(0),
                    open: AtomicU32::new(0),
                    tail: AtomicU32::new(0),
                    polled: AtomicU64::new(0),
                }
            }; RINGS_MAX],
            requests: [const {
                RequestCell {
                    count: AtomicU32::new(0),
                    ring: AtomicU64::new(0),
                    key: AtomicU64::new(0),
                    begun: AtomicU64::new(0),
                }
            }; REQUESTS_MAX],
        }
    }

    /// Runs `work` alone; not at all if another thread does so for long, or this one in a call that
    /// a signal has interrupted.
    fn alone<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        let take = || self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        let taken = (0..TRIES).any(|_| {
            let taken = take().is_ok();
            if !taken {
                std::hint::spin_loop();
            }
            taken
        });
        let result = taken.then(work);
        if taken {
            self.lock.store(0, Ordering::Release);
        }
        result
    }

    /// Whether this ring is followed.
    pub(crate) fn follows(&self, ring: RingId) -> bool {
        self.used.load(Ordering::Relaxed) > 0 && self.ring(ring).is_some()
    }

    /// Whether requests are in flight in this ring.
    pub(crate) fn is_open(&self, ring: RingId) -> bool {
        self.ring(ring).is_some_and(|cell| cell.open.load(Ordering::Relaxed) > 0)
    }

    fn ring(&self, ring: RingId) -> Option<&RingCell> {
        let used = (self.used.load(Ordering::Relaxed) as usize).min(RINGS_MAX);
        self.rings[..used].iter().find(|cell| cell.id.load(Ordering::Relaxed) == ring.0)
    }

    /// Begins to follow a ring, if there is a cell for it.
    fn follow(&self, seen: Completions, now: Time) -> Option<&RingCell> {
        let free = self.rings.iter().position(|cell| cell.id.load(Ordering::Relaxed) == 0)?;
        let cell = &self.rings[free];
        cell.tail.store(seen.tail, Ordering::Relaxed);
        cell.polled.store(now.0, Ordering::Relaxed);
        cell.open.store(0, Ordering::Relaxed);
        cell.id.store(seen.ring.0, Ordering::Relaxed);
        self.used.fetch_max(free as u32 + 1, Ordering::Relaxed);
        Some(cell)
    }

    /// The cells in which a request may be.
    fn cells(&self, ring: RingId, key: u64) -> impl Iterator<Item = &RequestCell> {
        // Keys are addresses, or count up from zero.
        let mixed = (key ^ ring.0.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (mixed >> 40) as usize;
        (0..PROBES).map(move |offset| &self.requests[first.wrapping_add(offset) % REQUESTS_MAX])
    }

    fn find(&self, ring: RingId, key: u64) -> Option<&RequestCell> {
        self.cells(ring, key).find(|cell| {
            cell.count.load(Ordering::Relaxed) > 0
                && cell.ring.load(Ordering::Relaxed) == ring.0
                && cell.key.load(Ordering::Relaxed) == key
        })
    }

    /// Notes requests with these keys, which the program is about to hand over at `now`, after a
    /// poll of their ring.
    pub(crate) fn begin(&self, seen: Completions, keys: impl Iterator<Item = u64>, now: Time) {
        self.alone(|| {
            let Some(of) = self.ring(seen.ring).or_else(|| self.follow(seen, now)) else { return };
            for key in keys {
                if let Some(twin) = self.find(seen.ring, key) {
                    // Which of them a completion is of cannot be told.
                    twin.count.fetch_add(1, Ordering::Relaxed);
                    twin.begun.store(0, Ordering::Relaxed);
                    of.open.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let is_free = |cell: &&RequestCell| cell.count.load(Ordering::Relaxed) == 0;
                let Some(cell) = self.cells(seen.ring, key).find(is_free) else { continue };
                cell.ring.store(seen.ring.0, Ordering::Relaxed);
                cell.key.store(key, Ordering::Relaxed);
                cell.begun.store(now.0, Ordering::Relaxed);
                cell.count.store(1, Ordering::Relaxed);
                of.open.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Ends one request with this key. Returns when it was handed over, if it was the only one.
    fn end(&self, ring: RingId, key: u64) -> Option<Time> {
        let cell = self.find(ring, key)?;
        cell.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(of) = self.ring(ring) {
            of.open.fetch_sub(1, Ordering::Relaxed);
        }
        let begun = Time(cell.begun.load(Ordering::Relaxed));
        (begun > Time::ZERO).then_some(begun)
    }

    /// Forgets requests that the kernel did not take.
    pub(crate) fn cancel(&self, ring: RingId, keys: impl Iterator<Item = u64>) {
        self.alone(|| keys.for_each(|key| _ = self.end(ring, key)));
    }

    /// Polls a ring at `now`; `read` gives the completion at a position. `has_waited` says that
    /// the program's call, since the poll before, returned when the last of them came. Calls
    /// `record` with each time that is known well enough.
    pub(crate) fn poll(
        &self,
        seen: Completions,
        has_waited: bool,
        now: Time,
        read: impl Fn(u32) -> Option<Completion>,
        mut record: impl FnMut(Span),
    ) {
        self.alone(|| {
            let Some(cell) = self.ring(seen.ring) else { return };
            let before = Time(cell.polled.load(Ordering::Relaxed));
            let new = seen.since(cell.tail.load(Ordering::Relaxed)).min(seen.size);
            for back in (1..=new).rev() {
                let Some(completion) = read(seen.position(back)) else { continue };
                let Some(begun) = self.end(seen.ring, completion.key) else { continue };
                // A read beyond the end of a file did not reach the storage.
                if !completion.moved {
                    continue;
                }
                let most = now.since(begun);
                let least = if has_waited && back == 1 { most } else { before.since(begun) };
                Bounds { least: least.min(most), most }.time().into_iter().for_each(&mut record);
            }
            cell.tail.store(seen.tail, Ordering::Relaxed);
            cell.polled.store(now.0, Ordering::Relaxed);
        });
    }

    /// Forgets a ring, which the program ends, and all that is in flight there.
    pub(crate) fn forget(&self, ring: RingId) {
        if !self.follows(ring) {
            return;
        }
        self.alone(|| {
            let is_of = |cell: &&RequestCell| cell.ring.load(Ordering::Relaxed) == ring.0;
            let requests = self.requests.iter().filter(is_of);
            requests.for_each(|cell| cell.count.store(0, Ordering::Relaxed));
            if let Some(cell) = self.ring(ring) {
                cell.id.store(0, Ordering::Relaxed);
            }
        });
    }

    /// Forgets everything: this process is a child, and what its parent has in flight is not its
    /// own.
    pub(crate) fn forget_all(&self) {
        if self.used.swap(0, Ordering::Relaxed) > 0 {
            self.rings.iter().for_each(|cell| cell.id.store(0, Ordering::Relaxed));
            self.requests.iter().for_each(|cell| cell.count.store(0, Ordering::Relaxed));
        }
        self.lock.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: RingId = RingId(0x1000);
    const MS: u64 = 1_000_000;

    /// A ring with these completions, the last of which is the newest.
    fn completions(done: &[u64]) -> (Completions, impl Fn(u32) -> Option<Completion>) {
        let seen = Completions { ring: RING, tail: done.len() as u32, modulus: 0, size: 64 };
        let read = |at: u32| done.get(at as usize).map(|key| Completion { key: *key, moved: true });
        (seen, read)
    }

    /// The times in milliseconds that are known well enough, of requests that are handed over at
    /// these times, where polls at these times find these keys done, in this order.
    fn times(begun: &[(u64, u64)], polls: &[(u64, &[u64], bool)]) -> Vec<u64> {
        let flight = Box::new(RequestsInFlight::new());
        let mut found = Vec::new();
        let mut events: Vec<_> = begun.iter().map(|(at, key)| (*at, 0, Some(*key))).collect();
        events.extend(polls.iter().enumerate().map(|(index, poll)| (poll.0, index, None)));
        events.sort_by_key(|(at, ..)| *at);
        let (mut done, mut seen): (Vec<u64>, _) = (Vec::new(), completions(&[]).0);
        for (at, index, key) in events {
            let now = Time(at * MS);
            match key {
                Some(key) => flight.begin(seen, [key].into_iter(), now),
                None => {
                    done.extend(polls[index].1);
                    let (now_seen, read) = completions(&done);
                    seen = now_seen;
                    flight.poll(seen, polls[index].2, now, read, |took| found.push(took.0 / MS));
                }
            }
        }
        found
    }

    #[test]
    fn a_time_counts_where_it_is_exact_or_known_within_a_factor_of_two() {
        let at_once = &[(1, 7)];
        assert_eq!(times(at_once, &[(31, &[7], true)]), [30], "the call waited for it");
        assert_eq!(times(at_once, &[(31, &[7], false)]), [0; 0], "at most 30 ms");
        assert_eq!(times(at_once, &[(17, &[], false), (31, &[7], false)]), [23], "16 at least");
        assert_eq!(times(at_once, &[(9, &[], false), (31, &[7], false)]), [0; 0], "8 at least");
        let bounds = |least, most| Bounds { least: Span(least), most: Span(most) }.time();
        assert_eq!(bounds(0, 300_000), Some(Span(150_000)), "as fine as timers are");
        assert_eq!((bounds(0, 500_000), bounds(7, 7)), (None, Some(Span(7))));
    }

    #[test]
    fn of_several_completions_a_call_waited_for_the_last() {
        let three = &[(1, 7), (1, 8), (1, 9)];
        assert_eq!(times(three, &[(40, &[8, 7, 9], true)]), [39]);
        assert_eq!(times(three, &[(5, &[8], true), (8, &[7, 9], true)]), [4, 5, 7]);
    }

    #[test]
    fn requests_with_one_key_are_not_timed_while_there_are_two() {
        let twins = &[(1, 7), (2, 7), (9, 7)];
        assert_eq!(times(twins, &[(4, &[7], true), (8, &[7], true), (10, &[7], true)]), [1]);
    }

    #[test]
    fn nothing_is_known_of_other_rings_and_requests() {
        let flight = Box::new(RequestsInFlight::new());
        let (seen, read) = completions(&[1, 2, 3]);
        let none = |_| panic!("there is no such request");
        flight.poll(seen, true, Time(5), &read, none);
        assert!(!flight.follows(RING));
        flight.begin(completions(&[]).0, [2].into_iter(), Time(1));
        assert!(flight.follows(RING));
        flight.cancel(RING, [2].into_iter());
        flight.poll(seen, true, Time(5), &read, none);
        flight.begin(seen, [9].into_iter(), Time(6));
        flight.forget(RING);
        assert!(!flight.follows(RING));
        flight.begin(seen, [9].into_iter(), Time(7));
        let mut found = Vec::new();
        let (seen, read) = completions(&[1, 2, 3, 9]);
        flight.poll(seen, true, Time(9), read, |took| found.push(took));
        assert_eq!(found, [Span(2)], "the one before was forgotten with its ring");
    }

    /// Positions of a ring that begins at zero again, against one that counts on.
    #[test]
    fn positions_go_around() {
        for modulus in [3, 8, 100] {
            for (before, new) in (0..2 * modulus).flat_map(|at| (0..modulus).map(move |n| (at, n)))
            {
                let tail = (before + new) % modulus;
                let seen = Completions { ring: RING, tail, modulus, size: modulus };
                assert_eq!(seen.since(before % modulus), new, "{before} + {new} of {modulus}");
                for back in 1..=new {
                    assert_eq!(seen.position(back), (before + new - back) % modulus);
                }
            }
        }
        let seen = Completions { ring: RING, tail: 2, modulus: 0, size: 8 };
        assert_eq!((seen.since(u32::MAX), seen.position(3)), (3, u32::MAX));
    }
}
