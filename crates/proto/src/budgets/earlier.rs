//! Stages of other hosts that an earlier run of the controller led.
//!
//! **Problem.** A controller that starts again does not know which hosts are cut off. Their stages
//! go on with their rates until their leases end, and then with their safe rates.
//!
//! **Mechanism.** Across runs the controller keeps the length of leases, and what the safe rates of
//! each tenant's stages add up to ([`Outstanding`]). A stage that returns reports its rates in its
//! hello ([`Held`]). Until the longest lease of the earlier run is over, all of the budget counts
//! as used but for what returned stages had, so rates move among these alone. From then on the safe
//! rates of stages that have not returned are kept, as those of a lost stage are: one entry for
//! each tenant stands for all of its absent stages.
//!
//! The first run, and one after a run that led no stage of another host, waits for nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_model::gate::Unit;
use tidegate_model::policy::Fallback;
use tidegate_model::{Policy, Span, StageId, Time};

use super::headroom::Headroom;
use super::rules::{UNITS, bucket_named};
use super::safe_rates::safe_totals;
use super::stage::{Stage, Stages};
use super::{Active, Budgets, LEASE_MARGIN};
use crate::message::{Held, StageInfo};
use crate::outstanding::Outstanding;
use crate::session::Peer;

/// Shown in place of a command for absent stages.
const ABSENT: &str = "(stages that have not returned since the controller started)";

/// Where the capacity is measured, safe rates change with it. The stored rates are this part more,
/// and fall only by twice that, so that they are not written in each round.
const MEASURED_PART: u64 = 16;

/// The rest of an earlier run.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// When the last of its leases is over; none once it is.
    until: Option<Time>,
    /// Safe rates of stages that have not returned, by tenant.
    safe: BTreeMap<String, [u64; 2]>,
    /// Rates that stages had when they returned, by tenant.
    returned: BTreeMap<String, [u64; 2]>,
    /// Stages whose rates are in `returned`.
    counted: BTreeSet<StageId>,
}

impl Earlier {
    pub(super) fn new(now: Time, outstanding: &Outstanding) -> Self {
        let lease = Span(outstanding.lease.0.saturating_add(LEASE_MARGIN.0));
        let until = (!outstanding.safe.is_empty()).then(|| now.after(lease));
        Self { until, safe: outstanding.safe.clone(), ..Self::default() }
    }

    /// When to call [`Budgets::end_leases`].
    pub(super) fn until(&self) -> Option<Time> {
        self.until
    }

    /// The safe rate of a tenant's stages that may still return, per second.
    pub(super) fn safe(&self, tenant: &str, unit: Unit) -> u64 {
        self.safe.get(tenant).map_or(0, |rates| rates[unit as usize])
    }

    /// While leases of the earlier run last, the rates that stages returned with, by the tenant's
    /// index.
    pub(super) fn returned(&self, policy: &Policy, unit: Unit) -> Option<Vec<u64>> {
        self.until?;
        let of = |name: &String| self.returned.get(name).map_or(0, |rates| rates[unit as usize]);
        Some(policy.tenants.iter().map(|tenant| of(&tenant.name)).collect())
    }
}

impl Budgets {
    /// A stage that this run does not know says what it still has. More than a policy can have
    /// given to it is not believed.
    pub(super) fn claim(&mut self, now: Time, stage: &mut Stage, held: &Held) {
        let Some(active) = &self.active else { return };
        let (policy, is_early) = (&active.policy, self.earlier.until.is_some());
        let lease = held.lease.min(self.outstanding.lease);
        stage.leased_until = now.after(Span(lease.0.saturating_add(LEASE_MARGIN.0)));
        let is_counted = is_early && !self.earlier.counted.insert(stage.info.stage);
        if is_counted || !(is_early || stage.peer.is_remote()) {
            return;
        }
        for bucket in &held.buckets {
            let unit = bucket.rate.unit();
            let tenant = bucket_named(&bucket.gate).filter(|(_, named)| *named == unit);
            let tenant = tenant.and_then(|(name, _)| active.name_index.tenant(name));
            let Some(index) = tenant.and_then(|tenant| stage.share_of(tenant)) else { continue };
            let share = &mut stage.shares[index];
            let name = &policy.tenants[share.tenant].name;
            let Some(own) = &mut share.buckets[unit as usize] else { continue };
            let total = safe_totals(policy, unit)[share.tenant];
            let most = match is_early {
                true => {
                    let returned = self.earlier.returned(policy, unit);
                    Headroom::new(policy, unit, &self.stages, returned).unreturned(share.tenant)
                }
                false => total,
            };
            let rate = bucket.rate.per_second().min(most);
            let safe = bucket.safe.per_second();
            own.bound = rate;
            own.safe_bound = safe.min(total.max(self.earlier.safe(name, unit)));
            if is_early {
                let returned = self.earlier.returned.entry(name.clone()).or_default();
                returned[unit as usize] = returned[unit as usize].saturating_add(rate);
                let left = self.earlier.safe.get_mut(name);
                left.into_iter().for_each(|left| take(&mut left[unit as usize], safe));
            } else {
                give_back(&mut self.stages, share.tenant, unit, safe);
            }
        }
        self.stages.retain(|_, stage| !stage.is_absent || stage.has_bounds());
    }

    /// The leases of an earlier run are over: stages that have not returned have their safe rates.
    pub(super) fn end_leases(&mut self, now: Time) {
        let Earlier { safe, .. } = core::mem::take(&mut self.earlier);
        let Some(active) = &self.active else { return };
        let mut absent = Vec::new();
        for (name, safe) in safe {
            let Some(tenant) = active.name_index.tenant(&name) else { continue };
            // Each stage's part was rounded down.
            let is_of = |stage: &&Stage| stage.share_of(tenant).is_some();
            let rounded = self.stages.values().filter(is_of).count() as u64;
            let safe = safe.map(|rate| if rate <= rounded { 0 } else { rate });
            let stage = absent_stage(now, active, (name, tenant), safe);
            absent.extend(stage.has_bounds().then_some(stage));
        }
        for mut stage in absent {
            let id = self.stage_id(&Peer::default(), &StageInfo::default());
            stage.info.stage = id;
            self.stages.insert(id, stage);
        }
        self.distribute(now);
    }

    /// Has what stages of other hosts may enforce kept for the next run, if that has changed.
    pub(super) fn remember(&mut self) {
        let outstanding = self.outstanding();
        if outstanding != self.outstanding {
            self.outstanding = outstanding.clone();
            self.outbox.remember(outstanding);
        }
    }

    fn outstanding(&self) -> Outstanding {
        let mut safe = self.earlier.safe.clone();
        let active = self.active.as_ref().filter(|it| it.policy.fallback != Fallback::Unlimited);
        let Some(active) = active else { return Outstanding::default() };
        let remote = || self.stages.values().filter(|stage| stage.peer.is_remote());
        if remote().next().is_none() && self.earlier.until.is_none() {
            return Outstanding::default();
        }
        let name = |tenant: usize| &active.policy.tenants[tenant].name;
        for share in remote().flat_map(|stage| &stage.shares) {
            let rates = safe.entry(name(share.tenant).clone()).or_default();
            for (rate, bucket) in rates.iter_mut().zip(&share.buckets) {
                *rate = rate.saturating_add(bucket.as_ref().map_or(0, |it| it.safe_bound));
            }
        }
        let totals = UNITS.map(|unit| safe_totals(&active.policy, unit));
        for (tenant, rates) in safe.iter_mut() {
            let Some(index) = active.name_index.tenant(tenant) else { continue };
            let before = self.outstanding.safe.get(tenant).copied().unwrap_or_default();
            for unit in UNITS.map(|unit| unit as usize) {
                let total = if totals[unit][index] == u64::MAX { 0 } else { totals[unit][index] };
                let rate = rates[unit].max(total);
                rates[unit] = match active.measured {
                    Some(_) => steady(before[unit], rate),
                    None => rate,
                };
            }
        }
        let before = if safe.is_empty() { Span::ZERO } else { self.outstanding.lease };
        Outstanding { lease: self.silence_max().max(before), safe }
    }
}

impl Stage {
    /// Whether it may enforce anything.
    fn has_bounds(&self) -> bool {
        let mut buckets = self.shares.iter().flat_map(|share| share.buckets.iter().flatten());
        buckets.any(|bucket| bucket.bound > 0)
    }
}

/// The entry for a tenant's absent stages.
fn absent_stage(
    now: Time,
    active: &Active,
    (name, tenant): (String, usize),
    safe: [u64; 2],
) -> Stage {
    let peer = Peer { certificate: Some(Vec::new()), ..Peer::default() };
    let info = StageInfo { tenant: name, command: ABSENT.into(), ..StageInfo::default() };
    let mut stage = Stage::new(peer, info, now);
    (stage.is_lost, stage.is_absent, stage.silent_since) = (true, true, Some(now));
    stage.serve(&active.policy, Some(tenant), &[tenant], |_| None);
    for (bucket, safe) in stage.shares[0].buckets.iter_mut().zip(safe) {
        if let Some(bucket) = bucket {
            (bucket.goal, bucket.bound, bucket.safe_bound) = (safe, safe, safe);
        }
    }
    stage
}

/// An absent stage has returned with this safe rate.
fn give_back(stages: &mut Stages, tenant: usize, unit: Unit, safe: u64) {
    let is_of = |stage: &&Stage| !stage.is_lost && stage.share_of(tenant).is_some();
    let rounded = 1 + stages.values().filter(is_of).count() as u64;
    for stage in stages.values_mut().filter(|stage| stage.is_absent) {
        let Some(index) = stage.share_of(tenant) else { continue };
        if let Some(bucket) = &mut stage.shares[index].buckets[unit as usize] {
            take(&mut bucket.bound, safe);
            bucket.bound = if bucket.bound <= rounded { 0 } else { bucket.bound };
            (bucket.goal, bucket.safe_bound) = (bucket.bound, bucket.bound);
        }
    }
}

fn take(rate: &mut u64, part: u64) {
    *rate = rate.saturating_sub(part);
}

/// A rate to keep for one that changes all the time.
fn steady(before: u64, rate: u64) -> u64 {
    let most = rate.saturating_add(rate / MEASURED_PART * 2);
    if (rate..=most).contains(&before) { before } else { rate + rate / MEASURED_PART }
}
