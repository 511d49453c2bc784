//! Latency breakdown of requests over gateways: gateway, link, queue and store, from reading a
//! request until its reply is there.
//!
//! # Problem
//! A client waits for its gateway, for the link, for the node's queue and for the store. Each of
//! them counts on its own, in its own unit, so the counts do not add up to what the client waited.
//!
//! # Mechanism
//! A node tells with each answer how long the job was in its queue and at its store
//! ([`Stay`](crate::data::Stay)). The gateway knows the latency of the whole request and the round
//! trip of the job that was answered last, the one that the client waited for. Then
//!
//! ```text
//! latency = gateway + link + queue + store
//! link    = round trip - queue - store
//! gateway = latency - round trip
//! ```
//!
//! Times at a node are spans by the node's clock, so clocks need not agree. A clock that runs fast
//! may make a stay longer than its round trip; then the stay is cut to it, and the sum holds.
//!
//! Example: a request of 1 ms lay in the gateway for 50 us, and its last sub-request was out for
//! 950 us, of which 600 us in the node's queue and 250 us at the store. 100 us are the link's.
//!
//! The rules that held the request in the queue are known for the tenant as a whole
//! ([`Waits`](tidegate_model::Waits)), each unit of cost by itself. [`PathDelays`] divides the time
//! in the queue in that proportion.

use alloc::string::String;
use alloc::vec::Vec;
#[cfg(feature = "schema")]
use alloc::{format, vec};

use serde::{Deserialize, Serialize};
use tidegate_model::{WaitRule, Waits};

pub use crate::message::counts::PathTimes;

/// The schema macro writes `std::` for what is in `alloc` and `core`, and this crate has no `std`.
#[cfg(feature = "schema")]
mod std {
    pub(super) use alloc::borrow;
    pub(super) use core::iter;
}

/// Latencies of a tenant's requests over gateways in the last minute, as one sum of parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PathDelays {
    /// Requests that were answered.
    pub requests: u64,
    /// Their latencies, all of them together, from when the gateway had read a request until it had
    /// the reply. The parts add up to this.
    pub total_ns: u64,
    /// How long a request took on average; none if there was none.
    pub mean_ns: Option<u64>,
    /// Where they were, in the order of a request's way.
    pub parts: Vec<PathPart>,
}

/// A part of the latencies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PathPart {
    /// `gateway`; `link`, between gateway and node in both directions; in the node's queue `limit`,
    /// `reservation` or `turn`, as nodes count waits, and `full` for the rest of the queue, behind
    /// the tenant's own requests or a full store; `store`.
    pub place: String,
    /// How long requests were there, all of them together.
    pub ns: u64,
}

impl PathDelays {
    /// The account of requests with these times, whose tenant had these waits at nodes.
    pub(super) fn new(times: &PathTimes, waits: &Waits) -> Self {
        let held = held(times, waits);
        let full = times.queue_ns - held.iter().map(|(_, ns)| ns).sum::<u64>();
        let rules = held.into_iter().map(|(rule, ns)| (rule.name(), ns));
        let before = [("gateway", times.gateway_ns), ("link", times.link_ns)];
        let after = [("full", full), ("store", times.store_ns)];
        let parts = before.into_iter().chain(rules).chain(after);
        Self {
            requests: times.requests,
            total_ns: times.total_ns(),
            mean_ns: times.total_ns().checked_div(times.requests),
            parts: parts.map(|(place, ns)| PathPart { place: place.into(), ns }).collect(),
        }
    }
}

/// The part of the time in queues for each rule but the device, in proportion to its waits: of all
/// time at nodes, and of the time in queues where that is less.
fn held(times: &PathTimes, waits: &Waits) -> [(WaitRule, u64); 3] {
    let rules = [WaitRule::Limit, WaitRule::Reservation, WaitRule::Turn];
    let of_rules: u128 = rules.iter().map(|rule| u128::from(waits.of(*rule))).sum();
    let stay = u128::from(times.queue_ns) + u128::from(times.store_ns);
    let all = rules.iter().map(|rule| u128::from(waits.of(*rule))).sum::<u128>()
        + u128::from(waits.of(WaitRule::Device));
    // The time that all rules held of the stay, at most the time in queues.
    let held = (stay * of_rules).checked_div(all).unwrap_or(0).min(u128::from(times.queue_ns));
    rules.map(|rule| {
        let part = (held * u128::from(waits.of(rule))).checked_div(of_rules).unwrap_or(0);
        (rule, part as u64)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_model::Span;

    use super::*;
    use crate::data::Stay;

    fn stay() -> impl Strategy<Value = Option<(Span, Stay)>> {
        let at_node = any::<(u32, u32, u32)>().prop_map(|(trip, queued, stored)| {
            let spans = [trip, queued, stored].map(|ns| Span(u64::from(ns)));
            (spans[0], Stay { queued: spans[1], stored: spans[2] })
        });
        proptest::option::of(at_node)
    }

    proptest! {
        /// Whatever a node tells, and whichever rules held its requests.
        #[test]
        fn parts_add_up_to_the_latency(
            requests in proptest::collection::vec((any::<u32>(), stay()), 0..20),
            waits in any::<[u64; 4]>(),
        ) {
            let (mut sum, mut latencies) = (PathTimes::default(), 0);
            for (latency, at_node) in &requests {
                let times = PathTimes::of(Span(u64::from(*latency)), *at_node);
                prop_assert_eq!(times.total_ns(), u64::from(*latency));
                sum += times;
                latencies += u64::from(*latency);
            }
            let [limit_ns, reservation_ns, turn_ns, device_ns] = waits;
            let waits = Waits { operations: 1, limit_ns, reservation_ns, turn_ns, device_ns };
            let delays = PathDelays::new(&sum, &waits);
            prop_assert_eq!(delays.total_ns, latencies);
            prop_assert_eq!(delays.parts.iter().map(|part| part.ns).sum::<u64>(), latencies);
            prop_assert_eq!(delays.requests, requests.len() as u64);
        }
    }

    fn places(delays: &PathDelays) -> Vec<(&str, u64)> {
        delays.parts.iter().map(|part| (&*part.place, part.ns)).collect()
    }

    /// The example at the head of this file; the rules hold two thirds of the time at nodes.
    #[test]
    fn a_request_is_divided_as_its_node_reports() {
        let stay = Stay { queued: Span(600), stored: Span(250) };
        let times = PathTimes::of(Span(1_000), Some((Span(950), stay)));
        let waits =
            Waits { operations: 9, limit_ns: 10, turn_ns: 30, device_ns: 20, ..Waits::ZERO };
        let delays = PathDelays::new(&times, &waits);
        assert_eq!(
            places(&delays),
            [
                ("gateway", 50),
                ("link", 100),
                ("limit", 141),
                ("reservation", 0),
                ("turn", 424),
                ("full", 35),
                ("store", 250)
            ]
        );
        // Rules cannot have held more than the time in the queue.
        let waits = Waits { device_ns: 0, ..waits };
        let delays = PathDelays::new(&times, &waits);
        assert_eq!(
            places(&delays)[2..6],
            [("limit", 150), ("reservation", 0), ("turn", 450), ("full", 0)]
        );
    }

    #[test]
    fn a_stay_by_another_clock_is_cut_to_the_round_trip() {
        let stay = Stay { queued: Span(u64::MAX), stored: Span(700) };
        let times = PathTimes::of(Span(1_000), Some((Span(900), stay)));
        let expected =
            PathTimes { requests: 1, gateway_ns: 100, link_ns: 0, queue_ns: 200, store_ns: 700 };
        assert_eq!(times, expected);
    }
}
