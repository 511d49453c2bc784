//! Classes in the description of the scheduler: whose turn it is, and where a request waits.

use tidegate_algo::scheduling::scheduler::RequestCost;
use tidegate_model::{Class, ClassWeights, Discipline};

pub(crate) const HIGH: usize = 0;
pub(crate) const MEDIUM: usize = 1;

/// The round and the class that was served last.
pub(crate) type Turn = (u16, usize);
pub(crate) const LAST_TURN: Turn = (1, 2);

/// The first slot of the cycle after `turn` whose class waits: all rounds are written down.
pub(crate) fn next_turn(turn: Turn, weights: ClassWeights, waits: [bool; 3]) -> Turn {
    let weights = [weights.high, weights.medium, weights.low].map(|weight| u16::from(weight.get()));
    let cycle = || (1..=256u16).rev().flat_map(|round| (0..3).map(move |class| (round, class)));
    let behind = cycle().skip_while(|slot| *slot != turn).skip(1);
    let mut slots = behind.chain(cycle());
    slots
        .find(|(round, class)| weights[*class] >= *round && waits[*class])
        .expect("a class has its turn while one waits")
}

#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) request_cost: RequestCost,
    pub(crate) class: Class,
    pub(crate) number: u64,
}

/// The rules that say where a request waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    pub(crate) discipline: Discipline,
    pub(crate) has_classes: bool,
}

impl Rules {
    /// The index of the class that a request counts in, and whether it goes before others there.
    pub(crate) fn queue_of(self, class: Class) -> (usize, bool) {
        let is_urgent = class == Class::Urgent && self.discipline == Discipline::Unified;
        let index = match class {
            _ if !self.has_classes => MEDIUM,
            Class::Urgent | Class::High => HIGH,
            Class::Medium => MEDIUM,
            Class::Low => 2,
        };
        (index, is_urgent)
    }
}

/// Requests by where they wait: urgent ones, and then by class.
pub(crate) fn split(rules: Rules, requests: Vec<Request>) -> [Vec<Request>; 4] {
    let mut queues = [const { vec![] }; 4];
    for request in requests {
        let (class, is_urgent) = rules.queue_of(request.class);
        queues[if is_urgent { 0 } else { 1 + class }].push(request);
    }
    queues
}
