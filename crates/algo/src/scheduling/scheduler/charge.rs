//! Charges for a request's cost that shows only after its dispatch.

use tidegate_model::{Class, Discipline, Time};

use super::classes::ClassQueue;
use super::flow::MEDIUM;
use super::{Amounts, RequestCost, Scheduler, Slot};
use crate::scheduling::phase::Phase;

impl<J> Scheduler<J> {
    /// A request of a slot and a class that was dispatched, reserved or not, turned out to take so
    /// much more of `cost`, `work` and `bytes`. That counts as though it had been dispatched with
    /// it: what goes beyond the counts is owed. Nothing is delayed that is at the device already.
    pub fn charge(
        &mut self,
        now: Time,
        (slot, class): (Slot, Class),
        more: RequestCost,
        is_reserved: bool,
    ) {
        let index = self.index(slot);
        self.leave(now, index);
        let (discipline, units) = (self.discipline, u64::from(more.cost));
        let class_queue = self.class_rules().queue_of(class);
        let class = match class_queue {
            ClassQueue::Urgent => self.class_rules().top(),
            ClassQueue::Shared(class) => class,
        };
        let phase = match class_queue {
            _ if !is_reserved || !discipline.observes_promises() => Phase::fair(class),
            ClassQueue::Urgent => Phase::Urgent,
            ClassQueue::Shared(_) => Phase::Reserved,
        };
        if class_queue != ClassQueue::Shared(MEDIUM) {
            // The slot has a record, if it was not made since the dispatch.
            let _ = self.classes.make(index);
        }
        let state = &mut self.states[index];
        state.add(now, units);
        let (until, pacing) = (self.until, self.pacing);
        let tokens = if state.counts_bytes() { more.operations } else { more.cost };
        state.tokens.spend(discipline, phase.is_reserved(), tokens);
        state.tokens.pace(until, pacing);
        if let Some(account) = self.byte_account_mut(index) {
            let amounts = Amounts::of(more.operations, more.bytes);
            account.spend(discipline, phase.is_reserved(), amounts);
            account.tokens.pace(until, pacing);
        }
        let length = self.extend(phase, class, index, more);
        self.longest[1] = self.longest[1].max(length);
        self.latest = now;
        self.own.count(phase, more.cost);
        self.passed.count(phase, more.cost);
        self.settle(now, index);
    }

    /// Moves a slot's finish tags for the part of a request's cost that was not known at its
    /// dispatch. Returns the length of that part in `phase`.
    fn extend(&mut self, phase: Phase, class: usize, index: usize, more: RequestCost) -> u128 {
        use Discipline::{Fifo, RoundRobin, Token, Unified};
        let share = self.states[index].share();
        let by_cost = share.length(u64::from(more.cost));
        let by_work = share.length(u64::from(more.work));
        let fair = match (self.discipline, phase.is_reserved()) {
            (Fifo | RoundRobin, _) => return 0,
            (Token, true) => None,
            (Token, false) => Some(by_cost),
            (_, _) => Some(by_work),
        };
        if let Some(length) = fair {
            let mut flow = self.flow(index, class);
            flow.extend(self.fair_queues[Phase::fair(class) as usize].virtual_time, length);
            self.set_flow(index, class, flow);
        }
        if !phase.is_reserved() {
            return fair.unwrap_or(0);
        }
        if self.discipline == Unified {
            self.states[index].set_ahead(class, true);
        }
        let tag = self.reserved_start(phase, index);
        self.set_reserved_tag(index, phase, tag.saturating_add(by_cost));
        by_cost
    }
}
