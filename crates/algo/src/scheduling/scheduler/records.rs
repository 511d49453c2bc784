//! Records that few slots have: by slot, beside the states that all slots have.

use alloc::vec::Vec;

/// One record for each of some slots. A slot without one costs four bytes at most.
#[derive(Debug, Default)]
pub(super) struct Records<R> {
    /// By slot, as far as any has a record: its index.
    of: Vec<Option<u32>>,
    records: Vec<R>,
    free: Vec<u32>,
}

impl<R: Default> Records<R> {
    pub(super) fn get(&self, slot: usize) -> Option<&R> {
        self.records.get((*self.of.get(slot)?)? as usize)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut R> {
        self.records.get_mut((*self.of.get(slot)?)? as usize)
    }

    /// The record of a slot, which is made if there is none.
    pub(super) fn make(&mut self, slot: usize) -> &mut R {
        if self.of.len() <= slot {
            self.of.resize(slot + 1, None);
        }
        let Self { of, records, free } = self;
        let index = *of[slot].get_or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                records.push(R::default());
                records.len() as u32 - 1
            })
        });
        &mut records[index as usize]
    }

    /// The slot has no record any more.
    pub(super) fn remove(&mut self, slot: usize) {
        if let Some(index) = self.of.get_mut(slot).and_then(Option::take) {
            self.records[index as usize] = R::default();
            self.free.push(index);
        }
    }
}
