//! What a cluster tells about itself: the words of `tidegate status`. Raw numbers; the unit is in
//! the name, and `operations` are units of cost.

use alloc::string::String;
use alloc::vec::Vec;
#[cfg(feature = "schema")]
use alloc::{format, vec};

use serde::{Deserialize, Serialize};

/// The schema macro writes `std::` for what is in `alloc` and `core`, and this ring has no `std`.
#[cfg(feature = "schema")]
mod std {
    pub(super) use alloc::borrow;
    pub(super) use core::iter;
}

/// What there is and how it fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClusterStatus {
    /// The revision of the policy in force; zero while there is none.
    pub revision: u64,
    /// The period that runs.
    pub period: u64,
    /// Its length.
    pub period_ns: u64,
    /// For how long it has run.
    pub into_ns: u64,
    /// How long the last distribution took, from its first question to its last confirmation.
    pub round_ns: u64,
    /// The policy's tenants, in its order.
    pub tenants: Vec<ClusterTenant>,
    /// The nodes, in the order of the cluster file.
    pub nodes: Vec<NodeStatus>,
    /// What was said and heard in the last period.
    pub traffic: Traffic,
    /// Why reservations cannot be met, as the last distribution proved; none if they can.
    pub shortfall: Option<Shortfall>,
}

/// One tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClusterTenant {
    /// Its name.
    pub name: String,
    /// What it was promised in a period.
    pub reserved_operations: u64,
    /// What it gets at most in a period; none for no limit.
    pub limit_operations: Option<u64>,
    /// What it was served in this period, as far as nodes have said.
    pub served_operations: u64,
    /// What it is expected to ask for in the rest of this period.
    pub demand_operations: u64,
    /// What it was served in the last period.
    pub last_served_operations: u64,
    /// Whether it got in the last period what it was promised, or else, within a hundredth of the
    /// promise, what it asked for.
    pub is_met: bool,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// Its number: its place in the cluster file, counting from zero.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// The machine's name; empty if it was never here.
    pub host: String,
    /// The process that holds the connection, or the last one that did.
    pub pid: u32,
    /// What it is declared to do per second.
    pub declared_operations_per_second: Option<u64>,
    /// What it can do in a whole period, as estimated from its last report.
    pub capacity_operations: u64,
    /// Whether there is a connection.
    pub is_connected: bool,
    /// Whether it has stopped answering.
    pub is_silent: bool,
    /// How long ago it reported; none if it never did.
    pub reported_ns: Option<u64>,
}

/// Messages, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Traffic {
    /// How many.
    pub messages: u64,
    /// Their bytes, with their frames.
    pub bytes: u64,
}

/// Reservations that cannot be met, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Shortfall {
    /// The names of nodes that are asked for more reserved operations than they can do.
    pub nodes: Vec<String>,
    /// Who misses something.
    pub tenants: Vec<ShortTenant>,
    /// The same in one line for people.
    pub line: String,
}

/// Somebody who is promised more than can be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ShortTenant {
    /// The tenant's name.
    pub name: String,
    /// What is missing in this period.
    pub missing_operations: u64,
}
