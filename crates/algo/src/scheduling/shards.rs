//! Coordination of the shards of one scheduler: each shard has some of the tenants and a lock of
//! its own, and together they are as fair as one scheduler.
//!
//! # Problem
//! A scheduler is one structure, and a thread that pushes or pops has it alone. With requests that
//! are served in a microsecond, on many processors, all threads would wait for it. If every thread
//! had a scheduler for itself, each would be fair to its own tenants only.
//!
//! # Mechanism
//! A *shard* is a scheduler with a part of the tenants. A thread locks one shard at a time, for a
//! batch: it reports completions, puts in new requests, takes out those that may go. After each
//! batch it publishes the shard's [`ShardHead`]: the phase and start tag of the next request, the
//! virtual time of each phase, and how far ahead of other shards it may be. That needs no lock, and
//! before a batch a thread reads the heads of the other shards ([`OtherShards`]). Then:
//!
//! - **Phases** are common: no request goes from a shard while in another shard a request waits in
//!   an earlier phase ([`OtherShards::allow`]).
//! - **Virtual times** are common, with some slack (the idea of MQFQ; Hedayati et al., USENIX ATC
//!   2019): the start tag of a dispatched request is at most the *lead* greater than that of any
//!   request that waits in another shard. A thread stays with its shard as long as that may go on,
//!   and else helps the shard that is most behind ([`ShardHeads::next`]). The lead is a power of
//!   two, more than 16 ([`LEAD`]) and at most 32 times as long as the longest request that any
//!   shard dispatched in this period and the last.
//! - **Classes** take turns in common ([`super::turns`]): a shard serves the fair phase only while
//!   it has the class of the turn, and other shards are compared in this class alone.
//! - **Tenants that come** to a shard without waiting requests begin at the virtual time of the
//!   shard that is farthest ([`crate::scheduling::scheduler::Scheduler::observe`]): a shard that
//!   was idle gives no credit.
//!
//! # How fair it is
//! Let *f* and *g* be backlogged in the same phase in the shards *i* and *j*. The start tag of a
//! request that goes from *i* is at most LEAD greater than those that wait in *j*, which never
//! decrease; so the next start tag of *f* is at most LEAD and one length of *f* greater than that
//! of *g*, and the other way round. So over any interval the work dispatched for each, per weight,
//! differs by at most one request of each, as in one scheduler, and **two LEAD**. When requests
//! finish that becomes the bound of Theorem 1 and two LEAD. The heads that a thread has read may be
//! old when it has the lock. Heads only advance, so the thread lets through too little rather than
//! too much, except that the other shards may have been idle. Then a batch goes as though it had
//! been taken out before they came, and is at the device, which Theorem 1 allows for.
//!
//! # No thread sleeps while a request waits
//! A thread that published a head, or made headroom at the device ([`crate::scheduling::device`]),
//! reads all heads ([`ShardHeads::next`]) and then the headroom, and goes on until one of both is
//! missing. The fence in `next` makes sure that of two threads, of which one put something in and
//! the other made headroom, at least one sees both.
//!
//! # Example
//! Tenants *a* and *b* with the same weight in two shards, requests of length 1, two threads. While
//! both go on, each serves its shard. If the second thread stops when *b* is at 100, the first
//! serves *a* up to 132, and from then on *b* and *a* alternately.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::array;

use tidegate_model::Time;

use crate::concurrent::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::scheduling::phase::{Passed, Phase};
use crate::scheduling::turns::ClassTurns;
pub use crate::scheduling::turns::LEAD;
use crate::scheduling::wrr::SHARING;

/// The most shards. A thread reads the heads of all others for each batch.
pub const SHARDS_MAX: usize = 16;

/// The bits of a start tag in a key, and the positions of its exponent and of its phase. Start tags
/// are rounded down, by less than one part in 2^54: less than a request if they all are as long.
const MANTISSA: u32 = 55;
const PHASE_SHIFT: u32 = 62;
/// The key of a shard without waiting requests: later than any other.
const NO_REQUEST: u64 = u64::MAX;

/// The summary of a shard for the other shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardHead {
    /// The phase and the start tag of its next request with a reservation token.
    pub(crate) reserved: Option<(Phase, u128)>,
    /// The start tag of the next request of each class in the fair phase.
    pub(crate) fair: [Option<u128>; SHARING],
    pub(crate) virtual_times: [u128; Phase::ALL.len()],
    /// How far it may be ahead, as a power of two.
    pub(crate) lead: u32,
    /// When the first of the tenants that are ahead of their pace no longer is.
    pub(crate) next_eligible: Time,
    /// Units of cost that it has let through.
    pub(crate) passed: Passed,
}

/// The latest head of a shard, in one cache line (processors fetch them in pairs), or a mixture of
/// it and the one before: each word is true by itself, and those that matter together are one word.
#[derive(Debug)]
#[repr(align(128))]
struct PublishedShard {
    reserved: AtomicU64,
    fair: [AtomicU64; SHARING],
    virtual_times: [AtomicU64; Phase::ALL.len()],
    next_eligible: AtomicU64,
    passed: AtomicU64,
    lead: AtomicU32,
}

impl PublishedShard {
    fn idle() -> Self {
        Self {
            reserved: AtomicU64::new(NO_REQUEST),
            fair: array::from_fn(|_| AtomicU64::new(NO_REQUEST)),
            virtual_times: array::from_fn(|_| AtomicU64::new(0)),
            next_eligible: AtomicU64::new(Time::MAX.0),
            passed: AtomicU64::new(0),
            lead: AtomicU32::new(0),
        }
    }

    fn write(&self, shard_head: &ShardHead) {
        let order = Ordering::Release;
        let passed =
            u64::from(shard_head.passed.reserved) << 32 | u64::from(shard_head.passed.fair);
        for (shown, virtual_time) in self.virtual_times.iter().zip(shard_head.virtual_times) {
            shown.store(short(virtual_time), order);
        }
        self.passed.store(passed, order);
        self.lead.store(shard_head.lead, order);
        self.next_eligible.store(shard_head.next_eligible.0, order);
        for (class, (shown, start_tag)) in self.fair.iter().zip(shard_head.fair).enumerate() {
            let key = start_tag.map_or(NO_REQUEST, |start_tag| key(Phase::fair(class), start_tag));
            shown.store(key, order);
        }
        let reserved = shard_head.reserved;
        self.reserved
            .store(reserved.map_or(NO_REQUEST, |(phase, start_tag)| key(phase, start_tag)), order);
    }

    fn heads(&self) -> Heads {
        let fair = self.fair.each_ref().map(|head| head.load(Ordering::Acquire));
        Heads { reserved: self.reserved.load(Ordering::Acquire), fair }
    }

    fn next_eligible(&self) -> Time {
        Time(self.next_eligible.load(Ordering::Relaxed))
    }
}

/// The first bits of a start, so that a greater one has no smaller.
const fn short(start_tag: u128) -> u64 {
    let shift = (u128::BITS - start_tag.leading_zeros()).saturating_sub(MANTISSA);
    (shift as u64) << MANTISSA | (start_tag >> shift) as u64
}

/// The least start that has these first bits.
const fn long(short: u64) -> u128 {
    let mantissa = short & ((1 << MANTISSA) - 1);
    (mantissa as u128) << (short >> MANTISSA & ((1 << (PHASE_SHIFT - MANTISSA)) - 1))
}

/// All classes of the fair phase have the same: their start tags are of different fair queues, and
/// are never compared.
const fn key(phase: Phase, start_tag: u128) -> u64 {
    let phase = if phase.is_reserved() { phase as u64 } else { 2 };
    phase << PHASE_SHIFT | short(start_tag)
}

/// The keys of the next requests: with a reservation token, and of each class in the fair phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Heads {
    reserved: u64,
    fair: [u64; SHARING],
}

impl Heads {
    const NONE: Self = Self { reserved: NO_REQUEST, fair: [NO_REQUEST; SHARING] };

    fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Takes over those of `other` that are less.
    fn lower(&mut self, other: &Self) {
        self.reserved = other.reserved.min(self.reserved);
        for (least, head) in self.fair.iter_mut().zip(other.fair) {
            *least = head.min(*least);
        }
    }

    /// The head that a request of this phase is compared with: those with a reservation token go
    /// before all others.
    fn rival(&self, phase: Phase) -> u64 {
        match self.reserved {
            NO_REQUEST if !phase.is_reserved() => self.fair[phase.class()],
            reserved => reserved,
        }
    }
}

/// The combined summary of all shards but one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherShards {
    /// The least of their heads.
    heads: Heads,
    /// The greatest virtual time of each phase.
    pub(crate) virtual_times: [u128; Phase::ALL.len()],
    /// How far they may be ahead, as a power of two.
    pub(crate) lead: u32,
    /// Units of cost that they have let through.
    pub(crate) passed: Passed,
}

impl OtherShards {
    /// There are none.
    pub const NONE: Self = Self {
        heads: Heads::NONE,
        virtual_times: [0; Phase::ALL.len()],
        lead: 0,
        passed: Passed { reserved: 0, fair: 0 },
    };

    /// Whether a request waits there that may go.
    pub(crate) fn is_backlogged(&self) -> bool {
        !self.heads.is_none()
    }

    /// Whether a request of this class waits there in the fair phase.
    pub(crate) const fn waits(&self, class: usize) -> bool {
        self.heads.fair[class] != NO_REQUEST
    }

    /// Whether a request with this phase and start tag may go from a shard with this lead. Judged
    /// by what the shard publishes, so that a thread that has seen that it may finds that it may.
    #[inline]
    pub(crate) fn allow(&self, phase: Phase, start_tag: u128, lead: u32) -> bool {
        allow(key(phase, start_tag), self.heads.rival(phase), lead.max(self.lead))
    }

    fn add(&mut self, shown: &PublishedShard) {
        self.heads.lower(&shown.heads());
        for (farthest, virtual_time) in self.virtual_times.iter_mut().zip(&shown.virtual_times) {
            *farthest = long(virtual_time.load(Ordering::Relaxed)).max(*farthest);
        }
        self.lead = shown.lead.load(Ordering::Relaxed).max(self.lead);
        let passed = shown.passed.load(Ordering::Relaxed);
        self.passed = self.passed + Passed { reserved: (passed >> 32) as u32, fair: passed as u32 };
    }
}

/// Whether a request with this key may go while another one waits in another shard.
const fn allow(key: u64, rival: u64, lead: u32) -> bool {
    key <= rival
        || key >> PHASE_SHIFT == rival >> PHASE_SHIFT
            && long(key) <= long(rival).saturating_add(1 << lead)
}

/// The summaries that the shards publish to each other.
///
/// ```
/// use tidegate_algo::scheduling::shards::ShardHeads;
/// use tidegate_algo::scheduling::scheduler::{RequestCost, Pacing, Scheduler, TenantParameters};
/// use tidegate_model::{Discipline, Time};
/// let now = Time::ZERO;
/// let shard_heads = ShardHeads::new(2);
/// let scheduler = |shard| Scheduler::in_shard(shard, Discipline::Sfq, Pacing::Even);
/// let mut schedulers = [0, 1].map(scheduler);
/// for (shard, scheduler) in schedulers.iter_mut().enumerate() {
///     let slot = scheduler.add(TenantParameters::of_weight(1));
///     (0..100).for_each(|job| scheduler.push(now, slot, RequestCost::ONE, job));
///     shard_heads.show(shard, &scheduler.shard_head());
/// }
/// // No thread serves the second shard: the first is ahead by 17 to 32 requests.
/// while shard_heads.next(now, 0) == Some(0) {
///     let others = shard_heads.others(0);
///     schedulers[0].observe(&others);
///     assert!(schedulers[0].pop_beside(now, &others).is_some());
///     shard_heads.show(0, &schedulers[0].shard_head());
/// }
/// assert_eq!(schedulers[0].waiting(), 74);
/// assert_eq!(shard_heads.next(now, 0), Some(1));
/// ```
#[derive(Debug)]
pub struct ShardHeads {
    shown: Box<[PublishedShard]>,
    turns: Arc<ClassTurns>,
}

impl ShardHeads {
    /// So many shards, without waiting requests.
    ///
    /// # Panics
    /// If there are none, or more than [`SHARDS_MAX`].
    pub fn new(count: usize) -> Self {
        assert!((1..=SHARDS_MAX).contains(&count), "1 to {SHARDS_MAX} shards, not {count}");
        let turns = Arc::new(ClassTurns::new(count));
        Self { shown: (0..count).map(|_| PublishedShard::idle()).collect(), turns }
    }

    /// The turns of the classes with weights.
    pub(crate) fn turns(&self) -> Arc<ClassTurns> {
        self.turns.clone()
    }

    /// Publishes the head of a shard. To be called with the shard locked, before it is unlocked.
    #[inline]
    pub fn show(&self, shard: usize, shard_head: &ShardHead) {
        self.shown[shard].write(shard_head);
    }

    /// Returns the combined summary of all shards but `shard`.
    #[inline]
    pub fn others(&self, shard: usize) -> OtherShards {
        let mut others = OtherShards::NONE;
        for (index, shown) in self.shown.iter().enumerate() {
            if index != shard {
                others.add(shown);
            }
        }
        others
    }

    /// The shard to take requests from, preferably `own`; none if no request waits that may go.
    pub fn next(&self, now: Time, own: usize) -> Option<usize> {
        // A thread that made headroom sees the requests that other threads put in before they found
        // none.
        fence(Ordering::SeqCst);
        let (mut heads, mut all, mut lead) = (Heads::NONE, Heads::NONE, 0);
        for (shard, shown) in self.shown.iter().enumerate() {
            let shown_heads = shown.heads();
            if shown_heads.is_none() && shown.next_eligible() <= now {
                return Some(shard);
            }
            lead = shown.lead.load(Ordering::Relaxed).max(lead);
            all.lower(&shown_heads);
            if shard == own {
                heads = shown_heads;
            }
        }
        let phase = match all.reserved {
            NO_REQUEST => Phase::fair(self.turns.next(all.fair.map(|head| head != NO_REQUEST))?),
            _ => Phase::Reserved,
        };
        let head = |heads: &Heads| match phase {
            Phase::Reserved => heads.reserved,
            _ => heads.fair[phase.class()],
        };
        if head(&heads) != NO_REQUEST && allow(head(&heads), head(&all), lead) {
            return Some(own);
        }
        let others = self.shown.iter().enumerate().filter(|(shard, _)| *shard != own);
        others.map(|(shard, shown)| (head(&shown.heads()), shard)).min().map(|(_, shard)| shard)
    }

    /// Whether a request waits that may go, and when the first of the tenants ahead of their pace
    /// no longer is; [`Time::MAX`] for never.
    pub fn outlook(&self) -> (bool, Time) {
        self.shown.iter().fold((false, Time::MAX), |(is_backlogged, next), shown| {
            (is_backlogged || !shown.heads().is_none(), next.min(shown.next_eligible()))
        })
    }
}

#[cfg(test)]
#[path = "shards_tests.rs"]
mod tests;
