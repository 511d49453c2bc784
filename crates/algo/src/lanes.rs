//! Several schedulers that are one: each with a part of the tenants and behind a lock of its own,
//! so that threads seldom meet, and together as fair as one.
//!
//! # Problem
//! A scheduler is one structure, and whoever pushes or pops has it alone. With requests that are
//! served in a microsecond, on many processors, it is what all wait for. If every thread had a
//! scheduler for itself, each would be fair to its own tenants only.
//!
//! # Mechanism
//! A *lane* is a scheduler with a part of the tenants. A thread locks one lane at a time, for a
//! batch: it reports what is finished, puts in what has come, takes out what may go. After each
//! batch it shows the lane's [`Front`] to all: what step its next request is in and where that
//! starts, how far each race is, and how far ahead of others it may be. That needs no lock, and
//! before a batch a thread reads the fronts of the other lanes ([`Others`]). Then:
//!
//! - **Steps** are common: from a lane nothing goes while in another somebody waits in an earlier
//!   step ([`Others::allow`]).
//! - **Races** are common, with some slack (the idea of MQFQ; Hedayati et al., USENIX ATC 2019):
//!   what goes from a lane starts not later than what waits in any other lane, and the *lead*. A
//!   thread stays with its lane as long as that may go on, and else helps the lane that is most
//!   behind ([`Fronts::next`]). The lead is a power of two, more than 8 ([`LEAD`]) and at most 16
//!   times as long as the longest request that went from any lane in this period and the last.
//! - **Whoever comes** to a lane in which nobody waits begins where the farthest lane is
//!   ([`crate::scheduler::Scheduler::heed`]): a lane that was idle gives no credit.
//!
//! # How fair it is
//! Let *f* and *g* wait in the same step in the lanes *i* and *j*, and *v* be where a lane's race
//! is. What goes from *i* starts at most LEAD behind what waits in *j*, which never moves back; so
//! the next request of *f* starts at most LEAD and one length of *f* behind that of *g*, and the
//! other way round. At both ends of any interval, hence the work dispatched for each, per weight,
//! differs by at most one request of each, as in one scheduler, and **two LEAD**. When requests
//! finish that becomes the bound of Theorem 1 and two LEAD. What a thread has read may be old when
//! it has the lock: fronts only move on, so it lets through too little rather than too much, except
//! that the others may have been idle. Then a batch goes as though it had been taken out before
//! they came, and is at the device, which Theorem 1 allows for.
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
//! serves *a* up to 112, and from then on *b* and *a* in turn.

use alloc::boxed::Box;
use core::sync::atomic::{Ordering, fence};

use tidegate_model::Time;

use crate::published::Published;
use crate::scheduler::{Passed, Step};

/// By how many of the longest requests a lane may be ahead of another, at least. So many that a
/// thread can serve its lane for some batches while others are kept from theirs.
pub const LEAD: u32 = 8;

/// The most lanes. A thread reads the fronts of all others for each batch.
pub const LANES_MAX: usize = 16;

/// The words of a published front.
const WORDS: usize = 11;
/// The step of a lane in which nobody waits.
const NOBODY: u64 = Step::ALL.len() as u64;

/// What a lane shows of itself.
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
    /// What it has let through.
    pub(crate) passed: Passed,
}

impl Front {
    fn words(&self) -> [u64; WORDS] {
        let (step, start) = self.head.map_or((NOBODY, 0), |(step, start)| (step as u64, start));
        let passed = u64::from(self.passed.reserved) << 32 | u64::from(self.passed.fair);
        let [a, b, c] = self.races.map(halves);
        let start = halves(start);
        let flags = step | u64::from(self.lead) << 8;
        let at = self.next_eligible.0;
        [flags, at, passed, start[0], start[1], a[0], a[1], b[0], b[1], c[0], c[1]]
    }

    fn read(words: [u64; WORDS]) -> Self {
        let [flags, next, passed, rest @ ..] = words;
        let [start, races @ ..] =
            [0, 2, 4, 6].map(|at| u128::from(rest[at]) << 64 | u128::from(rest[at + 1]));
        let step = Step::ALL.get((flags & 0xff) as usize);
        Self {
            head: step.map(|step| (*step, start)),
            races,
            lead: (flags >> 8) as u32,
            next_eligible: Time(next),
            passed: Passed { reserved: (passed >> 32) as u32, fair: passed as u32 },
        }
    }
}

/// What the lanes but one have shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// The earliest step in which somebody waits there, and the least start in it.
    head: Option<(Step, u128)>,
    /// Where the race of each step is that is farthest.
    pub(crate) races: [u128; Step::ALL.len()],
    /// How far they may be ahead, as a power of two.
    pub(crate) lead: u32,
    /// What they have let through.
    pub(crate) passed: Passed,
}

impl Others {
    /// There are none.
    pub const NONE: Self =
        Self { head: None, races: [0; 3], lead: 0, passed: Passed { reserved: 0, fair: 0 } };

    /// Whether somebody waits there who may go.
    pub(crate) const fn is_backlogged(&self) -> bool {
        self.head.is_some()
    }

    /// Whether a request may go that starts here in a step, from a lane with this lead.
    #[inline]
    pub(crate) fn allow(&self, step: Step, start: u128, lead: u32) -> bool {
        self.head.is_none_or(|(earliest, least)| {
            step < earliest
                || step == earliest && start <= least.saturating_add(1 << lead.max(self.lead))
        })
    }

    fn add(&mut self, front: &Front) {
        self.head = match (self.head, front.head) {
            (Some(least), Some(head)) => Some(least.min(head)),
            (least, head) => least.or(head),
        };
        for (farthest, race) in self.races.iter_mut().zip(front.races) {
            *farthest = race.max(*farthest);
        }
        self.lead = self.lead.max(front.lead);
        self.passed = self.passed + front.passed;
    }
}

/// What the lanes show to each other.
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
/// // Nobody serves the second lane: the first is ahead by more than 8 requests and at most 16.
/// while fronts.next(now, 0) == Some(0) {
///     let others = fronts.others(0);
///     schedulers[0].heed(&others);
///     assert!(schedulers[0].pop_beside(now, &others).is_some());
///     fronts.show(0, &schedulers[0].front());
/// }
/// assert_eq!(schedulers[0].waiting(), 87);
/// assert_eq!(fronts.next(now, 0), Some(1));
/// ```
#[derive(Debug)]
pub struct Fronts {
    fronts: Box<[Published<WORDS>]>,
}

impl Fronts {
    /// So many lanes, in which nobody waits.
    ///
    /// # Panics
    /// If there are none, or more than [`LANES_MAX`].
    pub fn new(count: usize) -> Self {
        assert!((1..=LANES_MAX).contains(&count), "1 to {LANES_MAX} lanes, not {count}");
        let fronts = Self { fronts: (0..count).map(|_| Published::default()).collect() };
        let races = [0; Step::ALL.len()];
        let passed = Passed::default();
        let next_eligible = Time::MAX;
        let idle = Front { head: None, races, lead: 0, next_eligible, passed };
        (0..count).for_each(|lane| fronts.show(lane, &idle));
        fronts
    }

    /// Shows the front of a lane. To be called with the lane locked, before it is let go.
    #[inline]
    pub fn show(&self, lane: usize, front: &Front) {
        self.fronts[lane].write(front.words());
    }

    /// What the others have shown.
    #[inline]
    pub fn others(&self, lane: usize) -> Others {
        let mut others = Others::NONE;
        for (index, front) in self.fronts.iter().enumerate() {
            if index != lane {
                others.add(&Front::read(front.read()));
            }
        }
        others
    }

    /// Which lane to take requests from, if one prefers its own; none if nobody waits who may go.
    pub fn next(&self, now: Time, own: usize) -> Option<usize> {
        // What others put in before they looked for room in vain is seen by those who made room.
        fence(Ordering::SeqCst);
        let mut others = Others::NONE;
        let (mut ours, mut behind) = (None, None);
        for (lane, front) in self.fronts.iter().enumerate() {
            let front = Front::read(front.read());
            if front.head.is_none() && front.next_eligible <= now {
                return Some(lane);
            }
            if lane == own {
                ours = front.head;
                others.lead = others.lead.max(front.lead);
            } else {
                others.add(&front);
                behind = if front.head.is_some() && others.head == front.head {
                    Some(lane)
                } else {
                    behind
                };
            }
        }
        match ours {
            Some((step, start)) if others.allow(step, start, 0) => Some(own),
            _ => behind,
        }
    }

    /// Whether somebody waits who may go, and when the first of those who are ahead of their pace
    /// no longer is; [`Time::MAX`] for never.
    pub fn outlook(&self) -> (bool, Time) {
        let fronts = self.fronts.iter().map(|front| Front::read(front.read()));
        fronts.fold((false, Time::MAX), |(is_backlogged, next), front| {
            (is_backlogged || front.head.is_some(), next.min(front.next_eligible))
        })
    }
}

const fn halves(word: u128) -> [u64; 2] {
    [(word >> 64) as u64, word as u64]
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
