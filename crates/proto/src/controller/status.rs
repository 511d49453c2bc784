//! The status of a controller, its tenants and its stages, as in `tidegate status`, `tidegate top`
//! and `GET /v1/status`. Raw numbers; the unit is in the name.

use alloc::string::String;
use alloc::vec::Vec;
#[cfg(feature = "schema")]
use alloc::{format, vec};

use serde::{Deserialize, Serialize};
use tidegate_model::Event;

use crate::cluster::status::ClusterStatus;

/// The schema macro writes `std::` for what is in `alloc` and `core`, and this ring has no `std`.
#[cfg(feature = "schema")]
mod std {
    pub(super) use alloc::borrow;
    pub(super) use core::iter;
}

/// What there is and how it fares.
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
    /// What all tenants together may use, where the policy says it.
    pub budget_bytes_per_second: Option<u64>,
    /// What all tenants together may use, where the policy says it.
    pub budget_operations_per_second: Option<u64>,
    /// What counts against the budget: `requests` or `device`.
    pub account: String,
    /// Sums over everything.
    pub totals: Totals,
    /// The policy's tenants, in its order.
    pub tenants: Vec<TenantStatus>,
    /// The connected stages, by number.
    pub stages: Vec<StageStatus>,
    /// The storage nodes and what tenants get there, if there is a cluster.
    pub cluster: Option<ClusterStatus>,
}

/// Sums over everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Totals {
    /// Connected stages.
    pub stages: u64,
    /// Processes that use them.
    pub processes: u64,
    /// What all tenants may use together; none where one of them has no bound.
    pub allocated_bytes_per_second: Option<u64>,
    /// What all tenants may use together; none where one of them has no bound.
    pub allocated_operations_per_second: Option<u64>,
    /// What flowed for all tenants in the last interval.
    pub interval_bytes_per_second: u64,
    /// What flowed for all tenants in the last interval.
    pub interval_operations_per_second: u64,
    /// What flowed for all tenants in the last period.
    pub period_bytes_per_second: u64,
    /// What flowed for all tenants in the last period.
    pub period_operations_per_second: u64,
    /// What matched no rule on the stages that are connected now.
    pub unmatched_bytes: u64,
    /// What matched no rule on the stages that are connected now.
    pub unmatched_operations: u64,
    /// Cycles that have ended.
    pub cycles: u64,
    /// How long the last one took, from its first question to its last report.
    pub cycle_ns: u64,
    /// Rates that were changed.
    pub rate_updates: u64,
    /// Changes of rates that were too small to be sent.
    pub rate_updates_suppressed: u64,
    /// Stages that were turned away.
    pub stages_refused: u64,
    /// How often a stage did not take the rules that it was sent.
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
    /// What it gets whenever it asks.
    pub reservation_bytes_per_second: Option<u64>,
    /// What it gets whenever it asks.
    pub reservation_operations_per_second: Option<u64>,
    /// What it never gets more of.
    pub limit_bytes_per_second: Option<u64>,
    /// What it never gets more of.
    pub limit_operations_per_second: Option<u64>,
    /// What it may use now; none where it has no bound.
    pub allocated_bytes_per_second: Option<u64>,
    /// What it may use now; none where it has no bound.
    pub allocated_operations_per_second: Option<u64>,
    /// What it is taken to want; none where that is not known, or as much as it can get.
    pub demand_bytes_per_second: Option<u64>,
    /// What it is taken to want; none where that is not known, or as much as it can get.
    pub demand_operations_per_second: Option<u64>,
    /// What flowed in the last interval.
    pub interval_bytes_per_second: u64,
    /// What flowed in the last interval.
    pub interval_operations_per_second: u64,
    /// What flowed in the last period.
    pub period_bytes_per_second: u64,
    /// What flowed in the last period.
    pub period_operations_per_second: u64,
    /// What flowed since the tenant has been in the policy.
    pub bytes: u64,
    /// What flowed since the tenant has been in the policy.
    pub operations: u64,
    /// The time that its requests waited, all together.
    pub waited_ns: u64,
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

/// One stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StageStatus {
    /// Its number.
    pub id: u64,
    /// The process that speaks for it.
    pub pid: u32,
    /// The user that the process runs as.
    pub uid: u32,
    /// The user's name, or empty.
    pub user: String,
    /// The machine's name.
    pub host: String,
    /// What it runs, shortened.
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
    /// What it may use now, for all tenants; none where it has no bound.
    pub allocated_bytes_per_second: Option<u64>,
    /// What it may use now, for all tenants; none where it has no bound.
    pub allocated_operations_per_second: Option<u64>,
    /// What flowed in the last interval, for all tenants.
    pub interval_bytes_per_second: u64,
    /// What flowed in the last interval, for all tenants.
    pub interval_operations_per_second: u64,
    /// What it saw, and what it knows that it did not see.
    pub coverage: CoverageStatus,
}

/// What a stage saw, and what it knows that it did not see.
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
    /// Why.
    pub reason: String,
    /// How often.
    pub calls: u64,
    /// How many bytes, where known.
    pub bytes: u64,
}

/// The policy in force, as asked for by `Request::Policy`.
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

/// What `Request::Apply` did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Applied {
    /// The revision in force afterwards; of a dry run, the one in force now.
    pub revision: u64,
    /// Whether this was only a question.
    pub dry_run: bool,
    /// Whether the text differs from the one in force. If not, the revision stays as it is.
    pub is_changed: bool,
    /// What differs.
    pub changes: Vec<PolicyChange>,
    /// What of it the controller's cluster does not heed, and what helps, in words for people.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// One difference between two policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PolicyChange {
    /// What kind of thing: `policy`, `tenant`, `channel` or `match`.
    pub what: String,
    /// Which one: a name, or the place of a rule.
    pub name: String,
    /// `added`, `removed` or `changed`.
    pub change: String,
    /// What about it, for one that changed.
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
