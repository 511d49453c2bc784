//! The status of a controller, its tenants and its stages, as in `tidegate status`, `tidegate top`
//! and `GET /v1/status`. Raw numbers; the unit is in the name.

use alloc::string::String;
use alloc::vec::Vec;
#[cfg(feature = "schema")]
use alloc::{format, vec};

use serde::{Deserialize, Serialize};
use tidegate_model::Event;
use tidegate_model::gate::Unit;

use self::cluster::ClusterStatus;
use self::stage_waits::StageWaits;

pub mod cluster;
pub mod stage_waits;

/// The schema macro writes `std::` for what is in `alloc` and `core`, and this crate has no `std`.
#[cfg(feature = "schema")]
mod std {
    pub(super) use alloc::borrow;
    pub(super) use core::iter;
}

/// The state of the controller, its tenants and its stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Status {
    /// The release of Tidegate that the controller runs.
    pub release: String,
    /// The revision of the policy in force; zero while there is none.
    pub revision: u64,
    /// How long the controller has run.
    pub uptime_ns: u64,
    /// The time over which promises are counted.
    pub period_ns: u64,
    /// The time between two cycles.
    pub redistribute_ns: u64,
    /// The budget of all tenants together, where the policy has one.
    pub budget_bytes_per_second: Option<u64>,
    /// The budget of all tenants together, where the policy has one.
    pub budget_operations_per_second: Option<u64>,
    /// The search for the budget, where the policy says that it is measured.
    #[serde(default)]
    pub measured: Option<MeasuredStatus>,
    /// The traffic that counts against the budget: `requests` or `device`.
    pub account: String,
    /// Sums over everything.
    pub totals: Totals,
    /// The policy's tenants, in its order.
    pub tenants: Vec<TenantStatus>,
    /// The resources that the policy names, in its order, with the promises of each.
    #[serde(default)]
    pub resources: Vec<ResourceStatus>,
    /// The connected stages, by number.
    pub stages: Vec<StageStatus>,
    /// Stages that ended in the last minute, the latest first, up to 256.
    #[serde(default)]
    pub ended_stages: Vec<EndedStageStatus>,
    /// The storage nodes and what tenants get there, if there is a cluster.
    pub cluster: Option<ClusterStatus>,
}

/// The capacity of a resource of files that is found while the storage works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MeasuredStatus {
    /// The resource.
    pub resource: String,
    /// The bound of latency.
    pub latency_bound_ns: u64,
    /// The time that 99 of 100 reads and writes of one tenant took at the storage in the last
    /// interval, of the tenant with the longest time: of those with a reservation, if they use the
    /// storage. An eighth too large at most; none if none completed.
    pub latency_p99_ns: Option<u64>,
    /// The yield of the storage over the last seconds in which the budget held requests back; zero
    /// before any. The budget of the next cycle is near it.
    pub operations_per_second: u64,
    /// The same in bytes.
    pub bytes_per_second: u64,
    /// The evidence of the last interval: `idle`, `easy`, `full`, `slow` or `stalled`.
    pub evidence: String,
    /// Whether the storage yields less than the reservations.
    pub is_short: bool,
    /// The time that a write of 4 KiB takes, in thousandths of that of a read.
    pub write_cost_permille: u64,
}

/// Sums over everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Totals {
    /// Connected stages.
    pub stages: u64,
    /// Processes that use them.
    pub processes: u64,
    /// The sum of all tenants' allocations; none where one of them has no bound.
    pub allocated_bytes_per_second: Option<u64>,
    /// The sum of all tenants' allocations; none where one of them has no bound.
    pub allocated_operations_per_second: Option<u64>,
    /// The traffic of all tenants in the last interval.
    pub interval_bytes_per_second: u64,
    /// The traffic of all tenants in the last interval.
    pub interval_operations_per_second: u64,
    /// The traffic of all tenants in the last period.
    pub period_bytes_per_second: u64,
    /// The traffic of all tenants in the last period.
    pub period_operations_per_second: u64,
    /// Requests that matched no rule on the stages that are connected now.
    pub unmatched_bytes: u64,
    /// Requests that matched no rule on the stages that are connected now.
    pub unmatched_operations: u64,
    /// Bytes of requests that matched no rule since the controller started, at stages that have
    /// ended too.
    pub unmatched_ever_bytes: u64,
    /// Requests that matched no rule since the controller started, at stages that have ended too.
    pub unmatched_ever_operations: u64,
    /// Cycles that have ended.
    pub cycles: u64,
    /// How long the last one took, from its first request to its last report.
    pub cycle_ns: u64,
    /// Rates that were changed.
    pub rate_updates: u64,
    /// Changes of rates that were too small to be sent.
    pub rate_updates_suppressed: u64,
    /// Stages that were refused.
    pub stages_refused: u64,
    /// How often a stage refused rules.
    pub rules_refused: u64,
}

/// One tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// Its class: `urgent`, `high`, `medium` or `low`.
    pub class: String,
    /// Its share of the surplus, relative to the other weights.
    pub weight: u32,
    /// Its reservation.
    pub reservation_bytes_per_second: Option<u64>,
    /// Its reservation.
    pub reservation_operations_per_second: Option<u64>,
    /// Its limit.
    pub limit_bytes_per_second: Option<u64>,
    /// Its limit.
    pub limit_operations_per_second: Option<u64>,
    /// Its allocation now; none where it has no bound.
    pub allocated_bytes_per_second: Option<u64>,
    /// Its allocation now; none where it has no bound.
    pub allocated_operations_per_second: Option<u64>,
    /// Its estimated demand; none where that is unknown or without bound.
    pub demand_bytes_per_second: Option<u64>,
    /// Its estimated demand; none where that is unknown or without bound.
    pub demand_operations_per_second: Option<u64>,
    /// Its traffic in the last interval.
    pub interval_bytes_per_second: u64,
    /// Its traffic in the last interval.
    pub interval_operations_per_second: u64,
    /// Its traffic in the last period.
    pub period_bytes_per_second: u64,
    /// Its traffic in the last period.
    pub period_operations_per_second: u64,
    /// Its traffic since the tenant has been in the policy.
    pub bytes: u64,
    /// Its traffic since the tenant has been in the policy.
    pub operations: u64,
    /// The time that its requests waited, all together.
    pub waited_ns: u64,
    /// Its requests and their waits as one sum, by the gate that held them.
    #[serde(default)]
    pub stage_waits: StageWaits,
    /// The part of the last period in which a request of it waited, in thousandths; several that
    /// wait at once count together, up to 1,000.
    pub waiting_permille: u64,
    /// How long 99 of 100 of its requests waited at most, of those that passed in the last period
    /// (in the last second, if the period is shorter); one that did not wait counts as zero. At
    /// most an eighth too large; none where no request passed.
    pub wait_p99_ns: Option<u64>,
    /// Requests that wait at its own buckets now.
    pub waiting_requests: u64,
    /// Its connected stages.
    pub stages: u64,
}

/// A resource that the policy names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ResourceStatus {
    /// Its name.
    pub name: String,
    /// The kind of gate that guards it: `stages`, `storage nodes` or `data nodes`.
    pub guarded_by: String,
    /// Its capacity, or the sum of what its storage nodes declare; none where that is unknown.
    pub capacity_operations_per_second: Option<u64>,
    /// The same in bytes.
    pub capacity_bytes_per_second: Option<u64>,
    /// The tenants with a promise of it or with requests to it, in the order of the policy.
    pub tenants: Vec<PromiseStatus>,
    /// The groups with a promise of it, likewise.
    pub groups: Vec<PromiseStatus>,
}

/// The promise of a resource to one tenant or one group, and what it had of the resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PromiseStatus {
    /// The name of the tenant or group.
    pub name: String,
    /// The group that a tenant is in; none for a group, and outside groups.
    pub group: Option<String>,
    /// Its share of the surplus, relative to the other weights.
    pub weight: u32,
    /// Its reservation.
    pub reservation_operations_per_second: Option<u64>,
    /// Its reservation.
    pub reservation_bytes_per_second: Option<u64>,
    /// Its limit.
    pub limit_operations_per_second: Option<u64>,
    /// Its limit.
    pub limit_bytes_per_second: Option<u64>,
    /// Operations that it was served in the last period.
    pub operations_per_second: u64,
    /// Bytes that it was served in the last period. Storage nodes count them for tenants to which
    /// bytes are promised, gateways for the others. None where no gate counts them: at data nodes.
    pub bytes_per_second: Option<u64>,
    /// Whether its reservation was met in the last period, or else its demand.
    pub is_met: bool,
    /// The gate that held its requests longest in the last minute; none where none waited, and for
    /// groups and data nodes.
    pub held: Option<HeldStatus>,
}

/// The gate or rule that held requests longest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HeldStatus {
    /// At a stage `bytes_limit`, `operations_limit`, `bytes_share`, `operations_share` or
    /// `channel`; at storage nodes `limit`, `reservation`, `turn` or `device`.
    pub by: String,
    /// Its part of all the time that requests were held, in thousandths.
    pub permille: u64,
    /// The time that requests were held there, all of them together; at storage nodes each counts
    /// as often as it costs.
    pub wait_ns: u64,
}

/// A promise counts as kept from this share on, in thousandths: counting by the period is never
/// exact, and a tenant that gets 97 % of its promise has nothing to complain about.
pub const KEPT_PERMILLE: u64 = 970;

impl TenantStatus {
    /// Whether it has less at stages than its reservation in `unit` although its demand is larger.
    ///
    /// The demand is larger where requests wait at the tenant's gates; where none waits, the
    /// program or its device is the slow one, and no gate can mend that.
    pub fn misses(&self, unit: Unit) -> bool {
        let (reservation, measured, demand) = match unit {
            Unit::Bytes => (
                self.reservation_bytes_per_second,
                self.period_bytes_per_second,
                self.demand_bytes_per_second,
            ),
            Unit::Operations => (
                self.reservation_operations_per_second,
                self.period_operations_per_second,
                self.demand_operations_per_second,
            ),
        };
        let is_waiting = demand.is_none() && self.waiting_permille > 0;
        reservation.is_some_and(|reserved| is_less(measured, reserved)) && is_waiting
    }
}

/// Whether a measured rate is less than a promised one, by more than counting explains.
pub fn is_less(measured: u64, promised: u64) -> bool {
    u128::from(measured) * 1000 < u128::from(promised) * u128::from(KEPT_PERMILLE)
}

/// One stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageStatus {
    /// Its number.
    pub id: u64,
    /// The process that holds its connection.
    pub pid: u32,
    /// The user that the process runs as.
    pub uid: u32,
    /// The user's name, or empty.
    pub user: String,
    /// The machine's name.
    pub host: String,
    /// Its command, shortened.
    pub command: String,
    /// The release of Tidegate that it runs.
    pub release: String,
    /// The tenant it acts for, or empty.
    pub tenant: String,
    /// How long it has been connected.
    pub connected_ns: u64,
    /// Processes that use it.
    pub processes: u32,
    /// The policy revision whose rules it has.
    pub revision: u64,
    /// Why it did not take the rules of the policy in force, if it did not.
    pub error: Option<String>,
    /// Whether it has stopped answering.
    pub is_silent: bool,
    /// Whether its supervisor or the link to it is gone, and its programs may go on by themselves.
    pub is_disconnected: bool,
    /// Its allocation now, for all tenants; none where it has no bound.
    pub allocated_bytes_per_second: Option<u64>,
    /// Its allocation now, for all tenants; none where it has no bound.
    pub allocated_operations_per_second: Option<u64>,
    /// Its traffic in the last interval, for all tenants.
    pub interval_bytes_per_second: u64,
    /// Its traffic in the last interval, for all tenants.
    pub interval_operations_per_second: u64,
    /// The traffic that passed its gates, and the traffic that did not.
    pub coverage: CoverageStatus,
}

/// A stage that ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EndedStageStatus {
    /// Its number.
    pub id: u64,
    /// The process that held its connection.
    pub pid: u32,
    /// The machine's name.
    pub host: String,
    /// Its command, shortened.
    pub command: String,
    /// The tenant it acted for, or empty.
    pub tenant: String,
    /// Why it ended, for people.
    pub reason: String,
    /// How long ago.
    pub ended_ns: u64,
    /// Requests of all its tenants in its last minute, and how long gates held them.
    pub waits: StageWaits,
    /// Bytes of its requests that matched no rule.
    pub unmatched_bytes: u64,
    /// Its requests that matched no rule.
    pub unmatched_operations: u64,
}

/// The traffic that passed a stage's gates, and the traffic that did not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CoverageStatus {
    /// Bytes of requests that passed its gates.
    pub seen_bytes: u64,
    /// Bytes that its processes moved by system calls in all, pipes and sockets included.
    pub syscall_bytes: u64,
    /// Bytes that the device moved for its processes.
    pub device_bytes: u64,
    /// Calls that were let through on purpose, by reason.
    pub bypasses: Vec<BypassStatus>,
}

/// Calls that were let through without passing a gate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BypassStatus {
    /// The reason.
    pub reason: String,
    /// How often.
    pub calls: u64,
    /// How many bytes, where known.
    pub bytes: u64,
}

/// The policy in force, as requested by `Request::Policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PolicyText {
    /// Its revision.
    pub revision: u64,
    /// Its text.
    pub text: String,
    /// Where the text came from.
    pub source: String,
    /// When it was applied, in milliseconds since 1970.
    pub applied_at_ms: u64,
}

/// The effect of `Request::Apply`, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Applied {
    /// The revision in force afterwards; of a dry run, the one in force now.
    pub revision: u64,
    /// Whether this was a dry run.
    pub dry_run: bool,
    /// Whether the text differs from the one in force. If not, the revision stays as it is.
    pub is_changed: bool,
    /// The differences.
    pub changes: Vec<PolicyChange>,
    /// Parts of the policy that the controller's cluster does not observe, with the remedy.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// One difference between two policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PolicyChange {
    /// The kind of entry: `policy`, `tenant`, `channel` or `match`.
    pub what: String,
    /// Which entry: a name, or the position of a rule.
    pub name: String,
    /// `added`, `removed` or `changed`.
    pub change: String,
    /// The fields that differ, of an entry that changed.
    pub fields: Vec<FieldChange>,
    /// The change in one line for people.
    pub line: String,
}

/// A field that differs. Values are written as in a policy, and empty where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FieldChange {
    /// Its name.
    pub field: String,
    /// Its value in the policy in force.
    pub from: String,
    /// Its value in the new policy.
    pub to: String,
}

/// An event with its number and time, as `GET /v1/events` sends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedEvent {
    /// Its number, counting from one since the controller started; a gap is events that were lost.
    pub number: u64,
    /// When it happened, in milliseconds since 1970.
    pub at_ms: u64,
    /// The event itself.
    #[serde(flatten)]
    pub event: Event,
}
