//! A binary heap of slots, smallest key first, from which any slot can be taken out.
//!
//! The standard library's heap gives up only its smallest element. Here a grant may move a slot
//! from the middle of one heap to another, so every slot knows its place: `at[slot]` is its index
//! in the heap that holds it. A slot is in one heap at most, so one such table serves all heaps.
//! Every operation is O(log n).

use alloc::vec::Vec;

#[derive(Debug)]
pub(super) struct Heap<K> {
    entries: Vec<(K, u32)>,
}

impl<K: Copy + Ord> Heap<K> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    pub(super) fn first(&self) -> Option<(K, u32)> {
        self.entries.first().copied()
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(super) fn push(&mut self, key: K, slot: u32, at: &mut [u32]) {
        self.entries.push((key, slot));
        self.rise(self.entries.len() - 1, at);
    }

    /// Gives the slot at `index` a new key.
    pub(super) fn replace(&mut self, index: usize, key: K, at: &mut [u32]) {
        self.entries[index].0 = key;
        self.restore(index, at);
    }

    pub(super) fn remove(&mut self, index: usize, at: &mut [u32]) {
        self.entries.swap_remove(index);
        if index < self.entries.len() {
            self.restore(index, at);
        }
    }

    /// Puts the entry at `index`, the only one that may be out of order, where it belongs.
    fn restore(&mut self, index: usize, at: &mut [u32]) {
        if index > 0 && self.entries[index] < self.entries[(index - 1) / 2] {
            self.rise(index, at);
        } else {
            self.sink(index, at);
        }
    }

    fn rise(&mut self, mut index: usize, at: &mut [u32]) {
        let entry = self.entries[index];
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.entries[parent] <= entry {
                break;
            }
            self.set(index, self.entries[parent], at);
            index = parent;
        }
        self.set(index, entry, at);
    }

    fn sink(&mut self, mut index: usize, at: &mut [u32]) {
        let entry = self.entries[index];
        loop {
            let mut child = 2 * index + 1;
            if child >= self.entries.len() {
                break;
            }
            if child + 1 < self.entries.len() && self.entries[child + 1] < self.entries[child] {
                child += 1;
            }
            if entry <= self.entries[child] {
                break;
            }
            self.set(index, self.entries[child], at);
            index = child;
        }
        self.set(index, entry, at);
    }

    fn set(&mut self, index: usize, entry: (K, u32), at: &mut [u32]) {
        self.entries[index] = entry;
        at[entry.1 as usize] = index as u32;
    }
}
