//! Status of stages and budgets, made from the controller's state.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use tidegate_model::Time;
use tidegate_model::gate::Unit;
use tidegate_model::policy::{Account, Levels};

use super::Budgets;
use super::distribute::in_force;
use super::rules::{UNITS, has_bucket};
use super::stage::{Share, Stage};
use super::window_stats::TrafficCounters;
use crate::session::Peer;
use crate::status::{BypassStatus, CoverageStatus, StageStatus, Status, TenantStatus, Totals};

/// The part of a period that is called a thousandth, in nanoseconds per second.
const PERMILLE_NS: u64 = 1_000_000;

/// Bytes and operations of one thing.
type Pair = [u64; 2];

impl Budgets {
    /// The status of tenants and stages, as of the last cycle.
    pub(crate) fn status(&self, now: Time) -> Status {
        let policy = self.active.as_ref().map(|active| &active.policy);
        let budget = policy.map_or(Levels::default(), |policy| policy.budget);
        let device = policy.is_some_and(|policy| policy.account == Account::Device);
        let tenants = self.tenant_statuses();
        Status {
            release: env!("CARGO_PKG_VERSION").to_string(),
            revision: self.active.as_ref().map_or(0, |active| active.revision),
            uptime_ns: now.since(self.started).0,
            period_ns: self.period().0,
            redistribute_ns: self.redistribute().0,
            budget_bytes_per_second: budget.get(Unit::Bytes),
            budget_operations_per_second: budget.get(Unit::Operations),
            measured: self
                .active
                .as_ref()
                .and_then(|active| Some(active.measured.as_ref()?.status())),
            account: if device { "device" } else { "requests" }.to_string(),
            totals: self.sums(&tenants),
            tenants,
            stages: self.stages.values().map(|stage| stage_status(stage, now)).collect(),
            ended_stages: self.ended.status(now, &self.stages),
            // The caller adds the status of its cluster, and the accounts of resources.
            cluster: None,
            resources: Vec::new(),
        }
    }

    fn tenant_statuses(&self) -> Vec<TenantStatus> {
        let Some(active) = &self.active else { return Vec::new() };
        let policy = &active.policy;
        let allocated = UNITS.map(|unit| in_force(policy, unit, &self.stages));
        let mut statuses = Vec::with_capacity(policy.tenants.len());
        for (index, (promise, tenant)) in policy.tenants.iter().zip(&self.tenants).enumerate() {
            let [bytes, operations, waited] = tenant.per_second();
            let level = |levels: Levels| (levels.get(Unit::Bytes), levels.get(Unit::Operations));
            let (reservation, limit) = (level(promise.reservation), level(promise.limit));
            let allocated = UNITS.map(|unit| {
                let rate = bounded(allocated[unit as usize][index]);
                rate.filter(|_| has_bucket(policy, promise, unit))
            });
            statuses.push(TenantStatus {
                name: promise.name.clone(),
                class: promise.class.to_string(),
                weight: promise.weight,
                reservation_bytes_per_second: reservation.0,
                reservation_operations_per_second: reservation.1,
                limit_bytes_per_second: limit.0,
                limit_operations_per_second: limit.1,
                allocated_bytes_per_second: allocated[0],
                allocated_operations_per_second: allocated[1],
                demand_bytes_per_second: Some(0),
                demand_operations_per_second: Some(0),
                period_bytes_per_second: bytes,
                period_operations_per_second: operations,
                bytes: tenant.total.bytes,
                operations: tenant.total.operations,
                waited_ns: tenant.total.waited_ns,
                stage_waits: tenant.stage_waits,
                waiting_permille: (waited / PERMILLE_NS).min(1_000),
                wait_p99_ns: tenant.wait_p99().map(|wait| wait.0),
                ..TenantStatus::default()
            });
        }
        for share in self.stages.values().flat_map(|stage| &stage.shares) {
            add_share(&mut statuses[share.tenant], share);
        }
        statuses
    }

    fn sums(&self, tenants: &[TenantStatus]) -> Totals {
        let sum =
            |of: fn(&TenantStatus) -> u64| tenants.iter().map(of).fold(0, u64::saturating_add);
        let all = |of: fn(&TenantStatus) -> Option<u64>| {
            tenants.iter().map(of).try_fold(0u64, |sum, value| Some(sum.saturating_add(value?)))
        };
        let stages = self.stages.values();
        let mut unmatched = TrafficCounters::default();
        stages.clone().for_each(|stage| unmatched.add(stage.unmatched.total));
        let mut unmatched_ever = self.totals.unmatched;
        unmatched_ever.add(unmatched);
        Totals {
            stages: self.stages.len() as u64,
            processes: stages.map(|stage| u64::from(stage.processes)).sum(),
            allocated_bytes_per_second: all(|tenant| tenant.allocated_bytes_per_second),
            allocated_operations_per_second: all(|tenant| tenant.allocated_operations_per_second),
            interval_bytes_per_second: sum(|tenant| tenant.interval_bytes_per_second),
            interval_operations_per_second: sum(|tenant| tenant.interval_operations_per_second),
            period_bytes_per_second: sum(|tenant| tenant.period_bytes_per_second),
            period_operations_per_second: sum(|tenant| tenant.period_operations_per_second),
            unmatched_bytes: unmatched.bytes,
            unmatched_operations: unmatched.operations,
            unmatched_ever_bytes: unmatched_ever.bytes,
            unmatched_ever_operations: unmatched_ever.operations,
            cycles: self.totals.cycles,
            cycle_ns: self.totals.cycle.0,
            rate_updates: self.totals.updates,
            rate_updates_suppressed: self.totals.suppressed,
            stages_refused: self.totals.refused,
            rules_refused: self.totals.rules_refused,
        }
    }
}

/// Adds one stage's share to the status of its tenant.
fn add_share(status: &mut TenantStatus, share: &Share) {
    let [bytes, operations] = share.measured;
    add(&mut status.interval_bytes_per_second, bytes);
    add(&mut status.interval_operations_per_second, operations);
    add(&mut status.waiting_requests, u64::from(share.waiting_now));
    status.stages += 1;
    let demands = [&mut status.demand_bytes_per_second, &mut status.demand_operations_per_second];
    for (demand, bucket) in demands.into_iter().zip(&share.buckets) {
        let more = bucket.as_ref().and_then(|bucket| bucket.known_demand());
        *demand = demand.zip(more).map(|(sum, more)| sum.saturating_add(more));
    }
}

fn stage_status(stage: &Stage, now: Time) -> StageStatus {
    let mut measured: Pair = [0; 2];
    let mut allocated: Pair = [0; 2];
    for share in &stage.shares {
        for unit in UNITS {
            let goal = share.bucket(unit).map_or(u64::MAX, |bucket| bucket.goal);
            add(&mut measured[unit as usize], share.measured[unit as usize]);
            add(&mut allocated[unit as usize], goal);
        }
    }
    let bypass = |bypass: &crate::message::Bypassed| BypassStatus {
        reason: bypass.reason.clone(),
        calls: bypass.calls,
        bytes: bypass.bytes,
    };
    StageStatus {
        id: stage.info.stage.0,
        pid: stage.peer.pid,
        uid: stage.peer.uid,
        user: user(&stage.peer),
        host: stage.info.host.clone(),
        command: stage.info.command.clone(),
        release: stage.info.release.clone(),
        tenant: stage.info.tenant.clone(),
        connected_ns: now.since(stage.joined).0,
        processes: stage.processes,
        revision: stage.revision,
        error: stage.error.clone(),
        is_silent: stage.silent_since.is_some(),
        is_disconnected: stage.is_lost,
        allocated_bytes_per_second: bounded(allocated[0]),
        allocated_operations_per_second: bounded(allocated[1]),
        interval_bytes_per_second: measured[0],
        interval_operations_per_second: measured[1],
        coverage: CoverageStatus {
            seen_bytes: stage.coverage.seen_bytes,
            syscall_bytes: stage.coverage.syscall_bytes,
            device_bytes: stage.device_bytes,
            bypasses: stage.coverage.bypasses.iter().map(bypass).collect(),
        },
    }
}

/// The user's name, or the names in a certificate as policies write them.
fn user(peer: &Peer) -> String {
    match &peer.certificate {
        Some(names) => format!("cert:{}", names.join(", ")),
        None => peer.user.clone(),
    }
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// A rate, or none where there is no bound.
fn bounded(rate: u64) -> Option<u64> {
    (rate != u64::MAX).then_some(rate)
}
