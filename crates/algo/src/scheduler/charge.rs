//! Charges for a request's cost that shows only after its dispatch.

use tidegate_model::Time;

use super::{Ask, Scheduler, Slot, Step};

impl<J> Scheduler<J> {
    /// A request of a slot that was dispatched, by right or not, turned out to take so much more
    /// of `cost` and `work`. That counts as though it had been dispatched with it: what goes beyond
    /// the counts is owed. Nothing is delayed that is at the device already.
    pub fn charge(&mut self, now: Time, slot: Slot, more: Ask, is_reserved: bool) {
        let index = self.index(slot);
        self.leave(now, index);
        let (discipline, units) = (self.discipline, u64::from(more.cost));
        let state = &mut self.states[index];
        let right = state.right(discipline);
        let is_right = is_reserved && discipline.heeds_promises();
        let step = if is_right { right } else { Step::Fair };
        let races = [right, Step::Fair].map(|step| self.races[step as usize].start);
        state.add(now, units);
        state.spend(discipline, step, more.cost);
        state.pace(self.until, self.pacing);
        let length = state.extend(discipline, step, races, (more.cost, more.work));
        self.longest[1] = self.longest[1].max(length);
        self.latest = now;
        self.own.count(step, more.cost);
        self.passed.count(step, more.cost);
        self.settle(now, index);
    }
}
