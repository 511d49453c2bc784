//! The arbiter beside one that writes its whole cycle down and walks through it.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use tidegate_model::Class::{High, Low, Medium, Urgent};

use super::*;

const LEVEL: [Level; LEVELS] =
    [Level::Admin, Level::Of(Urgent), Level::Of(High), Level::Of(Medium), Level::Of(Low)];

/// Too simple to be wrong: lists, searched from the start.
struct Oracle {
    arbitration: Arbitration,
    /// The levels of a cycle's slots, and which comes next.
    cycle: Vec<Level>,
    next: usize,
    /// Number, level and commands of each queue in which commands wait, in rotation; and how many
    /// commands the first of its level has had.
    rotation: Vec<(usize, Level, Vec<u32>, u16)>,
    /// All commands by arrival.
    arrivals: Vec<(usize, u32)>,
}

impl Oracle {
    fn new(arbitration: Arbitration) -> Self {
        let mut cycle = Vec::new();
        if let Arbitration::Weighted { weights, .. } = arbitration {
            for round in (1..=WEIGHT_MAX).rev() {
                let Weights { high, medium, low } = weights;
                for (class, weight) in [(High, high), (Medium, medium), (Low, low)] {
                    cycle.extend((weight >= round).then_some(Level::Of(class)));
                }
            }
        }
        Self { arbitration, cycle, next: 0, rotation: vec![], arrivals: vec![] }
    }

    fn push(&mut self, queue: usize, level: Level, command: u32) {
        self.arrivals.push((queue, command));
        match self.rotation.iter_mut().find(|entry| entry.0 == queue) {
            Some(entry) => entry.2.push(command),
            None => self.rotation.push((queue, level, vec![command], 0)),
        }
    }

    fn pop(&mut self) -> Option<(usize, u32)> {
        let at = |level: Level| self.rotation.iter().position(|entry| entry.1 == level);
        let (index, burst) = match self.arbitration {
            Arbitration::Arrival => {
                return (!self.arrivals.is_empty()).then(|| self.arrivals.remove(0));
            }
            Arbitration::RoundRobin { burst } => ((!self.rotation.is_empty()).then_some(0), burst),
            Arbitration::Weighted { burst, .. } => {
                let strict = at(LEVEL[0]).or(at(LEVEL[1]));
                let around =
                    (0..self.cycle.len()).map(|more| (self.next + more) % self.cycle.len());
                let shared = || around.clone().find(|slot| at(self.cycle[*slot]).is_some());
                match (strict, shared()) {
                    (None, Some(slot)) => {
                        self.next = (slot + 1) % self.cycle.len();
                        (self.rotation.iter().position(|entry| entry.1 == self.cycle[slot]), burst)
                    }
                    (strict, _) => (strict, burst),
                }
            }
        };
        let mut entry = self.rotation.remove(index?);
        let command = entry.2.remove(0);
        entry.3 += 1;
        let queue = entry.0;
        if !entry.2.is_empty() {
            let is_over = entry.3 == burst;
            entry.3 %= burst;
            self.rotation.insert(if is_over { self.rotation.len() } else { index? }, entry);
        }
        Some((queue, command))
    }
}

fn arbitration() -> impl Strategy<Value = Arbitration> {
    let weight = || prop_oneof![1u16..6, 1..=WEIGHT_MAX];
    let weights = (weight(), weight(), weight());
    let weights = weights.prop_map(|(high, medium, low)| Weights { high, medium, low });
    prop_oneof![
        Just(Arbitration::Arrival),
        (1u16..5).prop_map(|burst| Arbitration::RoundRobin { burst }),
        (weights, 1u16..5).prop_map(|(weights, burst)| Arbitration::Weighted { weights, burst }),
    ]
}

/// A push into one of the queues, or a pop.
fn act() -> impl Strategy<Value = Option<prop::sample::Index>> {
    prop::option::weighted(0.55, any::<prop::sample::Index>())
}

proptest! {
    /// The same command after every push and pop, and something whenever something waits.
    #[test]
    fn commands_go_in_the_order_of_the_cycle(
        arbitration in arbitration(),
        levels in prop::collection::vec(0..LEVELS, 1..9),
        acts in prop::collection::vec(act(), 0..400),
    ) {
        let mut oracle = Oracle::new(arbitration);
        let mut queues = Arbiter::new(arbitration);
        let levels: Vec<Level> = levels.into_iter().map(|level| LEVEL[level]).collect();
        for level in &levels {
            queues.add(*level);
        }
        let mut waiting = 0;
        for (command, act) in acts.into_iter().enumerate() {
            if let Some(queue) = act {
                let queue = queue.index(levels.len());
                queues.push(queue, command as u32);
                oracle.push(queue, levels[queue], command as u32);
                waiting += 1;
            } else {
                let served = queues.pop();
                prop_assert_eq!(served.is_some(), waiting > 0);
                prop_assert_eq!(served, oracle.pop());
                waiting -= usize::from(waiting > 0);
            }
            prop_assert_eq!(queues.len(), waiting);
        }
    }

    /// While the same classes are backlogged, every whole cycle has the weights exactly, wherever
    /// it is begun, and the queues of a class have the same number of bursts.
    #[test]
    fn shares_are_the_weights(
        [high, medium, low] in [1u16..20, 1..20, 1..20],
        backlogged in 1usize..8,
        begun in 0usize..50,
        peers in 1usize..4,
    ) {
        let weights = Weights { high, medium, low };
        let mut queues = Arbiter::new(Arbitration::Weighted { weights, burst: 1 });
        let classes = [(High, high), (Medium, medium), (Low, low)];
        let served: Vec<(Class, u16)> =
            classes.into_iter().enumerate().filter(|(bit, _)| backlogged >> bit & 1 == 1)
                .map(|(_, class)| class).collect();
        for (class, _) in &served {
            for _ in 0..peers {
                let queue = queues.add(Level::Of(*class));
                (0..500).for_each(|command| queues.push(queue, command));
            }
        }
        (0..begun).for_each(|_| { queues.pop(); });
        let cycle: u16 = served.iter().map(|(_, weight)| weight).sum();
        let mut counts = vec![0usize; served.len() * peers];
        for _ in 0..usize::from(cycle) * peers {
            counts[queues.pop().unwrap().0] += 1;
        }
        for ((_, weight), counts) in served.iter().zip(counts.chunks(peers)) {
            prop_assert!(counts.iter().all(|count| *count == usize::from(*weight)), "{:?}", counts);
        }
    }
}

#[test]
fn a_queue_is_served_for_one_burst() {
    let mut queues = Arbiter::new(Arbitration::RoundRobin { burst: 3 });
    let [first, second] = [0, 1].map(|_| queues.add(Level::Admin));
    (0..5).for_each(|command| queues.push(first, command));
    (0..2).for_each(|command| queues.push(second, command));
    let order: Vec<usize> = core::iter::from_fn(|| queues.pop()).map(|(queue, _)| queue).collect();
    assert_eq!(order, [0, 0, 0, 1, 1, 0, 0]);
}

#[test]
#[should_panic(expected = "a weight or burst of 0")]
fn no_weight_is_refused() {
    let weights = Weights { high: 3, medium: 0, low: 1 };
    Arbiter::<u32>::new(Arbitration::Weighted { weights, burst: 1 });
}
