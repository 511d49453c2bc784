//! The setup of a gate in a segment.

use alloc::vec::Vec;

use tidegate_algo::scheduling::queue::Order;
use tidegate_model::GateSpec;
use tidegate_model::gate::Unit;

use super::Gate;

/// The behaviour of a gate, in numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum GateSetup {
    /// Lets everything pass.
    Open,
    /// Lets everything pass, and transforms content. Its number never stands for anything else.
    Transform,
    /// A token bucket.
    Bucket {
        /// The unit that it counts.
        unit: Unit,
        /// Per second; `u64::MAX` for no limit.
        rate: u64,
        /// How many at once.
        burst: u64,
        /// Per second, once the segment's lease has ended ([`super::super::Machine::kept_until`]):
        /// the rate that is safe without a controller, or the rate if that is lower.
        safe: u64,
    },
    /// A queue.
    Queue {
        /// Which one.
        queue: u8,
        /// The order in which requests are served.
        order: Order,
        /// The most requests in service at a time.
        depth: u32,
        /// By flow.
        weights: Vec<u32>,
    },
}

impl GateSetup {
    /// Returns the setup of `gate`.
    pub(super) fn of(gate: &Gate) -> Self {
        let queue = gate.queue.unwrap_or(0);
        match (&gate.spec, gate.rate) {
            (GateSpec::TokenBucket { rate: safe, burst }, Some(rate)) => {
                let per_second = rate.per_second();
                GateSetup::Bucket {
                    unit: rate.unit(),
                    rate: per_second,
                    burst: burst.tokens(per_second),
                    safe: safe.per_second().min(per_second),
                }
            }
            (GateSpec::FairQueue { depth, weights }, _) => {
                let weights = weights.iter().map(|(_, weight)| *weight).collect();
                GateSetup::Queue { queue, order: Order::Fair, depth: *depth, weights }
            }
            (GateSpec::Priority { depth, .. }, _) => GateSetup::Queue {
                queue,
                order: Order::Priority,
                depth: *depth,
                weights: Vec::new(),
            },
            (GateSpec::Concurrency { depth }, _) => GateSetup::Queue {
                queue,
                order: Order::Arrival,
                depth: *depth,
                weights: Vec::new(),
            },
            (spec, _) if spec.transforms() => GateSetup::Transform,
            _ => GateSetup::Open,
        }
    }
}
