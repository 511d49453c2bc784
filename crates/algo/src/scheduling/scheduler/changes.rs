//! Changes of a scheduler besides requests that come and go: disciplines, tenants, cancelled
//! requests.

use alloc::vec::Vec;

use tidegate_model::{Discipline, Time};

use super::flow::MEDIUM;
use super::requests::SlotQueue;
use super::state::TenantState;
use super::{PeriodGrant, PeriodPart, Scheduler, Slot, TenantParameters};
use crate::scheduling::wrr::SHARING;

impl<J> Scheduler<J> {
    /// Changes the discipline from the next dispatch on. All requests stay, and so do counts;
    /// virtual times begin anew, with all tenants level.
    pub fn set_discipline(&mut self, now: Time, discipline: Discipline) {
        if discipline == self.discipline {
            return;
        }
        self.empty_heaps(now);
        let before = self.class_rules();
        self.discipline = discipline;
        self.publish_weights();
        if self.class_rules() != before {
            self.requeue();
        }
        self.fair_queues.iter_mut().for_each(|fair_queue| fair_queue.virtual_time = 0);
        self.past_virtual_times = [[0; 2]; SHARING];
        self.longest = [0; 2];
        for index in 0..self.states.len() {
            self.states[index].restart();
            if let Some(others) = self.classes.get_mut(index) {
                others.restart();
            }
        }
        (0..self.states.len()).for_each(|index| self.settle(now, index));
    }

    /// Makes a slot with these parameters, without a limit until it is granted counts.
    pub fn add(&mut self, parameters: TenantParameters) -> Slot {
        let index = self.free.pop().unwrap_or(self.states.len() as u32);
        if index as usize == self.states.len() {
            self.states.push(TenantState::new(1));
            self.at[MEDIUM].push(0);
        }
        let state = &mut self.states[index as usize];
        state.set_parameters(parameters);
        Slot { index, generation: state.generation, shard: self.shard }
    }

    /// Removes a slot. Requests that wait in it, and those that still come for it, belong to
    /// [`Slot::UNATTRIBUTED`] from then on.
    pub fn remove(&mut self, now: Time, slot: Slot) {
        let index = self.index(slot);
        if index == 0 {
            return;
        }
        self.leave(now, index);
        let queues = self.queues(index);
        // A slot that has had all its generations is not used again.
        let next = slot.generation.checked_add(1);
        let old = core::mem::replace(&mut self.states[index], TenantState::new(next.unwrap_or(0)));
        if next.is_some() {
            self.free.push(index as u32);
        }
        self.classes.remove(index);
        self.bytes.remove(index);
        let unattributed = &mut self.states[0];
        unattributed.come(now, old.waiting);
        unattributed.take_over(now, old.in_flight);
        self.give_up(now, queues);
    }

    /// Reserves service for the requests that wait at [`Slot::UNATTRIBUTED`] now: as many units as
    /// they cost, over as many periods as they take. Requests that come to that slot later have
    /// none of it, unless they overtake those by their class or those are cancelled.
    pub fn reserve_waiting(&mut self, now: Time) {
        let TenantState { tokens, waiting, .. } = &mut self.states[Slot::UNATTRIBUTED.index()];
        tokens.counts.reserved = tokens.served.saturating_add(*waiting);
        self.settle(now, Slot::UNATTRIBUTED.index());
    }

    /// A period has begun: what [`Self::reserve_waiting`] reserved and was not served before stays
    /// reserved, as far as requests wait for it.
    pub(super) fn carry_reserved(&mut self) {
        let TenantState { tokens, waiting, .. } = &mut self.states[Slot::UNATTRIBUTED.index()];
        let left = tokens.counts.reserved.saturating_sub(tokens.served_before());
        tokens.counts.reserved = left.min(*waiting);
    }

    /// The running period is to end at `until`. Later grants are paced to that.
    pub const fn end_at(&mut self, until: Time) {
        self.until = until;
    }

    /// The running period becomes shorter than the one for which a slot was granted so many units
    /// and so many bytes: what it used beyond the same part of them is owed, or later reservations
    /// pay it. If the period is over, the caller is to [`Self::begin`] the next one, and grants no
    /// more in this one. Without effect where the discipline observes no promises.
    pub fn cut(
        &mut self,
        now: Time,
        slot: Slot,
        (units, bytes): (PeriodGrant, Option<PeriodGrant>),
        part: PeriodPart,
    ) {
        let index = self.index(slot);
        if index == 0 || !self.discipline.observes_promises() {
            return;
        }
        self.states[index].tokens.cut(units, part);
        if let Some((account, bytes)) = self.byte_account_mut(index).zip(bytes) {
            account.tokens.cut(bytes, part);
        }
        self.settle(now, index);
    }

    /// Sets a slot's parameters; they hold from the next dispatch. A removed slot has none.
    pub fn set_parameters(&mut self, now: Time, slot: Slot, parameters: TenantParameters) {
        let index = self.index(slot);
        if index == 0 && slot != Slot::UNATTRIBUTED {
            return;
        }
        self.leave(now, index);
        self.states[index].set_parameters(parameters);
        self.settle(now, index);
    }

    /// Takes out the waiting requests that `which` picks, slot by slot, the most urgent class first
    /// and else in their order. Requests behind them carry their reports of other nodes.
    pub fn cancel(&mut self, now: Time, mut which: impl FnMut(&J) -> bool) -> Vec<J> {
        self.latest = now;
        let mut cancelled = Vec::new();
        for index in 0..self.states.len() {
            let (mut queues, mut delay, before) = (self.queues(index), 0u32, cancelled.len());
            for queue in &mut queues {
                let mut rest = SlotQueue::EMPTY;
                while let Some(mut request) = self.requests.pop(queue) {
                    request.delay = request.delay.saturating_add(delay);
                    delay = 0;
                    if which(&request.job) {
                        delay = request.delay;
                        let (state, units) = (&mut self.states[index], u64::from(request.cost));
                        state.go(now, units);
                        state.leave(now, units);
                        self.waiting -= units;
                        if let Some(account) = self.byte_account_mut(index) {
                            account.cancel(request.amounts());
                        }
                        cancelled.push(request.job);
                    } else {
                        self.requests.push(&mut rest, request);
                    }
                }
                *queue = rest;
            }
            self.set_queues(index, queues);
            let state = &mut self.states[index];
            state.pending = state.pending.saturating_add(delay);
            if cancelled.len() > before {
                // Another request may be the first.
                self.leave(now, index);
                self.settle(now, index);
            }
        }
        cancelled
    }
}
