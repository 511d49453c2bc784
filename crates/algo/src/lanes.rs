//! Several schedulers that are one: each with a part of the tenants and behind a lock of its own,
//! so that threads seldom meet, and together as fair as one.
//!
//! # Problem
//! A scheduler is one structure, and a thread that pushes or pops has it alone. With requests that
//! are served in a microsecond, on many processors, it is what all wait for. If every thread had a
//! scheduler for itself, each would be fair to its own tenants only.
//!
//! # Mechanism
//! A *lane* is a scheduler with a part of the tenants. A thread locks one lane at a time, for a
//! batch: it reports what is finished, puts in what has come, takes out what may go. After each
//! batch it shows the lane's [`Front`] to all: what step its next request is in and where that
//! starts, how far each race is, and how far ahead of others it may be. That needs no lock, and
//! before a batch a thread reads the fronts of the other lanes ([`Others`]). Then:
//!
//! - **Steps** are common: no request goes from a lane while in another a request waits in an
//!   earlier step ([`Others::allow`]).
//! - **Races** are common, with some slack (the idea of MQFQ; Hedayati et al., USENIX ATC 2019):
//!   what goes from a lane starts not later than what waits in any other lane, and the *lead*. A
//!   thread stays with its lane as long as that may go on, and else helps the lane that is most
//!   behind ([`Fronts::next`]). The lead is a power of two, more than 16 ([`LEAD`]) and at most
//!   32 times as long as the longest request that went from any lane in this period and the last.
//! - **Tenants that come** to a lane without waiting requests begin where the farthest lane is
//!   ([`crate::scheduler::Scheduler::heed`]): a lane that was idle gives no credit.
//!
//! # How fair it is
//! Let *f* and *g* wait in the same step in the lanes *i* and *j*, and *v* be where a lane's race
//! is. A request that goes from *i* starts at most LEAD behind those that wait in *j*, which never
//! move back; so the next request of *f* starts at most LEAD and one length of *f* behind that of
//! *g*, and the other way round. At both ends of any interval, hence the work dispatched for each,
//! per weight, differs by at most one request of each, as in one scheduler, and **two LEAD**. When
//! requests finish that becomes the bound of Theorem 1 and two LEAD. The fronts that a thread has
//! read may be old when it has the lock: fronts only move on, so it lets through too little rather
//! than too much, except that the others may have been idle. Then a batch goes as though it had
//! been taken out before they came, and is at the device, which Theorem 1 allows for.
//!
//! # Nobody sleeps while somebody waits
//! A thread that made a front, or room at the device ([`crate::device`]), looks at all fronts
//! ([`Fronts::next`]) and then for room, and goes on until one of both is missing. The fence in
//! `next` is what makes it sure that of two threads, of which one put something in and the other
//! made room, at least one sees both.
//!
//! # Example
//! Tenants *a* and *b* with the same weight in two lanes, requests of length 1, two threads. While
//! both go on, each serves its lane. If the second thread stops when *b* is at 100, the first
//! serves *a* up to 132, and from then on *b* and *a* in turn.

use alloc::boxed::Box;
use core::array;

use tidegate_model::Time;

use crate::scheduler::{Passed, Step};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// By how many of the longest requests a lane may be ahead of another, at least. So many that a
/// thread can serve its lane for some batches while others are kept from theirs.
pub const LEAD: u32 = 16;

/// The most lanes. A thread reads the fronts of all others for each batch.
pub const LANES_MAX: usize = 16;

/// The bits of a start that are shown, and where its exponent and its step are beside them. Starts
/// are rounded down, by less than one part in 2^54: less than a request if they all are as long.
const MANTISSA: u32 = 55;
const STEP: u32 = 62;
/// The key that a lane without waiting requests shows: later than any other.
const NOBODY: u64 = u64::MAX;

/// The summary of a lane that the other lanes see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// In which step its next request is, and where it starts.
    pub(crate) head: Option<(Step, u128)>,
    /// Where the race of each step is.
    pub(crate) races: [u128; Step::ALL.len()],
    /// How far it may be ahead, as a power of two.
    pub(crate) lead: u32,
    /// When the first of those who are ahead of their pace no longer is.
    pub(crate) next_eligible: Time,
    /// Units of cost that it has let through.
    pub(crate) passed: Passed,
}

/// The latest front of a lane, in one cache line (processors fetch them in pairs), or a mixture of
/// it and the one before: each word is true by itself, and those that matter together are one word.
#[derive(Debug)]
#[repr(align(128))]
struct Shown {
    head: AtomicU64,
    races: [AtomicU64; Step::ALL.len()],
    next_eligible: AtomicU64,
    passed: AtomicU64,
    lead: AtomicU32,
}

impl Shown {
    fn nobody() -> Self {
        Self {
            head: AtomicU64::new(NOBODY),
            races: array::from_fn(|_| AtomicU64::new(0)),
            next_eligible: AtomicU64::new(Time::MAX.0),
            passed: AtomicU64::new(0),
            lead: AtomicU32::new(0),
        }
    }

    fn write(&self, front: &Front) {
        let order = Ordering::Release;
        let passed = u64::from(front.passed.reserved) << 32 | u64::from(front.passed.fair);
        for (shown, race) in self.races.iter().zip(front.races) {
            shown.store(short(race), order);
        }
        self.passed.store(passed, order);
        self.lead.store(front.lead, order);
        self.next_eligible.store(front.next_eligible.0, order);
        self.head.store(front.head.map_or(NOBODY, |(step, start)| key(step, start)), order);
    }

    fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    fn next_eligible(&self) -> Time {
        Time(self.next_eligible.load(Ordering::Relaxed))
    }
}

/// The first bits of a start, so that a greater one has no smaller.
const fn short(start: u128) -> u64 {
    let shift = (u128::BITS - start.leading_zeros()).saturating_sub(MANTISSA);
    (shift as u64) << MANTISSA | (start >> shift) as u64
}

/// The least start that has these first bits.
const fn long(short: u64) -> u128 {
    let mantissa = short & ((1 << MANTISSA) - 1);
    (mantissa as u128) << (short >> MANTISSA & ((1 << (STEP - MANTISSA)) - 1))
}

/// A step and a start, in their order.
const fn key(step: Step, start: u128) -> u64 {
    (step as u64) << STEP | short(start)
}

/// The combined summary of all lanes but one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// The earliest step with a waiting request there, and the least start in it.
    head: u64,
    /// Where the race of each step is that is farthest.
    pub(crate) races: [u128; Step::ALL.len()],
    /// How far they may be ahead, as a power of two.
    pub(crate) lead: u32,
    /// Units of cost that they have let through.
    pub(crate) passed: Passed,
}

impl Others {
    /// There are none.
    pub const NONE: Self =
        Self { head: NOBODY, races: [0; 3], lead: 0, passed: Passed { reserved: 0, fair: 0 } };

    /// Whether a request waits there that may go.
    pub(crate) const fn is_backlogged(&self) -> bool {
        self.head != NOBODY
    }

    /// Whether a request may go that starts here in a step, from a lane with this lead. Judged by
    /// what the lane shows, so that a thread that has seen that it may finds that it may.
    #[inline]
    pub(crate) fn allow(&self, step: Step, start: u128, lead: u32) -> bool {
        self.allow_key(key(step, start), lead)
    }

    fn allow_key(&self, key: u64, lead: u32) -> bool {
        key <= self.head
            || key >> STEP == self.head >> STEP
                && long(key) <= long(self.head).saturating_add(1 << lead.max(self.lead))
    }

    fn add(&mut self, shown: &Shown) {
        self.head = shown.head().min(self.head);
        for (farthest, race) in self.races.iter_mut().zip(&shown.races) {
            *farthest = long(race.load(Ordering::Relaxed)).max(*farthest);
        }
        self.lead = shown.lead.load(Ordering::Relaxed).max(self.lead);
        let passed = shown.passed.load(Ordering::Relaxed);
        self.passed = self.passed + Passed { reserved: (passed >> 32) as u32, fair: passed as u32 };
    }
}

/// The summaries that the lanes show to each other.
///
/// ```
/// use tidegate_algo::lanes::Fronts;
/// use tidegate_algo::scheduler::{Ask, Pacing, Scheduler, Terms};
/// use tidegate_model::{Discipline, Time};
/// let now = Time::ZERO;
/// let fronts = Fronts::new(2);
/// let mut schedulers = [0, 1].map(|lane| Scheduler::in_lane(lane, Discipline::Sfq, Pacing::Even));
/// for (lane, scheduler) in schedulers.iter_mut().enumerate() {
///     let slot = scheduler.add(Terms::of_weight(1));
///     (0..100).for_each(|job| scheduler.push(now, slot, Ask::ONE, job));
///     fronts.show(lane, &scheduler.front());
/// }
/// // Nobody serves the second lane: the first is ahead by more than 16 requests and at most 32.
/// while fronts.next(now, 0) == Some(0) {
///     let others = fronts.others(0);
///     schedulers[0].heed(&others);
///     assert!(schedulers[0].pop_beside(now, &others).is_some());
///     fronts.show(0, &schedulers[0].front());
/// }
/// assert_eq!(schedulers[0].waiting(), 74);
/// assert_eq!(fronts.next(now, 0), Some(1));
/// ```
#[derive(Debug)]
pub struct Fronts {
    shown: Box<[Shown]>,
}

impl Fronts {
    /// So many lanes, without waiting requests.
    ///
    /// # Panics
    /// If there are none, or more than [`LANES_MAX`].
    pub fn new(count: usize) -> Self {
        assert!((1..=LANES_MAX).contains(&count), "1 to {LANES_MAX} lanes, not {count}");
        Self { shown: (0..count).map(|_| Shown::nobody()).collect() }
    }

    /// Shows the front of a lane. To be called with the lane locked, before it is let go.
    #[inline]
    pub fn show(&self, lane: usize, front: &Front) {
        self.shown[lane].write(front);
    }

    /// Returns the combined summary of all lanes but `lane`.
    #[inline]
    pub fn others(&self, lane: usize) -> Others {
        let mut others = Others::NONE;
        for (index, shown) in self.shown.iter().enumerate() {
            if index != lane {
                others.add(shown);
            }
        }
        others
    }

    /// Which lane to take requests from, if one prefers its own; none if no request waits that may
    /// go.
    pub fn next(&self, now: Time, own: usize) -> Option<usize> {
        // A thread that made room sees the requests that others put in before they looked for room
        // in vain.
        fence(Ordering::SeqCst);
        let (mut ours, mut least, mut lead) = (NOBODY, (NOBODY, own), 0);
        for (lane, shown) in self.shown.iter().enumerate() {
            let head = shown.head();
            if head == NOBODY && shown.next_eligible() <= now {
                return Some(lane);
            }
            lead = shown.lead.load(Ordering::Relaxed).max(lead);
            if lane == own {
                ours = head;
            } else {
                least = least.min((head, lane));
            }
        }
        let others = Others { head: least.0, lead, ..Others::NONE };
        match ours {
            NOBODY => (least.0 != NOBODY).then_some(least.1),
            _ if others.allow_key(ours, 0) => Some(own),
            _ => Some(least.1),
        }
    }

    /// Whether a request waits that may go, and when the first of the tenants ahead of their pace
    /// no longer is; [`Time::MAX`] for never.
    pub fn outlook(&self) -> (bool, Time) {
        self.shown.iter().fold((false, Time::MAX), |(is_backlogged, next), shown| {
            (is_backlogged || shown.head() != NOBODY, next.min(shown.next_eligible()))
        })
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
