//! The status of a node and its tenants. Raw numbers; the unit is in the name.

use alloc::string::String;
use alloc::vec::Vec;
#[cfg(feature = "schema")]
use alloc::{format, vec};

use serde::{Deserialize, Serialize};
use tidegate_algo::scheduling::scheduler::{PeriodGrant, Scheduler};
use tidegate_model::{NodeId, TenantIndex, Time};

use super::control::unchanged;
use super::latency::{Sums, report};
use super::shards::Shards;
use super::tenant::Tenant;
use super::threads::Threading;
use super::{NodeControl, Slot};
use crate::stats::message::{NodeCounts, NodeLatency};

/// The schema macro writes `std::` for what is in `alloc` and `core`, and this crate has no `std`.
#[cfg(feature = "schema")]
mod std {
    pub(super) use alloc::borrow;
    pub(super) use core::iter;
}

/// The state of a node. All amounts are in units of cost, unless their names say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NodeStatus {
    /// Its name in the cluster file.
    pub name: String,
    /// The number that its controller gave it; none while it is not connected.
    #[cfg_attr(feature = "schema", schema(value_type = Option<u16>))]
    pub node: Option<NodeId>,
    /// The revision of the policy in force; zero while there is none.
    pub revision: u64,
    /// The number of the period that is running.
    pub period: u64,
    /// How long it goes on; none if there is no policy.
    pub period_left_ns: Option<u64>,
    /// The serial of the last grant that was taken.
    pub serial: u64,
    /// For how many periods more the node would go on with its last grant.
    pub lease_periods: u32,
    /// Whether the lease is over, so that nothing is reserved and the policy's fallback holds.
    pub is_abandoned: bool,
    /// The estimated capacity of the device.
    pub capacity_per_second: u64,
    /// Requests at the device.
    pub in_flight: u32,
    /// The most requests at the device at a time.
    pub depth: u32,
    /// Everything that waits.
    pub waiting: u64,
    /// The default tenant, and then the policy's tenants, in its order.
    pub tenants: Vec<TenantStatus>,
}

/// One tenant at a node, in units of cost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TenantStatus {
    /// Its name; empty for the default tenant.
    pub name: String,
    /// Units served in the period so far.
    pub served: u64,
    /// Units served in the period before.
    pub served_before: u64,
    /// Units served since the tenant has been in the plan.
    pub served_total: u64,
    /// The count up to which it goes first in this period.
    pub reserved: u64,
    /// The count up to which it is served at all in this period; none if there is no limit.
    pub allowed: Option<u64>,
    /// Units that wait.
    pub waiting: u64,
    /// Its expected demand in the rest of the period; for the default tenant, the units that wait.
    pub demand: u64,
    /// Its tokens of bytes; none if bytes are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<ByteStatus>,
}

/// The tokens of bytes of one tenant at a node ([`tidegate_model::cost::BYTES_PER_TOKEN`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ByteStatus {
    /// Tokens used in the period so far.
    pub served: u64,
    /// Tokens used in the period before.
    pub served_before: u64,
    /// The count up to which it goes first in this period.
    pub reserved: u64,
    /// The count up to which it is served at all in this period; none if there is no limit.
    pub allowed: Option<u64>,
}

impl NodeControl {
    /// The node's state, and the counts in force.
    pub(super) fn status<J, T: Threading>(&self, now: Time, shards: &Shards<J, T>) -> NodeStatus {
        let ends = self.grants.ends();
        let left = ends.since(now);
        let capacity = self.capacity.within(left.min(self.grants.period()));
        let mut tenants = alloc::vec![default_tenant(now, shards)];
        tenants.extend(self.grants.tenants.iter().map(|tenant| {
            let status = tenant_status(now, shards, &tenant.plan.name, tenant.slot);
            let demand = tenant.demand.within(left, status.waiting, capacity);
            TenantStatus { demand, ..status }
        }));
        NodeStatus {
            name: self.info.name.clone(),
            node: self.number,
            revision: self.revision(),
            period: self.grants.number().0,
            period_left_ns: (ends != Time::MAX).then_some(left.0),
            serial: self.grants.serial,
            lease_periods: self.grants.lease,
            is_abandoned: self.grants.is_abandoned,
            capacity_per_second: self.capacity.per_second().0,
            in_flight: shards.device().in_flight(),
            depth: shards.device().depth(),
            waiting: shards.waiting(),
            tenants,
        }
    }

    /// The node's total counts for its controller; of tenants only those that have changed since
    /// the last report.
    pub(super) fn counts<J, T: Threading>(
        &mut self,
        now: Time,
        shards: &Shards<J, T>,
    ) -> NodeCounts {
        let mut tenants = Vec::new();
        let done = unchanged(now, shards);
        if done.is_none() || done != self.counted {
            self.counted = done;
            for (index, tenant) in (0..).map(TenantIndex).zip(&mut self.grants.tenants) {
                let slot = tenant.slot;
                let waits = shards.change(slot.shard(), |scheduler| scheduler.waits(now, slot));
                if core::mem::replace(&mut tenant.counted, waits) != waits {
                    tenants.push((index, waits));
                }
            }
        }
        NodeCounts {
            revision: self.revision(),
            served: shards.device().done(now).served,
            waiting: shards.waiting(),
            in_flight: shards.device().in_flight(),
            depth: shards.device().depth(),
            bound: self.is_measured.then(|| shards.device().bound()),
            discipline: shards.read(0, Scheduler::discipline),
            tenants,
        }
    }
}

impl NodeControl {
    /// The times of requests of all tenants.
    pub(super) fn latency<J, T: Threading>(&self, shards: &Shards<J, T>) -> NodeLatency {
        let (mut all, mut sums) = (NodeLatency::default(), Sums::default());
        (0..shards.count()).for_each(|it| shards.add_latency(&mut sums, it, Slot::UNATTRIBUTED));
        report("", &sums, &mut all);
        for Tenant { plan, slot, .. } in &self.grants.tenants {
            sums = Sums::default();
            shards.add_latency(&mut sums, slot.shard(), *slot);
            report(&plan.name, &sums, &mut all);
        }
        all
    }
}

/// The default tenant, which is in every shard: requests that waited for a tenant when it left stay
/// in their shard.
fn default_tenant<J, T: Threading>(now: Time, shards: &Shards<J, T>) -> TenantStatus {
    let mut default_tenant = TenantStatus::default();
    for shard in 0..shards.count() {
        let counters = shards.read(shard, |scheduler| scheduler.counters(now, Slot::UNATTRIBUTED));
        default_tenant.served += counters.served;
        default_tenant.served_before += counters.served_before;
        default_tenant.served_total += counters.total;
        default_tenant.waiting += counters.waiting;
        default_tenant.demand += counters.waiting;
    }
    default_tenant
}

fn tenant_status<J, T: Threading>(
    now: Time,
    shards: &Shards<J, T>,
    name: &str,
    slot: Slot,
) -> TenantStatus {
    let allowed = |counts: PeriodGrant| (counts.allowed != u64::MAX).then_some(counts.allowed);
    shards.read(slot.shard(), |scheduler| {
        let (counters, counts) = (scheduler.counters(now, slot), scheduler.counts(slot));
        let bytes = scheduler.byte_counters(slot).zip(scheduler.byte_counts(slot));
        TenantStatus {
            name: name.into(),
            served: counters.served,
            served_before: counters.served_before,
            served_total: counters.total,
            reserved: counts.reserved,
            allowed: allowed(counts),
            waiting: counters.waiting,
            demand: counters.waiting,
            bytes: bytes.map(|(counters, counts)| ByteStatus {
                served: counters.served,
                served_before: counters.served_before,
                reserved: counts.reserved,
                allowed: allowed(counts),
            }),
        }
    })
}
