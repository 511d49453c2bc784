//! Arbitration between queues: first come, round robin, or weighted round robin under two strict
//! levels, as NVMe has it.
//!
//! # Problem
//! A storage device takes commands out of many queues: several hosts, several classes, and the same
//! again inside, before each chip. The choice of the next queue decides which latency grows. The
//! rule has to be exact (shares are counted in commands, not in luck), must never leave the device
//! idle while a command waits, and must cost the same with ten thousand queues as with two.
//!
//! # Model
//! The NVMe base specification 1.4, section 4.13. A queue has a [`Level`]. *Admin* goes before
//! everything, *urgent* before all data of other classes. High, medium and low share by weights: in
//! one cycle each of them may send as many commands as its weight, and one in which no command
//! waits passes. Within a level the queues are served in rotation, each for at most a *burst* of
//! commands (the specification's arbitration burst). Plain round robin treats all queues as one
//! level; [`Arbitration::Arrival`] is one line for all, as in a device without classes.
//!
//! # Mechanism
//! A cycle is a list of *slots*, one for each unit of weight. The specification leaves their order
//! open; here they come in rounds, counted down from the largest weight, and a class is in a round
//! if its weight reaches it. So a class with three units is spread over the cycle rather than
//! served three times in a row. With 3 : 2 : 1:
//!
//! | round | 3 | 2 | 2 | 1 | 1 | 1 |
//! |---|---|---|---|---|---|---|
//! | slot | high | high | medium | high | medium | low |
//!
//! Next is the first slot after the last one, around the cycle, whose class has a command waiting.
//! It is computed and not searched for: the first slot of a class after round *r* is in round
//! min(*r*, weight), or in the next cycle. If medium is empty, the same cycle reads high, high,
//! high, low: what medium leaves goes to both others, by their weights.
//!
//! The queues of a level in which commands wait stand in a ring. The first is served; after a burst
//! it goes to the end, and when it is empty it leaves. One command costs O(1).
//!
//! # What it promises
//! - While the same classes have commands waiting, each whole cycle serves each of them exactly as
//!   often as its weight.
//! - Something is served whenever something waits.
//! - Nothing of a class is served while an urgent or admin command waits.
//!
//! # What is left out
//! Weights count commands, not bytes; so does the specification. Weights of zero are refused: a
//! class that may starve is what strict levels are for.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tidegate_model::{Class, ClassWeights};

/// The largest weight and the largest burst: NVMe has eight bits for each.
pub const WEIGHT_MAX: u16 = 256;

/// How urgent a queue is. Ordered from the most urgent to the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Commands that manage the device. Before everything.
    Admin,
    /// Commands of tenants, by their class.
    Of(Class),
}

/// How many commands of each class go in one cycle, each from 1 to [`WEIGHT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Of [`Class::High`].
    pub high: u16,
    /// Of [`Class::Medium`].
    pub medium: u16,
    /// Of [`Class::Low`].
    pub low: u16,
}

impl Default for Weights {
    /// 3 : 2 : 1.
    fn default() -> Self {
        Self { high: 3, medium: 2, low: 1 }
    }
}

/// The rule by which an arbiter picks the next command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arbitration {
    /// The command that came first, whatever its queue.
    Arrival,
    /// Queues in rotation, whatever their levels.
    RoundRobin {
        /// How many commands a turn has, from 1 to [`WEIGHT_MAX`].
        burst: u16,
    },
    /// Admin, then urgent, then the other classes by weight, and the queues of a level in rotation.
    Weighted {
        /// Of the classes but the urgent one.
        weights: Weights,
        /// How many commands a turn has, from 1 to [`WEIGHT_MAX`].
        burst: u16,
    },
}

/// The levels that share by weight, as indices in [`Arbiter::rings`].
const SHARED: core::ops::Range<usize> = 2..LEVELS;
const LEVELS: usize = 5;

/// How many classes share by weight: high, medium and low, with the indices 0 to 2.
pub(crate) const SHARING: usize = 3;

impl Weights {
    /// By the index of the class.
    const fn by_class(self) -> [u16; SHARING] {
        [self.high, self.medium, self.low]
    }
}

impl From<ClassWeights> for Weights {
    fn from(ClassWeights { high, medium, low }: ClassWeights) -> Self {
        let [high, medium, low] = [high, medium, low].map(|weight| u16::from(weight.get()));
        Self { high, medium, low }
    }
}

/// A position in the cycle: the slot that was served last, a unit of a class's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    round: u16,
    class: u8,
}

impl Turn {
    /// The last slot of any cycle.
    pub(crate) const LAST: Self = Self { round: 1, class: SHARING as u8 - 1 };

    /// Its class, as an index.
    pub(crate) const fn class(self) -> usize {
        self.class as usize
    }

    /// The next slot of a class that waits, around the cycle; none if no class waits.
    #[inline]
    pub(crate) fn next(self, weights: Weights, waits: [bool; SHARING]) -> Option<Self> {
        let weights = weights.by_class();
        let waiting = (0..SHARING).filter(|class| waits[*class]);
        let slots = waiting.map(|class| self.next_of(class as u8, weights[class]));
        // Of one cycle, the highest round comes first, and in a round the more urgent class.
        let order = |(cycle, slot): &(u16, Self)| (*cycle, u16::MAX - slot.round, slot.class);
        slots.min_by_key(order).map(|(_, slot)| slot)
    }

    /// The first slot of `class` after this one, and in how many cycles that is.
    const fn next_of(self, class: u8, weight: u16) -> (u16, Self) {
        let from = if class > self.class { self.round } else { self.round - 1 };
        let round = if from < weight { from } else { weight };
        match round {
            0 => (1, Self { round: weight, class }),
            round => (0, Self { round, class }),
        }
    }

    /// In 24 bits, for one word that threads share.
    pub(crate) const fn to_bits(self) -> u32 {
        (self.round as u32) << 8 | self.class as u32
    }

    /// The turn with these bits.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self { round: (bits >> 8) as u16, class: bits as u8 }
    }
}

#[derive(Debug)]
struct WrrQueue<T> {
    waiting: VecDeque<T>,
    /// Its index in [`Arbiter::rings`].
    level: usize,
    /// How many commands of its burst were served.
    taken: u16,
}

/// Queues, and the next one to serve.
///
/// ```
/// use tidegate_algo::scheduling::wrr::{Arbiter, Arbitration, Level, Weights};
/// use tidegate_model::Class::{High, Low, Medium, Urgent};
/// let mut queues = Arbiter::new(Arbitration::Weighted { weights: Weights::default(), burst: 1 });
/// let [high, medium, low, urgent] =
///     [High, Medium, Low, Urgent].map(|class| queues.add(Level::Of(class)));
/// for job in 0..6 {
///     [high, medium, low].map(|queue| queues.push(queue, job));
/// }
/// let mut order = Vec::new();
/// for _ in 0..6 {
///     order.extend(queues.pop());
/// }
/// assert_eq!(order, [(high, 0), (high, 1), (medium, 0), (high, 2), (medium, 1), (low, 0)]);
/// queues.push(urgent, 0);
/// assert_eq!(queues.pop(), Some((urgent, 0)));
/// ```
#[derive(Debug)]
pub struct Arbiter<T> {
    arbitration: Arbitration,
    queues: Vec<WrrQueue<T>>,
    /// Of each level, the queues in which commands wait, the next first. Without levels, one ring.
    /// By arrival, the queue of each command, in the order in which they came.
    rings: [VecDeque<u32>; LEVELS],
    weights: Weights,
    burst: u16,
    turn: Turn,
    len: usize,
}

impl<T> Arbiter<T> {
    /// An arbiter without queues.
    ///
    /// # Panics
    /// If a weight or a burst is zero or above [`WEIGHT_MAX`].
    pub fn new(arbitration: Arbitration) -> Self {
        let (weights, burst) = match arbitration {
            Arbitration::Arrival => (Weights::default(), 1),
            Arbitration::RoundRobin { burst } => (Weights::default(), burst),
            Arbitration::Weighted { weights, burst } => (weights, burst),
        };
        let Weights { high, medium, low } = weights;
        for number in [high, medium, low, burst] {
            let fits = (1..=WEIGHT_MAX).contains(&number);
            assert!(fits, "a weight or burst of {number}, not 1 to {WEIGHT_MAX}");
        }
        Self {
            arbitration,
            queues: Vec::new(),
            rings: Default::default(),
            weights,
            burst,
            turn: Turn::LAST,
            len: 0,
        }
    }

    /// Adds a queue; its number is how many there were before.
    pub fn add(&mut self, level: Level) -> usize {
        let level = match (self.arbitration, level) {
            (Arbitration::Weighted { .. }, Level::Of(class)) => 1 + class as usize,
            _ => 0,
        };
        self.queues.push(WrrQueue { waiting: VecDeque::new(), level, taken: 0 });
        self.queues.len() - 1
    }

    /// Puts a command at the end of a queue.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn push(&mut self, queue: usize, command: T) {
        let WrrQueue { waiting, level, .. } = &mut self.queues[queue];
        waiting.push_back(command);
        if waiting.len() == 1 || self.arbitration == Arbitration::Arrival {
            self.rings[*level].push_back(queue as u32);
        }
        self.len += 1;
    }

    /// Takes the next command, with the number of its queue; none if nothing waits.
    pub fn pop(&mut self) -> Option<(usize, T)> {
        let level = self.next_level()?;
        let ring = &mut self.rings[level];
        let index = *ring.front()?;
        let queue = &mut self.queues[index as usize];
        let command = queue.waiting.pop_front()?;
        queue.taken += 1;
        if self.arbitration == Arbitration::Arrival || queue.waiting.is_empty() {
            ring.pop_front();
            queue.taken = 0;
        } else if queue.taken == self.burst {
            ring.rotate_left(1);
            queue.taken = 0;
        }
        self.len -= 1;
        Some((index as usize, command))
    }

    /// The level of the next command; with shared levels, its slot has been served then.
    fn next_level(&mut self) -> Option<usize> {
        let strict = self.rings[..SHARED.start].iter().position(|ring| !ring.is_empty());
        if strict.is_some() {
            return strict;
        }
        let waits = core::array::from_fn(|class| !self.rings[SHARED.start + class].is_empty());
        self.turn = self.turn.next(self.weights, waits)?;
        Some(SHARED.start + self.turn.class())
    }

    /// How many commands wait in all queues together.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
#[path = "wrr_tests.rs"]
mod tests;
