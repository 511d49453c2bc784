//! Messages between a controller and its storage nodes about tokens.
//!
//! A token is the right to one unit of cost at one node, within one period. Tokens do not travel as
//! things that could be lost or doubled: a [`Grant`] says *up to what count* a node may serve a
//! tenant in a period, and a node compares that with what it has served in the period so far. So a
//! grant that comes twice has no second effect, and one that comes late is older than the one in
//! force and has none. After a lost grant the earlier counts stay in force, and the controller
//! assumes so until the node confirms other ones.
//!
//! # Messages follow changes
//! A period in which nothing changes costs a node four short messages, however many tenants there
//! are:
//!
//! | controller | node | |
//! |---|---|---|
//! | [`ToNode::Collect`] | | once in a period |
//! | | [`FromNode::Rest`] | no tenant did or wants anything; do not ask |
//! | [`ToNode::Renew`] | | the next period begins with the counts of the last lease |
//! | | [`FromNode::Granted`] | they do |
//!
//! A node that rests checks at the beginning of each distribution whether a request has come. If
//! so, it sends [`FromNode::Awake`], again and again until the controller asks it for a report.
//! Three rules keep that safe:
//!
//! - A lease is a chain. [`ToNode::Renew`] names the grant on which it builds, and has only the
//!   differences from it. A node takes it if that is the last lease that it took, and otherwise
//!   answers [`FromNode::Unrenewed`]; then it is sent all counts. So no count is in force that the
//!   controller has not written down, whatever was lost or late.
//! - The lease ends as ever. A node that is not reached goes on for as many periods as its last
//!   lease lasts, rested or not.
//! - A node that does not answer its one question is asked in every distribution, and counts as
//!   silent as soon as any other would.
//!
//! These messages have the version of [`crate::message::VERSION`]. A variant at the end of an enum
//! keeps it. Every other change raises it: of a field, an order, a type, or the meaning of any of
//! these. Golden bytes in the tests detect changes.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};
use tidegate_model::gate::Unit;
use tidegate_model::policy::Fallback;
use tidegate_model::{ClassWeights, Discipline, NodeId, PeriodNumber, Span, TenantIndex};

use crate::message::counts::{NodeCounts, NodeLatency};

/// The units in which tokens are counted: operations, which without named resources stand for units
/// of cost, and bytes.
pub const UNITS: [Unit; 2] = [Unit::Operations, Unit::Bytes];

/// A point in the controller's day: which period, and which distribution within it. Later rounds
/// are greater.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct RoundId {
    /// The period. A controller counts on where its last run stopped, because it numbers
    /// periods by the calendar.
    pub period: PeriodNumber,
    /// The distribution within it, counting from zero.
    pub round: u32,
}

/// The identity of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name in the cluster file.
    pub name: String,
    /// The process that holds the connection.
    pub pid: u32,
    /// The machine's name.
    pub host: String,
    /// The release of Tidegate that it runs.
    pub release: String,
    /// The revision of the [`Plan`] that it has. Zero says that its process is new, and that it
    /// holds no counts of any kind.
    pub revision: u64,
}

/// From a controller to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// The node is accepted.
    Welcome {
        /// The version that the controller speaks.
        version: u16,
        /// The number that the node has.
        node: NodeId,
    },
    /// The node is not accepted; the connection ends.
    Refused {
        /// The version that the controller speaks.
        version: u16,
        /// Why, in words for people.
        reason: String,
        /// Whether asking again later can help.
        retry: bool,
    },
    /// The tenants of a policy. If anything in it is new to the node, the node ignores grants of
    /// other revisions from here on, and the grants that it took are void: no tenant has a
    /// reservation, and limited tenants wait for the next grant.
    Plan(Plan),
    /// Asks for a [`NodeReport`].
    Collect {
        /// Comes back in the report.
        round_id: RoundId,
        /// How long the period has been running, by the controller's clock.
        into: Span,
        /// Whether the report is to name every tenant whose numbers are not all zero, and not
        /// only differences: the controller did not receive the last one.
        complete: bool,
    },
    /// The counts up to which tenants may be served.
    Grant(Grant),
    /// Asks for [`FromNode::Counts`].
    Count,
    /// Renews a lease: a grant with which a period begins, for a node that took the last one.
    Renew {
        /// The serial of the lease on which this one builds. A node that holds another one does not
        /// take it.
        base: u64,
        /// A grant like others with a lease, but tenants that it does not name begin the period
        /// with the counts of the lease `base`.
        grant: Grant,
    },
}

/// The tenants of a policy, and the division of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The revision of the policy.
    pub revision: u64,
    /// The length of a period.
    pub period: Span,
    /// Distributions per period, at least one.
    pub rounds: u32,
    /// The rule for limits at a node once its lease is over.
    pub fallback: Fallback,
    /// The scheduler of the node; none for the one that it was set up with.
    pub discipline: Option<Discipline>,
    /// The weights by which classes of requests take turns; none if all classes are alike.
    pub class_weights: Option<ClassWeights>,
    /// The capacity of the node in which promises are made: in operations and in bytes per second,
    /// where it is declared. It bounds what a reservation in one unit alone implies in the other.
    pub capacity: [Option<u64>; 2],
    /// The tenants, in the order of the policy: the first is [`tidegate_model::TenantId`] 1.
    pub tenants: Vec<TenantPlan>,
}

/// One tenant, as a node needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantPlan {
    /// Its name.
    pub name: String,
    /// Its share among equals.
    pub weight: u32,
    /// Whether it has a limit. One that has none may always be served.
    pub is_limited: bool,
    /// The part of the node, in millionths, that it gets when it asks there, whatever it was
    /// served at other nodes.
    pub minimum_ppm: u32,
    /// Its promise in bytes, where the policy names the nodes as a resource. Then a request of any
    /// size is one operation, and bytes are counted beside it. None elsewhere: large requests cost
    /// more, and bytes are not counted.
    pub bytes: Option<BytePlan>,
}

/// The promise of one tenant in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytePlan {
    /// Whether operations are reserved for it.
    pub reserves_operations: bool,
    /// Whether bytes are.
    pub is_reserved: bool,
    /// Whether it has a limit in bytes.
    pub is_limited: bool,
}

/// The counts up to which tenants may be served in a period at one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The revision of the plan it belongs to.
    pub revision: u64,
    /// When it was decided. Its counts are for `round_id.period`.
    pub round_id: RoundId,
    /// Grows with every grant to this node, across rounds; one that is not greater than the last
    /// that was taken is late, and has no effect.
    pub serial: u64,
    /// How long the period has been running, by the controller's clock; zero, too, if it lies
    /// ahead.
    pub into: Span,
    /// For how many periods after this one the counts hold anew while the controller sends no
    /// others. Not zero in grants with which a period begins, and only in those.
    pub lease: u32,
    /// The tenants for which something changes. Where a node takes the first grant of a period
    /// before the period begins, a tenant that no grant has named by then has nothing reserved, and
    /// nothing allowed if it is limited. Where it comes after the node has begun the period, and so
    /// under the counts that held anew, tenants that it does not name keep theirs.
    pub shares: Vec<Share>,
    /// The same in tokens of bytes ([`tidegate_model::cost::BYTES_PER_TOKEN`]).
    pub bytes: Vec<Share>,
}

/// The counts up to which one tenant may be served in a period at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The tenant's index in the plan.
    pub tenant: TenantIndex,
    /// Up to this count it goes before those without reservation tokens.
    pub reserved: u64,
    /// Up to this count it is served at all; at least `reserved`. `u64::MAX` for no limit.
    pub allowed: u64,
}

/// From a node to its controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromNode {
    /// The answer to [`ToNode::Collect`].
    Report(NodeReport),
    /// A grant was taken, or was too late.
    Granted {
        /// The revision of the plan that the node has.
        revision: u64,
        /// The grant's.
        serial: u64,
        /// The counts in force for each tenant that the grant named, in its order, in the grant's
        /// period: never below the units served already. Empty if the grant was for another
        /// revision or a period that is over.
        shares: Vec<Share>,
        /// The same in tokens of bytes.
        bytes: Vec<Share>,
    },
    /// The node ends, and serves nothing any more.
    Disconnect,
    /// The answer to [`ToNode::Count`]. No decision depends on it: it is for status and metrics.
    Counts(NodeCounts),
    /// Parts that are refused or not durable, all of them. Sent before [`Self::Counts`] where it
    /// has changed, and first on a connection if there are any.
    Faults(Vec<PartFault>),
    /// The answer to [`ToNode::Collect`] where no tenant was served anything in this period and in
    /// the one before, and none is expected to ask for anything: a complete [`NodeReport`] would
    /// name no tenant. The node need not be asked until it sends [`Self::Awake`].
    Rest {
        /// The revision of the plan that it has.
        revision: u64,
        /// The round of the question.
        round_id: RoundId,
        /// The serial of the last grant that it took.
        serial: u64,
        /// The capacity that the node expects to have left, as in a report.
        capacity_left: u64,
    },
    /// A request has come since the node sent [`Self::Rest`].
    Awake,
    /// The answer to a lease that was not taken, renewed or not: nothing of it is in force.
    Unrenewed {
        /// The revision of the plan that the node has.
        revision: u64,
        /// The grant's.
        serial: u64,
    },
    /// Why the node's store as a whole does nothing now: the memcached behind it is away. None once
    /// it works again. Sent before [`Self::Counts`] where it has changed, and first on a connection
    /// if there is something to say.
    StoreFault(Option<String>),
    /// Times of requests. Follows [`Self::Counts`] where they have changed.
    Latency(NodeLatency),
    /// Whether the capacity in reports is known, of a node that is to find it within a bound of
    /// latency: the store was busy once. Else it is an assumption. First on a connection if it is
    /// not known, and again once it is.
    CapacityKnown(bool),
}

/// A part of a volume that cannot be served, or of which acknowledged writes may be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFault {
    /// The volume's name.
    pub volume: String,
    /// Which of its parts.
    pub index: u32,
    /// The fault and how to mend it, for people.
    pub reason: String,
}

/// A node's service so far, and the demand that it expects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The revision of the plan that it has.
    pub revision: u64,
    /// The round of the question.
    pub round_id: RoundId,
    /// The serial of the last grant that it took.
    pub serial: u64,
    /// The capacity that the node expects to have from now to the end of the period, in units of
    /// cost.
    pub capacity_left: u64,
    /// The tenants whose numbers differ from those in the last report; in a complete one, those
    /// whose numbers are not all zero. They are counts, not changes.
    pub tenants: Vec<TenantReport>,
    /// Units of cost served in the whole period before, by the tenant's index in the plan, where
    /// not zero. Only in complete reports.
    pub before: Vec<(TenantIndex, u64)>,
    /// As `tenants`, in tokens of bytes ([`tidegate_model::cost::BYTES_PER_TOKEN`]).
    pub bytes: Vec<TenantReport>,
    /// As `before`, in tokens of bytes.
    pub bytes_before: Vec<(TenantIndex, u64)>,
}

/// One tenant at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantReport {
    /// The tenant's index in the plan.
    pub tenant: TenantIndex,
    /// Units of cost served in the period so far, with tokens of any kind or none.
    pub served: u64,
    /// Units of cost that it is expected to ask for from now to the end of the period, the
    /// waiting ones included.
    pub expected: u64,
    /// Units of cost that wait. They are certain; the rest may go elsewhere.
    pub waiting: u64,
    /// Whether it asks for more when it is served more: it could use all that the node can do.
    pub is_elastic: bool,
}

#[cfg(test)]
mod tests;
