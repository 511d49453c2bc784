//! Start queues: the programs of a tenant that is over its limit go one after the other.
//!
//! **Problem.** A bucket lets a request pass that is larger than its burst, and makes later ones
//! wait. Of forty programs that start while their tenant is over its limit ([`super::debts`]), each
//! has such a request. If they wait for the same debt, all of them go at the same moment, and the
//! tenant has forty requests for its one debt.
//!
//! **Mechanism.** A stage that starts while its tenant is over its limit, or while other stages of
//! the tenant wait in front of it, is *queued* in each unit of the limit. It is charged: its bucket
//! owes what the tenant is over, what is in front of it, and [`HOLD`] of the limit more. So it goes
//! by itself a little too late, if the controller is gone. Stages report the tokens that their
//! requests wait with. In each settlement the controller goes through the queue in the order in
//! which stages started:
//!
//! - If the tenant is not over, the stage is *released*: what is left of its charge is given back,
//!   and its tokens count as served at once, so that the next stage waits for them.
//! - If it is, the stage and those behind it wait. A charge that is almost paid, or is twice as
//!   much as its stage waits for, is corrected.
//!
//! With its first report of service a stage leaves the queue, and the service counts instead of
//! what was expected. What its bucket then owes is a *first service*: other stages of the tenant
//! wait for that, though the program is there and pays it by waiting. They do not wait for what it
//! owes later. So a program that lives on holds others back once, for its first request.
//!
//! Example with a limit of 1 MiB/s, and three programs that start with a request of 4 MiB each
//! while the tenant is over by 3 MiB: they are released after 3, 7 and 11 s. Of a hundred programs
//! with a request of 4 KiB each, all are released within the half second that these take in all.
//!
//! A stage whose requests do not wait yet holds back no other one, and stays queued as long as the
//! tenant is over or other stages are queued with requests.
//!
//! **Bounds.** A queue releases a stage while its tenant is over by nothing, so a window has one
//! large request too many, whatever the number of programs. Each stage goes once those that started
//! earlier have, and counts with a minute of the limit at most. A stage without a connection is not
//! in the queue, and its programs pay its charge at their safe rate. Where a stage has more waiting
//! threads than its table of waiters has cells, threads without a cell are not counted, and go when
//! the charge of their arrival is paid.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use tidegate_model::gate::Unit;
use tidegate_model::policy::Account;
use tidegate_model::{Policy, Span, StageId, Time};

use super::Budgets;
use super::debt::{SECOND, StartState};
use super::debts::{DEBT_MAX, Excess, earned, has_limits, limit};
use super::distribute::bucket_rate;
use super::name_index::NameIndex;
use super::rules::{UNITS, bucket_name, bucket_named};
use super::stage::{Bucket, Stage, Stages};
use super::window_stats::TenantStats;
use crate::message::{Held, Rule, ToStage};
use crate::session::{PeerId, ToPeer};

/// The part of a charge that no stage in front causes, as time at the limit and in rounds: a stage
/// does not go by itself because one or two of them are late.
const HOLD: Span = Span::SECOND;
const HOLD_ROUNDS: u64 = 8;

/// A tenant's bucket at a stage, in one unit.
#[derive(Clone, Copy)]
struct BucketIndex {
    stage: StageId,
    /// The index of the share.
    share: usize,
    unit: Unit,
}

impl Budgets {
    /// Charges a stage that starts, if it is to wait in the queues of its tenants. Returns the
    /// rules that do so.
    pub(super) fn charge(&mut self, now: Time, id: StageId) -> Vec<Rule> {
        let mut charges = Vec::new();
        let Some(active) = &self.active else { return charges };
        let policy = &active.policy;
        // The buckets of a stage that was there before have their debts.
        let is_new = self.stages.get(&id).is_some_and(|stage| stage.is_new);
        if !is_new || !has_limits(policy) {
            return charges;
        }
        for unit in UNITS {
            let mut excess = self.debts.excess(now, (policy, unit), &self.tenants, &self.stages);
            let mut has_unknown = alloc::vec![false; policy.tenants.len()];
            for (stage, share, _) in queued(&self.stages, unit) {
                let share = &stage.shares[share];
                match demand(policy, stage, (share.tenant, unit), share.bucket(unit)) {
                    Some(tokens) => excess.add(policy, share.tenant, tokens),
                    None => has_unknown[share.tenant] = true,
                }
            }
            let Some(stage) = self.stages.get_mut(&id) else { break };
            for index in 0..stage.shares.len() {
                let tenant = stage.shares[index].tenant;
                let Some(over) = excess.of(policy, tenant) else { continue };
                let tokens = charge_for(policy, stage, (tenant, unit), over);
                let is_queued = over >= SECOND || has_unknown[tenant];
                let bucket = &mut stage.shares[index].buckets[unit as usize];
                if let Some(bucket) = bucket.as_mut().filter(|_| is_queued) {
                    bucket.debt.start = StartState::Queued { waiting: None };
                    bucket.debt.charged = tokens;
                    charges.push(rule(policy, (tenant, unit), i128::from(tokens)));
                }
            }
        }
        charges
    }

    /// Goes through all queues: releases the stages whose turn has come, and corrects the charges
    /// of others.
    pub(super) fn advance_start_queues(&mut self, now: Time) {
        let mut changes: BTreeMap<StageId, Vec<Rule>> = BTreeMap::new();
        for unit in UNITS {
            let Some(active) = &self.active else { return };
            let policy = &active.policy;
            let order = order(&self.stages, unit);
            if order.is_empty() {
                continue;
            }
            let mut excess = self.debts.excess(now, (policy, unit), &self.tenants, &self.stages);
            for index in order {
                let rule = self.advance_one(index, &mut excess);
                rule.into_iter().for_each(|it| changes.entry(index.stage).or_default().push(it));
            }
        }
        let Some(active) = &self.active else { return };
        let revision = active.revision;
        for (id, rules) in changes {
            let Some(stage) = self.stages.get_mut(&id) else { continue };
            stage.on_sent(revision, &rules);
            let message = ToPeer::Stage(ToStage::Apply { revision, rules });
            self.outbox.send(PeerId::Stage(id), message);
        }
    }

    /// Releases a bucket or corrects its charge, and adds its tokens to what stands in front of the
    /// next one. Returns the change.
    fn advance_one(&mut self, index: BucketIndex, excess: &mut Excess) -> Option<Rule> {
        let BucketIndex { stage, share, unit } = index;
        let policy = &self.active.as_ref()?.policy;
        let stage = self.stages.get_mut(&stage)?;
        let tenant = stage.shares[share].tenant;
        let over = excess.of(policy, tenant);
        let waits_with = demand(policy, stage, (tenant, unit), stage.shares[share].bucket(unit));
        let wanted = charge_for(policy, stage, (tenant, unit), over.unwrap_or(0));
        let bucket = stage.shares[share].buckets[unit as usize].as_mut()?;
        let is_queued = matches!(bucket.debt.start, StartState::Queued { .. });
        let expected = waits_with.unwrap_or(0);
        let is_due = waits_with.is_some() && over.is_some_and(|over| over < SECOND);
        if !is_queued || is_due || over.is_none() {
            bucket.debt.start = StartState::Admitted;
            if is_due && is_queued && expected > 0 {
                bucket.debt.start = StartState::Released { expected, unearned: expected };
                self.tenants[tenant].debts[unit as usize].serve(expected);
                excess.add(policy, tenant, expected);
            }
            bucket.debt.charged = 0;
            // The stage knows what its bucket has paid of the charge. One that has been served has
            // paid all.
            return is_queued.then(|| rule(policy, (tenant, unit), i128::MIN));
        }
        excess.add(policy, tenant, expected);
        let before = bucket.debt.charged;
        let is_almost_paid = before < earned(bucket.rate, Span(hold(policy).0 / 2));
        if (is_almost_paid && wanted > before) || before / 2 > wanted {
            bucket.debt.charged = wanted;
            let more = i128::from(wanted) - i128::from(before);
            return Some(rule(policy, (tenant, unit), more));
        }
        None
    }
}

/// A stage that this run of the controller does not know says what its buckets were charged: it
/// waits in the queue anew, in the order of its number.
pub(super) fn enter(name_index: &NameIndex, stage: &mut Stage, held: &Held) {
    for held in held.buckets.iter().filter(|held| held.charged > 0) {
        let Some((name, unit)) = bucket_named(&held.gate) else { continue };
        let share = name_index.tenant(name).and_then(|tenant| stage.share_of(tenant));
        let Some(share) = share else { continue };
        if let Some(bucket) = &mut stage.shares[share].buckets[unit as usize] {
            bucket.debt.start = StartState::Queued { waiting: None };
            bucket.debt.charged = held.charged;
        }
    }
}

/// The tokens that were expected of a stage that has gone, and did not come, need not be earned.
pub(super) fn withdraw(stage: &mut Stage, tenants: &mut [TenantStats]) {
    for share in &mut stage.shares {
        let Some(stats) = tenants.get_mut(share.tenant) else { continue };
        for (bucket, debt) in share.buckets.iter_mut().zip(&mut stats.debts) {
            let Some(bucket) = bucket else { continue };
            debt.repay(bucket.debt.start.leave(0));
        }
    }
}

/// The tokens that are expected of stages stay debts under another policy, whose tenants may be
/// other ones.
pub(super) fn forget_expected(stages: &mut Stages) {
    for share in stages.values_mut().flat_map(|stage| &mut stage.shares) {
        for bucket in share.buckets.iter_mut().flatten() {
            if matches!(bucket.debt.start, StartState::Released { .. }) {
                bucket.debt.start = StartState::Admitted;
            }
        }
    }
}

/// The buckets that are queued, or are charged though they are not queued any more; in the order of
/// the queue. Those whose requests wait come first.
fn order(stages: &Stages, unit: Unit) -> Vec<BucketIndex> {
    let mut waiting = Vec::new();
    let mut others = Vec::new();
    for (stage, share, bucket) in queued(stages, unit) {
        let list = match bucket.debt.start {
            StartState::Queued { waiting: Some(1..) } => &mut waiting,
            _ => &mut others,
        };
        list.push(BucketIndex { stage: stage.info.stage, share, unit });
    }
    waiting.append(&mut others);
    waiting
}

/// The same in the order of their stages.
fn queued(stages: &Stages, unit: Unit) -> impl Iterator<Item = (&Stage, usize, &Bucket)> {
    stages.values().filter(|stage| !stage.is_lost).flat_map(move |stage| {
        let shares = stage.shares.iter().enumerate();
        let buckets = shares.filter_map(move |(at, share)| Some((stage, at, share.bucket(unit)?)));
        buckets.filter(|(.., bucket)| {
            let is_queued = matches!(bucket.debt.start, StartState::Queued { .. });
            is_queued || bucket.debt.charged > 0
        })
    })
}

/// The tokens of the limit that a queued bucket's requests wait with, a minute's at most; none if
/// they are not known.
fn demand(
    policy: &Policy,
    stage: &Stage,
    (tenant, unit): (usize, Unit),
    bucket: Option<&Bucket>,
) -> Option<u64> {
    let waiting = match bucket?.debt.start {
        StartState::Queued { waiting } => waiting?,
        StartState::Admitted | StartState::Released { .. } => 0,
    };
    let is_device = unit == Unit::Bytes && policy.account == Account::Device;
    let tokens = if is_device { stage.calibration.device_rate(waiting) } else { waiting };
    let most = limit(policy, tenant, unit).map_or(u64::MAX, |limit| earned(limit, DEBT_MAX));
    Some(tokens.min(most))
}

/// The charge of a stage that waits for so many token-nanoseconds, in tokens of its bucket.
fn charge_for(policy: &Policy, stage: &Stage, (tenant, unit): (usize, Unit), excess: i128) -> u64 {
    let limit = limit(policy, tenant, unit).unwrap_or(0);
    let tokens = u64::try_from(excess.max(0) / SECOND).unwrap_or(u64::MAX);
    let tokens = tokens.saturating_add(earned(limit, hold(policy)));
    bucket_rate(policy, stage, unit, tokens)
}

fn hold(policy: &Policy) -> Span {
    HOLD.max(Span(policy.redistribute.0.saturating_mul(HOLD_ROUNDS)))
}

/// Takes tokens out of a tenant's bucket, or gives them back.
fn rule(policy: &Policy, (tenant, unit): (usize, Unit), tokens: i128) -> Rule {
    let tokens = tokens.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    Rule::charge(bucket_name(&policy.tenants[tenant].name, unit), tokens)
}
