//! The status of a cluster, as `tidegate status` shows it. Raw numbers; the unit is in the name,
//! and `operations` are units of cost. [`crate::cluster`] fills in its decisions; the totals come
//! from [`crate::stats`].
//!
//! A total goes on when a daemon is started again: it begins with all that the first process that
//! the controller met had done, and adds what the processes after it do. The controller asks once a
//! second; what a process did after the last question is lost if it dies.

use alloc::string::String;
use alloc::vec::Vec;
#[cfg(feature = "schema")]
use alloc::{format, vec};

use serde::{Deserialize, Serialize};
use tidegate_model::{NodeId, Waits};

use crate::message::VolumeFault;
use crate::message::cluster::PartFault;

/// The schema macro writes `std::` for what is in `alloc` and `core`, and this crate has no `std`.
#[cfg(feature = "schema")]
mod std {
    pub(super) use alloc::borrow;
    pub(super) use core::iter;
}

/// The state of the cluster, its nodes and its tenants.
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
    /// How long the last distribution took, from its first request to its last confirmation.
    pub round_ns: u64,
    /// The policy's tenants, in its order.
    pub tenants: Vec<ClusterTenant>,
    /// The policy's groups, in its order.
    #[serde(default)]
    pub groups: Vec<ClusterGroup>,
    /// The nodes, in the order of the cluster file.
    pub nodes: Vec<NodeStatus>,
    /// The gateways, likewise.
    pub gateways: Vec<GatewayStatus>,
    /// The data nodes, likewise.
    #[serde(default)]
    pub data_nodes: Vec<DataNodeStatus>,
    /// Messages sent and received in the last period.
    pub traffic: Traffic,
    /// Why reservations cannot be met, as the last distribution proved; none if they can.
    pub shortfall: Option<Shortfall>,
    /// The cluster's file on the controller's machine, with its whole path; empty if it has none.
    #[serde(default)]
    pub file: String,
    /// The state directory of the controller, likewise.
    #[serde(default)]
    pub state: String,
}

/// One tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClusterTenant {
    /// Its name.
    pub name: String,
    /// Its reservation in a period.
    pub reserved_operations: u64,
    /// Its limit in a period; none for no limit.
    pub limit_operations: Option<u64>,
    /// Operations served in this period, as far as nodes have reported.
    pub served_operations: u64,
    /// Its expected demand in the rest of this period.
    pub demand_operations: u64,
    /// Operations served in the last period.
    pub last_served_operations: u64,
    /// Whether its reservation was met in the last period, or else its demand, within a hundredth
    /// of the reservation.
    pub is_met: bool,
    /// Operations that wait at nodes.
    pub waiting_operations: u64,
    /// Operations served in all.
    pub total_served_operations: u64,
    /// Its requests to gateways that nodes answered, in all.
    pub gateway_requests: u64,
    /// Bytes that those requests have read or written, in all.
    pub gateway_bytes: u64,
    /// Those that failed, in all.
    pub gateway_errors: u64,
    /// Bytes that gateways moved for it, recently.
    pub gateway_bytes_per_second: u64,
    /// Its reservation in bytes in a period, if the policy names the nodes as a resource.
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Its limit in bytes in a period, likewise; none for no limit.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Bytes served in this period, as far as nodes have reported, if bytes are promised to it.
    #[serde(default)]
    pub served_bytes: u64,
    /// Bytes served in the last period, likewise.
    #[serde(default)]
    pub last_served_bytes: u64,
    /// Its counts at each node where one is not zero, in the order of the nodes' numbers.
    pub nodes: Vec<TenantAtNode>,
}

/// The tenants of one group together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClusterGroup {
    /// The group's name.
    pub name: String,
    /// The group's reservation in a period; none if it has none in operations.
    pub reserved_operations: Option<u64>,
    /// The group's limit in a period; none for no limit.
    pub limit_operations: Option<u64>,
    /// Operations that all of its tenants were served in the last period.
    pub last_served_operations: u64,
    /// The group's reservation in bytes in a period, likewise.
    pub reserved_bytes: Option<u64>,
    /// The group's limit in bytes in a period, likewise.
    pub limit_bytes: Option<u64>,
    /// Bytes that its tenants were served in the last period, of those to which bytes are promised.
    pub last_served_bytes: u64,
    /// Whether the group's reservation was met in the last period, or else its tenants' demand,
    /// within a hundredth of the reservation. Tokens that a tenant of the group kept for itself and
    /// did not ask for are not missed.
    pub is_met: bool,
}

/// One tenant at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TenantAtNode {
    /// The node's number.
    #[cfg_attr(feature = "schema", schema(value_type = u16))]
    pub id: NodeId,
    /// The node's name.
    pub node: String,
    /// The part of the tenant's reservation at this node in this period, as last sent.
    pub reserved_operations: u64,
    /// The count up to which it is served here in this period, as last sent; none for no limit.
    pub limit_operations: Option<u64>,
    /// Operations served in this period, as far as the node has reported.
    pub served_operations: u64,
    /// The demand that the node expects in the rest of this period.
    pub demand_operations: u64,
    /// How much of that waits already.
    pub waiting_operations: u64,
    /// Operations served in the last period.
    pub last_served_operations: u64,
    /// Operations served in all.
    pub total_served_operations: u64,
    /// How long its requests waited there in all, and for which rule.
    pub waits: Waits,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// Its number: its place in the cluster file, counting from zero.
    #[cfg_attr(feature = "schema", schema(value_type = u16))]
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// The machine's name; empty if it was never here.
    pub host: String,
    /// The process that holds the connection, or the last one that did.
    pub pid: u32,
    /// The assigned scheduler; none if its controller leaves the choice to it.
    pub assigned_scheduler: Option<String>,
    /// Whether an operator chose that scheduler instead of the cluster file's.
    pub is_scheduler_chosen: bool,
    /// Its declared capacity per second.
    pub declared_operations_per_second: Option<u64>,
    /// The same in bytes.
    #[serde(default)]
    pub declared_bytes_per_second: Option<u64>,
    /// Its capacity in a whole period, as estimated from its last report: no more than the declared
    /// capacity, as reservations are divided by this. Zero while it is not known: the node never
    /// reported, or is to find it within a bound of latency and its store was never busy.
    pub capacity_operations: u64,
    /// Its recently measured capacity per second, whatever is declared: its own estimate, or the
    /// rate that it serves now if that is more. None while that is not known, likewise.
    #[serde(default)]
    pub measured_operations_per_second: Option<u64>,
    /// Whether there is a connection.
    pub is_connected: bool,
    /// Whether it has stopped answering.
    pub is_silent: bool,
    /// Parts that it refuses, or of which acknowledged writes may be lost.
    #[serde(default)]
    pub faults: Vec<PartFaultStatus>,
    /// Why its store as a whole does nothing now, for people; none if it works.
    #[serde(default)]
    pub store_fault: Option<String>,
    /// How long ago it reported; none if it never did.
    pub reported_ns: Option<u64>,
    /// Operations that its store has finished in all, failed requests included.
    pub total_served_operations: u64,
    /// Operations that its store finished recently.
    pub served_operations_per_second: u64,
    /// Operations that wait there.
    pub waiting_operations: u64,
    /// Requests at its store.
    pub in_flight_requests: u32,
    /// The most requests at its store at a time; zero if it never reported.
    pub depth_requests: u32,
    /// Its scheduler: `token`, `unified`, …; none if it never reported.
    pub scheduler: Option<String>,
    /// How long ago it reported these counts; none if it never did.
    pub counted_ns: Option<u64>,
    /// The processes that use its name, if several do; none if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<TakeoverStatus>,
}

/// Several processes that connect under one name, and take over from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TakeoverStatus {
    /// How often one has taken over from another one that was connected, recently.
    pub times: u64,
    /// The time that counts as recent.
    pub within_ns: u64,
    /// The process that was accepted last: its number, its machine or its address.
    pub process: String,
    /// The process from which it took over.
    pub earlier: String,
}

/// A part of a volume that its node refuses, or of which acknowledged writes may be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PartFaultStatus {
    /// The volume's name.
    pub volume: String,
    /// Which of its parts, counting from zero.
    pub part: u32,
    /// The fault and its remedy, for people.
    pub reason: String,
}

/// A volume that a gateway does not serve although each of its parts is well at its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct VolumeFaultStatus {
    /// The volume's name.
    pub volume: String,
    /// How its parts differ, and the remedy.
    pub reason: String,
}

impl From<&VolumeFault> for VolumeFaultStatus {
    fn from(fault: &VolumeFault) -> Self {
        let VolumeFault { volume, reason } = fault.clone();
        Self { volume, reason }
    }
}

impl From<&PartFault> for PartFaultStatus {
    fn from(fault: &PartFault) -> Self {
        let PartFault { volume, index, reason } = fault.clone();
        Self { volume, part: index, reason }
    }
}

/// One gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GatewayStatus {
    /// Its name.
    pub name: String,
    /// The machine's name; empty if it was never here.
    pub host: String,
    /// The process that holds the connection, or the last one that did.
    pub pid: u32,
    /// The release of Tidegate that it runs.
    pub release: String,
    /// When its process began, in milliseconds since 1970; zero if it was never here.
    pub started_ms: u64,
    /// Whether there is a connection.
    pub is_connected: bool,
    /// Whether it has stopped answering.
    pub is_silent: bool,
    /// How long ago it reported the following counts; none if it never did.
    pub counted_ns: Option<u64>,
    /// Where it offers volumes.
    pub nbd: Vec<String>,
    /// Where it offers pools.
    pub memcached: Vec<String>,
    /// Clients that are connected to it.
    pub clients: u64,
    /// Clients that were let in, in all.
    pub admitted: u64,
    /// Clients that were refused, in all: too many, not allowed, or silent for too long.
    pub turned_away: u64,
    /// The same by reason.
    pub turned_away_for: Vec<TurnedAwayStatus>,
    /// Bytes of memory that requests and replies of its clients take up now.
    pub memory_used_bytes: u64,
    /// Bytes of memory that they may take up; zero if it did not report.
    pub memory_limit_bytes: u64,
    /// Requests to volumes that went to no node, in all: they were malformed, or came too late.
    pub refused_requests: u64,
    /// Requests that nodes answered, in all.
    pub requests: u64,
    /// Bytes that those have read or written, in all.
    pub bytes: u64,
    /// Those that failed, in all.
    pub errors: u64,
    /// The same by the kind of fault, where that is not zero.
    pub faults: Vec<FaultStatus>,
    /// Volumes that it does not serve because their parts do not belong together.
    #[serde(default)]
    pub volume_faults: Vec<VolumeFaultStatus>,
    /// Requests that nodes answered, recently.
    pub requests_per_second: u64,
    /// Bytes that were read or written, recently.
    pub bytes_per_second: u64,
    /// The requests to each volume and pool.
    pub offers: Vec<OfferStatus>,
    /// The processes that use its name, if several do; none if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<TakeoverStatus>,
}

/// One data node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DataNodeStatus {
    /// Its name.
    pub name: String,
    /// Whether there is a connection.
    pub is_connected: bool,
    /// Whether it has stopped answering. Its clients go on.
    pub is_silent: bool,
    /// How long ago it reported the following counts; none if it never did.
    pub reported_ns: Option<u64>,
    /// Its estimated capacity.
    pub capacity_operations_per_second: u64,
    /// The sum of its tenants' reservations.
    pub promised_operations_per_second: u64,
    /// Operations of its clients in the last period.
    pub operations_per_second: u64,
    /// Those of them that took pool tokens, beyond the reservations.
    pub pool_operations_per_second: u64,
    /// Clients that have a session slot.
    pub clients: u32,
    /// Bytes of its store that values can have.
    pub memory_bytes: u64,
    /// Those of them that are in use.
    pub used_bytes: u64,
    /// Periods that were over since its process began.
    pub periods: u64,
    /// Operations done in them, by clients of tenants and by others.
    pub total_operations: u64,
    /// How often a client damaged its memory since its process began, so that it went on with other
    /// memory.
    #[serde(default)]
    pub memory_damages: u64,
    /// Which structure of it was damaged last.
    #[serde(default)]
    pub damaged_structure: Option<String>,
    /// Tenants that have a share there, a client, or ever did anything, in the order of the policy.
    pub tenants: Vec<TenantAtDataNode>,
    /// The processes that use its name, if several do; none if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<TakeoverStatus>,
}

/// One tenant at one data node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TenantAtDataNode {
    /// Its name.
    pub name: String,
    /// Its clients that have a session slot.
    pub clients: u32,
    /// Its share of the reservation at all data nodes together.
    pub reserved_operations_per_second: u64,
    /// The most that it may do there; none for no limit.
    pub limit_operations_per_second: Option<u64>,
    /// Its operations in the last period.
    pub operations_per_second: u64,
    /// Whether its share was met in that period, or else its demand.
    pub is_met: bool,
    /// Operations since the node's process began.
    pub total_operations: u64,
    /// Operations of its share that it requested and that were not done, since then.
    pub total_missed_operations: u64,
}

/// Requests that failed for the same kind of reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FaultStatus {
    /// The kind: `invalid`, `read_only`, `no_space`, `unsupported`, `io` or `ending`.
    pub kind: String,
    /// How many, in all.
    pub requests: u64,
}

/// Clients that a gateway refused for the same reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnedAwayStatus {
    /// The reason: `connections`, `address_quota`, `tenant_quota`, `pending_quota`,
    /// `handshake_timeout`, `memory_budget` or `access_denied`.
    pub reason: String,
    /// How many, in all.
    pub clients: u64,
}

/// A volume or pool at one gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct OfferStatus {
    /// Its name.
    pub name: String,
    /// The kind: `volume` or `pool`.
    pub kind: String,
    /// Requests that nodes answered, in all.
    pub requests: u64,
    /// Bytes that those have read or written, in all; of a pool, those of replies.
    pub bytes: u64,
    /// Those that failed, in all.
    pub errors: u64,
    /// Requests that nodes answered, recently.
    pub requests_per_second: u64,
    /// Bytes that were read or written, recently.
    pub bytes_per_second: u64,
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
    /// The names of nodes whose reservations exceed their capacity.
    pub nodes: Vec<String>,
    /// The tenants whose reservations are not met.
    pub tenants: Vec<ShortTenant>,
    /// The same in one line for people.
    pub line: String,
}

/// A tenant whose reservation cannot be met.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ShortTenant {
    /// The tenant's name.
    pub name: String,
    /// Operations missing in this period.
    pub missing_operations: u64,
    /// Bytes missing in this period.
    #[serde(default)]
    pub missing_bytes: u64,
}
