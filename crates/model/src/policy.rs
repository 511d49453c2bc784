//! The policy: one text with the tenants' reservations and limits, the rules that assign requests
//! to tenants, and the gates that requests pass.
//!
//! Reading a policy is all or nothing: either everything in it is valid, or it is refused. Each
//! error names the line, the field and the way to mend it. [`Policy::parse`] returns the first
//! error, and [`Policy::parse_all`] all of them.
//!
//! ```
//! use tidegate_model::{Policy, Rate};
//! let policy = Policy::parse(r#"
//!     budget = "1000MiB/s"
//!     [[tenant]]
//!     name = "oltp"
//!     class = "high"
//!     reservation = "350MiB/s"
//!     [[match]]
//!     tenant = "oltp"
//!     process = "postgres"
//! "#)?;
//! assert_eq!(policy.tenants[0].reservation.bandwidth, Some(Rate(350 << 20)));
//!
//! let error = Policy::parse("budget = \"1000\"").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     r#"line 1, column 10: budget: "1000" has no unit; write it like "150MiB/s" or "30k iops""#
//! );
//! # Ok::<(), tidegate_model::PolicyError>(())
//! ```

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::conditions::{Conditions, StorageConditions};
use crate::gate::{Burst, GateSpec, Unit};
use crate::id::TenantId;
use crate::tag::{Class, ClassWeights};
use crate::text::TextError;
use crate::units::{Iops, Portion, Rate, Span};

mod background;
mod doubts;
mod fits;
pub mod limits;
pub(crate) mod read;
mod resource;
mod users;

pub use background::{BackgroundSpec, FlowPriority};
pub use fits::StageSlots;
pub use resource::{Extent, GateKind, Group, Infeasible, Promise, Resource, Whole};
pub use users::{CERTIFICATE, Principal};

/// The tenants of a shared storage, their reservations and limits, and the rules for requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The time over which a promise is counted.
    pub period: Span,
    /// The time between two distributions of the budget.
    pub redistribute: Span,
    /// The throughput of the shared storage for all tenants together. Without a budget, nothing is
    /// shared out and only limits hold. A policy with [`Self::resources`] has none: each resource
    /// has a capacity.
    pub budget: Levels,
    /// The bytes that the budget counts: as programs request them, or as the device moves them.
    pub account: Account,
    /// The rates that a stage enforces after it has lost its controller.
    pub fallback: Fallback,
    /// The weights by which high, medium and low requests take turns at a node. Without weights,
    /// the three classes are alike.
    pub class_weights: Option<ClassWeights>,
    /// The tenants, in the order of the text; the first has id 1.
    pub tenants: Vec<Tenant>,
    /// Channels beyond the one that each tenant has of its own.
    pub channels: Vec<Channel>,
    /// The rules that assign requests to tenants and channels; the first match decides.
    pub matches: Vec<Match>,
    /// The resources of promises, at most one for each kind of gate; empty for a policy whose
    /// promises are of everything. They do not travel: a gate is sent the policy as it sees it,
    /// with [`Self::at`].
    #[serde(skip)]
    pub resources: Vec<Resource>,
    /// Tenants that are promised something together. They do not travel either: only the
    /// controller divides what a group has.
    #[serde(skip)]
    pub groups: Vec<Group>,
}

/// Up to one level for each unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// In bytes per second.
    pub bandwidth: Option<Rate>,
    /// In operations per second.
    pub operations: Option<Iops>,
}

impl Levels {
    /// The level in `unit`, per second.
    pub fn get(self, unit: Unit) -> Option<u64> {
        match unit {
            Unit::Bytes => self.bandwidth.map(|rate| rate.0),
            Unit::Operations => self.operations.map(|iops| iops.0),
        }
    }
}

/// The bytes that the budget counts: as programs request them, or as the device moves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Account {
    /// Every byte that a program requests, whether or not a cache answers.
    #[default]
    Requests,
    /// The bytes that the device moves for it, as the kernel counts them: a cache hit is free.
    Device,
}

/// The rates that a stage enforces after it has lost its controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fallback {
    /// The last rates it was given.
    #[default]
    Keep,
    /// Its tenant's reservation: the one rate that is safe without a controller.
    Reservation,
    /// Nothing.
    Unlimited,
}

/// A tenant, with its reservation, limit and weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// How urgent its requests are.
    pub class: Class,
    /// The throughput that the tenant gets whenever it has demand.
    pub reservation: Levels,
    /// The most throughput that the tenant gets.
    pub limit: Levels,
    /// Its share of what is left once reservations are met, 1 to 1,000,000.
    pub weight: u32,
    /// The part of every single node that it gets when it has demand there, whatever it has
    /// elsewhere; at most its share by weight. None for a tenth of that.
    pub minimum_share: Option<Portion>,
    /// How much it may send at once after a pause.
    pub burst: Burst,
    /// The principals that may act for the tenant: Unix users, by name or number, and holders of
    /// certificates, as `cert:NAME`; empty for any client. See [`Tenant::admits`].
    pub users: Vec<String>,
    /// The index in [`Policy::groups`] of the group whose promise it shares. Like groups, it does
    /// not travel.
    #[serde(skip)]
    pub group: Option<usize>,
}

/// A tenant's channel for some of its requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// Its name.
    pub name: String,
    /// The tenant whose requests flow through the channel.
    pub tenant: TenantId,
    /// The gates it adds; the tenant's own come after them.
    pub gates: Vec<GateSpec>,
    /// The background work that it carries; none for requests that the tenant's clients wait for.
    /// It does not travel: only controllers of stages decide its rate.
    #[serde(skip)]
    pub background: Option<BackgroundSpec>,
}

/// Which requests go where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Match {
    /// Where they go.
    pub target: RuleTarget,
    /// Which ones.
    pub conditions: Conditions,
    /// Conditions that gateways check. A rule without any of them is one of stages; a rule with one
    /// is one of gateways, names a tenant, and has no condition on a program.
    pub storage: StorageConditions,
    /// The class of the requests, in a rule of gateways; none for that of their tenant.
    pub class: Option<Class>,
}

/// Where a matching request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RuleTarget {
    /// To a tenant's own channel.
    Tenant(TenantId),
    /// To the channel with this index in [`Policy::channels`].
    Channel(usize),
}

impl Policy {
    /// The weight of a tenant that names none.
    pub const WEIGHT: u32 = 100;

    /// Reads a policy from TOML.
    ///
    /// # Errors
    /// The first thing that is wrong: bad syntax, an unknown field, a value without a unit, a name
    /// that nothing has, a promise that contradicts another of the same tenant, more of something
    /// than a stage holds.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        read::policy(text)
    }

    /// Reads a policy from TOML, and returns all errors of the text.
    ///
    /// # Errors
    /// All errors, at least one, in the order of the text.
    /// An error that only follows from another one is left out.
    pub fn parse_all(text: &str) -> Result<Self, Vec<PolicyError>> {
        read::policy_all(text)
    }

    /// Entries of a valid policy that have no effect: a pattern or a size that no request has, a
    /// rule that never applies, a user for whom `is_user` is false. Each has its place in the text.
    ///
    /// ```
    /// use tidegate_model::Policy;
    /// let text = "[[tenant]]\nname = \"a\"\n[[match]]\ntenant = \"a\"\npath = \"data/**\"";
    /// let doubts = Policy::doubts(text, |_| true);
    /// assert_eq!(doubts[0].line, 5);
    /// assert!(doubts[0].message.starts_with("path: \"data/**\" matches no file"));
    /// ```
    pub fn doubts(text: &str, is_user: impl Fn(&str) -> bool) -> Vec<PolicyError> {
        doubts::doubts(text, &is_user)
    }

    /// The tenant with this id.
    pub fn tenant(&self, id: TenantId) -> Option<&Tenant> {
        self.tenants.get(usize::from(id.0).checked_sub(1)?)
    }

    /// The tenant with this name, and its id.
    pub fn tenant_named(&self, name: &str) -> Option<(TenantId, &Tenant)> {
        let index = self.tenants.iter().position(|tenant| tenant.name == name)?;
        Some((tenant_id(index), &self.tenants[index]))
    }

    /// The sum of all weights.
    pub fn weights(&self) -> u64 {
        self.tenants.iter().map(|tenant| u64::from(tenant.weight)).sum()
    }
}

/// The id of the tenant at `index` in the policy's list.
pub(crate) fn tenant_id(index: usize) -> TenantId {
    TenantId(u16::try_from(index + 1).unwrap_or(u16::MAX))
}

/// An error in a policy's text, with its place and the way to mend it.
pub type PolicyError = TextError;
