//! Charges for a request's cost that shows only after its dispatch.

use tidegate_model::Time;

use super::{Phase, RequestCost, Scheduler, Slot};

impl<J> Scheduler<J> {
    /// A request of a slot that was dispatched, reserved or not, turned out to take so much more
    /// of `cost` and `work`. That counts as though it had been dispatched with it: what goes beyond
    /// the counts is owed. Nothing is delayed that is at the device already.
    pub fn charge(&mut self, now: Time, slot: Slot, more: RequestCost, is_reserved: bool) {
        let index = self.index(slot);
        self.leave(now, index);
        let (discipline, units) = (self.discipline, u64::from(more.cost));
        let state = &mut self.states[index];
        let reserved_phase = state.reserved_phase(discipline);
        let uses_reservation = is_reserved && discipline.observes_promises();
        let phase = if uses_reservation { reserved_phase } else { Phase::Fair };
        let virtual_times = [reserved_phase, Phase::Fair]
            .map(|phase| self.fair_queues[phase as usize].virtual_time);
        state.add(now, units);
        state.spend(discipline, phase, more.cost);
        state.pace(self.until, self.pacing);
        let length = state.extend(discipline, phase, virtual_times, (more.cost, more.work));
        self.longest[1] = self.longest[1].max(length);
        self.latest = now;
        self.own.count(phase, more.cost);
        self.passed.count(phase, more.cost);
        self.settle(now, index);
    }
}
