//! Counts that nodes and gateways report.
//!
//! Counts only grow while their process lives, so an answer that is lost loses nothing. They have
//! the version of [`VERSION`](super::VERSION); a change to a field, an order or a type raises it.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::AddAssign;

use serde::{Deserialize, Serialize};
use tidegate_model::{Discipline, Span, TenantIndex, Waits};

use super::latency::RequestLatency;
use crate::data::Stay;

/// A storage node's counts since its process began, and its present load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounts {
    /// The revision of the plan that it has; zero for none.
    pub revision: u64,
    /// Units of cost that its store has finished, for all tenants, failed ones included.
    pub served: u64,
    /// Units of cost that wait, for all tenants.
    pub waiting: u64,
    /// Requests at its store.
    pub in_flight: u32,
    /// The most requests at its store at a time.
    pub depth: u32,
    /// The most at a time that are back within its bound of latency, if it has one: the depth or
    /// less. It lets no more there but those that a reservation makes due.
    pub bound: Option<u32>,
    /// The order in which it serves.
    pub discipline: Discipline,
    /// Service and waiting times, by the tenant's index in the plan, since the tenant has been in
    /// it. Only where they differ from the last report of this plan on this connection, or are not
    /// zero if there was none.
    pub tenants: Vec<(TenantIndex, Waits)>,
}

/// Times of requests at a storage node since its process began: those that have changed since the
/// last plan or report on the connection. Both lists name the same tenants and operations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLatency {
    /// Latencies.
    pub requests: Vec<RequestLatency>,
    /// Queue times.
    pub queued: Vec<RequestLatency>,
}

/// A gateway's counts since its process began, and its identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayCounts {
    /// When it began to count, in milliseconds since 1970: another one counts from zero.
    pub started_ms: u64,
    /// The process that holds the connection.
    pub pid: u32,
    /// The machine's name.
    pub host: String,
    /// The release of Tidegate that it runs.
    pub release: String,
    /// Where it offers volumes.
    pub nbd: Vec<String>,
    /// Where it offers pools.
    pub memcached: Vec<String>,
    /// Clients that are connected.
    pub clients: u64,
    /// Clients that were let in.
    pub admitted: u64,
    /// Clients that were turned away: too many, not allowed, or silent for too long.
    pub turned_away: u64,
    /// Requests to volumes that went to no node, because they made no sense or came too late.
    pub refused: u64,
    /// Requests that failed at nodes, by the kind of fault; only where that is not zero.
    pub faults: Vec<(String, u64)>,
    /// Requests to each volume, in the gateway's order.
    pub volumes: Vec<AnsweredRequests>,
    /// Requests to each pool, likewise.
    pub pools: Vec<AnsweredRequests>,
    /// Requests for each tenant, those without requests left out.
    pub tenants: Vec<AnsweredRequests>,
}

/// The use of a gateway's bounds, and the clients that were turned away because of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayPressure {
    /// Clients that were turned away since its process began, by reason, all reasons that it knows.
    pub turned_away: Vec<(String, u64)>,
    /// Bytes that requests and replies take up now.
    pub memory_used_bytes: u64,
    /// Bytes that they may take up.
    pub memory_limit_bytes: u64,
}

/// Requests that went to nodes and were answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredRequests {
    /// The name of their volume, pool or tenant; empty for requests without a tenant.
    pub name: String,
    /// How many.
    pub requests: u64,
    /// Bytes that those of them that succeeded have read or written; of a pool, those of replies.
    pub bytes: u64,
    /// How many of them failed.
    pub errors: u64,
}

/// Answered requests of one tenant, and where they spent their latencies, all of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTimes {
    /// How many.
    pub requests: u64,
    /// At the gateway, before the last sub-request went to its node.
    pub gateway_ns: u64,
    /// On the way to the node and back, its sockets and threads included.
    pub link_ns: u64,
    /// In the node's queue.
    pub queue_ns: u64,
    /// At the node's store.
    pub store_ns: u64,
}

impl PathTimes {
    /// One request that took so long, of which its last job was out for a round trip and at its
    /// node for a stay; none if it never went to one. The parts add up to the latency.
    pub fn of(latency: Span, at_node: Option<(Span, Stay)>) -> Self {
        let (round_trip, Stay { queued, stored }) = at_node.unwrap_or_default();
        let round_trip = round_trip.0.min(latency.0);
        let store_ns = stored.0.min(round_trip);
        let queue_ns = queued.0.min(round_trip - store_ns);
        Self {
            requests: 1,
            gateway_ns: latency.0 - round_trip,
            link_ns: round_trip - store_ns - queue_ns,
            queue_ns,
            store_ns,
        }
    }

    /// The sum of the requests' latencies.
    pub const fn total_ns(&self) -> u64 {
        let outside = self.gateway_ns.saturating_add(self.link_ns);
        outside.saturating_add(self.queue_ns).saturating_add(self.store_ns)
    }

    /// The growth since an earlier reading of the same process.
    pub(crate) const fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(earlier.requests),
            gateway_ns: self.gateway_ns.saturating_sub(earlier.gateway_ns),
            link_ns: self.link_ns.saturating_sub(earlier.link_ns),
            queue_ns: self.queue_ns.saturating_sub(earlier.queue_ns),
            store_ns: self.store_ns.saturating_sub(earlier.store_ns),
        }
    }
}

impl AddAssign for PathTimes {
    fn add_assign(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.gateway_ns = self.gateway_ns.saturating_add(other.gateway_ns);
        self.link_ns = self.link_ns.saturating_add(other.link_ns);
        self.queue_ns = self.queue_ns.saturating_add(other.queue_ns);
        self.store_ns = self.store_ns.saturating_add(other.store_ns);
    }
}
