//! Distribution of rates to stages: the decision of a control cycle, and its messages.
//!
//! Two rules keep the sum of the rates in force within the budget at every moment. Decreases go out
//! before increases: they travel on separate sockets, so the order in which stages read them is not
//! certain, but both are read within the same fraction of a millisecond, and the traffic in it is
//! far below a bucket's burst. And a small decrease that is not worth a message is sent after all
//! where the sum, or the sum of one tenant, needs it.
//!
//! Stages of other hosts need more, because their links are slow and may be cut without a notice. A
//! rate that such a stage gives up counts as its own until it has answered (`Bucket::bound`), and
//! no other stage is given more than the bounds of all leave. So the rates in force add up to the
//! budget or less, whatever happens to messages; a share moves from host to host in one round trip
//! and the wait of a settlement.
//!
//! A stage that joins between two decisions gets the free part of the budget; where none is free, a
//! part of one hundredth of the budget. The other stages make room a moment later.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use tidegate_model::gate::{Throughput, Unit};
use tidegate_model::policy::{Account, Fallback};
use tidegate_model::{Event, Policy, StageId, Time};

use super::earlier::Earlier;
use super::headroom::{Headroom, buckets};
use super::implied::{least_budget, reservations};
use super::mix::{MIX_PART, Mix};
use super::rules::{BucketKey, Rates, UNITS, bucket_name, is_small, push_bucket, rules};
use super::safe_rates::SafeRates;
use super::solve::{TenantAtStage, solve};
use super::stage::{Stage, Stages};
use super::{Budgets, HURRIED};
use crate::message::{Enforcement, Rule, ToStage};
use crate::session::{PeerId, ToPeer};

/// A rate that changes by more than one part in this many is a share that moves. As with a demand
/// that falls, steady programs fluctuate by less.
const MOVE_PART: u64 = 8;

/// A change to one bucket of one stage.
struct Change {
    stage: StageId,
    /// The index of the share.
    share: usize,
    unit: Unit,
    goal: u64,
    rate: u64,
    safe: u64,
}

impl Budgets {
    /// Decides the rates of every stage anew, and sends those that change.
    pub(super) fn distribute(&mut self, now: Time) {
        self.settle_at = None;
        let Some(active) = &self.active else { return };
        let policy = &active.policy;
        let (mut decreases, mut increases) = (Vec::new(), Vec::new());
        for (unit, mut goals) in UNITS.into_iter().zip(decide(policy, &self.stages, true)) {
            keep_bounds(policy, unit, (&self.stages, &self.earlier), &mut goals);
            let pressure = Pressure::new(policy, unit, &self.stages, &goals);
            let absent = |tenant: &str| self.earlier.safe(tenant, unit);
            let mut safe_rates = SafeRates::new(policy, unit, &self.stages, absent);
            for ((stage, share, bucket), goal) in buckets(&self.stages, unit).zip(goals) {
                let rate = bucket_rate(policy, &self.stages[&stage], unit, goal);
                let tenant = self.stages[&stage].shares[share].tenant;
                if self.stages[&stage].is_lost {
                    continue;
                }
                let is_leased = self.stages[&stage].peer.is_remote();
                let safe = safe_rates.take(tenant, bucket, is_leased);
                let is_used = is_leased || policy.fallback == Fallback::Reservation;
                let has_safe = safe == bucket.safe || !is_used;
                if has_safe && (goal, rate) == (bucket.goal, bucket.rate) {
                    continue;
                }
                let is_decrease = goal < bucket.goal || rate < bucket.rate;
                let is_wanted = !has_safe || pressure.demands(tenant, is_decrease);
                if is_small(bucket.rate, rate) && !is_wanted {
                    self.totals.suppressed = self.totals.suppressed.saturating_add(1);
                    continue;
                }
                if is_move(bucket.rate, rate) {
                    self.round.hurried = HURRIED;
                }
                let list = if is_decrease { &mut decreases } else { &mut increases };
                let safe = if has_safe { bucket.safe } else { safe };
                list.push(Change { stage, share, unit, goal, rate, safe });
            }
        }
        self.push(decreases);
        self.push(increases);
        self.push_background();
        self.remember();
        self.announce();
        self.hurry(now);
    }

    /// Brings changes into force, with one message to each stage.
    fn push(&mut self, mut changes: Vec<Change>) {
        let Some(active) = &self.active else { return };
        changes.sort_by_key(|change| change.stage);
        for changes in changes.chunk_by(|one, next| one.stage == next.stage) {
            let id = changes[0].stage;
            let Some(stage) = self.stages.get_mut(&id) else { continue };
            let is_remote = stage.peer.is_remote();
            let mut rules = Vec::with_capacity(changes.len());
            for change in changes {
                let share = &mut stage.shares[change.share];
                let Some(bucket) = &mut share.buckets[change.unit as usize] else { continue };
                let (rate, safe) = (bucket.rate, bucket.safe);
                bucket.set(change.goal, change.rate, change.safe, is_remote);
                let tenant = &active.policy.tenants[share.tenant];
                if safe != change.safe {
                    let rates = Rates { safe: change.safe, now: change.rate };
                    push_bucket(&mut rules, &active.policy, tenant, (change.unit, rates));
                } else if rate != change.rate {
                    let gate = bucket_name(&tenant.name, change.unit);
                    let rate = Throughput::new(change.unit, change.rate);
                    rules.push(Rule::Enforcement(Enforcement::Rate { gate, rate }));
                }
            }
            if !rules.is_empty() {
                self.totals.updates = self.totals.updates.saturating_add(rules.len() as u64);
                let revision = active.revision;
                stage.on_sent(revision, &rules);
                let message = ToPeer::Stage(ToStage::Apply { revision, rules });
                self.outbox.send(PeerId::Stage(id), message);
            }
        }
    }

    /// Decides the rates of background channels anew, and sends those that change. A stage that is
    /// silent keeps them, as it keeps the tenant's.
    fn push_background(&mut self) {
        let Some(active) = &self.active else { return };
        for (id, stage) in &mut self.stages {
            if stage.is_lost || stage.silent_since.is_some() {
                continue;
            }
            let rules = decide_background(stage);
            if rules.is_empty() {
                continue;
            }
            self.totals.updates = self.totals.updates.saturating_add(rules.len() as u64);
            let revision = active.revision;
            stage.on_sent(revision, &rules);
            let message = ToPeer::Stage(ToStage::Apply { revision, rules });
            self.outbox.send(PeerId::Stage(*id), message);
        }
    }

    /// Gives a stage that just joined the rates that are free at once, and sends it all of its
    /// rules.
    pub(super) fn start(&mut self, now: Time, id: StageId) {
        let Some(active) = &self.active else { return };
        let decided = decide(&active.policy, &self.stages, true);
        for (unit, goals) in UNITS.into_iter().zip(decided) {
            let own =
                buckets(&self.stages, unit).zip(goals).filter(|((stage, ..), _)| *stage == id);
            let own: Vec<(usize, u64)> = own.map(|((_, share, _), goal)| (share, goal)).collect();
            let returned = self.earlier.returned(&active.policy, unit);
            let mut headroom = Headroom::new(&active.policy, unit, &self.stages, returned);
            let absent = |tenant: &str| self.earlier.safe(tenant, unit);
            let mut safe = SafeRates::new(&active.policy, unit, &self.stages, absent);
            let Some(stage) = self.stages.get_mut(&id) else { return };
            for (share, goal) in own {
                let tenant = stage.shares[share].tenant;
                let is_remote = stage.peer.is_remote();
                let bound = stage.shares[share].bucket(unit).map_or(0, |bucket| bucket.bound);
                let goal = match goal.checked_sub(bound) {
                    None | Some(0) => goal,
                    Some(more) => bound.saturating_add(headroom.take(tenant, more)),
                };
                let rate = bucket_rate(&active.policy, stage, unit, goal);
                if let Some(bucket) = &mut stage.shares[share].buckets[unit as usize] {
                    let safe = safe.take(tenant, bucket, is_remote);
                    bucket.set(goal, rate, safe, is_remote);
                }
            }
        }
        self.remember();
        let holds = self.hold(now, id);
        self.send_all(id, holds);
        self.announce();
    }

    /// Decides anew under a policy that is new to every stage, and sends each all of its rules.
    /// `before` has the rate of each until now, in bytes per second; stages that lose come first.
    pub(super) fn restart(&mut self, now: Time, before: &BTreeMap<StageId, u64>) {
        self.settle_at = None;
        let Some(active) = &self.active else { return };
        // A silent stage finds the new policy when it reads on; no old share is held but those of
        // stages that cannot read it.
        let decided = decide(&active.policy, &self.stages, false);
        for (unit, mut goals) in UNITS.into_iter().zip(decided) {
            keep_bounds(&active.policy, unit, (&self.stages, &self.earlier), &mut goals);
            let absent = |tenant: &str| self.earlier.safe(tenant, unit);
            let mut safe = SafeRates::new(&active.policy, unit, &self.stages, absent);
            let keys = buckets(&self.stages, unit).map(|(stage, share, _)| (stage, share));
            let decided: Vec<_> = keys.zip(goals).collect();
            for ((id, share), goal) in decided {
                let Some(stage) = self.stages.get_mut(&id) else { continue };
                let rate = bucket_rate(&active.policy, stage, unit, goal);
                let (tenant, is_remote) = (stage.shares[share].tenant, stage.peer.is_remote());
                let is_lost = stage.is_lost;
                if let Some(bucket) = &mut stage.shares[share].buckets[unit as usize] {
                    let safe = if is_lost { 0 } else { safe.take(tenant, bucket, is_remote) };
                    bucket.set(goal, rate, safe, is_remote || is_lost);
                }
            }
        }
        self.remember();
        let after = bytes_in_force(&self.stages);
        let growth = |id: &StageId| {
            let grown = i128::from(after[id]) - i128::from(before.get(id).copied().unwrap_or(0));
            (grown, *id)
        };
        let mut order: Vec<(i128, StageId)> = after.keys().map(growth).collect();
        order.sort_unstable();
        for (_, id) in order {
            let holds = self.holds(now, id);
            self.send_all(id, holds);
        }
        self.announce();
    }

    /// Sends a stage all of its rules, and those that hold its buckets.
    fn send_all(&mut self, id: StageId, holds: Vec<Rule>) {
        let (Some(active), Some(stage)) = (&self.active, self.stages.get_mut(&id)) else { return };
        if stage.is_lost {
            return;
        }
        // The list of all rules has these rates.
        decide_background(stage);
        let served: Vec<usize> = stage.shares.iter().map(|share| share.tenant).collect();
        let rates = |tenant: usize, bucket: BucketKey| {
            let Some(index) = stage.share_of(tenant) else { return Rates::default() };
            let share = &stage.shares[index];
            let (unit, background) = match bucket {
                BucketKey::Own(unit) => (unit, None),
                BucketKey::Background(slot) => (Unit::Bytes, Some(share.background.rate(slot))),
            };
            let Some(own) = share.bucket(unit) else { return Rates::default() };
            Rates { safe: own.safe, now: background.unwrap_or(own.rate) }
        };
        let mut rules = rules(&active.policy, &served, stage.home, rates);
        rules.extend(holds);
        let revision = active.revision;
        stage.on_sent(revision, &rules);
        self.send(id, ToStage::Apply { revision, rules });
    }

    /// Publishes the rates of tenants that changed by more than the threshold.
    fn announce(&mut self) {
        let Some(active) = &self.active else { return };
        for unit in UNITS {
            let sums = in_force(&active.policy, unit, &self.stages);
            for ((tenant, promise), sum) in
                self.tenants.iter_mut().zip(&active.policy.tenants).zip(sums)
            {
                let announced = &mut tenant.announced[unit as usize];
                let has_news = announced.is_none_or(|before| !is_small(before, sum));
                if sum == 0 || sum == u64::MAX {
                    *announced = None;
                } else if has_news {
                    *announced = Some(sum);
                    let (tenant, rate) = (promise.name.clone(), Throughput::new(unit, sum));
                    self.outbox.publish(Event::RateChanged { tenant, rate });
                }
            }
        }
    }
}

/// The goals of all [`buckets`] of each unit, in their order. If `hold`, silent stages keep theirs;
/// those that are lost keep theirs in any case.
///
/// Where a tenant has both buckets, what it has of one unit is of no use beyond what it has of the
/// other, so others get the rest. Example: of 1,000 operations and as many KiB, with requests of
/// 1 KiB, one tenant is promised 400 operations. By operations alone it has 700 and another 300, by
/// bytes alone both have half: 200 operations and 200 KiB would be unused. The bytes of these 400
/// operations are reserved for it as well ([`reservations`]).
fn decide(policy: &Policy, stages: &Stages, hold: bool) -> [Vec<u64>; 2] {
    let [bytes, operations] = UNITS;
    let one = |unit, others: Option<&[u64]>| decide_one(policy, unit, stages, (hold, others));
    let first = one(bytes, None);
    let by_operations = one(operations, Some(&first));
    let by_bytes = one(bytes, Some(&by_operations));
    [by_bytes, by_operations]
}

/// The goals in one unit, of which no more is wanted than goes with the goals in the other unit.
fn decide_one(
    policy: &Policy,
    unit: Unit,
    stages: &Stages,
    (hold, others): (bool, Option<&[u64]>),
) -> Vec<u64> {
    let mut entries: Vec<TenantAtStage> = Vec::new();
    let mut others = others.into_iter().flatten();
    for stage in stages.values() {
        let is_held = stage.is_lost || (hold && stage.silent_since.is_some());
        for share in &stage.shares {
            let of_other = share.bucket(unit.other()).and_then(|_| others.next());
            let Some(bucket) = share.bucket(unit) else { continue };
            let held = is_held.then_some(bucket.bound);
            let with_other = of_other.and_then(|goal| share.mix.with(unit, *goal));
            let most =
                with_other.map_or(u64::MAX, |exact| exact.saturating_add(exact.div_ceil(MIX_PART)));
            let (tenant, demand) = (share.tenant, bucket.wanted.min(most));
            entries.push(TenantAtStage { tenant, demand, held, goal: 0 });
        }
    }
    solve(policy, (unit, &reservations(policy, unit, &mixes(policy, stages))), &mut entries);
    entries.into_iter().map(|entry| entry.goal).collect()
}

/// For each of [`UNITS`], the least budget that keeps the reservations in both, as far as tenants
/// use them.
pub(super) fn reserved_budgets(policy: &Policy, stages: &Stages) -> [u64; 2] {
    let mixes = mixes(policy, stages);
    UNITS.map(|unit| {
        let mut wanted = alloc::vec![0u64; policy.tenants.len()];
        for share in stages.values().flat_map(|stage| &stage.shares) {
            let bucket = share.bucket(unit.other());
            let more = bucket.map_or(0, |bucket| bucket.wanted);
            wanted[share.tenant] = wanted[share.tenant].saturating_add(more);
        }
        least_budget(policy, unit, mixes.iter().copied().zip(wanted))
    })
}

/// The requests of each tenant at all of its stages.
fn mixes(policy: &Policy, stages: &Stages) -> Vec<Mix> {
    let mut mixes = alloc::vec![Mix::default(); policy.tenants.len()];
    for share in stages.values().flat_map(|stage| &stage.shares) {
        let mix = &mut mixes[share.tenant];
        *mix = mix.and(share.mix);
    }
    mixes
}

/// Lowers goals so that no stage is given what a stage of another host may still enforce.
fn keep_bounds(
    policy: &Policy,
    unit: Unit,
    (stages, earlier): (&Stages, &Earlier),
    goals: &mut [u64],
) {
    let is_remote = |stage: &Stage| stage.peer.is_remote();
    if !stages.values().any(is_remote) && earlier.until().is_none() {
        return;
    }
    let mut headroom = Headroom::new(policy, unit, stages, earlier.returned(policy, unit));
    for ((id, share, bucket), goal) in buckets(stages, unit).zip(&mut *goals) {
        let stage = &stages[&id];
        if !stage.peer.is_remote() {
            let used = &mut headroom.used[stage.shares[share].tenant];
            *used = used.saturating_sub(bucket.bound.saturating_sub(*goal));
        }
    }
    for ((id, share, bucket), goal) in buckets(stages, unit).zip(goals) {
        if let Some(more @ 1..) = goal.checked_sub(bucket.bound) {
            let tenant = stages[&id].shares[share].tenant;
            *goal = bucket.bound.saturating_add(headroom.take_free(tenant, more)).max(1);
        }
    }
}

/// The sum of the goals of each tenant's stages, by the tenant's index.
pub(super) fn in_force(policy: &Policy, unit: Unit, stages: &Stages) -> Vec<u64> {
    let mut sums = alloc::vec![0u64; policy.tenants.len()];
    for (stage, share, bucket) in buckets(stages, unit) {
        let sum = &mut sums[stages[&stage].shares[share].tenant];
        *sum = sum.saturating_add(bucket.goal);
    }
    sums
}

/// The rate that each stage may use, in bytes per second.
pub(super) fn bytes_in_force(stages: &Stages) -> BTreeMap<StageId, u64> {
    let goal = |stage: &Stage| {
        let buckets = stage.shares.iter().filter_map(|share| share.bucket(Unit::Bytes));
        buckets.fold(0u64, |sum, bucket| sum.saturating_add(bucket.goal))
    };
    stages.iter().map(|(id, stage)| (*id, goal(stage))).collect()
}

/// The rate of a bucket whose requests are to amount to `goal`. A bucket that never fills would
/// hold its first request for ever, so it is at least one.
pub(super) fn bucket_rate(policy: &Policy, stage: &Stage, unit: Unit, goal: u64) -> u64 {
    if goal < u64::MAX && unit == Unit::Bytes && policy.account == Account::Device {
        return stage.calibration.bucket_rate(goal).max(1);
    }
    goal.max(1)
}

/// Whether a share moves, and does not only follow the fluctuation of a demand.
fn is_move(before: u64, after: u64) -> bool {
    before.abs_diff(after) > before.max(after) / MOVE_PART
}

/// Decides the rates of all background channels of a stage, and returns the rules that change.
fn decide_background(stage: &mut Stage) -> Vec<Rule> {
    let rules = stage.shares.iter_mut().map(|share| {
        let own_rate = share.bucket(Unit::Bytes).map_or(u64::MAX, |bucket| bucket.rate);
        share.background.decide(own_rate)
    });
    rules.flatten().collect()
}

/// Which small changes have to be sent nevertheless, by tenant.
struct Pressure {
    /// Decreases, for the sum would be too large without them.
    tight: Vec<bool>,
    /// Increases, for the tenant has less than it was promised without them.
    owed: Vec<bool>,
}

impl Pressure {
    fn new(policy: &Policy, unit: Unit, stages: &Stages, goals: &[u64]) -> Self {
        let tenants = policy.tenants.len();
        let mut target = alloc::vec![0u128; tenants];
        let mut kept = alloc::vec![0u128; tenants];
        let mut kept_but_owed = alloc::vec![0u128; tenants];
        for ((id, share, bucket), goal) in buckets(stages, unit).zip(goals) {
            let stage = &stages[&id];
            let tenant = stage.shares[share].tenant;
            let is_kept = is_small(bucket.rate, bucket_rate(policy, stage, unit, *goal));
            target[tenant] += u128::from(*goal);
            kept[tenant] += u128::from(if is_kept { bucket.goal } else { *goal });
            kept_but_owed[tenant] +=
                u128::from(if is_kept { bucket.goal.max(*goal) } else { *goal });
        }
        let promised = |t: usize| u128::from(policy.tenants[t].reservation.get(unit).unwrap_or(0));
        let owed: Vec<bool> = (0..tenants).map(|t| kept[t] < promised(t).min(target[t])).collect();
        let sum = |t: usize| if owed[t] { kept_but_owed[t] } else { kept[t] };
        let limit = |t: usize| policy.tenants[t].limit.get(unit).map_or(u128::MAX, u128::from);
        let budget = policy.budget.get(unit).map_or(u128::MAX, u128::from);
        let is_over = (0..tenants).map(sum).sum::<u128>() > budget;
        let mut pressure =
            Self { tight: (0..tenants).map(|t| is_over || sum(t) > limit(t)).collect(), owed };
        let mut sums = alloc::vec![(0u128, 0u128); policy.groups.len()];
        let group_of = |t: usize| policy.tenants[t].group;
        for (t, group) in (0..tenants).filter_map(|t| Some((t, group_of(t)?))) {
            sums[group] = (sums[group].0 + kept[t], sums[group].1 + target[t]);
        }
        for (t, group) in (0..tenants).filter_map(|t| Some((t, group_of(t)?))) {
            let ((kept, target), promise) = (sums[group], policy.groups[group].promise);
            let promised = promise.reservation.get(unit).map_or(0, u128::from);
            pressure.owed[t] |= kept < promised.min(target);
            pressure.tight[t] |= kept > promise.limit.get(unit).map_or(u128::MAX, u128::from);
        }
        pressure
    }

    fn demands(&self, tenant: usize, is_decrease: bool) -> bool {
        if is_decrease { self.tight[tenant] } else { self.owed[tenant] }
    }
}
