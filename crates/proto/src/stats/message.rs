//! Counts that nodes and gateways report.
//!
//! Counts only grow while their process lives, so an answer that is lost loses nothing. They have
//! the version of [`crate::message::VERSION`]; a change to a field, an order or a type raises it.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use tidegate_model::{Discipline, TenantIndex, Waits};

use super::latency::RequestLatency;

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
