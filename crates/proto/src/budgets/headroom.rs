//! Headroom of rates: how much a stage can get before other stages give anything up, within the
//! budget, its tenant's limit and that of the tenant's group.

use alloc::vec::Vec;

use tidegate_model::gate::Unit;
use tidegate_model::{Policy, StageId};

use super::solve::START_PART;
use super::stage::{Bucket, Stages};

/// Every bucket in `unit` with its stage and the index of its share, in a fixed order.
pub(super) fn buckets(
    stages: &Stages,
    unit: Unit,
) -> impl Iterator<Item = (StageId, usize, &Bucket)> {
    stages.iter().flat_map(move |(id, stage)| {
        let shares = stage.shares.iter().enumerate();
        shares.filter_map(move |(index, share)| Some((*id, index, share.bucket(unit)?)))
    })
}

/// The rates that a stage can get before other stages give any up.
pub(super) struct Headroom<'a> {
    policy: &'a Policy,
    unit: Unit,
    /// The sum of what the stages of each tenant may enforce.
    pub(super) used: Vec<u64>,
    /// Of stages that have returned, while others may have all else: see [`super::earlier`].
    returned: Option<Vec<u64>>,
}

impl<'a> Headroom<'a> {
    /// The headroom that stages leave. `returned` is for a time in which others may have all else.
    pub(super) fn new(
        policy: &'a Policy,
        unit: Unit,
        stages: &Stages,
        returned: Option<Vec<u64>>,
    ) -> Self {
        let mut used = alloc::vec![0u64; policy.tenants.len()];
        for (stage, share, bucket) in buckets(stages, unit) {
            let used = &mut used[stages[&stage].shares[share].tenant];
            *used = used.saturating_add(bucket.bound);
        }
        Self { policy, unit, used, returned }
    }

    /// Takes at most `wanted` for a tenant, of what is free.
    pub(super) fn take_free(&mut self, tenant: usize, wanted: u64) -> u64 {
        let left = |(cap, used): (Option<u64>, u64)| Some(cap?.saturating_sub(used));
        let taken = self.caps(tenant).into_iter().filter_map(left).fold(wanted, u64::min);
        self.used[tenant] = self.used[tenant].saturating_add(taken);
        taken
    }

    /// The most that a tenant's stage that has not returned can have.
    pub(super) fn unreturned(&self, tenant: usize) -> u64 {
        let (caps, returned) = (self.levels(tenant), self.returned.as_deref().unwrap_or_default());
        let left = |(cap, sum): (Option<u64>, u64)| Some(cap?.saturating_sub(sum));
        let left = caps.into_iter().zip(self.sums(tenant, returned)).filter_map(left);
        left.fold(u64::MAX, u64::min)
    }

    /// The caps that hold for a tenant, and how much of each is used.
    fn caps(&self, tenant: usize) -> [(Option<u64>, u64); 3] {
        let (caps, used) = (self.levels(tenant), self.sums(tenant, &self.used));
        let returned = self.returned.as_deref().map(|rates| self.sums(tenant, rates));
        let absent = |index: usize| {
            let returned = returned?[index];
            Some(caps[index]?.saturating_sub(returned))
        };
        core::array::from_fn(|index| {
            (caps[index], used[index].saturating_add(absent(index).unwrap_or(0)))
        })
    }

    /// The budget, the tenant's limit and that of its group.
    fn levels(&self, tenant: usize) -> [Option<u64>; 3] {
        let promise = &self.policy.tenants[tenant];
        let group = self.policy.group_of(promise);
        let of_group = group.and_then(|group| group.promise.limit.get(self.unit));
        [self.policy.budget.get(self.unit), promise.limit.get(self.unit), of_group]
    }

    /// Rates of all tenants, of the tenant and of its group, from those by the tenant's index.
    fn sums(&self, tenant: usize, rates: &[u64]) -> [u64; 3] {
        let add = |sum: u64, rate: &u64| sum.saturating_add(*rate);
        let group = self.policy.tenants[tenant].group;
        let of_group = self.policy.tenants.iter().zip(rates);
        let of_group = of_group.filter(|(it, _)| group.is_some() && it.group == group);
        let of_group = of_group.map(|(_, rate)| rate).fold(0, add);
        [rates.iter().fold(0, add), rates.get(tenant).copied().unwrap_or(0), of_group]
    }

    /// Takes at most `wanted` for a tenant's stage that starts.
    pub(super) fn take(&mut self, tenant: usize, wanted: u64) -> u64 {
        let mut taken = wanted;
        for (cap, used) in self.caps(tenant) {
            let Some(cap) = cap else { continue };
            let left = cap.saturating_sub(used);
            let with_start = cap.saturating_add(cap / START_PART).saturating_sub(used);
            taken = taken.min(left.max(with_start / 2));
        }
        // The stage must be able to start; a token per second is noise in any budget.
        let taken = taken.max(1);
        self.used[tenant] = self.used[tenant].saturating_add(taken);
        taken
    }
}
