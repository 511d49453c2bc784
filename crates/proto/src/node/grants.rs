//! The token counts in force at a storage node, period by period.
//!
//! This module takes plans, grants and leases from the controller and confirms them, begins each
//! period (by itself, close to the controller's time) with the counts of a grant, of the lease or,
//! when the lease is over, of the policy's fallback, and answers the controller's questions with
//! service and expected demand.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use tidegate_algo::scheduling::dsfq::Bound;
use tidegate_algo::scheduling::scheduler::{PeriodPart, Slot, SlotCounters, TenantParameters};
use tidegate_model::gate::Unit;
use tidegate_model::policy::Fallback;
use tidegate_model::{PeriodNumber, Span, TenantIndex, Time, Waits};

use super::implied::ImpliedReservations;
use super::shards::Shards;
use super::tenant::{Counters, Tenant, served};
use super::threads::Threading;
use crate::cluster::message::{
    FromNode, Grant, NodeReport, Plan, RoundId, Share, TenantPlan, UNITS,
};

/// The periods after a plan in which limited tenants wait for a first grant. Longer than it takes
/// to ask and to answer, even if a period ends in between.
const PLAN_LEASE: u32 = 1;

/// A period ends later than expected by one part in this many of it at most.
const LATER_PART: u64 = 16;

/// The plan, the period and the grants.
#[derive(Debug)]
pub(super) struct PeriodGrants {
    revision: u64,
    /// Plans that were taken.
    pub(super) plans: u64,
    period: Span,
    rounds: u32,
    fallback: Fallback,
    /// Whether counts have come since the plan, and how long the periods were for which the last
    /// ones came before it.
    is_granted: bool,
    granted_for: Span,
    pub(super) tenants: Vec<Tenant>,
    implied: ImpliedReservations,
    indexes: BTreeMap<String, usize>,
    /// The number of the period that is running.
    number: PeriodNumber,
    ends: Time,
    /// Whether a message has reported in this period how long it has been running.
    is_aligned: bool,
    /// Whether no message has come since the connection was made, so that the controller
    /// may be another one, with another count of periods.
    is_fresh: bool,
    /// The serial of the last grant that was taken.
    pub(super) serial: u64,
    /// That of the last lease, if the counts with which periods begin are what it said: those that
    /// may be renewed. Zero if not.
    leased: u64,
    /// The periods for which the first counts still hold anew.
    pub(super) lease: u32,
    /// The lease of the grant with which the next period begins, if one has come.
    coming: Option<u32>,
    /// Whether the lease is over, and no grant has come since.
    pub(super) is_abandoned: bool,
}

impl Default for PeriodGrants {
    /// No tenants, and a period that does not end.
    fn default() -> Self {
        Self {
            revision: 0,
            plans: 0,
            period: Span::MAX,
            rounds: 1,
            fallback: Fallback::default(),
            is_granted: false,
            granted_for: Span::MAX,
            tenants: Vec::new(),
            implied: ImpliedReservations::default(),
            indexes: BTreeMap::new(),
            number: PeriodNumber::default(),
            ends: Time::MAX,
            is_aligned: false,
            is_fresh: true,
            serial: 0,
            leased: 0,
            lease: 0,
            coming: None,
            is_abandoned: false,
        }
    }
}

impl PeriodGrants {
    pub(super) const fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) const fn number(&self) -> PeriodNumber {
        self.number
    }

    pub(super) const fn ends(&self) -> Time {
        self.ends
    }

    /// The length of a period.
    pub(super) const fn period(&self) -> Span {
        self.period
    }

    /// The time between two distributions.
    pub(super) fn interval(&self) -> Span {
        Span(self.period.0 / u64::from(self.rounds))
    }

    pub(super) fn slot(&self, name: &str) -> Slot {
        self.indexes.get(name).map_or(Slot::UNATTRIBUTED, |index| self.tenants[*index].slot)
    }

    /// A controller has been reached, which may count periods in another way.
    pub(super) fn on_connected(&mut self) {
        self.is_fresh = true;
        self.tenants.iter_mut().for_each(|tenant| tenant.counted = Waits::ZERO);
    }

    /// Takes a plan, and says whether it is another one than before.
    pub(super) fn on_plan<J, T: Threading>(
        &mut self,
        now: Time,
        plan: Plan,
        shards: &Shards<J, T>,
    ) -> bool {
        let period = plan.period.max(super::INTERVAL_MIN);
        if plan.revision == 0 || self.is_in_force(&plan, period) {
            return false;
        }
        self.plans += 1;
        if core::mem::take(&mut self.is_granted) {
            self.granted_for = self.period;
            self.tenants.iter_mut().for_each(|tenant| tenant.granted = tenant.holds);
        }
        if period != self.period {
            self.change_period(now, period, shards);
        }
        if self.revision == 0 {
            shards.change_all(|scheduler| {
                scheduler.begin(now, self.ends);
                // They may be of tenants with a reservation, and would wait behind all of these.
                scheduler.reserve_waiting(now);
            });
        }
        self.revision = plan.revision;
        self.period = period;
        self.rounds = plan.rounds.max(1);
        self.fallback = plan.fallback;
        (self.lease, self.leased) = (PLAN_LEASE, 0);
        (self.coming, self.is_abandoned) = (None, false);
        self.implied = ImpliedReservations::new(plan.capacity, plan.tenants.iter());
        self.take_tenants(now, plan.tenants, shards);
        true
    }

    /// The running period gets another length. A period that is too long by now ends here, and that
    /// of the first plan begins here.
    fn change_period<J, T: Threading>(&mut self, now: Time, period: Span, shards: &Shards<J, T>) {
        let begun = match self.revision {
            0 => now,
            _ => Time(self.ends.0.saturating_sub(self.period.0)),
        };
        self.ends = begun.after(period).max(now);
        self.is_fresh = true;
        if self.revision == 0 {
            return;
        }
        shards.change_all(|scheduler| scheduler.end_at(self.ends));
        let (length, granted) = (self.ends.since(begun), self.granted_for);
        if length < granted {
            let among = self.implied.among();
            let grants = self.tenants.iter();
            let grants: Vec<_> = grants
                .map(|tenant| (tenant.slot, tenant.of_scheduler(&tenant.granted, among)))
                .collect();
            let part = PeriodPart { length, granted, is_over: self.ends <= now };
            shards.cut_all(now, &grants, part);
        }
    }

    /// Whether it is this plan that is in force. A controller that lost its state begins again to
    /// count revisions, so the same number may be that of another plan.
    fn is_in_force(&self, plan: &Plan, period: Span) -> bool {
        let shape = (plan.revision, period, plan.rounds.max(1), plan.fallback);
        shape == (self.revision, self.period, self.rounds, self.fallback)
            && plan.capacity == self.implied.capacity()
            && plan.tenants.iter().eq(self.tenants.iter().map(|tenant| &tenant.plan))
    }

    fn take_tenants<J, T: Threading>(
        &mut self,
        now: Time,
        plans: Vec<TenantPlan>,
        shards: &Shards<J, T>,
    ) {
        let name = |tenant: &Tenant| tenant.plan.name.clone();
        let old = core::mem::take(&mut self.tenants).into_iter();
        let mut old: BTreeMap<String, Tenant> = old.map(|tenant| (name(&tenant), tenant)).collect();
        let weights = plans.iter().map(|plan| u64::from(plan.weight)).sum();
        // New tenants go to the shard with the least weight.
        let mut loads = alloc::vec![0; shards.count()];
        for plan in &plans {
            if let Some(tenant) = old.get(&plan.name) {
                loads[tenant.slot.shard()] += u64::from(plan.weight);
            }
        }
        for plan in plans {
            let parameters = parameters(&plan, weights);
            let tenant = match old.remove(&plan.name) {
                Some(tenant) => tenant.replanned(plan),
                None => {
                    let shard = (0..loads.len()).min_by_key(|shard| loads[*shard]).unwrap_or(0);
                    loads[shard] += u64::from(plan.weight);
                    let slot = shards.change(shard, |scheduler| scheduler.add(parameters));
                    Tenant::new(plan, slot)
                }
            };
            let slot = tenant.slot;
            shards
                .change(slot.shard(), |scheduler| scheduler.set_parameters(now, slot, parameters));
            self.tenants.push(tenant.unnamed_now());
        }
        self.put_in_force(now, (0..self.tenants.len()).collect(), shards);
        for tenant in old.into_values() {
            let slot = tenant.slot;
            shards.change(slot.shard(), |scheduler| scheduler.remove(now, slot));
        }
        self.indexes = self.tenants.iter().map(name).zip(0..).collect();
    }

    /// The controller says that `period` has been running for `into`.
    ///
    /// A message took some time on its way, so the earliest reported beginning of a period is
    /// nearest to the truth. One that came very late, to a process that stood still, says least:
    /// the end of a period moves back by a [`LATER_PART`] at most, which is more than clocks drift
    /// apart in a period. A new controller may count periods otherwise, but a message of the period
    /// before is only late: a node that went back would use the counts of two periods in one.
    pub(super) fn align<J, T: Threading>(
        &mut self,
        now: Time,
        period: PeriodNumber,
        into: Span,
        shards: &Shards<J, T>,
    ) {
        if self.revision == 0 {
            return;
        }
        let is_fresh = core::mem::take(&mut self.is_fresh);
        if is_fresh && period.0.abs_diff(self.number.0) > 1 {
            self.number = period;
            self.forget_coming();
            self.is_aligned = false;
        }
        let begun = Time(now.0.saturating_sub(into.0.min(self.period.0)));
        if period > self.number {
            self.skip(period.0 - self.number.0 - 1);
            self.begin_period(begun, shards);
        }
        // The node may have begun the next period a moment before its controller.
        let ahead = match self.number.0 - period.0 {
            0 => Span::ZERO,
            1 => self.period,
            _ => return,
        };
        let ends = begun.after(ahead).after(self.period).max(now);
        self.ends = match (self.is_aligned, is_fresh) {
            (true, _) => self.ends.min(ends),
            (false, true) => ends,
            (false, false) => ends.min(self.ends.after(Span(self.period.0 / LATER_PART))),
        };
        self.is_aligned = true;
    }

    /// Begins the periods that have begun by `now`, which is not before the end of this one.
    pub(super) fn advance<J, T: Threading>(&mut self, now: Time, shards: &Shards<J, T>) {
        // A machine that slept for a day has missed many.
        let missed = now.since(self.ends).0 / self.period.0;
        self.begin_period(self.ends, shards);
        if missed > 0 {
            self.skip(missed - 1);
            let missed = Span(self.period.0.saturating_mul(missed - 1));
            self.begin_period(self.ends.after(missed), shards);
        }
    }

    /// Leaves out periods in which nothing happened.
    fn skip(&mut self, periods: u64) {
        if periods > 0 {
            self.number = self.number.after(periods);
            self.lease = self.lease.saturating_sub(u32::try_from(periods).unwrap_or(u32::MAX));
            self.forget_coming();
        }
    }

    /// The period that was to begin with what came does not begin.
    fn forget_coming(&mut self) {
        if self.coming.take().is_some() {
            self.leased = 0;
        }
    }

    /// Begins the next period, at `begins`.
    fn begin_period<J, T: Threading>(&mut self, begins: Time, shards: &Shards<J, T>) {
        self.number = self.number.after(1);
        self.ends = begins.after(self.period);
        self.is_aligned = false;
        shards.change_all(|scheduler| scheduler.begin(begins, self.ends));
        let mut changed = Vec::new();
        for (index, tenant) in self.tenants.iter_mut().enumerate() {
            let counts = tenant.upcoming(self.coming, self.lease, self.fallback);
            if self.coming.is_some() {
                tenant.first = Some(counts);
            }
            // A grant that is in force already is not sent again.
            if core::mem::replace(&mut tenant.holds, counts) != counts {
                changed.push(index);
            }
        }
        self.put_in_force(begins, changed, shards);
        self.is_abandoned = self.coming.is_none() && self.lease == 0;
        self.is_granted |= self.coming.is_some() || self.is_abandoned;
        if self.is_abandoned {
            self.leased = 0;
        }
        self.lease = self.coming.take().unwrap_or(self.lease.saturating_sub(1));
    }

    /// Takes a grant if it is newer than the last, and answers it.
    ///
    /// A lease that is not taken is answered with that alone: what is in force in its period says
    /// nothing of what holds anew after it.
    pub(super) fn on_grant<J, T: Threading>(
        &mut self,
        now: Time,
        grant: &Grant,
        shards: &Shards<J, T>,
    ) -> FromNode {
        let is_newer = self.revision == grant.revision && grant.serial > self.serial;
        if is_newer && grant.lease == 0 {
            self.align(now, grant.round_id.period, grant.into, shards);
        }
        if is_newer && self.is_present(grant) {
            // A new lease does not revive what held under one that is over.
            if self.lease == 0 && grant.lease > 0 {
                for tenant in &mut self.tenants {
                    tenant.first = Some(tenant.unnamed());
                }
            }
            self.take_present(now, grant, shards);
            if grant.lease > 0 {
                // It says nothing about tenants that it does not name, so none can build on it.
                self.leased = 0;
            }
        } else if is_newer && self.is_next(grant) {
            self.take_next(grant);
        } else if grant.lease > 0 {
            return self.not_taken(grant, shards);
        }
        self.granted(grant, shards)
    }

    /// Takes a lease that builds on that with the serial `base`, if that is the one that holds
    /// here, and answers it.
    pub(super) fn on_renewal<J, T: Threading>(
        &mut self,
        now: Time,
        (base, grant): (u64, &Grant),
        shards: &Shards<J, T>,
    ) -> FromNode {
        let is_newer = self.revision == grant.revision && grant.serial > self.serial;
        let is_held = base != 0 && base == self.leased && grant.lease > 0;
        if is_newer && is_held && self.is_present(grant) {
            self.take_present(now, grant, shards);
        } else if is_newer && is_held && self.is_next(grant) {
            if self.coming.is_none() {
                for tenant in &mut self.tenants {
                    tenant.coming = tenant.first.unwrap_or(tenant.unnamed());
                }
                self.coming = Some(grant.lease);
            }
            self.take_next(grant);
        } else {
            return self.not_taken(grant, shards);
        }
        self.granted(grant, shards)
    }

    /// The answer to a lease that is not taken now. It may have been before, and that answer lost.
    fn not_taken<J, T: Threading>(&self, grant: &Grant, shards: &Shards<J, T>) -> FromNode {
        if grant.revision == self.revision && grant.serial == self.leased {
            return self.granted(grant, shards);
        }
        FromNode::Unrenewed { revision: self.revision, serial: grant.serial }
    }

    /// The answer to a grant: the share in force of each tenant that it names, in its period.
    fn granted<J, T: Threading>(&self, grant: &Grant, shards: &Shards<J, T>) -> FromNode {
        let [shares, bytes] = UNITS.map(|unit| {
            let named = shares_of(grant, unit).iter();
            let named =
                named.filter_map(|share| Some((share, self.tenants.get(share.tenant.index())?)));
            let named: Vec<(&Share, &Tenant)> = named.collect();
            let (is_present, is_next) = (self.is_present(grant), self.is_next(grant));
            let served = match is_present {
                true => {
                    let slots: Vec<Slot> = named.iter().map(|(_, tenant)| tenant.slot).collect();
                    shards.read_each(&slots, |scheduler, slot| served(scheduler, (unit, slot)))
                }
                false => alloc::vec![0; named.len()],
            };
            let in_force = |((share, tenant), served): (&(&Share, &Tenant), u64)| {
                let counts = match is_present {
                    true => tenant.holds,
                    false => tenant.upcoming(self.coming, self.lease, self.fallback),
                };
                let counts = counts.of(unit);
                let (reserved, allowed) = (counts.reserved.max(served), counts.allowed.max(served));
                (is_present || is_next).then_some(Share { tenant: share.tenant, reserved, allowed })
            };
            named.iter().zip(served).filter_map(in_force).collect()
        });
        FromNode::Granted { revision: self.revision, serial: grant.serial, shares, bytes }
    }

    fn is_present(&self, grant: &Grant) -> bool {
        grant.revision == self.revision && grant.round_id.period == self.number
    }

    fn is_next(&self, grant: &Grant) -> bool {
        grant.revision == self.revision
            && self.number.0.checked_add(1) == Some(grant.round_id.period.0)
    }

    fn take_present<J, T: Threading>(&mut self, now: Time, grant: &Grant, shards: &Shards<J, T>) {
        (self.serial, self.is_granted) = (grant.serial, true);
        let mut changed = Vec::new();
        if core::mem::take(&mut self.is_abandoned) {
            self.tenants.iter_mut().for_each(|tenant| tenant.holds = tenant.unnamed());
            changed.extend(0..self.tenants.len());
        }
        for (unit, share) in all_shares(grant) {
            let index = share.tenant.index();
            let Some(tenant) = self.tenants.get_mut(index) else { continue };
            let counts = tenant.counts(unit, share);
            *tenant.holds.of_mut(unit) = counts;
            changed.push(index);
            // The period had begun before the grant came that says with what it begins.
            if grant.lease > 0 {
                let unnamed = tenant.unnamed();
                *tenant.first.get_or_insert(unnamed).of_mut(unit) = counts;
            }
        }
        self.put_in_force(now, changed, shards);
        if grant.lease > 0 {
            (self.lease, self.leased) = (self.lease.max(grant.lease), grant.serial);
        }
    }

    /// Gives the schedulers the counts of these tenants, and of those for which others imply
    /// another reservation now.
    fn put_in_force<J, T: Threading>(
        &mut self,
        now: Time,
        mut changed: Vec<usize>,
        shards: &Shards<J, T>,
    ) {
        changed.extend(self.implied.follow(&self.tenants, self.period));
        // A tenant that is named in both units is changed once, with both.
        changed.sort_unstable();
        changed.dedup();
        let grants = changed.iter().map(|index| {
            let tenant = &self.tenants[*index];
            (tenant.slot, tenant.slot_grant(self.implied.among()))
        });
        shards.grant_all(now, &grants.collect::<Vec<_>>());
    }

    fn take_next(&mut self, grant: &Grant) {
        (self.serial, self.leased) = (grant.serial, grant.serial);
        if self.coming.is_none() {
            for tenant in &mut self.tenants {
                tenant.coming = tenant.unnamed();
            }
        }
        self.coming = Some(grant.lease);
        for (unit, share) in all_shares(grant) {
            let Some(tenant) = self.tenants.get_mut(share.tenant.index()) else { continue };
            *tenant.coming.of_mut(unit) = tenant.counts(unit, share);
        }
    }

    /// The counters of all tenants so far.
    fn counters<J, T: Threading>(&self, now: Time, shards: &Shards<J, T>) -> Vec<Counters> {
        let slots: Vec<Slot> = self.tenants.iter().map(|tenant| tenant.slot).collect();
        shards.read_each(&slots, |scheduler, slot| {
            (scheduler.counters(now, slot), scheduler.byte_counters(slot))
        })
    }

    /// Estimates demands from what happened in the last `interval`.
    pub(super) fn observe<J, T: Threading>(
        &mut self,
        now: Time,
        interval: Span,
        shards: &Shards<J, T>,
    ) {
        let counters = self.counters(now, shards);
        for (tenant, counters) in self.tenants.iter_mut().zip(counters) {
            tenant.observe(now, interval, counters);
        }
    }

    /// The answer to the question of `round_id`, from a node that can do `capacity_left` in what is
    /// left of the period; none if the question is about the period before. It says that the node
    /// rests if it may and no tenant did or wants anything.
    pub(super) fn report<J, T: Threading>(
        &mut self,
        now: Time,
        (round_id, is_complete, may_rest): (RoundId, bool, bool),
        capacity_left: u64,
        shards: &Shards<J, T>,
    ) -> Option<FromNode> {
        let (revision, serial) = (self.revision, self.serial);
        match self.number.0.checked_sub(round_id.period.0) {
            Some(1) => return None,
            Some(0) => {}
            // The plan was lost, or the controller has another that counts otherwise: it will see.
            _ => {
                let report = NodeReport { revision, round_id, serial, ..NodeReport::default() };
                return Some(FromNode::Report(report));
            }
        }
        let mut report =
            NodeReport { revision, round_id, serial, capacity_left, ..NodeReport::default() };
        let (left, mut is_idle) = (self.ends.since(now), may_rest);
        let (counters, period) = (self.counters(now, shards), self.period);
        for (index, (tenant, counters)) in
            (0..).map(TenantIndex).zip(self.tenants.iter_mut().zip(counters))
        {
            tenant.report((index, left, is_complete), &counters, &mut report);
            let SlotCounters { served, served_before, waiting, .. } = counters.0;
            is_idle &= served == 0 && served_before == 0;
            // Also not in a whole period.
            is_idle &= tenant.demand.expected(period, waiting) == 0;
        }
        Some(if is_idle {
            FromNode::Rest { revision, round_id, serial, capacity_left }
        } else {
            FromNode::Report(report)
        })
    }

    /// The same where a report has said that the node rests, and nothing has come since.
    pub(super) fn rest(&self, round_id: RoundId, capacity_left: u64) -> Option<FromNode> {
        let (revision, serial) = (self.revision, self.serial);
        let is_now = self.number == round_id.period;
        is_now.then_some(FromNode::Rest { revision, round_id, serial, capacity_left })
    }

    /// When the next distribution of this period begins, or the next period, after `now`.
    pub(super) fn next_round(&self, now: Time) -> Time {
        let begun = Time(self.ends.0.saturating_sub(self.period.0));
        let interval = self.interval().0.max(1);
        let rounds = now.since(begun).0 / interval + 1;
        begun.after(Span(rounds.saturating_mul(interval))).min(self.ends)
    }
}

/// The scheduler's parameters of a tenant whose plan has so much weight in all.
fn parameters(plan: &TenantPlan, weights: u64) -> TenantParameters {
    TenantParameters {
        weight: plan.weight,
        bound: Bound::leaving(plan.minimum_ppm, plan.weight, weights),
    }
}

/// The shares of a grant in one unit.
fn shares_of(grant: &Grant, unit: Unit) -> &[Share] {
    match unit {
        Unit::Operations => &grant.shares,
        Unit::Bytes => &grant.bytes,
    }
}

/// All shares of a grant, with their units.
fn all_shares(grant: &Grant) -> impl Iterator<Item = (Unit, &Share)> {
    UNITS.into_iter().flat_map(|unit| shares_of(grant, unit).iter().map(move |share| (unit, share)))
}
