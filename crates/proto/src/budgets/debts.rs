//! The debts of tenants: the service of a tenant's programs beyond its limit, including programs
//! that have ended.
//!
//! **Problem.** A stage's bucket begins with a burst, lets a request pass that is larger than its
//! burst, and makes later requests wait for it. Both end with the program: a tenant that starts one
//! program after another has a burst and a large request for each of them, whatever its limit is.
//!
//! **Mechanism.** For each limit a [`Debt`] is what was served and is not earned yet: it grows by
//! what stages report, also in their last report, and falls by the limit, not below zero. A debt of
//! the same kind is kept for each bucket at a stage, with the rate of the bucket: its stage pays
//! that one by itself, by waiting. What the tenant owes beyond the debts of the stages that are
//! there was left behind by programs that have ended. As far as it is more than the tenant's burst
//! and what the limit allows in an interval, since reports are so late, the tenant is *over*. A
//! stage that starts is held until its tenant is over no more. Stages that are held go one after
//! the other: see [`super::start_queue`].
//!
//! Example with a limit of 1 MiB/s and programs of one request of 4 MiB each, one after the other:
//! the first goes at once, and leaves 3.9 MiB that count. The second waits for 3.9 s, and so does
//! each that follows. Of two that start at that moment, one waits for 3.9 s and the other for 7.9.
//!
//! A stage that has not reported may use its rate, once its bucket has paid its own debt: what its
//! tenant earns is less by that, until the stage reports.
//!
//! A group's limit has a debt as well. Tenants with a reservation are not held for it: they have
//! their reservations, whatever other tenants of the group do.
//!
//! **Bounds.** In each window a tenant is served no more than its limit and a hundredth of it
//! allow, a burst and an interval, one larger request, and one burst and one larger request for
//! each program at a time that started while the tenant was not over, or goes on after its first
//! request. A tenant of whose programs none has ended is not held, for the rates of its stages
//! together are its limit at most. Nor is one that keeps to its limit. A tenant is over by a
//! minute of its limit at most ([`DEBT_MAX`]), whatever its stages report: no program's requests,
//! and no wrong report, keep the next programs waiting for ever. Debts are forgotten when the
//! controller restarts. What a stage had served and not reported when its supervisor was killed is
//! not known, but for the first service of one that was held. A program that starts before the last
//! report of an ended one has come does not wait for that one; those that start later do.

use alloc::vec::Vec;

use tidegate_algo::shaping::demand::Calibration;
use tidegate_model::gate::{Burst, Unit};
use tidegate_model::policy::Group;
use tidegate_model::{Policy, Span, Time};

use super::Budgets;
use super::debt::{Debt, SECOND};
use super::rules::UNITS;
use super::stage::{Bucket, Stage, Stages};
use super::window_stats::{TenantStats, TrafficCounters};

/// One part in this many is earned beyond the limit: clocks of hosts do not run alike, and rates
/// follow a decision a moment later. Debts that are none would add up without it. A limit holds
/// within two per cent; changes of a rate by less than one are not sent.
const EASE_PART: i128 = 100;

/// The most by which a tenant is over, as time at its limit. Longer than what most programs' large
/// requests take at the limit, and short enough to be waited for. Chosen by hand.
pub(super) const DEBT_MAX: Span = Span(60 * Span::SECOND.0);

impl Stage {
    /// The same stage on its last connection had these debts. The first counters on this one add
    /// nothing, so what was withheld for it stays so.
    pub(super) fn inherit_debts(&mut self, earlier: &Self) {
        for share in &mut self.shares {
            let Some(index) = earlier.share_of(share.tenant) else { continue };
            for (bucket, earlier) in share.buckets.iter_mut().zip(&earlier.shares[index].buckets) {
                if let (Some(bucket), Some(earlier)) = (bucket, earlier) {
                    bucket.debt = earlier.debt;
                    bucket.debt.withheld = 0;
                }
            }
        }
    }
}

/// The debts of groups, and when all debts were settled. Those of tenants are with their counters.
#[derive(Debug, Default)]
pub(super) struct Debts {
    settled: Time,
    /// By index in the policy, and unit.
    groups: Vec<[Debt; 2]>,
}

/// A limit of a tenant or group in one unit, per second, and the bursts of its programs in tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DebtLimit {
    rate: u64,
    bursts: u64,
    interval: Span,
}

impl DebtLimit {
    fn of_tenant(policy: &Policy, index: usize, unit: Unit) -> Option<Self> {
        let tenant = &policy.tenants[index];
        let rate = tenant.limit.get(unit)?;
        let bursts = burst(tenant.burst, unit).tokens(rate);
        Some(Self { rate, bursts, interval: policy.redistribute })
    }

    /// Those of all groups.
    fn of_groups(policy: &Policy, unit: Unit) -> Vec<Option<Self>> {
        let limit = |group: &Group| {
            let rate = group.promise.limit.get(unit)?;
            Some(Self { rate, bursts: 0, interval: policy.redistribute })
        };
        let mut limits: Vec<Option<Self>> = policy.groups.iter().map(limit).collect();
        for tenant in &policy.tenants {
            if let Some(Some(limit)) = tenant.group.and_then(|group| limits.get_mut(group)) {
                let burst = burst(tenant.burst, unit).tokens(limit.rate);
                limit.bursts = limit.bursts.saturating_add(burst);
            }
        }
        limits
    }

    /// The service that it allows in `since`, in token-nanoseconds per second.
    fn earned(self, since: Span) -> i128 {
        let earned = i128::from(self.rate) * i128::from(since.0);
        earned + earned / EASE_PART
    }

    /// The debt that is allowed at any time: the bursts, and an interval, as reports are late.
    fn allowance(self) -> i128 {
        i128::from(self.rate) * i128::from(self.interval.0) + i128::from(self.bursts) * SECOND
    }

    /// The debt as settled `since` later, of which stages that are there pay so much by themselves.
    fn settled(self, debt: Debt, since: Span, paid_by_stages: i128) -> Debt {
        let most = paid_by_stages + self.allowance() + self.over_max();
        debt.after(self.earned(since)).bounded(most)
    }

    fn over_max(self) -> i128 {
        i128::from(self.rate) * i128::from(DEBT_MAX.0)
    }

    /// How far a debt is over, in token-nanoseconds per second; below zero if it is not.
    fn excess(self, debt: Debt, since: Span, paid_by_stages: i128) -> i128 {
        self.settled(debt, since, paid_by_stages).owed - paid_by_stages - self.allowance()
    }

    /// A settled debt under this limit where `earlier` held before: what that limit allowed is no
    /// debt under a lower one. What was withheld stays: stages report next what they had under the
    /// earlier limit.
    fn succeed(self, earlier: Self, debt: Debt) -> Debt {
        let over = (debt.owed - earlier.allowance()).max(0);
        let allowed = if self.rate < earlier.rate { 0 } else { self.allowance() };
        debt.with_owed(debt.owed.min(over + allowed))
    }
}

/// The burst of a tenant's bucket: one of data says nothing of operations.
fn burst(stated: Burst, unit: Unit) -> Burst {
    match (unit, stated) {
        (Unit::Operations, Burst::Size(_)) => Burst::DEFAULT,
        (_, burst) => burst,
    }
}

impl Debts {
    pub(super) fn new(now: Time) -> Self {
        Self { settled: now, groups: Vec::new() }
    }

    /// Another policy is in force: groups and tenants that both have go on. `tenants` has those of
    /// `policy`, and `index` finds that of a name under the policy before.
    pub(super) fn under(
        &mut self,
        policy: &Policy,
        (earlier, index): (Option<&Policy>, impl Fn(&str) -> Option<usize>),
        tenants: &mut [TenantStats],
    ) {
        let mut groups = alloc::vec![[Debt::default(); 2]; policy.groups.len()];
        for unit in UNITS {
            let before = earlier.map_or(Vec::new(), |earlier| DebtLimit::of_groups(earlier, unit));
            let limits = DebtLimit::of_groups(policy, unit);
            for ((group, debts), limit) in policy.groups.iter().zip(&mut groups).zip(limits) {
                let mut names = earlier.iter().flat_map(|it| &it.groups).map(|it| &it.name);
                let Some(at) = names.position(|name| *name == group.name) else { continue };
                if let (Some(limit), Some(before)) = (limit, before[at]) {
                    debts[unit as usize] = limit.succeed(before, self.groups[at][unit as usize]);
                }
            }
            for (at, (tenant, stats)) in policy.tenants.iter().zip(&mut *tenants).enumerate() {
                let before = earlier.zip(index(&tenant.name));
                let before = before.and_then(|(it, at)| DebtLimit::of_tenant(it, at, unit));
                let debt = &mut stats.debts[unit as usize];
                *debt = match (DebtLimit::of_tenant(policy, at, unit), before) {
                    (Some(limit), Some(before)) => limit.succeed(before, *debt),
                    _ => Debt::default(),
                };
            }
        }
        self.groups = groups;
    }

    /// Settles the debts of tenants and groups, behind those of `stages`.
    fn settle(&mut self, now: Time, policy: &Policy, tenants: &mut [TenantStats], stages: &Stages) {
        let since = now.since(core::mem::replace(&mut self.settled, now));
        for unit in UNITS {
            let paid = PaidByStages::new(policy, unit, stages, Span::ZERO);
            let groups = self.joined(policy, unit, tenants);
            let groups = self.groups.iter_mut().zip(groups).zip(paid.groups);
            for (((kept, debt), paid), limit) in groups.zip(DebtLimit::of_groups(policy, unit)) {
                kept[unit as usize] =
                    limit.map_or(Debt::default(), |limit| limit.settled(debt, since, paid));
            }
            for (index, (stats, paid)) in tenants.iter_mut().zip(paid.tenants).enumerate() {
                let debt = &mut stats.debts[unit as usize];
                let limit = DebtLimit::of_tenant(policy, index, unit);
                *debt = limit.map_or(Debt::default(), |limit| limit.settled(*debt, since, paid));
            }
        }
    }

    /// The debts of groups with what happened to their members since the settlement.
    fn joined(&self, policy: &Policy, unit: Unit, tenants: &[TenantStats]) -> Vec<Debt> {
        let mut debts: Vec<Debt> = self.groups.iter().map(|group| group[unit as usize]).collect();
        for (tenant, stats) in policy.tenants.iter().zip(tenants) {
            if let Some(debt) = tenant.group.and_then(|group| debts.get_mut(group)) {
                debt.join(&stats.debts[unit as usize]);
            }
        }
        debts
    }

    /// How far tenants and groups are over in a unit.
    pub(super) fn excess(
        &self,
        now: Time,
        (policy, unit): (&Policy, Unit),
        tenants: &[TenantStats],
        stages: &Stages,
    ) -> Excess {
        let since = now.since(self.settled);
        let paid = PaidByStages::new(policy, unit, stages, since);
        let groups = self.joined(policy, unit, tenants).into_iter().zip(paid.groups);
        let groups = groups
            .zip(DebtLimit::of_groups(policy, unit))
            .map(|((debt, paid), limit)| Some(limit?.excess(debt, since, paid)));
        let own = tenants.iter().zip(paid.tenants).enumerate();
        let own = own.map(|(index, (stats, paid))| {
            let limit = DebtLimit::of_tenant(policy, index, unit)?;
            Some(limit.excess(stats.debts[unit as usize], since, paid))
        });
        Excess { tenants: own.collect(), groups: groups.collect() }
    }
}

/// How far tenants and groups with a limit are over it, in token-nanoseconds per second; below zero
/// for what they may have at once.
#[derive(Debug)]
pub(super) struct Excess {
    tenants: Vec<Option<i128>>,
    groups: Vec<Option<i128>>,
}

impl Excess {
    /// How far a tenant is over its own limit or, without a reservation, over its group's.
    pub(super) fn of(&self, policy: &Policy, tenant: usize) -> Option<i128> {
        let promise = &policy.tenants[tenant];
        let is_promised = UNITS.iter().any(|unit| promise.reservation.get(*unit).is_some());
        let group = promise.group.filter(|_| !is_promised);
        let group = group.and_then(|group| self.groups.get(group).copied().flatten());
        self.tenants[tenant].max(group)
    }

    /// Counts so many tokens as served to a tenant.
    pub(super) fn add(&mut self, policy: &Policy, tenant: usize, tokens: u64) {
        let more = i128::from(tokens) * SECOND;
        let group = policy.tenants[tenant].group;
        let group = group.and_then(|group| self.groups.get_mut(group));
        let all = self.tenants.get_mut(tenant).into_iter().chain(group);
        all.flatten().for_each(|it| *it += more);
    }
}

/// The debts of stages that are there, by the index of their tenant and of its group.
struct PaidByStages {
    tenants: Vec<i128>,
    groups: Vec<i128>,
}

impl PaidByStages {
    /// As of so long after the last settlement of the stages' debts.
    fn new(policy: &Policy, unit: Unit, stages: &Stages, since: Span) -> Self {
        let mut tenants = alloc::vec![0i128; policy.tenants.len()];
        let mut groups = alloc::vec![0i128; policy.groups.len()];
        for share in stages.values().flat_map(|stage| &stage.shares) {
            let Some(bucket) = share.bucket(unit) else { continue };
            let owed = bucket.debt.paid_by_stage(earned_by(bucket, since));
            tenants[share.tenant] += owed;
            if let Some(group) = policy.tenants[share.tenant].group {
                groups[group] += owed;
            }
        }
        Self { tenants, groups }
    }
}

impl TenantStats {
    /// Adds what a stage has served since its last report to its debts and its tenant's, in the
    /// units of limits.
    pub(super) fn on_served(
        &mut self,
        fresh: TrafficCounters,
        calibration: Option<&Calibration>,
        buckets: &mut [Option<Bucket>; 2],
    ) {
        let bytes = calibration.map_or(fresh.bytes, |it| it.device_rate(fresh.bytes));
        let served = [(bytes, fresh.bytes > 0), (fresh.operations, fresh.operations > 0)];
        let debts = self.debts.iter_mut().zip(buckets).zip(served);
        for ((debt, bucket), (served, has_moved)) in debts {
            debt.serve(served);
            let Some(bucket) = bucket.as_mut() else { continue };
            let withheld = core::mem::take(&mut bucket.debt.withheld);
            debt.release(withheld);
            if has_moved {
                debt.repay(bucket.debt.on_served(served));
            }
            bucket.debt.own.release(withheld);
            bucket.debt.is_due = false;
        }
    }
}

impl Budgets {
    /// Settles all debts, and lets the stages go whose turn has come.
    pub(super) fn settle_debts(&mut self, now: Time) {
        let Some(active) = &self.active else { return };
        let policy = &active.policy;
        let since = now.since(self.debts.settled);
        let shares = self.stages.values_mut().flat_map(|stage| &mut stage.shares);
        for share in shares {
            for unit in UNITS {
                let Some(bucket) = &mut share.buckets[unit as usize] else { continue };
                if core::mem::replace(&mut bucket.debt.is_due, true)
                    && let Some(limit) = limit(policy, share.tenant, unit)
                {
                    // Nothing goes while the bucket is held, and then its debt is paid first.
                    let free = now.since(bucket.debt.held_until).min(since);
                    let tokens = earned(bucket.bound.min(limit), free);
                    let tokens = tokens.saturating_sub(bucket.debt.own.tokens());
                    bucket.debt.withheld = bucket.debt.withheld.saturating_add(tokens);
                    bucket.debt.own.withhold(tokens);
                    self.tenants[share.tenant].debts[unit as usize].withhold(tokens);
                }
                let own_earned = earned_by(bucket, since);
                bucket.debt.settle(own_earned);
                if let Some(limit) = limit(policy, share.tenant, unit) {
                    bucket.debt.start.on_earned(earned(limit, since));
                }
            }
        }
        self.debts.settle(now, policy, &mut self.tenants, &self.stages);
        self.advance_start_queues(now);
    }
}

/// Whether a policy has a limit at all.
pub(super) fn has_limits(policy: &Policy) -> bool {
    let is_limited = |unit| {
        policy.tenants.iter().any(|tenant| tenant.limit.get(unit).is_some())
            || policy.groups.iter().any(|group| group.promise.limit.get(unit).is_some())
    };
    UNITS.into_iter().any(is_limited)
}

/// The limit that holds for a tenant: its own or its group's.
pub(super) fn limit(policy: &Policy, tenant: usize, unit: Unit) -> Option<u64> {
    let promise = &policy.tenants[tenant];
    let group = policy.group_of(promise).and_then(|group| group.promise.limit.get(unit));
    [promise.limit.get(unit), group].into_iter().flatten().min()
}

/// The service that a bucket earns in `since`, in token-nanoseconds per second of the tokens of its
/// limit.
fn earned_by(bucket: &Bucket, since: Span) -> i128 {
    i128::from(bucket.goal) * i128::from(since.0)
}

/// Tokens of a rate per second.
pub(super) fn earned(rate: u64, span: Span) -> u64 {
    let tokens = u128::from(rate) * u128::from(span.0) / u128::from(Span::SECOND.0);
    u64::try_from(tokens).unwrap_or(u64::MAX)
}
