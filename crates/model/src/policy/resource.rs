//! Resources: the shared things that promises are of.
//!
//! # Problem
//! Stages, nodes and data nodes guard different things: a file system, a cluster's devices, a
//! node's memory. A promise without a resource is one of each of them, so it is admitted several
//! times, against capacities that have nothing to do with each other.
//!
//! # Model
//! A [`Resource`] has a capacity of its own, and each tenant has at most one [`Promise`] of it. One
//! kind of gate guards it, and it is the only resource that this kind guards. So a promise is
//! admitted once, against the capacity of its resource alone. Tenants of a [`Group`] share its
//! promise: their reservations are parts of the group's, and their sum keeps to the group's limit.
//!
//! A gate knows no resources. It is sent the policy as its kind sees it ([`Policy::at`]): the
//! capacity of its resource is the budget, and the promises of that resource are the tenants' own.
//! A policy without resources is the same for all kinds. The budget of a measured capacity is where
//! the search begins; the controller changes it from there.
//!
//! ```
//! use tidegate_model::policy::GateKind;
//! use tidegate_model::{Iops, Policy};
//! let policy = Policy::parse(r#"
//!     [[resource]]
//!     name = "cluster"
//!     [[resource]]
//!     name = "scratch"
//!     path = "/scratch/**"
//!     capacity = "100 iops"
//!     [[tenant]]
//!     name = "oltp"
//!     [tenant.on.cluster]
//!     reservation = "90 iops"
//! "#)?;
//! let reserved = |gate| policy.at(gate).tenants[0].reservation.operations;
//! assert_eq!(reserved(GateKind::Node), Some(Iops(90)));
//! assert_eq!(reserved(GateKind::Stage), None);
//! assert_eq!(policy.at(GateKind::Stage).budget.operations, Some(Iops(100)));
//! # Ok::<(), tidegate_model::PolicyError>(())
//! ```

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::{Levels, Policy, Tenant};
use crate::gate::{Throughput, Unit};
use crate::text::listed;
use crate::units::{Iops, Rate, Span};

/// The kinds of gates that enforce promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    /// Stages, in programs under `tidegate run`.
    Stage,
    /// Storage nodes, behind gateways.
    Node,
    /// Data nodes, whose memory clients read and write themselves.
    DataNode,
}

impl GateKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Stage, Self::Node, Self::DataNode];
}

impl fmt::Display for GateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stage => "stages",
            Self::Node => "storage nodes",
            Self::DataNode => "data nodes",
        })
    }
}

/// A shared thing with a capacity of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// The objects that it covers; they decide which kind of gate guards it.
    pub extent: Extent,
    /// Its rates for all tenants together. Where a unit is left out, the cluster file has the
    /// rates of nodes and data nodes, and stages divide nothing in this unit.
    pub capacity: Levels,
    /// Of a measured capacity, which is found while the storage works: the bound of latency that 99
    /// of 100 reads and writes keep. None where the capacity is stated.
    pub measured: Option<Span>,
    /// The promise to each tenant, in the order of [`Policy::tenants`].
    pub tenants: Vec<Promise>,
    /// The promise to each group, in the order of [`Policy::groups`].
    pub groups: Vec<Promise>,
}

/// The objects that a resource covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Folders with everything below them, as patterns that end in `/**`.
    Paths(Vec<String>),
    /// The storage nodes of the cluster file.
    Nodes,
    /// These data nodes of the cluster file.
    DataNodes(Vec<String>),
}

/// The promise of a resource to one tenant or one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The throughput that it gets whenever it has demand.
    pub reservation: Levels,
    /// The most throughput that it gets.
    pub limit: Levels,
    /// Its share of what is left once reservations are met.
    pub weight: u32,
}

/// Tenants that are promised something together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its promise, where the policy names no resources or is the one of [`Policy::at`].
    pub promise: Promise,
}

impl Resource {
    /// The capacity with which the search for a measured one begins. It is more than most storage
    /// serves, since too much shows within two intervals and too little is found in steps: a queue
    /// of no more requests than there are threads lasts for half a second. Chosen by hand.
    pub const MEASURED_START: Levels =
        Levels { bandwidth: Some(Rate(1 << 30)), operations: Some(Iops(100_000)) };

    /// The least bound of latency: a queue of less than a quarter of this looks like none.
    pub const LATENCY_MIN: Span = Span(200_000);

    /// The bound of latency of a measured capacity for which the policy states none. It is six
    /// times what a request alone takes on solid-state and most virtual disks.
    pub const MEASURED_LATENCY: Span = Span(20 * Span::MILLISECOND.0);

    /// The kind of gate that guards it.
    pub const fn gate(&self) -> GateKind {
        match self.extent {
            Extent::Paths(_) => GateKind::Stage,
            Extent::Nodes => GateKind::Node,
            Extent::DataNodes(_) => GateKind::DataNode,
        }
    }
}

impl Policy {
    /// The policy as gates of one kind see it: promises and capacity are those of their resource.
    /// Gates without a resource have no promises. A policy without resources stays what it is.
    #[must_use]
    pub fn at(&self, gate: GateKind) -> Self {
        let mut policy = self.clone();
        if self.resources.is_empty() {
            return policy;
        }
        policy.resources.retain(|resource| resource.gate() == gate);
        let resource = policy.resources.first();
        policy.budget = resource.map_or(Levels::default(), |resource| match resource.measured {
            Some(_) => Resource::MEASURED_START,
            None => resource.capacity,
        });
        let promised = |promises: fn(&Resource) -> &Vec<Promise>, index: usize, weight: u32| {
            let none = Promise { reservation: Levels::default(), limit: Levels::default(), weight };
            resource.and_then(|resource| promises(resource).get(index)).copied().unwrap_or(none)
        };
        for (index, tenant) in policy.tenants.iter_mut().enumerate() {
            let promise = promised(|resource| &resource.tenants, index, tenant.weight);
            (tenant.reservation, tenant.limit) = (promise.reservation, promise.limit);
            tenant.weight = promise.weight;
        }
        for (index, group) in policy.groups.iter_mut().enumerate() {
            group.promise = promised(|resource| &resource.groups, index, group.promise.weight);
        }
        policy
    }

    /// The sum of reservations in a unit, per second, as one kind of gate sees it: a group with a
    /// reservation has that one for all of its tenants.
    pub fn reserved(&self, unit: Unit) -> u64 {
        let own = |group: &Group| group.promise.reservation.get(unit);
        let is_covered =
            |tenant: &&Tenant| self.group_of(tenant).is_some_and(|it| own(it).is_some());
        let tenants = self.tenants.iter().filter(|tenant| !is_covered(tenant));
        let tenants = tenants.filter_map(|tenant| tenant.reservation.get(unit));
        tenants.chain(self.groups.iter().filter_map(own)).fold(0, u64::saturating_add)
    }

    /// The resource that gates of this kind guard; none in a policy without resources.
    pub fn resource_at(&self, gate: GateKind) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.gate() == gate)
    }

    /// The bound of latency within which the capacity at gates of this kind is found; none where it
    /// is stated.
    pub fn measured_at(&self, gate: GateKind) -> Option<Span> {
        self.resource_at(gate)?.measured
    }

    /// The folders to which the promises of stages are confined, as patterns; empty where they are
    /// confined to none.
    pub fn stage_paths(&self) -> &[String] {
        match self.resource_at(GateKind::Stage).map(|resource| &resource.extent) {
            Some(Extent::Paths(paths)) if !paths.iter().any(|path| path == EVERYWHERE) => paths,
            _ => &[],
        }
    }

    /// The group of a tenant.
    pub fn group_of(&self, tenant: &Tenant) -> Option<&Group> {
        self.groups.get(tenant.group?)
    }

    /// Whether every reservation fits what it is a part of: the reservations of a group's tenants
    /// the group's own reservation and its limit, and all together the budget, or the capacity that
    /// the policy states of a resource. Admission checks the capacities of a
    /// cluster file.
    ///
    /// # Errors
    /// The first sum that does not fit.
    pub fn feasible(&self) -> Result<(), Infeasible> {
        if self.resources.is_empty() {
            return fits(self, None);
        }
        self.resources.iter().try_for_each(|resource| self.fits(resource, resource.capacity))
    }

    /// Whether the reservations on a resource fit a capacity, the policy's own or another.
    ///
    /// # Errors
    /// The first sum that does not fit.
    pub fn fits(&self, resource: &Resource, capacity: Levels) -> Result<(), Infeasible> {
        let policy = Self { budget: capacity, ..self.at(resource.gate()) };
        fits(&policy, Some(&resource.name))
    }
}

/// The pattern of a resource that covers every file.
pub(super) const EVERYWHERE: &str = "/**";

/// Checks a policy as one kind of gate sees it.
fn fits(policy: &Policy, resource: Option<&String>) -> Result<(), Infeasible> {
    for unit in [Unit::Bytes, Unit::Operations] {
        let mut members = alloc::vec![Vec::new(); policy.groups.len()];
        let mut parts = Vec::new();
        for tenant in &policy.tenants {
            let reserved = tenant.reservation.get(unit).map_or(0, u128::from);
            let of_group = tenant.group.and_then(|group| members.get_mut(group));
            of_group.unwrap_or(&mut parts).push((tenant.name.clone(), reserved));
        }
        for (Group { name, promise }, members) in policy.groups.iter().zip(members) {
            if let Some(own) = promise.reservation.get(unit) {
                refuse_excess(Whole::Reservation(name.clone()), resource, unit, own, members)?;
                parts.push((name.clone(), u128::from(own)));
                continue;
            }
            if let Some(limit) = promise.limit.get(unit) {
                let whole = Whole::Limit(name.clone());
                refuse_excess(whole, resource, unit, limit, members.clone())?;
            }
            parts.extend(members);
        }
        if let Some(capacity) = policy.budget.get(unit) {
            let whole = if resource.is_some() { Whole::Capacity } else { Whole::Budget };
            refuse_excess(whole, resource, unit, capacity, parts)?;
        }
    }
    Ok(())
}

fn refuse_excess(
    whole: Whole,
    resource: Option<&String>,
    unit: Unit,
    available: u64,
    mut parts: Vec<(String, u128)>,
) -> Result<(), Infeasible> {
    let sum = parts.iter().map(|(_, part)| part).sum::<u128>();
    if sum <= u128::from(available) {
        return Ok(());
    }
    parts.retain(|(_, part)| *part > 0);
    let amount = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
    Err(Infeasible {
        whole,
        resource: resource.cloned(),
        unit,
        available,
        reserved: amount(sum),
        parts: parts.into_iter().map(|(name, part)| (name, amount(part))).collect(),
    })
}

/// Reservations that exceed what they are parts of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    /// The whole of which they are parts.
    pub whole: Whole,
    /// The resource that is promised; none in a policy without resources.
    pub resource: Option<String>,
    /// The unit of all amounts, which are per second.
    pub unit: Unit,
    /// The amount of the whole.
    pub available: u64,
    /// The sum of all reservations.
    pub reserved: u64,
    /// The reservation of each tenant and group that has one.
    pub parts: Vec<(String, u64)>,
}

/// The whole of which reservations are parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whole {
    /// The budget of a policy without resources.
    Budget,
    /// The capacity of a resource.
    Capacity,
    /// The reservation of this group.
    Reservation(String),
    /// The limit of this group, which has no reservation.
    Limit(String),
}

impl Infeasible {
    /// The sums that do not fit, without a way to mend it.
    pub fn message(&self) -> String {
        let Self { whole, resource, unit, available, reserved, parts } = self;
        let [reserved, available] =
            [reserved, available].map(|amount| Throughput::new(*unit, *amount));
        let on = resource.as_ref().map_or_else(String::new, |name| alloc::format!(" on {name}"));
        let part = |(name, part): &(String, u64)| {
            alloc::format!("{name} with {}", Throughput::new(*unit, *part))
        };
        let whole = match whole {
            Whole::Budget => {
                return alloc::format!(
                    "reservations of {reserved} do not fit the budget of {available}"
                );
            }
            Whole::Capacity => String::from("its capacity"),
            Whole::Reservation(group) => alloc::format!("the reservation of group {group}"),
            Whole::Limit(group) => alloc::format!("the limit of group {group}"),
        };
        let parts: Vec<String> = parts.iter().map(part).collect();
        let parts = listed(&parts);
        alloc::format!("reservations of {reserved}{on} do not fit {whole}, {available}: {parts}")
    }

    /// The way to mend it.
    pub const fn fix(&self) -> &'static str {
        match self.whole {
            Whole::Budget => "lower a reservation or raise the budget",
            Whole::Capacity => "lower a reservation or raise the capacity",
            Whole::Reservation(_) => "lower a tenant's reservation or raise the group's",
            Whole::Limit(_) => "lower a tenant's reservation or raise the group's limit",
        }
    }
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message(), self.fix())
    }
}

impl core::error::Error for Infeasible {}

#[cfg(test)]
mod tests;
