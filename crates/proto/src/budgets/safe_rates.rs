//! Safe rates: the rates that stages may use after their lease, without a controller or without a
//! supervisor.

use alloc::vec::Vec;

use tidegate_model::Policy;
use tidegate_model::gate::Unit;
use tidegate_model::policy::{Group, Tenant};

use super::solve::START_PART;
use super::stage::{Bucket, Stages};

/// Safe rates without a reservation are one part in this many of what a tenant might have. A
/// program whose supervisor was killed keeps its safe rate until it ends, also while it is idle,
/// and the other programs of its tenant have the rest. Half would be a waste for them; a tenth
/// would make a host that is cut off too slow. Chosen by hand.
const UNRESERVED_PART: u64 = 4;

/// A stage has one part in this many of an equal part at least, if orphans of its tenant have the
/// rest: a program must not stand still. Together such stages have a 64th beyond the tenant's safe
/// rate, and as much for each that becomes an orphan later. Chosen by hand.
const LEAST_PART: u64 = 64;

/// The rate that the stages of each tenant may use together without a controller, by the tenant's
/// index. A tenant has its reservation; one without a reservation has a quarter
/// ([`UNRESERVED_PART`]) of its limit, of an equal part of the unreserved budget, and of what its
/// group leaves to it, whichever is least, but of a hundredth of budget and group at least: a
/// program must not stand still because a controller does.
pub(super) fn safe_totals(policy: &Policy, unit: Unit) -> Vec<u64> {
    let mut all = Unreserved::default();
    let mut groups = alloc::vec![Unreserved::default(); policy.groups.len()];
    let own = |group: Option<&Group>| group.and_then(|group| group.promise.reservation.get(unit));
    for tenant in &policy.tenants {
        let promised = tenant.reservation.get(unit);
        if own(policy.group_of(tenant)).is_none() {
            all.count(promised);
        }
        if let Some(group) = tenant.group.and_then(|group| groups.get_mut(group)) {
            group.count(promised);
        }
    }
    policy.groups.iter().filter_map(|group| own(Some(group))).for_each(|it| all.count(Some(it)));
    let free = policy.budget.get(unit).map_or(u64::MAX, |budget| all.part_of(budget));
    let total = |tenant: &Tenant| {
        let group = policy.group_of(tenant);
        let most = tenant.limit.get(unit).unwrap_or(u64::MAX);
        let reserved = tenant.reservation.get(unit).map(|reserved| reserved.min(most));
        reserved.unwrap_or_else(|| {
            let limit = group.and_then(|group| group.promise.limit.get(unit));
            let whole = own(group).or(limit);
            let part = whole.zip(tenant.group).map(|(whole, at)| groups[at].part_of(whole));
            let rate = match part {
                Some(part) if own(group).is_some() => part,
                part => free.min(part.unwrap_or(u64::MAX)),
            };
            match rate.min(most) {
                u64::MAX => u64::MAX,
                rate => rate / UNRESERVED_PART,
            }
        })
    };
    policy.tenants.iter().map(total).collect()
}

/// The rates that stages may use without a controller: equal parts of what each tenant may use.
pub(super) struct SafeRates {
    /// The part of each stage, by the tenant's index.
    part: Vec<u64>,
    /// Rates that no stage of another host or without a connection may have.
    free: Vec<u64>,
}

impl SafeRates {
    /// Those of all stages. `absent` has those of a tenant's stages that have not returned.
    pub(super) fn new(
        policy: &Policy,
        unit: Unit,
        stages: &Stages,
        absent: impl Fn(&str) -> u64,
    ) -> Self {
        let totals = safe_totals(policy, unit);
        let mut counts = alloc::vec![0u64; totals.len()];
        // Rates that stages without a connection may still use.
        let mut lost: Vec<u64> = policy.tenants.iter().map(|it| absent(&it.name)).collect();
        let mut used = lost.clone();
        for (stage, share) in
            stages.values().flat_map(|stage| stage.shares.iter().map(move |share| (stage, share)))
        {
            let (tenant, bucket) = (share.tenant, share.bucket(unit));
            let safe = bucket.map_or(0, |bucket| bucket.safe_bound);
            if stage.peer.is_remote() || stage.is_lost {
                used[tenant] = used[tenant].saturating_add(safe);
            }
            match stage.is_lost {
                true => lost[tenant] = lost[tenant].saturating_add(safe),
                false => counts[tenant] += 1,
            }
        }
        let part = |((total, count), lost): ((&u64, u64), u64)| match *total {
            u64::MAX => u64::MAX,
            total => {
                let (left, count) = (total.saturating_sub(lost), count.max(1));
                (left / count).max(total / count / LEAST_PART).max(1)
            }
        };
        let free = totals.iter().zip(used).map(|(total, used)| total.saturating_sub(used));
        let (free, parts) = (free.collect(), totals.iter().zip(counts).zip(lost));
        Self { part: parts.map(part).collect(), free }
    }

    /// The safe rate of one stage. A stage of another host gets more once others have confirmed
    /// that they have less.
    pub(super) fn take(&mut self, tenant: usize, bucket: &Bucket, is_remote: bool) -> u64 {
        let part = self.part[tenant];
        match part.checked_sub(bucket.safe_bound) {
            Some(more @ 1..) if is_remote && part < u64::MAX => {
                let more = more.min(self.free[tenant]);
                self.free[tenant] -= more;
                (bucket.safe_bound + more).max(1)
            }
            _ => part,
        }
    }
}

/// The sum of the reservations, and the number of tenants without one: these share the rest.
#[derive(Clone, Copy, Default)]
struct Unreserved {
    promised: u64,
    others: u64,
}

impl Unreserved {
    fn count(&mut self, promised: Option<u64>) {
        match promised {
            Some(promised) => self.promised = self.promised.saturating_add(promised),
            None => self.others += 1,
        }
    }

    fn part_of(self, whole: u64) -> u64 {
        whole.saturating_sub(self.promised).max(whole / START_PART) / self.others.max(1)
    }
}
