//! A binary heap of slots, smallest key first, from which any slot can be taken out.
//!
//! The standard library's heap gives up only its smallest element. Here a grant may move a slot
//! from the middle of one heap to another, so the index of every slot is known: `at[slot]` is its
//! index in the heap that holds it. A slot is in one heap at most, so one such table serves all
//! heaps. Keys and slots lie apart, or the alignment of a key of 128 bits would cost twelve bytes
//! each. Every operation is O(log n).

use alloc::vec::Vec;

#[derive(Debug)]
pub(super) struct Heap<K> {
    keys: Vec<K>,
    slots: Vec<u32>,
}

impl<K> Heap<K> {
    /// The size of an entry, in bytes.
    pub(super) const BYTES: usize = size_of::<K>() + size_of::<u32>();
}

impl<K: Copy + Ord> Heap<K> {
    pub(super) const fn new() -> Self {
        Self { keys: Vec::new(), slots: Vec::new() }
    }

    pub(super) fn first(&self) -> Option<(K, u32)> {
        Some((*self.keys.first()?, *self.slots.first()?))
    }

    /// The slots, in no order.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().copied()
    }

    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.slots.clear();
    }

    /// Gives all slots with a smaller key this one. Those that become equal keep their order.
    pub(super) fn raise(&mut self, least: K) {
        self.keys.iter_mut().for_each(|key| *key = least.max(*key));
    }

    pub(super) fn push(&mut self, key: K, slot: u32, at: &mut [u32]) {
        self.keys.push(key);
        self.slots.push(slot);
        self.rise(self.keys.len() - 1, (key, slot), at);
    }

    /// Gives the slot at `index` a new key.
    pub(super) fn replace(&mut self, index: usize, key: K, at: &mut [u32]) {
        self.restore(index, (key, self.slots[index]), at);
    }

    pub(super) fn remove(&mut self, index: usize, at: &mut [u32]) {
        if let (Some(key), Some(slot)) = (self.keys.pop(), self.slots.pop())
            && index < self.keys.len()
        {
            self.restore(index, (key, slot), at);
        }
    }

    /// Puts an entry at `index`, or where it belongs instead.
    fn restore(&mut self, index: usize, entry: (K, u32), at: &mut [u32]) {
        if index > 0 && entry < self.entry((index - 1) / 2) {
            self.rise(index, entry, at);
        } else {
            self.sink(index, entry, at);
        }
    }

    fn rise(&mut self, mut index: usize, entry: (K, u32), at: &mut [u32]) {
        while index > 0 {
            let parent = (index - 1) / 2;
            if self.entry(parent) <= entry {
                break;
            }
            self.set(index, self.entry(parent), at);
            index = parent;
        }
        self.set(index, entry, at);
    }

    fn sink(&mut self, mut index: usize, entry: (K, u32), at: &mut [u32]) {
        loop {
            let mut child = 2 * index + 1;
            if child >= self.keys.len() {
                break;
            }
            if child + 1 < self.keys.len() && self.entry(child + 1) < self.entry(child) {
                child += 1;
            }
            if entry <= self.entry(child) {
                break;
            }
            self.set(index, self.entry(child), at);
            index = child;
        }
        self.set(index, entry, at);
    }

    fn entry(&self, index: usize) -> (K, u32) {
        (self.keys[index], self.slots[index])
    }

    fn set(&mut self, index: usize, (key, slot): (K, u32), at: &mut [u32]) {
        self.keys[index] = key;
        self.slots[index] = slot;
        at[slot as usize] = index as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    /// A heap beside a list that is searched from end to end.
    struct Pair {
        heap: Heap<u8>,
        at: Vec<u32>,
        list: Vec<(u8, u32)>,
    }

    impl Pair {
        /// Does one step; `slot` is pushed if it is in no heap, and else gets `key` or leaves.
        fn step(&mut self, slot: u32, key: u8, leaves: bool) {
            let Self { heap, at, list } = self;
            let index = at[slot as usize] as usize;
            match list.iter().position(|(_, other)| *other == slot) {
                None => {
                    heap.push(key, slot, at);
                    list.push((key, slot));
                }
                Some(found) if leaves => {
                    heap.remove(index, at);
                    list.swap_remove(found);
                }
                Some(found) => {
                    heap.replace(index, key, at);
                    list[found].0 = key;
                }
            }
        }

        /// Each slot knows its index, each entry has its key, and none is above a smaller one.
        fn check(&self) -> Result<(), TestCaseError> {
            let Self { heap, at, list } = self;
            prop_assert_eq!(heap.keys.len(), list.len());
            for (key, slot) in list {
                prop_assert_eq!(heap.entry(at[*slot as usize] as usize), (*key, *slot));
            }
            for index in 1..list.len() {
                prop_assert!(heap.keys[(index - 1) / 2] <= heap.keys[index]);
            }
            Ok(())
        }
    }

    proptest! {
        #[test]
        fn the_smallest_key_is_first_whatever_is_pushed_replaced_or_removed(
            steps in prop::collection::vec((0u32..20, 0u8..9, any::<bool>()), 0..100),
        ) {
            let mut pair = Pair { heap: Heap::new(), at: vec![0; 20], list: vec![] };
            for (slot, key, leaves) in steps {
                pair.step(slot, key, leaves);
                pair.check()?;
                prop_assert_eq!(pair.heap.first(), pair.list.iter().min().copied());
            }
            pair.heap.clear();
            prop_assert_eq!(pair.heap.first(), None);
        }

        /// It stays a heap by keys; among those that became equal, the first stays first.
        #[test]
        fn keys_that_are_raised_keep_their_order(
            steps in prop::collection::vec((0u32..20, 0u8..9, any::<bool>()), 0..100),
            least in 0u8..12,
            later in prop::collection::vec((0u32..20, 0u8..12, any::<bool>()), 0..40),
        ) {
            let mut pair = Pair { heap: Heap::new(), at: vec![0; 20], list: vec![] };
            steps.into_iter().for_each(|(slot, key, leaves)| pair.step(slot, key, leaves));
            let first = pair.heap.first();
            pair.heap.raise(least);
            pair.list.iter_mut().for_each(|(key, _)| *key = least.max(*key));
            prop_assert_eq!(pair.heap.first(), first.map(|(key, slot)| (key.max(least), slot)));
            pair.check()?;
            for (slot, key, leaves) in later {
                pair.step(slot, key, leaves);
                pair.check()?;
            }
        }
    }
}
