//! The stages of a controller: the policy that they are under, which of them come and go, and the
//! messages that these changes cause.

use alloc::vec::Vec;

use tidegate_model::policy::Fallback;
use tidegate_model::{Event, Policy, StageId, Time};

use super::capacity::Measured;
use super::name_index::NameIndex;
use super::stage::Stage;
use super::{Active, Budgets, SETTLE, start_queue, window_stats};
use crate::message::{Held, StageInfo, ToStage, VERSION};
use crate::session::{Peer, PeerId, ToPeer};

/// The event of a stage that has left.
pub(super) fn left(stage: &Stage, reason: &str) -> Event {
    let (tenant, pid) = (stage.info.tenant.clone(), stage.peer.pid);
    Event::StageLeft { stage: stage.info.stage, tenant, pid, reason: reason.into() }
}

/// Stages coming and going.
impl Budgets {
    /// Makes a policy the one in force, keeps the counters of tenants that both have, and returns
    /// the one before.
    pub(super) fn set_policy(&mut self, revision: u64, policy: Policy) -> Option<Active> {
        let name_index = NameIndex::new(&policy);
        let mut tenants = Vec::new();
        tenants.resize_with(policy.tenants.len(), window_stats::TenantStats::default);
        let before = self.active.as_mut().and_then(|active| active.measured.take());
        let measured = Measured::under(&policy, before);
        let mut active = Active { revision, policy, name_index, measured };
        active.follow();
        let earlier = self.active.replace(active);
        if let (Some(earlier), Some(active)) = (&earlier, &self.active) {
            for (tenant, before) in earlier.policy.tenants.iter().zip(&mut self.tenants) {
                if let Some(index) = active.name_index.tenant(&tenant.name) {
                    tenants[index] = core::mem::take(before);
                }
            }
        }
        self.tenants = tenants;
        start_queue::forget_expected(&mut self.stages);
        if let Some(active) = &self.active {
            let index = |name: &str| earlier.as_ref()?.name_index.tenant(name);
            let policy = earlier.as_ref().map(|earlier| &earlier.policy);
            self.debts.under(&active.policy, (policy, index), &mut self.tenants);
        }
        earlier
    }

    /// The number of a stage that says hello: the one it had, unless another stage has it now.
    pub(super) fn stage_id(&mut self, peer: &Peer, info: &StageInfo) -> StageId {
        let holder = self.stages.get(&info.stage);
        let is_free = holder.is_none_or(|holder| holder.is_supervisor(peer, info));
        if info.stage != StageId::default() && is_free {
            return info.stage;
        }
        while self.stages.contains_key(&StageId(self.next_stage)) {
            self.next_stage += 1;
        }
        self.next_stage += 1;
        StageId(self.next_stage - 1)
    }

    /// Counts a stage that was refused.
    pub(crate) fn note_refused(&mut self, pid: u32, reason: &str) -> Event {
        self.totals.refused = self.totals.refused.saturating_add(1);
        Event::StageRefused { pid, reason: reason.into() }
    }

    /// Publishes why a stage did not take its rules.
    pub(super) fn note_refusal(&mut self, id: StageId) {
        let (Some(active), Some(stage)) = (&self.active, self.stages.get(&id)) else { return };
        let Some(reason) = stage.error.clone() else { return };
        self.totals.rules_refused = self.totals.rules_refused.saturating_add(1);
        let event = Event::RulesRefused { stage: id, revision: active.revision, reason };
        self.outbox.publish(event);
    }

    /// Takes up what a stage holds that this run does not know: its rates, and its turns in start
    /// queues.
    pub(super) fn take_up(&mut self, now: Time, stage: &mut Stage, held: &Held) {
        if let Some(active) = &self.active {
            start_queue::enter(now, &active.name_index, stage, held);
        }
        self.claim(now, stage, held);
    }

    pub(super) fn remove(&mut self, now: Time, id: StageId, reason: &str) {
        let Some(mut stage) = self.stages.remove(&id) else { return };
        start_queue::withdraw(&mut stage, &mut self.tenants);
        self.totals.unmatched.add(stage.unmatched.total);
        if let Some(active) = &self.active {
            self.ended.push(now, (&stage, &active.policy), reason);
        }
        if !stage.is_lost {
            self.outbox.publish(left(&stage, reason));
        }
        self.remember();
        self.settle_soon(now);
        if stage.owes {
            self.await_less(now);
        }
    }

    /// A stage of another host has no connection any more, and keeps what it may still use.
    pub(super) fn lose(&mut self, now: Time, id: StageId, reason: &str) {
        let Some(stage) = self.stages.get_mut(&id) else { return };
        stage.is_lost = true;
        stage.silent_since.get_or_insert(now);
        stage.shares.iter_mut().for_each(|share| share.measured = [0; 2]);
        let (left, owed) = (left(stage, reason), core::mem::take(&mut stage.owes));
        self.outbox.publish(left);
        self.settle_soon(now);
        if owed {
            self.await_less(now);
        }
    }

    /// Renews the lease of a stage of another host, from its last report that arrived.
    pub(super) fn lease(&mut self, id: StageId) {
        let (length, is_leased) = (self.silence_max(), self.fallback() != Fallback::Unlimited);
        let (Some(stage), Some(_)) = (self.stages.get_mut(&id), &self.active) else { return };
        if !stage.peer.is_remote() || stage.is_lost {
            return;
        }
        stage.extend_lease(length);
        let round = stage.received.1;
        if is_leased {
            self.send(id, ToStage::Lease { round, length });
        }
    }

    pub(super) fn settle_soon(&mut self, now: Time) {
        if self.active.is_some() {
            self.settle_at.get_or_insert(now.after(SETTLE));
        }
    }

    pub(super) fn welcome(&self, stage: StageId) -> ToStage {
        let (silence_max, fallback) = (self.silence_max(), self.fallback());
        ToStage::Welcome { version: VERSION, stage, silence_max, fallback }
    }

    pub(super) fn send(&mut self, id: StageId, message: ToStage) {
        self.outbox.send(PeerId::Stage(id), ToPeer::Stage(message));
    }
}
