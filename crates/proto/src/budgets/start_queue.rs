//! Start queues: the programs of a tenant that is over its limit go one after the other.
//!
//! **Problem.** A bucket lets a request pass that is larger than its burst, and makes later ones
//! wait. Of forty programs that start while their tenant is over its limit ([`super::debts`]), each
//! has such a request. If they wait for the same debt, all of them go at the same moment, and the
//! tenant has forty requests for its one debt.
//!
//! **Mechanism.** A stage that starts while its tenant is over its limit, or while other stages of
//! the tenant wait in front of it, is *queued* in each unit of the limit. Its bucket is *held*: it
//! lets no request pass until the limit has earned what the tenant is over and what is in front of
//! the stage, and for [`MARGIN`] more. Stages report the tokens that their requests wait with. In
//! each settlement the controller goes through the queue in the order in which stages started:
//!
//! - If the tenant is not over, the stage is *released*: its hold ends, and its tokens count as
//!   served at once, so that the next stage waits for them.
//! - If it is, the stage and those behind it wait. A hold that ends too early or too late for the
//!   stage's turn is corrected.
//!
//! So each stage knows its turn in advance, and its hold ends by itself: if the controller is gone,
//! or refuses the stage under another policy, programs go one after the other nevertheless, each
//! [`MARGIN`] after its turn. A stage without a connection, as of a killed supervisor, cannot be
//! released. It stays in the queue until its hold ends, and counts as served then. Later stages
//! wait for it, except those whose tokens are earned before that: where stages in front of it have
//! gone, its hold ends long after its turn, and the limit would be unused until then.
//!
//! A stage that waits as the policy changes waits in the queues of the new one.
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
//! earlier have, and counts with a minute of the limit at most. The time of a turn is that of the
//! limit alone: where other programs of the tenant use the limit as well, turns come later, and a
//! stage without a connection goes before its own. It counts with the tokens of its last report.
//! Where a stage has more waiting threads than its table of waiters has cells, threads without a
//! cell are not counted.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use tidegate_model::gate::Unit;
use tidegate_model::policy::Account;
use tidegate_model::{Policy, Span, StageId, Time};

use super::Budgets;
use super::debt::{SECOND, StartState};
use super::debts::{DEBT_MAX, Excess, earned, has_limits, limit};
use super::name_index::NameIndex;
use super::rules::{UNITS, bucket_name, bucket_named};
use super::stage::{Bucket, Stage, Stages};
use super::window_stats::TenantStats;
use crate::message::{Held, Rule, ToStage};
use crate::session::{PeerId, ToPeer};

/// How much later than its turn a stage goes by itself, as a time and in rounds: it does not go so
/// because one or two of them are late.
const MARGIN: Span = Span::SECOND;
const MARGIN_ROUNDS: u64 = 8;

/// A stage without a connection that is held: its requests go when its hold ends.
struct LostHold {
    tenant: usize,
    until: Time,
    tokens: u64,
}

/// A tenant's bucket at a stage, in one unit.
#[derive(Clone, Copy)]
struct BucketIndex {
    stage: StageId,
    /// The index of the share.
    share: usize,
    unit: Unit,
}

impl Budgets {
    /// Holds a stage that starts, if it is to wait in the queues of its tenants. Returns the rules
    /// that do so.
    pub(super) fn hold(&mut self, now: Time, id: StageId) -> Vec<Rule> {
        let mut holds = Vec::new();
        let Some(active) = &self.active else { return holds };
        let policy = &active.policy;
        // The buckets of a stage that was there before have their debts.
        let is_new = self.stages.get(&id).is_some_and(|stage| stage.is_new);
        if !is_new || !has_limits(policy) {
            return holds;
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
                let until = end_of_hold(now, policy, (tenant, unit), over);
                let is_queued = over >= SECOND || has_unknown[tenant];
                let bucket = &mut stage.shares[index].buckets[unit as usize];
                if let Some(bucket) = bucket.as_mut().filter(|_| is_queued) {
                    bucket.debt.start = StartState::Queued { waiting: None };
                    bucket.debt.held_until = until;
                    holds.push(rule(policy, (tenant, unit), until.since(now)));
                }
            }
        }
        holds
    }

    /// The rules that hold the buckets of a stage as they are held by now.
    pub(super) fn holds(&self, now: Time, id: StageId) -> Vec<Rule> {
        let (Some(active), Some(stage)) = (&self.active, self.stages.get(&id)) else {
            return Vec::new();
        };
        let held = |unit| {
            stage.shares.iter().filter_map(move |share| {
                let until = share.bucket(unit)?.debt.held_until;
                (until > now).then(|| rule(&active.policy, (share.tenant, unit), until.since(now)))
            })
        };
        UNITS.into_iter().flat_map(held).collect()
    }

    /// Goes through all queues: releases the stages whose turn has come, and corrects the holds of
    /// others.
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
            let mut lost = Vec::new();
            for index in order {
                let rule = self.advance_one(now, index, (&mut excess, &mut lost));
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

    /// Releases a bucket or corrects the end of its hold, and adds its tokens to what stands in
    /// front of the next one. Returns the change.
    fn advance_one(
        &mut self,
        now: Time,
        index: BucketIndex,
        (excess, lost): (&mut Excess, &mut Vec<LostHold>),
    ) -> Option<Rule> {
        let BucketIndex { stage, share, unit } = index;
        let policy = &self.active.as_ref()?.policy;
        let stage = self.stages.get_mut(&stage)?;
        let tenant = stage.shares[share].tenant;
        let waits_with = demand(policy, stage, (tenant, unit), stage.shares[share].bucket(unit));
        let expected = waits_with.unwrap_or(0);
        let debt = &mut self.tenants[tenant].debts[unit as usize];
        let (is_lost, own) = (stage.is_lost, &mut stage.shares[share].buckets[unit as usize]);
        let own = &mut own.as_mut()?.debt;
        let is_held = own.held_until > now;
        let is_queued = matches!(own.start, StartState::Queued { .. });
        if is_lost && !is_held {
            // Its requests have gone by themselves.
            own.held_until = Time::ZERO;
            debt.serve(expected);
            debt.repay(own.on_served(expected));
            excess.add(policy, tenant, expected);
        }
        if is_lost {
            let hold = LostHold { tenant, until: own.held_until, tokens: expected };
            lost.extend(is_held.then_some(hold));
            return None;
        }
        count_lost(now, policy, (tenant, unit, expected), (excess, lost));
        let over = excess.of(policy, tenant);
        let is_due = waits_with.is_some() && over.is_some_and(|over| over < SECOND);
        if !is_queued || is_due || over.is_none() {
            own.start = StartState::Admitted;
            if is_due && is_queued && expected > 0 {
                own.start = StartState::Released { expected, unearned: expected };
                debt.serve(expected);
                excess.add(policy, tenant, expected);
            }
            own.held_until = Time::ZERO;
            return is_held.then(|| rule(policy, (tenant, unit), Span::ZERO));
        }
        excess.add(policy, tenant, expected);
        let (wanted, end) = (end_of_hold(now, policy, (tenant, unit), over?), own.held_until);
        let apart = wanted.since(end).max(end.since(wanted));
        if apart > Span(margin(policy).0 / 2) {
            own.held_until = wanted;
            return Some(rule(policy, (tenant, unit), wanted.since(now)));
        }
        None
    }
}

/// A stage that this run of the controller does not know reports for how long its buckets are held:
/// it waits in the queue anew, in the order of its number.
pub(super) fn enter(now: Time, name_index: &NameIndex, stage: &mut Stage, held: &Held) {
    for held in held.buckets.iter().filter(|held| held.held > Span::ZERO) {
        let Some((name, unit)) = bucket_named(&held.gate) else { continue };
        let share = name_index.tenant(name).and_then(|tenant| stage.share_of(tenant));
        let Some(share) = share else { continue };
        if let Some(bucket) = &mut stage.shares[share].buckets[unit as usize] {
            bucket.debt.start = StartState::Queued { waiting: None };
            bucket.debt.held_until = now.after(held.held);
        }
    }
}

/// Another policy comes into force for a stage by `serve`. If it waits, it waits at its new buckets
/// as well: where the limit is in another unit, or of another tenant, all that wait would go at
/// once. One that need not wait is released in the next settlement.
pub(super) fn go_on(now: Time, policy: &Policy, stage: &mut Stage, serve: impl FnOnce(&mut Stage)) {
    let mut buckets = stage.shares.iter().flat_map(|share| share.buckets.iter().flatten());
    let is_queued = buckets.any(|bucket| matches!(bucket.debt.start, StartState::Queued { .. }));
    serve(stage);
    for share in stage.shares.iter_mut().filter(|_| is_queued) {
        for unit in UNITS.into_iter().filter(|unit| limit(policy, share.tenant, *unit).is_some()) {
            let Some(bucket) = &mut share.buckets[unit as usize] else { continue };
            if !bucket.is_measured() && bucket.debt.start == StartState::Admitted {
                bucket.debt.start = StartState::Queued { waiting: None };
                bucket.debt.held_until = end_of_hold(now, policy, (share.tenant, unit), 0);
            }
        }
    }
}

/// The tokens that were expected of a stage that has gone, and did not come, need not be earned.
/// Those of a stage without a connection may have come.
pub(super) fn withdraw(stage: &mut Stage, tenants: &mut [TenantStats]) {
    if stage.is_lost {
        return;
    }
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

/// The buckets that are queued, or are held though they are not queued any more; in the order of
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
    stages.values().flat_map(move |stage| {
        let shares = stage.shares.iter().enumerate();
        let buckets = shares.filter_map(move |(at, share)| Some((stage, at, share.bucket(unit)?)));
        buckets.filter(|(.., bucket)| {
            let is_queued = matches!(bucket.debt.start, StartState::Queued { .. });
            is_queued || bucket.debt.held_until > Time::ZERO
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

/// Counts what is in front of a stage whose requests wait with `tokens`: stages without a
/// connection whose holds end before the limit has earned these, or a margin later.
fn count_lost(
    now: Time,
    policy: &Policy,
    (tenant, unit, tokens): (usize, Unit, u64),
    (excess, lost): (&mut Excess, &mut Vec<LostHold>),
) {
    let group = policy.tenants[tenant].group;
    let is_same =
        |other: usize| other == tenant || group.is_some() && policy.tenants[other].group == group;
    lost.sort_by_key(|hold| hold.until);
    lost.retain(|hold| {
        let Some(over) = excess.of(policy, tenant).filter(|_| is_same(hold.tenant)) else {
            return true;
        };
        let paid = over.max(0) + i128::from(tokens) * SECOND;
        let is_later = hold.until > end_of_hold(now, policy, (tenant, unit), paid);
        if !is_later {
            excess.add(policy, hold.tenant, hold.tokens);
        }
        is_later
    });
}

/// When the hold of a stage ends that waits for so many token-nanoseconds per second: the limit
/// earns these first.
fn end_of_hold(now: Time, policy: &Policy, (tenant, unit): (usize, Unit), excess: i128) -> Time {
    let limit = limit(policy, tenant, unit).unwrap_or(0).max(1);
    let wait = u64::try_from(excess.max(0) / i128::from(limit)).unwrap_or(u64::MAX);
    now.after(Span(wait.saturating_add(margin(policy).0)))
}

fn margin(policy: &Policy) -> Span {
    MARGIN.max(Span(policy.redistribute.0.saturating_mul(MARGIN_ROUNDS)))
}

/// Holds a tenant's bucket for so long.
fn rule(policy: &Policy, (tenant, unit): (usize, Unit), span: Span) -> Rule {
    Rule::hold(bucket_name(&policy.tenants[tenant].name, unit), span)
}
