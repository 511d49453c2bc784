//! A queue that one process uses alone.

use super::super::*;
use alloc::vec::Vec;

/// A state with the cells of its requests beside it, `N` of them, as one process alone uses it.
#[derive(Clone, Debug)]
pub(super) struct Queue<const N: usize> {
    pub(super) state: QueueState<1>,
    pub(super) slots: [Cell; N],
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub(super) request: QueueRequest,
    pub(super) owner: u32,
    pub(super) generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotId {
    pub(super) index: usize,
    pub(super) generation: u32,
}

impl<const N: usize> Queue<N> {
    pub(super) fn new() -> Self {
        Self { state: QueueState::new(), slots: [Cell::default(); N] }
    }

    pub(super) fn configure(&mut self, order: Order, depth: u32, weights: &[u32]) {
        self.state.configure(order, depth, weights);
    }

    pub(super) fn is_used(&self, slot: usize) -> bool {
        let state = &self.state;
        state.waiting.has(slot) || state.in_service.has(slot) || state.overdue.has(slot)
    }

    pub(super) fn arrive(&mut self, flow: u8, cost: u64, owner: u32) -> Option<SlotId> {
        let requests = self.slots;
        if N == QueueState::<1>::SLOTS && !self.state.has_headroom(flow, |i| requests[i].request) {
            return None;
        }
        let index = (0..N).find(|slot| !self.is_used(*slot))?;
        let arrival = self.state.arrive(index)?;
        let generation = self.slots[index].generation.wrapping_add(1);
        let request = QueueRequest { arrival, cost, flow };
        self.slots[index] = Cell { request, owner, generation };
        self.state.joins(flow);
        Some(SlotId { index, generation })
    }

    pub(super) fn dispatch(&mut self) -> Option<SlotId> {
        let slots = &self.slots;
        // Sets of any bytes have slots that this queue has not.
        let request =
            |slot: usize| slots.get(slot).map_or(QueueRequest::default(), |it| it.request);
        let index = self.state.dispatch(request)?;
        let generation = self.slots.get(index).map_or(0, |cell| cell.generation);
        Some(SlotId { index, generation })
    }

    pub(super) fn is(&self, id: SlotId) -> bool {
        self.slots[id.index].generation == id.generation
    }

    pub(super) fn finish(&mut self, id: SlotId) -> bool {
        self.is(id) && self.state.finish(id.index)
    }

    pub(super) fn finish_having_used(&mut self, id: SlotId, used: u64) -> bool {
        let request = self.slots[id.index].request;
        self.is(id) && self.state.finish_having_used(id.index, used, request)
    }

    pub(super) fn withdraw(&mut self, id: SlotId) -> bool {
        self.is(id) && self.state.withdraw(id.index)
    }

    pub(super) fn abandon(&mut self, is_dead: impl Fn(u32) -> bool) -> usize {
        let dead: Vec<usize> =
            (0..N).filter(|slot| self.is_used(*slot) && is_dead(self.slots[*slot].owner)).collect();
        dead.iter().for_each(|slot| assert!(self.state.drop_request(*slot)));
        dead.len()
    }

    pub(super) fn is_in_service(&self, id: SlotId) -> bool {
        self.is(id) && self.state.in_service.has(id.index)
    }

    pub(super) fn waiting(&self) -> u32 {
        self.state.waiting.count()
    }

    pub(super) fn in_service(&self) -> u32 {
        self.state.in_service.count()
    }
}
